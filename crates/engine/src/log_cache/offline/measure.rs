//! Measures the rotation of the disk below an empty log, by writing in the log's area.
//!
//! A durable write ends when the head is at its end. So the time between the ends of two writes of the same length shows the angle
//! between their places, plus whole revolutions, whatever a command costs:
//!
//! - writing one place again and again shows the revolution;
//! - places a little apart show the length of a track. A step to the next track is longer, by its skew, and is left out;
//! - writes a little after the one before show how far ahead the next write must be to be in time: the lead.
//!
//! If writes end before a head could be there, or take as long everywhere, there is no head to follow: a write cache answers, or the disk
//! is flash or virtual. A busy host only adds to times, so it never makes a disk look like that. If the times show neither, nothing is
//! decided, and a later start measures again ([`measure_again`]).

use std::ops::Range;

use super::LogError;
use super::Newest;
use super::superblock::{read_superblock, write_superblock};
use crate::layer::{Durability, Io};
use crate::log_cache::format::{FIRST_SEGMENT_SECTOR, State, Superblock};
use crate::log_cache::recover::{WalkOptions, walk};
use crate::log_cache::spindle::{
    REVOLUTION_MAX, REVOLUTION_MIN, Spin, Spindle, TRACK_POINTS, TRACK_SECTORS_MAX, TRACK_SECTORS_MIN,
};
use crate::{BlockDevice, Buf, Lba, Nanos, SECTOR_BYTES};

/// Maximum time of the measurement: an attempt takes 2.5 s on a disk of 3600 rpm, and 6 s on the slowest disk supported.
const TIME_MAX: Nanos = Nanos::from_secs(15);
/// Revolutions that are timed at first, at most if a busy host disturbs some, and the number that must be alike.
const TURNS: usize = 16;
const TURNS_MAX: usize = 64;
const TURNS_ALIKE: usize = 12;
/// Steps along the tracks at each point: at least two tracks, in sixths; next, at most.
const STEPS: usize = 18;
const STEPS_MAX: usize = 54;
const STEPS_OF_TRACK: u64 = 6;
/// Steps that must be alike: the others go to another track.
const STEPS_ALIKE: usize = 9;
/// Number of writes that must be in time with a lead, before as many are late.
const IN_TIME: usize = 3;

/// Number of steps that are verified in the end, of at most how many, and how many may be too early.
const VERIFIED: usize = 12;
const VERIFIED_OF: usize = 48;
const EARLY_MAX: usize = 2;

/// Attempts: a busy host may disturb the measurement of a disk that shows its head well.
const ATTEMPTS: usize = 3;

/// Reason why the measurement ends.
enum Stop {
    NotShown,
    /// The times show neither that there is a head nor that there is none.
    TooNoisy,
    Failed(LogError),
}

/// Measures the disk below a log whose superblock is erased; only the area of its segments is written. A device is not measured if it is
/// not rotational or has no clock, or if a busy host disturbs too much.
pub fn measure(log: &mut dyn BlockDevice, superblock: &Superblock) -> Result<Spindle, LogError> {
    let geometry = log.geometry();
    let Some(now) = log.now().filter(|_| geometry.rotational) else { return Ok(Spindle::NotMeasured) };
    let physical = geometry.logical_block_bytes.max(geometry.physical_block_bytes);
    let block = u64::from(superblock.log_block_bytes.max(physical)) / SECTOR_BYTES;
    let durable = if geometry.volatile_cache { Durability::Durable } else { Durability::Volatile };
    let area = FIRST_SEGMENT_SECTOR..superblock.end_sector();
    let until = now + TIME_MAX;
    let mut bench = Bench { log, block, area, durable, until, ended: now, at: 0, first: 0 };
    // It stays so only if every attempt ends so.
    let mut found = Spindle::NotShown;
    for _ in 0..ATTEMPTS {
        match bench.spin(geometry.volatile_cache) {
            Ok(spin) => {
                found = Spindle::Spins(spin);
                break;
            }
            Err(Stop::NotShown) => {}
            Err(Stop::TooNoisy) => found = Spindle::NotMeasured,
            Err(Stop::Failed(error)) => return Err(error),
        }
    }
    bench.log.flush().map_err(LogError::io("flushing the log device"))?;
    Ok(found)
}

/// Repeats a measurement that was not conclusive, if the log was stopped and everything in it is destaged. Clean copies in the log are
/// discarded before the first of them is overwritten. Returns the result; none if nothing was measured.
///
/// # Errors
/// If the log cannot be read or written.
pub fn measure_again(log: &mut dyn BlockDevice) -> Result<Option<Spindle>, LogError> {
    let mut superblock = read_superblock(log)?;
    let is_unknown = superblock.spindle == Spindle::NotMeasured && log.geometry().rotational;
    if !is_unknown || superblock.state != State::Stopped || log.now().is_none() {
        return Ok(None);
    }
    let mut newest = Newest::new(superblock.log_block_sectors());
    match walk(log, &superblock, WalkOptions::default(), &mut newest) {
        Ok(walked) if walked.is_empty() && walked.damages == 0 => {
            superblock.begin_at(walked.next_seq, walked.tail_sector)
        }
        // The start reports such a log.
        _ => return Ok(None),
    }
    write_superblock(log, &mut superblock)?;
    write_superblock(log, &mut superblock)?;
    superblock.spindle = measure(log, &superblock)?;
    write_superblock(log, &mut superblock)?;
    Ok(Some(superblock.spindle))
}

/// Returns the longest run of similar values: `span` tells from its first value how much they may differ. The values are sorted.
fn densest(values: &[f64], span: impl Fn(f64) -> f64) -> &[f64] {
    let mut best = &values[..0];
    let mut end = 0;
    for (first, value) in values.iter().enumerate() {
        while end < values.len() && values[end] <= value + span(*value) {
            end += 1;
        }
        if end - first > best.len() {
            best = &values[first..end];
        }
    }
    best
}

/// Returns the middle of sorted values: disturbed ones lie at the ends.
fn median(values: &[f64]) -> f64 {
    values[values.len() / 2]
}

struct Bench<'a> {
    log: &'a mut dyn BlockDevice,
    /// Sectors of each write, and of the steps between them, as in the log. (A virtual disk may have longer physical blocks below it than
    /// it reports: writing a part of one costs another revolution.)
    block: u64,
    area: Range<u64>,
    durable: Durability,
    until: Nanos,
    /// Time when the last write completed.
    ended: Nanos,
    /// Sector where the last write began.
    at: u64,
    /// Sector to return to when the area ends.
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
            return Err(Stop::TooNoisy);
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
            return Err(Stop::TooNoisy);
        }
        let buf = Buf::zeroed((self.block * SECTOR_BYTES) as usize);
        let result = self.log.run(Io::Write { at: Lba(at), buf, durability });
        result.status.map_err(|e| Stop::Failed(LogError::io("measuring the log device")(e)))?;
        (self.ended, self.at) = (clock(self.log)?, at);
        Ok(self.ended.since(begun))
    }

    /// Moves to a place, to which the writes return when the area ends.
    fn begin(&mut self, at: u64) -> Result<(), Stop> {
        self.first = at;
        self.write(at, self.durable).map(drop)
    }

    /// The first sector of the block that holds a place.
    const fn aligned(&self, at: u64) -> u64 {
        self.area.start + (at - self.area.start) / self.block * self.block
    }

    /// Writes the same block again and again, adds the times between to `times`, and sorts them.
    fn repeated(&mut self, durability: Durability, times: &mut Vec<f64>) -> Result<(), Stop> {
        let at = self.area.start;
        self.write(at, durability)?;
        for _ in 0..TURNS {
            let before = self.ended;
            self.write(at, durability)?;
            times.push(self.ended.since(before).0 as f64);
        }
        times.sort_unstable_by(f64::total_cmp);
        Ok(())
    }

    /// Returns the time that most of the writes of one block take. A delay makes one interval longer and perhaps the next one shorter,
    /// and does not change the others.
    fn revolution(&mut self) -> Result<Nanos, Stop> {
        let mut times = Vec::with_capacity(TURNS_MAX);
        loop {
            self.repeated(self.durable, &mut times)?;
            let alike = densest(&times, |time| time / 16.0);
            let turn = Nanos(median(alike) as u64);
            if alike.len() >= TURNS_ALIKE && turn >= REVOLUTION_MIN {
                return if turn <= REVOLUTION_MAX { Ok(turn) } else { Err(Stop::TooNoisy) };
            }
            // Many writes of one block took less than the shortest revolution: no head was waited for.
            if Nanos(times[times.len() / 6] as u64) < REVOLUTION_MIN {
                return Err(Stop::NotShown);
            }
            if times.len() >= TURNS_MAX {
                return Err(Stop::TooNoisy);
            }
        }
    }

    /// Writes `sectors` after the start of the last write, or from the first place on if the area ends. Returns the time that the write
    /// took.
    fn step(&mut self, sectors: u64) -> Result<Nanos, Stop> {
        if self.at + sectors + self.block > self.area.end {
            self.write(self.first, self.durable)?;
            if self.at + sectors + self.block > self.area.end {
                return Err(Stop::NotShown);
            }
        }
        self.write(self.at + sectors, self.durable)
    }

    /// Returns the angles of steps along the track, sorted, as parts of a revolution.
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

    /// Returns the sectors of a track at the present place. `guess`: of a track elsewhere, or 0.
    fn track(&mut self, revolution: Nanos, guess: u64) -> Result<u64, Stop> {
        let blocks = |sectors: u64| (sectors / self.block * self.block).max(self.block);
        // The step doubles until the angle is seen well, and is still far from a whole revolution.
        let mut step = blocks(guess / 16);
        let rough = loop {
            let angle = self.angles(revolution, step, 5)?[1];
            if (1.0 / 12.0..0.5).contains(&angle) {
                break (step as f64 / angle) as u64;
            }
            step *= 2;
        };
        let step = (rough / STEPS_OF_TRACK / self.block * self.block).max(self.block);
        let mut angles = Vec::with_capacity(STEPS_MAX);
        while angles.len() < STEPS_MAX {
            angles.extend(self.angles(revolution, step, STEPS)?);
            angles.sort_unstable_by(f64::total_cmp);
            let seen = angles.partition_point(|angle| *angle < 1.0 / 24.0);
            let alike = densest(&angles[seen..], |angle| angle / 8.0);
            if alike.len() >= STEPS_ALIKE.max(angles.len() / 4) {
                return Ok((step as f64 / median(alike)).round() as u64);
            }
        }
        Err(Stop::TooNoisy)
    }

    /// Returns the shortest lead with which a write is in time: doubles it until it is, and then bisects.
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

    /// Returns the lead of whole blocks up to `most`, if writes are in time with it.
    fn in_time(&mut self, most: u64, revolution: Nanos, track: u64) -> Result<Option<u64>, Stop> {
        let gap = u128::from(most) * u128::from(track) / u128::from(revolution.0);
        let gap = gap as u64 / self.block * self.block;
        let lead = revolution.0 * gap / track;
        let (mut in_time, mut late) = (0, 0);
        while in_time < IN_TIME && late < IN_TIME {
            let is_late = self.step(self.block + gap)?.0 > lead + revolution.0 / 2;
            *if is_late { &mut late } else { &mut in_time } += 1;
        }
        Ok((late < IN_TIME).then_some(lead))
    }

    /// Verifies with steps that are short and long by turns: none takes less time than the head needs. (A cache that delays one write
    /// answers each when the one before is on the disk, which is too early for the long steps.)
    fn verify(&mut self, revolution: Nanos, track: u64, lead: Nanos) -> Result<(), Stop> {
        let (mut verified, mut early, mut begins_late) = (0, 0, false);
        for round in 0..VERIFIED_OF {
            let part = if round % 2 == 0 { 8 } else { 2 };
            let gap = (lead.0 + revolution.0 / part) % revolution.0 * track / revolution.0;
            let step = self.block + gap.next_multiple_of(self.block);
            let (needed, near) = (step * revolution.0 / track, revolution.0 / 16);
            let took = self.step(step)?.0;
            if !begins_late {
                verified += 1;
                early += usize::from(took < needed.saturating_sub(near));
            }
            if verified == VERIFIED {
                break;
            }
            // The end of this step was noticed late, so the next one looks too early.
            begins_late = took > needed + near;
        }
        match () {
            () if early > EARLY_MAX => Err(Stop::NotShown),
            () if verified < VERIFIED => Err(Stop::TooNoisy),
            () => Ok(()),
        }
    }

    /// Returns true when writes that need not be durable complete long before a revolution does.
    fn has_write_cache(&mut self, revolution: Nanos) -> Result<bool, Stop> {
        let mut times = Vec::with_capacity(TURNS);
        self.repeated(Durability::Volatile, &mut times)?;
        Ok(times[TURNS / 2] < revolution.0 as f64 / 4.0)
    }
}
