//! The blocks of one cache: where each is, how recently it was used, and which dirty ones lie together on the disk.
//!
//! | a slot is | until                                                                   |
//! |-----------|-------------------------------------------------------------------------|
//! | free      | a block is put in                                                       |
//! | clean     | it is written (dirty), or is the least recently used one and is evicted |
//! | dirty     | it has been written to the disk: clean                                  |
//!
//! All used slots hang in one chain by recency. The victim of an eviction is the least recently used *clean* slot: a hand
//! walks up the chain and passes the dirty ones (Biswas et al. 1993, section 4.9, marks them as *targets* for a purge).
//! A slot behind the hand that becomes clean later is kept in a heap by its age, so that it is found without a walk.
//!
//! Dirty slots also hang in a list for each *region*: a track, a cylinder, or any range that is purged together.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use hashbrown::HashTable;

use super::order::Order;
use crate::destage::stow::Queue;

/// No slot.
const NIL: u32 = u32::MAX;

/// A block of the cache: its number on its disk, and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId {
    pub disk: u32,
    pub number: u64,
}

impl BlockId {
    fn hash(self) -> u64 {
        let mixed = (self.number ^ (u64::from(self.disk) << 48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    }
}

/// A region's name: the disk, and its number there in the order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionId {
    pub disk: u32,
    pub number: u32,
}

impl RegionId {
    fn hash(self) -> u64 {
        BlockId { disk: self.disk, number: u64::from(self.number) }.hash()
    }
}

/// A place for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Clean,
    Dirty,
}

#[derive(Clone, Debug)]
struct Slot {
    block: BlockId,
    /// In the chain by recency.
    older: u32,
    newer: u32,
    /// In the list of its region, while dirty.
    region_before: u32,
    region_after: u32,
    /// The stamp of its last use; slots in the chain have rising stamps.
    used: u64,
    state: State,
    /// Being written to the disk: it may not be purged a second time meanwhile.
    being_written: bool,
    /// The stamp of the first write by a client while it was being written to the disk: then it stays dirty; 0: there was none.
    rewritten: u64,
    /// The request that wrote it last, and when.
    writer: u32,
    written: u64,
    /// The stamp at which it became dirty; the content of that time is not on the disk before it is clean.
    dirty_since: u64,
}

/// The end of a block's write, for those who wait until everything that was dirty at some stamp is safe: one
/// block less for each whose stamp is in `since..until`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    pub since: u64,
    pub until: u64,
}

impl Settled {
    const NOTHING: Settled = Settled { since: 0, until: 0 };

    pub fn covers(self, stamp: u64) -> bool {
        (self.since..self.until).contains(&stamp)
    }
}

/// The dirty blocks of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyRegion {
    pub id: RegionId,
    pub blocks: u32,
    /// Blocks of it that are being written to the disk.
    pub being_written: u32,
    /// Stamps: when it got its first dirty block (or was passed over by a policy), and when it was last written.
    pub since: u64,
    pub written: u64,
    /// Written again since it got its first dirty block, or since a policy passed it over. A block that follows the one
    /// written before it in the region does not count: sequential data is not recent for being long (Gill and Modha, FAST
    /// 2005, section IV).
    pub referenced: bool,
    /// The most blocks that were written one behind the other.
    pub run_longest: u32,
    run: u32,
    run_end: u64,
    head: u32,
}

impl DirtyRegion {
    /// Blocks that are not being written to the disk.
    pub const fn waiting(&self) -> u32 {
        self.blocks - self.being_written
    }

    /// Its queue for STOW: sequential where half of its sectors or more were written one block behind the other.
    pub fn queue(&self, sectors: u64, block_sectors: u64) -> Queue {
        let run = u64::from(self.run_longest);
        Queue::of(run > 1 && run * block_sectors * 2 >= sectors)
    }
}

/// See the module's documentation.
pub struct Pool {
    slots: Vec<Slot>,
    free: Vec<u32>,
    capacity: usize,
    index: HashTable<u32>,
    oldest: u32,
    newest: u32,
    /// The next slot that an eviction looks at; everything older is dirty, or in `clean_behind`.
    hand: u32,
    clean_behind: BinaryHeap<Reverse<(u64, u32)>>,
    /// Dirty blocks that an eviction passed over, the least recently used first.
    targets: VecDeque<BlockId>,
    marks_targets: bool,
    stamp: u64,
    dirty: usize,
    /// Blocks that are being written to the disk.
    being_written: usize,
    regions: Vec<DirtyRegion>,
    region_index: HashTable<u32>,
    order: Option<Order>,
}

impl Pool {
    /// A pool of `capacity` blocks.
    ///
    /// # Panics
    /// For more than 4 billion blocks: a slot's number has 32 bits.
    pub fn new(capacity: usize) -> Pool {
        assert!(capacity < NIL as usize, "a pool has fewer than 2^32 - 1 blocks");
        Pool {
            slots: Vec::new(),
            free: Vec::new(),
            capacity,
            index: HashTable::with_capacity(capacity),
            oldest: NIL,
            newest: NIL,
            hand: NIL,
            clean_behind: BinaryHeap::new(),
            targets: VecDeque::new(),
            marks_targets: false,
            stamp: 0,
            dirty: 0,
            being_written: 0,
            regions: Vec::new(),
            region_index: HashTable::new(),
            order: None,
        }
    }

    /// Regions are kept in the order of a policy.
    pub fn with_order(mut self, order: Order) -> Pool {
        self.order = Some(order);
        self
    }

    pub fn order(&self) -> Option<&Order> {
        self.order.as_ref()
    }

    /// Dirty blocks that an eviction passes over are kept as targets for a purge (section 4.9).
    pub fn marking_targets(mut self) -> Pool {
        self.marks_targets = true;
        self
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn dirty(&self) -> usize {
        self.dirty
    }

    pub fn being_written(&self) -> usize {
        self.being_written
    }

    /// The regions that have dirty blocks, in no order.
    pub fn regions(&self) -> &[DirtyRegion] {
        &self.regions
    }

    /// A region, if it has dirty blocks.
    pub fn region(&self, id: RegionId) -> Option<&DirtyRegion> {
        self.find_region(id).map(|index| &self.regions[index])
    }

    pub fn find(&self, block: BlockId) -> Option<SlotIndex> {
        let slots = &self.slots;
        self.index
            .find(block.hash(), |&slot| slots[slot as usize].block == block)
            .map(|&slot| SlotIndex(slot))
    }

    /// The blocks of a range that are here. It takes as long as the range or the pool is, whichever is shorter.
    pub fn blocks_among(&self, disk: u32, numbers: &Range<u64>) -> Vec<BlockId> {
        let block = |number| BlockId { disk, number };
        if numbers.end - numbers.start <= self.len() as u64 {
            return numbers.clone().map(block).filter(|&block| self.find(block).is_some()).collect();
        }
        let used = self.slots.iter().filter(|slot| slot.state != State::Free).map(|slot| slot.block);
        used.filter(|block| block.disk == disk && numbers.contains(&block.number)).collect()
    }

    pub fn block(&self, slot: SlotIndex) -> BlockId {
        self.slots[slot.0 as usize].block
    }

    pub fn is_dirty(&self, slot: SlotIndex) -> bool {
        self.slots[slot.0 as usize].state == State::Dirty
    }

    pub fn writer(&self, slot: SlotIndex) -> u32 {
        self.slots[slot.0 as usize].writer
    }

    /// The stamp of its last write.
    pub fn written(&self, slot: SlotIndex) -> u64 {
        self.slots[slot.0 as usize].written
    }

    /// Makes it the most recently used one.
    pub fn touch(&mut self, slot: SlotIndex) {
        self.unlink(slot.0);
        self.push_newest(slot.0);
    }

    /// A clean block; `None` where every slot is dirty. What it replaces is the least recently used clean block.
    ///
    /// # Panics
    /// If the block is in the pool already.
    pub fn insert(&mut self, block: BlockId) -> Option<SlotIndex> {
        debug_assert!(self.find(block).is_none(), "a block has one slot");
        let slot = self.take_slot()?;
        self.stamp += 1;
        let fresh = Slot {
            block,
            older: NIL,
            newer: NIL,
            region_before: NIL,
            region_after: NIL,
            used: self.stamp,
            state: State::Clean,
            being_written: false,
            rewritten: 0,
            writer: 0,
            written: 0,
            dirty_since: 0,
        };
        if slot as usize == self.slots.len() {
            self.slots.push(fresh);
        } else {
            self.slots[slot as usize] = fresh;
        }
        self.push_newest(slot);
        let slots = &self.slots;
        self.index.insert_unique(block.hash(), slot, |&slot| slots[slot as usize].block.hash());
        Some(SlotIndex(slot))
    }

    /// The block has been written by the request `writer` and is newer than what is on the disk.
    pub fn write(&mut self, slot: SlotIndex, region: RegionId, writer: u32) {
        self.stamp += 1;
        let stamp = self.stamp;
        let entry = &mut self.slots[slot.0 as usize];
        let number = entry.block.number;
        entry.writer = writer;
        entry.written = stamp;
        if entry.being_written && entry.rewritten == 0 {
            entry.rewritten = stamp;
        }
        let again = entry.state == State::Dirty;
        if !again {
            entry.state = State::Dirty;
            entry.dirty_since = stamp;
            self.dirty += 1;
        }
        let index = self.region_of(region, stamp);
        let region = &mut self.regions[index];
        region.written = stamp;
        let continues = number == region.run_end;
        region.referenced |= region.blocks > 0 && !continues;
        region.run = if continues { region.run + 1 } else { 1 };
        region.run_end = number + 1;
        region.run_longest = region.run_longest.max(region.run);
        if !again {
            region.blocks += 1;
            let head = std::mem::replace(&mut region.head, slot.0);
            self.slots[slot.0 as usize].region_before = NIL;
            self.slots[slot.0 as usize].region_after = head;
            if head != NIL {
                self.slots[head as usize].region_before = slot.0;
            }
        }
        self.reorder(index);
    }

    /// The write of a dirty block to the disk begins.
    pub fn begin_write(&mut self, slot: SlotIndex, region: RegionId) {
        let entry = &mut self.slots[slot.0 as usize];
        assert!(entry.state == State::Dirty && !entry.being_written, "a dirty block is purged once");
        entry.being_written = true;
        entry.rewritten = 0;
        let index = self.find_region(region).expect("a dirty block's region is known");
        self.regions[index].being_written += 1;
        self.being_written += 1;
        self.reorder(index);
    }

    /// The write of a block has ended: the block is clean if that succeeded and nobody wrote it meanwhile.
    pub fn end_write(&mut self, slot: SlotIndex, region: RegionId, safely: bool) -> Settled {
        let entry = &mut self.slots[slot.0 as usize];
        assert!(entry.being_written, "a write ends that has begun");
        entry.being_written = false;
        let rewritten = std::mem::take(&mut entry.rewritten);
        let since = entry.dirty_since;
        if safely && rewritten > 0 {
            // The older content is on the disk; the newer one is not.
            entry.dirty_since = rewritten;
        }
        let index = self.find_region(region).expect("a dirty block's region is known");
        self.regions[index].being_written -= 1;
        self.being_written -= 1;
        self.reorder(index);
        match (safely, rewritten) {
            (false, _) => Settled::NOTHING,
            (true, 0) => {
                self.clean(slot, region);
                Settled { since, until: u64::MAX }
            }
            (true, until) => Settled { since, until },
        }
    }

    /// Takes a block out: its content is not wanted any more.
    ///
    /// # Panics
    /// While it is being written to the disk.
    pub fn remove(&mut self, slot: SlotIndex, region: RegionId) -> Settled {
        let entry = &self.slots[slot.0 as usize];
        assert!(!entry.being_written, "a block that is being written stays");
        let mut settled = Settled::NOTHING;
        if entry.state == State::Dirty {
            settled = Settled { since: entry.dirty_since, until: u64::MAX };
            self.clean(slot, region);
        }
        self.evict(slot.0);
        self.free.push(slot.0);
        settled
    }

    /// The dirty blocks of a region that are not being written to the disk.
    pub fn waiting_blocks(&self, region: RegionId) -> impl Iterator<Item = SlotIndex> + '_ {
        let mut slot = self.find_region(region).map_or(NIL, |index| self.regions[index].head);
        std::iter::from_fn(move || {
            while slot != NIL {
                let this = slot;
                slot = self.slots[this as usize].region_after;
                if !self.slots[this as usize].being_written {
                    return Some(SlotIndex(this));
                }
            }
            None
        })
    }

    /// A policy passed the region over: it has to be written again to be passed over once more.
    pub fn pass_over(&mut self, region: RegionId) {
        self.stamp += 1;
        let stamp = self.stamp;
        if let Some(index) = self.find_region(region) {
            self.regions[index].referenced = false;
            self.regions[index].since = stamp;
            self.reorder(index);
        }
    }

    /// The number of the last change; see [`Settled`].
    pub fn stamp(&self) -> u64 {
        self.stamp
    }

    /// True where an eviction has passed over dirty blocks that are still to be purged.
    pub fn has_targets(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Takes the next block of a disk that an eviction passed over.
    pub fn next_target(&mut self, disk: u32) -> Option<BlockId> {
        let index = self.targets.iter().position(|block| block.disk == disk)?;
        self.targets.remove(index)
    }

    /// The least recently used dirty block: what the single cache purges when nothing is clean.
    pub fn oldest_dirty(&self) -> Option<SlotIndex> {
        let mut slot = self.oldest;
        while slot != NIL && self.slots[slot as usize].state != State::Dirty {
            slot = self.slots[slot as usize].newer;
        }
        (slot != NIL).then_some(SlotIndex(slot))
    }

    fn clean(&mut self, slot: SlotIndex, region: RegionId) {
        let Slot { region_before, region_after, used, .. } = self.slots[slot.0 as usize];
        let index = self.find_region(region).expect("a dirty block's region is known");
        match region_before {
            NIL => self.regions[index].head = region_after,
            before => self.slots[before as usize].region_after = region_after,
        }
        if region_after != NIL {
            self.slots[region_after as usize].region_before = region_before;
        }
        self.slots[slot.0 as usize].state = State::Clean;
        self.dirty -= 1;
        self.regions[index].blocks -= 1;
        if self.regions[index].blocks == 0 {
            self.forget_region(index);
        } else {
            self.reorder(index);
        }
        if self.hand == NIL || used < self.slots[self.hand as usize].used {
            self.clean_behind.push(Reverse((used, slot.0)));
        }
    }

    /// A slot that is free, or that of the least recently used clean block.
    fn take_slot(&mut self) -> Option<u32> {
        if let Some(slot) = self.free.pop() {
            return Some(slot);
        }
        if self.slots.len() < self.capacity {
            return Some(self.slots.len() as u32);
        }
        let victim = self.victim()?;
        self.evict(victim);
        Some(victim)
    }

    fn victim(&mut self) -> Option<u32> {
        while let Some(Reverse((used, slot))) = self.clean_behind.pop() {
            let entry = &self.slots[slot as usize];
            if entry.state == State::Clean && entry.used == used {
                return Some(slot);
            }
        }
        while self.hand != NIL {
            let slot = self.hand;
            self.hand = self.slots[slot as usize].newer;
            if self.slots[slot as usize].state == State::Clean {
                return Some(slot);
            }
            if self.marks_targets {
                self.targets.push_back(self.slots[slot as usize].block);
            }
        }
        None
    }

    fn evict(&mut self, slot: u32) {
        self.unlink(slot);
        let slots = &self.slots;
        match self.index.find_entry(slots[slot as usize].block.hash(), |&other| other == slot) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("a used slot is in the index"),
        }
        self.slots[slot as usize].state = State::Free;
    }

    fn unlink(&mut self, slot: u32) {
        let Slot { older, newer, .. } = self.slots[slot as usize];
        match older {
            NIL => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NIL => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        if self.hand == slot {
            self.hand = newer;
        }
    }

    fn push_newest(&mut self, slot: u32) {
        self.stamp += 1;
        let newest = self.newest;
        let entry = &mut self.slots[slot as usize];
        entry.used = self.stamp;
        entry.older = newest;
        entry.newer = NIL;
        match newest {
            NIL => self.oldest = slot,
            newest => self.slots[newest as usize].newer = slot,
        }
        self.newest = slot;
        if self.hand == NIL {
            self.hand = slot;
        }
    }

    fn find_region(&self, region: RegionId) -> Option<usize> {
        let regions = &self.regions;
        self.region_index
            .find(region.hash(), |&index| regions[index as usize].id == region)
            .map(|&index| index as usize)
    }

    fn region_of(&mut self, region: RegionId, stamp: u64) -> usize {
        if let Some(index) = self.find_region(region) {
            return index;
        }
        let index = self.regions.len();
        self.regions.push(DirtyRegion {
            id: region,
            blocks: 0,
            being_written: 0,
            since: stamp,
            written: stamp,
            referenced: false,
            run_longest: 0,
            run: 0,
            run_end: u64::MAX,
            head: NIL,
        });
        let regions = &self.regions;
        self.region_index
            .insert_unique(region.hash(), index as u32, |&index| regions[index as usize].id.hash());
        index
    }

    /// A region has changed.
    fn reorder(&mut self, index: usize) {
        if let Some(order) = &mut self.order {
            order.changed(&self.regions[index], index);
        }
    }

    fn forget_region(&mut self, index: usize) {
        let id = self.regions[index].id;
        match self.region_index.find_entry(id.hash(), |&other| other as usize == index) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("a region is in the index"),
        }
        let last = self.regions.len() - 1;
        if let Some(order) = &mut self.order {
            order.forgotten(&self.regions[index], index, &self.regions[last]);
        }
        if index != last {
            let moved = self.regions[last].id;
            let entry = self.region_index.find_mut(moved.hash(), |&other| other as usize == last);
            *entry.expect("a region is in the index") = index as u32;
        }
        self.regions.swap_remove(index);
    }

    /// Panics where the lists, the index and the counts do not agree.
    pub fn check(&self) {
        let (mut seen, mut dirty, mut slot, mut used) = (0, 0, self.oldest, 0);
        while slot != NIL {
            let entry = &self.slots[slot as usize];
            assert!(entry.used > used, "the chain is by recency");
            assert_eq!(self.find(entry.block), Some(SlotIndex(slot)), "the index finds each block");
            used = entry.used;
            seen += 1;
            dirty += usize::from(entry.state == State::Dirty);
            slot = entry.newer;
        }
        assert_eq!((seen, dirty), (self.len(), self.dirty), "all used slots are in the chain");
        assert!(self.len() <= self.capacity);
        if let Some(order) = &self.order {
            order.check(&self.regions);
        }
        assert_eq!(
            self.being_written,
            self.regions.iter().map(|region| region.being_written as usize).sum::<usize>()
        );
        let mut blocks = 0;
        for region in &self.regions {
            let mut being_written = 0;
            let mut count = 0;
            let mut slot = region.head;
            while slot != NIL {
                let entry = &self.slots[slot as usize];
                assert_eq!((entry.state, entry.block.disk), (State::Dirty, region.id.disk));
                being_written += u32::from(entry.being_written);
                count += 1;
                slot = entry.region_after;
            }
            assert_eq!((count, being_written), (region.blocks, region.being_written));
            assert!(count > 0, "a region without dirty blocks is forgotten");
            blocks += count as usize;
        }
        assert_eq!(blocks, self.dirty, "each dirty block is in its region");
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;

    fn block(number: u64) -> BlockId {
        BlockId { disk: 0, number }
    }

    fn region(number: u64) -> RegionId {
        RegionId { disk: 0, number: (number / 4) as u32 }
    }

    #[test]
    fn the_victim_is_the_least_recently_used_clean_block() {
        let mut pool = Pool::new(3);
        let slots: Vec<_> = (0..3).map(|n| pool.insert(block(n)).expect("there is room")).collect();
        pool.write(slots[0], region(0), 1);
        pool.touch(slots[1]);
        pool.insert(block(10)).expect("block 2 is clean");
        assert!(pool.find(block(2)).is_none(), "block 0 is older and dirty, block 1 was used");
        pool.begin_write(slots[0], region(0));
        pool.end_write(slots[0], region(0), true);
        pool.insert(block(11)).expect("block 0 is clean now, and the oldest");
        assert!(pool.find(block(0)).is_none() && pool.find(block(1)).is_some());
        pool.check();
    }

    #[test]
    fn a_block_written_being_written_stays_dirty() {
        let mut pool = Pool::new(1);
        let slot = pool.insert(block(7)).expect("there is room");
        pool.write(slot, region(7), 1);
        pool.begin_write(slot, region(7));
        assert_eq!(pool.waiting_blocks(region(7)).count(), 0);
        let before = pool.stamp();
        pool.write(slot, region(7), 2);
        let after = pool.stamp();
        let settled = pool.end_write(slot, region(7), true);
        assert!(settled.covers(before) && !settled.covers(after), "the newer content is not on the disk");
        assert!(pool.is_dirty(slot) && pool.insert(block(8)).is_none());
        pool.begin_write(slot, region(7));
        assert!(!pool.end_write(slot, region(7), false).covers(after), "an error cleans nothing");
        assert!(pool.is_dirty(slot));
        pool.begin_write(slot, region(7));
        assert!(pool.end_write(slot, region(7), true).covers(after));
        assert!(pool.regions().is_empty());
    }

    /// Random use beside a list that is searched from end to end.
    #[test]
    fn a_pool_is_what_a_plain_list_would_be() {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
        let mut pool = Pool::new(16);
        // (block, dirty), least recently used first.
        let mut list: Vec<(u64, bool)> = Vec::new();
        for step in 0..20_000 {
            let number = rng.random_range(0..40u64);
            match rng.random_range(0..4) {
                0 | 1 => {
                    let write = rng.random_bool(0.4);
                    let known = list.iter().position(|&(other, _)| other == number);
                    let slot = match pool.find(block(number)) {
                        Some(slot) => {
                            pool.touch(slot);
                            let entry = list.remove(known.expect("both know it"));
                            list.push(entry);
                            Some(slot)
                        }
                        None => {
                            assert_eq!(known, None);
                            let slot = pool.insert(block(number));
                            let full = list.len() == 16;
                            let victim = list.iter().position(|&(_, dirty)| !dirty);
                            assert_eq!(slot.is_none(), full && victim.is_none());
                            if full && let Some(victim) = victim {
                                list.remove(victim);
                            }
                            if slot.is_some() {
                                list.push((number, false));
                            }
                            slot
                        }
                    };
                    if let (Some(slot), true) = (slot, write) {
                        pool.write(slot, region(number), step);
                        list.last_mut().expect("it was used").1 = true;
                    }
                }
                2 => {
                    let slots: Vec<_> = pool.waiting_blocks(region(number)).collect();
                    for slot in slots {
                        let at = list.iter().position(|&(other, _)| other == pool.block(slot).number);
                        assert!(std::mem::take(&mut list[at.expect("both know it")].1));
                        pool.begin_write(slot, region(number));
                        pool.end_write(slot, region(number), true);
                    }
                    assert!(list.iter().all(|&(other, dirty)| !dirty || region(other) != region(number)));
                }
                _ => {
                    if let Some(slot) = pool.find(block(number)) {
                        pool.remove(slot, region(number));
                        list.retain(|&(other, _)| other != number);
                    }
                }
            }
            pool.check();
            assert_eq!(pool.dirty(), list.iter().filter(|&&(_, dirty)| dirty).count());
        }
    }
}
