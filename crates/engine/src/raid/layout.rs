//! The places of an array's sectors on its members: parity moves from stripe to stripe, and the data begins behind it
//! (left-symmetric, the arrangement that Linux md has by default).
//!
//! ```text
//! member   0   1   2   3   4        RAID-5, column numbers: D0 to D3, P
//! stripe 0 D0  D1  D2  D3  P
//! stripe 1 D1  D2  D3  P   D0
//! stripe 2 D2  D3  P   D0  D1
//! ```

use crate::raid::config::CacheUnit;
use crate::raid::matrix::Shape;
use crate::{Extent, LINE_SECTORS, Lba};

/// The first sector of stripes on each member: at 1 MiB, as partitions begin.
pub const DATA_SECTOR: u64 = 2048;

/// See the module's documentation. Rows are counted in blocks of 4 KiB.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub shape: Shape,
    pub strip_sectors: u64,
    pub stripes: u64,
    /// Rows of one unit of the cache.
    pub rows: usize,
}

/// A part of a request: sectors of one column of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub unit: u64,
    pub column: usize,
    /// First sector in the unit's column.
    pub first: u64,
    pub sectors: u64,
}

impl Layout {
    /// An array over members that have room for so many sectors behind their superblocks.
    pub fn new(shape: Shape, strip_sectors: u64, member_sectors: u64, unit: CacheUnit) -> Layout {
        let rows = match unit {
            CacheUnit::Stripe => strip_sectors / LINE_SECTORS,
            CacheUnit::ParityBlockGroup => 1,
        };
        Layout { shape, strip_sectors, stripes: member_sectors / strip_sectors, rows: rows as usize }
    }

    /// The size of the array.
    pub const fn sectors(&self) -> u64 {
        self.stripes * self.strip_sectors * self.shape.data as u64
    }

    /// Sectors of data in a stripe.
    pub const fn stripe_sectors(&self) -> u64 {
        self.strip_sectors * self.shape.data as u64
    }

    pub const fn units_per_stripe(&self) -> u64 {
        self.strip_sectors / self.column_sectors()
    }

    pub const fn units(&self) -> u64 {
        self.stripes * self.units_per_stripe()
    }

    /// Sectors in a unit's column.
    pub const fn column_sectors(&self) -> u64 {
        self.rows as u64 * LINE_SECTORS
    }

    /// Bytes of a unit's data.
    pub const fn unit_bytes(&self) -> usize {
        self.rows * self.shape.data * crate::LINE_BYTES as usize
    }

    /// The member that has a column of a unit.
    pub const fn member(&self, unit: u64, column: usize) -> usize {
        let members = self.shape.columns();
        let stripe = unit / self.units_per_stripe();
        let p = members - 1 - (stripe % members as u64) as usize;
        let behind_p =
            if column >= self.shape.data { column - self.shape.data } else { self.shape.parity + column };
        (p + behind_p) % members
    }

    /// The column of a unit that a member has.
    pub fn column(&self, unit: u64, role: usize) -> usize {
        let members = self.shape.columns();
        let first_data = self.member(unit, 0);
        // Data columns lie behind each other, and P follows on the last of them.
        (role + members - first_data) % members
    }

    /// The sector on each member at which a row of a unit begins.
    pub const fn member_lba(&self, unit: u64, row: usize) -> Lba {
        Lba(DATA_SECTOR + unit * self.column_sectors() + row as u64 * LINE_SECTORS)
    }

    /// Cuts a range of the array by units and columns.
    pub fn chunks(&self, extent: Extent) -> impl Iterator<Item = Chunk> + use<> {
        let layout = *self;
        let (mut at, end) = (extent.start.0, extent.end().0);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (strip, in_strip) = (at / layout.strip_sectors, at % layout.strip_sectors);
            let (stripe, column) = (strip / layout.shape.data as u64, strip % layout.shape.data as u64);
            let part = in_strip / layout.column_sectors();
            let first = in_strip % layout.column_sectors();
            let sectors = (layout.column_sectors() - first).min(end - at);
            at += sectors;
            let unit = stripe * layout.units_per_stripe() + part;
            Some(Chunk { unit, column: column as usize, first, sectors })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(data: usize, parity: usize, unit: CacheUnit) -> Layout {
        Layout::new(Shape { data, parity }, 16, 100, unit)
    }

    #[test]
    fn parity_moves_and_every_member_has_one_column() {
        let five = layout(4, 1, CacheUnit::Stripe);
        assert_eq!((five.stripes, five.sectors()), (6, 6 * 64));
        let members = |stripe| (0..5).map(|column| five.member(stripe, column)).collect::<Vec<_>>();
        assert_eq!(members(0), [0, 1, 2, 3, 4]);
        assert_eq!(members(1), [4, 0, 1, 2, 3]);
        assert_eq!(members(5), members(0));
        let six = layout(3, 2, CacheUnit::ParityBlockGroup);
        for unit in 0..six.units() {
            let mut all: Vec<usize> = (0..5).map(|column| six.member(unit, column)).collect();
            assert_eq!(six.member(unit, 4), (six.member(unit, 3) + 1) % 5, "Q is behind P");
            assert!((0..5).all(|column| six.column(unit, six.member(unit, column)) == column));
            assert!((0..5).all(|column| five.column(unit, five.member(unit, column)) == column));
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3, 4]);
        }
    }

    #[test]
    fn both_units_put_every_sector_at_the_same_place() {
        for (data, parity) in [(2, 1), (4, 1), (3, 2)] {
            let place = |unit: CacheUnit, at: u64| {
                let layout = layout(data, parity, unit);
                let chunk = layout.chunks(Extent::new(Lba(at), 1)).next().expect("one sector");
                let lba = layout.member_lba(chunk.unit, (chunk.first / LINE_SECTORS) as usize);
                (layout.member(chunk.unit, chunk.column), lba + chunk.first % LINE_SECTORS)
            };
            let mut seen = std::collections::BTreeSet::new();
            for at in 0..layout(data, parity, CacheUnit::Stripe).sectors() {
                assert_eq!(place(CacheUnit::Stripe, at), place(CacheUnit::ParityBlockGroup, at));
                assert!(seen.insert(place(CacheUnit::Stripe, at)), "no two sectors share a place");
            }
        }
    }

    #[test]
    fn chunks_cover_a_range_without_gaps() {
        for unit in [CacheUnit::Stripe, CacheUnit::ParityBlockGroup] {
            let layout = layout(3, 1, unit);
            for (start, sectors) in [(0, 1), (5, 70), (15, 2), (47, 100)] {
                let chunks: Vec<Chunk> = layout.chunks(Extent::new(Lba(start), sectors)).collect();
                assert_eq!(chunks.iter().map(|chunk| chunk.sectors).sum::<u64>(), sectors);
                assert!(chunks.iter().all(|chunk| chunk.first + chunk.sectors <= layout.column_sectors()));
            }
        }
    }
}
