//! Segment buffers: the RAM in front of the log (Nightingale et al. 1999, section 3.4).
//!
//! A buffer covers a stretch of one segment, from the head on. Appended data gets its address in the log immediately
//! (unified addressing), so the lookup table need not change when the buffer is written. A buffer is kept until what it
//! holds is durable, not only written: after a failed flush it is the only copy that can be trusted (rule 6).
//!
//! States: *filling* (one at most, appended to) → *writing* → *written* → free, when its last record is durable.

use std::collections::VecDeque;

use super::format::{Entries, Entry, EntryKind, Header, encode_header, entries_max};
use crate::{Buf, Extent, Lba, Nanos, SECTOR_BYTES};

/// Fields of a record header that do not depend on its entries.
#[derive(Clone, Copy, Debug)]
pub struct Stamp {
    pub cache_uuid: [u8; 16],
    pub epoch: u64,
    pub oldest_live_seq: u64,
    pub durable_seq: u64,
    pub flush_epoch: u64,
}

/// The record that is being filled.
struct OpenRecord {
    header_at: usize,
    entries: Entries,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferPhase {
    Filling,
    Writing,
    Written,
}

/// Maximum bytes in the log for `pieces` entries with `payload` bytes: headers, payload and padding.
pub fn space(block: usize, pieces: usize, payload: usize) -> usize {
    let records = pieces.div_ceil(entries_max(block as u32));
    payload + records * (2 * block - SECTOR_BYTES as usize)
}

/// A segment buffer. Its records are `first_seq..=last_seq`; the open one is `last_seq`.
pub struct SegmentBuffer {
    memory: Buf,
    /// The sector of the log where the buffer's first byte goes.
    pub start: u64,
    capacity: usize,
    used: usize,
    block: usize,
    open: Option<OpenRecord>,
    pub first_seq: u64,
    pub last_seq: u64,
    pub since: Nanos,
    /// Time when its write was sent.
    pub sent: Nanos,
    pub state: BufferPhase,
    /// Written with FUA.
    pub through: bool,
}

impl SegmentBuffer {
    /// True when `pieces` entries with `payload` bytes in all fit, as one record or several.
    pub fn fits(&self, pieces: usize, payload: usize) -> bool {
        self.used.next_multiple_of(self.block) + space(self.block, pieces, payload) <= self.capacity
    }

    /// True when one entry with this much payload fits, in the open record or in a new one.
    pub fn fits_one(&self, payload: usize) -> bool {
        let begins = !self.has_open() || self.record_is_full();
        let start = if begins { self.used.next_multiple_of(self.block) + self.block } else { self.used };
        (start + payload).next_multiple_of(self.block) <= self.capacity
    }

    /// True when the buffer has no record; it may have a summary.
    pub const fn is_empty(&self) -> bool {
        self.first_seq == 0
    }

    /// The sector after the last one used.
    pub fn end(&self) -> u64 {
        self.start + (self.used as u64).div_ceil(SECTOR_BYTES)
    }

    pub fn has_open(&self) -> bool {
        self.open.is_some()
    }

    /// True if one more entry would need a new record.
    pub fn record_is_full(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.entries.len() == entries_max(self.block as u32))
    }

    /// Number of entries that still fit the open record.
    pub fn entries_left(&self) -> usize {
        entries_max(self.block as u32) - self.open.as_ref().map_or(0, |open| open.entries.len())
    }

    /// Begins a record with the sequence number `seq`.
    pub fn begin(&mut self, seq: u64, entries: Entries) {
        assert!(
            self.open.is_none() && self.used.is_multiple_of(self.block),
            "a record begins where the last one ended"
        );
        self.open = Some(OpenRecord { header_at: self.used, entries });
        if self.first_seq == 0 {
            self.first_seq = seq;
        }
        self.last_seq = seq;
        self.used += self.block;
    }

    /// Appends payload to the open record; returns its place in the log and its checksum.
    pub fn append(&mut self, kind: EntryKind, extent: Extent, source: &Buf, source_at: usize) -> (u64, u32) {
        let bytes = (extent.sectors * SECTOR_BYTES) as usize;
        let at = self.used;
        self.memory.copy_from(at, source, source_at, bytes);
        let crc = match self.memory.is_blank() {
            true => 0,
            false => crc32c::crc32c(&self.memory.bytes()[at..at + bytes]),
        };
        self.used += bytes;
        self.note(Entry { kind, extent, crc });
        (self.start + at as u64 / SECTOR_BYTES, crc)
    }

    /// Replaces older payload, if the open record holds exactly this extent and no later entry touches it; returns the same as
    /// [`SegmentBuffer::append`]. A crash takes a record as a whole or not at all, so it does not matter that the older payload never
    /// reached the log.
    pub fn overwrite(&mut self, extent: Extent, source: &Buf, source_at: usize) -> Option<(u64, u32)> {
        let open = self.open.as_mut()?;
        let index = open.entries.iter().rposition(|entry| entry.extent.overlaps(extent))?;
        if open.entries[index].kind != EntryKind::Data || open.entries[index].extent != extent {
            return None;
        }
        let sectors: u64 = open.entries[..index].iter().map(Entry::payload_sectors).sum();
        let at = open.header_at + self.block + (sectors * SECTOR_BYTES) as usize;
        let bytes = (extent.sectors * SECTOR_BYTES) as usize;
        self.memory.copy_from(at, source, source_at, bytes);
        let crc = match self.memory.is_blank() {
            true => 0,
            false => crc32c::crc32c(&self.memory.bytes()[at..at + bytes]),
        };
        open.entries[index].crc = crc;
        Some((self.start + at as u64 / SECTOR_BYTES, crc))
    }

    /// Adds an entry without payload to the open record.
    pub fn note(&mut self, entry: Entry) {
        self.open.as_mut().expect("a record is open").entries.push(entry);
    }

    /// Puts the summary of the segment before at the start of the buffer and of its segment.
    fn begin_with(&mut self, summary: &[u8]) {
        assert!(self.used == 0, "a summary is before all records");
        if !self.memory.is_blank() {
            self.memory.bytes_mut()[..summary.len()].copy_from_slice(summary);
        }
        self.used = summary.len();
    }

    /// Ends the open record: pads it, and writes its header.
    pub fn seal(&mut self, stamp: &Stamp, continues: bool) -> Option<Header> {
        let open = self.open.take()?;
        let end = self.used.next_multiple_of(self.block);
        self.memory.zero(self.used, end - self.used);
        self.used = end;
        let header = Header {
            epoch: stamp.epoch,
            seq: self.last_seq,
            sector: self.start + open.header_at as u64 / SECTOR_BYTES,
            oldest_live_seq: stamp.oldest_live_seq,
            durable_seq: stamp.durable_seq,
            flush_epoch: stamp.flush_epoch,
            sectors: ((end - open.header_at) as u64 / SECTOR_BYTES) as u32,
            continues,
            entries: open.entries,
        };
        if !self.memory.is_blank() {
            let block = &mut self.memory.bytes_mut()[open.header_at..open.header_at + self.block];
            encode_header(block, stamp.cache_uuid, &header);
        }
        Some(header)
    }

    /// Returns the records to write, and their sector.
    pub fn image(&mut self) -> (Lba, Buf) {
        assert!(self.open.is_none(), "sealed before it is written");
        self.memory.share();
        (Lba(self.start), self.memory.window(0, self.used))
    }

    /// Copies sectors that are in this buffer; false if they are not.
    pub fn read(&self, place: u64, target: &mut Buf, target_at: usize, sectors: u64) -> bool {
        if !self.holds(place) {
            return false;
        }
        let at = ((place - self.start) * SECTOR_BYTES) as usize;
        target.copy_from(target_at, &self.memory, at, (sectors * SECTOR_BYTES) as usize);
        true
    }

    pub fn holds(&self, place: u64) -> bool {
        self.start <= place && place < self.end()
    }
}

/// The pool, and the buffers that hold something.
pub struct Buffers {
    free: Vec<Buf>,
    pub filling: Option<SegmentBuffer>,
    /// Being written or written, oldest first.
    pub live: VecDeque<SegmentBuffer>,
    entries: Entries,
    segment_bytes: usize,
    block: usize,
    count: usize,
}

impl Buffers {
    pub fn new(count: usize, segment_bytes: usize, block: usize) -> Buffers {
        let free = (0..count).map(|_| Buf::zeroed(segment_bytes)).collect();
        let entries = Entries::with_capacity(entries_max(block as u32));
        Buffers {
            free,
            filling: None,
            live: VecDeque::with_capacity(count),
            entries,
            segment_bytes,
            block,
            count,
        }
    }

    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// True when RAM holds nothing that the log lacks. A buffer may be open without a record: for a write that then had to wait.
    pub fn is_empty(&self) -> bool {
        self.filling.as_ref().is_none_or(SegmentBuffer::is_empty) && self.live.is_empty()
    }

    pub const fn count(&self) -> usize {
        self.count
    }

    /// Takes a free buffer for the stretch of the log from `start` up to `end`, which begins with a summary.
    pub fn open(&mut self, start: u64, end: u64, summary: &[u8], now: Nanos) -> bool {
        assert!(self.filling.is_none(), "one buffer is filled at a time");
        let Some(memory) = self.free.pop() else { return false };
        let capacity = ((end - start) * SECTOR_BYTES) as usize;
        assert!(capacity <= self.segment_bytes, "a buffer covers a part of one segment");
        let mut filling = SegmentBuffer {
            memory,
            start,
            capacity,
            used: 0,
            block: self.block,
            open: None,
            first_seq: 0,
            last_seq: 0,
            since: now,
            sent: Nanos::ZERO,
            state: BufferPhase::Filling,
            through: false,
        };
        filling.begin_with(summary);
        self.filling = Some(filling);
        true
    }

    /// Takes back a buffer that holds nothing.
    pub fn give_back(&mut self, buffer: SegmentBuffer) {
        assert!(buffer.is_empty(), "nothing is lost with it");
        self.free.push(buffer.memory);
    }

    /// Begins a record in the filling buffer.
    pub fn begin(&mut self, seq: u64) {
        let entries = std::mem::take(&mut self.entries);
        self.filling.as_mut().expect("a buffer is filling").begin(seq, entries);
    }

    /// Ends the open record, if there is one, and passes its header to `note`.
    pub fn seal(&mut self, stamp: &Stamp, continues: bool, note: impl FnOnce(&Header)) -> bool {
        let Some(header) = self.filling.as_mut().and_then(|buffer| buffer.seal(stamp, continues)) else {
            return false;
        };
        note(&header);
        self.entries = header.entries;
        self.entries.clear();
        true
    }

    /// The buffer that holds a place of the log, if it is still in RAM.
    pub fn holding(&self, place: u64) -> Option<&SegmentBuffer> {
        self.filling.iter().chain(self.live.iter().rev()).find(|buffer| buffer.holds(place))
    }

    /// Forgets all buffered records: they are durable elsewhere.
    pub fn abandon(&mut self) {
        self.live.clear();
    }

    /// Gives back the buffers whose records are all durable.
    pub fn release(&mut self, durable: u64) {
        while self.live.front().is_some_and(|b| b.state == BufferPhase::Written && b.last_seq <= durable) {
            let buffer = self.live.pop_front().expect("it was there");
            let mut memory = buffer.memory;
            if !memory.reclaim() {
                memory = Buf::zeroed(self.segment_bytes);
            }
            self.free.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 512;

    fn filling() -> Buffers {
        let mut buffers = Buffers::new(2, 16 << 10, BLOCK);
        assert!(buffers.open(100, 132, &[], Nanos::ZERO));
        buffers.begin(1);
        buffers
    }

    fn bytes(fill: u8, sectors: u64) -> Buf {
        Buf::copy_of(&vec![fill; (sectors * SECTOR_BYTES) as usize])
    }

    #[test]
    fn only_what_nothing_newer_touches_is_overwritten_in_its_record() {
        let mut buffers = filling();
        let buffer = buffers.filling.as_mut().unwrap();
        let (a, b) = (Extent::new(Lba(8), 2), Extent::new(Lba(16), 4));
        let (place_a, _) = buffer.append(EntryKind::Data, a, &bytes(1, 2), 0);
        let (place_b, crc_b) = buffer.append(EntryKind::Data, b, &bytes(2, 4), 0);
        assert_eq!(buffer.overwrite(b, &bytes(3, 4), 0).map(|(place, _)| place), Some(place_b));
        assert_ne!(buffer.overwrite(b, &bytes(4, 4), 0).unwrap().1, crc_b, "its checksum is the new one's");
        let mut read = Buf::zeroed(1024);
        assert!(buffer.read(place_a, &mut read, 0, 2));
        assert!(read.bytes().iter().all(|byte| *byte == 1), "its neighbour is as it was");
        assert!(buffer.read(place_b, &mut read, 0, 2));
        assert!(read.bytes().iter().all(|byte| *byte == 4));
        assert_eq!(buffer.overwrite(Extent::new(Lba(16), 2), &bytes(5, 2), 0), None, "only the same extent");
        buffer.note(Entry { kind: EntryKind::Discard, extent: b, crc: 0 });
        assert_eq!(buffer.overwrite(b, &bytes(6, 4), 0), None, "the discard came in between");
        assert!(buffer.overwrite(a, &bytes(7, 2), 0).is_some());
    }

    #[test]
    fn a_closed_record_is_not_changed() {
        let mut buffers = filling();
        let extent = Extent::new(Lba(8), 2);
        buffers.filling.as_mut().unwrap().append(EntryKind::Data, extent, &bytes(1, 2), 0);
        let stamp =
            Stamp { cache_uuid: [0; 16], epoch: 1, oldest_live_seq: 1, durable_seq: 1, flush_epoch: 1 };
        assert!(buffers.seal(&stamp, false, |_| ()));
        assert_eq!(buffers.filling.as_mut().unwrap().overwrite(extent, &bytes(2, 2), 0), None);
    }
}
