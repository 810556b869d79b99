//! The host: programs, their file system, and the stack below it, in one virtual time.

use std::collections::BTreeSet;

use dcd_engine::{Control, Nanos, Pump, Stack};
use dcd_model::ffs::{Done, Ffs, FfsEvent, FfsOutbox, FsError, Op, ProcessId};

use crate::workloads::RunError;
use crate::workloads::measured::{LoadPhase, Measured, Requests};
use dcd_crash::{DriverProgress, SimDevice, VirtualDriver};

/// A program: gets what its last call gave, and makes the next one, until it ends. Its first "last call" gave nothing.
pub trait Program {
    fn next(&mut self, last: Done) -> Option<Op>;

    /// A call failed. A program that can live with that says what it gave instead.
    fn failed(&mut self, _error: FsError) -> Option<Done> {
        None
    }
}

/// Calls one after the other, whatever they give.
struct Script<I>(I);

impl<I: Iterator<Item = Op>> Program for Script<I> {
    fn next(&mut self, _last: Done) -> Option<Op> {
        self.0.next()
    }
}

/// See the module's documentation.
pub struct Host<'a, D> {
    pub stack: &'a mut Stack,
    pub driver: &'a mut VirtualDriver<D>,
    pub ffs: Ffs,
    armed: BTreeSet<Nanos>,
    outbox: FfsOutbox,
    phases: Vec<LoadPhase>,
}

impl<'a, D: SimDevice> Host<'a, D> {
    /// With a file system of the size of the stack.
    pub fn new(stack: &'a mut Stack, driver: &'a mut VirtualDriver<D>, ffs: Ffs) -> Host<'a, D> {
        let (armed, outbox) = (BTreeSet::new(), FfsOutbox::default());
        Host { stack, driver, ffs, armed, outbox, phases: Vec::new() }
    }

    /// Runs programs together until all have ended, and measures that as a phase.
    pub fn phase(&mut self, name: &'static str, programs: &mut [&mut dyn Program]) -> Result<(), RunError> {
        reset_layers(self.stack, self.driver);
        // The clock of the file system moves only with its events.
        self.event(FfsEvent::Wake);
        self.ffs.reset_measured();
        let begin = self.driver.now();
        self.run(programs)?;
        let files = self.ffs.measured();
        let layers = statuses(self.stack, self.driver);
        let elapsed = self.driver.now().since(begin);
        let requests = Requests::of(&files);
        self.phases.push(LoadPhase { name, elapsed, requests, files: Some(files), layers });
        Ok(())
    }

    /// Calls outside of any phase, one after the other.
    pub fn script(&mut self, ops: Vec<Op>) -> Result<(), RunError> {
        self.run(&mut [&mut Script(ops.into_iter())])
    }

    pub fn set_up(&mut self, op: Op) -> Result<Done, RunError> {
        set_up(&mut self.ffs, op)
    }

    pub fn set_up_file(&mut self, path: &str, bytes: u64) -> Result<(), RunError> {
        set_up_file(&mut self.ffs, path, bytes)
    }

    /// Takes what was measured so far; the next phase is the first again.
    pub fn take_measured(&mut self) -> Measured {
        Measured::of(std::mem::take(&mut self.phases), self.driver)
    }

    fn run(&mut self, programs: &mut [&mut dyn Program]) -> Result<(), RunError> {
        let mut left = 0;
        for index in 0..programs.len() {
            left += usize::from(self.go_on(programs, index, Done::Nothing));
        }
        while left > 0 {
            // Returns may have come with the calls themselves.
            while let Some(ended) = self.outbox.returns.pop() {
                let index = ended.process.0 as usize;
                let done = match ended.result {
                    Ok(done) => done,
                    Err(error) => {
                        let instead = programs[index].failed(error);
                        instead.ok_or_else(|| RunError::Call { call: format!("{:?}", ended.op), error })?
                    }
                };
                left -= usize::from(!self.go_on(programs, index, done));
            }
            if left > 0 {
                self.step()?;
            }
        }
        Ok(())
    }

    /// Lets a program make its next call; false where it has ended.
    fn go_on(&mut self, programs: &mut [&mut dyn Program], index: usize, last: Done) -> bool {
        let Some(op) = programs[index].next(last) else { return false };
        self.event(FfsEvent::Call { process: ProcessId(index as u32), op });
        true
    }

    fn step(&mut self) -> Result<(), RunError> {
        self.arm();
        let progress = self.driver.step(self.stack);
        assert!(progress != DriverProgress::Idle, "programs wait, and nothing is left that could wake them");
        if let DriverProgress::Alarm(at) = progress {
            self.armed.remove(&Nanos(at));
            self.event(FfsEvent::Wake);
        }
        while let Some((id, result)) = self.driver.take_reply() {
            self.event(FfsEvent::Completed { id, result });
        }
        while self.driver.take_report().is_some() {}
        self.ffs.error().map_or(Ok(()), |error| Err(RunError::Device(error)))
    }

    /// Sets an alarm for the file system's deadline; its name is its time.
    fn arm(&mut self) {
        let deadline = self.ffs.next_deadline();
        if self.armed.insert(deadline) {
            self.driver.set_alarm(deadline, deadline.0);
        }
    }

    fn event(&mut self, event: FfsEvent) {
        self.ffs.handle(self.driver.now(), event, &mut self.outbox);
        for request in self.outbox.requests.drain(..) {
            self.driver.request(self.stack, request.id, request.io);
        }
    }
}

/// Files that are there before the run, made in no time.
pub fn set_up(ffs: &mut Ffs, op: Op) -> Result<Done, RunError> {
    ffs.set_up(&op).map_err(|error| RunError::Call { call: format!("{op:?}"), error })
}

pub fn set_up_file(ffs: &mut Ffs, path: &str, bytes: u64) -> Result<(), RunError> {
    if let Done::Opened(file) = set_up(ffs, Op::Create { path: path.to_owned() })? {
        set_up(ffs, Op::Append { file, bytes })?;
        set_up(ffs, Op::Close { file })?;
    }
    Ok(())
}

/// Lets every layer count anew.
pub(super) fn reset_layers<D: SimDevice>(stack: &mut Stack, driver: &mut VirtualDriver<D>) {
    let layers: Vec<_> = stack.layers().map(|(index, _)| index).collect();
    for layer in layers {
        driver.control(stack, layer, Control::ResetStatistics);
    }
}

/// The status of every layer, the lowest first.
pub(super) fn statuses<D: SimDevice>(
    stack: &Stack,
    driver: &VirtualDriver<D>,
) -> Vec<(String, serde_json::Value)> {
    let now = driver.now();
    let status = |(index, name): (_, &str)| (name.to_owned(), stack.layer(index).status(now).to_json());
    stack.layers().map(status).collect()
}
