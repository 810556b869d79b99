//! A call becomes a list of steps: which blocks are read, changed, and written at once or later, in which order.
//!
//! The file system's state changes when the call is planned; the steps are carried out over time. Two things wait for
//! their step, as another call could use them too early: fragments and inodes that are given back. The inodes that a
//! call touches are its own until it ends (4.4BSD's vnode locks), so no other call can plan on what is half done.
//!
//! What makes a crash harmless in FFS is the order of the synchronous writes:
//!
//! | call           | writes, each waited for                                                   |
//! |----------------|---------------------------------------------------------------------------|
//! | create         | the new inode, then the directory entry                                   |
//! | mkdir          | the new inode, the parent's (one link more), the new block, then the entry |
//! | unlink         | the directory entry, then the inode without its blocks                    |
//! | rmdir          | the same                                                                  |
//! | rename         | the inode (one link more), the new entry, then the old entry              |
//! | a larger directory | the entry in its new fragment, then the directory's inode             |
//! | a new indirect block | the block of addresses, empty                                       |
//!
//! Bitmaps, sizes, times and link counts that fell are written later.

mod data;
mod names;

use dcd_engine::Nanos;

use super::buffers::Content;
use super::config::BLOCK_FRAGMENTS;
use super::layout::{Frag, GroupIndex, Ino};
use super::op::{Done, FsError, Op, ProcessId};
use super::record::Effect;
use super::volume::{Resolved, Volume, components};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteMode {
    /// The call waits for it (`bwrite`).
    Sync,
    /// The call waits for it, so that the disk always has names and inodes in order; later, where metadata is not synchronous.
    Ordered,
    /// The update daemon, a sync or lack of room writes it (`bdwrite`).
    Delayed,
}

/// A change of a block in the buffer cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Update {
    pub at: Frag,
    pub frags: u32,
    pub content: Content,
    pub owner: Ino,
    /// Everything in it is new, so it need not be read first.
    pub fills: bool,
    pub mode: WriteMode,
    pub effect: Effect,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Cpu(Nanos),
    Sleep(Nanos),
    /// A block of metadata is needed in memory.
    Read {
        at: Frag,
        frags: u32,
        content: Content,
        owner: Ino,
    },
    /// Blocks of a file are read in order.
    ReadFile {
        file: Ino,
        next: u32,
        last: u32,
    },
    Update(Update),
    /// A block gets more fragments where it is.
    Grow {
        at: Frag,
        from: u32,
        to: u32,
        content: Content,
        owner: Ino,
    },
    /// A block gets more fragments elsewhere.
    Move {
        from: Frag,
        from_frags: u32,
        to: Frag,
        to_frags: u32,
        content: Content,
        owner: Ino,
    },
    /// Fragments are free from now on, and what is cached of them is worth nothing.
    Release {
        at: Frag,
        frags: u32,
    },
    ReleaseInode {
        ino: Ino,
        is_directory: bool,
    },
    /// A cluster is complete: it is written now, and no call waits.
    PushCluster {
        at: Frag,
    },
    WriteFile {
        file: Ino,
    },
    WaitFile {
        file: Ino,
    },
    WriteAll,
    WaitAll,
    FlushDevice,
    Forget,
}

/// Plans one call.
pub(crate) struct Planner<'a> {
    pub volume: &'a mut Volume,
    pub steps: &'a mut Vec<Step>,
    /// Program that calls.
    process: ProcessId,
    cpu: Nanos,
}

impl<'a> Planner<'a> {
    pub fn new(volume: &'a mut Volume, steps: &'a mut Vec<Step>, process: ProcessId) -> Planner<'a> {
        Planner { volume, steps, process, cpu: Nanos::ZERO }
    }

    /// Changes the file system's state, and says what has to be done over time for it. A call that fails changes nothing.
    pub fn plan(&mut self, op: &Op) -> Result<Done, FsError> {
        let costs = self.volume.config.cpu;
        let result = match op {
            Op::Create { path } => self.create(path),
            Op::Open { path } => self.open(path),
            Op::Close { file } => self.close(*file),
            Op::Read { file, offset, bytes } => self.read(*file, *offset, *bytes),
            Op::Write { file, offset, bytes } => self.write(*file, *offset, *bytes),
            Op::Append { file, bytes } => {
                let end = self.volume.inodes.find(*file).map_or(0, |inode| inode.bytes);
                self.write(*file, end, *bytes)
            }
            Op::Unlink { path } => self.unlink(path),
            Op::Mkdir { path } => self.mkdir(path),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Rename { from, to } => self.rename(from, to),
            Op::Readdir { path } => self.readdir(path),
            Op::Stat { path } => self.stat(path),
            Op::Fsync { file } => self.fsync(*file),
            Op::Sync => self.sync(),
            Op::Remount => self.remount(),
            Op::Compute { time } => {
                self.steps.push(Step::Cpu(*time));
                return Ok(Done::Nothing);
            }
            Op::Think { time } => {
                self.steps.push(Step::Sleep(*time));
                return Ok(Done::Nothing);
            }
        };
        self.cpu += costs.system_call;
        if op.kind().changes_names() {
            self.cpu += costs.name_change;
        }
        self.steps.push(Step::Cpu(self.cpu));
        result
    }

    fn copy(&mut self, bytes: u64) {
        self.cpu += Nanos(self.volume.config.cpu.copy_per_kib.0 * bytes / 1024);
    }

    fn update(&mut self, update: Update) {
        self.steps.push(Step::Update(update));
    }

    /// Follows a path, searching directories that are not in the name cache; the last name may be missing.
    fn walk<'p>(&mut self, path: &'p str) -> Result<Resolved<'p>, FsError> {
        let mut names = components(path).peekable();
        let mut parent = Ino::ROOT;
        self.need_inode(parent);
        loop {
            let Some(name) = names.next() else {
                return Ok(Resolved { parent, name: "", target: Some(parent) });
            };
            let target = self.search(parent, name)?;
            if names.peek().is_none() {
                return Ok(Resolved { parent, name, target });
            }
            parent = target.ok_or(FsError::NotFound)?;
            self.need_inode(parent);
        }
    }

    fn search(&mut self, directory: Ino, name: &str) -> Result<Option<Ino>, FsError> {
        let block_bytes = u64::from(self.volume.config.block_bytes);
        let chunks_per_block = (block_bytes / u64::from(super::config::DIRECTORY_CHUNK)) as u32;
        let listed = self.volume.directory(directory)?;
        let entry = listed.find(name);
        let blocks = listed.bytes().div_ceil(block_bytes) as u32;
        let hint = listed.hint % blocks;
        if let Some(entry) = entry
            && self.volume.know_name(entry.id)
        {
            return Ok(Some(entry.ino));
        }
        let found = entry.map(|entry| entry.chunk / chunks_per_block);
        let left = found.map_or(blocks, |found| (found + blocks - hint) % blocks + 1);
        self.volume.directory_mut(directory).hint = found.unwrap_or(hint);
        self.scan(directory, hint, left);
        Ok(entry.map(|entry| entry.ino))
    }

    /// Searches `count` blocks of a directory from `next` on, going round. Their addresses are those of now: the call may yet
    /// move the last of them.
    fn scan(&mut self, directory: Ino, mut next: u32, count: u32) {
        self.cpu += Nanos(self.volume.config.cpu.directory_block.0 * u64::from(count));
        let inode = self.volume.inodes.get(directory);
        for _ in 0..count {
            let (at, frags) = (inode.blocks[next as usize], inode.frags_of(next, &self.volume.shape));
            self.steps.push(Step::Read { at, frags, content: Content::Directory, owner: directory });
            next = (next + 1) % inode.blocks.len() as u32;
        }
    }

    /// The inode is read, if it is not in memory.
    fn need_inode(&mut self, ino: Ino) {
        if !self.volume.know_inode(ino) {
            let at = self.volume.allocator.layout.inode_block(ino);
            let (content, owner) = (Content::Inodes, Ino::default());
            self.steps.push(Step::Read { at, frags: BLOCK_FRAGMENTS, content, owner });
        }
    }

    /// The inode goes into its block.
    fn put_inode(&mut self, ino: Ino, mode: WriteMode, effect: Effect) {
        if let Some(place) = self.volume.inodes.place(ino).map(|_| ino) {
            self.volume.inodes.get_mut(place).is_dirty = false;
        }
        self.update(Update {
            at: self.volume.allocator.layout.inode_block(ino),
            frags: BLOCK_FRAGMENTS,
            content: Content::Inodes,
            owner: Ino::default(),
            fills: false,
            mode,
            effect,
        });
    }

    /// The group's bitmaps have changed; they are written later.
    fn put_maps(&mut self, group: GroupIndex) {
        let layout = &self.volume.allocator.layout;
        let (at, frags) = (layout.group_block(group), layout.map_frags);
        let same = |step: &&Step| matches!(step, Step::Update(update) if update.at == at);
        if self.steps.iter().rev().take(4).any(|step| same(&step)) {
            return;
        }
        self.update(Update {
            at,
            frags,
            content: Content::Maps,
            owner: Ino::default(),
            fills: false,
            mode: WriteMode::Delayed,
            effect: Effect::None,
        });
    }

    fn put_maps_of(&mut self, at: Frag) {
        self.put_maps(self.volume.allocator.layout.group_of(at));
    }

    fn sync(&mut self) -> Result<Done, FsError> {
        self.put_dirty_inodes();
        self.steps.extend([Step::WriteAll, Step::WaitAll, Step::FlushDevice]);
        Ok(Done::Nothing)
    }

    fn remount(&mut self) -> Result<Done, FsError> {
        if self.volume.open_files() > 0 {
            return Err(FsError::Busy);
        }
        self.sync()?;
        self.steps.push(Step::Forget);
        Ok(Done::Nothing)
    }

    fn put_dirty_inodes(&mut self) {
        let dirty = self.volume.inodes.iter().filter(|(_, inode)| inode.is_dirty);
        let dirty: Vec<Ino> = dirty.map(|(ino, _)| ino).collect();
        for ino in dirty {
            self.put_inode(ino, WriteMode::Delayed, Effect::None);
        }
    }
}
