//! Choosing the next destage: by marks and policies, and by those who wait.

mod run;

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

    pub const fn hand(&self) -> u64 {
        self.hand
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
