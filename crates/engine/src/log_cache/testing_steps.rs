//! A log cache on two disks in RAM, driven step by step: tests hold back operations, break disks, and look inside.

use std::collections::BTreeMap;

use super::core::Core;

use super::env::{DATA, LOG};
use super::fingerprint::Fingerprint;
use super::format::OtherDisk;
use super::testing::{Log, Ram, sector_of, unknown};
use super::{LogCacheConfig, LogError, MemoryPlace, activate};
use crate::layer::{
    Command, Control, Cx, Discards, Durability, Event, Geometry, Io, IoError, IoResult, OpId, Port, Ports,
    Report, Request, RequestId,
};
use crate::{BlockDevice, Buf, Extent, Lba, Nanos, SECTOR_BYTES};

/// The log and the data disks.
#[derive(Clone)]
pub struct Disks(pub Vec<Ram>);

impl Disks {
    /// The log and the only data disk.
    pub fn two(self) -> [Ram; 2] {
        self.0.try_into().unwrap_or_else(|_| panic!("there are two"))
    }
}

impl Ports for Disks {
    fn geometry(&self, port: Port) -> Geometry {
        self.0[port.0].geometry()
    }

    fn run(&mut self, port: Port, io: Io) -> IoResult {
        self.0[port.0].run(io)
    }
}

/// Kind of an operation, for tests that look at the order of operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    WriteThrough,
    Flush,
    Erase,
}

pub fn kind(io: &Io) -> Kind {
    match io {
        Io::Read { .. } | Io::ReadCopy { .. } => Kind::Read,
        Io::Write { durability: Durability::Durable, .. }
        | Io::WriteCopy { durability: Durability::Durable, .. } => Kind::WriteThrough,
        Io::Write { .. } | Io::WriteCopy { .. } => Kind::Write,
        Io::Flush => Kind::Flush,
        Io::Discard { .. } | Io::WriteZeroes { .. } => Kind::Erase,
    }
}

/// Slots of the table in one part of a pass.
const SCAN_SLOTS: usize = 16;
/// Slots that one event may visit: a part of each kind of pass, plus a run of entries away from home.
const VISITED_MAX: u64 = 3 * (SCAN_SLOTS as u64 + 64);

/// An operation that is held back.
pub struct Held {
    pub port: Port,
    pub op: OpId,
    pub io: Io,
}

pub type Hold = Box<dyn Fn(Port, &Io) -> bool>;

pub struct Steps {
    pub core: Core,
    pub disks: Disks,
    pub now: Nanos,
    pub hold: Hold,
    pub held: Vec<Held>,
    pub replies: BTreeMap<RequestId, IoResult>,
    pub reports: Vec<Report>,
    /// Every operation that was sent, in order.
    pub sent: Vec<(Port, Kind, Option<Extent>)>,
    /// The data disk that requests are for.
    pub disk: usize,
    next_id: u64,
}

/// A configuration under which no destage starts by itself.
pub fn quiet() -> LogCacheConfig {
    LogCacheConfig {
        idle_empty: Nanos::from_secs(1 << 30),
        idle_full: Nanos::from_secs(1 << 30),
        high_mark: 99,
        segment_buffers: 4,
        ..LogCacheConfig::default()
    }
}

impl Steps {
    /// Formats a log of `segments` of 16 KiB before a data disk of 4 MiB, and starts a cache.
    pub fn new(segments: u32, config: LogCacheConfig) -> Steps {
        Steps::over(1, segments, config).unwrap()
    }

    /// Like [`Steps::new`], over several such data disks.
    pub fn over(disks: usize, segments: u32, config: LogCacheConfig) -> Result<Steps, LogError> {
        let log = Log::new(segments, 512);
        let mut data = Ram { discards: Discards::Zero, ..Ram::new(8192) };
        for lba in 0..8192 {
            data.bytes[lba * 512..][..512].copy_from_slice(&sector_of(lba as u64, 0));
        }
        let mut device = log.device;
        let mut superblock = log.superblock;
        (superblock.data_sectors, superblock.fingerprint) = (8192, unknown(8192));
        superblock.other_disks = (1..disks)
            .map(|disk| OtherDisk {
                data_uuid: [disk as u8; 16],
                sectors: 8192,
                from_seq: 0,
                fingerprint: Fingerprint::default(),
            })
            .collect();
        let copy = super::format::SUPERBLOCK_SECTORS[(superblock.generation % 2) as usize];
        device.write(copy, Buf::copy_of(zerocopy::IntoBytes::as_bytes(&superblock.encode()))).unwrap();
        let mut all = vec![data; 1 + disks];
        all[LOG.0] = device;
        Steps::start(Disks(all), config)
    }

    /// Sends the next requests to this data disk.
    pub fn on(&mut self, disk: usize) -> &mut Steps {
        self.disk = disk;
        self
    }

    pub fn start(disks: Disks, config: LogCacheConfig) -> Result<Steps, LogError> {
        Steps::start_with(disks, None, config)
    }

    pub fn start_with(
        mut disks: Disks,
        memory: Option<&mut (dyn MemoryPlace + 'static)>,
        config: LogCacheConfig,
    ) -> Result<Steps, LogError> {
        // Every pass over the table takes several events.
        let config = LogCacheConfig { scan_slots: SCAN_SLOTS, ..config };
        let core = activate::activate(config, memory, disks.0.len() - 1, &mut disks)?;
        Ok(Steps {
            core,
            disks,
            now: Nanos::from_secs(1),
            hold: Box::new(|_, _| false),
            held: Vec::new(),
            replies: BTreeMap::new(),
            reports: Vec::new(),
            sent: Vec::new(),
            disk: 0,
            next_id: 0,
        })
    }

    /// Cuts the power (the disks lose nothing), and starts again.
    pub fn restart(self, config: LogCacheConfig) -> Steps {
        Steps::start(self.disks, config).unwrap()
    }

    fn handle(&mut self, event: Event) {
        let mut cx = Cx::default();
        let visited = self.core.index.table().visited();
        self.core.handle(event, cx.at(self.now));
        let visited = self.core.index.table().visited() - visited;
        assert!(visited <= VISITED_MAX, "one event looked at {visited} slots of the table");
        self.core.check();
        for command in cx.commands {
            match command {
                Command::Reply { id, result } => {
                    assert!(self.replies.insert(id, result).is_none(), "one answer for each request");
                }
                Command::Report(report) => self.reports.push(report),
                Command::Submit { port, op, io } => {
                    self.sent.push((port, kind(&io), io.extent()));
                    self.held.push(Held { port, op, io });
                }
            }
        }
    }

    /// Carries out all operations that are not to be held back, and immediate wishes of the core.
    pub fn settle(&mut self) {
        loop {
            if let Some(index) = self.held.iter().position(|held| !(self.hold)(held.port, &held.io)) {
                self.carry_out(index);
            } else if self.core.next_deadline().is_some_and(|at| at <= self.now) {
                self.handle(Event::Wake);
            } else {
                return self.check_wakes();
            }
        }
    }

    /// Asserts that a deadline is set where work is left and nothing is in flight. (A host that has to record a failure does so.)
    fn check_wakes(&self) {
        let core = &self.core;
        let waits = !self.held.is_empty() || core.log.awaits_record();
        let goes_on = waits || !core.is_unfinished() || core.next_deadline().is_some();
        assert!(goes_on, "work is left, nothing is in flight, and no deadline is set");
    }

    pub fn carry_out(&mut self, index: usize) {
        let Held { port, op, io } = self.held.remove(index);
        let result = self.disks.run(port, io);
        self.handle(Event::Completed { op, result });
    }

    /// Ends a held operation with the given result.
    pub fn answer(&mut self, index: usize, result: IoResult) {
        let Held { op, .. } = self.held.remove(index);
        self.handle(Event::Completed { op, result });
    }

    /// Ends a held operation with an error.
    pub fn fail(&mut self, index: usize, error: IoError) {
        let Held { op, io, .. } = self.held.remove(index);
        self.handle(Event::Completed { op, result: IoResult::err(io.take_buf(), error) });
        self.settle();
    }

    pub fn send(&mut self, io: Io) -> RequestId {
        self.next_id += 1;
        let id = RequestId(self.next_id);
        self.handle(Event::Request(Request { id, disk: self.disk, io }));
        self.settle();
        id
    }

    pub fn control(&mut self, control: Control) {
        self.handle(Event::Control(control));
        self.settle();
    }

    /// Advances the time. The core is woken only at its deadlines.
    pub fn wait(&mut self, seconds: u64) {
        let end = self.now + Nanos::from_secs(seconds);
        while let Some(at) = self.core.next_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.handle(Event::Wake);
            self.settle();
        }
        self.now = end;
    }

    /// Stops holding back operations.
    pub fn let_go(&mut self) {
        self.hold = Box::new(|_, _| false);
        self.settle();
    }

    /// Writes sectors that carry `tag`.
    pub fn write(&mut self, lba: u64, sectors: u64, tag: u8) -> RequestId {
        self.write_as(lba, sectors, tag, Durability::Volatile)
    }

    pub fn write_as(&mut self, lba: u64, sectors: u64, tag: u8, durability: Durability) -> RequestId {
        let bytes: Vec<u8> = (lba..lba + sectors).flat_map(|lba| sector_of(lba, tag)).collect();
        self.send(Io::Write { at: Lba(lba), buf: Buf::copy_of(&bytes), durability })
    }

    pub fn flush(&mut self) -> RequestId {
        self.send(Io::Flush)
    }

    pub fn status(&self, id: RequestId) -> Option<Result<(), IoError>> {
        self.replies.get(&id).map(|result| result.status)
    }

    pub fn is_ok(&self, id: RequestId) -> bool {
        self.status(id) == Some(Ok(()))
    }

    /// Returns the tag of a sector as a client reads it; 0 is the first content, `None` an error, 255 anything else.
    pub fn read(&mut self, lba: u64) -> Option<u8> {
        let id = self.send(Io::Read { at: Lba(lba), buf: Buf::zeroed(SECTOR_BYTES as usize) });
        let result = self.replies.remove(&id).expect("reads are not held back");
        result.status.ok().map(|()| tag_of(lba, result.buf.bytes()))
    }

    /// Returns the tag of a sector on the data disk alone.
    pub fn on_data_disk(&self, lba: u64) -> u8 {
        tag_of(lba, &self.disks.0[DATA.0 + self.disk].bytes[lba as usize * 512..][..512])
    }

    pub fn log(&mut self) -> &mut Ram {
        &mut self.disks.0[LOG.0]
    }

    pub fn data(&mut self) -> &mut Ram {
        &mut self.disks.0[DATA.0]
    }

    /// Destages everything.
    pub fn drain(&mut self) {
        self.control(Control::Drain);
        self.wait(10);
    }
}

/// Tag of a sector of zeroes.
pub const ZEROES: u8 = 254;

fn tag_of(lba: u64, bytes: &[u8]) -> u8 {
    if bytes.iter().all(|byte| *byte == 0) {
        return ZEROES;
    }
    let tag = bytes[511];
    if bytes == sector_of(lba, tag) { tag } else { 255 }
}
