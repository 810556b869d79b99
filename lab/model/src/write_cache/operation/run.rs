//! Carrying out operations at a disk.

use dcd_engine::destage::how::DirtyBlock;
use dcd_engine::{Buf, Cx, Durability, Extent, Io, IoResult, Lba, Nanos, OpId};

use super::{CacheFlight, Operation, OperationKind, Step, WriteBackRun};
use crate::write_cache::clients::{Action, ClientPiece};
use crate::write_cache::disk::Queued;
use crate::write_cache::operation::merge::merge;
use crate::write_cache::{BlockId, Piggyback, RegionId, SlotIndex, WriteCache};

impl WriteCache {
    pub(in crate::write_cache) fn start(&mut self, now: Nanos, index: u32, kind: OperationKind) -> u64 {
        let disk = &mut self.disks[index as usize];
        match kind {
            OperationKind::Flush { .. } => {}
            OperationKind::Read { .. } => disk.operations += 1,
            OperationKind::Purge { .. } | OperationKind::Through { .. } => {
                disk.operations += 1;
                disk.write_begins(now);
            }
        }
        self.operations.insert(Operation {
            disk: index,
            kind,
            started: now,
            left: 0,
            error: None,
            blocks: Vec::new(),
        })
    }

    fn submit(&mut self, operation: u64, what: Step, io: Io, cx: &mut Cx) {
        let entry = self.operations.get_mut(operation);
        entry.left += 1;
        let port = self.disks[entry.disk as usize].port;
        let flight = self.flights.insert(CacheFlight { operation, what });
        cx.submit(port, OpId(flight), io);
    }

    /// The dirty blocks of some regions that are not being written, in the order of the policy, neighbours together.
    pub(in crate::write_cache) fn runs_of(&self, share: usize, regions: &[RegionId]) -> Vec<WriteBackRun> {
        let writes = &self.shares[share].writes;
        let sectors = self.block_sectors();
        let slots: Vec<SlotIndex> = regions
            .iter()
            .filter_map(|&id| writes.region(id).filter(|region| !region.resting))
            .flat_map(|region| writes.waiting_blocks(region))
            .collect();
        let mut blocks: Vec<DirtyBlock> = slots
            .iter()
            .enumerate()
            .map(|(index, &slot)| DirtyBlock {
                target: Extent::new(Lba(writes.block(slot).number * sectors), sectors),
                place: writes.written(slot),
                index: index as u32,
            })
            .collect();
        self.config.how.order(&mut blocks);
        merge(&blocks)
            .map(|range| {
                let run = &blocks[range];
                let extent = Extent::new(run[0].target.start, run.len() as u64 * sectors);
                WriteBackRun { extent, slots: run.iter().map(|block| slots[block.index as usize]).collect() }
            })
            .collect()
    }

    /// Writes dirty blocks to the disk, durably: then they are clean.
    pub(in crate::write_cache) fn write_runs(
        &mut self,
        operation: u64,
        share: usize,
        runs: Vec<WriteBackRun>,
        cx: &mut Cx,
    ) {
        for run in runs {
            let cache = &mut self.shares[share];
            let mut buf = cache.write_bytes.buffer(run.slots.len());
            for (index, &slot) in run.slots.iter().enumerate() {
                cache.write_bytes.get(slot, &mut buf, index * self.config.block_bytes as usize);
            }
            let from = self.operations.get_mut(operation).blocks.len();
            for &slot in &run.slots {
                cache.writes.begin_write(slot);
            }
            let blocks = &mut self.operations.get_mut(operation).blocks;
            blocks.extend(run.slots);
            let to = blocks.len();
            self.arrive_at(operation, run.extent);
            let io = Io::Write { at: run.extent.start, buf, durability: Durability::Durable };
            self.submit(operation, Step::Run(from..to), io, cx);
        }
    }

    /// The arm will be here when the command has been carried out.
    fn arrive_at(&mut self, operation: u64, extent: Extent) {
        let disk = self.operations.get_mut(operation).disk;
        let disk = &mut self.disks[disk as usize];
        let last = Lba(extent.end().0 - 1);
        disk.arm_at = disk.map.regions.region_of(last);
        if let Some(arm) = &mut disk.map.arm {
            arm.moved(last);
        }
    }

    pub(in crate::write_cache) fn start_read(&mut self, piece: ClientPiece, queued: &Queued, cx: &mut Cx) {
        if self.read_from_cache(piece, cx) {
            return;
        }
        let share = self.share_of(piece.disk);
        let disk = &self.disks[piece.disk as usize];
        let waited = cx.now.since(queued.arrived);
        let behind = disk.write_busy(cx.now).since(queued.write_busy);
        let (before, after) = self.taken_along(cx.now, piece, share);
        let along = before.iter().chain(&after).map(|run| run.slots.len() as u64).sum::<u64>();
        self.count(piece.disk, |metrics| {
            metrics.disk_reads += 1;
            metrics.read_queueing += waited;
            metrics.read_queueing_behind_writes += behind.min(waited);
            metrics.piggybacks += u64::from(along > 0);
            metrics.piggybacked_blocks += along;
        });
        let overlay = self.overlay(piece, share);
        let kind = OperationKind::Read { piece, buf: None, overlay, tainted: false, done: false };
        let operation = self.start(cx.now, piece.disk, kind);
        self.disks[piece.disk as usize].reading.push(operation);
        self.write_runs(operation, share, before, cx);
        let bytes = (piece.extent.sectors * dcd_engine::SECTOR_BYTES) as usize;
        let whole = &self.requests.get_mut(piece.request).buf;
        let buf = if whole.is_blank() { Buf::blank(bytes) } else { Buf::zeroed(bytes) };
        self.arrive_at(operation, piece.extent);
        self.submit(operation, Step::Main, Io::Read { at: piece.extent.start, buf }, cx);
        self.write_runs(operation, share, after, cx);
    }

    /// Copies the cached blocks in a read's range. They must be kept: by the time the read returns it may have been purged
    /// and evicted, and the disk may have read before it was written.
    fn overlay(&self, piece: ClientPiece, share: usize) -> Vec<(usize, Buf)> {
        let share = &self.shares[share];
        let block_bytes = self.config.block_bytes as usize;
        self.blocks_of(piece)
            .enumerate()
            .filter_map(|(index, number)| {
                let slot = share.writes.find(BlockId { disk: piece.disk, number })?;
                let mut buf = share.write_bytes.buffer(1);
                share.write_bytes.get(slot, &mut buf, 0);
                Some((index * block_bytes, buf))
            })
            .collect()
    }

    /// The dirty blocks that go with a read: before it and after it.
    fn taken_along(
        &self,
        now: Nanos,
        piece: ClientPiece,
        share: usize,
    ) -> (Vec<WriteBackRun>, Vec<WriteBackRun>) {
        let regions = &self.disks[piece.disk as usize].map.regions;
        let first = regions.region_of(piece.extent.start);
        let last = regions.region_of(Lba(piece.extent.end().0 - 1));
        let region = |number| RegionId { disk: piece.disk, number };
        let arm = self.disks[piece.disk as usize].map.arm.as_deref();
        match (self.config.piggyback, arm) {
            (Piggyback::None, _) | (Piggyback::Free, None) => (Vec::new(), Vec::new()),
            (Piggyback::Full, None) => {
                let regions: Vec<RegionId> = (first..=last).map(region).collect();
                (Vec::new(), self.runs_of(share, &regions))
            }
            (Piggyback::Full, Some(arm)) => {
                let regions: Vec<RegionId> = (first..=last).map(region).collect();
                let there = arm.on_track(now, piece.extent.start, false);
                let reads_at = arm.pass(there, piece.extent).0;
                let mut runs = self.runs_of(share, &regions);
                runs.sort_by_key(|run| arm.pass(there, run.extent).0);
                let split = runs.partition_point(|run| arm.pass(there, run.extent).0 < reads_at);
                let after = runs.split_off(split);
                (runs, after)
            }
            (Piggyback::Free, Some(arm)) => {
                let there = arm.on_track(now, piece.extent.start, false);
                let reads_at = arm.pass(there, piece.extent).0;
                let mut runs = self.runs_of(share, &[region(first)]);
                runs.sort_by_key(|run| arm.pass(there, run.extent).0);
                let mut free_from = (there, piece.extent.start);
                runs.retain(|run| {
                    let (begins, ends) = arm.pass(there, run.extent);
                    let after_the_last = free_from.0 + arm.switch(free_from.1, run.extent.start);
                    let in_time = ends + arm.switch(run.extent.start, piece.extent.start) <= reads_at;
                    let fits = begins >= after_the_last && in_time;
                    if fits {
                        free_from = (ends, run.extent.start);
                    }
                    fits
                });
                (runs, Vec::new())
            }
        }
    }

    pub(in crate::write_cache) fn start_through(&mut self, piece: ClientPiece, cx: &mut Cx) {
        let share = self.share_of(piece.disk);
        let stamp = self.shares[share].writes.stamp();
        let operation = self.start(cx.now, piece.disk, OperationKind::Through { piece, stamp });
        self.disks[piece.disk as usize].alone = true;
        self.count(piece.disk, |metrics| metrics.disk_writes += 1);
        let cached = self.shares[share].writes.capacity() > 0;
        let extent = piece.extent;
        let request = self.requests.get_mut(piece.request);
        // A copy in the cache is safe; what takes its place has to be safe too before the copy goes.
        let io = match request.action {
            Action::Write(durability) => {
                let durability = if cached { Durability::Durable } else { durability };
                let mut buf = Buf::blank((extent.sectors * dcd_engine::SECTOR_BYTES) as usize);
                if !request.buf.is_blank() {
                    buf = Buf::zeroed(buf.len());
                    buf.copy_from(0, &request.buf, piece.at, buf.len());
                }
                Io::Write { at: extent.start, buf, durability }
            }
            Action::Zeroes { unmap } => Io::WriteZeroes { extent, unmap, durability: Durability::Durable },
            Action::Discard => Io::Discard { extent },
            Action::Read => unreachable!("reads do not go around"),
        };
        self.arrive_at(operation, extent);
        self.submit(operation, Step::Main, io, cx);
    }

    /// Flushes the disks that may hold something in a volatile cache; the number of flushes.
    pub(in crate::write_cache) fn start_flushes(&mut self, waiter: u64, cx: &mut Cx) -> u32 {
        let mut count = 0;
        for index in 0..self.disks.len() as u32 {
            let disk = &self.disks[index as usize];
            if disk.unflushed > disk.flushed {
                let operation =
                    self.start(cx.now, index, OperationKind::Flush { waiter, covers: disk.unflushed });
                self.submit(operation, Step::Main, Io::Flush, cx);
                count += 1;
            }
        }
        count
    }

    /// A block is written: a read of it that is under way must not be put into the read cache.
    pub(in crate::write_cache) fn taint_reads(&mut self, block: BlockId) {
        let lba = Lba(block.number * self.block_sectors());
        for &operation in &self.disks[block.disk as usize].reading {
            if let OperationKind::Read { piece, tainted, .. } = &mut self.operations.get_mut(operation).kind {
                *tainted |= piece.extent.contains(lba);
            }
        }
    }

    /// A command has returned.
    pub(in crate::write_cache) fn completed(&mut self, flight: u64, result: IoResult, cx: &mut Cx) {
        let CacheFlight { operation: key, what } = self.flights.remove(flight);
        let disk = self.operations.get_mut(key).disk;
        let share = self.share_of(disk);
        let error = result.status.err();
        if error.is_some() {
            self.count(disk, |metrics| metrics.errors += 1);
        }
        let operation = self.operations.get_mut(key);
        operation.left -= 1;
        match what {
            Step::Run(range) => {
                let blocks: Vec<_> = operation.blocks[range].to_vec();
                for &slot in &blocks {
                    let settled = self.shares[share].writes.end_write(slot, error.is_none());
                    self.settle(share, settled);
                    self.count_if_resting(share, slot, true);
                }
                if let Some(error) = error {
                    for slot in blocks {
                        let region = self.region_of(self.shares[share].writes.block(slot));
                        self.rest(cx.now, share, region, error);
                    }
                }
                self.go_on_writing(share, cx);
            }
            Step::Settling => operation.error = operation.error.or(error),
            Step::Main => {
                operation.error = error;
                if let OperationKind::Read { buf, done, .. } = &mut operation.kind {
                    (*buf, *done) = (Some(result.buf), true);
                    self.answer_read(key, cx);
                } else {
                    self.after_main(key, cx);
                }
            }
        }
        if self.operations.get_mut(key).left == 0 {
            self.end(key, cx);
        }
    }

    /// Discards are made durable before the copies in the cache go: without that stale data could become visible.
    fn after_main(&mut self, key: u64, cx: &mut Cx) {
        let operation = self.operations.get_mut(key);
        if let (OperationKind::Through { piece, .. }, None) = (&operation.kind, operation.error) {
            let (disk, request) = (piece.disk as usize, piece.request);
            match self.requests.get_mut(request).action {
                Action::Discard => self.submit(key, Step::Settling, Io::Flush, cx),
                Action::Write(Durability::Volatile) => self.disks[disk].unflushed += 1,
                _ => {}
            }
        }
    }

    /// A read has come from the disk: what the cache had of its range is newer.
    fn answer_read(&mut self, key: u64, cx: &mut Cx) {
        let operation = self.operations.get_mut(key);
        let error = operation.error;
        let OperationKind::Read { piece, buf, overlay, tainted, .. } = &mut operation.kind else {
            unreachable!("only reads are answered here")
        };
        let (piece, tainted) = (*piece, *tainted);
        let mut buf = buf.take().expect("it has just returned");
        for (at, newer) in std::mem::take(overlay) {
            buf.copy_from(at, &newer, 0, newer.len());
        }
        let request = self.requests.get_mut(piece.request);
        if error.is_none() {
            request.buf.copy_from(piece.at, &buf, 0, buf.len());
        }
        self.disks[piece.disk as usize].reading.retain(|&other| other != key);
        if error.is_none() && !tainted {
            self.keep_read(piece, &buf);
        }
        self.piece_done(piece.request, error, cx);
    }

    /// Puts what was read into the cache for reads.
    fn keep_read(&mut self, piece: ClientPiece, buf: &Buf) {
        let index = self.share_of(piece.disk);
        for (at, number) in self.blocks_of(piece).enumerate() {
            let block = BlockId { disk: piece.disk, number };
            let at = at * self.config.block_bytes as usize;
            let share = &mut self.shares[index];
            if let Some(slot) = share.writes.find(block) {
                share.writes.touch(slot);
                continue;
            }
            let (pool, bytes) = match &mut share.reads {
                Some(reads) => (reads, &mut share.read_bytes),
                None => (&mut share.writes, &mut share.write_bytes),
            };
            match pool.find(block) {
                Some(slot) => pool.touch(slot),
                None => {
                    if let Some(slot) = pool.insert(block) {
                        bytes.put(slot, buf, at);
                    }
                }
            }
        }
    }

    /// All commands of an operation have returned.
    fn end(&mut self, key: u64, cx: &mut Cx) {
        let operation = self.operations.remove(key);
        let service = cx.now.since(operation.started);
        let index = operation.disk;
        let disk = &mut self.disks[index as usize];
        match operation.kind {
            OperationKind::Read { done, .. } => {
                assert!(done, "a read ends after its data came");
                disk.operations -= 1;
                self.count(index, |metrics| metrics.read_service += service);
            }
            OperationKind::Purge { share, immediate } => {
                disk.operations -= 1;
                disk.purges -= 1;
                disk.write_ends(cx.now);
                self.shares[share].purging_now &= !immediate;
                self.count(index, |metrics| metrics.write_service += service);
            }
            OperationKind::Through { piece, stamp } => {
                disk.operations -= 1;
                disk.alone = false;
                disk.write_ends(cx.now);
                self.count(index, |metrics| metrics.write_service += service);
                if operation.error.is_none() {
                    self.forget_older(piece, stamp);
                    let share = self.share_of(index);
                    self.go_on_writing(share, cx);
                }
                self.piece_done(piece.request, operation.error, cx);
            }
            OperationKind::Flush { waiter, covers } => {
                match operation.error {
                    None => disk.flushed = disk.flushed.max(covers),
                    // The writes that it should have covered count as unflushed: the next flush has to try again.
                    Some(_) => disk.unflushed += 1,
                }
                self.flush_returned(waiter, operation.error);
            }
        }
    }
}
