//! Measures how the disk below an empty log turns, by writing in the log's area.
//!
//! A durable write ends when the head is at its end. So two writes of the same length are as far apart in time as their places
//! are in angle, but for whole revolutions, whatever a command costs:
//!
//! - the same place, written again and again, gives the revolution;
//! - places a little apart give the length of a track. A step to the next track is longer, by its skew, and is left out;
//! - writes a little behind the one before show how far ahead the next one must be to be in time: the lead.
//!
//! Where the times do not behave so, there is no head to follow: a write cache that answers, flash, a virtual disk.

use std::ops::Range;

use super::LogError;
use crate::layer::{Durability, Io};
use crate::log_cache::format::{FIRST_SEGMENT_SECTOR, Superblock};
use crate::log_cache::spindle::{
    REVOLUTION_MAX, REVOLUTION_MIN, Spin, Spindle, TRACK_POINTS, TRACK_SECTORS_MAX, TRACK_SECTORS_MIN,
};
use crate::{BlockDevice, Buf, Lba, Nanos, SECTOR_BYTES};

/// What takes longer is given up: a disk of 3600 rpm needs 2.5 s, and the slowest that is followed 6 s, for an attempt.
const TIME_MAX: Nanos = Nanos::from_secs(15);
/// Revolutions that are timed, and how many of them must be alike.
const TURNS: usize = 16;
const TURNS_ALIKE: usize = 12;
/// Steps along the tracks at each point: at least two tracks, in sixths.
const STEPS: usize = 18;
const STEPS_OF_TRACK: u64 = 6;
/// Steps that must be alike: the others go to another track.
const STEPS_ALIKE: usize = 9;
/// So many writes in a row must be in time with a lead.
const IN_TIME: usize = 3;

/// So many steps are verified in the end, and so many may be too early.
const VERIFIED: usize = 12;
const EARLY_MAX: usize = 2;

/// A busy host may disturb the measurement of a disk that shows its head well.
const ATTEMPTS: usize = 3;

/// Why the measurement ends.
enum Stop {
    NotShown,
    Failed(LogError),
}

/// Measures the disk below a log whose superblock is erased; only the area of its segments is written. Not measured is what does not
/// spin, and what has no clock.
pub fn measure(log: &mut dyn BlockDevice, superblock: &Superblock) -> Result<Spindle, LogError> {
    let geometry = log.geometry();
    let Some(now) = log.now().filter(|_| geometry.rotational) else { return Ok(Spindle::NotMeasured) };
    let physical = geometry.logical_block_bytes.max(geometry.physical_block_bytes);
    let block = u64::from(superblock.log_block_bytes.max(physical)) / SECTOR_BYTES;
    let durable = if geometry.volatile_cache { Durability::Durable } else { Durability::Volatile };
    let area = FIRST_SEGMENT_SECTOR..superblock.end_sector();
    let until = now + TIME_MAX;
    let mut bench = Bench { log, block, area, durable, until, ended: now, at: 0, first: 0 };
    let mut found = bench.spin(geometry.volatile_cache);
    for _ in 1..ATTEMPTS {
        if !matches!(found, Err(Stop::NotShown)) {
            break;
        }
        found = bench.spin(geometry.volatile_cache);
    }
    bench.log.flush().map_err(LogError::io("flushing the log device"))?;
    match found {
        Ok(spin) => Ok(Spindle::Spins(spin)),
        Err(Stop::NotShown) => Ok(Spindle::NotShown),
        Err(Stop::Failed(error)) => Err(error),
    }
}

struct Bench<'a> {
    log: &'a mut dyn BlockDevice,
    /// Sectors of each write, and of the steps between them, as in the log. (A virtual disk may not say that the physical blocks below
    /// it are longer than its own: a part of one costs it a turn more.)
    block: u64,
    area: Range<u64>,
    durable: Durability,
    until: Nanos,
    /// When the last write had ended.
    ended: Nanos,
    /// Where the last write began.
    at: u64,
    /// Where to begin again when the area ends.
    first: u64,
}

impl Bench<'_> {
    fn spin(&mut self, volatile_cache: bool) -> Result<Spin, Stop> {
        let revolution = self.revolution()?;
        let mut tracks = [0; TRACK_POINTS];
        let length = self.area.end - self.area.start;
        let mut guess = 0;
        for (index, track) in tracks.iter_mut().enumerate() {
            let point = self.area.start + length * index as u64 / (TRACK_POINTS as u64 - 1);
            let room = self.area.end.saturating_sub(4 * guess + self.block).max(self.area.start);
            self.begin(self.aligned(point.min(room)))?;
            guess = self.track(revolution, guess)?;
            *track = u32::try_from(guess).map_err(|_| Stop::NotShown)?;
        }
        if !tracks.iter().all(|track| (TRACK_SECTORS_MIN..=TRACK_SECTORS_MAX).contains(track)) {
            return Err(Stop::NotShown);
        }
        self.begin(self.area.start)?;
        let lead = self.lead(revolution, tracks[0].into())?;
        self.verify(revolution, tracks[0].into(), lead)?;
        let write_cache = volatile_cache && self.has_write_cache(revolution)?;
        Ok(Spin { revolution, lead, tracks, write_cache })
    }

    /// Writes one block, and returns the time that it took.
    fn write(&mut self, at: u64, durability: Durability) -> Result<Nanos, Stop> {
        let clock = |log: &dyn BlockDevice| log.now().ok_or(Stop::NotShown);
        let begun = clock(self.log)?;
        if begun > self.until {
            return Err(Stop::NotShown);
        }
        let buf = Buf::zeroed((self.block * SECTOR_BYTES) as usize);
        let result = self.log.run(Io::Write { at: Lba(at), buf, durability });
        result.status.map_err(|e| Stop::Failed(LogError::io("measuring the log device")(e)))?;
        (self.ended, self.at) = (clock(self.log)?, at);
        Ok(self.ended.since(begun))
    }

    /// Goes to a place, and begins again from there when the area ends.
    fn begin(&mut self, at: u64) -> Result<(), Stop> {
        self.first = at;
        self.write(at, self.durable).map(drop)
    }

    /// The block that begins at a place, or before it.
    const fn aligned(&self, at: u64) -> u64 {
        self.area.start + (at - self.area.start) / self.block * self.block
    }

    /// Writes the same block again and again: the times between.
    fn repeated(&mut self, durability: Durability) -> Result<Vec<u64>, Stop> {
        let at = self.area.start;
        self.write(at, durability)?;
        let mut times = Vec::with_capacity(TURNS);
        for _ in 0..TURNS {
            let before = self.ended;
            self.write(at, durability)?;
            times.push(self.ended.since(before).0);
        }
        times.sort_unstable();
        Ok(times)
    }

    fn revolution(&mut self) -> Result<Nanos, Stop> {
        let times = self.repeated(self.durable)?;
        let median = times[TURNS / 2];
        let alike: Vec<u64> = times.into_iter().filter(|time| time.abs_diff(median) <= median / 32).collect();
        let mean = alike.iter().sum::<u64>() / alike.len() as u64;
        let fits = (REVOLUTION_MIN.0..=REVOLUTION_MAX.0).contains(&mean);
        if fits && alike.len() >= TURNS_ALIKE { Ok(Nanos(mean)) } else { Err(Stop::NotShown) }
    }

    /// Writes so many sectors behind where the last write began, from the first place on where the area ends. How long it took.
    fn step(&mut self, sectors: u64) -> Result<Nanos, Stop> {
        if self.at + sectors + self.block > self.area.end {
            self.write(self.first, self.durable)?;
            if self.at + sectors + self.block > self.area.end {
                return Err(Stop::NotShown);
            }
        }
        self.write(self.at + sectors, self.durable)
    }

    /// The angles of steps along the track, sorted, as parts of a revolution.
    fn angles(&mut self, revolution: Nanos, step: u64, count: usize) -> Result<Vec<f64>, Stop> {
        let mut angles = Vec::with_capacity(count);
        for _ in 0..count {
            if self.at + step + self.block > self.area.end {
                self.write(self.first, self.durable)?;
            }
            let before = self.ended;
            self.step(step)?;
            angles.push((self.ended.since(before).0 % revolution.0) as f64 / revolution.0 as f64);
        }
        angles.sort_unstable_by(f64::total_cmp);
        Ok(angles)
    }

    /// The sectors of a track where the bench is. `guess`: of a track elsewhere, or 0.
    fn track(&mut self, revolution: Nanos, guess: u64) -> Result<u64, Stop> {
        let blocks = |sectors: u64| (sectors / self.block * self.block).max(self.block);
        // Twice as far each time, until the angle is seen well, and is still far from a whole turn.
        let mut step = blocks(guess / 16);
        let rough = loop {
            let angle = self.angles(revolution, step, 3)?[1];
            if (1.0 / 12.0..0.5).contains(&angle) {
                break (step as f64 / angle) as u64;
            }
            step *= 2;
        };
        let step = (rough / STEPS_OF_TRACK / self.block * self.block).max(self.block);
        let angles = self.angles(revolution, step, STEPS)?;
        let median = angles[STEPS / 2];
        let alike: Vec<f64> = angles.into_iter().filter(|angle| (angle / median - 1.0).abs() < 0.2).collect();
        if alike.len() < STEPS_ALIKE || median < 1.0 / 24.0 {
            return Err(Stop::NotShown);
        }
        Ok((step as f64 * alike.len() as f64 / alike.iter().sum::<f64>()).round() as u64)
    }

    /// The shortest lead with which a write is in time, doubled until it is, and then halved in between.
    fn lead(&mut self, revolution: Nanos, track: u64) -> Result<Nanos, Stop> {
        let least = revolution.0 / 64;
        let (mut late, mut next) = (0, least);
        let mut in_time = loop {
            if let Some(lead) = self.in_time(next, revolution, track)? {
                break lead;
            }
            (late, next) = (next, next * 2);
            if next >= revolution.0 {
                return Ok(Nanos(revolution.0 - least));
            }
        };
        while late > 0 && in_time.saturating_sub(late) > least / 2 {
            let between = late.midpoint(in_time);
            match self.in_time(between, revolution, track)? {
                Some(lead) => in_time = lead,
                None => late = between,
            }
        }
        // A little more, as times vary.
        Ok(Nanos((in_time + least / 2).min(revolution.0 - least)))
    }

    /// Whether writes are in time with a lead of whole blocks, and no more than this: that lead.
    fn in_time(&mut self, most: u64, revolution: Nanos, track: u64) -> Result<Option<u64>, Stop> {
        let gap = u128::from(most) * u128::from(track) / u128::from(revolution.0);
        let gap = gap as u64 / self.block * self.block;
        let lead = revolution.0 * gap / track;
        for _ in 0..IN_TIME {
            if self.step(self.block + gap)?.0 > lead + revolution.0 / 2 {
                return Ok(None);
            }
        }
        Ok(Some(lead))
    }

    /// Steps that are short and long by turns: none takes less than the head needs for it. (A cache that holds one write back answers
    /// each when the one before it is on the disk, which is too early for the long ones.)
    fn verify(&mut self, revolution: Nanos, track: u64, lead: Nanos) -> Result<(), Stop> {
        let mut early = 0;
        for round in 0..VERIFIED {
            let part = if round % 2 == 0 { 8 } else { 2 };
            let gap = (lead.0 + revolution.0 / part) % revolution.0 * track / revolution.0;
            let step = self.block + gap.next_multiple_of(self.block);
            let least = (step * revolution.0 / track).saturating_sub(revolution.0 / 16);
            early += usize::from(self.step(step)?.0 < least);
        }
        if early <= EARLY_MAX { Ok(()) } else { Err(Stop::NotShown) }
    }

    /// Whether writes that need not be durable are over long before a revolution is.
    fn has_write_cache(&mut self, revolution: Nanos) -> Result<bool, Stop> {
        let times = self.repeated(Durability::Volatile)?;
        Ok(times[TURNS / 2] < revolution.0 / 4)
    }
}
