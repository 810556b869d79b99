//! The dirty blocks of a cache, by the *region* that they lie in: a track, a cylinder, or any range that is purged together.
//!
//! A region has a *handle* while it has dirty blocks: its place in a slab. The regions in use are listed besides, so that they are
//! visited without the free places; where regions are equal to a policy, the first one of that list goes first.

use dcd_engine::destage::what::WhatPolicy;
use hashbrown::HashTable;

use super::order::{Order, Position};
use super::pool::BlockId;
use crate::write_cache::stow::StowQueue;

/// No slot, and no region.
pub(super) const NIL: u32 = u32::MAX;

/// A region's name: the disk, and its number there in the order of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionId {
    pub disk: u32,
    pub number: u32,
}

impl RegionId {
    fn hash(self) -> u64 {
        BlockId { disk: self.disk, number: u64::from(self.number) }.packed().hash()
    }
}

/// The dirty blocks of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(64))]
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
    /// A write of it to the disk has failed a moment ago: it is not purged now.
    pub resting: bool,
    /// The order has not seen its last changes.
    pub(super) stale: bool,
    /// Maximum number of blocks that were written one behind the other.
    pub run_longest: u32,
    run: u32,
    run_end: u64,
    /// The first of its blocks' slots; of a free place, the next free one.
    pub(super) head: u32,
    /// Place among the regions in use.
    pub(super) place: u32,
}

impl DirtyRegion {
    /// Blocks that a purge may write now.
    pub const fn waiting(&self) -> u32 {
        if self.resting { 0 } else { self.blocks - self.being_written }
    }

    /// Returns its queue for STOW: sequential where half of its sectors or more were written one block behind the other.
    pub fn queue(&self, sectors: u64, block_sectors: u64) -> StowQueue {
        let run = u64::from(self.run_longest);
        StowQueue::of(run > 1 && run * block_sectors * 2 >= sectors)
    }

    fn write(&mut self, number: u64, stamp: u64) {
        self.written = stamp;
        let continues = number == self.run_end;
        self.referenced |= self.blocks > 0 && !continues;
        self.run = if continues { self.run + 1 } else { 1 };
        self.run_end = number + 1;
        self.run_longest = self.run_longest.max(self.run);
    }
}

/// See the module's documentation.
pub(super) struct DirtyRegions {
    slab: Vec<DirtyRegion>,
    free: u32,
    in_use: Vec<u32>,
    index: HashTable<u32>,
    pub order: Option<Order>,
}

impl DirtyRegions {
    pub const fn new() -> DirtyRegions {
        DirtyRegions { slab: Vec::new(), free: NIL, in_use: Vec::new(), index: HashTable::new(), order: None }
    }

    /// Regions in the order of a policy, with room for as many as `blocks` dirty blocks can lie in: writing takes no memory later.
    pub fn with_order(mut order: Order, blocks: usize) -> DirtyRegions {
        let regions = order.regions().min(blocks);
        order.reserve(regions);
        DirtyRegions {
            slab: Vec::with_capacity(regions),
            free: NIL,
            in_use: Vec::with_capacity(regions),
            index: HashTable::with_capacity(regions),
            order: Some(order),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &DirtyRegion> + Clone {
        self.in_use.iter().map(|&handle| &self.slab[handle as usize])
    }

    pub fn find(&self, id: RegionId) -> Option<u32> {
        self.index.find(id.hash(), |&handle| self.slab[handle as usize].id == id).copied()
    }

    pub fn get(&self, handle: u32) -> &DirtyRegion {
        &self.slab[handle as usize]
    }

    pub fn set_head(&mut self, handle: u32, slot: u32) {
        self.slab[handle as usize].head = slot;
    }

    /// A block of it that is dirty already has been written.
    pub fn write_again(&mut self, handle: u32, number: u64, stamp: u64) {
        let region = &mut self.slab[handle as usize];
        let referenced = region.referenced;
        let run_longest = region.run_longest;
        region.write(number, stamp);
        let changed = referenced != region.referenced || run_longest != region.run_longest;
        if let Some(order) = &mut self.order {
            order.written(region, handle);
            if changed {
                order.changed(region, handle);
            }
        }
    }

    /// A block has been written that was not dirty: the region, and the first slot of its other blocks.
    pub fn write_new(&mut self, id: RegionId, slot: u32, number: u64, stamp: u64) -> (u32, u32) {
        let handle = self.find(id).unwrap_or_else(|| self.enter(id, stamp));
        let region = &mut self.slab[handle as usize];
        region.write(number, stamp);
        region.blocks += 1;
        if let Some(order) = &mut self.order {
            order.written(region, handle);
            order.changed(region, handle);
        }
        (handle, std::mem::replace(&mut region.head, slot))
    }

    fn enter(&mut self, id: RegionId, stamp: u64) -> u32 {
        let mut region = DirtyRegion {
            id,
            blocks: 0,
            being_written: 0,
            since: stamp,
            written: stamp,
            referenced: false,
            resting: false,
            stale: false,
            run_longest: 0,
            run: 0,
            run_end: u64::MAX,
            head: NIL,
            place: self.in_use.len() as u32,
        };
        let handle = match self.free {
            NIL => {
                self.slab.push(region);
                self.slab.len() as u32 - 1
            }
            free => {
                let place = &mut self.slab[free as usize];
                self.free = place.head;
                // The order still has the handle among those that it will look at.
                region.stale = place.stale;
                *place = region;
                free
            }
        };
        self.in_use.push(handle);
        let slab = &self.slab;
        self.index.insert_unique(id.hash(), handle, |&handle| slab[handle as usize].id.hash());
        if let Some(order) = &mut self.order {
            order.entered(id, handle);
        }
        handle
    }

    pub fn begin_write(&mut self, handle: u32) {
        self.slab[handle as usize].being_written += 1;
        self.changed(handle);
    }

    pub fn end_write(&mut self, handle: u32) {
        self.slab[handle as usize].being_written -= 1;
        self.changed(handle);
    }

    /// A region begins to rest after a failed write, or may be purged again.
    pub fn set_resting(&mut self, handle: u32, resting: bool) {
        self.slab[handle as usize].resting = resting;
        self.changed(handle);
    }

    /// A block of it is clean.
    pub fn clean(&mut self, handle: u32) {
        self.slab[handle as usize].blocks -= 1;
        if self.slab[handle as usize].blocks == 0 {
            self.forget(handle);
        } else {
            self.changed(handle);
        }
    }

    fn changed(&mut self, handle: u32) {
        if let Some(order) = &mut self.order {
            order.changed(&mut self.slab[handle as usize], handle);
        }
    }

    fn forget(&mut self, handle: u32) {
        let DirtyRegion { id, place, .. } = self.slab[handle as usize];
        match self.index.find_entry(id.hash(), |&other| other == handle) {
            Ok(entry) => drop(entry.remove()),
            Err(_) => unreachable!("a region is in the index"),
        }
        if let Some(order) = &mut self.order {
            order.forgotten(&self.slab[handle as usize], handle);
        }
        self.in_use.swap_remove(place as usize);
        if let Some(&moved) = self.in_use.get(place as usize) {
            self.slab[moved as usize].place = place;
        }
        self.slab[handle as usize].head = std::mem::replace(&mut self.free, handle);
    }

    /// See [`Order::choose`].
    pub fn choose(
        &mut self,
        name: WhatPolicy,
        queue: Option<StowQueue>,
        position: Position,
    ) -> Option<&DirtyRegion> {
        let order = self.order.as_mut()?;
        let best = order.choose(&mut self.slab, name, queue, position)?;
        Some(&self.slab[best as usize])
    }

    /// Takes their second chance from the regions that the policy passes over when it chooses `best`; how many there are.
    pub fn pass_over(
        &mut self,
        best: &DirtyRegion,
        name: WhatPolicy,
        queue: Option<StowQueue>,
        position: Position,
        stamp: &mut u64,
    ) -> usize {
        let Some(order) = self.order.as_mut().filter(|_| name.gives_chances()) else {
            return 0;
        };
        let best = self.in_use[best.place as usize];
        let mut passed = order.passed(&mut self.slab, best, name, queue, position);
        passed.sort_unstable_by_key(|&handle| self.slab[handle as usize].place);
        for &handle in &passed {
            let region = &mut self.slab[handle as usize];
            *stamp += 1;
            (region.referenced, region.since) = (false, *stamp);
            order.aged(region, handle);
            order.changed(region, handle);
        }
        passed.len()
    }

    /// See [`Order::before`].
    pub fn before(&mut self, position: Position, key: (u64, u64), enough: u64) -> u64 {
        let order = self.order.as_mut().expect("an order is kept");
        order.before(&mut self.slab, position, key, enough)
    }

    /// See [`Order::waiting`].
    pub fn waiting(&mut self, disk: u32) -> [u64; 2] {
        let order = self.order.as_mut().expect("an order is kept");
        order.waiting(&mut self.slab, disk)
    }

    /// Panics where the list, the index and the order do not agree.
    pub fn check(&self) {
        for (place, &handle) in self.in_use.iter().enumerate() {
            let region = &self.slab[handle as usize];
            assert_eq!((self.find(region.id), region.place as usize), (Some(handle), place));
            assert!(region.blocks > 0, "a region without dirty blocks is forgotten");
        }
        assert_eq!(self.index.len(), self.in_use.len());
        if let Some(order) = &self.order {
            order.check(&self.slab, &self.in_use);
        }
    }
}
