//! The state of a write cache.

use serde::{Deserialize, Serialize};

use super::Metrics;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCacheState {
    #[default]
    Clean,
    Dirty,
}

impl WriteCacheState {
    pub const fn word(self) -> &'static str {
        match self {
            WriteCacheState::Clean => "clean",
            WriteCacheState::Dirty => "dirty",
        }
    }
}

/// The state of a write cache. The marks are shares of the RAM for writes, 0 to 1.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WriteCacheStatus {
    pub state: WriteCacheState,
    pub non_volatile: bool,
    pub write_bytes: u64,
    pub write_bytes_used: u64,
    pub dirty_bytes: u64,
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
