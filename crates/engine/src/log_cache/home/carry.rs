//! Carrying a batch: the phases *ranges*, *read* and *write* of a destage batch, with up to `destage_depth` operations in
//! flight. What to carry is chosen, and what came home is noted, in the parent module.

use super::super::core::{Core, DATA, LOG, Mode, Op};
use super::super::read::{byte_offset, masked_runs, piece_is_whole};
use super::super::table::RangeKind;
use super::room::Room;
use super::{Item, Phase};
use crate::destage::how;
use crate::layer::{Durability, Io, IoResult, Outbox};
use crate::{Buf, Extent, LINE_BYTES, LINE_SECTORS, Lba, Nanos, SECTOR_BYTES};

/// Pieces so far apart on a log that spins (64 KiB, most of a track or less) are read together: what lies between them passes
/// under the heads in any case, and a second request costs more than its transfer.
const SPINNING_GAP_SECTORS: u64 = 128;

/// Neighbours in the log, read together.
pub struct Group {
    extent: Extent,
    segment: u32,
    /// A stretch of the window's `order`.
    first: u32,
    count: u32,
}

impl Group {
    fn items(&self) -> std::ops::Range<usize> {
        self.first as usize..(self.first + self.count) as usize
    }
}

/// Neighbours on the data disk, written together.
pub struct Run {
    start: Lba,
    /// Where it lies in the window's memory.
    at: usize,
    blocks: std::ops::Range<usize>,
}

/// A block of a window, and the run it belongs to.
pub struct Target {
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
                self.home.room.items.clear();
            } else {
                self.plan_window();
            }
        }
    }

    /// Takes the next items that fit the memory, and plans what to read and what to write.
    fn plan_window(&mut self) {
        let home = &mut self.home;
        let room = &mut home.room;
        room.blocks.clear();
        room.runs.clear();
        room.targets.clear();
        home.next_run = 0;
        home.next_block = 0;
        let first = home.next;
        while let Some(Item { line, piece, .. }) = room.items.get(home.next).copied() {
            let blocks = room.blocks.len();
            masked_runs(line, piece.mask, |run| {
                let place = piece.place_of((run.start.0 % LINE_SECTORS) as u8).0;
                room.blocks.push(how::Block { home: run, place, index: home.next as u32 });
            });
            if room.blocks.len() > room.blocks_max {
                room.blocks.truncate(blocks);
                break;
            }
            home.next += 1;
        }
        how::policy(self.config.how).order(&mut room.blocks);
        let mut at = 0;
        for blocks in how::merge(&room.blocks) {
            let start = room.blocks[blocks.start].home.start;
            let sectors = room.blocks[blocks.end - 1].home.end() - start;
            let run = room.runs.len() as u32;
            let of = |block: usize| Target { item: room.blocks[block].index, block: block as u32, run };
            room.targets.extend(blocks.clone().map(of));
            let in_line = (start.0 % LINE_SECTORS * SECTOR_BYTES) as usize;
            room.runs.push(Run { start, at: at + in_line, blocks });
            at += (in_line + (sectors * SECTOR_BYTES) as usize).next_multiple_of(LINE_BYTES as usize);
        }
        room.targets.sort_unstable_by_key(|target| target.item);
        room.fill();
        self.plan_groups(first);
    }

    /// What has to be read from the log for a window, in the log's order.
    fn plan_groups(&mut self, first: usize) {
        let gap =
            if self.log.rotational { SPINNING_GAP_SECTORS } else { self.superblock.log_block_sectors() };
        let Room { order, groups, items, .. } = &mut self.home.room;
        order.clear();
        order.extend(first as u32..self.home.next as u32);
        order.sort_unstable_by_key(|&index| items[index as usize].piece.place);
        groups.clear();
        for (at, &index) in order.iter().enumerate() {
            let piece = items[index as usize].piece;
            let (place, sectors) = (Lba(piece.place.0), u64::from(piece.count));
            let segment = self.superblock.segment_of(place.0);
            match groups.back_mut() {
                Some(group)
                    if group.segment == segment
                        && place.0 <= group.extent.end().0 + gap
                        && place.0 + sectors <= group.extent.start.0 + how::MERGE_SECTORS_MAX =>
                {
                    let end = group.extent.end().0.max(place.0 + sectors);
                    group.extent.sectors = end - group.extent.start.0;
                    group.count += 1;
                }
                _ => groups.push_back(Group {
                    extent: Extent::new(place, sectors),
                    segment,
                    first: at as u32,
                    count: 1,
                }),
            }
        }
    }

    pub(super) fn step_read(&mut self, out: &mut Outbox) {
        while self.home.flights.len() < self.config.destage_depth {
            let Some(group) = self.home.room.groups.pop_front() else { break };
            if matches!(self.mode, Mode::LogFailed { .. }) && self.take_from_ram(&group) {
                continue;
            }
            self.ring.at_mut(group.segment).pins += 1;
            let extent = self.log_blocks(group.extent);
            let buf = self.home.room.read_buf((extent.sectors * SECTOR_BYTES) as usize);
            self.send(Flight::Read(group), Io::Read { at: extent.start, buf }, out);
        }
        if self.home.flights.is_empty() && self.home.room.groups.is_empty() {
            self.home.phase = Phase::Write;
        }
    }

    /// After the log has failed, the buffers are the best copy: takes what is in them from there, and leaves the rest of
    /// the group to be read piece by piece. False where nothing is in RAM.
    fn take_from_ram(&mut self, group: &Group) -> bool {
        let place = |core: &Core, at: usize| {
            let index = core.home.room.order[at];
            core.home.room.items[index as usize].piece.place.0
        };
        if !group.items().any(|at| self.buffers.holding(place(self, at)).is_some()) {
            return false;
        }
        for at in group.items() {
            let single = self.single(group, at);
            let Some(buffer) = self.buffers.holding(place(self, at)) else {
                self.home.room.groups.push_back(single);
                continue;
            };
            let extent = single.extent;
            let mut buf = self.home.room.read_buf((extent.sectors * SECTOR_BYTES) as usize);
            assert!(buffer.read(extent.start.0, &mut buf, 0, extent.sectors), "it is in RAM");
            self.fill_runs(&single, extent.start, &buf);
            self.home.room.give_back(buf);
        }
        true
    }

    /// The group of one piece of a group.
    fn single(&self, group: &Group, at: usize) -> Group {
        let piece = self.home.room.items[self.home.room.order[at] as usize].piece;
        let extent = Extent::new(Lba(piece.place.0), u64::from(piece.count));
        Group { extent, segment: group.segment, first: at as u32, count: 1 }
    }

    /// Puts what was read into the runs, piece by piece, each one checked.
    fn fill_runs(&mut self, group: &Group, start: Lba, buf: &Buf) {
        for at in group.items() {
            let room = &mut self.home.room;
            let index = room.order[at];
            let piece = room.items[index as usize].piece;
            if !piece_is_whole(&piece, buf, byte_offset(start, Lba(piece.place.0))) {
                self.lose_item(index as usize);
                continue;
            }
            let first = room.targets.partition_point(|target| target.item < index);
            let mut at = first;
            while let Some(target) = room.targets.get(at).filter(|target| target.item == index) {
                let block = room.blocks[target.block as usize];
                let run = &room.runs[target.run as usize];
                let to = run.at + byte_offset(run.start, block.home.start);
                let from = byte_offset(start, Lba(block.place));
                room.fill().copy_from(to, buf, from, (block.home.sectors * SECTOR_BYTES) as usize);
                at += 1;
            }
        }
    }

    /// A piece that cannot be read: an error for exactly its sectors, until somebody writes them again. One that was
    /// overwritten meanwhile is nobody's loss.
    fn lose_item(&mut self, index: usize) {
        let item = &mut self.home.room.items[index];
        item.failed = true;
        let (line, place) = (item.line, item.piece.place);
        if self.table.lookup(line).iter().any(|piece| piece.place == place && piece.dirty) {
            self.home.lost.note(line, place);
            self.statistics.log_read_errors += 1;
        }
    }

    pub(super) fn step_write(&mut self, out: &mut Outbox) {
        while self.home.flights.len() < self.config.destage_depth {
            let room = &mut self.home.room;
            let Some(run) = room.runs.get(self.home.next_run) else { break };
            let blocks = self.home.next_block.max(run.blocks.start)..run.blocks.end;
            let bad = |block: usize| room.items[room.blocks[block].index as usize].failed;
            let Some(first) = blocks.clone().find(|&block| !bad(block)) else {
                self.home.next_run += 1;
                continue;
            };
            let last = (first..blocks.end).find(|&block| bad(block)).unwrap_or(blocks.end);
            let at = room.blocks[first].home.start;
            let bytes = byte_offset(at, room.blocks[last - 1].home.end());
            let buf = room.window(run.at + byte_offset(run.start, at), bytes);
            self.home.next_block = last;
            self.statistics.destage_writes += 1;
            self.send(
                Flight::Write(first..last),
                Io::Write { at, buf, durability: Durability::Volatile },
                out,
            );
        }
        if self.home.flights.is_empty() && self.home.next_run >= self.home.room.runs.len() {
            if self.home.next < self.home.room.items.len() {
                self.home.phase = Phase::Read;
                self.plan_window();
            } else {
                self.home.phase = Phase::Flush;
            }
        }
    }

    pub(super) fn step_flush(&mut self, out: &mut Outbox) {
        if self.home.flights.is_empty() {
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
                    Err(_) if group.count > 1 => {
                        for at in group.items() {
                            let single = self.single(&group, at);
                            self.home.room.groups.push_back(single);
                        }
                    }
                    Err(_) => self.lose_item(self.home.room.order[group.first as usize] as usize),
                }
                self.home.room.give_back(result.buf);
            }
            Flight::Write(blocks) if result.status.is_err() => {
                for block in blocks {
                    let index = self.home.room.blocks[block].index as usize;
                    self.home.room.items[index].failed = true;
                }
            }
            Flight::Write(blocks) => {
                let sectors: u64 = self.home.room.blocks[blocks].iter().map(|block| block.home.sectors).sum();
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
}
