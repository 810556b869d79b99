//! Carrying a batch: the phases *ranges*, *read* and *write* of a destage batch, with up to `destage_depth` operations in
//! flight. What to carry is chosen, and what is clean afterwards is noted, in the parent module.

use super::super::core::{Core, DATA, LOG, Mode, Op};
use super::super::read::{byte_offset, piece_is_whole};
use super::super::table::RangeKind;
use super::Phase;
use super::room::{Flight, Group, Target};
use crate::destage::how;
use crate::layer::{Discards, Durability, Io, IoResult, Outbox};
use crate::{Buf, Extent, Lba, Nanos, SECTOR_BYTES};

impl Core {
    pub(super) fn step_ranges(&mut self, out: &mut Outbox) {
        while self.destager.flights.len() < self.destage_depth(DATA) {
            let Some((extent, kind)) = self.destager.range_parts.pop_front() else { break };
            let durability = Durability::Volatile;
            let io = match kind {
                RangeKind::Discard if self.data.geometry().discards != Discards::No => Io::Discard { extent },
                RangeKind::Discard => Io::WriteZeroes { extent, unmap: true, durability },
                RangeKind::Zeroes { unmap } => Io::WriteZeroes { extent, unmap, durability },
            };
            // It goes there as it was chosen, whatever is written over the range meanwhile.
            self.destager.kept.send_range(extent, kind);
            self.send(Flight::Range(extent), io, out);
        }
        if self.destager.flights.is_empty() && self.destager.range_parts.is_empty() {
            // Data over a range must not be written before it: the batch ends where one failed.
            self.destager.phase = if self.destager.errors > 0 { Phase::Flush } else { Phase::Read };
            if self.destager.errors > 0 {
                self.destager.range_ids.clear();
                self.destager.room.items.clear();
            } else {
                self.destager.started = self.now;
                self.destager.suspended = false;
                self.plan_window();
            }
        }
    }

    pub(super) fn step_read(&mut self, out: &mut Outbox) {
        while self.destager.flights.len() < self.destage_depth(LOG) {
            let Some(group) = self.destager.room.groups.pop_front() else { break };
            if matches!(self.mode, Mode::LogFailed { .. }) && self.take_from_ram(&group) {
                continue;
            }
            self.log.pin(group.segment);
            let extent = self.log_blocks(group.extent);
            let buf = self.destager.room.read_buf((extent.sectors * SECTOR_BYTES) as usize);
            let read = Core::log_read(extent.start, buf, group.copy);
            self.send(Flight::Read(group), read, out);
        }
        while self.destager.room.groups.is_empty() && self.destager.flights.len() < self.destage_depth(DATA) {
            let Some(read) = self.destager.room.gap_reads.pop_front() else { break };
            let extent = read.extent;
            let buf = self.destager.room.read_buf((extent.sectors * SECTOR_BYTES) as usize);
            self.statistics.gap_reads += 1;
            self.send(Flight::Gaps(read), Io::Read { at: extent.start, buf }, out);
        }
        let room = &self.destager.room;
        if self.destager.flights.is_empty() && room.groups.is_empty() && room.gap_reads.is_empty() {
            self.destager.phase = Phase::Write;
        }
    }

    /// After the log has failed, the buffers are the best copy: takes what is in them from there, and leaves the rest of
    /// the group to be read piece by piece. False where nothing is in RAM.
    fn take_from_ram(&mut self, group: &Group) -> bool {
        let place = |core: &Core, at: usize| {
            let room = &core.destager.room;
            room.item(room.order[at]).piece.place.0
        };
        if !group.items().any(|at| self.log.buffers().holding(place(self, at)).is_some()) {
            return false;
        }
        for at in group.items() {
            let single = self.single(group, at);
            let Some(buffer) = self.log.buffers().holding(place(self, at)) else {
                self.destager.room.groups.push_back(single);
                continue;
            };
            let extent = single.extent;
            let mut buf = self.destager.room.read_buf((extent.sectors * SECTOR_BYTES) as usize);
            assert!(buffer.read(extent.start.0, &mut buf, 0, extent.sectors), "it is in RAM");
            self.fill_runs(&single, extent.start, &buf);
            self.destager.room.give_back(buf);
        }
        true
    }

    /// The group of one piece of a group.
    fn single(&self, group: &Group, at: usize) -> Group {
        let room = &self.destager.room;
        let piece = room.item(room.order[at]).piece;
        let extent = Extent::new(Lba(piece.place.0), u64::from(piece.count));
        Group { extent, segment: group.segment, first: at as u32, count: 1, copy: group.copy }
    }

    /// Puts what was read into the runs, piece by piece, each one checked.
    fn fill_runs(&mut self, group: &Group, start: Lba, buf: &Buf) {
        for at in group.items() {
            let room = &mut self.destager.room;
            let index = room.order[at];
            let piece = room.item(index).piece;
            if !piece_is_whole(&piece, buf, byte_offset(start, Lba(piece.place.0))) {
                self.read_other_copy(group, at);
                continue;
            }
            let is_clean = index as usize >= room.items.len();
            let first = room.targets.partition_point(|target| target.item < index);
            let mut at = first;
            while let Some(&Target { extent, place, run, .. }) =
                room.targets.get(at).filter(|target| target.item == index)
            {
                let to = room.runs[run as usize].place_of(extent.start);
                let from = byte_offset(start, Lba(place));
                room.fill().copy_from(to, buf, from, (extent.sectors * SECTOR_BYTES) as usize);
                if is_clean {
                    room.came_from_log(extent);
                }
                at += 1;
            }
        }
    }

    /// A piece is not what was written, or cannot be read: another copy of the log may have it.
    fn read_other_copy(&mut self, group: &Group, at: usize) {
        let mut single = self.single(group, at);
        match self.next_copy(group.copy) {
            Some(copy) => {
                single.copy = Some(copy);
                self.statistics.log_other_copy += u64::from(group.copy.is_none());
                self.destager.room.groups.push_back(single);
            }
            None => self.lose_item(self.destager.room.order[at]),
        }
    }

    /// A piece that cannot be read: an error for exactly its sectors, until somebody writes them again. One that was
    /// overwritten meanwhile is nobody's loss.
    fn lose_item(&mut self, index: u32) {
        let item = self.destager.room.item_mut(index);
        item.failed = true;
        let (line, place) = (item.line, item.piece.place);
        if self.index.table().lookup(line).iter().any(|piece| piece.place == place && piece.dirty) {
            self.destager.lost.note(line, place);
            self.statistics.log_read_errors += 1;
        }
    }

    pub(super) fn step_write(&mut self, out: &mut Outbox) {
        while self.destager.flights.len() < self.destage_depth(DATA) {
            let room = &mut self.destager.room;
            let Some(run) = room.runs.get(self.destager.next_run) else { break };
            let blocks = self.destager.next_block.max(run.blocks.start)..run.blocks.end;
            let bad = |block: usize| room.items[room.blocks[block].index as usize].failed;
            let Some(first) = blocks.clone().find(|&block| !bad(block)) else {
                self.destager.next_run += 1;
                continue;
            };
            let ends = |block: usize| bad(block) || !room.is_joined(block);
            let last = (first + 1..blocks.end).find(|&block| ends(block)).unwrap_or(blocks.end);
            let at = room.blocks[first].target.start;
            let bytes = byte_offset(at, room.blocks[last - 1].target.end());
            let place = run.place_of(at);
            let buf = room.window(place, bytes);
            for block in &room.blocks[first..last] {
                self.destager.kept.send_data(block.target, &buf, byte_offset(at, block.target.start));
            }
            self.destager.next_block = last;
            self.statistics.destage_writes += 1;
            self.send(
                Flight::Write(first..last),
                Io::Write { at, buf, durability: Durability::Volatile },
                out,
            );
        }
        if self.destager.flights.is_empty() && self.destager.next_run >= self.destager.room.runs.len() {
            if self.destager.next < self.destager.room.items.len() {
                self.destager.phase = Phase::Read;
                self.plan_window();
            } else {
                self.destager.room.clear_window();
                self.destager.phase = Phase::Flush;
            }
        }
    }

    pub(super) fn step_flush(&mut self, out: &mut Outbox) {
        if self.destager.flights.is_empty() {
            self.data.begin_batch();
            self.send(Flight::Flush, Io::Flush, out);
        }
    }

    fn send(&mut self, flight: Flight, io: Io, out: &mut Outbox) {
        let port = if matches!(flight, Flight::Read(_)) { LOG } else { DATA };
        let slot = self.destager.flights.insert(flight);
        self.submit(port, Op::Destage(slot), io, out);
    }

    pub fn on_destage(&mut self, now: Nanos, slot: u64, result: IoResult, out: &mut Outbox) {
        let flight = self.destager.flights.remove(slot);
        if let Err(error) = result.status {
            self.statistics.destage_errors += 1;
            self.statistics.last_error = Some(error);
            if !matches!(flight, Flight::Read(_) | Flight::Gaps(_)) {
                self.destager.errors += 1;
            }
        }
        match flight {
            Flight::Range(extent) if result.status.is_err() => self.destager.kept.failed(extent),
            Flight::Range(extent) => self.statistics.destaged_range_sectors += extent.sectors,
            Flight::Read(group) => {
                self.log.unpin(group.segment);
                match result.status {
                    Ok(()) => {
                        let start = self.log_blocks(group.extent).start;
                        self.fill_runs(&group, start, &result.buf);
                    }
                    // Alone, each piece may be readable.
                    Err(_) if group.count > 1 => {
                        for at in group.items() {
                            let single = self.single(&group, at);
                            self.destager.room.groups.push_back(single);
                        }
                    }
                    Err(_) => self.read_other_copy(&group, group.first as usize),
                }
                self.destager.room.give_back(result.buf);
            }
            Flight::Gaps(read) => {
                let room = &mut self.destager.room;
                match result.status {
                    Ok(()) => room.came_from_disk(&read, &result.buf),
                    Err(_) => room.read_gaps_one_by_one(&read),
                }
                room.give_back(result.buf);
            }
            Flight::Write(blocks) if result.status.is_err() => {
                for block in blocks {
                    let how::Block { target: extent, index, .. } = self.destager.room.blocks[block];
                    self.destager.room.items[index as usize].failed = true;
                    self.destager.kept.failed(extent);
                }
            }
            Flight::Write(blocks) => {
                let blocks = &self.destager.room.blocks[blocks];
                let sectors: u64 = blocks.iter().map(|block| block.target.sectors).sum();
                let span = blocks[blocks.len() - 1].target.end() - blocks[0].target.start;
                self.statistics.destaged_sectors += sectors;
                self.statistics.gap_sectors += span - sectors;
            }
            Flight::Flush => {
                self.on_batch_flushed(now, &result, out);
                self.end_batch(now, result.status.is_ok(), out);
            }
        }
    }
}
