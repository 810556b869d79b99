//! Lines: an open-addressed hash table from line to entry.
//!
//! Linear probing, with the entries of a run in the order of their home slots (Robin Hood hashing): a search for a missing line ends at
//! the first entry with a later home, which keeps misses short at a high load. Removal shifts the rest of the run back, so there are no
//! tombstones and the table does not age.

use std::ops::Range;

use super::packed::Packed;
use super::piece::Line;
use crate::LINE_SECTORS;
use crate::log_cache::disks::{AddressSpace, PART_LINES};

/// Maximum ratio of lines to slots: 8/9 is 18 bytes a line; at 9/10 an insert into a full table moves half as many entries again as at
/// 7/8.
const LOAD_LINES: usize = 8;
const LOAD_SLOTS: usize = 9;

pub(super) struct Lines {
    slots: Box<[Packed]>,
    regions: RegionCounts,
    used: usize,
    lines_max: usize,
    seed: u64,
    /// Slots that passes in parts have looked at.
    #[cfg(test)]
    pub visited: std::cell::Cell<u64>,
}

/// Number of lines of the data disk that share a counter.
pub(super) const REGION_LINES: u64 = 1 << 12;

/// Counts the entries of each region of each data disk. Discards and zeroes are mostly in regions without any entry.
struct RegionCounts(Vec<Box<[u16]>>);

impl RegionCounts {
    fn over(space: &AddressSpace) -> RegionCounts {
        RegionCounts((0..space.count()).map(|disk| RegionCounts::of_sectors(space.sectors(disk))).collect())
    }

    /// The regions of a disk. The system gives their memory, of zeroes, when they are used.
    fn of_sectors(sectors: u64) -> Box<[u16]> {
        let lines = sectors.div_ceil(LINE_SECTORS);
        vec![0; lines.div_ceil(REGION_LINES) as usize].into_boxed_slice()
    }

    /// The disk of a line, and its first line.
    #[inline]
    fn disk_of(&self, line: u64) -> (usize, u64) {
        match self.0.len() {
            1 => (0, 0),
            _ => {
                let disk = line / PART_LINES;
                (disk as usize, disk * PART_LINES)
            }
        }
    }

    #[inline]
    fn of(&mut self, line: u64) -> &mut u16 {
        let (disk, first) = self.disk_of(line);
        &mut self.0[disk][((line - first) / REGION_LINES) as usize]
    }

    /// The end of the last disk's last region.
    fn end(&self) -> u64 {
        let last = self.0.len() - 1;
        last as u64 * PART_LINES + self.0[last].len() as u64 * REGION_LINES
    }

    fn memory_bytes(&self) -> usize {
        self.0.iter().map(|disk| size_of_val(&**disk) + size_of::<Box<[u16]>>()).sum()
    }
}

/// Result of a search.
pub(super) enum FoundSlot {
    At(usize),
    /// Not there; an entry for the line belongs in this slot.
    Absent(usize),
}

impl Lines {
    /// Creates the table, for lines of these disks.
    pub fn new(space: &AddressSpace, lines_max: usize, seed: u64) -> Lines {
        // One slot at least stays empty, so that every search ends.
        let slots = (lines_max * LOAD_SLOTS).div_ceil(LOAD_LINES).max(lines_max + 1);
        Lines {
            slots: vec![Packed::EMPTY; slots].into_boxed_slice(),
            regions: RegionCounts::over(space),
            used: 0,
            lines_max,
            seed,
            #[cfg(test)]
            visited: std::cell::Cell::default(),
        }
    }

    /// Takes a disk of so many sectors, in a new place or in that of a disk without entries.
    pub fn set_disk(&mut self, disk: usize, sectors: u64) {
        let counts = RegionCounts::of_sectors(sectors);
        match self.regions.0.get_mut(disk) {
            Some(known) => *known = counts,
            None => self.regions.0.push(counts),
        }
    }

    pub fn used(&self) -> usize {
        self.used
    }

    pub fn lines_max(&self) -> usize {
        self.lines_max
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.slots) + self.regions.memory_bytes()
    }

    /// The home slot of `key`. Two rounds of multiply and fold, then scaled to the number of slots, which need not be a power of two.
    #[inline]
    fn home(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.seed) * 0x9e37_79b9_7f4a_7c15;
        let folded = (product as u64) ^ ((product >> 64) as u64);
        let mixed = (folded ^ (folded >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        ((u128::from(mixed) * self.slots.len() as u128) >> 64) as usize
    }

    /// Returns the distance of the entry of `key` in `slot` from its home.
    #[inline]
    fn distance(&self, key: u64, slot: usize) -> usize {
        let home = self.home(key);
        if slot >= home { slot - home } else { slot + self.slots.len() - home }
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    #[inline]
    pub fn find(&self, line: Line) -> FoundSlot {
        let mut slot = self.home(line.0);
        let mut distance = 0;
        loop {
            let entry = self.slots[slot];
            if entry.is_empty() {
                return FoundSlot::Absent(slot);
            }
            if entry.key() == line.0 {
                return FoundSlot::At(slot);
            }
            if self.distance(entry.key(), slot) < distance {
                return FoundSlot::Absent(slot);
            }
            slot = self.after(slot);
            distance += 1;
        }
    }

    /// Prefetches the home slots of lines into the processor's cache: many prefetches take as long as one access that is waited for.
    pub fn touch(&self, lines: impl Iterator<Item = Line>) {
        let sum = lines.fold(0, |sum, line| sum ^ self.slots[self.home(line.0)].key());
        std::hint::black_box(sum);
    }

    #[inline]
    pub fn get(&self, line: Line) -> Option<Packed> {
        match self.find(line) {
            FoundSlot::At(slot) => Some(self.slots[slot]),
            FoundSlot::Absent(_) => None,
        }
    }

    #[inline]
    pub fn at(&self, slot: usize) -> Packed {
        self.slots[slot]
    }

    /// Replaces the entry in `slot` by another of the same line, or removes it.
    #[inline]
    pub fn put(&mut self, slot: usize, entry: Option<Packed>) {
        match entry {
            Some(entry) => {
                debug_assert_eq!(entry.key(), self.slots[slot].key());
                self.slots[slot] = entry;
            }
            None => self.remove(slot),
        }
    }

    /// Adds an entry for a line that `find` did not find, in the slot that `find` returned.
    #[inline]
    pub fn add(&mut self, slot: usize, entry: Packed) {
        assert!(self.used < self.lines_max, "the lookup table is full: has_room() was not asked");
        self.used += 1;
        *self.regions.of(entry.key()) += 1;
        let (mut slot, mut moving) = (slot, entry);
        while !moving.is_empty() {
            std::mem::swap(&mut self.slots[slot], &mut moving);
            slot = self.after(slot);
        }
    }

    fn remove(&mut self, slot: usize) {
        self.used -= 1;
        *self.regions.of(self.slots[slot].key()) -= 1;
        let mut hole = slot;
        loop {
            let next = self.after(hole);
            let entry = self.slots[next];
            if entry.is_empty() || self.distance(entry.key(), next) == 0 {
                self.slots[hole] = Packed::EMPTY;
                return;
            }
            self.slots[hole] = entry;
            hole = next;
        }
    }

    /// Limit of the lines in the table: no entry is for this line or a later one.
    pub fn end(&self) -> u64 {
        self.regions.end()
    }

    /// The parts of a range of lines of one disk that may have entries.
    pub fn populated(&self, lines: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let (disk, first) = self.regions.disk_of(lines.start);
        let counts = &self.regions.0[disk];
        let last = (lines.end - first).div_ceil(REGION_LINES).min(counts.len() as u64);
        let regions =
            ((lines.start - first) / REGION_LINES..last).filter(|&region| counts[region as usize] > 0);
        regions.map(move |region| {
            let start = first + region * REGION_LINES;
            lines.start.max(start)..lines.end.min(start + REGION_LINES)
        })
    }

    /// Calls `f` with every entry.
    pub fn scan(&self, f: impl FnMut(Packed)) {
        #[cfg(test)]
        self.visited.set(self.visited.get() + self.slots.len() as u64);
        self.slots.iter().copied().filter(|entry| !entry.is_empty()).for_each(f);
    }

    /// Returns the first entry, from a position on, whose home is from slot `first` on and before slot `end`. Positions after the last
    /// slot wrap around: entries with no free slot before it lie there.
    fn next_at_home(&self, from: usize, first: usize, end: usize) -> Option<usize> {
        let mut position = from;
        // Homes rise from slot to slot. Only the first slots may have entries of the part before, or entries that wrapped around.
        let mut is_within = from > first;
        loop {
            #[cfg(test)]
            self.visited.set(self.visited.get() + 1);
            let slot = self.wrap(position);
            let entry = self.slots[slot];
            if entry.is_empty() {
                if position >= end {
                    return None;
                }
                is_within = true;
            } else if is_within && position < end {
                return Some(position);
            } else {
                let home = position.checked_sub(self.distance(entry.key(), slot));
                if home.is_some_and(|home| home >= end) {
                    return None;
                }
                if home.is_some_and(|home| home >= first) {
                    return Some(position);
                }
            }
            position += 1;
        }
    }

    /// Calls `f` with the entries whose home is in `count` slots from `first` on; returns the next slot, if there is one. A line keeps
    /// its home while other entries come and go: so a pass in parts meets each line that stays exactly once.
    #[inline]
    pub fn scan_part(&self, first: usize, count: usize, mut f: impl FnMut(Packed)) -> Option<usize> {
        let end = (first + count).min(self.slots.len());
        let mut position = first;
        // From the part's first entry on, all are the part's, up to its last slot: they cost no look at their homes.
        if let Some(at) = self.next_at_home(first, first, end).filter(|at| *at < end) {
            #[cfg(test)]
            self.visited.set(self.visited.get() + (end - at) as u64);
            self.slots[at..end].iter().copied().filter(|entry| !entry.is_empty()).for_each(&mut f);
            position = end;
        }
        while let Some(at) = self.next_at_home(position, first, end) {
            f(self.slots[self.wrap(at)]);
            position = at + 1;
        }
        (end < self.slots.len()).then_some(end)
    }

    /// Like [`Lines::scan_part`], and `f` may change or drop each entry.
    #[inline]
    pub fn sweep_part(
        &mut self,
        first: usize,
        count: usize,
        mut f: impl FnMut(Packed) -> Option<Packed>,
    ) -> Option<usize> {
        let end = (first + count).min(self.slots.len());
        let mut position = first;
        while let Some(at) = self.next_at_home(position, first, end) {
            let slot = self.wrap(at);
            let entry = f(self.slots[slot]);
            // The entry after a dropped one moves to its place.
            position = if entry.is_some() { at + 1 } else { at };
            self.put(slot, entry);
        }
        (end < self.slots.len()).then_some(end)
    }

    fn wrap(&self, position: usize) -> usize {
        if position < self.slots.len() { position } else { position - self.slots.len() }
    }

    /// Lets `f` change or drop every entry, in one pass that also closes the holes.
    #[inline]
    pub fn sweep(&mut self, mut f: impl FnMut(Packed) -> Option<Packed>) {
        if self.used == 0 {
            return;
        }
        #[cfg(test)]
        self.visited.set(self.visited.get() + self.slots.len() as u64);
        let slots = self.slots.len();
        let Some(empty) = self.slots.iter().position(|entry| entry.is_empty()) else {
            unreachable!("one slot is always empty");
        };
        // Every entry moves back to the first slot that is free from its home on; no entry can move over an empty slot.
        let wrap = |position: usize| if position < slots { position } else { position - slots };
        let mut free = empty + 1;
        for position in empty + 1..empty + slots {
            let entry = self.slots[wrap(position)];
            if entry.is_empty() {
                free = position + 1;
                continue;
            }
            let kept = f(entry);
            if kept == Some(entry) && free == position {
                free += 1;
                continue;
            }
            self.slots[wrap(position)] = Packed::EMPTY;
            let Some(kept) = kept else {
                self.used -= 1;
                *self.regions.of(entry.key()) -= 1;
                continue;
            };
            let home = position - self.distance(kept.key(), wrap(position));
            let target = free.max(home);
            self.slots[wrap(target)] = kept;
            free = target + 1;
        }
    }

    /// Panics if an entry cannot be found from its home, or the count is wrong.
    pub fn check(&self) {
        let mut used = 0;
        let empty = |counts: &[u16]| vec![0; counts.len()].into_boxed_slice();
        let mut regions = RegionCounts(self.regions.0.iter().map(|counts| empty(counts)).collect());
        for (slot, entry) in self.slots.iter().enumerate().filter(|(_, entry)| !entry.is_empty()) {
            used += 1;
            *regions.of(entry.key()) += 1;
            assert!(
                matches!(self.find(entry.line()), FoundSlot::At(at) if at == slot),
                "a line cannot be found"
            );
        }
        assert_eq!(used, self.used);
        assert!(self.used <= self.lines_max);
        assert!(self.regions.0 == regions.0, "a region counts what it has");
    }
}
