//! The state of the cache for people and monitors.

use super::core::{Core, Mode, Stop};
use super::recover::Damage;
use crate::{Geometry, LogCacheState, LogCacheStatus, SECTOR_BYTES};

/// Ranges and damages that a status lists.
const LISTED_MAX: usize = 8;

impl Core {
    pub fn geometry(&self) -> Geometry {
        Geometry {
            sectors: self.log.superblock().data_sectors,
            logical_block_bytes: self.data.geometry().logical_block_bytes,
            physical_block_bytes: self.data.geometry().physical_block_bytes,
            volatile_cache: !self.is_always(),
            discards: self.data.geometry().discards,
            // They are one entry in the log, but destaging has to write them.
            fast_zeroes: self.data.geometry().fast_zeroes,
            rotational: self.data.geometry().rotational,
            stripes: self.data.geometry().stripes,
            read_only: self.data.geometry().read_only,
            copies: 1,
        }
    }

    fn state(&self) -> LogCacheState {
        match self.mode {
            Mode::LogFailed { .. } => LogCacheState::LogFailed,
            Mode::Serving if self.stop != Stop::No => LogCacheState::Stopping,
            Mode::Serving if self.index.is_dirty() => LogCacheState::Dirty,
            Mode::Serving => LogCacheState::Clean,
        }
    }

    pub fn status(&self) -> LogCacheStatus {
        let segment = u64::from(self.log.superblock().segment_bytes);
        // The segment that is being filled counts as soon as it has something that the data disk lacks.
        let head_is_used = self.index.is_dirty_segment(self.log.ring().index(self.log.ring().head()));
        let at_risk = self.data.at_risk();
        let ranges = self.index.ranges();
        let (discards, zeroes) = (ranges.discarded() * SECTOR_BYTES, ranges.zeroed() * SECTOR_BYTES);
        LogCacheStatus {
            state: self.state(),
            promise: self.config.promise,
            size_bytes: u64::from(self.log.superblock().segments) * segment,
            used_bytes: (self.log.ring().live() - u64::from(!head_is_used)) * segment,
            utilisation: self.log.ring().utilisation(),
            dirty_bytes: self.index.dirty_bytes(),
            dirty_data_bytes: self.index.dirty_data_bytes(),
            dirty_discard_bytes: discards,
            dirty_zeroes_bytes: zeroes,
            dirty_ranges: ranges.len(),
            cached_bytes: self.index.table().counts().sectors * SECTOR_BYTES,
            lost_blocks: self.destager.lost_blocks(),
            destaging: !self.destager.is_idle(),
            destage_failing: self.destager.is_after_failure(),
            draining: self.draining,
            accepted_damage: self.accepted_damage.iter().take(LISTED_MAX).map(Damage::to_string).collect(),
            flush_error: self.data.error(),
            flush_at_risk: at_risk.iter().take(LISTED_MAX).copied().collect(),
            flush_at_risk_bytes: at_risk.iter().map(|part| part.sectors * SECTOR_BYTES).sum(),
            destage_nanos_per_sector: self.destager.nanos_per_sector() as u64,
            epoch: self.log.superblock().epoch,
            next_seq: self.log.next_seq(),
            durable_seq: self.log.durable_seq(),
            table_bytes: self.index.table().memory_bytes(),
            ring_bytes: self.log.ring().memory_bytes() + self.index.memory_bytes(),
            ghosts_bytes: self.keep.memory_bytes(),
            buffers_bytes: self.log.buffers().count() as u64 * segment,
            log_head: self.log.head_status(),
            calibrated: self.log.superblock().calibration.is_some(),
            fills: self.config.contiguity.clone(),
            statistics: self.statistics,
        }
    }
}
