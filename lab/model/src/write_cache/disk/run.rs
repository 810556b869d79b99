//! Choosing the next operation of a disk.

use dcd_engine::destage::what::WhatPolicy;
use dcd_engine::destage::when::{self, Choice, WhenPolicy};
use dcd_engine::{Cx, IoError, Nanos};

use super::{BACK_OFF, Job, Queued, Resting};
use crate::write_cache::operation::OperationKind;
use crate::write_cache::stow::StowQueue;
use crate::write_cache::{DirtyRegion, Position, RegionId, WriteCache};

impl WriteCache {
    /// Starts all that the disk may start now.
    pub(in crate::write_cache) fn run_disk(&mut self, disk: u32, cx: &mut Cx) {
        while self.start_queued(disk, cx) {}
        let share = self.share_of(disk);
        if !self.shares[share].stalled.is_empty() {
            self.purge_for_room(share, cx);
        }
        while self.start_quiescent(disk, cx) {}
    }

    fn start_queued(&mut self, index: u32, cx: &mut Cx) -> bool {
        let disk = &mut self.disks[index as usize];
        let Some(next) = disk.queue.front() else { return false };
        let alone = matches!(next.job, Job::Through(_));
        if disk.alone || disk.operations >= self.config.depth || (alone && disk.operations > 0) {
            return false;
        }
        let queued = disk.queue.pop_front().expect("it was looked at");
        match queued.job {
            Job::Read(piece) => self.start_read(piece, &queued, cx),
            Job::Through(piece) => self.start_through(piece, cx),
            Job::Purge(share) => {
                if !self.start_purge(index, share, true, cx) {
                    self.shares[share].purging_now = false;
                }
            }
        }
        true
    }

    /// Writes wait for room: the purge that they need takes its turn among the reads.
    fn purge_for_room(&mut self, share: usize, cx: &mut Cx) {
        if self.shares[share].purging_now || self.shares[share].writes.being_written() > 0 {
            return;
        }
        let Some(region) = self.choose_for_room(share) else { return };
        let disk = &mut self.disks[region.disk as usize];
        self.shares[share].purging_now = true;
        disk.queue.push_back(Queued { job: Job::Purge(share), arrived: cx.now, write_busy: Nanos::ZERO });
        while self.start_queued(region.disk, cx) {}
    }

    fn choose_for_room(&mut self, share: usize) -> Option<RegionId> {
        let writes = &self.shares[share].writes;
        if self.config.single {
            let oldest = self.region_of(writes.block(writes.oldest_dirty()?));
            let waits = writes.region(oldest).is_some_and(|region| region.waiting() > 0);
            if waits && !self.disks[oldest.disk as usize].is_backing_off() {
                return Some(oldest);
            }
        }
        let mut best: Option<DirtyRegion> = None;
        for disk in 0..self.disks.len() as u32 {
            if self.share_of(disk) != share {
                continue;
            }
            let region = self.choose(disk, share, false);
            best = best.into_iter().chain(region).max_by_key(|region| region.blocks);
        }
        best.map(|region| region.id)
    }

    /// The policy's choice for a disk.
    fn when(&self, now: Nanos, index: u32) -> Choice {
        let (disk, share) = (&self.disks[index as usize], &self.shares[self.share_of(index)]);
        self.config.when.choose(&when::PolicyView {
            now,
            utilisation: share.utilisation(),
            foreground: disk.foreground(),
            last_activity: self.last_activity,
            running: share.triggered,
            in_flight: disk.purges,
            depth: self.config.depth,
            high_mark: self.high_mark,
            low_mark: self.low_mark,
            idle_empty: self.config.idle_empty,
            idle_full: self.config.idle_full,
        })
    }

    /// Something is dirty, and the policy does not wait for an event.
    pub(in crate::write_cache) fn purges(&self, now: Nanos, disk: u32) -> bool {
        self.shares[self.share_of(disk)].writes.waiting() > 0 && self.when(now, disk) != Choice::Wait
    }

    /// Asks the policy whether to purge now.
    fn start_quiescent(&mut self, index: u32, cx: &mut Cx) -> bool {
        let share_index = self.share_of(index);
        let disk = &self.disks[index as usize];
        let share = &mut self.shares[share_index];
        if share.writes.capacity() == 0 || share.writes.dirty() == 0 {
            share.triggered = false;
            return false;
        }
        let foreground = disk.foreground();
        if disk.alone || disk.purges >= self.config.depth {
            return false;
        }
        let above = self.high_mark.next_up();
        share.triggered = when::hysteresis(share.triggered, share.utilisation(), above, self.low_mark);
        let targeted = self.config.single && share.writes.has_targets();
        if self.is_wanted(share_index) {
            return self.start_purge(index, share_index, false, cx);
        }
        if targeted && foreground == 0 && self.purge_target(index, share_index, cx) {
            return true;
        }
        match self.when(cx.now, index) {
            Choice::Run => self.start_purge(index, share_index, false, cx),
            Choice::At(time) => {
                self.wake_at(time);
                false
            }
            Choice::Wait => false,
        }
    }

    fn wake_at(&mut self, time: Nanos) {
        self.deadline = Some(self.deadline.map_or(time, |deadline| deadline.min(time)));
    }

    /// The single cache: a dirty block that an eviction passed over is purged with its region, when the disk is idle.
    fn purge_target(&mut self, index: u32, share: usize, cx: &mut Cx) -> bool {
        while let Some(block) = self.shares[share].writes.next_target(index) {
            let region = self.region_of(block);
            let known = self.shares[share].writes.region(region).copied();
            if let Some(region) = known
                && region.waiting() > 0
                && !self.disks[index as usize].is_backing_off()
            {
                self.purge(region, share, false, cx);
                return true;
            }
        }
        false
    }

    /// A write of a region has failed. The waiters for its blocks learn that these are not being written for now.
    pub(in crate::write_cache) fn rest(
        &mut self,
        now: Nanos,
        share: usize,
        region: RegionId,
        error: IoError,
    ) {
        if self.shares[share].writes.rest(region, true) {
            let until = now.saturating_add(BACK_OFF);
            let resting = &mut self.disks[region.disk as usize].resting;
            // It may have rested already, and lost all of its blocks meanwhile.
            resting.retain(|other| other.region != region);
            resting.push_back(Resting { until, region, error });
            self.count_resting(share, region, true);
        }
    }

    /// Lets the regions that have rested be tried again, and asks for an alarm for the others.
    pub(in crate::write_cache) fn end_rests(&mut self, now: Nanos) {
        for index in 0..self.disks.len() {
            let share = self.share_of(index as u32);
            let is_over = |resting: &Resting| resting.until <= now;
            while self.disks[index].resting.front().is_some_and(is_over)
                && let Some(Resting { region, .. }) = self.disks[index].resting.pop_front()
            {
                self.count_resting(share, region, false);
                self.shares[share].writes.rest(region, false);
            }
            if let Some(until) = self.disks[index].resting.front().map(|resting| resting.until) {
                self.wake_at(until);
            }
        }
    }

    /// The region of a disk that the policy wants purged first; `in_turn`: only if it is the disk's turn.
    fn choose(&mut self, index: u32, share: usize, in_turn: bool) -> Option<DirtyRegion> {
        if self.disks[index as usize].is_backing_off() {
            return None;
        }
        // While somebody waits until everything is safe, the oldest goes first, whatever the policy is.
        let policy = if self.is_wanted(share) { WhatPolicy::OldestFirst } else { self.config.what };
        let writes = &mut self.shares[share].writes;
        let stow = &mut self.disks[index as usize].stow;
        let queue = (policy == WhatPolicy::Stow).then(|| {
            let [sequential, random] = writes.waiting_by_queue(index);
            stow.queue(sequential, random)
        });
        let hand = queue.map(|queue| stow.hand(queue));
        let mut position = self.disks[index as usize].position(index);
        position.hand = hand.unwrap_or(position.hand);
        let best = *writes.choose(policy, queue, position)?;
        if in_turn && !self.is_its_turn(share, &best, position) {
            return None;
        }
        let passed = self.shares[share].writes.pass_over(&best, policy, queue, position);
        if let Some(queue) = queue {
            (0..passed).for_each(|_| self.disks[index as usize].stow.passed(queue));
        }
        Some(best)
    }

    /// The queue of a region for STOW.
    fn queue_of(&self, region: &DirtyRegion) -> StowQueue {
        let sectors = self.disks[region.id.disk as usize].map.regions.extent(region.id.number).sectors;
        region.queue(sectors, self.block_sectors())
    }

    /// In a cache that several disks share, the controller purges the best region of all (section 4.7 has no other rule
    /// than that of 2.1). Disks purge at the same time, so each does what of it would be its part if purges went one
    /// after the other down to the mark.
    fn is_its_turn(&mut self, share: usize, best: &DirtyRegion, position: Position) -> bool {
        let keep = match self.config.when {
            WhenPolicy::OneThreshold => self.high_mark,
            WhenPolicy::TwoThresholds | WhenPolicy::HighLow | WhenPolicy::Linear => self.low_mark,
            WhenPolicy::Idle | WhenPolicy::Asap | WhenPolicy::WhenFull => return true,
        };
        if self.config.partitioned || self.disks.len() == 1 {
            return true;
        }
        let writes = &mut self.shares[share].writes;
        let kept = (keep * writes.capacity() as f64) as u64;
        let mut left = (writes.waiting() as u64).saturating_sub(kept);
        let key = writes.key(best, position).expect("the policy's order is kept");
        for (index, disk) in self.disks.iter().enumerate() {
            if left > 0 && index as u32 != best.id.disk && !disk.is_backing_off() {
                left = left.saturating_sub(writes.before(disk.position(index as u32), key, left));
            }
        }
        left > 0
    }

    fn start_purge(&mut self, disk: u32, share: usize, immediate: bool, cx: &mut Cx) -> bool {
        let Some(region) = self.choose(disk, share, !immediate && !self.is_wanted(share)) else {
            return false;
        };
        self.purge(region, share, immediate, cx);
        true
    }

    fn purge(&mut self, region: DirtyRegion, share: usize, immediate: bool, cx: &mut Cx) {
        let index = region.id.disk;
        let mut runs = self.runs_of(share, &[region.id]);
        let queue = self.queue_of(&region);
        let blocks = runs.iter().map(|run| run.slots.len() as u64).sum::<u64>();
        let whole = blocks * self.block_sectors()
            == self.disks[index as usize].map.regions.extent(region.id.number).sectors;
        let disk = &mut self.disks[index as usize];
        if let Some(arm) = &disk.map.arm {
            let first = runs.iter().map(|run| run.extent.start).min().expect("the region has dirty blocks");
            let there = arm.on_track(cx.now, first, true);
            runs.sort_by_key(|run| arm.pass(there, run.extent).0);
        }
        disk.hand = region.id.number;
        disk.stow.destaged(queue, region.id.number, whole);
        disk.purges += 1;
        let writers = runs.iter().flat_map(|run| &run.slots);
        let mut writers = writers.map(|&slot| self.shares[share].writes.writer(slot));
        let first = writers.next();
        let several = writers.any(|writer| Some(writer) != first);
        self.count(index, |metrics| {
            metrics.purges += 1;
            metrics.disk_writes += 1;
            metrics.immediate_purges += u64::from(immediate);
            metrics.purged_blocks += blocks;
            metrics.purges_of_several_writes += u64::from(several);
        });
        let operation = self.start(cx.now, index, OperationKind::Purge { share, immediate });
        self.write_runs(operation, share, runs, cx);
    }
}
