//! Counters for the status.

use serde::{Deserialize, Serialize};

use super::format::SUPERBLOCK_BYTES;
use crate::layer::Io;
use crate::{IoError, SECTOR_BYTES};

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct LogCacheStatistics {
    pub reads: u64,
    pub read_bytes: u64,
    /// Reads that came at least in part from the log or its buffers.
    pub read_hits: u64,
    /// Bytes read from the log's buffers, and from dirty and clean copies in the log; all others were read from the data disk.
    pub read_ram_bytes: u64,
    pub read_dirty_bytes: u64,
    pub read_clean_bytes: u64,
    pub read_miss_bytes: u64,
    /// `reads = "keep"`: blocks of 4 KiB copied to the log after a read of the data disk, hot copies that were copied again, copies that
    /// gave way to clients, and the bytes of all copies.
    pub kept_blocks: u64,
    pub kept_again_blocks: u64,
    pub keep_dropped_blocks: u64,
    pub kept_bytes: u64,
    pub writes: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub discards: u64,
    pub zeroes: u64,
    pub logged_sectors: u64,
    /// Logged sectors that replaced older ones in the same record.
    pub compacted_sectors: u64,
    pub bypassed_sectors: u64,
    /// Writes that bypassed the log, and the number of these that first invalidated copies in the log.
    pub bypasses: u64,
    pub invalidates: u64,
    /// Requests that took several records.
    pub chains: u64,
    /// Answers that were delayed as the log was filling up.
    pub throttled: u64,
    pub log_writes: u64,
    pub log_bytes: u64,
    /// Bytes left out so that a record lies where the head of a rotational log will be.
    pub log_gap_bytes: u64,
    /// Bytes left at the end of segments, as the next request did not fit.
    pub log_rest_bytes: u64,
    /// Writes of the log for which more than one request waited.
    pub shared_commits: u64,
    pub log_flushes: u64,
    /// Freed segments that were discarded.
    #[serde(default)]
    pub log_discarded_bytes: u64,
    pub superblocks: u64,
    pub destage_batches: u64,
    pub destage_writes: u64,
    pub destaged_sectors: u64,
    /// Zeroes and discards that were sent to the data disk.
    pub destaged_range_sectors: u64,
    /// Sectors in gaps between dirty blocks, rewritten unchanged on the data disk, and the reads of the data disk for them.
    pub gap_sectors: u64,
    pub gap_reads: u64,
    /// Segments whose dirty blocks were appended again, as a data disk does not take them, and the bytes of these.
    #[serde(default)]
    pub carried_segments: u64,
    #[serde(default)]
    pub carried_bytes: u64,
    pub destage_errors: u64,
    pub log_read_errors: u64,
    /// Pieces read from another copy of the log after the first failed its check.
    pub log_other_copy: u64,
    pub last_error: Option<IoError>,
}

impl LogCacheStatistics {
    /// Log space used for each byte that clients wrote there: with headers, and with bytes left out for the rotation and at the end of
    /// segments. None if nothing was written there.
    pub fn log_space(&self) -> Option<f64> {
        let taken = self.log_bytes + self.log_gap_bytes + self.log_rest_bytes;
        let written = self.logged_sectors * SECTOR_BYTES;
        (written > 0).then(|| taken as f64 / written as f64)
    }

    /// Bytes written to the device of the log: records with their headers, kept copies, and superblocks.
    pub const fn log_device_bytes(&self) -> u64 {
        self.log_bytes + self.superblocks * SUPERBLOCK_BYTES as u64
    }

    /// Those bytes for each byte of clients in the log: what wears an SSD out. Writes that bypassed the log are not counted, nor bytes that
    /// newer ones replaced in their record. None if less was written than that: most of it is still in the buffers.
    pub fn log_writes_per_byte(&self) -> Option<f64> {
        let taken = self.logged_sectors.saturating_sub(self.compacted_sectors) * SECTOR_BYTES;
        let written = self.log_device_bytes();
        (taken > 0 && written >= taken).then(|| written as f64 / taken as f64)
    }

    pub fn count(&mut self, io: &Io) {
        let bytes = io.extent().map_or(0, |extent| extent.sectors * SECTOR_BYTES);
        match io {
            Io::Read { .. } | Io::ReadCopy { .. } => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            Io::Write { .. } | Io::WriteCopy { .. } => {
                self.writes += 1;
                self.write_bytes += bytes;
            }
            Io::Flush => self.flushes += 1,
            Io::Discard { .. } => self.discards += 1,
            Io::WriteZeroes { .. } => self.zeroes += 1,
        }
    }
}
