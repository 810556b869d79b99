//! Judges a data disk by its fingerprint.
//!
//! After a clean stop every line is what the superblock says. After a crash, each sector of a line holds what the superblock says, or
//! data of some record of the walk: a batch may have destaged any part of any record, and the medium may have kept any sector of it.
//! Payload is read from the log only for lines that differ, as the checksums of entries are CRCs.

use std::collections::BTreeMap;

use super::super::LogError;
use super::super::format::{Header, Kind, State, Superblock};
use super::super::offline::read_payload;
use super::super::recover::{DamageKind, Walked};
use super::{Content, LINE, LineSum, SECTOR, line_sum, mask, part_of, sector_sums, sum};
use crate::{BlockDevice, Extent, IoError, LINE_SECTORS};

/// Maximum number of entries whose payload is read. If the log has more, lines with entries that were left out are not judged: no start
/// is refused for lack of memory.
const CANDIDATES_MAX: usize = 1 << 16;

/// An entry that covers a not yet explained part of a suspect line.
struct Candidate {
    line: u64,
    place: u64,
    extent: Extent,
    crc: u32,
}

/// A line that differs.
struct Suspect {
    recorded: LineSum,
    /// Sectors whose content comes from some record.
    explained: u8,
    /// True if some record has an entry for a part of the line.
    is_touched: bool,
}

/// A comparison under way: give it every record of the walk, then call [`Comparison::finish`].
pub struct Comparison {
    content: Content,
    suspects: BTreeMap<u64, Suspect>,
    candidates: Vec<Candidate>,
    /// True after a clean stop: no record explains a difference.
    is_exact: bool,
    compared: usize,
    log_block_sectors: u64,
}

/// Result of a comparison.
pub struct Found {
    /// Lines whose content was known and could be read.
    pub compared: usize,
    /// Lines with content that was not written through the cache.
    pub differing: Vec<u64>,
    /// Content that was read.
    pub content: Content,
}

impl Comparison {
    /// Reads the covered lines.
    pub fn new(superblock: &Superblock, data: &mut dyn BlockDevice) -> Result<Comparison, IoError> {
        let recorded = &superblock.fingerprint;
        let mut content = Content::default();
        content.read(data, recorded.lines.iter().map(|sum| sum.line))?;
        let is_exact = recorded.is_exact;
        let (mut compared, mut suspects) = (0, BTreeMap::new());
        for &recorded in &recorded.lines {
            let (Some(sum), Some(bytes)) = (recorded.sum, content.line(recorded.line)) else { continue };
            compared += 1;
            let found = if is_exact { line_sum(sector_sums(bytes)) } else { crc32c::crc32c(bytes) };
            if found != sum {
                suspects.insert(recorded.line, Suspect { recorded, explained: 0, is_touched: false });
            }
        }
        Ok(Comparison {
            content,
            suspects,
            candidates: Vec::new(),
            is_exact: superblock.state == State::Stopped && is_exact,
            compared,
            log_block_sectors: superblock.log_block_sectors(),
        })
    }

    /// Takes a record of the walk.
    pub fn record(&mut self, header: &Header) {
        if self.is_exact || self.suspects.is_empty() {
            return;
        }
        let mut place = header.sector + self.log_block_sectors;
        for entry in &header.entries {
            let lines = entry.extent.start.0 / LINE_SECTORS..entry.extent.end().0.div_ceil(LINE_SECTORS);
            for (&line, suspect) in self.suspects.range_mut(lines) {
                let bytes = self.content.line(line).expect("a suspect was read");
                let (first, count) = part_of(line, entry.extent);
                let part = &bytes[first * SECTOR..(first + count) * SECTOR];
                match entry.kind {
                    Kind::Data if self.candidates.len() < CANDIDATES_MAX => {
                        let (extent, crc) = (entry.extent, entry.crc);
                        self.candidates.push(Candidate { line, place, extent, crc });
                    }
                    Kind::Data => suspect.explained = u8::MAX,
                    Kind::Invalidate | Kind::Clean => {}
                    // The device may return anything after a discard.
                    Kind::Discard => suspect.explained |= mask(first, count),
                    Kind::Zeroes | Kind::ZeroesUnmap => {
                        explain(suspect, first, part, |_, sector| sector.iter().all(|byte| *byte == 0));
                    }
                }
                suspect.is_touched |= !matches!(entry.kind, Kind::Invalidate | Kind::Clean);
            }
            place += entry.payload_sectors();
        }
    }

    /// Judges the lines by the payloads of the records. If records of unknown content are lost, a line that other records touch may hold
    /// anything.
    pub fn finish(mut self, log: &mut dyn BlockDevice, walked: &Walked) -> Result<Found, LogError> {
        let has_holes = walked.damage.iter().any(|damage| damage.kind != DamageKind::Payload);
        for suspect in self.suspects.values_mut().filter(|suspect| suspect.is_touched) {
            let bytes = self.content.line(suspect.recorded.line).expect("a suspect was read");
            match suspect.recorded.sectors.filter(|_| !has_holes) {
                Some(sums) => explain(suspect, 0, bytes, |at, sector| sum(sector) as u8 == sums[at]),
                // Earlier versions kept one sum per line: the rest of the line may be unchanged.
                None => suspect.explained = u8::MAX,
            }
        }
        // The newest copies are the likeliest.
        for Candidate { line, place, extent, crc } in self.candidates.into_iter().rev() {
            let suspect = self.suspects.get_mut(&line).expect("a candidate is for a suspect");
            let (first, count) = part_of(line, extent);
            if suspect.explained & mask(first, count) == mask(first, count) {
                continue;
            }
            let Some(payload) = read_payload(log, place, extent, crc)? else {
                // The payload has rotted, and the disk may have its original.
                suspect.explained |= mask(first, count);
                continue;
            };
            let bytes = self.content.line(line).expect("a suspect was read");
            let part = &bytes[first * SECTOR..(first + count) * SECTOR];
            explain(suspect, first, part, |at, sector| {
                let from = (at - first) * SECTOR;
                sector == &payload[from..from + SECTOR]
            });
        }
        let differing = self.suspects.values().filter(|suspect| suspect.explained != u8::MAX);
        let differing = differing.map(|suspect| suspect.recorded.line).collect();
        Ok(Found { compared: self.compared, differing, content: self.content })
    }
}

/// Notes which sectors of a part of a line are explained.
fn explain(suspect: &mut Suspect, first: usize, part: &[u8], is_explained: impl Fn(usize, &[u8]) -> bool) {
    debug_assert!(part.len() <= LINE);
    for (at, sector) in (first..).zip(part.chunks_exact(SECTOR)) {
        if is_explained(at, sector) {
            suspect.explained |= mask(at, 1);
        }
    }
}
