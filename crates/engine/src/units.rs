//! Numbers with units. A sector is 512 bytes everywhere, whatever a disk's physical block is.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Bytes in a sector: the unit of every address in this project.
pub const SECTOR_BYTES: u64 = 512;
/// Sectors in a cache line (4 KiB): the unit of the lookup table (Nightingale et al. 1999, section 3.3).
pub const LINE_SECTORS: u64 = 8;
/// Bytes in a cache line.
pub const LINE_BYTES: u64 = LINE_SECTORS * SECTOR_BYTES;

/// A logical block address: the number of a 512-byte sector on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lba(pub u64);

impl Lba {
    /// The byte offset of the sector.
    pub const fn bytes(self) -> u64 {
        self.0 * SECTOR_BYTES
    }
}

/// Returns the byte at which sector `at` lies in a buffer that begins with sector `base`.
pub fn byte_offset(base: Lba, at: Lba) -> usize {
    ((at - base) * SECTOR_BYTES) as usize
}

impl fmt::Display for Lba {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {}", self.0)
    }
}

impl Add<u64> for Lba {
    type Output = Lba;
    #[inline]
    fn add(self, sectors: u64) -> Lba {
        Lba(self.0 + sectors)
    }
}

impl Sub<Lba> for Lba {
    type Output = u64;
    #[inline]
    fn sub(self, other: Lba) -> u64 {
        self.0 - other.0
    }
}

/// A half-open range of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Extent {
    pub start: Lba,
    pub sectors: u64,
}

impl Extent {
    pub const fn new(start: Lba, sectors: u64) -> Extent {
        Extent { start, sectors }
    }

    #[inline]
    pub const fn end(self) -> Lba {
        Lba(self.start.0 + self.sectors)
    }

    #[inline]
    pub const fn overlaps(self, other: Extent) -> bool {
        self.start.0 < other.end().0 && other.start.0 < self.end().0
    }

    pub const fn contains(self, lba: Lba) -> bool {
        self.start.0 <= lba.0 && lba.0 < self.end().0
    }

    /// True when the whole extent lies before sector `sectors`.
    pub fn is_within(self, sectors: u64) -> bool {
        self.start.0.checked_add(self.sectors).is_some_and(|end| end <= sectors)
    }

    /// True when the extent begins and ends at multiples of `sectors`.
    pub const fn is_multiple_of(self, sectors: u64) -> bool {
        self.start.0.is_multiple_of(sectors) && self.sectors.is_multiple_of(sectors)
    }

    /// The common part, if there is one.
    pub fn intersection(self, other: Extent) -> Option<Extent> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        (start < end).then(|| Extent::new(start, end - start))
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LBA {}..{}", self.start.0, self.end().0)
    }
}

/// Nanoseconds since the driver started: an instant or a span. Layers get it as an argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nanos(pub u64);

impl Nanos {
    pub const ZERO: Nanos = Nanos(0);
    pub const MAX: Nanos = Nanos(u64::MAX);

    pub const fn from_micros(micros: u64) -> Nanos {
        Nanos(micros * 1_000)
    }

    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis * 1_000_000)
    }

    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs * 1_000_000_000)
    }

    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The span from `earlier` to `self`, zero where `earlier` is the later one.
    #[inline]
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    #[inline]
    pub const fn saturating_add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl Add for Nanos {
    type Output = Nanos;
    #[inline]
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0 + other.0)
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        self.0 += other.0;
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n >= 1_000_000_000 => write!(f, "{:.3} s", n as f64 / 1e9),
            n if n >= 1_000_000 => write!(f, "{:.3} ms", n as f64 / 1e6),
            n => write!(f, "{:.3} us", n as f64 / 1e3),
        }
    }
}
