//! Activation: checks that the disks are the right ones, recovers the log into the table, and begins a new epoch.
//!
//! Writing begins only after everything has been read and checked. Then both disks are flushed: after a kill, records of the log and
//! writes that bypassed it may still be volatile. Last, one superblock, whose writing begins with the flush of the log, makes the new
//! epoch real. After a crash anywhere, the next start has the same outcome.

use super::answers::{Answers, MemoryPlace, Taken, take_in};
use super::copies;
use super::core::Core;
use super::data_disk::DataDisk;
use super::destager::ordered::{Cursor, Ordered};
use super::destager::{Destager, Destagers};
use super::disks::{AddressSpace, DataDisks, PART_SECTORS};
use super::env::{DATA, LOG, data_port};
use super::error::{LogError, OtherData};
use super::fingerprint::{Comparison, CoveredLines, LineContent, RetainedFingerprint};
use super::format::{Entry, EntryKind, Header, LogState, LogSuperblock, MemoryMark, NO_COPIES, OtherDisk};
use super::index::Index;
use super::keep::Keep;
use super::log::Log;
use super::offline::{check_sizes, live_superblock, read_copies, refuse_out_of_use, write_superblock};
use super::recover::{DamageKind, RecoverError, Visitor, WalkOptions, Walked, walk};
use super::ring::Ring;
use super::summary;
use super::table::{Line, Place, TablePart};
use super::through::through_refusal;
use super::{LogCacheConfig, LogCanary, Promise, Reads, WriteRoute};
use crate::layer::{BlockDevice, Geometry, PortDevice, Ports};
use crate::planted::Planted;
use crate::{Extent, LINE_BYTES};

/// Spare lines of the table, beyond the blocks of the log, so that recovery always fits.
const TABLE_SLACK_LINES: usize = 1024;

/// State that the walk builds in memory.
struct Replay {
    index: Index,
    /// Each segment with its first record and the record's sector, in the order of the walk.
    segments: Vec<(u32, u64, u64)>,
    overflow: bool,
    /// True if an entry says that the data disk has a newer copy.
    invalidates: bool,
}

impl Replay {
    fn record(&mut self, header: &Header) {
        let segment = self.index.segment_of(Place(header.sector));
        if self.segments.last().is_none_or(|(last, ..)| *last != segment) {
            self.segments.push((segment, header.seq, header.sector));
        }
        self.invalidates |=
            header.entries.iter().any(|e| matches!(e.kind, EntryKind::Invalidate | EntryKind::Clean));
        self.overflow |= !self.index.insert_record(header);
    }

    /// Forgets clean copies permanently if lost records may have invalidated them, or if the configuration says so.
    fn doubt_kept(&mut self, config: &LogCacheConfig, superblock: &mut LogSuperblock, walked: &Walked) {
        if config.doubt_kept
            || walked.damage.iter().any(|damage| damage.kind != DamageKind::Payload)
            || walked.damages > walked.damage.len() as u64
        {
            self.index.forget_kept(TablePart::first(usize::MAX));
            superblock.kept_seq = walked.next_seq;
        }
        if superblock.kept_seq == NO_COPIES {
            superblock.kept_seq = walked.next_seq;
        }
    }

    /// Forgets entries of records that turned out to be destaged.
    fn purge_before(&mut self, superblock: &LogSuperblock, walked: &Walked, with_kept: bool) {
        let keep = superblock.segment_of(walked.tail_sector);
        let whole = self.segments.iter().take_while(|(segment, ..)| walked.is_empty() || *segment != keep);
        let mut released: Vec<_> = whole
            .map(|(segment, ..)| superblock.segment_start(*segment))
            .map(|start| Place(start)..Place(start + superblock.segment_sectors()))
            .collect();
        released.extend(walked.destaged.iter().map(|sectors| Place(sectors.start)..Place(sectors.end)));
        self.index.forget_before(walked.tail_seq, &released, with_kept);
    }

    /// Refuses a log with too many pieces, or with entries that the configuration does not allow.
    const fn check(&self, config: &LogCacheConfig) -> Result<(), LogError> {
        if self.overflow {
            return Err(LogError::TooManyPieces);
        }
        if config.ordered_destage && self.invalidates {
            return Err(LogError::Bypassed);
        }
        Ok(())
    }
}

/// Reads, checks, recovers, and begins a new epoch.
pub fn activate(
    mut config: LogCacheConfig,
    mut memory: Option<&mut (dyn MemoryPlace + 'static)>,
    disks: usize,
    below: &mut dyn Ports,
) -> Result<Core, LogError> {
    let (log, data) = (below.geometry(LOG), below.geometry(DATA));
    let mut device = PortDevice { ports: below, port: LOG };
    let copies = read_copies(&mut device)?;
    let mut superblock = live_superblock(&copies)?;
    if config.canary.is(LogCanary::BelieveCopies) {
        superblock.kept_seq = 0;
    }
    refuse_out_of_use(&superblock)?;
    refuse_disks(&superblock, &config, disks, below)?;
    refuse_other_machine(&superblock, &config)?;
    check_sizes(&superblock, log, Some(data).filter(|_| !config.is_missing(0)))?;
    if !(2..=usize::from(u16::MAX)).contains(&config.segment_buffers) {
        return Err(LogError::Options(
            "segment-buffers must be from 2 to 65535: one is filled while others are written",
        ));
    }
    // An array below fills gaps itself: what was measured of a disk does not apply to it, and neither to other disks.
    if config.contiguity.is_none() && config.calibrated && data.stripes.is_none() && disks == 1 {
        config.contiguity = superblock.calibration.clone().filter(|rules| config.may_fill(rules));
    }
    refuse_keep(&config, log)?;
    through_refusal(&config, disks).map_or(Ok(()), |why| Err(LogError::Options(why)))?;
    let are_good = copies.iter().all(Result::is_ok);
    let canary = config.canary.is_any(|canary| canary.is_of_rot() || canary == LogCanary::IgnoreEpochs);
    let summaries = are_good && summary::are_used(&superblock, &log) && !config.accept_damage && !canary;
    copies::distrust_older(&mut PortDevice { ports: below, port: LOG }, &superblock)?;
    let mut taker = Taker { memory: memory.as_deref_mut(), result: None };
    let mut replayed = replay_either(&config, &superblock, summaries, &mut taker, below)?;
    let durable = &replayed.2.durable;
    if copies::distrust_shorter(&mut PortDevice { ports: below, port: LOG }, &superblock, durable) {
        replayed = replay_either(&config, &superblock, summaries, &mut taker, below)?;
    }
    let taken = taker.result.transpose()?.unwrap_or_default();
    if let (Some(why), true, false) = (taken.ignored, taken.is_missed, config.accept_damage) {
        return Err(LogError::MemoryMissed(why));
    }
    if replayed.2.next_seq + replayed.2.records_dropped < taken.end {
        return Err(LogError::NotTaken);
    }
    let (mut replay, identities, walked) = replayed;
    replay.check(&config)?;
    replay.doubt_kept(&config, &mut superblock, &walked);
    // A walk that skipped nothing has found all clean copies from the superblock's tail on.
    let whole = walked.damages == 0 && walked.records == walked.next_seq - superblock.tail_seq;
    let keeps = config.reads == Reads::Keep || config.writes == WriteRoute::Through && !log.rotational;
    let from = (whole && keeps).then(|| superblock.segment_of(superblock.tail_sector));
    replay.purge_before(&superblock, &walked, from.is_none());
    let Replay { mut index, segments, .. } = replay;
    if config.canary.is(LogCanary::FreeMissing) {
        free_missing(&config, &superblock, &mut index);
    }
    check_blocks(&superblock.space(), &index, below)?;
    let mut kept = check_identity(&superblock, (identities, &walked), &index, below)?;
    if config.grow {
        grow(&config, &mut superblock, &mut kept, below)?;
    }
    let ring = ring_of(&superblock, from, &walked, &segments);
    let before = superblock.clone();
    begin_epoch(&mut superblock, from.is_some(), &walked, &kept);
    superblock.machine = config.machine;
    let answers = memory.as_deref_mut().filter(|_| config.promise != Promise::Always);
    let drawn = answers.and_then(|it| it.draw(&superblock.cache_uuid, MemoryMark::NUMBER_MAX));
    superblock.memory = drawn.map(MemoryMark::new);
    for disk in (0..disks).filter(|disk| !config.is_missing(*disk)) {
        flush_data(&mut PortDevice { ports: below, port: data_port(disk) })?;
    }
    let mut device = PortDevice { ports: below, port: LOG };
    if !config.canary.is(LogCanary::UnevenCopies) {
        copies::level(&mut device, &before, &walked.to_level, config.canary)?;
    }
    write_superblock(&mut device, &mut superblock)?;
    // The log has everything in it.
    if let (Some(memory), Some(mark)) = (memory.as_deref_mut(), before.memory) {
        memory.forget(&before.cache_uuid, mark.number);
    }
    let mut core = begin(config, superblock, kept, index, ring, &walked, below);
    core.taken = taken;
    core.accepted_damage = walked.damage;
    if let (Some(memory), Some(mark)) = (memory, core.log.superblock().memory)
        && let Some(answers) = make_memory(memory, mark.number, &core.log)
    {
        let mark = mark.in_use(&memory.boot(), core.config.outlives_server);
        core.log.remember(answers, mark, &mut PortDevice { ports: below, port: LOG })?;
    }
    Ok(core)
}

/// Makes memory for this activation. The superblock has its number already, so a start after a kill in between leaves no memory behind.
fn make_memory(memory: &mut dyn MemoryPlace, number: u32, log: &Log) -> Option<Answers> {
    let superblock = log.superblock();
    let made = memory.make(&superblock.cache_uuid, number, Answers::bytes_for(log.buffers_bytes()))?;
    Answers::new(made, memory.boot(), superblock, number)
}

/// Refuses other data disks than those of the log, and settings for one disk.
fn refuse_disks(
    superblock: &LogSuperblock,
    config: &LogCacheConfig,
    disks: usize,
    below: &dyn Ports,
) -> Result<(), LogError> {
    let recorded = superblock.space();
    if recorded.count() != disks {
        return Err(LogError::Disks { found: disks, recorded: recorded.count() });
    }
    let is_known = |disk: &usize| recorded.sectors(*disk) > 0;
    let missing: Vec<usize> = (0..disks).filter(|disk| config.is_missing(*disk)).collect();
    if missing.len() == disks || !missing.iter().all(is_known) {
        return Err(LogError::Options(
            "only data disks that the log knows may be missing, and not all of them",
        ));
    }
    for disk in (1..disks).filter(|disk| !config.is_missing(*disk)) {
        let (found, recorded) = (below.geometry(data_port(disk)).sectors, recorded.sectors(disk));
        if found < recorded {
            return Err(LogError::Smaller { which: "data disk", found, recorded });
        }
    }
    if disks > 1 && config.ordered_destage {
        return Err(LogError::Options("ordered-destage is for a log with one data disk: leave it out"));
    }
    Ok(())
}

/// Refuses a log that another machine may serve: each would overwrite what the other has written.
fn refuse_other_machine(superblock: &LogSuperblock, config: &LogCacheConfig) -> Result<(), LogError> {
    match superblock.other_machine(config.machine) {
        Some(other) if !config.take_over && !config.canary.is(LogCanary::AnyMachine) => {
            Err(LogError::OtherMachine { other, this: config.machine })
        }
        _ => Ok(()),
    }
}

/// Refuses clean copies: on one arm each would cost a seek, and ordered destage takes all data in the log for writes.
const fn refuse_keep(config: &LogCacheConfig, log: Geometry) -> Result<(), LogError> {
    if matches!(config.reads, Reads::Pass) {
        return Ok(());
    }
    if log.rotational {
        return Err(LogError::Options(
            "reads = \"keep\" needs a log that is not rotational, but the log device reports that it is: leave \"reads\" out",
        ));
    }
    if config.ordered_destage {
        return Err(LogError::Options(
            "reads = \"keep\" and ordered-destage exclude each other: leave one out",
        ));
    }
    Ok(())
}

/// Takes in the memory of the last process, once, when a walk has come to the end of the log.
struct Taker<'a> {
    memory: Option<&'a mut (dyn MemoryPlace + 'static)>,
    result: Option<Result<Taken, LogError>>,
}

/// Receivers of the walk's records.
struct WalkReceivers<'a, 'm> {
    superblock: &'a LogSuperblock,
    taker: &'a mut Taker<'m>,
    replay: &'a mut Replay,
    identities: &'a mut [WalkedIdentity],
    canary: Planted<LogCanary>,
}

/// Findings of a walk about the identity of a data disk.
enum WalkedIdentity {
    Compared(Comparison),
    /// The disk is missing: the start that finds it again compares it.
    Retained(RetainedFingerprint),
}

impl WalkedIdentity {
    fn record(&mut self, header: &Header) {
        match self {
            WalkedIdentity::Compared(comparison) => comparison.record(header),
            WalkedIdentity::Retained(retained) => retained.record(header),
        }
    }
}

impl WalkReceivers<'_, '_> {
    /// True for a record of a missing disk alone.
    fn is_of_missing(&self, header: &Header) -> bool {
        let is_missing = |entry: &Entry| {
            let disk = self.superblock.space().disk_of(entry.extent.start);
            matches!(self.identities.get(disk), Some(WalkedIdentity::Retained(_)))
        };
        header.entries.iter().all(is_missing)
    }
}

impl Visitor for WalkReceivers<'_, '_> {
    fn record(&mut self, header: &Header, _bad: &[usize]) {
        if self.canary.is(LogCanary::SkipMissing) && self.is_of_missing(header) {
            return;
        }
        if self.canary.is(LogCanary::OtherDisk) {
            let mut header = header.clone();
            header.entries.iter_mut().for_each(|entry| entry.extent.start.0 %= PART_SECTORS);
            return self.replay.record(&header);
        }
        self.replay.record(header);
        self.identities.iter_mut().for_each(|identity| identity.record(header));
    }

    fn upcoming(&mut self, headers: &mut dyn Iterator<Item = &Header>) {
        let data = |entry: &&Entry| entry.kind.has_payload();
        let lines =
            headers.flat_map(|header| header.entries.iter().filter(data)).map(|e| Line::of(e.extent.start));
        self.replay.index.table().touch(lines);
    }

    fn at_end(&mut self, log: &mut dyn BlockDevice, walked: &Walked) -> bool {
        let Some(memory) = self.taker.memory.take() else { return false };
        let taken = take_in(log, memory, self.superblock, walked, self.canary);
        let goes_on = taken.as_ref().is_ok_and(|taken| taken.records > 0);
        self.taker.result = Some(taken);
        goes_on
    }
}

/// Walks the log into memory, without summaries if there is damage.
fn replay_either(
    config: &LogCacheConfig,
    superblock: &LogSuperblock,
    summaries: bool,
    taker: &mut Taker<'_>,
    below: &mut dyn Ports,
) -> Result<(Replay, Vec<WalkedIdentity>, Walked), LogError> {
    match replay(config, superblock, summaries, taker, below) {
        Err(LogError::Recover(RecoverError::Damage(_))) if summaries => {
            replay(config, superblock, false, taker, below)
        }
        replayed => replayed,
    }
}

/// Walks the log into memory.
fn replay(
    config: &LogCacheConfig,
    superblock: &LogSuperblock,
    summaries: bool,
    taker: &mut Taker<'_>,
    below: &mut dyn Ports,
) -> Result<(Replay, Vec<WalkedIdentity>, Walked), LogError> {
    let blocks = superblock.segments as usize * superblock.segment_bytes as usize / 4096;
    let disks = 0..superblock.space().count();
    let sectors_of = |disk: usize| match config.is_missing(disk) {
        true => superblock.space().sectors(disk),
        false => below.geometry(data_port(disk)).sectors,
    };
    let space = AddressSpace::new(disks.clone().map(sectors_of).collect());
    let index = Index::new(superblock, space, blocks + TABLE_SLACK_LINES);
    let mut replay = Replay { index, segments: Vec::new(), overflow: false, invalidates: false };
    let (accept_damage, canary) = (config.accept_damage, config.canary);
    let options = WalkOptions { accept_damage, summaries, canary, ..WalkOptions::default() };
    let mut identities = Vec::new();
    for disk in disks {
        if config.is_missing(disk) {
            let exact = canary.is(LogCanary::ExactMissing);
            identities.push(WalkedIdentity::Retained(RetainedFingerprint::new(superblock, disk, exact)));
            continue;
        }
        let comparison =
            Comparison::new(superblock, disk, &mut PortDevice { ports: below, port: data_port(disk) });
        identities.push(WalkedIdentity::Compared(comparison.map_err(LogError::io("reading the data disk"))?));
    }
    let mut device = PortDevice { ports: below, port: LOG };
    let (replay_to, identities_to) = (&mut replay, &mut identities);
    let mut start = WalkReceivers { superblock, taker, replay: replay_to, identities: identities_to, canary };
    let walked = walk(&mut device, superblock, options, &mut start)?;
    Ok((replay, identities, walked))
}

/// Begins an epoch. `remembers`: the next walk begins where this one began.
fn begin_epoch(superblock: &mut LogSuperblock, remembers: bool, walked: &Walked, kept: &[CoveredLines]) {
    superblock.state = LogState::Active;
    superblock.epoch = walked.epoch_max.max(superblock.epoch) + 1;
    superblock.epoch_start_seq = walked.next_seq;
    superblock.live_seq = walked.tail_seq;
    superblock.live_sector = walked.tail_sector;
    if !remembers {
        superblock.tail_seq = walked.tail_seq;
        superblock.tail_sector = walked.tail_sector;
    }
    superblock.durable_seq = walked.next_seq;
    superblock.flush_epoch = walked.flush_epoch + 1;
    superblock.set_fingerprints(kept.iter().map(CoveredLines::fingerprint));
    superblock.end_records_at(walked.next_seq);
    // After damage the sequence numbers of lost records are reused: a summary may still list the lost ones.
    if walked.damages > 0 || superblock.summaries_epoch == 0 {
        superblock.summaries_epoch = superblock.epoch;
    }
}

/// Checks that dirty data consists of whole blocks of its data disk, as the disk's blocks may have been smaller when the data was written.
fn check_blocks(space: &AddressSpace, index: &Index, below: &dyn Ports) -> Result<(), LogError> {
    let geometries: Vec<Geometry> = (0..space.count()).map(|disk| below.geometry(data_port(disk))).collect();
    if geometries.iter().all(|geometry| geometry.block_sectors() == 1) {
        return Ok(());
    }
    let is_whole =
        |extent: Extent| extent.is_multiple_of(geometries[space.disk_of(extent.start)].block_sectors());
    let mut parts = index.ranges().iter().filter(|part| !is_whole(part.extent)).count();
    index.table().scan(|line, piece| {
        if piece.dirty {
            let mut whole = true;
            line.runs(piece.mask, |run| whole &= is_whole(run));
            parts += usize::from(!whole);
        }
    });
    match parts {
        0 => Ok(()),
        _ => {
            let block_bytes =
                geometries.iter().map(|geometry| geometry.logical_block_bytes).max().unwrap_or(0);
            Err(LogError::PartsOfBlocks { block_bytes, parts })
        }
    }
}

/// A previous process may have been killed with writes that bypass the log in the disk's volatile cache. No later flush of a client would
/// cover them, as nothing in this activation bypassed the log.
fn flush_data(data: &mut dyn BlockDevice) -> Result<(), LogError> {
    data.flush().map_err(LogError::io("flushing the data disk"))
}

/// Rule 11: checks by the fingerprints that the data disks are unchanged; returns their present fingerprints.
fn check_identity(
    superblock: &LogSuperblock,
    (identities, walked): (Vec<WalkedIdentity>, &Walked),
    index: &Index,
    below: &mut dyn Ports,
) -> Result<Vec<CoveredLines>, LogError> {
    let mut kept = Vec::new();
    for (disk, identity) in identities.into_iter().enumerate() {
        let comparison = match identity {
            WalkedIdentity::Compared(comparison) => comparison,
            WalkedIdentity::Retained(mut retained) => {
                retained.end_walk(walked);
                kept.push(CoveredLines::retained(retained));
                continue;
            }
        };
        let found = comparison.finish(&mut PortDevice { ports: below, port: LOG }, walked)?;
        if let Some(first) = found.differing.first() {
            let lines = found.differing.len();
            let first_byte = first * crate::LINE_BYTES;
            return Err(OtherData { disk, lines, first_byte, dirty_bytes: index.dirty_bytes() }.into());
        }
        kept.push(covered(superblock, disk, Some(found.content), below)?);
    }
    Ok(kept)
}

/// Takes the present fingerprint of a data disk, of which some content may be known.
fn covered(
    superblock: &LogSuperblock,
    disk: usize,
    content: Option<LineContent>,
    below: &mut dyn Ports,
) -> Result<CoveredLines, LogError> {
    let (sectors, uuid) = (superblock.space().sectors(disk), &superblock.cache_uuid);
    let data = &mut PortDevice { ports: below, port: data_port(disk) };
    let kept = match (disk, content) {
        (0, Some(content)) => CoveredLines::new(content, data, sectors, uuid),
        (0, None) => CoveredLines::read(data, sectors, uuid),
        (_, content) => {
            let lines_max = OtherDisk::lines_max(superblock.other_disks.len());
            CoveredLines::few(content.unwrap_or_default(), data, sectors, uuid, lines_max)
        }
    };
    Ok(kept.map_err(LogError::io("reading the data disk"))?.moved(AddressSpace::start(disk)))
}

/// Serves all of the data disks that have grown. Their fingerprints then cover other lines.
fn grow(
    config: &LogCacheConfig,
    superblock: &mut LogSuperblock,
    kept: &mut [CoveredLines],
    below: &mut dyn Ports,
) -> Result<(), LogError> {
    let is_one = superblock.other_disks.is_empty();
    for (disk, kept) in kept.iter_mut().enumerate() {
        if superblock.space().sectors(disk) == 0 || config.is_missing(disk) {
            continue;
        }
        let found = below.geometry(data_port(disk)).sectors;
        let sectors = if is_one { found } else { found.min(PART_SECTORS) };
        if sectors > superblock.space().sectors(disk) {
            match disk {
                0 => superblock.data_sectors = sectors,
                _ => superblock.other_disks[disk - 1].sectors = sectors,
            }
            *kept = covered(superblock, disk, None, below)?;
        }
    }
    Ok(())
}

/// Calls the blocks of missing disks clean: a planted bug.
fn free_missing(config: &LogCacheConfig, superblock: &LogSuperblock, index: &mut Index) {
    let mut dirty = Vec::new();
    index.table().scan(|line, piece| dirty.push((line, piece.place)));
    for (line, place) in dirty {
        if config.is_missing(superblock.space().disk_of(line.start())) {
            index.clean(line, place);
        }
    }
}

/// Builds the ring. `from`: the first segment that a later recovery reads, if not the tail's.
fn ring_of(
    superblock: &LogSuperblock,
    from: Option<u32>,
    walked: &Walked,
    segments: &[(u32, u64, u64)],
) -> Ring {
    // If nothing is live, the log ends where it begins: that place may be the end of one segment and the start of the next.
    let tail = if walked.is_empty() { walked.end_segment } else { superblock.segment_of(walked.tail_sector) };
    let kept = from.unwrap_or(tail);
    let mut ring = Ring::new(superblock.segments, kept, tail, walked.end_segment, walked.tail_seq);
    for &(segment, first_seq, sector) in segments {
        if first_seq > walked.tail_seq || from.is_some() && segment != tail {
            let info = ring.at_mut(segment);
            info.first_seq = first_seq;
            info.set_first_offset(sector - superblock.segment_start(segment));
        }
    }
    // The start of the next segment is the end of this one.
    let is_here = superblock.segment_of(walked.tail_sector) == tail;
    let offset = is_here.then(|| walked.tail_sector - superblock.segment_start(tail));
    ring.at_mut(tail).set_first_offset(offset.unwrap_or(superblock.segment_sectors()));
    // A segment that the log skipped gets the first record of the next segment.
    let mut next = walked.next_seq;
    for number in (ring.kept()..=ring.head()).rev() {
        let index = ring.index(number);
        if ring.at(index).first_seq == 0 {
            ring.at_mut(index).first_seq = next;
        }
        next = ring.at(index).first_seq;
    }
    ring
}

fn begin(
    config: LogCacheConfig,
    superblock: LogSuperblock,
    kept: Vec<CoveredLines>,
    index: Index,
    ring: Ring,
    walked: &Walked,
    below: &dyn Ports,
) -> Core {
    let (log, space) = (below.geometry(LOG), superblock.space());
    let disks = space.count();
    let geometry_of = |disk: usize| match config.is_missing(disk) {
        true => Geometry::plain(space.sectors(disk)),
        false => below.geometry(data_port(disk)),
    };
    let disk_of = |(disk, kept)| DataDisk::new(geometry_of(disk), kept);
    let data: Vec<DataDisk> = kept.into_iter().enumerate().map(disk_of).collect();
    // The disks share the memory for destaging.
    let own = LogCacheConfig { destage_memory: config.destage_memory / disks, ..config.clone() };
    let destager = |(disk, data): (usize, &DataDisk)| {
        let ordered = config.ordered_destage.then(|| {
            let start = Cursor { seq: walked.tail_seq, segment: ring.tail(), epoch: 0 };
            let space = AddressSpace::one(data.geometry().sectors);
            Ordered::new(Index::new(&superblock, space, index.table().lines_max()), start)
        });
        Destager::new(&own, &superblock, ordered, &log, (disk, data.geometry()))
    };
    let destagers = Destagers::new(data.iter().enumerate().map(destager).collect(), space.clone());
    let lines = u64::from(superblock.segments) * u64::from(superblock.segment_bytes) / LINE_BYTES;
    let keep = Keep::new(if config.reads == Reads::Keep { lines } else { 0 });
    let log = Log::new(&config, superblock, log, ring, walked);
    Core::new(config, log, DataDisks::new(space, data), index, destagers, keep)
}

#[cfg(test)]
#[path = "activate_tests.rs"]
mod tests;
