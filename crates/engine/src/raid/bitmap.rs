//! The write-intent bitmap: in which regions of an array parity may be wrong after a crash.
//!
//! A *region* is some stripes in a row. Its bit is durable in the superblocks before anything of it is written, and is cleared when
//! it has been at rest for a while. A start after a crash computes the parity of the marked regions anew, and of no others.

use std::ops::Range;

use crate::raid::layout::Layout;

/// The bytes that a superblock has for it.
pub const BITMAP_BYTES: usize = 4096;
pub const REGIONS_MAX: u64 = 8 * BITMAP_BYTES as u64;

const WORDS: usize = BITMAP_BYTES / 8;

/// A set of regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    words: Box<[u64; WORDS]>,
}

impl Default for Bitmap {
    fn default() -> Self {
        Bitmap { words: Box::new([0; WORDS]) }
    }
}

impl Bitmap {
    /// All of so many regions.
    pub fn full(regions: u64) -> Bitmap {
        let mut full = Bitmap::default();
        for region in 0..regions {
            full.insert(region);
        }
        full
    }

    pub fn contains(&self, region: u64) -> bool {
        self.words[(region / 64) as usize] >> (region % 64) & 1 == 1
    }

    /// True where it was missing.
    pub fn insert(&mut self, region: u64) -> bool {
        let word = &mut self.words[(region / 64) as usize];
        let before = *word;
        *word |= 1 << (region % 64);
        before != *word
    }

    /// True where it was there.
    pub fn remove(&mut self, region: u64) -> bool {
        let word = &mut self.words[(region / 64) as usize];
        let before = *word;
        *word &= !(1 << (region % 64));
        before != *word
    }

    pub fn add_all(&mut self, other: &Bitmap) {
        self.words.iter_mut().zip(other.words.iter()).for_each(|(word, more)| *word |= more);
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub fn len(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Lists the bits that are set, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().enumerate().flat_map(|(index, word)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index as u64 * 64 + bit)
        })
    }

    /// Bit `r % 8` of byte `r / 8` is region `r`.
    pub fn to_bytes(&self) -> [u8; BITMAP_BYTES] {
        let mut bytes = [0; BITMAP_BYTES];
        for (chunk, word) in bytes.chunks_exact_mut(8).zip(self.words.iter()) {
            chunk.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    pub fn from_bytes(bytes: &[u8; BITMAP_BYTES]) -> Bitmap {
        let mut bitmap = Bitmap::default();
        for (word, chunk) in bitmap.words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        bitmap
    }
}

/// The stripes of a region: at least `region_bytes` of the array or what a superblock can say, and more where there are too
/// many regions otherwise.
pub fn region_stripes(stripes: u64, stripe_bytes: u64, region_bytes: u64) -> u64 {
    region_bytes.div_ceil(stripe_bytes).max(stripes.div_ceil(REGIONS_MAX)).clamp(1, u64::from(u32::MAX))
}

/// The regions of an array, and the units of the cache in each.
#[derive(Clone, Copy, Debug)]
pub struct Regions {
    units: u64,
    region_units: u64,
}

impl Regions {
    pub const fn new(layout: &Layout, region_stripes: u64) -> Regions {
        Regions { units: layout.units(), region_units: layout.units_per_stripe() * region_stripes }
    }

    /// Joins neighbouring regions, as many into each as leave no more than `most`.
    pub const fn at_most(&self, most: u64) -> Regions {
        Regions { region_units: self.region_units * self.count().div_ceil(most), ..*self }
    }

    pub const fn count(&self) -> u64 {
        self.units.div_ceil(self.region_units)
    }

    pub const fn of_unit(&self, unit: u64) -> u64 {
        unit / self.region_units
    }

    pub fn units(&self, region: u64) -> Range<u64> {
        region * self.region_units..((region + 1) * self.region_units).min(self.units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::config::CacheUnit;
    use crate::raid::matrix::Shape;

    #[test]
    fn a_bitmap_is_a_set_and_survives_its_bytes() {
        let mut bitmap = Bitmap::default();
        let regions = [0, 7, 63, 64, 9000, REGIONS_MAX - 1];
        for region in regions {
            bitmap.insert(region);
        }
        bitmap.remove(7);
        assert_eq!(bitmap.iter().collect::<Vec<_>>(), [0, 63, 64, 9000, REGIONS_MAX - 1]);
        assert_eq!((bitmap.len(), bitmap.contains(63), bitmap.contains(7)), (5, true, false));
        assert_eq!(bitmap.to_bytes()[9000 / 8], 1);
        assert_eq!(Bitmap::from_bytes(&bitmap.to_bytes()), bitmap);
    }

    #[test]
    fn every_unit_is_in_one_region_and_there_is_a_bit_for_each() {
        for (stripes, region_bytes) in
            [(1, 64 << 20), (1000, 1 << 20), (1000, u64::MAX), (70_000, 1), (32_768, 1)]
        {
            for unit in [CacheUnit::Stripe, CacheUnit::ParityBlockGroup] {
                let layout = Layout::new(Shape { data: 3, parity: 1 }, 16, 16 * stripes, unit);
                let each = region_stripes(stripes, 3 * 16 * 512, region_bytes);
                let regions = Regions::new(&layout, each);
                assert!(regions.count() <= REGIONS_MAX && u32::try_from(each).is_ok());
                assert!(each * 3 * 16 * 512 >= region_bytes || regions.count() == 1);
                let mut next = 0;
                for region in 0..regions.count() {
                    let units = regions.units(region);
                    assert_eq!((units.start, regions.of_unit(units.end - 1)), (next, region));
                    next = units.end;
                }
                assert_eq!(next, layout.units());
            }
        }
    }
}
