//! Extents that are destaged while recovery would still find their records. The lookup table does not hold them. While a superblock may
//! name one of those records, no write bypasses the log there (rule 7).
//!
//! It promises:
//!
//! - [`Destaged::touches`] is true for each extent that was added, until its record is released. It may be true for more.
//! - There are [`PARTS_MAX`] parts at most. Beyond that, a new part is merged with its nearest neighbour and the gap between them.

use std::collections::BTreeMap;

use crate::{Extent, Lba};

/// Maximum number of parts: one pass over them takes a fraction of a millisecond.
pub const PARTS_MAX: usize = 1 << 14;

#[derive(Clone, Copy)]
struct DestagedPart {
    extent: Extent,
    /// The newest record that covers a part of the extent.
    seq: u64,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Destaged {
    /// The parts by their start. They do not overlap.
    parts: BTreeMap<Lba, DestagedPart>,
}

impl Destaged {
    /// Adds an extent of record `seq`.
    pub fn add(&mut self, extent: Extent, seq: u64) {
        let mut new = DestagedPart { extent, seq };
        let old: Vec<DestagedPart> = self.touching(extent).collect();
        for part in old {
            self.parts.remove(&part.extent.start);
            new.seq = new.seq.max(part.seq);
            for (start, end) in [(part.extent.start, extent.start), (extent.end(), part.extent.end())] {
                if start < end {
                    self.parts
                        .insert(start, DestagedPart { extent: Extent::new(start, end - start), ..part });
                }
            }
        }
        while self.parts.len() >= PARTS_MAX {
            new = self.join_nearest(new);
        }
        self.parts.insert(new.extent.start, new);
    }

    /// Removes the nearest part, and returns a part that covers both.
    fn join_nearest(&mut self, part: DestagedPart) -> DestagedPart {
        let before = self.parts.range(..part.extent.start).next_back().map(|(_, part)| *part);
        let after = self.parts.range(part.extent.end()..).next().map(|(_, part)| *part);
        let nearest = match (before, after) {
            (Some(before), Some(after)) => {
                let (left, right) =
                    (part.extent.start - before.extent.end(), after.extent.start - part.extent.end());
                if left <= right { before } else { after }
            }
            (before, after) => before.or(after).expect("there is another part"),
        };
        self.parts.remove(&nearest.extent.start);
        let start = part.extent.start.min(nearest.extent.start);
        let end = part.extent.end().max(nearest.extent.end());
        DestagedPart { extent: Extent::new(start, end - start), seq: part.seq.max(nearest.seq) }
    }

    /// Returns true if an extent that was added overlaps this one.
    pub fn touches(&self, extent: Extent) -> bool {
        self.touching(extent).next().is_some()
    }

    fn touching(&self, extent: Extent) -> impl Iterator<Item = DestagedPart> + '_ {
        let before = self.parts.range(..extent.start).next_back();
        let parts = before.into_iter().chain(self.parts.range(extent.start..extent.end()));
        parts.map(|(_, part)| *part).filter(move |part| part.extent.overlaps(extent))
    }

    /// The parts that record `seq` or a later one covers.
    pub fn since(&self, seq: u64) -> impl Iterator<Item = Extent> + '_ {
        self.parts.values().filter(move |part| part.seq >= seq).map(|part| part.extent)
    }

    /// Forgets the parts that lie within an extent.
    pub fn forget(&mut self, extent: Extent) {
        self.parts.retain(|start, part| *start < extent.start || part.extent.end() > extent.end());
    }

    /// Forgets what recovery does not find any more: it reads the log from record `seq` on.
    pub fn release(&mut self, seq: u64) {
        self.parts.retain(|_, part| part.seq >= seq);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn extent(start: u64, sectors: u64) -> Extent {
        Extent::new(Lba(start), sectors)
    }

    #[test]
    fn an_extent_counts_until_the_last_record_that_covers_it_is_released() {
        let mut destaged = Destaged::default();
        destaged.add(extent(10, 20), 5);
        destaged.add(extent(14, 4), 7);
        destaged.add(extent(12, 1), 3);
        destaged.release(6);
        let hit = |start| destaged.touches(extent(start, 1));
        assert_eq!((9..20).filter(|&start| hit(start)).collect::<Vec<_>>(), [14, 15, 16, 17]);
        assert_eq!(destaged.since(7).collect::<Vec<_>>(), [extent(14, 4)]);
        assert_eq!(destaged.since(8).count(), 0);
    }

    #[test]
    fn beyond_the_bound_parts_join_and_none_is_forgotten() {
        let mut destaged = Destaged::default();
        let parts = PARTS_MAX as u64 * 3;
        for part in 0..parts {
            destaged.add(extent(part * 7919 % parts * 10, 2), part + 1);
        }
        assert_eq!(destaged.parts.len(), PARTS_MAX);
        for part in 0..parts {
            assert!(destaged.touches(extent(part * 10, 2)), "{part}");
        }
        assert!(!destaged.touches(extent(parts * 10, 2)));
        destaged.release(parts + 1);
        assert_eq!(destaged.parts.len(), 0);
    }
}
