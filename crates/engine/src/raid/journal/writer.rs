//! The journal of a running array.

use std::collections::{BTreeSet, VecDeque};

use super::records::{RecordPlace, Slots, encode};
use crate::layer::{Durability, Io, Port};
use crate::{Buf, Lba};

/// The records of this activation, and the operations that wait for one.
pub struct Journal {
    port: Port,
    slots: Slots,
    /// The epoch that was opened.
    epoch: u64,
    /// The number of the next record.
    next: u64,
    /// Records whose writes are not all durable.
    live: BTreeSet<u64>,
    /// Operations that wait to be recorded.
    queue: VecDeque<u64>,
    writing: bool,
}

impl Journal {
    pub const fn new(port: Port, slots: Slots) -> Journal {
        Journal {
            port,
            slots,
            epoch: 0,
            next: 0,
            live: BTreeSet::new(),
            queue: VecDeque::new(),
            writing: false,
        }
    }

    pub const fn port(&self) -> Port {
        self.port
    }

    /// Opens an epoch, unless a record is being written. Returns the write of its first record, by which a later start knows the journal.
    pub fn open(&mut self, uuid: [u8; 16], epoch: u64) -> Option<Io> {
        if self.writing || self.epoch == epoch {
            return None;
        }
        (self.epoch, self.next, self.writing) = (epoch, 1, true);
        Some(self.record(RecordPlace { uuid, epoch, number: 0, tail: 0 }, &[]))
    }

    /// The first record of an epoch is durable, and no other one is being written.
    pub const fn is_open(&self, epoch: u64) -> bool {
        self.epoch == epoch && !self.writing
    }

    /// Lets an operation wait to be recorded.
    pub fn queue(&mut self, operation: u64) {
        self.queue.push_back(operation);
    }

    /// Begins the record of the operation that has waited for the longest time, unless one is being written or there is no room.
    pub fn begin_record(&mut self, uuid: [u8; 16]) -> Option<(u64, RecordPlace)> {
        let number = self.next;
        // The slot must be free: what was in it has been written to the members.
        let is_full = self.live.first().is_some_and(|oldest| oldest + self.slots.count <= number);
        if self.writing || is_full {
            return None;
        }
        let operation = self.queue.pop_front()?;
        self.live.insert(number);
        (self.next, self.writing) = (number + 1, true);
        let tail = *self.live.first().expect("it has this one");
        Some((operation, RecordPlace { uuid, epoch: self.epoch, number, tail }))
    }

    /// The write of a record. `entries`: roles, places and bytes.
    pub fn record(&self, place: RecordPlace, entries: &[(usize, Lba, &Buf)]) -> Io {
        let buf = encode(&self.slots, place, entries);
        Io::Write { at: self.slots.at(place.number), buf, durability: Durability::Durable }
    }

    /// A record is durable.
    pub const fn written(&mut self) {
        self.writing = false;
    }

    /// The writes of a record are durable.
    pub fn over(&mut self, number: u64) {
        self.live.remove(&number);
    }

    /// The operations that wait to be recorded, which give that up.
    pub fn take_queue(&mut self) -> VecDeque<u64> {
        std::mem::take(&mut self.queue)
    }
}
