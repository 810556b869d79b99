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
//! Dirty slots also hang in a list for each region (`dirty.rs`).
//!
//! A block costs one slot of 64 bytes, which is a line of the processor's cache, and its entry in the index. Everything that grows with the
//! capacity is made at the start: writing takes no memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use dcd_engine::destage::what::WhatPolicy;
use hashbrown::HashTable;

use super::dirty::{DirtyRegion, DirtyRegions, NIL, RegionId};
use super::order::{Order, Position};
use crate::write_cache::stow::StowQueue;

#[cfg(test)]
mod tests;

/// Disks are numbered with 16 bits, their blocks with 48.
const NUMBER_BITS: u32 = 48;

/// A block of the cache: its number on its disk, and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockId {
    pub disk: u32,
    pub number: u64,
}

impl BlockId {
    pub(super) fn packed(self) -> Packed {
        Packed(self.number | u64::from(self.disk) << NUMBER_BITS)
    }
}

/// A block, as it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed(u64);

impl Packed {
    fn block(self) -> BlockId {
        BlockId { disk: (self.0 >> NUMBER_BITS) as u32, number: self.0 & ((1 << NUMBER_BITS) - 1) }
    }

    pub fn hash(self) -> u64 {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    }
}

/// A place for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotIndex(pub u32);

/// `Slot::rewritten` of a block that is not being written to the disk; no stamp.
const NOT_BEING_WRITTEN: u64 = u64::MAX;

#[derive(Clone)]
#[repr(align(64))]
struct Slot {
    block: Packed,
    /// In the chain by recency; `newer` of a free slot is the next free one.
    older: u32,
    newer: u32,
    /// The handle of its region, while it is dirty.
    region: u32,
    /// In the list of its region, while dirty.
    region_before: u32,
    region_after: u32,
    /// The request that wrote it last, and when.
    writer: u32,
    written: u64,
    /// The stamp of its last use; slots in the chain have rising stamps. Free slots have none: 0.
    used: u64,
    /// The stamp at which it became dirty; the content of that time is not on the disk before it is clean.
    dirty_since: u64,
    /// While it is being written to the disk, which may not begin a second time meanwhile: the stamp of the first write by a client since
    /// that began, after which it stays dirty, or 0.
    rewritten: u64,
}

const _: () = assert!(size_of::<Slot>() == 64, "a slot is a line of the processor's cache");

impl Slot {
    fn is_dirty(&self) -> bool {
        self.region != NIL
    }

    fn is_being_written(&self) -> bool {
        self.rewritten != NOT_BEING_WRITTEN
    }
}

/// The end of a block's write, for waiters until everything that was dirty at some stamp is safe: one
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

/// See the module's documentation.
pub struct Pool {
    slots: Vec<Slot>,
    /// The first free slot, and the number of free ones.
    free: u32,
    free_count: usize,
    capacity: usize,
    index: HashTable<u32>,
    oldest: u32,
    newest: u32,
    /// The next slot that an eviction looks at; everything older is dirty, or in `clean_behind`.
    hand: u32,
    clean_behind: BinaryHeap<Reverse<(u64, u32)>>,
    /// Dirty blocks that an eviction passed over, the least recently used first; at most `capacity`.
    targets: VecDeque<Packed>,
    marks_targets: bool,
    stamp: u64,
    dirty: usize,
    /// Blocks that are being written to the disk.
    being_written: usize,
    regions: DirtyRegions,
}

impl Pool {
    /// A pool of `capacity` blocks.
    ///
    /// # Panics
    /// For more than 4 billion blocks: a slot's number has 32 bits.
    pub fn new(capacity: usize) -> Pool {
        assert!(capacity < NIL as usize, "a pool has fewer than 2^32 - 1 blocks");
        Pool {
            slots: Vec::with_capacity(capacity),
            free: NIL,
            free_count: 0,
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
            regions: DirtyRegions::new(),
        }
    }

    /// Regions are kept in the order of a policy.
    pub fn with_order(mut self, order: Order) -> Pool {
        self.regions = DirtyRegions::with_order(order, self.capacity);
        self.clean_behind = BinaryHeap::with_capacity(self.capacity);
        self
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
        self.slots.len() - self.free_count
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

    /// Dirty blocks that are not being written to the disk.
    pub fn waiting(&self) -> usize {
        self.dirty - self.being_written
    }

    /// The regions that have dirty blocks, in no order.
    pub fn regions(&self) -> impl Iterator<Item = &DirtyRegion> + Clone {
        self.regions.iter()
    }

    /// A region, if it has dirty blocks.
    pub fn region(&self, id: RegionId) -> Option<&DirtyRegion> {
        self.regions.find(id).map(|handle| self.regions.get(handle))
    }

    fn slot(&self, slot: SlotIndex) -> &Slot {
        &self.slots[slot.0 as usize]
    }

    pub fn find(&self, block: BlockId) -> Option<SlotIndex> {
        let block = block.packed();
        let found = self.index.find(block.hash(), |&slot| self.slots[slot as usize].block == block);
        found.map(|&slot| SlotIndex(slot))
    }

    /// The blocks of a range that are here. It takes as long as the range or the pool is, whichever is shorter.
    pub fn blocks_among(&self, disk: u32, numbers: &Range<u64>) -> Vec<BlockId> {
        let block = |number| BlockId { disk, number };
        if numbers.end - numbers.start <= self.len() as u64 {
            return numbers.clone().map(block).filter(|&block| self.find(block).is_some()).collect();
        }
        let used = self.slots.iter().filter(|slot| slot.used > 0).map(|slot| slot.block.block());
        used.filter(|block| block.disk == disk && numbers.contains(&block.number)).collect()
    }

    pub fn block(&self, slot: SlotIndex) -> BlockId {
        self.slot(slot).block.block()
    }

    pub fn is_dirty(&self, slot: SlotIndex) -> bool {
        self.slot(slot).is_dirty()
    }

    pub fn writer(&self, slot: SlotIndex) -> u32 {
        self.slot(slot).writer
    }

    /// The stamp of its last write.
    pub fn written(&self, slot: SlotIndex) -> u64 {
        self.slot(slot).written
    }

    /// Makes it the most recently used one.
    pub fn touch(&mut self, slot: SlotIndex) {
        if self.newest != slot.0 {
            self.unlink(slot.0);
            self.push_newest(slot.0);
        }
    }

    /// A clean block; `None` where every slot is dirty. What it replaces is the least recently used clean block.
    ///
    /// # Panics
    /// For a block or a disk with a number that is too large.
    pub fn insert(&mut self, block: BlockId) -> Option<SlotIndex> {
        debug_assert!(self.find(block).is_none(), "a block has one slot");
        assert!(block.number >> NUMBER_BITS == 0 && block.disk >> (64 - NUMBER_BITS) == 0, "{block:?}");
        let block = block.packed();
        let slot = self.take_slot()?;
        let fresh = Slot {
            block,
            older: NIL,
            newer: NIL,
            region: NIL,
            region_before: NIL,
            region_after: NIL,
            writer: 0,
            written: 0,
            used: 0,
            dirty_since: 0,
            rewritten: NOT_BEING_WRITTEN,
        };
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = fresh,
            None => self.slots.push(fresh),
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
        let number = entry.block.block().number;
        entry.writer = writer;
        entry.written = stamp;
        if entry.rewritten == 0 {
            entry.rewritten = stamp;
        }
        if entry.is_dirty() {
            return self.regions.write_again(entry.region, number, stamp);
        }
        entry.dirty_since = stamp;
        let (handle, head) = self.regions.write_new(region, slot.0, number, stamp);
        (entry.region, entry.region_before, entry.region_after) = (handle, NIL, head);
        if head != NIL {
            self.slots[head as usize].region_before = slot.0;
        }
        self.dirty += 1;
    }

    /// The write of a dirty block to the disk begins.
    pub fn begin_write(&mut self, slot: SlotIndex) {
        let entry = &mut self.slots[slot.0 as usize];
        assert!(entry.is_dirty() && !entry.is_being_written(), "a dirty block is purged once");
        entry.rewritten = 0;
        self.regions.begin_write(entry.region);
        self.being_written += 1;
    }

    /// Ends the write of a block: the block is clean if that succeeded and the block was not written meanwhile.
    pub fn end_write(&mut self, slot: SlotIndex, safely: bool) -> Settled {
        let entry = &mut self.slots[slot.0 as usize];
        assert!(entry.is_being_written(), "a write ends that has begun");
        let rewritten = std::mem::replace(&mut entry.rewritten, NOT_BEING_WRITTEN);
        let since = entry.dirty_since;
        if safely && rewritten > 0 {
            // The older content is on the disk; the newer one is not.
            entry.dirty_since = rewritten;
        }
        self.regions.end_write(entry.region);
        self.being_written -= 1;
        match (safely, rewritten) {
            (false, _) => Settled::NOTHING,
            (true, 0) => {
                self.clean(slot);
                Settled { since, until: u64::MAX }
            }
            (true, until) => Settled { since, until },
        }
    }

    /// Takes a block out: its content is not wanted any more.
    ///
    /// # Panics
    /// While it is being written to the disk.
    pub fn remove(&mut self, slot: SlotIndex) -> Settled {
        let entry = self.slot(slot);
        assert!(!entry.is_being_written(), "a block that is being written stays");
        let mut settled = Settled::NOTHING;
        if entry.is_dirty() {
            settled = Settled { since: entry.dirty_since, until: u64::MAX };
            self.clean(slot);
        }
        self.evict(slot.0);
        self.slots[slot.0 as usize].newer = std::mem::replace(&mut self.free, slot.0);
        self.free_count += 1;
        settled
    }

    /// A region rests after a failed write, and is not purged until it is let go on. False where it has no dirty blocks, or did so before.
    pub fn rest(&mut self, region: RegionId, resting: bool) -> bool {
        let Some(handle) = self.regions.find(region) else { return false };
        let changes = self.regions.get(handle).resting != resting;
        self.regions.set_resting(handle, resting);
        changes
    }

    /// The stamp since which a dirty block's content is not on the disk, if its region rests and it is not being written.
    pub fn rests_since(&self, slot: SlotIndex) -> Option<u64> {
        let entry = self.slot(slot);
        let rests = entry.is_dirty() && !entry.is_being_written() && self.regions.get(entry.region).resting;
        rests.then_some(entry.dirty_since)
    }

    /// The dirty blocks of a region that are not being written to the disk.
    pub fn waiting_blocks(&self, region: &DirtyRegion) -> impl Iterator<Item = SlotIndex> + '_ {
        let mut slot = region.head;
        std::iter::from_fn(move || {
            while slot != NIL {
                let this = slot;
                slot = self.slots[this as usize].region_after;
                if !self.slots[this as usize].is_being_written() {
                    return Some(SlotIndex(this));
                }
            }
            None
        })
    }

    /// The region of a disk that a policy purges first: the policy of the pool's order, or `oldest-first`. `queue`: of STOW.
    pub fn choose(
        &mut self,
        policy: WhatPolicy,
        queue: Option<StowQueue>,
        position: Position,
    ) -> Option<&DirtyRegion> {
        self.regions.choose(policy, queue, position)
    }

    /// The policy passes regions over when it chooses `best`: they have to be written again to be passed over once more. How many there are.
    pub fn pass_over(
        &mut self,
        best: &DirtyRegion,
        policy: WhatPolicy,
        queue: Option<StowQueue>,
        position: Position,
    ) -> usize {
        self.regions.pass_over(best, policy, queue, position, &mut self.stamp)
    }

    /// The numbers of a region that the policy of the pool's order compares.
    pub fn key(&self, region: &DirtyRegion, position: Position) -> Option<(u64, u64)> {
        self.regions.order.as_ref().map(|order| order.key(region, position))
    }

    /// The blocks that wait in the regions of a disk whose keys are below `key`. It stops counting when there are `enough`.
    pub fn before(&mut self, position: Position, key: (u64, u64), enough: u64) -> u64 {
        self.regions.before(position, key, enough)
    }

    /// Blocks of a disk that wait, in sequential regions and in the others; kept for STOW alone.
    pub fn waiting_by_queue(&mut self, disk: u32) -> [u64; 2] {
        self.regions.waiting(disk)
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
        let index = self.targets.iter().position(|target| target.block().disk == disk)?;
        self.targets.remove(index).map(Packed::block)
    }

    /// The least recently used dirty block: what the single cache purges when nothing is clean.
    pub fn oldest_dirty(&self) -> Option<SlotIndex> {
        let mut slot = self.oldest;
        while slot != NIL && !self.slots[slot as usize].is_dirty() {
            slot = self.slots[slot as usize].newer;
        }
        (slot != NIL).then_some(SlotIndex(slot))
    }

    fn clean(&mut self, slot: SlotIndex) {
        let entry = &mut self.slots[slot.0 as usize];
        let region = std::mem::replace(&mut entry.region, NIL);
        let Slot { region_before, region_after, used, .. } = *entry;
        match region_before {
            NIL => self.regions.set_head(region, region_after),
            before => self.slots[before as usize].region_after = region_after,
        }
        if region_after != NIL {
            self.slots[region_after as usize].region_before = region_before;
        }
        self.dirty -= 1;
        self.regions.clean(region);
        if self.hand == NIL || used < self.slots[self.hand as usize].used {
            self.clean_behind.push(Reverse((used, slot.0)));
        }
    }

    /// A slot that is free, or that of the least recently used clean block.
    fn take_slot(&mut self) -> Option<u32> {
        if self.free != NIL {
            self.free_count -= 1;
            let next = self.slots[self.free as usize].newer;
            return Some(std::mem::replace(&mut self.free, next));
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
            if entry.used == used && !entry.is_dirty() {
                return Some(slot);
            }
        }
        while self.hand != NIL {
            let slot = self.hand;
            let entry = &self.slots[slot as usize];
            self.hand = entry.newer;
            if !entry.is_dirty() {
                return Some(slot);
            }
            if self.marks_targets {
                if self.targets.len() == self.capacity {
                    self.targets.pop_front();
                }
                self.targets.push_back(entry.block);
            }
        }
        None
    }

    fn evict(&mut self, slot: u32) {
        self.unlink(slot);
        let entry = &mut self.slots[slot as usize];
        entry.used = 0;
        match self.index.find_entry(entry.block.hash(), |&other| other == slot) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("a used slot is in the index"),
        }
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

    /// Panics where the lists, the index and the counts do not agree.
    pub fn check(&self) {
        let (mut seen, mut dirty, mut slot, mut used) = (0, 0, self.oldest, 0);
        while slot != NIL {
            let entry = &self.slots[slot as usize];
            assert!(entry.used > used, "the chain is by recency");
            assert_eq!(self.find(entry.block.block()), Some(SlotIndex(slot)), "the index finds each block");
            used = entry.used;
            seen += 1;
            dirty += usize::from(entry.is_dirty());
            slot = entry.newer;
        }
        assert_eq!((seen, dirty), (self.len(), self.dirty), "all used slots are in the chain");
        assert!(self.len() <= self.capacity && self.clean_behind.len() <= self.capacity);
        self.regions.check();
        let being_written = self.regions().map(|region| region.being_written as usize).sum::<usize>();
        assert_eq!(self.being_written, being_written);
        let mut blocks = 0;
        for region in self.regions() {
            let handle = self.regions.find(region.id).expect("it is known");
            let (mut being_written, mut count, mut slot) = (0, 0, region.head);
            while slot != NIL {
                let entry = &self.slots[slot as usize];
                assert_eq!((entry.region, entry.block.block().disk), (handle, region.id.disk));
                being_written += u32::from(entry.is_being_written());
                count += 1;
                slot = entry.region_after;
            }
            assert_eq!((count, being_written), (region.blocks, region.being_written));
            blocks += count as usize;
        }
        assert_eq!(blocks, self.dirty, "each dirty block is in its region");
    }
}
