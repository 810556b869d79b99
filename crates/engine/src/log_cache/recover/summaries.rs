//! Decides which summaries a walk believes, and for which records.
//!
//! A record from a summary is taken without reading its header, so the header must certainly be there:
//!
//! - A record counts only if a summary of the same activation, or the superblock, calls it durable. A later start cannot have dropped
//!   such a record and written another in its place.
//! - Activations before [`LogSuperblock::summaries_epoch`] do not count: after a start that accepted damage, durable records are missing.
//! - Both superblocks are good. With the older superblock alone, the walk may begin in segments that were written again since.
//! - The rule of epochs holds as for a header.
//!
//! Anything that looks like damage ends the walk, and the caller walks again without summaries: damage is decided by headers alone.

use super::reader::LogReader;
use super::{RecoverError, Walk};
use crate::log_cache::LogCanary;
use crate::log_cache::format::{Entries, Header, LogState, LogSuperblock};
use crate::log_cache::summary::Summary;
use crate::{Planted, SECTOR_BYTES};

/// See the module's documentation.
pub(super) struct Summaries {
    /// The summary of each segment.
    of: Vec<Option<Summary>>,
    /// Each activation, with the first record that none of its summaries calls durable.
    durable: Vec<(u64, u64)>,
    /// Maximum number of segment buffers in any summary.
    buffers: u32,
    /// A segment whose headers were read from its summary, without those already taken.
    open: Option<(u32, Vec<Option<Header>>)>,
    is_newly_opened: bool,
    canary: Planted<LogCanary>,
}

impl Summaries {
    /// Reads the fixed part of each summary; none if the log is empty after a clean stop.
    pub fn read(
        reader: &mut LogReader<'_>,
        superblock: &LogSuperblock,
        canary: Planted<LogCanary>,
    ) -> Result<Option<Summaries>, RecoverError> {
        let is_empty = superblock.state == LogState::Stopped && superblock.tail_seq == superblock.durable_seq;
        if superblock.summaries_epoch == 0 || is_empty {
            return Ok(None);
        }
        let mut summaries = Summaries {
            of: Vec::with_capacity(superblock.segments as usize),
            durable: vec![(superblock.epoch, superblock.durable_seq)],
            buffers: 0,
            open: None,
            is_newly_opened: false,
            canary,
        };
        let believed = superblock.summaries_epoch..=superblock.epoch;
        for segment in 0..superblock.segments {
            let sector = superblock.segment_start((segment + 1) % superblock.segments);
            let sectors = superblock.log_block_sectors();
            let summary = reader.find((sector, sectors, sector + sectors), |block| {
                Summary::decode(block, superblock, segment, sector)
                    .filter(|summary| believed.contains(&summary.epoch))
            })?;
            let summary = summary.map(|(summary, _)| summary);
            if let Some(summary) = &summary {
                summaries.note_durable(summary.epoch, summary.durable_seq);
                summaries.buffers = summaries.buffers.max(summary.segment_buffers.into());
            }
            summaries.of.push(summary);
        }
        Ok(Some(summaries))
    }

    fn note_durable(&mut self, epoch: u64, seq: u64) {
        match self.durable.iter_mut().find(|(of, _)| *of == epoch) {
            Some((_, durable)) => *durable = seq.max(*durable),
            None => self.durable.push((epoch, seq)),
        }
    }

    /// True if a summary or the superblock calls record `seq` of an activation durable.
    pub fn is_durable(&self, epoch: u64, seq: u64) -> bool {
        self.durable.iter().any(|&(of, durable)| of == epoch && seq < durable)
    }

    /// The headers of a segment that was opened since the last call.
    pub fn newly_opened(&mut self) -> Option<impl Iterator<Item = &Header>> {
        let is_new = std::mem::take(&mut self.is_newly_opened);
        self.open.as_ref().filter(|_| is_new).map(|(_, headers)| headers.iter().flatten())
    }

    /// The segment whose summary has the newest records.
    fn newest(&self) -> Option<u32> {
        let summaries = self.of.iter().flatten();
        summaries.max_by_key(|summary| (summary.epoch, summary.first_seq)).map(|summary| summary.segment)
    }

    /// Returns the newest header of a segment `steps` after the walk's place, if its summary states it. A buffer is retained until all
    /// records before it are durable, so records after the last summary lie in no more segments than there are buffers.
    pub fn newest_header(&self, superblock: &LogSuperblock, segment: u32, steps: u32) -> Option<Header> {
        let near = self.buffers + 1;
        let newest = self.newest()?;
        let behind_newest = (segment + superblock.segments - newest) % superblock.segments;
        let summary = self.of[segment as usize].as_ref()?;
        (steps > near && (behind_newest == 0 || behind_newest > near)).then(|| Header {
            epoch: summary.epoch,
            seq: summary.end_seq() - 1,
            sector: superblock.segment_start(segment),
            oldest_live_seq: summary.oldest_live_seq,
            durable_seq: summary.durable_seq,
            flush_epoch: 0,
            sectors: 0,
            continues: false,
            entries: Entries::new(),
        })
    }
}

impl Walk<'_> {
    /// Returns the expected record from the summary of a segment.
    pub(super) fn summarised(&mut self, segment: u32) -> Result<Option<Header>, RecoverError> {
        let Some(summaries) = &mut self.summaries else { return Ok(None) };
        let Some(summary) = &summaries.of[segment as usize] else { return Ok(None) };
        let Some(index) = self.seq.checked_sub(summary.first_seq).filter(|i| *i < summary.records.into())
        else {
            return Ok(None);
        };
        let epoch = summary.epoch;
        if !summaries.is_durable(epoch, self.seq) && !summaries.canary.is(LogCanary::StaleSummary) {
            return Ok(None);
        }
        if summaries.open.as_ref().is_none_or(|(open, _)| *open != segment) {
            let (sector, bytes) = (summary.sector, summary.bytes());
            let sectors = (bytes as u64).div_ceil(SECTOR_BYTES);
            let unreadable = self.reader.first_unreadable;
            let headers = self.reader.find((sector, sectors, sector + sectors), |bytes| {
                summary.headers(bytes, &self.superblock)
            })?;
            self.reader.first_unreadable = unreadable;
            let Some((headers, _)) = headers else {
                summaries.of[segment as usize] = None;
                return Ok(None);
            };
            summaries.open = Some((segment, headers.into_iter().map(Some).collect()));
            summaries.is_newly_opened = true;
        }
        self.found_on = 0;
        let header = summaries.open.as_mut().and_then(|(_, headers)| headers[index as usize].take());
        Ok(header.filter(|header| self.is_expected(header)))
    }

    /// True if the running activation has left this segment, and its next record is the expected one.
    pub(super) fn has_left(&self, segment: u32) -> bool {
        let summary = self.summaries.as_ref().and_then(|summaries| summaries.of[segment as usize].as_ref());
        summary.is_some_and(|summary| {
            let is_running =
                summary.epoch == self.superblock.epoch && self.seq >= self.superblock.epoch_start_seq;
            is_running && self.seq == summary.end_seq()
        })
    }
}
