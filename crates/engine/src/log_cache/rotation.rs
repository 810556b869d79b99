//! Chooses the place of a record on a rotational log.
//!
//! A log that is written sector after sector, one flush at a time, waits for nearly a whole revolution each time: the next sector has
//! just passed the head when the next flush comes. So if the rotation of the log's disk has been measured, the record is put where the
//! head will be: a little further on, or into a free place that earlier records left. What is still free when the head leaves the segment
//! is unused until the log wraps around, so this is done only below the high mark. (Eager writing: Wang, Anderson and Patterson, OSDI
//! 1999.)
//!
//! A record that is begun while another one is being written is sent when that write has completed, with the head at its end: only the
//! lead is left out before the record.
//!
//! A busy host notices late that a write has ended. The disk turns on meanwhile, so an end later than expected, modulo the revolution,
//! does not move the expected angle, unless the next end agrees with it: then the track has changed.
//!
//! The lead covers what the client, the host and the drive need from the choice of a place to the write ([`Leads`]). The cache also learns
//! whether leaving sectors out pays at all ([`Judge`]): from time to time a record goes to the next sector, and takes no longer if the
//! disk is not rotational. Both are learnt separately for records after other operations of the cache, as the arm has to come back if
//! data and log are on one disk, and for records behind a write.

use std::ops::Range;

use super::spindle::{Spin, Spindle};
use crate::{LogHead, Nanos};

/// Number of revolutions after which the angle is not known well any more.
const TURNS_KNOWN: u64 = 64;
/// Part of the revolution by which the ends of two writes at one angle may differ.
const ALIKE_PART: u64 = 32;
/// Number of places in a row that are too far on to be used, after which the lead is learnt again: unused, it cannot become shorter.
const UNUSED_MAX: u32 = 32;
/// Kind of a record at a free place before the last one: the disk may have to go back to another track.
const BACK: usize = 3;
/// Part of a revolution that a track further on or back costs: where tracks begin is not known.
const CROSSING_PART: u64 = 16;
/// Part of a revolution that the free sectors of a whole track are worth.
const WORTH_PART: u64 = 2;
/// Share of the writes that end at the expected angle on a disk that rotates. (On others one in sixteen does.)
const FITS_MIN: f64 = 0.2;

/// See the module's documentation.
pub struct Rotation {
    spindle: Spindle,
    /// The first sector of the log's segments, and how many there are.
    start: u64,
    length: u64,
    /// Time when the end of the last record was noticed; time when the head was there.
    noticed: Option<Nanos>,
    passed: Nanos,
    angle: Angle,
    /// Learnt deviation of the time to the record after a gap, as a share: tracks are shorter than measured, or longer.
    stretch: f64,
    /// Share of the writes that ended at the expected angle.
    fits: Mean,
    /// True if another operation was sent since.
    is_disturbed: bool,
    /// The write whose time will be learnt from.
    sent: Option<TurnSample>,
    /// The record begun while another one is written: its time counts from when it is sent.
    behind: Option<TurnSample>,
    /// By [`Turn::kind`].
    learnt: [Learnt; 4],
    /// Index of the element of `learnt` that was asked last.
    asked: usize,
    /// Number of positions in a row that were returned, and whose places were not used.
    unused: u32,
}

/// TurnLead and judgement, learnt from records of one kind.
struct Learnt {
    leads: Leads,
    /// Time by which writes come later than expected.
    late: Mean,
    judge: Judge,
}

impl Learnt {
    fn lead(&self) -> TurnLead {
        TurnLead { time: self.leads.lead(self.leads.best), late: self.late.value as u64 }
    }
}

/// Position of the head when a place is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    revolution: u64,
    track: u64,
    elapsed: u64,
    lead: TurnLead,
    /// For a place before the last record.
    lead_back: TurnLead,
    /// 0: after a record; 1: after another operation; 2: behind a write in flight.
    kind: usize,
    /// False: the record goes to the next sector, to measure how long that takes.
    is_placed: bool,
}

/// Time to leave before a record.
#[derive(Clone, Copy, Debug)]
struct TurnLead {
    time: u64,
    /// Time by which writes come later than expected, on average.
    late: u64,
}

/// A place for a record.
#[derive(Clone, Copy, Debug)]
pub struct TurnPlace {
    /// Sectors from the end of the last record on; negative if the place is before it.
    pub distance: i64,
    /// Time until the head is first there.
    pub wait: u64,
    /// That time, and what late writes cost on average.
    pub cost: u64,
}

impl Turn {
    /// False: the record goes to the next sector, to measure how long that takes.
    pub const fn is_placed(&self) -> bool {
        self.is_placed
    }

    /// Returns the first place in a free stretch that the head does not reach too early; none if the record does not fit there.
    pub fn first(&self, free: Range<i64>, sectors: u64, block: u64) -> Option<TurnPlace> {
        let start = self.at(free.start);
        let lead = self.lead(start.distance).time;
        let more = (lead + self.revolution - start.wait) % self.revolution;
        // Records of one size leave no free places that are too short for them. Recovery looks for records where blocks begin.
        let step = if sectors <= self.track / 64 { sectors.next_multiple_of(block) } else { block };
        let further = (more * self.track / self.revolution).next_multiple_of(step);
        let fits = |place: &TurnPlace| place.distance + sectors as i64 <= free.end;
        let further = Some(self.at(start.distance + further as i64)).filter(fits);
        further.or_else(|| Some(start).filter(|start| start.wait >= lead && fits(start)))
    }

    pub const fn at(&self, distance: i64) -> TurnPlace {
        let (revolution, track) = (self.revolution as i64, self.track as i64);
        let wait = (distance * revolution / track - self.elapsed as i64).rem_euclid(revolution) as u64;
        let tracks = distance.unsigned_abs() * self.revolution / (CROSSING_PART * self.track);
        TurnPlace { distance, wait, cost: wait + self.lead(distance).late + tracks }
    }

    const fn lead(&self, distance: i64) -> TurnLead {
        if distance < 0 { self.lead_back } else { self.lead }
    }

    /// True if records fill free places before the last one, in segments of this length. On short tracks that takes longer than the space
    /// is worth: a place further back is on another track, and where tracks begin is not known.
    pub const fn fills(&self, length: u64) -> bool {
        length <= 2 * self.track
    }

    /// Returns the time that free sectors in a segment of this length are worth.
    pub fn worth(&self, free: u64, length: u64) -> u64 {
        self.revolution * free / (WORTH_PART * length.max(self.track))
    }
}

/// A write whose time is learnt from.
#[derive(Clone, Copy, Debug)]
struct TurnSample {
    since: Nanos,
    turn: Turn,
    goes_back: bool,
    /// Time until the head is first at the record's place; next, the time from there to its end.
    wait: u64,
    transfer: u64,
    /// Time that the head needs over the sectors left out, if the record is after the last one.
    gap: u64,
}

impl Rotation {
    /// Creates the state for a log whose segments begin at `start` and have `length` sectors.
    pub fn new(spindle: Spindle, start: u64, length: u64) -> Rotation {
        let spin = if let Spindle::Spins(spin) = spindle { Some(spin) } else { None };
        let (revolution, lead) = spin.map_or((0, 0), |spin| (spin.revolution.0, spin.lead.0));
        Rotation {
            spindle,
            start,
            length,
            noticed: None,
            passed: Nanos::ZERO,
            angle: Angle::default(),
            stretch: 0.0,
            fits: Mean::default(),
            is_disturbed: false,
            sent: None,
            behind: None,
            learnt: [0, 1, 2, BACK].map(|kind| Learnt {
                // Going back may take longer, and nothing was measured of it.
                leads: Leads::new(revolution, if kind == BACK { revolution / 4 } else { lead }),
                late: Mean::default(),
                judge: Judge::new(lead > revolution / 2),
            }),
            asked: 0,
            unused: 0,
        }
    }

    const fn spin(&self) -> Option<&Spin> {
        match &self.spindle {
            Spindle::Spins(spin) => Some(spin),
            Spindle::NotMeasured | Spindle::NotShown => None,
        }
    }

    pub const fn status(&self, rotational: bool) -> LogHead {
        match self.spindle {
            Spindle::Spins(_) if self.learnt[self.asked].judge.pays => LogHead::Followed,
            Spindle::Spins(_) => LogHead::DoesNotPay,
            Spindle::NotShown => LogHead::NotShown,
            Spindle::NotMeasured if rotational => LogHead::NotMeasured,
            Spindle::NotMeasured => LogHead::NotRotational,
        }
    }

    /// Returns the head's position for a record that would begin at sector `at`: after a write in flight, or now. After each write the
    /// position is returned once.
    pub fn turn(&mut self, now: Nanos, at: u64, is_behind: bool) -> Option<Turn> {
        let spin = *self.spin()?;
        let revolution = spin.revolution.0;
        let track = (spin.track_at(at - self.start, self.length) as f64 / (1.0 + self.stretch)) as u64;
        let elapsed = if is_behind { 0 } else { self.noticed.take().map(|_| now.since(self.passed).0)? };
        self.is_disturbed |= elapsed > TURNS_KNOWN * revolution;
        let kind = if is_behind { 2 } else { usize::from(self.is_disturbed) };
        self.asked = kind;
        let Learnt { leads, judge, .. } = &mut self.learnt[kind];
        self.unused += 1;
        if self.unused > UNUSED_MAX {
            (*leads, self.unused) = (Leads::new(revolution, spin.lead.0), 0);
        }
        let is_placed = judge.next_is_placed();
        let (lead, lead_back) = (self.learnt[kind].lead(), self.learnt[BACK].lead());
        Some(Turn { revolution, track, elapsed: elapsed % revolution, lead, lead_back, kind, is_placed })
    }

    /// Notes that the record was put there: its write shows whether the head came too early.
    pub fn placed(&mut self, now: Nanos, turn: Turn, place: TurnPlace) {
        self.unused = 0;
        let TurnPlace { distance, wait, .. } = place;
        let gap = distance.max(0).unsigned_abs() * turn.revolution / turn.track;
        let place = if turn.kind == 2 { &mut self.behind } else { &mut self.sent };
        *place = Some(TurnSample { since: now, turn, goes_back: distance < 0, wait, transfer: 0, gap });
    }

    /// Notes that a write of the log is sent.
    pub fn sending(&mut self, now: Nanos, sectors: u64) {
        if let Some(behind) = self.behind.take() {
            // If the record was not sent right after the write before it, the head is anywhere by now.
            let revolution = behind.turn.revolution;
            let wait = (behind.wait + revolution - now.since(self.passed).0 % revolution) % revolution;
            self.sent = (self.noticed == Some(now)).then_some(TurnSample { since: now, wait, ..behind });
        }
        self.sent = self.sent.filter(|sent| now.since(sent.since).0 < sent.turn.revolution);
        if let Some(sent) = &mut self.sent {
            sent.transfer = sectors * sent.turn.revolution / sent.turn.track;
        }
    }

    /// Notes that another operation than a write of the log is sent or has ended: the arm may be anywhere.
    pub const fn disturb(&mut self) {
        self.is_disturbed = true;
    }

    /// Notes that a write of the log has ended. If the write was durable, or the disk has no write cache, the head is at its end.
    pub fn written(&mut self, now: Nanos, is_durable: bool) {
        let Some(&spin) = self.spin() else { return };
        let is_at_head = is_durable || !spin.write_cache;
        self.noticed = is_at_head.then_some(now);
        let was_disturbed = std::mem::take(&mut self.is_disturbed);
        self.passed = now;
        let Some(sample) = self.sent.take().filter(|_| is_at_head) else { return };
        let TurnSample { since, turn, goes_back, wait, transfer, gap } = sample;
        let (took, expected) = (now.since(since).0, wait + transfer);
        let revolution = turn.revolution as i64;
        let off = (took as i64 - expected as i64 + revolution / 2).rem_euclid(revolution) - revolution / 2;
        let late = self.angle.see(off, revolution);
        if gap > turn.revolution / 16 && off.unsigned_abs() < turn.revolution / 16 {
            self.stretch = (self.stretch + off as f64 / gap as f64 / 32.0).clamp(-0.3, 0.3);
        }
        self.passed = Nanos(now.0.saturating_sub(late));
        if (turn.kind == 1) != was_disturbed && turn.kind != 2 {
            return;
        }
        let Learnt { leads, late: mean_late, .. } =
            &mut self.learnt[if goes_back { BACK } else { turn.kind }];
        if turn.is_placed {
            mean_late.add(took.saturating_sub(expected) as f64);
        }
        let alike = turn.revolution / ALIKE_PART;
        // An end that was noticed late tells nothing.
        let is_known = off.unsigned_abs() <= alike || late <= alike && self.angle.doubts == 0;
        let is_late = took > expected + turn.revolution / 2;
        if turn.is_placed && (is_known || !is_late && took + alike >= expected) {
            leads.learn(is_late);
        }
        // Before the head can be there: the disk may not rotate as measured. (On the next track the place comes later.)
        let is_early = took + turn.revolution / 8 < expected;
        self.fits.add(f64::from(u8::from(off.unsigned_abs() <= alike)));
        // Delays of the host are known only if many writes end when the head is there.
        let noise = if self.fits.value > FITS_MIN { late } else { 0 };
        let time = took.saturating_sub(transfer + noise).min(turn.revolution * 3 / 2);
        let Learnt { leads, judge, .. } = &mut self.learnt[turn.kind];
        if judge.learn(turn.is_placed, time, is_early) && !judge.pays {
            // The cause of a long lead may be gone when the next records are tried.
            *leads = Leads::new(spin.revolution.0, spin.lead.0);
        }
    }
}

/// Judges the ends of writes that deviate from the expected time: noticed late by a busy host, or on a track with another angle. The next
/// end shows which. Deviations of tracks are few and come again.
#[derive(Default)]
struct Angle {
    /// Deviation of the last end that was taken for noise, and of the one that was taken for a track.
    noise: i64,
    track: i64,
    /// Deviations of the latest tracks.
    tracks: [i64; 6],
    /// Above 0: a deviation that no track has shown is taken for noise.
    doubts: u32,
}

impl Angle {
    /// Takes a deviation, and returns by how much the end was noticed late.
    fn see(&mut self, off: i64, revolution: i64) -> u64 {
        let alike = |one: i64, other: i64| (one - other).abs() <= revolution / ALIKE_PART as i64;
        let (noise, track) = (std::mem::take(&mut self.noise), self.track);
        let mut shift = 0;
        if alike(off, 0) {
            match (alike(noise, 0), track) {
                (true, 0) => shift = noise.max(0),
                (true, track) => self.learn_track(track),
                (false, _) => self.doubts = (self.doubts + 2).min(32),
            }
            shift = shift.min(off);
            self.track = 0;
        } else if alike(off, noise) {
            self.learn_track(noise);
            shift = off.min(noise);
            self.track = 0;
        } else if track != 0 && alike(off, -track) {
            self.doubts = (self.doubts + 2).min(32);
            shift = off;
            self.track = 0;
        } else if self.doubts == 0 || self.tracks.iter().filter(|track| alike(off, **track)).count() > 1 {
            self.track = off;
            shift = off;
        }
        self.noise = off - shift;
        self.noise.rem_euclid(revolution) as u64
    }

    fn learn_track(&mut self, off: i64) {
        self.doubts = self.doubts.saturating_sub(1);
        self.tracks.rotate_right(1);
        self.tracks[0] = off;
    }
}

/// Leads from a sixty-fourth of a revolution to nearly a whole one, of which four double. A longer lead costs every write a little, and a
/// late write costs a revolution: the cheapest lead is used, by the share of late writes with each. What is known of the others fades, so
/// that a neighbour is tried again once it may be cheaper.
struct Leads {
    revolution: u64,
    best: usize,
    /// Number of writes with each lead, and of late ones.
    tries: [f64; LEADS],
    late: [f64; LEADS],
    left: u32,
    /// Number of late writes in a row.
    row: usize,
}

const LEADS: usize = 25;
/// Number of writes that are remembered of a lead.
const TRIES_KEPT: f64 = 512.0;
/// Number of writes after which an eighth of what is known of other leads is forgotten.
const FADE: u32 = 32;

impl Leads {
    fn new(revolution: u64, lead: u64) -> Leads {
        let mut leads =
            Leads { revolution, best: 0, tries: [0.0; LEADS], late: [0.0; LEADS], left: FADE, row: 0 };
        // A busy host makes the measured lead too long.
        let lead = lead.min(revolution / 4);
        leads.best = (0..LEADS).find(|index| leads.lead(*index) >= lead).unwrap_or(LEADS - 1);
        leads.tries[..leads.best].fill(0.25);
        leads.late[..leads.best].fill(0.25);
        leads
    }

    fn part(index: usize) -> f64 {
        (2_f64.powf(index as f64 / 4.0) / 64.0).min(63.0 / 64.0)
    }

    fn lead(&self, index: usize) -> u64 {
        (self.revolution as f64 * Leads::part(index)) as u64
    }

    fn learn(&mut self, was_late: bool) {
        self.tries[self.best] += 1.0;
        self.late[self.best] += f64::from(u8::from(was_late));
        if self.tries[self.best] > TRIES_KEPT {
            self.fade(self.best, 0.5);
        }
        self.row = if was_late { self.row + 1 } else { 0 };
        self.left -= 1;
        if self.left == 0 {
            self.left = FADE;
            (0..LEADS).for_each(|index| self.fade(index, if index == self.best { 1.0 } else { 0.875 }));
        }
        // Of a lead that is little known, half as many late writes are expected.
        let share = self.late[self.best] / (self.tries[self.best] + 1.0);
        let cost = |index: usize| {
            let expected = if index == self.best { 0.0 } else { share / 2.0 };
            Leads::part(index) + (self.late[index] + expected) / (self.tries[index] + 1.0)
        };
        let near =
            [self.best, self.best.saturating_sub(1), (self.best + self.row.clamp(1, 4)).min(LEADS - 1)];
        self.best = near.into_iter().min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(self.best);
    }

    fn fade(&mut self, index: usize, part: f64) {
        self.tries[index] *= part;
        self.late[index] *= part;
    }
}

/// Decides whether records are put where the head will be or at the next sector, whichever takes less time. The other way is tried from
/// time to time, and more often while times are not as expected.
struct Judge {
    pays: bool,
    placed: Mean,
    next: Mean,
    /// Number of records between two trials of the other way; the number until the next, and until its end.
    interval: u32,
    left: u32,
    trials: u32,
}

/// A trial may cost a revolution: one in this many records hardly counts.
const INTERVAL_MAX: u32 = 1024;
const INTERVAL_MIN: u32 = 8;
/// Minimum number of writes of a kind for a decision; next, the number that a mean is over, about.
const SAMPLES_MIN: u32 = 16;
const SAMPLES_KEPT: u32 = 64;

#[derive(Clone, Copy, Default)]
struct Mean {
    value: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.count += 1;
        self.value += (value - self.value) / f64::from(self.count.min(SAMPLES_KEPT));
    }
}

impl Judge {
    fn new(is_doubtful: bool) -> Judge {
        let interval = if is_doubtful { INTERVAL_MIN } else { INTERVAL_MAX };
        let (placed, next) = Default::default();
        Judge { pays: true, placed, next, interval, left: interval, trials: 0 }
    }

    fn next_is_placed(&mut self) -> bool {
        self.left -= 1;
        if self.left == 0 {
            // The lead may have to be learnt again.
            self.trials = if self.pays { 1 } else { INTERVAL_MIN };
            self.left = self.interval + self.trials;
        }
        let is_trial = self.trials > 0;
        self.trials -= u32::from(is_trial);
        self.pays != is_trial
    }

    /// Takes the time of a write; true if the decision has changed.
    fn learn(&mut self, is_placed: bool, took: u64, is_early: bool) -> bool {
        if is_placed {
            self.placed.add(took as f64);
        } else {
            self.next.add(took as f64);
        }
        if is_early && self.pays {
            self.interval = (self.interval / 4).max(INTERVAL_MIN);
            self.left = self.left.min(self.interval);
        }
        if is_placed == self.pays {
            return false;
        }
        self.interval = (self.interval * 2).min(INTERVAL_MAX);
        if self.placed.count.min(self.next.count) < SAMPLES_MIN {
            // The next trials come soon, as the decision needs them.
            (self.interval, self.left) = (self.interval.min(INTERVAL_MIN * 2), INTERVAL_MIN);
            return false;
        }
        // Different thresholds, so that the decision does not change back and forth.
        let least = self.next.value * if self.pays { 0.97 } else { 0.93 };
        let pays = self.placed.value < least;
        if pays != self.pays {
            self.pays = pays;
            (self.interval, self.left, self.trials) = (INTERVAL_MIN * 8, INTERVAL_MIN * 8, 0);
            *if pays { &mut self.next } else { &mut self.placed } = Mean::default();
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 32;
    /// A revolution of 8 ms, in tracks of 800 sectors, and a lead of half a millisecond.
    const SPIN: Spin = Spin {
        revolution: Nanos::from_millis(8),
        lead: Nanos::from_micros(500),
        tracks: [800; 4],
        write_cache: false,
    };

    fn rotation() -> Rotation {
        Rotation::new(Spindle::Spins(SPIN), START, 1 << 20)
    }

    /// Writes a record now, which takes so long.
    fn write(
        rotation: &mut Rotation,
        now: &mut Nanos,
        took: impl Fn(&Turn, TurnPlace) -> u64,
    ) -> Option<bool> {
        let turn = rotation.turn(*now, START, false);
        if let Some(turn) = turn {
            rotation.placed(*now, turn, next(&turn, 0));
        }
        rotation.sending(*now, 0);
        let took = turn.map_or(0, |turn| took(&turn, next(&turn, 0)));
        *now += Nanos(took);
        rotation.written(*now, true);
        turn.map(|turn| turn.is_placed)
    }

    /// The first place in time, or the next sector, where all is free from so far on.
    fn next(turn: &Turn, from: i64) -> TurnPlace {
        match turn.is_placed {
            true => turn.first(from..from + (1 << 20), 1, 1).expect("it fits"),
            false => turn.at(from),
        }
    }

    fn lead(rotation: &Rotation, kind: usize) -> u64 {
        let leads = &rotation.learnt[kind].leads;
        leads.lead(leads.best)
    }

    /// A disk that turns as it was measured, but needs so much after a write. (It is late for the next sector.)
    fn turning(overhead: u64) -> impl Fn(&Turn, TurnPlace) -> u64 {
        move |turn, place| if place.wait < overhead { place.wait + turn.revolution } else { place.wait }
    }

    #[test]
    fn the_gap_is_what_turns_by_and_the_lead() {
        let mut rotation = rotation();
        assert!(rotation.turn(Nanos::ZERO, START, false).is_none(), "nothing is known of the angle yet");
        rotation.written(Nanos::from_millis(1), true);
        let turn = rotation.turn(Nanos::from_millis(2), START, false).expect("it is known");
        let gap = |from| next(&turn, from).distance;
        assert_eq!(gap(0), 100 + 50, "1 ms has gone by, and the lead is 0.5 ms");
        assert_eq!(gap(140), 100 + 50, "what is left out anyway counts");
        assert_eq!(gap(200), 800 + 100 + 50, "the head is there before a later place");
        assert_eq!(gap(-700), -700 + 200, "before the last record, with a lead of its own");
        let short = turn.first(200..300, 8, 8).expect("it fits");
        assert_eq!((short.distance, short.wait), (200, 1_000_000), "the head comes there later, but in time");
        assert!(turn.first(910..945, 8, 8).is_none(), "the head cannot be there in time");
        let odd = Turn { track: 1600, ..turn }.first(0..1600, 23, 8).expect("it fits");
        assert_eq!(odd.distance, 312, "a record of 23 sectors takes three blocks, and begins with one");
        assert!(rotation.turn(Nanos::from_millis(2), START, false).is_none(), "known once after each write");
        let behind = rotation.turn(Nanos::from_millis(2), START, true).expect("it follows at once");
        assert_eq!(next(&behind, 0).distance, 50, "only the lead");
        for spindle in [Spindle::NotMeasured, Spindle::NotShown] {
            let mut none = Rotation::new(spindle, START, 1 << 20);
            none.written(Nanos::ZERO, true);
            assert!(none.turn(Nanos::from_millis(1), START, true).is_none());
        }
    }

    #[test]
    fn a_write_that_the_disk_keeps_in_its_cache_says_nothing_of_the_head() {
        let spin = Spin { write_cache: true, ..SPIN };
        let mut rotation = Rotation::new(Spindle::Spins(spin), START, 1 << 20);
        rotation.written(Nanos::from_millis(1), false);
        assert!(rotation.turn(Nanos::from_millis(2), START, false).is_none());
        rotation.written(Nanos::from_millis(3), true);
        assert!(rotation.turn(Nanos::from_millis(4), START, false).is_some());
    }

    #[test]
    fn the_lead_is_learnt_up_and_down_again() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        for overhead in [1_500_000, 4_000_000] {
            for _ in 0..10_000 {
                write(&mut rotation, &mut now, turning(overhead));
            }
            let lead = lead(&rotation, 0);
            assert!((overhead..overhead / 4 * 5).contains(&lead), "{lead} for {overhead}");
        }
        for _ in 0..2_000_000 {
            write(&mut rotation, &mut now, turning(200_000));
        }
        assert!(lead(&rotation, 0) < 400_000, "{}", lead(&rotation, 0));
    }

    #[test]
    fn a_client_that_is_nearly_a_turn_late_is_no_trouble() {
        let spin = Spin { revolution: Nanos(8_333_333), ..SPIN };
        let mut rotation = Rotation::new(Spindle::Spins(spin), START, 1 << 20);
        let mut now = Nanos::ZERO;
        let took: u64 = (0..5000).map(|_| write_late(&mut rotation, &mut now, 8_203_110, 100_000)).sum();
        assert!(took / 5000 < 2 * 8_333_333, "{}", took / 5000);
    }

    /// Writes a record so long after its place was chosen.
    fn write_late(rotation: &mut Rotation, now: &mut Nanos, delay: u64, overhead: u64) -> u64 {
        let turn = rotation.turn(*now, START, false);
        let chosen = *now;
        if let Some(turn) = turn {
            rotation.placed(*now, turn, next(&turn, 0));
        }
        *now += Nanos(delay);
        rotation.sending(*now, 0);
        let wait = turn.map_or(0, |turn| next(&turn, 0).wait);
        let turns = (delay + overhead).saturating_sub(wait).div_ceil(SPIN.revolution.0);
        *now = (chosen + Nanos(wait + turns * SPIN.revolution.0)).max(*now);
        rotation.written(*now, true);
        now.since(chosen).0
    }

    #[test]
    fn a_drive_that_is_late_now_and_then_costs_little_more_than_those_turns() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        // One write in 32 comes 3 ms later to the disk.
        let overhead = |index: u64| if index % 32 == 7 { 3_200_000 } else { 200_000 };
        let mean = |took: u64, count: u64| took / count;
        let took: u64 =
            (0..20_000).map(|index| write_late(&mut rotation, &mut now, 0, overhead(index))).sum();
        let least = 500_000 + SPIN.revolution.0 / 32;
        let mean = mean(took, 20_000);
        assert!(mean < least + 250_000, "{mean} for {least}");
    }

    #[test]
    fn clients_that_flush_late_now_and_then_do_not_make_the_lead_longer() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        for _ in 0..2000 {
            (0..19).for_each(|_| _ = write_late(&mut rotation, &mut now, 0, 200_000));
            write_late(&mut rotation, &mut now, 3_000_000, 200_000);
        }
        let turn = rotation.turn(now, START, false).expect("it is known");
        assert!(turn.lead.time <= 600_000, "{turn:?}");
    }

    #[test]
    fn the_time_that_clients_take_before_they_flush_is_left_out_too() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        let mut took = || write_late(&mut rotation, &mut now, 1_000_000, 200_000);
        (0..20).for_each(|_| _ = took());
        let mean = (0..1000).map(|_| took()).sum::<u64>() / 1000;
        assert!((1_200_000..1_700_000).contains(&mean), "{mean}: a millisecond, the lead, no turn");
        // They do not any more.
        let mut took = || write_late(&mut rotation, &mut now, 0, 200_000);
        (0..4000).for_each(|_| _ = took());
        assert!(took() < 600_000);
    }

    #[test]
    fn what_is_learnt_after_something_else_is_kept_apart() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        for _ in 0..100 {
            rotation.disturb();
            write(&mut rotation, &mut now, turning(3_000_000));
            write(&mut rotation, &mut now, turning(200_000));
        }
        let leads = [0, 1].map(|kind| lead(&rotation, kind));
        assert!(leads[0] == 500_000 && leads[1] > 3_000_000, "{leads:?}");
    }

    #[test]
    fn following_ends_where_nothing_turns_and_comes_back() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        for _ in 0..64 {
            write(&mut rotation, &mut now, turning(200_000));
        }
        assert_eq!(rotation.status(true), LogHead::Followed);
        for flat in [60_000, 4_000_000] {
            for _ in 0..4096 {
                write(&mut rotation, &mut now, |_, _| flat);
            }
            assert_eq!(rotation.status(true), LogHead::DoesNotPay, "every write takes {}", Nanos(flat));
        }
        for _ in 0..65_536 {
            write(&mut rotation, &mut now, turning(200_000));
        }
        assert_eq!(rotation.status(true), LogHead::Followed);
    }

    #[test]
    fn where_it_pays_one_record_in_a_thousand_tries_the_next_sector() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        let all = 100_000;
        let next =
            (0..all).filter(|_| write(&mut rotation, &mut now, turning(200_000)) == Some(false)).count();
        assert!((all / 1024..all / 1024 + 40).contains(&next), "{next}");
    }

    #[test]
    fn a_lead_that_is_too_long_to_be_used_is_learnt_again() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        for _ in 0..1000 {
            write(&mut rotation, &mut now, turning(1_500_000));
        }
        assert!(lead(&rotation, 0) > 1_500_000);
        for _ in 0..=UNUSED_MAX {
            rotation.written(now, true);
            assert!(rotation.turn(now, START, false).is_some());
        }
        assert_eq!(lead(&rotation, 0), 500_000);
    }

    #[test]
    fn ends_that_are_noticed_late_do_not_move_the_angle() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        let (mut waits, revolution) = (0, SPIN.revolution.0);
        // The head is at sector 0 at the time 0, and every track is like the one before.
        let mut at = START;
        for index in 0..4000_u64 {
            if let Some(turn) = rotation.turn(now, START, false) {
                let place = next(&turn, 0);
                rotation.placed(now, turn, place);
                at += place.distance.unsigned_abs();
            }
            rotation.sending(now, 8);
            let place = at % 800 * revolution / 800;
            let ready = now.0 + 200_000;
            let wait = (place + revolution - ready % revolution) % revolution;
            at += 8;
            waits += if index < 1000 { 0 } else { wait };
            let late = if index % 3 == 1 { 1_000_000 + index * 7_919 % 20_000_000 } else { 0 };
            now = Nanos(ready + wait + 8 * revolution / 800 + late);
            rotation.written(now, true);
        }
        assert!(waits / 3000 < revolution / 6, "{} of {revolution}", waits / 3000);
        assert_eq!(rotation.status(true), LogHead::Followed);
    }
}
