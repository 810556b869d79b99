//! Records lost blocks: more of their row was missing than the parity makes up for.
//!
//! Reads of them fail until they are written, whatever is restarted meanwhile: the superblocks have a list. A write to such a row
//! puts zeroes in the place of what is lost, so that the parity can be computed anew and the rest of the row is safe again; that
//! *settles* the lost blocks, and so does a resync. Nothing is computed of those that are not settled.

mod run;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::raid::layout::Layout;
use crate::raid::matrix::{Access, Status};
use crate::raid::plan::StripeView;
use crate::raid::superblock::LostBlock;

/// A block of the cache: unit, row, column.
type Place = (u64, usize, usize);

/// The place of a lost block in the cache.
fn place(layout: &Layout, lost: &LostBlock) -> Option<Place> {
    let (unit, row) = (lost.block / layout.rows as u64, (lost.block % layout.rows as u64) as usize);
    let column = (0..layout.shape.data).find(|&column| layout.member(unit, column) == lost.role)?;
    Some((unit, row, column))
}

/// The most unreadable blocks that are remembered. Others are counted after some of these have been written.
pub(super) const UNREADABLE_MAX: usize = 4096;

/// The data blocks of a row that neither their members nor the cache give.
pub(super) fn unknown(view: &StripeView, row: usize) -> impl Iterator<Item = usize> {
    (0..view.shape.data).filter(move |&column| {
        let cached = matches!(view.z[(row, column)], Status::Clean | Status::Dirty);
        view.access[(row, column)] != Access::Whole && !cached
    })
}

/// The blocks that cannot be read, as places in the cache.
pub(super) struct Losses {
    /// Lost blocks that have not been written since.
    lost: BTreeSet<Place>,
    /// Other blocks that could neither be read nor computed when they were last wanted; at most [`UNREADABLE_MAX`].
    unreadable: BTreeSet<Place>,
}

impl Losses {
    pub fn new<'a>(layout: &Layout, lost: impl IntoIterator<Item = &'a LostBlock>) -> Losses {
        let lost = lost.into_iter().filter_map(|lost| place(layout, lost)).collect();
        Losses { lost, unreadable: BTreeSet::new() }
    }

    /// True when some data that clients wrote is lost or unreadable.
    pub fn are_any(&self) -> bool {
        self.lost_blocks() + self.unreadable_blocks() > 0
    }

    pub fn lost_blocks(&self) -> usize {
        self.lost.len()
    }

    pub fn unreadable_blocks(&self) -> usize {
        self.unreadable.len()
    }

    /// A pass has looked at some units: what it could not read it tells anew.
    pub fn forget_unreadable(&mut self, units: &Range<u64>) {
        self.unreadable.retain(|(unit, ..)| !units.contains(unit));
    }
}
