//! Choosing a batch: which discards and zeroes are destaged, which segments, and what of them.

use std::collections::BTreeSet;

use super::Destager;
use super::room::{Item, Room};
use super::sweep::{self, First};
use crate::destage::what;
use crate::layer::{Discards, Geometry};
use crate::log_cache::core::Core;
use crate::log_cache::log::Chain;
use crate::log_cache::table::{Line, Piece, RangeKind, RangePart, TablePart};
use crate::log_cache::{HowPolicy, WhatPolicy};
use crate::{Extent, LINE_SECTORS};

/// Zeroes are destaged in pieces of so many sectors (1 MiB), so that a request need not wait long; 1 GiB where the device does not write
/// them one by one, and for discards.
const ZEROES_SECTORS_MAX: u64 = 2 << 10;
const FAST_SECTORS_MAX: u64 = 2 << 20;
/// Parts of discards and zeroes in a batch, at most: the oldest go first.
const RANGES_AT_ONCE: usize = 1 << 10;

/// A pass over the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pass {
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
    pass: Pass,
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
}

/// Rules that decide what may be destaged.
pub(super) struct Eligible {
    /// The log has failed, so that also what only RAM has is destaged.
    pub failed: bool,
    /// A request over several records that is not durable as a whole: nothing of it is destaged.
    pub chain: Option<Chain>,
}

impl Core {
    /// The destaging order. Only the tail gives segments up (rule 1), so while somebody waits for space, and from the low
    /// mark on, the oldest go first whatever the policy is: in another order much would be destaged and nothing be free. When the log has
    /// failed, the newest go first: only RAM has those.
    fn what(&self, failed: bool) -> WhatPolicy {
        match failed {
            true => WhatPolicy::LastWriteFirst,
            false if self.is_short() => WhatPolicy::OldestFirst,
            false => self.config.what,
        }
    }

    fn is_short(&self) -> bool {
        let short = self.log.ring().utilisation() >= f64::from(self.config.low_mark) / 100.0;
        short || self.queue.wants_space()
    }

    pub(super) fn choose_ranges(&mut self, safe: u64) {
        self.destager.range_ids.clear();
        self.destager.range_parts.clear();
        let oldest = self.index.ranges().oldest().take(RANGES_AT_ONCE);
        let mut parts: Vec<RangePart> = oldest.take_while(|part| part.info.seq <= safe).collect();
        // A range is destaged as a whole: also the last one.
        if parts.len() == RANGES_AT_ONCE {
            let last = parts.pop().expect("the batch is full").info.id;
            parts.retain(|part| part.info.id != last);
            parts.extend(self.index.ranges().parts_of(last));
        }
        let behind: BTreeSet<u64> =
            parts.iter().filter(|part| self.data.is_bypassed(part.extent)).map(|part| part.info.id).collect();
        self.destager.ranges_behind = !behind.is_empty();
        for part in parts.into_iter().filter(|part| !behind.contains(&part.info.id)) {
            self.destager.range_ids.push(part.info.id);
            self.add_range(part);
        }
        self.destager.range_ids.dedup();
    }

    /// True when a range below the extent is left out of the batch: that range would be destaged later, over the newer data.
    fn is_over_what_stays(&self, extent: Extent) -> bool {
        self.index
            .ranges()
            .lookup(extent)
            .any(|part| self.destager.range_ids.binary_search(&part.info.id).is_err())
    }

    /// Cuts a range into what the data disk does at a time.
    pub(super) fn add_range(&mut self, part: RangePart) {
        let Geometry { fast_zeroes, discards, .. } = *self.data.geometry();
        let is_discard = part.info.kind == RangeKind::Discard && discards != Discards::No;
        let sectors_max = if fast_zeroes || is_discard { FAST_SECTORS_MAX } else { ZEROES_SECTORS_MAX };
        let mut rest = part.extent;
        while rest.sectors > 0 {
            let sectors = rest.sectors.min(sectors_max);
            self.destager.range_parts.push_back((Extent::new(rest.start, sectors), part.info.kind));
            rest = Extent::new(rest.start + sectors, rest.sectors - sectors);
        }
    }

    /// Chooses the segments of the batch, or of the lap, by the policy: so many lines of them, or one segment. The sectors in them.
    fn choose_segments(&mut self, failed: bool, lines: u64) -> u64 {
        // While a request over several records is not durable as a whole, nothing of it is destaged.
        let last =
            if failed { None } else { self.log.volatile_chain() }.map_or(u64::MAX, |chain| chain.segment);
        let what = self.what(failed);
        let Room { parts, chosen, barren, .. } = &mut self.destager.room;
        parts.clear();
        for number in self.log.ring().tail()..=self.log.ring().head().min(last) {
            let index = self.log.ring().index(number);
            let dirty_sectors = self.index.dirty_sectors_of(index);
            if dirty_sectors > 0 && !barren[index as usize] {
                parts.push(what::Part {
                    number,
                    dirty_sectors,
                    written: number,
                    // A segment has no place on the data disk: a sweep takes them in the order of the ring.
                    ahead: number - self.log.ring().tail(),
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
            chosen[self.log.ring().index(part.number) as usize] = true;
        }
        sum
    }

    /// Begins to choose the blocks of a batch; false where none can be destaged before something changes.
    pub(super) fn begin_choice(&mut self, failed: bool, safe: u64) -> bool {
        let Destager { choosing, room, .. } = &mut self.destager;
        room.items.clear();
        if choosing.seen != Some((failed, safe)) {
            *choosing = Choosing { seen: Some((failed, safe)), ..Choosing::default() };
            room.barren.fill(false);
        }
        if self.destager.choosing.found_nothing {
            return false;
        }
        let stripes_first = !failed && !self.is_short() && !self.destager.is_after_failure();
        if stripes_first && !self.destager.choosing.no_stripes && self.stripes().is_some() {
            self.begin_pass(Pass::Stripes);
            return true;
        }
        self.begin_pieces(failed)
    }

    fn begin_pass(&mut self, pass: Pass) {
        let choosing = &mut self.destager.choosing;
        (choosing.pass, choosing.part) = (pass, TablePart::first(self.config.scan_slots));
    }

    /// Begins a pass over the pieces of chosen segments; false where no segment is left to choose.
    fn begin_pieces(&mut self, failed: bool) -> bool {
        let lap_lines = self.lap_lines();
        let sweeps = self.sweeps(failed);
        let lines = match sweeps {
            true => lap_lines,
            false => lap_lines.min(Room::batch_lines(&self.config, self.log.geometry().rotational) as u64),
        };
        let sectors = self.choose_segments(failed, lines);
        self.destager.choosing.sectors = sectors;
        if sweeps {
            let max = sweep::batch_lines(sectors / LINE_SECTORS, self.destager.room.items_max / 2);
            self.destager.choosing.first = First::new(max);
            self.destager.sweep.begin_batch();
            self.begin_pass(Pass::Sweep);
        } else {
            self.destager.room.pieces.fill(0);
            self.begin_pass(Pass::Count);
        }
        self.destager.choosing.found_nothing = sectors == 0;
        sectors > 0
    }

    /// Looks through one part of the table; true when the batch is chosen.
    pub(super) fn choose_part(&mut self, failed: bool) -> bool {
        if self.destager.choosing.found_nothing {
            // There are only ranges.
            return true;
        }
        let rule = Eligible { failed, chain: if failed { None } else { self.log.volatile_chain() } };
        let mut items = std::mem::take(&mut self.destager.room.items);
        let part = self.destager.choosing.part;
        let next = match self.destager.choosing.pass {
            Pass::Stripes => self.choose_full_stripes(&rule, part, &mut items),
            Pass::Count => self.count_pieces(&rule, part, &mut items),
            Pass::Take => {
                let max = self.destager.room.items_max;
                self.scan_pieces(&rule, part, |item, _| {
                    if items.len() < max {
                        items.push(item);
                    }
                })
            }
            Pass::Sweep => self.sweep_pieces(&rule, part, &mut items),
        };
        let is_chosen = match next {
            Some(part) => {
                self.destager.choosing.part = part;
                false
            }
            None => self.end_pass(&rule, &mut items),
        };
        self.destager.room.items = items;
        if is_chosen {
            self.sort_items();
        }
        is_chosen
    }

    /// The whole table was looked through; true when that is enough.
    fn end_pass(&mut self, rule: &Eligible, items: &mut Vec<Item>) -> bool {
        match self.destager.choosing.pass {
            Pass::Stripes if items.is_empty() => {
                self.destager.choosing.no_stripes = true;
                return !self.begin_pieces(rule.failed);
            }
            Pass::Stripes => return true,
            Pass::Count => {
                if self.leave_out_last_segments() {
                    items.clear();
                    self.begin_pass(Pass::Take);
                    return false;
                }
                self.plan_alone();
            }
            Pass::Take => self.plan_alone(),
            Pass::Sweep => {
                self.end_sweep_pass(items);
                if items.is_empty() && self.destager.sweep.begin_lap(self.dirty_lines()) {
                    return !self.begin_pieces(rule.failed);
                }
                self.destager.sweep.pass(items);
            }
        }
        if items.is_empty() {
            // All that is dirty in these segments has to wait, or is lost. There may be more in others.
            let Room { chosen, barren, .. } = &mut self.destager.room;
            barren.iter_mut().zip(&*chosen).for_each(|(barren, chosen)| *barren |= chosen);
            return !self.begin_pieces(rule.failed);
        }
        self.complete_stripes(rule, items);
        true
    }

    /// Counts the pieces of the chosen segments, and takes as many as a batch has room for.
    fn count_pieces(&mut self, rule: &Eligible, part: TablePart, items: &mut Vec<Item>) -> Option<TablePart> {
        let max = self.destager.room.items_max;
        let mut pieces = std::mem::take(&mut self.destager.room.pieces);
        let next = self.scan_pieces(rule, part, |item, segment| {
            pieces[segment as usize] += 1;
            if items.len() < max {
                items.push(item);
            }
        });
        self.destager.room.pieces = pieces;
        next
    }

    /// Leaves out the last segments as a whole if the chosen ones have more pieces than a batch has room for: with a few pieces left of
    /// each, no segment would be free. False if all have room.
    fn leave_out_last_segments(&mut self) -> bool {
        let Room { parts, chosen, pieces, items_max, .. } = &mut self.destager.room;
        let (mut sum, mut sectors) = (0, 0);
        for part in parts.iter() {
            let segment = self.log.ring().index(part.number) as usize;
            sum += usize::from(pieces[segment]);
            chosen[segment] &= sum <= *items_max;
            sectors += if chosen[segment] { part.dirty_sectors } else { 0 };
        }
        self.destager.choosing.sectors = sectors;
        sum > *items_max
    }

    /// The batch is no part of a sweep.
    fn plan_alone(&mut self) {
        let (sectors, segment_sectors) =
            (self.destager.choosing.sectors, self.log.superblock().segment_sectors());
        self.destager.sweep.plan_alone(sectors, self.free_sectors(), segment_sectors);
    }

    /// True when the data disk seeks and the log does not: sorting further then costs less, and the log may be read anywhere.
    fn sweeps(&self, failed: bool) -> bool {
        let spins = (self.log.geometry().rotational, self.data.geometry().rotational);
        !failed && spins == (false, true) && self.config.how == HowPolicy::Sorted
    }

    fn lap_lines(&mut self) -> u64 {
        let short = self.is_short() && self.has_writers();
        self.destager.sweep.lap_lines(self.dirty_lines(), short)
    }

    fn dirty_lines(&self) -> u64 {
        self.index.table().counts().dirty_sectors / LINE_SECTORS
    }

    /// Returns how many sectors the log can take before the tail moves.
    fn free_sectors(&self) -> u64 {
        let ring = self.log.ring();
        (ring.count() - ring.live()) * self.log.superblock().segment_sectors()
    }

    /// Takes what is next ahead of the sweep's hand.
    fn sweep_pieces(&mut self, rule: &Eligible, part: TablePart, items: &mut Vec<Item>) -> Option<TablePart> {
        let mut sweep = std::mem::take(&mut self.destager.sweep);
        let mut first = std::mem::take(&mut self.destager.choosing.first);
        let next = self.scan_pieces(rule, part, |item, segment| {
            if sweep.see(&item, segment) {
                first.add(item, items);
            }
        });
        self.destager.choosing.first = first;
        self.destager.sweep = sweep;
        next
    }

    fn end_sweep_pass(&mut self, items: &mut Vec<Item>) {
        let Destager { sweep, choosing, room, .. } = &mut self.destager;
        choosing.first.cut(items);
        let (ring, chosen) = (self.log.ring(), &room.chosen);
        let segments = (ring.tail()..=ring.head()).map(|number| ring.index(number));
        let segment_sectors = self.log.superblock().segment_sectors();
        sweep.plan(
            choosing.first.max() as u64 * LINE_SECTORS,
            (ring.count() - ring.live()) * segment_sectors,
            segment_sectors,
            segments.map(|index| (index, chosen[index as usize] || self.index.dirty_sectors_of(index) == 0)),
        );
    }

    /// The pieces of the chosen segments that may be destaged, and the segment of each, in one part of the table; the next part, if there is
    /// one.
    fn scan_pieces(
        &mut self,
        rule: &Eligible,
        part: TablePart,
        mut take: impl FnMut(Item, u32),
    ) -> Option<TablePart> {
        let mut behind_bypass = false;
        let next = self.index.table().scan_part(part, |line, piece| {
            if !self.is_in_chosen(&piece) || !self.may_be_destaged(line, &piece, rule) {
                return;
            }
            if self.waits_for_others(line) {
                behind_bypass = true;
            } else {
                take(Item { line, piece, failed: false }, self.index.segment_of(piece.place));
            }
        });
        self.destager.choosing.behind_bypass |= behind_bypass;
        next
    }

    pub(super) fn is_in_chosen(&self, piece: &Piece) -> bool {
        self.destager.room.chosen[self.index.segment_of(piece.place) as usize]
    }

    pub(super) fn may_be_destaged(&self, line: Line, piece: &Piece, rule: &Eligible) -> bool {
        let place = piece.place.0;
        let is_chained = |chain: Chain| {
            let segment = self.log.number_of(piece.place);
            segment > chain.segment || segment == chain.segment && place >= chain.sector
        };
        piece.dirty
            && !self.destager.lost.is_lost(line, piece.place)
            && !rule.chain.is_some_and(is_chained)
            && (rule.failed || self.log.buffers().holding(place).is_none())
    }

    /// True when an older write past the log, or an older range, has to reach the data disk before a line.
    pub(super) fn waits_for_others(&self, line: Line) -> bool {
        self.data.is_bypassed(line.extent()) || self.is_over_what_stays(line.extent())
    }

    pub(super) fn sort_items(&mut self) {
        let items = &mut self.destager.room.items;
        match self.config.how {
            HowPolicy::Sorted => items.sort_unstable_by_key(|item| (item.line, item.piece.place)),
            HowPolicy::AsItComes => items.sort_unstable_by_key(|item| item.piece.place),
        }
    }
}
