//! Judges a data disk by its fingerprint.
//!
//! After a clean stop every line is what the superblock says. After a crash, each sector of a line holds what the superblock says, or
//! data of some record of the walk: a batch may have destaged any part of any record, and the medium may have kept any sector of it.
//! Payload is read from the log only for lines that differ, as the checksums of entries are CRCs.
//!
//! The superblock has only the lowest byte of the sum of each sector, so a sector that somebody else changed looks unchanged once in 256
//! times. Where all sectors of a line look unchanged, the sum of the line tells more: it differs, so some sector has changed.

use std::collections::BTreeMap;

use super::super::LogError;
use super::super::format::{Entry, EntryKind, Header, LogState, LogSuperblock};
use super::super::offline::read_payload;
use super::super::recover::{DamageKind, Walked};
use super::{LINE, LineContent, LineSum, SECTOR, SECTORS, line_sum, mask, part_of, sector_sums, sum};
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
    /// Sectors whose content comes from some record; of a touched line, also those that look unchanged, unless all do.
    explained: u8,
    /// True if some record has an entry for a part of the line.
    is_touched: bool,
    /// True if all sectors look unchanged, although the line differs.
    is_doubtful: bool,
    /// True if an entry's whole part of the line is on the disk, or may be.
    has_whole_entry: bool,
}

impl Suspect {
    const fn new(recorded: LineSum) -> Suspect {
        Suspect { recorded, explained: 0, is_touched: false, is_doubtful: false, has_whole_entry: false }
    }

    /// Notes that sectors may hold anything.
    fn may_be_anything(&mut self, first: usize, count: usize) {
        self.explained |= mask(first, count);
        self.has_whole_entry = true;
    }

    /// Notes which sectors of an entry's part of the line are explained by it.
    fn explain(&mut self, first: usize, part: &[u8], is_explained: impl Fn(usize, &[u8]) -> bool) {
        let explained = matching(first, part, is_explained);
        self.explained |= explained;
        self.has_whole_entry |= explained == mask(first, part.len() / SECTOR);
    }

    /// True if the cache cannot have left the line as it is.
    ///
    /// Some sector of a doubtful line was changed to content whose sum has the same lowest byte. If the cache did it, and the whole entry
    /// has not arrived, it is one of the explained sectors: then some sum with that byte for that sector gives the sum of the line. (Two
    /// such sectors in one torn write are not looked for.)
    fn differs(&self, bytes: &[u8]) -> bool {
        if !self.is_doubtful {
            return self.explained != u8::MAX;
        }
        let mut explained = (0..SECTORS).filter(|at| self.explained & mask(*at, 1) != 0);
        !self.has_whole_entry && !explained.any(|at| self.is_the_only_change(at, bytes))
    }

    /// True if the line can be as it was recorded, but for one sector.
    fn is_the_only_change(&self, at: usize, bytes: &[u8]) -> bool {
        let mut sums = sector_sums(bytes);
        let lowest = sums[at] & 0xff;
        (0..1 << 24).any(|rest: u32| {
            sums[at] = rest << 8 | lowest;
            Some(line_sum(sums)) == self.recorded.sum
        })
    }
}

/// A comparison under way: give it every record of the walk, then call [`Comparison::finish`].
pub struct Comparison {
    content: LineContent,
    suspects: BTreeMap<u64, Suspect>,
    candidates: Vec<Candidate>,
    /// True after a clean stop: no record explains a difference.
    is_exact: bool,
    compared: usize,
    log_block_sectors: u64,
    /// The addresses of the disk.
    addresses: Extent,
}

/// Result of a comparison.
pub struct Differences {
    /// Lines whose content was known and could be read.
    pub compared: usize,
    /// Lines with content that was not written through the cache.
    pub differing: Vec<u64>,
    /// Content that was read.
    pub content: LineContent,
}

impl Comparison {
    /// Reads the covered lines of a data disk.
    pub fn new(
        superblock: &LogSuperblock,
        disk: usize,
        data: &mut dyn BlockDevice,
    ) -> Result<Comparison, IoError> {
        let recorded = superblock.fingerprint_of(disk);
        let mut content = LineContent::default();
        content.read(data, recorded.lines.iter().map(|sum| sum.line))?;
        let is_exact = recorded.is_exact;
        let (mut compared, mut suspects) = (0, BTreeMap::new());
        for &recorded in &recorded.lines {
            let (Some(sum), Some(bytes)) = (recorded.sum, content.line(recorded.line)) else { continue };
            compared += 1;
            let found = if is_exact { line_sum(sector_sums(bytes)) } else { crc32c::crc32c(bytes) };
            if found != sum {
                suspects.insert(recorded.line, Suspect::new(recorded));
            }
        }
        Ok(Comparison {
            content,
            suspects,
            candidates: Vec::new(),
            is_exact: superblock.state == LogState::Stopped && is_exact,
            compared,
            log_block_sectors: superblock.log_block_sectors(),
            addresses: superblock.space().extent(disk),
        })
    }

    /// Takes a record of the walk.
    pub fn record(&mut self, header: &Header) {
        if self.is_exact || self.suspects.is_empty() {
            return;
        }
        let mut place = header.sector + self.log_block_sectors;
        for entry in &header.entries {
            let Some(mut extent) = entry.extent.intersection(self.addresses) else {
                place += entry.payload_sectors();
                continue;
            };
            extent.start.0 -= self.addresses.start.0;
            let entry = Entry { extent, ..*entry };
            let lines = entry.extent.start.0 / LINE_SECTORS..entry.extent.end().0.div_ceil(LINE_SECTORS);
            for (&line, suspect) in self.suspects.range_mut(lines) {
                let bytes = self.content.line(line).expect("a suspect was read");
                let (first, count) = part_of(line, entry.extent);
                let part = &bytes[first * SECTOR..(first + count) * SECTOR];
                match entry.kind {
                    EntryKind::Data if self.candidates.len() < CANDIDATES_MAX => {
                        let (extent, crc) = (entry.extent, entry.crc);
                        self.candidates.push(Candidate { line, place, extent, crc });
                    }
                    EntryKind::Data => suspect.may_be_anything(0, SECTORS),
                    EntryKind::Invalidate | EntryKind::Clean | EntryKind::Left => {}
                    // The device may return anything after a discard.
                    EntryKind::Discard => suspect.may_be_anything(first, count),
                    EntryKind::Zeroes | EntryKind::ZeroesUnmap => {
                        suspect.explain(first, part, |_, sector| sector.iter().all(|byte| *byte == 0));
                    }
                }
                suspect.is_touched |=
                    !matches!(entry.kind, EntryKind::Invalidate | EntryKind::Clean | EntryKind::Left);
            }
            place += entry.payload_sectors();
        }
    }

    /// Judges the lines by the payloads of the records. If records of unknown content are lost, a line that other records touch may hold
    /// anything.
    pub fn finish(mut self, log: &mut dyn BlockDevice, walked: &Walked) -> Result<Differences, LogError> {
        let has_holes = walked.damage.iter().any(|damage| damage.kind != DamageKind::Payload);
        for suspect in self.suspects.values_mut().filter(|suspect| suspect.is_touched) {
            let bytes = self.content.line(suspect.recorded.line).expect("a suspect was read");
            let Some(sums) = suspect.recorded.sectors.filter(|_| !has_holes) else {
                // Earlier versions kept one sum per line: the rest of the line may be unchanged.
                suspect.may_be_anything(0, SECTORS);
                continue;
            };
            let unchanged = matching(0, bytes, |at, sector| sum(sector) as u8 == sums[at]);
            suspect.is_doubtful = unchanged == u8::MAX;
            if !suspect.is_doubtful {
                suspect.explained |= unchanged;
            }
        }
        // The newest copies are the likeliest.
        for Candidate { line, place, extent, crc } in self.candidates.into_iter().rev() {
            let suspect = self.suspects.get_mut(&line).expect("a candidate is for a suspect");
            let (first, count) = part_of(line, extent);
            let is_explained = suspect.explained & mask(first, count) == mask(first, count);
            if is_explained && (suspect.has_whole_entry || !suspect.is_doubtful) {
                continue;
            }
            let Some(payload) = read_payload(log, place, extent, crc)? else {
                // The payload has rotted, and the disk may have its original.
                suspect.may_be_anything(first, count);
                continue;
            };
            let bytes = self.content.line(line).expect("a suspect was read");
            let part = &bytes[first * SECTOR..(first + count) * SECTOR];
            suspect.explain(first, part, |at, sector| {
                let from = (at - first) * SECTOR;
                sector == &payload[from..from + SECTOR]
            });
        }
        let bytes = |suspect: &Suspect| self.content.line(suspect.recorded.line).expect("a suspect was read");
        let differing = self.suspects.values().filter(|suspect| suspect.differs(bytes(suspect)));
        let differing = differing.map(|suspect| suspect.recorded.line).collect();
        Ok(Differences { compared: self.compared, differing, content: self.content })
    }
}

/// The sectors of a part of a line that match.
fn matching(first: usize, part: &[u8], is_match: impl Fn(usize, &[u8]) -> bool) -> u8 {
    debug_assert!(part.len() <= LINE);
    let sectors = (first..).zip(part.chunks_exact(SECTOR));
    sectors.filter(|(at, sector)| is_match(*at, sector)).fold(0, |found, (at, _)| found | mask(at, 1))
}
