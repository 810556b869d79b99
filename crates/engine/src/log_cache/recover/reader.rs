//! Reads the log through one window for each copy, and distinguishes unreadable sectors from a missing device.

use super::RecoverError;
use crate::log_cache::format::LogSuperblock;
use crate::{BlockDevice, ErrorKind, IoError, Lba, SECTOR_BYTES};

/// Sectors of one request to the log device: enough for a rotational disk to stream.
const READ_SECTORS_MAX: u64 = (1 << 20) / SECTOR_BYTES;

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
        let from = ((at - window.start) * SECTOR_BYTES) as usize;
        Ok(Ok(&window.bytes[from..from + (sectors * SECTOR_BYTES) as usize]))
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
        let mut window = std::mem::take(&mut self.windows[copy]);
        window.start = at;
        window.bytes.clear();
        window.unreadable.clear();
        let mut done = 0;
        while done < sectors {
            let piece = (sectors - done).min(READ_SECTORS_MAX);
            if !self.append(copy, &mut window, at + done, piece)? {
                for block in (0..piece).step_by(self.block_sectors as usize) {
                    let sector = at + done + block;
                    if !self.append(copy, &mut window, sector, self.block_sectors)? {
                        window.unreadable.push(sector);
                        let len = window.bytes.len() + (self.block_sectors * SECTOR_BYTES) as usize;
                        window.bytes.resize(len, 0);
                    }
                }
            }
            done += piece;
        }
        self.windows[copy] = window;
        Ok(())
    }

    /// Reads into the end of a window; false if the medium cannot be read there.
    fn append(
        &mut self,
        copy: usize,
        window: &mut ReadWindow,
        at: u64,
        sectors: u64,
    ) -> Result<bool, RecoverError> {
        let bytes = sectors * SECTOR_BYTES;
        self.reads += 1;
        match self.log.read_copy(Lba(at), bytes as usize, copy as u8) {
            Ok(buf) => {
                self.bytes_read += bytes;
                window.bytes.extend_from_slice(buf.bytes());
                // A blank buffer has a length and no bytes.
                window.bytes.resize(((at - window.start) * SECTOR_BYTES + bytes) as usize, 0);
                Ok(true)
            }
            Err(IoError { kind: ErrorKind::Medium | ErrorKind::Lost, .. }) => Ok(false),
            Err(source) => Err(RecoverError::Io { sector: at, source }),
        }
    }
}

impl ReadWindow {
    fn holds(&self, at: u64, sectors: u64) -> bool {
        let end = self.start + self.bytes.len() as u64 / SECTOR_BYTES;
        at >= self.start && at + sectors <= end
    }
}
