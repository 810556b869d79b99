//! The dirty regions of each disk sorted by two numbers that a policy compares, for policies that compare counts or places.
//!
//! A region that changes is only noted; it gets its new place when the policy is asked next. So a purge moves a region once, not once for each
//! of its blocks, and what many writes change between two purges is sorted in first, and then put in from one end to the other.

use std::collections::BTreeSet;
use std::ops::Range;

/// Numbers that a policy compares, and the handle of the region.
pub type Entry = (u32, u64, u32);

/// The first number of a region that has no place: nothing of it waits. It is larger than all that policies compare.
pub const NONE: u32 = u32::MAX;

/// Maximum number of regions that wait to be put in: enough to put them in from one end to the other, and little memory.
const FRESH_MAX: usize = 1 << 14;

/// A region as it is sorted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub first: u32,
    /// Blocks that wait.
    pub waiting: u32,
}

const UNKNOWN: Known = Known { first: NONE, waiting: 0 };

/// See the module's documentation. The second number of a region stays what it was when it came.
pub struct Sorted {
    entries: Vec<BTreeSet<Entry>>,
    /// By the handle of the region.
    known: Vec<Known>,
    /// Regions that have changed since the policy was asked.
    changed: Vec<u32>,
    fresh: Vec<(u32, Entry)>,
}

impl Sorted {
    pub fn new(disks: usize, regions: usize) -> Sorted {
        Sorted {
            entries: vec![BTreeSet::new(); disks],
            known: Vec::with_capacity(regions),
            changed: Vec::with_capacity(regions),
            fresh: Vec::new(),
        }
    }

    pub fn entered(&mut self, handle: u32) {
        if self.known.len() <= handle as usize {
            self.known.resize(handle as usize + 1, UNKNOWN);
        }
    }

    /// Notes that a region has changed. It is looked at when the policy is asked; the caller does not report it twice.
    pub fn changed(&mut self, handle: u32) {
        self.changed.push(handle);
    }

    pub fn next_changed(&mut self) -> Option<u32> {
        self.changed.pop()
    }

    /// A region is as `new` says from now on; how it was. The places of several are taken by one [`Self::settle`].
    pub fn set(&mut self, disk: u32, second: u64, handle: u32, new: Known) -> Known {
        let old = std::mem::replace(&mut self.known[handle as usize], new);
        if old.first != new.first {
            if old.first != NONE {
                self.entries[disk as usize].remove(&(old.first, second, handle));
            }
            if new.first != NONE {
                self.fresh.push((disk, (new.first, second, handle)));
                if self.fresh.len() == FRESH_MAX {
                    self.settle();
                }
            }
        }
        old
    }

    pub fn settle(&mut self) {
        self.fresh.sort_unstable();
        for (disk, entry) in self.fresh.drain(..) {
            self.entries[disk as usize].insert(entry);
        }
    }

    /// A region is forgotten; how it was.
    pub fn forget(&mut self, disk: u32, second: u64, handle: u32) -> Known {
        self.set(disk, second, handle, UNKNOWN)
    }

    /// The entries of a disk, the smallest first.
    pub fn all(&self, disk: u32) -> impl Iterator<Item = &Entry> {
        self.entries[disk as usize].iter()
    }

    /// The entries with this first number and a second one in the range, the smallest first.
    pub fn range(&self, disk: u32, first: u32, second: Range<u64>) -> impl Iterator<Item = &Entry> {
        let from = self.entries[disk as usize].range((first, second.start, 0)..);
        from.take_while(move |entry| (entry.0, entry.1) < (first, second.end))
    }

    /// The entries with this first number and a second one below `end`, the largest first.
    pub fn back_from(&self, disk: u32, first: u32, end: u64) -> impl Iterator<Item = &Entry> {
        let until = self.entries[disk as usize].range(..(first, end, 0));
        until.rev().take_while(move |entry| entry.0 == first)
    }

    /// The entries with this first number, from the one behind `hand` on and round again. The second half is not looked for before it is
    /// needed.
    pub fn sweep(&self, disk: u32, first: u32, hand: u32) -> impl Iterator<Item = &Entry> {
        let from = u64::from(hand) + 1;
        let halves = [from..u64::MAX, 0..from].into_iter();
        halves.flat_map(move |second| self.range(disk, first, second))
    }

    pub fn known(&self, handle: u32) -> Known {
        self.known[handle as usize]
    }

    pub fn contains(&self, disk: u32, entry: &Entry) -> bool {
        self.entries[disk as usize].contains(entry)
    }

    pub fn len(&self) -> usize {
        self.entries.iter().map(BTreeSet::len).sum()
    }
}
