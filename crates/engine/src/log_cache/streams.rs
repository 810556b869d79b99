//! Sequential streams. Those of large writes bypass the log: a kernel often splits a write into large requests and a small rest each. A
//! rest in the log would leave holes in the writes that bypassed it, which an array has to fill by reading.

use crate::{Extent, Lba};

/// Number of streams that are distinguished.
const STREAMS: usize = 16;

/// Ends of the latest request of each stream.
#[derive(Default)]
pub struct Streams {
    /// A request continues a stream if it begins at the stream's end, or at most this many sectors after.
    reach: u64,
    ends: [Option<Lba>; STREAMS],
    /// The stream that is replaced next.
    next: usize,
}

impl Streams {
    pub fn reaching(reach: u64) -> Streams {
        Streams { reach, ..Streams::default() }
    }

    fn position(&self, start: Lba) -> Option<usize> {
        let goes_on = |end: Lba| end <= start && start - end <= self.reach;
        self.ends.iter().position(|end| end.is_some_and(goes_on))
    }

    pub fn note(&mut self, extent: Extent) {
        let known = self.position(extent.start);
        let place = known.unwrap_or(self.next);
        if known.is_none() {
            self.next = (self.next + 1) % STREAMS;
        }
        self.ends[place] = Some(extent.end());
    }

    /// True if a request that begins here continues another one.
    pub fn continues(&self, start: Lba) -> bool {
        self.position(start).is_some()
    }

    pub fn forget(&mut self) {
        self.ends = [None; STREAMS];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, sectors: u64) -> Extent {
        Extent::new(Lba(start), sectors)
    }

    #[test]
    fn each_of_several_streams_is_known_by_its_end() {
        let mut streams = Streams::default();
        (0..STREAMS as u64).for_each(|stream| streams.note(extent(10_000 * stream, 100)));
        assert!((0..STREAMS as u64).all(|stream| streams.continues(Lba(10_000 * stream + 100))));
        streams.note(extent(10_100, 50));
        assert!(!streams.continues(Lba(10_100)) && streams.continues(Lba(10_150)), "it goes on from there");
        streams.note(extent(500_000, 1));
        assert!(!streams.continues(Lba(100)) && streams.continues(Lba(20_100)), "the oldest is forgotten");
        streams.forget();
        assert!(!streams.continues(Lba(20_100)));
        let mut streams = Streams::reaching(8);
        streams.note(extent(100, 10));
        assert_eq!([109, 110, 118, 119].map(|at| streams.continues(Lba(at))), [false, true, true, false]);
        streams.note(extent(115, 10));
        assert!(!streams.continues(Lba(110)) && streams.continues(Lba(125)), "it is the same one");
    }
}
