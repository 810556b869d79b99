//! Metrics over HTTP, for a monitoring system: `GET /metrics`, one request a connection, in the driver's loop.
//!
//! The host of the stack gets `{"verb": "metrics"}` and answers with the text.

mod session;

pub use session::{MetricsFactory, MetricsSession, REQUEST_BYTES_MAX};
