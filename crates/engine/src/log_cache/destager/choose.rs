//! Choosing a batch: which discards and zeroes are destaged, which segments, and what of them.

use std::collections::BTreeSet;

use super::room::{Item, Room};
use super::sweep::{self, First};
use crate::destage::what;
use crate::layer::{Discards, Geometry};
use crate::log_cache::core::Core;
use crate::log_cache::log::Chain;
use crate::log_cache::table::{Line, Piece, RangeKind, RangePart};
use crate::log_cache::{HowPolicy, WhatPolicy};
use crate::{Extent, LINE_SECTORS};

/// Zeroes are destaged in pieces of so many sectors (1 MiB), so that a request need not wait long; 1 GiB where the device does not write
/// them one by one, and for discards.
const ZEROES_SECTORS_MAX: u64 = 2 << 10;
const FAST_SECTORS_MAX: u64 = 2 << 20;
/// Parts of discards and zeroes in a batch, at most: the oldest go first.
const RANGES_AT_ONCE: usize = 1 << 10;
/// What of a cache may be destaged.
pub(super) struct Eligible {
    /// The log has failed, so that also what only RAM has is destaged.
    pub failed: bool,
    /// A request over several records that is not durable as a whole: nothing of it is destaged.
    pub chain: Option<Chain>,
}

impl Core {
    /// The destaging order. Only the tail gives segments up (rule 1), so while somebody waits for space, and from the low
    /// mark on, the oldest go first whatever the policy is: in another order much would be destaged and nothing be free.
    fn what(&self) -> &'static dyn what::What {
        what::policy(if self.is_short() { WhatPolicy::OldestFirst } else { self.config.what })
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
        let behind: BTreeSet<u64> = parts
            .iter()
            .filter(|part| self.data.is_going_around(part.extent))
            .map(|part| part.info.id)
            .collect();
        self.destager.behind_around = !behind.is_empty();
        for part in parts.into_iter().filter(|part| !behind.contains(&part.info.id)) {
            self.destager.range_ids.push(part.info.id);
            self.add_range(part);
        }
        self.destager.range_ids.dedup();
    }

    /// Whether a range is left out of the batch here: it would be destaged later, over the newer data.
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
        let what = self.what();
        let Room { parts, chosen, .. } = &mut self.destager.room;
        parts.clear();
        for number in self.log.ring().tail()..=self.log.ring().head().min(last) {
            let dirty_sectors = self.index.dirty_sectors_of(self.log.ring().index(number));
            if dirty_sectors > 0 {
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
        what.order(parts);
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

    pub(super) fn choose_items(&mut self, failed: bool) {
        let rule = Eligible { failed, chain: if failed { None } else { self.log.volatile_chain() } };
        let mut items = std::mem::take(&mut self.destager.room.items);
        items.clear();
        if !failed && !self.is_short() && !self.destager.is_after_failure() {
            self.choose_full_stripes(&rule, &mut items);
        }
        if items.is_empty() {
            self.choose_pieces(&rule, &mut items);
            self.complete_stripes(&rule, &mut items);
        }
        self.destager.room.items = items;
        self.sort_items();
    }

    /// Everything in the segments of the batch that may be destaged; in a sweep, what is next of it.
    fn choose_pieces(&mut self, rule: &Eligible, items: &mut Vec<Item>) {
        if !self.sweeps(rule.failed) {
            let lines = Room::batch_lines(&self.config, self.log.geometry().rotational) as u64;
            let lap_lines = self.lap_lines();
            self.choose_segments(rule.failed, lines.min(lap_lines));
            let sectors = self.choose_whole_segments(rule, items);
            let segment_sectors = self.log.superblock().segment_sectors();
            return self.destager.sweep.plan_alone(sectors, self.free_sectors(), segment_sectors);
        }
        self.choose_ahead(rule, items);
        if items.is_empty() && self.destager.sweep.begin_lap(self.dirty_lines()) {
            self.choose_ahead(rule, items);
        }
        self.destager.sweep.pass(items);
    }

    /// The pieces of the chosen segments. Where those are more than a batch has room for, the last segments are left out as a whole: with a
    /// few pieces left of each, no segment would be free. The sectors in the segments that stay.
    fn choose_whole_segments(&mut self, rule: &Eligible, items: &mut Vec<Item>) -> u64 {
        let max = self.destager.room.items_max;
        let mut pieces = std::mem::take(&mut self.destager.room.pieces);
        pieces.fill(0);
        self.scan_pieces(rule, |item, segment| {
            pieces[segment as usize] += 1;
            if items.len() < max {
                items.push(item);
            }
        });
        let Room { parts, chosen, .. } = &mut self.destager.room;
        let (mut sum, mut sectors) = (0, 0);
        for part in parts.iter() {
            let segment = self.log.ring().index(part.number) as usize;
            sum += usize::from(pieces[segment]);
            chosen[segment] &= sum <= max;
            sectors += if chosen[segment] { part.dirty_sectors } else { 0 };
        }
        self.destager.room.pieces = pieces;
        if sum > max {
            items.clear();
            self.scan_pieces(rule, |item, _| items.push(item));
        }
        sectors
    }

    /// Where the data disk seeks and the log does not, what is sorted further costs less, and may be read from anywhere.
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

    /// What the log can take before the tail moves.
    fn free_sectors(&self) -> u64 {
        let ring = self.log.ring();
        (ring.count() - ring.live()) * self.log.superblock().segment_sectors()
    }

    /// What is next ahead of the sweep's hand.
    fn choose_ahead(&mut self, rule: &Eligible, items: &mut Vec<Item>) {
        let lap_lines = self.lap_lines();
        let lap_sectors = self.choose_segments(rule.failed, lap_lines);
        let max = sweep::batch_lines(lap_sectors / LINE_SECTORS, self.destager.room.items_max / 2);
        let mut sweep = std::mem::take(&mut self.destager.sweep);
        let mut first = First::new(max);
        sweep.begin_batch();
        self.scan_pieces(rule, |item, segment| {
            if sweep.see(&item, segment) {
                first.add(item, items);
            }
        });
        first.cut(items);
        let (ring, chosen) = (self.log.ring(), &self.destager.room.chosen);
        let segments = (ring.tail()..=ring.head()).map(|number| ring.index(number));
        sweep.plan(
            max as u64 * LINE_SECTORS,
            self.free_sectors(),
            self.log.superblock().segment_sectors(),
            segments.map(|index| (index, chosen[index as usize] || self.index.dirty_sectors_of(index) == 0)),
        );
        self.destager.sweep = sweep;
    }

    /// The pieces of the chosen segments that may be destaged, and the segment of each.
    fn scan_pieces(&mut self, rule: &Eligible, mut take: impl FnMut(Item, u32)) {
        let mut behind_around = false;
        self.index.table().scan(|line, piece| {
            if !self.is_in_chosen(&piece) || !self.may_be_destaged(line, &piece, rule) {
                return;
            }
            if self.waits_for_others(line) {
                behind_around = true;
            } else {
                take(Item { line, piece, failed: false }, self.index.segment_of(piece.place));
            }
        });
        self.destager.behind_around |= behind_around;
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

    /// An older write around the log, or an older range, has to be destaged before a line.
    pub(super) fn waits_for_others(&self, line: Line) -> bool {
        self.data.is_going_around(line.extent()) || self.is_over_what_stays(line.extent())
    }

    pub(super) fn sort_items(&mut self) {
        let items = &mut self.destager.room.items;
        match self.config.how {
            HowPolicy::Sorted => items.sort_unstable_by_key(|item| (item.line, item.piece.place)),
            HowPolicy::AsItComes => items.sort_unstable_by_key(|item| item.piece.place),
        }
    }
}
