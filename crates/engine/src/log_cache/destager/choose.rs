//! Choosing a batch: which discards and zeroes are destaged, which segments, and what of them.

use super::room::{Item, Room};
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
        let behind: Vec<u64> = self
            .index
            .ranges()
            .iter()
            .filter(|part| self.data.is_going_around(part.extent))
            .map(|part| part.info.id)
            .collect();
        self.destager.behind_around = !behind.is_empty();
        let ready = |part: &RangePart| part.info.seq <= safe && !behind.contains(&part.info.id);
        let parts: Vec<RangePart> = self.index.ranges().iter().filter(ready).collect();
        for part in parts {
            self.destager.range_ids.push(part.info.id);
            self.add_range(part);
        }
        self.destager.range_ids.sort_unstable();
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

    /// Chooses the segments of the batch, by the policy.
    fn choose_segments(&mut self, failed: bool) {
        let limit = Room::batch_lines(&self.config, self.log.geometry().rotational) as u64 * LINE_SECTORS;
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
            if sum > 0 && sum + part.dirty_sectors > limit {
                break;
            }
            sum += part.dirty_sectors;
            chosen[self.log.ring().index(part.number) as usize] = true;
        }
    }

    pub(super) fn choose_items(&mut self, failed: bool) {
        let rule = Eligible { failed, chain: if failed { None } else { self.log.volatile_chain() } };
        let mut items = std::mem::take(&mut self.destager.room.items);
        items.clear();
        if !failed && !self.is_short() && !self.destager.is_after_failure() {
            self.choose_full_stripes(&rule, &mut items);
        }
        if items.is_empty() {
            self.choose_segments(failed);
            self.choose_pieces(&rule, &mut items);
            self.complete_stripes(&rule, &mut items);
        }
        self.destager.room.items = items;
        self.sort_items();
    }

    /// Everything in the segments of the batch that may be destaged.
    fn choose_pieces(&mut self, rule: &Eligible, items: &mut Vec<Item>) {
        let mut behind_around = false;
        self.index.table().scan(|line, piece| {
            let eligible = self.is_in_chosen(&piece) && self.may_be_destaged(line, &piece, rule);
            if eligible && self.waits_for_others(line) {
                behind_around = true;
            } else if eligible && items.len() < self.destager.room.items_max {
                items.push(Item { line, piece, failed: false });
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
