//! The order in which the chosen blocks are written back, and which are written together.

use serde::{Deserialize, Serialize};

use crate::Extent;

/// The names of the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HowPolicy {
    /// As they lie in the cache: the DCD paper's.
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

/// As the blocks lie in the cache (the paper's, section 3.5.3).
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

/// Cuts ordered blocks into writes: runs of neighbours.
pub fn merge(blocks: &[Block]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let first = next;
        let mut sectors = blocks.get(first)?.target.sectors;
        next += 1;
        while let Some(block) = blocks.get(next) {
            let adjacent = block.target.start == blocks[next - 1].target.end();
            if !adjacent || sectors + block.target.sectors > MERGE_SECTORS_MAX {
                break;
            }
            sectors += block.target.sectors;
            next += 1;
        }
        Some(first..next)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lba;

    #[test]
    fn sorted_blocks_merge_and_unsorted_ones_only_by_luck() {
        let block = |lba, place| Block { target: Extent::new(Lba(lba), 8), place, index: 0 };
        let mut blocks = [block(16, 0), block(0, 1), block(8, 2), block(100, 3)];
        policy(HowPolicy::AsItComes).order(&mut blocks);
        assert_eq!(merge(&blocks).collect::<Vec<_>>(), [0..1, 1..3, 3..4]);
        policy(HowPolicy::Sorted).order(&mut blocks);
        assert_eq!(merge(&blocks).collect::<Vec<_>>(), [0..3, 3..4]);
    }
}
