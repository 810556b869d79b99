//! The state of a running log cache, and the dispatch of its events to the parts that own what they do.

use super::answers::Taken;
use super::carry_forward::CarryForward;
use super::data_disk::DiskStanding;
use super::destager::{Destager, Destagers, ReadBuffers, Wait};
use super::disk_change::DiskChange;
use super::disks::{AddressSpace, DataDisks};
use super::env::{DiskView, Env, Op, View, is_at_rest};
use super::forget::Forgetting;
use super::freed::Freed;
use super::index::Index;
use super::keep::Keep;
use super::log::Log;
use super::queue::{PendingWrite, Queue};
use super::read::OpenReads;
use super::recover::Damage;
use super::statistics::LogCacheStatistics;
use super::status::LogCacheStatus;
use super::stop::Stop;
use super::surveying::Surveying;
use super::tail::advance_tail;
use super::through::through_refusal;
use super::wear::Wear;
use super::write::write_pending;
use super::{LogCacheConfig, LogCanary, WriteRoute};
use crate::layer::{
    Control, Cx, ErrorKind, Event, Io, IoError, IoResult, LayerSettings, OpId, Report, Request,
};
use crate::machine::Lifecycle;
use crate::slab::Slab;
use crate::{Nanos, SECTOR_BYTES};

/// See the module's documentation.
pub struct Core {
    /// The instant of the event that is being handled.
    now: Nanos,
    pub config: LogCacheConfig,
    pub log: Log,
    pub data: DataDisks,
    pub index: Index,
    ops: Slab<Op>,
    reads: OpenReads,
    pub queue: Queue,
    wear: Wear,
    pub destage_reads: ReadBuffers,
    pub destagers: Destagers,
    pub keep: Keep,
    carry_forward: CarryForward,
    forgetting: Forgetting,
    freed: Freed,
    surveying: Surveying,
    disk_change: DiskChange,
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
    destagers: &'a mut Destagers,
    keep: &'a mut Keep,
    carry_forward: &'a mut CarryForward,
    forgetting: &'a mut Forgetting,
    freed: &'a mut Freed,
    surveying: &'a mut Surveying,
    disk_change: &'a mut DiskChange,
    reads: &'a mut OpenReads,
    stop: &'a mut Stop,
}

impl Core {
    pub fn new(
        config: LogCacheConfig,
        log: Log,
        data: DataDisks,
        index: Index,
        destagers: Destagers,
        keep: Keep,
    ) -> Core {
        let queue = Queue::new(data.space().count());
        let destage_reads = ReadBuffers::new(&config, log.superblock());
        let mut core = Core {
            now: Nanos::ZERO,
            config,
            log,
            data,
            index,
            ops: Slab::default(),
            reads: OpenReads::default(),
            queue,
            wear: Wear::default(),
            destage_reads,
            destagers,
            keep,
            carry_forward: CarryForward::default(),
            forgetting: Forgetting::default(),
            freed: Freed::default(),
            surveying: Surveying::default(),
            disk_change: DiskChange::default(),
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
        if let Event::Control(Control::Settings(settings)) = &event
            && let LayerSettings::LogCache(config) = &**settings
        {
            let disks = self.data.space().served();
            self.config.change(config);
            if through_refusal(&self.config, disks).is_some() {
                self.config.writes = WriteRoute::Back;
            }
            self.log.set_delay_max(cx.now, config.delay_max);
        }
        let mut parts = self.parts(cx);
        match event {
            Event::Request(request) => parts.on_request(request),
            Event::Completed { op, result } => parts.on_completed(op, result),
            Event::Control(control) => parts.on_control(control),
            Event::Wake if parts.env.queue.take_turn() => parts.retry_pending(),
            Event::Wake => {}
        }
        parts.step();
        if !self.config.canary.is(LogCanary::LateMark) {
            self.log.publish();
        }
    }

    pub fn next_deadline(&self) -> Option<Nanos> {
        let view = self.view();
        let deadlines = [
            self.queue.next_answer(),
            view.commit_deadline(),
            view.through_deadline(),
            self.each_destager().filter_map(|(destager, view)| destager.deadline(&view)).min(),
            self.each_destager().filter_map(|(destager, view)| destager.hang_deadline(&view)).min(),
            self.carry_forward.deadline(&view, self.destagers.stuck(&view)),
            self.forgetting.deadline(&view),
            self.freed.deadline(&view),
            self.surveying.deadline(&view, &self.destagers, self.ops.is_empty()),
            self.disk_change.deadline(&view),
            self.stop.deadline(&view, is_at_rest(&self.ops)),
            self.queue.has_yielded().then_some(self.now),
        ];
        deadlines.iter().flatten().min().copied()
    }

    /// See [`crate::Layer::has_work`]. Until the host has recorded the failure of the log, it is the host's turn.
    pub fn is_unfinished(&self) -> bool {
        if self.stop.life() != Lifecycle::Serving {
            return self.stop.life() != Lifecycle::Stopped;
        }
        let is_volatile = !self.log.has_failed() && !self.log.buffers().is_empty();
        let mut destagers = self.each_destager();
        self.queue.foreground() > 0
            || is_volatile
            || destagers.any(|(destager, view)| destager.wants_to_run(&view))
    }

    fn each_destager(&self) -> impl Iterator<Item = (&Destager, DiskView<'_>)> {
        let view = self.view();
        self.destagers.iter().enumerate().map(move |(disk, destager)| (destager, view.of(disk)))
    }

    pub fn view(&self) -> View<'_> {
        let Core { now, ref config, ref log, ref data, ref index, ref queue, ref wear, .. } = *self;
        let (life, destaged_seq) = (self.stop.life(), self.destagers.destaged_seq());
        View { now, config, log, data, index, queue, wear, life, destaged_seq }
    }

    /// The parts that act, and all that they work with.
    fn parts<'a>(&'a mut self, cx: &'a mut Cx) -> CoreParts<'a> {
        let (life, destaged_seq) = (self.stop.life(), self.destagers.destaged_seq());
        let Core { config, log, data, index, queue, wear, destage_reads, ops, statistics, .. } = self;
        let env = Env {
            config,
            log,
            data,
            index,
            queue,
            wear,
            destage_reads,
            life,
            destaged_seq,
            ops,
            statistics,
            cx,
        };
        let Core {
            destagers,
            keep,
            carry_forward,
            forgetting,
            freed,
            surveying,
            disk_change,
            reads,
            stop,
            ..
        } = self;
        CoreParts {
            env,
            destagers,
            keep,
            carry_forward,
            forgetting,
            freed,
            surveying,
            disk_change,
            reads,
            stop,
        }
    }

    pub fn advance_tail(&mut self) {
        advance_tail(&self.config, &mut self.log, &mut self.index, &mut self.destagers);
    }

    /// `now`: an idle cache has seen no event for long.
    pub fn status(&self, now: Nanos) -> LogCacheStatus {
        let Core { destagers, keep, freed, taken, accepted_damage, statistics, .. } = self;
        let view = View { now: now.max(self.now), ..self.view() };
        LogCacheStatus::new(&view, destagers, keep, freed, taken, accepted_damage, *statistics)
    }

    pub fn check(&self) {
        self.log.check();
        self.index.check();
        let split = self.log.chain().is_some() && self.stop.life().serves() && !self.log.has_failed();
        assert!(!split || self.queue.has_pending(), "a split request waits at the front");
    }
}

impl CoreParts<'_> {
    fn on_request(&mut self, request: Request) {
        let Request { id, disk, mut io } = request;
        let CoreParts { reads, keep, carry_forward, env, .. } = self;
        env.queue.begin(disk, env.cx.now);
        // A flush of a disk that comes, goes or is missing has nothing to wait for, and one at the end of a server goes to all places.
        let serves = env.data[disk].standing == DiskStanding::Served || matches!(io, Io::Flush);
        let refused = match env.life.serves() && serves {
            true if env.config.is_missing(disk) && !matches!(io, Io::Flush) => {
                Some(IoError::new(ErrorKind::Medium))
            }
            true => env.data.geometry(disk).validate(&io).err(),
            false => Some(IoError::new(ErrorKind::Shutdown)),
        };
        if let Some(error) = refused {
            return env.finish(disk, id, IoResult::err(io.take_buf(), error));
        }
        env.statistics.count(&io);
        keep.earn(io.extent().map_or(0, |extent| extent.sectors * SECTOR_BYTES));
        if let Some(start) = io.start_mut() {
            start.0 += AddressSpace::start(disk).0;
        }
        match io {
            Io::Read { at, buf } => reads.read(id, at, buf, keep, env),
            Io::Flush => env.flush(disk, id),
            io => {
                carry_forward.earn(io.extent().map_or(0, |extent| extent.sectors * SECTOR_BYTES));
                env.queue.note_write(env.cx.now);
                if env.queue.push(PendingWrite::new(disk, id, io)) {
                    self.retry_pending();
                }
            }
        }
    }

    fn on_completed(&mut self, op: OpId, result: IoResult) {
        let CoreParts { reads, keep, destagers, freed, surveying, stop, env, .. } = self;
        let op = env.ops.remove(op.0);
        stop.moved(env.cx.now);
        op.disturb(env.log);
        match op {
            Op::LogWrite(seq) => {
                if env.log_written(seq, result, destagers) {
                    self.advance_tail();
                    self.retry_pending();
                }
            }
            Op::LogFlush(seq) => {
                if env.log_flushed(seq, &result, destagers) {
                    self.advance_tail();
                    self.retry_pending();
                }
            }
            Op::Forward { id, at, watched } => {
                let disk = env.data.disk_of(at);
                env.data[disk].readers.end(env.cx.now);
                if let Some(key) = watched {
                    keep.copy_watched(key, at, &result, env);
                }
                env.finish(disk, id, result);
            }
            Op::Part { reading, part } => {
                if reads.completed(reading, part, result, keep, env) {
                    self.retry_pending();
                }
            }
            Op::Bypass { disk, key } => {
                env.bypass_completed(disk, key, result, keep);
                destagers[disk].bypass_ended();
                self.retry_pending();
            }
            Op::DataFlush(disk) => {
                stop.data_flushed(disk, &result, env);
                env.data_flushed(disk, &result, destagers);
            }
            Op::Superblock => {
                if !stop.superblock_written(result.status, env) && env.superblock_written(result.status) {
                    self.retry_pending();
                }
            }
            Op::Destage { disk, slot } => self.on_destage(disk, slot, result),
            Op::Save(number) => {
                keep.was_read(number, result, env);
                self.retry_pending();
            }
            Op::CarryForward(number) => self.carry_forward.was_read(number, result, env),
            Op::NewDisk => self.disk_change.completed(result),
            Op::Probe(segment) => {
                surveying.written(segment, &result, env);
                self.retry_pending();
            }
            Op::FreedDiscard => {
                freed.discarded(&result, env);
                self.retry_pending();
            }
            // Where it failed, the other copies are still good.
            Op::Repair(segment) => {
                env.log.unpin(segment);
                self.retry_pending();
            }
            // A part of the fingerprint that cannot be read before a clean stop stays unknown.
            Op::Fingerprint(extent) if result.status.is_ok() => {
                env.data.at_mut(extent).fingerprint.learn(extent, &result.buf)
            }
            Op::Fingerprint(_) => {}
        }
    }

    fn on_control(&mut self, control: Control) {
        match control {
            Control::Drain => {
                if self.stop.drain() {
                    let lost = &mut self.env.index.lost;
                    self.destagers.iter_mut().for_each(|destager| destager.try_again(lost));
                }
            }
            Control::DrainCancel => _ = self.stop.end_drain(),
            Control::Stop => self.stop.begin(&mut self.env),
            Control::LogFailureRecorded => {
                if self.env.log.failure_recorded() {
                    self.retry_pending();
                }
            }
            Control::Disk(command) => self.disk_change.begin(command, &mut self.env),
            Control::ResetStatistics => *self.env.statistics = LogCacheStatistics::default(),
            Control::HoldDestage(held) => {
                self.destagers.iter_mut().for_each(|destager| destager.hold_back(held))
            }
            // Settings are taken over before any part looks at them.
            Control::Settings(_) | Control::Array(_) | Control::DistrustCopy(_) => {}
        }
    }

    /// Goes on with all that this event may have let go on.
    fn step(&mut self) {
        while let Some((id, result)) = self.env.queue.pop_answer(self.env.cx.now) {
            self.env.cx.reply(id, result);
        }
        self.refresh();
        if self.forgetting.step(&mut self.env) {
            self.retry_pending();
        }
        // A log that is to be emptied is destaged from now on. What that ends at once may leave it empty.
        self.step_through();
        self.destage();
        self.step_through();
        let CoreParts {
            env,
            destagers,
            keep,
            carry_forward,
            forgetting,
            freed,
            surveying,
            disk_change,
            reads,
            stop,
        } = self;
        disk_change.step(destagers, env);
        keep.step(forgetting, env);
        while carry_forward.step(destagers, env) {
            advance_tail(env.config, env.log, env.index, destagers);
        }
        env.commit(destagers);
        freed.step(env);
        surveying.step(destagers, env);
        stop.step(forgetting, reads, destagers, env);
    }

    fn step_through(&mut self) {
        self.refresh();
        if self.env.step_through(self.destagers) {
            self.retry_pending();
        }
    }

    /// Updates the copies in `env`: any part may have changed the life of the cache, or what is destaged.
    fn refresh(&mut self) {
        self.env.life = self.stop.life();
        self.env.destaged_seq = self.destagers.destaged_seq();
    }

    fn retry_pending(&mut self) {
        self.refresh();
        write_pending(self.destagers, self.keep, &mut self.env);
    }

    fn advance_tail(&mut self) {
        advance_tail(self.env.config, self.env.log, self.env.index, self.destagers);
    }

    /// Goes on with destaging as far as it may.
    fn destage(&mut self) {
        self.env.queue.settle();
        self.env.destage_reads.grow(self.env.config.destage_depth);
        let disks = self.env.data.space().count();
        // Writes that go on may let another disk destage.
        while (0..disks).any(|disk| self.destage_to(disk)) && disks > 1 {}
        self.stop.step_drain(self.destagers, &mut self.env);
    }

    /// Goes on with destaging to a disk; true if writes went on that had waited.
    fn destage_to(&mut self, disk: usize) -> bool {
        let wait = self.destagers[disk].start(&self.env.view().of(disk));
        self.destagers[disk].rests = wait == Wait::Rest;
        match wait {
            Wait::No => {}
            Wait::Rest => {
                return self.rescued();
            }
            Wait::Record | Wait::Until(_) | Wait::Event => return false,
        }
        let mut went_on = false;
        loop {
            let has_failed = self.env.log.has_failed();
            let Err(stuck) = self.destagers[disk].proceed(&mut self.env) else { return went_on };
            if !stuck.behind_bypass {
                self.destagers[disk].rests = true;
                went_on |= self.rescued();
                if self.all_rest()
                    && let Some(unfinished) = self.env.give_up_on_lost()
                    && self.stop.end_drain()
                {
                    self.env.cx.report(Report::Failed(unfinished));
                }
            }
            if !stuck.after_choice {
                return went_on;
            }
            // With a dead log, writes over lost blocks go through now.
            if has_failed {
                self.retry_pending();
                went_on = true;
            }
            self.refresh();
        }
    }

    /// True if no disk can be destaged to before something changes.
    fn all_rest(&self) -> bool {
        self.destagers.iter().all(|destager| destager.rests)
    }

    /// See [`Env::rescued`]; true if writes went on.
    fn rescued(&mut self) -> bool {
        let is_new = self.all_rest() && self.env.rescued(self.destagers);
        if is_new {
            self.retry_pending();
        }
        is_new
    }

    fn on_destage(&mut self, disk: usize, slot: u64, result: IoResult) {
        let CoreParts { env, destagers, .. } = self;
        let Some(end) = destagers[disk].completed(slot, result, env) else { return };
        env.batch_flushed(disk, &end);
        if end.has_errors {
            env.destage_failed(disk);
        }
        if end.is_hopeless {
            env.log_failed(IoError::new(ErrorKind::Lost));
        }
        self.advance_tail();
        self.retry_pending();
    }
}
