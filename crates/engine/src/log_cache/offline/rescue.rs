//! Writes all dirty data in a log back to the data disk, offline.
//!
//! First, the log is flushed, and the superblock records that the data disk is being written. Then all dirty data is written in the order
//! of LBAs, after each checksum is verified. Then the data disk is flushed, and only then is the log marked clean. Until then no record
//! changes, so a rescue may be interrupted at any point and run again.

use serde::Serialize;

use super::joined::{DiskOf, refuse_other_disks};
use super::superblock::{check_sizes, read_superblock, write_superblock};
use super::{CHUNK_SECTORS, LogError, Newest, NewestContent, NewestPiece, OtherData, ToolProgress, Totals};
use crate::log_cache::disks::PART_SECTORS;
use crate::log_cache::fingerprint::{Comparison, CoveredLines, Fingerprint, LineContent};
use crate::log_cache::format::{EntryKind, Header, LogState, LogSuperblock, OtherDisk};
use crate::log_cache::recover::{Damage, DamageKind, LISTED_MAX, Visitor, WalkOptions, Walked, walk};
use crate::{
    BlockDevice, Buf, Discards, Durability, ErrorKind, Extent, Io, IoError, LINE_BYTES, LINE_SECTORS, Lba,
    SECTOR_BYTES,
};

#[derive(Clone, Copy, Debug, Default)]
pub struct RescueOptions {
    /// Writes all that can be read although other data is lost, even unknown data, and marks the log clean: blocks listed as unsaved keep
    /// their old content on the data disk.
    pub force: bool,
    /// Writes also where the data disk may be newer: from a log that was given up, and to a disk with another fingerprint.
    pub over_newer: bool,
    /// Writes nothing; only reads and lists.
    pub list: bool,
    /// Writes back what the log has for this one of several data disks, and writes nothing to the log, which may have failed, or have been
    /// detached while the disk was missing. It has that data as before, so the caller has to record that the disk must never be used with it
    /// again.
    pub disk: Option<usize>,
}

/// Sectors that could not be written back, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unsaved {
    pub extent: Extent,
    pub reason: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RescueReport {
    /// Dirty data of the log.
    pub dirty: Totals,
    pub written_bytes: u64,
    pub zeroed_bytes: u64,
    /// At most [`LISTED_MAX`] extents; `unsaved_bytes` counts all.
    pub unsaved: Vec<Unsaved>,
    pub unsaved_bytes: u64,
    /// Unsaved bytes that the data disk could not write.
    pub unwritten_bytes: u64,
    pub damage: Vec<Damage>,
    pub damages: u64,
    /// Dirty data from before a hole of unknown content: it may be older than the last acknowledged data.
    pub suspect_bytes: u64,
    /// Records of unknown content are lost: nothing is written without force.
    pub refused: bool,
    /// The log is empty and cleanly stopped now.
    pub marked_clean: bool,
}

impl RescueReport {
    /// True if all acknowledged data is on the data disk.
    pub fn is_complete(&self) -> bool {
        self.marked_clean && self.unsaved_bytes == 0 && self.damages == 0
    }

    fn unsaved(&mut self, extent: Extent, reason: &'static str) {
        self.unsaved_bytes += extent.sectors * SECTOR_BYTES;
        let room = self.unsaved.len() < LISTED_MAX;
        match self.unsaved.last_mut() {
            Some(last) if last.reason == reason && last.extent.end() == extent.start => {
                last.extent.sectors += extent.sectors;
            }
            _ if room => self.unsaved.push(Unsaved { extent, reason }),
            _ => {}
        }
    }
}

/// Writes the dirty data of a log back. `Err` if nothing could be done or a device is missing; the report lists data that could not be
/// saved.
pub fn rescue(
    log: &mut dyn BlockDevice,
    data: &mut dyn BlockDevice,
    options: RescueOptions,
    progress: &mut dyn FnMut(ToolProgress),
) -> Result<RescueReport, LogError> {
    let mut superblock = read_superblock(log)?;
    check_sizes(&superblock, log.geometry(), None)?;
    refuse_other_disks(&superblock, data)?;
    if superblock.state == LogState::Detached && options.disk.is_none() {
        // The data disk is used without the cache, and may have changed since: nothing in the log may ever be written to it.
        return Ok(RescueReport { marked_clean: true, ..RescueReport::default() });
    }
    may_write(&superblock, data.geometry().read_only, options)?;
    if options.disk.is_some() {
        // Nothing can be noted in the log, so an interrupted rescue before this one may have written any of it.
        superblock.state = LogState::Active;
    }
    let is_wanted = |disk: usize| options.disk.is_none_or(|wanted| wanted == disk);
    let mut newest = Newest::new(superblock.log_block_sectors());
    let walk_options = WalkOptions { accept_damage: true, ..WalkOptions::default() };
    let wanted: Vec<usize> = (0..superblock.space().count()).filter(|disk| is_wanted(*disk)).collect();
    let mut comparisons = comparisons(&superblock, &wanted, data)?;
    let walked = walk(log, &superblock, walk_options, &mut |header: &Header, bad: &[usize]| {
        newest.record(header, bad);
        comparisons.iter_mut().for_each(|comparison| comparison.record(header));
    })?;
    newest.purge_before(walked.tail_seq);
    newest.retain(|extent| is_wanted(superblock.space().disk_of(extent.start)));
    let mut differing = Vec::new();
    for (disk, comparison) in wanted.into_iter().zip(comparisons) {
        let found = comparison.finish(log, &walked)?.differing;
        differing.extend(found.into_iter().map(|line| (disk, line)));
    }
    let dirty_bytes = newest.totals().data_bytes + newest.totals().zeroes_bytes;
    // If nothing is dirty, and nothing may have been, nothing is at risk: the log accepts the disk as it is.
    let at_risk = dirty_bytes > 0 || walked.damages > 0;
    if let Some((disk, first)) = differing.first().filter(|_| at_risk && !options.over_newer && !options.list)
    {
        return Err(LogError::OtherData(OtherData {
            disk: *disk,
            lines: differing.iter().filter(|(other, _)| other == disk).count(),
            first_byte: first * LINE_BYTES,
            dirty_bytes,
        }));
    }
    let mut report = found(&newest, &walked, options);
    let write = !options.list && !report.refused;
    // An empty log without damage is not touched, unless it must record the present content of the disk.
    let is_empty =
        superblock.state != LogState::Active && walked.tail_seq == walked.next_seq && walked.damages == 0;
    if write && is_empty && differing.is_empty() {
        report.marked_clean = true;
        return Ok(report);
    }
    if write && options.disk.is_none() {
        // A server that was killed may have left records in the device's cache. If the power fails, the data disk must have nothing of a
        // record that the log has not.
        log.flush().map_err(LogError::io("flushing the log device"))?;
    }
    if write && superblock.state == LogState::Stopped {
        // If the rescue is interrupted, the data disk is as after a crash, not as the clean stop left it.
        superblock.state = LogState::Active;
        write_superblock(log, &mut superblock)?;
    }
    let mut report = write_back(log, data, &newest, report, write, progress)?;
    if write {
        data.flush().map_err(LogError::io("flushing the data disk"))?;
        if options.disk.is_none() && (options.force || report.unsaved_bytes == 0 && report.damages == 0) {
            mark_clean(log, data, &mut superblock, &walked)?;
            report.marked_clean = true;
        }
    }
    Ok(report)
}

/// Reads the newest copies, and writes them to the data disk if `write` is set; the report lists those that could not be saved.
fn write_back(
    log: &mut dyn BlockDevice,
    data: &mut dyn BlockDevice,
    newest: &Newest,
    report: RescueReport,
    write: bool,
    progress: &mut dyn FnMut(ToolProgress),
) -> Result<RescueReport, LogError> {
    let total = report.dirty.data_bytes + report.dirty.zeroes_bytes;
    let mut writer = RescueWriter { log, data, write, run: Vec::new(), run_start: Lba(0), report };
    let mut done = 0;
    for piece in newest.pieces() {
        writer.write_back(piece)?;
        done += piece.extent.sectors * SECTOR_BYTES;
        if write {
            progress(ToolProgress { bytes_done: done, bytes_total: total });
        }
    }
    writer.end_run()?;
    Ok(writer.report)
}

/// Begins the comparison of data disks with their fingerprints.
pub(super) fn comparisons(
    superblock: &LogSuperblock,
    disks: &[usize],
    data: &mut dyn BlockDevice,
) -> Result<Vec<Comparison>, LogError> {
    let compare =
        |disk: &usize| Comparison::new(superblock, *disk, &mut DiskOf { joined: &mut *data, disk: *disk });
    let comparisons: Result<_, IoError> = disks.iter().map(compare).collect();
    comparisons.map_err(LogError::io("reading the data disk"))
}

/// Takes the fingerprint of a data disk that is not in use.
fn fingerprint_of(
    superblock: &LogSuperblock,
    disk: usize,
    data: &mut dyn BlockDevice,
) -> Result<Fingerprint, IoError> {
    let (sectors, cache) = (superblock.space().sectors(disk), &superblock.cache_uuid);
    if disk == 0 {
        return Fingerprint::read(data, sectors, cache);
    }
    let lines_max = OtherDisk::lines_max(superblock.other_disks.len());
    Ok(CoveredLines::few(LineContent::default(), data, sectors, cache, lines_max)?.fingerprint())
}

fn may_write(superblock: &LogSuperblock, read_only: bool, options: RescueOptions) -> Result<(), LogError> {
    match superblock.state {
        _ if options.list => Ok(()),
        LogState::GivenUp if !options.over_newer => Err(LogError::GivenUp),
        _ if read_only => Err(LogError::ReadOnly("data disk")),
        _ => Ok(()),
    }
}

/// Builds the report before anything is written.
fn found(newest: &Newest, walked: &Walked, options: RescueOptions) -> RescueReport {
    let holes = walked.damage.iter().filter(|damage| damage.kind != DamageKind::Payload);
    let last_hole = holes.map(|damage| damage.until_seq).max();
    let old = newest.pieces().filter(|piece| last_hole.is_some_and(|hole| piece.seq < hole));
    RescueReport {
        dirty: newest.totals(),
        damage: walked.damage.clone(),
        damages: walked.damages,
        suspect_bytes: old.map(|piece| piece.extent.sectors * SECTOR_BYTES).sum(),
        refused: last_hole.is_some() && !options.force && !options.list,
        ..RescueReport::default()
    }
}

/// Marks the log empty from its end on. The epoch moves on, so that no record after the end can ever join the log.
/// The state `GivenUp` stays.
fn mark_clean(
    log: &mut dyn BlockDevice,
    data: &mut dyn BlockDevice,
    superblock: &mut LogSuperblock,
    walked: &Walked,
) -> Result<(), LogError> {
    if superblock.state != LogState::GivenUp {
        superblock.state = LogState::Stopped;
    }
    begin_after(superblock, walked);
    let mut fingerprints = Vec::new();
    for disk in 0..superblock.space().count() {
        let covered = fingerprint_of(superblock, disk, &mut DiskOf { joined: data, disk });
        fingerprints.push(covered.map_err(LogError::io("reading the data disk"))?);
    }
    superblock.set_fingerprints(fingerprints.into_iter());
    write_superblock(log, superblock)
}

/// Begins the log behind its last record, in another epoch: no older record is read again.
pub(super) fn begin_after(superblock: &mut LogSuperblock, walked: &Walked) {
    superblock.memory = None;
    superblock.epoch = walked.epoch_max + 1;
    superblock.epoch_start_seq = walked.next_seq;
    superblock.tail_seq = walked.next_seq;
    superblock.durable_seq = walked.next_seq;
    superblock.tail_sector =
        if walked.end == superblock.end_sector() { superblock.segment_start(0) } else { walked.end };
    superblock.flush_epoch = walked.flush_epoch;
    superblock.end_records_at(walked.next_seq);
}

/// Gathers neighbouring pieces into runs, and writes them back.
struct RescueWriter<'a> {
    log: &'a mut dyn BlockDevice,
    data: &'a mut dyn BlockDevice,
    write: bool,
    run_start: Lba,
    run: Vec<u8>,
    report: RescueReport,
}

/// Reads the whole payload of an entry, as its checksum covers the whole; `None` if it fails its checksum.
pub(in crate::log_cache) fn read_payload(
    log: &mut dyn BlockDevice,
    place: u64,
    entry: Extent,
    crc: u32,
) -> Result<Option<Vec<u8>>, LogError> {
    let block = u64::from(log.geometry().logical_block_bytes) / SECTOR_BYTES;
    let start = place / block * block;
    let end = (place + entry.sectors).next_multiple_of(block);
    for copy in 0..log.geometry().copies {
        match log.read_copy(Lba(start), ((end - start) * SECTOR_BYTES) as usize, copy) {
            Ok(buf) => {
                let from = ((place - start) * SECTOR_BYTES) as usize;
                let bytes = buf.bytes().get(from..from + (entry.sectors * SECTOR_BYTES) as usize);
                if let Some(bytes) = bytes.filter(|bytes| crc32c::crc32c(bytes) == crc) {
                    return Ok(Some(bytes.to_vec()));
                }
            }
            Err(error) if of_medium(&error) => {}
            Err(source) => return Err(LogError::Io { what: "reading the log device", source }),
        }
    }
    Ok(None)
}

/// True for an error of the medium, which concerns its sectors alone; any other error concerns the device.
const fn of_medium(error: &IoError) -> bool {
    matches!(error.kind, ErrorKind::Medium | ErrorKind::Lost | ErrorKind::NoSpace)
}

impl RescueWriter<'_> {
    fn run_end(&self) -> Lba {
        self.run_start + self.run.len() as u64 / SECTOR_BYTES
    }

    fn write_back(&mut self, piece: &NewestPiece) -> Result<(), LogError> {
        match piece.content {
            NewestContent::Zeroes(kind) => {
                self.end_run()?;
                self.zero(piece.extent, kind)
            }
            NewestContent::Data { place, entry, crc, .. } => {
                let Some(payload) = read_payload(self.log, place, entry, crc)? else {
                    self.report.unsaved(piece.extent, "its copy in the log is damaged or cannot be read");
                    return self.end_run();
                };
                let full = self.run.len() as u64 >= CHUNK_SECTORS * SECTOR_BYTES;
                // A disk may end where the addresses of the next one begin.
                let is_next_disk = piece.extent.start.0.is_multiple_of(PART_SECTORS);
                if self.run_end() != piece.extent.start || full || is_next_disk {
                    self.end_run()?;
                    self.run_start = piece.extent.start;
                }
                let from = ((piece.extent.start - entry.start) * SECTOR_BYTES) as usize;
                self.run
                    .extend_from_slice(&payload[from..from + (piece.extent.sectors * SECTOR_BYTES) as usize]);
                Ok(())
            }
        }
    }

    fn end_run(&mut self) -> Result<(), LogError> {
        let bytes = std::mem::take(&mut self.run);
        if bytes.is_empty() {
            return Ok(());
        }
        let extent = Extent::new(self.run_start, bytes.len() as u64 / SECTOR_BYTES);
        if self.write { self.write_piecewise(extent, &bytes) } else { Ok(()) }
    }

    /// Writes a run; if the medium refuses it, writes it block by block, so that only the bad blocks are unsaved.
    fn write_piecewise(&mut self, extent: Extent, bytes: &[u8]) -> Result<(), LogError> {
        if self.write_aligned(extent, bytes)? {
            self.report.written_bytes += bytes.len() as u64;
            return Ok(());
        }
        let mut at = extent.start;
        while at < extent.end() {
            let next = Lba((at.0 / LINE_SECTORS + 1) * LINE_SECTORS).min(extent.end());
            let from = ((at - extent.start) * SECTOR_BYTES) as usize;
            let part = &bytes[from..from + ((next - at) * SECTOR_BYTES) as usize];
            if self.write_aligned(Extent::new(at, next - at), part)? {
                self.report.written_bytes += part.len() as u64;
            } else {
                self.report.unwritten_bytes += (next - at) * SECTOR_BYTES;
                self.report.unsaved(Extent::new(at, next - at), "the data disk cannot be written there");
            }
            at = next;
        }
        Ok(())
    }

    /// Writes some sectors, with the rest of their blocks if the disk's blocks are larger; false if the medium cannot be written.
    fn write_aligned(&mut self, extent: Extent, bytes: &[u8]) -> Result<bool, LogError> {
        let block = u64::from(self.data.geometry().logical_block_bytes) / SECTOR_BYTES;
        let start = extent.start.0 / block * block;
        let end = extent.end().0.next_multiple_of(block);
        let mut buf = Buf::zeroed(((end - start) * SECTOR_BYTES) as usize);
        if start < extent.start.0 || extent.end().0 < end {
            match self.data.read(Lba(start), buf.len()) {
                Ok(old) => buf = old,
                Err(error) if of_medium(&error) => return Ok(false),
                Err(source) => return Err(LogError::Io { what: "reading the data disk", source }),
            }
        }
        let from = ((extent.start.0 - start) * SECTOR_BYTES) as usize;
        buf.bytes_mut()[from..from + bytes.len()].copy_from_slice(bytes);
        match self.data.write(Lba(start), buf) {
            Ok(()) => Ok(true),
            Err(error) if of_medium(&error) => Ok(false),
            Err(source) => Err(LogError::Io { what: "writing the data disk", source }),
        }
    }

    fn zero(&mut self, extent: Extent, kind: EntryKind) -> Result<(), LogError> {
        if !self.write {
            return Ok(());
        }
        let geometry = self.data.geometry();
        let block = u64::from(geometry.logical_block_bytes) / SECTOR_BYTES;
        let aligned = extent.start.0.is_multiple_of(block) && extent.sectors.is_multiple_of(block);
        if aligned && (geometry.fast_zeroes || geometry.discards == Discards::Zero) {
            let unmap = kind != EntryKind::Zeroes;
            let io = Io::WriteZeroes { extent, unmap, durability: Durability::Volatile };
            match self.data.run(io).status {
                Ok(()) => {
                    self.report.zeroed_bytes += extent.sectors * SECTOR_BYTES;
                    return Ok(());
                }
                // Plain writes return a more exact error and its place.
                Err(error) if of_medium(&error) || error.kind == ErrorKind::Unsupported => {}
                Err(source) => return Err(LogError::Io { what: "zeroing on the data disk", source }),
            }
        }
        let written_before = self.report.written_bytes;
        let mut at = extent.start;
        while at < extent.end() {
            let sectors = (extent.end() - at).min(CHUNK_SECTORS);
            let zeroes = vec![0; (sectors * SECTOR_BYTES) as usize];
            self.write_piecewise(Extent::new(at, sectors), &zeroes)?;
            at = at + sectors;
        }
        self.report.zeroed_bytes += self.report.written_bytes - written_before;
        self.report.written_bytes = written_before;
        Ok(())
    }
}
