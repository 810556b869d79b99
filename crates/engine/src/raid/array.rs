//! The array: what all parts share, and what it does next.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use serde::Serialize;

use crate::destage::what::{self, Part, WhatPolicy};
use crate::destage::when::{self, Choice};
use crate::layer::{Control, ErrorKind, Event, Geometry, Io, IoError, IoResult, OpId, Outbox, Port, Report};
use crate::raid::away::TRACTS_MAX;
use crate::raid::bitmap::Regions;
use crate::raid::cache::StripeCache;
use crate::raid::config::{Canary, RaidConfig};
use crate::raid::identify::Found;
use crate::raid::join::Joining;
use crate::raid::journal::Journal;
use crate::raid::layout::Layout;
use crate::raid::lost;
use crate::raid::members::Spare;
use crate::raid::pass::Passes;
use crate::raid::plan::Run;
use crate::raid::prefetch::Prefetch;
use crate::raid::record::Recorder;
use crate::raid::request::{Pending, Waiter, WaitingFor};
use crate::raid::right::RightRows;
use crate::raid::stripe::{Goal, Operation};
use crate::raid::unit::Piece;
use crate::slab::Slab;
use crate::{LINE_SECTORS, Nanos};

/// One command below.
pub(super) enum Flight {
    /// A read of a client that missed.
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
    /// A copy of the superblock of the device on this port, which is to be a spare, or comes back.
    Join {
        port: Port,
        copy: usize,
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
    /// What a pass has written.
    PassFlush,
}

/// What has been counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    pub read_hits: u64,
    pub read_misses: u64,
    /// Writes that had to wait for room.
    pub stalls: u64,
    pub destages: u64,
    /// Commands to members for parity and destages, and their blocks.
    pub destage_reads: u64,
    pub destage_read_blocks: u64,
    /// Of these reads, those before their destage.
    pub prefetches: u64,
    pub destage_writes: u64,
    pub destage_written_blocks: u64,
    /// Operations that read, or computed, what a member could not give.
    pub fetches: u64,
    pub resynced_units: u64,
    /// Bad sectors' blocks that were computed and written again.
    pub sectors_repaired: u64,
    /// Times that more of a row was missing than the parity makes up for.
    pub lost_rows: u64,
    pub member_failures: u64,
    /// Members that were away, and were given what they had missed.
    pub members_returned: u64,
    pub superblocks: u64,
    pub journal_records: u64,
}

/// What an array begins with.
pub(super) struct Start {
    pub config: RaidConfig,
    pub layout: Layout,
    pub regions: Regions,
    pub geometry: Geometry,
    pub recorder: Recorder,
    pub journal: Option<Journal>,
    pub found: Found,
}

/// See the module's documentation.
pub(super) struct Array {
    pub config: RaidConfig,
    pub layout: Layout,
    pub regions: Regions,
    /// What the marks of members that are away stand for.
    pub tracts: Regions,
    pub geometry: Geometry,
    /// Where the member of each role is; none where it is missing.
    pub ports: Vec<Option<Port>>,
    /// For each role that a spare has taken, the place of that among the spares.
    pub holders: Vec<Option<usize>>,
    pub spares: Vec<Spare>,
    /// Spares that cannot be used, and why.
    pub unusable: Vec<(Port, String)>,
    pub joining: Vec<Joining>,
    /// For each place among the spares, the device that it has been given, used or not; none where that was taken away.
    pub spare_places: Vec<Option<Port>>,
    /// Lost blocks that nobody has written since.
    pub lost: BTreeSet<lost::Place>,
    /// Other blocks that could neither be read nor computed when they were last wanted; at most [`lost::UNREADABLE_MAX`].
    pub unreadable: BTreeSet<lost::Place>,
    /// The administrator is to be told that something has happened.
    pub notice: bool,
    pub recorder: Recorder,
    pub journal: Option<Journal>,
    /// It had a journal when it started.
    pub journal_failed: bool,
    pub cache: StripeCache,
    pub requests: Slab<Pending>,
    pub operations: Slab<Operation>,
    pub flights: Slab<(usize, Flight)>,
    /// Pieces of writes that wait for room, in their order.
    pub stalled: VecDeque<Piece>,
    /// Flushes and durable writes that wait until something is home.
    pub waiters: Vec<Waiter>,
    /// Operations that wait for the superblocks.
    pub held_back: Vec<u64>,
    /// More members have failed than the parity makes up for, or the journal has: no more writes are taken.
    pub broken: bool,
    pub passes: Passes,
    pub prefetch: Prefetch,
    /// Reads of clients at members.
    pub clients_reading: u32,
    pub right_rows: RightRows,
    /// A server that was killed may have left writes in the members' caches; all others are durable when they return.
    pub unflushed: bool,
    flushing: u32,
    pub foreground: u64,
    pub last_activity: Nanos,
    /// Destages under way, and how many blocks were dirty when they began.
    pub destages: u32,
    pub destaged_blocks: usize,
    /// Where a sweep goes on.
    pub hand: u64,
    /// Destaging has begun at the high mark and not reached the low one.
    triggered: bool,
    pub stopped: bool,
    stopping: bool,
    closing: bool,
    pub deadline: Option<Nanos>,
    pub statistics: Statistics,
    /// Reads that failed, by role.
    pub read_errors: Vec<u64>,
}

impl Array {
    pub fn new(start: Start) -> Array {
        let Start { config, layout, regions, geometry, mut recorder, journal, found } = start;
        recorder.forgets_missed = config.canary == Some(Canary::ForgetMissed);
        let passes = match recorder.failed() {
            0 if !geometry.read_only => {
                Passes::resync(recorder.in_doubt().iter().map(|region| regions.units(region)))
            }
            _ => Passes::default(),
        };
        Array {
            cache: StripeCache::new(layout, config.memory, config.cache_bytes),
            journal_failed: config.journal && journal.is_none(),
            spare_places: found.places,
            config,
            layout,
            regions,
            tracts: regions.at_most(TRACTS_MAX),
            geometry,
            read_errors: vec![0; found.ports.len()],
            ports: found.ports,
            holders: found.holders,
            spares: if geometry.read_only { Vec::new() } else { found.spares },
            unusable: found.unusable,
            joining: Vec::new(),
            lost: recorder.lost().keys().filter_map(|lost| lost::place(&layout, lost)).collect(),
            unreadable: BTreeSet::new(),
            notice: false,
            recorder,
            journal,
            requests: Slab::default(),
            operations: Slab::default(),
            flights: Slab::default(),
            stalled: VecDeque::new(),
            waiters: Vec::new(),
            held_back: Vec::new(),
            broken: false,
            passes,
            prefetch: Prefetch::default(),
            clients_reading: 0,
            right_rows: RightRows::new(regions, layout.rows),
            unflushed: true,
            flushing: 0,
            foreground: 0,
            last_activity: Nanos::ZERO,
            destages: 0,
            destaged_blocks: 0,
            hand: 0,
            triggered: false,
            stopped: false,
            stopping: false,
            closing: false,
            // What has to be done without being asked begins at once.
            deadline: Some(Nanos::ZERO),
            statistics: Statistics::default(),
        }
    }

    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) if self.stopped => {
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
            Control::Drain if !self.stopped => {
                self.wait_until_home(WaitingFor::Report(Report::Drained), None)
            }
            Control::DrainCancel => self.cancel_drains(),
            Control::Stop if !self.stopped => (self.stopped, self.stopping) = (true, true),
            Control::ResetStatistics => {
                self.statistics = Statistics::default();
                self.read_errors.fill(0);
            }
            Control::Drain | Control::Stop | Control::LogFailureRecorded | Control::Array(_) => {}
        }
    }

    /// Sends a command to the member of a role.
    pub fn submit(&mut self, role: usize, flight: Flight, io: Io, out: &mut Outbox) {
        let port = self.ports[role].expect("a missing member gets no commands");
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
            self.read_errors[role] += 1;
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
                // What it should have covered may be gone.
                if result.status.is_err() {
                    self.member_failed(role, out);
                }
                self.unflushed = self.flushing > 0 || self.broken;
            }
            Flight::Join { port, copy } => self.join_returned(port, copy, result, out),
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
        for role in 0..self.ports.len() {
            if self.is_in_use(role) {
                self.flushing += 1;
                self.submit(role, Flight::Flush { role }, Io::Flush, out);
            }
        }
    }

    /// Goes on with all that can be done now; runs after every event.
    fn step(&mut self, now: Nanos, out: &mut Outbox) {
        self.deadline = None;
        for key in std::mem::take(&mut self.held_back) {
            self.go_on(key, out);
        }
        if self.broken {
            self.give_up_journal(out);
        }
        self.go_on_writing(out);
        while let Some(unit) = self.next_destage(now) {
            self.start(unit, Goal::Destage, out);
        }
        self.go_on_prefetching(out);
        self.go_on_passing(now, out);
        self.take_spare(out);
        self.finish_waiters(out);
        let resting =
            self.operations.is_empty() && self.passes.windows.is_empty() && self.prefetch.in_flight == 0;
        if self.stopping && self.requests.is_empty() && resting && self.has_noted_pass(now, out) {
            self.stopping = false;
            self.wait_until_home(WaitingFor::Report(Report::Stopped), None);
            return self.step(now, out);
        }
        self.look_for_rest(now);
        self.record(out);
        self.go_on_joining(out);
        if self.closing && !self.is_recording() {
            self.closing = false;
            out.report(Report::Stopped);
        }
    }

    /// Everything is home: the superblocks say so, and then it is over.
    pub fn close(&mut self, out: &mut Outbox) {
        self.closing = true;
        self.rest(out);
    }

    /// Whether a dirty unit may be destaged now; readers that are in the way keep others out from now on.
    pub fn can_destage(&mut self, unit: u64) -> bool {
        let unit = self.cache.unit(unit);
        if !unit.may_leave() {
            return false;
        }
        unit.wanted = unit.readers > 0;
        !unit.wanted
    }

    /// Disks that know of more commands find shorter ways. Only where these keep no other client waiting, and take little RAM.
    fn may_go_deeper(&self) -> bool {
        let whole = self.config.destage_depth as usize * self.layout.rows * self.layout.shape.data;
        self.destages < self.config.flush_depth
            && self.destaged_blocks < whole / 4
            && self.clients_wait_for_home_alone()
    }

    /// Asks for an alarm at a time, unless there is an earlier one.
    pub fn wake_at(&mut self, time: Nanos) {
        self.deadline = Some(self.deadline.map_or(time, |earlier| earlier.min(time)));
    }

    /// The unit that goes home next, if one is to go now.
    fn next_destage(&mut self, now: Nanos) -> Option<u64> {
        let dirty = self.cache.dirty().len().saturating_sub(self.destages as usize);
        let utilisation = self.cache.utilisation();
        let (high_mark, low_mark) =
            (f64::from(self.config.high_mark) / 100.0, f64::from(self.config.low_mark) / 100.0);
        self.triggered = utilisation >= high_mark || (self.triggered && utilisation > low_mark);
        let room = self.destages < self.config.destage_depth;
        if dirty == 0 || self.broken || !(room || self.may_go_deeper()) {
            return None;
        }
        if let Some(unit) = self.wanted_by_waiters() {
            return Some(unit);
        }
        if !room {
            return None;
        }
        if !self.stalled.is_empty() && self.destages == 0 {
            return self.choose();
        }
        let view = when::View {
            now,
            utilisation,
            foreground: self.foreground,
            last_activity: self.last_activity,
            running: self.triggered,
            in_flight: self.destages,
            depth: self.config.destage_depth,
            high_mark,
            low_mark,
            idle_empty: self.config.idle_empty,
            idle_full: self.config.idle_full,
        };
        match when::policy(self.config.when).choose(&view) {
            Choice::Run => self.choose(),
            Choice::At(time) => {
                self.wake_at(time);
                None
            }
            Choice::Wait => None,
        }
    }

    /// The dirty unit that the policy wants home first.
    fn choose(&mut self) -> Option<u64> {
        if self.config.what == WhatPolicy::LeastRecentlyWritten {
            let order: Vec<u64> = self.cache.by_written().take(self.operations.len() + 1).collect();
            return order.into_iter().find(|&unit| self.can_destage(unit));
        }
        if matches!(self.config.what, WhatPolicy::CScan | WhatPolicy::Wow | WhatPolicy::Stow) {
            return self.sweep(self.config.what != WhatPolicy::CScan);
        }
        let units: Vec<u64> = self.cache.dirty().iter().copied().collect();
        let units: Vec<u64> = units.into_iter().filter(|&unit| self.can_destage(unit)).collect();
        let count = self.layout.units();
        let part = |&number: &u64| {
            let unit = self.cache.get(number).expect("it is dirty");
            Part {
                number: unit.since(),
                dirty_sectors: unit.dirty_blocks() as u64 * LINE_SECTORS,
                written: unit.written(),
                ahead: (number + count - self.hand % count) % count,
                distance: 0,
                referenced: unit.referenced,
            }
        };
        let parts = units.iter().map(|number| (*number, part(number)));
        let chosen = what::choose(self.config.what, parts, |number| number.abs_diff(self.hand))?;
        for unit in chosen.passed {
            self.cache.pass_over(unit);
        }
        Some(chosen.best)
    }

    /// The next dirty unit in the direction of rising addresses, and round again. With a second chance, one that was written
    /// again is passed over once.
    fn sweep(&mut self, chances: bool) -> Option<u64> {
        let mut passed = None;
        let mut ranges = vec![0..self.hand, self.hand..u64::MAX];
        while let Some(range) = ranges.pop() {
            let Some(&unit) = self.cache.dirty().range(range.clone()).next() else { continue };
            ranges.push(unit + 1..range.end);
            if !self.can_destage(unit) {
                continue;
            }
            if !chances || !self.cache.unit(unit).referenced {
                return Some(unit);
            }
            self.cache.pass_over(unit);
            passed = passed.or(Some(unit));
        }
        passed
    }

    pub fn check(&self) {
        self.cache.check();
        assert!(self.destages as usize <= self.operations.len());
        let stuck = !self.stalled.is_empty() && self.operations.is_empty() && self.flights.is_empty();
        assert!(!stuck, "writes wait for room, and nothing makes any");
        assert!(self.held_back.is_empty() || self.is_recording(), "operations wait for superblocks");
    }
}
