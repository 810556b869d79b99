//! Sequential streams that go around the log. A kernel splits what a client writes, often into large requests and a small
//! rest each. A rest in the log would make holes in what went around it, which an array has to fill by reading.

use crate::{Extent, Lba};

/// Streams that are told apart.
const STREAMS: usize = 16;

/// Where large writes ended that went around the log since the last flush.
#[derive(Default)]
pub struct Streams {
    ends: [Option<Lba>; STREAMS],
    /// The place that is used again next.
    next: usize,
}

impl Streams {
    /// A large write goes around the log.
    pub fn note(&mut self, extent: Extent) {
        let known = self.ends.iter().position(|end| *end == Some(extent.start));
        let place = known.unwrap_or(self.next);
        if known.is_none() {
            self.next = (self.next + 1) % STREAMS;
        }
        self.ends[place] = Some(extent.end());
    }

    /// A small write that begins here goes on where a large one ended.
    pub fn continues(&self, start: Lba) -> bool {
        self.ends.contains(&Some(start))
    }

    /// What comes after a flush is another stream: a journal's commit record is not a rest of what it commits.
    pub fn flush(&mut self) {
        *self = Streams::default();
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
        streams.flush();
        assert!(!streams.continues(Lba(20_100)));
    }
}
