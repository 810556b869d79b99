//! Places blocks as ext3 does since Linux 2.6.10: each file that is open for writing has a window of blocks, kept in memory,
//! from which no other file takes any.
//!
//! | what                    | rule                                                                                 |
//! |-------------------------|--------------------------------------------------------------------------------------|
//! | goal                    | behind the block that the file got last, if that was the one before; else near the   |
//! |                         | nearest one before it; for a file's first the start of its inode's group, moved on by|
//! |                         | a sixteenth of a group for each of sixteen kinds of process ids                      |
//! | a window                | 8 blocks; twice as many as the last, up to 1024, where more than half was taken      |
//! | where it is put         | from the goal on, where no other window is; what of it is free is the file's         |
//! | a block of a window     | the goal; else the first free one up to a multiple of 64; else the first of a free   |
//! |                         | byte of the bitmap; else the first free one                                          |
//! | a directory, or no room | without a window, in the same order, and then up to seven blocks back                |
//! | the end                 | a file that no program has open any more has no window                               |

use std::collections::BTreeMap;

use super::alloc::Allocator;
use super::bitmap::GroupMap;
use super::config::BLOCK_FRAGMENTS;
use super::layout::{Frag, GroupIndex, Ino};

/// Blocks of a new window, and of the largest.
const WINDOW_BLOCKS: u32 = 8;
const WINDOW_BLOCKS_MAX: u32 = 1024;
/// Processes are told apart by their ids modulo this.
const COLOURS: u32 = 16;

/// Blocks of a file, by their numbers on the disk; none while `end` is `first`.
#[derive(Clone, Copy, Debug)]
struct Window {
    first: u32,
    end: u32,
    /// Length of the file's next window.
    size: u32,
    /// Number of its blocks that were taken.
    taken: u32,
    /// The block that the file got last, and which of its blocks that is.
    last: Option<(u32, Frag)>,
}

/// The windows of all files.
#[derive(Clone, Debug, Default)]
pub(super) struct Windows {
    files: BTreeMap<Ino, Window>,
    /// End of each window, by its first block.
    places: BTreeMap<u32, u32>,
}

impl Windows {
    /// The first place from `from` on, before `limit`, with so many blocks that are in no window.
    fn gap(&self, from: u32, limit: u32, size: u32) -> Option<u32> {
        let before = self.places.range(..from).next_back().map_or(0, |(_, end)| *end);
        let mut at = from.max(before);
        for (first, end) in self.places.range(from..) {
            if at >= limit || at + size <= *first {
                break;
            }
            at = at.max(*end);
        }
        (at < limit).then_some(at)
    }

    fn remove(&mut self, file: Ino) {
        let window = self.files.get_mut(&file).expect("the file has one");
        if window.end > window.first {
            self.places.remove(&window.first);
            window.end = window.first;
        }
    }

    fn place(&mut self, file: Ino, first: u32, size: u32) {
        self.remove(file);
        let window = self.files.get_mut(&file).expect("the file has one");
        (window.first, window.end, window.size, window.taken) = (first, first + size, size, 0);
        self.places.insert(first, first + size);
    }
}

/// A search in one group: what the window leaves of it, and where to begin.
struct Range {
    first: u32,
    end: u32,
    goal: Option<u32>,
}

fn search(map: &GroupMap, range: &Range, windowed: bool) -> Option<u32> {
    let goal = range.goal.filter(|goal| (range.first..range.end).contains(goal));
    if let Some(goal) = goal.filter(|goal| map.is_block_free(*goal)) {
        return Some(goal);
    }
    let start = goal.unwrap_or(range.first);
    let near = (start.next_multiple_of(64)).min(range.end);
    let found = (if start > 0 { map.first_free(start, near) } else { None })
        .or_else(|| map.first_free_byte(start, range.end))
        .or_else(|| map.first_free(start, range.end))?;
    let back = |at: &u32| !windowed && *at > start && map.is_block_free(*at - 1);
    Some((0..7).fold(found, |at, _| if back(&at) { at - 1 } else { at }))
}

impl Allocator {
    /// Drops the window of a file that no program has open any more.
    pub fn forget_window(&mut self, file: Ino) {
        if self.windows.files.contains_key(&file) {
            self.windows.remove(file);
            self.windows.files.remove(&file);
        }
    }

    /// The place behind the block before `block`, if that is what the file got last.
    pub fn after_last(&self, file: Ino, block: u32) -> Option<Frag> {
        let (last, at) = self.windows.files.get(&file)?.last?;
        (last + 1 == block).then(|| at.plus(BLOCK_FRAGMENTS))
    }

    /// Returns the best place for a file's first block.
    pub fn coloured(&self, file: Ino, process: u32) -> Frag {
        let step = self.layout.group_frags / BLOCK_FRAGMENTS / COLOURS * BLOCK_FRAGMENTS;
        let group = self.layout.group_of_inode(file);
        let end = self.layout.group_blocks(group) * BLOCK_FRAGMENTS;
        let colour = process % COLOURS * step;
        self.layout.first_frag(group).plus(if colour < end { colour } else { 0 })
    }

    /// A block at `goal` or where it comes nearest to that. `block` is which of the file's it is; none for one of
    /// addresses.
    pub fn take_reserved(
        &mut self,
        file: Ino,
        goal: Frag,
        block: Option<u32>,
        is_directory: bool,
    ) -> Option<Frag> {
        if !is_directory {
            let new = Window { first: 0, end: 0, size: WINDOW_BLOCKS, taken: 0, last: None };
            self.windows.files.entry(file).or_insert(new);
        }
        let goal = Frag(goal.0.min(self.layout.frags() - 1));
        let home = self.layout.group_of(goal);
        let inside = (goal.0 - self.layout.first_frag(home).0) / BLOCK_FRAGMENTS;
        let window = (!is_directory).then_some(file);
        let at = self
            .by_turns(home, inside, window)
            .or_else(|| window.and_then(|_| self.by_turns(home, inside, None)))?;
        self.take(at, BLOCK_FRAGMENTS);
        if let Some(window) = self.windows.files.get_mut(&file) {
            window.taken += u32::from((window.first..window.end).contains(&(at.0 / BLOCK_FRAGMENTS)));
            window.last = block.map_or(window.last, |block| Some((block, at)));
        }
        Some(at)
    }

    /// The goal's group, and then all others in turn.
    fn by_turns(&mut self, home: GroupIndex, goal: u32, window: Option<Ino>) -> Option<Frag> {
        let groups = self.layout.groups;
        for step in 0..groups {
            let group = GroupIndex((home.0 + step) % groups);
            let free = self.map(group).free_blocks;
            let held = window.map(|file| self.windows.files[&file]);
            let size = held.map_or(0, |window| window.size);
            if free == 0 || (step > 0 && free <= size / 2) {
                continue;
            }
            let is_tight = held.is_some_and(|window| window.end == window.first) && free < size;
            let window = if step == 0 && is_tight { None } else { window };
            let goal = (step == 0).then_some(goal);
            let found = match window {
                Some(file) => self.in_window(group, goal, file),
                None => {
                    let end = self.layout.group_blocks(group);
                    search(self.map(group), &Range { first: goal.unwrap_or(0), end, goal }, false)
                }
            };
            if let Some(block) = found {
                return Some(self.layout.first_frag(group).plus(block * BLOCK_FRAGMENTS));
            }
        }
        None
    }

    /// A block of a file's window in a group; the window moves on until one of its blocks is free.
    fn in_window(&mut self, group: GroupIndex, mut goal: Option<u32>, file: Ino) -> Option<u32> {
        let first = self.layout.first_frag(group).0 / BLOCK_FRAGMENTS;
        let end = first + self.layout.group_blocks(group);
        let holds = |window: Window, goal: Option<u32>| {
            let overlaps = window.end > window.first && window.first < end && window.end > first;
            overlaps && goal.is_none_or(|goal| (window.first..window.end).contains(&(first + goal)))
        };
        let mut failed = false;
        loop {
            if failed || !holds(self.windows.files[&file], goal) {
                self.move_window(group, goal, file)?;
                goal = goal.filter(|goal| holds(self.windows.files[&file], Some(*goal)));
            }
            let window = self.windows.files[&file];
            let range =
                Range { first: window.first.max(first) - first, end: window.end.min(end) - first, goal };
            if let Some(found) = search(self.map(group), &range, true) {
                return Some(found);
            }
            failed = true;
        }
    }

    /// Puts a file's window where a block of it is free, from the goal on; none where the group has no such place.
    fn move_window(&mut self, group: GroupIndex, goal: Option<u32>, file: Ino) -> Option<()> {
        let first = self.layout.first_frag(group).0 / BLOCK_FRAGMENTS;
        let end = first + self.layout.group_blocks(group);
        let mut start = first + goal.unwrap_or(0);
        let old = self.windows.files[&file];
        let length = old.end - old.first;
        if length > 0 && old.first < end && old.end > end && start >= old.first {
            // The rest of it lies in the next group.
            return None;
        }
        let grows = length > 0 && old.taken > length / 2;
        let size = if grows { (2 * old.size).min(WINDOW_BLOCKS_MAX) } else { old.size };
        loop {
            let placed = self.windows.gap(start, end, size);
            let free = placed.and_then(|at| self.map(group).first_free(at - first, end - first));
            let (Some(at), Some(free)) = (placed, free) else {
                self.windows.remove(file);
                return None;
            };
            if (at..at + size).contains(&(first + free)) {
                self.windows.place(file, at, size);
                return Some(());
            }
            start = first + free;
        }
    }
}
