//! The requests that a file system with synchronous metadata makes of the disk when the tree is unpacked, copied and
//! removed: a stand-in for ext2 with `dirsync` where no real file system can be mounted.
//!
//! Directories are spread over block groups, files lie in the group of their directory. Making or removing a name writes
//! the directory's block and the inode's block, one after the other, and waits for each; data and bitmaps are written at
//! the end, in the order of their addresses, as write-back does. Nothing is cached from one phase to the next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use dcd_engine::{Buf, Durability, Io, Lba, SECTOR_BYTES};

use super::tree::{TreeFile, plan};

const BLOCK_BYTES: u64 = 4096;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;
const GROUP_BLOCKS: u64 = 32 * 1024;
const INODES_PER_BLOCK: u64 = 32;
/// In a group: two bitmaps, the inode table, then directories and data.
const BITMAPS_AT: u64 = 1;
const INODES_AT: u64 = 3;
const DATA_AT: u64 = 260;
/// The longest write of one file's data.
const DATA_BLOCKS_MAX: u64 = 64;

struct Group {
    inodes: u64,
    next_block: u64,
}

struct Inode {
    inode_block: u64,
    first_block: u64,
    blocks: u64,
}

/// Layout of directories and files on the disk.
pub struct Files {
    groups: Vec<Group>,
    directories: BTreeMap<PathBuf, Inode>,
    files: BTreeMap<PathBuf, Inode>,
    tree: (Vec<PathBuf>, Vec<TreeFile>),
}

/// The requests of one phase, in order.
#[derive(Default)]
pub struct Requests {
    ios: Vec<Io>,
    seen: BTreeSet<u64>,
    /// Blocks that are written at the end: the first, and how many.
    late: BTreeMap<u64, u64>,
}

impl Requests {
    fn write_now(&mut self, block: u64) {
        self.seen.insert(block);
        self.ios.push(write(block, 1));
    }

    fn write_late(&mut self, block: u64, blocks: u64) {
        self.late.insert(block, blocks);
    }

    fn read(&mut self, block: u64, blocks: u64) {
        if self.seen.insert(block) {
            let buf = Buf::zeroed((blocks * BLOCK_BYTES) as usize);
            self.ios.push(Io::Read { at: Lba(block * BLOCK_SECTORS), buf });
        }
    }

    fn finish(mut self) -> Vec<Io> {
        for (block, mut blocks) in std::mem::take(&mut self.late) {
            let mut at = block;
            while blocks > 0 {
                let part = blocks.min(DATA_BLOCKS_MAX);
                self.ios.push(write(at, part));
                (at, blocks) = (at + part, blocks - part);
            }
        }
        self.ios.push(Io::Flush);
        self.ios
    }
}

fn write(block: u64, blocks: u64) -> Io {
    let buf = Buf::copy_of(&block.to_le_bytes().repeat((blocks * BLOCK_BYTES / 8) as usize));
    Io::Write { at: Lba(block * BLOCK_SECTORS), buf, durability: Durability::Volatile }
}

impl Files {
    /// # Panics
    /// On a disk of less than one group (128 MiB).
    pub fn new(sectors: u64, seed: u64) -> Files {
        let groups = sectors / BLOCK_SECTORS / GROUP_BLOCKS;
        assert!(groups > 0, "a disk of at least 128 MiB");
        let groups = (0..groups).map(|_| Group { inodes: 0, next_block: DATA_AT }).collect();
        Files { groups, directories: BTreeMap::new(), files: BTreeMap::new(), tree: plan(seed) }
    }

    pub fn untar(&mut self) -> Vec<Io> {
        let mut requests = Requests::default();
        self.make_tree("original", &mut requests, |_, _| {});
        requests.finish()
    }

    pub fn copy(&mut self) -> Vec<Io> {
        let mut requests = Requests::default();
        self.make_tree("copy", &mut requests, |inode, requests| {
            requests.read(inode.inode_block, 1);
            requests.read(inode.first_block, inode.blocks);
        });
        requests.finish()
    }

    pub fn remove(&mut self) -> Vec<Io> {
        let mut requests = Requests::default();
        let root = Path::new("copy");
        let (directories, files) = self.tree.clone();
        for file in &files {
            let path = root.join(&file.path);
            let inode = self.files.remove(&path).expect("it was copied");
            let parent = &self.directories[path.parent().expect("files are in directories")];
            requests.read(parent.first_block, 1);
            requests.read(inode.inode_block, 1);
            requests.write_now(parent.first_block);
            requests.write_now(inode.inode_block);
            requests.write_late(group_of(inode.first_block) * GROUP_BLOCKS + BITMAPS_AT, 2);
        }
        for directory in directories.iter().rev() {
            let inode = self.directories.remove(&root.join(directory)).expect("it was copied");
            requests.write_now(inode.inode_block);
            requests.write_late(group_of(inode.first_block) * GROUP_BLOCKS + BITMAPS_AT, 2);
        }
        requests.finish()
    }

    /// Commits of a database with a rollback journal, on a file system with a journal of its own: each writes the
    /// rollback journal, the database, and the file system's journal, with a flush after each of them.
    pub fn commits(&self, count: u64) -> Vec<Io> {
        let base = (self.groups.len() as u64 - 1) * GROUP_BLOCKS + GROUP_BLOCKS / 2;
        let (journal, database, fs_journal) = (base, base + 1024, base + 4096);
        let mut ios = Vec::new();
        for commit in 0..count {
            for (block, blocks) in [(journal, 2), (database + commit % 16, 2), (fs_journal + commit * 3, 3)] {
                ios.push(write(block, blocks));
                ios.push(Io::Flush);
            }
        }
        ios
    }

    /// Makes the tree under `root`; `source` is called with each original before its copy is made.
    fn make_tree(&mut self, root: &str, requests: &mut Requests, source: impl Fn(&Inode, &mut Requests)) {
        let (directories, files) = self.tree.clone();
        let root = Path::new(root);
        for (index, directory) in directories.iter().enumerate() {
            let group = (index * 7 + root.as_os_str().len()) % self.groups.len();
            let inode = self.allocate(group, 1);
            requests.write_now(inode.first_block);
            requests.write_now(inode.inode_block);
            if let Some(parent) = self.directories.get(root.join(directory).parent().expect("below the root"))
            {
                requests.write_now(parent.first_block);
            }
            self.directories.insert(root.join(directory), inode);
        }
        for file in &files {
            if let Some(original) = self.files.get(&Path::new("original").join(&file.path)) {
                source(original, requests);
            }
            let path = root.join(&file.path);
            let directory = path.parent().expect("files are in directories");
            let directory_block = self.directories[directory].first_block;
            let inode =
                self.allocate(group_of(directory_block) as usize, (file.bytes as u64).div_ceil(BLOCK_BYTES));
            requests.write_now(directory_block);
            requests.write_now(inode.inode_block);
            requests.write_late(inode.first_block, inode.blocks);
            requests.write_late(group_of(inode.first_block) * GROUP_BLOCKS + BITMAPS_AT, 2);
            self.files.insert(path, inode);
        }
    }

    fn allocate(&mut self, group: usize, blocks: u64) -> Inode {
        let start = group as u64 * GROUP_BLOCKS;
        let group = &mut self.groups[group];
        let inode_block = start + INODES_AT + group.inodes / INODES_PER_BLOCK;
        let first_block = start + group.next_block;
        group.inodes += 1;
        group.next_block += blocks;
        Inode { inode_block, first_block, blocks }
    }
}

const fn group_of(block: u64) -> u64 {
    block / GROUP_BLOCKS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::tree::{DIRECTORIES, FILES};

    fn count(ios: &[Io], kind: fn(&Io) -> bool) -> usize {
        ios.iter().filter(|io| kind(io)).count()
    }

    #[test]
    fn every_phase_makes_the_requests_of_its_files() {
        let mut files = Files::new(1792 << 11, 1);
        let untar = files.untar();
        let synchronous = 2 * FILES + 2 * DIRECTORIES + (DIRECTORIES - 1);
        assert!(count(&untar, Io::modifies) > synchronous + FILES, "metadata, and data at the end");
        assert_eq!(count(&untar, |io| matches!(io, Io::Read { .. })), 0);
        let copy = files.copy();
        assert!(count(&copy, |io| matches!(io, Io::Read { .. })) > FILES, "every original is read");
        let remove = files.remove();
        let metadata = 2 * FILES + DIRECTORIES;
        assert!((metadata..metadata + 40).contains(&count(&remove, Io::modifies)));
        assert_eq!(count(&remove, |io| matches!(io, Io::Flush)), 1);
    }

    #[test]
    fn everything_is_on_the_disk() {
        let sectors = 1792 << 11;
        let mut files = Files::new(sectors, 3);
        for io in [files.untar(), files.copy(), files.remove()].iter().flatten() {
            assert!(io.extent().is_none_or(|extent| extent.end().0 <= sectors), "{io:?}");
        }
    }
}
