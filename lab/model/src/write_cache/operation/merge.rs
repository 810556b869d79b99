//! Neighbours among blocks that are written together.

use dcd_engine::destage::how::{DirtyBlock, MERGE_SECTORS_MAX};
/// Cuts ordered blocks into writes: runs of neighbours.
pub fn merge(blocks: &[DirtyBlock]) -> impl Iterator<Item = std::ops::Range<usize>> {
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
    use dcd_engine::destage::how::HowPolicy;
    use dcd_engine::{Extent, Lba};

    use super::*;

    #[test]
    fn sorted_blocks_merge_and_unsorted_ones_only_by_luck() {
        let block = |lba, place| DirtyBlock { target: Extent::new(Lba(lba), 8), place, index: 0 };
        let mut blocks = [block(16, 0), block(0, 1), block(8, 2), block(100, 3)];
        HowPolicy::AsItComes.order(&mut blocks);
        assert_eq!(merge(&blocks).collect::<Vec<_>>(), [0..1, 1..3, 3..4]);
        HowPolicy::Sorted.order(&mut blocks);
        assert_eq!(merge(&blocks).collect::<Vec<_>>(), [0..3, 3..4]);
    }
}
