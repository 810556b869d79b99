//! Destaging: writes dirty blocks back to the data disk (section 3.5.3).
//!
//! A batch goes through these phases; the next request suspends it between two operations (see [`crate::destage::when`]):
//!
//! | phase | what happens | then |
//! |---|---|---|
//! | idle | a policy says when | ranges |
//! | epoch | only where destage is ordered: a flush epoch is read from the log (`ordered`) | ranges |
//! | ranges | discards and zeroes that are durable are written, before any newer data over them | blocks |
//! | blocks | window by window: read from the log, check, write in the policy's order | flush |
//! | flush | the data disk is flushed; only then is anything clean (rules 6 and 9) | idle |
//!
//! `choose` chooses a batch (`stripes`: whole stripes of an array), and this file begins it and notes what is clean; `plan` says what is
//! read and written for a part of it (`gaps`: also what lies between its blocks), and `carry` does so, in the memory of `room`.
//!
//! Only what is durable in the log is destaged, so the data disk is never ahead of what a crash leaves of the log.

mod carry;
mod choose;
mod gaps;
#[cfg(test)]
mod gaps_tests;
mod lost;
mod plan;
mod room;
mod stripes;
#[cfg(test)]
mod stripes_tests;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::config::LogCacheConfig;
use super::core::{Core, Mode, Stop};
use super::fingerprint::Kept;
use super::format::Superblock;
use super::ordered::Ordered;
use super::table::{Line, Piece, RangeKind};
use crate::destage::when;
use crate::layer::{Outbox, Report};
use crate::slab::Slab;
use crate::{Extent, Nanos};
use carry::Flight;
use lost::LostPieces;
use room::Room;

/// How long to wait after a failed batch; doubles up to the second value.
const RETRY_FIRST: Nanos = Nanos::from_secs(1);
const RETRY_MAX: Nanos = Nanos::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Reading a flush epoch from the log, where destage is ordered.
    Epoch,
    Ranges,
    /// Reading a window from the log.
    Read,
    /// Writing a window.
    Write,
    Flush,
}

/// A dirty piece of a batch.
#[derive(Clone, Copy, Debug)]
struct Item {
    line: Line,
    piece: Piece,
    failed: bool,
}

/// The state of destaging.
pub struct Destager {
    phase: Phase,
    /// See [`Destager::spoil`].
    spoiled: bool,
    /// The fingerprint; what is destaged changes it.
    pub kept: Kept,
    room: Room,
    /// The next item that is not in a window yet.
    next: usize,
    next_run: usize,
    next_block: usize,
    range_ids: Vec<u64>,
    range_parts: VecDeque<(Extent, RangeKind)>,
    flights: Slab<Flight>,
    errors: u64,
    pub lost: LostPieces,
    retry_at: Option<Nanos>,
    retry: Nanos,
    /// Everything that is dirty is not durable yet: waits for the log.
    stalled: bool,
    /// A superblock must say what is destaged before the next flush epoch begins.
    pub wants_mark: bool,
    /// Something was left out of the batch, as an older write around the log is still on its way to the same place.
    behind_around: bool,
    running: bool,
    /// The high mark was reached, and the low mark not since.
    triggered: bool,
    started: Nanos,
    suspended: bool,
    per_sector: f64,
    batch_sectors: u64,
    hold: u64,
    pub ordered: Option<Box<Ordered>>,
    pub epoch_flying: bool,
}

impl Destager {
    /// `spins`: the devices of the log and of the data.
    pub fn new(
        config: &LogCacheConfig,
        superblock: &Superblock,
        kept: Kept,
        log_spins: bool,
        data_spins: bool,
    ) -> Destager {
        Destager {
            phase: Phase::Idle,
            spoiled: false,
            kept,
            room: Room::new(config, superblock, log_spins),
            next: 0,
            next_run: 0,
            next_block: 0,
            range_ids: Vec::new(),
            range_parts: VecDeque::new(),
            flights: Slab::default(),
            errors: 0,
            lost: LostPieces::default(),
            retry_at: None,
            retry: RETRY_FIRST,
            stalled: false,
            wants_mark: false,
            behind_around: false,
            running: false,
            triggered: false,
            started: Nanos::ZERO,
            suspended: false,
            // Until the first batch has been timed: 4 ms, or 20 us, for a line.
            per_sector: if data_spins { 500_000.0 } else { 2_500.0 },
            batch_sectors: 0,
            hold: u64::MAX,
            ordered: None,
            epoch_flying: false,
        }
    }

    pub const fn nanos_per_sector(&self) -> f64 {
        self.per_sector
    }

    pub const fn wants_durable(&self) -> bool {
        self.stalled
    }

    /// The oldest segment that the batch reads: its places must not be used again before the batch ends, or a newer copy
    /// at the same place would be taken for the one that was destaged.
    pub fn hold(&self) -> u64 {
        self.ordered.as_ref().map_or(self.hold, |ordered| ordered.hold().min(self.hold))
    }

    /// Gives up the batch; it is tried again later.
    pub fn fail(&mut self) {
        self.errors += 1;
        self.room.items.clear();
        self.range_parts.clear();
        self.phase = Phase::Flush;
    }

    /// The batch before this one failed.
    pub fn is_after_failure(&self) -> bool {
        self.retry > RETRY_FIRST
    }

    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// A flush of the data disk has failed that was not of this batch: what the batch has written by then may be gone (rule 6).
    pub fn spoil(&mut self) {
        self.spoiled = self.phase != Phase::Idle;
        self.kept.flushed(false);
    }

    pub const fn is_spoiled(&self) -> bool {
        self.spoiled
    }
}

impl Core {
    pub fn destage_deadline(&self) -> Option<Nanos> {
        let rests = self.stop != Stop::No || self.destager.stalled || self.waits_for_record();
        if rests || !self.flights_allowed() || !self.has_work() {
            return None;
        }
        if let Some(at) = self.destager.retry_at {
            return Some(at);
        }
        match self.when() {
            when::Choice::At(at) => Some(at),
            when::Choice::Run | when::Choice::Wait => None,
        }
    }

    /// What only RAM has would be a change that the log cannot explain, should the next start still use it.
    fn waits_for_record(&self) -> bool {
        self.mode == (Mode::LogFailed { recorded: false }) && self.destager.phase == Phase::Idle
    }

    fn flights_allowed(&self) -> bool {
        self.destager.flights.is_empty()
    }

    fn has_work(&self) -> bool {
        self.destager.phase != Phase::Idle || self.index.is_dirty()
    }

    fn when(&self) -> when::Choice {
        let failed = matches!(self.mode, Mode::LogFailed { .. });
        if failed || self.draining || self.queue.wants_space() {
            return when::Choice::Run;
        }
        when::policy(self.config.when).choose(&when::View {
            now: self.now,
            utilisation: self.log.ring().utilisation(),
            foreground: self.queue.foreground(),
            last_activity: self.queue.last_activity(),
            running: self.destager.triggered,
            in_flight: 0,
            depth: 1,
            high_mark: f64::from(self.config.high_mark) / 100.0,
            low_mark: f64::from(self.config.low_mark) / 100.0,
            idle_empty: self.config.idle_empty,
            idle_full: self.config.idle_full,
        })
    }

    /// Goes on with destaging as far as it may; runs after every event.
    pub fn destage_step(&mut self, now: Nanos, out: &mut Outbox) {
        self.queue.settle();
        if self.waits_for_record() {
            return;
        }
        let may = self.stop == Stop::No || matches!(self.mode, Mode::LogFailed { .. });
        if !may || !self.has_work() {
            self.destager.running = false;
            if matches!(self.mode, Mode::LogFailed { .. }) {
                self.rescued(now, out);
            }
            return self.drained(now, out);
        }
        if self.destager.retry_at.is_some_and(|at| at > now) {
            return;
        }
        self.destager.retry_at = None;
        let (high, low) = (f64::from(self.config.high_mark) / 100.0, f64::from(self.config.low_mark) / 100.0);
        let utilisation = self.log.ring().utilisation();
        self.destager.triggered = when::hysteresis(self.destager.triggered, utilisation, high, low);
        self.destager.running = self.when() == when::Choice::Run;
        if !self.destager.running {
            self.destager.suspended = true;
            return;
        }
        loop {
            let phase = self.destager.phase;
            match phase {
                Phase::Idle => {
                    if !self.begin_batch(now, out) {
                        return;
                    }
                }
                Phase::Epoch => self.step_epoch(out),
                Phase::Ranges => self.step_ranges(out),
                Phase::Read => self.step_read(out),
                Phase::Write => self.step_write(out),
                Phase::Flush => self.step_flush(out),
            }
            if self.destager.phase == phase {
                return;
            }
        }
    }

    /// Chooses a batch; false where nothing can be destaged now.
    fn begin_batch(&mut self, now: Nanos, out: &mut Outbox) -> bool {
        let failed = matches!(self.mode, Mode::LogFailed { .. });
        let safe = if failed { u64::MAX } else { self.log.safe_seq() };
        self.destager.errors = 0;
        self.destager.started = now;
        self.destager.suspended = false;
        if let Some(ordered) = self.destager.ordered.as_mut().filter(|_| !failed) {
            self.destager.stalled = ordered.destaged_seq() > safe;
            let destaged_seq = ordered.destaged_seq();
            if !self.destager.stalled
                && (self.log.superblock().live_seq < destaged_seq || self.log.is_releasing())
            {
                // After a crash the epoch before must not be destaged again over a part of this one.
                self.destager.wants_mark = true;
                return false;
            }
            if !self.destager.stalled {
                ordered.begin();
                self.destager.phase = Phase::Epoch;
                return true;
            }
            self.give_up_on_lost(out);
            return false;
        }
        self.destager.behind_around = false;
        self.choose_ranges(safe);
        self.choose_items(failed);
        if self.destager.room.items.is_empty() && self.destager.range_ids.is_empty() {
            if self.destager.behind_around {
                // Goes on when the write around the log has ended.
                self.destager.stalled = false;
                return false;
            }
            self.destager.stalled = !failed;
            if failed {
                self.rescued(now, out);
            }
            self.give_up_on_lost(out);
            return false;
        }
        self.destager.stalled = false;
        self.begin_ranges();
        true
    }

    /// The batch is chosen.
    fn begin_ranges(&mut self) {
        self.destager.next = 0;
        self.destager.batch_sectors =
            self.destager.room.items.iter().map(|item| u64::from(item.piece.sectors())).sum();
        let segments = self.destager.room.items.iter().map(|item| self.log.number_of(item.piece.place));
        self.destager.hold = segments.min().unwrap_or(u64::MAX);
        self.destager.phase = Phase::Ranges;
        self.statistics.destage_batches += 1;
    }

    fn step_epoch(&mut self, out: &mut Outbox) {
        let complete = self.destager.ordered.as_ref().is_some_and(|ordered| ordered.is_complete());
        if self.destager.epoch_flying {
            return;
        }
        if !complete {
            return self.read_epoch(out);
        }
        let ordered = self.destager.ordered.take().expect("destage is ordered");
        self.destager.room.items.clear();
        ordered
            .index()
            .table()
            .scan(|line, piece| self.destager.room.items.push(Item { line, piece, failed: false }));
        self.sort_items();
        self.destager.range_parts.clear();
        for part in ordered.index().ranges().iter() {
            self.add_range(part);
        }
        let last = ordered.batch_last();
        self.destager.range_ids = self
            .index
            .ranges()
            .iter()
            .filter(|part| part.info.seq <= last)
            .map(|part| part.info.id)
            .collect();
        self.destager.ordered = Some(ordered);
        self.begin_ranges();
    }

    /// The data disk has been flushed (or could not be: then nothing of the batch is clean).
    fn end_batch(&mut self, now: Nanos, flushed: bool, out: &mut Outbox) {
        let spoiled = std::mem::take(&mut self.destager.spoiled);
        self.destager.errors += u64::from(spoiled);
        let flushed = flushed && !spoiled;
        self.destager.phase = Phase::Idle;
        self.destager.hold = u64::MAX;
        self.destager.kept.flushed(flushed);
        let mut items = std::mem::take(&mut self.destager.room.items);
        // What could not be read may be readable the next time; destage that is ordered must not go on without it.
        let again = self.destager.errors > 0 || self.destager.lost.has_doubtful();
        if flushed {
            for item in items.iter().filter(|item| !item.failed) {
                self.destager.lost.remove(item.line, item.piece.place);
                self.index.clean(item.line, item.piece.place);
            }
            for id in std::mem::take(&mut self.destager.range_ids) {
                self.index.clean_range(id);
            }
            if let Some(ordered) = self.destager.ordered.as_mut().filter(|_| !again) {
                ordered.commit();
            }
        }
        items.clear();
        self.destager.room.items = items;
        self.destager.range_ids.clear();
        self.time_batch(now);
        if again {
            self.destager.retry_at = Some(now.saturating_add(self.destager.retry));
            self.destager.retry = Nanos(self.destager.retry.0 * 2).min(RETRY_MAX);
        } else {
            self.destager.retry = RETRY_FIRST;
        }
        if self.destager.errors > 0 {
            self.destage_failed(now, out);
        }
        self.give_up_on_epoch(out);
        self.advance_tail();
        self.retry_pending(now, out);
    }

    /// Learns how long a sector takes to destage, from batches that were not interrupted.
    fn time_batch(&mut self, now: Nanos) {
        let destager = &mut self.destager;
        if !destager.suspended && destager.batch_sectors > 0 {
            let measured = now.since(destager.started).0 as f64 / destager.batch_sectors as f64;
            destager.per_sector += (measured - destager.per_sector) / 4.0;
        }
    }

    /// Reports the end of a drain.
    fn drained(&mut self, _now: Nanos, out: &mut Outbox) {
        if !self.draining || self.index.is_dirty() {
            return;
        }
        if self.data.is_owed() {
            if !self.data.is_flying() {
                self.flush_data(out);
            }
            return;
        }
        let quiet = self.log.buffers().is_empty() && !self.log.is_releasing();
        if matches!(self.mode, Mode::LogFailed { .. })
            || (quiet && self.log.superblock().tail_seq == self.log.next_seq())
        {
            self.draining = false;
            out.report(Report::Drained);
        }
    }
}
