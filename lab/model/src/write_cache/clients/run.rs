//! Carrying out the requests of clients.

use dcd_engine::{
    Buf, Cx, Durability, Extent, Io, IoError, IoResult, Lba, Nanos, Report, Request, RequestId, SECTOR_BYTES,
};

use super::{Action, Awaited, ClientPiece, Unanswered, Waiter, WaitingFor};
use crate::write_cache::disk::{Disk, Job, Queued};
use crate::write_cache::metrics::Metrics;
use crate::write_cache::{BlockId, DYNAMIC_LOW, OnWrite, RegionId, Settled, Share, SlotIndex, WriteCache};

impl WriteCache {
    fn take(&mut self, id: RequestId, action: Action, buf: Buf) -> u64 {
        self.foreground += 1;
        let (left, error, stalled, writer) = (1, None, false, self.writer);
        self.requests.insert(Unanswered { id, action, buf, left, error, stalled, writer })
    }

    pub(in crate::write_cache) fn accept(&mut self, request: Request, cx: &mut Cx) {
        self.last_activity = cx.now;
        let action = match &request.io {
            Io::Read { .. } | Io::ReadCopy { .. } | Io::Flush => Action::Read,
            Io::Write { durability, .. } | Io::WriteCopy { durability, .. } => Action::Write(*durability),
            Io::Discard { .. } => Action::Discard,
            Io::WriteZeroes { unmap, .. } => Action::Zeroes { unmap: *unmap },
        };
        if let Err(error) = self.geometry.expect("it is active").validate(&request.io) {
            return cx.reply(request.id, IoResult::err(request.io.take_buf(), error));
        }
        let Some(extent) = request.io.extent() else {
            let key = self.take(request.id, action, Buf::none());
            return self.wait_until_safe(WaitingFor::Request(key));
        };
        let blocks = extent.sectors / self.block_sectors();
        match action {
            Action::Read => self.adapt_marks(blocks, 0),
            _ => self.adapt_marks(0, blocks),
        }
        self.writer = self.writer.wrapping_add(u32::from(action != Action::Read));
        let buf = request.io.take_buf();
        let key = self.take(request.id, action, buf);
        let count = |blocks: u64| {
            move |metrics: &mut Metrics| match action {
                Action::Read => {
                    (metrics.reads, metrics.blocks_read) = (metrics.reads + 1, metrics.blocks_read + blocks)
                }
                _ => {
                    (metrics.writes, metrics.blocks_written) =
                        (metrics.writes + 1, metrics.blocks_written + blocks)
                }
            }
        };
        count(blocks)(&mut self.metrics);
        let mut rest = extent;
        while rest.sectors > 0 {
            let disk = self.disks.partition_point(|disk| disk.first_sector <= rest.start.0) - 1;
            let first = self.disks[disk].first_sector;
            let sectors = rest.sectors.min(first + self.disks[disk].sectors - rest.start.0);
            let piece = ClientPiece {
                request: key,
                disk: disk as u32,
                extent: Extent::new(Lba(rest.start.0 - first), sectors),
                at: ((rest.start.0 - extent.start.0) * SECTOR_BYTES) as usize,
            };
            self.requests.get_mut(key).left += 1;
            count(sectors / self.block_sectors())(&mut self.per_disk[disk]);
            self.begin(piece, cx);
            rest = Extent::new(rest.start + sectors, rest.sectors - sectors);
        }
        self.piece_done(key, None, cx);
    }

    /// The dynamic thresholds (section 4.9): the high mark is the share of writes among the blocks of the last interval.
    fn adapt_marks(&mut self, read: u64, written: u64) {
        let (requests, reads, writes) = &mut self.interval;
        (*requests, *reads, *writes) = (*requests + 1, *reads + read, *writes + written);
        if self.config.dynamic_interval > 0 && *requests >= self.config.dynamic_interval {
            self.high_mark = *writes as f64 / (*reads + *writes) as f64;
            self.low_mark = self.high_mark * DYNAMIC_LOW;
            self.interval = (0, 0, 0);
        }
    }

    fn begin(&mut self, piece: ClientPiece, cx: &mut Cx) {
        let share = self.share_of(piece.disk);
        let blocks = piece.extent.sectors / self.block_sectors();
        match self.requests.get_mut(piece.request).action {
            Action::Read => {
                if !self.read_from_cache(piece, cx) {
                    self.enqueue(cx.now, piece, Job::Read(piece));
                }
            }
            Action::Write(_) if blocks <= self.shares[share].writes.capacity() as u64 => {
                if self.shares[share].stalled.is_empty() {
                    self.absorb(piece, cx);
                } else {
                    self.wait_for_room(piece);
                }
            }
            Action::Write(_) | Action::Discard | Action::Zeroes { .. } => {
                self.enqueue(cx.now, piece, Job::Through(piece));
            }
        }
    }

    fn enqueue(&mut self, now: Nanos, piece: ClientPiece, job: Job) {
        let waits = self.disks[piece.disk as usize].operations >= self.config.depth;
        if waits {
            self.count_stall(piece);
        }
        let disk = &mut self.disks[piece.disk as usize];
        let written = disk.write_busy(now);
        disk.queue.push_back(Queued { job, arrived: now, write_busy: written });
    }

    fn count_stall(&mut self, piece: ClientPiece) {
        let request = self.requests.get_mut(piece.request);
        if !std::mem::replace(&mut request.stalled, true) {
            self.count(piece.disk, |metrics| metrics.stalls += 1);
        }
    }

    /// Answers a read whose blocks are all in the caches.
    pub(in crate::write_cache) fn read_from_cache(&mut self, piece: ClientPiece, cx: &mut Cx) -> bool {
        let blocks = self.blocks_of(piece);
        let share = self.share_of(piece.disk);
        let share = &mut self.shares[share];
        let known = |block: BlockId| {
            share.writes.find(block).is_some()
                || share.reads.as_ref().is_some_and(|reads| reads.find(block).is_some())
        };
        let block = |number| BlockId { disk: piece.disk, number };
        if !blocks.clone().all(|number| known(block(number))) {
            return false;
        }
        let buf = &mut self.requests.get_mut(piece.request).buf;
        let (mut at, mut hit_written) = (piece.at, 0);
        let count = blocks.end - blocks.start;
        for number in blocks {
            if let Some(slot) = share.writes.find(block(number)) {
                share.writes.touch(slot);
                share.write_bytes.get(slot, buf, at);
                hit_written += 1;
            } else if let Some((reads, slot)) =
                share.reads.as_mut().and_then(|reads| reads.find(block(number)).map(|slot| (reads, slot)))
            {
                reads.touch(slot);
                share.read_bytes.get(slot, buf, at);
            }
            at += self.config.block_bytes as usize;
        }
        self.count(piece.disk, |metrics| {
            metrics.blocks_hit_in_write_cache += hit_written;
            metrics.blocks_hit_in_read_cache += count - hit_written;
        });
        self.piece_done(piece.request, None, cx);
        true
    }

    /// Takes a write into the cache, as far as there is room; the rest waits for it.
    pub(in crate::write_cache) fn absorb(&mut self, mut piece: ClientPiece, cx: &mut Cx) {
        let block_bytes = self.config.block_bytes as usize;
        let index = self.share_of(piece.disk);
        let mut overwritten = 0;
        let mut fits = true;
        for number in self.blocks_of(piece) {
            let block = BlockId { disk: piece.disk, number };
            let region = self.region_of(block);
            let share = &mut self.shares[index];
            let Some(slot) = share.writes.find(block).or_else(|| share.writes.insert(block)) else {
                fits = false;
                break;
            };
            overwritten += u64::from(share.writes.is_dirty(slot));
            let request = self.requests.get_mut(piece.request);
            share.writes.touch(slot);
            share.writes.write(slot, region, request.writer);
            share.write_bytes.put(slot, &request.buf, piece.at);
            if let Some(reads) = &mut share.reads {
                match (self.config.on_write, reads.find(block)) {
                    (OnWrite::WritePurge, Some(old)) => drop(reads.remove(old)),
                    (OnWrite::WriteUpdate | OnWrite::WriteAllocate, Some(old)) => {
                        reads.touch(old);
                        share.read_bytes.put(old, &request.buf, piece.at);
                    }
                    (OnWrite::WriteAllocate, None) => {
                        if let Some(fresh) = reads.insert(block) {
                            share.read_bytes.put(fresh, &request.buf, piece.at);
                        }
                    }
                    (OnWrite::WritePurge | OnWrite::WriteUpdate, None) => {}
                }
            }
            self.taint_reads(block);
            piece.at += block_bytes;
            piece.extent = Extent::new(
                piece.extent.start + self.block_sectors(),
                piece.extent.sectors - self.block_sectors(),
            );
        }
        self.count(piece.disk, |metrics| metrics.dirty_blocks_overwritten += overwritten);
        if fits {
            self.written(piece, cx);
        } else {
            self.wait_for_room(piece);
        }
    }

    /// All of a write's piece is in the cache.
    fn written(&mut self, piece: ClientPiece, cx: &mut Cx) {
        let request = self.requests.get_mut(piece.request);
        if request.action == Action::Write(Durability::Durable) && !self.config.non_volatile {
            self.wait_until_safe(WaitingFor::Request(piece.request));
        } else {
            self.piece_done(piece.request, None, cx);
        }
    }

    fn wait_for_room(&mut self, piece: ClientPiece) {
        self.count_stall(piece);
        let share = self.share_of(piece.disk);
        self.shares[share].stalled.push_back(piece);
    }

    /// Lets the writes that wait for room go on, in their order.
    pub(in crate::write_cache) fn go_on_writing(&mut self, share: usize, cx: &mut Cx) {
        while let Some(piece) = self.shares[share].stalled.pop_front() {
            let waiting = self.shares[share].stalled.len();
            self.absorb(piece, cx);
            if self.shares[share].stalled.len() > waiting {
                // It waits again: its place is the first.
                self.shares[share].stalled.rotate_right(1);
                return;
            }
        }
    }

    /// Drops cached blocks of a piece that are older than those on the disk: all that were not written since `stamp`.
    pub(in crate::write_cache) fn forget_older(&mut self, piece: ClientPiece, stamp: u64) {
        let index = self.share_of(piece.disk);
        let numbers = self.blocks_of(piece);
        let share = &self.shares[index];
        for block in share.writes.blocks_among(piece.disk, &numbers) {
            let share = &mut self.shares[index];
            if let Some(slot) = share.writes.find(block)
                && share.writes.written(slot) <= stamp
            {
                self.count_if_resting(index, slot, false);
                let settled = self.shares[index].writes.remove(slot);
                self.settle(index, settled);
            }
        }
        let Some(reads) = &mut self.shares[index].reads else { return };
        for block in reads.blocks_among(piece.disk, &numbers) {
            if let Some(slot) = reads.find(block) {
                reads.remove(slot);
            }
        }
    }

    /// Whoever it is learns when all that is dirty now is safe.
    pub(in crate::write_cache) fn wait_until_safe(&mut self, who: WaitingFor) {
        let everything = matches!(who, WaitingFor::Report(_)) || !self.config.non_volatile;
        let dirty = self.shares.iter().enumerate().map(|(share, Share { writes, .. })| Awaited {
            stamp: writes.stamp(),
            left: if everything { writes.dirty() as u64 } else { 0 },
            resting: if everything { self.resting_blocks(share) } else { 0 },
        });
        let dirty = dirty.collect();
        self.waiters_so_far += 1;
        self.waiters.push(Waiter { id: self.waiters_so_far, who, dirty, flushes: None, error: None });
    }

    pub(in crate::write_cache) fn settle(&mut self, share: usize, settled: Settled) {
        for waiter in &mut self.waiters {
            let awaited = &mut waiter.dirty[share];
            if settled.covers(awaited.stamp) {
                awaited.left = awaited.left.saturating_sub(1);
            }
        }
    }

    /// The dirty blocks of a share that rest.
    fn resting_blocks(&self, share: usize) -> u64 {
        let writes = &self.shares[share].writes;
        let disks = self.disks.iter().enumerate().filter(|(disk, _)| self.share_of(*disk as u32) == share);
        let regions =
            disks.flat_map(|(_, disk)| &disk.resting).filter_map(|rests| writes.region(rests.region));
        regions
            .filter(|region| region.resting)
            .map(|region| u64::from(region.blocks - region.being_written))
            .sum()
    }

    /// A block rests, or does so no more.
    pub(in crate::write_cache) fn count_if_resting(&mut self, share: usize, slot: SlotIndex, rests: bool) {
        let Some(since) = self.shares[share].writes.rests_since(slot) else { return };
        for waiter in &mut self.waiters {
            let awaited = &mut waiter.dirty[share];
            if since <= awaited.stamp && awaited.left > 0 {
                awaited.resting = if rests { awaited.resting + 1 } else { awaited.resting - 1 };
            }
        }
    }

    /// All blocks of a region rest, or do so no more.
    pub(in crate::write_cache) fn count_resting(&mut self, share: usize, region: RegionId, rests: bool) {
        let writes = &self.shares[share].writes;
        let Some(region) = writes.region(region) else { return };
        for slot in writes.waiting_blocks(region).collect::<Vec<_>>() {
            self.count_if_resting(share, slot, rests);
        }
    }

    /// Panics where a waiter's count of resting blocks is wrong.
    pub(in crate::write_cache) fn check_waiters(&self) {
        for (share, writes) in self.shares.iter().map(|share| &share.writes).enumerate() {
            let resting = writes.regions().filter(|region| region.resting);
            let since: Vec<u64> = resting
                .flat_map(|region| writes.waiting_blocks(region))
                .filter_map(|slot| writes.rests_since(slot))
                .collect();
            for awaited in self.waiters.iter().map(|waiter| &waiter.dirty[share]) {
                let covered = since.iter().filter(|since| **since <= awaited.stamp).count() as u64;
                let expected = if awaited.left > 0 { covered } else { 0 };
                assert_eq!(awaited.resting, expected, "of {} blocks left", awaited.left);
            }
        }
    }

    /// Returns a region's error if none of the blocks that a waiter waits for is being written, or will be before regions have rested.
    fn only_failures_left(&self, waiter: &Waiter) -> Option<IoError> {
        let mut error = None;
        for (share, awaited) in waiter.dirty.iter().enumerate().filter(|(_, awaited)| awaited.left > 0) {
            let mine = |(disk, _): &(usize, &Disk)| self.share_of(*disk as u32) == share;
            let disks = || self.disks.iter().enumerate().filter(mine).map(|(_, disk)| disk);
            // All purges that may begin have begun by now.
            let writing = self.shares[share].writes.being_written() > 0 || disks().any(|disk| disk.alone);
            let given_up = !writing && disks().any(Disk::is_backing_off);
            if awaited.left > awaited.resting && !given_up {
                return None;
            }
            error = disks().flat_map(|disk| &disk.resting).map(|rests| rests.error).next_back();
        }
        error
    }

    /// True if a waiter waits for the dirty blocks of this share.
    pub(in crate::write_cache) fn is_wanted(&self, share: usize) -> bool {
        self.waiters.iter().any(|waiter| waiter.dirty[share].left > 0)
    }

    /// Sends the flushes of those whose blocks are purged, and answers those whose flushes have returned. Those whose last blocks cannot be
    /// written get that error; only a stop goes on trying, as it is the last chance of what is in RAM.
    pub(in crate::write_cache) fn finish_waiters(&mut self, cx: &mut Cx) {
        let mut index = 0;
        while index < self.waiters.len() {
            let waiter = &self.waiters[index];
            if waiter.flushes.is_none() && waiter.dirty.iter().all(|awaited| awaited.left == 0) {
                let flushes = self.start_flushes(waiter.id, cx);
                self.waiters[index].flushes = Some(flushes);
            } else if waiter.flushes.is_none()
                && !matches!(waiter.who, WaitingFor::Report(Report::Stopped))
                && let Some(error) = self.only_failures_left(waiter)
            {
                (self.waiters[index].flushes, self.waiters[index].error) = (Some(0), Some(error));
            }
            if self.waiters[index].flushes != Some(0) {
                index += 1;
                continue;
            }
            let waiter = self.waiters.remove(index);
            match (waiter.who, waiter.error) {
                (WaitingFor::Request(key), error) => self.piece_done(key, error, cx),
                (WaitingFor::Report(_), Some(error)) => cx.report(Report::Failed(error.into())),
                (WaitingFor::Report(report), None) => cx.report(report),
            }
        }
    }

    pub(in crate::write_cache) fn flush_returned(&mut self, waiter: u64, error: Option<IoError>) {
        let waiter =
            self.waiters.iter_mut().find(|other| other.id == waiter).expect("it waits for its flushes");
        waiter.flushes = waiter.flushes.map(|left| left - 1);
        waiter.error = waiter.error.or(error);
    }

    /// An administrator's drain is called off.
    pub(in crate::write_cache) fn cancel_drains(&mut self) {
        self.waiters
            .retain(|waiter| waiter.flushes.is_some() || !matches!(waiter.who, WaitingFor::Report(_)));
    }

    /// Notes that a piece of a request is done; the last piece answers the request.
    pub(in crate::write_cache) fn piece_done(&mut self, key: u64, error: Option<IoError>, cx: &mut Cx) {
        let request = self.requests.get_mut(key);
        request.error = request.error.or(error);
        request.left -= 1;
        if request.left == 0 {
            self.foreground -= 1;
            let request = self.requests.remove(key);
            let status = request.error.map_or(Ok(()), Err);
            cx.reply(request.id, IoResult { buf: request.buf, status });
        }
    }

    /// The numbers of a piece's blocks.
    pub(in crate::write_cache) fn blocks_of(&self, piece: ClientPiece) -> std::ops::Range<u64> {
        let block = self.block_sectors();
        piece.extent.start.0 / block..piece.extent.end().0 / block
    }

    pub(in crate::write_cache) fn region_of(&self, block: BlockId) -> RegionId {
        let lba = Lba(block.number * self.block_sectors());
        RegionId { disk: block.disk, number: self.disks[block.disk as usize].map.regions.region_of(lba) }
    }
}
