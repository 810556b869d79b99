//! The settings of a write cache. The names are those of Biswas, Ramakrishnan and Towsley 1993, sections 2 and 4.

use dcd_engine::Nanos;
use dcd_engine::destage::how::HowPolicy;
use dcd_engine::destage::what::WhatPolicy;
use dcd_engine::destage::when::WhenPolicy;
use serde::{Deserialize, Serialize};

/// The effect of a write on the read cache (section 2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnWrite {
    /// The block is taken out of the read cache.
    #[default]
    WritePurge,
    /// The read cache's copy is updated, if there is one.
    WriteUpdate,
    /// The block is put into the read cache.
    WriteAllocate,
}

/// The dirty blocks that are written together with a read miss (section 2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Piggyback {
    #[default]
    None,
    /// Those that pass the head before the read begins: they cost the read nothing.
    Free,
    /// All of the region that the arm visits.
    Full,
}

/// The blocks that are purged together: those that one visit of the arm can reach (section 2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RegionUnit {
    /// Embedded servo: changing the head costs time.
    #[default]
    Track,
    /// Dedicated servo: all heads are on their tracks at once.
    Cylinder,
}

/// Everything that can be set on a write cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct WriteCacheConfig {
    /// The RAM keeps its content without power, so that a write is safe in it. Without this a flush destages.
    pub non_volatile: bool,
    /// The unit of the cache, 512 or 4096: also the smallest write that it takes.
    pub block_bytes: u32,
    /// Bytes of the write cache, or of the one cache if `single`; 0: writes go through.
    pub write_bytes: u64,
    /// Bytes of the read cache.
    pub read_bytes: u64,
    /// A single cache for reads and writes (section 4.9).
    pub single: bool,
    /// Each disk has its own equal part of both caches, where there are several disks (section 4.7).
    pub partitioned: bool,
    pub on_write: OnWrite,
    pub when: WhenPolicy,
    pub what: WhatPolicy,
    pub how: HowPolicy,
    /// WC-HILIM: percent of the cache that is dirty from which it is purged.
    pub high_mark: u8,
    /// WC-LOLIM: percent at which purging ends.
    pub low_mark: u8,
    /// The dynamic thresholds of section 4.9: after so many requests the marks are set anew from the share of writes;
    /// 0: they are fixed.
    pub dynamic_interval: u64,
    pub piggyback: Piggyback,
    /// Operations at the disk at a time: 1 for a controller that serves in turn.
    pub depth: u32,
    /// For the idle policy: see the log cache.
    pub idle_empty: Nanos,
    pub idle_full: Nanos,
}

impl Default for WriteCacheConfig {
    fn default() -> Self {
        WriteCacheConfig::DEFAULT
    }
}

impl WriteCacheConfig {
    pub const DEFAULT: WriteCacheConfig = WriteCacheConfig {
        non_volatile: false,
        block_bytes: 512,
        write_bytes: 1 << 20,
        read_bytes: 2 << 20,
        single: false,
        partitioned: false,
        on_write: OnWrite::WritePurge,
        when: WhenPolicy::TwoThresholds,
        what: WhatPolicy::MostDirty,
        how: HowPolicy::Sorted,
        high_mark: 95,
        low_mark: 40,
        dynamic_interval: 0,
        piggyback: Piggyback::None,
        depth: 1,
        idle_empty: Nanos::from_secs(1),
        idle_full: Nanos::from_millis(1),
    };
}

/// The low mark as a part of the high one, where marks are dynamic (section 4.9).
pub const DYNAMIC_LOW: f64 = 0.4;
