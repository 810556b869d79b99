//! The state of layers, as a server tells it in JSON and programs read it back into the same types. Bytes, seconds and percentages have
//! their unit in the name.

use std::any::Any;

use dcd_engine::layers::fault::FaultStatus;
use dcd_engine::layers::read_ahead::ReadAheadStatus;
use dcd_engine::layers::trace::TraceStatus;
use dcd_engine::mirror::MirrorStatus;
use dcd_engine::raid::ArrayStatus;
use dcd_engine::{LayerIndex, LogCacheStatus, Nanos, Stack};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::meter::MeterStatus;

/// The state of one layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
pub enum LayerStatus {
    LogCache(Box<LogCacheStatus>),
    Raid(Box<ArrayStatus>),
    Mirror(Box<MirrorStatus>),
    /// Status of a write cache in RAM, a layer that the engine does not know.
    WriteCache(Box<WriteCacheStatus>),
    ReadAhead(Box<ReadAheadStatus>),
    Fault(Box<FaultStatus>),
    Trace(Box<TraceStatus>),
    Meter(Box<MeterStatus>),
    /// Status of a layer that the engine does not know: an object.
    Other(Box<Value>),
    /// The layer has nothing to report, or has not started.
    None,
}

impl LayerStatus {
    pub fn of(stack: &Stack, layer: LayerIndex, now: Nanos) -> LayerStatus {
        let status: Box<dyn Any> = stack.layer(layer).status(now);
        let known = status.downcast().map(LayerStatus::LogCache);
        let known = known.or_else(|other| other.downcast().map(LayerStatus::Raid));
        let known = known.or_else(|other| other.downcast().map(LayerStatus::Mirror));
        let known = known.or_else(|other| other.downcast().map(LayerStatus::WriteCache));
        let known = known.or_else(|other| other.downcast().map(LayerStatus::ReadAhead));
        let known = known.or_else(|other| other.downcast().map(LayerStatus::Fault));
        let known = known.or_else(|other| other.downcast().map(LayerStatus::Trace));
        let known = known.or_else(|other| other.downcast().map(LayerStatus::Meter));
        let known = known.or_else(|other| other.downcast().map(LayerStatus::Other));
        known.unwrap_or(LayerStatus::None)
    }

    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("a status is plain data")
    }

    /// Dirty bytes, if the layer knows their number.
    pub fn dirty_bytes(&self) -> Option<u64> {
        match self {
            LayerStatus::LogCache(cache) => Some(cache.dirty_bytes),
            LayerStatus::Raid(array) => Some(array.dirty_bytes),
            LayerStatus::WriteCache(cache) => Some(cache.dirty_bytes),
            _ => None,
        }
    }

    /// Dirty bytes without discards and zeroes, which most disks carry out much faster than they write.
    pub fn dirty_data_bytes(&self) -> Option<u64> {
        self.log_cache().map(|cache| cache.dirty_data_bytes).or(self.dirty_bytes())
    }

    pub fn log_cache(&self) -> Option<&LogCacheStatus> {
        match self {
            LayerStatus::LogCache(cache) => Some(cache),
            _ => None,
        }
    }

    pub fn into_log_cache(self) -> Option<Box<LogCacheStatus>> {
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

/// Tells whether a write cache holds dirty data.
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
    /// Further fields, which only the write cache's crate knows.
    #[serde(flatten)]
    pub more: Map<String, Value>,
}
