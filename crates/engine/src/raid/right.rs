//! Rows that are right although their region is in doubt: since the start, their parity was computed from all of their data and
//! written. That is known in RAM alone; after a restart the whole region is in doubt again.

use std::collections::BTreeMap;
use std::ops::Range;

const WORD: usize = u64::BITS as usize;

/// Rows by their unit, a bit for each.
#[derive(Debug, Default)]
pub struct RightRows(BTreeMap<u64, Vec<u64>>);

impl RightRows {
    pub fn contains(&self, unit: u64, row: usize) -> bool {
        self.0
            .get(&unit)
            .and_then(|words| words.get(row / WORD))
            .is_some_and(|word| word >> (row % WORD) & 1 == 1)
    }

    pub fn insert(&mut self, unit: u64, row: usize) {
        let words = self.0.entry(unit).or_default();
        words.resize(words.len().max(row / WORD + 1), 0);
        words[row / WORD] |= 1 << (row % WORD);
    }

    /// Nothing is known of these units any more, or nothing has to be.
    pub fn forget(&mut self, units: Range<u64>) {
        let mut rest = self.0.split_off(&units.start);
        self.0.append(&mut rest.split_off(&units.end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_kept_by_unit() {
        let mut right = RightRows::default();
        for (unit, row) in [(3, 0), (3, 64), (4, 200), (5, 1)] {
            right.insert(unit, row);
        }
        assert!(right.contains(3, 64) && right.contains(4, 200) && right.contains(5, 1));
        assert!(!right.contains(3, 63) && !right.contains(4, 0) && !right.contains(9, 0));
        right.forget(3..5);
        assert!(!right.contains(3, 0) && !right.contains(4, 200) && right.contains(5, 1));
    }
}
