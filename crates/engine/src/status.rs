//! The state of layers, for people and monitors. JSON is made of it in one place, [`LayerStatus::to_json`]; programs that get it from a
//! server read it back into the same types. Bytes, seconds and percentages have their unit in the name.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Extent;
use crate::layer::IoError;
use crate::layers::fault::FaultStatus;
use crate::layers::read_ahead::ReadAheadStatus;
use crate::layers::trace::TraceStatus;
use crate::log_cache::{Contiguity, Promise, Statistics};
use crate::mirror::MirrorStatus;
use crate::raid::ArrayStatus;

/// The state of one layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum LayerStatus {
    LogCache(Box<LogCacheStatus>),
    Raid(Box<ArrayStatus>),
    Mirror(Box<MirrorStatus>),
    /// Status of a write cache in RAM, a layer that the engine does not know.
    WriteCache(Box<WriteCacheStatus>),
    ReadAhead(ReadAheadStatus),
    Fault(FaultStatus),
    Trace(Box<TraceStatus>),
    Meter(Box<MeterStatus>),
    /// Status of a layer that the engine does not know: an object.
    Other(Value),
    /// The layer has nothing to report, or has not started.
    None,
}

impl LayerStatus {
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("a status is plain data")
    }

    /// True when the layer has nothing to report, or has not started.
    pub const fn is_none(&self) -> bool {
        matches!(self, LayerStatus::None)
    }

    /// Bytes that the layer has and the disks below lack, where the layer knows the number.
    pub fn dirty_bytes(&self) -> Option<u64> {
        match self {
            LayerStatus::LogCache(cache) => Some(cache.dirty_bytes),
            LayerStatus::Raid(array) => Some(array.dirty_bytes),
            LayerStatus::WriteCache(cache) => Some(cache.dirty_bytes),
            _ => None,
        }
    }

    pub fn log_cache(&self) -> Option<&LogCacheStatus> {
        match self {
            LayerStatus::LogCache(cache) => Some(cache),
            _ => None,
        }
    }

    pub fn mirror(&self) -> Option<&MirrorStatus> {
        match self {
            LayerStatus::Mirror(mirror) => Some(mirror),
            _ => None,
        }
    }

    pub fn array(&self) -> Option<&ArrayStatus> {
        match self {
            LayerStatus::Raid(array) => Some(array),
            _ => None,
        }
    }
}

/// State of operation of a log cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogCacheState {
    /// The data disk has everything that the log has.
    #[default]
    Clean,
    Dirty,
    Stopping,
    /// The log device has failed: everything goes to the data disk.
    LogFailed,
}

impl LogCacheState {
    pub const fn word(self) -> &'static str {
        match self {
            LogCacheState::Clean => "clean",
            LogCacheState::Dirty => "dirty",
            LogCacheState::Stopping => "stopping",
            LogCacheState::LogFailed => "log-failed",
        }
    }
}

/// State of head tracking: records go where the head of the log's disk will be, so that a flush need not wait for a revolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogHead {
    /// The log does not spin.
    #[default]
    NotRotational,
    /// The host was too busy to tell, or an older program has formatted the log.
    NotMeasured,
    /// Format has seen no head: durable writes take as long wherever they go.
    NotShown,
    Followed,
    /// Records would take as long at the next sector.
    DoesNotPay,
}

/// The state of a log cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LogCacheStatus {
    pub state: LogCacheState,
    pub promise: Promise,
    /// Size of the log's segments.
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// The share of segments that are in use, 0 to 1.
    pub utilisation: f64,
    /// Everything that the data disk lacks: data, discards and zeroes.
    pub dirty_bytes: u64,
    /// Data alone. The data disk has to write this, and discards and zeroes are usually much faster.
    #[serde(default)]
    pub dirty_data_bytes: u64,
    #[serde(default)]
    pub dirty_discard_bytes: u64,
    #[serde(default)]
    pub dirty_zeroes_bytes: u64,
    /// Zeroes and discards that the data disk lacks.
    pub dirty_ranges: usize,
    pub cached_bytes: u64,
    /// Blocks of 4 KiB that cannot be read from the log any more.
    pub lost_blocks: usize,
    pub destaging: bool,
    /// The last attempt to destage failed.
    pub destage_failing: bool,
    pub draining: bool,
    /// The first few losses that the start was told to accept.
    pub accepted_damage: Vec<String>,
    /// Error of the last flush of the data disk, if it failed; none once all that it should have covered is durable.
    pub flush_error: Option<IoError>,
    /// The first few ranges that may be lost by a failed flush, and the bytes of all such ranges.
    pub flush_at_risk: Vec<Extent>,
    pub flush_at_risk_bytes: u64,
    pub destage_nanos_per_sector: u64,
    pub epoch: u64,
    pub next_seq: u64,
    pub durable_seq: u64,
    pub table_bytes: usize,
    pub ring_bytes: usize,
    /// Memory for blocks that were read once, where reads are cached.
    pub ghosts_bytes: usize,
    pub buffers_bytes: u64,
    pub log_head: LogHead,
    /// The stride benchmark's result is stored in the log.
    pub calibrated: bool,
    /// Rules for filling gaps.
    pub fills: Option<Contiguity>,
    pub statistics: Statistics,
}

/// Tells whether a write cache holds what the disks below lack.
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

/// The state of a write cache in RAM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WriteCacheStatus {
    pub state: WriteCacheState,
    pub dirty_bytes: u64,
    /// The cache answers a flush from its RAM.
    pub non_volatile: bool,
    /// Fields that only the crate of the write cache knows.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}

/// Requests that have passed a meter, as the layers above saw them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MeterStatus {
    pub in_flight: usize,
    /// The span that `recent` is about: about the last minute, less after the start.
    pub recent_seconds: f64,
    pub read: ResponseTimes,
    pub write: ResponseTimes,
    pub flush: ResponseTimes,
    /// Discards and zeroes.
    pub other: ResponseTimes,
}

/// Requests of one kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ResponseTimes {
    pub count: u64,
    pub bytes: u64,
    pub errors: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
    /// The upper end of each bucket in milliseconds, and how many fell into it.
    pub buckets: Vec<(f64, u64)>,
    pub recent: RecentTimes,
}

/// Requests of one kind that were answered in the last [`MeterStatus::recent_seconds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RecentTimes {
    pub count: u64,
    pub bytes: u64,
    pub p50_ms: f64,
    pub p99_ms: f64,
}
