//! Chooses the next destage: by marks and policies, and by what waits.

mod run;

use std::cell::Cell;

/// The most dirty units that one choice looks at, so that no event takes longer the more is dirty. A policy that compares units compares so
/// many, from the last one that was destaged on. An event that has looked at so many leaves further choices to the next one.
pub(super) const LOOKS_MAX: usize = 1024;

/// The destages under way, and where the next one is looked for.
#[derive(Default)]
pub(super) struct Destaging {
    running: u32,
    /// Blocks that were dirty when these began.
    blocks: usize,
    /// The unit at which a sweep continues.
    hand: u64,
    /// Destaging has begun at the high mark and not reached the low one.
    triggered: bool,
    /// The unit that the policy has closed to readers, as there was no other to destage.
    closed: Option<u64>,
    /// Looks at dirty units in this event.
    looks: Cell<usize>,
}

impl Destaging {
    pub const fn running(&self) -> u32 {
        self.running
    }

    /// Blocks that were dirty when the running ones began.
    #[cfg(test)]
    pub const fn blocks(&self) -> usize {
        self.blocks
    }

    /// An event begins.
    pub fn begin_event(&mut self) {
        self.looks = Cell::new(0);
    }

    /// Lets a choice look at [`LOOKS_MAX`] of some units, and counts them.
    pub fn look_at<T>(&self, units: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        units.take(LOOKS_MAX).inspect(|_| self.looks.set(self.looks.get() + 1))
    }

    /// Looks at dirty units in this event.
    pub fn looks(&self) -> usize {
        self.looks.get()
    }

    /// A destage of a unit with so many dirty blocks begins.
    pub const fn begin(&mut self, unit: u64, blocks: usize) {
        self.running += 1;
        self.blocks += blocks;
        self.hand = unit + 1;
    }

    pub const fn end(&mut self, blocks: usize) {
        self.running -= 1;
        self.blocks -= blocks;
    }
}
