//! The driver: one thread that carries out a stack's commands, and passes events to it.
//!
//! A turn takes all completions, hands them to the stack, carries out all that follows (replies are gathered into one
//! message a client), and then makes one system call, which submits everything and waits for the next event. Operations
//! that are done at once (files in memory) are fed back within the turn, for a bounded time, so that a layer that is
//! busy for long cannot keep clients waiting.
//!
//! ```text
//! sockets, commands, bells ─▶ FrontEnd ─┬─▶ Stack (layers) ─▶ Output ─┬─▶ io_uring ─▶ files, block devices
//! signals ─▶ Host ──────────────────────┘        ▲   completions      ├─▶ memory (at once)
//!                                                │                    └─▶ replies, reports
//!                                                └─ wake (deadlines)
//! ```

mod alarms;
mod disks;
mod front_ends;
mod host;
mod maps;
mod network;
mod outgoing;
mod peers;
mod stop;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcd_engine::{Extent, IoResult, Nanos, Output, Pump, Request, Stack, Tag};
use io_uring::{opcode, types};
use slab::Slab;

pub use disks::UnansweredOps;
pub use host::{CallId, ClientId, Context, Host, OpenId, Refused};
pub use peers::{Peer, UnknownPeer, process_name, process_of};
pub use stop::StopOutcome;

use crate::backup_marks::BackupMarks;
use crate::device::Device;
use crate::ring::{Completion, IoRing, RingPurpose, Token};
use crate::signals::Signals;
use crate::workers::Finished;
use crate::{Actions, protect};
use alarms::Alarms;
use disks::DeviceOp;
use front_ends::{CommandInKernel, ServedFrontEnd};
use host::Calls;
use maps::Maps;
use network::{Connection, Listener, Orphan};
use stop::Stopping;

/// Maximum time that a turn spends on synchronous operations before it looks at the ring again.
const TURN_MAX: Nanos = Nanos::from_micros(200);
/// Requests that go to the stack together. Their answers are sent before the next ones are looked at, so that clients work
/// on them meanwhile, and each message still carries several.
const BATCH_MAX: usize = 8;
/// Maximum time that the end of a driver waits for operations in the kernel.
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// Why a driver cannot start or go on.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    #[error("io_uring cannot be used: {error}. {way}", error = .0, way = way_to_io_uring(.0))]
    Setup(io::Error),
    #[error("no eventfd can be made: {0}")]
    Bell(io::Error),
    #[error("io_uring failed while running: {0}")]
    Ring(io::Error),
}

/// Describes the likely cause if io_uring cannot be set up, and what to do.
pub fn way_to_io_uring(error: &io::Error) -> String {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    way_with(error.raw_os_error(), disabled.trim())
}

fn way_with(error: Option<i32>, disabled: &str) -> String {
    let kernel = "Linux 5.14 or later is needed";
    let profile = "a seccomp profile forbids it, as the usual ones of containers do: run the container with a profile that allows \
                   io_uring_setup, io_uring_enter and io_uring_register (--security-opt seccomp=FILE)";
    match (error, disabled) {
        (Some(libc::EPERM), "1" | "2") => {
            format!("kernel.io_uring_disabled is {disabled}: sysctl kernel.io_uring_disabled=0 allows it")
        }
        (Some(libc::EPERM), _) => format!("Most likely {profile}"),
        // The file came with Linux 6.6.
        (Some(libc::ENOSYS), "") => format!("This kernel has none ({kernel}), or {profile}"),
        (Some(libc::ENOSYS), _) => format!("This kernel has it, so {profile}"),
        _ => kernel.to_owned(),
    }
}

/// Counters since the driver started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests of clients.
    pub requests: u64,
    /// Operations on devices.
    pub device_operations: u64,
    /// System calls of the ring.
    pub enters: u64,
    /// System calls that sent replies.
    pub sends: u64,
    /// Refused clients: all places were taken, no descriptor was left, or a slow handshake lost its place to another client.
    pub connections_refused: u64,
    /// The most bytes that clients have sent in one turn.
    pub turn_bytes_max: u64,
}

/// Recipient of the answer to a request.
enum AnswerTo {
    Session {
        connection: usize,
        client: ClientId,
        token: u64,
    },
    FrontEnd {
        index: usize,
        token: u64,
    },
    /// The flush before the layers stop.
    LastFlush,
}

/// Source of a request that is not answered.
struct RequestOrigin {
    to: AnswerTo,
    /// The disk and the sectors that the request changes.
    changes: Option<(usize, Extent)>,
}

/// See the module's documentation. It stays on the thread that made it.
pub struct Driver {
    ring: IoRing,
    started: Instant,
    /// The instant of the current turn.
    now: Nanos,
    devices: Vec<Device>,
    ops: Slab<DeviceOp>,
    /// Completed operations that the stack has not been told of.
    finished: VecDeque<(Tag, IoResult)>,
    finished_by_workers: Arc<Finished>,
    /// Number of devices that are being closed.
    closing: usize,
    /// Number of opens that were asked for so far.
    opens: u64,
    completions: VecDeque<Completion>,
    outputs: Vec<Output>,
    /// Outputs of the stack that came while a caller pumped it; the run handles them.
    held: VecDeque<Output>,
    origins: Slab<RequestOrigin>,
    /// Requests that have arrived and were not yet passed to the stack.
    arrived: VecDeque<Request>,
    marks: BackupMarks,
    /// Refused requests, by their place in `origins`.
    refused: VecDeque<(usize, IoResult)>,
    listeners: Slab<Listener>,
    /// Threads that remove the files of closed listeners.
    unlinks: Vec<std::thread::JoinHandle<()>>,
    connections: Slab<Connection>,
    orphans: BTreeMap<ClientId, Orphan>,
    /// Connections whose sessions wait for memory.
    crowded: Vec<(usize, ClientId)>,
    /// Time when a crowded connection last went on, or when the first of them began to wait.
    crowded_since: Nanos,
    listed: Vec<usize>,
    clients: u64,
    /// The lowest descriptor that clients must not use.
    descriptors_max: std::os::fd::RawFd,
    /// Bytes that clients have sent in this turn.
    turn_bytes: usize,
    sweep_at: Option<Nanos>,
    alarms: Alarms,
    calls: Calls,
    maps: Maps,
    front_ends: Vec<ServedFrontEnd>,
    /// Disks with a front-end that has ended, or that could not end.
    ended_of: Vec<(usize, Result<(), String>)>,
    /// The commands that the kernel has.
    given: Slab<CommandInKernel>,
    signals: Option<Arc<Signals>>,
    stopping: Option<Stopping>,
    ended: bool,
    statistics: Statistics,
    spare_actions: Vec<Actions>,
    spare_bufs: Vec<dcd_engine::Buf>,
    /// The ring belongs to the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl Driver {
    /// Starts the clock and makes the ring, on the thread that will run it.
    pub fn new() -> Result<Driver, DriverError> {
        let ring = IoRing::new().map_err(DriverError::Setup)?;
        // Timers of modelled disks want to be exact. Where it fails they are late by some microseconds.
        let _ = protect::exact_timers();
        let finished_by_workers = Arc::new(Finished::new().map_err(DriverError::Bell)?);
        let mut driver = Driver {
            ring,
            started: Instant::now(),
            now: Nanos::ZERO,
            devices: Vec::new(),
            ops: Slab::default(),
            finished: VecDeque::new(),
            finished_by_workers,
            closing: 0,
            opens: 0,
            completions: VecDeque::new(),
            outputs: Vec::new(),
            held: VecDeque::new(),
            origins: Slab::default(),
            arrived: VecDeque::new(),
            marks: BackupMarks::default(),
            refused: VecDeque::new(),
            listeners: Slab::default(),
            unlinks: Vec::new(),
            connections: Slab::default(),
            orphans: BTreeMap::new(),
            crowded: Vec::new(),
            crowded_since: Nanos::ZERO,
            listed: Vec::new(),
            clients: 0,
            descriptors_max: network::descriptors_max(),
            turn_bytes: 0,
            sweep_at: None,
            alarms: Alarms::default(),
            calls: Calls::default(),
            maps: Maps::default(),
            front_ends: Vec::new(),
            ended_of: Vec::new(),
            given: Slab::default(),
            signals: None,
            stopping: None,
            ended: false,
            statistics: Statistics::default(),
            spare_actions: Vec::new(),
            spare_bufs: Vec::new(),
            _thread: PhantomData,
        };
        driver.watch_workers();
        Ok(driver)
    }

    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// Signals go to the host from now on, or to another caller that takes them meanwhile.
    pub fn take_signals(&mut self, signals: Signals) -> Arc<Signals> {
        let signals = Arc::new(signals);
        self.signals = Some(Arc::clone(&signals));
        self.watch_signals();
        signals
    }

    /// Notes in these marks from now on what clients change.
    pub fn keep_marks(&mut self, marks: BackupMarks) {
        self.marks = marks;
    }

    pub fn statistics(&self) -> Statistics {
        Statistics { enters: self.ring.enters, ..self.statistics }
    }

    /// Runs until the host stops or ends it.
    pub fn run(&mut self, stack: &mut Stack, host: &mut dyn Host) -> Result<StopOutcome, DriverError> {
        loop {
            self.turn(stack, host);
            if self.ended {
                self.ended = false;
                return Ok(StopOutcome { abandoned: true, ..self.take_outcome() });
            }
            if self.advance_stop(stack, host) {
                return Ok(self.take_outcome());
            }
            if self.arrived.is_empty() {
                self.serve_listed(stack, host);
                while self.serve_crowded(stack, host) {
                    self.serve_listed(stack, host);
                }
            } else {
                self.send_listed(stack, host);
            }
            self.wait(stack, host)?;
        }
    }

    fn turn(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        self.now = self.elapsed();
        self.turn_bytes = 0;
        self.ring.take(&mut self.completions);
        while let Some(completion) = self.completions.pop_front() {
            self.completed(stack, host, completion);
        }
        wake_due(stack, self.now);
        if host.next_deadline().is_some_and(|deadline| deadline <= self.now) {
            host.wake(&mut Context { driver: self, stack });
        }
        self.tell_ended(stack, host);
        self.sweep(stack, host);
        self.step_map(stack, host);
        self.settle(stack, host);
    }

    fn completed(&mut self, stack: &mut Stack, host: &mut dyn Host, completion: Completion) {
        let Completion { token: Token { kind, index }, result, more } = completion;
        match kind {
            RingPurpose::Device => self.device_completed(index, result),
            RingPurpose::Accept => self.accepted(stack, host, index, result),
            RingPurpose::Receive => self.received(stack, host, index, result),
            RingPurpose::Send => self.sent(stack, host, index, result),
            RingPurpose::Bell => {
                self.with_front_end(index, |front_end, actions| front_end.rang(actions));
                if !more {
                    self.watch(index);
                }
            }
            RingPurpose::Workers => {
                let queue = self.collect_from_workers(more);
                for (index, ended) in queue.tasks {
                    self.task_ended(index, ended);
                    self.tell_news(stack, host);
                }
                for (index, runs) in queue.mapped {
                    self.mapped(stack, host, index, &runs);
                }
                for (number, device) in queue.opened {
                    host.opened(OpenId(number), device, &mut Context { driver: self, stack });
                }
                if queue.wakes_host {
                    host.wake(&mut Context { driver: self, stack });
                }
            }
            RingPurpose::Signal => {
                while let Some(signal) = self.signals.as_ref().and_then(|signals| signals.take()) {
                    host.signal(signal, &mut Context { driver: self, stack });
                }
                self.watch_signals();
            }
            RingPurpose::Command => {
                self.command_completed(index, result);
                if result < 0 {
                    self.tell_news(stack, host);
                }
            }
            RingPurpose::Alarm => self.alarms.rang(index),
            RingPurpose::Cancel => {}
        }
    }

    /// Carries out all commands of the stack, until none is left or the turn has lasted long enough.
    fn settle(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        let until = self.now + TURN_MAX;
        loop {
            while let Some((tag, result)) = self.finished.pop_front() {
                stack.complete(self.now, tag, result);
            }
            for _ in 0..BATCH_MAX.min(self.arrived.len()) {
                let request = self.arrived.pop_front().expect("counted");
                stack.request(self.now, request);
            }
            let mut outputs = std::mem::take(&mut self.outputs);
            stack.take_outputs(&mut outputs);
            let mut idle = outputs.is_empty();
            while let Some(output) = self.held.pop_front() {
                idle = false;
                self.output(stack, host, output);
            }
            for output in outputs.drain(..) {
                self.output(stack, host, output);
            }
            self.outputs = outputs;
            idle &= !self.answer_refused(stack, host);
            if idle && !self.has_work(stack) {
                return;
            }
            if !self.arrived.is_empty() {
                self.send_listed(stack, host);
            }
            self.now = self.elapsed();
            wake_due(stack, self.now);
            if self.now >= until {
                return;
            }
        }
    }

    /// True if a turn has left work to do before it waits.
    fn has_work(&self, stack: &Stack) -> bool {
        let done = self.finished.is_empty() && self.held.is_empty() && !stack.has_outputs();
        let waits = !self.arrived.is_empty() || !self.refused.is_empty() || !self.calls.answers.is_empty();
        !done || waits || self.maps.are_due() || !self.ended_of.is_empty()
    }

    fn output(&mut self, stack: &mut Stack, host: &mut dyn Host, output: Output) {
        match output {
            Output::Device { device, tag, io } => self.start(device, tag, io),
            Output::Reply { id, result } => self.deliver(stack, host, id.0 as usize, result),
            Output::Report { layer, report } => {
                self.heard(stack, layer, &report);
                host.report(layer, &report, &mut Context { driver: self, stack });
            }
        }
    }

    /// Answers refused requests and control calls; false where there were none.
    fn answer_refused(&mut self, stack: &mut Stack, host: &mut dyn Host) -> bool {
        let any = !self.refused.is_empty() || !self.calls.answers.is_empty();
        for _ in 0..self.refused.len() {
            let (id, result) = self.refused.pop_front().expect("counted");
            self.deliver(stack, host, id, result);
        }
        for _ in 0..self.calls.answers.len() {
            let answer = self.calls.answers.pop_front().expect("counted");
            if !self.is_client(answer.connection, answer.client) {
                continue;
            }
            if answer.done {
                self.answered(answer.connection);
            }
            self.with_session(stack, host, answer.connection, |session, actions| {
                session.call_reply(answer.token, answer.body, answer.done, actions);
            });
        }
        any
    }

    /// Submits everything and waits for the next event.
    fn wait(&mut self, stack: &Stack, host: &dyn Host) -> Result<(), DriverError> {
        let deadlines = [stack.next_deadline(), host.next_deadline(), self.sweep_at, self.stop_deadline()];
        let next = deadlines.into_iter().flatten().min();
        let now = self.elapsed();
        let timeout = match next {
            _ if self.has_work(stack) => Some(Duration::ZERO),
            Some(at) if at <= now => Some(Duration::ZERO),
            Some(at) if !self.alarms.ensure(&mut self.ring, now, at) => {
                Some(Duration::from_nanos(at.since(now).0))
            }
            _ => None,
        };
        self.ring.enter(1, timeout).map_err(DriverError::Ring)
    }

    fn elapsed(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    fn end_now(&mut self) {
        self.ended = true;
    }

    fn watch_signals(&mut self) {
        if let Some(signals) = &self.signals {
            let entry = opcode::PollAdd::new(types::Fd(signals.fd()), libc::POLLIN as u32).build();
            // SAFETY: the entry names no memory.
            unsafe { self.ring.push(entry, Token::new(RingPurpose::Signal, 0)) };
        }
    }
}

impl Pump for Driver {
    fn now(&self) -> Nanos {
        self.elapsed()
    }

    /// # Panics
    /// If the ring fails: there is no way to report it.
    fn pump(&mut self, stack: &mut Stack) {
        self.now = self.elapsed();
        wake_due(stack, self.now);
        let mut outputs = std::mem::take(&mut self.outputs);
        stack.take_outputs(&mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Device { device, tag, io } => self.start(device, tag, io),
                other => self.held.push_back(other),
            }
        }
        self.outputs = outputs;
        if self.finished.is_empty() {
            let timeout = stack.next_deadline().map(|at| Duration::from_nanos(at.since(self.elapsed()).0));
            self.ring.enter(1, timeout).expect("the ring works");
            self.ring.take(&mut self.completions);
            // Completions for clients go back into the queue until the driver runs normally.
            for _ in 0..self.completions.len() {
                let completion = self.completions.pop_front().expect("counted");
                match completion.token.kind {
                    RingPurpose::Device => self.device_completed(completion.token.index, completion.result),
                    RingPurpose::Workers => {
                        let queue = self.collect_from_workers(completion.more);
                        assert!(
                            queue.opened.is_empty() && queue.tasks.is_empty() && queue.mapped.is_empty(),
                            "only hosts and clients ask for these, and none is there yet"
                        );
                    }
                    _ => self.completions.push_back(completion),
                }
            }
        }
        self.now = self.elapsed();
        while let Some((tag, result)) = self.finished.pop_front() {
            stack.complete(self.now, tag, result);
        }
    }
}

/// Wakes the layers whose deadlines have come.
fn wake_due(stack: &mut Stack, now: Nanos) {
    if stack.next_deadline().is_some_and(|deadline| deadline <= now) {
        stack.wake(now);
    }
}

/// Copies the keys, for loops that change the slab.
fn keys<T>(slab: &Slab<T>) -> Vec<usize> {
    slab.iter().map(|(index, _)| index).collect()
}

impl Drop for Driver {
    /// Waits for kernel operations that use this driver's memory. The memory of those that do not end in time is leaked.
    fn drop(&mut self) {
        for (index, _) in &self.listeners {
            self.ring.cancel(Token::new(RingPurpose::Accept, index));
        }
        for (index, _) in &self.connections {
            self.ring.cancel(Token::new(RingPurpose::Receive, index));
            self.ring.cancel(Token::new(RingPurpose::Send, index));
        }
        for index in 0..self.front_ends.len() {
            self.ring.cancel(Token::new(RingPurpose::Bell, index));
        }
        self.ring.cancel(Token::new(RingPurpose::Workers, 0));
        self.alarms.cancel(&mut self.ring);
        if self.signals.is_some() {
            self.ring.cancel(Token::new(RingPurpose::Signal, 0));
        }
        let until = Instant::now() + DROP_PATIENCE;
        // Commands of a device that stays end when the ring does.
        let commands = self.given.len();
        while self.ring.in_flight() > commands && Instant::now() < until {
            if self.ring.enter(1, Some(Duration::from_millis(100))).is_err() {
                break;
            }
            self.completions.clear();
            self.ring.take(&mut self.completions);
        }
        std::mem::forget(std::mem::take(&mut self.given));
        while self.unlinks.iter().any(|thread| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        if self.ring.in_flight() > commands {
            std::mem::forget(std::mem::take(&mut self.ops));
            std::mem::forget(std::mem::take(&mut self.connections));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::way_with;

    #[test]
    fn the_likely_cause_is_named_where_io_uring_is_forbidden() {
        let names = |error, disabled, cause: &str| {
            let way = way_with(Some(error), disabled);
            assert!(way.contains(cause), "{way}");
            way.contains("seccomp")
        };
        assert!(!names(libc::EPERM, "2", "sysctl kernel.io_uring_disabled=0"));
        assert!(names(libc::EPERM, "0", "--security-opt"));
        assert!(names(libc::EPERM, "", "--security-opt"));
        assert!(names(libc::ENOSYS, "0", "This kernel has it"));
        assert!(names(libc::ENOSYS, "", "Linux 5.14"));
        assert!(!names(libc::EINVAL, "0", "Linux 5.14"));
    }
}
