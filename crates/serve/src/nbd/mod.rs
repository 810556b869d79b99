//! NBD: the network block device protocol, served by one sans-IO session a connection.
//!
//! The driver moves the bytes. A session takes received bytes, and returns bytes and requests. So it can be tested byte by
//! byte, and a malicious client affects only its own session.
//!
//! Supported: fixed newstyle with NO_ZEROES; EXPORT_NAME, GO, INFO (size, name, description, block sizes), LIST, ABORT;
//! simple and structured replies, extended headers; READ with DF, WRITE, FLUSH, FUA, TRIM, CACHE, WRITE_ZEROES with
//! NO_HOLE and FAST_ZERO, BLOCK_STATUS of the context `base:allocation`, DISC; any number of connections to one export;
//! TLS. Refused in a way that keeps the stream in step: BLOCK_STATUS with a payload, other contexts.
//!
//! [`kernel`] passes a connection to the kernel, which makes a device from it.

mod budget;
mod exports;
mod flight;
#[cfg(test)]
mod handshake_tests;
pub mod kernel;
mod negotiation;
mod replies;
mod session;
mod tls;
mod transmission;

pub use budget::{Budget, CONNECTION_BYTES_MAX, OWN_BYTES, POOL_BYTES};
pub use dcd_nbd::protocol;
pub use exports::{Export, NbdExports, PAYLOAD_BYTES_MAX};
pub use replies::{ReplyForm, STATUS_RUNS_MAX};
pub use session::{FLIGHT_REQUESTS_MAX, NbdFactory, NbdSession, OPTION_BYTES_MAX, OPTIONS_MAX};
