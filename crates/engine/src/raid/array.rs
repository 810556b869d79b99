//! The array: its parts, the events that they get, and what it does next.

use crate::Nanos;
use crate::destage::when::Choice;
use crate::layer::{
    ArrayCommand, CommandError, Control, ErrorKind, Event, Geometry, IoError, IoResult, OpId, Outbox, Report,
};
use crate::raid::cache::StripeCache;
use crate::raid::clients::{Clients, WaitingFor};
use crate::raid::config::{Canary, RaidConfig};
use crate::raid::destaging::Destaging;
use crate::raid::journal::Journal;
use crate::raid::layout::Layout;
use crate::raid::lost::Losses;
use crate::raid::members::{Flight, Members, Spare};
use crate::raid::pass::Passes;
use crate::raid::prefetch::Prefetch;
use crate::raid::record::Recorder;
use crate::raid::status::Statistics;
use crate::raid::stripe::{Goal, Operation, OperationPhase, in_use};
use crate::slab::Slab;

/// The progress of an administrator's stop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    No,
    /// No new requests are taken, and the present ones are being answered.
    Ending,
    /// All that is dirty is being destaged.
    Destaging,
    /// The superblocks are to say that it is at rest.
    Recording,
    Done,
}

/// The state that an array begins with.
pub(super) struct Start {
    pub config: RaidConfig,
    pub layout: Layout,
    pub geometry: Geometry,
    pub recorder: Recorder,
    pub members: Members,
}

/// See the module's documentation.
pub(super) struct Array {
    pub config: RaidConfig,
    pub layout: Layout,
    pub geometry: Geometry,
    pub members: Members,
    pub losses: Losses,
    pub recorder: Recorder,
    pub cache: StripeCache,
    pub clients: Clients,
    pub destaging: Destaging,
    pub passes: Passes,
    pub prefetch: Prefetch,
    pub operations: Slab<Operation>,
    /// Operations that wait for the superblocks.
    pub held_back: Vec<u64>,
    stop: Stop,
    pub deadline: Option<Nanos>,
    pub statistics: Statistics,
}

impl Array {
    pub fn new(start: Start) -> Array {
        let Start { config, layout, geometry, mut recorder, mut members } = start;
        if geometry.read_only {
            members.forget_spares();
        }
        recorder.read_only = geometry.read_only;
        recorder.journal_failed = config.journal && recorder.journal.is_none();
        recorder.forgets_missed = config.canary.is(Canary::ForgetMissed);
        let passes = match recorder.failed() {
            0 if !geometry.read_only => {
                Passes::resync(recorder.in_doubt().iter().map(|region| recorder.regions.units(region)))
            }
            _ => Passes::default(),
        };
        Array {
            cache: StripeCache::new(layout, config.memory, config.cache_bytes),
            losses: Losses::new(&layout, recorder.lost().keys()),
            config,
            layout,
            geometry,
            members,
            recorder,
            clients: Clients::default(),
            destaging: Destaging::default(),
            passes,
            prefetch: Prefetch::default(),
            operations: Slab::default(),
            held_back: Vec::new(),
            stop: Stop::No,
            // Work that nobody has to ask for begins at once.
            deadline: Some(Nanos::ZERO),
            statistics: Statistics::default(),
        }
    }

    /// True when no new requests are taken.
    pub fn is_stopped(&self) -> bool {
        self.stop != Stop::No
    }

    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        self.destaging.begin_event();
        match event {
            Event::Request(request) if self.is_stopped() => {
                let error = IoError::new(ErrorKind::Shutdown);
                return out.reply(request.id, IoResult::err(request.io.take_buf(), error));
            }
            Event::Request(request) => self.accept(now, request, out),
            Event::Completed { op, result } => self.completed(op, result, out),
            Event::Wake => {}
            Event::Control(Control::Array(command)) => {
                let done = self.command(command, out);
                out.report(Report::Array(done));
            }
            Event::Control(control) => self.control(control),
        }
        self.step(now, out);
        if std::mem::take(&mut self.recorder.notice) | std::mem::take(&mut self.losses.notice) {
            out.report(Report::Notice);
        }
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::Drain if !self.is_stopped() => {
                self.wait_until_destaged(WaitingFor::Report(Report::Drained), None)
            }
            Control::DrainCancel => self.clients.cancel_drains(),
            Control::Stop if !self.is_stopped() => self.stop = Stop::Ending,
            Control::ResetStatistics => {
                self.statistics = Statistics::default();
                self.members.reset_statistics();
            }
            Control::Drain
            | Control::Stop
            | Control::LogFailureRecorded
            | Control::Array(_)
            | Control::DistrustCopy(_) => {}
        }
    }

    /// Carries an administrator's word out, or begins to.
    fn command(&mut self, command: ArrayCommand, out: &mut Outbox) -> Result<(), CommandError> {
        match command {
            ArrayCommand::Fail { role } => {
                self.recorder.may_fail(role)?;
                self.member_failed(role, out);
                Ok(())
            }
            ArrayCommand::Scrub { repair } => self.scrub(repair),
            ArrayCommand::ScrubStop => self.stop_scrub(),
            ArrayCommand::Rebuild => self.members.can_rebuild(&self.recorder),
            ArrayCommand::Add { .. } if self.is_stopped() => Err(CommandError::NoWrites),
            ArrayCommand::Add { port, geometry, seat, id } => {
                let device = Spare { port, id, copy: 0, seat };
                let promised = self.geometry.logical_block_bytes;
                self.members.join(device, &geometry, promised, &mut self.recorder)
            }
            ArrayCommand::Remove { port } => self.members.leave(port, &mut self.recorder),
        }
    }

    /// A member could not write. False where the parity makes up for no more members.
    pub fn member_failed(&mut self, role: usize, out: &mut Outbox) -> bool {
        let repairs = self.passes.repairs();
        let Array { recorder, operations, members, statistics, .. } = self;
        recorder.member_failed(role, repairs, operations, members, statistics, out)
    }

    /// Writes the superblocks, if they have something new to say.
    pub fn record(&mut self, out: &mut Outbox) {
        self.recorder.record(&mut self.members, &mut self.statistics, out);
    }

    /// Writes the next record of the journal.
    pub fn write_record(&mut self, out: &mut Outbox) {
        let Array { recorder, operations, members, statistics, .. } = self;
        recorder.write_record(operations, members, statistics, out);
    }

    fn completed(&mut self, op: OpId, result: IoResult, out: &mut Outbox) {
        let is_ok = result.status.is_ok();
        let (role, flight) = self.members.returned(op, is_ok);
        let made_up_for = is_ok || !flight.fails_member() || self.member_failed(role, out);
        match flight {
            Flight::Read(piece) => self.read_returned(piece, result, out),
            Flight::OperationRead { key, run } => self.operation_read(key, run, result, out),
            Flight::OperationWrite { key, run } => self.operation_write(key, &run, is_ok, made_up_for, out),
            Flight::Prefetch { unit, run } => self.prefetched(unit, run, result, out),
            Flight::Superblock => self.superblock_returned(role, is_ok, out),
            Flight::Journal { operation } => self.journal_returned(operation, is_ok, out),
            Flight::Flush => self.members.flushed(self.recorder.broken),
            Flight::Join { port, number } => {
                self.members.join_returned(port, number, result, &self.recorder, out)
            }
            Flight::WindowRead { key, rows } => self.window_read(key, role, rows, result, out),
            Flight::WindowWrite { key, rows } => self.window_write(key, role, rows, is_ok, out),
            Flight::PassFlush => self.pass_flushed(),
        }
    }

    fn superblock_returned(&mut self, role: usize, is_ok: bool, out: &mut Outbox) {
        if self.recorder.superblock_returned(role, is_ok) {
            let under_way = in_use(&self.operations, self.recorder.tracts);
            self.recorder.begin_return(&under_way);
            self.record(out);
        }
    }

    /// A record of the journal is durable, or could not be written.
    fn journal_returned(&mut self, operation: Option<u64>, is_ok: bool, out: &mut Outbox) {
        if !is_ok {
            return self.lose_journal(operation, out);
        }
        if let Some(journal) = &mut self.recorder.journal {
            journal.written();
        }
        match operation {
            Some(key) if self.recorder.broken => self.not_written(key, out),
            Some(key) => self.write_members(key, out),
            None => self.record(out),
        }
        self.write_record(out);
    }

    /// Lets operations that wait to be recorded go on without that, as soon as the superblocks say that the array has no journal any more.
    fn lose_journal(&mut self, operation: Option<u64>, out: &mut Outbox) {
        if self.recorder.journal.is_none() {
            return;
        }
        let queue = self.recorder.lose_journal(&self.operations, self.config.journal_required);
        for key in operation.into_iter().chain(queue) {
            self.operations.get_mut(key).phase = OperationPhase::Held;
            self.go_on(key, out);
        }
        self.record(out);
    }

    /// Ends the operations that wait to be recorded, without a write.
    fn clear_queue(&mut self, out: &mut Outbox) {
        let journal = self.recorder.journal.as_mut();
        for key in journal.map(Journal::take_queue).unwrap_or_default() {
            self.not_written(key, out);
        }
    }

    /// Goes on with all that can be done now; runs after every event.
    fn step(&mut self, now: Nanos, out: &mut Outbox) {
        self.deadline = None;
        let foreground = self.clients.foreground();
        for key in std::mem::take(&mut self.held_back) {
            self.go_on(key, out);
        }
        if self.recorder.broken {
            self.clear_queue(out);
        }
        self.go_on_writing(out);
        while let Some(unit) = self.next_destage(now) {
            self.start(unit, Goal::Destage, out);
        }
        self.go_on_prefetching(out);
        self.go_on_passing(now, out);
        self.members.take_spare(&mut self.recorder, &mut self.statistics, out);
        self.finish_waiters(out);
        if foreground > 0 && self.clients.foreground() == 0 {
            // The policy, and the pass, waited for that.
            return self.step(now, out);
        }
        let resting =
            self.operations.is_empty() && self.passes.windows.is_empty() && self.prefetch.in_flight == 0;
        if self.stop == Stop::Ending
            && self.clients.are_answered()
            && resting
            && self.has_noted_pass(now, out)
        {
            self.stop = Stop::Destaging;
            self.wait_until_destaged(WaitingFor::Report(Report::Stopped), None);
            return self.step(now, out);
        }
        let (clients, cache) = (&self.clients, &self.cache);
        let rest = self.recorder.look_for_rest(now, &self.operations, |time| {
            clients.are_answered() && cache.dirty().is_empty() && now.since(clients.last_activity()) >= time
        });
        rest.into_iter().for_each(|at| self.wake_at(at));
        self.record(out);
        self.members.go_on_joining(&mut self.recorder, &mut self.statistics, out);
        if self.stop == Stop::Recording && !self.recorder.is_recording() {
            self.stop = Stop::Done;
            out.report(Report::Stopped);
        }
    }

    /// Records that nothing is dirty; the stop ends after that.
    pub fn close(&mut self, out: &mut Outbox) {
        self.stop = Stop::Recording;
        self.recorder.rest();
        self.record(out);
    }

    /// Asks for an alarm at a time, unless there is an earlier one.
    pub fn wake_at(&mut self, time: Nanos) {
        self.deadline = Some(self.deadline.map_or(time, |earlier| earlier.min(time)));
    }

    /// See [`crate::Layer::has_work`].
    pub fn has_work(&self, now: Nanos) -> bool {
        if !self.clients.have_all() || !self.operations.is_empty() {
            return true;
        }
        // A broken array writes nothing, and its stop has failed.
        let stops = !matches!(self.stop, Stop::No | Stop::Done);
        let destages = !self.cache.dirty().is_empty() && self.when(now) != Choice::Wait;
        let rests = self.recorder.rests();
        !self.recorder.broken
            && (stops || destages || !rests || self.recorder.is_recording() || self.passes_on())
    }

    pub fn check(&self) {
        self.cache.check();
        self.recorder.check();
        assert!(self.destaging.running() as usize <= self.operations.len());
        let stuck = self.clients.wait_for_room() && self.operations.is_empty() && self.members.are_idle();
        assert!(!stuck, "writes wait for room, and nothing makes any");
        assert!(self.held_back.is_empty() || self.recorder.is_recording(), "operations wait for superblocks");
    }
}
