//! Rule 13: when the log device fails, everything goes to the data disk.
//!
//! Records in the buffers are destaged from there; records in the log are read from it as far as possible. New writes go straight to the
//! data disk, once the host has recorded that this log must not be replayed any more. A block that cannot be read is an error until it is
//! written again.

use super::core::Core;

use super::queue::PendingWrite;
use crate::IoError;
use crate::layer::{Cx, ErrorKind, Report, Unfinished};
use crate::machine::Lifecycle;

impl Core {
    pub fn log_failed(&mut self, error: IoError, cx: &mut Cx) {
        self.statistics.last_error = Some(error);
        if self.log.has_failed() {
            return;
        }
        self.seal();
        self.log.fail();
        cx.report(Report::LogFailed);
    }

    /// Everything that can be destaged has been: with a dead log, what waited for it to be durable is durable on the data disk.
    pub fn rescued(&mut self, cx: &mut Cx) {
        if self.log.has_failed() && !self.log.is_durable() {
            self.log.abandon();
            self.answer_waiters(cx);
            self.retry_pending(cx);
        }
    }

    /// Answers waiting requests after a batch ended with errors: with a dead log the buffers have the only copy, and nothing else can
    /// make it durable.
    pub fn destage_failed(&mut self, cx: &mut Cx) {
        if !self.log.has_failed() {
            return;
        }
        let error = self.statistics.last_error.unwrap_or(IoError::new(ErrorKind::Medium));
        for waiter in self.queue.take_waiters(|_| true) {
            self.finish(waiter.id, crate::IoResult::err(waiter.result.buf, error), cx);
        }
    }

    /// Stops waiting for lost blocks once nothing else is left to destage. Writers must not wait indefinitely for space, nor an
    /// administrator for the end of a drain.
    pub fn give_up_on_lost(&mut self, cx: &mut Cx) {
        let lost = self.index.lost.len();
        let all_durable = self.log.safe_seq() == self.log.last_seq();
        let serving = !self.log.has_failed();
        if lost == 0 || serving && !all_durable {
            return;
        }
        if serving && self.queue.wants_space() {
            return self.log_failed(IoError::new(ErrorKind::Lost), cx);
        }
        if self.life.drains() {
            self.life = Lifecycle::Serving;
            cx.report(Report::Failed(Unfinished::LostBlocks(lost)));
        }
    }

    /// With a dead log: true if no older data can be destaged over this write.
    pub fn may_write_through(&self, pending: &PendingWrite) -> bool {
        let only_lost = self.destager.is_idle() && self.log.is_durable();
        self.log.failure_is_recorded()
            && !self.data.is_bypassed(pending.extent)
            && !self.destager.is_filling(pending.extent, &self.config)
            && (only_lost || !self.index.is_dirty_in(pending.extent))
    }

    pub fn stop_without_log(&mut self, cx: &mut Cx) {
        if !self.ops.is_empty() || !self.queue.waiters().is_empty() || !self.log.is_durable() {
            return;
        }
        if self.data.is_owed() {
            return self.flush_data(cx);
        }
        self.life = Lifecycle::Stopped;
        match self.index.lost.len() {
            0 => {
                self.log.forget_answers();
                cx.report(Report::Stopped)
            }
            lost => cx.report(Report::Failed(Unfinished::LogFailed(lost))),
        }
    }
}
