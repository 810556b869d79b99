//! The file system's own state: maps, inodes, directories, and what of them counts as being in memory.
//!
//! All of it is kept whole here. Whether a block request is needed to get at it is decided by the buffer cache and by the
//! lists of inodes and names in memory.

use super::alloc::Allocator;
use super::config::{BLOCK_FRAGMENTS, DIRECT_BLOCKS, FfsConfig, FfsConfigError, Placement};
use super::directory::Directory;
use super::inode::{InodeTable, Shape};
use super::layout::{Frag, GroupIndex, Ino, Layout};
use super::lru::Lru;
use super::op::{FsError, Op};

/// The longest name (4.4BSD's MAXNAMLEN).
const NAME_BYTES_MAX: usize = 255;

#[derive(Clone)]
pub(crate) struct Volume {
    pub config: FfsConfig,
    pub shape: Shape,
    pub allocator: Allocator,
    pub inodes: InodeTable,
    /// Inodes in memory, by their place in the table.
    pub inodes_known: Lru,
    /// Names in the name cache, by the id of their entry.
    pub names_known: Lru,
    /// First fragment of the journal, and number of its blocks.
    pub journal: Option<(Frag, u32)>,
    entry_ids: u32,
    entry_ids_spare: Vec<u32>,
}

/// Result of looking a path up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved<'a> {
    pub parent: Ino,
    pub name: &'a str,
    pub target: Option<Ino>,
}

/// The names in a path.
pub(crate) fn components(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}

impl Volume {
    /// An empty file system with its root directory, as newfs leaves it.
    pub fn new(config: FfsConfig, sectors: u64) -> Result<Volume, FfsConfigError> {
        let layout = Layout::new(&config, sectors)?;
        let room = layout.group_blocks(GroupIndex(0)) - layout.metadata_blocks;
        if config.journal_bytes / config.block_bytes >= room {
            let why = "must be less than what the first group has for data".to_owned();
            return Err(FfsConfigError { field: "journal-bytes", why });
        }
        let inodes = InodeTable::new(layout.inodes());
        let shape = Shape {
            block_bytes: u64::from(config.block_bytes),
            direct_blocks: DIRECT_BLOCKS,
            addresses: config.block_bytes / 4,
            fragments: config.placement == Placement::Bsd,
        };
        let mut volume = Volume {
            config,
            shape,
            allocator: Allocator::new(layout, &config),
            inodes,
            inodes_known: Lru::default(),
            names_known: Lru::default(),
            journal: None,
            entry_ids: 0,
            entry_ids_spare: Vec::new(),
        };
        volume.allocator.claim_root();
        let first = volume.allocator.layout.first_data(volume.allocator.layout.group_of_inode(Ino::ROOT));
        let bytes = u64::from(super::config::DIRECTORY_CHUNK);
        let frags = shape.frags_of(bytes, 0);
        let at = volume.allocator.take_frags(first, frags).expect("an empty file system has room");
        let root = volume.inodes.insert(Ino::ROOT, Some(Box::new(Directory::new(Ino::ROOT))));
        root.links = 2;
        root.bytes = bytes;
        root.blocks.push(at);
        let journal = config.journal_bytes / config.block_bytes;
        let first = first.plus(BLOCK_FRAGMENTS);
        for block in 0..journal {
            volume.allocator.take(first.plus(block * BLOCK_FRAGMENTS), BLOCK_FRAGMENTS);
        }
        volume.journal = (journal > 0).then_some((first, journal));
        Ok(volume)
    }

    pub fn directory(&self, ino: Ino) -> Result<&Directory, FsError> {
        self.inodes.get(ino).directory.as_deref().ok_or(FsError::NotADirectory)
    }

    pub fn directory_mut(&mut self, ino: Ino) -> &mut Directory {
        self.inodes.get_mut(ino).directory.as_deref_mut().expect("it was found to be a directory")
    }

    /// Follows a path without any cost: all but its last name must be there.
    pub fn resolve<'a>(&self, path: &'a str) -> Result<Resolved<'a>, FsError> {
        let mut names = components(path).peekable();
        let mut parent = Ino::ROOT;
        loop {
            let Some(name) = names.next() else {
                return Ok(Resolved { parent, name: "", target: Some(parent) });
            };
            let target = self.directory(parent)?.find(name).map(|entry| entry.ino);
            if names.peek().is_none() {
                return Ok(Resolved { parent, name, target });
            }
            parent = target.ok_or(FsError::NotFound)?;
        }
    }

    /// The inodes that a call has for itself while it runs.
    pub fn locks(&self, op: &Op, locks: &mut Vec<Ino>) {
        locks.clear();
        let mut add = |path: &str, parent: bool, target: bool| {
            let Ok(resolved) = self.resolve(path) else { return };
            locks.extend(parent.then_some(resolved.parent));
            locks.extend(resolved.target.filter(|_| target));
        };
        match op {
            Op::Create { path } | Op::Mkdir { path } => add(path, true, false),
            Op::Unlink { path } | Op::Rmdir { path } => add(path, true, true),
            Op::Rename { from, to } => {
                add(from, true, true);
                add(to, true, true);
            }
            Op::Open { path } | Op::Readdir { path } | Op::Stat { path } => add(path, false, true),
            Op::Close { file }
            | Op::Read { file, .. }
            | Op::Write { file, .. }
            | Op::Append { file, .. }
            | Op::Fsync { file } => locks.push(*file),
            Op::Sync | Op::Remount | Op::Compute { .. } | Op::Think { .. } => {}
        }
        locks.sort_unstable();
        locks.dedup();
    }

    pub fn check_name(name: &str) -> Result<(), FsError> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX { Err(FsError::BadName) } else { Ok(()) }
    }

    pub fn take_entry_id(&mut self) -> u32 {
        self.entry_ids_spare.pop().unwrap_or_else(|| {
            self.entry_ids += 1;
            self.entry_ids - 1
        })
    }

    pub fn give_entry_id(&mut self, id: u32) {
        if self.names_known.contains(id) {
            self.names_known.remove(id);
        }
        self.entry_ids_spare.push(id);
    }

    /// True where the name was in the name cache; it is from now on.
    pub fn know_name(&mut self, id: u32) -> bool {
        let limit = self.config.names_in_memory;
        know(&mut self.names_known, id, limit)
    }

    /// True where the inode was in memory; it is from now on.
    pub fn know_inode(&mut self, ino: Ino) -> bool {
        let place = self.inodes.place(ino).expect("the inode is in use");
        know(&mut self.inodes_known, place, self.config.inodes_in_memory)
    }

    pub fn forget_inode(&mut self, ino: Ino) {
        let place = self.inodes.place(ino).expect("the inode is in use");
        if self.inodes_known.contains(place) {
            self.inodes_known.remove(place);
        }
    }

    /// Drops all names and inodes from memory.
    pub fn forget(&mut self) {
        self.names_known.clear();
        self.inodes_known.clear();
    }

    pub fn open_files(&self) -> usize {
        self.inodes.iter().filter(|(_, inode)| inode.opens > 0).count()
    }
}

fn know(known: &mut Lru, number: u32, limit: u32) -> bool {
    if known.contains(number) {
        known.touch(number);
        return true;
    }
    known.push_newest(number);
    if known.len() > limit {
        let oldest = known.oldest().expect("the list is not empty");
        known.remove(oldest);
    }
    false
}
