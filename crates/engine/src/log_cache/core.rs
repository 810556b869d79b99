//! The state of a running log cache, and the dispatch of its events. The work is in the sibling modules: `write`, `read`,
//! `commit` (durability, superblocks, stopping), `destager` (destaging), `failure` (a dead log).

use super::answers::Taken;
use super::clean::CleanRecords;
use super::data_disk::DataDisk;
use super::destager::{Destager, Wait};
use super::env::{DATA, Env, Op, View};
use super::forget::Forgetting;
use super::index::Index;
use super::keep::Keep;
use super::log::Log;
use super::queue::{PendingWrite, Queue};
use super::read::Reads;
use super::recover::Damage;
use super::statistics::Statistics;
use super::{Canary, LogCacheConfig, Promise};
use crate::layer::{
    Control, Cx, ErrorKind, Event, Geometry, Io, IoError, IoResult, OpId, Port, Report, Request, RequestId,
};
use crate::machine::Lifecycle;
use crate::slab::Slab;
use crate::{Nanos, SECTOR_BYTES};

/// See the module's documentation.
pub struct Core {
    /// The instant of the event that is being handled.
    pub now: Nanos,
    pub config: LogCacheConfig,
    pub log: Log,
    pub data: DataDisk,
    pub index: Index,
    pub ops: Slab<Op>,
    pub reads: Reads,
    pub queue: Queue,
    pub destager: Destager,
    pub keep: Keep,
    pub forgetting: Forgetting,
    pub life: Lifecycle,
    pub clean: CleanRecords,
    /// Damage of the log that this start was told to accept.
    pub accepted_damage: Vec<Damage>,
    /// Findings in memory of the last process.
    pub taken: Taken,
    pub statistics: Statistics,
}

/// The parts that act.
pub struct Parts<'a> {
    pub env: Env<'a>,
    pub destager: &'a mut Destager,
    pub keep: &'a mut Keep,
    pub forgetting: &'a mut Forgetting,
    pub reads: &'a mut Reads,
    pub clean: &'a mut CleanRecords,
}

impl Core {
    pub fn handle(&mut self, event: Event, cx: &mut Cx) {
        self.now = cx.now;
        if self.config.canary.is(Canary::LateMark) {
            self.log.publish();
        }
        match event {
            Event::Request(request) => self.on_request(request, cx),
            Event::Completed { op, result } => self.on_completed(op, result, cx),
            Event::Control(control) => self.on_control(control, cx),
            Event::Wake if self.queue.take_turn() => self.retry_pending(cx),
            Event::Wake => {}
        }
        self.send_delayed(cx);
        self.forget_step(cx);
        self.destage_step(cx);
        let Parts { keep, forgetting, mut env, .. } = self.parts(cx);
        keep.step(forgetting, &mut env);
        self.commit_step(cx);
        self.stop_step(cx);
        if !self.config.canary.is(Canary::LateMark) {
            self.log.publish();
        }
    }

    pub fn next_deadline(&self) -> Option<Nanos> {
        let deadlines = [
            self.queue.next_answer(),
            self.commit_deadline(),
            self.destager.deadline(&self.view()),
            self.forgetting.deadline(&self.view()),
            self.stop_deadline(),
            self.queue.has_yielded().then_some(self.now),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// See [`crate::Layer::has_work`]. Until the host has recorded the failure of the log, it is the host's turn.
    pub fn is_unfinished(&self) -> bool {
        if self.life != Lifecycle::Serving {
            return self.life != Lifecycle::Stopped;
        }
        let is_volatile = !self.log.has_failed() && !self.log.buffers().is_empty();
        self.queue.foreground() > 0 || is_volatile || self.destager.wants_to_run(&self.view())
    }

    fn on_request(&mut self, request: Request, cx: &mut Cx) {
        self.queue.begin(cx.now);
        let Request { id, io } = request;
        if !self.life.serves() {
            let error = IoError::new(ErrorKind::Shutdown);
            return self.finish(id, IoResult::err(io.take_buf(), error), cx);
        }
        let geometry = Geometry { sectors: self.log.superblock().data_sectors, ..*self.data.geometry() };
        if let Err(error) = geometry.validate(&io) {
            return self.finish(id, IoResult::err(io.take_buf(), error), cx);
        }
        self.statistics.count(&io);
        self.keep.earn(io.extent().map_or(0, |extent| extent.sectors * SECTOR_BYTES));
        match io {
            Io::Read { at, buf } => {
                let Parts { reads, keep, mut env, .. } = self.parts(cx);
                reads.read(id, at, buf, keep, &mut env);
            }
            Io::Flush => self.on_flush(id, cx),
            io => {
                self.queue.note_write(cx.now);
                self.on_modify(PendingWrite::new(id, io), cx);
            }
        }
    }

    fn on_completed(&mut self, op: OpId, result: IoResult, cx: &mut Cx) {
        let op = self.ops.remove(op.0);
        op.disturb(&mut self.log);
        match op {
            Op::LogWrite(seq) => self.on_log_written(seq, result, cx),
            Op::LogFlush(seq) => self.on_log_flushed(seq, result, cx),
            Op::Forward { id, at, watched } => {
                self.data.readers.end(cx.now);
                let Parts { keep, mut env, .. } = self.parts(cx);
                if let Some(key) = watched {
                    keep.copy_watched(key, at, &result, &mut env);
                }
                env.finish(id, result);
            }
            Op::Part { reading, part } => {
                let Parts { reads, keep, mut env, .. } = self.parts(cx);
                if reads.completed(reading, part, result, keep, &mut env) {
                    self.retry_pending(cx);
                }
            }
            Op::Bypass(key) => self.on_bypass(key, result, cx),
            Op::DataFlush => self.on_data_flushed(result, cx),
            Op::Superblock => self.on_superblock(result, cx),
            Op::Destage(slot) => self.on_destage(slot, result, cx),
            Op::Save(number) => {
                let Parts { keep, mut env, .. } = self.parts(cx);
                keep.was_read(number, result, &mut env);
                self.retry_pending(cx);
            }
            // Where it failed, the other copies are still good.
            Op::Repair(segment) => {
                self.log.unpin(segment);
                self.retry_pending(cx);
            }
            Op::Fingerprint(extent) => self.on_fingerprint(extent, &result),
        }
    }

    fn on_control(&mut self, control: Control, cx: &mut Cx) {
        match control {
            Control::Drain if self.life.serves() => {
                self.life = Lifecycle::Draining;
                self.destager.try_again(&mut self.index.lost);
            }
            Control::DrainCancel if self.life.drains() => self.life = Lifecycle::Serving,
            Control::Stop => self.stop_asked(cx),
            Control::LogFailureRecorded => {
                if self.log.failure_recorded() {
                    self.retry_pending(cx);
                }
            }
            Control::ResetStatistics => self.statistics = Statistics::default(),
            Control::Drain | Control::DrainCancel | Control::Array(_) | Control::DistrustCopy(_) => {}
        }
    }

    pub fn view(&self) -> View<'_> {
        let Core { now, ref config, ref log, ref data, ref index, ref queue, life, .. } = *self;
        let destaged_seq = self.destager.destaged_seq();
        View { now, config, log, data, index, queue, life, destaged_seq }
    }

    /// The parts that act, and all that they work with.
    pub fn parts<'a>(&'a mut self, cx: &'a mut Cx) -> Parts<'a> {
        let destaged_seq = self.destager.destaged_seq();
        let Core { config, log, data, index, queue, ops, statistics, .. } = self;
        let life = self.life;
        let env = Env { config, log, data, index, queue, life, destaged_seq, ops, statistics, cx };
        let Core { destager, keep, forgetting, reads, clean, .. } = self;
        Parts { env, destager, keep, forgetting, reads, clean }
    }

    pub fn env<'a>(&'a mut self, cx: &'a mut Cx) -> Env<'a> {
        self.parts(cx).env
    }

    /// Forgets one part of the clean copies that have to go; runs after every event.
    fn forget_step(&mut self, cx: &mut Cx) {
        let Parts { forgetting, mut env, .. } = self.parts(cx);
        if forgetting.step(&mut env) {
            self.retry_pending(cx);
        }
    }

    /// Goes on with destaging as far as it may; runs after every event.
    fn destage_step(&mut self, cx: &mut Cx) {
        self.queue.settle();
        let Parts { destager, env, .. } = self.parts(cx);
        match destager.start(&env.view()) {
            Wait::No => {}
            Wait::Rest => {
                self.rescued(cx);
                return self.drained(cx);
            }
            Wait::Record | Wait::Until(_) | Wait::Event => return,
        }
        loop {
            let has_failed = self.log.has_failed();
            let Parts { destager, mut env, .. } = self.parts(cx);
            let Err(stuck) = destager.proceed(&mut env) else { return };
            if !stuck.behind_bypass {
                self.rescued(cx);
                self.give_up_on_lost(cx);
            }
            if !stuck.after_choice {
                return;
            }
            // With a dead log, writes over lost blocks go through now.
            if has_failed {
                self.retry_pending(cx);
            }
        }
    }

    fn on_destage(&mut self, slot: u64, result: IoResult, cx: &mut Cx) {
        let Parts { destager, mut env, .. } = self.parts(cx);
        let Some(end) = destager.completed(slot, result, &mut env) else { return };
        self.on_batch_flushed(&end, cx);
        if end.has_errors {
            self.destage_failed(cx);
        }
        if end.is_hopeless {
            self.log_failed(IoError::new(ErrorKind::Lost), cx);
        }
        self.advance_tail();
        self.retry_pending(cx);
    }

    /// Reports the end of a drain.
    fn drained(&mut self, cx: &mut Cx) {
        if !self.life.drains() || self.index.is_dirty() || self.queue.has_pending() {
            return;
        }
        if self.data.is_owed() {
            if !self.data.is_flying() {
                self.flush_data(cx);
            }
            return;
        }
        let quiet = self.log.buffers().is_empty() && !self.log.is_releasing();
        if self.log.has_failed() || quiet && self.log.superblock().tail_seq == self.log.next_seq() {
            self.life = Lifecycle::Serving;
            cx.report(Report::Drained);
        }
    }

    /// Answers a request that is not waiting for anything any more.
    pub fn finish(&mut self, id: RequestId, result: IoResult, cx: &mut Cx) {
        self.queue.end(cx.now);
        cx.reply(id, result);
    }

    pub fn flush_data(&mut self, cx: &mut Cx) {
        self.data.begin();
        self.submit(DATA, Op::DataFlush, Io::Flush, cx);
    }

    pub fn submit(&mut self, port: Port, op: Op, io: Io, cx: &mut Cx) {
        self.env(cx).submit(port, op, io);
    }

    /// Ends the open record.
    pub fn seal(&mut self) {
        let live_seq = self.view().live_seq();
        self.log.seal(live_seq);
    }

    pub fn is_always(&self) -> bool {
        self.config.promise == Promise::Always
    }

    fn send_delayed(&mut self, cx: &mut Cx) {
        while let Some((id, result)) = self.queue.pop_answer(cx.now) {
            cx.reply(id, result);
        }
    }

    pub fn check(&self) {
        self.log.check();
        self.index.check();
        let split = self.log.chain().is_some() && self.life.serves() && !self.log.has_failed();
        assert!(!split || self.queue.has_pending(), "a split request waits at the front");
    }
}
