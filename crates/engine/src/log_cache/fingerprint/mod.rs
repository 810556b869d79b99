//! The fingerprint of the data disk: checksums of lines that are likely to change if the disk is used without its cache.
//!
//! | covered | because |
//! |---|---|
//! | the first and the last MiB | partition tables, volume managers and most file systems write there |
//! | samples: places of file systems in between (`places`) | superblocks of partitions, journals and copies of superblocks are written when mounted |
//! | samples: lines drawn from the cache's UUID | an arbitrary change may hit one |
//!
//! `kept` follows the running cache, `compare` judges a disk at the next start, and `retained` keeps the fingerprint of one that is missing. Two rules make that judgement exact:
//! no write bypasses the log over a covered line, and the content that a superblock states for a line was durable on the data
//! disk when the superblock was made. So a line that differs after a crash can only hold data of records in the log.

mod compare;
mod kept;
mod places;
mod retained;
#[cfg(test)]
mod tests;

pub use compare::{Comparison, Differences};
pub use kept::CoveredLines;
pub use retained::RetainedFingerprint;

use std::collections::BTreeMap;

use crate::{BlockDevice, Buf, ErrorKind, Extent, IoError, LINE_BYTES, LINE_SECTORS, Lba, SECTOR_BYTES};

/// The fingerprint covers this many blocks of 4 KiB (1 MiB) at each end of the data disk.
pub const FINGERPRINT_END_BLOCKS: usize = 256;
/// Maximum number of covered lines between the ends.
pub const SAMPLES_MAX: usize = 36;
/// Size of the parts of the middle, up to the maximum number, in each of which a line is drawn; large writes over it go through the log.
const BYTES_PER_DRAWN: u64 = 64 << 20;
/// Minimum number of lines that are drawn on a small disk.
const DRAWN_MIN: u64 = 4;
/// Lines that one request reads: 1 MiB.
const READ_LINES_MAX: u64 = 256;

const LINE: usize = LINE_BYTES as usize;
const SECTOR: usize = SECTOR_BYTES as usize;
const SECTORS: usize = LINE_SECTORS as usize;

/// Maximum number of lines in the fingerprint of a data disk after the first.
pub const SAMPLES_OF_DISK_MAX: usize = 64;
/// Lines that are read at the start of such a disk, to find its file systems.
const START_LINES: u64 = 32;
/// Lines of the superblocks of btrfs and md.
const BTRFS_LINE: u64 = 16;
const MD_LINE: u64 = 1;

/// The low byte of the `sum` of each sector of a line. It tells which sectors are unchanged, if records have the others.
pub type SectorSums = [u8; SECTORS];

/// Checksums of a covered line, as far as they are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineSum {
    pub line: u64,
    /// See `line_sum`; in fingerprints of earlier versions the CRC32C of the line. None if the content is not known.
    pub sum: Option<u32>,
    pub sectors: Option<SectorSums>,
}

/// Checksums of lines of the data disk, as a superblock states them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Ascending.
    pub lines: Vec<LineSum>,
    /// Made by a program whose clean stop leaves every line as the sums say, and whose sums are no CRCs. (The first versions used CRCs,
    /// and did not count the writes of an interrupted batch.)
    pub is_exact: bool,
}

impl std::fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = self.lines.iter().filter(|line| line.sum.is_some()).count();
        write!(f, "Fingerprint({known} of {} lines, exact: {})", self.lines.len(), self.is_exact)
    }
}

impl Fingerprint {
    /// Takes the fingerprint of a disk that is not in use, and chooses the lines to cover.
    pub fn read(
        data: &mut dyn BlockDevice,
        data_sectors: u64,
        cache_uuid: &[u8; 16],
    ) -> Result<Fingerprint, IoError> {
        Ok(CoveredLines::read(data, data_sectors, cache_uuid)?.fingerprint())
    }

    /// Returns the same lines, of unknown content.
    pub fn unknown(mut self) -> Fingerprint {
        self.lines.iter_mut().for_each(|line| line.sum = None);
        self
    }
}

/// The lines of the first and the last MiB, ascending.
pub fn ends(data_sectors: u64) -> impl Iterator<Item = u64> {
    let lines = data_sectors / LINE_SECTORS;
    let ends = FINGERPRINT_END_BLOCKS as u64;
    (0..lines.min(ends)).chain(lines.saturating_sub(ends).max(ends)..lines.max(ends))
}

/// The lines between the ends.
pub fn middle(data_sectors: u64) -> std::ops::Range<u64> {
    let ends = FINGERPRINT_END_BLOCKS as u64;
    let lines = data_sectors / LINE_SECTORS;
    ends..lines.saturating_sub(ends).max(ends)
}

/// Chooses the lines to cover: the ends, the places of file systems, and up to the maximum, lines that are drawn, one from each part of
/// the middle.
fn choose(data_sectors: u64, cache_uuid: &[u8; 16], places: &[u64]) -> Vec<u64> {
    let middle = middle(data_sectors);
    let lines = middle.end - middle.start;
    let mut samples: Vec<u64> = Vec::with_capacity(SAMPLES_MAX);
    for place in places.iter().filter(|place| middle.contains(place)) {
        if samples.len() < SAMPLES_MAX && !samples.contains(place) {
            samples.push(*place);
        }
    }
    let parts = (lines * LINE_BYTES / BYTES_PER_DRAWN).max(DRAWN_MIN).min(lines);
    let parts = parts.min((SAMPLES_MAX - samples.len()) as u64);
    for part in 0..parts {
        let length = lines / parts;
        let from = middle.start + length * part;
        let drawn = crc32c::crc32c_append(crc32c::crc32c(cache_uuid), &part.to_le_bytes());
        let line = from + ((u128::from(length) * u128::from(drawn)) >> 32) as u64;
        if !samples.contains(&line) {
            samples.push(line);
        }
    }
    samples.sort_unstable();
    let ends = FINGERPRINT_END_BLOCKS as u64;
    let (first, last): (Vec<u64>, Vec<u64>) = self::ends(data_sectors).partition(|line| *line < ends);
    [first, samples, last].concat()
}

/// Chooses the lines to cover of a disk that gets few: the first of all, where most file systems and partition tables begin; the places of
/// others; the last line; and lines that are drawn, one from each part of the disk.
fn choose_few(data_sectors: u64, cache_uuid: &[u8; 16], places: &[u64], lines_max: usize) -> Vec<u64> {
    let lines = data_sectors / LINE_SECTORS;
    let parts = (lines * LINE_BYTES / BYTES_PER_DRAWN).max(DRAWN_MIN).min(lines_max as u64).min(lines.max(1));
    let drawn = (0..parts).map(|part| {
        let (from, length) = (lines / parts * part, lines / parts);
        let drawn = crc32c::crc32c_append(crc32c::crc32c(cache_uuid), &part.to_le_bytes());
        from + ((u128::from(length) * u128::from(drawn)) >> 32) as u64
    });
    let starts = [0, BTRFS_LINE, MD_LINE].into_iter();
    let mut chosen: Vec<u64> = Vec::with_capacity(lines_max);
    for line in starts.chain(places.iter().copied()).chain(lines.checked_sub(1)).chain(drawn) {
        if line < lines && chosen.len() < lines_max && !chosen.contains(&line) {
            chosen.push(line);
        }
    }
    chosen.sort_unstable();
    chosen
}

/// Bytes of lines, as they were read.
#[derive(Default)]
pub struct LineContent {
    /// Runs of lines, by the first line of each.
    runs: BTreeMap<u64, Buf>,
}

impl LineContent {
    /// Reads lines (ascending) in as few requests as possible. Lines that cannot be read are left out.
    pub fn read(
        &mut self,
        data: &mut dyn BlockDevice,
        lines: impl Iterator<Item = u64>,
    ) -> Result<(), IoError> {
        let mut run = 0..0;
        for line in lines {
            if line == run.end && run.end - run.start < READ_LINES_MAX {
                run.end += 1;
            } else {
                self.read_run(data, run)?;
                run = line..line + 1;
            }
        }
        self.read_run(data, run)
    }

    fn read_run(&mut self, data: &mut dyn BlockDevice, run: std::ops::Range<u64>) -> Result<(), IoError> {
        let lines = run.end - run.start;
        if lines == 0 {
            return Ok(());
        }
        match data.read(Lba(run.start * LINE_SECTORS), lines as usize * LINE) {
            // A blank buffer has no bytes to know.
            Ok(buf) if buf.bytes().is_empty() => Ok(()),
            Ok(buf) => {
                self.runs.insert(run.start, buf);
                Ok(())
            }
            Err(error) if matches!(error.kind, ErrorKind::Medium | ErrorKind::Lost) && lines > 1 => {
                run.into_iter().try_for_each(|line| self.read_run(data, line..line + 1))
            }
            Err(error) if matches!(error.kind, ErrorKind::Medium | ErrorKind::Lost) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub fn line(&self, line: u64) -> Option<&[u8]> {
        let (first, buf) = self.runs.range(..=line).next_back()?;
        let at = ((line - first) as usize).checked_mul(LINE)?;
        buf.bytes().get(at..at.checked_add(LINE)?)
    }
}

/// Returns the sum of whole words of eight bytes. Each step is a bijection of the state for a given word, and of the word for a given
/// state; multiplication keeps it from being linear.
fn sum(bytes: &[u8]) -> u32 {
    let step = |state: u64, word: &[u8; 8]| {
        let state = (state ^ u64::from_le_bytes(*word)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^ state >> 32
    };
    bytes.as_chunks().0.iter().fold(0x9e37_79b9_7f4a_7c15, step) as u32
}

/// The sum of the sums of a line's sectors.
fn line_sum(sectors: [u32; SECTORS]) -> u32 {
    let mut bytes = [0; 4 * SECTORS];
    for (place, sum) in bytes.as_chunks_mut().0.iter_mut().zip(sectors) {
        *place = sum.to_le_bytes();
    }
    sum(&bytes)
}

fn sector_sums(line: &[u8]) -> [u32; SECTORS] {
    std::array::from_fn(|at| sum(&line[at * SECTOR..(at + 1) * SECTOR]))
}

/// The part of a line that an extent covers: first sector and number of sectors.
fn part_of(line: u64, extent: Extent) -> (usize, usize) {
    let start = line * LINE_SECTORS;
    let first = extent.start.0.max(start) - start;
    let end = extent.end().0.min(start + LINE_SECTORS) - start;
    (first as usize, (end - first) as usize)
}

/// Bits for sectors of a line.
const fn mask(first: usize, count: usize) -> u8 {
    (((1_u16 << count) - 1) << first) as u8
}
