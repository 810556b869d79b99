//! Makes the common parts of all rigs.

use dcd_engine::log_cache::Promise;
use dcd_engine::{Extent, Geometry, Lba, Nanos, SECTOR_BYTES};

use super::{Build, Rig};
use crate::{Latency, MemDisk, SimRng, Value, stamp};

const FAST: Latency =
    Latency::Tailed { min: Nanos(20_000), max: Nanos(90_000), slow: Nanos(3_000_000), slow_per_mille: 20 };
const SLOW: Latency = Latency::Uniform { min: Nanos(200_000), max: Nanos(15_000_000) };

/// Time past `delay_max` that the devices may need for a commit: a slow one behind another, and a checkpoint.
pub const ORDERED_SLACK: Nanos = Nanos::from_millis(200);

/// Writes initial content to every other 64 sectors of a disk, and returns all its content.
pub fn prefill(disk: &mut MemDisk, sectors: u64, seed: u64) -> Vec<Value> {
    let mut base = vec![Value::Zero; sectors as usize];
    for start in (0..sectors).step_by(128) {
        let extent = Extent::new(Lba(start), 64.min(sectors - start));
        let mut bytes = vec![0; (extent.sectors * SECTOR_BYTES) as usize];
        stamp::stamp(&mut bytes, extent.start, 0, seed);
        disk.put(extent.start, &bytes);
        base[start as usize..extent.end().0 as usize].fill(Value::Write(0));
    }
    base
}

/// A disk in memory with random latencies.
pub fn disk(rng: &mut SimRng, geometry: Geometry) -> MemDisk {
    let latency = rng.pick(&[FAST, SLOW]);
    MemDisk::new(geometry, latency, rng.next_u64())
}

impl Rig {
    /// A rig with a disk's promise (`flush`), to which only crashes happen.
    pub fn plain(disks: Vec<MemDisk>, base: Vec<Value>, build: Build, about: String) -> Rig {
        Rig {
            disks,
            base,
            build,
            build_after_log_failure: None,
            data_alone: None,
            promise: Promise::Flush,
            outlives_server: false,
            delay_max: Nanos::ZERO,
            overlaps: false,
            chunk: u64::MAX,
            reads_again: false,
            upper_first: false,
            losses: None,
            machines: None,
            spoils: None,
            legs: None,
            are_torn: None,
            build_accepting: None,
            eager: false,
            hot_add: None,
            log: None,
            rescued: None,
            memory: None,
            build_missing: None,
            rots: false,
            tuned: None,
            through: None,
            troubled: None,
            guest: None,
            dealt: 1,
            about,
        }
    }
}
