//! Shingled tracks, managed by the drive: where data is, and when a band is cleaned.
//!
//! Tracks that overlap can only be written one after the other, so the drive is cut into *bands* that are written whole. A
//! write that does not go on through a band from its start is appended to a *persistent cache*, a log on ordinary tracks,
//! and the drive remembers where it is. Cleaning a band writes back what is cached of it: the band is read, the cached
//! pieces are read, the result is written to a spare band first (a power cut must not cost the band) and then in place.
//! Bands are cleaned in the order in which they came into the cache (Aghayev and Desnoyers, "Skylight: a window on shingled
//! disk operation", FAST 2015), while the drive rests, and at once when the cache or its list is full: this is when random
//! writes become slow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dcd_engine::{Extent, Lba, Nanos};

use crate::mechanics::{Arm, Mechanics, Pass, Wanted};

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
    /// Bands with cached pieces, the oldest first.
    bands: VecDeque<u64>,
    listed: BTreeSet<u64>,
    cached_sectors: u64,
    /// Place where the log continues.
    head: Lba,
    /// Place where a write that has come through its band from the start would continue.
    stream: Lba,
    /// Until when a band is being cleaned.
    free_at: Nanos,
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
            stream: Lba(u64::MAX),
            free_at: Nanos::ZERO,
        }
    }

    pub fn free_at(&self) -> Nanos {
        self.free_at
    }

    /// Returns the time at which a drive that rests since `idle_since` begins to clean the next band.
    pub fn begins_at(&self, idle_since: Nanos) -> Option<Nanos> {
        (!self.bands.is_empty()).then(|| (idle_since + self.shape.idle).max(self.free_at))
    }

    /// True if a write of so many sectors has to wait until a band is clean.
    pub fn is_full(&self, sectors: u64) -> bool {
        // A write can be cut where a band ends, and at the end of the log.
        !self.bands.is_empty()
            && (self.pieces.len() + 4 > self.shape.entries
                || self.cached_sectors + 2 * sectors > self.shape.cache.sectors)
    }

    /// Returns the place of a write: in place if it continues through its band from the start, or else in the log.
    pub fn put(&mut self, extent: Extent) -> Lba {
        self.forget(extent);
        let in_place = extent.start == self.stream || extent.start.0.is_multiple_of(self.shape.band_sectors);
        if in_place {
            self.stream = extent.end();
            return extent.start;
        }
        if self.head + extent.sectors > self.shape.cache.end() {
            self.head = self.shape.cache.start;
        }
        let at = self.head;
        self.head = self.head + extent.sectors;
        self.remember(extent, at);
        at
    }

    fn remember(&mut self, extent: Extent, at: Lba) {
        let mut start = extent.start;
        while start < extent.end() {
            let band = start.0 / self.shape.band_sectors;
            let end = extent.end().min(Lba((band + 1) * self.shape.band_sectors));
            self.pieces.insert(start, ShinglePiece { sectors: end - start, at: at + (start - extent.start) });
            if self.listed.insert(band) {
                self.bands.push_back(band);
            }
            start = end;
        }
        self.cached_sectors += extent.sectors;
    }

    /// Drops what was cached of a range: it is stale.
    fn forget(&mut self, extent: Extent) {
        for (start, piece) in self.overlapping(extent) {
            let whole = Extent::new(start, piece.sectors);
            self.pieces.remove(&start);
            self.cached_sectors -= piece.sectors;
            for (from, to) in [(whole.start, extent.start), (extent.end(), whole.end())] {
                if from < to {
                    self.pieces
                        .insert(from, ShinglePiece { sectors: to - from, at: piece.at + (from - start) });
                    self.cached_sectors += to - from;
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
        let Some(band) = self.bands.pop_front() else { return arm };
        self.listed.remove(&band);
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
        if !cached.is_empty() {
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
    }
}
