//! The dirty regions of each disk in the order of a policy: the next one to purge is found without looking at all of them.
//!
//! A region is in the order of its disk while a block of it waits to be written, under the numbers that the policy compares. Where the policy
//! compares places, its number on the disk stands for them: places ahead of a hand and the nearest to an arm are found from there.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;

use super::pool::DirtyRegion;
use super::regions::Regions;
use crate::destage::stow::Queue;
use crate::destage::what::WhatPolicy;

/// What a policy compares, and the region's index in the pool.
type Entry = (u64, u64, u32);

/// The regions of one disk.
struct OfDisk {
    map: Regions,
    entries: BTreeSet<Entry>,
    /// Blocks that wait, in sequential regions and in the others.
    waiting: [u64; 2],
}

/// What is known of a region of the pool.
#[derive(Clone, Copy)]
struct Known {
    entry: Option<Entry>,
    queue: Queue,
    waiting: u32,
}

/// See the module's documentation.
pub struct Order {
    what: WhatPolicy,
    block_sectors: u64,
    disks: Vec<OfDisk>,
    /// By the index of the region in the pool.
    known: Vec<Known>,
}

impl Order {
    pub fn new(what: WhatPolicy, block_sectors: u64, maps: impl Iterator<Item = Regions>) -> Order {
        let of_disk = |map| OfDisk { map, entries: BTreeSet::new(), waiting: [0; 2] };
        Order { what, block_sectors, disks: maps.map(of_disk).collect(), known: Vec::new() }
    }

    pub fn what(&self) -> WhatPolicy {
        self.what
    }

    /// Blocks of a disk that wait, in sequential regions and in the others.
    pub fn waiting(&self, disk: u32) -> [u64; 2] {
        self.disks[disk as usize].waiting
    }

    fn entry(&self, region: &DirtyRegion, queue: Queue, index: u32) -> Option<Entry> {
        let (waiting, number) = (u64::from(region.waiting()), u64::from(region.id.number));
        let referenced = u64::from(region.referenced);
        let (first, second) = match self.what {
            WhatPolicy::OldestFirst => (region.since, 0),
            WhatPolicy::LastWriteFirst => (u64::MAX - region.since, 0),
            WhatPolicy::LeastValidFirst => (waiting, region.since),
            WhatPolicy::LeastRecentlyWritten => (region.written, region.since),
            WhatPolicy::MostDirty => (u64::MAX - waiting, number),
            WhatPolicy::CScan => (0, number),
            WhatPolicy::Clock => (referenced, region.since),
            WhatPolicy::Wow => (referenced, number),
            WhatPolicy::Stow => (2 * queue as u64 + referenced, number),
        };
        (waiting > 0).then_some((first, second, index))
    }

    /// A region is new, or has changed.
    pub fn changed(&mut self, region: &DirtyRegion, index: usize) {
        let sectors = || self.disks[region.id.disk as usize].map.extent(region.id.number).sectors;
        let queue = match self.what {
            WhatPolicy::Stow => region.queue(sectors(), self.block_sectors),
            _ => Queue::Random,
        };
        let entry = self.entry(region, queue, index as u32);
        let new = Known { entry, queue, waiting: region.waiting() };
        let disk = &mut self.disks[region.id.disk as usize];
        if let Some(old) = self.known.get(index).copied() {
            disk.waiting[old.queue as usize] -= u64::from(old.waiting);
            if let Some(old) = old.entry.filter(|_| old.entry != entry) {
                disk.entries.remove(&old);
            }
            self.known[index] = new;
        } else {
            self.known.push(new);
        }
        disk.waiting[queue as usize] += u64::from(new.waiting);
        disk.entries.extend(entry);
    }

    /// A region is forgotten, and the last one gets its index.
    pub fn forgotten(&mut self, region: &DirtyRegion, index: usize, last: &DirtyRegion) {
        let Known { entry, queue, waiting } = self.known.swap_remove(index);
        let disk = &mut self.disks[region.id.disk as usize];
        disk.waiting[queue as usize] -= u64::from(waiting);
        entry.map(|entry| disk.entries.remove(&entry));
        if let Some(moved) = self.known.get_mut(index).and_then(|known| known.entry.as_mut()) {
            let entries = &mut self.disks[last.id.disk as usize].entries;
            entries.remove(moved);
            moved.2 = index as u32;
            entries.insert(*moved);
        }
    }

    /// The region of a disk that the policy purges first, and those that would have gone before it but for their second chance, in the order of
    /// the pool. `hand`: where the sweep has come to. `arm_at`: the region where the arm is.
    pub fn choose(&self, disk: u32, queue: Option<Queue>, hand: u32, arm_at: u32) -> Option<(u32, Vec<u32>)> {
        let OfDisk { map, entries, .. } = &self.disks[disk as usize];
        let class = queue.map_or(0, |queue| 2 * queue as u64);
        let of = |first| entries.range((first, 0, 0)..(first + 1, 0, 0));
        let ahead = |first| {
            let from = (first, u64::from(hand) + 1, 0);
            entries.range(from..(first + 1, 0, 0)).next().or_else(|| of(first).next())
        };
        let mut passed = Vec::new();
        let best = match self.what {
            WhatPolicy::CScan => ahead(0)?,
            WhatPolicy::Wow | WhatPolicy::Stow => {
                let fresh = ahead(class);
                let best = fresh.or_else(|| ahead(class + 1))?;
                let after_hand = u64::from(hand) + 1;
                let mut pass = |numbers: Range<u64>| {
                    let (from, to) = ((class + 1, numbers.start, 0), (class + 1, numbers.end, 0));
                    passed.extend(entries.range(from..to).map(|entry| entry.2));
                };
                match fresh {
                    None => pass(0..u64::MAX),
                    Some(_) if best.1 >= after_hand => pass(after_hand..best.1),
                    Some(_) => {
                        pass(after_hand..u64::MAX);
                        pass(0..best.1);
                    }
                }
                best
            }
            WhatPolicy::Clock => {
                let best = entries.first()?;
                let goes = |entry: &&Entry| best.0 == 1 || entry.1 < best.1;
                passed.extend(of(1).take_while(goes).map(|entry| entry.2));
                best
            }
            WhatPolicy::MostDirty => {
                let first = entries.first()?.0;
                let distance = |entry: &Entry| map.distance(arm_at, entry.1 as u32);
                let middle = (first, u64::from(arm_at), 0);
                let end = (first, u64::MAX, u32::MAX);
                let (mut up, down) = (entries.range(middle..=end), entries.range((first, 0, 0)..middle));
                let (mut nearest, mut best): (u64, Option<&Entry>) = (u64::MAX, None);
                // Several may be as near, on each side.
                for side in [&mut up as &mut dyn Iterator<Item = &Entry>, &mut down.rev()] {
                    for entry in side {
                        let as_near = match distance(entry).cmp(&nearest) {
                            Ordering::Less => None,
                            Ordering::Equal => best,
                            Ordering::Greater => break,
                        };
                        nearest = distance(entry);
                        best = as_near.into_iter().chain([entry]).min_by_key(|entry| entry.2);
                    }
                }
                best?
            }
            _ => entries.first()?,
        };
        passed.retain(|index| *index != best.2);
        passed.sort_unstable();
        Some((best.2, passed))
    }

    /// Panics where it is not what the regions say.
    pub fn check(&self, regions: &[DirtyRegion]) {
        let mut waiting = vec![[0; 2]; self.disks.len()];
        let mut count = 0;
        for (index, region) in regions.iter().enumerate() {
            let Known { entry, queue, .. } = self.known[index];
            assert_eq!(entry, self.entry(region, queue, index as u32), "the order knows how a region is");
            let entries = &self.disks[region.id.disk as usize].entries;
            assert!(entry.is_none_or(|entry| entries.contains(&entry)));
            count += usize::from(entry.is_some());
            waiting[region.id.disk as usize][queue as usize] += u64::from(region.waiting());
        }
        assert_eq!(count, self.disks.iter().map(|disk| disk.entries.len()).sum::<usize>());
        assert!(self.disks.iter().zip(waiting).all(|(disk, waiting)| disk.waiting == waiting));
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};

    use super::*;
    use crate::destage::what::{self, Chosen, Part};
    use crate::write_cache::{BlockId, Pool, RegionId, Stretch};

    const ALL: [WhatPolicy; 9] = [
        WhatPolicy::OldestFirst,
        WhatPolicy::LastWriteFirst,
        WhatPolicy::LeastValidFirst,
        WhatPolicy::LeastRecentlyWritten,
        WhatPolicy::MostDirty,
        WhatPolicy::CScan,
        WhatPolicy::Clock,
        WhatPolicy::Wow,
        WhatPolicy::Stow,
    ];
    const REGION: u64 = 4;
    const REGIONS: u32 = 24;

    /// What looking at all regions says.
    fn looked_up(
        pool: &Pool,
        what: WhatPolicy,
        map: &Regions,
        at: [u32; 3],
        queue: Option<Queue>,
    ) -> Option<Chosen<RegionId>> {
        let [disk, hand, arm_at] = at;
        let of_queue = |region: &&DirtyRegion| queue.is_none_or(|queue| region.queue(REGION, 1) == queue);
        let regions = pool.regions().iter().filter(|region| region.id.disk == disk && region.waiting() > 0);
        let parts = regions.filter(of_queue).map(|region| {
            let number = region.id.number;
            let ahead = if number > hand { number - hand - 1 } else { number + REGIONS - hand - 1 };
            let part = Part {
                number: region.since,
                dirty_sectors: u64::from(region.waiting()),
                written: region.written,
                ahead: u64::from(ahead),
                distance: 0,
                referenced: region.referenced,
            };
            (region.id, part)
        });
        what::choose(what, parts, |id| map.distance(arm_at, id.number))
    }

    #[test]
    fn the_order_chooses_what_looking_at_all_regions_would() {
        let stretch = |regions, first_step| Stretch {
            regions,
            region_sectors: REGION,
            regions_per_step: 3,
            first_step,
        };
        let map = Regions::new(&[stretch(12, 0), stretch(12, 4)]);
        for what in ALL {
            let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(12);
            let maps = [map.clone(), map.clone()];
            let mut pool = Pool::new(64).with_order(Order::new(what, 1, maps.into_iter()));
            let mut with_chances = 0;
            for step in 0..6000 {
                let block = BlockId {
                    disk: rng.random_range(0..2),
                    number: rng.random_range(0..u64::from(REGIONS) * REGION),
                };
                let region = RegionId { disk: block.disk, number: (block.number / REGION) as u32 };
                match (pool.find(block), rng.random_range(0..6)) {
                    (Some(slot), 0) if pool.waiting_blocks(region).any(|other| other == slot) => {
                        pool.begin_write(slot, region)
                    }
                    (Some(slot), 1)
                        if pool.is_dirty(slot) && pool.waiting_blocks(region).all(|other| other != slot) =>
                    {
                        pool.end_write(slot, region, rng.random_bool(0.9));
                    }
                    (Some(slot), _) => pool.write(slot, region, step),
                    (None, _) => {
                        if let Some(slot) = pool.insert(block) {
                            pool.write(slot, region, step);
                        }
                    }
                }
                pool.check();
                let at = [rng.random_range(0..2), rng.random_range(0..REGIONS), rng.random_range(0..REGIONS)];
                let queue = (what == WhatPolicy::Stow).then(|| Queue::of(rng.random_bool(0.5)));
                let expected = looked_up(&pool, what, &map, at, queue);
                let order = pool.order().expect("it has one");
                let chosen = order.choose(at[0], queue, at[1], at[2]);
                let id = |index: u32| pool.regions()[index as usize].id;
                let chosen =
                    chosen.map(|(best, passed)| (id(best), passed.into_iter().map(id).collect::<Vec<_>>()));
                assert_eq!(
                    chosen,
                    expected.map(|chosen| (chosen.best, chosen.passed)),
                    "{what:?}, step {step}"
                );
                if let Some((_, passed)) = chosen.filter(|_| step % 4 == 0) {
                    with_chances += passed.len();
                    passed.into_iter().for_each(|region| pool.pass_over(region));
                }
            }
            let gives_chances = what::policy(what).gives_chances();
            assert_eq!(with_chances > 100, gives_chances, "{what:?}: {with_chances}");
        }
    }
}
