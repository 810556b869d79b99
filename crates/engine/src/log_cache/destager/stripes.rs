//! Whole stripes of an array are destaged together, and first: the array writes such a stripe without a read for its parity.
//!
//! Where space is short the oldest segments are chosen all the same, as only they free the tail; then what the cache has of a
//! stripe that is dirty as a whole goes along with the part that is in them.

use super::choose::Eligible;
use super::room::Item;
use crate::layer::Stripes;
use crate::log_cache::env::DiskView;
use crate::log_cache::table::{Line, Piece, TablePart};
use crate::{Extent, LINE_SECTORS};

impl DiskView<'_> {
    /// The stripes of the data disk, in addresses of all disks, where they are told apart by lines.
    pub(super) fn stripes(&self) -> Option<Stripes> {
        let in_lines = |stripes: &Stripes| {
            stripes.first.is_multiple_of(LINE_SECTORS) && stripes.sectors.is_multiple_of(LINE_SECTORS)
        };
        let stripes = self
            .data
            .geometry()
            .stripes
            .filter(|stripes| self.config.full_stripes_first && in_lines(stripes));
        stripes.map(|stripes| Stripes { first: self.extent().start.0 + stripes.first, ..stripes })
    }
}

impl Eligible<'_> {
    /// Chooses every stripe that is dirty as a whole, as far as there is room; a part of the table, and the next part, if there is one.
    pub(super) fn choose_full_stripes(&self, part: TablePart, items: &mut Vec<Item>) -> Option<TablePart> {
        let stripes = self.view.stripes()?;
        self.view.index.table().scan_dirty_part(part, |line, _| {
            // A line of several pieces is met several times; only the first one of a stripe counts.
            let is_known = items
                .last()
                .is_some_and(|item: &Item| stripes.around(item.line.start()) == stripes.around(line.start()));
            if let Some(stripe) = stripes.around(line.start())
                && stripe.start == line.start()
                && !is_known
            {
                self.add_full_stripe(stripe, |_| true, items);
            }
        })
    }

    /// Adds what is missing of the stripes that items are in, where these are dirty as a whole.
    pub(super) fn complete_stripes(&self, items: &mut Vec<Item>) {
        let Some(stripes) = self.view.stripes() else { return };
        items.sort_unstable_by_key(|item| item.line);
        let mut last = None;
        for index in 0..items.len() {
            let stripe = stripes.around(items[index].line.start());
            if let Some(stripe) = stripe.filter(|_| stripe != last) {
                self.add_full_stripe(stripe, |piece| !self.is_in_chosen(piece), items);
            }
            last = stripe;
        }
    }

    /// Adds the pieces of a stripe that are `wanted`, if all of it may be destaged and there is room for them.
    fn add_full_stripe(&self, stripe: Extent, wanted: impl Fn(&Piece) -> bool, items: &mut Vec<Item>) {
        let before = items.len();
        for line in Line::touching(stripe).map(Line) {
            let mut covered = 0;
            for &piece in self.view.index.table().lookup(line).iter() {
                if self.may_be_destaged(line, &piece) && !self.waits_for_others(line) {
                    covered |= piece.mask;
                    if wanted(&piece) {
                        items.push(Item { line, piece, failed: false });
                    }
                }
            }
            if covered != u8::MAX || items.len() > self.items_max {
                return items.truncate(before);
            }
        }
    }
}
