//! Where a sector is: LBA to zone, cylinder, head, sector, and the angle under which it passes the head.
//!
//! LBAs run through the tracks of a cylinder, head by head, then on to the next cylinder. From track to track the first
//! sector is shifted by a skew, so that a sequential transfer finds it just after the head has changed. All angles are
//! kept as integer nanoseconds of one revolution, and the end of a sector is computed exactly as the start of the next
//! one: a request that continues where the last one ended finds its sector at once and not one revolution later.

use dcd_engine::{Lba, Nanos};

/// Cylinders with the same number of sectors on each track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub first_cylinder: u32,
    pub cylinders: u32,
    pub sectors_per_track: u32,
    /// Sectors by which the first sector is shifted from one head to the next.
    pub track_skew: u32,
    /// The same from the last head of a cylinder to the first head of the next one.
    pub cylinder_skew: u32,
    pub first_lba: Lba,
    /// The angle of the zone's first sector, in nanoseconds of a revolution.
    first_angle: u64,
}

/// One track, for whoever lays out data by rotation (a log, for instance).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Track {
    pub first_lba: Lba,
    pub sectors: u32,
    /// The part of a revolution (0 to 1) after which its first sector comes under the head, counted from time 0.
    pub start_angle: f64,
    pub cylinder: u32,
    pub head: u32,
}

/// The place of one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    pub(crate) zone: u32,
    pub cylinder: u32,
    pub head: u32,
    /// Counted along the track, from its first LBA.
    pub sector: u32,
    pub sectors_per_track: u32,
    /// The angle of the track's sector 0, in nanoseconds of a revolution.
    pub(crate) track_angle: u64,
}

/// The places of all sectors.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    revolution: u64,
    heads: u32,
    zones: Vec<Zone>,
    sectors: u64,
    cylinders: u32,
}

/// What a drive file says of a zone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ZoneShape {
    pub cylinders: u32,
    pub sectors_per_track: u32,
    pub track_skew: u32,
    pub cylinder_skew: u32,
}

impl Geometry {
    /// The shapes have been checked: no zero, no skew of a whole track or more, sums that fit.
    pub fn new(revolution: Nanos, heads: u32, shapes: &[ZoneShape]) -> Geometry {
        let mut geometry =
            Geometry { revolution: revolution.0, heads, zones: Vec::new(), sectors: 0, cylinders: 0 };
        for shape in shapes {
            let first_angle = geometry.zones.last().map_or(0, |last| geometry.angle_after(last, shape));
            geometry.zones.push(Zone {
                first_cylinder: geometry.cylinders,
                cylinders: shape.cylinders,
                sectors_per_track: shape.sectors_per_track,
                track_skew: shape.track_skew,
                cylinder_skew: shape.cylinder_skew,
                first_lba: Lba(geometry.sectors),
                first_angle,
            });
            geometry.cylinders += shape.cylinders;
            geometry.sectors +=
                u64::from(shape.cylinders) * u64::from(heads) * u64::from(shape.sectors_per_track);
        }
        geometry
    }

    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    pub fn cylinders(&self) -> u32 {
        self.cylinders
    }

    pub fn heads(&self) -> u32 {
        self.heads
    }

    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    pub fn revolution(&self) -> u64 {
        self.revolution
    }

    /// The place of a sector.
    ///
    /// # Panics
    /// Past the end of the drive.
    pub fn locate(&self, lba: Lba) -> Spot {
        assert!(lba.0 < self.sectors, "{lba} is past the drive's {} sectors", self.sectors);
        let index = self.zones.partition_point(|zone| zone.first_lba <= lba) - 1;
        let zone = &self.zones[index];
        let within = lba - zone.first_lba;
        let per_track = u64::from(zone.sectors_per_track);
        let track = within / per_track;
        let heads = u64::from(self.heads);
        Spot {
            zone: index as u32,
            cylinder: zone.first_cylinder + (track / heads) as u32,
            head: (track % heads) as u32,
            sector: (within - track * per_track) as u32,
            sectors_per_track: zone.sectors_per_track,
            track_angle: self.track_angle(zone, track),
        }
    }

    /// The first sector of the track after this one, if there is one.
    pub fn next_track(&self, spot: &Spot) -> Option<Spot> {
        let zone = &self.zones[spot.zone as usize];
        let heads = u64::from(self.heads);
        let track = u64::from(spot.cylinder - zone.first_cylinder) * heads + u64::from(spot.head) + 1;
        let cylinder = zone.first_cylinder + (track / heads) as u32;
        if cylinder < zone.first_cylinder + zone.cylinders {
            let head = (track % heads) as u32;
            return Some(Spot {
                cylinder,
                head,
                sector: 0,
                track_angle: self.track_angle(zone, track),
                ..*spot
            });
        }
        let next = self.zones.get(spot.zone as usize + 1)?;
        Some(Spot {
            zone: spot.zone + 1,
            cylinder: next.first_cylinder,
            head: 0,
            sector: 0,
            sectors_per_track: next.sectors_per_track,
            track_angle: next.first_angle,
        })
    }

    pub fn track_at(&self, lba: Lba) -> Track {
        let spot = self.locate(lba);
        Track {
            first_lba: Lba(lba.0 - u64::from(spot.sector)),
            sectors: spot.sectors_per_track,
            start_angle: spot.track_angle as f64 / self.revolution as f64,
            cylinder: spot.cylinder,
            head: spot.head,
        }
    }

    /// The time from the start of sector 0 of a track to the start of `sector`; that of the sector after the last is
    /// exactly one revolution.
    pub fn offset(&self, sector: u32, sectors_per_track: u32) -> u64 {
        u64::from(sector) * self.revolution / u64::from(sectors_per_track)
    }

    /// The most sectors for which `offset` stays within `time`.
    pub fn sectors_within(&self, time: u64, sectors_per_track: u32) -> u32 {
        if time >= self.revolution {
            return sectors_per_track;
        }
        (((time + 1) * u64::from(sectors_per_track) - 1) / self.revolution) as u32
    }

    /// How long after `at` the sector's start comes under the head.
    pub fn rotation_to(&self, spot: &Spot, at: Nanos) -> u64 {
        let mut angle = spot.track_angle + self.offset(spot.sector, spot.sectors_per_track);
        if angle >= self.revolution {
            angle -= self.revolution;
        }
        let now = at.0 % self.revolution;
        if angle >= now { angle - now } else { angle + self.revolution - now }
    }

    /// The angle of the first sector of a zone's track: the skews of all tracks before it, summed up.
    fn track_angle(&self, zone: &Zone, track: u64) -> u64 {
        let per_track = u64::from(zone.sectors_per_track);
        let cylinder_changes = track / u64::from(self.heads);
        let head_changes = track - cylinder_changes;
        let skew =
            head_changes * u64::from(zone.track_skew) + cylinder_changes * u64::from(zone.cylinder_skew);
        (zone.first_angle + (skew % per_track) * self.revolution / per_track) % self.revolution
    }

    /// Where the zone after `last` starts, so that a transfer from zone to zone loses no revolution either.
    fn angle_after(&self, last: &Zone, next: &ZoneShape) -> u64 {
        let tracks = u64::from(last.cylinders) * u64::from(self.heads);
        let skew = self.offset(next.cylinder_skew, next.sectors_per_track);
        (self.track_angle(last, tracks - 1) + skew) % self.revolution
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Geometry {
        let shape = |cylinders, sectors_per_track, track_skew, cylinder_skew| ZoneShape {
            cylinders,
            sectors_per_track,
            track_skew,
            cylinder_skew,
        };
        Geometry::new(Nanos(8_333_333), 3, &[shape(4, 10, 2, 3), shape(2, 7, 1, 2)])
    }

    #[test]
    fn every_sector_has_its_own_place_and_they_follow_each_other() {
        let geometry = small();
        assert_eq!(geometry.sectors(), 4 * 3 * 10 + 2 * 3 * 7);
        let mut last: Option<Spot> = None;
        for lba in 0..geometry.sectors() {
            let spot = geometry.locate(Lba(lba));
            if let Some(last) = last {
                let expected = if last.sector + 1 < last.sectors_per_track {
                    Spot { sector: last.sector + 1, ..last }
                } else {
                    geometry.next_track(&last).expect("not the last track")
                };
                assert_eq!(spot, expected, "at {lba}");
            }
            last = Some(spot);
        }
        let last = last.expect("the drive is not empty");
        assert_eq!((last.cylinder, last.head, last.sector), (5, 2, 6));
        assert_eq!(geometry.next_track(&last), None);
    }

    #[test]
    fn skews_shift_the_first_sector_of_each_track() {
        let geometry = small();
        let angles: Vec<f64> =
            [0, 10, 20, 30, 40].map(|lba| geometry.track_at(Lba(lba)).start_angle).to_vec();
        for (angle, expected) in angles.iter().zip([0.0, 0.2, 0.4, 0.7, 0.9]) {
            assert!((angle - expected).abs() < 1e-6, "{angles:?}");
        }
        let track = geometry.track_at(Lba(25));
        assert_eq!((track.first_lba, track.sectors, track.cylinder, track.head), (Lba(20), 10, 0, 2));
        // The last track of the first zone has 8 head skews and 3 cylinder skews behind it: 25 sectors, half a turn.
        // The next zone's cylinder skew of 2 sectors of 7 comes on top.
        let angle = geometry.track_at(Lba(120)).start_angle;
        assert!((angle - (0.5 + 2.0 / 7.0)).abs() < 1e-6, "{angle}");
    }

    #[test]
    fn sectors_within_a_time_is_the_inverse_of_the_offset() {
        let geometry = small();
        for per_track in [1, 7, 10, 186, 4152] {
            for sector in 0..per_track {
                let start = geometry.offset(sector, per_track);
                assert_eq!(geometry.sectors_within(start, per_track), sector);
                if sector > 0 {
                    assert_eq!(geometry.sectors_within(start - 1, per_track), sector - 1);
                }
            }
            assert_eq!(geometry.offset(per_track, per_track), geometry.revolution());
        }
    }

    #[test]
    fn a_sector_comes_round_once_in_a_revolution() {
        let geometry = small();
        let spot = geometry.locate(Lba(17));
        let wait = geometry.rotation_to(&spot, Nanos(123_456_789));
        let reached = Nanos(123_456_789 + wait);
        assert_eq!(geometry.rotation_to(&spot, reached), 0);
        assert_eq!(geometry.rotation_to(&spot, Nanos(reached.0 + 1)), geometry.revolution() - 1);
    }
}
