//! The state of a running log cache, and the dispatch of its events to the parts that own what they do.

use super::answers::Taken;
use super::data_disk::DataDisk;
use super::destager::{Destager, Wait};
use super::env::{Env, Op, View};
use super::forget::Forgetting;
use super::index::Index;
use super::keep::Keep;
use super::log::Log;
use super::queue::{PendingWrite, Queue};
use super::read::OpenReads;
use super::recover::Damage;
use super::statistics::LogCacheStatistics;
use super::status::LogCacheStatus;
use super::stop::Stop;
use super::tail::advance_tail;
use super::write::write_pending;
use super::{LogCacheConfig, LogCanary};
use crate::layer::{Control, Cx, ErrorKind, Event, Geometry, Io, IoError, IoResult, OpId, Report, Request};
use crate::machine::Lifecycle;
use crate::slab::Slab;
use crate::{Nanos, SECTOR_BYTES};

/// See the module's documentation.
pub struct Core {
    /// The instant of the event that is being handled.
    now: Nanos,
    pub config: LogCacheConfig,
    pub log: Log,
    pub data: DataDisk,
    pub index: Index,
    ops: Slab<Op>,
    reads: OpenReads,
    pub queue: Queue,
    pub destager: Destager,
    pub keep: Keep,
    forgetting: Forgetting,
    pub stop: Stop,
    /// Damage of the log that this start was told to accept.
    pub accepted_damage: Vec<Damage>,
    /// Findings in memory of the last process.
    pub taken: Taken,
    pub statistics: LogCacheStatistics,
}

/// The parts that act.
struct CoreParts<'a> {
    env: Env<'a>,
    destager: &'a mut Destager,
    keep: &'a mut Keep,
    forgetting: &'a mut Forgetting,
    reads: &'a mut OpenReads,
    stop: &'a mut Stop,
}

impl Core {
    pub fn new(
        config: LogCacheConfig,
        log: Log,
        data: DataDisk,
        index: Index,
        destager: Destager,
        keep: Keep,
    ) -> Core {
        let mut core = Core {
            now: Nanos::ZERO,
            config,
            log,
            data,
            index,
            ops: Slab::default(),
            reads: OpenReads::default(),
            queue: Queue::default(),
            destager,
            keep,
            forgetting: Forgetting::default(),
            stop: Stop::default(),
            accepted_damage: Vec::new(),
            taken: Taken::default(),
            statistics: LogCacheStatistics::default(),
        };
        // Segments that are clean at the start are never destaged, so no later event would move the tail over them.
        core.advance_tail();
        core
    }

    pub fn handle(&mut self, event: Event, cx: &mut Cx) {
        self.now = cx.now;
        if self.config.canary.is(LogCanary::LateMark) {
            self.log.publish();
        }
        match event {
            Event::Request(request) => self.on_request(request, cx),
            Event::Completed { op, result } => self.on_completed(op, result, cx),
            Event::Control(control) => self.on_control(control, cx),
            Event::Wake if self.queue.take_turn() => self.retry_pending(cx),
            Event::Wake => {}
        }
        while let Some((id, result)) = self.queue.pop_answer(cx.now) {
            cx.reply(id, result);
        }
        self.forget_step(cx);
        self.destage_step(cx);
        let CoreParts { keep, forgetting, reads, destager, stop, mut env } = self.parts(cx);
        keep.step(forgetting, &mut env);
        env.commit(destager);
        stop.step(forgetting, reads, destager, &mut env);
        if !self.config.canary.is(LogCanary::LateMark) {
            self.log.publish();
        }
    }

    pub fn next_deadline(&self) -> Option<Nanos> {
        let view = self.view();
        let deadlines = [
            self.queue.next_answer(),
            view.commit_deadline(),
            self.destager.deadline(&view),
            self.forgetting.deadline(&view),
            self.stop.deadline(&view, self.ops.is_empty()),
            self.queue.has_yielded().then_some(self.now),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// See [`crate::Layer::has_work`]. Until the host has recorded the failure of the log, it is the host's turn.
    pub fn is_unfinished(&self) -> bool {
        if self.stop.life() != Lifecycle::Serving {
            return self.stop.life() != Lifecycle::Stopped;
        }
        let is_volatile = !self.log.has_failed() && !self.log.buffers().is_empty();
        self.queue.foreground() > 0 || is_volatile || self.destager.wants_to_run(&self.view())
    }

    fn on_request(&mut self, request: Request, cx: &mut Cx) {
        self.queue.begin(cx.now);
        let Request { id, io } = request;
        let CoreParts { reads, keep, mut env, .. } = self.parts(cx);
        let refused = match env.life.serves() {
            true => {
                let sectors = env.log.superblock().data_sectors;
                Geometry { sectors, ..*env.data.geometry() }.validate(&io).err()
            }
            false => Some(IoError::new(ErrorKind::Shutdown)),
        };
        if let Some(error) = refused {
            return env.finish(id, IoResult::err(io.take_buf(), error));
        }
        env.statistics.count(&io);
        keep.earn(io.extent().map_or(0, |extent| extent.sectors * SECTOR_BYTES));
        match io {
            Io::Read { at, buf } => reads.read(id, at, buf, keep, &mut env),
            Io::Flush => env.flush(id),
            io => {
                env.queue.note_write(env.cx.now);
                if env.queue.push(PendingWrite::new(id, io)) {
                    self.retry_pending(cx);
                }
            }
        }
    }

    fn on_completed(&mut self, op: OpId, result: IoResult, cx: &mut Cx) {
        let op = self.ops.remove(op.0);
        op.disturb(&mut self.log);
        let CoreParts { reads, keep, destager, stop, mut env, .. } = self.parts(cx);
        match op {
            Op::LogWrite(seq) => {
                if env.log_written(seq, result, destager) {
                    self.advance_tail();
                    self.retry_pending(cx);
                }
            }
            Op::LogFlush(seq) => {
                if env.log_flushed(seq, &result, destager) {
                    self.advance_tail();
                    self.retry_pending(cx);
                }
            }
            Op::Forward { id, at, watched } => {
                env.data.readers.end(env.cx.now);
                if let Some(key) = watched {
                    keep.copy_watched(key, at, &result, &mut env);
                }
                env.finish(id, result);
            }
            Op::Part { reading, part } => {
                if reads.completed(reading, part, result, keep, &mut env) {
                    self.retry_pending(cx);
                }
            }
            Op::Bypass(key) => {
                env.bypass_completed(key, result);
                destager.bypass_ended();
                self.retry_pending(cx);
            }
            Op::DataFlush => {
                stop.data_flushed(&result, &mut env);
                env.data_flushed(&result, destager);
            }
            Op::Superblock => {
                if !stop.superblock_written(result.status, &mut env) && env.superblock_written(result.status)
                {
                    self.retry_pending(cx);
                }
            }
            Op::Destage(slot) => self.on_destage(slot, result, cx),
            Op::Save(number) => {
                keep.was_read(number, result, &mut env);
                self.retry_pending(cx);
            }
            // Where it failed, the other copies are still good.
            Op::Repair(segment) => {
                env.log.unpin(segment);
                self.retry_pending(cx);
            }
            // A part of the fingerprint that cannot be read before a clean stop stays unknown.
            Op::Fingerprint(extent) if result.status.is_ok() => {
                env.data.fingerprint.learn(extent, &result.buf)
            }
            Op::Fingerprint(_) => {}
        }
    }

    fn on_control(&mut self, control: Control, cx: &mut Cx) {
        match control {
            Control::Drain => {
                if self.stop.drain() {
                    self.destager.try_again(&mut self.index.lost);
                }
            }
            Control::DrainCancel => _ = self.stop.end_drain(),
            Control::Stop => {
                let CoreParts { stop, mut env, .. } = self.parts(cx);
                stop.begin(&mut env);
            }
            Control::LogFailureRecorded => {
                if self.log.failure_recorded() {
                    self.retry_pending(cx);
                }
            }
            Control::ResetStatistics => self.statistics = LogCacheStatistics::default(),
            Control::Array(_) | Control::DistrustCopy(_) => {}
        }
    }

    pub fn view(&self) -> View<'_> {
        let Core { now, ref config, ref log, ref data, ref index, ref queue, .. } = *self;
        let (life, destaged_seq) = (self.stop.life(), self.destager.destaged_seq());
        View { now, config, log, data, index, queue, life, destaged_seq }
    }

    /// The parts that act, and all that they work with.
    fn parts<'a>(&'a mut self, cx: &'a mut Cx) -> CoreParts<'a> {
        let (life, destaged_seq) = (self.stop.life(), self.destager.destaged_seq());
        let Core { config, log, data, index, queue, ops, statistics, .. } = self;
        let env = Env { config, log, data, index, queue, life, destaged_seq, ops, statistics, cx };
        let Core { destager, keep, forgetting, reads, stop, .. } = self;
        CoreParts { env, destager, keep, forgetting, reads, stop }
    }

    fn retry_pending(&mut self, cx: &mut Cx) {
        let CoreParts { destager, keep, mut env, .. } = self.parts(cx);
        write_pending(destager, keep, &mut env);
    }

    pub fn advance_tail(&mut self) {
        advance_tail(&self.config, &mut self.log, &mut self.index, &mut self.destager);
    }

    /// Forgets one part of the clean copies that have to go; runs after every event.
    fn forget_step(&mut self, cx: &mut Cx) {
        let CoreParts { forgetting, mut env, .. } = self.parts(cx);
        if forgetting.step(&mut env) {
            self.retry_pending(cx);
        }
    }

    /// Goes on with destaging as far as it may; runs after every event.
    fn destage_step(&mut self, cx: &mut Cx) {
        self.queue.settle();
        let CoreParts { destager, env, .. } = self.parts(cx);
        match destager.start(&env.view()) {
            Wait::No => {}
            Wait::Rest => {
                self.rescued(cx);
                let CoreParts { stop, mut env, .. } = self.parts(cx);
                return stop.step_drain(&mut env);
            }
            Wait::Record | Wait::Until(_) | Wait::Event => return,
        }
        loop {
            let has_failed = self.log.has_failed();
            let CoreParts { destager, mut env, .. } = self.parts(cx);
            let Err(stuck) = destager.proceed(&mut env) else { return };
            if !stuck.behind_bypass {
                self.rescued(cx);
                let CoreParts { stop, mut env, .. } = self.parts(cx);
                if let Some(unfinished) = env.give_up_on_lost()
                    && stop.end_drain()
                {
                    cx.report(Report::Failed(unfinished));
                }
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

    fn rescued(&mut self, cx: &mut Cx) {
        let CoreParts { destager, mut env, .. } = self.parts(cx);
        if env.rescued(destager) {
            self.retry_pending(cx);
        }
    }

    fn on_destage(&mut self, slot: u64, result: IoResult, cx: &mut Cx) {
        let CoreParts { destager, mut env, .. } = self.parts(cx);
        let Some(end) = destager.completed(slot, result, &mut env) else { return };
        env.batch_flushed(&end);
        if end.has_errors {
            env.destage_failed();
        }
        if end.is_hopeless {
            env.log_failed(IoError::new(ErrorKind::Lost));
        }
        self.advance_tail();
        self.retry_pending(cx);
    }

    pub fn status(&self) -> LogCacheStatus {
        let Core { destager, keep, taken, accepted_damage, statistics, .. } = self;
        LogCacheStatus::new(&self.view(), destager, keep, taken, accepted_damage, *statistics)
    }

    pub fn check(&self) {
        self.log.check();
        self.index.check();
        let split = self.log.chain().is_some() && self.stop.life().serves() && !self.log.has_failed();
        assert!(!split || self.queue.has_pending(), "a split request waits at the front");
    }
}
