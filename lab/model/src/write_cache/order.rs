//! The dirty regions of each disk in the order of a policy: the next one to purge is found without looking at all of them.
//!
//! | a policy that compares | finds it in                                                               |
//! |------------------------|---------------------------------------------------------------------------|
//! | ages                   | a chain by age, or by the last write: what is new goes to the end         |
//! | counts or places       | regions sorted by what it compares; a region's number stands for its place |
//!
//! The chain by age is kept for every policy: while a request waits until everything is safe, the oldest region goes first. Regions of which
//! nothing waits stay in the chains and are skipped; there are as many as purges are under way.

use dcd_engine::destage::what::{Part, WhatPolicy};

use super::chain::Chain;
use super::dirty::{DirtyRegion, RegionId};
use super::regions::Regions;
use super::sorted::{Known, NONE, Sorted};
use crate::write_cache::stow::StowQueue;

/// A disk, the region that its sweep has come to, and the one where its arm is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub disk: u32,
    pub hand: u32,
    pub arm_at: u32,
}

/// See the module's documentation.
pub struct Order {
    what: WhatPolicy,
    block_sectors: u64,
    maps: Vec<Regions>,
    by_age: Chain,
    by_write: Option<Chain>,
    sorted: Option<Sorted>,
    /// Waiting blocks by disk, for STOW: in sequential regions and in the others.
    waiting: Vec<[u64; 2]>,
}

impl Order {
    pub fn new(what: WhatPolicy, block_sectors: u64, maps: impl Iterator<Item = Regions>) -> Order {
        let maps: Vec<Regions> = maps.collect();
        let waiting = vec![[0; 2]; maps.len()];
        let mut order = Order {
            what,
            block_sectors,
            maps,
            by_age: Chain::default(),
            by_write: None,
            sorted: None,
            waiting,
        };
        order.reserve(0);
        order
    }

    /// The regions that there are on all disks.
    pub fn regions(&self) -> usize {
        self.maps.iter().map(|map| map.count() as usize).sum()
    }

    /// Makes room for so many dirty regions.
    pub(super) fn reserve(&mut self, regions: usize) {
        let disks = self.maps.len();
        self.by_age = Chain::new(disks, regions);
        (self.by_write, self.sorted) = match self.what {
            WhatPolicy::OldestFirst | WhatPolicy::LastWriteFirst | WhatPolicy::Clock => (None, None),
            WhatPolicy::LeastRecentlyWritten => (Some(Chain::new(disks, regions)), None),
            WhatPolicy::LeastValidFirst
            | WhatPolicy::MostDirty
            | WhatPolicy::CScan
            | WhatPolicy::Wow
            | WhatPolicy::Stow => (None, Some(Sorted::new(disks, regions))),
        };
    }

    /// A region has got its first dirty block.
    pub(super) fn entered(&mut self, id: RegionId, handle: u32) {
        self.by_age.push(id.disk, handle);
        if let Some(chain) = &mut self.by_write {
            chain.push(id.disk, handle);
        }
        if let Some(sorted) = &mut self.sorted {
            sorted.entered(handle);
        }
    }

    pub(super) fn written(&mut self, region: &DirtyRegion, handle: u32) {
        if let Some(chain) = &mut self.by_write {
            chain.move_to_end(region.id.disk, handle);
        }
    }

    /// A region is as young as a new one.
    pub(super) fn aged(&mut self, region: &DirtyRegion, handle: u32) {
        self.by_age.move_to_end(region.id.disk, handle);
    }

    pub(super) fn changed(&mut self, region: &mut DirtyRegion, handle: u32) {
        if let Some(sorted) = &mut self.sorted
            && !std::mem::replace(&mut region.stale, true)
        {
            sorted.changed(handle);
        }
    }

    /// A region has no dirty blocks any more.
    pub(super) fn forgotten(&mut self, region: &DirtyRegion, handle: u32) {
        let disk = region.id.disk;
        self.by_age.remove(disk, handle);
        if let Some(chain) = &mut self.by_write {
            chain.remove(disk, handle);
        }
        let second = self.second(region);
        if let Some(sorted) = &mut self.sorted {
            let old = sorted.forget(disk, second, handle);
            self.count(disk, old, false);
        }
    }

    /// The second number that the sorted regions are compared by.
    fn second(&self, region: &DirtyRegion) -> u64 {
        match self.what {
            WhatPolicy::LeastValidFirst => region.since,
            _ => u64::from(region.id.number),
        }
    }

    /// A region as it is to be sorted in.
    fn known(&self, region: &DirtyRegion) -> Known {
        let waiting = region.waiting();
        let referenced = u32::from(region.referenced);
        let first = match self.what {
            WhatPolicy::LeastValidFirst => waiting,
            WhatPolicy::MostDirty => NONE - waiting,
            WhatPolicy::Wow => referenced,
            WhatPolicy::Stow => {
                let sectors = self.maps[region.id.disk as usize].extent(region.id.number).sectors;
                2 * region.queue(sectors, self.block_sectors) as u32 + referenced
            }
            _ => 0,
        };
        Known { first: if waiting > 0 { first } else { NONE }, waiting }
    }

    /// Counts what waits in STOW's queues: a region's numbers come, or go.
    fn count(&mut self, disk: u32, known: Known, comes: bool) {
        if self.what == WhatPolicy::Stow && known.first != NONE {
            let waiting = &mut self.waiting[disk as usize][known.first as usize / 2];
            *waiting =
                if comes { *waiting + u64::from(known.waiting) } else { *waiting - u64::from(known.waiting) };
        }
    }

    /// Sorts in all that has changed.
    fn settle(&mut self, regions: &mut [DirtyRegion]) {
        while let Some(handle) = self.sorted.as_mut().and_then(Sorted::next_changed) {
            let region = &mut regions[handle as usize];
            region.stale = false;
            if region.blocks == 0 {
                continue;
            }
            let (disk, new, second) = (region.id.disk, self.known(region), self.second(region));
            let old = self.sorted.as_mut().map(|sorted| sorted.set(disk, second, handle, new));
            old.into_iter().for_each(|old| self.count(disk, old, false));
            self.count(disk, new, true);
        }
        self.sorted.iter_mut().for_each(Sorted::settle);
    }

    /// Blocks of a disk that wait, in sequential regions and in the others; kept for STOW alone.
    pub(super) fn waiting(&mut self, regions: &mut [DirtyRegion], disk: u32) -> [u64; 2] {
        self.settle(regions);
        self.waiting[disk as usize]
    }

    fn sorted(&self) -> &Sorted {
        self.sorted.as_ref().expect("such a policy has its regions sorted")
    }

    /// The region of a disk that a policy purges first: the order's own policy, or `oldest-first`. `queue`: for STOW.
    pub(super) fn choose(
        &mut self,
        regions: &mut [DirtyRegion],
        name: WhatPolicy,
        queue: Option<StowQueue>,
        position: Position,
    ) -> Option<u32> {
        let Position { disk, hand, .. } = position;
        let waits = |&handle: &u32| regions[handle as usize].waiting() > 0;
        match name {
            WhatPolicy::OldestFirst => return self.by_age.iter(disk).find(waits),
            WhatPolicy::LastWriteFirst => return self.by_age.iter_back(disk).find(waits),
            WhatPolicy::LeastRecentlyWritten => return self.by_write.as_ref()?.iter(disk).find(waits),
            WhatPolicy::Clock => {
                let mut waiting = self.by_age.iter(disk).filter(waits);
                let oldest = waiting.next()?;
                let fresh = std::iter::once(oldest)
                    .chain(waiting)
                    .find(|&handle| !regions[handle as usize].referenced);
                return fresh.or(Some(oldest));
            }
            _ => {}
        }
        assert_eq!(name, self.what, "an order is that of one policy");
        self.settle(regions);
        let class = queue.map_or(0, |queue| 2 * queue as u32);
        let best = match name {
            WhatPolicy::CScan => self.sorted().sweep(disk, 0, hand).next()?,
            WhatPolicy::Wow | WhatPolicy::Stow => {
                let fresh = self.sorted().sweep(disk, class, hand).next();
                fresh.or_else(|| self.sorted().sweep(disk, class + 1, hand).next())?
            }
            WhatPolicy::MostDirty => return self.nearest_of_first(regions, position),
            _ => self.sorted().all(disk).next()?,
        };
        Some(best.2)
    }

    /// Returns the nearest to the arm of the regions that are first.
    fn nearest_of_first(&self, regions: &[DirtyRegion], at: Position) -> Option<u32> {
        let first = self.sorted().all(at.disk).next()?.0;
        let arm_at = u64::from(at.arm_at);
        let map = &self.maps[at.disk as usize];
        let (mut nearest, mut best) = (u64::MAX, None);
        let mut up = self.sorted().range(at.disk, first, arm_at..u64::MAX);
        let mut down = self.sorted().back_from(at.disk, first, arm_at);
        // Several may be as near, on each side.
        for side in [&mut up as &mut dyn Iterator<Item = _>, &mut down] {
            for &(_, number, handle) in side {
                let distance = map.distance(at.arm_at, number as u32);
                if distance > nearest {
                    if map.rises {
                        break;
                    }
                    continue;
                }
                let as_near = best.filter(|_| distance == nearest);
                nearest = distance;
                best =
                    as_near.into_iter().chain([handle]).min_by_key(|&handle| regions[handle as usize].place);
            }
        }
        best
    }

    /// The regions that would have gone before the best one but for their second chance.
    pub(super) fn passed(
        &mut self,
        regions: &mut [DirtyRegion],
        best: u32,
        name: WhatPolicy,
        queue: Option<StowQueue>,
        position: Position,
    ) -> Vec<u32> {
        let Position { disk, hand, .. } = position;
        let DirtyRegion { id, referenced, .. } = regions[best as usize];
        let mut passed: Vec<u32> = match name {
            WhatPolicy::Clock => {
                let older = self.by_age.iter(disk).take_while(|&handle| referenced || handle != best);
                let region = |handle: u32| &regions[handle as usize];
                older.filter(|&handle| region(handle).waiting() > 0 && region(handle).referenced).collect()
            }
            WhatPolicy::Wow | WhatPolicy::Stow => {
                self.settle(regions);
                let class = queue.map_or(0, |queue| 2 * queue as u32) + 1;
                let ahead = self.ahead(disk, id.number, hand);
                let number =
                    |entry: &&(u32, u64, u32)| referenced || self.ahead(disk, entry.1 as u32, hand) < ahead;
                self.sorted().sweep(disk, class, hand).take_while(number).map(|entry| entry.2).collect()
            }
            _ => Vec::new(),
        };
        passed.retain(|&handle| handle != best);
        passed
    }

    /// The distance from the sweep's hand to a region, in the direction of rising addresses and round again.
    fn ahead(&self, disk: u32, number: u32, hand: u32) -> u32 {
        if number > hand { number - hand - 1 } else { number + self.maps[disk as usize].count() - hand - 1 }
    }

    /// The numbers of a region that the policy compares.
    pub(super) fn key(&self, region: &DirtyRegion, position: Position) -> (u64, u64) {
        let number = region.id.number;
        let part = Part {
            number: region.since,
            dirty_sectors: u64::from(region.waiting()),
            written: region.written,
            ahead: u64::from(self.ahead(position.disk, number, position.hand)),
            distance: self.maps[position.disk as usize].distance(position.arm_at, number),
            referenced: region.referenced,
        };
        self.what.key(&part)
    }

    /// The blocks that wait in the regions of a disk whose keys are below `key`. It stops counting when there are `enough`.
    pub(super) fn before(
        &mut self,
        regions: &mut [DirtyRegion],
        position: Position,
        key: (u64, u64),
        enough: u64,
    ) -> u64 {
        self.settle(regions);
        let (order, regions, disk) = (&*self, &*regions, position.disk);
        let below = move |&handle: &u32| order.key(&regions[handle as usize], position) < key;
        let handle = |entry: &(u32, u64, u32)| entry.2;
        let handles: Box<dyn Iterator<Item = u32> + '_> = match order.what {
            WhatPolicy::OldestFirst => Box::new(order.by_age.iter(disk).take_while(below)),
            WhatPolicy::LastWriteFirst => Box::new(order.by_age.iter_back(disk).take_while(below)),
            WhatPolicy::LeastRecentlyWritten => {
                let chain = order.by_write.as_ref().expect("such a policy has a chain by the last write");
                Box::new(chain.iter(disk).take_while(below))
            }
            WhatPolicy::Clock => {
                let age = move |handle: &u32| key.0 > 0 || regions[*handle as usize].since < key.1;
                Box::new(order.by_age.iter(disk).take_while(age).filter(below))
            }
            WhatPolicy::LeastValidFirst => Box::new(order.sorted().all(disk).map(handle).take_while(below)),
            WhatPolicy::MostDirty => {
                let class = (u64::from(u32::MAX)).saturating_sub(u64::MAX - key.0) as u32;
                let more = order.sorted().all(disk).take_while(move |entry| entry.0 < class);
                let near = order.maps[disk as usize].nearer(position.arm_at, key.1);
                let as_many = order.sorted().range(disk, class, u64::from(near.start)..u64::from(near.end));
                Box::new(more.map(handle).chain(as_many.map(handle).filter(below)))
            }
            WhatPolicy::CScan | WhatPolicy::Wow | WhatPolicy::Stow => {
                let sweep = move |class| {
                    order.sorted().sweep(disk, class, position.hand).map(handle).take_while(below)
                };
                Box::new((0..4).flat_map(sweep))
            }
        };
        let mut blocks = 0;
        for handle in handles {
            blocks += u64::from(regions[handle as usize].waiting());
            if blocks >= enough {
                break;
            }
        }
        blocks
    }

    /// Panics where it is not what the regions in use say.
    pub(super) fn check(&self, regions: &[DirtyRegion], in_use: &[u32]) {
        let disks = 0..self.maps.len() as u32;
        for chain in [Some(&self.by_age), self.by_write.as_ref()].into_iter().flatten() {
            assert_eq!(disks.clone().map(|disk| chain.iter(disk).count()).sum::<usize>(), in_use.len());
            assert!(
                disks
                    .clone()
                    .all(|disk| chain.iter(disk).all(|handle| regions[handle as usize].id.disk == disk))
            );
        }
        let Some(sorted) = &self.sorted else { return };
        let (mut waiting, mut count) = (vec![[0; 2]; self.maps.len()], 0);
        for &handle in in_use {
            let region = &regions[handle as usize];
            let known = sorted.known(handle);
            assert!(region.stale || known == self.known(region), "the order knows how a region is");
            if known.first != NONE {
                assert!(sorted.contains(region.id.disk, &(known.first, self.second(region), handle)));
                count += 1;
                if self.what == WhatPolicy::Stow {
                    waiting[region.id.disk as usize][known.first as usize / 2] += u64::from(known.waiting);
                }
            }
        }
        assert_eq!((count, &waiting), (sorted.len(), &self.waiting));
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::write_cache::{BlockId, Pool, SlotIndex, Stretch};
    use dcd_engine::destage::what::{self, Chosen};

    const REGION: u64 = 4;
    const REGIONS: u32 = 24;

    /// A region as a policy sees it.
    fn part(region: &DirtyRegion, at: Position) -> Part {
        let number = region.id.number;
        let ahead = if number > at.hand { number - at.hand - 1 } else { number + REGIONS - at.hand - 1 };
        Part {
            number: region.since,
            dirty_sectors: u64::from(region.waiting()),
            written: region.written,
            ahead: u64::from(ahead),
            distance: 0,
            referenced: region.referenced,
        }
    }

    fn waiting_regions(pool: &Pool, disk: u32) -> impl Iterator<Item = &DirtyRegion> + Clone {
        pool.regions().filter(move |region| region.id.disk == disk && region.waiting() > 0)
    }

    fn waits(pool: &Pool, slot: SlotIndex, region: RegionId) -> bool {
        pool.region(region).is_some_and(|region| pool.waiting_blocks(region).any(|other| other == slot))
    }

    /// Chooses by looking at all regions.
    fn looked_up(
        pool: &Pool,
        what: WhatPolicy,
        map: &Regions,
        at: Position,
        queue: Option<StowQueue>,
    ) -> Option<Chosen<RegionId>> {
        let of_queue = |region: &&DirtyRegion| queue.is_none_or(|queue| region.queue(REGION, 1) == queue);
        let parts =
            waiting_regions(pool, at.disk).filter(of_queue).map(|region| (region.id, part(region, at)));
        what::choose(what, parts, |id| map.distance(at.arm_at, id.number))
    }

    /// The blocks of regions that go before a key, found by looking at all of them.
    fn looked_before(pool: &Pool, what: WhatPolicy, map: &Regions, at: Position, key: (u64, u64)) -> u64 {
        let goes = |region: &&DirtyRegion| {
            let distance = map.distance(at.arm_at, region.id.number);
            what.key(&Part { distance, ..part(region, at) }) < key
        };
        waiting_regions(pool, at.disk).filter(goes).map(|region| u64::from(region.waiting())).sum()
    }

    #[test]
    fn the_order_chooses_what_looking_at_all_regions_would() {
        let stretch = |regions, first_step| Stretch {
            regions,
            region_sectors: REGION,
            regions_per_step: 3,
            first_step,
        };
        let rising = Regions::new(&[stretch(12, 0), stretch(12, 4)]);
        let falling = Regions::new(&[stretch(12, 4), stretch(12, 0)]);
        let all = WhatPolicy::ALL
            .map(|what| (what, &rising))
            .into_iter()
            .chain([(WhatPolicy::MostDirty, &falling)]);
        for (what, map) in all {
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(12);
            let maps = [map.clone(), map.clone()];
            let mut pool = Pool::new(64).with_order(Order::new(what, 1, maps.into_iter()));
            let (mut with_chances, mut turns) = (0, [0; 2]);
            for step in 0..12000 {
                let block = BlockId {
                    disk: rng.random_range(0..2),
                    number: rng.random_range(0..u64::from(REGIONS) * REGION),
                };
                let region = RegionId { disk: block.disk, number: (block.number / REGION) as u32 };
                match (pool.find(block), rng.random_range(0..6)) {
                    (Some(slot), 0) if waits(&pool, slot, region) => pool.begin_write(slot),
                    (Some(slot), 1) if pool.is_dirty(slot) && !waits(&pool, slot, region) => {
                        pool.end_write(slot, rng.random_bool(0.9));
                    }
                    (Some(slot), _) => pool.write(slot, region, step),
                    (None, _) => {
                        if let Some(slot) = pool.insert(block) {
                            pool.write(slot, region, step);
                        }
                    }
                }
                pool.check();
                // The order is asked after one change, or after several.
                if rng.random_bool(0.5) {
                    continue;
                }
                let mut at = |disk| Position {
                    disk,
                    hand: rng.random_range(0..REGIONS),
                    arm_at: rng.random_range(0..REGIONS),
                };
                let (at, other) = (at(0), at(1));
                let queue = (what == WhatPolicy::Stow).then(|| StowQueue::of(rng.random_bool(0.5)));
                for name in [what, WhatPolicy::OldestFirst] {
                    let queue = queue.filter(|_| name == what);
                    let expected = looked_up(&pool, name, map, at, queue);
                    let chosen = pool.choose(name, queue, at).copied();
                    assert_eq!(
                        chosen.map(|best| best.id),
                        expected.as_ref().map(|chosen| chosen.best),
                        "{what:?}, step {step}"
                    );
                    let (Some(best), Some(expected)) = (chosen, expected) else { continue };
                    if name == what {
                        let key = pool.key(&best, at).expect("it has an order");
                        assert_eq!(key, expected.key);
                        let before = looked_before(&pool, what, map, other, key);
                        assert_eq!(pool.before(other, key, u64::MAX), before, "{what:?}, step {step}");
                        let enough = rng.random_range(1..64);
                        assert_eq!(pool.before(other, key, enough) >= enough, before >= enough);
                        turns[before.min(1) as usize] += 1;
                    }
                    if step % 4 == 0 {
                        let stamp = pool.stamp();
                        assert_eq!(pool.pass_over(&best, name, queue, at), expected.passed.len());
                        with_chances += expected.passed.len();
                        for (index, &id) in expected.passed.iter().enumerate() {
                            let region = pool.region(id).expect("it has dirty blocks");
                            assert_eq!((region.since, region.referenced), (stamp + 1 + index as u64, false));
                        }
                    }
                }
            }
            assert!(turns.iter().all(|&count| count > 30), "{what:?}: {turns:?}");
            let gives_chances = what.gives_chances();
            assert_eq!(with_chances > 100, gives_chances, "{what:?}: {with_chances}");
        }
    }
}
