//! Plans for what files hold: reading, writing, growing by fragments, indirect blocks, and giving it all back.

use super::super::buffers::Content;
use super::super::config::{BLOCK_FRAGMENTS, Placement};
use super::super::layout::{Frag, Ino};
use super::super::op::{Done, FsError};
use super::super::record::Effect;
use super::{Planner, Step, Update, WriteMode};

impl Planner<'_> {
    fn open_file(&self, file: Ino) -> Result<(), FsError> {
        let open = self.volume.inodes.find(file).is_some_and(|inode| inode.opens > 0);
        if open { Ok(()) } else { Err(FsError::NotOpen) }
    }

    pub(super) fn read(&mut self, file: Ino, offset: u64, bytes: u64) -> Result<Done, FsError> {
        self.open_file(file)?;
        let shape = self.volume.shape;
        let inode = self.volume.inodes.get_mut(file);
        let bytes = inode.bytes.saturating_sub(offset).min(bytes);
        if bytes > 0 {
            // The time of access.
            inode.is_dirty = true;
            let next = (offset / shape.block_bytes) as u32;
            let last = ((offset + bytes - 1) / shape.block_bytes) as u32;
            self.steps.push(Step::ReadFile { file, next, last });
            self.copy(bytes);
        }
        Ok(Done::Bytes(bytes))
    }

    pub(super) fn write(&mut self, file: Ino, offset: u64, bytes: u64) -> Result<Done, FsError> {
        self.open_file(file)?;
        if bytes == 0 {
            return Ok(Done::Bytes(0));
        }
        let shape = self.volume.shape;
        let end = offset + bytes;
        if end.div_ceil(shape.block_bytes) > shape.blocks_max() {
            return Err(FsError::TooLarge);
        }
        let (first, last) = ((offset / shape.block_bytes) as u32, ((end - 1) / shape.block_bytes) as u32);
        self.require_room(last - first + 1)?;
        let size = self.resize(file, end, Content::Data);
        for block in first..=last {
            let fresh = self.need_block(file, block, Content::Data);
            let start = u64::from(block) * shape.block_bytes;
            let valid = (start + shape.block_bytes).min(size);
            let fills = fresh || (start >= offset && valid <= end);
            self.put_data(file, block, fills);
            let completes = valid == start + shape.block_bytes && valid <= end;
            let cluster = self.volume.config.cluster_blocks();
            if completes && (block + 1).is_multiple_of(cluster) {
                let at = self.volume.inodes.get(file).blocks[block as usize];
                self.steps.push(Step::PushCluster { at });
            }
        }
        self.volume.inodes.get_mut(file).is_dirty = true;
        self.copy(bytes);
        Ok(Done::Bytes(bytes))
    }

    /// Room for so many new blocks, the blocks of addresses above them, and one that is moved to grow.
    pub(super) fn require_room(&self, blocks: u32) -> Result<(), FsError> {
        let indirect = 3 + blocks / self.volume.shape.addresses;
        let frags = u64::from(blocks + indirect + 1) * u64::from(BLOCK_FRAGMENTS);
        if self.volume.allocator.has_room(frags, 0) { Ok(()) } else { Err(FsError::NoSpace) }
    }

    fn put_data(&mut self, file: Ino, block: u32, fills: bool) {
        let inode = self.volume.inodes.get(file);
        let (at, frags) = (inode.blocks[block as usize], inode.frags_of(block, &self.volume.shape));
        self.update(Update {
            at,
            frags,
            content: Content::Data,
            owner: file,
            fills,
            mode: WriteMode::Delayed,
            effect: Effect::None,
        });
    }

    /// Lets a file have at least `end` bytes; its last block grows by fragments. Gives the size.
    pub(super) fn resize(&mut self, file: Ino, end: u64, content: Content) -> u64 {
        let shape = self.volume.shape;
        let inode = self.volume.inodes.get_mut(file);
        if end <= inode.bytes {
            return inode.bytes;
        }
        let before = std::mem::replace(&mut inode.bytes, end);
        inode.is_dirty = true;
        if let Some(last) = (inode.blocks.len() as u32).checked_sub(1) {
            let (have, need) = (shape.frags_of(before, last), shape.frags_of(end, last));
            if need > have && !inode.blocks[last as usize].is_none() {
                self.grow_block(file, last, have, need, content);
            }
        }
        end
    }

    fn grow_block(&mut self, owner: Ino, block: u32, from_frags: u32, to_frags: u32, content: Content) {
        let from = self.volume.inodes.get(owner).blocks[block as usize];
        if self.volume.allocator.extend(from, from_frags, to_frags) {
            self.steps.push(Step::Grow { at: from, from: from_frags, to: to_frags, content, owner });
            self.put_maps_of(from);
            return;
        }
        let preferred = self.preferred(owner, block);
        // 4.4BSD's preference for time: a whole block is taken, so that the next fragments need no move.
        let whole = self.volume.allocator.take_block(preferred, block > 0);
        let to = match whole {
            Some(to) => {
                self.volume.allocator.give(to.plus(to_frags), BLOCK_FRAGMENTS - to_frags);
                to
            }
            None => self.volume.allocator.take_frags(preferred, to_frags).expect("the reserve holds it"),
        };
        self.volume.inodes.get_mut(owner).blocks[block as usize] = to;
        self.steps.push(Step::Move { from, from_frags, to, to_frags, content, owner });
        self.steps.push(Step::Release { at: from, frags: from_frags });
        self.put_maps_of(to);
        self.put_maps_of(from);
    }

    /// Returns the place where ext3 puts a block: behind the one before it, if that is the file's last; near the nearest one before it
    /// to which the inode or the same block of addresses points; near that block; or near the inode.
    fn goal(&self, file: Ino, block: u32) -> Frag {
        let (shape, allocator) = (&self.volume.shape, &self.volume.allocator);
        if let Some(at) = allocator.after_last(file, block) {
            return at;
        }
        let inode = self.volume.inodes.get(file);
        let indirect = shape.indirects_of(block).last();
        let indirect = indirect.and_then(|index| inode.indirects.get(index)).filter(|at| !at.is_none());
        let first = match (indirect, block.checked_sub(shape.direct_blocks)) {
            (Some(_), Some(index)) => block - index % shape.addresses,
            (None, Some(_)) => return self.goal(file, shape.direct_blocks - 1),
            _ => 0,
        };
        let before = inode.blocks[first as usize..block as usize].iter().rev().find(|at| !at.is_none());
        let near = before.or(indirect).copied();
        near.unwrap_or_else(|| allocator.coloured(file, self.process.0))
    }

    /// Returns the best place of a block: behind the one before it; the first near its inode; a new stretch where there is room.
    fn preferred(&self, file: Ino, block: u32) -> Frag {
        let volume = &*self.volume;
        if volume.config.placement == Placement::Ext3 {
            return self.goal(file, block);
        }
        let (shape, allocator) = (&volume.shape, &volume.allocator);
        let inode = volume.inodes.get(file);
        let home = allocator.layout.group_of_inode(file);
        let before = block.checked_sub(1).map(|before| inode.blocks[before as usize]);
        let Some(before) = before.filter(|before| !before.is_none()) else {
            return allocator.layout.first_data(home);
        };
        let starts_section = block >= shape.direct_blocks
            && ((block - shape.direct_blocks).is_multiple_of(shape.addresses)
                || block.is_multiple_of(allocator.blocks_per_group_max));
        if starts_section {
            return allocator.next_section(allocator.layout.group_of(before));
        }
        before.plus(BLOCK_FRAGMENTS)
    }

    /// Allocates a block of a file where it has none; true where it did.
    pub(super) fn need_block(&mut self, file: Ino, block: u32, content: Content) -> bool {
        let inode = self.volume.inodes.get_mut(file);
        let index = block as usize;
        if inode.blocks.len() <= index {
            inode.blocks.resize(index + 1, Frag::NONE);
        }
        if !inode.blocks[index].is_none() {
            return false;
        }
        let frags = inode.frags_of(block, &self.volume.shape);
        let mut preferred = self.preferred(file, block);
        preferred = self.need_indirects(file, block, preferred);
        let ext3 = self.volume.config.placement == Placement::Ext3;
        let allocator = &mut self.volume.allocator;
        let taken = match frags {
            _ if ext3 => allocator.take_reserved(file, preferred, Some(block), content == Content::Directory),
            BLOCK_FRAGMENTS => allocator.take_block(preferred, block > 0),
            frags => allocator.take_frags(preferred, frags),
        };
        let at = taken.expect("there was room before the call began");
        self.volume.inodes.get_mut(file).blocks[index] = at;
        self.put_maps_of(at);
        debug_assert!(content == Content::Data || block < self.volume.shape.direct_blocks || frags == 8);
        true
    }

    /// The blocks of addresses that lead to `block`. New ones are written at once, so that an inode never points to
    /// garbage. Gives the place for the block itself.
    fn need_indirects(&mut self, file: Ino, block: u32, mut preferred: Frag) -> Frag {
        let mut leaf = None;
        for index in self.volume.shape.indirects_of(block) {
            let inode = self.volume.inodes.get_mut(file);
            if inode.indirects.len() <= index {
                inode.indirects.resize(index + 1, Frag::NONE);
            }
            if inode.indirects[index].is_none() {
                let is_directory = self.volume.inodes.get(file).is_directory();
                let allocator = &mut self.volume.allocator;
                let taken = match self.volume.config.placement {
                    Placement::Bsd => allocator.take_block(preferred, false),
                    Placement::Ext3 => allocator.take_reserved(file, preferred, None, is_directory),
                };
                let at = taken.expect("there was room before the call began");
                self.volume.inodes.get_mut(file).indirects[index] = at;
                self.put_maps_of(at);
                self.put_indirect(file, at, true, WriteMode::Ordered);
                if let Some(above) = leaf {
                    self.put_indirect(file, above, false, WriteMode::Delayed);
                }
                preferred = at.plus(BLOCK_FRAGMENTS);
            }
            leaf = Some(self.volume.inodes.get(file).indirects[index]);
        }
        if let Some(leaf) = leaf {
            self.put_indirect(file, leaf, false, WriteMode::Delayed);
        }
        preferred
    }

    fn put_indirect(&mut self, owner: Ino, at: Frag, fills: bool, mode: WriteMode) {
        let content = Content::Indirect;
        let effect = Effect::None;
        self.update(Update { at, frags: BLOCK_FRAGMENTS, content, owner, fills, mode, effect });
    }

    /// Frees an inode that nothing leads to any more, with everything that it holds. The inode is written first, so that
    /// what it held is not used by another before the disk knows.
    pub(super) fn free_inode(&mut self, ino: Ino) {
        self.put_inode(ino, WriteMode::Ordered, Effect::None);
        self.volume.forget_inode(ino);
        let inode = self.volume.inodes.remove(ino);
        for at in inode.indirects.iter().filter(|at| !at.is_none()) {
            let (content, frags) = (Content::Indirect, BLOCK_FRAGMENTS);
            self.steps.push(Step::Read { at: *at, frags, content, owner: ino });
        }
        let shape = self.volume.shape;
        let sized = |(block, at): (usize, &Frag)| (*at, shape.frags_of(inode.bytes, block as u32));
        let data = inode.blocks.iter().enumerate().map(sized);
        let indirect = inode.indirects.iter().map(|at| (*at, BLOCK_FRAGMENTS));
        let mut run: Option<(Frag, u32)> = None;
        let mut runs = Vec::new();
        for (at, frags) in data.chain(indirect).filter(|(at, _)| !at.is_none()) {
            match &mut run {
                Some((start, length)) if start.plus(*length) == at => *length += frags,
                _ => runs.extend(run.replace((at, frags))),
            }
        }
        runs.extend(run);
        let layout = &self.volume.allocator.layout;
        let mut groups: Vec<_> = runs.iter().map(|(at, _)| layout.group_of(*at)).collect();
        groups.push(layout.group_of_inode(ino));
        groups.sort_unstable();
        groups.dedup();
        self.steps.extend(runs.iter().map(|(at, frags)| Step::Release { at: *at, frags: *frags }));
        self.steps.push(Step::ReleaseInode { ino, is_directory: inode.is_directory() });
        for group in groups {
            self.put_maps(group);
        }
        self.put_inode(ino, WriteMode::Delayed, Effect::Inode { ino, generation: None });
    }

    pub(super) fn fsync(&mut self, file: Ino) -> Result<Done, FsError> {
        self.open_file(file)?;
        self.steps.extend([Step::WriteFile { file }, Step::WaitFile { file }]);
        self.put_inode(file, WriteMode::Sync, Effect::None);
        self.steps.push(Step::FlushDevice);
        Ok(Done::Nothing)
    }
}
