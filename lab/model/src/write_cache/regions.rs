//! Regions: blocks that lie together on a disk, on a track, on a cylinder, or, where tracks cannot be seen, in a range of addresses.
//!
//! Everything here is a number on one disk; code that knows the disk makes the map (`dcd-model` for drives).

use std::ops::Range;

use dcd_engine::{Extent, Lba, Nanos};

/// Equal regions, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegionRun {
    first_lba: u64,
    first_region: u32,
    region_sectors: u64,
    /// Regions from one step of the arm to the next: the tracks of a cylinder.
    regions_per_step: u32,
    first_step: u64,
}

/// A disk cut into regions, in the order of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Regions {
    runs: Vec<RegionRun>,
    sectors: u64,
    count: u32,
    /// No cylinder is below that of the region before. On a shingled drive some are.
    pub rises: bool,
}

/// A stretch of equal regions, for [`Regions::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub regions: u32,
    pub region_sectors: u64,
    /// The number of them that the arm reaches without moving: the tracks of a cylinder, 1 for cylinders and plain ranges.
    pub regions_per_step: u32,
    /// The cylinder of the first of them, where that is known.
    pub first_step: u64,
}

impl Regions {
    /// A disk of these stretches.
    ///
    /// # Panics
    /// For none, and for an empty one.
    pub fn new(stretches: &[Stretch]) -> Regions {
        assert!(!stretches.is_empty(), "a disk has regions");
        let (mut lba, mut region, mut step, mut rises) = (0, 0, 0, true);
        let runs = stretches
            .iter()
            .map(|stretch| {
                assert!(stretch.regions > 0 && stretch.region_sectors > 0 && stretch.regions_per_step > 0);
                let run = RegionRun {
                    first_lba: lba,
                    first_region: region,
                    region_sectors: stretch.region_sectors,
                    regions_per_step: stretch.regions_per_step,
                    first_step: stretch.first_step,
                };
                rises &= stretch.first_step >= step;
                step = stretch.first_step + u64::from((stretch.regions - 1) / stretch.regions_per_step);
                lba += u64::from(stretch.regions) * stretch.region_sectors;
                region += stretch.regions;
                run
            })
            .collect();
        Regions { runs, sectors: lba, count: region, rises }
    }

    /// A disk whose tracks cannot be seen, in regions of one size.
    pub fn uniform(sectors: u64, region_sectors: u64) -> Regions {
        let regions = u32::try_from(sectors.div_ceil(region_sectors)).expect("fewer than 2^32 regions");
        Regions::new(&[Stretch { regions, region_sectors, regions_per_step: 1, first_step: 0 }])
    }

    /// The number of regions.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The sectors that have a region.
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    pub fn region_of(&self, lba: Lba) -> u32 {
        let run = &self.runs[self.runs.partition_point(|run| run.first_lba <= lba.0) - 1];
        run.first_region + ((lba.0 - run.first_lba) / run.region_sectors) as u32
    }

    /// The sectors of a region.
    pub fn extent(&self, region: u32) -> Extent {
        let run = self.run_of(region);
        let first = run.first_lba + u64::from(region - run.first_region) * run.region_sectors;
        Extent::new(Lba(first), run.region_sectors)
    }

    /// The distance between two regions: in cylinders, where they are known.
    pub fn distance(&self, from: u32, to: u32) -> u64 {
        self.step(from).abs_diff(self.step(to))
    }

    /// A range with all regions that are less far from `to` than `distance`. Where cylinders fall, it has others, too.
    pub fn nearer(&self, to: u32, distance: u64) -> Range<u32> {
        if !self.rises {
            return 0..self.count;
        }
        let step = self.step(to);
        let first = |reached: &dyn Fn(u64) -> bool| {
            let (mut from, mut until) = (0, self.count);
            while from < until {
                let middle = from + (until - from) / 2;
                if reached(self.step(middle)) { until = middle } else { from = middle + 1 }
            }
            from
        };
        let start = first(&|other| other + distance > step);
        start..first(&|other| other >= step + distance).max(start)
    }

    fn step(&self, region: u32) -> u64 {
        let run = self.run_of(region);
        run.first_step + u64::from((region - run.first_region) / run.regions_per_step)
    }

    fn run_of(&self, region: u32) -> &RegionRun {
        &self.runs[self.runs.partition_point(|run| run.first_region <= region) - 1]
    }
}

/// The arm and the platters, for a controller that sees them; without it there is no *free* piggybacking.
pub trait Arm {
    /// The time at which the head could begin to read or write on the track of `to` if it began to move at `now`.
    fn on_track(&self, now: Nanos, to: Lba, write: bool) -> Nanos;

    /// Returns when, from `at` on, the extent's first sector comes under the head, and when its last one has passed. The extent
    /// lies on one track, and the head is over it.
    fn pass(&self, at: Nanos, extent: Extent) -> (Nanos, Nanos);

    /// The time between the end of a transfer on the track of `from` and the earliest start on that of `to`, in one cylinder.
    fn switch(&self, from: Lba, to: Lba) -> Nanos;

    /// The disk has carried out a transfer that ended here.
    fn moved(&mut self, to: Lba);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sector_is_in_its_region() {
        let stretch = |regions, region_sectors, first_step| Stretch {
            regions,
            region_sectors,
            regions_per_step: 3,
            first_step,
        };
        let regions = Regions::new(&[stretch(6, 10, 0), stretch(9, 7, 2)]);
        assert_eq!(regions.sectors(), 60 + 63);
        for lba in 0..regions.sectors() {
            let region = regions.region_of(Lba(lba));
            assert!(regions.extent(region).contains(Lba(lba)), "{lba}");
        }
        assert_eq!((regions.region_of(Lba(59)), regions.region_of(Lba(60))), (5, 6));
        assert_eq!(regions.extent(7), Extent::new(Lba(67), 7));
        assert_eq!((regions.distance(0, 2), regions.distance(2, 3), regions.distance(14, 0)), (0, 1, 4));
        assert!(regions.rises && !Regions::new(&[stretch(6, 10, 2), stretch(9, 7, 0)]).rises);
        for (to, distance) in (0..15).flat_map(|to| (0..7).map(move |distance| (to, distance))) {
            let nearer: Vec<u32> = (0..15).filter(|&other| regions.distance(to, other) < distance).collect();
            assert_eq!(regions.nearer(to, distance).collect::<Vec<_>>(), nearer, "{to}, {distance}");
        }
    }

    #[test]
    fn a_disk_without_tracks_has_ranges() {
        let regions = Regions::uniform(1000, 256);
        assert_eq!((regions.region_of(Lba(999)), regions.distance(0, 3)), (3, 3));
    }
}
