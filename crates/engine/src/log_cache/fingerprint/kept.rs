//! The fingerprint of a running cache.
//!
//! Each sector of a covered line has two sums: the one that is certain after a crash (`durable`), and the one sent since (`sent`), which
//! becomes durable with the next flush of the data disk. A superblock gets `durable`.
//!
//! | event | durable | sent |
//! |---|---|---|
//! | destaged data is sent | unchanged: its record is in the log until the batch ends | its sum |
//! | a range is sent | unknown: its record may be gone from the log before the batch ends | that of zeroes; unknown for a discard |
//! | a batch gives a block up | unknown, for the same reason | unchanged |
//! | a write fails | stays | unknown |
//! | a write passes the log | unknown | unknown |
//! | the data disk was flushed | the sum sent | - |
//! | that flush failed | unknown where anything was sent | - |
//! | before a clean stop | unknown sums are read | - |

use super::{
    Fingerprint, LINE, LineContent, LineSum, RetainedFingerprint, SECTOR, SECTORS, START_LINES, choose,
    choose_few, ends, line_sum, mask, part_of, places, sector_sums, sum,
};
#[cfg(test)]
use crate::log_cache::disks::PART_LINES;
use crate::log_cache::table::RangeKind;
use crate::{BlockDevice, Buf, Extent, IoError, LINE_SECTORS, Lba, SECTOR_BYTES};

/// A line that is covered.
#[derive(Clone)]
struct CoveredLine {
    line: u64,
    durable: [Option<u32>; SECTORS],
    sent: [Option<u32>; SECTORS],
    /// Sectors for which `sent` counts.
    flying: u8,
    /// A read of the line was sent before the stop. It may have failed.
    was_read: bool,
}

/// See the module's documentation.
pub struct CoveredLines {
    lines: Vec<CoveredLine>,
    /// The first line of the disk in the address space.
    first: u64,
    zeroes: u32,
    is_flying: bool,
    /// The fingerprint of a disk that is missing.
    retained: Option<Box<RetainedFingerprint>>,
}

impl CoveredLines {
    /// Covers no line, and keeps the fingerprint of a disk that is missing.
    pub fn retained(fingerprint: RetainedFingerprint) -> CoveredLines {
        let retained = Some(Box::new(fingerprint));
        CoveredLines { lines: Vec::new(), first: 0, zeroes: sum(&[0; SECTOR]), is_flying: false, retained }
    }

    /// Like [`CoveredLines::new`], with nothing read yet.
    pub fn read(
        data: &mut dyn BlockDevice,
        data_sectors: u64,
        cache_uuid: &[u8; 16],
    ) -> Result<CoveredLines, IoError> {
        let mut content = LineContent::default();
        content.read(data, ends(data_sectors))?;
        CoveredLines::new(content, data, data_sectors, cache_uuid)
    }

    /// Chooses the lines to cover by the content of the disk, and reads those not read yet. `content` has the ends.
    pub fn new(
        mut content: LineContent,
        data: &mut dyn BlockDevice,
        data_sectors: u64,
        cache_uuid: &[u8; 16],
    ) -> Result<CoveredLines, IoError> {
        let places = places::find(&mut content, data, data_sectors)?;
        CoveredLines::of(choose(data_sectors, cache_uuid, &places), content, data)
    }

    /// Chooses a few lines of a disk, as a log with several disks has no room for more, and reads those not read yet.
    pub fn few(
        mut content: LineContent,
        data: &mut dyn BlockDevice,
        data_sectors: u64,
        cache_uuid: &[u8; 16],
        lines_max: usize,
    ) -> Result<CoveredLines, IoError> {
        content.read(data, 0..(data_sectors / LINE_SECTORS).min(START_LINES))?;
        let places = places::find(&mut content, data, data_sectors)?;
        CoveredLines::of(choose_few(data_sectors, cache_uuid, &places, lines_max), content, data)
    }

    fn of(
        lines: Vec<u64>,
        mut content: LineContent,
        data: &mut dyn BlockDevice,
    ) -> Result<CoveredLines, IoError> {
        let missing: Vec<u64> = lines.iter().copied().filter(|line| content.line(*line).is_none()).collect();
        content.read(data, missing.into_iter())?;
        let line = |line| {
            let durable = content.line(line).map_or([None; SECTORS], known);
            CoveredLine { line, durable, sent: [None; SECTORS], flying: 0, was_read: false }
        };
        Ok(CoveredLines {
            lines: lines.into_iter().map(line).collect(),
            first: 0,
            zeroes: sum(&[0; SECTOR]),
            is_flying: false,
            retained: None,
        })
    }

    /// Covers nothing.
    pub fn none() -> CoveredLines {
        CoveredLines {
            lines: Vec::new(),
            first: 0,
            zeroes: sum(&[0; SECTOR]),
            is_flying: false,
            retained: None,
        }
    }

    /// Gives the lines the addresses of a disk that begins at `start`.
    pub fn moved(mut self, start: Lba) -> CoveredLines {
        self.first = start.0 / LINE_SECTORS;
        self.lines.iter_mut().for_each(|line| line.line += self.first);
        self
    }

    /// Returns the fingerprint for the superblock: what a crash would leave, apart from data in records of the log.
    pub fn fingerprint(&self) -> Fingerprint {
        if let Some(retained) = &self.retained {
            return retained.fingerprint().clone();
        }
        let sum = |line: &CoveredLine| {
            let sectors = line.durable.map(Option::unwrap_or_default);
            let sum = (!line.durable.contains(&None)).then(|| line_sum(sectors));
            LineSum { line: line.line - self.first, sum, sectors: Some(sectors.map(|sum| sum as u8)) }
        };
        Fingerprint { lines: self.lines.iter().map(sum).collect(), is_exact: true }
    }

    /// Notes that records before this one may be gone from the log.
    pub fn pass(&mut self, seq: u64) {
        if let Some(retained) = &mut self.retained {
            retained.pass(seq);
        }
    }

    /// True for a missing disk whose content records of the log have to explain.
    pub fn needs_records(&self) -> bool {
        self.retained.as_ref().is_some_and(|retained| retained.needs_records())
    }

    fn range(&self, extent: Extent) -> std::ops::Range<usize> {
        let first = extent.start.0 / LINE_SECTORS;
        let last = (extent.end().0 - 1) / LINE_SECTORS;
        let from = self.lines.partition_point(|line| line.line < first);
        // Nearly always none: a second binary search would cost more.
        from..from + self.lines[from..].iter().take_while(|line| line.line <= last).count()
    }

    /// True when the extent touches a covered line.
    pub fn covers(&self, extent: Extent) -> bool {
        !self.range(extent).is_empty()
    }

    fn send(&mut self, extent: Extent, mut sum_of: impl FnMut(Lba) -> Option<u32>) {
        let range = self.range(extent);
        for line in &mut self.lines[range] {
            let (first, count) = part_of(line.line, extent);
            for at in first..first + count {
                line.sent[at] = sum_of(Lba(line.line * LINE_SECTORS + at as u64));
            }
            line.flying |= mask(first, count);
            self.is_flying = true;
        }
    }

    /// Notes that data is sent to the data disk: that of `extent`, which begins at `at` in `buf`.
    pub fn send_data(&mut self, extent: Extent, buf: &Buf, at: usize) {
        self.send(extent, |sector| {
            let from = at + ((sector - extent.start) * SECTOR_BYTES) as usize;
            buf.bytes().get(from..from + SECTOR).map(sum)
        });
    }

    /// Notes that zeroes or a discard are sent to the data disk.
    pub fn send_range(&mut self, extent: Extent, kind: RangeKind) {
        let zeroes = (kind != RangeKind::Discard).then_some(self.zeroes);
        self.send(extent, |_| zeroes);
        let range = self.range(extent);
        for line in &mut self.lines[range] {
            let (first, count) = part_of(line.line, extent);
            line.durable[first..first + count].fill(None);
        }
    }

    /// Notes that a write passes the log: no record explains what is there after a crash.
    pub fn unknown(&mut self, extent: Extent) {
        self.send_range(extent, RangeKind::Discard);
    }

    /// Notes that the record of data that may have been sent can be gone from the log before that is flushed.
    pub fn unexplained(&mut self, extent: Extent) {
        let range = self.range(extent);
        self.lines[range].iter_mut().for_each(|line| line.durable = [None; SECTORS]);
    }

    /// Notes that a write failed: either content may be there.
    pub fn failed(&mut self, extent: Extent) {
        self.send(extent, |_| None);
    }

    /// Notes that a flush of the data disk that covers everything sent has ended.
    pub fn flushed(&mut self, is_ok: bool) {
        if !std::mem::take(&mut self.is_flying) {
            return;
        }
        for line in self.lines.iter_mut().filter(|line| line.flying != 0) {
            for at in (0..SECTORS).filter(|at| line.flying & mask(*at, 1) != 0) {
                line.durable[at] = line.sent[at].filter(|_| is_ok);
            }
            line.flying = 0;
        }
    }

    /// True when something was sent that no flush has covered.
    pub const fn needs_flush(&self) -> bool {
        self.is_flying
    }

    /// Returns adjacent lines of unknown content, to read before a clean stop.
    pub fn next_unknown(&mut self) -> Option<Extent> {
        let is_unknown = |line: &CoveredLine| !line.was_read && line.durable.contains(&None);
        let first = self.lines.iter().position(is_unknown)?;
        let mut count = 0;
        let start = self.lines[first].line;
        while let Some(line) = self.lines.get_mut(first + count)
            && line.line == start + count as u64
            && is_unknown(line)
            && count < READ_BACK_LINES_MAX
        {
            line.was_read = true;
            count += 1;
        }
        Some(Extent::new(Lba(start * LINE_SECTORS), count as u64 * LINE_SECTORS))
    }

    /// Takes the content of lines from [`CoveredLines::next_unknown`].
    pub fn learn(&mut self, extent: Extent, buf: &Buf) {
        let range = self.range(extent);
        for (line, bytes) in self.lines[range].iter_mut().zip(buf.bytes().chunks_exact(LINE)) {
            line.durable = known(bytes);
        }
    }

    /// Lines of a disk that differ from what is known of them.
    #[cfg(test)]
    pub fn differing(&self, disk: &[u8]) -> Vec<u64> {
        let differs = |line: &&CoveredLine| {
            let sums = known(&disk[(line.line % PART_LINES) as usize * LINE..][..LINE]);
            line.durable.iter().zip(sums).any(|(kept, sum)| kept.is_some() && *kept != sum)
        };
        self.lines.iter().filter(differs).map(|line| line.line).collect()
    }

    #[cfg(test)]
    pub fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        self.lines.iter().map(|line| line.line)
    }
}

/// Maximum number of lines in one read before a clean stop: 256 KiB.
const READ_BACK_LINES_MAX: usize = 64;

fn known(line: &[u8]) -> [Option<u32>; SECTORS] {
    sector_sums(line).map(Some)
}
