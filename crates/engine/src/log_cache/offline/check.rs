//! Verifies a log without changing anything: superblocks, the chain of records, every checksum, the fingerprint of the data disk.

use serde::Serialize;

use super::joined::refuse_other_disks;
use super::rescue::comparisons;
use super::superblock::{check_sizes, live_superblock, read_copies};
use super::{LogError, Newest, ToolProgress, Totals, uuid};
use crate::destage::contiguity::Contiguity;
use crate::log_cache::disks::AddressSpace;
use crate::log_cache::fingerprint::Comparison;
use crate::log_cache::format::{Header, LogState, LogSuperblock};
use crate::log_cache::recover::{Damage, Visitor, WalkOptions, Walked, walk};
use crate::{BlockDevice, SECTOR_BYTES};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// Generation of the copy, or its error.
    pub generation: Option<u64>,
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FingerprintReport {
    /// Blocks of 4 KiB that could be compared.
    pub compared: usize,
    /// LBAs of the blocks that differ although no record of the log explains it. With several data disks, addresses of the log.
    pub differing_lbas: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    pub copies: Vec<CopyReport>,
    pub cache_uuid: String,
    pub data_uuid: String,
    /// "stopped", "active" or "detached".
    pub state: &'static str,
    pub epoch: u64,
    /// The machine that serves the log, or served it last, in hexadecimal digits; none if not known.
    pub machine: Option<String>,
    pub segments: u32,
    pub segment_bytes: u32,
    pub log_block_bytes: u32,
    pub data_bytes: u64,
    /// Result of the stride benchmark of the data disk, if it was stored.
    pub calibration: Option<Contiguity>,
    pub records: u64,
    pub records_home: u64,
    /// Records of a request that was incomplete at the end of the log.
    pub records_dropped: u64,
    pub tail_seq: u64,
    pub next_seq: u64,
    /// Log sector of a torn record at the end: normal after a power cut.
    pub torn_sector: Option<u64>,
    pub dirty: Totals,
    pub damage: Vec<Damage>,
    pub damages: u64,
    pub fingerprint: Option<FingerprintReport>,
    pub bytes_read: u64,
    /// Problems of the log, each in a sentence; empty when the log is in order.
    pub problems: Vec<String>,
}

impl CheckReport {
    pub fn is_ok(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Reports the progress of a walk that fills a map, and compares the data disk.
struct Watched<'a> {
    newest: Newest,
    comparisons: Vec<Comparison>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(ToolProgress),
}

impl Visitor for Watched<'_> {
    fn record(&mut self, header: &Header, bad: &[usize]) {
        self.newest.record(header, bad);
        self.comparisons.iter_mut().for_each(|comparison| comparison.record(header));
        self.done += u64::from(header.sectors) * SECTOR_BYTES;
        (self.progress)(ToolProgress { bytes_done: self.done.min(self.total), bytes_total: self.total });
    }
}

/// Checks a log, and its data disk if one is given. `Err` if there is no log to check or a device fails; the report lists problems of the
/// log.
pub fn check(
    log: &mut dyn BlockDevice,
    data: Option<&mut dyn BlockDevice>,
    progress: &mut dyn FnMut(ToolProgress),
) -> Result<CheckReport, LogError> {
    let copies = read_copies(log)?;
    let superblock = live_superblock(&copies)?;
    check_sizes(&superblock, log.geometry(), None)?;
    data.as_ref().map_or(Ok(()), |data| refuse_other_disks(&superblock, &**data))?;
    // The data disk of a cache that is out of use is written without the cache.
    let is_out_of_use = matches!(superblock.state, LogState::GivenUp | LogState::Detached);
    let all: Vec<usize> = (0..superblock.space().count()).collect();
    let comparisons =
        data.filter(|_| !is_out_of_use).map(|data| comparisons(&superblock, &all, data)).transpose()?;
    let is_compared = comparisons.is_some();
    let mut watched = Watched {
        comparisons: comparisons.unwrap_or_default(),
        newest: Newest::new(superblock.log_block_sectors()),
        done: 0,
        total: u64::from(superblock.segments) * u64::from(superblock.segment_bytes),
        progress,
    };
    let options = WalkOptions { accept_damage: true, verify_all: true, ..WalkOptions::default() };
    let walked = walk(log, &superblock, options, &mut watched)?;
    let mut newest = watched.newest;
    newest.purge_before(walked.tail_seq);
    let mut fingerprint = FingerprintReport { compared: 0, differing_lbas: Vec::new() };
    for (disk, comparison) in watched.comparisons.into_iter().enumerate() {
        let found = comparison.finish(log, &walked)?;
        let start = AddressSpace::start(disk);
        fingerprint.compared += found.compared;
        fingerprint
            .differing_lbas
            .extend(found.differing.iter().map(|line| start.0 + line * crate::LINE_SECTORS));
    }
    let fingerprint = is_compared.then_some(fingerprint);
    let copies = copies.map(|copy| match copy {
        Ok(superblock) => CopyReport { generation: Some(superblock.generation), error: None },
        Err(error) => CopyReport { generation: None, error: Some(error.to_string()) },
    });
    Ok(report(&superblock, copies.into(), walked, newest.totals(), fingerprint))
}

fn report(
    superblock: &LogSuperblock,
    copies: Vec<CopyReport>,
    walked: Walked,
    dirty: Totals,
    fingerprint: Option<FingerprintReport>,
) -> CheckReport {
    let mut problems: Vec<String> = walked.damage.iter().map(Damage::to_string).collect();
    let torn_copy = |copy: &&CopyReport| copy.error.is_some();
    for copy in copies.iter().filter(torn_copy) {
        // A power cut during an update leaves one torn copy.
        if superblock.state != LogState::Active {
            let error = copy.error.as_deref().unwrap_or_default();
            problems.push(format!("a copy of the superblock is not usable after a clean stop: {error}"));
        }
    }
    if superblock.state == LogState::Stopped && walked.next_seq > superblock.durable_seq {
        let after = walked.next_seq - superblock.durable_seq;
        problems.push(format!("{after} records were written after the clean stop"));
    }
    if let Some(found) = fingerprint.as_ref().filter(|found| !found.differing_lbas.is_empty()) {
        let (count, first) = (found.differing_lbas.len(), found.differing_lbas[0]);
        problems.push(format!(
            "{count} blocks of the data disk are not what the cache left there, the first at LBA {first}: it is another disk, \
             or was written without its cache"
        ));
    }
    CheckReport {
        copies,
        cache_uuid: uuid(&superblock.cache_uuid),
        data_uuid: uuid(&superblock.data_uuid),
        state: super::state_name(superblock.state),
        epoch: superblock.epoch,
        machine: (superblock.machine != 0).then(|| format!("{:016x}", superblock.machine)),
        segments: superblock.segments,
        segment_bytes: superblock.segment_bytes,
        log_block_bytes: superblock.log_block_bytes,
        data_bytes: superblock.data_sectors * SECTOR_BYTES,
        calibration: superblock.calibration.clone(),
        records: walked.records,
        records_home: walked.records_destaged,
        records_dropped: walked.records_dropped,
        tail_seq: walked.tail_seq,
        next_seq: walked.next_seq,
        torn_sector: walked.torn_sector,
        dirty,
        damage: walked.damage,
        damages: walked.damages,
        fingerprint,
        bytes_read: walked.bytes_read,
        problems,
    }
}
