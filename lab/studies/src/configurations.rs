//! The caches that the experiments set beside the plain disk: the paper's prototype, and ours.

use dcd_engine::Nanos;
use dcd_engine::layers::read_ahead::ReadAheadConfig;
use dcd_engine::log_cache::{HowPolicy, LogCacheConfig, Promise, WhatPolicy, WhenPolicy};

use crate::rig::{CacheDriver, CacheSetup, LogPlace};
use crate::{LabError, Settings};

/// Section 4.1: the first 64 MB of the disk.
pub(crate) const LOG_BYTES: u64 = 64 << 20;
/// Section 3.1.
const SEGMENT_BYTES: u32 = 128 << 10;
/// Section 4.1: a RAM buffer of 256 KB, in segment buffers.
const PAPER_BUFFERS: usize = 2;

/// The prototype as the paper describes it, with one lock on everything (sections 3 and 4.2.2).
pub(crate) fn paper() -> CacheSetup {
    let mut cache = like_paper();
    // Section 3.6: the next log write begins as soon as the last has ended.
    cache.config.delay_max = Nanos::ZERO;
    CacheSetup { driver: CacheDriver::Paper { sync_to_data: false }, ..cache }
}

/// Our log cache with the paper's policies: immediate report, last-write-first, blocks destaged as they come and one at a
/// time, a segment read for it at a time, and no record that follows the head. Our log is a ring of records of any length.
pub(crate) fn like_paper() -> CacheSetup {
    CacheSetup {
        driver: CacheDriver::Ours,
        config: LogCacheConfig {
            promise: Promise::Ordered,
            // Section 3.6: "several hundreds of milliseconds at most".
            delay_max: Nanos::from_millis(500),
            segment_buffers: PAPER_BUFFERS,
            bypass_bytes: 64 << 10,
            when: WhenPolicy::Idle,
            what: WhatPolicy::LastWriteFirst,
            how: HowPolicy::AsItComes,
            // The paper knows only idle and full. Its list of free segments grows with each segment that is destaged, in
            // any order; ours is a ring, where last-write-first is for a log that is less than half full.
            high_mark: 100,
            low_mark: 50,
            idle_empty: Nanos::from_secs(1),
            idle_full: Nanos::from_millis(1),
            destage_memory: SEGMENT_BYTES as usize,
            destage_depth: 1,
            // What is destaged, it reads from the data disk (section 3.5.2).
            read_clean: false,
            ..LogCacheConfig::default()
        },
        log_bytes: LOG_BYTES,
        segment_bytes: SEGMENT_BYTES,
        log_block_bytes: 512,
        place: LogPlace::SameDisk,
        lock: true,
        follow_head: false,
        read_ahead: None,
    }
}

/// Size of the instant log as a multiple of the others.
const INSTANT_LOG_FACTOR: u64 = 16;

/// The disks that the benchmarks compare, by the names that tables give them.
pub(crate) const DISKS: [&str; 6] =
    ["plain", "paper", "paper without lock", "ours ordered", "ours flush", "instant log"];

/// The cache of a disk of [`DISKS`]; none for the plain one.
pub(crate) fn named(disk: &str) -> Option<CacheSetup> {
    match disk {
        "paper" => Some(paper()),
        "paper without lock" => Some(CacheSetup { lock: false, ..paper() }),
        // A bound for caches that do not speed up reads: writes take no time.
        "instant log" => {
            let mut ours = ours(Promise::Ordered);
            ours.config.read_clean = false;
            Some(CacheSetup { place: LogPlace::Instant, follow_head: false, read_ahead: None, ..ours })
        }
        "ours ordered" => Some(ours(Promise::Ordered)),
        "ours flush" => Some(ours(Promise::Flush)),
        _ => None,
    }
}

/// Ours, with the same log: the defaults of the log cache, and what suits a disk that is its own log. Each log write keeps
/// the arm from the reads, so segments are large (4 buffers of 2 MB); what is overwritten in RAM is not written; and each
/// reader is read ahead for: without the paper's lock the next user's request ends what the drive reads ahead, whatever its
/// segments, and the copy of 4 users gains 3.0x instead of 5.0x. Bursts end, so destaging competes with them only when the
/// log is nearly full.
pub(crate) fn ours(promise: Promise) -> CacheSetup {
    CacheSetup {
        driver: CacheDriver::Ours,
        config: LogCacheConfig {
            promise,
            segment_buffers: 4,
            compact: true,
            high_mark: 90,
            low_mark: 80,
            ..LogCacheConfig::default()
        },
        log_bytes: LOG_BYTES,
        segment_bytes: 2 << 20,
        log_block_bytes: if promise == Promise::Ordered { 4096 } else { 512 },
        place: LogPlace::SameDisk,
        lock: false,
        follow_head: true,
        read_ahead: Some(ReadAheadConfig::default()),
    }
}

/// The cache of a disk of [`DISKS`], as the user wants it.
pub(crate) fn chosen(settings: &Settings, disk: &str) -> Result<Option<CacheSetup>, LabError> {
    let Some(mut cache) = named(disk) else { return Ok(None) };
    cache.log_bytes = settings.bytes("cache")?;
    if disk.starts_with("paper") {
        cache.config.delay_max = settings.span("wait")?;
        cache.lock = cache.lock && settings.flag("lock")?;
        return Ok(Some(cache));
    }
    cache.config.delay_max = settings.span("delay")?;
    if cache.place == LogPlace::Instant {
        // So that it never has to destage while anybody waits.
        cache.log_bytes = cache.log_bytes.saturating_mul(INSTANT_LOG_FACTOR);
    }
    if settings.text("segment") != "own" {
        cache.segment_bytes = settings.bytes32("segment")?;
    }
    cache.config.when =
        settings.choice("when", &[("idle", WhenPolicy::Idle), ("high-low", WhenPolicy::HighLow)])?;
    cache.config.what = settings.choice("what", &WHAT)?;
    cache.config.how =
        settings.choice("how", &[("sorted", HowPolicy::Sorted), ("as-it-comes", HowPolicy::AsItComes)])?;
    cache.config.compact = settings.flag("compact")?;
    let bytes = settings.bytes("read-ahead")?;
    cache.read_ahead =
        cache.read_ahead.filter(|_| bytes > 0).map(|config| ReadAheadConfig { bytes, ..config });
    if cache.read_ahead.is_some_and(|config| !config.is_valid()) {
        let unit = dcd_stack::HumanBytes(ReadAheadConfig::UNIT_BYTES);
        let problem = format!("must be a multiple of {unit}");
        return Err(LabError::BadValue { key: "read-ahead".to_owned(), problem });
    }
    Ok(Some(cache))
}

const WHAT: [(&str, WhatPolicy); 3] = [
    ("oldest-first", WhatPolicy::OldestFirst),
    ("last-write-first", WhatPolicy::LastWriteFirst),
    ("least-valid-first", WhatPolicy::LeastValidFirst),
];
