//! Shingled tracks, managed by the drive: where data is, and when a band is cleaned.
//!
//! Tracks that overlap can only be written one after the other, so the drive is cut into *bands* that are written whole. A
//! write is appended to a *persistent cache*, a log on ordinary tracks, and the drive remembers where it is. Only a stream
//! that has gone on for a whole band is written in place from the next band on; where it ends within a band, the rest of
//! that band is lost by then, so the drive cleans it. Cleaning a band writes back what is cached of it: the band is read, the cached
//! pieces are read, the result is written to a spare band first (a power cut must not cost the band) and then in place.
//! Bands are cleaned in the order in which they came into the cache (Aghayev and Desnoyers, "Skylight: a window on shingled
//! disk operation", FAST 2015), while the drive rests, and at once when its list is full, or the log comes to a piece that it
//! still needs: this is when random writes become slow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dcd_engine::{Extent, Lba, Nanos};

use crate::mechanics::{Arm, Mechanics, Pass, Wanted};

/// Sequential streams that the drive tells apart.
const STREAMS: usize = 8;

/// The shingled part of a drive file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShinglesShape {
    pub band_sectors: u64,
    /// The sectors behind the last one that users see: the persistent cache.
    pub cache: Extent,
    /// Maximum number of pieces that the drive remembers.
    pub entries: usize,
    /// Time that the drive rests before it cleans.
    pub idle: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct ShinglePiece {
    sectors: u64,
    /// Place in the persistent cache.
    at: Lba,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Shingles {
    shape: ShinglesShape,
    /// Cached pieces by first sector; disjoint, and none reaches over the end of a band.
    pieces: BTreeMap<Lba, ShinglePiece>,
    /// Sectors of the same pieces, by place.
    places: BTreeMap<Lba, u64>,
    /// Bands with cached pieces, or that a stream has left half-written, the oldest first.
    bands: VecDeque<u64>,
    listed: BTreeSet<u64>,
    cached_sectors: u64,
    /// Place where the log continues.
    head: Lba,
    /// Ends of the streams, and how long they are; the last one used comes last.
    streams: VecDeque<(Lba, u64)>,
    /// Bands that a stream has left half-written.
    torn: BTreeSet<u64>,
    /// Until when a band is being cleaned.
    free_at: Nanos,
    cleaned: u64,
}

impl Shingles {
    pub fn new(shape: ShinglesShape) -> Shingles {
        Shingles {
            shape,
            pieces: BTreeMap::new(),
            bands: VecDeque::new(),
            listed: BTreeSet::new(),
            cached_sectors: 0,
            head: shape.cache.start,
            places: BTreeMap::new(),
            streams: VecDeque::new(),
            torn: BTreeSet::new(),
            free_at: Nanos::ZERO,
            cleaned: 0,
        }
    }

    pub fn free_at(&self) -> Nanos {
        self.free_at
    }

    /// Bands that were cleaned.
    pub fn cleaned(&self) -> u64 {
        self.cleaned
    }

    /// Returns the time at which a drive that rests since `idle_since` begins to clean the next band.
    pub fn begins_at(&self, idle_since: Nanos) -> Option<Nanos> {
        let half_written = self.streams.iter().any(|&stream| self.leaves_torn(stream).is_some());
        (half_written || !self.bands.is_empty()).then(|| (idle_since + self.shape.idle).max(self.free_at))
    }

    /// Returns where in the log a write of so many sectors would be.
    fn next_place(&self, sectors: u64) -> Lba {
        if self.head + sectors > self.shape.cache.end() { self.shape.cache.start } else { self.head }
    }

    /// True if a write of so many sectors has to wait until a band is clean.
    pub fn is_full(&self, sectors: u64) -> bool {
        let at = self.next_place(sectors);
        let piece = self.places.range(..at + sectors).next_back();
        // A write can be cut where a band ends.
        self.pieces.len() + 4 > self.shape.entries
            || piece.is_some_and(|(place, length)| *place + *length > at)
    }

    /// True if a stream of that length up to a place was written in place there.
    fn is_in_place(&self, next: Lba, length: u64) -> bool {
        length >= self.shape.band_sectors + next.0 % self.shape.band_sectors
    }

    /// Returns the band that a stream has written in place and not to its end.
    fn leaves_torn(&self, (next, length): (Lba, u64)) -> Option<u64> {
        let within = next.0 % self.shape.band_sectors;
        (within > 0 && self.is_in_place(next, length)).then_some(next.0 / self.shape.band_sectors)
    }

    /// A stream has ended.
    fn end_stream(&mut self, stream: (Lba, u64)) {
        if let Some(band) = self.leaves_torn(stream) {
            self.torn.insert(band);
            self.list(band);
        }
    }

    fn list(&mut self, band: u64) {
        if self.listed.insert(band) {
            self.bands.push_back(band);
        }
    }

    /// Returns the place of a write: its own if it is in a stream that has come through a band, or else in the log.
    pub fn put(&mut self, extent: Extent) -> Lba {
        self.forget(extent);
        let stream = self.streams.iter().position(|(next, _)| *next == extent.start);
        let length = stream.and_then(|index| self.streams.remove(index)).map_or(0, |(_, length)| length);
        self.streams.push_back((extent.end(), length + extent.sectors));
        if self.streams.len() > STREAMS
            && let Some(oldest) = self.streams.pop_front()
        {
            self.end_stream(oldest);
        }
        if self.is_in_place(extent.start, length) {
            return extent.start;
        }
        let at = self.next_place(extent.sectors);
        self.head = at + extent.sectors;
        self.remember(extent, at);
        at
    }

    fn insert(&mut self, start: Lba, piece: ShinglePiece) {
        self.cached_sectors += piece.sectors;
        self.places.insert(piece.at, piece.sectors);
        self.pieces.insert(start, piece);
    }

    fn remember(&mut self, extent: Extent, at: Lba) {
        let mut start = extent.start;
        while start < extent.end() {
            let band = start.0 / self.shape.band_sectors;
            let end = extent.end().min(Lba((band + 1) * self.shape.band_sectors));
            self.insert(start, ShinglePiece { sectors: end - start, at: at + (start - extent.start) });
            self.list(band);
            start = end;
        }
    }

    /// Drops what was cached of a range: it is stale.
    fn forget(&mut self, extent: Extent) {
        for (start, piece) in self.overlapping(extent) {
            let whole = Extent::new(start, piece.sectors);
            self.pieces.remove(&start);
            self.places.remove(&piece.at);
            self.cached_sectors -= piece.sectors;
            for (from, to) in [(whole.start, extent.start), (extent.end(), whole.end())] {
                if from < to {
                    self.insert(from, ShinglePiece { sectors: to - from, at: piece.at + (from - start) });
                }
            }
        }
    }

    fn overlapping(&self, extent: Extent) -> Vec<(Lba, ShinglePiece)> {
        let before = self.pieces.range(..extent.start).next_back();
        let inside = self.pieces.range(extent.start..extent.end());
        let all = before.into_iter().chain(inside).map(|(start, piece)| (*start, *piece));
        all.filter(|(start, piece)| Extent::new(*start, piece.sectors).overlaps(extent)).collect()
    }

    /// Returns the places of a range's sectors, in order.
    pub fn places(&self, extent: Extent) -> Vec<Extent> {
        let mut places = Vec::new();
        let mut next = extent.start;
        for (start, piece) in self.overlapping(extent) {
            let part = Extent::new(start, piece.sectors).intersection(extent).expect("it overlaps");
            if next < part.start {
                places.push(Extent::new(next, part.start - next));
            }
            places.push(Extent::new(piece.at + (part.start - start), part.sectors));
            next = part.end();
        }
        if next < extent.end() {
            places.push(Extent::new(next, extent.end() - next));
        }
        places
    }

    /// Cleans the oldest band from `at` on; tells where the arm is then.
    pub fn clean(&mut self, mechanics: &Mechanics, arm: Arm, at: Nanos) -> Arm {
        if self.bands.is_empty() {
            std::mem::take(&mut self.streams).into_iter().for_each(|stream| self.end_stream(stream));
        }
        let Some(band) = self.bands.pop_front() else { return arm };
        self.listed.remove(&band);
        let torn = self.torn.remove(&band);
        let start = Lba(band * self.shape.band_sectors);
        let end = Lba((start.0 + self.shape.band_sectors).min(self.shape.cache.start.0));
        let home = Extent::new(start, end - start);
        let cached = self.overlapping(home);
        self.forget(home);
        let mut now = at.max(self.free_at);
        let mut arm = arm;
        let mut pass = |extent: Extent, access| {
            let passage = mechanics.transfer(&Wanted {
                access,
                arm,
                lba: extent.start,
                spot: mechanics.geometry.locate(extent.start),
                sectors: extent.sectors,
                at: now,
                data_at: now,
            });
            (now, arm) = (passage.end, passage.arm);
        };
        if torn || !cached.is_empty() {
            self.cleaned += 1;
            pass(home, Pass::Read);
            for (_, piece) in cached {
                pass(Extent::new(piece.at, piece.sectors), Pass::Read);
            }
            // The spare band is beside the log, at the end of its tracks.
            pass(Extent::new(Lba(self.shape.cache.end().0), home.sectors), Pass::Write);
            pass(home, Pass::Write);
        }
        self.free_at = now;
        arm
    }

    pub fn check(&self) {
        assert_eq!(self.cached_sectors, self.pieces.values().map(|piece| piece.sectors).sum::<u64>());
        assert!(self.pieces.len() <= self.shape.entries && self.cached_sectors <= self.shape.cache.sectors);
        assert_eq!(self.places.len(), self.pieces.len(), "two pieces are in one place");
    }
}
