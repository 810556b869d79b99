//! The parts of a log cache that its other parts work with: what a decision looks at ([`View`]), what an action changes ([`Env`]), and the
//! purpose of each operation in flight.

use super::LogCacheConfig;
use super::data_disk::DataDisk;
use super::index::Index;
use super::log::Log;
use super::queue::Queue;
use super::statistics::LogCacheStatistics;
use crate::layer::{Cx, Io, IoResult, OpId, Port, RequestId};
use crate::machine::Lifecycle;
use crate::slab::Slab;
use crate::{Extent, Lba, Nanos};

pub const LOG: Port = Port(0);
pub const DATA: Port = Port(1);

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
    /// A part of a read that is put together.
    Part {
        reading: u64,
        part: usize,
    },
    /// A write that bypasses the log.
    Bypass(u64),
    DataFlush,
    Superblock,
    Destage(u64),
    /// A block that is written again in this segment, as a copy of it was bad.
    Repair(u32),
    /// A write of a survey in this segment.
    Probe(u32),
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

/// The parts that a decision looks at.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub now: Nanos,
    pub config: &'a LogCacheConfig,
    pub log: &'a Log,
    pub data: &'a DataDisk,
    pub index: &'a Index,
    pub queue: &'a Queue,
    pub life: Lifecycle,
    /// Records before this one are destaged, with ordered destage.
    pub destaged_seq: Option<u64>,
}

/// The parts that an action changes, and what it may know of the others.
pub struct Env<'a> {
    pub config: &'a LogCacheConfig,
    pub log: &'a mut Log,
    pub data: &'a mut DataDisk,
    pub index: &'a mut Index,
    pub queue: &'a mut Queue,
    pub life: Lifecycle,
    /// Records before this one are destaged, with ordered destage.
    pub destaged_seq: Option<u64>,
    pub ops: &'a mut Slab<Op>,
    pub statistics: &'a mut LogCacheStatistics,
    pub cx: &'a mut Cx,
}

impl Env<'_> {
    pub const fn view(&self) -> View<'_> {
        let Env { config, ref log, ref data, ref index, ref queue, life, destaged_seq, .. } = *self;
        View { now: self.cx.now, config, log, data, index, queue, life, destaged_seq }
    }

    /// Answers a request that is not waiting for anything any more.
    pub fn finish(&mut self, id: RequestId, result: IoResult) {
        self.queue.end(self.cx.now);
        self.cx.reply(id, result);
    }

    pub fn flush_data(&mut self) {
        self.data.begin();
        self.submit(DATA, Op::DataFlush, Io::Flush);
    }

    pub fn submit(&mut self, port: Port, op: Op, io: Io) {
        match op {
            Op::Forward { .. } | Op::Part { .. } if port == DATA => self.data.readers.begin(),
            Op::Destage(_) if port == DATA => self.data.readers.meet(),
            _ => {}
        }
        op.disturb(self.log);
        if io.extent().is_some() {
            self.data.nearer.sent(port == LOG);
        }
        let key = self.ops.insert(op);
        self.cx.submit(port, OpId(key), io);
    }
}
