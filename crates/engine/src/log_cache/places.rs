//! The free places of the head's segment.
//!
//! On a rotational log, records go where the disk's head comes next, so free places remain between them. Later records take those: a
//! record may lie before older ones of its segment. Recovery finds the records of a segment by their numbers.

use std::ops::Range;

/// See the module's documentation.
pub struct FreePlaces {
    /// All sectors of the segment.
    segment: Range<u64>,
    /// Used sectors: ascending, with free ones between any two ranges.
    used: Vec<Range<u64>>,
}

impl FreePlaces {
    /// Creates the places of a segment whose sectors before `end` are used.
    pub fn new(segment: Range<u64>, end: u64) -> FreePlaces {
        let mut places = FreePlaces { used: Vec::new(), segment };
        places.take(places.segment.start..end);
        places
    }

    /// Marks sectors as used, which are free.
    pub fn take(&mut self, taken: Range<u64>) {
        if taken.is_empty() {
            return;
        }
        let next = self.used.partition_point(|used| used.start < taken.start);
        let follows = next > 0 && self.used[next - 1].end == taken.start;
        let precedes = self.used.get(next).is_some_and(|used| used.start == taken.end);
        assert!(next == 0 || self.used[next - 1].end <= taken.start, "a place is taken once");
        assert!(self.used.get(next).is_none_or(|used| taken.end <= used.start), "a place is taken once");
        match (follows, precedes) {
            (true, true) => self.used[next - 1].end = self.used.remove(next).end,
            (true, false) => self.used[next - 1].end = taken.end,
            (false, true) => self.used[next].start = taken.start,
            (false, false) => self.used.insert(next, taken),
        }
    }

    /// Returns the free stretches, in ascending order.
    pub fn free(&self) -> impl Iterator<Item = Range<u64>> {
        let starts = std::iter::once(self.segment.start).chain(self.used.iter().map(|used| used.end));
        let ends = self.used.iter().map(|used| used.start).chain(std::iter::once(self.segment.end));
        starts.zip(ends).map(|(start, end)| start..end).filter(|free| !free.is_empty())
    }

    /// Returns the first free stretch of at least `sectors`, from sector `from` on, else from the start of the segment on.
    pub fn next(&self, from: u64, sectors: u64) -> Option<Range<u64>> {
        let fits = |free: &Range<u64>| free.end - free.start >= sectors;
        let after = self.free().map(|free| free.start.max(from)..free.end.max(from));
        after.into_iter().find(fits).or_else(|| self.free().find(fits))
    }

    /// Returns the sector after the last one used.
    pub fn end(&self) -> u64 {
        self.used.last().map_or(self.segment.start, |used| used.end)
    }

    pub const fn segment(&self) -> &Range<u64> {
        &self.segment
    }

    pub fn free_sectors(&self) -> u64 {
        self.free().map(|free| free.end - free.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_places_join_and_the_rest_is_free() {
        let mut places = FreePlaces::new(100..200, 110);
        assert!(places.free().eq(std::iter::once(110..200)));
        places.take(150..160);
        places.take(120..130);
        assert_eq!(places.free().collect::<Vec<_>>(), [110..120, 130..150, 160..200]);
        places.take(130..150);
        places.take(110..115);
        assert_eq!(places.free().collect::<Vec<_>>(), [115..120, 160..200]);
        assert_eq!((places.end(), places.free_sectors()), (160, 45));
        places.take(160..200);
        assert_eq!((places.end(), places.free_sectors()), (200, 5));
    }

    #[test]
    fn the_next_place_is_after_the_last_one_or_before_it() {
        let mut places = FreePlaces::new(100..200, 100);
        places.take(120..150);
        assert_eq!(places.next(150, 10), Some(150..200));
        assert_eq!(places.next(110, 10), Some(110..120), "the rest of a stretch");
        assert_eq!(places.next(110, 20), Some(150..200));
        places.take(150..195);
        assert_eq!(places.next(195, 10), Some(100..120));
        assert_eq!(places.next(195, 30), None);
    }
}
