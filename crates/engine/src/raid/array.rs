//! The array: its parts, the events that they get, and what it does next.

use std::ops::Range;

use crate::Nanos;
use crate::destage::when::Choice;
use crate::layer::{Control, ErrorKind, Event, Geometry, Io, IoError, IoResult, OpId, Outbox, Port, Report};
use crate::raid::away::TRACTS_MAX;
use crate::raid::bitmap::Regions;
use crate::raid::cache::StripeCache;
use crate::raid::clients::{Clients, WaitingFor};
use crate::raid::config::{Canary, RaidConfig};
use crate::raid::destaging::Destaging;
use crate::raid::journal::Journal;
use crate::raid::layout::Layout;
use crate::raid::lost::Losses;
use crate::raid::members::Members;
use crate::raid::pass::Passes;
use crate::raid::plan::Run;
use crate::raid::prefetch::Prefetch;
use crate::raid::record::Recorder;
use crate::raid::right::RightRows;
use crate::raid::status::Statistics;
use crate::raid::stripe::{Goal, Operation};
use crate::raid::unit::Piece;
use crate::slab::Slab;

/// A command under way below the array.
pub(super) enum Flight {
    /// A read of a request of a client that missed the cache.
    Read(Piece),
    OperationRead {
        key: u64,
        run: usize,
    },
    OperationWrite {
        key: u64,
        run: Run,
    },
    /// A read for a destage that has not begun.
    Prefetch {
        unit: u64,
        run: Run,
    },
    Superblock {
        role: usize,
    },
    /// The record of an operation, or the one that opens an epoch.
    Journal {
        operation: Option<u64>,
    },
    Flush {
        role: usize,
    },
    /// A command to the device on this port, which becomes a spare, or comes back.
    Join {
        port: Port,
        number: usize,
    },
    /// Rows of a window of a pass.
    WindowRead {
        key: u64,
        role: usize,
        rows: Range<usize>,
    },
    WindowWrite {
        key: u64,
        rows: Range<usize>,
    },
    /// A flush after the writes of a pass.
    PassFlush,
}

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
    pub regions: Regions,
    pub geometry: Geometry,
    pub recorder: Recorder,
    pub journal: Option<Journal>,
    pub members: Members,
}

/// See the module's documentation.
pub(super) struct Array {
    pub config: RaidConfig,
    pub layout: Layout,
    pub regions: Regions,
    /// The tracts that are marked for members that are away.
    pub tracts: Regions,
    pub geometry: Geometry,
    pub members: Members,
    pub losses: Losses,
    pub recorder: Recorder,
    pub journal: Option<Journal>,
    /// The array was configured with a journal, and that has failed, at the start or since.
    pub journal_failed: bool,
    pub cache: StripeCache,
    pub clients: Clients,
    pub destaging: Destaging,
    pub passes: Passes,
    pub prefetch: Prefetch,
    pub right_rows: RightRows,
    pub operations: Slab<Operation>,
    /// Operations that wait for the superblocks.
    pub held_back: Vec<u64>,
    pub flights: Slab<(usize, Flight)>,
    /// More members have failed than the parity makes up for, or the journal has: no more writes are taken.
    pub broken: bool,
    /// A server that was killed may have left writes in the members' caches; all others are durable when they return.
    pub unflushed: bool,
    flushing: u32,
    /// The administrator is to be told that something has happened.
    pub notice: bool,
    stop: Stop,
    pub deadline: Option<Nanos>,
    pub statistics: Statistics,
}

impl Array {
    pub fn new(start: Start) -> Array {
        let Start { config, layout, regions, geometry, mut recorder, journal, mut members } = start;
        if geometry.read_only {
            members.forget_spares();
        }
        recorder.forgets_missed = config.canary.is(Canary::ForgetMissed);
        let passes = match recorder.failed() {
            0 if !geometry.read_only => {
                Passes::resync(recorder.in_doubt().iter().map(|region| regions.units(region)))
            }
            _ => Passes::default(),
        };
        Array {
            cache: StripeCache::new(layout, config.memory, config.cache_bytes),
            journal_failed: config.journal && journal.is_none(),
            tracts: regions.at_most(TRACTS_MAX),
            losses: Losses::new(&layout, recorder.lost().keys()),
            right_rows: RightRows::new(regions, layout.rows),
            config,
            layout,
            regions,
            geometry,
            members,
            recorder,
            journal,
            clients: Clients::default(),
            destaging: Destaging::default(),
            passes,
            prefetch: Prefetch::default(),
            operations: Slab::default(),
            held_back: Vec::new(),
            flights: Slab::default(),
            broken: false,
            unflushed: true,
            flushing: 0,
            notice: false,
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
        if std::mem::take(&mut self.notice) {
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

    /// Sends a command to the member of a role.
    pub fn submit(&mut self, role: usize, flight: Flight, io: Io, out: &mut Outbox) {
        let port = self.members.port(role).expect("a missing member gets no commands");
        self.submit_to(port, role, flight, io, out);
    }

    pub fn submit_to(&mut self, port: Port, role: usize, flight: Flight, io: Io, out: &mut Outbox) {
        let key = self.flights.insert((role, flight));
        out.submit(port, OpId(key), io);
    }

    fn completed(&mut self, op: OpId, result: IoResult, out: &mut Outbox) {
        let (role, flight) = self.flights.remove(op.0);
        let reads = matches!(
            flight,
            Flight::Read(_)
                | Flight::OperationRead { .. }
                | Flight::Prefetch { .. }
                | Flight::WindowRead { .. }
        );
        if reads && result.status.is_err() {
            self.members.read_failed(role);
        }
        match flight {
            Flight::Read(piece) => self.read_returned(piece, result, out),
            Flight::OperationRead { key, run } => self.operation_read(key, run, result, out),
            Flight::OperationWrite { key, run } => self.operation_write(key, &run, role, &result, out),
            Flight::Prefetch { unit, run } => self.prefetched(unit, run, result, out),
            Flight::Superblock { role } => self.superblock_returned(role, &result, out),
            Flight::Journal { operation } => self.journal_returned(operation, &result, out),
            Flight::Flush { role } => {
                self.flushing -= 1;
                // The writes that it should have covered may be lost.
                if result.status.is_err() {
                    self.member_failed(role, out);
                }
                self.unflushed = self.flushing > 0 || self.broken;
            }
            Flight::Join { port, number } => self.join_returned(port, number, result, out),
            Flight::WindowRead { key, role, rows } => self.window_read(key, role, rows, result, out),
            Flight::WindowWrite { key, rows } => self.window_write(key, role, rows, &result, out),
            Flight::PassFlush => self.pass_flushed(role, &result, out),
        }
    }

    /// Flushes the members, unless that is under way.
    pub fn flush_members(&mut self, out: &mut Outbox) {
        if self.flushing > 0 {
            return;
        }
        for role in 0..self.members.count() {
            if self.recorder.is_in_use(role) {
                self.flushing += 1;
                self.submit(role, Flight::Flush { role }, Io::Flush, out);
            }
        }
    }

    /// Goes on with all that can be done now; runs after every event.
    fn step(&mut self, now: Nanos, out: &mut Outbox) {
        self.deadline = None;
        let foreground = self.clients.foreground();
        for key in std::mem::take(&mut self.held_back) {
            self.go_on(key, out);
        }
        if self.broken {
            self.clear_queue(out);
        }
        self.go_on_writing(out);
        while let Some(unit) = self.next_destage(now) {
            self.start(unit, Goal::Destage, out);
        }
        self.go_on_prefetching(out);
        self.go_on_passing(now, out);
        self.take_spare(out);
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
        self.look_for_rest(now);
        self.record(out);
        self.go_on_joining(out);
        if self.stop == Stop::Recording && !self.is_recording() {
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
        !self.broken && (stops || destages || !rests || self.is_recording() || self.passes_on())
    }

    pub fn check(&self) {
        self.cache.check();
        self.recorder.check();
        assert!(self.destaging.running() as usize <= self.operations.len());
        let stuck = self.clients.wait_for_room() && self.operations.is_empty() && self.flights.is_empty();
        assert!(!stuck, "writes wait for room, and nothing makes any");
        assert!(self.held_back.is_empty() || self.is_recording(), "operations wait for superblocks");
    }
}
