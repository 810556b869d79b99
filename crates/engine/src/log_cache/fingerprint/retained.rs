//! The fingerprint of a data disk that is missing at a start.
//!
//! The fingerprint stays as it is for the start that finds the disk again, as the cache writes nothing to the disk meanwhile. There is one
//! exception: after a crash, a covered line may hold data of any record that the walk finds. As soon as the first such record of a line is
//! gone from the log, nothing might explain that data any more, so the content of the line counts as unknown. After a clean stop no record
//! explains anything, so while there is such a line, a stop leaves the log in the state after a crash.

use std::collections::BTreeMap;

use super::Fingerprint;
use crate::log_cache::format::{EntryKind, Header, LogState, LogSuperblock};
use crate::log_cache::recover::{DamageKind, Walked};
use crate::{Extent, LINE_SECTORS};

/// See the module's documentation. Give it every record of the walk.
pub struct RetainedFingerprint {
    fingerprint: Fingerprint,
    /// The last stop was clean: no record explains content.
    is_exact: bool,
    /// Lines of which records have content, with the first of these records.
    touched: BTreeMap<u64, u64>,
    /// The addresses of the disk.
    addresses: Extent,
}

impl RetainedFingerprint {
    /// `trusts`: as after a clean stop, whatever the superblock says (a planted bug).
    pub fn new(superblock: &LogSuperblock, disk: usize, trusts: bool) -> RetainedFingerprint {
        let fingerprint = superblock.fingerprint_of(disk).clone();
        let is_exact = superblock.state == LogState::Stopped && fingerprint.is_exact;
        let addresses = superblock.space().extent(disk);
        RetainedFingerprint { fingerprint, is_exact: is_exact || trusts, touched: BTreeMap::new(), addresses }
    }

    /// Takes a record of the walk.
    pub fn record(&mut self, header: &Header) {
        if self.is_exact {
            return;
        }
        let changes =
            header.entries.iter().filter(|e| !matches!(e.kind, EntryKind::Invalidate | EntryKind::Clean));
        for extent in changes.filter_map(|entry| entry.extent.intersection(self.addresses)) {
            let start = extent.start - self.addresses.start;
            let lines = start / LINE_SECTORS..(start + extent.sectors).div_ceil(LINE_SECTORS);
            let covered = &self.fingerprint.lines;
            let first = covered.partition_point(|line| line.line < lines.start);
            for line in covered[first..].iter().take_while(|line| line.line < lines.end) {
                self.touched.entry(line.line).or_insert(header.seq);
            }
        }
    }

    /// Ends the walk. If records of unknown content are lost, any line may hold their data.
    pub fn end_walk(&mut self, walked: &Walked) {
        if walked.damage.iter().any(|damage| damage.kind != DamageKind::Payload) {
            self.fingerprint.lines.iter_mut().for_each(|line| line.sum = None);
        }
        self.pass(walked.tail_seq);
    }

    /// Notes that records before this one may be gone from the log.
    pub fn pass(&mut self, seq: u64) {
        let fingerprint = &mut self.fingerprint;
        self.touched.retain(|line, first| {
            let is_there = *first >= seq;
            if !is_there && let Ok(at) = fingerprint.lines.binary_search_by_key(line, |known| known.line) {
                fingerprint.lines[at].sum = None;
            }
            is_there
        });
    }

    /// True while lines may hold data of records that are in the log.
    pub fn needs_records(&self) -> bool {
        !self.touched.is_empty()
    }

    pub const fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }
}
