//! Chooses the place of a record on a rotational log.
//!
//! A log that is written sector after sector, one flush at a time, waits for nearly a whole revolution each time: the next sector has
//! just passed the head when the next flush comes. So if format has measured the rotation of the log's disk, the record is put a little
//! further on, where the head will be. The sectors left out are unused until the log wraps around, so this is done only below the high
//! mark.
//!
//! A record that is begun while another one is being written is sent when that write has completed, with the head at its end: only the
//! lead is left out before the record.
//!
//! A place is chosen when a record is begun, but the record is sent when a client waits for it: a moment later if the client writes
//! several blocks and then flushes. The distance covers the drive's lead from the sending on ([`Lead`]), and the client's expected delay
//! before it ([`Delays`]). They are learnt separately: a client that flushes late tells nothing about the drive.
//!
//! The lead begins with the measured one. The cache also learns whether leaving sectors out pays at all ([`Judge`]): from time to time a
//! record goes to the next sector, and takes no longer if the disk is not rotational. Both are learnt separately for records after other
//! operations of the cache: if data and log are on one disk, the arm has to come back.

use super::spindle::{Spin, Spindle};
use crate::{LogHead, Nanos};

/// Number of revolutions after which the angle is not known well any more.
const TURNS_KNOWN: u64 = 64;

/// See the module's documentation.
pub struct Rotation {
    spindle: Spindle,
    /// The first sector of the log's segments, and how many there are.
    start: u64,
    length: u64,
    /// Time when the head was at the end of the last record.
    passed: Option<Nanos>,
    /// True if another operation was sent since.
    is_disturbed: bool,
    /// The write whose time will be learnt from.
    sent: Option<Sample>,
    /// The record begun while another one is written: its time counts from when it is sent.
    behind: Option<Sample>,
    /// Element 0 is for records with no other operation since the last record, element 1 for the others.
    learnt: [Learnt; 2],
    /// Index of the element of `learnt` that was asked last.
    asked: usize,
    delays: Delays,
}

/// Lead and judgement, learnt from records of one kind.
struct Learnt {
    lead: Lead,
    judge: Judge,
}

/// Position of the head when a place is chosen.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    revolution: u64,
    track: u64,
    elapsed: u64,
    lead: u64,
    /// The part of the lead that the client is expected to need.
    delay: u64,
    /// True if another operation was sent since the last record.
    is_disturbed: bool,
    /// False: the record goes to the next sector, to measure how long that takes.
    is_placed: bool,
    is_behind: bool,
}

impl Turn {
    /// Returns how many sectors to leave out, so that the head arrives in time. `from` of them are left out in any case.
    pub fn gap(&self, from: u64) -> u64 {
        if !self.is_placed {
            return from;
        }
        // Nearer places are taken already: the first place that the head does not reach too early.
        let wait = self.wait(from);
        let more = match from {
            0 => (self.elapsed + self.lead) % self.revolution,
            _ => self.lead.saturating_sub(wait),
        };
        from + more * self.track / self.revolution
    }

    /// Returns the time until the head reaches the place after this gap.
    const fn wait(&self, gap: u64) -> u64 {
        (gap * self.revolution / self.track + (self.revolution - self.elapsed)) % self.revolution
    }
}

/// A write whose time is learnt from.
#[derive(Clone, Copy, Debug)]
struct Sample {
    since: Nanos,
    turn: Turn,
    wait: u64,
    /// Time from the choice of the place to the sending of the write.
    delay: u64,
    transfer: u64,
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
            passed: None,
            is_disturbed: false,
            sent: None,
            behind: None,
            learnt: [(); 2].map(|()| Learnt {
                lead: Lead::new(revolution, lead),
                judge: Judge::new(lead > revolution / 2),
            }),
            asked: 0,
            delays: Delays::new(revolution),
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
        let track = spin.track_at(at - self.start, self.length);
        let elapsed = if is_behind { 0 } else { now.since(self.passed.take()?).0 };
        self.is_disturbed |= elapsed > TURNS_KNOWN * revolution;
        self.asked = usize::from(self.is_disturbed);
        let Learnt { lead, judge } = &mut self.learnt[self.asked];
        let most = revolution / 64 * 63;
        let delay = if is_behind { 0 } else { self.delays.expected.min(most) };
        Some(Turn {
            revolution,
            track,
            elapsed: elapsed % revolution,
            lead: (lead.lead() + delay).min(most),
            delay,
            is_disturbed: self.is_disturbed,
            is_placed: judge.next_is_placed(),
            is_behind,
        })
    }

    /// Notes that the record was put after this gap: its write shows whether the gap was long enough.
    pub fn placed(&mut self, now: Nanos, turn: Turn, gap: u64) {
        let sample = Sample { since: now, turn, wait: turn.wait(gap), delay: 0, transfer: 0 };
        if turn.is_behind {
            self.behind = Some(sample);
        } else {
            self.sent = Some(sample);
        }
    }

    /// Notes that a write of the log is sent.
    pub fn sending(&mut self, now: Nanos, sectors: u64) {
        if let Some(behind) = self.behind.take() {
            // If the record was not sent right after the write before it, the head is anywhere by now.
            self.sent = (self.passed == Some(now)).then_some(Sample { since: now, ..behind });
        }
        self.sent = self.sent.filter(|sent| now.since(sent.since).0 < sent.turn.revolution);
        if let Some(sent) = &mut self.sent {
            sent.delay = now.since(sent.since).0;
            if !sent.turn.is_behind {
                self.delays.learn(sent.delay);
            }
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
        self.passed = is_at_head.then_some(now);
        let as_chosen = |sample: &Sample| sample.turn.is_disturbed == self.is_disturbed;
        let sample = self.sent.take().filter(as_chosen).filter(|_| is_at_head);
        self.is_disturbed = false;
        let Some(Sample { since, turn, wait, delay, transfer }) = sample else { return };
        let Learnt { lead, judge } = &mut self.learnt[usize::from(turn.is_disturbed)];
        let took = now.since(since).0.saturating_sub(transfer);
        // If the client was late, the place had passed the head before the drive knew of it.
        if turn.is_placed && delay <= turn.delay {
            let was_late = took > wait + turn.revolution / 2;
            lead.learn(turn.lead - turn.delay, was_late);
            // Late, or before the head can be there: the disk may not rotate as measured. (On the next track the place comes later.)
            if was_late || took < wait / 4 * 3 {
                judge.doubt();
            }
        }
        if judge.learn(turn.is_placed, took) && !judge.pays {
            // The cause of a long lead may be gone when the next records are tried.
            *lead = Lead::new(spin.revolution.0, spin.lead.0);
        }
    }
}

/// The time from the sending of a write to when the drive can write it, in parts of a revolution. A longer lead costs every write a
/// little, and a late write costs a revolution: the cheapest lead is taken, by the share of late writes with each. So a drive or a host
/// that is sometimes late with any lead does not make it longer. Nor does one that was so while its lead was measured: shorter leads are
/// tried, each further from the last, until one is late.
struct Lead {
    revolution: u64,
    part: usize,
    /// Number of writes with each lead, and of late ones; both are halved at a limit.
    tries: [u16; LEAD_PARTS],
    late: [u16; LEAD_PARTS],
    /// Number of late writes in a row.
    row: u32,
    /// Difference to the next shorter lead that is tried.
    fall: usize,
    /// Writes in time since the lead was changed, and since a shorter lead that had been late was tried again.
    in_time: u32,
    kept: u32,
}

const LEAD_PARTS: usize = 128;
/// Maximum lead, in parts: nearly a revolution.
const LEAD_MAX: usize = LEAD_PARTS - 2;
const TRIES_KEPT: u16 = 512;
/// Number of writes in time after which a shorter lead is tried that was never tried.
const IN_TIME_KEPT: u32 = 256;
const FALL_MAX: usize = 16;
/// Number of writes after which a shorter lead that had been late is tried again.
const LATE_KEPT: u32 = 4096;

impl Lead {
    fn new(revolution: u64, lead: u64) -> Lead {
        let part = (lead * LEAD_PARTS as u64).div_ceil(revolution.max(1)).min(LEAD_MAX as u64) as usize;
        let (tries, late) = ([0; LEAD_PARTS], [0; LEAD_PARTS]);
        Lead { revolution, part, tries, late, row: 0, fall: 1, in_time: 0, kept: 0 }
    }

    const fn lead(&self) -> u64 {
        self.revolution * self.part as u64 / LEAD_PARTS as u64
    }

    fn learn(&mut self, used: u64, was_late: bool) {
        let used = ((used * LEAD_PARTS as u64 + self.revolution / 2) / self.revolution) as usize;
        let used = used.min(LEAD_MAX);
        if self.tries[used] == TRIES_KEPT {
            (self.tries[used], self.late[used]) = (TRIES_KEPT / 2, self.late[used] / 2);
        }
        self.tries[used] += 1;
        self.late[used] += u16::from(was_late);
        self.row = if was_late { self.row + 1 } else { 0 };
        self.fall = if was_late { 1 } else { self.fall };
        self.in_time += u32::from(!was_late);
        self.kept += 1;
        let next = self.next();
        if next != self.part {
            (self.part, self.in_time) = (next, 0);
        }
    }

    fn next(&mut self) -> usize {
        let below = self.part.saturating_sub(1);
        if self.kept >= LATE_KEPT && self.row == 0 {
            self.kept = 0;
            (self.tries[below], self.late[below]) = (0, 0);
        }
        if self.tries[below] == 0 && self.in_time >= IN_TIME_KEPT {
            let unknown =
                (0..self.part).rev().take_while(|&part| self.tries[part] == 0).take(self.fall).last();
            self.fall = (self.fall * 2).min(FALL_MAX);
            return unknown.unwrap_or(self.part);
        }
        // Each late write in a row doubles the step.
        let above = (self.part + (1 << self.row.saturating_sub(1).min(4))).min(LEAD_MAX);
        let known = (0..LEAD_PARTS).filter(|&part| self.tries[part] > 0);
        let cost = |part: usize| {
            let late = f64::from(self.late[part]) / f64::from(self.tries[part].max(1));
            part as f64 / LEAD_PARTS as f64 + late
        };
        let candidates = known.chain([above]);
        candidates.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(self.part)
    }
}

/// The time from the choice of a place to when the record is sent.
struct Delays {
    revolution: u64,
    /// Number of delays of each length, in parts of a revolution.
    counts: [u32; DELAY_PARTS],
    total: u32,
    /// The delay to plan for, with which records wait least.
    expected: u64,
}

const DELAY_PARTS: usize = 64;
/// Counts are halved at this total, so that old ones fade.
const DELAYS_KEPT: u32 = 1024;

impl Delays {
    const fn new(revolution: u64) -> Delays {
        Delays { revolution, counts: [0; DELAY_PARTS], total: 0, expected: 0 }
    }

    fn learn(&mut self, delay: u64) {
        let part = (delay * DELAY_PARTS as u64).div_ceil(self.revolution) as usize;
        self.counts[part.min(DELAY_PARTS - 1)] += 1;
        self.total += 1;
        if self.total == DELAYS_KEPT {
            self.counts.iter_mut().for_each(|count| *count /= 2);
            self.total = self.counts.iter().sum();
        }
        // One part more costs every record a part, except those that come into time by it: they save a revolution.
        let mut cost = 0;
        let mut best = (0, 0);
        for part in 1..DELAY_PARTS {
            cost += i64::from(self.total) - i64::from(self.counts[part]) * DELAY_PARTS as i64;
            best = best.min((cost, part));
        }
        self.expected = self.revolution * best.1 as u64 / DELAY_PARTS as u64;
    }
}

/// Decides whether records are put where the head will be or at the next sector, whichever takes less time. The other way is tried from
/// time to time, and more often while times are not as expected.
struct Judge {
    pays: bool,
    placed: Mean,
    next: Mean,
    /// Number of records between two trials of the other way, and the number left.
    interval: u32,
    left: u32,
}

/// A trial may cost a revolution: one in this many records hardly counts.
const INTERVAL_MAX: u32 = 1024;
const INTERVAL_MIN: u32 = 8;
/// Minimum number of writes of a kind for a decision.
const SAMPLES_MIN: u64 = 4;

#[derive(Clone, Copy, Default)]
struct Mean {
    nanos: u64,
    count: u64,
}

impl Mean {
    fn add(&mut self, nanos: u64) {
        self.count += 1;
        let weight = self.count.min(SAMPLES_MIN);
        self.nanos = (self.nanos * (weight - 1) + nanos) / weight;
    }
}

impl Judge {
    fn new(is_doubtful: bool) -> Judge {
        let interval = if is_doubtful { INTERVAL_MIN } else { INTERVAL_MAX };
        Judge { pays: true, placed: Mean::default(), next: Mean::default(), interval, left: interval }
    }

    const fn next_is_placed(&mut self) -> bool {
        self.left -= 1;
        let is_trial = self.left == 0;
        if is_trial {
            self.left = self.interval;
        }
        self.pays != is_trial
    }

    fn doubt(&mut self) {
        self.interval = (self.interval / 2).max(INTERVAL_MIN);
        self.left = self.left.min(self.interval);
    }

    /// Takes the time of a write; true if the decision has changed.
    fn learn(&mut self, is_placed: bool, took: u64) -> bool {
        if is_placed {
            self.placed.add(took);
        } else {
            self.next.add(took);
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
        let pays = match self.pays {
            true => self.placed.nanos < self.next.nanos / 20 * 19,
            false => self.placed.nanos < self.next.nanos / 20 * 17,
        };
        let changes = pays != self.pays;
        if changes {
            self.pays = pays;
            (self.interval, self.left) = (INTERVAL_MIN * 8, INTERVAL_MIN * 8);
        }
        changes
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
    fn write(rotation: &mut Rotation, now: &mut Nanos, took: impl Fn(&Turn, u64) -> u64) -> Option<bool> {
        let turn = rotation.turn(*now, START, false);
        if let Some(turn) = turn {
            rotation.placed(*now, turn, turn.gap(0));
        }
        rotation.sending(*now, 0);
        let took = turn.map_or(0, |turn| took(&turn, turn.gap(0)));
        *now += Nanos(took);
        rotation.written(*now, true);
        turn.map(|turn| turn.is_placed)
    }

    /// A disk that turns as it was measured, but needs so much after a write. (It is late for the next sector.)
    fn turning(overhead: u64) -> impl Fn(&Turn, u64) -> u64 {
        move |turn, gap| {
            let wait = turn.wait(gap);
            if wait < overhead { wait + turn.revolution } else { wait }
        }
    }

    #[test]
    fn the_gap_is_what_turns_by_and_the_lead() {
        let mut rotation = rotation();
        assert!(rotation.turn(Nanos::ZERO, START, false).is_none(), "nothing is known of the angle yet");
        rotation.written(Nanos::from_millis(1), true);
        let turn = rotation.turn(Nanos::from_millis(2), START, false).expect("it is known");
        assert_eq!(turn.gap(0), 100 + 50, "1 ms has gone by, and the lead is 0.5 ms");
        assert_eq!(turn.gap(140), 100 + 50, "what is left out anyway counts");
        assert_eq!(turn.gap(200), 200, "the head comes there later, but in time");
        assert_eq!(turn.gap(910), 800 + 100 + 50, "the head cannot be there in time");
        assert!(rotation.turn(Nanos::from_millis(2), START, false).is_none(), "known once after each write");
        let behind = rotation.turn(Nanos::from_millis(2), START, true).expect("it follows at once");
        assert_eq!(behind.gap(0), 50, "only the lead");
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
    fn the_lead_is_learnt_up_to_nearly_a_revolution_and_down_again() {
        let mut now = Nanos::ZERO;
        let mut rotation = rotation();
        for overhead in [3_000_000, 6_000_000] {
            for _ in 0..10_000 {
                write(&mut rotation, &mut now, turning(overhead));
            }
            let lead = rotation.learnt[0].lead.lead();
            assert!((overhead..overhead + 1_000_000).contains(&lead), "{lead} for {overhead}");
        }
        for _ in 0..2_000_000 {
            write(&mut rotation, &mut now, turning(200_000));
        }
        assert!(rotation.learnt[0].lead.lead() < 400_000, "{}", rotation.learnt[0].lead.lead());
    }

    #[test]
    fn a_client_that_is_nearly_a_turn_late_is_no_trouble() {
        let spin = Spin { revolution: Nanos(8_333_333), ..SPIN };
        let mut rotation = Rotation::new(Spindle::Spins(spin), START, 1 << 20);
        let mut now = Nanos::ZERO;
        for _ in 0..5000 {
            write_late(&mut rotation, &mut now, 8_203_110, 100_000);
        }
        assert_eq!(rotation.delays.expected, 8_333_333 * 63 / 64, "more than 63 whole parts");
    }

    /// Writes a record so long after its place was chosen.
    fn write_late(rotation: &mut Rotation, now: &mut Nanos, delay: u64, overhead: u64) -> u64 {
        let turn = rotation.turn(*now, START, false);
        let chosen = *now;
        if let Some(turn) = turn {
            rotation.placed(*now, turn, turn.gap(0));
        }
        *now += Nanos(delay);
        rotation.sending(*now, 0);
        let wait = turn.map_or(0, |turn| turn.wait(turn.gap(0)));
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
        assert!(turn.lead <= 500_000 && turn.delay == 0, "{turn:?}");
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
        let leads = rotation.learnt.map(|learnt| learnt.lead.lead());
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
}
