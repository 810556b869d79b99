//! Lays out the disk in cylinder groups, each with its own superblock copy, bitmaps and inodes.
//!
//! ```text
//! group g:  | superblock copy | group block (bitmaps) | inode blocks ... | data blocks ... |
//! ```

use dcd_engine::{Extent, Lba, SECTOR_BYTES};

use super::config::{BLOCK_FRAGMENTS, BYTES_PER_INODE, FfsConfig, FfsConfigError, INODE_BYTES, Placement};

/// A fragment's number on the disk: the address of everything. Zero is in the first superblock, so it stands for "none".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frag(pub u32);

impl Frag {
    pub const NONE: Frag = Frag(0);

    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    pub const fn plus(self, fragments: u32) -> Frag {
        Frag(self.0 + fragments)
    }
}

/// An inode's number. As in FFS, 2 is the root directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ino(pub(crate) u32);

impl Ino {
    pub const ROOT: Ino = Ino(2);
}

/// A cylinder group's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupIndex(pub u32);

/// A group must have at least this many blocks for data, or it is not made.
const GROUP_DATA_BLOCKS_MIN: u32 = 16;

/// Bytes before the bitmaps of a group: counts of what is free, in all, by rotational position and by cluster (4.4BSD,
/// `CGSIZE` in ufs/ffs/fs.h; some 600 bytes with 16 cylinders).
const GROUP_COUNTS_BYTES: u32 = 600;

/// The bitmaps of inodes, fragments and whole blocks, with the counts before them, in fragments: 4.4BSD reads and writes no more
/// of the group's block (`fs_cgsize`). ext3 has its bitmaps in whole blocks.
fn map_frags(config: &FfsConfig, inodes: u32, blocks: u32) -> u32 {
    let bytes = GROUP_COUNTS_BYTES + inodes.div_ceil(8) + blocks + blocks.div_ceil(8);
    match config.placement {
        Placement::Bsd => bytes.div_ceil(config.fragment_bytes()).min(BLOCK_FRAGMENTS),
        Placement::Ext3 => BLOCK_FRAGMENTS,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub groups: u32,
    pub group_frags: u32,
    /// Blocks in the last group, which may be cut short.
    pub last_group_blocks: u32,
    pub inodes_per_group: u32,
    pub inodes_per_block: u32,
    /// Fragments of a group's block of bitmaps that are read and written.
    pub map_frags: u32,
    /// Blocks of a group before its data.
    pub metadata_blocks: u32,
    pub fragment_sectors: u32,
}

impl Layout {
    pub fn new(config: &FfsConfig, sectors: u64) -> Result<Layout, FfsConfigError> {
        config.validate()?;
        let inodes_per_block = config.block_bytes / INODE_BYTES;
        let wanted = config.group_bytes / BYTES_PER_INODE;
        let inode_blocks = wanted.div_ceil(inodes_per_block).max(1);
        let metadata_blocks = 2 + inode_blocks;
        let group_blocks = config.group_bytes / config.block_bytes;
        let small = |field, why: String| Err(FfsConfigError { field, why });
        if group_blocks < metadata_blocks + GROUP_DATA_BLOCKS_MIN {
            return small("group-bytes", "leaves no room for data beside the inodes".to_owned());
        }
        let blocks = sectors * SECTOR_BYTES / u64::from(config.block_bytes);
        let addressable = u64::from(u32::MAX / BLOCK_FRAGMENTS);
        let blocks = blocks.min(addressable) as u32;
        let rest = blocks % group_blocks;
        let whole = blocks / group_blocks;
        let keeps_rest = rest >= metadata_blocks + GROUP_DATA_BLOCKS_MIN;
        let groups = whole + u32::from(keeps_rest);
        if groups == 0 {
            let least = u64::from(metadata_blocks + GROUP_DATA_BLOCKS_MIN) * u64::from(config.block_bytes);
            return small("group-bytes", format!("needs a device of at least {least} bytes"));
        }
        Ok(Layout {
            groups,
            group_frags: group_blocks * BLOCK_FRAGMENTS,
            last_group_blocks: if keeps_rest { rest } else { group_blocks },
            inodes_per_group: inode_blocks * inodes_per_block,
            inodes_per_block,
            map_frags: map_frags(config, inode_blocks * inodes_per_block, group_blocks),
            metadata_blocks,
            fragment_sectors: (u64::from(config.fragment_bytes()) / SECTOR_BYTES) as u32,
        })
    }

    pub fn group_blocks(&self, group: GroupIndex) -> u32 {
        if group.0 + 1 == self.groups { self.last_group_blocks } else { self.group_frags / BLOCK_FRAGMENTS }
    }

    /// All fragments, to the end of the last group.
    pub fn frags(&self) -> u32 {
        (self.groups - 1) * self.group_frags + self.last_group_blocks * BLOCK_FRAGMENTS
    }

    pub fn inodes(&self) -> u32 {
        self.groups * self.inodes_per_group
    }

    pub fn group_of(&self, at: Frag) -> GroupIndex {
        GroupIndex(at.0 / self.group_frags)
    }

    pub fn group_of_inode(&self, ino: Ino) -> GroupIndex {
        GroupIndex(ino.0 / self.inodes_per_group)
    }

    pub fn first_frag(&self, group: GroupIndex) -> Frag {
        Frag(group.0 * self.group_frags)
    }

    /// The block with the group's bitmaps.
    pub fn group_block(&self, group: GroupIndex) -> Frag {
        self.first_frag(group).plus(BLOCK_FRAGMENTS)
    }

    pub fn inode_block(&self, ino: Ino) -> Frag {
        let group = self.group_of_inode(ino);
        let block = ino.0 % self.inodes_per_group / self.inodes_per_block;
        self.first_frag(group).plus((2 + block) * BLOCK_FRAGMENTS)
    }

    pub fn first_data(&self, group: GroupIndex) -> Frag {
        self.first_frag(group).plus(self.metadata_blocks * BLOCK_FRAGMENTS)
    }

    pub fn extent(&self, at: Frag, frags: u32) -> Extent {
        let sectors = u64::from(self.fragment_sectors);
        Extent::new(Lba(u64::from(at.0) * sectors), u64::from(frags) * sectors)
    }
}
