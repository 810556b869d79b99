//! Recovery: walks the log from its tail to its end, and hands every record to a [`Visitor`] in order.
//!
//! The walk knows the sequence number that it expects and looks for it in the segment of the last record, where it may be before that
//! record, and in the next segment. A missing record ends the log, unless something proves that it was there once: a superblock
//! or a later header that calls it durable, or an unreadable sector. That is damage, and the walk stops with an error, or continues if it
//! is told to (see [`WalkOptions::accept_damage`]).
//!
//! The proof may lie anywhere, so at the end of the log a walk after a crash searches the rest of the log, too (see `search::Headers`):
//! with summaries, only segments that have been entered. After a clean stop it reads no further than the next segment.
//!
//! The walk writes nothing, so a crash during it changes nothing; a visitor may write records at its end ([`Visitor::at_end`]). Memory is
//! bounded: a segment for each copy and one more, 4 MiB of summaries, the headers of one unfinished request, and 16 bytes for each record
//! that is not destaged yet. Time is bounded by one lap of the ring, and two more if a durable record is missing.

mod reader;
mod search;
mod summaries;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::ops::Range;

use super::LogCanary;
use super::format::{EntryKind, Header, LOG_SECTORS_MAX, LogSuperblock, SEGMENT_BYTES_MAX};
use crate::{BlockDevice, Extent, IoError, Planted, SECTOR_BYTES};
use reader::LogReader;
use search::{Headers, SegmentHeaders};
use summaries::Summaries;

/// Records from this size on are skipped, and only their headers read; smaller ones are read with their segment.
const HOP_SECTORS: u64 = 128;
/// Like `HOP_SECTORS`, on a rotational log. Hopping gains less there: the platter must turn past the payload anyway, and a read that
/// comes a little late waits for a revolution. Records of a few hundred KiB took three times as long as reading on. (Many virtual disks
/// falsely report that they are rotational: they gain from hopping over records that fill a segment.)
const HOP_SECTORS_SPINNING: u64 = 768;
/// Maximum number of records in a chain that is believed. The largest request (32 MiB) in the smallest segments (16 KiB) needs about
/// 2700.
pub const CHAIN_RECORDS_MAX: usize = 4096;
/// Durable records whose headers are looked for in each copy of the log.
const DURABLE_MAX: usize = 16;
/// Maximum number of extents and of damages that a report lists; all are counted.
pub const LISTED_MAX: usize = 10_000;

/// Options of a walk.
#[derive(Clone, Copy, Debug, Default)]
pub struct WalkOptions {
    /// Continues although acknowledged records are damaged. A record with a bad payload is still visited: its sectors fail their checksum
    /// when they are read, so exactly they are errors. Records without a header are skipped, and the walk continues with the next one
    /// that certainly belongs to the chain: sectors of lost records read as before. The hole stays in the log until everything in it is
    /// destaged.
    pub accept_damage: bool,
    /// Reads segments by their summaries if possible, and stops at anything that looks like damage: the caller walks again without them.
    pub summaries: bool,
    /// Reads every payload, not only those that may be torn, and searches all segments after a clean stop, too.
    pub verify_all: bool,
    pub canary: Planted<LogCanary>,
}

/// Takes the records of a walk, oldest first.
///
/// Records that turn out to be destaged only later in the walk are visited too: the visitor must then forget all from records before
/// [`Walked::tail_seq`].
pub trait Visitor {
    /// `bad` holds the indexes of the data entries whose payload was read and failed its checksum; empty unless damage is accepted.
    fn record(&mut self, header: &Header, bad: &[usize]);

    /// Announces records, nearly all of which are visited soon.
    fn upcoming(&mut self, _headers: &mut dyn Iterator<Item = &Header>) {}

    /// Takes the end of the log. True if it has written records there: then the walk goes on.
    fn at_end(&mut self, _log: &mut dyn BlockDevice, _walked: &Walked) -> bool {
        false
    }
}

impl<F: FnMut(&Header, &[usize])> Visitor for F {
    fn record(&mut self, header: &Header, bad: &[usize]) {
        self(header, bad);
    }
}

/// Kind of damage to acknowledged records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DamageKind {
    /// The header is intact, the payload is not: the lost sectors are known.
    Payload,
    /// A durable record has no header.
    Missing,
    /// The log device cannot read the place where the next record would be.
    Unreadable,
    /// Some records are of a later activation than any readable superblock knows.
    NewerEpoch,
}

/// Acknowledged records that are lost, or may be.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Damage {
    pub kind: DamageKind,
    /// The records concerned: `seq..until_seq`. For [`DamageKind::Unreadable`] the last record is not known.
    pub seq: u64,
    pub until_seq: u64,
    /// Sector on the log device.
    pub sector: u64,
    /// The sectors of the data disk whose newest copy is lost, as far as known.
    pub lost: Vec<Extent>,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Damage { seq, until_seq, sector, .. } = self;
        match self.kind {
            DamageKind::Payload => {
                let bytes: u64 = self.lost.iter().map(|extent| extent.sectors * 512).sum();
                write!(f, "record {seq} at log sector {sector} has lost {bytes} bytes of payload:")?;
                for extent in self.lost.iter().take(8) {
                    write!(f, " {extent}")?;
                }
                if self.lost.len() > 8 { write!(f, " and {} more", self.lost.len() - 8) } else { Ok(()) }
            }
            DamageKind::Missing => write!(
                f,
                "records {seq}..{until_seq} were durable but are missing from log sector {sector} on; \
                 their content is not known"
            ),
            DamageKind::Unreadable => write!(
                f,
                "log sector {sector} cannot be read, and record {seq} may have been there; its content is not known"
            ),
            DamageKind::NewerEpoch => write!(
                f,
                "log sector {sector} holds a record of a later activation than the superblock knows: the newest superblock is lost"
            ),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("the log is damaged: {0}. Acknowledged writes are lost. Nothing was changed")]
    Damage(Box<Damage>),
    #[error(
        "record {seq} at log sector {sector} continues over more than {CHAIN_RECORDS_MAX} records: no version of this program \
         writes that, so the log is not trusted"
    )]
    ChainTooLong { seq: u64, sector: u64 },
    #[error("reading the log device at sector {sector}: {source}")]
    Io { sector: u64, source: IoError },
}

/// The log as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// The sequence number of the next record to be written.
    pub next_seq: u64,
    /// Sector where the next record must begin, in segment `end_segment`, after all of its records; if that segment ends here, the start of
    /// the next one. The record must begin exactly here, if necessary without entries: a walk that skips payloads expects it here, where a
    /// leftover of this sequence number may lie. (Other leftovers have lower epochs.)
    pub end: u64,
    pub end_segment: u32,
    /// The first record that is not destaged, and its sector; the end of the log if all are destaged.
    pub tail_seq: u64,
    pub tail_sector: u64,
    /// The sectors of the destaged records in the segment of `tail_sector`, if any record is not destaged.
    pub destaged: Vec<Range<u64>>,
    /// The highest epoch of any record, or the superblock's: the next activation must be above it.
    pub epoch_max: u64,
    /// Flush epoch of the newest record.
    pub flush_epoch: u64,
    /// Records visited, and how many of them are destaged (before `tail_seq`).
    pub records: u64,
    pub records_destaged: u64,
    /// Records at the end whose request was incomplete: they were not visited and will be overwritten.
    pub records_dropped: u64,
    /// Sector of a torn record at the end of the log.
    pub torn_sector: Option<u64>,
    pub reads: u64,
    pub bytes_read: u64,
    /// Damage that was accepted. At most [`LISTED_MAX`] are listed; `damages` counts all.
    pub damage: Vec<Damage>,
    pub damages: u64,
    /// Records that a copy of a mirrored log may lack: nothing says that they were durable, or one copy of them failed its check.
    pub to_level: Vec<Believed>,
    /// The newest records that every copy must have, oldest first: a later record or the superblock calls them durable. Empty if there is
    /// one copy.
    pub durable: Vec<Believed>,
}

impl Walked {
    /// True if nothing in the log is left to destage.
    pub const fn is_empty(&self) -> bool {
        self.tail_seq == self.next_seq
    }
}

/// A record that the walk has taken into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Believed {
    pub seq: u64,
    /// A stale copy may have another record of this number, of an earlier activation.
    pub epoch: u64,
    pub sector: u64,
}

/// A place between records.
#[derive(Clone, Copy, Debug)]
struct WalkPlace {
    segment: u32,
    sector: u64,
    /// The end of the last of the segment's records, which may be after the newest one.
    end: u64,
    /// Segments that may still be entered in this lap.
    segments_left: u32,
}

/// A record, in 16 bytes: there may be many.
#[derive(Clone, Copy)]
struct LiveRecord {
    seq: u64,
    /// The first sector, times 2^16, plus the number of sectors.
    place: u64,
}

const _: () = assert!(LOG_SECTORS_MAX <= 1 << 48 && SEGMENT_BYTES_MAX as u64 / SECTOR_BYTES < 1 << 16);

impl LiveRecord {
    fn new(header: &Header) -> LiveRecord {
        LiveRecord { seq: header.seq, place: header.sector << 16 | u64::from(header.sectors) }
    }

    const fn sectors(&self) -> Range<u64> {
        let start = self.place >> 16;
        start..start + self.place % (1 << 16)
    }
}

/// Meaning of a missing record.
enum Missing {
    End,
    Damaged { damage: Damage, proof: Option<Header> },
}

/// State of the next record's payload.
enum Payload {
    /// Intact, except for these entries.
    Kept(Vec<usize>),
    /// Bad, and the log ends before this record.
    Torn,
    /// Bad, but the record is destaged: the walk has restarted after it.
    Destaged,
}

struct Walk<'a> {
    reader: LogReader<'a>,
    superblock: LogSuperblock,
    summaries: Option<Summaries>,
    options: WalkOptions,
    /// The expected record.
    seq: u64,
    place: WalkPlace,
    epoch: u64,
    last_sectors: u64,
    hop_sectors: u64,
    /// Findings from all headers, if they had to be read.
    survey: Option<Headers>,
    /// True once the present tail was looked up.
    tail_searched: bool,
    oldest_live_seq: u64,
    flush_epoch: u64,
    /// The headers of the place's segment and of the one after it, as far as they had to be read.
    loaded: Vec<SegmentHeaders>,
    /// The sectors of the visited records in the place's segment.
    known: Vec<Range<u64>>,
    /// The records that are not known to be destaged; next, those of the first one's segment that are destaged.
    live: VecDeque<LiveRecord>,
    destaged: Vec<Range<u64>>,
    /// The records of a request that has not ended yet; next, the place before the first of them.
    chain: Vec<(Header, Vec<usize>)>,
    chain_place: WalkPlace,
    records: u64,
    torn_sector: Option<u64>,
    damage: Vec<Damage>,
    damages: u64,
    /// The copy in which the last header was found.
    found_on: usize,
    /// Some visited header calls every record before this one durable.
    durable_seq: u64,
    /// See [`Walked::to_level`]; true if copies are known to differ.
    to_level: VecDeque<(Believed, bool)>,
    /// See [`Walked::durable`].
    durable: VecDeque<Believed>,
}

/// Walks the log from the superblock's tail to its end.
pub fn walk(
    log: &mut dyn BlockDevice,
    superblock: &LogSuperblock,
    options: WalkOptions,
    visitor: &mut dyn Visitor,
) -> Result<Walked, RecoverError> {
    let place = WalkPlace {
        segment: superblock.segment_of(superblock.tail_sector),
        sector: superblock.tail_sector,
        end: superblock.tail_sector,
        segments_left: superblock.segments - 1,
    };
    let hop_sectors = if log.geometry().rotational { HOP_SECTORS_SPINNING } else { HOP_SECTORS };
    let mut reader = LogReader::new(log, superblock);
    let summaries = match options.summaries {
        true => Summaries::read(&mut reader, superblock, options.canary)?,
        false => None,
    };
    let mut walk = Walk {
        reader,
        summaries,
        superblock: superblock.clone(),
        options,
        seq: superblock.tail_seq,
        place,
        epoch: 0,
        last_sectors: 0,
        hop_sectors,
        survey: None,
        tail_searched: false,
        oldest_live_seq: superblock.tail_seq.max(superblock.live_seq),
        flush_epoch: superblock.flush_epoch,
        loaded: Vec::new(),
        known: Vec::new(),
        live: VecDeque::new(),
        destaged: Vec::new(),
        chain: Vec::new(),
        chain_place: place,
        records: 0,
        torn_sector: None,
        damage: Vec::new(),
        damages: 0,
        found_on: 0,
        durable_seq: superblock.durable_seq,
        to_level: VecDeque::new(),
        durable: VecDeque::new(),
    };
    loop {
        walk.visit(visitor)?;
        let walked = walk.walked();
        if !visitor.at_end(walk.reader.device(), &walked) {
            return Ok(walked);
        }
        walk.reader.forget();
        walk.loaded.clear();
    }
}

impl Walk<'_> {
    /// Hands the records up to the end of the log to the visitor.
    fn visit(&mut self, visitor: &mut dyn Visitor) -> Result<(), RecoverError> {
        self.torn_sector = None;
        while let Some(mut header) = self.next()? {
            if !self.options.canary.is(LogCanary::OldPlace) {
                header.leave_out_removed(&self.superblock);
            }
            if let Some(summaries) = &mut self.summaries
                && let Some(mut headers) = summaries.newly_opened()
            {
                visitor.upcoming(&mut headers);
            }
            match self.payload(&header)? {
                Payload::Kept(bad) => self.accept(header, bad, visitor)?,
                Payload::Destaged => {}
                Payload::Torn => {
                    self.torn_sector = Some(header.sector);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns the next record, or `None` at the end of the log.
    fn next(&mut self) -> Result<Option<Header>, RecoverError> {
        loop {
            self.reader.first_unreadable = None;
            if let Some(header) = self.find_expected()? {
                return Ok(Some(header));
            }
            let (mut damage, proof) = match self.missing()? {
                Missing::End => return Ok(None),
                Missing::Damaged { damage, proof } => (damage, proof),
            };
            if self.summaries.is_some() {
                return Err(RecoverError::Damage(Box::new(damage)));
            }
            if damage.kind == DamageKind::Missing && !self.tail_searched {
                self.tail_searched = true;
                if self.find_moved_tail()? {
                    continue;
                }
            }
            match damage.kind {
                DamageKind::NewerEpoch if !self.options.accept_damage => {
                    return self.report(damage).map(|()| None);
                }
                DamageKind::NewerEpoch => {
                    self.superblock.epoch = proof.map_or(self.superblock.epoch + 1, |proof| proof.epoch);
                    self.superblock.epoch_start_seq = self.seq;
                    self.report(damage)?;
                }
                DamageKind::Unreadable => return self.report(damage).map(|()| None),
                DamageKind::Missing | DamageKind::Payload => {
                    let found = self.resume()?;
                    damage.until_seq = found.as_ref().map_or(damage.until_seq, |header| header.seq);
                    return self.report(damage).map(|()| found);
                }
            }
        }
    }

    /// Notes damage, or stops if damage is not accepted.
    fn report(&mut self, damage: Damage) -> Result<(), RecoverError> {
        if !self.options.accept_damage {
            return Err(RecoverError::Damage(Box::new(damage)));
        }
        self.damages += 1;
        if self.damage.len() < LISTED_MAX {
            self.damage.push(damage);
        }
        Ok(())
    }

    /// Verifies the payload if it may be torn.
    fn payload(&mut self, header: &Header) -> Result<Payload, RecoverError> {
        let known = header.seq < self.superblock.durable_seq
            || self
                .summaries
                .as_ref()
                .is_some_and(|summaries| summaries.is_durable(header.epoch, header.seq));
        if known && !self.options.verify_all {
            return Ok(Payload::Kept(Vec::new()));
        }
        self.reader.first_unreadable = None;
        let bad = self.bad_entries(header)?;
        if bad.is_empty() {
            return Ok(Payload::Kept(bad));
        }
        // A torn record can be read; an unreadable record may have been intact, and acknowledged.
        let durable = header.seq < self.superblock.durable_seq || self.reader.first_unreadable.is_some() || {
            self.proof_of_durability(header.seq)?.is_some()
        };
        if !durable {
            return Ok(Payload::Torn);
        }
        let damage = Damage {
            kind: DamageKind::Payload,
            seq: header.seq,
            until_seq: header.seq + 1,
            sector: header.sector,
            lost: bad.iter().map(|&index| header.entries[index].extent).collect(),
        };
        if self.summaries.is_some() {
            return Err(RecoverError::Damage(Box::new(damage)));
        }
        if !self.tail_searched {
            self.tail_searched = true;
            if self.find_moved_tail()? {
                return Ok(Payload::Destaged);
            }
        }
        self.report(damage)?;
        Ok(Payload::Kept(bad))
    }

    fn bad_entries(&mut self, header: &Header) -> Result<Vec<usize>, RecoverError> {
        let end = self.segment_end(self.superblock.segment_of(header.sector));
        let _ = self.reader.get(0, header.sector, u64::from(header.sectors), end)?;
        let mut sector = header.sector + self.superblock.log_block_sectors();
        let mut bad = Vec::new();
        for (index, entry) in header.entries.iter().enumerate() {
            // A clean copy is checked when it is read: losing it loses nothing.
            if entry.kind == EntryKind::Data {
                let is_whole = |bytes: &[u8]| (crc32c::crc32c(bytes) == entry.crc).then_some(());
                match self.reader.find((sector, entry.extent.sectors, end), is_whole)? {
                    Some((_, copy)) => self.found_on = self.found_on.max(copy),
                    None => bad.push(index),
                }
            }
            sector += entry.payload_sectors();
        }
        Ok(bad)
    }

    /// Adds a record to the log, and visits the records of its request once that is complete.
    fn accept(
        &mut self,
        header: Header,
        bad: Vec<usize>,
        visitor: &mut dyn Visitor,
    ) -> Result<(), RecoverError> {
        if self.chain.is_empty() {
            self.chain_place = self.place;
        } else if self.chain.len() >= CHAIN_RECORDS_MAX {
            let first = &self.chain[0].0;
            return Err(RecoverError::ChainTooLong { seq: first.seq, sector: first.sector });
        }
        let place = self.place_of(&header);
        if place.segment != self.place.segment {
            self.known.clear();
        }
        self.known.push(header.sector..place.sector);
        self.place = place;
        self.seq = header.seq + 1;
        self.epoch = header.epoch;
        self.last_sectors = u64::from(header.sectors);
        self.flush_epoch = self.flush_epoch.max(header.flush_epoch);
        self.live.push_back(LiveRecord::new(&header));
        self.note_level(&header);
        self.oldest_live_seq = self.oldest_live_seq.max(header.oldest_live_seq);
        while let Some(&record) = self.live.front().filter(|record| record.seq < self.oldest_live_seq) {
            self.live.pop_front();
            let segment = |record: &LiveRecord| self.superblock.segment_of(record.sectors().start);
            self.destaged.push(record.sectors());
            if self.live.front().is_some_and(|next| segment(next) != segment(&record)) {
                self.destaged.clear();
            }
        }
        let continues = header.continues;
        self.chain.push((header, bad));
        if !continues {
            for (header, bad) in self.chain.drain(..) {
                self.records += 1;
                visitor.record(&header, &bad);
            }
        }
        Ok(())
    }

    /// Notes a record that may have to be made the same in all copies.
    fn note_level(&mut self, header: &Header) {
        if self.reader.copies() == 1 {
            return;
        }
        let known =
            self.summaries.as_ref().is_some_and(|summaries| summaries.is_durable(header.epoch, header.seq));
        let differs = self.found_on > 0;
        let Header { seq, epoch, sector, .. } = *header;
        let believed = Believed { seq, epoch, sector };
        if differs || !known {
            self.to_level.push_back((believed, differs));
        }
        self.durable_seq = self.durable_seq.max(header.durable_seq);
        let durable_seq = self.durable_seq;
        if self.to_level.front().is_some_and(|(record, _)| record.seq < durable_seq) {
            self.to_level.retain(|(record, differs)| *differs || record.seq >= durable_seq);
        }
        self.durable.push_back(believed);
        while self.durable.get(DURABLE_MAX).is_some_and(|next| next.seq < durable_seq) {
            self.durable.pop_front();
        }
    }

    /// Returns the place after a record, which lies in the segment of the current place or in a later one.
    fn place_of(&self, header: &Header) -> WalkPlace {
        let segment = self.superblock.segment_of(header.sector);
        let segments = self.superblock.segments;
        let steps = (segment + segments - self.place.segment) % segments;
        let sector = header.sector + u64::from(header.sectors);
        let end = if steps == 0 { sector.max(self.place.end) } else { sector };
        WalkPlace { segment, sector, end, segments_left: self.place.segments_left - steps }
    }

    /// Forgets the records from this one on.
    fn drop_from(&mut self, seq: u64) {
        while self.live.back().is_some_and(|record| record.seq >= seq) {
            self.live.pop_back();
        }
    }

    fn segment_end(&self, segment: u32) -> u64 {
        self.superblock.segment_start(segment) + self.superblock.segment_sectors()
    }

    /// The log as it was found so far, without the request that is incomplete.
    fn walked(&self) -> Walked {
        let (seq, place) = match self.chain.first() {
            Some((first, _)) => (first.seq, self.chain_place),
            None => (self.seq, self.place),
        };
        let live = self.live.iter().filter(|record| record.seq < seq).count();
        let ring_end = self.superblock.end_sector();
        // The next record begins with a block, also where the last one did not.
        let end = place.end.next_multiple_of(self.superblock.log_block_sectors());
        let wrapped = if end == ring_end { self.superblock.segment_start(0) } else { end };
        let (tail_seq, tail_sector) = match self.live.front().filter(|_| live > 0) {
            Some(record) => (record.seq, record.sectors().start),
            None => (seq, wrapped),
        };
        let durable_seq = self.durable_seq.min(seq);
        Walked {
            next_seq: seq,
            end,
            end_segment: place.segment,
            tail_seq,
            tail_sector,
            destaged: if live == 0 { Vec::new() } else { self.destaged.clone() },
            epoch_max: self.superblock.epoch.max(self.epoch),
            flush_epoch: self.flush_epoch,
            records: self.records,
            records_destaged: self.records - live as u64,
            records_dropped: self.chain.len() as u64,
            torn_sector: self.torn_sector,
            reads: self.reader.reads,
            bytes_read: self.reader.bytes_read,
            damage: self.damage.clone(),
            damages: self.damages,
            to_level: self.to_level.iter().map(|(record, _)| *record).filter(|r| r.seq < seq).collect(),
            durable: self.durable.iter().filter(|record| record.seq < durable_seq).copied().collect(),
        }
    }
}
