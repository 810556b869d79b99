//! Carrying forward: where a disk hangs or fails, its dirty blocks would keep the tail of the log where it is, and all disks would wait
//! for space. So the blocks of the tail's segment are read, checked, and appended again at the head.
//!
//! It promises:
//!
//! - A block is appended again only where the index still points at the copy that was read, in the same event: it is as if a client wrote
//!   the same content again. Nothing waits for the new record but the tail, which passes the old copy once that record is durable.
//! - A block that was carried stays dirty, whatever becomes of a batch that has read its old copy ([`Destagers::let_go`]).
//! - One segment is carried at a time, that of the tail, and only while the log has more to gain than to copy. Clients leave
//!   [`RESERVE`] segments for it.
//! - What cannot be read, or fails its check, stays where it is, as when it is destaged.

use super::LogCanary;
use super::destager::Destagers;
use super::env::{Env, LOG, Op, View};
use super::format::{Entry, EntryKind};
use super::index::Index;
use super::keep::ReadSegment;
use super::log::Log;
use super::table::{Line, Piece, Place, RangePart};
use crate::layer::IoResult;
use crate::{Buf, Extent, LINE_SECTORS, Lba, Nanos, SECTOR_BYTES};

/// Segments that clients leave: what a segment has fits the rest of the head's segment and the next one.
pub const RESERVE: u64 = 2;
/// Part of the log below the high mark from which on blocks are carried, so that other disks are not paced.
const BEFORE_HIGH_MARK: f64 = 1.0 / 16.0;
/// Part of the log that is at least gained by carrying all of it.
const GAIN_PART: u64 = 16;
/// Laps that are carried at most while clients write nothing, and bytes that are carried for each byte that they write.
const LAPS: u64 = 2;
const CARRIED_PER_BYTE: u64 = 8;
/// Least space that a small write takes in the log: a header and a block.
const RECORD_BYTES: u64 = 8192;
/// Time until the same segment is looked at again; next, if something in it is bad.
const AGAIN: Nanos = Nanos::from_secs(1);
const AGAIN_IF_BAD: Nanos = Nanos::from_secs(30);
/// Bytes that zeroes or a discard count for among the bytes that are copied in an event.
const RANGE_BYTES: u64 = 4096;

/// The state of carrying a segment forward.
pub struct CarryForward {
    /// Bytes of segments that may be carried.
    tokens: u64,
    is_reading: bool,
    found: Option<ReadSegment>,
    /// The copy of the log that is read, after another was bad.
    copy: Option<u8>,
    /// Pieces of the segment that cannot be read from that copy.
    bad: Vec<(Line, Place)>,
    /// The segment that was looked at last, and when it may be looked at again.
    again: Option<(u64, Nanos)>,
}

impl Default for CarryForward {
    fn default() -> CarryForward {
        let (found, copy, bad, again) = (None, None, Vec::new(), None);
        CarryForward { tokens: u64::MAX, is_reading: false, found, copy, bad, again }
    }
}

impl CarryForward {
    /// Notes that a client writes so much. Without that, the log is packed within [`LAPS`] laps, or cannot be.
    pub fn earn(&mut self, bytes: u64) {
        self.tokens = self.tokens.saturating_add(bytes.max(RECORD_BYTES) * CARRIED_PER_BYTE);
    }

    /// Goes on carrying; runs after every event. True if the tail may move.
    pub fn step(&mut self, destagers: &mut Destagers, env: &mut Env) -> bool {
        let stuck = destagers.stuck(&env.view());
        if !may_carry(stuck, &env.view()) {
            self.found = None;
            return false;
        }
        if env.log.chain().is_some() || self.is_reading {
            return false;
        }
        if let Some(found) = self.found.take() {
            let number = found.number;
            self.found = self.carry(found, stuck, env);
            // A bad header hides its entries: they are left, too.
            let is_left = has_something(env.log.ring().index(number), stuck, &env.view());
            if self.found.is_some() || (is_left && self.read_other_copy(number, env)) {
                return false;
            }
            self.end(number, is_left, env);
            destagers.let_go(stuck, number, env);
            return true;
        }
        self.begin(stuck, destagers, env)
    }

    /// Reads the tail's segment, if something in it is to be carried. True if the tail may move without.
    fn begin(&mut self, stuck: u64, destagers: &mut Destagers, env: &mut Env) -> bool {
        let view = env.view();
        let (ring, number) = (view.log.ring(), view.log.ring().tail());
        let segment = ring.index(number);
        let was_tried = self.again.is_some_and(|(tried, at)| tried == number && view.now < at);
        let is_durable =
            number < ring.head() && ring.at(ring.index(number + 1)).first_seq <= view.log.safe_seq() + 1;
        if was_tried || !is_durable || !is_wanted(&view) {
            return false;
        }
        if !has_something(segment, stuck, &view) {
            return destagers.let_go(stuck, number, env);
        }
        let segment_bytes = u64::from(view.log.superblock().segment_bytes);
        self.tokens = self.tokens.min(LAPS * ring.count() * segment_bytes);
        if !gains(stuck, &view) || self.tokens < segment_bytes {
            return false;
        }
        self.tokens -= segment_bytes;
        if env.config.canary.is(LogCanary::PassMissing) {
            env.index.skip(segment);
            return true;
        }
        self.again = Some((number, view.now + AGAIN));
        (self.copy, self.is_reading) = (None, true);
        env.read_segment(number, None, Op::CarryForward(number));
        false
    }

    /// Takes a segment that was read.
    pub fn was_read(&mut self, number: u64, result: IoResult, env: &mut Env) {
        env.log.unpin(env.log.ring().index(number));
        self.is_reading = false;
        self.bad.clear();
        match result.status {
            Ok(()) => self.found = Some(ReadSegment::new(number, result.buf)),
            Err(_) if self.read_other_copy(number, env) => {}
            Err(_) => {
                env.statistics.log_read_errors += 1;
                self.again = Some((number, env.cx.now + AGAIN_IF_BAD));
            }
        }
    }

    /// Reads another copy of the log, as something is bad in this one; false if there is none.
    fn read_other_copy(&mut self, number: u64, env: &mut Env) -> bool {
        let next = env.log.next_copy(self.copy);
        if let Some(copy) = next {
            (self.copy, self.is_reading) = (next, true);
            env.read_segment(number, Some(copy), Op::CarryForward(number));
        }
        next.is_some()
    }

    /// A segment was carried as far as it can be read. Clients may have replaced what is bad meanwhile.
    fn end(&mut self, number: u64, is_left: bool, env: &mut Env) {
        env.statistics.carried_segments += 1;
        if is_left {
            self.again = Some((number, env.cx.now + AGAIN_IF_BAD));
        }
        for (line, place) in self.bad.drain(..) {
            if env.index.table().lookup(line).iter().any(|piece| piece.place == place && piece.dirty) {
                env.index.lost.note(line, place);
                env.statistics.log_read_errors += 1;
            }
        }
    }

    /// Appends what is dirty of stuck disks in a segment; returns the rest of the work if there is no room.
    fn carry(&mut self, mut found: ReadSegment, stuck: u64, env: &mut Env) -> Option<ReadSegment> {
        while let Some((seq, entry, place)) = found.entry(env.log) {
            let is_done = match entry.kind {
                _ if stuck >> env.data.disk_of(entry.extent.start) & 1 == 0 => true,
                EntryKind::Data => self.carry_data(&entry, place, &found, env),
                EntryKind::Discard | EntryKind::Zeroes | EntryKind::ZeroesUnmap => {
                    carry_range(&entry, seq, found.number, env)
                }
                EntryKind::Clean | EntryKind::Invalidate | EntryKind::Left => true,
            };
            if !is_done {
                return Some(found);
            }
            found.next_entry();
        }
        None
    }

    /// Appends what is still the newest of an entry; false if there is no room.
    fn carry_data(&mut self, entry: &Entry, place: Place, found: &ReadSegment, env: &mut Env) -> bool {
        let line = Line::of(entry.extent.start);
        let Some(piece) = newest_at(entry, place, env) else { return true };
        if !piece.is_intact(&found.buf, found.offset(place, env.log)) {
            if !self.bad.contains(&(line, place)) && !env.index.lost.is_lost(line, place) {
                self.bad.push((line, place));
            }
            return true;
        }
        let mut runs = Vec::new();
        line.runs(piece.mask, |run| runs.push(run));
        for run in runs {
            let bytes = run.sectors * SECTOR_BYTES;
            if env.index.table().fragments_free() < 2 || !env.make_room_to_carry(bytes) {
                return false;
            }
            let first = (run.start.0 % LINE_SECTORS) as u8;
            let from = found.offset(piece.place_of(first), env.log);
            env.append_again(EntryKind::Data, run, &found.buf, from);
            env.log.hurry();
            env.statistics.carried_bytes += bytes;
        }
        true
    }

    /// Returns when carrying may go on, or has to begin.
    pub fn deadline(&self, view: &View, stuck: u64) -> Option<Nanos> {
        let (_, at) = self.again?;
        (may_carry(stuck, view) && is_wanted(view) && at > view.now).then_some(at)
    }
}

/// Appends again what is left of zeroes or a discard of record `seq`; false if there is no room. Data over them is newer, and must stay so.
fn carry_range(entry: &Entry, seq: u64, number: u64, env: &mut Env) -> bool {
    let segment = env.log.ring().index(number);
    loop {
        // A torn record of an earlier activation may have the same number: its kind is not to be trusted.
        let kind = Index::range_kind(entry.kind);
        let is_it =
            |part: &RangePart| part.info.seq == seq && part.info.segment == segment && part.info.kind == kind;
        let Some(part) = env.index.ranges().lookup(entry.extent).find(is_it) else { return true };
        let step = env.index.table().step(part.extent);
        let (hole, covered) = match env.index.table().first_run(step, |_| true) {
            Some(run) if run.start == step.start => (None, Some(run)),
            Some(run) => (Some(Extent::new(step.start, run.start - step.start)), None),
            None => (Some(step), None),
        };
        // The other disks need ranges, too: then the segment has to wait for its disk.
        if !env.index.may_split_ranges() {
            return true;
        }
        if !env.make_room_to_carry(0) {
            return false;
        }
        if let Some(hole) = hole {
            let seq = env.open_record();
            let segment = env.log.note(Entry { extent: hole, ..*entry });
            env.index.insert_range(hole, entry.kind, seq, segment);
        }
        if let Some(covered) = covered {
            env.index.leave_range(covered, env.log.last_seq());
        }
        env.copied(RANGE_BYTES);
        env.log.hurry();
    }
}

/// Returns the piece at a place, if it is the newest copy of something, and dirty.
fn newest_at(entry: &Entry, place: Place, env: &Env) -> Option<Piece> {
    let pieces = env.index.table().lookup(Line::of(entry.extent.start));
    if env.config.canary.is(LogCanary::CarryBlindly) {
        let first = (entry.extent.start.0 % LINE_SECTORS) as u8;
        return Some(Piece::written(place, first, entry.extent.sectors as u8, entry.crc));
    }
    pieces.iter().copied().find(|piece| piece.place == place && piece.dirty)
}

/// True where blocks may be carried: other disks wait for the tail, and the log is well.
fn may_carry(stuck: u64, view: &View) -> bool {
    stuck != 0 && view.data.space().count() > 1 && !view.log.has_failed() && view.life.serves()
}

/// True when somebody waits for space, or the log is about to be so full that writes are paced.
fn is_wanted(view: &View) -> bool {
    let near = f64::from(view.config.high_mark) / 100.0 - BEFORE_HIGH_MARK;
    view.queue.wants_space() || view.log.ring().utilisation() >= near
}

fn has_something(segment: u32, stuck: u64, view: &View) -> bool {
    let disks = 0..view.data.space().count();
    view.index.has_dirty_ranges(segment)
        || disks
            .filter(|disk| stuck >> disk & 1 == 1)
            .any(|disk| view.index.dirty_sectors_of(segment, disk) > 0)
}

/// True when the log would be emptier with the blocks of stuck disks packed at its head.
fn gains(stuck: u64, view: &View) -> bool {
    let ring = view.log.ring();
    let disks = (0..view.data.space().count()).filter(|disk| stuck >> disk & 1 == 1);
    let sectors: u64 = disks.map(|disk| view.index.dirty_sectors_on(disk)).sum();
    // A quarter is for headers, and for the ends of segments.
    let packed = (sectors * 5 / 4).div_ceil(view.log.superblock().segment_sectors());
    ring.live() > packed + (ring.count() / GAIN_PART).max(2)
}

impl Env<'_> {
    /// Reads a segment, or one copy of it, which is pinned meanwhile.
    pub fn read_segment(&mut self, number: u64, copy: Option<u8>, op: Op) {
        let at = Lba(self.log.start_of(number));
        let buf = Buf::zeroed(self.log.superblock().segment_bytes as usize);
        self.log.pin(self.log.ring().index(number));
        self.submit(LOG, op, Log::read(at, buf, copy));
    }

    /// Makes sure that there is room for a carried entry: in memory that outlives the process, too, if that has some.
    fn make_room_to_carry(&mut self, bytes: u64) -> bool {
        if !self.view().has_copied_little() {
            return false;
        }
        let bytes = bytes as usize;
        if self.log.ends_before(1, bytes) {
            self.seal();
        }
        let has_room = self.make_room_beside_clients(bytes, 1, 0);
        if has_room {
            self.log.announce(1, bytes);
        }
        has_room
    }
}
