//! Parts of a stack over real devices as devices that answer at once, and the records of the caches that run below them.

use std::cell::RefCell;
use std::rc::Rc;

use dcd_engine::{BlockDevice, Geometry, Io, IoResult, Pump, Stack, Target};

use crate::failure::Failure;
use crate::real::FilePump;
use crate::running::RunningCaches;

struct Shared {
    stack: Stack,
    pump: FilePump,
    caches: RunningCaches,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // What a layer that has panicked says of itself is not believed.
        if std::thread::panicking() {
            return;
        }
        if let Err(error) = self.caches.note_end(self.pump.now(), &self.stack) {
            eprintln!("dcd: {error}");
        }
    }
}

/// A stack that is active, and whose parts can be read and written.
pub struct Offline {
    shared: Rc<RefCell<Shared>>,
}

impl Offline {
    /// Takes over a stack, its driver and the caches in it, and activates it.
    pub fn start(stack: Stack, pump: FilePump, mut caches: RunningCaches) -> Result<Offline, Failure> {
        caches.note_start()?;
        let mut shared = Shared { stack, pump, caches };
        let Shared { stack, pump, caches } = &mut shared;
        stack.activate(pump).map_err(|e| Failure::Failed(e.to_string()))?;
        caches.note_started(pump.now(), stack)?;
        Ok(Offline { shared: Rc::new(RefCell::new(shared)) })
    }

    pub fn part(&self, target: Target) -> PartDevice {
        PartDevice { shared: Rc::clone(&self.shared), target }
    }
}

/// One part of an [`Offline`] stack.
pub struct PartDevice {
    shared: Rc<RefCell<Shared>>,
    target: Target,
}

impl BlockDevice for PartDevice {
    fn geometry(&self) -> Geometry {
        self.shared.borrow().stack.geometry(self.target)
    }

    fn run(&mut self, io: Io) -> IoResult {
        let Shared { stack, pump, .. } = &mut *self.shared.borrow_mut();
        stack.run_blocking(pump, self.target, io)
    }
}
