//! Status of a write cache besides its state.

use serde::Serialize;

use super::Metrics;

/// The part of a status that only a write cache has. The marks are shares of the RAM for writes, 0 to 1.
#[derive(Clone, Debug, Serialize)]
pub struct Details {
    pub write_bytes: u64,
    pub write_bytes_used: u64,
    pub read_bytes_used: u64,
    pub high_mark: f64,
    pub low_mark: f64,
    pub writes_with_caching_percent: f64,
    pub reads_with_caching_percent: f64,
    pub io_stall_percent: f64,
    pub piggyback_success_percent: f64,
    pub counts: Metrics,
    pub counts_per_disk: Vec<Metrics>,
}
