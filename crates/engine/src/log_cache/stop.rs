//! The end of a cache: drains, and the clean stop.
//!
//! A clean stop answers everything, flushes the data disk, reads the lines of the fingerprint that are not known, records which copies in
//! the log are clean, and writes a superblock that says so. Without a log it ends when the data disk has everything.

use super::clean::CleanRecords;
use super::data_disk::DataDisk;
use super::destager::Destagers;
use super::env::{Env, Op, View, data_port};
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
}

impl Stop {
    pub const fn life(&self) -> Lifecycle {
        self.life
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

    /// Ends a drain once everything is on the data disk.
    pub fn step_drain(&mut self, env: &mut Env) {
        if !self.life.drains() || env.index.is_dirty() || env.queue.has_pending() {
            return;
        }
        if env.data.find(DataDisk::is_owed).is_some() {
            while let Some(disk) = env.data.find(|data| data.is_owed() && !data.is_flying()) {
                env.flush_data(disk);
            }
            return;
        }
        let quiet = env.log.buffers().is_empty() && !env.log.is_releasing();
        if env.log.has_failed() || quiet && env.log.superblock().tail_seq == env.log.next_seq() {
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
        if self.life != Lifecycle::Ending
            || !env.data.iter().all(DataDisk::nothing_bypasses)
            || !reads.is_empty()
        {
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
        if !settled || env.log.is_releasing() || !env.ops.is_empty() {
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

    fn step_without_log(&mut self, env: &mut Env) {
        if !env.ops.is_empty() || !env.queue.waiters().is_empty() || !env.log.is_durable() {
            return;
        }
        if let Some(disk) = env.data.find(DataDisk::is_owed) {
            return env.flush_data(disk);
        }
        self.life = Lifecycle::Stopped;
        match env.index.lost.len() {
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
        (self.life == Lifecycle::Ending && self.clean.goes_on() && is_at_rest).then_some(view.now)
    }
}

fn refuse_pending(env: &mut Env) {
    env.queue.try_all();
    while let Some(pending) = env.queue.pop() {
        let error = IoError::new(ErrorKind::Shutdown);
        env.finish(pending.disk, pending.id, IoResult::err(pending.buf, error));
    }
}
