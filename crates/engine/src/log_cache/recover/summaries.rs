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
use crate::log_cache::format::{Entries, Header, LogState, LogSuperblock, RECORD_MAGIC};
use crate::log_cache::spindle::Spindle;
use crate::log_cache::summary::{SUMMARY_MAGIC, Summary};
use crate::{Extent, Lba, Planted};

/// See the module's documentation.
pub(super) struct Summaries {
    /// The summary of each segment.
    of: Vec<Option<Summary>>,
    /// True for each segment that begins with a summary or a record of any log, or cannot be read there.
    entered: Vec<bool>,
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
            of: vec![None; superblock.segments as usize],
            entered: vec![true; superblock.segments as usize],
            durable: vec![(superblock.epoch, superblock.durable_seq)],
            buffers: 0,
            open: None,
            is_newly_opened: false,
            canary,
        };
        let believed = superblock.summaries_epoch..=superblock.epoch;
        let (segments, sectors) = (superblock.segments, superblock.log_block_sectors());
        let mut ahead = 0;
        for segment in 0..segments {
            if segment == ahead {
                let starts = (segment..segments).map(|segment| Lba(superblock.segment_start(segment)));
                ahead += reader.read_ahead(starts.map(|start| Extent::new(start, sectors)))? as u32;
            }
            let sector = superblock.segment_start(segment);
            let before = (segment + segments - 1) % segments;
            let mut is_blank = true;
            reader.first_unreadable = None;
            let summary = reader.find((sector, sectors, sector + sectors), |block| {
                is_blank &= block[..4] != SUMMARY_MAGIC && block[..4] != RECORD_MAGIC;
                Summary::decode(block, superblock, before, sector)
                    .filter(|summary| believed.contains(&summary.epoch))
            })?;
            summaries.entered[segment as usize] = !is_blank || reader.first_unreadable.is_some();
            if let Some((summary, _)) = summary {
                summaries.note_durable(summary.epoch, summary.durable_seq);
                summaries.buffers = summaries.buffers.max(summary.segment_buffers.into());
                summaries.of[before as usize] = Some(summary);
            }
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

    /// True if a segment `steps` after the walk's place has no record that any client relies on: each write of a segment is durable only
    /// with the first. Not on a log whose records take any free place of a segment.
    pub fn is_not_entered(&self, superblock: &LogSuperblock, segment: u32, steps: u32) -> bool {
        let is_in_order = !matches!(superblock.spindle, Spindle::Spins(_));
        steps > self.buffers + 1 && is_in_order && !self.entered[segment as usize]
    }

    /// The summaries of a segment and of those after it, as far as they are known.
    fn bodies(&self, segment: u32) -> impl Iterator<Item = Extent> + '_ {
        let (after, first) = (&self.of[segment as usize..], &self.of[..segment as usize]);
        after.iter().chain(first).map_while(Option::as_ref).map(Summary::extent)
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
            let Extent { start, sectors } = summary.extent();
            let unreadable = self.reader.first_unreadable;
            if !self.reader.is_ahead(start.0, sectors) {
                self.reader.read_ahead(summaries.bodies(segment))?;
            }
            let headers = self.reader.find((start.0, sectors, start.0 + sectors), |bytes| {
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
