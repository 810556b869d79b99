//! Rows that are right although their region is in doubt: since the start, their parity was computed from all of their data and
//! written. That is known in RAM alone; after a restart the whole region is in doubt again.

use std::collections::BTreeMap;

use crate::raid::bitmap::Regions;

const WORD: u64 = u64::BITS as u64;

/// A bit for each row of the regions that have such rows: for rows of 16 KiB, 8 MiB for each TiB of them.
#[derive(Debug)]
pub struct RightRows {
    regions: Regions,
    rows: u64,
    bits: BTreeMap<u64, Vec<u64>>,
}

impl RightRows {
    /// `rows`: of each unit.
    pub const fn new(regions: Regions, rows: usize) -> RightRows {
        RightRows { regions, rows: rows as u64, bits: BTreeMap::new() }
    }

    /// The region of a row, its word there, and its bit in it.
    fn place(&self, unit: u64, row: usize) -> (u64, usize, u64) {
        let region = self.regions.of_unit(unit);
        let index = (unit - self.regions.units(region).start) * self.rows + row as u64;
        (region, (index / WORD) as usize, 1 << (index % WORD))
    }

    pub fn contains(&self, unit: u64, row: usize) -> bool {
        let (region, word, bit) = self.place(unit, row);
        self.bits.get(&region).and_then(|words| words.get(word)).is_some_and(|word| word & bit != 0)
    }

    pub fn insert(&mut self, unit: u64, row: usize) {
        let (region, word, bit) = self.place(unit, row);
        let words = self.bits.entry(region).or_default();
        words.resize(words.len().max(word + 1), 0);
        words[word] |= bit;
    }

    /// Forgets which rows of a unit are right.
    pub fn forget_unit(&mut self, unit: u64) {
        for row in 0..self.rows as usize {
            let (region, word, bit) = self.place(unit, row);
            if let Some(word) = self.bits.get_mut(&region).and_then(|words| words.get_mut(word)) {
                *word &= !bit;
            }
        }
    }

    /// A region is not in doubt any more.
    pub fn forget_region(&mut self, region: u64) {
        self.bits.remove(&region);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raid::layout::Layout;
    use crate::raid::matrix::Shape;

    #[test]
    fn rows_are_kept_by_unit() {
        let layout =
            Layout { shape: Shape { data: 3, parity: 1 }, strip_sectors: 160, stripes: 40, rows: 20 };
        let mut right = RightRows::new(Regions::new(&layout, 4), 20);
        let all = [(3, 0), (3, 19), (4, 0), (5, 1), (39, 19)];
        for (unit, row) in all {
            right.insert(unit, row);
        }
        let known = |right: &RightRows| -> Vec<(u64, usize)> {
            let every = (0..40).flat_map(|unit| (0..20).map(move |row| (unit, row)));
            every.filter(|(unit, row)| right.contains(*unit, *row)).collect()
        };
        assert_eq!(known(&right), all);
        right.forget_unit(3);
        assert_eq!(known(&right), all[2..]);
        right.forget_region(1);
        assert_eq!(known(&right), all[4..]);
    }
}
