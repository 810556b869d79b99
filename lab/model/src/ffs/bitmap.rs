//! Maps of a cylinder group: which fragments and which inodes are free.
//!
//! A block is one byte, a set bit a free fragment. `runs[n]` counts the runs of exactly `n` free fragments inside blocks
//! that are partly in use, so that a search knows beforehand whether it will find one.

use super::config::BLOCK_FRAGMENTS;

const ALL_FREE: u8 = u8::MAX;

/// For each byte, how many runs of each length of set bits it has.
const RUNS: [[u8; 9]; 256] = {
    let mut table = [[0; 9]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut run) = (0, 0);
        while bit <= 8 {
            if bit < 8 && byte >> bit & 1 == 1 {
                run += 1;
            } else {
                if run > 0 {
                    table[byte][run] += 1;
                }
                run = 0;
            }
            bit += 1;
        }
        byte += 1;
    }
    table
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupMap {
    blocks: Vec<u8>,
    pub free_blocks: u32,
    /// Free fragments in blocks that are partly in use.
    pub free_frags: u32,
    runs: [u32; 9],
    inodes: Vec<u64>,
    inode_count: u32,
    pub free_inodes: u32,
    pub directories: u32,
    /// Place of the inode that was taken last.
    inode_rotor: u32,
}

const fn bits(first: u32, count: u32) -> u8 {
    (((1u16 << count) - 1) << first) as u8
}

impl GroupMap {
    pub fn new(blocks: u32, metadata_blocks: u32, inodes: u32) -> GroupMap {
        let mut map = vec![ALL_FREE; blocks as usize];
        map[..metadata_blocks as usize].fill(0);
        GroupMap {
            blocks: map,
            free_blocks: blocks - metadata_blocks,
            free_frags: 0,
            runs: [0; 9],
            inodes: vec![u64::MAX; inodes.div_ceil(64) as usize],
            inode_count: inodes,
            free_inodes: inodes,
            directories: 0,
            inode_rotor: 0,
        }
    }

    fn change(&mut self, block: usize, to: u8) {
        let from = std::mem::replace(&mut self.blocks[block], to);
        for (byte, gains) in [(from, false), (to, true)] {
            let step = |count: &mut u32, by: u32| *count = if gains { *count + by } else { *count - by };
            if byte == ALL_FREE {
                step(&mut self.free_blocks, 1);
            } else if byte != 0 {
                step(&mut self.free_frags, byte.count_ones());
                for (length, count) in RUNS[byte as usize].iter().enumerate() {
                    step(&mut self.runs[length], u32::from(*count));
                }
            }
        }
    }

    #[cfg(test)]
    pub fn is_free(&self, frag: u32) -> bool {
        self.blocks[(frag / BLOCK_FRAGMENTS) as usize] >> (frag % BLOCK_FRAGMENTS) & 1 == 1
    }

    pub fn is_block_free(&self, block: u32) -> bool {
        self.blocks.get(block as usize) == Some(&ALL_FREE)
    }

    /// Takes fragments of one block, which must be free.
    pub fn take(&mut self, frag: u32, count: u32) {
        let (block, mask) = ((frag / BLOCK_FRAGMENTS) as usize, bits(frag % BLOCK_FRAGMENTS, count));
        assert!(self.blocks[block] & mask == mask, "only free fragments are taken");
        self.change(block, self.blocks[block] & !mask);
    }

    /// Gives fragments of one block back, which must be in use.
    pub fn give(&mut self, frag: u32, count: u32) {
        let (block, mask) = ((frag / BLOCK_FRAGMENTS) as usize, bits(frag % BLOCK_FRAGMENTS, count));
        assert!(self.blocks[block] & mask == 0, "only fragments in use are freed");
        self.change(block, self.blocks[block] | mask);
    }

    pub fn can_take(&self, frag: u32, count: u32) -> bool {
        let mask = bits(frag % BLOCK_FRAGMENTS, count);
        self.blocks[(frag / BLOCK_FRAGMENTS) as usize] & mask == mask
    }

    /// The first free block from `from` on, going round.
    pub fn find_block(&self, from: u32) -> Option<u32> {
        if self.free_blocks == 0 {
            return None;
        }
        self.search(from, |byte| byte == ALL_FREE)
    }

    /// The first of `count` free blocks in a row, from `from` on, going round.
    pub fn find_blocks(&self, from: u32, count: u32) -> Option<u32> {
        if self.free_blocks < count {
            return None;
        }
        let mut run = 0;
        let wrapped = (from..self.blocks.len() as u32).chain(0..from);
        for block in wrapped {
            run = if self.blocks[block as usize] == ALL_FREE && block != 0 { run + 1 } else { 0 };
            if run == count {
                return Some(block + 1 - count);
            }
        }
        None
    }

    /// `count` free fragments inside a block that is partly in use, from the smallest run that has them.
    pub fn find_frags(&self, from_block: u32, count: u32) -> Option<u32> {
        let length = (count..BLOCK_FRAGMENTS).find(|length| self.runs[*length as usize] > 0)?;
        let block = self
            .search(from_block, |byte| byte != ALL_FREE && RUNS[byte as usize][length as usize] > 0)
            .expect("the counts say that there is one");
        let byte = self.blocks[block as usize];
        let first = (0..BLOCK_FRAGMENTS).find(|first| {
            let ends = |bit: u32| bit >= BLOCK_FRAGMENTS || byte >> bit & 1 == 0;
            let mask = bits(*first, length.min(BLOCK_FRAGMENTS - first));
            byte & mask == mask && ends(first + length) && (*first == 0 || ends(first - 1))
        });
        Some(block * BLOCK_FRAGMENTS + first.expect("the byte has such a run"))
    }

    /// The first free block from `from` on, before `to`.
    pub fn first_free(&self, from: u32, to: u32) -> Option<u32> {
        let range = self.blocks.get(from as usize..to as usize)?;
        memchr::memchr(ALL_FREE, range).map(|index| from + index as u32)
    }

    /// The first of eight free blocks from `from` on, before `to`, whose number is a multiple of eight.
    pub fn first_free_byte(&self, from: u32, to: u32) -> Option<u32> {
        let first = from.next_multiple_of(8);
        let mut bytes = self.blocks.get(first as usize..to as usize)?.chunks_exact(8);
        bytes.position(|byte| byte == [ALL_FREE; 8]).map(|index| first + 8 * index as u32)
    }

    fn search(&self, from: u32, wanted: impl Fn(u8) -> bool) -> Option<u32> {
        let from = from as usize % self.blocks.len();
        let (before, after) = self.blocks.split_at(from);
        let found = after.iter().position(|byte| wanted(*byte)).map(|index| index + from);
        found.or_else(|| before.iter().position(|byte| wanted(*byte))).map(|index| index as u32)
    }

    /// Takes the next free inode after the one that was taken last if they are taken in turn, or the first.
    pub fn take_inode(&mut self, is_directory: bool, in_turn: bool) -> Option<u32> {
        if self.free_inodes == 0 {
            return None;
        }
        let words = self.inodes.len() as u32;
        let rotor = if in_turn { self.inode_rotor } else { 0 };
        let start = rotor / 64;
        let after_rotor = u64::MAX << (rotor % 64);
        // The rotor's own word comes first from the rotor on, and last as a whole.
        let round = (start + 1..words).chain(0..=start).map(|word| (word, u64::MAX));
        let index = std::iter::once((start, after_rotor)).chain(round).find_map(|(word, mask)| {
            let free = self.inodes[word as usize] & mask;
            (free != 0).then(|| word * 64 + free.trailing_zeros()).filter(|index| *index < self.inode_count)
        })?;
        self.claim_inode(index, is_directory);
        self.inode_rotor = (index + 1) % self.inode_count;
        Some(index)
    }

    /// Takes this inode, which must be free.
    pub fn claim_inode(&mut self, index: u32, is_directory: bool) {
        let (word, bit) = (index as usize / 64, 1 << (index % 64));
        assert!(self.inodes[word] & bit != 0, "only a free inode is taken");
        self.inodes[word] &= !bit;
        self.free_inodes -= 1;
        self.directories += u32::from(is_directory);
    }

    pub fn give_inode(&mut self, index: u32, is_directory: bool) {
        let (word, bit) = (index as usize / 64, 1 << (index % 64));
        assert!(self.inodes[word] & bit == 0, "only an inode in use is freed");
        self.inodes[word] |= bit;
        self.free_inodes += 1;
        self.directories -= u32::from(is_directory);
    }

    #[cfg(test)]
    pub fn is_inode_free(&self, index: u32) -> bool {
        self.inodes[index as usize / 64] >> (index % 64) & 1 == 1
    }

    /// Panics where the counts disagree with the maps.
    #[cfg(test)]
    pub fn check(&self) {
        let partial = || self.blocks.iter().filter(|byte| **byte != ALL_FREE && **byte != 0);
        assert_eq!(self.free_blocks as usize, self.blocks.iter().filter(|byte| **byte == ALL_FREE).count());
        assert_eq!(self.free_frags, partial().map(|byte| byte.count_ones()).sum::<u32>());
        let mut runs = [0; 9];
        for byte in partial() {
            for (sum, count) in runs.iter_mut().zip(RUNS[*byte as usize]) {
                *sum += u32::from(count);
            }
        }
        assert_eq!(self.runs, runs, "runs of each length");
        let free = (0..self.inode_count).filter(|index| self.is_inode_free(*index)).count();
        assert_eq!(self.free_inodes as usize, free, "free inodes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fragments_come_from_the_smallest_run_that_has_them() {
        let mut map = GroupMap::new(8, 1, 64);
        map.take(8, 3);
        assert_eq!(map.find_frags(0, 2), Some(11), "the five free ones behind");
        map.take(16, 6);
        assert_eq!(map.find_frags(0, 2), Some(22), "the run of two fits exactly");
        assert_eq!(map.find_frags(0, 6), None);
        map.check();
        map.give(8, 3);
        assert_eq!(map.free_blocks, 6);
        map.check();
    }

    #[test]
    fn blocks_are_searched_round_the_group() {
        let mut map = GroupMap::new(8, 1, 64);
        for block in [4, 6] {
            map.take(block * 8, 8);
        }
        assert_eq!((map.find_block(4), map.find_block(6)), (Some(5), Some(7)));
        assert_eq!((map.find_blocks(4, 3), map.find_blocks(0, 4)), (Some(1), None));
        map.take(7 * 8, 8);
        assert_eq!(map.find_block(6), Some(1));
    }

    #[test]
    fn inodes_are_taken_in_turn_and_all_of_them() {
        let mut map = GroupMap::new(8, 1, 100);
        let taken: Vec<u32> = std::iter::from_fn(|| map.take_inode(false, true)).collect();
        assert_eq!(taken, (0..100).collect::<Vec<_>>());
        map.give_inode(5, false);
        map.give_inode(70, false);
        assert_eq!((map.take_inode(false, true), map.take_inode(false, true)), (Some(5), Some(70)));
        map.give_inode(80, false);
        map.give_inode(3, false);
        assert_eq!((map.take_inode(false, false), map.take_inode(false, false)), (Some(3), Some(80)));
        map.check();
    }
}
