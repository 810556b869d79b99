//! Locates sectors: LBA to zone, cylinder, head, sector, and the angle under which it passes the head.
//!
//! LBAs run through the tracks of a cylinder, head by head, then on to the next cylinder: from its first head again, or
//! (*serpentine*) from the head where the last cylinder ended. From track to track the first sector is shifted by a
//! skew, so that a sequential transfer finds it just after the head has changed. A zone can be cut into ranges of
//! cylinders that keep spare sectors at their end, and can have sectors that were found bad and *slipped* over: LBAs
//! skip both. Between zones there can be cylinders without data, and a zone can begin with sectors that have no LBA.
//!
//! All angles are kept as integer nanoseconds of one revolution, and the end of a sector is computed exactly as the
//! start of the next one: a request that continues where the last one ended finds its sector at once and not one
//! revolution later.

use dcd_engine::{Lba, Nanos};

/// Cylinders with the same number of sectors on each track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    pub first_cylinder: u32,
    pub cylinders: u32,
    pub sectors_per_track: u32,
    /// Sectors by which the first sector is shifted from one head to the next.
    pub track_skew: u32,
    /// Sectors by which the first sector is shifted from the last head of a cylinder to the first head of the next one.
    pub cylinder_skew: u32,
    pub first_lba: Lba,
    /// The angle of the zone's first sector, in nanoseconds of a revolution.
    first_angle: u64,
    /// Places of sectors in each range with spares, and how many of them hold data.
    range_places: u64,
    range_sectors: u64,
    /// Sectors at the zone's front that have no LBA.
    reserved: u64,
    /// Counted from the zone's first sector with data or without: each one from one of these on lies one place further than
    /// the one before.
    slips: Vec<u64>,
}

impl Zone {
    /// The place of a sector of the zone, counted in sectors along its tracks, and how many sectors follow each other
    /// without a gap from there on (itself included), not looking at the ends of tracks.
    fn place(&self, within: u64) -> (u64, u64) {
        let within = within + self.reserved;
        let range = if within < self.range_sectors { 0 } else { within / self.range_sectors };
        let range_start = range * self.range_sectors;
        let mut run = range_start + self.range_sectors - within;
        let mut place = range * self.range_places + (within - range_start);
        if !self.slips.is_empty() {
            let before = self.slips.partition_point(|&slip| slip < range_start);
            let passed = self.slips.partition_point(|&slip| slip <= within);
            place += (passed - before) as u64;
            if let Some(next) = self.slips.get(passed) {
                run = run.min(next - within);
            }
        }
        (place, run)
    }

    /// Every track holds as many sectors as it has places.
    pub fn is_even(&self) -> bool {
        self.range_sectors == self.range_places && self.slips.is_empty() && self.reserved == 0
    }

    pub(crate) fn sectors(&self, heads: u32) -> u64 {
        let places = u64::from(self.cylinders) * u64::from(heads) * u64::from(self.sectors_per_track);
        let ranges = places.div_ceil(self.range_places);
        places - ranges * (self.range_places - self.range_sectors) - self.reserved
    }
}

/// A track, for code that lays out data by rotation (a log, for instance).
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
    pub cylinder: u32,
    pub head: u32,
    /// Counted along the track, from its first place.
    pub sector: u32,
    pub sectors_per_track: u32,
    /// Number of LBAs that lie one behind the other on the track from here on, this one included.
    pub(crate) run: u32,
    /// The angle of the track's sector 0, in nanoseconds of a revolution.
    pub(crate) track_angle: u64,
}

/// The places of all sectors.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    revolution: u64,
    heads: u32,
    serpentine: bool,
    zones: Vec<Zone>,
    sectors: u64,
    cylinders: u32,
}

/// Zone as a drive file has it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ZoneShape {
    pub cylinders: u32,
    pub sectors_per_track: u32,
    pub track_skew: u32,
    pub cylinder_skew: u32,
    /// Cylinders without data before it.
    pub gap_cylinders: u32,
    /// The sector of a track that passes at the index, where zones begin there.
    pub start_sector: u32,
    /// Sectors at its front that have no LBA.
    pub reserved: u64,
    /// Places that share their spares.
    pub range_places: u64,
    /// Spare sectors at the end of each range.
    pub spares: u32,
    pub slips: Vec<u64>,
}

/// Properties of all zones together, as a drive file has them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Layout {
    pub serpentine: bool,
    /// Every zone begins at an angle of its own; otherwise it goes on where the one before it ends, with its cylinder skew.
    pub zones_start_at_index: bool,
    /// The last zone's LBAs lie on the outermost cylinders.
    pub last_zone_outermost: bool,
    /// The capacity, where it is less than what the zones hold.
    pub sectors: Option<u64>,
}

impl Geometry {
    /// The shapes have been checked: no zero, no skew of a whole track or more, sums that fit, spares and slips that
    /// leave something.
    pub fn new(revolution: Nanos, heads: u32, layout: Layout, shapes: &[ZoneShape]) -> Geometry {
        let mut geometry = Geometry {
            revolution: revolution.0,
            heads,
            serpentine: layout.serpentine,
            zones: Vec::new(),
            sectors: 0,
            cylinders: 0,
        };
        for shape in shapes {
            geometry.add_zone(layout, shape);
        }
        if let (true, Some((last, others))) = (layout.last_zone_outermost, geometry.zones.split_last_mut()) {
            others.iter_mut().for_each(|zone| zone.first_cylinder += last.cylinders);
            last.first_cylinder = 0;
        }
        geometry.sectors = layout.sectors.unwrap_or(geometry.sectors);
        geometry
    }

    fn add_zone(&mut self, layout: Layout, shape: &ZoneShape) {
        let first_angle = match self.zones.last() {
            Some(last) if !layout.zones_start_at_index => self.angle_after(last, shape),
            _ => self.offset(shape.start_sector, shape.sectors_per_track),
        };
        self.cylinders += shape.gap_cylinders;
        let zone = Zone {
            first_cylinder: self.cylinders,
            cylinders: shape.cylinders,
            sectors_per_track: shape.sectors_per_track,
            track_skew: shape.track_skew,
            cylinder_skew: shape.cylinder_skew,
            first_lba: Lba(self.sectors),
            first_angle,
            range_places: shape.range_places,
            range_sectors: shape.range_places - u64::from(shape.spares),
            reserved: shape.reserved,
            slips: shape.slips.clone(),
        };
        self.cylinders += shape.cylinders;
        self.sectors += zone.sectors(self.heads);
        self.zones.push(zone);
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
        let (place, run) = zone.place(lba - zone.first_lba);
        let per_track = u64::from(zone.sectors_per_track);
        let track = place / per_track;
        let sector = place - track * per_track;
        let heads = u64::from(self.heads);
        let cylinder = track / heads;
        let mut head = track - cylinder * heads;
        if self.serpentine && cylinder % 2 == 1 {
            head = heads - 1 - head;
        }
        Spot {
            cylinder: zone.first_cylinder + cylinder as u32,
            head: head as u32,
            sector: sector as u32,
            sectors_per_track: zone.sectors_per_track,
            run: run.min(per_track - sector) as u32,
            track_angle: self.track_angle(zone, track, cylinder),
        }
    }

    /// The end of the LBAs on the track of a sector.
    pub fn track_end(&self, lba: Lba, spot: &Spot) -> Lba {
        let mut end = lba + u64::from(spot.run);
        let mut reached = spot.sector + spot.run;
        while reached < spot.sectors_per_track && end.0 < self.sectors {
            let next = self.locate(end);
            if (next.cylinder, next.head) != (spot.cylinder, spot.head) {
                break;
            }
            end = end + u64::from(next.run);
            reached = next.sector + next.run;
        }
        Lba(end.0.min(self.sectors))
    }

    pub fn track_at(&self, lba: Lba) -> Track {
        let spot = self.locate(lba);
        let on_track = |lba: u64| {
            let other = self.locate(Lba(lba));
            (other.cylinder, other.head) == (spot.cylinder, spot.head)
        };
        // Without slips this is exact; each slip before the sector hides one LBA.
        let mut first = lba.0.saturating_sub(u64::from(spot.sector));
        while !on_track(first) {
            first += 1;
        }
        Track {
            first_lba: Lba(first),
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

    /// Returns the maximum number of sectors for which `offset` stays within `time`.
    pub fn sectors_within(&self, time: u64, sectors_per_track: u32) -> u32 {
        if time >= self.revolution {
            return sectors_per_track;
        }
        (((time + 1) * u64::from(sectors_per_track) - 1) / self.revolution) as u32
    }

    /// Returns the time from `at` until the sector's start comes under the head.
    pub fn rotation_to(&self, spot: &Spot, at: Nanos) -> u64 {
        let mut angle = spot.track_angle + self.offset(spot.sector, spot.sectors_per_track);
        if angle >= self.revolution {
            angle -= self.revolution;
        }
        let now = at.0 % self.revolution;
        if angle >= now { angle - now } else { angle + self.revolution - now }
    }

    /// The angle of the first sector of a zone's track: the skews of all tracks before it, summed up.
    fn track_angle(&self, zone: &Zone, track: u64, cylinder_changes: u64) -> u64 {
        let per_track = u64::from(zone.sectors_per_track);
        let head_changes = track - cylinder_changes;
        let skew =
            head_changes * u64::from(zone.track_skew) + cylinder_changes * u64::from(zone.cylinder_skew);
        let angle = zone.first_angle + (skew % per_track) * self.revolution / per_track;
        if angle >= self.revolution { angle - self.revolution } else { angle }
    }

    /// Returns the angle at which the zone after `last` starts, so that a transfer from zone to zone loses no revolution either.
    fn angle_after(&self, last: &Zone, next: &ZoneShape) -> u64 {
        let tracks = u64::from(last.cylinders) * u64::from(self.heads);
        let skew = self.offset(next.cylinder_skew, next.sectors_per_track);
        let cylinder_changes = u64::from(last.cylinders) - 1;
        (self.track_angle(last, tracks - 1, cylinder_changes) + skew) % self.revolution
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> [ZoneShape; 2] {
        let shape = |cylinders, sectors_per_track, track_skew, cylinder_skew| ZoneShape {
            cylinders,
            sectors_per_track,
            track_skew,
            cylinder_skew,
            range_places: u64::from(cylinders) * 3 * u64::from(sectors_per_track),
            ..ZoneShape::default()
        };
        [shape(4, 10, 2, 3), shape(2, 7, 1, 2)]
    }

    fn small() -> Geometry {
        Geometry::new(Nanos(8_333_333), 3, Layout::default(), &shapes())
    }

    #[test]
    fn every_sector_has_its_own_place_and_they_follow_each_other() {
        let geometry = small();
        assert_eq!(geometry.sectors(), 4 * 3 * 10 + 2 * 3 * 7);
        let spots: Vec<Spot> = (0..geometry.sectors()).map(|lba| geometry.locate(Lba(lba))).collect();
        let places: Vec<_> = spots.iter().map(|spot| (spot.cylinder, spot.head, spot.sector)).collect();
        assert!(places.is_sorted() && places.windows(2).all(|pair| pair[0] != pair[1]));
        assert_eq!(places.last(), Some(&(5, 2, 6)));
        assert!(spots.iter().all(|spot| spot.run == spot.sectors_per_track - spot.sector));
    }

    #[test]
    fn a_serpentine_changes_no_head_between_cylinders() {
        let layout = Layout { serpentine: true, ..Layout::default() };
        let geometry = Geometry::new(Nanos(8_333_333), 3, layout, &shapes());
        let tracks: Vec<_> = (0..120).step_by(10).map(|lba| geometry.locate(Lba(lba))).collect();
        let heads: Vec<u32> = tracks.iter().map(|spot| spot.head).collect();
        assert_eq!(heads, [0, 1, 2, 2, 1, 0, 0, 1, 2, 2, 1, 0]);
        assert_eq!(geometry.locate(Lba(120)).head, 0, "each zone begins at the first head");
    }

    #[test]
    fn spares_slips_and_gaps_are_places_without_an_lba() {
        let mut shapes = shapes();
        shapes[0].spares = 4;
        shapes[0].range_places = 60;
        shapes[0].slips = vec![5, 70];
        shapes[1].gap_cylinders = 2;
        let layout = Layout::default();
        let geometry = Geometry::new(Nanos(8_333_333), 3, layout, &shapes);
        // Two ranges of 60 places with 4 spares each: a slip takes one of the spares of its range.
        assert_eq!(geometry.sectors(), 2 * 56 + 2 * 3 * 7);
        let place = |lba| {
            let spot = geometry.locate(Lba(lba));
            (spot.cylinder, spot.head, spot.sector, spot.run)
        };
        assert_eq!(place(4), (0, 0, 4, 1));
        assert_eq!(place(5), (0, 0, 6, 4), "one place is slipped over");
        assert_eq!(place(55), (1, 2, 6, 1), "the last of its range: three spares are left");
        assert_eq!(place(56), (2, 0, 0, 10), "no slip in the next range yet");
        assert_eq!(place(70), (2, 1, 5, 5));
        assert_eq!(place(112), (6, 0, 0, 7), "two cylinders hold nothing");
        assert_eq!(geometry.track_end(Lba(2), &geometry.locate(Lba(2))), Lba(9));
        assert_eq!(geometry.track_at(Lba(7)).first_lba, Lba(0));
        assert_eq!(geometry.track_at(Lba(72)).first_lba, Lba(66));
        let index = Layout { zones_start_at_index: true, ..layout };
        let geometry = Geometry::new(Nanos(8_333_333), 3, index, &shapes);
        assert_eq!(geometry.track_at(Lba(112)).start_angle, 0.0);
        let short = Layout { sectors: Some(100), ..layout };
        assert_eq!(Geometry::new(Nanos(8_333_333), 3, short, &shapes).sectors(), 100);
    }

    #[test]
    fn reserved_sectors_and_spares_of_each_track_have_no_lba() {
        let mut shapes = shapes();
        shapes[0].range_places = 10;
        shapes[0].spares = 1;
        shapes[0].reserved = 12;
        shapes[1].start_sector = 3;
        let layout = Layout { zones_start_at_index: true, ..Layout::default() };
        let geometry = Geometry::new(Nanos(8_333_333), 3, layout, &shapes);
        assert_eq!(geometry.sectors(), 4 * 3 * 9 - 12 + 2 * 3 * 7);
        let place = |lba| {
            let spot = geometry.locate(Lba(lba));
            (spot.cylinder, spot.head, spot.sector, spot.run)
        };
        assert_eq!(
            place(0),
            (0, 1, 3, 6),
            "a track and three sectors are reserved, the last sector is a spare"
        );
        assert_eq!(place(6), (0, 2, 0, 9));
        assert_eq!(place(96), (4, 0, 0, 7));
        assert!((geometry.track_at(Lba(96)).start_angle - 3.0 / 7.0).abs() < 1e-6);
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
