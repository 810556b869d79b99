//! The array: passes events to its parts, acts on what they return, and chooses what goes on next.

use crate::Nanos;
use crate::destage::when::Choice;
use crate::layer::{
    ArrayCommand, CommandError, Control, Cx, ErrorKind, Event, Geometry, IoError, IoResult, LayerSettings,
    OpId, Report, Request,
};
use crate::machine::Lifecycle;
use crate::raid::cache::StripeCache;
use crate::raid::clients::{Clients, WaitingFor};
use crate::raid::config::{ArrayCanary, RaidConfig};
use crate::raid::env::Env;
use crate::raid::flight::Flight;
use crate::raid::journal::Journal;
use crate::raid::layout::Layout;
use crate::raid::lost::Losses;
use crate::raid::members::{Members, Spare};
use crate::raid::operation::{Goal, in_use};
use crate::raid::passes::Passes;
use crate::raid::record::Recorder;
use crate::raid::status::ArrayStatistics;
use crate::raid::stripe::ActiveStripes;
use crate::raid::unit::RequestPart;

/// See the module's documentation.
pub(super) struct Array {
    pub config: RaidConfig,
    pub layout: Layout,
    pub geometry: Geometry,
    pub members: Members,
    pub losses: Losses,
    pub recorder: Recorder,
    pub stripes: ActiveStripes,
    pub passes: Passes,
    clients: Clients,
    life: Lifecycle,
    pub deadline: Option<Nanos>,
    pub statistics: ArrayStatistics,
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
        recorder.forgets_missed = config.canary.is(ArrayCanary::ForgetMissed);
        let passes = match recorder.failed() {
            0 if !geometry.read_only => {
                Passes::resync(recorder.in_doubt().iter().map(|region| recorder.regions.units(region)))
            }
            _ => Passes::default(),
        };
        Array {
            stripes: ActiveStripes::new(StripeCache::new(layout, config.memory, config.cache_bytes)),
            losses: Losses::new(&layout, recorder.lost().keys()),
            config,
            layout,
            geometry,
            members,
            recorder,
            clients: Clients::default(),
            passes,
            life: Lifecycle::Serving,
            // Work that nobody has to ask for begins at once.
            deadline: Some(Nanos::ZERO),
            statistics: ArrayStatistics::default(),
        }
    }

    pub fn handle(&mut self, event: Event, cx: &mut Cx) {
        if let Event::Control(Control::Settings(settings)) = &event
            && let LayerSettings::Raid(config) = &**settings
        {
            self.config.change(config);
        }
        let env = Env {
            config: &self.config,
            layout: self.layout,
            geometry: &self.geometry,
            members: &mut self.members,
            recorder: &mut self.recorder,
            losses: &mut self.losses,
            statistics: &mut self.statistics,
            deadline: &mut self.deadline,
            cx,
        };
        let Array { stripes, passes, clients, life, .. } = self;
        Dispatch { env, stripes, passes, clients, life }.handle(event);
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
        let destages = !stripes.cache.dirty().is_empty()
            && stripes.destaging.when(now, &stripes.cache, clients, config) != Choice::Wait;
        let records = !recorder.rests() || recorder.is_recording();
        let passes_on = self.life.serves() && passes.want_to_go_on(recorder, config);
        !recorder.broken && (self.life.is_stopping() || destages || records || passes_on)
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

/// All parts of the array, borrowed apart for one event: `env` has those that every part may use, the others are passed by name.
struct Dispatch<'a> {
    env: Env<'a>,
    stripes: &'a mut ActiveStripes,
    passes: &'a mut Passes,
    clients: &'a mut Clients,
    life: &'a mut Lifecycle,
}

impl Dispatch<'_> {
    fn handle(&mut self, event: Event) {
        self.stripes.destaging.begin_event();
        match event {
            Event::Request(request) if !self.life.serves() => {
                let error = IoError::new(ErrorKind::Shutdown);
                return self.env.cx.reply(request.id, IoResult::err(request.io.take_buf(), error));
            }
            Event::Request(request) => self.accept(request),
            Event::Completed { op, result } => self.completed(op, result),
            Event::Wake => {}
            Event::Control(Control::Array(command)) => {
                let done = self.command(command);
                self.env.cx.report(Report::Array(done));
            }
            Event::Control(control) => self.control(control),
        }
        self.step();
        if std::mem::take(&mut self.env.recorder.notice) | std::mem::take(&mut self.env.losses.notice) {
            self.env.cx.report(Report::Notice);
        }
    }

    fn control(&mut self, control: Control) {
        match control {
            Control::Drain if self.life.serves() => self.report_when_destaged(Report::Drained),
            Control::DrainCancel => self.clients.cancel_drains(),
            Control::Stop if self.life.serves() => *self.life = Lifecycle::Ending,
            Control::ResetStatistics => {
                *self.env.statistics = ArrayStatistics::default();
                self.env.members.reset_statistics();
            }
            Control::Drain
            | Control::Stop
            | Control::LogFailureRecorded
            | Control::Settings(_)
            | Control::HoldDestage(_)
            | Control::Array(_)
            | Control::Disk(_)
            | Control::DistrustCopy(_) => {}
        }
    }

    fn report_when_destaged(&mut self, report: Report) {
        self.clients.wait_until_destaged(WaitingFor::Report(report), None, self.stripes.cache.stamp());
    }

    /// Carries an administrator's word out, or begins to.
    fn command(&mut self, command: ArrayCommand) -> Result<(), CommandError> {
        let env = &mut self.env;
        match command {
            ArrayCommand::Fail { role } => {
                env.recorder.may_fail(role)?;
                env.member_failed(role, self.passes.repairs(), &self.stripes.operations);
                Ok(())
            }
            ArrayCommand::Scrub { repair } => self.passes.scrub(repair, env.recorder),
            ArrayCommand::ScrubStop => self.passes.stop_scrub(),
            ArrayCommand::Rebuild => env.members.can_rebuild(env.recorder),
            ArrayCommand::Add { .. } if !self.life.serves() => Err(CommandError::NoWrites),
            ArrayCommand::Add { port, geometry, seat, id } => {
                let device = Spare { port, id, copy: 0, seat };
                env.members.join(device, &geometry, env.geometry.logical_block_bytes, env.recorder)
            }
            ArrayCommand::Remove { port } | ArrayCommand::Close { port } => {
                env.members.leave(port, env.recorder)
            }
            ArrayCommand::Forget => Err(CommandError::NoLeg),
        }
    }

    fn accept(&mut self, request: Request) {
        let begun = self.clients.accept(request, &mut self.stripes.cache, &mut self.env);
        let Some((key, pieces)) = begun else { return };
        pieces.into_iter().for_each(|piece| self.begin(piece));
        // The request's own count, held so that no early piece answers it.
        self.clients.piece_done(key, None, &self.stripes.cache, &mut self.env);
    }

    fn begin(&mut self, piece: RequestPart) {
        if self.clients.begin(piece, &mut self.stripes.cache, &mut self.env) {
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
                return self.passes.lock(number, self.stripes, &mut self.env);
            }
            if unit.wanted && unit.is_dirty() && !self.env.recorder.broken {
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
        let freed = self.stripes.start(unit, goal, self.clients, &mut self.env);
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
        let Dispatch { env, stripes, passes, clients, .. } = self;
        let is_ok = result.status.is_ok();
        let (role, flight) = env.members.returned(op, is_ok);
        let made_up_for =
            is_ok || !flight.fails_member() || env.member_failed(role, passes.repairs(), &stripes.operations);
        match flight {
            Flight::Read(piece) => {
                clients.read_returned(piece, result, &mut stripes.cache, env);
                self.unlocked(piece.chunk.unit);
            }
            Flight::OperationRead { key, run } => {
                stripes.read_returned(key, run, result);
                let freed = stripes.go_on(key, clients, env);
                self.free(freed);
            }
            Flight::OperationWrite { key, run } => {
                stripes.write_returned(key, &run, is_ok, made_up_for, env);
                let freed = stripes.go_on(key, clients, env);
                self.free(freed);
            }
            Flight::Prefetch { unit, run } => {
                stripes.prefetch.returned(unit, run, result, &mut stripes.cache);
                self.unlocked(unit);
            }
            Flight::Superblock => {
                if env.recorder.superblock_returned(role, is_ok) {
                    env.recorder.begin_return(&in_use(&stripes.operations, env.recorder.tracts));
                    env.record();
                }
            }
            Flight::Journal { operation } => self.journal_returned(operation, is_ok),
            Flight::Flush => env.members.flushed(env.recorder.broken),
            Flight::Join { port, number } => {
                env.members.join_returned(port, number, result, env.recorder, env.cx);
            }
            Flight::WindowRead(part) => {
                passes.read_returned(part, result, stripes, env);
                self.free_windows();
            }
            Flight::WindowWrite(part) => {
                passes.write_returned(part, is_ok, &mut stripes.cache, env);
                self.free_windows();
            }
            Flight::PassFlush => passes.flushed(),
        }
    }

    /// A record of the journal is durable, or could not be written.
    fn journal_returned(&mut self, operation: Option<u64>, is_ok: bool) {
        let Dispatch { env, stripes, clients, .. } = self;
        if !is_ok {
            let (required, regions) = (env.config.journal_required, env.recorder.regions);
            let writing = in_use(&stripes.operations, regions);
            let Some(queue) = env.recorder.lose_journal(&writing, required) else { return };
            for key in operation.into_iter().chain(queue) {
                let freed = self.stripes.go_on_unrecorded(key, self.clients, &mut self.env);
                self.free(freed);
            }
            return self.env.record();
        }
        if let Some(journal) = &mut env.recorder.journal {
            journal.written();
        }
        match operation {
            Some(key) => {
                let freed = stripes.go_on(key, clients, env);
                self.free(freed);
            }
            None => env.record(),
        }
        self.env.write_record(&mut self.stripes.operations);
    }

    /// Frees the units of the windows that are over.
    fn free_windows(&mut self) {
        while let Some(units) = self.passes.next_over(&mut self.env) {
            for unit in units {
                self.stripes.cache.unit(unit).exclusive = false;
                self.unlocked(unit);
            }
        }
    }

    /// Goes on with all that can be done now, in this order: what waited for superblocks, writes, destages, passes, the stop. Runs after
    /// every event.
    fn step(&mut self) {
        *self.env.deadline = None;
        let foreground = self.clients.foreground();
        for key in std::mem::take(&mut self.stripes.held_back) {
            let freed = self.stripes.go_on(key, self.clients, &mut self.env);
            self.free(freed);
        }
        if self.env.recorder.broken {
            let journal = self.env.recorder.journal.as_mut();
            for key in journal.map(Journal::take_queue).unwrap_or_default() {
                let freed = self.stripes.not_written(key, &mut self.env);
                self.free(freed);
            }
        }
        self.clients.go_on_writing(&mut self.stripes.cache, &mut self.env);
        loop {
            let Dispatch { env, stripes, clients, .. } = self;
            let Some(unit) = stripes.destaging.next(&mut stripes.cache, clients, env) else { break };
            self.start(unit, Goal::Destage);
        }
        let Dispatch { env, stripes, passes, clients, .. } = self;
        stripes.prefetch.go_on(&mut stripes.cache, clients, env);
        passes.end_void(env.recorder);
        if self.life.serves() {
            passes.go_on(stripes, clients, env);
        }
        env.members.take_spare(env.recorder, env.statistics, env.cx);
        if clients.finish_waiters(&stripes.cache, env) {
            // Nothing is dirty. The stop ends when that is recorded.
            *self.life = Lifecycle::Marking;
            env.recorder.rest();
            env.record();
        }
        if foreground > 0 && clients.foreground() == 0 {
            // The policy, and the pass, waited for that.
            return self.step();
        }
        let resting = stripes.operations.is_empty() && stripes.prefetch.in_flight == 0 && passes.rest();
        if *self.life == Lifecycle::Ending && clients.are_answered() && resting && passes.has_noted(env) {
            *self.life = Lifecycle::Flushing;
            self.report_when_destaged(Report::Stopped);
            return self.step();
        }
        let rests =
            clients.are_answered() && stripes.operations.is_empty() && stripes.cache.dirty().is_empty();
        let rests_since = rests.then(|| clients.last_activity());
        let writing = |regions| in_use(&stripes.operations, regions);
        if let Some(at) = env.recorder.look_for_rest(env.cx.now, rests_since, writing) {
            env.wake_at(at);
        }
        env.record();
        env.members.go_on_joining(env.recorder, env.statistics, env.cx);
        if *self.life == Lifecycle::Marking && !env.recorder.is_recording() {
            *self.life = Lifecycle::Stopped;
            env.cx.report(Report::Stopped);
        }
    }
}
