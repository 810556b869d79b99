//! The array: passes events to its parts, acts on what they return, and chooses what goes on next.

use crate::Nanos;
use crate::destage::when::Choice;
use crate::layer::{
    ArrayCommand, CommandError, Control, ErrorKind, Event, Geometry, IoError, IoResult, OpId, Outbox, Report,
    Request,
};
use crate::raid::cache::StripeCache;
use crate::raid::clients::{Clients, WaitingFor};
use crate::raid::config::{Canary, RaidConfig};
use crate::raid::cx::Cx;
use crate::raid::flight::Flight;
use crate::raid::journal::Journal;
use crate::raid::layout::Layout;
use crate::raid::lost::Losses;
use crate::raid::members::{Members, Spare};
use crate::raid::operation::{Goal, in_use};
use crate::raid::passes::Passes;
use crate::raid::record::Recorder;
use crate::raid::status::Statistics;
use crate::raid::stripe::Stripes;
use crate::raid::unit::Piece;

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

/// See the module's documentation.
pub(super) struct Array {
    pub config: RaidConfig,
    pub layout: Layout,
    pub geometry: Geometry,
    pub members: Members,
    pub losses: Losses,
    pub recorder: Recorder,
    pub stripes: Stripes,
    pub passes: Passes,
    clients: Clients,
    stop: Stop,
    pub deadline: Option<Nanos>,
    pub statistics: Statistics,
}

impl Array {
    pub fn new(
        config: RaidConfig,
        geometry: Geometry,
        mut recorder: Recorder,
        mut members: Members,
    ) -> Array {
        let layout = recorder.layout;
        if geometry.read_only {
            members.forget_spares();
        }
        recorder.read_only = geometry.read_only;
        recorder.forgets_missed = config.canary.is(Canary::ForgetMissed);
        let passes = match recorder.failed() {
            0 if !geometry.read_only => {
                Passes::resync(recorder.in_doubt().iter().map(|region| recorder.regions.units(region)))
            }
            _ => Passes::default(),
        };
        Array {
            stripes: Stripes::new(StripeCache::new(layout, config.memory, config.cache_bytes)),
            losses: Losses::new(&layout, recorder.lost().keys()),
            config,
            layout,
            geometry,
            members,
            recorder,
            clients: Clients::default(),
            passes,
            stop: Stop::No,
            // Work that nobody has to ask for begins at once.
            deadline: Some(Nanos::ZERO),
            statistics: Statistics::default(),
        }
    }

    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        let cx = Cx {
            now,
            config: &self.config,
            layout: self.layout,
            geometry: &self.geometry,
            members: &mut self.members,
            recorder: &mut self.recorder,
            losses: &mut self.losses,
            statistics: &mut self.statistics,
            deadline: &mut self.deadline,
            out,
        };
        let Array { stripes, passes, clients, stop, .. } = self;
        Dispatch { cx, stripes, passes, clients, stop }.handle(event);
    }

    /// The array was configured with a journal, and that has failed, at the start or since.
    pub const fn has_lost_journal(&self) -> bool {
        self.config.journal && self.recorder.journal.is_none()
    }

    /// See [`crate::Layer::has_work`].
    pub fn has_work(&self, now: Nanos) -> bool {
        let Array { stripes, clients, recorder, passes, config, .. } = self;
        if !clients.have_all() || !stripes.operations.is_empty() {
            return true;
        }
        // A broken array writes nothing, and its stop has failed.
        let stops = !matches!(self.stop, Stop::No | Stop::Done);
        let destages = !stripes.cache.dirty().is_empty()
            && stripes.destaging.when(now, &stripes.cache, clients, config) != Choice::Wait;
        let records = !recorder.rests() || recorder.is_recording();
        let passes_on = self.stop == Stop::No && passes.want_to_go_on(recorder, config);
        !recorder.broken && (stops || destages || records || passes_on)
    }

    pub fn check(&self) {
        let Array { stripes, clients, recorder, .. } = self;
        stripes.cache.check();
        recorder.check();
        assert!(stripes.destaging.running() as usize <= stripes.operations.len());
        let stuck = clients.wait_for_room() && stripes.operations.is_empty() && self.members.are_idle();
        assert!(!stuck, "writes wait for room, and nothing makes any");
        assert!(stripes.held_back.is_empty() || recorder.is_recording(), "operations wait for superblocks");
    }
}

/// All parts of the array, borrowed apart for one event: `cx` has those that every part may use, the others are passed by name.
struct Dispatch<'a> {
    cx: Cx<'a>,
    stripes: &'a mut Stripes,
    passes: &'a mut Passes,
    clients: &'a mut Clients,
    stop: &'a mut Stop,
}

impl Dispatch<'_> {
    fn handle(&mut self, event: Event) {
        self.stripes.destaging.begin_event();
        match event {
            Event::Request(request) if *self.stop != Stop::No => {
                let error = IoError::new(ErrorKind::Shutdown);
                return self.cx.out.reply(request.id, IoResult::err(request.io.take_buf(), error));
            }
            Event::Request(request) => self.accept(request),
            Event::Completed { op, result } => self.completed(op, result),
            Event::Wake => {}
            Event::Control(Control::Array(command)) => {
                let done = self.command(command);
                self.cx.out.report(Report::Array(done));
            }
            Event::Control(control) => self.control(control),
        }
        self.step();
        if std::mem::take(&mut self.cx.recorder.notice) | std::mem::take(&mut self.cx.losses.notice) {
            self.cx.out.report(Report::Notice);
        }
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::Drain if *self.stop == Stop::No => self.report_when_destaged(Report::Drained),
            Control::DrainCancel => self.clients.cancel_drains(),
            Control::Stop if *self.stop == Stop::No => *self.stop = Stop::Ending,
            Control::ResetStatistics => {
                *self.cx.statistics = Statistics::default();
                self.cx.members.reset_statistics();
            }
            Control::Drain
            | Control::Stop
            | Control::LogFailureRecorded
            | Control::Array(_)
            | Control::DistrustCopy(_) => {}
        }
    }

    fn report_when_destaged(&mut self, report: Report) {
        self.clients.wait_until_destaged(WaitingFor::Report(report), None, self.stripes.cache.stamp());
    }

    /// Carries an administrator's word out, or begins to.
    fn command(&mut self, command: ArrayCommand) -> Result<(), CommandError> {
        let cx = &mut self.cx;
        match command {
            ArrayCommand::Fail { role } => {
                cx.recorder.may_fail(role)?;
                cx.member_failed(role, self.passes.repairs(), &self.stripes.operations);
                Ok(())
            }
            ArrayCommand::Scrub { repair } => self.passes.scrub(repair, cx.recorder),
            ArrayCommand::ScrubStop => self.passes.stop_scrub(),
            ArrayCommand::Rebuild => cx.members.can_rebuild(cx.recorder),
            ArrayCommand::Add { .. } if *self.stop != Stop::No => Err(CommandError::NoWrites),
            ArrayCommand::Add { port, geometry, seat, id } => {
                let device = Spare { port, id, copy: 0, seat };
                cx.members.join(device, &geometry, cx.geometry.logical_block_bytes, cx.recorder)
            }
            ArrayCommand::Remove { port } => cx.members.leave(port, cx.recorder),
        }
    }

    fn accept(&mut self, request: Request) {
        let begun = self.clients.accept(request, &mut self.stripes.cache, &mut self.cx);
        let Some((key, pieces)) = begun else { return };
        pieces.into_iter().for_each(|piece| self.begin(piece));
        // The request's own count, held so that no early piece answers it.
        self.clients.piece_done(key, None, &self.stripes.cache, &mut self.cx);
    }

    fn begin(&mut self, piece: Piece) {
        if self.clients.begin(piece, &mut self.stripes.cache, &mut self.cx) {
            self.unlocked(piece.chunk.unit);
        }
    }

    /// Gives the lock of a unit, if it is free, to the first waiter in this order: a reader's computation, a pass, a destage, all pieces.
    fn unlocked(&mut self, number: u64) {
        loop {
            let Some(unit) = self.stripes.cache.get(number) else { return };
            if unit.exclusive || unit.readers > 0 {
                return;
            }
            if unit.fetch.is_some() {
                return self.start(number, Goal::Fetch);
            }
            if unit.claimed.is_some() {
                return self.passes.lock(number, self.stripes, &mut self.cx);
            }
            if unit.wanted && unit.is_dirty() && !self.cx.recorder.broken {
                return self.start(number, Goal::Destage);
            }
            let unit = self.stripes.cache.unit(number);
            unit.wanted = false;
            if unit.waiting.is_empty() {
                return self.stripes.cache.release(number);
            }
            std::mem::take(&mut unit.waiting).into_iter().for_each(|piece| self.begin(piece));
        }
    }

    fn start(&mut self, unit: u64, goal: Goal) {
        let freed = self.stripes.start(unit, goal, self.clients, &mut self.cx);
        self.free(freed);
    }

    /// Lets what waits for the unit of an operation that is over go on.
    fn free(&mut self, unit: Option<u64>) {
        if let Some(unit) = unit {
            self.unlocked(unit);
            self.stripes.cache.trim();
        }
    }

    fn completed(&mut self, op: OpId, result: IoResult) {
        let Dispatch { cx, stripes, passes, clients, .. } = self;
        let is_ok = result.status.is_ok();
        let (role, flight) = cx.members.returned(op, is_ok);
        let made_up_for =
            is_ok || !flight.fails_member() || cx.member_failed(role, passes.repairs(), &stripes.operations);
        match flight {
            Flight::Read(piece) => {
                clients.read_returned(piece, result, &mut stripes.cache, cx);
                self.unlocked(piece.chunk.unit);
            }
            Flight::OperationRead { key, run } => {
                stripes.read_returned(key, run, result);
                let freed = stripes.go_on(key, clients, cx);
                self.free(freed);
            }
            Flight::OperationWrite { key, run } => {
                stripes.write_returned(key, &run, is_ok, made_up_for, cx);
                let freed = stripes.go_on(key, clients, cx);
                self.free(freed);
            }
            Flight::Prefetch { unit, run } => {
                stripes.prefetch.returned(unit, run, result, &mut stripes.cache);
                self.unlocked(unit);
            }
            Flight::Superblock => {
                if cx.recorder.superblock_returned(role, is_ok) {
                    cx.recorder.begin_return(&in_use(&stripes.operations, cx.recorder.tracts));
                    cx.record();
                }
            }
            Flight::Journal { operation } => self.journal_returned(operation, is_ok),
            Flight::Flush => cx.members.flushed(cx.recorder.broken),
            Flight::Join { port, number } => {
                cx.members.join_returned(port, number, result, cx.recorder, cx.out);
            }
            Flight::WindowRead(part) => {
                passes.read_returned(part, result, stripes, cx);
                self.free_windows();
            }
            Flight::WindowWrite(part) => {
                passes.write_returned(part, is_ok, &mut stripes.cache, cx);
                self.free_windows();
            }
            Flight::PassFlush => passes.flushed(),
        }
    }

    /// A record of the journal is durable, or could not be written.
    fn journal_returned(&mut self, operation: Option<u64>, is_ok: bool) {
        let Dispatch { cx, stripes, clients, .. } = self;
        if !is_ok {
            let (required, regions) = (cx.config.journal_required, cx.recorder.regions);
            let writing = in_use(&stripes.operations, regions);
            let Some(queue) = cx.recorder.lose_journal(&writing, required) else { return };
            for key in operation.into_iter().chain(queue) {
                let freed = self.stripes.go_on_unrecorded(key, self.clients, &mut self.cx);
                self.free(freed);
            }
            return self.cx.record();
        }
        if let Some(journal) = &mut cx.recorder.journal {
            journal.written();
        }
        match operation {
            Some(key) => {
                let freed = stripes.go_on(key, clients, cx);
                self.free(freed);
            }
            None => cx.record(),
        }
        self.cx.write_record(&mut self.stripes.operations);
    }

    /// Frees the units of the windows that are over.
    fn free_windows(&mut self) {
        while let Some(units) = self.passes.next_over(&mut self.cx) {
            for unit in units {
                self.stripes.cache.unit(unit).exclusive = false;
                self.unlocked(unit);
            }
        }
    }

    /// Goes on with all that can be done now, in this order: what waited for superblocks, writes, destages, passes, the stop. Runs after
    /// every event.
    fn step(&mut self) {
        *self.cx.deadline = None;
        let foreground = self.clients.foreground();
        for key in std::mem::take(&mut self.stripes.held_back) {
            let freed = self.stripes.go_on(key, self.clients, &mut self.cx);
            self.free(freed);
        }
        if self.cx.recorder.broken {
            let journal = self.cx.recorder.journal.as_mut();
            for key in journal.map(Journal::take_queue).unwrap_or_default() {
                let freed = self.stripes.not_written(key, &mut self.cx);
                self.free(freed);
            }
        }
        self.clients.go_on_writing(&mut self.stripes.cache, &mut self.cx);
        loop {
            let Dispatch { cx, stripes, clients, .. } = self;
            let Some(unit) = stripes.destaging.next(&mut stripes.cache, clients, cx) else { break };
            self.start(unit, Goal::Destage);
        }
        let Dispatch { cx, stripes, passes, clients, .. } = self;
        stripes.prefetch.go_on(&mut stripes.cache, clients, cx);
        passes.end_void(cx.recorder);
        if *self.stop == Stop::No {
            passes.go_on(stripes, clients, cx);
        }
        cx.members.take_spare(cx.recorder, cx.statistics, cx.out);
        if clients.finish_waiters(&stripes.cache, cx) {
            // Nothing is dirty. The stop ends when that is recorded.
            *self.stop = Stop::Recording;
            cx.recorder.rest();
            cx.record();
        }
        if foreground > 0 && clients.foreground() == 0 {
            // The policy, and the pass, waited for that.
            return self.step();
        }
        let resting = stripes.operations.is_empty() && stripes.prefetch.in_flight == 0 && passes.rest();
        if *self.stop == Stop::Ending && clients.are_answered() && resting && passes.has_noted(cx) {
            *self.stop = Stop::Destaging;
            self.report_when_destaged(Report::Stopped);
            return self.step();
        }
        let rests =
            clients.are_answered() && stripes.operations.is_empty() && stripes.cache.dirty().is_empty();
        let rests_since = rests.then(|| clients.last_activity());
        let writing = |regions| in_use(&stripes.operations, regions);
        if let Some(at) = cx.recorder.look_for_rest(cx.now, rests_since, writing) {
            cx.wake_at(at);
        }
        cx.record();
        cx.members.go_on_joining(cx.recorder, cx.statistics, cx.out);
        if *self.stop == Stop::Recording && !cx.recorder.is_recording() {
            *self.stop = Stop::Done;
            cx.out.report(Report::Stopped);
        }
    }
}
