//! The sweep: where the data disk seeks and the log does not, batches are parts of one sweep over the data disk, in rising addresses and
//! round again.
//!
//! A batch takes what lies next ahead of the hand, also what came after the sweep began. So a lap brings home all that came since the lap
//! before, and the tail moves on with each batch: a log that stays full is destaged as if it were sorted as a whole. (A batch of
//! the whole log would leave the next one only what came meanwhile: half as much, and further apart.)
//!
//! A lap frees nothing that came before it until it ends. So while writers need space the first lap is over the oldest part of
//! the log alone, and each may take a quarter more than the one before. [`Sweep::plan`] says how fast they may write meanwhile.

use std::ops::Range;

use super::room::Item;
use crate::log_cache::table::Line;

/// Lines in the first lap beside writers: so many at least, and one of so many that are dirty.
const LAP_LINES: u64 = 1 << 13;
const LAP_PART: u64 = 2;
/// Batches in a lap, where they have so many lines at least.
const BATCHES_OF_LAP: u64 = 16;
const BATCH_LINES: u64 = 1 << 10;

/// Parts of the disk that are counted by themselves: their numbers are bytes.
const PARTS: usize = 1 << u8::BITS;

/// See the module's documentation.
#[derive(Default)]
pub struct Sweep {
    hand: Line,
    /// Lines that a lap may take; none while nobody writes.
    lap_lines: Option<u64>,
    /// Sectors to destage ahead of the hand, by the part of the disk.
    ahead: Vec<u64>,
    /// The part of the disk, from the hand on, that has the last piece of each segment.
    furthest: Vec<u8>,
    /// The first line of the disk, and their number.
    first: Line,
    lines: u64,
    slowdown: f64,
}

impl Sweep {
    /// Over a disk of these lines, from a log of so many segments.
    pub fn new(lines: Range<u64>, segments: usize) -> Sweep {
        Sweep {
            hand: Line(lines.start),
            lap_lines: None,
            ahead: vec![0; PARTS],
            furthest: vec![0; segments],
            first: Line(lines.start),
            lines: (lines.end - lines.start).max(1),
            slowdown: 0.0,
        }
    }

    /// Lines that the lap may take, of so many that are dirty.
    pub fn lap_lines(&mut self, dirty: u64, short: bool) -> u64 {
        let least = (dirty / LAP_PART).max(LAP_LINES);
        self.lap_lines = short.then(|| self.lap_lines.unwrap_or(0).max(least));
        self.lap_lines.unwrap_or(dirty)
    }

    /// Moves the hand back to the start, as nothing is ahead of it. False if the hand was there.
    pub fn begin_lap(&mut self, dirty: u64) -> bool {
        self.lap_lines = self.lap_lines.map(|lines| (lines + lines / 4).min(dirty));
        std::mem::replace(&mut self.hand, self.first) > self.first
    }

    /// A batch is about to be chosen.
    pub fn begin_batch(&mut self) {
        self.ahead.fill(0);
        self.furthest.fill(0);
    }

    /// Sees a piece that may be destaged: whether it is ahead of the hand in this lap.
    pub fn see(&mut self, item: &Item, segment: u32) -> bool {
        let is_ahead = item.line >= self.hand;
        let ahead = if is_ahead { item.line.0 - self.hand.0 } else { item.line.0 + self.lines - self.hand.0 };
        let part = ((ahead as f64 / self.lines as f64 * PARTS as f64) as usize).min(PARTS - 1);
        self.ahead[part] += u64::from(item.piece.sectors());
        let furthest = &mut self.furthest[segment as usize];
        *furthest = (part as u8).max(*furthest);
        is_ahead
    }

    /// Plans how fast writers may go, so that what is free lasts until the tail moves, segment by segment. `segments`: from the tail on,
    /// and whether the lap takes them.
    pub fn plan(
        &mut self,
        batch_sectors: u64,
        free_sectors: u64,
        segment_sectors: u64,
        segments: impl Iterator<Item = (u32, bool)>,
    ) {
        let mut sum = 0;
        for ahead in &mut self.ahead {
            sum += *ahead;
            *ahead = sum;
        }
        let (mut free, mut needed) = (free_sectors.max(segment_sectors), batch_sectors);
        self.slowdown = 0.0;
        for (segment, is_of_lap) in segments {
            let needs =
                if is_of_lap { self.ahead[usize::from(self.furthest[segment as usize])] } else { sum };
            needed = needed.max(needs);
            self.slowdown = self.slowdown.max(needed as f64 / free as f64);
            free += segment_sectors;
            if !is_of_lap {
                break;
            }
        }
    }

    /// A batch that is no part of a sweep frees the tail when it ends.
    pub fn plan_alone(&mut self, batch_sectors: u64, free_sectors: u64, segment_sectors: u64) {
        self.slowdown = batch_sectors as f64 / free_sectors.max(segment_sectors) as f64;
    }

    /// Returns how many sectors are destaged while one may be written.
    pub const fn slowdown(&self) -> f64 {
        self.slowdown
    }

    /// The hand moves over a batch. What is left of its last line is ahead of the hand still.
    pub fn pass(&mut self, items: &[Item]) {
        self.hand = items.iter().map(|item| item.line).max().unwrap_or(self.hand);
    }
}

/// Lines of a batch, in a lap of so many.
pub fn batch_lines(lap_lines: u64, most: usize) -> usize {
    ((lap_lines / BATCHES_OF_LAP).max(BATCH_LINES) as usize).min(most)
}

/// Collects the first `max` of some items, in the order of lines. Their memory is twice as large.
#[derive(Default)]
pub struct First {
    max: usize,
    /// Items behind this line are left out.
    end: Line,
}

impl First {
    pub const fn new(max: usize) -> First {
        First { max, end: Line(u64::MAX) }
    }

    pub const fn max(&self) -> usize {
        self.max
    }

    pub fn add(&mut self, item: Item, items: &mut Vec<Item>) {
        if item.line > self.end {
            return;
        }
        items.push(item);
        if items.len() >= 2 * self.max {
            self.cut(items);
        }
    }

    /// Drops all but the first.
    pub fn cut(&mut self, items: &mut Vec<Item>) {
        if items.len() > self.max {
            items.select_nth_unstable_by_key(self.max - 1, |item| item.line);
            items.truncate(self.max);
            self.end = items[self.max - 1].line;
        }
    }
}
