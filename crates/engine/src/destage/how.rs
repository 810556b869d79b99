//! The order in which the chosen blocks are written back, and the merging of neighbours.

use serde::{Deserialize, Serialize};

use crate::Extent;

/// The names of the policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HowPolicy {
    /// In the order of the blocks in the cache (Nightingale et al. 1999, section 3.5.3).
    AsItComes,
    /// Sorted by LBA, neighbours merged into one write.
    #[default]
    Sorted,
}

/// Sectors that are written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyBlock {
    /// The sectors of the disk that they are written to.
    pub target: Extent,
    /// The place of the sectors in the cache: the order in which they came.
    pub place: u64,
    /// A number for the caller's use.
    pub index: u32,
}

/// Maximum size of a merged write (1 MiB): larger writes gain nothing on any disk.
pub const MERGE_SECTORS_MAX: u64 = 2048;

impl HowPolicy {
    pub fn order(self, blocks: &mut [DirtyBlock]) {
        match self {
            HowPolicy::AsItComes => blocks.sort_unstable_by_key(|block| block.place),
            HowPolicy::Sorted => blocks.sort_unstable_by_key(|block| block.target.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lba;

    #[test]
    fn blocks_go_as_they_came_or_by_address() {
        let block = |lba, place| DirtyBlock { target: Extent::new(Lba(lba), 8), place, index: 0 };
        let mut blocks = [block(16, 1), block(0, 0), block(8, 2)];
        let order =
            |blocks: &[DirtyBlock]| blocks.iter().map(|block| block.target.start.0).collect::<Vec<_>>();
        HowPolicy::AsItComes.order(&mut blocks);
        assert_eq!(order(&blocks), [0, 16, 8]);
        HowPolicy::Sorted.order(&mut blocks);
        assert_eq!(order(&blocks), [0, 8, 16]);
    }
}
