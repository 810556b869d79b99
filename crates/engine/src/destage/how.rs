//! The order in which the chosen blocks are written back, and which are written together.

use serde::{Deserialize, Serialize};

use crate::Extent;

/// The names of the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HowPolicy {
    /// In the order in which the blocks lie in the cache: the DCD paper's.
    AsItComes,
    /// Sorted by LBA, neighbours merged into one write.
    #[default]
    Sorted,
}

/// Sectors that are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// On the disk that they are written to.
    pub target: Extent,
    /// Their place in the cache: the order in which they came.
    pub place: u64,
    /// Whatever the caller wants to find again.
    pub index: u32,
}

/// Adjacent blocks are merged up to this many sectors (1 MiB): more gains nothing on any disk.
pub const MERGE_SECTORS_MAX: u64 = 2048;

pub trait How: Sync {
    fn order(&self, blocks: &mut [Block]);
}

/// The order in which the blocks lie in the cache (the paper's, section 3.5.3).
struct AsItComes;

impl How for AsItComes {
    fn order(&self, blocks: &mut [Block]) {
        blocks.sort_unstable_by_key(|block| block.place);
    }
}

/// By address, in one sweep over the disk.
struct Sorted;

impl How for Sorted {
    fn order(&self, blocks: &mut [Block]) {
        blocks.sort_unstable_by_key(|block| block.target.start);
    }
}

/// The registry.
pub fn policy(name: HowPolicy) -> &'static dyn How {
    match name {
        HowPolicy::AsItComes => &AsItComes,
        HowPolicy::Sorted => &Sorted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lba;

    #[test]
    fn blocks_go_as_they_came_or_by_address() {
        let block = |lba, place| Block { target: Extent::new(Lba(lba), 8), place, index: 0 };
        let mut blocks = [block(16, 1), block(0, 0), block(8, 2)];
        let order = |blocks: &[Block]| blocks.iter().map(|block| block.target.start.0).collect::<Vec<_>>();
        policy(HowPolicy::AsItComes).order(&mut blocks);
        assert_eq!(order(&blocks), [0, 16, 8]);
        policy(HowPolicy::Sorted).order(&mut blocks);
        assert_eq!(order(&blocks), [0, 8, 16]);
    }
}
