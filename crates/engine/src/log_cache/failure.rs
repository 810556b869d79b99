//! Rule 13: when the log device fails, everything goes to the data disk.
//!
//! Records in the buffers are destaged from there; records in the log are read from it as far as possible. New writes go straight to the
//! data disk, once the host has recorded that this log must not be replayed any more. A block that cannot be read is an error until it is
//! written again.

use super::destager::Destagers;
use super::env::Env;
use crate::IoError;
use crate::layer::{ErrorKind, IoResult, Report, Unfinished};

impl Env<'_> {
    pub fn log_failed(&mut self, error: IoError) {
        self.statistics.last_error = Some(error);
        if self.log.has_failed() {
            return;
        }
        self.seal();
        self.log.fail();
        self.cx.report(Report::LogFailed);
    }

    /// Everything that can be destaged has been: with a dead log, what waited for it to be durable is durable on the data disk. True when
    /// this is new.
    pub fn rescued(&mut self, destagers: &Destagers) -> bool {
        let is_new = self.log.has_failed() && !self.log.is_durable();
        if is_new {
            self.log.abandon();
            self.answer_waiters(destagers);
        }
        is_new
    }

    /// Answers waiting requests of a disk after a batch ended with errors: with a dead log the buffers have the only copy, and nothing else
    /// can make it durable.
    pub fn destage_failed(&mut self, disk: usize) {
        if !self.log.has_failed() {
            return;
        }
        let error = self.statistics.last_error.unwrap_or(IoError::new(ErrorKind::Medium));
        for waiter in self.queue.take_waiters(|waiter| waiter.disk == disk) {
            self.finish(disk, waiter.id, IoResult::err(waiter.result.buf, error));
        }
    }

    /// Stops waiting for lost blocks once nothing else is left to destage. Writers must not wait indefinitely for space, nor an
    /// administrator for the end of a drain: returns how it ends, if there is one.
    pub fn give_up_on_lost(&mut self) -> Option<Unfinished> {
        let lost = self.index.lost.len();
        let all_durable = self.log.safe_seq() == self.log.last_seq();
        let serving = !self.log.has_failed();
        if lost == 0 || serving && !all_durable {
            return None;
        }
        if serving && self.queue.wants_any_space() {
            self.log_failed(IoError::new(ErrorKind::Lost));
            return None;
        }
        Some(Unfinished::LostBlocks(lost))
    }
}
