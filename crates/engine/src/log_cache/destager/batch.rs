//! A batch from its choice to its end: when it begins, its phases, and what is clean, lost or tried again after it.

use super::depth::READER_RESTS;
use super::ordered::Ordered;
use super::room::{BatchFlight, Item};
use super::{BatchPhase, Destager, RETRY_FIRST, RETRY_MAX};
use crate::Nanos;
use crate::destage::when;
use crate::layer::{IoError, IoResult};
use crate::log_cache::env::{DiskView, Env};
use crate::log_cache::table::RangePart;

/// A batch of so many sectors counts as much as all before it, when the time for a sector is learnt.
const TIMED_SECTORS: f64 = 8192.0;

/// Lines whose slots of the table are brought from memory side by side.
const TOUCHED_AT_ONCE: usize = 32;

/// Why destaging does nothing now. [`Destager::start`] and [`Destager::deadline`] both follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Destaging waits for nothing.
    No,
    /// No work is left, the disk is missing, or a stop leaves the work in the log.
    Rest,
    /// The host has not recorded the failure of the log yet. Data that only RAM has would be a change that the log cannot explain,
    /// should the next start still use it.
    Record,
    Until(Nanos),
    /// The policy has no time to name: a request or a completion changes what it sees.
    Event,
}

/// State in which no dirty block can be destaged: each has to wait, or is lost.
pub struct Stuck {
    /// A write that bypasses the log ends by itself: nothing is given up.
    pub behind_bypass: bool,
    /// A choice has found this out, and the next one may find more.
    pub after_choice: bool,
}

/// Consequences of the end of a batch for the cache.
pub struct BatchEnd {
    /// The flush of the data disk, and whether another one had failed before.
    pub flush: Result<(), IoError>,
    pub failed_flush: bool,
    pub has_errors: bool,
    /// A part of the log cannot be read, and ordered destage cannot pass it.
    pub is_hopeless: bool,
}

impl Destager {
    fn wait(&self, view: &DiskView) -> Wait {
        let writes_nothing = matches!(self.phase, BatchPhase::Idle | BatchPhase::Choose);
        if view.log.awaits_record() && writes_nothing {
            return Wait::Record;
        }
        if !view.life.serves() && !view.log.has_failed() || !self.has_work(view) {
            return Wait::Rest;
        }
        if let Some(at) = self.retry_at.filter(|at| *at > view.now) {
            return Wait::Until(at);
        }
        match self.when(view) {
            when::Choice::Run => Wait::No,
            when::Choice::At(at) => Wait::Until(at),
            when::Choice::Wait => Wait::Event,
        }
    }

    #[inline]
    pub fn deadline(&self, view: &DiskView) -> Option<Nanos> {
        // A completion goes on with the batch in any case.
        if !self.flights.is_empty() {
            return None;
        }
        match self.wait(view) {
            Wait::Rest | Wait::Record | Wait::Event => None,
            Wait::Until(at) => Some(at),
            Wait::No if self.phase == BatchPhase::Choose => Some(view.now),
            Wait::No => {
                let rests = view.readers_quiet().is_some_and(|quiet| quiet < READER_RESTS);
                let readers =
                    view.data.readers.last_of_all().filter(|_| rests).map(|last| last + READER_RESTS);
                readers.into_iter().chain(self.writes_at(view)).min()
            }
        }
    }

    fn has_work(&self, view: &DiskView) -> bool {
        self.phase != BatchPhase::Idle || !self.is_missing && view.index.is_dirty_on(self.disk)
    }

    /// Something is dirty that can be read, and the policy does not wait for an event.
    pub fn wants_to_run(&self, view: &DiskView) -> bool {
        self.has_work(view) && view.index.lost.len() == 0 && self.when(view) != when::Choice::Wait
    }

    fn when(&self, view: &DiskView) -> when::Choice {
        let config = view.config;
        if view.must_destage() {
            return when::Choice::Run;
        }
        if self.held && !view.is_over_high_mark() {
            return when::Choice::Wait;
        }
        config.when.choose(&when::PolicyView {
            now: view.now,
            utilisation: view.log.ring().utilisation(),
            foreground: view.foreground(),
            last_activity: view.last_activity(),
            running: self.triggered,
            in_flight: 0,
            depth: 1,
            high_mark: f64::from(config.high_mark) / 100.0,
            low_mark: f64::from(config.low_mark) / 100.0,
            idle_empty: config.idle_empty,
            idle_full: config.idle_full,
        })
    }

    /// Decides whether destaging may go on now, and remembers the answer. Runs after every event.
    pub fn start(&mut self, view: &DiskView) -> Wait {
        let marks = [view.config.high_mark, view.config.low_mark];
        let [high, low] = marks.map(|mark| f64::from(mark) / 100.0);
        self.triggered = when::hysteresis(self.triggered, view.log.ring().utilisation(), high, low);
        let wait = self.wait(view);
        let was_running = std::mem::replace(&mut self.running, wait == Wait::No);
        if !(was_running && self.running) && self.flights.is_empty() {
            self.moved_at = view.now;
        }
        match wait {
            Wait::No => self.retry_at = None,
            Wait::Until(_) | Wait::Event => self.suspended = true,
            Wait::Rest if self.phase == BatchPhase::Choose => self.rest(),
            Wait::Rest | Wait::Record => {}
        }
        wait
    }

    /// The batch is over, or was not begun.
    const fn rest(&mut self) {
        self.phase = BatchPhase::Idle;
        self.hold = u64::MAX;
    }

    /// Goes on as far as possible after [`Destager::start`].
    pub fn proceed(&mut self, env: &mut Env) -> Result<(), Stuck> {
        loop {
            let phase = self.phase;
            match phase {
                BatchPhase::Idle => self.begin_batch(&env.view().of(self.disk))?,
                BatchPhase::Choose => self.step_choose(env)?,
                BatchPhase::Epoch => self.step_epoch(env),
                BatchPhase::Ranges => self.step_ranges(env),
                BatchPhase::Read => self.step_read(env),
                BatchPhase::Write => self.step_write(env),
                BatchPhase::Flush => self.step_flush(env),
            }
            if self.phase == phase {
                return Ok(());
            }
        }
    }

    /// Begins a batch, if no superblock has to be written before.
    fn begin_batch(&mut self, view: &DiskView) -> Result<(), Stuck> {
        let failed = view.log.has_failed();
        let safe = if failed { u64::MAX } else { view.log.safe_seq() };
        self.errors = 0;
        if let Some(ordered) = self.ordered.as_mut().filter(|_| !failed) {
            let destaged_seq = ordered.destaged_seq();
            self.stalled = destaged_seq > safe;
            if self.stalled {
                return Err(Stuck { behind_bypass: false, after_choice: false });
            }
            if view.log.superblock().live_seq < destaged_seq || view.log.is_releasing() {
                // After a crash the epoch before must not be destaged again over a part of this one.
                self.wants_mark = true;
                return Ok(());
            }
            ordered.begin();
            self.phase = BatchPhase::Epoch;
            return Ok(());
        }
        self.choose_ranges(safe, view);
        if !self.begin_choice(safe, view) && self.range_ids.is_empty() {
            return Err(self.note_stuck(failed, false));
        }
        self.stalled = false;
        // While it is chosen, nothing of it may be written again.
        self.hold = view.log.ring().tail();
        self.phase = BatchPhase::Choose;
        Ok(())
    }

    /// Looks through one part of the table for what is destaged.
    fn step_choose(&mut self, env: &mut Env) -> Result<(), Stuck> {
        let view = env.view().of(self.disk);
        if !self.choose_part(&view) {
            return Ok(());
        }
        if self.room.items.is_empty() && self.range_ids.is_empty() {
            self.rest();
            return Err(self.note_stuck(view.log.has_failed(), true));
        }
        self.begin_ranges(env);
        Ok(())
    }

    fn note_stuck(&mut self, failed: bool, after_choice: bool) -> Stuck {
        let behind_bypass = self.behind_bypass();
        // A write that bypasses the log ends by itself; a log has to become durable.
        self.stalled = !failed && !behind_bypass;
        Stuck { behind_bypass, after_choice }
    }

    /// The batch is chosen.
    fn begin_ranges(&mut self, env: &mut Env) {
        self.next = 0;
        let items = &self.room.items;
        self.batch_sectors = items.iter().map(|item| u64::from(item.piece.sectors())).sum();
        let left = items.iter().filter(|item| !item.failed);
        let segments = left.map(|item| env.log.number_of(item.piece.place));
        self.hold = segments.min().unwrap_or(u64::MAX);
        self.phase = BatchPhase::Ranges;
        env.statistics.destage_batches += 1;
    }

    /// Reads on, until the batch holds a whole epoch or everything that is durable.
    fn step_epoch(&mut self, env: &mut Env) {
        if !self.flights.is_empty() {
            return;
        }
        let mut ordered = self.ordered.take().expect("destage is ordered");
        if ordered.is_complete() {
            self.take_epoch(&ordered, env);
        } else if let Some(read) = ordered.read_on(env.log) {
            self.send(BatchFlight::Epoch, read, env);
        }
        self.ordered = Some(ordered);
    }

    fn take_epoch(&mut self, ordered: &Ordered, env: &mut Env) {
        let items = &mut self.room.items;
        items.clear();
        ordered.index().table().scan(|line, piece| items.push(Item { line, piece, failed: false }));
        self.room.sort_items(env.config.how);
        self.range_parts.clear();
        for part in ordered.index().ranges().iter() {
            self.add_range(part, env.data[self.disk].geometry());
        }
        let last = ordered.batch_last();
        let is_of_batch = |part: &RangePart| part.info.seq <= last;
        self.range_ids = env.index.ranges().iter().filter(is_of_batch).map(|part| part.info.id).collect();
        self.begin_ranges(env);
    }

    pub(super) fn epoch_completed(&mut self, result: &IoResult, env: &mut Env) {
        let ordered = self.ordered.as_mut().expect("destage is ordered");
        if !ordered.read_completed(result, env.log) {
            env.statistics.log_read_errors += 1;
            env.index.lost.epoch_failed();
            self.fail();
        } else if ordered.is_complete() {
            env.index.lost.reset_epoch_failures();
        }
    }

    /// The data disk has been flushed (or could not be: then nothing of the batch is clean).
    pub(super) fn end_batch(&mut self, flush: Result<(), IoError>, env: &mut Env) -> BatchEnd {
        let failed_flush = std::mem::take(&mut self.failed_flush);
        self.errors += u64::from(failed_flush);
        let flushed = flush.is_ok() && !failed_flush;
        env.index.lost.batch_ended(std::mem::take(&mut self.unread), self.room.items.len());
        self.rest();
        self.choosing.look_again();
        env.data[self.disk].fingerprint.flushed(flushed);
        // What could not be read may be readable the next time; destage that is ordered must not go on without it.
        let again = self.errors > 0 || env.index.lost.has_doubtful(env.data.space().extent(self.disk));
        if flushed {
            for items in self.room.items.chunks(TOUCHED_AT_ONCE) {
                env.index.table().touch(items.iter().map(|item| item.line));
                for item in items.iter().filter(|item| !item.failed) {
                    env.index.lost.remove(item.line, item.piece.place);
                    env.index.clean(item.line, item.piece.place);
                }
            }
            for &id in &self.range_ids {
                env.index.clean_range(id);
            }
            if let Some(ordered) = self.ordered.as_mut().filter(|_| !again) {
                ordered.commit();
            }
        }
        self.room.items.clear();
        self.range_ids.clear();
        self.time_batch(env.cx.now);
        if again {
            self.retry_at = Some(env.cx.now.saturating_add(self.retry));
            self.retry = Nanos(self.retry.0 * 2).min(RETRY_MAX);
        } else {
            self.retry = RETRY_FIRST;
        }
        let is_hopeless = !env.log.has_failed() && env.index.lost.is_without_hope();
        if is_hopeless {
            env.index.lost.reset_epoch_failures();
        }
        BatchEnd { flush, failed_flush, has_errors: self.errors > 0, is_hopeless }
    }

    /// Learns how long a sector takes to destage, from batches that were not interrupted.
    fn time_batch(&mut self, now: Nanos) {
        if !self.suspended && self.batch_sectors > 0 {
            let measured = now.since(self.started).0 as f64 / self.batch_sectors as f64;
            let batch = self.batch_sectors as f64;
            self.per_sector += (measured - self.per_sector) * batch / (batch + TIMED_SECTORS);
        }
    }
}
