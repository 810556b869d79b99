//! Blocks that could not be read from the log when they were to be destaged.
//!
//! A failed read may be a cable, a path or a controller, so it is tried again before anything is concluded from it. A piece
//! that fails every time is *lost*: an error for exactly its sectors until they are written again. It stays dirty and keeps
//! the tail where it is (an error never advances the tail), so what is there can still be read at the next start, or
//! by a rescue. When the log is full of nothing else, it has failed as a whole (rule 13).
//!
//! A dead device would have each batch wait for its tries. After as many batches without a single piece that could be read, a piece is
//! lost at its first failure, until one is read again: so flushes, and whoever waits for a drain, wait for a few seconds and not for
//! a time that grows with the log.

use std::collections::BTreeMap;

use super::table::{Line, LookupTable, Place};
use crate::Extent;

/// Reads of a piece that fail before it is taken for lost; the back-off of destaging lies between them (1 s, 2 s).
const TRIES_MAX: u8 = 3;

/// The pieces that could not be read the last time, with how often that was tried.
#[derive(Default)]
pub struct LostPieces {
    tries: BTreeMap<(Line, Place), u8>,
    /// Pieces among them that are given up.
    lost: usize,
    /// Batches in a row that failed as a part of the log could not be read at all (ordered destage).
    epochs: u8,
    /// Batches in a row of which nothing could be read.
    unread: u8,
}

impl LostPieces {
    pub fn note(&mut self, line: Line, place: Place) {
        let tries = self.tries.entry((line, place)).or_default();
        let was_lost = *tries >= TRIES_MAX;
        *tries = if self.unread >= TRIES_MAX { TRIES_MAX } else { tries.saturating_add(1).min(TRIES_MAX) };
        self.lost += usize::from(*tries >= TRIES_MAX && !was_lost);
    }

    /// Takes the end of a batch: how many of its pieces could not be read.
    pub fn batch_ended(&mut self, unread: usize, pieces: usize) {
        match unread {
            0 if pieces == 0 => {}
            unread if unread >= pieces => self.unread = self.unread.saturating_add(1),
            _ => self.unread = 0,
        }
    }

    pub fn remove(&mut self, line: Line, place: Place) {
        let tries = self.tries.remove(&(line, place));
        self.lost -= usize::from(tries.is_some_and(|tries| tries >= TRIES_MAX));
    }

    pub fn is_lost(&self, line: Line, place: Place) -> bool {
        self.tries.get(&(line, place)).is_some_and(|tries| *tries >= TRIES_MAX)
    }

    /// Some of an extent are to be tried again.
    pub fn has_doubtful(&self, extent: Extent) -> bool {
        let lines = Line::touching(extent);
        let (first, end) = ((Line(lines.start), Place(0)), (Line(lines.end), Place(0)));
        self.tries.len() > self.lost && self.tries.range(first..end).any(|(_, tries)| *tries < TRIES_MAX)
    }

    /// Pieces that are given up.
    pub const fn len(&self) -> usize {
        self.lost
    }

    /// Pieces of an extent that are given up.
    pub fn in_extent(&self, extent: Extent) -> usize {
        let lines = Line::touching(extent);
        let (first, end) = ((Line(lines.start), Place(0)), (Line(lines.end), Place(0)));
        self.tries.range(first..end).filter(|(_, tries)| **tries >= TRIES_MAX).count()
    }

    /// An administrator asks again: perhaps the device was mended.
    pub fn try_again(&mut self) {
        *self = LostPieces { epochs: self.epochs, ..LostPieces::default() };
    }

    /// Forgets what was overwritten in an extent.
    pub fn prune(&mut self, extent: Extent, table: &LookupTable) {
        if self.tries.is_empty() {
            return;
        }
        let lines = Line::touching(extent);
        let (first, end) = ((Line(lines.start), Place(0)), (Line(lines.end), Place(0)));
        let dirty = |(line, place): (Line, Place)| {
            table.lookup(line).iter().any(|piece| piece.place == place && piece.dirty)
        };
        let gone: Vec<_> =
            self.tries.range(first..end).map(|(key, _)| *key).filter(|key| !dirty(*key)).collect();
        for (line, place) in gone {
            self.remove(line, place);
        }
    }

    pub fn epoch_failed(&mut self) {
        self.epochs = self.epochs.saturating_add(1);
    }

    pub const fn is_without_hope(&self) -> bool {
        self.epochs >= TRIES_MAX
    }

    pub fn reset_epoch_failures(&mut self) {
        self.epochs = 0;
    }
}
