//! Finds the rotation of a disk from the times at which writes end. The caller makes the writes, one at a time.
//!
//! A durable write ends when the head is at its end. So the time between the ends of two writes shows the angle between their places, plus
//! whole revolutions, whatever a command costs. A busy host only adds time. Each place is therefore written several times, and the lower
//! edge of the times that lie close together, counted modulo the revolution, is the place's angle ([`lower_edge`]):
//!
//! - one place shows the revolution;
//! - places along a track show its length. A step to the next track is longer, by its skew, and the other steps outvote it;
//! - writes a little after the one before show how far ahead the next write must be to be in time: the lead.
//!
//! If writes end before a head could be there, or take as long everywhere, there is no head to follow: a write cache answers, or the disk
//! is flash or virtual. Steps are short and long by turns: a cache that delays one write answers each when the one before is on the disk,
//! and so the short steps look long.

use std::ops::Range;

use super::spindle::{
    REVOLUTION_MAX, REVOLUTION_MIN, Spin, Spindle, TRACK_POINTS, TRACK_SECTORS_MAX, TRACK_SECTORS_MIN,
};
use crate::Nanos;
use crate::layer::Durability;

/// Writes of one place: after how many the revolution is looked for, each time, and the maximum.
const TURNS: usize = 16;
const TURNS_MAX: usize = 128;
/// Times each place is written, and the maximum.
const PASSES: usize = 2;
const PASSES_MAX: usize = 24;
/// Number of ends close together that show the angle of a place.
const SETTLED: usize = 4;
/// Places of a first look for the length of a track, and of a close one. A short and a long step are a third of a track.
const ROUGH: usize = 5;
const CLOSE: usize = 19;
/// Steps of each kind that must agree on the length of a track.
const AGREE: usize = 3;
/// Writes that are in time with a sufficient lead, before so many are late.
const IN_TIME: usize = 2;
const LATE: usize = 12;
/// Width of the times that lie close together, as a part of the revolution.
const CLOSE_PART: u64 = 24;

/// See the module's documentation.
pub struct RotationSurvey {
    /// Sectors of each write, and of the steps between them, as in the log. (A virtual disk may have longer physical blocks below it than
    /// it reports: writing a part of one costs another revolution.)
    block: u64,
    area: Range<u64>,
    /// Number of places at which a track is measured.
    points: usize,
    has_cache: bool,
    stage: Stage,
    /// Places that are written one after the other, again and again; the ends of the writes at each; the number of all.
    places: Vec<u64>,
    ends: Vec<Vec<u64>>,
    writes: usize,
    revolution: u64,
    tracks: Vec<u64>,
    lead: u64,
}

#[derive(Clone, Copy)]
enum Stage {
    Turns,
    /// Distance of the places.
    Rough(u64),
    /// Length of a track, about.
    Close(u64),
    Lead(Lead),
    Cache,
    Ended(Spindle),
}

/// Search for the lead: `late` is too short, `good` long enough.
#[derive(Clone, Copy)]
struct Lead {
    late: u64,
    good: Option<u64>,
    /// The lead that is tried, and its writes so far: in time, and late.
    tried: u64,
    counts: (usize, usize),
    at: u64,
}

/// A write that the survey asks for.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    pub at: u64,
    pub sectors: u64,
    pub durability: Durability,
}

/// Returns the lower edge of the angles that lie within `width`, where most do, and how many do.
fn lower_edge(ends: &[u64], revolution: u64, width: u64) -> (u64, usize) {
    let mut angles: Vec<u64> = ends.iter().map(|end| end % revolution).collect();
    angles.sort_unstable();
    let count = angles.len();
    let again: Vec<u64> = angles.iter().map(|angle| angle + revolution).collect();
    angles.extend(again);
    let mut best = (0, 0);
    let mut end = 0;
    for first in 0..count {
        while end < first + count && angles[end] <= angles[first] + width {
            end += 1;
        }
        if end - first > best.1 {
            best = (angles[first], end - first);
        }
    }
    best
}

/// Returns the revolution, about this long, with which most ends at each place lie close together.
fn fit(ends: &[Vec<u64>], about: u64, within: u64) -> u64 {
    let all = || ends.iter().flatten().copied();
    let turns = (all().max().unwrap_or(0) - all().min().unwrap_or(0)) / about + 1;
    let width = about / CLOSE_PART;
    let step = (width / 4 / turns / 4).max(1);
    let score = |revolution: u64| -> usize {
        let counts = ends.iter().map(|ends| {
            lower_edge(ends, revolution, width).1 + 2 * lower_edge(ends, revolution, width / 4).1
        });
        counts.sum()
    };
    let tried = (about - within..=about + within).step_by(step as usize);
    let scored: Vec<(usize, u64)> = tried.map(|revolution| (score(revolution), revolution)).collect();
    let best = scored.iter().map(|(score, _)| *score).max().unwrap_or(0);
    if score(about) >= best {
        return about;
    }
    let good: Vec<u64> =
        scored.iter().filter(|(score, _)| *score == best).map(|(_, revolution)| *revolution).collect();
    good[good.len() / 2]
}

/// Returns the revolution shown by the ends of writes of one place, if many agree on it.
fn revolution(ends: &Vec<u64>) -> Option<u64> {
    let mut times: Vec<u64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
    times.sort_unstable();
    let alike = |from: u64| times.iter().filter(move |time| (from..=from + from / 16).contains(*time));
    let from = times.iter().copied().rev().max_by_key(|from| alike(*from).count())?;
    let count = alike(from).count();
    let about = *alike(from).nth(count / 2)?;
    if count < (TURNS / 2).max(times.len() / 6) || about < REVOLUTION_MIN.0 {
        return None;
    }
    let found = fit(std::slice::from_ref(ends), about, about / 32);
    (lower_edge(ends, found, found / CLOSE_PART).1 > ends.len() / 3).then_some(found)
}

impl RotationSurvey {
    /// Prepares a survey of an area that holds nothing. `points`: number of places, evenly over it, at which a track is measured.
    pub fn new(area: Range<u64>, block: u64, points: usize, has_cache: bool) -> RotationSurvey {
        let mut survey = RotationSurvey {
            block,
            area,
            points,
            has_cache,
            stage: Stage::Turns,
            places: Vec::new(),
            ends: Vec::new(),
            writes: 0,
            revolution: 0,
            tracks: Vec::new(),
            lead: 0,
        };
        survey.begin(Stage::Turns, vec![survey.area.start]);
        survey
    }

    /// Returns the next write, or what was found.
    pub fn next(&self) -> Result<Probe, Spindle> {
        let at = match &self.stage {
            Stage::Ended(spindle) => return Err(*spindle),
            Stage::Lead(lead) => lead.at,
            _ => self.places[self.writes % self.places.len()],
        };
        // With no write cache, each write is durable.
        let is_durable = self.has_cache && !matches!(self.stage, Stage::Cache);
        let durability = if is_durable { Durability::Durable } else { Durability::Volatile };
        Ok(Probe { at, sectors: self.block, durability })
    }

    fn begin(&mut self, stage: Stage, places: Vec<u64>) {
        self.stage = stage;
        self.ends = vec![Vec::new(); places.len()];
        (self.places, self.writes) = (places, 0);
    }

    fn end(&mut self, spindle: Spindle) {
        self.stage = Stage::Ended(spindle);
    }

    /// Takes the times of the write that was asked for.
    pub fn done(&mut self, begun: Nanos, ended: Nanos) {
        if let Stage::Lead(lead) = self.stage {
            return self.try_lead(lead, ended.since(begun).0);
        }
        let place = self.writes % self.places.len();
        self.writes += 1;
        let is_cache = matches!(self.stage, Stage::Cache);
        self.ends[place].push(if is_cache { ended.since(begun).0 } else { ended.0 });
        let passes = self.ends[self.places.len() - 1].len();
        match self.stage {
            Stage::Turns if passes.is_multiple_of(TURNS) => self.see_turns(),
            Stage::Cache if passes == TURNS => {
                let quick = self.ends[0].iter().filter(|time| **time < self.revolution / 4).count();
                self.found(quick > TURNS / 4);
            }
            Stage::Rough(_) | Stage::Close(_) if place + 1 == self.places.len() && passes >= PASSES => {
                self.see_places(passes);
            }
            _ => {}
        }
    }

    /// Looks at the angles between the places, once they are known well.
    fn see_places(&mut self, passes: usize) {
        self.revolution = fit(&self.ends, self.revolution, self.revolution / 1024);
        let revolution = self.revolution;
        let (wide, narrow) = (revolution / CLOSE_PART, revolution / CLOSE_PART / 6);
        let is_quiet = |ends: &Vec<u64>| lower_edge(ends, revolution, narrow).1 == passes;
        let is_settled = |ends: &Vec<u64>| is_quiet(ends) || lower_edge(ends, revolution, wide).1 >= SETTLED;
        let settled = self.ends.iter().filter(|ends| is_settled(ends)).count();
        let is_last = passes == PASSES_MAX;
        // If no host disturbs, the disk itself shows no track.
        let failed = if self.ends.iter().all(is_quiet) { Spindle::NotShown } else { Spindle::NotMeasured };
        if settled * 8 < self.places.len() * 7 && !is_last {
            return;
        }
        let edges: Vec<u64> = self.ends.iter().map(|ends| lower_edge(ends, revolution, wide).0).collect();
        let angles = edges.windows(2).map(|pair| (pair[1] + revolution - pair[0]) % revolution);
        let angles = angles.map(|angle| angle as f64 / revolution as f64).collect();
        match self.stage {
            Stage::Rough(step) => self.see_step(step, angles),
            Stage::Close(about) => self.see_track(about, &angles, is_last.then_some(failed)),
            _ => {}
        }
    }

    fn see_turns(&mut self) {
        let ends = &self.ends[0];
        let mut times: Vec<u64> = ends.windows(2).map(|pair| pair[1] - pair[0]).collect();
        times.sort_unstable();
        match revolution(ends) {
            Some(turn) if turn <= REVOLUTION_MAX.0 => {
                self.revolution = turn;
                self.look(self.block);
            }
            // Many writes of one block took less than the shortest revolution: no head was waited for.
            _ if times[times.len() / 6] < REVOLUTION_MIN.0 => self.end(Spindle::NotShown),
            _ if ends.len() >= TURNS_MAX => self.end(Spindle::NotMeasured),
            _ => {}
        }
    }

    /// Begins a first look for the length of a track, with steps of so many sectors.
    fn look(&mut self, step: u64) {
        let first = self.first(ROUGH as u64 * step);
        let places: Vec<u64> = (0..ROUGH as u64).map(|place| first + place * step).collect();
        match places[ROUGH - 1] + self.block <= self.area.end {
            true => self.begin(Stage::Rough(step), places),
            // No step turns the disk.
            false => self.end(Spindle::NotShown),
        }
    }

    /// Returns the present point, or one before it if so many sectors do not fit there.
    fn first(&self, sectors: u64) -> u64 {
        let length = self.area.end - self.area.start;
        let point = length * self.tracks.len() as u64 / (self.points as u64 - 1).max(1);
        self.area.start + point.min(length.saturating_sub(sectors + self.block)) / self.block * self.block
    }

    fn see_step(&mut self, step: u64, mut angles: Vec<f64>) {
        angles.sort_unstable_by(f64::total_cmp);
        match angles[1] {
            angle if (1.0 / 12.0..0.5).contains(&angle) => self.look_closely((step as f64 / angle) as u64),
            _ => self.look(step * 2),
        }
    }

    /// Begins a close look at a track of about this length.
    fn look_closely(&mut self, about: u64) {
        let short = (about / 12 / self.block).max(1) * self.block;
        let offset = |place: u64| place / 2 * 4 * short + place % 2 * short;
        let first = self.first(offset(CLOSE as u64 - 1));
        let places = (0..CLOSE as u64).map(|place| first + offset(place));
        let places: Vec<u64> = places.filter(|place| place + self.block <= self.area.end).collect();
        self.begin(Stage::Close(about), places);
    }

    /// Takes the length of a track that most steps agree on, short and long ones. `failed`: the result if they do not.
    fn see_track(&mut self, about: u64, angles: &[f64], failed: Option<Spindle>) {
        let steps = self.places.windows(2).map(|pair| (pair[1] - pair[0]) as f64);
        let steps: Vec<(f64, f64)> = steps.zip(angles.iter().copied()).collect();
        let agree = |track: f64, steps: &[(f64, f64)]| -> Vec<(f64, f64)> {
            let off = |&(step, angle): &(f64, f64)| (step / track - angle).abs();
            steps.iter().filter(|step| off(step) < 1.0 / 60.0).copied().collect()
        };
        let tried = steps.iter().filter(|(_, angle)| *angle > 1.0 / 60.0).map(|(step, angle)| step / angle);
        let best = tried.map(|track| agree(track, &steps)).max_by_key(Vec::len).unwrap_or_default();
        let (step, angle) = best.iter().fold((0.0, 0.0), |sum, step| (sum.0 + step.0, sum.1 + step.1));
        let short = steps.first().map_or(0.0, |step| step.0);
        let shorts = best.iter().filter(|step| step.0 <= short).count();
        let range = f64::from(TRACK_SECTORS_MIN)..=f64::from(TRACK_SECTORS_MAX);
        let agreed = shorts.min(best.len() - shorts) >= AGREE && best.len() * 2 > steps.len();
        if !agreed || !range.contains(&(step / angle)) {
            if let Some(failed) = failed {
                self.end(failed);
            }
            return;
        }
        let track = (step / angle).round() as u64;
        if track.abs_diff(about) > about / 3 * 2 {
            return self.look_closely(track);
        }
        self.tracks.push(track);
        if self.tracks.len() < self.points {
            return self.look_closely(track);
        }
        let tried = self.revolution / 64;
        let at = self.area.start;
        self.stage = Stage::Lead(Lead { late: 0, good: None, tried, counts: (0, 0), at });
    }

    /// Finds the shortest lead with which writes are in time: doubles it until they are, and then bisects.
    fn try_lead(&mut self, mut lead: Lead, took: u64) {
        let (track, least) = (self.tracks[0], self.revolution / 64);
        let blocks = |time: u64| {
            let gap = u128::from(time) * u128::from(track) / u128::from(self.revolution);
            gap as u64 / self.block * self.block
        };
        // The first write of the area has moved the arm.
        if lead.at != self.area.start {
            let given = self.revolution * blocks(lead.tried) / track;
            let transfer = self.revolution * self.block / track;
            // A step to the next track takes longer, by its skew, and so counts as late.
            match took > given + transfer + self.revolution / 16 {
                true => lead.counts.1 += 1,
                false => lead.counts.0 += 1,
            }
            if lead.counts.0 == IN_TIME {
                lead.good = Some(given);
            } else if lead.counts.1 == LATE {
                lead.late = lead.tried;
            }
            if lead.counts.0 == IN_TIME || lead.counts.1 == LATE {
                lead.counts = (0, 0);
                let most = self.revolution - least;
                match lead.good {
                    None if lead.tried == most => return self.led(most),
                    None => lead.tried = (lead.tried * 2).min(most),
                    Some(good) if lead.late > 0 && good.saturating_sub(lead.late) > least / 2 => {
                        lead.tried = lead.late.midpoint(good);
                    }
                    // A little more, as times vary.
                    Some(good) => return self.led((good + least / 2).min(most)),
                }
            }
        }
        lead.at += self.block + blocks(lead.tried);
        if lead.at + self.block > self.area.end {
            lead.at = self.area.start;
        }
        self.stage = Stage::Lead(lead);
    }

    fn led(&mut self, lead: u64) {
        self.lead = lead;
        match self.has_cache {
            true => self.begin(Stage::Cache, vec![self.area.start]),
            false => self.found(false),
        }
    }

    fn found(&mut self, write_cache: bool) {
        let track = |point: usize| self.tracks[point.min(self.tracks.len() - 1)] as u32;
        let tracks = std::array::from_fn::<u32, TRACK_POINTS, _>(track);
        let (revolution, lead) = (Nanos(self.revolution), Nanos(self.lead));
        self.end(Spindle::Spins(Spin { revolution, lead, tracks, write_cache }));
    }
}
