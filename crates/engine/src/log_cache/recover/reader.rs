//! Reads the log through one window for each copy, and distinguishes unreadable sectors from a missing device.

use std::ops::Range;

use super::RecoverError;
use crate::log_cache::format::LogSuperblock;
use crate::{BlockDevice, Buf, ErrorKind, Extent, IoError, Lba, SECTOR_BYTES};

/// Sectors of one request to the log device: enough for a rotational disk to stream.
const READ_SECTORS_MAX: u64 = (1 << 20) / SECTOR_BYTES;
/// Maximum number of requests side by side: what most drives take at once.
const READS_AT_ONCE: usize = 32;
/// Maximum number of sectors of them all, which bounds memory.
const AT_ONCE_SECTORS_MAX: u64 = (4 << 20) / SECTOR_BYTES;

#[derive(Clone, Default)]
struct ReadWindow {
    start: u64,
    bytes: Vec<u8>,
    /// First sectors of the unreadable blocks in the window, ascending.
    unreadable: Vec<u64>,
}

pub struct LogReader<'a> {
    log: &'a mut dyn BlockDevice,
    block_sectors: u64,
    /// Maximum number of sectors that are read ahead: a whole segment, as its records may be in any order.
    ahead_max: u64,
    /// The window of each copy.
    windows: Vec<ReadWindow>,
    /// Windows of the first copy that were read side by side.
    ahead: Vec<ReadWindow>,
    /// The first sector since this was last cleared that no copy could read.
    pub first_unreadable: Option<u64>,
    pub reads: u64,
    pub bytes_read: u64,
}

impl<'a> LogReader<'a> {
    pub fn new(log: &'a mut dyn BlockDevice, superblock: &LogSuperblock) -> LogReader<'a> {
        LogReader {
            block_sectors: superblock.log_block_sectors(),
            ahead_max: superblock.segment_sectors().max(READ_SECTORS_MAX),
            windows: vec![ReadWindow::default(); usize::from(log.geometry().copies)],
            ahead: Vec::new(),
            log,
            first_unreadable: None,
            reads: 0,
            bytes_read: 0,
        }
    }

    pub const fn copies(&self) -> usize {
        self.windows.len()
    }

    /// Returns the bytes of some sectors of one copy, or the first sector that cannot be read. Sectors outside the window are read up to
    /// sector `until`, at most a segment.
    pub fn get(
        &mut self,
        copy: usize,
        at: u64,
        sectors: u64,
        until: u64,
    ) -> Result<Result<&[u8], u64>, RecoverError> {
        let ahead = self.ahead.iter().position(|window| copy == 0 && window.holds(at, sectors));
        if let Some(index) = ahead {
            return Ok(Ok(self.ahead[index].sectors(at, sectors)));
        }
        if !self.windows[copy].holds(at, sectors) {
            // Whole blocks: a payload of the record may begin and end within one.
            let start = at - at % self.block_sectors;
            let wanted = (at + sectors).next_multiple_of(self.block_sectors) - start;
            self.fill(copy, start, wanted.max((until - start).min(self.ahead_max)))?;
        }
        let window = &self.windows[copy];
        let bad = window.unreadable.iter().find(|&&bad| bad < at + sectors && at < bad + self.block_sectors);
        if let Some(&bad) = bad {
            return Ok(Err(bad));
        }
        Ok(Ok(window.sectors(at, sectors)))
    }

    /// Reads the first of these extents side by side, in place of those before, so that [`LogReader::get`] finds them in memory; returns
    /// their number. One that cannot be read is left to `get`.
    pub fn read_ahead(&mut self, extents: impl Iterator<Item = Extent>) -> Result<usize, RecoverError> {
        let mut left = AT_ONCE_SECTORS_MAX;
        let whole = |e: Extent| Extent::new(e.start, e.sectors.next_multiple_of(self.block_sectors));
        let extents: Vec<Extent> = extents
            .take(READS_AT_ONCE)
            .map(whole)
            .take_while(|extent| {
                left.checked_sub(extent.sectors).is_some_and(|rest| {
                    left = rest;
                    true
                })
            })
            .collect();
        self.ahead.clear();
        for (extent, read) in extents.iter().zip(self.read_all(0, &extents)?) {
            if let Some(read) = read {
                let mut window = ReadWindow { start: extent.start.0, ..ReadWindow::default() };
                window.append(&read, extent.sectors);
                self.ahead.push(window);
            }
        }
        Ok(extents.len())
    }

    /// True if [`LogReader::read_ahead`] has read these sectors.
    pub fn is_ahead(&self, at: u64, sectors: u64) -> bool {
        self.ahead.iter().any(|window| window.holds(at, sectors))
    }

    /// Forgets what was read: the log has changed.
    pub fn forget(&mut self) {
        self.ahead.clear();
        self.windows.fill(ReadWindow::default());
    }

    /// The device of the log.
    pub fn device(&mut self) -> &mut dyn BlockDevice {
        self.log
    }

    /// Returns the result of `take` for the first copy that it accepts, and the number of that copy. Notes a sector that no copy can
    /// read.
    pub fn find<T>(
        &mut self,
        (at, sectors, until): (u64, u64, u64),
        mut take: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Option<(T, usize)>, RecoverError> {
        let mut unreadable = 0;
        for copy in 0..self.copies() {
            match self.get(copy, at, sectors, until)? {
                Ok(bytes) => {
                    if let Some(found) = take(bytes) {
                        return Ok(Some((found, copy)));
                    }
                }
                Err(bad) => {
                    unreadable += 1;
                    if unreadable == self.copies() {
                        self.first_unreadable.get_or_insert(bad);
                    }
                }
            }
        }
        Ok(None)
    }

    fn fill(&mut self, copy: usize, at: u64, sectors: u64) -> Result<(), RecoverError> {
        let extents = |of: Range<u64>, step: u64| -> Vec<Extent> {
            let starts = of.clone().step_by(step as usize);
            starts.map(|start| Extent::new(Lba(start), step.min(of.end - start))).collect()
        };
        let mut window = std::mem::take(&mut self.windows[copy]);
        (window.start, window.bytes, window.unreadable) = (at, Vec::new(), Vec::new());
        let pieces = extents(at..at + sectors, READ_SECTORS_MAX);
        for (piece, read) in pieces.iter().zip(self.read_all(copy, &pieces)?) {
            if let Some(read) = read {
                window.append(&read, piece.sectors);
                continue;
            }
            let blocks = extents(piece.start.0..piece.end().0, self.block_sectors);
            for (block, read) in blocks.iter().zip(self.read_all(copy, &blocks)?) {
                if read.is_none() {
                    window.unreadable.push(block.start.0);
                }
                window.append(&read.unwrap_or_default(), block.sectors);
            }
        }
        self.windows[copy] = window;
        Ok(())
    }

    /// Reads extents side by side; none for one that the medium cannot give.
    fn read_all(&mut self, copy: usize, extents: &[Extent]) -> Result<Vec<Option<Buf>>, RecoverError> {
        let mut all = Vec::with_capacity(extents.len());
        for part in extents.chunks(READS_AT_ONCE) {
            let read = |extent: &Extent| {
                self.log.copy_read(extent.start, (extent.sectors * SECTOR_BYTES) as usize, copy as u8)
            };
            let ios = part.iter().map(read).collect();
            self.reads += part.len() as u64;
            for (extent, result) in part.iter().zip(self.log.run_all(ios)) {
                all.push(match result.status {
                    Ok(()) => {
                        self.bytes_read += extent.sectors * SECTOR_BYTES;
                        Some(result.buf)
                    }
                    Err(IoError { kind: ErrorKind::Medium | ErrorKind::Lost, .. }) => None,
                    Err(source) => return Err(RecoverError::Io { sector: extent.start.0, source }),
                });
            }
        }
        Ok(all)
    }
}

impl ReadWindow {
    fn holds(&self, at: u64, sectors: u64) -> bool {
        let end = self.start + self.bytes.len() as u64 / SECTOR_BYTES;
        at >= self.start && at + sectors <= end
    }

    /// Adds sectors. A blank buffer has a length and no bytes.
    fn append(&mut self, buf: &Buf, sectors: u64) {
        let bytes = self.bytes.len() + (sectors * SECTOR_BYTES) as usize;
        self.bytes.extend_from_slice(buf.bytes());
        self.bytes.resize(bytes, 0);
    }

    fn sectors(&self, at: u64, sectors: u64) -> &[u8] {
        let from = ((at - self.start) * SECTOR_BYTES) as usize;
        &self.bytes[from..from + (sectors * SECTOR_BYTES) as usize]
    }
}
