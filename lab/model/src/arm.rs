//! Tells a write cache what a controller that sees the arm of a drive knows: which blocks lie together, and which pass the head
//! before a read begins (Biswas et al. 1993, section 2.3).
//!
//! The rotation follows from the time, and the arm is where the last command left it. So a copy of the drive's mechanics
//! knows as much as the drive, provided that the drive has no other user and does not reorder.

use crate::write_cache::{self, DiskMap, RegionUnit, Regions, Stretch};
use dcd_engine::{Extent, Lba, Nanos};

use crate::Drive;
use crate::geometry::{Geometry, Zone};
use crate::mechanics::{Arm, Mechanics, Pass, Wanted};

struct DriveArm {
    mechanics: Mechanics,
    at: Arm,
}

impl write_cache::Arm for DriveArm {
    fn on_track(&self, now: Nanos, to: Lba, write: bool) -> Nanos {
        now + Nanos(self.mechanics.approach(self.at, &self.mechanics.geometry.locate(to), write))
    }

    fn pass(&self, at: Nanos, extent: Extent) -> (Nanos, Nanos) {
        let spot = self.mechanics.geometry.locate(extent.start);
        let passage = self.mechanics.transfer(&Wanted {
            access: Pass::Read,
            arm: Arm::from(&spot),
            lba: extent.start,
            spot,
            sectors: extent.sectors,
            at,
            data_at: at,
        });
        (Nanos(passage.first.0 - self.mechanics.passing(&spot, 1)), passage.end)
    }

    fn switch(&self, from: Lba, to: Lba) -> Nanos {
        let geometry = &self.mechanics.geometry;
        Nanos(self.mechanics.approach(Arm::from(&geometry.locate(from)), &geometry.locate(to), false))
    }

    fn moved(&mut self, to: Lba) {
        self.at = Arm::from(&self.mechanics.geometry.locate(to));
    }
}

/// The map of a drive for a write cache: its tracks or its cylinders, and its arm.
pub fn disk_map(drive: &Drive, unit: RegionUnit) -> DiskMap {
    let mechanics = drive.mechanics.clone();
    let geometry = &mechanics.geometry;
    let heads = geometry.heads();
    let mut stretches: Vec<Stretch> = Vec::new();
    for zone in geometry.zones() {
        let track = u64::from(zone.sectors_per_track);
        let first_step = u64::from(zone.first_cylinder);
        match unit {
            _ if !zone.is_even() => {
                for cylinder in cylinders(geometry, zone) {
                    extend(&mut stretches, &cylinder, unit);
                }
            }
            RegionUnit::Track => stretches.push(Stretch {
                regions: zone.cylinders * heads,
                region_sectors: track,
                regions_per_step: heads,
                first_step,
            }),
            RegionUnit::Cylinder => stretches.push(Stretch {
                regions: zone.cylinders,
                region_sectors: track * u64::from(heads),
                regions_per_step: 1,
                first_step,
            }),
        }
    }
    DiskMap {
        regions: Regions::new(&stretches),
        arm: Some(Box::new(DriveArm { mechanics, at: Arm::default() })),
    }
}

/// A cylinder, and how many sectors with an address each of its tracks holds, in the order of addresses.
struct Cylinder {
    number: u32,
    tracks: Vec<u64>,
}

/// The cylinders of a zone some of whose places have no address, because they are spare or were found bad.
fn cylinders(geometry: &Geometry, zone: &Zone) -> Vec<Cylinder> {
    let end = zone.first_lba + zone.sectors(geometry.heads());
    let end = end.min(Lba(geometry.sectors()));
    let mut found: Vec<Cylinder> = Vec::new();
    let mut lba = zone.first_lba;
    while lba < end {
        let spot = geometry.locate(lba);
        let next = geometry.track_end(lba, &spot).min(end);
        match found.last_mut().filter(|last| last.number == spot.cylinder) {
            Some(last) => last.tracks.push(next - lba),
            None => found.push(Cylinder { number: spot.cylinder, tracks: vec![next - lba] }),
        }
        lba = next;
    }
    found
}

/// Adds a cylinder: to the last stretch, where it is like the cylinders there and follows them.
fn extend(stretches: &mut Vec<Stretch>, cylinder: &Cylinder, unit: RegionUnit) {
    let first_step = u64::from(cylinder.number);
    let whole = [cylinder.tracks.iter().sum()];
    let regions: &[u64] = if unit == RegionUnit::Cylinder { &whole } else { &cylinder.tracks };
    for equal in regions.chunk_by(|a, b| a == b) {
        let (count, region_sectors) = (equal.len() as u32, equal[0]);
        let like = |last: &&mut Stretch| {
            last.region_sectors == region_sectors
                && last.regions_per_step == count
                && last.first_step + u64::from(last.regions / count) == first_step
        };
        match stretches.last_mut().filter(like) {
            Some(last) => last.regions += count,
            None => stretches.push(Stretch {
                regions: count,
                region_sectors,
                regions_per_step: count,
                first_step,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive;

    #[test]
    fn a_region_is_a_track_or_a_cylinder() {
        check_regions("barracuda-1996");
    }

    #[test]
    fn spares_and_slips_belong_to_no_region() {
        let drive = check_regions("atlas-10k");
        assert!(drive.mechanics.geometry.zones().iter().any(|zone| !zone.is_even()));
    }

    fn check_regions(name: &str) -> Drive {
        let drive = drive::builtin(name).expect("a built-in drive");
        let tracks = disk_map(&drive, RegionUnit::Track).regions;
        let cylinders = disk_map(&drive, RegionUnit::Cylinder).regions;
        let cylinder_at = |lba| drive.locate(Lba(lba)).cylinder;
        let mut last = None;
        for lba in (0..drive.sectors()).step_by(77_777) {
            let spot = drive.locate(Lba(lba));
            let number = tracks.region_of(Lba(lba));
            let track = tracks.extent(number);
            let on_it = |lba| {
                let other = drive.locate(Lba(lba));
                (other.cylinder, other.head) == (spot.cylinder, spot.head)
            };
            assert!(on_it(track.start.0) && on_it(track.end().0 - 1), "{lba}");
            assert!(track.start.0 == 0 || !on_it(track.start.0 - 1), "{lba}");
            let cylinder = cylinders.extent(cylinders.region_of(Lba(lba)));
            assert_eq!(
                [cylinder.start.0, cylinder.end().0 - 1].map(cylinder_at),
                [spot.cylinder; 2],
                "{lba}"
            );
            if let Some((before, cylinder)) = last.replace((number, spot.cylinder)) {
                assert_eq!(tracks.distance(before, number), u64::from(spot.cylinder.abs_diff(cylinder)));
            }
        }
        drive
    }

    #[test]
    fn what_passes_first_is_known_from_the_time() {
        let drive = drive::builtin("barracuda-1996").expect("a built-in drive");
        let mut arm = disk_map(&drive, RegionUnit::Track).arm.expect("a drive has an arm");
        arm.moved(Lba(100));
        let now = Nanos::from_millis(7);
        assert_eq!(arm.on_track(now, Lba(0), false), now, "the arm is on that track");
        let (begins, ends) = arm.pass(now, Extent::new(Lba(5), 2));
        let (next, _) = arm.pass(now, Extent::new(Lba(7), 1));
        assert!(
            begins >= now && (next == ends || ends > next),
            "neighbours follow each other, or the turn ended"
        );
        let (again, _) = arm.pass(Nanos(begins.0 + 1), Extent::new(Lba(5), 2));
        assert!(again.since(begins) > Nanos::from_millis(8), "and come again after a revolution");
    }
}
