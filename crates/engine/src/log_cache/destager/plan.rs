//! Planning a window of a batch: as many items as the memory holds, what to read for them, and in which runs they are written.

use super::super::env::DiskView;
use super::Destager;
use super::room::{Group, Item, ItemRead, ItemTarget, Room, WriteRun};
use crate::destage::how;
use crate::log_cache::table::Line;
use crate::{Extent, LINE_SECTORS, Lba, SECTOR_BYTES};

/// Pieces so far apart on a log that spins (64 KiB, most of a track or less) are read together: what lies between them passes
/// under the heads in any case, and a second request costs more than its transfer.
const SPINNING_GAP_SECTORS: u64 = 128;

impl Destager {
    /// Takes the next items that fit the memory, and plans what to read and what to write.
    pub(super) fn plan_window(&mut self, view: &DiskView) {
        self.room.clear_window();
        (self.next_run, self.next_block) = (0, 0);
        let first = self.next;
        self.take_blocks();
        view.config.how.order(&mut self.room.blocks);
        self.plan_runs(first, view);
        if let Some(rules) = self.gap_rules(view) {
            self.room.plan_gap_reads(&rules.read);
        }
        self.room.targets.sort_unstable_by_key(|target| target.item);
        self.room.fill();
        self.room.plan_groups(view);
    }

    fn take_blocks(&mut self) {
        let room = &mut self.room;
        while let Some(Item { line, piece, failed }) = room.items.get(self.next).copied() {
            if failed {
                self.next += 1;
                continue;
            }
            let blocks = room.blocks.len();
            line.runs(piece.mask, |run| {
                let place = piece.place_of((run.start.0 % LINE_SECTORS) as u8).0;
                room.blocks.push(how::DirtyBlock { target: run, place, index: self.next as u32 });
            });
            if room.blocks.len() > room.blocks_max {
                room.blocks.truncate(blocks);
                break;
            }
            self.next += 1;
        }
    }

    fn plan_runs(&mut self, first: usize, view: &DiskView) {
        for block in 0..self.room.blocks.len() {
            let extent = self.room.blocks[block].target;
            let joined = self.joins_run(extent, view);
            let room = &mut self.room;
            if joined {
                let run = room.runs.last_mut().expect("it joins one");
                run.sectors = extent.end() - run.start;
                run.blocks.end = block + 1;
            } else {
                let in_line = (extent.start.0 % LINE_SECTORS * SECTOR_BYTES) as usize;
                let at = room.runs.last().map_or(0, WriteRun::memory_end) + in_line;
                let run =
                    WriteRun { start: extent.start, sectors: extent.sectors, at, blocks: block..block + 1 };
                room.runs.push(run);
            }
            if room.newest_run().memory_end() > room.memory_bytes() {
                return self.cut_window(first, Line::of(extent.start));
            }
            let how::DirtyBlock { index: item, place, .. } = room.blocks[block];
            let at = room.newest_run().place_of(extent.start);
            room.targets.push(ItemTarget { item, extent, place, at });
        }
    }

    /// Returns true when a block continues the newest run. Adds the gap before the block to the run if that gap is filled.
    fn joins_run(&mut self, extent: Extent, view: &DiskView) -> bool {
        let Some(run) = self.room.runs.last() else { return false };
        let end = run.end();
        if extent.start < end || extent.end() - run.start > how::MERGE_SECTORS_MAX {
            return false;
        }
        extent.start == end || self.add_gap(Extent::new(end, extent.start - end), view)
    }

    /// The memory is full, of gaps too: the blocks from this line on go with the next window.
    fn cut_window(&mut self, first: usize, line: Line) {
        let items = &self.room.items[first..self.next];
        self.next = first + items.partition_point(|item| item.line < line);
        self.room.cut(line.start());
    }
}

impl Room {
    /// Plans the reads of the log for a window's targets, in the log's order.
    fn plan_groups(&mut self, view: &DiskView) {
        let (log, index) = (view.log, view.index);
        let block_sectors = log.superblock().log_block_sectors();
        let gap = if log.geometry().rotational { SPINNING_GAP_SECTORS } else { block_sectors };
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        let mut target = 0;
        for targets in self.targets.chunk_by(|one, next| one.item == next.item) {
            order.push(ItemRead { item: targets[0].item, target });
            target += targets.len() as u32;
        }
        order.sort_unstable_by_key(|source| self.item(source.item).piece.place);
        for (at, source) in order.iter().enumerate() {
            let piece = self.item(source.item).piece;
            let (place, sectors) = (Lba(piece.place.0), u64::from(piece.count));
            let segment = index.segment_of(piece.place);
            match self.groups.back_mut() {
                Some(group)
                    if group.segment == segment
                        && place.0 <= group.extent.end().0 + gap
                        && place.0 + sectors <= group.extent.start.0 + how::MERGE_SECTORS_MAX =>
                {
                    let end = group.extent.end().0.max(place.0 + sectors);
                    group.extent.sectors = end - group.extent.start.0;
                    group.count += 1;
                }
                _ => self.groups.push_back(Group {
                    extent: Extent::new(place, sectors),
                    segment,
                    first: at as u32,
                    count: 1,
                    copy: None,
                }),
            }
        }
        self.order = order;
    }

    /// Forgets what the window has from a sector on.
    fn cut(&mut self, sector: Lba) {
        let blocks = self.blocks.partition_point(|block| block.target.start < sector);
        self.blocks.truncate(blocks);
        while self.runs.last().is_some_and(|run| run.start >= sector) {
            self.runs.pop();
        }
        let Some(run) = self.runs.last_mut() else { unreachable!("a window has room for a line") };
        run.blocks.end = blocks;
        run.sectors = self.blocks[blocks - 1].target.end() - run.start;
        let end = run.end();
        self.targets.retain(|target| target.extent.start < end);
        self.cut_gaps(end);
    }
}
