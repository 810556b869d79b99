//! The real driver: one thread, one io_uring, real devices, sockets and timers.

mod session;

pub use session::{Actions, ControlCall, Piece, Session, SessionFactory, Source};
