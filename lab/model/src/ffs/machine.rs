//! Programs in the file system: each carries out the steps of its call, and waits for buffers, requests, locks, time, or the
//! processor.
//!
//! | a process is | until                                                                           |
//! |--------------|---------------------------------------------------------------------------------|
//! | resting      | its program makes a call                                                        |
//! | locked out   | the inodes that the call needs are nobody's: it is planned then                 |
//! | running      | a step has to wait (only within one event)                                      |
//! | waiting      | what it waits for is there: it runs again, the same step or the next            |

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use dcd_engine::{IoError, IoResult, Nanos, Request, RequestId};

use super::buffers::{BufferCache, BufferState, Slot};
use super::config::{FfsConfig, FfsConfigError, QUANTUM};
use super::cpu::Cpu;
use super::disk_io::{Flights, Which};
use super::journal::Journal;
use super::layout::{Frag, Ino};
use super::measure::FfsMeasured;
use super::op::{Done, FsError, Op, ProcessId};
use super::plan::{Planner, Step, Update, WriteMode};
use super::record::{Effect, Recorded};
use super::volume::Volume;

/// An event for the file system; each is consumed once.
#[derive(Debug)]
pub enum FfsEvent {
    /// A program calls; its last call must have returned.
    Call { process: ProcessId, op: Op },
    /// A block request was answered.
    Completed { id: RequestId, result: IoResult },
    /// The deadline has come.
    Wake,
}

/// A call is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    pub process: ProcessId,
    pub op: Op,
    pub result: Result<Done, FsError>,
}

/// Requests and returned calls of the file system.
#[derive(Debug, Default)]
pub struct FfsOutbox {
    pub requests: Vec<Request>,
    pub returns: Vec<Return>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// For a buffer to be idle.
    Buffer(Slot),
    /// For room in the buffer cache.
    Room,
    Cpu,
    Timer,
    /// For everything that is being written.
    Writes,
    /// For the device's own cache.
    Flush(RequestId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProcessState {
    Resting,
    LockedOut,
    Running,
    Waiting,
}

pub(crate) struct Process {
    state: ProcessState,
    /// The call that is under way.
    op: Op,
    called: Nanos,
    pub(crate) steps: Vec<Step>,
    pub(crate) cursor: usize,
    locks: Vec<Ino>,
    result: Result<Done, FsError>,
    /// Processor time of the block requests so far; spent at the end of the call.
    pub(crate) debt: Nanos,
    /// The call had to wait for data from the disk.
    pub(crate) missed: bool,
    /// Time at which the call began to wait, if it waits for what is read.
    reading_since: Option<Nanos>,
}

impl Default for Process {
    fn default() -> Process {
        Process {
            state: ProcessState::Resting,
            op: Op::Sync,
            called: Nanos::ZERO,
            steps: Vec::new(),
            cursor: 0,
            locks: Vec::new(),
            result: Ok(Done::Nothing),
            debt: Nanos::ZERO,
            missed: false,
            reading_since: None,
        }
    }
}

enum Stepped {
    Over,
    /// Over, but the next one has to wait.
    OverAfter(Wait),
    /// To be carried out again after that.
    Again(Wait),
}

/// See the module's documentation.
pub struct Ffs {
    pub(crate) volume: Volume,
    pub(crate) cache: BufferCache,
    pub(crate) flights: Flights,
    pub(crate) journal: Option<Journal>,
    pub(crate) processes: Vec<Process>,
    /// Inodes that belong to a call.
    locked: Vec<Ino>,
    ready: VecDeque<ProcessId>,
    /// Waits and the programs that wait, the longest wait first.
    waiting: Vec<(Wait, ProcessId)>,
    pub(crate) cpu: Cpu,
    timers: BinaryHeap<Reverse<(Nanos, ProcessId)>>,
    pub(crate) update_at: Nanos,
    /// Part of the buffers that the update daemon writes next.
    pub(crate) update_slice: u32,
    pub(crate) now: Nanos,
    pub(crate) measured: FfsMeasured,
    cpu_before: Nanos,
    pub(crate) record: Option<Vec<Recorded>>,
    pub(crate) error: Option<IoError>,
}

impl Ffs {
    /// An empty file system on a device of so many sectors, as it is right after newfs and mount.
    pub fn new(config: FfsConfig, sectors: u64) -> Result<Ffs, FfsConfigError> {
        Ok(Ffs::mounted(Volume::new(config, sectors)?))
    }

    /// Another one with the same files, as it is right after it is mounted.
    ///
    /// # Panics
    /// If programs have run on this one.
    pub fn copy(&self) -> Ffs {
        assert!(self.processes.is_empty(), "what programs have changed may be in memory alone");
        Ffs::mounted(self.volume.clone())
    }

    fn mounted(volume: Volume) -> Ffs {
        let config = volume.config;
        let in_frags = |bytes: u64| bytes / u64::from(config.fragment_bytes());
        Ffs {
            cache: BufferCache::new(
                volume.allocator.layout.frags(),
                in_frags(config.buffer_cache_bytes),
                config.metadata_cache_bytes.map(in_frags),
            ),
            flights: Flights::default(),
            journal: volume.journal.map(|(first, blocks)| Journal::new(first, blocks)),
            processes: Vec::new(),
            locked: Vec::new(),
            ready: VecDeque::new(),
            waiting: Vec::new(),
            cpu: Cpu::new(QUANTUM),
            timers: BinaryHeap::new(),
            update_at: Nanos(config.update_interval.0 / u64::from(config.update_slices)),
            update_slice: 0,
            now: Nanos::ZERO,
            measured: FfsMeasured::default(),
            cpu_before: Nanos::ZERO,
            record: None,
            error: None,
            volume,
        }
    }

    /// Consumes one event at `now`.
    pub fn handle(&mut self, now: Nanos, event: FfsEvent, out: &mut FfsOutbox) {
        self.now = now;
        match event {
            FfsEvent::Call { process, op } => self.call(process, op),
            FfsEvent::Completed { id, result } => self.completed(id, result),
            FfsEvent::Wake => {}
        }
        self.end_what_is_due();
        while let Some(process) = self.ready.pop_front() {
            self.run(process, out);
        }
        self.flights.take_requests(&mut out.requests);
    }

    /// Returns the time of the next [`FfsEvent::Wake`]. The update daemon always has a next time.
    pub fn next_deadline(&self) -> Nanos {
        let timer = self.timers.peek().map_or(Nanos::MAX, |Reverse((at, _))| *at);
        self.update_at.min(timer).min(self.cpu.deadline().unwrap_or(Nanos::MAX))
    }

    /// Makes a call happen in no time and without a trace, to set files up before a run.
    ///
    /// # Panics
    /// While a program is in a call.
    pub fn set_up(&mut self, op: &Op) -> Result<Done, FsError> {
        let resting = |process: &Process| process.state == ProcessState::Resting;
        assert!(self.processes.iter().all(resting), "files are set up before programs run");
        let mut steps = Vec::new();
        let result = Planner::new(&mut self.volume, &mut steps, ProcessId(0)).plan(op);
        for step in steps {
            match step {
                Step::Release { at, frags } => self.volume.allocator.give(at, frags),
                Step::ReleaseInode { ino, is_directory } => {
                    self.volume.allocator.give_inode(ino, is_directory);
                }
                _ => {}
            }
        }
        self.volume.forget();
        result
    }

    /// Returns what was measured since the last reset, up to the last event.
    pub fn measured(&self) -> FfsMeasured {
        let mut measured = self.measured.clone();
        measured.cpu = self.cpu.busy().since(self.cpu_before);
        measured
    }

    pub fn reset_measured(&mut self) {
        self.measured = FfsMeasured::default();
        self.measured.since = self.now;
        self.cpu_before = self.cpu.busy();
    }

    /// The first error of the device. What follows it is not to be trusted.
    pub fn error(&self) -> Option<IoError> {
        self.error
    }

    /// Bytes that can still be written, down to the reserve.
    #[cfg(test)]
    pub fn free_bytes(&self) -> u64 {
        self.volume.allocator.free_frags() * u64::from(self.volume.config.fragment_bytes())
    }

    fn call(&mut self, ProcessId(process): ProcessId, op: Op) {
        let index = process as usize;
        if self.processes.len() <= index {
            self.processes.resize_with(index + 1, Process::default);
        }
        let process = &mut self.processes[index];
        assert!(process.state == ProcessState::Resting, "a program makes one call at a time");
        process.op = op;
        process.called = self.now;
        process.state = ProcessState::LockedOut;
        self.ready.push_back(ProcessId(index as u32));
    }

    fn end_what_is_due(&mut self) {
        while let Some(process) = self.cpu.end(self.now) {
            self.ready.push_back(process);
        }
        while self.timers.peek().is_some_and(|Reverse((at, _))| *at <= self.now) {
            let Reverse((_, process)) = self.timers.pop().expect("peeked");
            self.ready.push_back(process);
        }
        if self.update_at <= self.now {
            self.update();
        }
    }

    /// Lets every process go on that waits for this, the longest waiting first.
    pub(crate) fn wake(&mut self, what: Wait) {
        for (_, id) in self.waiting.extract_if(.., |(wait, _)| *wait == what) {
            let process = &mut self.processes[id.0 as usize];
            process.state = ProcessState::Running;
            let since = process.reading_since.take();
            self.measured.waited_for_reads += since.map_or(Nanos::ZERO, |since| self.now.since(since));
            self.ready.push_back(id);
        }
    }

    /// Plans the call once its inodes are free; false where they are not.
    fn begin(&mut self, index: usize) -> bool {
        let process = &mut self.processes[index];
        if process.state != ProcessState::LockedOut {
            return true;
        }
        self.volume.locks(&process.op, &mut process.locks);
        if process.locks.iter().any(|ino| self.locked.contains(ino)) {
            process.locks.clear();
            return false;
        }
        self.locked.extend(&process.locks);
        process.steps.clear();
        process.cursor = 0;
        process.debt = Nanos::ZERO;
        process.missed = false;
        let caller = ProcessId(index as u32);
        process.result = Planner::new(&mut self.volume, &mut process.steps, caller).plan(&process.op);
        if process.result == Err(FsError::NoSpace) && self.commit_for_space() {
            let process = &mut self.processes[index];
            process.steps.clear();
            process.result = Planner::new(&mut self.volume, &mut process.steps, caller).plan(&process.op);
        }
        let process = &mut self.processes[index];
        process.state = ProcessState::Running;
        true
    }

    fn run(&mut self, id: ProcessId, out: &mut FfsOutbox) {
        let index = id.0 as usize;
        if !self.begin(index) {
            return;
        }
        self.processes[index].state = ProcessState::Running;
        while let Some(step) = self.processes[index].steps.get(self.processes[index].cursor).copied() {
            let wait = match self.carry_out(id, step) {
                Stepped::Over => {
                    self.processes[index].cursor += 1;
                    continue;
                }
                Stepped::OverAfter(wait) => {
                    self.processes[index].cursor += 1;
                    wait
                }
                Stepped::Again(wait) => wait,
            };
            let is_reading = |slot| self.cache.get(slot).state == BufferState::Reading;
            let reads = matches!(wait, Wait::Buffer(slot) if is_reading(slot));
            let process = &mut self.processes[index];
            process.reading_since = reads.then_some(self.now);
            process.state = ProcessState::Waiting;
            // The processor and the clock know who waits for them.
            if !matches!(wait, Wait::Cpu | Wait::Timer) {
                self.waiting.push((wait, id));
            }
            return;
        }
        self.finish(id, out);
    }

    fn finish(&mut self, id: ProcessId, out: &mut FfsOutbox) {
        let process = &mut self.processes[id.0 as usize];
        process.state = ProcessState::Resting;
        process.steps.clear();
        let op = std::mem::replace(&mut process.op, Op::Sync);
        self.measured.add_op(&op, self.now.since(process.called));
        out.returns.push(Return { process: id, op, result: process.result });
        if process.locks.is_empty() {
            return;
        }
        let given_back = std::mem::take(&mut process.locks);
        self.locked.retain(|ino| !given_back.contains(ino));
        self.processes[id.0 as usize].locks = given_back;
        self.processes[id.0 as usize].locks.clear();
        // Who was locked out asks again; the order is that of the calls.
        let mut waiting: Vec<(Nanos, usize)> = Vec::new();
        for (index, process) in self.processes.iter().enumerate() {
            if process.state == ProcessState::LockedOut {
                waiting.push((process.called, index));
            }
        }
        waiting.sort_unstable();
        for (_, index) in waiting {
            let id = ProcessId(index as u32);
            if !self.ready.contains(&id) {
                self.ready.push_back(id);
            }
        }
    }

    fn carry_out(&mut self, id: ProcessId, step: Step) -> Stepped {
        match step {
            Step::Cpu(time) => self.compute(id, time),
            Step::Sleep(time) => {
                self.timers.push(Reverse((self.now + time, id)));
                Stepped::OverAfter(Wait::Timer)
            }
            Step::Read { at, frags, content, owner } => {
                again(self.need(id, at, frags, content, owner).map(|_| ()))
            }
            Step::ReadFile { file, next, last } => self.read_file(id, file, next, last),
            Step::Update(update) => self.change(id, update),
            Step::Grow { at, from, to, content, owner } => {
                again(self.need_with_room(id, (at, from), to - from, content, owner).map(|slot| {
                    self.cache.grow(slot, to);
                    self.set_changed(slot);
                }))
            }
            Step::Move { from, from_frags, to, to_frags, content, owner } => {
                again(self.need_with_room(id, (from, from_frags), to_frags, content, owner).map(|slot| {
                    self.leave_journal(from);
                    self.cache.remove(slot);
                    let slot = self.cache.insert(to, to_frags, BufferState::Idle, content, owner);
                    self.set_changed(slot);
                }))
            }
            Step::Release { at, frags } => self.release(at, frags),
            Step::ReleaseInode { ino, is_directory } => {
                self.volume.allocator.give_inode(ino, is_directory);
                Stepped::Over
            }
            Step::PushCluster { at } => {
                self.push_cluster(at);
                Stepped::Over
            }
            Step::WriteFile { file } => {
                self.write_all(Which::File(file));
                Stepped::Over
            }
            Step::WaitFile { file } => again(self.file_is_quiet(file)),
            Step::WriteAll => {
                self.write_everything();
                Stepped::Over
            }
            Step::WaitAll if self.flights.writes() > 0 => Stepped::Again(Wait::Writes),
            // What was changed while others were written.
            Step::WaitAll if self.cache.dirty() > 0 => {
                self.write_everything();
                Stepped::Again(Wait::Writes)
            }
            Step::WaitAll => Stepped::Over,
            Step::FlushDevice => Stepped::OverAfter(Wait::Flush(self.flush_device())),
            Step::Forget => {
                self.cache.clear();
                self.volume.forget();
                Stepped::Over
            }
        }
    }

    fn compute(&mut self, id: ProcessId, time: Nanos) -> Stepped {
        let time = time + std::mem::take(&mut self.processes[id.0 as usize].debt);
        if time == Nanos::ZERO {
            return Stepped::Over;
        }
        self.cpu.want(self.now, id, time);
        Stepped::OverAfter(Wait::Cpu)
    }

    fn read_file(&mut self, id: ProcessId, file: Ino, mut next: u32, last: u32) -> Stepped {
        while next <= last {
            if let Err(wait) = self.read_block(id, file, next, last) {
                let process = &mut self.processes[id.0 as usize];
                process.steps[process.cursor] = Step::ReadFile { file, next, last };
                process.missed = true;
                return Stepped::Again(wait);
            }
            next += 1;
        }
        self.measured.data.count(!self.processes[id.0 as usize].missed);
        Stepped::Over
    }

    fn change(&mut self, id: ProcessId, update: Update) -> Stepped {
        let Update { at, frags, content, owner, fills, mode, effect } = update;
        let slot = match self.cache.find(at) {
            None if fills => match self.make_room(frags, content) {
                Ok(()) => self.cache.insert(at, frags, BufferState::Idle, content, owner),
                Err(wait) => return Stepped::Again(wait),
            },
            _ => match self.need(id, at, frags, content, owner) {
                Ok(slot) => slot,
                Err(wait) => return Stepped::Again(wait),
            },
        };
        assert!(self.cache.get(slot).frags == frags, "a buffer has the length of its block");
        if let Some(record) = &mut self.record
            && effect != Effect::None
        {
            record.push(Recorded::Changed { at, effect });
        }
        self.set_changed(slot);
        let waits = match mode {
            WriteMode::Delayed => false,
            WriteMode::Sync => true,
            WriteMode::Ordered => self.volume.config.synchronous_metadata,
        };
        if !waits {
            return Stepped::Over;
        }
        if self.journal.is_some() {
            self.commit();
            return Stepped::OverAfter(Wait::Writes);
        }
        self.write_sync(id, slot);
        Stepped::OverAfter(Wait::Buffer(slot))
    }

    fn release(&mut self, at: Frag, frags: u32) -> Stepped {
        let mut next = 0;
        while next < frags {
            let Some(slot) = self.cache.find(at.plus(next)) else {
                next += 1;
                continue;
            };
            if self.cache.get(slot).state != BufferState::Idle {
                return Stepped::Again(Wait::Buffer(slot));
            }
            self.leave_journal(at.plus(next));
            next += self.cache.get(slot).frags;
            self.cache.remove(slot);
        }
        self.give_back(at, frags);
        Stepped::Over
    }

    fn write_everything(&mut self) {
        if self.journal.is_some() {
            self.commit();
        }
        self.write_all(Which::All);
    }

    fn file_is_quiet(&self, file: Ino) -> Result<(), Wait> {
        let inode = self.volume.inodes.get(file);
        let busy = inode.blocks.iter().chain(&inode.indirects).filter(|at| !at.is_none()).find_map(|at| {
            let slot = self.cache.find(*at)?;
            (self.cache.get(slot).state == BufferState::Writing).then_some(slot)
        });
        busy.map_or(Ok(()), |slot| Err(Wait::Buffer(slot)))
    }
}

fn again(result: Result<(), Wait>) -> Stepped {
    result.map_or_else(Stepped::Again, |()| Stepped::Over)
}
