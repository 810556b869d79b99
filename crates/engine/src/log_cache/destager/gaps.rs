//! Gaps between blocks that are destaged: the contiguity transform (Baek and Park) for the data disk of a log cache.
//!
//! Where the rule for writes says that a disk writes two neighbours faster with what lies between them, that is written too,
//! with the content that the data disk has: from clean copies in the log if they cover the gap, or else read from the data disk where
//! the rule for reads allows it. So a gap changes nothing, as long as nobody else changes its sectors there in between:
//!
//! - what is newer in the log is destaged with a later batch, and makes no difference to the gap;
//! - a bypassing write in flight leaves the gap unfilled, and none starts over a gap (`is_filling`);
//! - a discard or zeroes that are not destaged yet leave it unfilled;
//! - the tail of the log does not pass what is read from it (`Destager::hold`).
//!
//! What cannot be read is left out, and a batch after one that failed fills nothing, so that no gap keeps data from the data disk.

use super::Destager;
use super::room::{Gap, GapRead, Item, ItemTarget, Room};
use crate::destage::contiguity::{Contiguity, Strides};
use crate::log_cache::env::DiskView;
use crate::log_cache::table::{Line, Piece};
use crate::log_cache::{LogCacheConfig, LogCanary};
use crate::{Buf, Extent, LINE_SECTORS, Lba, SECTOR_BYTES, byte_offset};

impl Destager {
    /// The rules, where this batch may fill gaps.
    pub(super) fn gap_rules<'a>(&self, view: &DiskView<'a>) -> Option<&'a Contiguity> {
        let may = !view.log.has_failed() && !self.is_after_failure();
        view.config.contiguity.as_ref().filter(|rules| may && view.config.may_fill(rules))
    }

    /// True when the running batch writes the sectors again unchanged: a write that changes them on the data disk must wait.
    pub fn is_filling(&self, extent: Extent, config: &LogCacheConfig) -> bool {
        let gaps = &self.room.gaps;
        let next = gaps.partition_point(|gap| gap.extent.end() <= extent.start);
        let filling = gaps.get(next).is_some_and(|gap| gap.extent.start < extent.end());
        filling && !config.canary.is(LogCanary::StaleGap)
    }

    /// Makes a gap a part of the window's newest run, if it pays and its content can be had.
    pub(super) fn add_gap(&mut self, extent: Extent, view: &DiskView) -> bool {
        let Some(rules) = self.gap_rules(view) else { return false };
        let pays = |rule: &Strides| rule.allow_between(extent.start, extent.end());
        let (pays, may_read) = (pays(&rules.write), pays(&rules.read));
        if !pays || view.index.ranges().contains_any(extent) || view.data.is_bypassed(extent) {
            return false;
        }
        let (run, clean) = (self.room.runs.len() as u32 - 1, self.room.clean.len());
        let in_log = self.add_clean_pieces(extent, view);
        if in_log || may_read {
            let gap = Gap { extent, run, missing: extent.sectors, is_read: !in_log, clean };
            self.room.gaps.push(gap);
        }
        in_log || may_read
    }

    /// Adds what the log has of a gap behind the newest run to what is read from it, if that is all of it.
    fn add_clean_pieces(&mut self, extent: Extent, view: &DiskView) -> bool {
        let (log, index) = (view.log, view.index);
        let segment = |piece: &Piece| log.number_of(piece.place);
        // What lies before the tail may be written again at any time.
        let usable = |piece: &Piece| {
            !piece.dirty
                && log.ring().is_live(index.segment_of(piece.place))
                && log.buffers().holding(piece.place.0).is_none()
        };
        let room = &mut self.room;
        let (clean, targets, hold) = (room.clean.len(), room.targets.len(), self.hold);
        for line in Line::touching(extent).map(Line) {
            let mut wanted = line.mask_of(extent);
            for &piece in index.table().lookup(line).iter().filter(|piece| usable(piece)) {
                let mask = piece.mask & wanted;
                if mask == 0 || room.clean.len() >= room.clean_max {
                    continue;
                }
                wanted &= !mask;
                let item = (room.items.len() + room.clean.len()) as u32;
                room.clean.push(Item { line, piece, failed: false });
                line.runs(mask, |extent| {
                    let place = piece.place_of((extent.start.0 % LINE_SECTORS) as u8).0;
                    let at = room.newest_run().place_of(extent.start);
                    room.targets.push(ItemTarget { item, extent, place, at });
                });
                self.hold = self.hold.min(segment(&piece));
            }
            if wanted != 0 {
                room.clean.truncate(clean);
                room.targets.truncate(targets);
                self.hold = hold;
                return false;
            }
        }
        true
    }
}

impl Room {
    /// Reads for the gaps that the log does not have: neighbours in a run are read together, where the rule says so.
    pub(super) fn plan_gap_reads(&mut self, rule: &Strides) {
        let sectors_max = self.read_sectors();
        let Room { gaps, gap_reads, .. } = self;
        for (index, gap) in gaps.iter().enumerate().filter(|(_, gap)| gap.is_read) {
            let run = |read: &GapRead| gaps[read.first as usize].run;
            if let Some(read) = gap_reads.back_mut()
                && run(read) == gap.run
                && rule.allow_between(read.extent.end(), gap.extent.start)
                && gap.extent.end() - read.extent.start <= sectors_max
            {
                read.extent.sectors = gap.extent.end() - read.extent.start;
                read.count = index as u32 + 1 - read.first;
                continue;
            }
            let mut rest = gap.extent;
            while rest.sectors > 0 {
                let extent = Extent::new(rest.start, rest.sectors.min(sectors_max));
                gap_reads.push_back(GapRead { extent, first: index as u32, count: 1 });
                rest = Extent::new(extent.end(), rest.sectors - extent.sectors);
            }
        }
    }

    /// Forgets the gaps that lie behind a sector.
    pub(super) fn cut_gaps(&mut self, end: Lba) {
        while let Some(gap) = self.gaps.pop_if(|gap| gap.extent.start >= end) {
            self.clean.truncate(gap.clean);
        }
    }

    /// True when the blocks on both sides of a place are written in one go: nothing lies between them, or its content has come.
    pub(super) fn is_joined(&self, behind: usize) -> bool {
        let (end, start) = (self.blocks[behind - 1].target.end(), self.blocks[behind].target.start);
        end == start || self.gap_at(end).is_some_and(|gap| self.gaps[gap].missing == 0)
    }

    /// The gap that a sector is in.
    fn gap_at(&self, sector: Lba) -> Option<usize> {
        let gap = self.gaps.partition_point(|gap| gap.extent.end() <= sector);
        self.gaps.get(gap).filter(|found| found.extent.contains(sector)).map(|_| gap)
    }

    /// A part of a gap has come from the log.
    pub(super) fn came_from_log(&mut self, part: Extent) {
        let gap = self.gap_at(part.start).expect("a clean piece is read for a gap");
        self.gaps[gap].missing -= part.sectors;
    }

    /// Puts what was read from the data disk where it goes.
    pub(super) fn came_from_disk(&mut self, read: &GapRead, buf: &Buf) {
        for index in read.gaps() {
            let gap = &self.gaps[index];
            let Some(part) = gap.extent.intersection(read.extent).filter(|_| gap.is_read) else { continue };
            let run = &self.runs[gap.run as usize];
            let (to, from) = (run.place_of(part.start), byte_offset(read.extent.start, part.start));
            self.fill().copy_from(to, buf, from, (part.sectors * SECTOR_BYTES) as usize);
            self.gaps[index].missing -= part.sectors;
        }
    }

    /// Alone, each gap may be readable.
    pub(super) fn read_gaps_one_by_one(&mut self, read: &GapRead) {
        for index in read.gaps().filter(|_| read.count > 1) {
            let gap = &self.gaps[index];
            if gap.is_read {
                let alone = GapRead { extent: gap.extent, first: index as u32, count: 1 };
                self.gap_reads.push_back(alone);
            }
        }
    }
}
