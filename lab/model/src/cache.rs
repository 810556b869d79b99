//! The drive's built-in cache, as far as reads go: a few segments, each one run of sectors, and reading ahead.
//!
//! After a read the heads stay on the track and what passes under them goes into the read's segment, until the
//! read-ahead is complete or another request moves the arm. This costs nothing while it happens and is therefore worked
//! out only on demand: [`Cache::catch_up`] moves the read-ahead to a moment. There are three states:
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
use serde::{Deserialize, Serialize};

use crate::mechanics::{Arm, Mechanics};

/// Distance that the heads read ahead behind a read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReadAhead {
    None,
    /// To the end of the track that the next sector is on.
    Track,
    /// To the end of the track, and one track more if the segment already began on an earlier track: a stream stays one track ahead.
    NextTrack,
    /// As many sectors as the drive reads ahead at most: to the end of the segment.
    #[default]
    Segment,
}

/// The cache of a drive file, as far as reads go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CacheShape {
    /// 0: the drive has no cache.
    pub segments: usize,
    pub segment_sectors: u64,
    /// There are as many segments as files are being read, and two more: for the next file, and for writes.
    pub adaptive: bool,
    pub read_ahead: ReadAhead,
    /// Maximum number of sectors behind a read's end, whatever the policy.
    pub read_ahead_sectors: u64,
    /// Maximum number of segments that hold written data.
    pub write_segments: usize,
    /// They hold nothing else.
    pub separate_write_segments: bool,
    /// Reading ahead ends before it would replace what the request asked for.
    pub keep_requested: bool,
    /// A hit lets a waiting read-ahead go on.
    pub resume_on_hit: bool,
    /// Sectors that pass on the track before the first wanted sector are kept.
    pub keep_passing: bool,
    /// Sectors of a read are taken in the order in which they pass (zero-latency reads).
    pub any_order: bool,
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
    /// Time at which the sector before `next` had passed; `arm` is its track.
    at: Nanos,
    arm: Arm,
}

/// A file that is being read, as far as a drive sees it: reads that follow one another.
#[derive(Clone, Copy, Debug)]
struct Reading {
    end: Lba,
    /// Number of the read, of all reads, that was the last of this file.
    last: u64,
    goes_on: bool,
}

/// Reads of others after which a file is no longer being read.
const READING: u64 = 64;

/// Part of a read that is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// All of it.
    Hit { segment: usize },
    /// The read ends behind a running or waiting read-ahead that has come at least to its start.
    Stream,
    /// The sectors from here on have to be read; the ones before are in `segment`.
    Miss { from: Lba, segment: Option<usize> },
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Cache {
    shape: CacheShape,
    /// Sectors of all segments.
    sectors: u64,
    segments: Vec<Segment>,
    ahead: Option<Ahead>,
    uses: u64,
    reading: Vec<Reading>,
    reads: u64,
}

impl Cache {
    pub fn new(shape: CacheShape) -> Cache {
        let (sectors, segments) =
            (shape.segment_sectors * shape.segments as u64, vec![EMPTY; shape.segments]);
        Cache { shape, sectors, segments, ahead: None, uses: 0, reading: Vec::new(), reads: 0 }
    }

    /// Takes note of a read that was answered, and has as many segments as files are being read.
    fn adapt(&mut self, wanted: Extent) {
        if !self.shape.adaptive {
            return;
        }
        self.reads += 1;
        let last = self.reads;
        let goes_on = self.reading.iter().position(|file| file.end == wanted.start);
        self.reading.retain(|file| file.end != wanted.start && last - file.last < READING);
        self.reading.push(Reading { end: wanted.end(), last, goes_on: goes_on.is_some() });
        let files = self.reading.iter().filter(|file| file.goes_on).count();
        self.cut(files + 1 + self.shape.write_segments);
    }

    /// Cuts the cache into so many segments; those used last are kept, as far as they are not too long.
    fn cut(&mut self, segments: usize) {
        if segments == self.shape.segments || self.sectors < segments as u64 {
            return;
        }
        (self.shape.segments, self.shape.segment_sectors) = (segments, self.sectors / segments as u64);
        let ahead = self.ahead.map(|ahead| ahead.segment);
        let mut kept: Vec<(usize, Segment)> =
            std::mem::take(&mut self.segments).into_iter().enumerate().collect();
        kept.sort_by_key(|(_, segment)| std::cmp::Reverse(segment.used));
        kept.resize(segments, (usize::MAX, EMPTY));
        let place = ahead.and_then(|ahead| kept.iter().position(|(index, _)| *index == ahead));
        self.ahead = self.ahead.zip(place).map(|(ahead, segment)| Ahead { segment, ..ahead });
        self.segments = kept.into_iter().map(|(_, segment)| segment).collect();
        self.segments
            .iter_mut()
            .for_each(|segment| segment.extend_to(segment.end, self.shape.segment_sectors));
        // Sectors that were read ahead are not replaced by those that follow.
        if let Some(ahead) = &mut self.ahead {
            let full = self.segments[ahead.segment].start + self.shape.segment_sectors;
            ahead.limit = ahead.limit.min(full.max(ahead.next));
        }
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
        let mut best = Lookup::Miss { from: wanted.start, segment: None };
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
            } else if let Lookup::Miss { from, .. } = best
                && segment.end > from
            {
                best = Lookup::Miss { from: segment.end, segment: Some(index) };
            }
        }
        best
    }

    /// Returns the place where a stream continues: the sector, the time from which the heads have been there, the track. A waiting
    /// read-ahead continues when it is asked to.
    pub fn stream_from(&self, asked: Nanos) -> Option<(Lba, Nanos, Arm)> {
        let ahead = self.ahead?;
        let at = if ahead.next < ahead.limit { ahead.at } else { asked.max(ahead.at) };
        Some((ahead.next, at, ahead.arm))
    }

    /// True while a read-ahead is running: a stream finds its sectors as they pass.
    pub fn is_reading_ahead(&self) -> bool {
        self.ahead.is_some_and(|ahead| ahead.next < ahead.limit)
    }

    /// Returns the position of the heads while they read ahead, or wait behind the read-ahead.
    pub fn arm(&self) -> Option<Arm> {
        self.ahead.map(|ahead| ahead.arm)
    }

    /// Returns the end of a read-ahead that follows a read in a segment that begins at `start`.
    fn limit(&self, mechanics: &Mechanics, start: Lba, wanted: Extent) -> Lba {
        let (sectors, end) = (mechanics.geometry.sectors(), wanted.end());
        let adapted = if self.shape.adaptive { self.shape.segment_sectors } else { u64::MAX };
        let mut farthest = Lba((end.0 + self.shape.read_ahead_sectors.min(adapted)).min(sectors));
        if self.shape.keep_requested {
            farthest = farthest.min(wanted.start + self.shape.segment_sectors);
        }
        if farthest <= end {
            return end;
        }
        let stop = match self.shape.read_ahead {
            ReadAhead::None => end,
            ReadAhead::Segment => farthest,
            ReadAhead::Track | ReadAhead::NextTrack => {
                let spot = mechanics.geometry.locate(end);
                let track_end = mechanics.geometry.track_end(end, &spot);
                let follows = start.0 + u64::from(spot.sector) < end.0;
                match self.shape.read_ahead {
                    ReadAhead::NextTrack if follows => track_end + u64::from(spot.sectors_per_track),
                    _ => track_end,
                }
            }
        };
        stop.min(farthest)
    }

    /// A read was answered from `segment`.
    pub fn hit(&mut self, mechanics: &Mechanics, segment: usize, wanted: Extent, now: Nanos) {
        self.touch(segment);
        if let Some(ahead) = self.ahead.filter(|ahead| ahead.segment == segment) {
            let waiting = ahead.next == ahead.limit;
            if !waiting || self.shape.resume_on_hit {
                let limit = ahead.limit.max(self.limit(mechanics, self.segments[segment].start, wanted));
                let at = if waiting && limit > ahead.next { ahead.at.max(now) } else { ahead.at };
                self.ahead = Some(Ahead { limit, at, ..ahead });
            }
        }
        self.adapt(wanted);
    }

    /// A stream was read up to its end, which had passed at `at`.
    pub fn streamed(&mut self, mechanics: &Mechanics, wanted: Extent, at: Nanos, arm: Arm) {
        let Some(ahead) = self.ahead else { return };
        let segment = ahead.segment;
        self.segments[segment].extend_to(wanted.end(), self.shape.segment_sectors);
        let limit = ahead.limit.max(self.limit(mechanics, self.segments[segment].start, wanted));
        self.ahead = Some(Ahead { segment, next: wanted.end(), limit, at, arm });
        self.touch(segment);
        self.adapt(wanted);
    }

    /// A read came from the medium, and its last sector passed at `at`: it goes on in the segment that had its first
    /// sectors, or gets one of its own together with the `before` sectors that passed before it, and reading ahead
    /// begins.
    pub fn loaded(
        &mut self,
        mechanics: &Mechanics,
        wanted: Extent,
        found: Option<usize>,
        before: u64,
        at: Nanos,
        arm: Arm,
    ) {
        if self.segments.is_empty() {
            return;
        }
        let segment = match found {
            Some(segment) => {
                self.segments[segment].extend_to(wanted.end(), self.shape.segment_sectors);
                self.touch(segment);
                segment
            }
            None => {
                // What was there of it already is in the request's segment now.
                self.clear(wanted);
                let segment = self.victim(false);
                let start = Lba(wanted.start.0 - before);
                self.fill(segment, Extent::new(start, wanted.end() - start), false);
                segment
            }
        };
        let end = wanted.end();
        let limit = self.limit(mechanics, self.segments[segment].start, wanted);
        self.ahead = Some(Ahead { segment, next: end, limit, at, arm });
        self.adapt(wanted);
    }

    /// True if a write from the buffer would take sectors or the segment of a read-ahead.
    pub fn is_in_the_way(&self, written: Extent) -> bool {
        let Some(ahead) = &self.ahead else { return false };
        let start = self.segments[ahead.segment].start;
        self.victim(true) == ahead.segment || (start < written.end() && written.start < ahead.limit)
    }

    /// A write went to the medium, or is on its way there.
    pub fn written(&mut self, extent: Extent, keeps_data: bool) {
        let appends =
            |segment: &Segment| segment.written && !segment.is_empty() && segment.end == extent.start;
        let appended = self.segments.iter().position(appends);
        self.clear(extent);
        if !keeps_data || self.shape.write_segments == 0 || self.segments.is_empty() {
            return;
        }
        if let Some(segment) = appended.filter(|&segment| !self.segments[segment].is_empty()) {
            self.segments[segment].extend_to(extent.end(), self.shape.segment_sectors);
            self.touch(segment);
        } else {
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

    /// The least recently used segment; for a write, only among the written ones once there are enough of them. Where writes
    /// have segments of their own, these are the first ones.
    fn victim(&self, write: bool) -> usize {
        if self.shape.separate_write_segments {
            let own = |index: &usize| (*index < self.shape.write_segments) == write;
            let candidates = (0..self.segments.len()).filter(own);
            return candidates.min_by_key(|&index| self.segments[index].used).unwrap_or(0);
        }
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
