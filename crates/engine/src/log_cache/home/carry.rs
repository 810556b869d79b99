//! Carrying a batch: the phases *ranges*, *read* and *write* of a destage batch, with up to `destage_depth` operations in
//! flight. What to carry is chosen, and what came home is noted, in the parent module.

use std::collections::VecDeque;

use super::super::core::{Core, DATA, LOG, Op};
use super::super::read::{byte_offset, masked_runs, piece_is_whole};
use super::super::table::RangeKind;
use super::{Item, Phase};
use crate::destage::how;
use crate::layer::{Durability, Io, IoResult, Outbox};
use crate::{Buf, Extent, LINE_BYTES, LINE_SECTORS, Lba, Nanos, SECTOR_BYTES};

/// Neighbours in the log, read together.
pub(super) struct Group {
    extent: Extent,
    segment: u32,
    items: Vec<u32>,
}

/// Neighbours on the data disk, written together.
pub(super) struct Run {
    start: Lba,
    buf: Buf,
    blocks: std::ops::Range<usize>,
}

/// A block of a window, and the run it belongs to.
pub(super) struct Target {
    item: u32,
    block: u32,
    run: u32,
}

pub(super) enum Flight {
    Range,
    Read(Group),
    /// These blocks of the window.
    Write(std::ops::Range<usize>),
    Flush,
}

impl Core {
    pub(super) fn step_ranges(&mut self, out: &mut Outbox) {
        while self.home.flights.len() < self.config.destage_depth {
            let Some((extent, kind)) = self.home.range_parts.pop_front() else { break };
            let durability = Durability::Volatile;
            let io = match kind {
                RangeKind::Discard if self.data.discards => Io::Discard { extent },
                RangeKind::Discard => Io::WriteZeroes { extent, unmap: true, durability },
                RangeKind::Zeroes { unmap } => Io::WriteZeroes { extent, unmap, durability },
            };
            self.send(Flight::Range, io, out);
        }
        if self.home.flights.is_empty() && self.home.range_parts.is_empty() {
            // Data over a range must not go home before it: give up the batch where one failed.
            self.home.phase = if self.home.errors > 0 { Phase::Flush } else { Phase::Read };
            if self.home.errors > 0 {
                self.home.range_ids.clear();
                self.home.items.clear();
            } else {
                self.plan_window();
            }
        }
    }

    /// Takes the next items that fit the memory, and plans what to read and what to write.
    fn plan_window(&mut self) {
        let home = &mut self.home;
        home.blocks.clear();
        home.runs.clear();
        home.next_run = 0;
        home.next_block = 0;
        let first = home.next;
        let lines = (self.config.destage_memory / LINE_BYTES as usize).max(1);
        home.next = (first + lines).min(home.items.len());
        for index in first..home.next {
            let Item { line, piece, .. } = home.items[index];
            masked_runs(line, piece.mask, |run| {
                let place = piece.place_of((run.start.0 % LINE_SECTORS) as u8).0;
                home.blocks.push(how::Block { home: run, place, index: index as u32 });
            });
        }
        how::policy(self.config.how).order(&mut home.blocks);
        home.targets.clear();
        for blocks in how::merge(&home.blocks) {
            let start = home.blocks[blocks.start].home.start;
            let sectors = home.blocks[blocks.end - 1].home.end() - start;
            let run = home.runs.len() as u32;
            let of = |block: usize| Target { item: home.blocks[block].index, block: block as u32, run };
            home.targets.extend(blocks.clone().map(of));
            home.runs.push(Run { start, buf: Buf::zeroed((sectors * SECTOR_BYTES) as usize), blocks });
        }
        home.targets.sort_unstable_by_key(|target| target.item);
        self.plan_groups(first);
    }

    /// What has to be read from the log for a window, in the log's order.
    fn plan_groups(&mut self, first: usize) {
        let mut order: Vec<u32> = (first as u32..self.home.next as u32).collect();
        let items = &self.home.items;
        order.sort_unstable_by_key(|&index| items[index as usize].piece.place);
        let mut groups: VecDeque<Group> = VecDeque::new();
        for index in order {
            let piece = items[index as usize].piece;
            let (place, sectors) = (Lba(piece.place.0), u64::from(piece.count));
            let segment = self.superblock.segment_of(place.0);
            match groups.back_mut() {
                Some(group)
                    if group.segment == segment
                        && place.0 <= group.extent.end().0 + self.superblock.log_block_sectors()
                        && group.extent.sectors < how::MERGE_SECTORS_MAX =>
                {
                    let end = group.extent.end().0.max(place.0 + sectors);
                    group.extent.sectors = end - group.extent.start.0;
                    group.items.push(index);
                }
                _ => groups.push_back(Group {
                    extent: Extent::new(place, sectors),
                    segment,
                    items: vec![index],
                }),
            }
        }
        self.home.groups = groups;
    }

    pub(super) fn step_read(&mut self, out: &mut Outbox) {
        while self.home.flights.len() < self.config.destage_depth {
            let Some(group) = self.home.groups.pop_front() else { break };
            let Some(group) = self.take_from_ram(group) else { continue };
            self.ring.at_mut(group.segment).pins += 1;
            let extent = self.log_blocks(group.extent);
            let buf = Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize);
            self.send(Flight::Read(group), Io::Read { at: extent.start, buf }, out);
        }
        if self.home.flights.is_empty() && self.home.groups.is_empty() {
            self.home.phase = Phase::Write;
        }
    }

    /// After the log has failed, the buffers are the best copy: takes what is in them from there, and leaves the rest of
    /// the group to be read.
    fn take_from_ram(&mut self, group: Group) -> Option<Group> {
        let Group { extent, segment, items } = group;
        let (held, rest): (Vec<u32>, Vec<u32>) = items.into_iter().partition(|&index| {
            self.buffers.holding(self.home.items[index as usize].piece.place.0).is_some()
        });
        for &index in &held {
            let piece = self.home.items[index as usize].piece;
            let start = Lba(piece.place.0);
            let extent = Extent::new(start, u64::from(piece.count));
            let mut buf = Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize);
            let buffer = self.buffers.holding(start.0).expect("it is in RAM");
            assert!(buffer.read(start.0, &mut buf, 0, extent.sectors), "it is in RAM");
            self.fill_runs(&Group { extent, segment, items: vec![index] }, start, &buf);
        }
        (!rest.is_empty()).then_some(Group { extent, segment, items: rest })
    }

    /// Puts what was read into the runs, piece by piece, each one checked.
    fn fill_runs(&mut self, group: &Group, start: Lba, buf: &Buf) {
        for &index in &group.items {
            let item = &mut self.home.items[index as usize];
            let at = byte_offset(start, Lba(item.piece.place.0));
            if !piece_is_whole(&item.piece, buf, at) {
                self.lose_item(index as usize);
                continue;
            }
            let home = &mut self.home;
            let first = home.targets.partition_point(|target| target.item < index);
            for target in home.targets[first..].iter().take_while(|target| target.item == index) {
                let block = home.blocks[target.block as usize];
                let run = &mut home.runs[target.run as usize];
                let to = byte_offset(run.start, block.home.start);
                let from = byte_offset(start, Lba(block.place));
                run.buf.copy_from(to, buf, from, (block.home.sectors * SECTOR_BYTES) as usize);
            }
        }
    }

    /// A piece that cannot be read: an error for exactly its sectors, until somebody writes them again. One that was
    /// overwritten meanwhile is nobody's loss.
    fn lose_item(&mut self, index: usize) {
        let item = &mut self.home.items[index];
        item.failed = true;
        let (line, place) = (item.line, item.piece.place);
        if self.table.lookup(line).iter().any(|piece| piece.place == place && piece.dirty) {
            self.home.lost.note(line, place);
            self.statistics.log_read_errors += 1;
        }
    }

    pub(super) fn step_write(&mut self, out: &mut Outbox) {
        while self.home.flights.len() < self.config.destage_depth {
            let Some(run) = self.home.runs.get_mut(self.home.next_run) else { break };
            run.buf.share();
            let blocks = self.home.next_block.max(run.blocks.start)..run.blocks.end;
            let bad = |block: usize| self.home.items[self.home.blocks[block].index as usize].failed;
            let Some(first) = blocks.clone().find(|&block| !bad(block)) else {
                self.home.next_run += 1;
                continue;
            };
            let last = (first..blocks.end).find(|&block| bad(block)).unwrap_or(blocks.end);
            let run = &self.home.runs[self.home.next_run];
            let at = self.home.blocks[first].home.start;
            let bytes = byte_offset(at, self.home.blocks[last - 1].home.end());
            let buf = run.buf.window(byte_offset(run.start, at), bytes);
            self.home.next_block = last;
            self.statistics.destage_writes += 1;
            self.send(
                Flight::Write(first..last),
                Io::Write { at, buf, durability: Durability::Volatile },
                out,
            );
        }
        if self.home.flights.is_empty() && self.home.next_run >= self.home.runs.len() {
            if self.home.next < self.home.items.len() {
                self.home.phase = Phase::Read;
                self.plan_window();
            } else {
                self.home.phase = Phase::Flush;
            }
        }
    }

    pub(super) fn step_flush(&mut self, out: &mut Outbox) {
        if self.home.flights.is_empty() {
            self.home.runs.clear();
            self.send(Flight::Flush, Io::Flush, out);
        }
    }

    fn send(&mut self, flight: Flight, io: Io, out: &mut Outbox) {
        let port = if matches!(flight, Flight::Read(_)) { LOG } else { DATA };
        let slot = self.home.flights.insert(flight);
        self.submit(port, Op::Home(slot), io, out);
    }

    pub fn on_home(&mut self, now: Nanos, slot: u64, result: IoResult, out: &mut Outbox) {
        let flight = self.home.flights.remove(slot);
        if let Err(error) = result.status {
            self.statistics.destage_errors += 1;
            self.statistics.last_error = Some(error);
            if !matches!(flight, Flight::Read(_)) {
                self.home.errors += 1;
            }
        }
        match flight {
            Flight::Range => {}
            Flight::Read(group) => {
                self.ring.at_mut(group.segment).pins -= 1;
                match result.status {
                    Ok(()) => {
                        let start = self.log_blocks(group.extent).start;
                        self.fill_runs(&group, start, &result.buf);
                    }
                    // Alone, each piece may be readable.
                    Err(_) if group.items.len() > 1 => self.split_group(&group),
                    Err(_) => self.lose_item(group.items[0] as usize),
                }
            }
            Flight::Write(blocks) if result.status.is_err() => {
                for block in blocks {
                    let index = self.home.blocks[block].index as usize;
                    self.home.items[index].failed = true;
                }
            }
            Flight::Write(blocks) => {
                let home = &self.home;
                let sectors: u64 = home.blocks[blocks].iter().map(|block| block.home.sectors).sum();
                self.statistics.destaged_sectors += sectors;
            }
            Flight::Flush => {
                if let Err(error) = result.status {
                    self.destage_flush_failed(now, error, out);
                }
                self.end_batch(now, result.status.is_ok(), out);
            }
        }
    }

    fn split_group(&mut self, group: &Group) {
        for &index in &group.items {
            let piece = self.home.items[index as usize].piece;
            let extent = Extent::new(Lba(piece.place.0), u64::from(piece.count));
            self.home.groups.push_back(Group { extent, segment: group.segment, items: vec![index] });
        }
    }
}
