//! Parts of a stack as synchronous devices, for work that runs alone, as formatting a log.
//!
//! Log and data disk may be slices of one device, so both are opened as parts of one stack with one driver.

use std::cell::RefCell;
use std::rc::Rc;

use dcd_engine::{BlockDevice, Geometry, Io, IoResult, Nanos, Pump, Stack, StartError, Target};

struct SharedStack<P> {
    stack: Stack,
    pump: P,
}

/// A stack that is active, and whose parts can be read and written.
pub struct Offline<P> {
    shared: Rc<RefCell<SharedStack<P>>>,
}

impl<P: Pump> Offline<P> {
    /// Takes over a stack and its driver, and activates it.
    pub fn start(mut stack: Stack, mut pump: P) -> Result<Offline<P>, StartError> {
        stack.activate(&mut pump)?;
        Ok(Offline { shared: Rc::new(RefCell::new(SharedStack { stack, pump })) })
    }

    pub fn part(&self, target: Target) -> OfflinePart<P> {
        OfflinePart { shared: Rc::clone(&self.shared), target }
    }

    /// Gives the driver back.
    ///
    /// # Panics
    /// While parts of the stack are held.
    pub fn into_pump(self) -> P {
        let shared = Rc::into_inner(self.shared).expect("no part of the stack is held");
        shared.into_inner().pump
    }
}

/// A part of an [`Offline`] stack.
pub struct OfflinePart<P> {
    shared: Rc<RefCell<SharedStack<P>>>,
    target: Target,
}

impl<P: Pump> BlockDevice for OfflinePart<P> {
    fn geometry(&self) -> Geometry {
        self.shared.borrow().stack.geometry(self.target)
    }

    fn run(&mut self, io: Io) -> IoResult {
        let SharedStack { stack, pump } = &mut *self.shared.borrow_mut();
        stack.run_blocking(pump, self.target, io)
    }

    fn now(&self) -> Option<Nanos> {
        Some(self.shared.borrow().pump.now())
    }
}
