//! Durability: writing buffers to the log, flushing it, answering those who wait; superblocks; the clean stop.
//!
//! Flushes are group commits: while one write of the log is on its way, everything that comes in goes into the next one,
//! so concurrent flushes share a record.

use super::core::{Core, Parts};

use super::destager::BatchEnd;
use super::destager::ordered::Cursor;
use super::env::{DATA, LOG, Op};
use super::format::State;
use super::queue::DurableWaiter;
use super::{Promise, Reads};
use crate::layer::{Cx, Io, IoResult, Report, RequestId, Unfinished};
use crate::machine::Lifecycle;
use crate::{Buf, Extent, IoError, Nanos, SECTOR_BYTES};

impl Core {
    pub fn wait_for(&mut self, id: RequestId, seq: u64, bypass: u64, result: IoResult) {
        self.queue.wait(DurableWaiter { id, seq, written: false, bypass, result });
    }

    pub fn on_flush(&mut self, id: RequestId, cx: &mut Cx) {
        let ok = IoResult::ok(Buf::none());
        self.data.end_streams();
        if self.config.promise == Promise::Ordered && !self.log.has_failed() {
            self.end_flush_epoch();
            return self.finish(id, ok, cx);
        }
        if let Some(error) = self.data.error() {
            return self.finish(id, IoResult::err(Buf::none(), error), cx);
        }
        self.end_flush_epoch();
        let bypass = self.data.owed();
        let seq = self.log.needed_seq();
        if seq <= self.log.durable_seq() && bypass == 0 {
            return self.finish(id, ok, cx);
        }
        self.wait_for(id, seq, bypass, ok);
    }

    /// Begins a new flush epoch, for ordered destage alone.
    pub fn end_flush_epoch(&mut self) {
        if self.config.ordered_destage {
            self.seal();
            self.log.end_flush_epoch();
        }
    }

    pub fn commit_deadline(&self) -> Option<Nanos> {
        if self.log.has_failed() {
            return None;
        }
        let write = self.log.write_at().filter(|_| !self.log.is_writing());
        [write, self.log.flush_at(), self.mark_at()].into_iter().flatten().min()
    }

    fn mark_at(&self) -> Option<Nanos> {
        let told = self.config.canary.is_any(super::Canary::is_of_rot);
        self.log.mark_at().filter(|_| !told && self.life.serves())
    }

    /// Starts whatever write or flush is due; runs after every event.
    pub fn commit_step(&mut self, cx: &mut Cx) {
        self.flush_data_for_waiters(cx);
        if self.log.has_failed() {
            return;
        }
        if self.log.has_unsent() && !self.log.is_writing() {
            let waited = self.queue.waiters().iter().any(|waiter| waiter.seq > self.log.sent_seq());
            let due = self.log.write_at().is_some_and(|at| at <= cx.now);
            if waited || due || self.hurries() {
                self.env(cx).dispatch();
            }
        }
        self.maybe_flush_log(cx);
        self.maybe_release(cx);
    }

    /// Everything has to become durable, although nobody waits for it.
    fn hurries(&self) -> bool {
        self.life != Lifecycle::Serving || self.destager.wants_durable()
    }

    pub fn on_log_written(&mut self, first: u64, result: IoResult, cx: &mut Cx) {
        drop(result.buf);
        if let Err(error) = result.status {
            return self.log_failed(error, cx);
        }
        let took = self.log.busy_since().map_or(Nanos::ZERO, |sent| cx.now.since(sent));
        self.destager.log_took(took, self.config.destage_depth);
        match self.log.written(cx.now, first) {
            Some(seq) => self.made_durable(seq, cx),
            None => self.answer_waiters(cx),
        }
    }

    fn maybe_flush_log(&mut self, cx: &mut Cx) {
        if !self.log.may_flush() {
            return;
        }
        let waits = |waiter: &DurableWaiter| !waiter.written && self.log.flush_covers(waiter.seq);
        let waited = self.queue.waiters().iter().any(waits);
        let short = self.log.buffers().free() <= self.log.buffers().count() / 2;
        let due = self.log.flush_at().is_some_and(|at| at <= cx.now);
        if waited || short || due || self.hurries() {
            self.statistics.log_flushes += 1;
            let seq = self.log.begin_flush(cx.now);
            self.submit(LOG, Op::LogFlush(seq), Io::Flush, cx);
        }
    }

    pub fn on_log_flushed(&mut self, seq: u64, result: IoResult, cx: &mut Cx) {
        self.log.end_flush();
        match result.status {
            Ok(()) if !self.log.has_failed() => self.made_durable(seq, cx),
            Ok(()) => {}
            Err(error) => self.log_failed(error, cx),
        }
    }

    fn made_durable(&mut self, seq: u64, cx: &mut Cx) {
        self.log.made_durable(cx.now, seq);
        self.answer_waiters(cx);
        self.advance_tail();
        self.retry_pending(cx);
    }

    /// Answers everybody for whom enough is durable.
    pub fn answer_waiters(&mut self, cx: &mut Cx) {
        let (durable, flushed) = (self.log.durable_seq(), self.data.flushed());
        let written = self.log.written_seq().max(durable);
        let is_done = |waiter: &DurableWaiter| {
            waiter.seq <= if waiter.written { written } else { durable } && waiter.bypass <= flushed
        };
        for waiter in self.queue.take_waiters(is_done) {
            if waiter.written {
                let sectors = waiter.result.buf.len() as u64 / SECTOR_BYTES;
                self.answer_paced(waiter.id, sectors, waiter.result, cx);
            } else {
                self.finish(waiter.id, waiter.result, cx);
            }
        }
    }

    fn flush_data_for_waiters(&mut self, cx: &mut Cx) {
        let data = &self.data;
        if data.is_flying() || !self.queue.waiters().iter().any(|waiter| waiter.bypass > data.flushed()) {
            return;
        }
        self.flush_data(cx);
    }

    pub fn on_data_flushed(&mut self, result: IoResult, cx: &mut Cx) {
        if self.life == Lifecycle::Flushing {
            self.life = Lifecycle::Ending;
            self.data.fingerprint.flushed(result.status.is_ok());
        }
        let flushed = self.data.flushed();
        self.data.flush_completed(result.status);
        if let Err(error) = result.status {
            // What a batch has written by now may be gone with it, and the next flush succeeds all the same.
            self.destager.flush_failed();
            self.data.fingerprint.flushed(false);
            self.refuse_waiters(flushed, error, cx);
            cx.report(Report::Notice);
        }
        self.answer_waiters(cx);
    }

    /// A flush for destaging covers what bypassed the log, too: where it fails, that may be gone, although nobody had asked
    /// for it to be flushed yet. (What was destaged is still in the log.)
    pub fn on_batch_flushed(&mut self, end: &BatchEnd, cx: &mut Cx) {
        let flushed = self.data.flushed();
        self.data.batch_flush_completed(end.flush, end.failed_flush);
        if let Err(error) = end.flush {
            self.refuse_waiters(flushed, error, cx);
            cx.report(Report::Notice);
        }
    }

    /// Rule 6, for what bypassed the log: after a failed flush it counts as unwritten, and only the client can write it again.
    fn refuse_waiters(&mut self, flushed: u64, error: IoError, cx: &mut Cx) {
        for waiter in self.queue.take_waiters(|waiter| waiter.bypass > flushed) {
            self.finish(waiter.id, IoResult::err(waiter.result.buf, error), cx);
        }
    }

    /// Moves the tail over what nobody needs.
    pub fn advance_tail(&mut self) {
        let safe = self.log.safe_seq();
        self.skip_clean(safe);
        if self.config.canary.is(super::Canary::ReclaimOutOfOrder) {
            self.advance_tail_out_of_order(safe);
        }
        let careless = self.config.canary.is(super::Canary::ReuseInFlight);
        let ended = if careless { u64::MAX } else { safe };
        self.log.advance_tail(|segment| self.index.is_clean(segment, safe), ended, self.destager.hold());
    }

    /// Moves the tail as far as any clean segment lies, also over dirty ones: a planted bug (rule 1 broken).
    fn advance_tail_out_of_order(&mut self, safe: u64) {
        let mut dirty_or_clean = self.log.ring().tail()..self.log.ring().head();
        let clean = dirty_or_clean.rfind(|number| self.index.is_clean(self.log.ring().index(*number), safe));
        if let Some(number) = clean {
            for skipped in self.log.ring().tail()..number {
                self.index.skip(self.log.ring().index(skipped));
            }
            self.log.skip_to(number + 1);
        }
    }

    /// Ordered destage need not read what nobody needs any more.
    fn skip_clean(&mut self, safe: u64) {
        let empty = self.log.buffers().is_empty() && safe == self.log.last_seq();
        if empty && !self.index.is_dirty() && self.destager.is_idle() {
            let (seq, segment) = (self.log.next_seq(), self.log.ring().head());
            let cursor =
                Cursor { seq, segment, sector: self.log.head_sector(), epoch: self.log.superblock().epoch };
            self.destager.skip_to(cursor);
        }
    }

    /// Writes a superblock when segments run short, when the log has become empty, or when it has come to rest.
    fn maybe_release(&mut self, cx: &mut Cx) {
        if self.log.is_releasing() || self.life == Lifecycle::Marking || self.life == Lifecycle::Stopped {
            return;
        }
        let ring = self.log.ring();
        let gained = self.log.ring().tail() - self.log.ring().kept();
        let table_full = self.log.ring().remembered() == 0
            && !self.index.table().has_room(self.index.table().lines_max() / 8);
        let pressed = self.queue.wants_space() || table_full;
        let short = self.log.ring().free() <= self.view().few_segments() || pressed;
        let emptied = !self.index.is_dirty() && self.view().oldest_live_seq() == self.log.next_seq();
        let stale = match self.config.reads == Reads::Keep && !self.life.drains() {
            // Copies alone are no reason.
            true => self.log.superblock().live_seq <= self.log.needed_seq(),
            false => self.log.superblock().tail_seq != self.log.next_seq(),
        };
        let rested = self.mark_at().is_some_and(|at| at <= cx.now);
        let mark = self.destager.take_mark() || rested;
        if mark || gained > 0 && short || emptied && stale && !ring.is_pinned(ring.kept()..ring.tail()) {
            let from = if pressed || self.life.drains() { None } else { self.walk_start() };
            self.write_superblock(State::Active, from, cx);
        }
    }

    /// The segment from which recovery is to read. With kept reads, that is only as much of the log later than it could be as leaves a
    /// quarter of it to write: recovery finds their copies again.
    fn walk_start(&self) -> Option<u64> {
        let ring = self.log.ring();
        if self.config.reads == Reads::Pass {
            return None;
        }
        let free = (ring.count() / 4).max(self.view().few_segments() + 1);
        let from = (ring.head() + 1 + free).saturating_sub(ring.count());
        Some(from.max(ring.kept()).min(ring.tail()))
    }

    fn write_superblock(&mut self, state: State, from: Option<u64>, cx: &mut Cx) {
        let fingerprint = self.data.fingerprint.fingerprint();
        let (live_seq, destaged_seq) =
            (self.view().oldest_live_seq(), self.destager.destaged_seq().unwrap_or(0));
        let io = self.log.write_superblock(state, from, live_seq, destaged_seq, fingerprint);
        self.statistics.superblocks += 1;
        self.submit(LOG, Op::Superblock, io, cx);
    }

    pub fn on_superblock(&mut self, result: IoResult, cx: &mut Cx) {
        let freed = self.log.end_release();
        if let Err(error) = result.status {
            if self.life == Lifecycle::Marking {
                self.life = Lifecycle::Stopped;
                cx.report(Report::Failed(Unfinished::Superblock(error)));
            }
            return self.log_failed(error, cx);
        }
        if self.life == Lifecycle::Marking {
            self.life = Lifecycle::Stopped;
            self.log.forget_answers();
            return cx.report(Report::Stopped);
        }
        let (kept, ring) = (freed.end, self.log.ring());
        // Where the log is empty, this superblock names the next record. A later one may name the first record of that segment again.
        let first_seq = ring.at(ring.index(kept)).first_seq;
        self.index.release(first_seq, freed.map(|number| ring.index(number)));
        self.log.keep_from(kept);
        self.retry_pending(cx);
    }

    /// A part of the fingerprint was read before the clean stop; what could not be read stays unknown.
    pub fn on_fingerprint(&mut self, extent: Extent, result: &IoResult) {
        if result.status.is_ok() {
            self.data.fingerprint.learn(extent, &result.buf);
        }
    }

    pub fn stop_asked(&mut self, cx: &mut Cx) {
        if !self.life.serves() {
            return;
        }
        self.life = Lifecycle::Ending;
        // A request that is split and half in the log goes on: it began only where the log has space for all of it.
        let half = self.log.chain().and_then(|_| self.queue.pop());
        self.refuse_pending(cx);
        if let Some(half) = half {
            self.queue.put_back(half);
        }
        while let Some((id, result)) = self.queue.pop_answer(Nanos(u64::MAX)) {
            cx.reply(id, result);
        }
    }

    fn refuse_pending(&mut self, cx: &mut Cx) {
        while let Some(pending) = self.queue.pop() {
            let error = IoError::new(crate::layer::ErrorKind::Shutdown);
            self.finish(pending.id, IoResult::err(pending.buf, error), cx);
        }
    }

    /// Proceeds with a stop once nothing is in flight.
    pub fn stop_step(&mut self, cx: &mut Cx) {
        if self.life != Lifecycle::Ending || !self.data.nothing_bypasses() || !self.reads.is_empty() {
            return;
        }
        if self.log.chain().is_none() || self.queue.wants_space() {
            // No space comes any more.
            self.refuse_pending(cx);
        }
        if self.log.has_failed() {
            return self.stop_without_log(cx);
        }
        let settled = self.log.buffers().is_empty()
            && self.queue.waiters().is_empty()
            && !self.queue.has_pending()
            && self.queue.next_answer().is_none();
        if !settled || self.log.is_releasing() || !self.ops.is_empty() {
            return;
        }
        let good = !self.data.last_failed();
        if self.data.is_owed() || self.data.fingerprint.needs_flush() && good {
            self.life = Lifecycle::Flushing;
            return self.flush_data(cx);
        }
        // After a failed flush nobody knows what a power cut leaves.
        self.data.fingerprint.flushed(false);
        if good && let Some(extent) = self.data.fingerprint.next_unknown() {
            let buf = Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize);
            return self.submit(DATA, Op::Fingerprint(extent), Io::Read { at: extent.start, buf }, cx);
        }
        let Parts { clean, forgetting, mut env, .. } = self.parts(cx);
        if !clean.step(forgetting, &mut env) {
            return self.commit_step(cx);
        }
        self.life = Lifecycle::Marking;
        self.write_superblock(State::Stopped, self.walk_start(), cx);
    }

    pub fn stop_deadline(&self) -> Option<Nanos> {
        (self.life == Lifecycle::Ending && self.clean.goes_on() && self.ops.is_empty()).then_some(self.now)
    }
}
