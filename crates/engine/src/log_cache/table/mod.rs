//! The lookup table: the place in the log of the newest copy of each cached sector (Nightingale et al. 1999, section 3.3).
//!
//! The unit is a *line* of 4 KiB. Nearly every line is one *piece*: one write, one address, one checksum. Such a line takes sixteen bytes
//! in a hash table (`lines.rs`). A line of several writes is *broken*: its pieces, in units of a sector, are a short list of fragments
//! (`fragments.rs`). The paper's fragment is 1 KiB, as its clients aligned to that; ours is a sector, as clients promise nothing larger.
//!
//! Two rules hold throughout:
//! - the masks of a line's pieces never overlap: a sector has one newest copy, and an older copy is forgotten in the step
//!   that brings the newer one;
//! - each loss of sectors is reported to the caller ([`Lost`]), which counts the dirty sectors of each segment of the log.
//!
//! Zeroes and discards that are not destaged are in [`ZeroRanges`].
//!
//! Memory is bounded from the start: the slots for `lines_max` lines are allocated at once (18.3 bytes a line), as are the counters of
//! the data disks' regions (2 bytes for each 16 MiB). Memory for broken lines grows in steps of 16 KiB up to two fragments a line of
//! `lines_max`. The caller asks [`LookupTable::has_room`] before a write and treats "no" as a full log.

mod fragments;
mod lines;
mod packed;
mod piece;
mod ranges;
#[cfg(test)]
mod tests;

use std::ops::{Deref, Range};

use super::disks::AddressSpace;
use crate::Extent;
use smallvec::SmallVec;

use fragments::Fragments;
use lines::{FoundSlot, Lines};
use packed::{Packed, WIDE_MAX};

pub use packed::PLACE_MAX;
pub use piece::{Line, PIECES_MAX, Piece, Place, sectors_mask};
pub use ranges::{RANGES_MAX, RangeGone, RangeInfo, RangeKind, RangePart, ZeroRanges};

/// Maximum number of fragments for each line of the capacity. Two: a log full of half lines just fits.
const FRAGMENTS_PER_LINE: usize = 2;
/// Lines of a range that one event looks up.
pub const STEP_LINES: u64 = 1 << 13;
/// Maximum number of regions that [`STEP_LINES`] lines touch.
const STEP_REGIONS: usize = 3;
/// Number of lines for each fragment whose memory is allocated at the start: one byte a line.
const LINES_PER_RESERVED_FRAGMENT: usize = 16;
/// Maximum number of fragments that one insert takes: a whole line that breaks needs a node for each of its two pieces.
const FRAGMENTS_PER_INSERT: usize = 2;

/// A piece that lost sectors to something newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The piece's place, as it was inserted.
    pub place: Place,
    /// Number of sectors that it lost, at least one.
    pub sectors: u8,
    pub dirty: bool,
    /// True when nothing of the piece is left.
    pub gone: bool,
}

/// The pieces of one line, in no order.
#[derive(Clone, Copy, Debug)]
pub struct Pieces {
    pieces: [Piece; PIECES_MAX],
    count: u8,
}

impl Pieces {
    const NONE: Pieces = Pieces {
        pieces: [Piece {
            place: Place(0),
            first: 0,
            count: 0,
            crc: 0,
            mask: 0,
            dirty: false,
            hit: false,
            kept: false,
        }; PIECES_MAX],
        count: 0,
    };

    /// The sectors of the line that are in the log.
    pub fn mask(&self) -> u8 {
        self.iter().fold(0, |mask, piece| mask | piece.mask)
    }
}

impl Deref for Pieces {
    type Target = [Piece];
    fn deref(&self) -> &[Piece] {
        &self.pieces[..usize::from(self.count)]
    }
}

/// Totals of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    pub lines: u64,
    pub pieces: u64,
    pub sectors: u64,
    pub dirty_sectors: u64,
}

impl TableCounts {
    fn add(&mut self, piece: &Piece) {
        self.pieces += 1;
        self.sectors += u64::from(piece.sectors());
        if piece.dirty {
            self.dirty_sectors += u64::from(piece.sectors());
        }
    }

    fn subtract(&mut self, lost: &Lost) {
        self.pieces -= u64::from(lost.gone);
        self.sectors -= u64::from(lost.sectors);
        if lost.dirty {
            self.dirty_sectors -= u64::from(lost.sectors);
        }
    }
}

/// A part of a pass over the table: one event looks at one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TablePart {
    first: usize,
    slots: usize,
}

impl TablePart {
    /// The first part of a pass in parts of this many slots.
    pub fn first(slots: usize) -> TablePart {
        TablePart { first: 0, slots: slots.max(1) }
    }
}

/// The table. See the module.
pub struct LookupTable {
    lines: Lines,
    fragments: Fragments,
    counts: TableCounts,
}

impl LookupTable {
    /// RAM for each line that a log can hold, allocated at activation; broken lines take more, as they come.
    pub const LINE_RAM_BYTES: u64 = 20;

    /// Lines of the data disk for each 2 more bytes of RAM.
    pub const LINES_PER_COUNTER: u64 = lines::REGION_LINES;

    /// Creates a table for at most `lines_max` lines, the number that the log can hold, of these data disks. The seed is for the hash: no
    /// client knows it, so no client can choose addresses that collide.
    pub fn new(space: &AddressSpace, lines_max: usize, seed: u64) -> LookupTable {
        let fragments_max = (lines_max * FRAGMENTS_PER_LINE).max(FRAGMENTS_PER_INSERT);
        LookupTable {
            lines: Lines::new(space, lines_max, seed),
            fragments: Fragments::new(fragments_max, lines_max / LINES_PER_RESERVED_FRAGMENT),
            counts: TableCounts::default(),
        }
    }

    /// RAM in use by all parts of the table.
    pub fn memory_bytes(&self) -> usize {
        size_of::<LookupTable>() + self.lines.memory_bytes() + self.fragments.memory_bytes()
    }

    pub fn counts(&self) -> TableCounts {
        TableCounts { lines: self.lines.used() as u64, ..self.counts }
    }

    pub fn lines_max(&self) -> usize {
        self.lines.lines_max()
    }

    /// True when this many calls of `insert` surely find space.
    pub fn has_room(&self, inserts: usize) -> bool {
        self.lines.lines_max() - self.lines.used() >= inserts
            && self.fragments_free() >= inserts * FRAGMENTS_PER_INSERT
    }

    /// Returns how many more fragments can be used: an insert into an existing line takes two at most.
    pub fn fragments_free(&self) -> usize {
        self.fragments.nodes_max() - self.fragments.used()
    }

    /// Makes `piece` the newest copy of its sectors. Reports the sectors that older pieces lost by it. Panics if there is no space.
    #[inline]
    pub fn insert(&mut self, line: Line, piece: Piece, mut lost: impl FnMut(Lost)) {
        piece.check();
        assert!(line.0 <= WIDE_MAX, "beyond any disk: {line:?}");
        match self.lines.find(line) {
            FoundSlot::Absent(slot) => self.lines.add(slot, Packed::whole(line.0, &piece)),
            FoundSlot::At(slot) => {
                let rest = self.strip(self.lines.at(slot), |_| piece.mask, &mut lost);
                let entry = match rest {
                    Some(rest) => self.fragments.join(rest, &piece),
                    None => Packed::whole(line.0, &piece),
                };
                self.lines.put(slot, Some(entry));
            }
        }
        self.counts.add(&piece);
    }

    /// Prefetches lines that are needed soon.
    pub fn touch(&self, lines: impl Iterator<Item = Line>) {
        self.lines.touch(lines);
    }

    /// Returns the pieces of the line that are in the log.
    #[inline]
    pub fn lookup(&self, line: Line) -> Pieces {
        let mut pieces = Pieces::NONE;
        if let Some(entry) = self.lines.get(line) {
            self.fragments.each(entry, |piece| {
                pieces.pieces[usize::from(pieces.count)] = piece;
                pieces.count += 1;
            });
        }
        pieces
    }

    /// Forgets the given sectors of a line.
    pub fn remove_sectors(&mut self, line: Line, mask: u8, mut lost: impl FnMut(Lost)) {
        if let FoundSlot::At(slot) = self.lines.find(line) {
            let rest = self.strip(self.lines.at(slot), |_| mask, &mut lost);
            self.lines.put(slot, rest);
        }
    }

    /// Forgets everything in `extent`. Costs a pass over the table at most, however long the extent is.
    pub fn remove_extent(&mut self, extent: Extent, mut lost: impl FnMut(Lost)) {
        let lines = Line::touching(extent);
        if !self.is_shorter_than_table(&lines) {
            let (fragments, counts) = (&mut self.fragments, &mut self.counts);
            self.lines.sweep(|entry| {
                let mask = entry.line().mask_of(extent);
                if mask == 0 { Some(entry) } else { strip(fragments, counts, entry, |_| mask, &mut lost) }
            });
            return;
        }
        let lines = lines.start..lines.end.min(self.lines.end());
        for first in lines.clone().step_by(STEP_LINES as usize) {
            // Removing a line changes the counts of its own region alone.
            let parts: SmallVec<[Range<u64>; STEP_REGIONS]> =
                self.lines.populated(first..lines.end.min(first + STEP_LINES)).collect();
            for line in parts.into_iter().flatten().map(Line) {
                self.remove_sectors(line, line.mask_of(extent), &mut lost);
            }
        }
    }

    /// Notes that the piece at `place` is clean. Returns how many sectors became clean by it: those still valid. `None`: the table no
    /// longer points at that copy, or it was clean already.
    pub fn mark_clean(&mut self, line: Line, place: Place) -> Option<u8> {
        let FoundSlot::At(slot) = self.lines.find(line) else {
            return None;
        };
        let mut cleaned = None;
        let entry = self.fragments.edit(self.lines.at(slot), |piece| {
            if piece.place == place && piece.dirty {
                cleaned = Some(piece.sectors());
                return Some(Piece { dirty: false, ..piece });
            }
            Some(piece)
        });
        self.lines.put(slot, entry);
        self.counts.dirty_sectors -= u64::from(cleaned.unwrap_or(0));
        cleaned
    }

    /// Sets whether the piece at `place` was read; true if that changes it.
    pub fn mark_hit(&mut self, line: Line, place: Place, hit: bool) -> bool {
        let FoundSlot::At(slot) = self.lines.find(line) else {
            return false;
        };
        let mut changed = false;
        let entry = self.fragments.edit(self.lines.at(slot), |piece| {
            let is_it = piece.place == place;
            changed |= is_it && piece.hit != hit;
            Some(if is_it { Piece { hit, ..piece } } else { piece })
        });
        self.lines.put(slot, entry);
        changed
    }

    /// Takes a data disk of so many sectors, in a new place or in that of a disk of which the table has nothing.
    pub fn set_disk(&mut self, disk: usize, sectors: u64) {
        self.lines.set_disk(disk, sectors);
    }

    /// Forgets the clean pieces of an extent. Does one part of a pass over the table; returns the next part, if there is one. Panics at a
    /// dirty piece.
    pub fn remove_clean_of(&mut self, extent: Extent, part: TablePart) -> Option<TablePart> {
        let (fragments, counts) = (&mut self.fragments, &mut self.counts);
        let mut lost = |lost: Lost| assert!(!lost.dirty, "what leaves is clean");
        let next = self.lines.sweep_part(part.first, part.slots, |entry| {
            let mask = entry.line().mask_of(extent);
            if mask == 0 { Some(entry) } else { strip(fragments, counts, entry, |_| mask, &mut lost) }
        });
        next.map(|first| TablePart { first, ..part })
    }

    /// Forgets kept copies. Does one part of a pass over the table; returns the next part, if there is one.
    pub fn remove_kept(&mut self, part: TablePart) -> Option<TablePart> {
        let (fragments, counts) = (&mut self.fragments, &mut self.counts);
        let select = |piece: &Piece| if piece.kept { u8::MAX } else { 0 };
        let next = self
            .lines
            .sweep_part(part.first, part.slots, |entry| strip(fragments, counts, entry, select, &mut |_| {}));
        next.map(|first| TablePart { first, ..part })
    }

    /// True when any sector of the line is in the log.
    pub fn contains_line(&self, line: Line) -> bool {
        self.lines.get(line).is_some()
    }

    /// True when any sector of the extent is in the log, dirty or clean.
    pub fn contains_any(&self, extent: Extent) -> bool {
        self.any_in(extent, |_| true)
    }

    /// True when any sector of the extent is dirty in the log.
    pub fn contains_dirty(&self, extent: Extent) -> bool {
        self.any_in(extent, |piece| piece.dirty)
    }

    /// Counts the sectors of the extent that are dirty in the log.
    pub fn dirty_in(&self, extent: Extent) -> u64 {
        let mut dirty = 0;
        self.search(extent, |mask, piece| {
            dirty += if piece.dirty { u64::from((piece.mask & mask).count_ones()) } else { 0 };
            false
        });
        dirty
    }

    /// Forgets the clean pieces in the given parts of the log, which are about to be overwritten. Does one part of a pass over the table;
    /// returns the next part, if there is one. Panics at a dirty piece there: its only copy would be lost.
    pub fn purge(&mut self, released: &[Range<Place>], part: TablePart) -> Option<TablePart> {
        let inside = |place: Place| released.iter().any(|part| part.start <= place && place < part.end);
        let (fragments, counts) = (&mut self.fragments, &mut self.counts);
        let mut lost = |lost: Lost| {
            assert!(!lost.dirty, "{:?} of the log was released with dirty data in it", lost.place);
        };
        let next = self.lines.sweep_part(part.first, part.slots, |entry| {
            // Nearly all lines are one piece and stay: they cost only this check.
            if !entry.is_broken() && !inside(entry.place()) {
                return Some(entry);
            }
            strip(fragments, counts, entry, |piece| if inside(piece.place) { u8::MAX } else { 0 }, &mut lost)
        });
        next.map(|first| TablePart { first, ..part })
    }

    /// Calls `f` with every piece, those of a line one after the other.
    pub fn scan(&self, mut f: impl FnMut(Line, Piece)) {
        self.lines.scan(|entry| self.fragments.each(entry, |piece| f(entry.line(), piece)));
    }

    /// Scans a part of the table, and returns the next part, if there is one. A pass in parts meets each line that stays in the table
    /// exactly once, even if others come and go.
    pub fn scan_part(&self, part: TablePart, mut f: impl FnMut(Line, Piece)) -> Option<TablePart> {
        let each = |entry: Packed| self.fragments.each(entry, |piece| f(entry.line(), piece));
        self.lines.scan_part(part.first, part.slots, each).map(|first| TablePart { first, ..part })
    }

    /// Scans what is dirty in a part of the table, as [`LookupTable::scan_part`] does. Most of a large log is clean: it costs only a look.
    pub fn scan_dirty_part(&self, part: TablePart, mut f: impl FnMut(Line, Piece)) -> Option<TablePart> {
        let each = |entry: Packed| {
            if !entry.is_clean() {
                self.fragments.each(entry, |piece| {
                    if piece.dirty {
                        f(entry.line(), piece)
                    }
                });
            }
        };
        self.lines.scan_part(part.first, part.slots, each).map(|first| TablePart { first, ..part })
    }

    /// Slots that passes in parts have looked at.
    #[cfg(test)]
    pub fn visited(&self) -> u64 {
        self.lines.visited.get()
    }

    /// Panics if the table contradicts itself. A pass over everything, for tests and simulation.
    pub fn check(&self) {
        self.lines.check();
        self.fragments.check();
        let (mut counts, mut nodes) = (TableCounts::default(), 0);
        self.lines.scan(|entry| {
            let (mut covered, mut pieces) = (0u8, 0);
            self.fragments.each(entry, |piece| {
                piece.check();
                assert_eq!(covered & piece.mask, 0, "two newest copies of a sector of {:?}", entry.line());
                covered |= piece.mask;
                pieces += 1;
                counts.add(&piece);
            });
            assert_eq!(entry.is_broken(), pieces > 1, "a list for a single piece of {:?}", entry.line());
            nodes += if entry.is_broken() { pieces } else { 0 };
            counts.lines += 1;
        });
        assert_eq!(counts, self.counts());
        assert_eq!(nodes, self.fragments.used(), "a fragment belongs to no line");
    }

    fn is_shorter_than_table(&self, lines: &Range<u64>) -> bool {
        let slots = self.lines.slots() as u64;
        lines.end - lines.start <= slots || self.populated_lines(lines) <= slots
    }

    fn populated_lines(&self, lines: &Range<u64>) -> u64 {
        self.lines.populated(lines.clone()).map(|part| part.end - part.start).sum()
    }

    /// Returns the first part of an extent with about [`STEP_LINES`] lines that may be in the table; the whole extent if a pass over the
    /// table looks at no more.
    pub fn step(&self, extent: Extent) -> Extent {
        let lines = Line::touching(extent);
        if lines.end - lines.start <= STEP_LINES || self.lines.slots() as u64 <= STEP_LINES {
            return extent;
        }
        let mut sum = 0;
        let last = self.lines.populated(lines).find(|part| {
            sum += part.end - part.start;
            sum >= STEP_LINES
        });
        let end = last.map_or(extent.end(), |part| Line(part.end).start().min(extent.end()));
        Extent::new(extent.start, end - extent.start)
    }

    #[inline]
    fn strip(
        &mut self,
        entry: Packed,
        select: impl FnMut(&Piece) -> u8,
        lost: &mut impl FnMut(Lost),
    ) -> Option<Packed> {
        strip(&mut self.fragments, &mut self.counts, entry, select, lost)
    }

    /// True when a piece in the extent is `wanted`.
    pub fn any_in(&self, extent: Extent, mut wanted: impl FnMut(&Piece) -> bool) -> bool {
        self.search(extent, |mask, piece| piece.mask & mask != 0 && wanted(&piece))
    }

    /// Returns the first run of adjacent sectors in the extent that wanted pieces have. Costs a pass over the table at most, and more than
    /// [`STEP_LINES`] lines only if the extent is longer than [`LookupTable::step`] says.
    pub fn first_run(&self, extent: Extent, is_wanted: impl Fn(&Piece) -> bool) -> Option<Extent> {
        let lines = Line::touching(extent);
        let wanted = |line: Line, piece: &Piece| {
            if is_wanted(piece) { piece.mask & line.mask_of(extent) } else { 0 }
        };
        let in_line = |line: Line| {
            let mask = self.lookup(line).iter().fold(0, |mask, piece| mask | wanted(line, piece));
            let mut first = None;
            line.runs(mask, |run| _ = first.get_or_insert(run));
            first
        };
        let first = if self.is_shorter_than_table(&lines) {
            self.lines.populated(lines.clone()).flatten().find(|line| in_line(Line(*line)).is_some())?
        } else {
            let mut first = None;
            self.scan(|line, piece| {
                if lines.contains(&line.0) && wanted(line, &piece) != 0 {
                    first = Some(first.map_or(line.0, |least: u64| least.min(line.0)));
                }
            });
            first?
        };
        let mut whole = in_line(Line(first))?;
        for line in (first + 1..lines.end).map(Line) {
            match in_line(line) {
                Some(run) if run.start == whole.end() => whole.sectors += run.sectors,
                _ => break,
            }
        }
        Some(whole)
    }

    /// Calls `f` with each piece of the lines that the extent touches, and the mask of the sectors that it covers, until `f` returns
    /// true. Costs a pass over the table at most, however long the extent is.
    fn search(&self, extent: Extent, mut f: impl FnMut(u8, Piece) -> bool) -> bool {
        let lines = Line::touching(extent);
        let mut enough = false;
        if self.is_shorter_than_table(&lines) {
            for line in self.lines.populated(lines).flatten().map(Line) {
                if let Some(entry) = self.lines.get(line) {
                    self.fragments.each(entry, |piece| enough = enough || f(line.mask_of(extent), piece));
                }
                if enough {
                    break;
                }
            }
        } else {
            self.scan(|line, piece| {
                enough = enough || (lines.contains(&line.0) && f(line.mask_of(extent), piece));
            });
        }
        enough
    }
}

/// Removes from each piece of `entry` the sectors that `select` names, reports the loss, and returns the rest.
#[inline]
fn strip(
    fragments: &mut Fragments,
    counts: &mut TableCounts,
    entry: Packed,
    mut select: impl FnMut(&Piece) -> u8,
    lost: &mut impl FnMut(Lost),
) -> Option<Packed> {
    fragments.edit(entry, |piece| {
        let taken = piece.mask & select(&piece);
        if taken == 0 {
            return Some(piece);
        }
        let mask = piece.mask & !taken;
        let loss = Lost {
            place: piece.place,
            sectors: taken.count_ones() as u8,
            dirty: piece.dirty,
            gone: mask == 0,
        };
        counts.subtract(&loss);
        lost(loss);
        (mask != 0).then_some(Piece { mask, ..piece })
    })
}
