//! Measurements of the rotational disk below a log, made by `format`. The superblock holds them.

use std::fmt;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Nanos, SECTOR_BYTES};

/// Number of points at which a track is measured: the start and the end of the log, and evenly between.
pub const TRACK_POINTS: usize = 4;
/// Limits of the revolution of a disk.
pub const REVOLUTION_MIN: Nanos = Nanos::from_millis(2);
pub const REVOLUTION_MAX: Nanos = Nanos::from_millis(40);
/// Limits of the length of a track, in sectors.
pub const TRACK_SECTORS_MIN: u32 = 8;
pub const TRACK_SECTORS_MAX: u32 = 1 << 20;

const NOT_MEASURED: u32 = 0;
const SPINS: u32 = 1;
const SPINS_WITH_WRITE_CACHE: u32 = 2;
const NOT_SHOWN: u32 = 3;

/// Result of measuring the disk below the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spindle {
    /// The log is not rotational, or the host was too busy to tell, or an older program has formatted it.
    #[default]
    NotMeasured,
    /// Measured: durable writes do not show the position of a head.
    NotShown,
    Spins(Spin),
}

/// Rotation of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spin {
    pub revolution: Nanos,
    /// Time from the end of a write to the earliest place where the next one can begin.
    pub lead: Nanos,
    /// Sectors of a track, at [`TRACK_POINTS`] points of the log.
    pub tracks: [u32; TRACK_POINTS],
    /// Writes that need not be durable are answered from the disk's cache: their times do not show the head's position.
    pub write_cache: bool,
}

/// [`Spindle`] as stored in the superblock. Zeroes: not measured.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SpindleBytes {
    pub kind: U32,
    pub revolution: U32,
    pub lead: U32,
    pub tracks: [U32; TRACK_POINTS],
}

impl SpindleBytes {
    pub fn new(spindle: &Spindle) -> SpindleBytes {
        let mut bytes = SpindleBytes::new_zeroed();
        match spindle {
            Spindle::NotMeasured => {}
            Spindle::NotShown => bytes.kind = NOT_SHOWN.into(),
            Spindle::Spins(spin) => {
                bytes.kind = if spin.write_cache { SPINS_WITH_WRITE_CACHE } else { SPINS }.into();
                bytes.revolution = (spin.revolution.0 as u32).into();
                bytes.lead = (spin.lead.0 as u32).into();
                bytes.tracks = spin.tracks.map(U32::new);
            }
        }
        bytes
    }

    /// Decodes the measurement; none if a field is out of range.
    pub fn spindle(&self) -> Option<Spindle> {
        let write_cache = match self.kind.get() {
            NOT_MEASURED => return Some(Spindle::NotMeasured),
            NOT_SHOWN => return Some(Spindle::NotShown),
            SPINS => false,
            SPINS_WITH_WRITE_CACHE => true,
            _ => return None,
        };
        let revolution = Nanos(self.revolution.get().into());
        let lead = Nanos(self.lead.get().into());
        let tracks = self.tracks.map(U32::get);
        let fits = (REVOLUTION_MIN..=REVOLUTION_MAX).contains(&revolution)
            && lead < revolution
            && tracks.iter().all(|track| (TRACK_SECTORS_MIN..=TRACK_SECTORS_MAX).contains(track));
        fits.then_some(Spindle::Spins(Spin { revolution, lead, tracks, write_cache }))
    }
}

impl Spin {
    /// Interpolates the sectors of a track at a point of the log, from 0 to `length`.
    pub fn track_at(&self, point: u64, length: u64) -> u64 {
        let parts = TRACK_POINTS as u64 - 1;
        let scaled = u128::from(point.min(length)) * u128::from(parts);
        let before = ((scaled / u128::from(length.max(1))) as u64).min(parts - 1);
        let rest = scaled - u128::from(before) * u128::from(length);
        let (from, to) = (self.tracks[before as usize], self.tracks[before as usize + 1]);
        let part = |track: u32, weight: u128| u128::from(track) * weight;
        let length = u128::from(length.max(1));
        ((part(from, length - rest) + part(to, rest)) / length) as u64
    }
}

impl fmt::Display for Spindle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spin = match self {
            Spindle::NotMeasured => {
                return f.write_str(
                    "head tracking: off (too noisy to tell where the head of the log's disk is; measured again while the cache serves)",
                );
            }
            Spindle::NotShown => {
                return f.write_str("head tracking: off (the log's disk shows no head: flash, a virtual disk, or a write cache)");
            }
            Spindle::Spins(spin) => spin,
        };
        let kib = |sectors: u32| u64::from(sectors) * SECTOR_BYTES / 1024;
        let rpm = 60e9 / spin.revolution.0 as f64;
        write!(
            f,
            "the log's disk turns in {:.2} ms ({rpm:.0} rpm), tracks of ",
            spin.revolution.as_millis_f64()
        )?;
        let (first, last) = (kib(spin.tracks[0]), kib(spin.tracks[TRACK_POINTS - 1]));
        match first == last {
            true => write!(f, "{first} KiB")?,
            false => write!(f, "{first} to {last} KiB")?,
        }
        let cache = if spin.write_cache { "on" } else { "off" };
        write!(f, ", {:.2} ms from a write to the next, write cache {cache}", spin.lead.as_millis_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin() -> Spin {
        Spin {
            revolution: Nanos::from_micros(8333),
            lead: Nanos::from_micros(260),
            tracks: [4144, 3000, 2500, 2000],
            write_cache: false,
        }
    }

    #[test]
    fn it_is_read_back_and_zeroes_are_not_measured() {
        for spindle in [
            Spindle::NotMeasured,
            Spindle::NotShown,
            Spindle::Spins(spin()),
            Spindle::Spins(Spin { write_cache: true, ..spin() }),
        ] {
            assert_eq!(SpindleBytes::new(&spindle).spindle(), Some(spindle));
        }
        assert_eq!(SpindleBytes::new_zeroed().spindle(), Some(Spindle::NotMeasured));
    }

    #[test]
    fn a_field_out_of_range_is_refused() {
        let good = SpindleBytes::new(&Spindle::Spins(spin()));
        let with = |change: fn(&mut SpindleBytes)| {
            let mut bytes = good;
            change(&mut bytes);
            bytes.spindle()
        };
        assert_eq!(with(|bytes| bytes.kind = 4.into()), None);
        assert_eq!(with(|bytes| bytes.revolution = 0.into()), None);
        assert_eq!(with(|bytes| bytes.revolution = u32::MAX.into()), None);
        assert_eq!(with(|bytes| bytes.lead = bytes.revolution), None);
        assert_eq!(with(|bytes| bytes.tracks[3] = 0.into()), None);
        assert_eq!(with(|bytes| bytes.tracks[0] = u32::MAX.into()), None);
    }

    #[test]
    fn a_track_between_two_points_is_in_proportion() {
        let spin = spin();
        assert_eq!([0, 300, 600, 900, 950].map(|at| spin.track_at(at, 900)), [4144, 3000, 2500, 2000, 2000]);
        assert_eq!(spin.track_at(450, 900), 2750);
        assert_eq!(spin.track_at(0, 0), 4144);
    }

    #[test]
    fn one_line_says_what_was_found() {
        assert_eq!(
            Spindle::Spins(spin()).to_string(),
            "the log's disk turns in 8.33 ms (7200 rpm), tracks of 2072 to 1000 KiB, 0.26 ms from a write to the next, write cache off"
        );
        assert!(Spindle::NotShown.to_string().contains("shows no head"));
        assert!(Spindle::NotMeasured.to_string().contains("too noisy to tell"));
    }
}
