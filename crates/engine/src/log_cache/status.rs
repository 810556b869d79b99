//! Status of the cache.

use serde::{Deserialize, Serialize};

use super::answers::{Answers, Taken};
use super::data_disk::DataDisk;
use super::destager::{Destager, Destagers};
use super::env::View;
use super::freed::{Freed, FreedDiscards};
use super::keep::Keep;
use super::recover::Damage;
use super::through::WritesState;
use super::wear::WearBudget;
use super::{Contiguity, LogCacheStatistics, Promise};
use crate::{Extent, Geometry, IoError, SECTOR_BYTES};

/// Maximum number of ranges and of damages in a status.
const LISTED_MAX: usize = 8;

/// State of operation of a log cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogCacheState {
    /// The data disk has all data of the log.
    #[default]
    Clean,
    Dirty,
    Stopping,
    /// The log device has failed: all data goes to the data disk.
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
    /// The log is not rotational.
    #[default]
    NotRotational,
    /// The host was too busy to tell, or an older program has formatted the log.
    NotMeasured,
    /// Format has seen no head: durable writes take the same time wherever they go.
    NotShown,
    Followed,
    /// Records take no longer at the next sector.
    DoesNotPay,
}

/// The state of a data disk of a log cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataDiskStatus {
    /// Name in the stack file, which the cache itself does not know.
    pub name: Option<String>,
    pub size_bytes: u64,
    /// All that the disk lacks: data, discards and zeroes.
    pub dirty_bytes: u64,
    /// The parts of these, as in [`LogCacheStatus`].
    #[serde(default)]
    pub dirty_data_bytes: u64,
    #[serde(default)]
    pub dirty_discard_bytes: u64,
    #[serde(default)]
    pub dirty_zeroes_bytes: u64,
    /// Blocks of 4 KiB for the disk that can no longer be read from the log.
    pub lost_blocks: usize,
    pub destaging: bool,
    /// The last attempt to destage failed.
    pub destage_failing: bool,
    /// The disk was missing at the start, and is not served: the log keeps what it has for it.
    pub missing: bool,
    /// The disk does not answer, its batches fail, or it is missing: nothing of it becomes clean.
    pub stuck: bool,
    /// Writes to the disk wait, as its dirty blocks take its share of the log.
    pub waits_for_share: bool,
    /// Error of the last failed flush of the disk; none once all writes that the flush should have covered are durable.
    pub flush_error: Option<IoError>,
}

/// The state of a log cache.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LogCacheStatus {
    pub state: LogCacheState,
    pub promise: Promise,
    /// The present route of writes.
    #[serde(default)]
    pub writes: WritesState,
    /// Size of the log's segments.
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// The share of segments that are in use, 0 to 1.
    pub utilisation: f64,
    /// All that the data disk lacks: data, discards and zeroes.
    pub dirty_bytes: u64,
    /// Dirty data alone. The data disk has to write it; discards and zeroes are usually much faster.
    #[serde(default)]
    pub dirty_data_bytes: u64,
    #[serde(default)]
    pub dirty_discard_bytes: u64,
    #[serde(default)]
    pub dirty_zeroes_bytes: u64,
    /// Zeroes and discards that the data disk lacks.
    pub dirty_ranges: usize,
    pub cached_bytes: u64,
    /// Blocks of 4 KiB in the log that can no longer be read.
    pub lost_blocks: usize,
    pub destaging: bool,
    /// The last attempt to destage failed.
    pub destage_failing: bool,
    pub draining: bool,
    /// The host holds destaging back, below the high mark: see `Control::HoldDestage`.
    #[serde(default)]
    pub destage_held: bool,
    #[serde(default)]
    pub over_high_mark: bool,
    /// Percent of the log that the dirty blocks of one of several disks may take.
    #[serde(default)]
    pub share: u8,
    /// Limit of destaging; 0: none. Next: a batch waits for it.
    #[serde(default)]
    pub destage_rate: u64,
    #[serde(default)]
    pub destage_limited: bool,
    /// The first few damages that the start was told to accept.
    pub accepted_damage: Vec<String>,
    /// Error of the last failed flush of the data disk; none once all writes that the flush should have covered are durable.
    pub flush_error: Option<IoError>,
    /// The first few ranges that a failed flush may have lost; next, the bytes of all such ranges.
    pub flush_at_risk: Vec<Extent>,
    pub flush_at_risk_bytes: u64,
    pub destage_nanos_per_sector: u64,
    pub epoch: u64,
    /// Count of the superblocks that the log was given in its life, of those that are durable.
    #[serde(default)]
    pub generation: u64,
    pub next_seq: u64,
    pub durable_seq: u64,
    /// Bytes written to the log's device in the last 24 hours, or since the start.
    #[serde(default)]
    pub day_written_bytes: u64,
    /// Budget of them; 0: none. Next, its state.
    #[serde(default)]
    pub wear_budget_bytes: u64,
    #[serde(default)]
    pub wear_budget: WearBudget,
    /// Discards of freed segments.
    #[serde(default)]
    pub freed_discards: FreedDiscards,
    pub table_bytes: usize,
    pub ring_bytes: usize,
    /// Memory of the ghost list, if reads are cached.
    pub ghosts_bytes: usize,
    pub buffers_bytes: u64,
    /// Memory that outlives the process; 0: none. Next, the bytes in it that the log does not have yet.
    #[serde(default)]
    pub memory_bytes: u64,
    #[serde(default)]
    pub memory_held_bytes: u64,
    /// Records that this start took from the memory of the last process.
    #[serde(default)]
    pub memory_taken: u64,
    /// Reason why the memory of the last process was not used: answered writes may be lost.
    #[serde(default)]
    pub memory_ignored: Option<String>,
    pub log_head: LogHead,
    /// True if the stride benchmark's result is stored in the log.
    pub calibrated: bool,
    /// Rules for filling gaps.
    pub fills: Option<Contiguity>,
    /// The data disks, in the order of the stack file.
    #[serde(default)]
    pub disks: Vec<DataDiskStatus>,
    pub statistics: LogCacheStatistics,
}

impl View<'_> {
    /// Geometry of a disk from above.
    pub fn geometry(&self, disk: usize) -> Geometry {
        Geometry {
            volatile_cache: self.config.promise != Promise::Always,
            copies: 1,
            // Zeroes are one entry in the log, but destaging has to write them.
            ..self.data.geometry(disk)
        }
    }

    fn state(&self) -> LogCacheState {
        if self.log.has_failed() {
            LogCacheState::LogFailed
        } else if !self.life.serves() {
            LogCacheState::Stopping
        } else if self.index.is_dirty() {
            LogCacheState::Dirty
        } else {
            LogCacheState::Clean
        }
    }
}

impl LogCacheStatus {
    pub fn new(
        view: &View,
        destagers: &Destagers,
        keep: &Keep,
        freed: &Freed,
        taken: &Taken,
        accepted_damage: &[Damage],
        statistics: LogCacheStatistics,
    ) -> LogCacheStatus {
        let View { config, log, data, index, .. } = *view;
        let segment = u64::from(log.superblock().segment_bytes);
        // The head's segment counts as soon as it has dirty data.
        let head_is_used = index.is_dirty_segment(log.ring().index(log.ring().head()));
        let disks: Vec<DataDiskStatus> =
            (0..data.space().count()).map(|disk| disk_status(view, destagers, disk)).collect();
        let of_all = |part: fn(&DataDiskStatus) -> u64| disks.iter().map(part).sum();
        let at_risk = || data.iter().flat_map(DataDisk::at_risk);
        let per_sector = destagers.iter().map(Destager::nanos_per_sector);
        LogCacheStatus {
            state: view.state(),
            promise: config.promise,
            writes: log.through().state(),
            size_bytes: u64::from(log.superblock().segments) * segment,
            used_bytes: (log.ring().live() - u64::from(!head_is_used)) * segment,
            utilisation: log.ring().utilisation(),
            dirty_bytes: of_all(|disk| disk.dirty_bytes),
            dirty_data_bytes: of_all(|disk| disk.dirty_data_bytes),
            dirty_discard_bytes: of_all(|disk| disk.dirty_discard_bytes),
            dirty_zeroes_bytes: of_all(|disk| disk.dirty_zeroes_bytes),
            dirty_ranges: index.ranges().len(),
            cached_bytes: index.table().counts().sectors * SECTOR_BYTES,
            lost_blocks: index.lost.len(),
            destaging: !destagers.are_idle(),
            destage_failing: destagers.iter().any(Destager::is_after_failure),
            draining: view.life.drains(),
            destage_held: destagers.iter().any(Destager::is_held_back),
            over_high_mark: view.is_over_high_mark(),
            share: config.share,
            destage_rate: config.destage_rate,
            destage_limited: destagers
                .iter()
                .enumerate()
                .any(|(disk, destager)| destager.is_limited(&view.of(disk))),
            accepted_damage: accepted_damage.iter().take(LISTED_MAX).map(Damage::to_string).collect(),
            flush_error: data.iter().find_map(DataDisk::error),
            flush_at_risk: at_risk().take(LISTED_MAX).map(|part| data.space().local(*part)).collect(),
            flush_at_risk_bytes: at_risk().map(|part| part.sectors * SECTOR_BYTES).sum(),
            destage_nanos_per_sector: per_sector.fold(0.0, f64::max) as u64,
            epoch: log.superblock().epoch,
            generation: log.superblock().generation - u64::from(log.is_releasing()),
            next_seq: log.next_seq(),
            durable_seq: log.durable_seq(),
            day_written_bytes: view.wear.day_bytes(view.now),
            wear_budget_bytes: config.wear_budget,
            wear_budget: view.wear_budget(),
            freed_discards: freed.status(view),
            table_bytes: index.table().memory_bytes(),
            ring_bytes: log.ring().memory_bytes() + index.memory_bytes(),
            ghosts_bytes: keep.memory_bytes(),
            buffers_bytes: log.buffers().count() as u64 * segment,
            memory_bytes: log.answers().map_or(0, Answers::bytes),
            memory_held_bytes: log.answers().map_or(0, Answers::held_bytes),
            memory_taken: taken.records,
            memory_ignored: taken.ignored.map(|why| why.to_string()),
            log_head: log.head_status(),
            calibrated: log.superblock().calibration.is_some(),
            fills: config.contiguity.clone(),
            disks,
            statistics,
        }
    }
}

fn disk_status(view: &View, destagers: &Destagers, disk: usize) -> DataDiskStatus {
    let (data, index) = (&view.data[disk], view.index);
    let destager = &destagers[disk];
    let [data_bytes, discard_bytes, zeroes_bytes] = index.dirty_parts_on(disk);
    DataDiskStatus {
        name: None,
        size_bytes: view.data.geometry(disk).sectors * SECTOR_BYTES,
        dirty_bytes: data_bytes + discard_bytes + zeroes_bytes,
        dirty_data_bytes: data_bytes,
        dirty_discard_bytes: discard_bytes,
        dirty_zeroes_bytes: zeroes_bytes,
        lost_blocks: index.lost.in_extent(view.data.space().extent(disk)),
        destaging: !destager.is_idle(),
        destage_failing: destager.is_after_failure(),
        missing: destager.is_missing(),
        stuck: destager.is_stuck(view.now) && index.is_dirty_on(disk),
        waits_for_share: view.queue.wants_share(disk),
        flush_error: data.error(),
    }
}

impl LogCacheStatus {
    /// Returns the status as if the cache had this one of its data disks alone.
    pub fn of_disk(&self, disk: usize) -> LogCacheStatus {
        let mut status = self.clone();
        if self.disks.is_empty() {
            return status;
        }
        // A log that does not have the disk yet has nothing for it.
        let own = self.disks.get(disk);
        status.dirty_bytes = own.map_or(0, |own| own.dirty_bytes);
        status.dirty_data_bytes = own.map_or(0, |own| own.dirty_data_bytes);
        status.dirty_discard_bytes = own.map_or(0, |own| own.dirty_discard_bytes);
        status.dirty_zeroes_bytes = own.map_or(0, |own| own.dirty_zeroes_bytes);
        status.lost_blocks = own.map_or(0, |own| own.lost_blocks);
        if self.state == LogCacheState::Dirty && status.dirty_bytes == 0 {
            status.state = LogCacheState::Clean;
        }
        status
    }
}
