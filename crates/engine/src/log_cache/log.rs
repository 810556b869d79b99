//! The log: the appended records, how far they are written and durable, and which segments are in use.
//!
//! It promises:
//!
//! - `durable_seq <= written_seq < next_seq`, and a record is appended only at the head, in the order of its number.
//! - A crash takes no record up to [`Log::safe_seq`], and a request over several records as a whole or not at all.
//! - A buffer is kept until all its records are durable (rule 6); a segment is written again only when a superblock with a later tail is
//!   durable (rule 1) and no read pins it.

use std::collections::VecDeque;
use std::ops::Range;

use super::answers::Answers;
use super::buffers::{BufferPhase, Buffers, SegmentBuffer, Stamp, space};
use super::config::LogCacheConfig;
use super::error::LogError;
use super::fingerprint::Fingerprint;
use super::format::{
    self, Entry, EntryKind, LogSuperblock, MemoryMark, OtherDisk, SUPERBLOCK_SECTORS, entries_max,
};
use super::offline::write_superblock;
use super::places::FreePlaces;
use super::recover::Walked;
use super::ring::Ring;
use super::rotation::{Rotation, TurnPlace};
use super::spindle::Spindle;
use super::statistics::LogCacheStatistics;
use super::summary::{self, Gathered};
use super::table::Place;
use super::through::Through;
use crate::layer::{Durability, Geometry, Io};
use crate::{BlockDevice, Buf, Extent, LINE_BYTES, Lba, LogHead, Nanos, SECTOR_BYTES};
use zerocopy::IntoBytes;

/// Time without a write to the log after which a superblock states how far the log is durable. Until then no later record calls the
/// newest records durable: if one rots, it looks torn by a power cut.
pub const REST: Nanos = Nanos::from_secs(1);

/// Maximum RAM for segment buffers, if two fit.
const BUFFERS_BYTES_MAX: usize = 64 << 20;

/// A request that is split over several records: they count only together.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    pub first: u64,
    pub last: u64,
    /// Number of the first record's segment.
    pub segment: u64,
}

/// Health of the log device (rule 13).
#[derive(Clone, Copy, PartialEq, Eq)]
enum LogHealth {
    Good,
    /// The device is dead.
    Failed,
    /// The host has recorded the failure, too: no start replays this log any more.
    Recorded,
}

/// See the module's documentation.
pub struct Log {
    superblock: LogSuperblock,
    geometry: Geometry,
    delay_max: Nanos,
    ring: Ring,
    buffers: Buffers,
    /// Memory that outlives the process, with the records that are not written yet.
    answers: Option<Answers>,
    /// The sector after the newest record that was sent, or the place that was chosen for the next one.
    head_sector: u64,
    places: FreePlaces,
    /// The first record of an activation begins exactly where the log ended.
    head_is_fixed: bool,
    /// The unfinished summary of the segment at the head, if summaries are used.
    gathered: Option<Gathered>,
    rotation: Rotation,
    next_seq: u64,
    written_seq: u64,
    durable_seq: u64,
    /// The newest record with more than clean copies.
    needed_seq: u64,
    /// Bytes of copies of blocks in the filling buffer.
    copied_bytes: u64,
    /// See [`Log::hurry`].
    hurried_seq: u64,
    /// Requests that are split over several records, not yet durable as a whole.
    chains: VecDeque<Chain>,
    /// The request that is being split right now.
    chain: Option<Chain>,
    flush_epoch: u64,
    /// Time when the flush in flight was sent.
    flushing_since: Option<Nanos>,
    /// Time when the last record was sent.
    written_at: Nanos,
    flush_at: Option<Nanos>,
    health: LogHealth,
    /// The tail of a superblock that is being written: once it is durable, segments before the tail may be written again.
    release: Option<u64>,
    through: Through,
}

fn rotation(config: &LogCacheConfig, superblock: &LogSuperblock) -> Rotation {
    let spindle = if config.follow_head { superblock.spindle } else { Spindle::NotMeasured };
    let first = superblock.segment_start(0);
    Rotation::new(spindle, first, superblock.end_sector() - first)
}

/// Returns the number of segment buffers: fewer for large segments.
fn buffers(config: &LogCacheConfig, superblock: &LogSuperblock) -> usize {
    config.segment_buffers.min((BUFFERS_BYTES_MAX / superblock.segment_bytes as usize).max(2))
}

impl Log {
    pub fn new(
        config: &LogCacheConfig,
        superblock: LogSuperblock,
        geometry: Geometry,
        ring: Ring,
        walked: &Walked,
    ) -> Log {
        let block = superblock.log_block_bytes as usize;
        Log {
            buffers: Buffers::new(buffers(config, &superblock), superblock.segment_bytes as usize, block),
            answers: None,
            rotation: rotation(config, &superblock),
            gathered: summary::are_used(&superblock, &geometry).then(Gathered::default),
            delay_max: config.delay_max,
            flush_epoch: superblock.flush_epoch,
            places: {
                let start = superblock.segment_start(walked.end_segment);
                FreePlaces::new(start..start + superblock.segment_sectors(), walked.end)
            },
            through: Through::new(superblock.kept_seq),
            superblock,
            geometry,
            ring,
            head_sector: walked.end,
            head_is_fixed: true,
            next_seq: walked.next_seq,
            written_seq: walked.next_seq - 1,
            durable_seq: walked.next_seq - 1,
            needed_seq: walked.next_seq - 1,
            copied_bytes: 0,
            hurried_seq: 0,
            chains: VecDeque::new(),
            chain: None,
            flushing_since: None,
            written_at: Nanos::ZERO,
            flush_at: None,
            health: LogHealth::Good,
            release: None,
        }
    }

    /// The newest superblock, which may still be on its way to the device.
    pub const fn superblock(&self) -> &LogSuperblock {
        &self.superblock
    }

    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    #[cfg(test)]
    pub const fn geometry_mut(&mut self) -> &mut Geometry {
        &mut self.geometry
    }

    pub const fn through(&self) -> &Through {
        &self.through
    }

    pub const fn through_mut(&mut self) -> &mut Through {
        &mut self.through
    }

    pub const fn ring(&self) -> &Ring {
        &self.ring
    }

    pub const fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Bytes that segment buffers have in all.
    pub const fn buffers_bytes(&self) -> usize {
        self.buffers.count() * self.superblock.segment_bytes as usize
    }

    pub const fn answers(&self) -> Option<&Answers> {
        self.answers.as_ref()
    }

    /// Begins to store records in memory that outlives the process, once the superblock says so: a start that does not find the memory must
    /// know what it misses.
    pub fn remember(
        &mut self,
        answers: Answers,
        mark: MemoryMark,
        device: &mut dyn BlockDevice,
    ) -> Result<(), LogError> {
        self.answers = Some(answers);
        self.superblock.memory = Some(mark);
        write_superblock(device, &mut self.superblock)
    }

    /// Lets the next process find everything that is appended.
    pub fn publish(&mut self) {
        if let Some(answers) = &mut self.answers {
            answers.publish();
        }
    }

    /// Removes the memory that outlives the process: all records are durable.
    pub fn forget_answers(&mut self) {
        if let Some(answers) = self.answers.take() {
            answers.remove();
        }
    }

    /// Returns the record up to which the log must be written so that no kill takes record `seq`.
    pub fn awaited(&self, seq: u64) -> u64 {
        self.answers.as_ref().map_or(seq, |answers| answers.awaited(seq))
    }

    fn records_of(&self, entries: usize) -> usize {
        entries.div_ceil(entries_max(self.superblock.log_block_bytes)) + 1
    }

    /// Announces entries of one request.
    pub fn announce(&mut self, entries: usize, bytes: usize) {
        let records = self.records_of(entries);
        if let Some(answers) = &mut self.answers {
            answers.announce(entries, bytes, records);
        }
    }

    /// True if the open record must end before these entries: see [`Answers::ends_before`].
    pub fn ends_before(&self, entries: usize, bytes: usize) -> bool {
        let records = self.records_of(entries);
        self.answers.as_ref().is_some_and(|it| it.ends_before(self.next_seq - 1, entries, bytes, records))
    }

    pub const fn next_seq(&self) -> u64 {
        self.next_seq
    }

    /// The newest record with any content, sealed or not.
    pub const fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    pub const fn durable_seq(&self) -> u64 {
        self.durable_seq
    }

    /// The newest record up to which all are written.
    pub const fn written_seq(&self) -> u64 {
        self.written_seq
    }

    pub const fn is_durable(&self) -> bool {
        self.durable_seq == self.last_seq()
    }

    /// The newest record that a flush has to wait for: later ones have only clean copies.
    pub const fn needed_seq(&self) -> u64 {
        self.needed_seq
    }

    pub const fn chain(&self) -> Option<Chain> {
        self.chain
    }

    /// The newest record that no crash can take, not even as part of its request.
    pub fn safe_seq(&self) -> u64 {
        let chain = self.volatile_chain().map_or(u64::MAX, |chain| chain.first);
        self.durable_seq.min(chain - 1)
    }

    /// The oldest request over several records that is not durable: a crash that takes a part of it must take all.
    pub fn volatile_chain(&self) -> Option<Chain> {
        let durable = self.durable_seq;
        self.chains.iter().find(|chain| chain.last > durable).copied().or(self.chain)
    }

    /// The number of the segment that holds a place; the segment is in use.
    pub fn number_of(&self, place: Place) -> u64 {
        self.ring.number(self.superblock.segment_of(place.0))
    }

    /// Returns the first sector of a segment.
    pub fn start_of(&self, number: u64) -> u64 {
        self.superblock.segment_start(self.ring.index(number))
    }

    pub fn end_of(&self, number: u64) -> u64 {
        self.start_of(number) + self.superblock.segment_sectors()
    }

    /// Pins a segment that is being read: it is not written again before the read has completed.
    pub fn pin(&mut self, segment: u32) {
        self.ring.at_mut(segment).pins += 1;
    }

    pub fn unpin(&mut self, segment: u32) {
        self.ring.at_mut(segment).pins -= 1;
    }

    /// Returns the copy to try after `tried`, or after a read of an unknown copy; none if there is no other.
    pub fn next_copy(&self, tried: Option<u8>) -> Option<u8> {
        let copies = self.geometry().copies;
        let next = tried.map_or(0, |tried| tried + 1);
        (copies > 1 && next < copies).then_some(next)
    }

    /// A read of one copy, or of whichever answers.
    pub const fn read(at: Lba, buf: Buf, copy: Option<u8>) -> Io {
        match copy {
            Some(copy) => Io::ReadCopy { at, buf, copy },
            None => Io::Read { at, buf },
        }
    }

    // Appending.

    const fn filling(&mut self) -> &mut SegmentBuffer {
        self.buffers.filling.as_mut().expect("there is room")
    }

    /// True when the filling buffer has space for this many pieces and bytes, as one record or several.
    pub fn fits(&self, pieces: usize, bytes: usize) -> bool {
        self.buffers.filling.as_ref().is_some_and(|filling| filling.fits(pieces, bytes))
    }

    /// Exact form of [`Log::fits`] for one entry.
    pub fn fits_one(&self, bytes: usize) -> bool {
        self.buffers.filling.as_ref().is_some_and(|filling| filling.fits_one(bytes))
    }

    /// True when the open record has room for `pieces` entries.
    pub fn fits_record(&self, pieces: usize) -> bool {
        self.buffers.filling.as_ref().is_some_and(|filling| pieces <= filling.entries_left())
    }

    pub fn is_longer_than_a_record(&self, pieces: usize) -> bool {
        pieces > entries_max(self.superblock.log_block_bytes)
    }

    pub fn fits_a_segment(&self, pieces: usize, bytes: usize) -> bool {
        let summary = if self.gathered.is_some() { summary::bytes_max(&self.superblock) } else { 0 };
        space(self.superblock.log_block_bytes as usize, pieces, bytes)
            <= self.superblock.segment_bytes as usize - summary
    }

    /// Number of lines that surely fit an empty segment.
    pub fn lines_of_a_segment(&self) -> usize {
        let mut lines = self.superblock.segment_bytes as usize / LINE_BYTES as usize;
        while lines > 1 && !self.fits_a_segment(lines, lines * LINE_BYTES as usize) {
            lines -= 1;
        }
        lines
    }

    pub fn record_is_full(&self) -> bool {
        self.buffers.filling.as_ref().is_some_and(SegmentBuffer::record_is_full)
    }

    /// Makes sure that a record is open in the filling buffer; returns its number. Records before `live_seq` are not needed.
    pub fn open_record(&mut self, now: Nanos, live_seq: u64) -> u64 {
        let filling = self.filling();
        if !filling.has_open() {
            if filling.is_empty() {
                filling.since = now;
            }
            let (sector, head) = (filling.end(), self.ring.index(self.ring.head()));
            if self.ring.at(head).first_offset().is_none() {
                let offset = sector - self.superblock.segment_start(head);
                self.ring.at_mut(head).set_first_offset(offset);
            }
            self.buffers.begin(self.next_seq);
            let (stamp, seq) = (self.stamp(live_seq), self.next_seq);
            let whole = self.chain.is_none_or(|chain| chain.first == seq);
            if let Some(answers) = &mut self.answers {
                answers.begin(seq, sector, &stamp, whole);
            }
            self.next_seq += 1;
            self.head_is_fixed = false;
        }
        self.last_seq()
    }

    /// Adds an entry without payload to the open record; returns the record's segment.
    pub fn note(&mut self, entry: Entry) -> u32 {
        self.needed(entry.kind);
        self.answer(&entry, &Buf::none(), 0, false);
        let filling = self.filling();
        filling.note(entry);
        let start = filling.start;
        self.superblock.segment_of(start)
    }

    /// Notes that the open record gets an entry of this kind.
    fn needed(&mut self, kind: EntryKind) {
        // While writes pass the log, it only says which copies are old.
        if kind != EntryKind::Clean && !self.through.is_on() {
            self.needed_seq = self.last_seq();
        }
    }

    /// Adds payload to the open record; returns its place and checksum.
    pub fn append(&mut self, kind: EntryKind, extent: Extent, buf: &Buf, at: usize) -> (u64, u32) {
        self.needed(kind);
        let (place, crc) = self.filling().append(kind, extent, buf, at);
        self.answer(&Entry { kind, extent, crc }, buf, at, false);
        (place, crc)
    }

    /// Stores an entry of the open record where the next process finds it.
    fn answer(&mut self, entry: &Entry, buf: &Buf, at: usize, replaces: bool) {
        if let Some(answers) = &mut self.answers {
            let bytes = (entry.payload_sectors() * SECTOR_BYTES) as usize;
            answers.entry(self.next_seq - 1, entry, &buf.bytes()[at..at + bytes], replaces);
        }
    }

    /// Bytes of copies of blocks that a client's next record has to wait for.
    pub const fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }

    /// Notes that bytes were appended that the log or the data disk has already.
    pub const fn copied(&mut self, bytes: u64) {
        self.copied_bytes += bytes;
    }

    /// Lets everything so far become durable although no request waits for it.
    pub const fn hurry(&mut self) {
        self.hurried_seq = self.last_seq();
    }

    pub const fn hurries(&self) -> bool {
        self.hurried_seq > self.durable_seq
    }

    /// See [`SegmentBuffer::overwrite`].
    pub fn overwrite(&mut self, extent: Extent, buf: &Buf, at: usize) -> Option<(u64, u32)> {
        let (place, crc) = self.buffers.filling.as_mut()?.overwrite(extent, buf, at)?;
        self.answer(&Entry { kind: EntryKind::Data, extent, crc }, buf, at, true);
        Some((place, crc))
    }

    fn stamp(&self, live_seq: u64) -> Stamp {
        Stamp {
            cache_uuid: self.superblock.cache_uuid,
            epoch: self.superblock.epoch,
            oldest_live_seq: live_seq,
            durable_seq: self.safe_seq() + 1,
            flush_epoch: self.flush_epoch,
        }
    }

    /// Ends the open record, and states in it that records before `live_seq` are not needed.
    pub fn seal(&mut self, live_seq: u64) {
        let stamp = self.stamp(live_seq);
        let (number, start) = (self.ring.head(), self.start_of(self.ring.head()));
        let (gathered, answers) = (&mut self.gathered, &mut self.answers);
        self.buffers.seal(&stamp, self.chain.is_some(), |header| {
            if let Some(answers) = answers {
                answers.sealed(header.seq, &stamp, header.continues);
            }
            if let Some(gathered) = gathered {
                gathered.note(number, header.sector - start, header);
            }
        });
    }

    /// Begins a chain with the next record. The one before is sealed.
    pub fn begin_chain(&mut self) {
        let first = self.next_seq;
        self.chain = Some(Chain { first, last: first, segment: self.ring.head() });
    }

    /// Ends the chain; true if it had more than one record.
    pub fn end_chain(&mut self) -> bool {
        let last = self.last_seq();
        let chain = self.chain.take().filter(|chain| last > chain.first);
        self.chains.extend(chain.map(|chain| Chain { last, ..chain }));
        chain.is_some()
    }

    /// Begins a new flush epoch (for ordered destage).
    pub const fn end_flush_epoch(&mut self) {
        self.flush_epoch += 1;
    }

    // The head.

    /// True when the buffer's first record must be empty: the first one of an activation must be exactly where the log ended.
    pub fn wants_empty_record(&self) -> bool {
        self.head_is_fixed && self.buffers.filling.as_ref().is_some_and(SegmentBuffer::is_empty)
    }

    /// Returns the sectors that a record takes, or several, if one does not suffice.
    fn sectors_of(&self, pieces: usize, bytes: usize) -> u64 {
        (space(self.superblock.log_block_bytes as usize, pieces, bytes) as u64).div_ceil(SECTOR_BYTES)
    }

    /// Opens a buffer with space for this many pieces and bytes: at the head, at the next free place of the head's segment, or in the next
    /// segment, unless that leaves fewer than `reserve` segments free. The first record of an activation has no choice of places: its buffer
    /// may lack the space. False if no buffer or no segment is free.
    pub fn open_buffer(
        &mut self,
        now: Nanos,
        pieces: usize,
        bytes: usize,
        reserve: u64,
        statistics: &mut LogCacheStatistics,
    ) -> bool {
        if self.buffers.free() == 0 {
            return false;
        }
        let need = if self.head_is_fixed {
            self.superblock.log_block_sectors()
        } else {
            self.sectors_of(pieces, bytes)
        };
        let place = self.places.next(self.head_sector, need);
        let is_left = self.ring.free() > reserve;
        let Some(free) = place.or_else(|| is_left.then(|| self.advance_head(statistics)).flatten()) else {
            return false;
        };
        let offset = free.start - self.places.segment().start;
        assert!(
            offset.is_multiple_of(self.superblock.log_block_sectors()),
            "recovery finds no record elsewhere"
        );
        self.head_sector = free.start;
        let summary = self.summary_before();
        self.buffers.open(free.start, free.end, &summary, now)
    }

    /// Moves the head to the next segment, and returns its sectors; none if it is not free.
    fn advance_head(&mut self, statistics: &mut LogCacheStatistics) -> Option<Range<u64>> {
        if !self.ring.advance_head(self.next_seq) {
            return None;
        }
        let rest = self.places.segment().end - self.places.end();
        statistics.log_rest_bytes += rest * SECTOR_BYTES;
        statistics.log_gap_bytes += (self.places.free_sectors() - rest) * SECTOR_BYTES;
        let (start, end) = (self.start_of(self.ring.head()), self.end_of(self.ring.head()));
        self.places = FreePlaces::new(start..end, start);
        Some(start..end)
    }

    /// Returns the summary of the segment before, if the head is at the start of its segment. Empty for the first write of an activation,
    /// as a start looks for a record exactly there.
    fn summary_before(&self) -> Vec<u8> {
        let head = self.ring.head();
        match &self.gathered {
            Some(gathered) if self.head_sector == self.start_of(head) && !self.head_is_fixed && head > 0 => {
                let (durable, buffers) = (self.safe_seq() + 1, self.buffers.count());
                gathered.encode(head - 1, &self.superblock, self.head_sector, durable, buffers)
            }
            _ => Vec::new(),
        }
    }

    /// On a rotational log, chooses the free place that the disk's head reaches next, in this segment. The next segment is taken if that
    /// saves more time than the free places here are worth: none if nearly all are used, half a revolution for a whole free track.
    /// Recovery looks no further.
    pub fn turn_ahead(
        &mut self,
        now: Nanos,
        pieces: usize,
        bytes: usize,
        statistics: &mut LogCacheStatistics,
    ) {
        if self.buffers.free() == 0 || self.chain.is_some() || self.head_is_fixed {
            return;
        }
        let behind = self.is_writing();
        let Some(turn) = self.rotation.turn(now, self.head_sector, behind) else { return };
        let (need, block) = (self.sectors_of(pieces, bytes), self.superblock.log_block_sectors());
        let head = self.head_sector;
        let distance = |sector: u64| sector as i64 - head as i64;
        let first = |free: Range<u64>| turn.first(distance(free.start)..distance(free.end), need, block);
        let length = self.superblock.segment_sectors();
        let fills = turn.fills(length);
        let here = match turn.is_placed() {
            true => {
                let free = self.places.free().filter(|free| fills || free.start >= head);
                free.filter_map(first).min_by_key(|place| place.cost)
            }
            false => self.places.next(head, need).map(|free| turn.at(distance(free.start))),
        };
        let segment = self.places.segment().clone();
        let there = match self.ring.index(self.ring.head()) + 1 < self.superblock.segments {
            true if turn.is_placed() => first(segment.end..segment.end + length),
            true => Some(turn.at(distance(segment.end))),
            false => None,
        };
        let worth = if fills { turn.worth(self.places.free_sectors(), length) } else { 0 };
        let moves_on =
            |there: &TurnPlace| here.is_none_or(|here| turn.is_placed() && there.cost + worth < here.cost);
        let place = match there.filter(moves_on) {
            Some(there) if self.advance_head(statistics).is_some() => Some(there),
            _ => here,
        };
        if let Some(place) = place {
            self.rotation.placed(now, turn, place);
            self.head_sector = (head as i64 + place.distance) as u64;
        }
    }

    /// See [`Rotation::disturb`].
    pub const fn disturb(&mut self) {
        self.rotation.disturb();
    }

    pub const fn head_status(&self) -> LogHead {
        self.rotation.status(self.geometry.rotational)
    }

    /// True if it is not known where the disk's head is, or following it does not pay.
    pub const fn head_is_in_doubt(&self) -> bool {
        matches!(self.head_status(), LogHead::NotMeasured | LogHead::NotShown | LogHead::DoesNotPay)
    }

    /// Takes the result of a survey: the next superblock has it. What was measured before is better than nothing.
    pub fn measured(&mut self, found: Spindle) {
        let (first, end) = (self.superblock.segment_start(0), self.superblock.end_sector());
        match (found, self.superblock.spindle) {
            (Spindle::Spins(_), _) => self.rotation = Rotation::new(found, first, end - first),
            (Spindle::NotShown, Spindle::NotMeasured) => {
                self.rotation = Rotation::new(found, first, end - first)
            }
            _ => return,
        }
        self.superblock.spindle = found;
    }

    // Writing and flushing.

    pub fn is_writing(&self) -> bool {
        self.buffers.live.iter().any(|buffer| buffer.state == BufferPhase::Writing)
    }

    /// Returns when the oldest write or flush in flight was sent.
    pub fn busy_since(&self) -> Option<Nanos> {
        let writing = self.buffers.live.iter().find(|buffer| buffer.state == BufferPhase::Writing);
        writing.map(|buffer| buffer.sent).into_iter().chain(self.flushing_since).min()
    }

    fn unsent(&self) -> Option<&SegmentBuffer> {
        self.buffers.filling.as_ref().filter(|filling| !filling.is_empty())
    }

    pub fn has_unsent(&self) -> bool {
        self.unsent().is_some()
    }

    /// The newest record that was sent to the device.
    pub fn sent_seq(&self) -> u64 {
        self.buffers.live.back().map_or(self.written_seq, |buffer| buffer.last_seq)
    }

    /// `ordered`: true if the oldest write that a crash would take has reached its maximum age.
    pub fn is_overdue(&self, now: Nanos) -> bool {
        let oldest = self.buffers.live.front().or(self.buffers.filling.as_ref());
        let since = oldest.filter(|buffer| !buffer.is_empty()).map(|buffer| buffer.since);
        since.is_some_and(|since| now >= since.saturating_add(self.delay_max))
    }

    /// Changes `delay_max`, for a flush that is due, too.
    pub fn set_delay_max(&mut self, now: Nanos, delay_max: Nanos) {
        self.delay_max = delay_max;
        let latest = now.saturating_add(Nanos(delay_max.0 / 4));
        self.flush_at = self.flush_at.map(|at| at.min(latest));
    }

    /// Returns when the filling buffer is written although no request waits for it: after half of `delay_max`.
    pub fn write_at(&self) -> Option<Nanos> {
        Some(self.unsent()?.since.saturating_add(Nanos(self.delay_max.0 / 2)))
    }

    /// Sends the filling buffer, whose records are sealed; returns its first record, and the write. `waiting`: number of requests that
    /// wait for that record or a later one.
    pub fn send(
        &mut self,
        now: Nanos,
        waiting: impl Fn(u64) -> usize,
        statistics: &mut LogCacheStatistics,
    ) -> Option<(u64, Io)> {
        self.copied_bytes = 0;
        let mut filling = self.buffers.filling.take()?;
        if filling.is_empty() {
            self.buffers.give_back(filling);
            return None;
        }
        let (at, buf) = filling.image();
        let first = filling.first_seq;
        filling.state = BufferPhase::Writing;
        filling.sent = now;
        let alone = self.durable_seq + 1 == first;
        let waiting = waiting(first);
        filling.through = alone && waiting > 0 && self.geometry.volatile_cache;
        let durability = if filling.through { Durability::Durable } else { Durability::Volatile };
        self.head_sector = filling.end();
        self.places.take(filling.start..filling.end());
        self.rotation.sending(now, buf.len() as u64 / SECTOR_BYTES);
        self.written_at = now;
        statistics.shared_commits += u64::from(waiting > 1);
        statistics.log_writes += 1;
        statistics.log_bytes += buf.len() as u64;
        self.buffers.live.push_back(filling);
        Some((first, Io::Write { at, buf, durability }))
    }

    /// Notes that a buffer is written; returns the record up to which that made the log durable.
    pub fn written(&mut self, now: Nanos, first: u64) -> Option<u64> {
        let mut through = None;
        for buffer in &mut self.buffers.live {
            if buffer.first_seq == first {
                buffer.state = BufferPhase::Written;
                through = buffer.through.then_some(buffer.last_seq);
            }
        }
        self.rotation.written(now, through.is_some() || !self.geometry.volatile_cache);
        let written = self.buffers.live.iter().take_while(|b| b.state == BufferPhase::Written).last();
        self.written_seq = written.map_or(self.written_seq, |buffer| buffer.last_seq.max(self.written_seq));
        self.release_answers();
        if !self.geometry.volatile_cache {
            return Some(self.written_seq);
        }
        // Only this buffer: others may be written, but not with FUA.
        let durable = through.filter(|_| self.durable_seq + 1 == first);
        if durable.is_none() && self.flush_at.is_none() {
            self.flush_later(now);
        }
        durable
    }

    fn flush_later(&mut self, now: Nanos) {
        self.flush_at = Some(now.saturating_add(Nanos(self.delay_max.0 / 4)));
    }

    /// True when written records are not covered by a flush, and none is in flight.
    pub const fn may_flush(&self) -> bool {
        self.flushing_since.is_none() && self.written_seq > self.durable_seq
    }

    /// Returns when a flush is sent although no request waits for it.
    pub fn flush_at(&self) -> Option<Nanos> {
        self.flush_at.filter(|_| self.may_flush())
    }

    /// True when a flush would make this record durable.
    pub const fn flush_covers(&self, seq: u64) -> bool {
        self.durable_seq < seq && seq <= self.written_seq
    }

    /// Notes that a flush is sent; returns the newest record that it covers.
    pub const fn begin_flush(&mut self, now: Nanos) -> u64 {
        self.flushing_since = Some(now);
        self.written_seq
    }

    pub const fn end_flush(&mut self) {
        self.flushing_since = None;
    }

    pub fn made_durable(&mut self, now: Nanos, seq: u64) {
        self.durable_seq = self.durable_seq.max(seq);
        self.flush_at = None;
        if self.written_seq > self.durable_seq {
            self.flush_later(now);
        }
        while self.chains.front().is_some_and(|chain| chain.last <= self.durable_seq) {
            self.chains.pop_front();
        }
        self.buffers.release(self.durable_seq);
    }

    /// True once the device is dead: everything goes to the data disk.
    pub fn has_failed(&self) -> bool {
        self.health != LogHealth::Good
    }

    /// True while the host has to record that the device is dead.
    pub fn awaits_record(&self) -> bool {
        self.health == LogHealth::Failed
    }

    /// True once the host has recorded that the device is dead: writes may be answered.
    pub fn failure_is_recorded(&self) -> bool {
        self.health == LogHealth::Recorded
    }

    /// Notes that the host has recorded the failure; false if there is none.
    pub fn failure_recorded(&mut self) -> bool {
        if self.has_failed() {
            self.health = LogHealth::Recorded;
        }
        self.has_failed()
    }

    /// Notes that the device is dead; the open record is sealed. The buffers are kept, as the best copy.
    pub fn fail(&mut self) {
        self.health = LogHealth::Failed;
        if let Some(filling) = self.buffers.filling.take() {
            match filling.is_empty() {
                true => self.buffers.give_back(filling),
                false => self.buffers.live.push_back(filling),
            }
        }
        self.chain = None;
        self.flush_at = None;
    }

    /// Notes that the data disk durably has all data of the dead log.
    pub fn abandon(&mut self) {
        self.written_seq = self.last_seq();
        self.durable_seq = self.last_seq();
        self.chains.clear();
        self.buffers.abandon();
        self.release_answers();
    }

    fn release_answers(&mut self) {
        if let Some(answers) = &mut self.answers {
            answers.release(self.written_seq);
        }
    }

    // The tail and the superblock.

    pub const fn is_releasing(&self) -> bool {
        self.release.is_some()
    }

    /// Returns when a superblock states how far the log is durable: the log is at rest, and no superblock states it yet.
    pub fn mark_at(&self) -> Option<Nanos> {
        let rests = !self.has_unsent() && self.buffers.live.is_empty() && !self.is_releasing();
        let is_unmarked = || self.safe_seq() + 1 > self.superblock.durable_seq;
        (rests && is_unmarked()).then(|| self.written_at.saturating_add(REST))
    }

    /// See [`Ring::advance_tail`].
    pub fn advance_tail(&mut self, is_clean: impl Fn(u32) -> bool, durable: u64, limit: u64) {
        self.ring.advance_tail(is_clean, durable, limit);
    }

    /// See [`Ring::forget`].
    pub fn forget(&mut self, numbers: Range<u64>) {
        self.ring.forget(numbers);
    }

    /// A planted bug.
    pub const fn skip_to(&mut self, number: u64) {
        self.ring.skip_to(number);
    }

    /// Changes a data disk after the first, or its place, for the next superblock.
    pub fn set_disk(&mut self, disk: usize, other: OtherDisk) {
        match self.superblock.other_disks.get_mut(disk - 1) {
            Some(known) => *known = other,
            None => self.superblock.other_disks.push(other),
        }
        assert!(disk <= self.superblock.other_disks.len(), "places follow each other");
    }

    /// Begins to write a superblock: records before `oldest_live_seq` and `destaged_seq` are destaged. Recovery reads from the first
    /// record of segment `from` on, for clean copies; if `None`, only records that are not destaged. `needs_records`: the content of a missing
    /// disk may have to be explained by records. After a clean stop no record explains anything, so the log is left as after a crash.
    pub fn write_superblock(
        &mut self,
        state: format::LogState,
        needs_records: bool,
        from: Option<u64>,
        (oldest_live_seq, destaged_seq): (u64, u64),
        fingerprints: impl Iterator<Item = Fingerprint>,
    ) -> Io {
        let mut next = self.superblock.clone();
        next.state = if needs_records { format::LogState::Active } else { state };
        next.generation += 1;
        // It still names the memory: a start after a kill removes it.
        if state != format::LogState::Active {
            next.memory = next.memory.map(MemoryMark::out_of_use);
        }
        next.live_seq = destaged_seq.max(oldest_live_seq);
        next.live_sector = self.sector_of(self.ring.tail(), oldest_live_seq);
        next.tail_seq =
            from.map_or(oldest_live_seq, |number| self.ring.at(self.ring.index(number)).first_seq);
        let from = from.unwrap_or(self.ring.tail());
        next.tail_sector = self.sector_of(from, next.tail_seq);
        next.durable_seq = (self.safe_seq() + 1).max(next.live_seq);
        next.flush_epoch = self.flush_epoch;
        next.kept_seq = self.through.kept_seq(state, next.durable_seq);
        let voids = self.through.voids(state);
        next.set_fingerprints(fingerprints.map(|it| if voids { it.unknown() } else { it }));
        // A later superblock may name the first record of the tail's segment again.
        next.forget_free_places(self.ring.at(self.ring.index(from)).first_seq.min(next.tail_seq));
        if next.tail_seq == self.next_seq {
            self.end_places();
        }
        let at = SUPERBLOCK_SECTORS[crate::machine::place_of(next.generation)];
        let buf = Buf::copy_of(next.encode().as_bytes());
        self.superblock = next;
        self.release = Some(from);
        Io::Write { at, buf, durability: Durability::Durable }
    }

    /// Returns the sector where to look for the first record of a segment; `first_seq` is its sequence number.
    fn sector_of(&self, number: u64, first_seq: u64) -> u64 {
        if first_seq == self.next_seq {
            return self.end_sector();
        }
        let offset = self.ring.at(self.ring.index(number)).first_offset().unwrap_or(0);
        let sector = self.start_of(number) + offset;
        if sector == self.superblock.end_sector() { self.superblock.segment_start(0) } else { sector }
    }

    /// Returns the place of the next activation's first record: after all records of the head's segment, or at the start of the next one.
    fn end_sector(&self) -> u64 {
        if self.ends_within() { self.places.end() } else { self.start_of(self.ring.head() + 1) }
    }

    fn ends_within(&self) -> bool {
        self.places.end() + self.superblock.log_block_sectors() <= self.places.segment().end
    }

    /// Leaves the free places of the head's segment unused if a walk now begins after it: the walk would not find a record there.
    /// (Free places remain on rotational logs alone, and those keep no copies that would have a walk begin earlier.)
    fn end_places(&mut self) {
        if !self.ends_within() {
            let opened = self.buffers.filling.take_if(|filling| filling.is_empty());
            opened.into_iter().for_each(|filling| self.buffers.give_back(filling));
            self.places = FreePlaces::new(self.places.segment().clone(), self.places.end());
        }
    }

    /// Has every later superblock name no record before the next one. Everything so far is destaged, and nothing is on its way.
    pub fn begin_anew(&mut self) {
        self.ring.begin_anew(self.next_seq);
    }

    /// Has the next record go there.
    #[cfg(test)]
    pub const fn move_head(&mut self, sector: u64) {
        self.head_sector = sector;
    }

    /// Notes that the superblock is written. Returns the segments before its tail, which were retained until now.
    pub fn end_release(&mut self) -> Range<u64> {
        self.ring.kept()..self.release.take().expect("a superblock was in flight")
    }

    /// Notes that a superblock with this tail is durable.
    pub fn keep_from(&mut self, number: u64) {
        self.ring.keep_from(number);
    }

    pub fn check(&self) {
        self.ring.check();
        assert!(self.durable_seq <= self.written_seq && self.written_seq < self.next_seq);
    }
}
