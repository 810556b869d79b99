//! What a controller that sees the arm of a drive can tell a write cache: which blocks lie together, and which pass the head
//! before a read begins (Biswas et al. 1993, section 2.3).
//!
//! The rotation follows from the time, and the arm is where the last command left it: so a copy of the drive's mechanics
//! knows as much as the drive, as long as nobody else uses it and it does not reorder.

use dcd_engine::write_cache::{self, DiskMap, RegionUnit, Regions, Stretch};
use dcd_engine::{Extent, Lba, Nanos};

use crate::Drive;
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
    let heads = mechanics.geometry.heads();
    let stretches: Vec<Stretch> = mechanics
        .geometry
        .zones()
        .iter()
        .map(|zone| {
            let track = u64::from(zone.sectors_per_track);
            match unit {
                RegionUnit::Track => Stretch {
                    regions: zone.cylinders * heads,
                    region_sectors: track,
                    regions_per_step: heads,
                },
                RegionUnit::Cylinder => Stretch {
                    regions: zone.cylinders,
                    region_sectors: track * u64::from(heads),
                    regions_per_step: 1,
                },
            }
        })
        .collect();
    DiskMap {
        regions: Regions::new(&stretches),
        arm: Some(Box::new(DriveArm { mechanics, at: Arm::default() })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive;

    #[test]
    fn a_region_is_a_track_or_a_cylinder() {
        let drive = drive::builtin("barracuda-1996").expect("a built-in drive");
        let mut last = None;
        for lba in (0..drive.sectors()).step_by(77_777) {
            let spot = drive.locate(Lba(lba));
            let tracks = disk_map(&drive, RegionUnit::Track).regions;
            let track = tracks.extent(tracks.region_of(Lba(lba)));
            assert_eq!(track.start, Lba(lba - u64::from(spot.sector)));
            assert_eq!(track.sectors, u64::from(spot.sectors_per_track));
            let cylinders = disk_map(&drive, RegionUnit::Cylinder).regions;
            assert_eq!(cylinders.region_of(Lba(lba)), spot.cylinder);
            if let Some((region, cylinder)) = last.replace((tracks.region_of(Lba(lba)), spot.cylinder)) {
                assert_eq!(
                    tracks.distance(region, tracks.region_of(Lba(lba))),
                    u64::from(spot.cylinder.abs_diff(cylinder))
                );
            }
        }
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
