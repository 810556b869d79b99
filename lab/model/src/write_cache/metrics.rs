//! The counters: the metrics of Biswas et al. 1993, section 3.3, and those of the tables of section 4.

use dcd_engine::Nanos;
use serde::{Deserialize, Serialize};

/// Counts since the start, or since the statistics were reset. Derived figures are functions, percentages of 0 to 100.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    /// Requests of clients.
    pub reads: u64,
    pub writes: u64,
    pub blocks_read: u64,
    pub blocks_written: u64,
    /// Written blocks that were dirty in the cache already: writes that the disk never sees.
    pub dirty_blocks_overwritten: u64,
    /// Blocks that reads found in each cache.
    pub blocks_hit_in_write_cache: u64,
    pub blocks_hit_in_read_cache: u64,
    /// Reads that went to the disk.
    pub disk_reads: u64,
    /// Writes that went to the disk by themselves: purges, and writes that bypass the cache.
    pub disk_writes: u64,
    pub purges: u64,
    /// Purges that a request had to wait for.
    pub immediate_purges: u64,
    pub purged_blocks: u64,
    /// Purges of blocks of more than one write.
    pub purges_of_several_writes: u64,
    /// Disk reads that took dirty blocks along, and how many of those.
    pub piggybacks: u64,
    pub piggybacked_blocks: u64,
    /// Requests that had to wait: reads for the disk, writes for room.
    pub stalls: u64,
    pub read_queueing: Nanos,
    /// The part of it in which the disk was busy with a write.
    pub read_queueing_behind_writes: Nanos,
    pub read_service: Nanos,
    pub write_service: Nanos,
    /// Reads and writes at the disk that failed.
    pub errors: u64,
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

fn kilobytes(blocks: u64, block_bytes: u32, count: u64) -> f64 {
    if count == 0 { 0.0 } else { blocks as f64 * f64::from(block_bytes) / 1024.0 / count as f64 }
}

fn mean(sum: Nanos, count: u64) -> Nanos {
    Nanos(sum.0.checked_div(count).unwrap_or(0))
}

impl Metrics {
    /// W_wc: writes at the disk for each write of a client.
    pub fn writes_with_caching(&self) -> f64 {
        percent(self.disk_writes, self.writes)
    }

    /// R_wc: reads at the disk for each read of a client, the miss ratio of reads.
    pub fn reads_with_caching(&self) -> f64 {
        percent(self.disk_reads, self.reads)
    }

    /// The requests that had to wait.
    pub fn io_stall(&self) -> f64 {
        percent(self.stalls, self.reads + self.writes)
    }

    /// The disk reads that took dirty blocks along.
    pub fn piggyback_success(&self) -> f64 {
        percent(self.piggybacks, self.disk_reads)
    }

    pub fn dirty_overwritten(&self) -> f64 {
        percent(self.dirty_blocks_overwritten, self.blocks_written)
    }

    pub fn purges_of_several(&self) -> f64 {
        percent(self.purges_of_several_writes, self.purges)
    }

    /// KB (1024 bytes) for each purge.
    pub fn kilobytes_per_purge(&self, block_bytes: u32) -> f64 {
        kilobytes(self.purged_blocks, block_bytes, self.purges)
    }

    /// KB (1024 bytes) for each read that took dirty blocks along.
    pub fn kilobytes_per_piggyback(&self, block_bytes: u32) -> f64 {
        kilobytes(self.piggybacked_blocks, block_bytes, self.piggybacks)
    }

    pub fn read_queueing_mean(&self) -> Nanos {
        mean(self.read_queueing, self.disk_reads)
    }

    pub fn read_queueing_behind_writes_mean(&self) -> Nanos {
        mean(self.read_queueing_behind_writes, self.disk_reads)
    }

    pub fn read_service_mean(&self) -> Nanos {
        mean(self.read_service, self.disk_reads)
    }

    pub fn write_service_mean(&self) -> Nanos {
        mean(self.write_service, self.disk_writes)
    }
}
