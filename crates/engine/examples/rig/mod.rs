//! A log cache over devices that answer at once, for measurements: only the engine's own work is on the clock.
//!
//! Requests go in by batches, as from a loop that takes what has arrived. What the stack asks of its devices is carried out
//! between two stretches that are timed, so the devices cost nothing, whatever they copy.
#![allow(dead_code)] // Each program uses its part.

use std::hint::black_box;
use std::time::Duration;

use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig};
use dcd_engine::*;

/// The CPU time that this thread has had: what others do on the machine meanwhile does not count.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The time between two readings of the clock with nothing between them: the median of many.
fn cost_of_clock() -> Duration {
    let mut spans: Vec<Duration> = (0..1001)
        .map(|_| {
            let started = cpu_time();
            cpu_time() - started
        })
        .collect();
    spans.sort_unstable();
    spans[spans.len() / 2]
}

/// A device in RAM. It may keep only its first bytes: the rest reads as zeroes, whatever is written.
#[derive(Default)]
pub struct Ram {
    sectors: u64,
    bytes: Vec<u8>,
}

impl Ram {
    pub fn new(bytes: u64) -> Ram {
        Ram { sectors: bytes / SECTOR_BYTES, bytes: vec![0; bytes as usize] }
    }

    pub fn of(bytes: Vec<u8>) -> Ram {
        Ram { sectors: bytes.len() as u64 / SECTOR_BYTES, bytes }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// A device that keeps its superblocks and nothing else.
    pub fn without_bytes(bytes: u64) -> Ram {
        Ram { sectors: bytes / SECTOR_BYTES, bytes: vec![0; KEPT_BYTES] }
    }

    /// Range of an operation within the bytes that are stored.
    fn kept(&self, at: Lba, len: usize) -> std::ops::Range<usize> {
        let end = self.bytes.len();
        (at.bytes() as usize).min(end)..(at.bytes() as usize + len).min(end)
    }
}

impl BlockDevice for Ram {
    fn geometry(&self) -> Geometry {
        Geometry { discards: Discards::Zero, ..Geometry::plain(self.sectors) }
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        match &mut io {
            Io::Read { at, buf } if !buf.is_blank() => {
                let kept = self.kept(*at, buf.len());
                let (from_bytes, zeroes) = buf.bytes_mut().split_at_mut(kept.len());
                from_bytes.copy_from_slice(&self.bytes[kept]);
                zeroes.fill(0);
            }
            Io::Write { at, buf, .. } if !buf.is_blank() => {
                let kept = self.kept(*at, buf.len());
                let len = kept.len();
                self.bytes[kept].copy_from_slice(&buf.bytes()[..len]);
            }
            Io::Discard { extent } | Io::WriteZeroes { extent, .. } => {
                let kept = self.kept(extent.start, (extent.sectors * SECTOR_BYTES) as usize);
                self.bytes[kept].fill(0);
            }
            _ => {}
        }
        IoResult::ok(io.take_buf())
    }
}

/// The devices below the stack, and the time.
#[derive(Default)]
struct Below {
    devices: [Ram; 2],
    now: Nanos,
    outputs: Vec<Output>,
    completed: Vec<(Tag, IoResult)>,
    replies: Vec<(RequestId, IoResult)>,
    reports: Vec<Report>,
}

impl Below {
    /// Carries out what the stack asked for.
    fn carry_out(&mut self, stack: &mut Stack) {
        stack.take_outputs(&mut self.outputs);
        for output in self.outputs.drain(..) {
            match output {
                Output::Device { device, tag, io } => {
                    self.completed.push((tag, self.devices[device.0].run(io)));
                }
                Output::Reply { id, result } => self.replies.push((id, result)),
                Output::Report { report, .. } => self.reports.push(report),
            }
        }
    }
}

impl Pump for Below {
    fn now(&self) -> Nanos {
        self.now
    }

    fn pump(&mut self, stack: &mut Stack) {
        self.carry_out(stack);
        for (tag, result) in std::mem::take(&mut self.completed) {
            stack.complete(self.now, tag, result);
        }
    }
}

/// A stack of one log cache, driven by hand.
pub struct Rig {
    stack: Stack,
    below: Below,
    /// Time spent in the engine.
    pub spent: Duration,
    /// Cost of reading the clock with nothing between: a system call, and not the engine's time.
    clock: Duration,
}

const CACHE: LayerIndex = LayerIndex(0);
/// Bytes that a device without bytes stores: where the superblocks are.
pub const KEPT_BYTES: usize = 16 << 10;

impl Rig {
    pub fn new(config: LogCacheConfig, log_block_bytes: u32, mut log: Ram, mut data: Ram) -> Rig {
        let options = FormatOptions {
            log_block_bytes: Some(log_block_bytes),
            ..FormatOptions::new(*b"a cache measured", *b"its data disk...")
        };
        format(&mut log, &mut data, &options).expect("formatted");
        Rig::start(config, [log, data])
    }

    /// A cache over a log that has been formatted, and its data disk.
    pub fn start(config: LogCacheConfig, devices: [Ram; 2]) -> Rig {
        let mut builder = StackBuilder::new();
        let ports = [builder.device(devices[0].geometry()), builder.device(devices[1].geometry())];
        let root = builder.layer("cache", Box::new(LogCache::new(config)), &ports);
        let mut below = Below { devices, ..Below::default() };
        let mut stack = builder.finish(root);
        stack.activate(&mut below).expect("active");
        Rig { stack, below, spent: Duration::ZERO, clock: cost_of_clock() }
    }

    /// The log and the data disk, as they are now: the cache does not know that it ends.
    pub fn crash(self) -> [Ram; 2] {
        self.below.devices
    }

    pub fn status(&self) -> serde_json::Value {
        self.stack.layer(CACHE).status(self.below.now).to_json()
    }

    /// Reads a counter of `dcd status`.
    pub fn count(&self, name: &str) -> u64 {
        self.status()["statistics"][name].as_u64().expect("a counter")
    }

    /// Sends a batch in, and goes on until all of it is answered. The buffers come back.
    pub fn serve(&mut self, batch: &mut Vec<Request>, mut answered: impl FnMut(RequestId, Buf)) {
        let mut left = batch.len();
        let now = self.below.now;
        self.timed(|stack| {
            for request in batch.drain(..) {
                stack.request(now, request);
                black_box(stack.next_deadline());
            }
        });
        loop {
            self.below.carry_out(&mut self.stack);
            for (id, result) in self.below.replies.drain(..) {
                result.status.expect("nothing fails here");
                answered(id, result.buf);
                left -= 1;
            }
            if left == 0 {
                return;
            }
            self.step();
        }
    }

    /// Sends one request in, and gives its answer, whatever it is.
    pub fn ask(&mut self, io: Io) -> IoResult {
        self.stack.request(self.below.now, Request { id: RequestId(0), disk: 0, io });
        loop {
            self.below.carry_out(&mut self.stack);
            if let Some((_, result)) = self.below.replies.pop() {
                return result;
            }
            self.step();
        }
    }

    /// Returns the bytes of the log device.
    pub fn log_bytes(&mut self) -> &mut [u8] {
        &mut self.below.devices[0].bytes
    }

    /// Destages everything.
    pub fn drain(&mut self) {
        let now = self.below.now;
        self.timed(|stack| stack.control(now, CACHE, Control::Drain));
        while self.below.reports.pop().is_none() {
            self.below.carry_out(&mut self.stack);
            self.step();
        }
    }

    /// Lets time go on until the stack wants nothing more.
    pub fn rest(&mut self) {
        loop {
            self.below.carry_out(&mut self.stack);
            if self.below.completed.is_empty() && self.stack.next_deadline().is_none() {
                return;
            }
            self.step();
        }
    }

    /// Tells the stack what its devices have done; where they have nothing to do, time goes on to the next deadline.
    fn step(&mut self) {
        let mut completed = std::mem::take(&mut self.below.completed);
        if completed.is_empty() {
            self.below.now = self.stack.next_deadline().unwrap_or(self.below.now).max(self.below.now);
        }
        let now = self.below.now;
        self.timed(|stack| {
            if completed.is_empty() {
                stack.wake(now);
            }
            for (tag, result) in completed.drain(..) {
                stack.complete(now, tag, result);
                black_box(stack.next_deadline());
            }
        });
        self.below.completed = completed;
    }

    fn timed(&mut self, f: impl FnOnce(&mut Stack)) {
        let started = cpu_time();
        f(&mut self.stack);
        self.spent += (cpu_time() - started).saturating_sub(self.clock);
    }
}
