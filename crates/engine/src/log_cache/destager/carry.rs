//! Carrying a batch: the phases *ranges*, *read* and *write* of a destage batch, with up to `destage_depth` operations in
//! flight. What to carry is chosen, and what is clean afterwards is noted, in the parent module.

use super::batch::BatchEnd;
use super::room::{BatchFlight, Group, Item, ItemRead, ItemTarget};
use super::{BatchPhase, Destager};
use crate::destage::how;
use crate::layer::{Discards, Durability, Io, IoResult, Port};
use crate::log_cache::LogCanary;
use crate::log_cache::env::{Env, LOG, Op, data_port};
use crate::log_cache::log::Log;
use crate::log_cache::table::RangeKind;
use crate::{Buf, Lba, SECTOR_BYTES, byte_offset};

impl Destager {
    fn may_send(&self, port: Port, env: &Env) -> bool {
        self.flights.len()
            < self.patience.depth_on(port, &env.view().of(self.disk)).min(env.destage_reads.count())
    }

    /// Another disk may have the buffers: one of its reads is in flight then.
    fn may_read(&self, port: Port, env: &Env) -> bool {
        env.destage_reads.has_free() && self.may_send(port, env)
    }

    fn may_write(&mut self, env: &Env) -> bool {
        if !self.may_send(data_port(self.disk), env) {
            return false;
        }
        let is_limited = self.throttle.until(&env.view().of(self.disk)).is_some();
        // A batch that waits for the rate does not show how fast the disk is.
        self.suspended |= is_limited;
        !is_limited
    }

    pub(super) fn step_ranges(&mut self, env: &mut Env) {
        while self.may_write(env) {
            let Some((extent, kind)) = self.range_parts.pop_front() else { break };
            let durability = Durability::Volatile;
            let io = match kind {
                RangeKind::Discard if env.data[self.disk].geometry().discards != Discards::No => {
                    Io::Discard { extent }
                }
                RangeKind::Discard => Io::WriteZeroes { extent, unmap: true, durability },
                RangeKind::Zeroes { unmap } => Io::WriteZeroes { extent, unmap, durability },
            };
            // It goes there as it was chosen, whatever is written over the range meanwhile.
            env.data[self.disk].fingerprint.send_range(extent, kind);
            if matches!(io, Io::WriteZeroes { .. }) && !env.data[self.disk].geometry().fast_zeroes {
                self.throttle.sent(extent.sectors * SECTOR_BYTES, &env.view().of(self.disk));
            }
            self.send(BatchFlight::Range(extent), io, env);
        }
        if self.flights.is_empty() && self.range_parts.is_empty() {
            if self.errors > 0 {
                // Data over a range must not be written before it: the batch ends where one failed.
                self.range_ids.clear();
                self.room.items.clear();
                self.phase = BatchPhase::Flush;
            } else {
                (self.started, self.suspended) = (env.cx.now, false);
                self.phase = BatchPhase::Read;
                self.plan_window(&env.view().of(self.disk));
            }
        }
    }

    pub(super) fn step_read(&mut self, env: &mut Env) {
        while self.may_read(LOG, env) {
            let Some(group) = self.room.groups.pop_front() else { break };
            if group.items().all(|at| self.room.item(self.room.order[at].item).failed) {
                continue;
            }
            if env.log.has_failed() && self.take_from_ram(&group, env) {
                continue;
            }
            env.log.pin(group.segment);
            let extent = env.log.geometry().whole_blocks(group.extent);
            let buf = env.destage_reads.take((extent.sectors * SECTOR_BYTES) as usize);
            let read = Log::read(extent.start, buf, group.copy);
            self.send(BatchFlight::Read(group), read, env);
        }
        while self.room.groups.is_empty() && self.may_read(data_port(self.disk), env) {
            let Some(read) = self.room.gap_reads.pop_front() else { break };
            let extent = read.extent;
            let buf = env.destage_reads.take((extent.sectors * SECTOR_BYTES) as usize);
            env.statistics.gap_reads += 1;
            self.send(BatchFlight::Gaps(read), Io::Read { at: extent.start, buf }, env);
        }
        let room = &self.room;
        if self.flights.is_empty() && room.groups.is_empty() && room.gap_reads.is_empty() {
            self.phase = BatchPhase::Write;
        }
    }

    /// After the log has failed, the buffers are the best copy: takes what is in them from there, and leaves the rest of
    /// the group to be read piece by piece. False where nothing is in RAM.
    fn take_from_ram(&mut self, group: &Group, env: &mut Env) -> bool {
        let is_in_ram = |place: Lba| env.log.buffers().holding(place.0).is_some();
        if !group.items().any(|at| is_in_ram(self.room.single(group, at).extent.start)) {
            return false;
        }
        for at in group.items() {
            let single = self.room.single(group, at);
            let extent = single.extent;
            let Some(buffer) = env.log.buffers().holding(extent.start.0) else {
                self.room.groups.push_back(single);
                continue;
            };
            let mut buf = env.destage_reads.take((extent.sectors * SECTOR_BYTES) as usize);
            assert!(buffer.read(extent.start.0, &mut buf, 0, extent.sectors), "it is in RAM");
            self.fill_runs(&single, extent.start, &buf, env);
            env.destage_reads.give_back(buf);
        }
        true
    }

    /// Puts what was read into the runs, piece by piece, each one checked.
    fn fill_runs(&mut self, group: &Group, start: Lba, buf: &Buf, env: &mut Env) {
        for at in group.items() {
            let room = &mut self.room;
            let ItemRead { item, target } = room.order[at];
            let Item { piece, failed, .. } = *room.item(item);
            if failed {
                continue;
            }
            if !piece.is_intact(buf, byte_offset(start, Lba(piece.place.0))) {
                self.read_other_copy(group, at, env);
                continue;
            }
            let is_clean = item as usize >= room.items.len();
            let mut target = target as usize;
            while let Some(&ItemTarget { extent, place, at: to, .. }) =
                room.targets.get(target).filter(|target| target.item == item)
            {
                let from = byte_offset(start, Lba(place));
                room.fill().copy_from(to, buf, from, (extent.sectors * SECTOR_BYTES) as usize);
                if is_clean {
                    room.came_from_log(extent);
                }
                target += 1;
            }
        }
    }

    /// A piece is not what was written, or cannot be read: another copy of the log may have it.
    fn read_other_copy(&mut self, group: &Group, at: usize, env: &mut Env) {
        let mut single = self.room.single(group, at);
        if self.room.item(self.room.order[at].item).failed {
            return;
        }
        match env.log.next_copy(group.copy) {
            Some(copy) => {
                single.copy = Some(copy);
                env.statistics.log_other_copy += u64::from(group.copy.is_none());
                self.room.groups.push_back(single);
            }
            None => self.lose_item(self.room.order[at].item, env),
        }
    }

    /// A piece that cannot be read: an error for exactly its sectors, until somebody writes them again. One that was
    /// overwritten meanwhile is nobody's loss.
    fn lose_item(&mut self, index: u32, env: &mut Env) {
        let item = self.room.item_mut(index);
        item.failed = true;
        let (line, place) = (item.line, item.piece.place);
        if env.index.table().lookup(line).iter().any(|piece| piece.place == place && piece.dirty) {
            env.index.lost.note(line, place);
            self.unread += 1;
            env.statistics.log_read_errors += 1;
        }
    }

    pub(super) fn step_write(&mut self, env: &mut Env) {
        while self.may_write(env) {
            let room = &mut self.room;
            let Some(run) = room.runs.get(self.next_run) else { break };
            let blocks = self.next_block.max(run.blocks.start)..run.blocks.end;
            let bad = |block: usize| room.items[room.blocks[block].index as usize].failed;
            let Some(first) = blocks.clone().find(|&block| !bad(block)) else {
                self.next_run += 1;
                continue;
            };
            let ends = |block: usize| bad(block) || !room.is_joined(block);
            let last = (first + 1..blocks.end).find(|&block| ends(block)).unwrap_or(blocks.end);
            let at = room.blocks[first].target.start;
            let bytes = byte_offset(at, room.blocks[last - 1].target.end());
            let place = run.place_of(at);
            let buf = room.window(place, bytes);
            for block in &room.blocks[first..last] {
                env.data[self.disk].fingerprint.send_data(
                    block.target,
                    &buf,
                    byte_offset(at, block.target.start),
                );
            }
            self.next_block = last;
            self.throttle.sent(buf.len() as u64, &env.view().of(self.disk));
            env.statistics.destage_writes += 1;
            let write = Io::Write { at, buf, durability: Durability::Volatile };
            self.send(BatchFlight::Write(first..last), write, env);
        }
        if self.flights.is_empty() && self.next_run >= self.room.runs.len() {
            if self.next < self.room.items.len() {
                self.phase = BatchPhase::Read;
                self.plan_window(&env.view().of(self.disk));
            } else {
                self.room.clear_window();
                self.phase = BatchPhase::Flush;
            }
        }
    }

    pub(super) fn step_flush(&mut self, env: &mut Env) {
        if self.flights.is_empty() {
            env.data[self.disk].begin_batch();
            self.send(BatchFlight::Flush, Io::Flush, env);
        }
    }

    pub(super) fn send(&mut self, flight: BatchFlight, io: Io, env: &mut Env) {
        if env.config.canary.is(LogCanary::FlushOther) && matches!(flight, BatchFlight::Flush) {
            let other = data_port((self.disk + 1) % env.data.space().count());
            let (disk, slot) = (self.disk, self.flights.insert(flight));
            return env.submit(other, Op::Destage { disk, slot }, io);
        }
        if self.flights.is_empty() {
            self.moved_at = env.cx.now;
        }
        let is_of_log = matches!(flight, BatchFlight::Read(_) | BatchFlight::Epoch);
        let (disk, slot) = (self.disk, self.flights.insert(flight));
        env.submit(if is_of_log { LOG } else { data_port(disk) }, Op::Destage { disk, slot }, io);
    }

    /// An operation has completed; the end of the batch, if it was the last one.
    pub fn completed(&mut self, slot: u64, result: IoResult, env: &mut Env) -> Option<BatchEnd> {
        let flight = self.flights.remove(slot);
        self.moved_at = env.cx.now;
        if let Err(error) = result.status {
            let is_write =
                matches!(flight, BatchFlight::Range(_) | BatchFlight::Write(_) | BatchFlight::Flush);
            self.errors += u64::from(is_write);
            env.statistics.destage_errors += u64::from(!matches!(flight, BatchFlight::Epoch));
            env.statistics.last_error = Some(error);
        }
        match flight {
            BatchFlight::Epoch => self.epoch_completed(&result, env),
            BatchFlight::Range(extent) if result.status.is_err() => {
                env.data[self.disk].fingerprint.failed(extent)
            }
            BatchFlight::Range(extent) => env.statistics.destaged_range_sectors += extent.sectors,
            BatchFlight::Read(group) => {
                env.log.unpin(group.segment);
                match result.status {
                    Ok(()) => {
                        let start = env.log.geometry().whole_blocks(group.extent).start;
                        self.fill_runs(&group, start, &result.buf, env);
                    }
                    // Alone, each piece may be readable.
                    Err(_) if group.count > 1 => {
                        for at in group.items() {
                            let single = self.room.single(&group, at);
                            self.room.groups.push_back(single);
                        }
                    }
                    Err(_) => self.read_other_copy(&group, group.first as usize, env),
                }
                env.destage_reads.give_back(result.buf);
            }
            BatchFlight::Gaps(read) => {
                let room = &mut self.room;
                match result.status {
                    Ok(()) => room.came_from_disk(&read, &result.buf),
                    Err(_) => room.read_gaps_one_by_one(&read),
                }
                env.destage_reads.give_back(result.buf);
            }
            BatchFlight::Write(blocks) if result.status.is_err() => {
                for block in blocks {
                    let how::DirtyBlock { target: extent, index, .. } = self.room.blocks[block];
                    self.room.items[index as usize].failed = true;
                    env.data[self.disk].fingerprint.failed(extent);
                }
            }
            BatchFlight::Write(blocks) => {
                let blocks = &self.room.blocks[blocks];
                let sectors: u64 = blocks.iter().map(|block| block.target.sectors).sum();
                let span = blocks[blocks.len() - 1].target.end() - blocks[0].target.start;
                env.statistics.destaged_sectors += sectors;
                env.statistics.gap_sectors += span - sectors;
            }
            BatchFlight::Flush => return Some(self.end_batch(result.status, env)),
        }
        None
    }
}
