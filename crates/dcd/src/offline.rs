//! Parts of a stack as devices that answer at once, for commands that run alone: format, check, dump, rescue.
//!
//! Log and data disk may be slices of one device, so both are opened as parts of one stack with one driver.

use std::cell::RefCell;
use std::rc::Rc;

use dcd_engine::{BlockDevice, Geometry, Io, IoResult, Pump, Stack, Target};

struct Shared {
    stack: Stack,
    pump: Box<dyn Pump>,
}

/// A stack that is active, and whose parts can be read and written.
#[derive(Clone)]
pub struct Offline {
    shared: Rc<RefCell<Shared>>,
}

impl Offline {
    /// Takes over a stack and its driver, and activates it.
    pub fn start(mut stack: Stack, mut pump: Box<dyn Pump>) -> Result<Offline, dcd_engine::ActivateError> {
        stack.activate(&mut *pump)?;
        Ok(Offline { shared: Rc::new(RefCell::new(Shared { stack, pump })) })
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
        let Shared { stack, pump } = &mut *self.shared.borrow_mut();
        stack.run_blocking(&mut **pump, self.target, io)
    }
}
