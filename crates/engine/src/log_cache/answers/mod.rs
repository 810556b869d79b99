//! Answered writes in memory that outlives the process: the records that the log does not have yet.
//!
//! The memory is a ring of frames. It repeats how the segment buffers are filled: a record begins at its place in the log, gets entries,
//! and is sealed. The next process writes exactly these records to exactly these places (`found.rs`). So a kill has the same outcome as
//! one a little later, when the buffers had been written, and recovery needs no case of its own.
//!
//! - Frames count only below the mark `end`. It is stored once for each event, when all frames of the event are: before any command of the
//!   event is carried out, so before any answer. A kill between two stores leaves out the whole event.
//! - The mark `start` passes a record when the log has it *written*: a completed write is with the kernel or the device, which do not end
//!   with this process. A power cut takes the memory as well; then only durable records count, as without it.
//! - Nothing waits for space here. From an entry that does not fit, records are *uncovered*, until one begins with space for it. Answers
//!   wait until the log has the uncovered records, if clients rely on them.

mod found;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use found::{Ignored, Taken, take_in};

use super::buffers::Stamp;
use super::format::{Entry, LogSuperblock, encode_entry};

/// Memory that the next process finds as this one leaves it.
pub trait SharedMemory {
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores bytes: in any order, and a kill may leave a part of them.
    fn store(&mut self, at: usize, bytes: &[u8]);

    /// Stores a number at once, after everything that was stored before.
    fn mark(&mut self, at: usize, number: u64);

    /// Removes the memory: the log has everything.
    fn remove(self: Box<Self>);
}

/// Error: another process uses the memory of this cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "another process has the memory of this cache in use: it serves a copy of the cache, or has not ended yet"
)]
pub struct MemoryInUse;

/// Place where processes leave memory for each other.
pub trait MemoryPlace {
    /// Identifies this boot of the machine.
    fn boot(&self) -> [u8; 16];

    /// Draws a random number for new memory, from 1 to `max`, that no memory of the cache has; none if that fails.
    fn draw(&mut self, cache: &[u8; 16], max: u32) -> Option<u32>;

    /// Returns the content of the memory of this number that the last process left for a cache, if there is any. Number 0: of a program
    /// that gave none.
    ///
    /// # Errors
    /// If a process still uses it: what that answers is not known yet.
    fn find(&mut self, cache: &[u8; 16], number: u32) -> Result<Option<Vec<u8>>, MemoryInUse>;

    /// Makes new memory of this number for a cache, all zero; none if there is no room.
    fn make(&mut self, cache: &[u8; 16], number: u32, bytes: usize) -> Option<Box<dyn SharedMemory>>;

    /// Removes memory that no start needs any more, unless a process uses it.
    fn forget(&mut self, cache: &[u8; 16], number: u32);
}

/// "DCDANSWR" in ASCII.
const MAGIC: u64 = u64::from_le_bytes(*b"DCDANSWR");
const VERSION: u32 = 1;
const START_AT: usize = 64;
const END_AT: usize = 128;
const HEAD_BYTES: usize = 256;
const FRAME_BYTES: usize = 64;

/// First bytes of the memory. The marks follow, each in a cache line of its own, and then the ring.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeadBytes {
    /// Stored last, as a mark: 0 in memory that is not in use yet.
    magic: U64,
    version: U32,
    /// CRC32C of the fields behind.
    crc: U32,
    boot: [u8; 16],
    cache_uuid: [u8; 16],
    epoch: U64,
    capacity: U32,
    /// In the superblock, too; 0 in memory of older programs.
    number: U32,
}

const _: () = assert!(size_of::<HeadBytes>() == START_AT);

impl HeadBytes {
    fn sum(&self) -> u32 {
        crc32c::crc32c(&self.as_bytes()[16..])
    }
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum FrameKind {
    /// A record begins: sequence number, sector, oldest live and durable sequence numbers, flush epoch, newest uncovered record.
    Record = 1,
    /// An entry, and its payload: kind and LBA, sectors, checksum.
    Entry = 2,
    /// Like `Entry`, but the payload replaces that of the newest entry of this extent in the record.
    Replace = 3,
    /// The record ends: oldest live and durable sequence numbers, and 1 if its request continues in the next record.
    Sealed = 4,
}

impl FrameKind {
    const fn from_u32(kind: u32) -> Option<FrameKind> {
        Some(match kind {
            1 => FrameKind::Record,
            2 => FrameKind::Entry,
            3 => FrameKind::Replace,
            4 => FrameKind::Sealed,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FrameBytes {
    /// CRC32C of the fields behind.
    crc: U32,
    kind: U32,
    /// Bytes that were ever stored in the ring before this frame, so that no frame of an earlier lap is believed.
    position: U64,
    words: [U64; 6],
}

const _: () = assert!(size_of::<FrameBytes>() == FRAME_BYTES);

impl FrameBytes {
    fn sum(&self) -> u32 {
        crc32c::crc32c(&self.as_bytes()[4..])
    }
}

/// Writer of the memory.
pub struct Answers {
    memory: Box<dyn SharedMemory>,
    capacity: u64,
    /// The oldest frame that is retained, the end of those that count, and the end of those that are stored.
    start: u64,
    end: u64,
    head: u64,
    /// Records in the ring, oldest first: number and position.
    records: VecDeque<(u64, u64)>,
    /// The newest record that is not in the ring as a whole; 0: none.
    uncovered: u64,
    /// True until a record begins with space for its first request.
    skips: bool,
    /// The request that is being appended has no space.
    denied: bool,
}

impl Answers {
    /// Returns the memory that holds everything while the log writes `buffers` bytes: entries of small writes take more space here.
    pub const fn bytes_for(buffers: usize) -> usize {
        HEAD_BYTES + buffers + buffers / 8
    }

    /// Begins an activation with memory that is all zero; none if it is too small for a frame.
    pub fn new(
        mut memory: Box<dyn SharedMemory>,
        boot: [u8; 16],
        superblock: &LogSuperblock,
        number: u32,
    ) -> Option<Answers> {
        let capacity = memory.len().checked_sub(HEAD_BYTES)?.min(u32::MAX as usize) / 8 * 8;
        if capacity < 2 * FRAME_BYTES {
            return None;
        }
        let mut head = HeadBytes {
            magic: 0.into(),
            version: VERSION.into(),
            crc: 0.into(),
            boot,
            cache_uuid: superblock.cache_uuid,
            epoch: superblock.epoch.into(),
            capacity: (capacity as u32).into(),
            number: number.into(),
        };
        head.crc = head.sum().into();
        memory.store(8, &head.as_bytes()[8..]);
        memory.mark(0, MAGIC);
        Some(Answers {
            memory,
            capacity: capacity as u64,
            start: 0,
            end: 0,
            head: 0,
            records: VecDeque::new(),
            uncovered: 0,
            skips: false,
            denied: false,
        })
    }

    pub fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Bytes of records that the log does not have yet.
    pub const fn held_bytes(&self) -> u64 {
        self.end - self.start
    }

    /// Returns the record up to which the log must be written before an answer may rely on record `seq`; 0: none.
    pub const fn awaited(&self, seq: u64) -> u64 {
        if self.uncovered < seq { self.uncovered } else { seq }
    }

    /// Notes that a record begins. `whole`: it begins no later part of a request.
    pub fn begin(&mut self, seq: u64, sector: u64, stamp: &Stamp, whole: bool) {
        self.skips &= !whole || self.denied;
        if self.skips || !self.has_room(0, 0, 1) {
            return self.skip(seq);
        }
        self.records.push_back((seq, self.head));
        let Stamp { oldest_live_seq, durable_seq, flush_epoch, .. } = *stamp;
        let words = [seq, sector, oldest_live_seq, durable_seq, flush_epoch, self.uncovered];
        self.put_frame(FrameKind::Record, words);
    }

    /// Announces entries of one request, which are covered together or not at all.
    pub fn announce(&mut self, entries: usize, bytes: usize, records: usize) {
        self.denied = !self.has_room(entries, bytes, records);
        self.skips |= self.denied;
    }

    /// True if the open record `seq` is in the ring, and a request has no space there. The record must end first: the log may have a later
    /// record already, and that must not join a part of this one.
    pub fn ends_before(&self, seq: u64, entries: usize, bytes: usize, records: usize) -> bool {
        let is_covered = self.records.back().is_some_and(|(last, _)| *last == seq);
        is_covered && (self.skips || !self.has_room(entries, bytes, records))
    }

    /// Stores an entry of record `seq`. `replaces`: its payload is that of an older entry of the same extent now.
    pub fn entry(&mut self, seq: u64, entry: &Entry, payload: &[u8], replaces: bool) {
        if self.skips || !self.has_room(1, payload.len(), 0) {
            return self.skip(seq);
        }
        let bytes = encode_entry(entry);
        let words = [bytes.kind_and_lba.get(), bytes.sectors.get().into(), bytes.crc.get().into(), 0, 0, 0];
        self.put_frame(if replaces { FrameKind::Replace } else { FrameKind::Entry }, words);
        self.put(payload);
    }

    /// Notes that the open record ends. Without this frame it counts as ended, so only a frame that says more is indispensable: each record
    /// has reserved space for it.
    pub fn sealed(&mut self, seq: u64, stamp: &Stamp, continues: bool) {
        if self.records.back().is_none_or(|(last, _)| *last != seq) {
            return;
        }
        let words = [stamp.oldest_live_seq, stamp.durable_seq, continues.into(), 0, 0, 0];
        self.put_frame(FrameKind::Sealed, words);
    }

    /// Makes everything count that is stored.
    pub fn publish(&mut self) {
        if self.end < self.head {
            self.end = self.head;
            self.memory.mark(END_AT, self.end);
        }
    }

    /// Drops the records up to `seq`: the log has them.
    pub fn release(&mut self, seq: u64) {
        while self.records.front().is_some_and(|(first, _)| *first <= seq) {
            self.records.pop_front();
        }
        // Only what counts: a mark never passes the other.
        let start = self.records.front().map_or(self.end, |(_, position)| *position).min(self.end);
        if start > self.start {
            self.start = start;
            self.memory.mark(START_AT, start);
        }
    }

    /// Ends the memory: nothing in it is needed any more.
    pub fn remove(self) {
        self.memory.remove();
    }

    fn skip(&mut self, seq: u64) {
        self.skips = true;
        self.uncovered = seq;
    }

    /// True when the ring takes so much, beside the end of the open record.
    const fn has_room(&self, entries: usize, bytes: usize, records: usize) -> bool {
        let needed = (entries + 2 * records + 1) * FRAME_BYTES + bytes;
        self.head - self.start + needed as u64 <= self.capacity
    }

    fn put_frame(&mut self, kind: FrameKind, words: [u64; 6]) {
        let words = words.map(U64::from);
        let mut frame =
            FrameBytes { crc: 0.into(), kind: (kind as u32).into(), position: self.head.into(), words };
        frame.crc = frame.sum().into();
        self.put(frame.as_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        let at = (self.head % self.capacity) as usize;
        let (before, behind) = bytes.split_at(bytes.len().min(self.capacity as usize - at));
        for (at, part) in [(at, before), (0, behind)] {
            if !part.is_empty() {
                self.memory.store(HEAD_BYTES + at, part);
            }
        }
        self.head += bytes.len() as u64;
    }
}
