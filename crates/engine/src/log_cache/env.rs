//! The parts of a log cache that its other parts work with: what a decision looks at ([`View`]), what an action changes ([`Env`]), and the
//! purpose of each operation in flight.

use std::ops::Deref;

use super::LogCacheConfig;
use super::data_disk::DataDisk;
use super::destager::ReadBuffers;
use super::disks::{AddressSpace, DataDisks};
use super::index::Index;
use super::log::Log;
use super::queue::Queue;
use super::statistics::LogCacheStatistics;
use super::table::Line;
use super::wear::Wear;
use crate::layer::{Cx, Io, IoResult, OpId, Port, RequestId};
use crate::machine::Lifecycle;
use crate::slab::Slab;
use crate::{Extent, Lba, Nanos};

pub const LOG: Port = Port(0);
/// The first data disk.
pub const DATA: Port = Port(1);

pub const fn data_port(disk: usize) -> Port {
    Port(DATA.0 + disk)
}

/// Purpose of an operation in flight.
pub enum Op {
    /// The buffer whose first record is this.
    LogWrite(u64),
    /// Makes every record up to here durable.
    LogFlush(u64),
    /// A read that the data disk answers alone; `watched`: lines of it are copied.
    Forward {
        id: RequestId,
        at: Lba,
        watched: Option<u64>,
    },
    /// A segment whose hot pieces are copied.
    Save(u64),
    /// A segment whose dirty pieces are carried forward.
    CarryForward(u64),
    /// A part of a read that is put together.
    Part {
        reading: u64,
        part: usize,
    },
    /// A write that bypasses the log.
    Bypass {
        disk: usize,
        key: u64,
    },
    /// A flush of this data disk.
    DataFlush(usize),
    Superblock,
    Destage {
        disk: usize,
        slot: u64,
    },
    /// A block that is written again in this segment, as a copy of it was bad.
    Repair(u32),
    /// An operation on a disk that is being added.
    NewDisk,
    /// A write of a survey in this segment.
    Probe(u32),
    /// A discard of free segments.
    FreedDiscard,
    /// Lines of the fingerprint, read before a clean stop.
    Fingerprint(Extent),
}

impl Op {
    /// Data and log may be on one disk, so anything else than a record may move the head of the log's.
    pub const fn disturb(&self, log: &mut Log) {
        if !matches!(self, Op::LogWrite(_) | Op::LogFlush(_)) {
            log.disturb();
        }
    }
}

/// True if no operation is in flight that a stop waits for. A disk that is being added may hang, and has nothing to lose.
pub fn is_at_rest(ops: &Slab<Op>) -> bool {
    ops.iter().all(|op| matches!(op, Op::NewDisk))
}

/// The parts that a decision looks at.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub now: Nanos,
    pub config: &'a LogCacheConfig,
    pub log: &'a Log,
    pub data: &'a DataDisks,
    pub index: &'a Index,
    pub queue: &'a Queue,
    pub wear: &'a Wear,
    pub life: Lifecycle,
    /// Records before this one are destaged, with ordered destage.
    pub destaged_seq: Option<u64>,
}

impl<'a> View<'a> {
    /// Returns the parts that a decision about one data disk looks at.
    pub fn of(self, disk: usize) -> DiskView<'a> {
        DiskView { all: self, disk, data: &self.data[disk] }
    }
}

/// A [`View`] with one data disk in place of all.
#[derive(Clone, Copy)]
pub struct DiskView<'a> {
    all: View<'a>,
    pub disk: usize,
    pub data: &'a DataDisk,
}

impl<'a> Deref for DiskView<'a> {
    type Target = View<'a>;
    fn deref(&self) -> &View<'a> {
        &self.all
    }
}

impl DiskView<'_> {
    /// Number of data disks.
    pub fn all_disks(&self) -> usize {
        self.all.data.space().count()
    }

    pub fn foreground(&self) -> u64 {
        self.queue.foreground_on(self.disk)
    }

    pub fn last_activity(&self) -> Nanos {
        self.queue.last_activity_on(self.disk)
    }

    /// True if a line is one of the disk.
    pub fn has(&self, line: Line) -> bool {
        self.all.data.disk_of(line.start()) == self.disk
    }

    pub fn extent(&self) -> Extent {
        self.all.data.space().extent(self.disk)
    }
}

/// The parts that an action changes, and what it may know of the others.
pub struct Env<'a> {
    pub config: &'a LogCacheConfig,
    pub log: &'a mut Log,
    pub data: &'a mut DataDisks,
    pub index: &'a mut Index,
    pub queue: &'a mut Queue,
    pub wear: &'a mut Wear,
    pub destage_reads: &'a mut ReadBuffers,
    pub life: Lifecycle,
    /// Records before this one are destaged, with ordered destage.
    pub destaged_seq: Option<u64>,
    pub ops: &'a mut Slab<Op>,
    pub statistics: &'a mut LogCacheStatistics,
    pub cx: &'a mut Cx,
}

impl Env<'_> {
    pub const fn view(&self) -> View<'_> {
        let Env { config, ref log, ref data, ref index, ref queue, ref wear, life, destaged_seq, .. } = *self;
        View { now: self.cx.now, config, log, data, index, queue, wear, life, destaged_seq }
    }

    /// Answers a request of a disk that is not waiting for anything any more.
    pub fn finish(&mut self, disk: usize, id: RequestId, result: IoResult) {
        self.queue.end(disk, self.cx.now);
        self.cx.reply(id, result);
    }

    pub fn flush_data(&mut self, disk: usize) {
        self.data[disk].begin();
        self.submit(data_port(disk), Op::DataFlush(disk), Io::Flush);
    }

    /// Sends an operation to the log, or to a data disk that has the addresses of the operation.
    pub fn submit(&mut self, port: Port, op: Op, mut io: Io) {
        let disk = port.0.checked_sub(DATA.0);
        assert!(disk.is_none_or(|disk| !self.config.is_missing(disk)), "nothing is sent to a missing disk");
        if let Some(disk) = disk {
            let data = &mut self.data[disk];
            match op {
                Op::Forward { .. } | Op::Part { .. } => data.readers.begin(),
                Op::Destage { .. } => data.readers.meet(),
                _ => {}
            }
        }
        if disk.is_none() {
            self.wear.sent(self.cx.now, &io);
        }
        op.disturb(self.log);
        if let Some(extent) = io.extent() {
            match disk {
                Some(disk) => self.data[disk].nearer.sent(false),
                None => self.data.iter_mut().for_each(|data| data.nearer.sent(true)),
            }
            if let (Some(disk), Some(start)) = (disk, io.start_mut()) {
                assert_eq!(
                    self.data.disk_of(extent.start),
                    disk,
                    "an operation goes to the disk of its address"
                );
                start.0 -= AddressSpace::start(disk).0;
            }
        }
        let key = self.ops.insert(op);
        self.cx.submit(port, OpId(key), io);
    }
}
