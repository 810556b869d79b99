//! Records lost blocks: more of their row was missing than the parity makes up for.
//!
//! Reads of them fail until they are written, whatever is restarted meanwhile: the superblocks have a list. A write to such a row
//! puts zeroes in the place of what is lost, so that the parity can be computed anew and the rest of the row is safe again; that
//! *settles* the lost blocks, and so does a resync. Nothing is computed of those that are not settled.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::LINE_SECTORS;
use crate::raid::cache::StripeCache;
use crate::raid::layout::{Chunk, Layout};
use crate::raid::matrix::{Access, BlockStatus};
use crate::raid::plan::StripeView;
use crate::raid::record::Recorder;
use crate::raid::superblock::LostBlock;

/// A block of the cache: unit, row, column.
pub(super) type BlockPlace = (u64, usize, usize);

/// The place of a lost block in the cache.
fn place(layout: &Layout, lost: &LostBlock) -> Option<BlockPlace> {
    let (unit, row) = (lost.block / layout.rows as u64, (lost.block % layout.rows as u64) as usize);
    let column = (0..layout.shape.data).find(|&column| layout.member(unit, column) == lost.role)?;
    Some((unit, row, column))
}

/// The most unreadable blocks that are remembered. Others are counted after some of these have been written.
pub(super) const UNREADABLE_MAX: usize = 4096;

/// The data blocks of a row that neither their members nor the cache give.
pub(super) fn unknown(view: &StripeView, row: usize) -> impl Iterator<Item = usize> {
    (0..view.shape.data).filter(move |&column| {
        let cached = matches!(view.z[(row, column)], BlockStatus::Clean | BlockStatus::Dirty);
        view.access[(row, column)] != Access::Whole && !cached
    })
}

/// The blocks that cannot be read, as places in the cache.
pub(super) struct Losses {
    /// Lost blocks that have not been written since.
    lost: BTreeSet<BlockPlace>,
    /// Other blocks that could neither be read nor computed when they were last wanted; at most [`UNREADABLE_MAX`].
    unreadable: BTreeSet<BlockPlace>,
    /// The administrator is to be told that there are more.
    pub notice: bool,
}

impl Losses {
    pub fn new<'a>(layout: &Layout, lost: impl IntoIterator<Item = &'a LostBlock>) -> Losses {
        let lost = lost.into_iter().filter_map(|lost| place(layout, lost)).collect();
        Losses { lost, unreadable: BTreeSet::new(), notice: false }
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

    /// Blocks of a row cannot be read or computed, as long as nothing more comes back.
    pub fn cannot_read(&mut self, unit: u64, row: usize, columns: impl IntoIterator<Item = usize>) {
        for column in columns {
            let place = (unit, row, column);
            if self.unreadable.len() < UNREADABLE_MAX && !self.lost.contains(&place) {
                self.notice |= self.unreadable.insert(place);
            }
        }
    }

    /// The whole rows of a chunk have been read or written.
    pub fn is_readable(&mut self, chunk: Chunk) {
        if self.unreadable.is_empty() {
            return;
        }
        for row in chunk.first.div_ceil(LINE_SECTORS)..(chunk.first + chunk.sectors) / LINE_SECTORS {
            self.unreadable.remove(&(chunk.unit, row as usize, chunk.column));
        }
    }

    /// True when some of a chunk is lost and has not been written since.
    pub fn has(&self, chunk: Chunk) -> bool {
        let mut rows = chunk.first / LINE_SECTORS..(chunk.first + chunk.sectors).div_ceil(LINE_SECTORS);
        !self.lost.is_empty() && rows.any(|row| self.lost.contains(&(chunk.unit, row as usize, chunk.column)))
    }

    /// Blocks that a write covers whole are no longer lost. False if it covers a part of a lost block only.
    pub fn overwrite(&mut self, chunk: Chunk) -> bool {
        let end = chunk.first + chunk.sectors;
        let (unit, column) = (chunk.unit, chunk.column);
        let whole = chunk.first.div_ceil(LINE_SECTORS)..end / LINE_SECTORS;
        let edges = [chunk.first / LINE_SECTORS, (end - 1) / LINE_SECTORS];
        let in_part = |row: &u64| !whole.contains(row) && self.lost.contains(&(unit, *row as usize, column));
        if edges.iter().any(in_part) {
            return false;
        }
        for row in whole {
            self.lost.remove(&(unit, row as usize, column));
        }
        self.is_readable(chunk);
        true
    }

    /// Records the missing data blocks of a row as lost, except those that the cache has. False where there is no room to remember that.
    pub fn lose_row(&mut self, unit: u64, row: usize, view: &StripeView, recorder: &mut Recorder) -> bool {
        unknown(view, row).all(|column| {
            let has_room = recorder.lose(recorder.lost_block(unit, row, column));
            if has_room {
                self.is_lost_now((unit, row, column));
            }
            has_room
        })
    }

    fn is_lost_now(&mut self, place: BlockPlace) {
        self.unreadable.remove(&place);
        self.notice |= self.lost.insert(place);
    }

    /// Records blocks that a new member cannot get, and others of their rows. False where there is no room to remember that.
    pub fn lose_blocks(&mut self, lost: &[BlockPlace], recorder: &mut Recorder, cache: &StripeCache) -> bool {
        lost.iter().all(|&(unit, row, column)| {
            let has_room = recorder.lose(recorder.lost_block(unit, row, column));
            if has_room && cache.status(unit, row, column) != BlockStatus::Dirty {
                self.is_lost_now((unit, row, column));
            }
            has_room
        })
    }

    /// All that was dirty in a unit has been destaged: lost blocks that were among that are settled, or not lost any more.
    pub fn settle(&self, unit: u64, recorder: &mut Recorder, cache: &StripeCache) {
        let layout = recorder.layout;
        for lost in recorder.lost().keys().copied().collect::<Vec<LostBlock>>() {
            let Some((of, row, column)) = place(&layout, &lost).filter(|(of, ..)| *of == unit) else {
                continue;
            };
            if cache.status(of, row, column) != BlockStatus::Dirty {
                continue;
            }
            match self.lost.contains(&(of, row, column)) {
                true => recorder.settle(lost),
                false => recorder.found(&lost),
            }
        }
    }
}
