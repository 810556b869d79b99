//! Plans for the name space: create, open, close, unlink, mkdir, rmdir, rename, readdir, stat.

use super::super::buffers::Content;
use super::super::config::DIRECTORY_CHUNK;
use super::super::directory::Directory;
use super::super::layout::Ino;
use super::super::op::{Done, FsError};
use super::super::record::{Effect, name_hash};
use super::super::volume::{Resolved, Volume};
use super::{Planner, Step, Update, WriteMode};

impl Planner<'_> {
    /// A name that may be used for something new.
    fn walk_to_new<'p>(&mut self, path: &'p str) -> Result<Resolved<'p>, FsError> {
        let resolved = self.walk(path)?;
        if resolved.target.is_some() {
            return Err(FsError::Exists);
        }
        Volume::check_name(resolved.name)?;
        // Room for what is made, and for its directory to grow.
        self.require_room(2)?;
        if self.volume.allocator.has_room(0, 1) { Ok(resolved) } else { Err(FsError::NoSpace) }
    }

    fn walk_to_old<'p>(&mut self, path: &'p str) -> Result<(Resolved<'p>, Ino), FsError> {
        let resolved = self.walk(path)?;
        let target = resolved.target.ok_or(FsError::NotFound)?;
        self.need_inode(target);
        Ok((resolved, target))
    }

    fn new_inode(&mut self, parent: Ino, directory: Option<Box<Directory>>) -> Ino {
        let taken = self.volume.allocator.take_inode(parent, directory.is_some());
        let ino = taken.expect("there was room before the call began");
        self.volume.inodes.insert(ino, directory);
        self.volume.know_inode(ino);
        self.put_maps(self.volume.allocator.layout.group_of_inode(ino));
        ino
    }

    fn inode_effect(&self, ino: Ino) -> Effect {
        Effect::Inode { ino, generation: Some(self.volume.inodes.get(ino).generation) }
    }

    pub(super) fn create(&mut self, path: &str) -> Result<Done, FsError> {
        let Resolved { parent, name, .. } = self.walk_to_new(path)?;
        let ino = self.new_inode(parent, None);
        let inode = self.volume.inodes.get_mut(ino);
        inode.links = 1;
        inode.opens = 1;
        self.put_inode(ino, WriteMode::Ordered, self.inode_effect(ino));
        self.enter(parent, name, ino);
        Ok(Done::Opened(ino))
    }

    /// Puts a name into a directory and waits for it.
    fn enter(&mut self, directory: Ino, name: &str, ino: Ino) {
        let id = self.volume.take_entry_id();
        self.volume.know_name(id);
        let listed = self.volume.directory_mut(directory);
        let before = listed.bytes();
        let chunk = listed.insert(name, ino, id);
        let after = listed.bytes();
        let effect = self.entry_effect(directory, name, Some(ino));
        if after == before {
            self.put_entry(directory, chunk, false, effect);
            self.put_inode(directory, WriteMode::Delayed, Effect::None);
            return;
        }
        self.resize(directory, after, Content::Directory);
        let block = (after - 1) / self.volume.shape.block_bytes;
        let fresh = self.need_block(directory, block as u32, Content::Directory);
        self.put_entry(directory, chunk, fresh, effect);
        self.put_inode(directory, WriteMode::Ordered, Effect::None);
    }

    fn entry_effect(&self, directory: Ino, name: &str, to: Option<Ino>) -> Effect {
        let to = to.map(|ino| (ino, self.volume.inodes.get(ino).generation));
        Effect::Entry { directory, name: name_hash(name), to }
    }

    /// Writes the block with a chunk of a directory, and waits.
    fn put_entry(&mut self, directory: Ino, chunk: u32, fills: bool, effect: Effect) {
        let shape = self.volume.shape;
        let block = (u64::from(chunk) * u64::from(DIRECTORY_CHUNK) / shape.block_bytes) as u32;
        let inode = self.volume.inodes.get(directory);
        let (at, frags) = (inode.blocks[block as usize], inode.frags_of(block, &shape));
        let mode = WriteMode::Ordered;
        self.update(Update { at, frags, content: Content::Directory, owner: directory, fills, mode, effect });
    }

    /// Takes a name out of a directory and waits for it.
    fn leave(&mut self, directory: Ino, name: &str) {
        let entry = self.volume.directory_mut(directory).remove(name);
        self.volume.give_entry_id(entry.id);
        let effect = self.entry_effect(directory, name, None);
        self.put_entry(directory, entry.chunk, false, effect);
    }

    pub(super) fn open(&mut self, path: &str) -> Result<Done, FsError> {
        let (_, target) = self.walk_to_old(path)?;
        let inode = self.volume.inodes.get_mut(target);
        if inode.is_directory() {
            return Err(FsError::IsADirectory);
        }
        inode.opens += 1;
        // A new reader begins at the front.
        inode.next_read = 0;
        inode.window = 1;
        inode.ahead = 0;
        Ok(Done::Opened(target))
    }

    pub(super) fn close(&mut self, file: Ino) -> Result<Done, FsError> {
        let inode = self.volume.inodes.find(file).filter(|inode| inode.opens > 0);
        let (links, is_dirty) = inode.map(|inode| (inode.links, inode.is_dirty)).ok_or(FsError::NotOpen)?;
        let inode = self.volume.inodes.get_mut(file);
        inode.opens -= 1;
        if inode.opens == 0 {
            self.volume.allocator.forget_window(file);
            if self.volume.config.push_at_close && links > 0 {
                self.push_blocks(file);
            }
        }
        let inode = self.volume.inodes.get(file);
        if inode.opens == 0 && links == 0 {
            self.free_inode(file);
        } else if inode.opens == 0 && is_dirty {
            self.put_inode(file, WriteMode::Delayed, Effect::None);
        }
        Ok(Done::Nothing)
    }

    /// Whole blocks only: the end of a file that lies in fragments is left to the update daemon, unless it lies behind them.
    fn push_blocks(&mut self, file: Ino) {
        let inode = self.volume.inodes.get(file);
        let whole = (inode.bytes / self.volume.shape.block_bytes) as usize;
        let blocks = inode.blocks.iter().take(whole).filter(|at| !at.is_none());
        self.steps.extend(blocks.map(|at| Step::PushCluster { at: *at }));
    }

    pub(super) fn unlink(&mut self, path: &str) -> Result<Done, FsError> {
        let (Resolved { parent, name, .. }, target) = self.walk_to_old(path)?;
        if self.volume.inodes.get(target).is_directory() {
            return Err(FsError::IsADirectory);
        }
        self.leave(parent, name);
        self.put_inode(parent, WriteMode::Delayed, Effect::None);
        self.drop_link(target);
        Ok(Done::Nothing)
    }

    fn drop_link(&mut self, ino: Ino) {
        let inode = self.volume.inodes.get_mut(ino);
        inode.links -= 1;
        if inode.links == 0 && inode.opens == 0 {
            self.free_inode(ino);
        } else {
            self.put_inode(ino, WriteMode::Delayed, Effect::None);
        }
    }

    pub(super) fn mkdir(&mut self, path: &str) -> Result<Done, FsError> {
        let Resolved { parent, name, .. } = self.walk_to_new(path)?;
        let ino = self.new_inode(parent, Some(Box::new(Directory::new(parent))));
        self.volume.inodes.get_mut(ino).links = 2;
        self.put_inode(ino, WriteMode::Ordered, self.inode_effect(ino));
        self.volume.inodes.get_mut(parent).links += 1;
        self.put_inode(parent, WriteMode::Ordered, Effect::None);
        self.resize(ino, u64::from(DIRECTORY_CHUNK), Content::Directory);
        self.need_block(ino, 0, Content::Directory);
        self.put_entry(ino, 0, true, Effect::None);
        self.put_inode(ino, WriteMode::Ordered, Effect::None);
        self.enter(parent, name, ino);
        Ok(Done::Nothing)
    }

    pub(super) fn rmdir(&mut self, path: &str) -> Result<Done, FsError> {
        let (Resolved { parent, name, .. }, target) = self.walk_to_old(path)?;
        let names = self.volume.directory(target)?.len();
        if target == Ino::ROOT {
            return Err(FsError::Busy);
        }
        self.scan_all(target);
        if names > 0 {
            return Err(FsError::NotEmpty);
        }
        self.leave(parent, name);
        self.volume.inodes.get_mut(parent).links -= 1;
        self.put_inode(parent, WriteMode::Delayed, Effect::None);
        self.volume.inodes.get_mut(target).links = 0;
        self.free_inode(target);
        Ok(Done::Nothing)
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) -> Result<Done, FsError> {
        let (source, ino) = self.walk_to_old(from)?;
        let goal = self.walk(to)?;
        if goal.target == Some(ino) {
            return Ok(Done::Nothing);
        }
        Volume::check_name(goal.name)?;
        let is_directory = self.volume.inodes.get(ino).is_directory();
        if is_directory && (goal.target.is_some() || self.is_inside(goal.parent, ino)) {
            return Err(FsError::Exists);
        }
        if goal.target.is_some_and(|target| self.volume.inodes.get(target).is_directory()) {
            return Err(FsError::IsADirectory);
        }
        self.require_room(1)?;
        self.volume.inodes.get_mut(ino).links += 1;
        self.put_inode(ino, WriteMode::Ordered, Effect::None);
        match goal.target {
            None => self.enter(goal.parent, goal.name, ino),
            Some(target) => {
                let entry = self.volume.directory_mut(goal.parent).replace(goal.name, ino);
                let effect = self.entry_effect(goal.parent, goal.name, Some(ino));
                self.put_entry(goal.parent, entry.chunk, false, effect);
                self.need_inode(target);
                self.drop_link(target);
            }
        }
        if is_directory && source.parent != goal.parent {
            self.change_parent(ino, source.parent, goal.parent);
        }
        self.leave(source.parent, source.name);
        self.put_inode(source.parent, WriteMode::Delayed, Effect::None);
        self.volume.inodes.get_mut(ino).links -= 1;
        self.put_inode(ino, WriteMode::Delayed, Effect::None);
        Ok(Done::Nothing)
    }

    /// A directory's `..` leads elsewhere.
    fn change_parent(&mut self, ino: Ino, from: Ino, to: Ino) {
        self.volume.inodes.get_mut(to).links += 1;
        self.put_inode(to, WriteMode::Ordered, Effect::None);
        self.volume.directory_mut(ino).parent = to;
        self.put_entry(ino, 0, false, Effect::None);
        self.volume.inodes.get_mut(from).links -= 1;
    }

    fn is_inside(&self, mut directory: Ino, outer: Ino) -> bool {
        while directory != outer && directory != Ino::ROOT {
            directory = self.volume.directory(directory).expect("parents are directories").parent;
        }
        directory == outer
    }

    fn scan_all(&mut self, directory: Ino) -> u64 {
        let listed = self.volume.directory(directory).expect("it was found to be a directory");
        let names = listed.len() as u64;
        let left = listed.bytes().div_ceil(self.volume.shape.block_bytes) as u32;
        self.scan(directory, 0, left);
        names
    }

    pub(super) fn readdir(&mut self, path: &str) -> Result<Done, FsError> {
        let (_, target) = self.walk_to_old(path)?;
        self.volume.directory(target)?;
        let names = self.scan_all(target);
        self.copy(self.volume.inodes.get(target).bytes);
        // The time of access.
        self.put_inode(target, WriteMode::Delayed, Effect::None);
        Ok(Done::Names(names))
    }

    pub(super) fn stat(&mut self, path: &str) -> Result<Done, FsError> {
        let (_, target) = self.walk_to_old(path)?;
        let inode = self.volume.inodes.get(target);
        Ok(Done::Stat { bytes: inode.bytes, links: inode.links })
    }
}
