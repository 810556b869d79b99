//! Ordered destage: the data disk alone, with the cache lost, is always in a state in which a plain disk could have crashed.
//!
//! A plain disk may crash with any subset of what was written since the last flush, but never with something newer than a
//! flush that lacks something older. So a batch is one *flush epoch*, read from the log in order, with the copies that
//! were the newest *in that epoch*, also those that are overwritten by now; the data disk is flushed; then comes the next.
//! Every record carries the number of its epoch, so this works across crashes too. It needs a second table, for one epoch.

use std::cmp::Reverse;

use crate::layer::{Io, IoResult};
use crate::log_cache::format::{Header, LogSuperblock, decode_header};
use crate::log_cache::index::Index;
use crate::log_cache::log::Log;
use crate::{Buf, Lba, SECTOR_BYTES};

/// A place in the log, between two records.
#[derive(Clone, Copy, Debug)]
pub struct Cursor {
    /// The next record.
    pub seq: u64,
    /// Number of the segment where it is looked for.
    pub segment: u64,
    /// The epoch of the record before: no later record has a smaller one (rule 3).
    pub epoch: u64,
}

/// A flush epoch that is being destaged.
pub struct Ordered {
    /// Everything before it is destaged.
    destaged: Cursor,
    /// Everything before it is in the batch.
    read: Cursor,
    epoch: Option<u64>,
    index: Index,
    complete: bool,
    /// The copy of the log that is read, where it has several; how many have brought nothing since one did, and could not be read.
    copy: u8,
    fruitless: u8,
    unreadable: u8,
}

impl Ordered {
    pub fn new(index: Index, start: Cursor) -> Ordered {
        let (epoch, complete) = (None, false);
        Ordered { destaged: start, read: start, epoch, index, complete, copy: 0, fruitless: 0, unreadable: 0 }
    }

    /// The oldest segment that is still to be read.
    pub const fn hold(&self) -> u64 {
        self.destaged.segment
    }

    pub const fn destaged_seq(&self) -> u64 {
        self.destaged.seq
    }

    /// The last record of the batch.
    pub const fn batch_last(&self) -> u64 {
        self.read.seq - 1
    }

    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Begins the next batch.
    pub fn begin(&mut self) {
        self.read = self.destaged;
        self.epoch = None;
        self.complete = false;
        self.index.clear();
    }

    /// The batch is destaged.
    pub fn commit(&mut self) {
        self.destaged = self.read;
    }

    /// Skips the log up to this place: nothing is dirty any more, so nothing before it is read.
    pub fn skip_to(&mut self, cursor: Cursor) {
        self.destaged = cursor;
    }

    /// The batch.
    pub const fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the next read of the log; `None` if the batch holds a whole epoch or everything that is durable.
    pub fn read_on(&mut self, log: &mut Log) -> Option<Io> {
        self.complete = self.read.seq > log.safe_seq();
        if self.complete {
            return None;
        }
        let at = Lba(log.start_of(self.read.segment));
        let buf = Buf::zeroed(log.superblock().segment_bytes as usize);
        log.pin(log.ring().index(self.read.segment));
        let copy = (log.geometry().copies > 1).then_some(self.copy);
        Some(Log::read(at, buf, copy))
    }

    /// Takes what was read. False if no copy can be read, or a durable record is not in the log: it is not what was written.
    pub fn read_completed(&mut self, result: &IoResult, log: &mut Log) -> bool {
        log.unpin(log.ring().index(self.read.segment));
        let (copies, next_seq) = (log.geometry().copies, self.read.seq);
        match result.status {
            Ok(()) => {
                let start = log.start_of(self.read.segment);
                self.take(result.buf.bytes(), start, log.superblock(), log.safe_seq());
            }
            Err(_) => self.unreadable += 1,
        }
        if self.read.seq > next_seq {
            (self.fruitless, self.unreadable) = (0, 0);
        } else {
            self.fruitless += 1;
        }
        if self.unreadable == copies {
            (self.fruitless, self.unreadable) = (0, 0);
            return false;
        }
        if !self.complete && copies > 1 && self.fruitless < copies {
            // The other copies may have what comes next in this segment.
            self.copy = (self.copy + 1) % copies;
        } else if !self.complete {
            // The rest is in the next segment.
            (self.fruitless, self.unreadable) = (0, 0);
            self.read.segment += 1;
            return self.read.segment <= log.ring().head();
        }
        true
    }

    /// Takes the records of the epoch out of a segment, which begins at sector `start`.
    fn take(&mut self, bytes: &[u8], start: u64, superblock: &LogSuperblock, safe: u64) {
        let block = superblock.log_block_bytes as usize;
        let headers = bytes.chunks_exact(block).zip((start..).step_by(block / SECTOR_BYTES as usize));
        let headers = headers.filter_map(|(block, sector)| decode_header(block, superblock, sector));
        let mut headers: Vec<Header> = headers.filter(|header| header.seq >= self.read.seq).collect();
        headers.sort_by_key(|header| (header.seq, Reverse(header.epoch)));
        for header in headers {
            // Others are left over from before a crash.
            let is_current = match header.seq < superblock.epoch_start_seq {
                true => header.epoch >= self.read.epoch && header.epoch < superblock.epoch,
                false => header.epoch == superblock.epoch,
            };
            if header.seq > safe {
                break;
            }
            if header.seq != self.read.seq || !is_current {
                continue;
            }
            if *self.epoch.get_or_insert(header.flush_epoch) != header.flush_epoch {
                self.complete = true;
                return;
            }
            assert!(self.index.insert_record(&header), "the batch has room for all that the cache has");
            self.read.seq += 1;
            self.read.epoch = header.epoch;
        }
        self.complete = self.read.seq > safe;
    }
}
