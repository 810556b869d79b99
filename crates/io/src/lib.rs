//! The real driver: one thread, one io_uring, real devices, sockets and timers.
//!
//! Everything that reaches the operating system is here, and so is all unsafe code of the project: devices
//! ([`Device`], [`FileDevice`]), the ring, and the loop that carries a stack's outputs out.

mod device;
mod session;

pub use device::{Device, DeviceError, DeviceSpec, Direct, FileDevice, FileSpec, MemoryDevice};
pub use session::{Actions, ControlCall, Piece, Session, SessionFactory, Source};
