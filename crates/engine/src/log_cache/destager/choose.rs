//! Choosing a batch: which discards and zeroes are destaged, which segments, and what of them.

use std::collections::BTreeSet;

use super::Destager;
use super::room::{Item, Room};
use super::sweep::{self, First};
use crate::destage::what;
use crate::layer::{Discards, Geometry};
use crate::log_cache::env::DiskView;
use crate::log_cache::log::Chain;
use crate::log_cache::table::{Line, Piece, RangeKind, RangePart, TablePart};
use crate::log_cache::{HowPolicy, WhatPolicy};
use crate::{Extent, LINE_SECTORS};

/// Zeroes are destaged in pieces of so many sectors (1 MiB), so that a request need not wait long; 1 GiB where the device does not write
/// them one by one, and for discards.
const ZEROES_SECTORS_MAX: u64 = 2 << 10;
const FAST_SECTORS_MAX: u64 = 2 << 20;
/// Part of the log in a batch that writers wait for. (With batches of all that was dirty, writers stood still for two seconds on a log of
/// 16 MiB on the same disk; smaller ones are sorted less, and destaged more slowly.)
const PART_BESIDE_WRITERS: u64 = 6;
/// Parts of discards and zeroes in a batch, at most: the oldest go first.
const RANGES_AT_ONCE: usize = 1 << 10;

/// A pass over the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TablePass {
    /// For whole stripes of an array.
    Stripes,
    /// For the pieces of the chosen segments, which may be more than a batch has room for.
    #[default]
    Count,
    /// For the pieces of those chosen segments that are not left out.
    Take,
    /// For what is next of a sweep.
    Sweep,
}

/// The state of a choice.
#[derive(Default)]
pub struct Choosing {
    pass: TablePass,
    part: TablePart,
    first: First,
    /// Sectors in the chosen segments.
    sectors: u64,
    /// The log has failed or not, and its newest record that may be destaged: what was found of barren segments holds while they stay.
    seen: Option<(bool, u64)>,
    no_stripes: bool,
    /// Some blocks have to wait for a write that bypasses the log, or for an older range.
    pub behind_bypass: bool,
    /// All segments with something dirty are barren.
    found_nothing: bool,
}

impl Choosing {
    /// Something else may be eligible now.
    pub const fn look_again(&mut self) {
        self.seen = None;
    }

    fn begin_pass(&mut self, pass: TablePass, view: &DiskView) {
        (self.pass, self.part) = (pass, TablePart::first(view.config.scan_slots));
    }
}

/// Rules that decide what may be destaged.
pub(super) struct Eligible<'a> {
    pub view: &'a DiskView<'a>,
    /// The zeroes and discards of the batch.
    range_ids: &'a [u64],
    /// The segments of the batch, by index.
    chosen: &'a [bool],
    pub items_max: usize,
    chain: Option<Chain>,
}

impl Eligible<'_> {
    pub fn is_in_chosen(&self, piece: &Piece) -> bool {
        self.chosen[self.view.index.segment_of(piece.place) as usize]
    }

    /// After the log has failed, also what only RAM has is destaged.
    pub fn may_be_destaged(&self, line: Line, piece: &Piece) -> bool {
        let log = self.view.log;
        // Older records of the chain's first segment wait, too.
        let is_chained = |chain: Chain| log.number_of(piece.place) >= chain.segment;
        piece.dirty
            && self.view.has(line)
            && !self.view.index.lost.is_lost(line, piece.place)
            && !self.chain.is_some_and(is_chained)
            && (log.has_failed() || log.buffers().holding(piece.place.0).is_none())
    }

    /// True when an older write past the log, or an older range, has to reach the data disk before a line. A range that is left out of the
    /// batch would be destaged later, over the newer data.
    pub fn waits_for_others(&self, line: Line) -> bool {
        let stays = |part: RangePart| self.range_ids.binary_search(&part.info.id).is_err();
        self.view.data.is_bypassed(line.extent()) || self.view.index.ranges().lookup(line.extent()).any(stays)
    }

    /// The pieces of the chosen segments that may be destaged, and the segment of each, in one part of the table; the next part, if there is
    /// one.
    fn scan_pieces(
        &self,
        part: TablePart,
        behind_bypass: &mut bool,
        mut take: impl FnMut(Item, u32),
    ) -> Option<TablePart> {
        let index = self.view.index;
        index.table().scan_dirty_part(part, |line, piece| {
            let segment = index.segment_of(piece.place);
            if !self.chosen[segment as usize] || !self.may_be_destaged(line, &piece) {
                return;
            }
            if self.waits_for_others(line) {
                *behind_bypass = true;
            } else {
                take(Item { line, piece, failed: false }, segment);
            }
        })
    }
}

impl DiskView<'_> {
    /// The destaging order. Only the tail gives segments up (rule 1), so while somebody waits for space, and from the low
    /// mark on, the oldest go first whatever the policy is: in another order much would be destaged and nothing be free. When the log has
    /// failed, the newest go first: only RAM has those.
    fn what(&self) -> WhatPolicy {
        match self.log.has_failed() {
            true => WhatPolicy::LastWriteFirst,
            false if self.is_short() => WhatPolicy::OldestFirst,
            false => self.config.what,
        }
    }

    fn is_short(&self) -> bool {
        let short = self.log.ring().utilisation() >= f64::from(self.config.low_mark) / 100.0;
        short || self.wants_space()
    }

    /// A request over several records that is not durable as a whole: nothing of it is destaged.
    fn chain(&self) -> Option<Chain> {
        if self.log.has_failed() { None } else { self.log.volatile_chain() }
    }

    /// True when the data disk seeks and the log does not: sorting further then costs less, and the log may be read anywhere.
    fn sweeps(&self) -> bool {
        let spins = (self.log.geometry().rotational, self.data.geometry().rotational);
        !self.log.has_failed() && spins == (false, true) && self.config.how == HowPolicy::Sorted
    }

    /// Lines of a batch that frees its segments only when it ends: beside writers that need them, it is a part of the log.
    fn lines_beside_writers(&self) -> u64 {
        let log_sectors = self.log.ring().count() * self.log.superblock().segment_sectors();
        let is_bounded = self.is_short() && self.has_writers();
        if is_bounded { log_sectors / LINE_SECTORS / PART_BESIDE_WRITERS } else { u64::MAX }
    }

    fn dirty_lines(&self) -> u64 {
        self.index.dirty_sectors_on(self.disk) / LINE_SECTORS
    }

    /// Returns how many sectors the log can take before the tail moves.
    fn free_sectors(&self) -> u64 {
        let ring = self.log.ring();
        (ring.count() - ring.live()) * self.log.superblock().segment_sectors()
    }
}

impl Room {
    /// Chooses the segments of the batch, or of the lap, by the policy: so many lines of them, or one segment. The sectors in them.
    fn choose_segments(&mut self, view: &DiskView, lines: u64) -> u64 {
        let last = view.chain().map_or(u64::MAX, |chain| chain.segment);
        let what = view.what();
        let Room { parts, chosen, barren, .. } = self;
        let ring = view.log.ring();
        parts.clear();
        for number in ring.tail()..=ring.head().min(last) {
            let index = ring.index(number);
            let dirty_sectors = view.index.dirty_sectors_of(index, view.disk);
            if dirty_sectors > 0 && !barren[index as usize] {
                parts.push(what::Part {
                    number,
                    dirty_sectors,
                    written: number,
                    // A segment has no place on the data disk: a sweep takes them in the order of the ring.
                    ahead: number - ring.tail(),
                    distance: 0,
                    referenced: false,
                });
            }
        }
        parts.sort_by_key(|part| what.key(part));
        chosen.fill(false);
        let mut sum = 0;
        for part in parts {
            if sum > 0 && sum + part.dirty_sectors > lines * LINE_SECTORS {
                break;
            }
            sum += part.dirty_sectors;
            chosen[ring.index(part.number) as usize] = true;
        }
        sum
    }

    pub(super) fn sort_items(&mut self, how: HowPolicy) {
        match how {
            HowPolicy::Sorted => self.items.sort_unstable_by_key(|item| (item.line, item.piece.place)),
            HowPolicy::AsItComes => self.items.sort_unstable_by_key(|item| item.piece.place),
        }
    }
}

impl Destager {
    pub(super) fn choose_ranges(&mut self, safe: u64, view: &DiskView) {
        self.range_ids.clear();
        self.range_parts.clear();
        let ranges = view.index.ranges();
        let oldest =
            ranges.oldest().filter(|part| view.has(Line::of(part.extent.start))).take(RANGES_AT_ONCE);
        let mut parts: Vec<RangePart> = oldest.take_while(|part| part.info.seq <= safe).collect();
        // A range is destaged as a whole: also the last one.
        if parts.len() == RANGES_AT_ONCE {
            let last = parts.pop().expect("the batch is full").info.id;
            parts.retain(|part| part.info.id != last);
            parts.extend(ranges.parts_of(last));
        }
        let behind: BTreeSet<u64> =
            parts.iter().filter(|part| view.data.is_bypassed(part.extent)).map(|part| part.info.id).collect();
        self.ranges_behind = !behind.is_empty();
        for part in parts.into_iter().filter(|part| !behind.contains(&part.info.id)) {
            self.range_ids.push(part.info.id);
            self.add_range(part, view.data.geometry());
        }
        self.range_ids.dedup();
    }

    /// Cuts a range into what the data disk does at a time.
    pub(super) fn add_range(&mut self, part: RangePart, geometry: &Geometry) {
        let is_discard = part.info.kind == RangeKind::Discard && geometry.discards != Discards::No;
        let is_fast = geometry.fast_zeroes || is_discard;
        let sectors_max = if is_fast { FAST_SECTORS_MAX } else { ZEROES_SECTORS_MAX };
        let mut rest = part.extent;
        while rest.sectors > 0 {
            let sectors = rest.sectors.min(sectors_max);
            self.range_parts.push_back((Extent::new(rest.start, sectors), part.info.kind));
            rest = Extent::new(rest.start + sectors, rest.sectors - sectors);
        }
    }

    /// Begins to choose the blocks of a batch; false where none can be destaged before something changes.
    pub(super) fn begin_choice(&mut self, safe: u64, view: &DiskView) -> bool {
        let failed = view.log.has_failed();
        self.room.items.clear();
        if self.choosing.seen != Some((failed, safe)) {
            self.choosing = Choosing { seen: Some((failed, safe)), ..Choosing::default() };
            self.room.barren.fill(false);
        }
        if self.choosing.found_nothing {
            return false;
        }
        let stripes_first = !failed && !view.is_short() && !self.is_after_failure();
        if stripes_first && !self.choosing.no_stripes && view.stripes().is_some() {
            self.choosing.begin_pass(TablePass::Stripes, view);
            return true;
        }
        self.begin_pieces(view)
    }

    /// Begins a pass over the pieces of chosen segments; false where no segment is left to choose.
    fn begin_pieces(&mut self, view: &DiskView) -> bool {
        let Destager { choosing, room, sweep, .. } = self;
        let lap_lines = sweep.lap_lines(view.dirty_lines(), view.is_short() && view.has_writers());
        let sweeps = view.sweeps();
        let lines = match sweeps {
            true => lap_lines,
            false => lap_lines
                .min(Room::batch_lines(view.config, view.log.geometry().rotational) as u64)
                .min(view.lines_beside_writers()),
        };
        let sectors = room.choose_segments(view, lines);
        choosing.sectors = sectors;
        if sweeps {
            choosing.first = First::new(sweep::batch_lines(sectors / LINE_SECTORS, room.items_max / 2));
            sweep.begin_batch();
            choosing.begin_pass(TablePass::Sweep, view);
        } else {
            room.pieces.fill(0);
            choosing.begin_pass(TablePass::Count, view);
        }
        choosing.found_nothing = sectors == 0;
        sectors > 0
    }

    /// Looks through one part of the table; true when the batch is chosen.
    pub(super) fn choose_part(&mut self, view: &DiskView) -> bool {
        if self.choosing.found_nothing {
            // There are only ranges.
            return true;
        }
        let Destager { choosing, sweep, room, range_ids, .. } = self;
        let Room { items, pieces, chosen, items_max, .. } = room;
        let items_max = *items_max;
        let rule = Eligible { view, range_ids, chosen, items_max, chain: view.chain() };
        let Choosing { part, first, behind_bypass, .. } = choosing;
        let mut take = |item| {
            if items.len() < items_max {
                items.push(item);
            }
        };
        let next = match choosing.pass {
            TablePass::Stripes => rule.choose_full_stripes(*part, items),
            // Counts the pieces, and takes as many as a batch has room for.
            TablePass::Count => rule.scan_pieces(*part, behind_bypass, |item, segment| {
                pieces[segment as usize] += 1;
                take(item);
            }),
            TablePass::Take => rule.scan_pieces(*part, behind_bypass, |item, _| take(item)),
            // Takes what is next ahead of the sweep's hand.
            TablePass::Sweep => rule.scan_pieces(*part, behind_bypass, |item, segment| {
                if sweep.see(&item, segment) {
                    first.add(item, items);
                }
            }),
        };
        if let Some(next) = next {
            *part = next;
            return false;
        }
        let is_chosen = self.end_pass(view);
        if is_chosen {
            self.room.sort_items(view.config.how);
        }
        is_chosen
    }

    /// The whole table was looked through; true when that is enough.
    fn end_pass(&mut self, view: &DiskView) -> bool {
        let pass = self.choosing.pass;
        match pass {
            TablePass::Stripes if self.room.items.is_empty() => {
                self.choosing.no_stripes = true;
                return !self.begin_pieces(view);
            }
            TablePass::Stripes => return true,
            TablePass::Count if self.leave_out_last_segments(view) => {
                self.room.items.clear();
                self.choosing.begin_pass(TablePass::Take, view);
                return false;
            }
            // The batch is no part of a sweep.
            TablePass::Count | TablePass::Take => {
                let segment_sectors = view.log.superblock().segment_sectors();
                self.sweep.plan_alone(self.choosing.sectors, view.free_sectors(), segment_sectors);
            }
            TablePass::Sweep => {
                self.end_sweep_pass(view);
                if self.room.items.is_empty() && self.sweep.begin_lap(view.dirty_lines()) {
                    return !self.begin_pieces(view);
                }
                self.sweep.pass(&self.room.items);
            }
        }
        let Room { items, chosen, barren, items_max, .. } = &mut self.room;
        if items.is_empty() {
            // All that is dirty in these segments has to wait, or is lost. There may be more in others.
            barren.iter_mut().zip(&*chosen).for_each(|(barren, chosen)| *barren |= chosen);
            return !self.begin_pieces(view);
        }
        let (range_ids, items_max) = (&self.range_ids, *items_max);
        let rule = Eligible { view, range_ids, chosen, items_max, chain: view.chain() };
        rule.complete_stripes(items);
        true
    }

    /// Leaves out the last segments as a whole if the chosen ones have more pieces than a batch has room for: with a few pieces left of
    /// each, no segment would be free. False if all have room.
    fn leave_out_last_segments(&mut self, view: &DiskView) -> bool {
        let Room { parts, chosen, pieces, items_max, .. } = &mut self.room;
        let (mut sum, mut sectors) = (0, 0);
        for part in parts.iter() {
            let segment = view.log.ring().index(part.number) as usize;
            sum += usize::from(pieces[segment]);
            chosen[segment] &= sum <= *items_max;
            sectors += if chosen[segment] { part.dirty_sectors } else { 0 };
        }
        self.choosing.sectors = sectors;
        sum > *items_max
    }

    fn end_sweep_pass(&mut self, view: &DiskView) {
        let Destager { sweep, choosing, room: Room { items, chosen, .. }, .. } = self;
        choosing.first.cut(items);
        let ring = view.log.ring();
        let segments = (ring.tail()..=ring.head()).map(|number| ring.index(number));
        sweep.plan(
            choosing.first.max() as u64 * LINE_SECTORS,
            view.free_sectors(),
            view.log.superblock().segment_sectors(),
            segments.map(|index| {
                (index, chosen[index as usize] || view.index.dirty_sectors_of(index, view.disk) == 0)
            }),
        );
    }
}
