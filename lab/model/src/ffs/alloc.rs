//! Allocates as FFS does: directories spread over the groups, files near their directory, a file's blocks in a row.
//!
//! After McKusick et al., "A Fast File System for UNIX" (1984), section 3.3, and 4.4BSD: a group that has nothing left is
//! followed by others at doubling distances, then by all in turn.

use super::bitmap::GroupMap;
use super::config::{BLOCK_FRAGMENTS, FfsConfig, Placement};
use super::layout::{Frag, GroupIndex, Ino, Layout};
use super::reserve::Windows;

#[derive(Clone)]
pub(crate) struct Allocator {
    pub layout: Layout,
    pub(super) windows: Windows,
    groups: Vec<GroupMap>,
    cluster_blocks: u32,
    /// A file leaves a group after so many blocks, so that it does not fill it (4.4BSD: what one indirect block holds).
    pub blocks_per_group_max: u32,
    placement: Placement,
    reserve_frags: u64,
    free_frags: u64,
    free_inodes: u64,
}

impl Allocator {
    pub fn new(layout: Layout, config: &FfsConfig) -> Allocator {
        let map = |index| {
            let blocks = layout.group_blocks(GroupIndex(index));
            GroupMap::new(blocks, layout.metadata_blocks, layout.inodes_per_group)
        };
        let mut groups: Vec<GroupMap> = (0..layout.groups).map(map).collect();
        // Inodes 0 and 1 are never used, as in FFS.
        groups[0].claim_inode(0, false);
        groups[0].claim_inode(1, false);
        let free = |map: &GroupMap| u64::from(map.free_blocks * BLOCK_FRAGMENTS);
        let free_frags = groups.iter().map(free).sum::<u64>();
        let free_inodes = groups.iter().map(|map| u64::from(map.free_inodes)).sum();
        Allocator {
            groups,
            cluster_blocks: config.cluster_blocks(),
            blocks_per_group_max: config.block_bytes / 4,
            placement: config.placement,
            reserve_frags: free_frags * u64::from(config.reserve_percent) / 100,
            free_frags,
            free_inodes,
            windows: Windows::default(),
            layout,
        }
    }

    /// True where so much can be taken without touching the reserve, all of it in whole blocks: with a small reserve, what is
    /// free in the end is fragments.
    pub fn has_room(&self, frags: u64, inodes: u64) -> bool {
        let mut whole = 0;
        let mut groups = self.groups.iter();
        while whole < frags
            && let Some(group) = groups.next()
        {
            whole += u64::from(group.free_blocks * BLOCK_FRAGMENTS);
        }
        self.free_frags >= frags + self.reserve_frags && whole >= frags && self.free_inodes >= inodes
    }

    #[cfg(test)]
    pub fn free_frags(&self) -> u64 {
        self.free_frags
    }

    pub fn map(&self, group: GroupIndex) -> &GroupMap {
        &self.groups[group.0 as usize]
    }

    /// The preferred group, then others at doubling distances, then all in turn.
    fn by_preference<T>(
        &mut self,
        preferred: GroupIndex,
        mut attempt: impl FnMut(&mut Allocator, GroupIndex) -> Option<T>,
    ) -> Option<T> {
        let count = self.layout.groups;
        if let Some(found) = attempt(self, preferred) {
            return Some(found);
        }
        let (mut distance, mut group) = (1, preferred.0);
        while distance < count {
            group = (group + distance) % count;
            if let Some(found) = attempt(self, GroupIndex(group)) {
                return Some(found);
            }
            distance *= 2;
        }
        (2..=count).find_map(|step| attempt(self, GroupIndex((preferred.0 + step) % count)))
    }

    /// A block at `preferred` if that is free; `in_file` says that it continues a file, which is then kept together.
    pub fn take_block(&mut self, preferred: Frag, in_file: bool) -> Option<Frag> {
        let wanted = self.layout.group_of(Frag(preferred.0.min(self.layout.frags() - 1)));
        let cluster = if in_file { self.cluster_blocks } else { 1 };
        let at = self.by_preference(wanted, |this, group| {
            let first = this.layout.first_frag(group);
            let map = &this.groups[group.0 as usize];
            let from = if group == wanted { (preferred.0 - first.0) / BLOCK_FRAGMENTS } else { 0 };
            if map.is_block_free(from) {
                return Some(first.plus(from * BLOCK_FRAGMENTS));
            }
            let from = if from >= this.layout.group_blocks(group) { 0 } else { from };
            let row = if cluster > 1 { map.find_blocks(from, cluster) } else { None };
            let block = row.or_else(|| map.find_block(from))?;
            Some(first.plus(block * BLOCK_FRAGMENTS))
        })?;
        self.take(at, BLOCK_FRAGMENTS);
        Some(at)
    }

    /// Fewer fragments than a block has: from a block that is partly in use, or from a new one.
    pub fn take_frags(&mut self, preferred: Frag, count: u32) -> Option<Frag> {
        let wanted = self.layout.group_of(Frag(preferred.0.min(self.layout.frags() - 1)));
        let at = self.by_preference(wanted, |this, group| {
            let first = this.layout.first_frag(group);
            let map = &this.groups[group.0 as usize];
            let from = if group == wanted { (preferred.0 - first.0) / BLOCK_FRAGMENTS } else { 0 };
            let whole = || map.find_block(from).map(|block| block * BLOCK_FRAGMENTS);
            Some(first.plus(map.find_frags(from, count).or_else(whole)?))
        })?;
        self.take(at, count);
        Some(at)
    }

    /// Lengthens fragments where they are, if what follows them is free.
    pub fn extend(&mut self, at: Frag, from: u32, to: u32) -> bool {
        let group = self.layout.group_of(at);
        let inside = at.0 - self.layout.first_frag(group).0;
        if inside % BLOCK_FRAGMENTS + to > BLOCK_FRAGMENTS
            || !self.groups[group.0 as usize].can_take(inside + from, to - from)
        {
            return false;
        }
        self.take(at.plus(from), to - from);
        true
    }

    pub(super) fn take(&mut self, at: Frag, count: u32) {
        let group = self.layout.group_of(at);
        let inside = at.0 - self.layout.first_frag(group).0;
        self.groups[group.0 as usize].take(inside, count);
        self.free_frags -= u64::from(count);
    }

    /// Gives back any number of fragments in a row.
    pub fn give(&mut self, at: Frag, count: u32) {
        let (mut next, end) = (at.0, at.0 + count);
        while next < end {
            let block_end = (next / BLOCK_FRAGMENTS + 1) * BLOCK_FRAGMENTS;
            let part = block_end.min(end) - next;
            let group = self.layout.group_of(Frag(next));
            self.groups[group.0 as usize].give(next - self.layout.first_frag(group).0, part);
            self.free_frags += u64::from(part);
            next += part;
        }
    }

    /// A new file's inode in its directory's group; a new directory's where the placement has it.
    pub fn take_inode(&mut self, directory: Ino, is_directory: bool) -> Option<Ino> {
        let home = self.layout.group_of_inode(directory);
        let stays = self.placement == Placement::Ext3 && directory != Ino::ROOT;
        let preferred = match is_directory {
            true if stays => self.group_near(home).unwrap_or_else(|| self.directory_group()),
            true => self.directory_group(),
            false if self.placement == Placement::Ext3 => self.file_group(directory),
            false => home,
        };
        let in_turn = self.placement == Placement::Bsd;
        let ino = self.by_preference(preferred, |this, group| {
            let index = this.groups[group.0 as usize].take_inode(is_directory, in_turn)?;
            Some(Ino(group.0 * this.layout.inodes_per_group + index))
        })?;
        self.free_inodes -= 1;
        Some(ino)
    }

    pub fn claim_root(&mut self) {
        self.groups[0].claim_inode(Ino::ROOT.0, true);
        self.free_inodes -= 1;
    }

    pub fn give_inode(&mut self, ino: Ino, is_directory: bool) {
        let index = ino.0 % self.layout.inodes_per_group;
        let group = self.layout.group_of_inode(ino);
        self.groups[group.0 as usize].give_inode(index, is_directory);
        self.free_inodes += 1;
    }

    #[cfg(test)]
    pub fn is_inode_free(&self, ino: Ino) -> bool {
        self.map(self.layout.group_of_inode(ino)).is_inode_free(ino.0 % self.layout.inodes_per_group)
    }

    /// The first group from a directory's own on that has room for another directory beside it: not more directories than a
    /// sixteenth of a group's inodes above the mean, and at most a quarter of a group's inodes and space below it.
    fn group_near(&self, home: GroupIndex) -> Option<GroupIndex> {
        let groups = self.layout.groups;
        let mean = |sum: u64| sum / u64::from(groups);
        let inodes = u64::from(self.layout.inodes_per_group);
        let directories = self.groups.iter().map(|map| u64::from(map.directories)).sum();
        let directories_max = mean(directories) + inodes / 16;
        let inodes_min = mean(self.free_inodes).saturating_sub(inodes / 4);
        let frags_min = mean(self.free_frags).saturating_sub(u64::from(self.layout.group_frags) / 4);
        let has_room = |group: &u32| {
            let map = &self.groups[*group as usize];
            u64::from(map.directories) < directories_max
                && u64::from(map.free_inodes) >= inodes_min.max(1)
                && u64::from(map.free_blocks * BLOCK_FRAGMENTS) >= frags_min
        };
        (0..groups).map(|step| (home.0 + step) % groups).find(has_room).map(GroupIndex)
    }

    /// Returns the group in which ext3 puts a file of a directory: the directory's, if that has a block and an inode; otherwise one that
    /// depends on the directory, so that its files stay together.
    fn file_group(&self, directory: Ino) -> GroupIndex {
        let count = self.layout.groups;
        let home = self.layout.group_of_inode(directory);
        let has_room =
            |group: &GroupIndex| self.map(*group).free_blocks > 0 && self.map(*group).free_inodes > 0;
        let doubling = std::iter::successors(Some(1), |step| Some(2 * step)).take_while(|step| *step < count);
        let other = doubling.scan((home.0 + directory.0) % count, |group, step| {
            *group = (*group + step) % count;
            Some(GroupIndex(*group))
        });
        std::iter::once(home).chain(other).find(has_room).unwrap_or(home)
    }

    /// A group with few directories, and more free inodes than most; with ext3's placement also with more free blocks.
    fn directory_group(&self) -> GroupIndex {
        let mean = self.free_inodes / u64::from(self.layout.groups);
        let mean_blocks = self.groups.iter().map(|map| u64::from(map.free_blocks)).sum::<u64>()
            / u64::from(self.layout.groups);
        let blocks_min = if self.placement == Placement::Ext3 { mean_blocks } else { 0 };
        let eligible = self.groups.iter().enumerate().filter(|(_, map)| {
            u64::from(map.free_inodes) >= mean && u64::from(map.free_blocks) >= blocks_min
        });
        let fewest = eligible.min_by_key(|(_, map)| map.directories);
        GroupIndex(fewest.map_or(0, |(index, _)| index as u32))
    }

    /// Returns the place of a file that has had its share of a group: the next group with more space than most.
    pub fn next_section(&self, after: GroupIndex) -> Frag {
        let mean = self.free_frags / u64::from(self.layout.groups);
        let count = self.layout.groups;
        let roomy = |group: &u32| {
            let map = &self.groups[*group as usize];
            u64::from(map.free_blocks * BLOCK_FRAGMENTS + map.free_frags) >= mean
        };
        let group = (1..=count).map(|step| (after.0 + step) % count).find(roomy).unwrap_or(after.0);
        self.layout.first_data(GroupIndex(group))
    }

    /// Panics where the counts disagree.
    #[cfg(test)]
    pub fn check(&self) {
        let free = |map: &GroupMap| u64::from(map.free_blocks * BLOCK_FRAGMENTS + map.free_frags);
        self.groups.iter().for_each(GroupMap::check);
        assert_eq!(self.free_frags, self.groups.iter().map(free).sum::<u64>());
        let inodes = self.groups.iter().map(|map| u64::from(map.free_inodes)).sum::<u64>();
        assert_eq!(self.free_inodes, inodes);
    }
}
