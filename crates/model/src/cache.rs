//! The drive's built-in cache, as far as reads go: a few segments, each one run of sectors, and reading ahead.
//!
//! After a read the heads stay on the track and what passes under them goes into the read's segment, until the
//! read-ahead is complete or another request moves the arm. This costs nothing while it happens and is therefore worked
//! out only when somebody asks: [`Cache::catch_up`] moves the read-ahead to a moment. There are three states:
//!
//! | state   | meaning                                             | leaves it                                        |
//! |---------|-----------------------------------------------------|--------------------------------------------------|
//! | idle    | no segment is being filled                          | a read from the medium: running                  |
//! | running | sectors pass under the heads into `Ahead::segment`  | limit reached: waiting; arm moved: idle          |
//! | waiting | the heads are behind the last sector that was read  | a read goes on there: running; arm moved: idle   |
//!
//! The cache knows which sectors it has and not what is in them: the bytes of a hit come from the device below as well.
//! A write is in its segment when it is on the medium, and can be read from there; segments that overlap it are cleared
//! (Seagate ST15150 product manual, section "Caching write data").

use dcd_engine::{Extent, Lba, Nanos};

use crate::mechanics::{Arm, Mechanics};

/// The cache of a drive file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// 0: the drive has no cache.
    pub segments: usize,
    pub segment_sectors: u64,
    /// How far a read goes on behind its end.
    pub read_ahead_sectors: u64,
    /// The most segments that hold written data.
    pub write_segments: usize,
    /// A hit lets a waiting read-ahead go on.
    pub resume_on_hit: bool,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: Lba,
    end: Lba,
    used: u64,
    written: bool,
}

const EMPTY: Segment = Segment { start: Lba(0), end: Lba(0), used: 0, written: false };

impl Segment {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Keeps the last sectors of a run: a segment is a ring, and new sectors replace the oldest ones.
    fn extend_to(&mut self, end: Lba, sectors_max: u64) {
        self.end = end;
        self.start = self.start.max(Lba(end.0.saturating_sub(sectors_max)));
    }
}

/// Reading ahead: running while `next < limit`, waiting when it is there.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    segment: usize,
    next: Lba,
    limit: Lba,
    /// When the sector before `next` had passed, and the track on which it lies.
    at: Nanos,
    arm: Arm,
}

/// What the cache has of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// All of it.
    Hit { segment: usize },
    /// It ends behind a running or waiting read-ahead that has come at least to its start.
    Stream,
    /// The sectors from here on have to be read.
    Miss { from: Lba },
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    shape: CacheShape,
    segments: Vec<Segment>,
    ahead: Option<Ahead>,
    uses: u64,
}

impl Cache {
    pub fn new(shape: CacheShape) -> Cache {
        Cache { shape, segments: vec![EMPTY; shape.segments], ahead: None, uses: 0 }
    }

    /// Moves the read-ahead to the moment `now`.
    pub fn catch_up(&mut self, mechanics: &Mechanics, now: Nanos) {
        let Some(ahead) = &mut self.ahead else { return };
        let left = ahead.limit - ahead.next;
        if left == 0 || ahead.at >= now {
            return;
        }
        let read = mechanics.read_on(ahead.arm, ahead.next, ahead.at, left, now);
        ahead.next = ahead.next + read.sectors;
        ahead.at = read.at;
        ahead.arm = read.arm;
        self.segments[ahead.segment].extend_to(ahead.next, self.shape.segment_sectors);
    }

    /// The arm is needed elsewhere: ends the read-ahead, and tells on which track the heads are, if it was running.
    pub fn interrupt(&mut self, mechanics: &Mechanics, now: Nanos) -> Option<Arm> {
        self.catch_up(mechanics, now);
        let ahead = self.ahead.take()?;
        let left = ahead.limit - ahead.next;
        Some(mechanics.read_on(ahead.arm, ahead.next, ahead.at, left, now).stopped_on)
    }

    pub fn lookup(&self, wanted: Extent) -> Lookup {
        let mut best = Lookup::Miss { from: wanted.start };
        for (index, segment) in self.segments.iter().enumerate() {
            // The end counts as inside, for a read that goes on exactly where a read-ahead is.
            if wanted.start < segment.start || wanted.start > segment.end || segment.is_empty() {
                continue;
            }
            if wanted.end() <= segment.end {
                return Lookup::Hit { segment: index };
            }
            if self.ahead.is_some_and(|ahead| ahead.segment == index) {
                best = Lookup::Stream;
            } else if let Lookup::Miss { from } = best {
                best = Lookup::Miss { from: from.max(segment.end) };
            }
        }
        best
    }

    /// Where a stream goes on: the sector, the time from which the heads have been there, the track. A waiting
    /// read-ahead goes on when it is asked to.
    pub fn stream_from(&self, asked: Nanos) -> Option<(Lba, Nanos, Arm)> {
        let ahead = self.ahead?;
        let at = if ahead.next < ahead.limit { ahead.at } else { asked.max(ahead.at) };
        Some((ahead.next, at, ahead.arm))
    }

    /// True while a read-ahead is running: a stream finds its sectors as they pass.
    pub fn is_reading_ahead(&self) -> bool {
        self.ahead.is_some_and(|ahead| ahead.next < ahead.limit)
    }

    /// Where the heads are while they read ahead, or wait behind it.
    pub fn arm(&self) -> Option<Arm> {
        self.ahead.map(|ahead| ahead.arm)
    }

    /// A read was answered from `segment`.
    pub fn hit(&mut self, segment: usize, wanted: Extent, now: Nanos) {
        self.touch(segment);
        let shape = self.shape;
        if let Some(ahead) = &mut self.ahead
            && ahead.segment == segment
        {
            let waiting = ahead.next == ahead.limit;
            if !waiting || shape.resume_on_hit {
                let limit = ahead.limit.max(wanted.end() + shape.read_ahead_sectors);
                if waiting && limit > ahead.next {
                    ahead.at = ahead.at.max(now);
                }
                ahead.limit = limit;
            }
        }
    }

    /// A stream was read up to its end, which had passed at `at`.
    pub fn streamed(&mut self, wanted: Extent, at: Nanos, arm: Arm) {
        let Some(ahead) = &mut self.ahead else { return };
        let segment = ahead.segment;
        ahead.next = wanted.end();
        ahead.limit = ahead.limit.max(wanted.end() + self.shape.read_ahead_sectors);
        ahead.at = at;
        ahead.arm = arm;
        self.segments[segment].extend_to(wanted.end(), self.shape.segment_sectors);
        self.touch(segment);
    }

    /// A read came from the medium, and its last sector passed at `at`: it gets a segment, and reading ahead begins.
    pub fn loaded(&mut self, wanted: Extent, at: Nanos, arm: Arm) {
        if self.segments.is_empty() {
            return;
        }
        // What was there of it already is in the request's segment now.
        self.clear(wanted);
        let segment = self.victim(false);
        self.fill(segment, wanted, false);
        let end = wanted.end();
        self.ahead = Some(Ahead { segment, next: end, limit: end + self.shape.read_ahead_sectors, at, arm });
    }

    /// A write went to the medium.
    pub fn written(&mut self, extent: Extent, keeps_data: bool) {
        self.clear(extent);
        if keeps_data && self.shape.write_segments > 0 && !self.segments.is_empty() {
            let segment = self.victim(true);
            self.fill(segment, extent, true);
        }
    }

    fn clear(&mut self, extent: Extent) {
        for segment in &mut self.segments {
            if segment.start < extent.end() && extent.start < segment.end {
                *segment = EMPTY;
            }
        }
    }

    fn fill(&mut self, segment: usize, extent: Extent, written: bool) {
        let start = extent.start.max(Lba(extent.end().0.saturating_sub(self.shape.segment_sectors)));
        self.segments[segment] = Segment { start, end: extent.end(), used: 0, written };
        self.touch(segment);
    }

    fn touch(&mut self, segment: usize) {
        self.uses += 1;
        self.segments[segment].used = self.uses;
    }

    /// The least recently used segment; for a write, only among the written ones once there are enough of them.
    fn victim(&self, write: bool) -> usize {
        let written = self.segments.iter().filter(|segment| segment.written).count();
        let only_written = write && written >= self.shape.write_segments;
        let candidates = self.segments.iter().enumerate().filter(|(_, s)| !only_written || s.written);
        candidates.min_by_key(|(_, segment)| segment.used).map_or(0, |(index, _)| index)
    }

    /// Panics where a segment is longer than it can be, or a read-ahead is not at the end of its segment. (Two segments
    /// may hold one sector, where a read-ahead has run into what another one holds; a write clears both.)
    pub fn check(&self) {
        for segment in &self.segments {
            assert!(
                segment.start <= segment.end && segment.end - segment.start <= self.shape.segment_sectors
            );
        }
        if let Some(ahead) = &self.ahead {
            assert!(ahead.next <= ahead.limit && self.segments[ahead.segment].end == ahead.next);
        }
    }
}
