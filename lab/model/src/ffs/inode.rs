//! Inodes, and the table of those in use.

use super::config::BLOCK_FRAGMENTS;
use super::directory::Directory;
use super::layout::{Frag, Ino};

/// A file or a directory.
#[derive(Clone, Default)]
pub(crate) struct Inode {
    /// Counts how often the number was used, so that a file is not taken for an earlier one.
    pub generation: u32,
    pub links: u32,
    /// Number of programs that have it open; it is not freed before the last closes it.
    pub opens: u32,
    pub bytes: u64,
    /// The address of each block; none where nothing was ever written.
    pub blocks: Vec<Frag>,
    /// The blocks of addresses: first the single indirect one, then the double one, then those below that.
    pub indirects: Vec<Frag>,
    /// Changed in memory since it was last put into its block.
    pub is_dirty: bool,
    /// The block that a reader in order reads next.
    pub next_read: u32,
    /// Number of blocks to read ahead.
    pub window: u32,
    /// The first block that was not yet asked for by reading ahead.
    pub ahead: u32,
    pub directory: Option<Box<Directory>>,
}

impl Inode {
    pub fn new(generation: u32, directory: Option<Box<Directory>>) -> Inode {
        Inode { generation, window: 1, directory, ..Inode::default() }
    }

    pub fn is_directory(&self) -> bool {
        self.directory.is_some()
    }

    /// The fragments that a block has: all, but for the last one of a small file.
    pub fn frags_of(&self, block: u32, shape: &Shape) -> u32 {
        shape.frags_of(self.bytes, block)
    }
}

/// The numbers by which files are cut into blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub block_bytes: u64,
    pub direct_blocks: u32,
    /// Addresses in an indirect block.
    pub addresses: u32,
    /// The last block of a small file has as many fragments as it needs.
    pub fragments: bool,
}

impl Shape {
    #[cfg(test)]
    pub fn blocks(&self, bytes: u64) -> u32 {
        bytes.div_ceil(self.block_bytes) as u32
    }

    /// The fragments that `block` needs in a file of so many bytes.
    pub fn frags_of(&self, bytes: u64, block: u32) -> u32 {
        let start = u64::from(block) * self.block_bytes;
        if !self.fragments {
            return if bytes > start { BLOCK_FRAGMENTS } else { 0 };
        }
        if block >= self.direct_blocks || bytes >= start + self.block_bytes {
            return BLOCK_FRAGMENTS;
        }
        let fragment = self.block_bytes / u64::from(BLOCK_FRAGMENTS);
        bytes.saturating_sub(start).div_ceil(fragment) as u32
    }

    /// Returns the indices in a file's `indirects` that lead to a block, from the inode down; none for the direct blocks.
    pub fn indirects_of(&self, block: u32) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match block.checked_sub(self.direct_blocks) {
            None => (None, None),
            Some(index) if index < self.addresses => (Some(0), None),
            Some(index) => (Some(1), Some(2 + ((index - self.addresses) / self.addresses) as usize)),
        };
        first.into_iter().chain(second)
    }

    /// Returns the maximum number of blocks that a file can have.
    pub fn blocks_max(&self) -> u64 {
        let addresses = u64::from(self.addresses);
        u64::from(self.direct_blocks) + addresses + addresses * addresses
    }
}

/// The inodes in use, by their number.
#[derive(Clone)]
pub(crate) struct InodeTable {
    /// For each number its place plus one; zero where it is free.
    places: Vec<u32>,
    inodes: Vec<Option<Inode>>,
    spare: Vec<u32>,
    generations: u32,
}

impl InodeTable {
    pub fn new(numbers: u32) -> InodeTable {
        InodeTable {
            places: vec![0; numbers as usize],
            inodes: Vec::new(),
            spare: Vec::new(),
            generations: 0,
        }
    }

    pub fn insert(&mut self, ino: Ino, directory: Option<Box<Directory>>) -> &mut Inode {
        assert!(self.places[ino.0 as usize] == 0, "an inode is in use once");
        self.generations += 1;
        let inode = Inode::new(self.generations, directory);
        let place = self.spare.pop().unwrap_or_else(|| {
            self.inodes.push(None);
            self.inodes.len() as u32 - 1
        });
        self.places[ino.0 as usize] = place + 1;
        self.inodes[place as usize].insert(inode)
    }

    pub fn remove(&mut self, ino: Ino) -> Inode {
        let place = self.place(ino).expect("only an inode in use is removed");
        self.places[ino.0 as usize] = 0;
        self.spare.push(place);
        self.inodes[place as usize].take().expect("the table knows its inodes")
    }

    /// Returns the file's place, which is a small number, for as long as the file is in use.
    pub fn place(&self, ino: Ino) -> Option<u32> {
        self.places.get(ino.0 as usize)?.checked_sub(1)
    }

    pub fn find(&self, ino: Ino) -> Option<&Inode> {
        self.inodes[self.place(ino)? as usize].as_ref()
    }

    pub fn get(&self, ino: Ino) -> &Inode {
        self.find(ino).expect("the inode is in use")
    }

    pub fn get_mut(&mut self, ino: Ino) -> &mut Inode {
        let place = self.place(ino).expect("the inode is in use");
        self.inodes[place as usize].as_mut().expect("the table knows its inodes")
    }

    pub fn iter(&self) -> impl Iterator<Item = (Ino, &Inode)> {
        let numbers = self.places.iter().enumerate().filter(|(_, place)| **place != 0);
        numbers.map(|(ino, place)| {
            let inode = self.inodes[*place as usize - 1].as_ref();
            (Ino(ino as u32), inode.expect("the table knows its inodes"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { block_bytes: 8192, direct_blocks: 12, addresses: 2048, fragments: true };

    #[test]
    fn only_the_end_of_a_small_file_is_in_fragments() {
        assert_eq!(SHAPE.frags_of(9900, 0), 8);
        assert_eq!(SHAPE.frags_of(9900, 1), 2);
        assert_eq!(SHAPE.frags_of(9900, 2), 0);
        assert_eq!(
            SHAPE.frags_of(12 * 8192 + 1, 12),
            8,
            "behind the direct blocks there are whole blocks only"
        );
        assert_eq!(SHAPE.blocks(8193), 2);
        let whole = Shape { fragments: false, ..SHAPE };
        assert_eq!([0, 1, 2].map(|block| whole.frags_of(9900, block)), [8, 8, 0]);
    }

    #[test]
    fn indirect_blocks_lead_to_their_blocks() {
        let path = |block| SHAPE.indirects_of(block).collect::<Vec<_>>();
        assert_eq!(path(11), [] as [usize; 0]);
        assert_eq!((path(12), path(12 + 2047)), (vec![0], vec![0]));
        assert_eq!((path(12 + 2048), path(12 + 2048 * 2)), (vec![1, 2], vec![1, 3]));
    }
}
