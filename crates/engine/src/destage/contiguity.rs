//! Decides whether filling a gap between two accesses pays: the rules for performance of the contiguity transform (Baek and Park, section
//! III-D, predicates (8) and (9)). Some disks lose a full revolution when a write skips a few blocks. The stride benchmark
//! (`raid::stride`) finds the rules for a disk; the array and the log cache use them.

use serde::{Deserialize, Serialize};
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{LINE_SECTORS, Lba};

/// Maximum number of ranges of Sexcept in a superblock, for reads and for writes each.
pub const EXCEPT_MAX: usize = 64;

/// Stride distances at which a disk is faster if the gap is filled. A stride distance is the difference of two positions in blocks:
/// adjacent blocks have 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Strides {
    /// Smax: only shorter strides are filled. 0 or 1: none.
    pub max: u64,
    /// Sexcept: ranges of shorter strides, both ends included, that are not filled.
    pub except: Vec<(u64, u64)>,
}

impl Strides {
    pub const fn up_to(max: u64) -> Strides {
        Strides { max, except: Vec::new() }
    }

    /// Tells whether the gap of a stride may be filled: the rule for performance, (8) and (9).
    pub fn allow(&self, stride: u64) -> bool {
        stride < self.max && !self.except.iter().any(|&(first, last)| first <= stride && stride <= last)
    }

    /// Applies [`Strides::allow`] to an access that ends at `end` and one that begins at `start`, in blocks of 4 KiB.
    pub fn allow_between(&self, end: Lba, start: Lba) -> bool {
        self.allow((start - end).div_ceil(LINE_SECTORS) + 1)
    }
}

/// The rules for reads and for writes, as the stride benchmark finds them for a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Contiguity {
    pub read: Strides,
    pub write: Strides,
}

impl Contiguity {
    /// True when a superblock has space for both rules.
    pub fn is_storable(&self) -> bool {
        [&self.read, &self.write].iter().all(|strides| strides.except.len() <= EXCEPT_MAX)
    }
}

/// [`Strides`] as stored in superblocks.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct StridesBytes {
    max: U32,
    ranges: U32,
    except: [[U32; 2]; EXCEPT_MAX],
}

impl StridesBytes {
    fn new(strides: &Strides) -> StridesBytes {
        let number = |n: u64| U32::new(u32::try_from(n).unwrap_or(u32::MAX));
        let mut bytes = StridesBytes::new_zeroed();
        bytes.max = number(strides.max);
        bytes.ranges = number(strides.except.len().min(EXCEPT_MAX) as u64);
        for (range, (first, last)) in bytes.except.iter_mut().zip(&strides.except) {
            *range = [number(*first), number(*last)];
        }
        bytes
    }

    fn strides(&self) -> Option<Strides> {
        let ranges = self.except.get(..self.ranges.get() as usize)?;
        let except = ranges.iter().map(|[first, last]| (u64::from(first.get()), u64::from(last.get())));
        Some(Strides { max: u64::from(self.max.get()), except: except.collect() })
    }
}

/// [`Contiguity`] as stored in superblocks: the result of the stride benchmark.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ContiguityBytes {
    read: StridesBytes,
    write: StridesBytes,
}

impl ContiguityBytes {
    /// Encodes the rules. Ranges that do not fit are left out: see [`Contiguity::is_storable`].
    pub fn new(contiguity: &Contiguity) -> ContiguityBytes {
        ContiguityBytes {
            read: StridesBytes::new(&contiguity.read),
            write: StridesBytes::new(&contiguity.write),
        }
    }

    /// Decodes the rules; none if the count of ranges is too large.
    pub fn contiguity(&self) -> Option<Contiguity> {
        Some(Contiguity { read: self.read.strides()?, write: self.write.strides()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_filled_where_its_stride_is_short_and_no_exception() {
        let rule = Strides { max: 6, except: vec![(3, 4)] };
        let between = |sectors: u64| rule.allow_between(Lba(80), Lba(80 + sectors));
        assert_eq!([1, 8, 9, 24, 25, 32, 33].map(between), [true, true, false, false, true, true, false]);
        assert!(!Strides::default().allow_between(Lba(0), Lba(1)));
    }
}
