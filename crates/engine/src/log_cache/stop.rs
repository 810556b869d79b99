//! The end of a cache: drains, and the clean stop.
//!
//! A clean stop answers everything, flushes the data disk, reads the lines of the fingerprint that are not known, records which copies in
//! the log are clean, and writes a superblock that says so. Without a log it ends when the data disk has everything.
//!
//! A data disk of several that hangs, fails or is missing holds up neither. A drain ends when the other disks have everything. A stop leaves
//! the disk's blocks in the log: it is clean if the disk has answered, and otherwise ends as a crash does.

use super::clean::CleanRecords;
use super::data_disk::DataDisk;
use super::destager::{ANSWERS_WITHIN, Destagers};
use super::env::{Env, Op, View, data_port, is_at_rest};
use super::forget::Forgetting;
use super::format::LogState;
use super::queue::WriteWait;
use super::read::OpenReads;
use crate::layer::{ErrorKind, Io, IoResult, Report, Unfinished};
use crate::machine::Lifecycle;
use crate::{Buf, IoError, Nanos, SECTOR_BYTES};

/// See the module's documentation.
#[derive(Default)]
pub struct Stop {
    life: Lifecycle,
    clean: CleanRecords,
    /// Time when an operation ended last.
    moved_at: Nanos,
}

impl Stop {
    pub const fn life(&self) -> Lifecycle {
        self.life
    }

    /// Notes that an operation has ended.
    pub const fn moved(&mut self, now: Nanos) {
        self.moved_at = now;
    }

    /// Begins a drain; false during a stop.
    pub const fn drain(&mut self) -> bool {
        let serves = self.life.serves();
        if serves {
            self.life = Lifecycle::Draining;
        }
        serves
    }

    /// Ends a drain; false if there is none.
    pub const fn end_drain(&mut self) -> bool {
        let drains = self.life.drains();
        if drains {
            self.life = Lifecycle::Serving;
        }
        drains
    }

    /// Ends a drain once everything is on the data disks that take it.
    pub fn step_drain(&mut self, destagers: &Destagers, env: &mut Env) {
        if !self.life.drains() {
            return;
        }
        let left = destagers.left(&env.view());
        let disks = (0..env.data.space().count()).filter(|disk| left >> disk & 1 == 0);
        let well: Vec<usize> = disks.collect();
        if well.iter().any(|disk| env.index.is_dirty_on(*disk) || env.queue.has_pending_on(*disk)) {
            return;
        }
        let owed: Vec<usize> = well.into_iter().filter(|disk| env.data[*disk].is_owed()).collect();
        if !owed.is_empty() {
            for disk in owed {
                if !env.data[disk].is_flying() {
                    env.flush_data(disk);
                }
            }
            return;
        }
        let quiet = env.log.buffers().is_empty() && !env.log.is_releasing();
        let is_empty = || env.log.superblock().tail_seq == env.log.next_seq();
        if env.log.has_failed() || quiet && (left != 0 || is_empty()) {
            self.end_drain();
            env.cx.report(Report::Drained);
        }
    }

    /// Begins a stop: no more requests are taken.
    pub fn begin(&mut self, env: &mut Env) {
        if !self.life.serves() {
            return;
        }
        self.life = Lifecycle::Ending;
        self.moved_at = env.cx.now;
        // A request that is split and half in the log goes on: it began only where the log has space for all of it.
        let half = env.log.chain().and_then(|_| env.queue.pop());
        refuse_pending(env);
        if let Some(half) = half {
            env.queue.put_back(half, WriteWait::Log);
        }
        while let Some((id, result)) = env.queue.pop_answer(Nanos(u64::MAX)) {
            env.cx.reply(id, result);
        }
    }

    /// Proceeds with a stop once nothing is in flight.
    pub fn step(
        &mut self,
        forgetting: &Forgetting,
        reads: &OpenReads,
        destagers: &mut Destagers,
        env: &mut Env,
    ) {
        if self.gives_up(env) || self.life != Lifecycle::Ending {
            return;
        }
        if !env.data.iter().all(DataDisk::nothing_bypasses) || !reads.is_empty() {
            return;
        }
        if env.log.chain().is_none() || env.queue.wants_space() {
            // No space comes any more.
            refuse_pending(env);
        }
        if env.log.has_failed() {
            return self.step_without_log(env);
        }
        let settled = env.log.buffers().is_empty()
            && env.queue.waiters().is_empty()
            && !env.queue.has_pending()
            && env.queue.next_answer().is_none();
        if !settled || env.log.is_releasing() || !is_at_rest(env.ops) {
            return;
        }
        let needs_flush = |data: &DataDisk| data.fingerprint.needs_flush() && !data.last_failed();
        if let Some(disk) = env.data.find(|data| data.is_owed() || needs_flush(data)) {
            self.life = Lifecycle::Flushing;
            return env.flush_data(disk);
        }
        for (disk, data) in env.data.iter_mut().enumerate() {
            // After a failed flush nobody knows what a power cut leaves.
            data.fingerprint.flushed(false);
            if !data.last_failed()
                && let Some(extent) = data.fingerprint.next_unknown()
            {
                let buf = Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize);
                let read = Io::Read { at: extent.start, buf };
                return env.submit(data_port(disk), Op::Fingerprint(extent), read);
            }
        }
        if !self.clean.step(forgetting, env) {
            return env.commit(destagers);
        }
        self.life = Lifecycle::Marking;
        env.write_superblock(LogState::Stopped, env.view().walk_start());
    }

    /// Ends a stop that waits only for data disks that answer nothing. The superblock says that the log is in use, so the next start recovers
    /// as after a crash: all that is durable in the log is there, and more may be on the disks.
    fn gives_up(&mut self, env: &mut Env) -> bool {
        let is_late = self.late_at(&env.view(), is_at_rest(env.ops)).is_some_and(|at| at <= env.cx.now);
        let is_durable = !env.log.has_failed() && env.log.buffers().is_empty() && !env.log.is_releasing();
        if !is_late || !is_durable {
            return false;
        }
        self.life = Lifecycle::Stopped;
        env.cx.report(Report::Failed(Unfinished::Hangs));
        true
    }

    /// Returns when a stop is over although operations are in flight. With one data disk, it is the host's decision.
    fn late_at(&self, view: &View, is_at_rest: bool) -> Option<Nanos> {
        let is_ending = matches!(self.life, Lifecycle::Ending | Lifecycle::Flushing);
        let waits = is_ending && !is_at_rest && view.data.space().count() > 1;
        waits.then(|| self.moved_at.saturating_add(ANSWERS_WITHIN))
    }

    fn step_without_log(&mut self, env: &mut Env) {
        if !is_at_rest(env.ops) || !env.queue.waiters().is_empty() || !env.log.is_durable() {
            return;
        }
        if let Some(disk) = env.data.find(DataDisk::is_owed) {
            return env.flush_data(disk);
        }
        self.life = Lifecycle::Stopped;
        let missing = (0..env.data.space().count()).filter(|disk| env.config.is_missing(*disk));
        let kept: u64 = missing.map(|disk| env.index.dirty_bytes_on(disk)).sum();
        match env.index.lost.len() {
            0 if kept > 0 => env.cx.report(Report::Failed(Unfinished::LogFailedWithout(kept))),
            0 => {
                env.log.forget_answers();
                env.cx.report(Report::Stopped)
            }
            lost => env.cx.report(Report::Failed(Unfinished::LogFailed(lost))),
        }
    }

    /// Takes the end of a flush of the data disk.
    pub fn data_flushed(&mut self, disk: usize, result: &IoResult, env: &mut Env) {
        if self.life == Lifecycle::Flushing {
            self.life = Lifecycle::Ending;
            env.data[disk].fingerprint.flushed(result.status.is_ok());
        }
    }

    /// Takes a superblock that was written; true if it was that of the stop.
    pub fn superblock_written(&mut self, status: Result<(), IoError>, env: &mut Env) -> bool {
        if self.life != Lifecycle::Marking {
            return false;
        }
        self.life = Lifecycle::Stopped;
        env.log.end_release();
        match status {
            Ok(()) => {
                env.log.forget_answers();
                env.cx.report(Report::Stopped);
            }
            Err(error) => {
                env.cx.report(Report::Failed(Unfinished::Superblock(error)));
                env.log_failed(error);
            }
        }
        true
    }

    pub fn deadline(&self, view: &View, is_at_rest: bool) -> Option<Nanos> {
        let goes_on = self.life == Lifecycle::Ending && self.clean.goes_on() && is_at_rest;
        let late = self.late_at(view, is_at_rest).filter(|at| *at > view.now);
        goes_on.then_some(view.now).or(late)
    }
}

fn refuse_pending(env: &mut Env) {
    env.queue.try_all();
    while let Some(pending) = env.queue.pop() {
        let error = IoError::new(ErrorKind::Shutdown);
        env.finish(pending.disk, pending.id, IoResult::err(pending.buf, error));
    }
}
