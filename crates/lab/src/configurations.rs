//! The caches that the experiments set beside the plain disk: the paper's prototype, and ours.

use dcd_engine::Nanos;
use dcd_engine::log_cache::{HowPolicy, LogCacheConfig, Promise, WhatPolicy, WhenPolicy};

use crate::rig::CacheSetup;

/// Section 4.1: the first 64 MB of the disk.
pub(crate) const LOG_BYTES: u64 = 64 << 20;
/// Section 3.1.
const SEGMENT_BYTES: u32 = 128 << 10;
/// Section 4.1: a RAM buffer of 256 KB, in segment buffers.
const PAPER_BUFFERS: usize = 2;

/// The prototype as the paper describes it: immediate report, last-write-first, blocks destaged as they come and one at a
/// time, a segment read for it at a time, no knowledge of the spindle, and one lock on everything (sections 3.4, 3.5.1,
/// 3.5.3, 3.6, 4.2.2). Its slots of 1 KB are the sectors of our log, as all requests are multiples of 1 KB.
pub(crate) fn paper() -> CacheSetup {
    CacheSetup {
        config: LogCacheConfig {
            promise: Promise::Ordered,
            // Section 3.6: "several hundreds of milliseconds at most".
            delay_max: Nanos::from_millis(500),
            segment_buffers: PAPER_BUFFERS,
            bypass_bytes: 64 << 10,
            when: WhenPolicy::Idle,
            what: WhatPolicy::LastWriteFirst,
            how: HowPolicy::AsItComes,
            // The paper knows only idle and full.
            high_mark: 100,
            low_mark: 99,
            idle_empty: Nanos::from_secs(1),
            idle_full: Nanos::from_millis(1),
            destage_memory: SEGMENT_BYTES as usize,
            destage_depth: 1,
            ..LogCacheConfig::default()
        },
        log_bytes: LOG_BYTES,
        segment_bytes: SEGMENT_BYTES,
        own_disk: false,
        lock: true,
        spindle: false,
    }
}

/// Ours, with the same log: the defaults of the log cache with the promise of a block device.
pub(crate) fn ours(promise: Promise) -> CacheSetup {
    CacheSetup {
        config: LogCacheConfig { promise, ..LogCacheConfig::default() },
        log_bytes: LOG_BYTES,
        segment_bytes: 512 << 10,
        own_disk: false,
        lock: false,
        spindle: true,
    }
}
