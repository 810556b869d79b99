//! The control socket of a running server: one JSON object a line, in both directions.
//!
//! ```text
//! client: {"id": 1, "verb": "flush", "args": {}}
//! server: {"id": 1, "progress": {"dirty_bytes": 4096}}       any number of times
//! server: {"id": 1, "result": {"dirty_bytes": 0}}            or {"id": 1, "error": "what and what to do"}
//! ```
//!
//! `id` is the client's, any JSON value, and comes back as it is; `args` may be left out. Calls of one connection may be
//! answered in any order. The host of the stack gets `{"verb": .., "args": ..}`, and fails a call by answering with
//! [`error`]. A host stops a call whose client has gone.

mod client;
mod session;

pub use client::{ClientError, ControlClient};
pub use session::{CALLS_MAX, ControlFactory, ControlSession, LINE_BYTES_MAX};

/// The answer by which a host fails a call: what went wrong, and what to do.
pub fn error(text: impl Into<String>) -> serde_json::Value {
    serde_json::json!({ "error": text.into() })
}
