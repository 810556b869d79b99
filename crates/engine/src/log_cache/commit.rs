//! Durability: writing buffers to the log, flushing it and the data disk, answering those who wait.
//!
//! Flushes are group commits: while one write of the log is on its way, everything that comes in goes into the next one,
//! so concurrent flushes share a record.

use super::Promise;
use super::destager::{BatchEnd, Destagers};
use super::env::{Env, LOG, Op, View};
use super::queue::DurableWaiter;
use crate::layer::{Io, IoResult, Report, RequestId};
use crate::machine::Lifecycle;
use crate::{Buf, IoError, Nanos, SECTOR_BYTES};

impl View<'_> {
    #[inline]
    pub fn commit_deadline(&self) -> Option<Nanos> {
        if self.log.has_failed() {
            return None;
        }
        let write = self.log.write_at().filter(|_| !self.log.is_writing());
        let gathered = self.queue.gathering.deadline().filter(|_| write.is_some());
        [write, gathered, self.log.flush_at(), self.mark_at()].iter().flatten().min().copied()
    }

    /// Everything has to become durable, although nobody waits for it.
    fn hurries(&self, destagers: &Destagers) -> bool {
        self.life != Lifecycle::Serving
            || destagers.wants_durable()
            || self.log.through().is_turning()
            || self.log.hurries()
    }
}

impl Env<'_> {
    /// Handles a flush of a client.
    pub fn flush(&mut self, disk: usize, id: RequestId) {
        let ok = IoResult::ok(Buf::none());
        self.data[disk].end_streams();
        if self.config.promise == Promise::Ordered && !self.log.has_failed() {
            self.end_flush_epoch();
            return self.finish(disk, id, ok);
        }
        if let Some(error) = self.data[disk].error() {
            return self.finish(disk, id, IoResult::err(Buf::none(), error));
        }
        self.end_flush_epoch();
        let bypass = self.data[disk].owed();
        let seq = self.log.needed_seq();
        if seq <= self.log.durable_seq() && bypass == 0 {
            return self.finish(disk, id, ok);
        }
        self.queue.wait(DurableWaiter { disk, id, seq, written: false, bypass, result: ok });
    }

    /// Begins a new flush epoch, for ordered destage alone.
    pub fn end_flush_epoch(&mut self) {
        if self.config.ordered_destage {
            self.seal();
            self.log.end_flush_epoch();
        }
    }

    /// Starts whatever write or flush is due; runs after every event.
    pub fn commit(&mut self, destagers: &mut Destagers) {
        self.flush_data_for_waiters();
        if self.log.has_failed() {
            return;
        }
        if self.log.has_unsent() && !self.log.is_writing() {
            let due = self.log.write_at().is_some_and(|at| at <= self.cx.now);
            if self.has_gathered() || due || self.view().hurries(destagers) {
                self.dispatch();
            }
        }
        self.maybe_flush_log(destagers);
        self.maybe_release(destagers);
    }

    /// True if somebody waits for the filling buffer, and it need not be held back for more clients.
    fn has_gathered(&mut self) -> bool {
        let (sent, waiters) = (self.log.sent_seq(), self.queue.waiters());
        let waiting = waiters.iter().filter(|waiter| waiter.seq > sent).count();
        // Some wait for the write alone, and a rotational log is written when its head comes to a place.
        let is_told = waiters.iter().any(|waiter| waiter.written && waiter.seq > sent);
        if waiting == 0 || is_told || self.log.geometry().rotational {
            self.queue.gathering.rest();
            return waiting > 0;
        }
        let answers = waiters.iter().any(|waiter| !waiter.written && self.log.flush_covers(waiter.seq));
        !self.queue.gathering.holds(self.cx.now, waiting, answers)
    }

    /// Takes a buffer that was written, from its first record on; true when records have become durable with it.
    pub fn log_written(&mut self, first: u64, result: IoResult, destagers: &mut Destagers) -> bool {
        drop(result.buf);
        if let Err(error) = result.status {
            self.log_failed(error);
            return false;
        }
        let took = self.log.busy_since().map_or(Nanos::ZERO, |sent| self.cx.now.since(sent));
        destagers.log_took(took, self.config.destage_depth);
        let durable = self.log.written(self.cx.now, first);
        if let Some(seq) = durable {
            self.log.made_durable(self.cx.now, seq);
        }
        self.answer_waiters(destagers);
        durable.is_some()
    }

    fn maybe_flush_log(&mut self, destagers: &Destagers) {
        if !self.log.may_flush() {
            return;
        }
        let waits = |waiter: &DurableWaiter| !waiter.written && self.log.flush_covers(waiter.seq);
        let waited = self.queue.waiters().iter().any(waits);
        let short = self.log.buffers().free() <= self.log.buffers().count() / 2;
        let due = self.log.flush_at().is_some_and(|at| at <= self.cx.now);
        if waited || short || due || self.view().hurries(destagers) {
            self.statistics.log_flushes += 1;
            let seq = self.log.begin_flush(self.cx.now);
            self.submit(LOG, Op::LogFlush(seq), Io::Flush);
        }
    }

    /// Takes the end of a flush of the log; true when records up to `seq` are durable with it.
    pub fn log_flushed(&mut self, seq: u64, result: &IoResult, destagers: &mut Destagers) -> bool {
        self.log.end_flush();
        if let Err(error) = result.status {
            self.log_failed(error);
        }
        if self.log.has_failed() {
            return false;
        }
        self.log.made_durable(self.cx.now, seq);
        self.answer_waiters(destagers);
        true
    }

    /// Answers everybody for whom enough is durable.
    pub fn answer_waiters(&mut self, destagers: &Destagers) {
        let (data, durable) = (&*self.data, self.log.durable_seq());
        let written = self.log.written_seq().max(durable);
        self.queue.durable(self.cx.now, durable);
        let is_done = |waiter: &DurableWaiter| {
            waiter.seq <= if waiter.written { written } else { durable }
                && waiter.bypass <= data[waiter.disk].flushed()
        };
        for waiter in self.queue.take_waiters(is_done) {
            if waiter.written {
                let sectors = waiter.result.buf.len() as u64 / SECTOR_BYTES;
                self.answer_paced(waiter.disk, waiter.id, sectors, waiter.result, destagers);
            } else {
                self.finish(waiter.disk, waiter.id, waiter.result);
            }
        }
    }

    fn flush_data_for_waiters(&mut self) {
        for disk in 0..self.data.space().count() {
            let data = &self.data[disk];
            let waits = |waiter: &DurableWaiter| waiter.disk == disk && waiter.bypass > data.flushed();
            if !data.is_flying() && self.queue.waiters().iter().any(waits) {
                self.flush_data(disk);
            }
        }
    }

    /// Takes the end of a flush of the data disk.
    pub fn data_flushed(&mut self, disk: usize, result: &IoResult, destagers: &mut Destagers) {
        let flushed = self.data[disk].flushed();
        self.data[disk].flush_completed(result.status);
        if let Err(error) = result.status {
            // What a batch has written by now may be gone with it, and the next flush succeeds all the same.
            destagers[disk].flush_failed();
            self.data[disk].fingerprint.flushed(false);
            self.void_copies();
            self.refuse_waiters(disk, flushed, error);
            self.cx.report(Report::Notice);
        }
        self.answer_waiters(destagers);
    }

    /// A flush for destaging covers what bypassed the log, too: where it fails, that may be gone, although nobody had asked
    /// for it to be flushed yet. (What was destaged is still in the log.)
    pub fn batch_flushed(&mut self, disk: usize, end: &BatchEnd) {
        let flushed = self.data[disk].flushed();
        self.data[disk].batch_flush_completed(end.flush, end.failed_flush);
        if let Err(error) = end.flush {
            self.void_copies();
            self.refuse_waiters(disk, flushed, error);
            self.cx.report(Report::Notice);
        }
    }

    /// Rule 6, for what bypassed the log: after a failed flush it counts as unwritten, and only the client can write it again.
    fn refuse_waiters(&mut self, disk: usize, flushed: u64, error: IoError) {
        for waiter in self.queue.take_waiters(|waiter| waiter.disk == disk && waiter.bypass > flushed) {
            self.finish(disk, waiter.id, IoResult::err(waiter.result.buf, error));
        }
    }
}
