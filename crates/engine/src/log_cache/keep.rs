//! Copies of blocks that are read more than once (`reads = "keep"`): a block that is read from the data disk twice, while the ghost list
//! remembers it, is appended to the log as a clean copy. A copy that was read since is appended once more before the head comes to its
//! segment.
//!
//! It promises:
//!
//! - A copy is durable on the data disk: a write, zeroes or a discard between its read and its append drops it.
//! - Copies give way. None is appended while a write waits or a record is awaited, or from the high mark on; there are at most
//!   [`COPIES_AHEAD`] bytes of them before a client's next record; and clients have read and written at least [`SHARE`] times as many.
//!   A copy never waits for space: it is dropped.
//! - If recovery would find a copy of its range, a request goes through the log: the record that invalidates the
//!   copy is durable before the data disk changes.

use super::append::SEGMENTS_READY;
use super::env::{Env, Op, View};
use super::forget::{Forgetting, forget_part};
use super::format::{Entry, EntryKind, Header, decode_header};
use super::index::Index;
use super::log::Log;
use super::table::{Line, Piece, Place};
use super::through::WritesState;
use super::{LogCacheConfig, LogCanary};
use crate::layer::IoResult;
use crate::slab::Slab;
use crate::{Buf, Extent, LINE_BYTES, LINE_SECTORS, Lba, SECTOR_BYTES, byte_offset};

/// Bytes that clients must read and write for each byte that is copied.
const SHARE: u64 = 2;
/// Bytes of copies that a client's next record may have to wait for.
const COPIES_AHEAD: u64 = 64 << 10;
/// Part of the log that may be copied in one burst, after a time without copies.
const BURST_PART: u64 = 16;
/// Maximum number of lines that are watched while they are read.
const WATCHED_MAX: usize = 1024;
/// Fingerprints in a bucket of the ghost list.
const BUCKET: u64 = 8;

/// Lines that were read once: a fingerprint of a byte for each line, in buckets of eight that each forget the oldest.
struct Ghosts(Box<[u64]>);

impl Ghosts {
    fn new(lines: u64) -> Ghosts {
        Ghosts(vec![0; lines.div_ceil(BUCKET) as usize].into_boxed_slice())
    }

    /// The bucket of a line, and its fingerprint there, which is not zero.
    fn place(&mut self, line: Line) -> (&mut u64, u64) {
        let mixed = (line.0 ^ (line.0 >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let bucket = (u128::from(mixed) * self.0.len() as u128) >> 64;
        (&mut self.0[bucket as usize], mixed % 255 + 1)
    }

    fn put(&mut self, line: Line) {
        let (bucket, print) = self.place(line);
        *bucket = *bucket << 8 | print;
    }

    /// Forgets the line. True when it was remembered.
    fn take(&mut self, line: Line) -> bool {
        let (bucket, print) = self.place(line);
        let found = (0..BUCKET).map(|at| at * 8).find(|at| *bucket >> at & 0xff == print);
        let Some(at) = found else { return false };
        *bucket &= !(0xff << at);
        true
    }
}

/// A segment that was read from the log, to append some of it again.
pub struct ReadSegment {
    pub number: u64,
    pub buf: Buf,
    /// The byte where the next record may begin.
    at: usize,
    /// The record there, its next entry, and the place of that entry's payload.
    record: Option<(Header, usize, u64)>,
}

impl ReadSegment {
    pub const fn new(number: u64, buf: Buf) -> ReadSegment {
        ReadSegment { number, buf, at: 0, record: None }
    }

    /// Returns the next entry, with the number of its record and the place of its payload. Records of earlier laps may be among them, so
    /// every block is looked at, and the index decides what counts.
    pub fn entry(&mut self, log: &Log) -> Option<(u64, Entry, Place)> {
        let block = log.superblock().log_block_bytes as usize;
        while !self.buf.is_blank() && self.at + block <= self.buf.len() {
            if self.record.is_none() {
                let sector = log.start_of(self.number) + self.at as u64 / SECTOR_BYTES;
                let header =
                    decode_header(&self.buf.bytes()[self.at..self.at + block], log.superblock(), sector);
                self.record = header.map(|header| (header, 0, sector + log.superblock().log_block_sectors()));
            }
            if let Some((header, next, place)) = &self.record
                && let Some(entry) = header.entries.get(*next)
            {
                return Some((header.seq, *entry, Place(*place)));
            }
            (self.record, self.at) = (None, self.at + block);
        }
        None
    }

    /// Passes the entry.
    pub fn next_entry(&mut self) {
        if let Some((header, next, place)) = &mut self.record {
            *place += header.entries[*next].payload_sectors();
            *next += 1;
        }
    }

    /// Returns the offset of a place in `buf`.
    pub fn offset(&self, place: Place, log: &Log) -> usize {
        byte_offset(Lba(log.start_of(self.number)), Lba(place.0))
    }
}

/// See the module's documentation.
pub struct Keep {
    ghosts: Ghosts,
    /// Lines that are being read from the data disk, to be copied.
    watched: Slab<Vec<Line>>,
    watched_lines: usize,
    /// Bytes that may be copied.
    tokens: u64,
    tokens_max: u64,
    saving: Option<ReadSegment>,
    is_reading: bool,
    /// The next segment to be saved.
    next: u64,
}

impl Keep {
    /// `lines`: those that the log can hold, or zero if no reads are cached.
    pub fn new(lines: u64) -> Keep {
        Keep {
            ghosts: Ghosts::new(lines),
            watched: Slab::default(),
            watched_lines: 0,
            tokens: 0,
            tokens_max: (lines * LINE_BYTES / BURST_PART).max(LINE_BYTES),
            saving: None,
            is_reading: false,
            next: 0,
        }
    }

    fn is_on(&self) -> bool {
        !self.ghosts.0.is_empty()
    }

    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.ghosts.0)
    }

    /// Notes that a client reads or writes this much.
    pub fn earn(&mut self, bytes: u64) {
        self.tokens = (self.tokens + bytes / SHARE).min(self.tokens_max);
    }

    /// Notes that newer data of the extent is in the log, or is bypassing it.
    pub fn overwritten(&mut self, extent: Extent, config: &LogCacheConfig) {
        if self.watched_lines == 0 || config.canary.is(LogCanary::StaleKeep) {
            return;
        }
        let written = Line::touching(extent);
        for lines in self.watched.iter_mut() {
            let before = lines.len();
            lines.retain(|line| !written.contains(&line.0));
            self.watched_lines -= before - lines.len();
        }
    }

    /// Notes that a piece is read from the log.
    pub fn hit(&self, line: Line, place: Place, index: &mut Index) {
        if self.is_on() {
            index.mark_hit(line, place);
        }
    }

    fn keeps(&self, view: &View) -> bool {
        self.is_on() && !view.log.has_failed() && view.life.serves()
    }

    /// Notes that an extent, or a part of it, is read from the data disk. Returns the key of the lines that are to be copied.
    pub fn watch(&mut self, extent: Extent, view: &View) -> Option<u64> {
        if !self.keeps(view) {
            return None;
        }
        let whole = extent.start.0.div_ceil(LINE_SECTORS)..extent.end().0 / LINE_SECTORS;
        let mut lines = Vec::new();
        for line in whole.map(Line) {
            if !is_on_data_disk(line, view) {
                continue;
            }
            if !self.ghosts.take(line) {
                self.ghosts.put(line);
            } else if self.watched_lines < WATCHED_MAX {
                self.watched_lines += 1;
                lines.push(line);
            }
        }
        (!lines.is_empty()).then(|| self.watched.insert(lines))
    }

    /// Takes lines that were read from the data disk: `buf` begins with sector `start`. Copies those that have not changed since.
    pub fn copy_watched(&mut self, key: u64, start: Lba, result: &IoResult, env: &mut Env) {
        let lines = self.watched.remove(key);
        self.watched_lines -= lines.len();
        let stale = env.config.canary.is(LogCanary::StaleKeep);
        for line in lines {
            let view = env.view();
            if result.status.is_err() || !self.keeps(&view) || !(stale || is_on_data_disk(line, &view)) {
                continue;
            }
            if self.append(line.extent(), &result.buf, byte_offset(start, line.start()), env) {
                env.statistics.kept_blocks += 1;
            } else {
                env.statistics.keep_dropped_blocks += 1;
                self.ghosts.put(line);
            }
        }
    }

    /// Appends a copy of a line of the data disk; false if it has to give way to clients.
    fn append(&mut self, extent: Extent, buf: &Buf, at: usize, env: &mut Env) -> bool {
        let bytes = extent.sectors * SECTOR_BYTES;
        if !self.may_copy(bytes, &env.view()) || !env.make_room_for_copy(bytes as usize) {
            return false;
        }
        put(extent, buf, at, env);
        self.tokens -= bytes;
        true
    }

    /// Copies the whole lines of a write that passed the log.
    pub fn copy_written(&mut self, extent: Extent, buf: &Buf, env: &mut Env) {
        let whole = extent.start.0.div_ceil(LINE_SECTORS)..extent.end().0 / LINE_SECTORS;
        for line in whole.map(Line) {
            if !has_room_for_copies(&env.view()) || !env.make_room_for_copy(LINE_BYTES as usize) {
                env.statistics.keep_dropped_blocks += 1;
                continue;
            }
            put(line.extent(), buf, byte_offset(extent.start, line.start()), env);
            env.statistics.kept_blocks += 1;
        }
    }

    /// True when a copy may be appended: no client waits for the log, and dirty blocks leave space.
    fn may_copy(&self, bytes: u64, view: &View) -> bool {
        self.keeps(view)
            && bytes <= self.tokens
            && !view.queue.has_pending_for_log()
            && view.queue.waiters().iter().all(|waiter| waiter.seq <= view.log.durable_seq())
            && has_room_for_copies(view)
    }

    /// Goes on copying hot pieces; runs after every event.
    pub fn step(&mut self, forgetting: &Forgetting, env: &mut Env) {
        if !self.keeps(&env.view()) {
            self.saving = None;
            return;
        }
        while let Some(saving) = self.saving.take() {
            if env.log.ring().is_forgotten(saving.number) {
                continue;
            }
            self.saving = match self.may_copy(LINE_BYTES, &env.view()) {
                true => self.save(saving, env),
                false => Some(saving),
            };
            if self.saving.is_some() {
                return;
            }
        }
        if !self.is_reading && self.may_copy(LINE_BYTES, &env.view()) {
            self.read_hot_segment(forgetting, env);
        }
    }

    /// Reads the next segment that the head comes to, if something in it is hot.
    fn read_hot_segment(&mut self, forgetting: &Forgetting, env: &mut Env) {
        let ring = env.log.ring();
        let soon = ring.head() + 2 * forget_part(&env.view()) + SEGMENTS_READY;
        let mut numbers = ring.remembered_numbers();
        let start = forgetting.end().unwrap_or(numbers.start);
        numbers = start.max(self.next)..numbers.end.min(soon + 1);
        let hot = numbers.clone().find(|number| env.index.is_hit(ring.index(*number)));
        self.next = hot.map_or(numbers.end, |number| number + 1).max(self.next);
        let Some(number) = hot else { return };
        self.is_reading = true;
        env.read_segment(number, None, Op::Save(number));
    }

    /// Takes a segment that was read.
    pub fn was_read(&mut self, number: u64, result: IoResult, env: &mut Env) {
        env.log.unpin(env.log.ring().index(number));
        self.is_reading = false;
        match result.status {
            Ok(()) => self.saving = Some(ReadSegment::new(number, result.buf)),
            Err(_) => env.statistics.log_read_errors += 1,
        }
    }

    /// Appends the hot pieces of a segment again; returns the rest of the work if a copy has to give way.
    fn save(&mut self, mut saving: ReadSegment, env: &mut Env) -> Option<ReadSegment> {
        while let Some((_, entry, place)) = saving.entry(env.log) {
            let from = saving.offset(place, env.log);
            if entry.kind.has_payload()
                && let Some(piece) = hot_piece(entry.extent, place, env.index)
                && piece.is_intact(&saving.buf, from)
            {
                if !self.append(entry.extent, &saving.buf, from, env) {
                    return Some(saving);
                }
                env.statistics.kept_again_blocks += 1;
            }
            saving.next_entry();
        }
        None
    }
}

/// True when the log takes copies: it is well, and dirty blocks leave space.
fn has_room_for_copies(view: &View) -> bool {
    !view.log.has_failed()
        && view.life.serves()
        && !view.life.drains()
        && view.log.through().state() != WritesState::Turning
        && !view.log.through().is_voiding()
        && view.has_copied_little()
        && view.wear_allows_copies()
        && view.log.chain().is_none()
        && view.log.ring().utilisation() < f64::from(view.config.high_mark) / 100.0
        && view.index.table().has_room(1)
}

/// Appends a copy, for which there is room.
fn put(extent: Extent, buf: &Buf, at: usize, env: &mut Env) {
    env.append_again(EntryKind::Clean, extent, buf, at);
    env.statistics.kept_bytes += extent.sectors * SECTOR_BYTES;
}

impl View<'_> {
    /// True while a client's next record need not wait for many copies.
    pub const fn has_copied_little(&self) -> bool {
        self.log.copied_bytes() < COPIES_AHEAD
    }
}

impl Env<'_> {
    /// Appends data that the log or the data disk has already; there is room.
    pub fn append_again(&mut self, kind: EntryKind, extent: Extent, buf: &Buf, at: usize) {
        let seq = self.open_record();
        let (place, crc) = self.log.append(kind, extent, buf, at);
        match kind {
            EntryKind::Clean => self.index.insert_kept(extent, Place(place), crc, seq),
            _ => self.index.insert(extent, Place(place), crc, seq),
        }
        self.copied(extent.sectors * SECTOR_BYTES);
    }

    /// Notes that so many bytes were appended again.
    pub fn copied(&mut self, bytes: u64) {
        self.log.copied(bytes);
        if !self.view().has_copied_little() && !self.log.is_writing() {
            self.dispatch();
        }
    }
}

/// True when the log has nothing of the line, and its content on the data disk is durable.
fn is_on_data_disk(line: Line, view: &View) -> bool {
    !view.index.table().contains_line(line)
        && !view.index.ranges().contains_any(line.extent())
        && view.data.at(line.extent()).is_settled(line.extent())
}

/// Returns the piece written as this extent to this place, if it is clean, whole and hot.
fn hot_piece(extent: Extent, place: Place, index: &Index) -> Option<Piece> {
    let pieces = index.table().lookup(Line::of(extent.start));
    pieces.iter().copied().find(|piece| {
        piece.place == place
            && piece.hit
            && !piece.dirty
            && piece.is_whole()
            && u64::from(piece.first) == extent.start.0 % LINE_SECTORS
            && u64::from(piece.count) == extent.sectors
    })
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
