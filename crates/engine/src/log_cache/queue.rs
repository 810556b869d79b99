//! The queue: requests that wait, for space in the log, for something to be durable, or for their turn.
//!
//! It promises:
//!
//! - Writes to a disk are done in the order in which they came. A write that waits for something of its own disk alone is passed by
//!   those to other disks; one that waits for the log is passed by none.
//! - A write that has begun goes first, so nothing comes between the records of a chain.
//! - A request is in the foreground from [`Queue::begin`] until it is answered or its answer is delayed.
//! - Answers are delayed by no more than the pace of destaging asks for, and in the order of their time.

use std::collections::{BTreeMap, VecDeque};

use super::format::EntryKind;
use super::gather::Gathering;
use crate::layer::{Durability, Io, IoResult, RequestId};
use crate::{Buf, Extent, LINE_SECTORS, Nanos, SECTOR_BYTES};

/// Maximum delay of an answer, whatever the pace: it is computed from rates that change.
const HELD_MAX: Nanos = Nanos::from_secs(1);

/// A request that changes data, and its progress.
pub struct PendingWrite {
    pub disk: usize,
    pub id: RequestId,
    pub change: PendingChange,
    pub extent: Extent,
    pub buf: Buf,
    pub durability: Durability,
    /// Sectors that are in the log.
    pub done: u64,
    /// Sectors of which the log has no copy any more, as the write passes it.
    pub passed: u64,
    /// Number of the write in the order of arrival.
    arrival: u64,
}

/// Reason why the first write to a disk is not done yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteWait {
    /// Room in the log, a buffer, or its turn: all other writes would wait for that, too.
    Log,
    /// Something of its own disk alone.
    Disk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingChange {
    Data,
    Range(EntryKind),
}

impl PendingWrite {
    pub fn new(disk: usize, id: RequestId, io: Io) -> PendingWrite {
        let extent = io.extent().expect("it changes data somewhere");
        let (change, buf, durability) = match io {
            Io::Write { buf, durability, .. } | Io::WriteCopy { buf, durability, .. } => {
                (PendingChange::Data, buf, durability)
            }
            Io::Discard { .. } => {
                (PendingChange::Range(EntryKind::Discard), Buf::none(), Durability::Volatile)
            }
            Io::WriteZeroes { unmap: true, durability, .. } => {
                (PendingChange::Range(EntryKind::ZeroesUnmap), Buf::none(), durability)
            }
            Io::WriteZeroes { durability, .. } => {
                (PendingChange::Range(EntryKind::Zeroes), Buf::none(), durability)
            }
            Io::Read { .. } | Io::ReadCopy { .. } | Io::Flush => {
                unreachable!("reads and flushes change nothing")
            }
        };
        PendingWrite { disk, id, change, extent, buf, durability, done: 0, passed: 0, arrival: 0 }
    }

    const fn has_begun(&self) -> bool {
        self.done > 0 || self.passed > 0
    }

    /// Returns the operation, to be sent to the data disk.
    pub fn into_io(self, durability: Durability) -> Io {
        let extent = self.extent;
        match self.change {
            PendingChange::Data => Io::Write { at: extent.start, buf: self.buf, durability },
            PendingChange::Range(EntryKind::Discard) => Io::Discard { extent },
            PendingChange::Range(kind) => {
                Io::WriteZeroes { extent, unmap: kind == EntryKind::ZeroesUnmap, durability }
            }
        }
    }

    /// The part of the next line that is still to be done.
    pub fn next_piece(&self) -> Extent {
        let start = self.extent.start + self.done;
        let line_end = (start.0 / LINE_SECTORS + 1) * LINE_SECTORS;
        Extent::new(start, line_end.min(self.extent.end().0) - start.0)
    }

    pub fn pieces_left(&self) -> usize {
        let start = self.extent.start.0 + self.done;
        ((self.extent.end().0 - 1) / LINE_SECTORS - start / LINE_SECTORS + 1) as usize
    }

    pub fn bytes_left(&self) -> usize {
        ((self.extent.sectors - self.done) * SECTOR_BYTES) as usize
    }
}

/// A request that is answered once a record is durable, and a flush of its data disk has covered a number of writes that bypassed the
/// log.
pub struct DurableWaiter {
    pub disk: usize,
    pub id: RequestId,
    pub seq: u64,
    /// True when the record must be written, but need not be durable.
    pub written: bool,
    pub bypass: u64,
    pub result: IoResult,
}

impl DurableWaiter {
    /// True if a record after this one has to be durable.
    pub const fn waits_after(&self, seq: u64) -> bool {
        !self.written && self.seq > seq
    }
}

/// The clients of a data disk.
#[derive(Default)]
struct DiskClients {
    pending: VecDeque<PendingWrite>,
    /// The first write waits for the disk: it is not tried again before something has happened.
    waits: bool,
    /// The first write waits as the disk has its share of the log.
    wants_share: bool,
    pace: Nanos,
    foreground: u64,
    last_activity: Nanos,
}

/// See the module's documentation.
pub struct Queue {
    arrivals: u64,
    waiters: Vec<DurableWaiter>,
    pub gathering: Gathering,
    delayed: BTreeMap<(Nanos, u64), (RequestId, IoResult)>,
    delayed_count: u64,
    clients: Vec<DiskClients>,
    last_write: Option<Nanos>,
    wants_space: bool,
    /// The first write has let other events go before it.
    has_yielded: bool,
}

impl Queue {
    pub fn new(disks: usize) -> Queue {
        Queue {
            arrivals: 0,
            waiters: Vec::new(),
            gathering: Gathering::default(),
            delayed: BTreeMap::new(),
            delayed_count: 0,
            clients: (0..disks).map(|_| DiskClients::default()).collect(),
            last_write: None,
            wants_space: false,
            has_yielded: false,
        }
    }

    /// Takes a disk in a new place, or in that of one without requests.
    pub fn set_disk(&mut self, disk: usize) {
        match self.clients.get_mut(disk) {
            Some(clients) => {
                assert_eq!((clients.pending.len(), clients.foreground), (0, 0), "nobody waits for the disk");
                *clients = DiskClients::default();
            }
            None => self.clients.push(DiskClients::default()),
        }
    }

    /// Notes that a request to a disk has come.
    pub fn begin(&mut self, disk: usize, now: Nanos) {
        self.clients[disk].foreground += 1;
        self.touch(disk, now);
    }

    /// Notes that a request is answered.
    pub fn end(&mut self, disk: usize, now: Nanos) {
        self.clients[disk].foreground -= 1;
        self.touch(disk, now);
    }

    /// Notes that a request changes data.
    pub const fn note_write(&mut self, now: Nanos) {
        self.last_write = Some(now);
    }

    pub const fn last_write(&self) -> Option<Nanos> {
        self.last_write
    }

    /// Notes that a request makes progress.
    pub fn touch(&mut self, disk: usize, now: Nanos) {
        self.clients[disk].last_activity = now;
    }

    /// Requests of all disks in the foreground.
    pub fn foreground(&self) -> u64 {
        self.clients.iter().map(|clients| clients.foreground).sum()
    }

    pub fn foreground_on(&self, disk: usize) -> u64 {
        self.clients[disk].foreground
    }

    pub fn last_activity(&self) -> Nanos {
        self.clients.iter().map(|clients| clients.last_activity).max().unwrap_or_default()
    }

    pub fn last_activity_on(&self, disk: usize) -> Nanos {
        self.clients[disk].last_activity
    }

    /// Appends a request; true if none to its disk waits before it.
    pub fn push(&mut self, pending: PendingWrite) -> bool {
        self.arrivals += 1;
        let clients = &mut self.clients[pending.disk];
        clients.pending.push_back(PendingWrite { arrival: self.arrivals, ..pending });
        clients.pending.len() == 1
    }

    /// Lets the first write to each disk be tried again.
    pub fn try_all(&mut self) {
        self.clients.iter_mut().for_each(|clients| clients.waits = false);
    }

    /// Takes the next write: one that has begun, or else the oldest one that does not wait for its disk.
    pub fn pop(&mut self) -> Option<PendingWrite> {
        let turn = |clients: &DiskClients| {
            let first = clients.pending.front().filter(|_| !clients.waits)?;
            Some((!first.has_begun(), first.arrival))
        };
        let ready = self.clients.iter_mut().filter_map(|clients| turn(clients).map(|turn| (turn, clients)));
        ready.min_by_key(|(turn, _)| *turn)?.1.pending.pop_front()
    }

    /// Puts a write that has to wait back to the front.
    pub fn put_back(&mut self, pending: PendingWrite, wait: WriteWait) {
        let clients = &mut self.clients[pending.disk];
        clients.waits = wait == WriteWait::Disk;
        clients.pending.push_front(pending);
    }

    pub fn has_pending(&self) -> bool {
        self.clients.iter().any(|clients| !clients.pending.is_empty())
    }

    pub fn has_pending_on(&self, disk: usize) -> bool {
        !self.clients[disk].pending.is_empty()
    }

    /// True while a write waits for the log, or has not been tried.
    pub fn has_pending_for_log(&self) -> bool {
        self.clients.iter().any(|clients| !clients.pending.is_empty() && !clients.waits)
    }

    /// Notes that the first write does not fit the log.
    pub const fn want_space(&mut self) {
        self.wants_space = true;
    }

    /// Notes that the first write to a disk waits as the disk has its share of the log.
    pub fn want_share(&mut self, disk: usize) {
        self.clients[disk].wants_share = true;
    }

    /// Notes that the first write to a disk is in the log. The next one may wait for something else: its turn, or a buffer.
    pub fn got_space(&mut self, disk: usize) {
        self.wants_space = false;
        self.clients[disk].wants_share = false;
    }

    /// Notes that the first write goes on only after other events.
    pub const fn yield_turn(&mut self) {
        self.has_yielded = true;
    }

    pub const fn has_yielded(&self) -> bool {
        self.has_yielded
    }

    pub const fn take_turn(&mut self) -> bool {
        std::mem::replace(&mut self.has_yielded, false)
    }

    /// Clears the want of space where no write is pending.
    pub fn settle(&mut self) {
        self.wants_space &= self.has_pending();
        self.clients.iter_mut().for_each(|clients| clients.wants_share &= !clients.pending.is_empty());
    }

    /// True while a write has no room in the log.
    pub const fn wants_space(&self) -> bool {
        self.wants_space
    }

    /// True while a write to a disk waits as the disk has its share of the log.
    pub fn wants_share(&self, disk: usize) -> bool {
        self.clients[disk].wants_share
    }

    /// True while a write to a disk waits until something of that disk is destaged.
    pub fn wants_space_on(&self, disk: usize) -> bool {
        self.wants_space || self.wants_share(disk)
    }

    /// True while a write waits until something is destaged.
    pub fn wants_any_space(&self) -> bool {
        self.wants_space || self.clients.iter().any(|clients| clients.wants_share)
    }

    pub fn wait(&mut self, waiter: DurableWaiter) {
        self.waiters.push(waiter);
    }

    pub fn waiters(&self) -> &[DurableWaiter] {
        &self.waiters
    }

    /// Notes that the log is durable up to a record.
    pub fn durable(&mut self, now: Nanos, seq: u64) {
        let waits = |after| self.waiters.iter().filter(|waiter| waiter.waits_after(after)).count();
        self.gathering.durable(now, seq, waits);
    }

    /// Takes out the waiters that `is_taken` selects.
    pub fn take_waiters(&mut self, is_taken: impl Fn(&DurableWaiter) -> bool) -> Vec<DurableWaiter> {
        self.waiters.extract_if(.., |waiter| is_taken(waiter)).collect()
    }

    /// Returns when a write to a disk may be answered: `nanos` after the one before; if `None`, now.
    pub fn pace(&mut self, disk: usize, now: Nanos, nanos: Option<u64>) -> Nanos {
        let pace = &mut self.clients[disk].pace;
        let paced = |nanos| ((*pace).max(now) + Nanos(nanos)).min(now + HELD_MAX);
        *pace = nanos.map_or(now, paced);
        *pace
    }

    /// Holds an answer back.
    pub fn delay(&mut self, until: Nanos, disk: usize, id: RequestId, result: IoResult) {
        self.clients[disk].foreground -= 1;
        self.delayed_count += 1;
        self.delayed.insert((until, self.delayed_count), (id, result));
    }

    pub fn next_answer(&self) -> Option<Nanos> {
        self.delayed.first_key_value().map(|(key, _)| key.0)
    }

    /// Returns an answer whose delay has passed.
    pub fn pop_answer(&mut self, now: Nanos) -> Option<(RequestId, IoResult)> {
        self.next_answer().filter(|at| *at <= now)?;
        self.delayed.pop_first().map(|(_, answer)| answer)
    }
}
