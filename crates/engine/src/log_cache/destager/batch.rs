//! A batch from its choice to its end: when it begins, its phases, and what is clean, lost or tried again after it.

use super::depth::READER_RESTS;
use super::room::Item;
use super::{Phase, RETRY_FIRST, RETRY_MAX};
use crate::destage::when;
use crate::layer::{ErrorKind, IoError, IoResult, Outbox, Report, Unfinished};
use crate::log_cache::core::{Core, LOG, Mode, Op, Stop};
use crate::{Buf, Lba, Nanos, SECTOR_BYTES};

/// A batch of so many sectors counts as much as all before it, when the time for a sector is learnt.
const TIMED_SECTORS: f64 = 8192.0;

/// Lines whose slots of the table are brought from memory side by side.
const TOUCHED_AT_ONCE: usize = 32;

/// Why destaging does nothing now. [`Core::destage_step`] and [`Core::destage_deadline`] both follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Destaging waits for nothing.
    No,
    /// No work is left, or a stop leaves it in the log.
    Rest,
    /// The host has not recorded the failure of the log yet. Data that only RAM has would be a change that the log cannot explain,
    /// should the next start still use it.
    Record,
    Until(Nanos),
    /// The policy has no time to name: a request or a completion changes what it sees.
    Event,
}

impl Core {
    fn destage_wait(&self) -> Wait {
        let failed = matches!(self.mode, Mode::LogFailed { .. });
        let writes_nothing = matches!(self.destager.phase, Phase::Idle | Phase::Choose);
        if self.mode == (Mode::LogFailed { recorded: false }) && writes_nothing {
            return Wait::Record;
        }
        if self.stop != Stop::No && !failed || !self.has_work() {
            return Wait::Rest;
        }
        if let Some(at) = self.destager.retry_at.filter(|at| *at > self.now) {
            return Wait::Until(at);
        }
        match self.when() {
            when::Choice::Run => Wait::No,
            when::Choice::At(at) => Wait::Until(at),
            when::Choice::Wait => Wait::Event,
        }
    }

    pub fn destage_deadline(&self) -> Option<Nanos> {
        // A completion goes on with the batch in any case.
        if !self.destager.flights.is_empty() || self.destager.epoch_flying {
            return None;
        }
        match self.destage_wait() {
            Wait::Rest | Wait::Record | Wait::Event => None,
            Wait::Until(at) => Some(at),
            Wait::No if self.destager.phase == Phase::Choose => Some(self.now),
            Wait::No => {
                let rests = self.readers_quiet().is_some_and(|quiet| quiet < READER_RESTS);
                self.data.readers.last_of_all().filter(|_| rests).map(|last| last + READER_RESTS)
            }
        }
    }

    fn has_work(&self) -> bool {
        self.destager.phase != Phase::Idle || self.index.is_dirty()
    }

    /// Something is dirty that can be read, and the policy does not wait for an event.
    pub fn wants_to_destage(&self) -> bool {
        let lost = self.destager.lost_blocks() > 0;
        self.has_work() && !lost && self.when() != when::Choice::Wait
    }

    fn when(&self) -> when::Choice {
        let failed = matches!(self.mode, Mode::LogFailed { .. });
        if failed || self.draining || self.queue.wants_space() {
            return when::Choice::Run;
        }
        self.config.when.choose(&when::View {
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
        let (high, low) = (f64::from(self.config.high_mark) / 100.0, f64::from(self.config.low_mark) / 100.0);
        let utilisation = self.log.ring().utilisation();
        self.destager.triggered = when::hysteresis(self.destager.triggered, utilisation, high, low);
        let wait = self.destage_wait();
        self.destager.running = wait == Wait::No;
        match wait {
            Wait::No => self.destager.retry_at = None,
            Wait::Until(_) | Wait::Event => {
                self.destager.suspended = true;
                return;
            }
            Wait::Record => return,
            Wait::Rest => {
                if self.destager.phase == Phase::Choose {
                    self.destager.phase = Phase::Idle;
                    self.destager.hold = u64::MAX;
                }
                if matches!(self.mode, Mode::LogFailed { .. }) {
                    self.rescued(now, out);
                }
                return self.drained(out);
            }
        }
        loop {
            let phase = self.destager.phase;
            match phase {
                Phase::Idle => {
                    if !self.begin_batch(out) {
                        return;
                    }
                }
                Phase::Choose => self.step_choose(out),
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
    fn begin_batch(&mut self, out: &mut Outbox) -> bool {
        let failed = matches!(self.mode, Mode::LogFailed { .. });
        let safe = if failed { u64::MAX } else { self.log.safe_seq() };
        self.destager.errors = 0;
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
        self.choose_ranges(safe);
        if !self.begin_choice(failed, safe) && self.destager.range_ids.is_empty() {
            self.nothing_to_destage(failed, out);
            return false;
        }
        self.destager.stalled = false;
        // While it is chosen, nothing of it may be written again.
        self.destager.hold = self.log.ring().tail();
        self.destager.phase = Phase::Choose;
        true
    }

    /// Looks through one part of the table for what is destaged.
    fn step_choose(&mut self, out: &mut Outbox) {
        let failed = matches!(self.mode, Mode::LogFailed { .. });
        if !self.choose_part(failed) {
            return;
        }
        if self.destager.room.items.is_empty() && self.destager.range_ids.is_empty() {
            self.destager.phase = Phase::Idle;
            self.destager.hold = u64::MAX;
            self.nothing_to_destage(failed, out);
            // With a dead log, writes over lost blocks go through now.
            if failed {
                self.retry_pending(self.now, out);
            }
            return;
        }
        self.destager.stalled = false;
        self.begin_ranges();
    }

    /// Everything that is dirty has to wait, or is lost.
    fn nothing_to_destage(&mut self, failed: bool, out: &mut Outbox) {
        // A write that bypasses the log ends by itself; a log has to become durable.
        self.destager.stalled = !failed && !self.destager.behind_bypass();
        if self.destager.behind_bypass() {
            return;
        }
        if failed {
            self.rescued(self.now, out);
        }
        self.give_up_on_lost(out);
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
    pub(super) fn end_batch(&mut self, now: Nanos, flushed: bool, out: &mut Outbox) {
        let failed_flush = std::mem::take(&mut self.destager.failed_flush);
        self.destager.errors += u64::from(failed_flush);
        let flushed = flushed && !failed_flush;
        self.destager.phase = Phase::Idle;
        self.destager.choosing.look_again();
        self.destager.hold = u64::MAX;
        self.destager.kept.flushed(flushed);
        let mut items = std::mem::take(&mut self.destager.room.items);
        // What could not be read may be readable the next time; destage that is ordered must not go on without it.
        let again = self.destager.errors > 0 || self.destager.lost.has_doubtful();
        if flushed {
            for items in items.chunks(TOUCHED_AT_ONCE) {
                self.index.table().touch(items.iter().map(|item| item.line));
                for item in items.iter().filter(|item| !item.failed) {
                    self.destager.lost.remove(item.line, item.piece.place);
                    self.index.clean(item.line, item.piece.place);
                }
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
            let batch = destager.batch_sectors as f64;
            destager.per_sector += (measured - destager.per_sector) * batch / (batch + TIMED_SECTORS);
        }
    }

    /// Reports the end of a drain.
    fn drained(&mut self, out: &mut Outbox) {
        if !self.draining || self.index.is_dirty() || self.queue.has_pending() {
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

    /// Stops waiting for lost blocks once nothing else is left to destage. Writers must not wait for ever for space that never comes, nor
    /// an administrator for the end of a drain.
    pub(super) fn give_up_on_lost(&mut self, out: &mut Outbox) {
        let lost = self.destager.lost.len();
        let all_durable = self.log.safe_seq() == self.log.last_seq();
        let serving = self.mode == Mode::Serving;
        if lost == 0 || serving && !all_durable {
            return;
        }
        if serving && self.queue.wants_space() {
            return self.log_failed(IoError::new(ErrorKind::Lost), out);
        }
        if self.draining {
            self.draining = false;
            out.report(Report::Failed(Unfinished::LostBlocks(lost)));
        }
    }

    /// Ordered destage cannot pass a part of the log that it cannot read.
    pub(super) fn give_up_on_epoch(&mut self, out: &mut Outbox) {
        if self.destager.lost.is_without_hope() && self.mode == Mode::Serving {
            self.destager.lost.epoch_read();
            self.log_failed(IoError::new(ErrorKind::Lost), out);
        }
    }

    /// Reads on, until the batch holds a whole epoch or everything that is durable.
    pub fn read_epoch(&mut self, out: &mut Outbox) {
        let log = &mut self.log;
        let safe = log.safe_seq();
        let ordered = self.destager.ordered.as_mut().expect("destage is ordered");
        if ordered.read.sector + log.superblock().log_block_sectors() > log.end_of(ordered.read.segment) {
            ordered.next_segment(log);
        }
        if ordered.read.seq > safe {
            ordered.complete = true;
            return;
        }
        let at = Lba(ordered.read.sector);
        let buf = Buf::zeroed(((log.end_of(ordered.read.segment) - at.0) * SECTOR_BYTES) as usize);
        log.pin(log.ring().index(ordered.read.segment));
        let copy = (log.geometry().copies > 1).then_some(ordered.copy);
        self.submit(LOG, Op::Epoch, Core::log_read(at, buf, copy), out);
        self.destager.epoch_flying = true;
    }

    pub fn on_epoch(&mut self, result: &IoResult) {
        self.destager.epoch_flying = false;
        let log = &mut self.log;
        let safe = log.safe_seq();
        let ordered = self.destager.ordered.as_mut().expect("destage is ordered");
        log.unpin(log.ring().index(ordered.read.segment));
        let copies = log.geometry().copies;
        let next_seq = ordered.read.seq;
        match result.status {
            Ok(()) => {
                let start = ordered.read.sector;
                ordered.take(result.buf.bytes(), start, log.superblock(), safe);
            }
            Err(error) => {
                ordered.unreadable += 1;
                self.statistics.last_error = Some(error);
            }
        }
        if ordered.read.seq > next_seq {
            (ordered.fruitless, ordered.unreadable) = (0, 0);
        } else {
            ordered.fruitless += 1;
        }
        if ordered.unreadable == copies {
            (ordered.fruitless, ordered.unreadable) = (0, 0);
            self.statistics.log_read_errors += 1;
            self.destager.lost.epoch_failed();
            self.destager.fail();
            return;
        }
        if !ordered.complete && copies > 1 && ordered.fruitless < copies {
            // The other copies may have what comes next in this segment.
            ordered.copy = (ordered.copy + 1) % copies;
            return;
        }
        if ordered.complete {
            self.destager.lost.epoch_read();
        } else {
            // The rest is in the next segment.
            ordered.next_segment(log);
            if ordered.read.segment > log.ring().head() {
                // A durable record that is not in the log: the log is not what was written.
                self.statistics.log_read_errors += 1;
                self.destager.lost.epoch_failed();
                self.destager.fail();
            }
        }
    }
}
