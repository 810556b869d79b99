//! The file system on a disk that answers when the test says so.

mod calls;
mod check;
mod crash;
mod ext3;
mod journal;
mod random;

use std::collections::VecDeque;

use dcd_engine::{Durability, Io, IoResult, Nanos, Request};

use super::*;

const MIB: u64 = 1 << 20;
/// Time that the disk of these tests needs for any request.
const REQUEST_TIME: Nanos = Nanos::from_millis(5);

/// A small file system: groups of 1 MiB, so that files and directories come into many of them.
pub(super) fn small() -> FfsConfig {
    FfsConfig { group_bytes: 1 << 20, buffer_cache_bytes: 1 << 20, ..FfsConfig::default() }
}

/// A file system over a disk that answers in order, each request after the same time.
pub(super) struct Bench {
    pub ffs: Ffs,
    pub now: Nanos,
    pub requests: VecDeque<(Nanos, Request)>,
    /// Every request so far, as "read 100+16"; durable writes as "write! 100+16".
    pub log: Vec<String>,
    out: FfsOutbox,
}

impl Bench {
    pub fn new(config: FfsConfig, bytes: u64) -> Bench {
        let ffs = Ffs::new(config, bytes / 512).expect("a sound file system");
        let out = FfsOutbox::default();
        Bench { ffs, now: Nanos::ZERO, requests: VecDeque::new(), log: Vec::new(), out }
    }

    pub fn event(&mut self, event: FfsEvent) -> Vec<Return> {
        self.ffs.handle(self.now, event, &mut self.out);
        for request in self.out.requests.drain(..) {
            let extent = request.io.extent();
            let place = extent.map_or(String::new(), |e| format!(" {}+{}", e.start.0, e.sectors));
            let is_durable = matches!(&request.io, Io::Write { durability: Durability::Durable, .. });
            self.log.push(format!("{}{}{place}", request.io.name(), if is_durable { "!" } else { "" }));
            let last = self.requests.back().map_or(self.now, |(at, _)| *at);
            self.requests.push_back((last.max(self.now) + REQUEST_TIME, request));
        }
        std::mem::take(&mut self.out.returns)
    }

    pub fn start(&mut self, process: u32, op: Op) -> Vec<Return> {
        self.event(FfsEvent::Call { process: ProcessId(process), op })
    }

    /// Lets the next thing happen.
    pub fn step(&mut self) -> Vec<Return> {
        let deadline = self.ffs.next_deadline();
        match self.requests.front() {
            Some((at, _)) if *at <= deadline => {
                let (at, request) = self.requests.pop_front().expect("there is a first");
                self.now = at;
                let result = IoResult::ok(request.io.take_buf());
                self.event(FfsEvent::Completed { id: request.id, result })
            }
            _ => {
                self.now = self.now.max(deadline);
                self.event(FfsEvent::Wake)
            }
        }
    }

    /// Makes a call, to its end, and runs the fsck.
    pub fn call(&mut self, op: Op) -> Result<Done, FsError> {
        let mut returns = self.start(0, op);
        while returns.is_empty() {
            returns = self.step();
        }
        self.ffs.check();
        returns[0].result
    }

    pub fn create(&mut self, path: &str, bytes: u64) -> Ino {
        let Ok(Done::Opened(file)) = self.call(Op::Create { path: path.into() }) else { panic!("{path}") };
        if bytes > 0 {
            assert_eq!(self.call(Op::Write { file, offset: 0, bytes }), Ok(Done::Bytes(bytes)));
        }
        file
    }

    pub fn close(&mut self, file: Ino) {
        assert_eq!(self.call(Op::Close { file }), Ok(Done::Nothing));
    }

    /// The requests since the last time, for a test to look at.
    pub fn take_log(&mut self) -> Vec<String> {
        std::mem::take(&mut self.log)
    }
}
