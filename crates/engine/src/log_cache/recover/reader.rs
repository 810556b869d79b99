//! Reads the log through one window, and tells unreadable sectors from a device that is gone.

use super::RecoverError;
use crate::log_cache::format::Superblock;
use crate::{BlockDevice, ErrorKind, IoError, Lba, SECTOR_BYTES};

/// One request to the log device: large enough that a spinning disk streams.
const READ_SECTORS_MAX: u64 = (1 << 20) / SECTOR_BYTES;

pub struct Reader<'a> {
    log: &'a mut dyn BlockDevice,
    block_sectors: u64,
    start: u64,
    window: Vec<u8>,
    /// First sectors of the unreadable blocks in the window, ascending.
    unreadable: Vec<u64>,
    /// The first unreadable sector that was asked for since this was last cleared.
    pub first_unreadable: Option<u64>,
    pub reads: u64,
    pub bytes_read: u64,
}

impl<'a> Reader<'a> {
    pub fn new(log: &'a mut dyn BlockDevice, superblock: &Superblock) -> Reader<'a> {
        Reader {
            log,
            block_sectors: superblock.log_block_sectors(),
            start: 0,
            window: Vec::new(),
            unreadable: Vec::new(),
            first_unreadable: None,
            reads: 0,
            bytes_read: 0,
        }
    }

    fn holds(&self, at: u64, sectors: u64) -> bool {
        let end = self.start + self.window.len() as u64 / SECTOR_BYTES;
        at >= self.start && at + sectors <= end
    }

    /// The bytes of some sectors, or `None` where a part cannot be read. What is not in the window is read up to sector
    /// `until`, at most 1 MiB more than is needed.
    pub fn get(&mut self, at: u64, sectors: u64, until: u64) -> Result<Option<&[u8]>, RecoverError> {
        if !self.holds(at, sectors) {
            let wanted = sectors.next_multiple_of(self.block_sectors);
            self.fill(at, wanted.max((until - at).min(READ_SECTORS_MAX)))?;
        }
        let bad = self.unreadable.iter().find(|&&bad| bad < at + sectors && at < bad + self.block_sectors);
        if let Some(&bad) = bad {
            self.first_unreadable.get_or_insert(bad);
            return Ok(None);
        }
        let from = ((at - self.start) * SECTOR_BYTES) as usize;
        Ok(Some(&self.window[from..from + (sectors * SECTOR_BYTES) as usize]))
    }

    fn fill(&mut self, at: u64, sectors: u64) -> Result<(), RecoverError> {
        self.start = at;
        self.window.clear();
        self.unreadable.clear();
        let mut done = 0;
        while done < sectors {
            let piece = (sectors - done).min(READ_SECTORS_MAX);
            if !self.append(at + done, piece)? {
                for block in (0..piece).step_by(self.block_sectors as usize) {
                    let sector = at + done + block;
                    if !self.append(sector, self.block_sectors)? {
                        self.unreadable.push(sector);
                        let len = self.window.len() + (self.block_sectors * SECTOR_BYTES) as usize;
                        self.window.resize(len, 0);
                    }
                }
            }
            done += piece;
        }
        Ok(())
    }

    /// Reads into the end of the window; false where the medium cannot read it.
    fn append(&mut self, at: u64, sectors: u64) -> Result<bool, RecoverError> {
        let bytes = sectors * SECTOR_BYTES;
        self.reads += 1;
        match self.log.read(Lba(at), bytes as usize) {
            Ok(buf) => {
                self.bytes_read += bytes;
                self.window.extend_from_slice(buf.bytes());
                // A blank buffer has a length and no bytes.
                self.window.resize(((at - self.start) * SECTOR_BYTES + bytes) as usize, 0);
                Ok(true)
            }
            Err(IoError { kind: ErrorKind::Medium | ErrorKind::Lost, .. }) => Ok(false),
            Err(source) => Err(RecoverError::Io { sector: at, source }),
        }
    }
}
