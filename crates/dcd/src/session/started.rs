//! Parts of a stack over real devices, as synchronous devices, and the records of the caches that run below them.

use std::cell::RefCell;
use std::rc::Rc;

use dcd_engine::{
    BlockDevice, Control, Geometry, Io, IoResult, LayerIndex, Nanos, Pump, Report, Stack, StartError, Target,
    Unfinished,
};
use dcd_stack::LayerStatus;

use crate::failure::Failure;
use crate::session::devices::FilePump;
use crate::session::running::{Note, RunningCaches};

struct StartedStack {
    stack: Stack,
    pump: NotedPump,
    /// Arrays of the stack that were started for writing, bottom first.
    arrays: Vec<LayerIndex>,
}

/// Driver that keeps the records of the caches.
struct NotedPump {
    files: FilePump,
    caches: RunningCaches,
    /// Result of the drain or the stop of a layer.
    ended: Option<Result<(), Unfinished>>,
}

impl Pump for NotedPump {
    fn now(&self) -> Nanos {
        self.files.now()
    }

    fn pump(&mut self, stack: &mut Stack) {
        self.files.pump(stack);
        for (layer, report) in self.files.take_reports() {
            match report {
                Report::LogFailed => {}
                Report::Stopped | Report::Drained => {
                    self.ended = Some(Ok(()));
                    continue;
                }
                Report::Failed(why) => {
                    self.ended = Some(Err(why));
                    continue;
                }
                Report::WritesThrough | Report::Array(_) | Report::Disk(_) | Report::Notice => continue,
            }
            match self.caches.log_failed(self.files.now(), stack, layer) {
                Ok(told) => eprintln!("dcd: {told}"),
                Err(error) => {
                    // Nothing may be acknowledged any more, but a caller waits for an answer.
                    eprintln!("dcd: the log device failed, and that cannot be recorded: {error}");
                    std::process::exit(1);
                }
            }
        }
    }
}

impl StartedStack {
    /// Has a layer drain or stop, and waits for its answer. An array that was not stopped has to assume a crash at its next start.
    fn control(&mut self, layer: LayerIndex, control: Control) -> Result<(), Unfinished> {
        let StartedStack { stack, pump, .. } = self;
        pump.ended = None;
        stack.control(pump.now(), layer, control);
        loop {
            if let Some(ended) = pump.ended.take() {
                return ended;
            }
            pump.pump(stack);
        }
    }
}

impl Drop for StartedStack {
    fn drop(&mut self) {
        // The status of a layer that has panicked cannot be trusted.
        if std::thread::panicking() {
            return;
        }
        while let Some(array) = self.arrays.pop() {
            if let Err(why) = self.control(array, Control::Stop) {
                eprintln!("dcd: an array did not stop cleanly, and its next start recovers from that: {why}");
            }
        }
        if let Err(error) = self.pump.caches.note_end(self.pump.now(), &self.stack) {
            eprintln!("dcd: {error}");
        }
    }
}

/// A stack that is active, and whose parts can be read and written.
pub struct Started {
    shared: Rc<RefCell<StartedStack>>,
}

impl Started {
    /// Takes over a stack, its driver and the caches in it, and activates it. `arrays`, bottom first, are stopped at the end. The devices of a
    /// stack that does not start are closed.
    pub fn start(
        stack: Stack,
        files: FilePump,
        mut caches: RunningCaches,
        arrays: Vec<LayerIndex>,
    ) -> Result<Result<Started, StartError>, Failure> {
        caches.note_start()?;
        let pump = NotedPump { files, caches, ended: None };
        let mut shared = StartedStack { stack, pump, arrays: Vec::new() };
        let StartedStack { stack, pump, .. } = &mut shared;
        if let Err(error) = stack.activate(pump) {
            return Ok(Err(error));
        }
        pump.caches.note_started(pump.files.now(), stack)?;
        shared.arrays = arrays;
        Ok(Ok(Started { shared: Rc::new(RefCell::new(shared)) }))
    }

    pub fn status(&self, layer: LayerIndex) -> LayerStatus {
        let StartedStack { stack, pump, .. } = &*self.shared.borrow();
        LayerStatus::of(stack, layer, pump.now())
    }

    /// Has a log cache write back what it can.
    pub fn drain(&self, cache: LayerIndex) -> Result<(), Unfinished> {
        self.shared.borrow_mut().control(cache, Control::Drain)
    }

    /// Stops a log cache, and notes that in the records of its disks.
    pub fn stop(&self, cache: LayerIndex) -> Result<(), Failure> {
        let shared = &mut *self.shared.borrow_mut();
        shared.control(cache, Control::Stop).map_err(|why| Failure::Failed(why.to_string()))?;
        let StartedStack { stack, pump, .. } = shared;
        let name = stack.layer_name(cache);
        if let Some(status) = LayerStatus::of(stack, cache, pump.now()).into_log_cache() {
            pump.caches.note(name, &Note::Stopped(status))?;
        }
        // There is nothing more to note.
        pump.caches.forget(name);
        Ok(())
    }

    pub fn geometry(&self, target: Target) -> Geometry {
        self.shared.borrow().stack.geometry(target)
    }

    pub fn part(&self, target: Target) -> StartedPart {
        StartedPart { shared: Rc::clone(&self.shared), target }
    }
}

/// A part of a [`Started`] stack.
pub struct StartedPart {
    shared: Rc<RefCell<StartedStack>>,
    target: Target,
}

impl BlockDevice for StartedPart {
    fn geometry(&self) -> Geometry {
        self.shared.borrow().stack.geometry(self.target)
    }

    fn run(&mut self, io: Io) -> IoResult {
        let StartedStack { stack, pump, .. } = &mut *self.shared.borrow_mut();
        stack.run_blocking(pump, self.target, io)
    }

    fn now(&self) -> Option<Nanos> {
        Some(self.shared.borrow().pump.now())
    }
}
