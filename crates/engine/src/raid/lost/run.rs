//! Losing blocks, and finding them again.

use std::collections::BTreeSet;
use std::ops::Range;

use super::{Place, UNREADABLE_MAX, place, unknown};
use crate::LINE_SECTORS;
use crate::layer::Outbox;
use crate::raid::array::Array;
use crate::raid::layout::Chunk;
use crate::raid::matrix::Status;
use crate::raid::plan::StripeView;
use crate::raid::superblock::LostBlock;
use crate::raid::unit::Piece;

impl Array {
    /// Blocks of a row cannot be read or computed, as long as nothing more comes back.
    pub fn cannot_read(&mut self, unit: u64, row: usize, columns: impl IntoIterator<Item = usize>) {
        for column in columns {
            let place = (unit, row, column);
            if self.losses.unreadable.len() < UNREADABLE_MAX && !self.losses.lost.contains(&place) {
                self.notice |= self.losses.unreadable.insert(place);
            }
        }
    }

    /// The whole rows of a chunk have been read or written.
    pub fn is_readable(&mut self, chunk: Chunk) {
        if self.losses.unreadable.is_empty() {
            return;
        }
        for row in chunk.first.div_ceil(LINE_SECTORS)..(chunk.first + chunk.sectors) / LINE_SECTORS {
            self.losses.unreadable.remove(&(chunk.unit, row as usize, chunk.column));
        }
    }

    fn lost_block(&self, unit: u64, row: usize, column: usize) -> LostBlock {
        let block = unit * self.layout.rows as u64 + row as u64;
        LostBlock { role: self.layout.member(unit, column), block }
    }

    /// True when a block is lost and its row does not fit. Nothing may then be computed from the block.
    pub fn is_unsettled(&self, unit: u64, row: usize, column: usize) -> bool {
        let lost = self.recorder.lost();
        !lost.is_empty() && lost.get(&self.lost_block(unit, row, column)) == Some(&false)
    }

    /// True when some of a chunk is lost and has not been written since.
    pub fn is_lost(&self, chunk: Chunk) -> bool {
        let rows = chunk.first / LINE_SECTORS..(chunk.first + chunk.sectors).div_ceil(LINE_SECTORS);
        !self.losses.lost.is_empty()
            && rows
                .into_iter()
                .any(|row| self.losses.lost.contains(&(chunk.unit, row as usize, chunk.column)))
    }

    /// Blocks that a write covers whole are no longer lost. False if it covers a part of a lost block only.
    pub fn overwrite_lost(&mut self, piece: Piece) -> bool {
        let chunk = piece.chunk;
        let end = chunk.first + chunk.sectors;
        let (unit, column) = (chunk.unit, chunk.column);
        let whole = chunk.first.div_ceil(LINE_SECTORS)..end / LINE_SECTORS;
        let edges = [chunk.first / LINE_SECTORS, (end - 1) / LINE_SECTORS];
        let in_part =
            |row: &u64| !whole.contains(row) && self.losses.lost.contains(&(unit, *row as usize, column));
        if edges.iter().any(in_part) {
            return false;
        }
        for row in whole {
            self.losses.lost.remove(&(unit, row as usize, column));
        }
        self.is_readable(chunk);
        true
    }

    /// Records the missing data blocks of a row as lost, except those that the cache has. False where there is no room to remember that.
    pub fn lose_row(&mut self, unit: u64, row: usize, view: &StripeView) -> bool {
        self.statistics.lost_rows += 1;
        for column in unknown(view, row).collect::<Vec<_>>() {
            if !self.recorder.lose(self.lost_block(unit, row, column)) {
                return false;
            }
            self.is_lost_now((unit, row, column));
        }
        true
    }

    fn is_lost_now(&mut self, place: Place) {
        self.losses.unreadable.remove(&place);
        self.notice |= self.losses.lost.insert(place);
    }

    /// Records the blocks that a new member cannot get, and others that are missing in these rows. Rows are counted from a unit on, each with a role.
    pub fn lose_blocks(&mut self, first: u64, lost: &[(usize, usize)], out: &mut Outbox) {
        for &(row, role) in lost {
            let unit = first + (row / self.layout.rows) as u64;
            let (row, column) = (row % self.layout.rows, self.layout.column(unit, role));
            if column >= self.layout.shape.data {
                continue;
            }
            if !self.recorder.lose(self.lost_block(unit, row, column)) {
                // Nobody could tell what it has from what it has not.
                if let Some(rebuild) = self.recorder.rebuilding() {
                    self.member_failed(rebuild.role, out);
                }
                return;
            }
            if self.cache.status(unit, row, column) != Status::Dirty {
                self.is_lost_now((unit, row, column));
            }
        }
        self.record(out);
    }

    /// The blocks of some rows that nothing may be computed of, by role and row.
    pub fn unsettled(&self, first: u64, rows: usize) -> BTreeSet<(usize, usize)> {
        let first = first * self.layout.rows as u64;
        let unsettled = self.recorder.lost().iter().filter(|(_, settled)| !**settled);
        let within = unsettled.filter(|(lost, _)| (first..first + rows as u64).contains(&lost.block));
        within.map(|(lost, _)| (lost.role, (lost.block - first) as usize)).collect()
    }

    /// Puts zeroes in the place of what is lost of a row, to be written with the rest.
    pub fn void_row(&mut self, unit: u64, row: usize) {
        for column in 0..self.layout.shape.data {
            if self.recorder.lost().contains_key(&self.lost_block(unit, row, column)) {
                self.cache.void(unit, row, column);
            }
        }
    }

    /// A resync has written zeroes in the place of what is lost in some units, and their parity.
    pub fn settle_voided(&mut self, units: Range<u64>) {
        let lost: Vec<LostBlock> = self.recorder.lost().keys().copied().collect();
        let within = |lost: &LostBlock| units.contains(&(lost.block / self.layout.rows as u64));
        for lost in lost.into_iter().filter(within) {
            self.recorder.settle(lost);
        }
    }

    /// All that was dirty in a unit has been destaged: lost blocks that were among that are settled, or not lost any more.
    pub fn settle_lost(&mut self, unit: u64) {
        if self.recorder.lost().is_empty() {
            return;
        }
        let listed: Vec<LostBlock> = self.recorder.lost().keys().copied().collect();
        for lost in listed {
            let Some((of, row, column)) = place(&self.layout, &lost).filter(|(of, ..)| *of == unit) else {
                continue;
            };
            if self.cache.status(of, row, column) != Status::Dirty {
                continue;
            }
            match self.losses.lost.contains(&(of, row, column)) {
                true => self.recorder.settle(lost),
                false => self.recorder.found(&lost),
            }
        }
    }
}
