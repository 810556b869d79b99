//! Writes, discards and zeroes: appended to the log, always at the head, even when they overwrite (section 3.5.1). Large
//! writes bypass the log if that is safe (rule 7).

use super::data_disk::Bypass;
use super::destager::Destagers;
use super::env::{Env, Op, View, data_port};
use super::format::{Entry, EntryKind};
use super::keep::Keep;
use super::queue::{DurableWaiter, PendingChange, PendingWrite, WriteWait};
use super::table::{Line, Place};
use super::{LogCanary, Promise};
use crate::layer::{Durability, IoResult, RequestId};
use crate::{Extent, LINE_BYTES, SECTOR_BYTES};

/// Maximum sectors of one entry without payload.
const RANGE_SECTORS_MAX: u64 = 1 << 31;

/// Handles the requests at the front of the queue, until one has to wait for the log.
pub fn write_pending(destagers: &Destagers, keep: &mut Keep, env: &mut Env) {
    env.queue.try_all();
    while let Some(mut pending) = env.queue.pop() {
        let through = env.log.has_failed() || env.log.through().is_on();
        let tried = match through {
            _ if env.view().holds_writes(destagers) => Err(WriteWait::Log),
            true if !pending.may_write_through(destagers, &env.view()) => Err(WriteWait::Disk),
            true => when_done(pending.leave_log(env)),
            false => pending.try_log(destagers, keep, env),
        };
        if let Err(wait) = tried {
            env.queue.put_back(pending, wait);
            match wait {
                WriteWait::Log => return,
                WriteWait::Disk => continue,
            }
        }
        env.queue.got_space(pending.disk);
        if through {
            pending.bypass(0, keep, env);
        } else if pending.done < pending.extent.sectors {
            let is_noted = env.invalidate(pending.extent);
            let seq = if is_noted { env.data.at(pending.extent).last_invalidate() } else { 0 };
            pending.bypass(seq, keep, env);
        } else {
            pending.logged(destagers, env);
        }
    }
}

const fn when_done(done: bool) -> Result<(), WriteWait> {
    if done { Ok(()) } else { Err(WriteWait::Log) }
}

impl PendingWrite {
    /// Puts the request into the log. Succeeds when all of it is in, or when it may bypass the log (none of it is in then).
    fn try_log(&mut self, destagers: &Destagers, keep: &mut Keep, env: &mut Env) -> Result<(), WriteWait> {
        if self.done == 0 && env.log.chain().is_none() {
            if self.may_bypass(destagers, &env.view()) {
                return when_done(!env.index.is_visible_in(self.extent) || env.make_room(1, 0));
            }
            if env.view().has_its_share(self.disk, destagers) {
                env.queue.want_share(self.disk);
                return Err(WriteWait::Disk);
            }
        }
        when_done(match self.change {
            PendingChange::Data => self.append_data(keep, env),
            PendingChange::Range(kind) => self.append_range(kind, keep, env),
        })
    }

    /// Rule 7: nothing of the range is dirty in the log or bypassing it. The range also covers no line of the fingerprint: after a crash,
    /// records explain all changes there.
    fn may_bypass(&self, destagers: &Destagers, view: &View) -> bool {
        let View { config, index, .. } = *view;
        let (extent, data) = (self.extent, view.data.at(self.extent));
        let rest = self.durability == Durability::Volatile
            && config.promise != Promise::Always
            && data.continues_stream(extent.start)
            && !index.is_visible_in(extent);
        // A write that passes the log need not be destaged before the mode changes.
        let is_turning = view.log.through().is_turning();
        if self.change != PendingChange::Data || !(view.is_large(extent) || rest || is_turning) {
            return false;
        }
        config.promise != Promise::Ordered
            && !config.ordered_destage
            && !data.fingerprint.covers(extent)
            // A crash could take the record that invalidates the copy, and leave the copy and the write.
            && !index.is_kept_in(extent)
            // Recovery would not destage anything of it again.
            && (index.is_silent_on(extent) && view.is_still(extent, destagers) || config.canary.is(LogCanary::BlindBypass))
    }

    /// True if no older data can be destaged over this write, nor written over it: the log is dead, or clean.
    fn may_write_through(&self, destagers: &Destagers, view: &View) -> bool {
        if !view.log.has_failed() {
            return view.is_still(self.extent, destagers);
        }
        let only_lost = destagers.of(self.extent).is_idle() && view.log.is_durable();
        view.log.failure_is_recorded()
            && view.is_still(self.extent, destagers)
            && (only_lost || !view.index.is_dirty_in(self.extent))
    }

    /// Forgets all copies of the range, as the write passes the log; false if the rest is done in another event.
    fn leave_log(&mut self, env: &mut Env) -> bool {
        while !env.log.has_failed() && self.passed < self.extent.sectors {
            let sectors = (self.extent.sectors - self.passed).min(RANGE_SECTORS_MAX);
            let extent = env.index.table().step(Extent::new(self.extent.start + self.passed, sectors));
            env.pass_log(extent);
            self.passed += extent.sectors;
            if self.passed < self.extent.sectors {
                // The mode may change before the next event.
                env.queue.yield_turn();
                return false;
            }
        }
        true
    }

    /// Sends the request to the data disk. Record `seq` says so.
    fn bypass(self, seq: u64, keep: &mut Keep, env: &mut Env) {
        let PendingWrite { disk, id, extent, .. } = self;
        let through = self.durability == Durability::Durable || env.config.promise == Promise::Always;
        // Over a block that a dead log has lost: if this write were lost as well, older data would come back unnoticed.
        let over_lost = env.log.has_failed() && env.index.is_dirty_in(extent);
        let durability = if through || over_lost { Durability::Durable } else { Durability::Volatile };
        let seq = match through {
            true => seq,
            false if env.config.answers_when_written() => env.log.awaited(seq),
            false => 0,
        };
        env.queue.touch(disk, env.cx.now);
        keep.overwritten(extent, env.config);
        // A discard cannot be sent durably.
        let discards = self.change == PendingChange::Range(EntryKind::Discard);
        let durable = durability == Durability::Durable && !discards;
        let bypass = Bypass { id, extent, seq, durable, has_no_log: env.log.has_failed() };
        let is_large = env.view().is_large(extent);
        let key = env.data[disk].send_bypass(bypass, is_large);
        env.statistics.bypasses += 1;
        env.statistics.bypassed_sectors += extent.sectors;
        env.submit(data_port(disk), Op::Bypass { disk, key }, self.into_io(durability));
    }

    /// Appends the rest of a write. A request that fits is one record; a larger one is a chain of records, which
    /// counts only as a whole.
    fn append_data(&mut self, keep: &mut Keep, env: &mut Env) -> bool {
        while self.done < self.extent.sectors {
            let (pieces, bytes) = (self.pieces_left(), self.bytes_left());
            let half = (env.log.ring().count() / 2).max(1);
            if env.log.ends_before(pieces, bytes) {
                env.seal();
            }
            if env.make_room(pieces, bytes) {
                if !env.log.fits_record(pieces) {
                    env.seal();
                    if env.log.is_longer_than_a_record(pieces) {
                        env.begin_chain();
                    }
                }
                self.append_pieces(pieces, keep, env);
                env.end_chain();
                return true;
            }
            // As many lines as fit one buffer, in records of their own.
            let lines = env.log.lines_of_a_segment().min(pieces - 1);
            if env.log.fits_a_segment(pieces, bytes) || lines == 0 {
                return false;
            }
            // Once begun, the chain must be able to end: until then the copies that it replaces pin the tail.
            let segments = (pieces.div_ceil(lines) as u64 + 1).min(half);
            if env.log.chain().is_none() && env.view().free_segments() < segments {
                env.queue.want_space();
                return false;
            }
            if !env.make_room(lines, lines * LINE_BYTES as usize) {
                return false;
            }
            env.begin_chain();
            self.append_pieces(lines, keep, env);
            if env.log.chain().is_some_and(|chain| env.log.ring().head() - chain.segment + 1 >= half) {
                // Larger than half the log: no crash can take it as a whole, as the log is emptied while it is written.
                env.end_chain();
            }
            env.dispatch();
        }
        true
    }

    fn append_pieces(&mut self, pieces: usize, keep: &mut Keep, env: &mut Env) {
        env.log.announce(pieces, self.bytes_left().min(pieces * LINE_BYTES as usize));
        for _ in 0..pieces {
            let extent = self.next_piece();
            let at = (self.done * SECTOR_BYTES) as usize;
            // Prefetches the line's slot while the data is copied.
            env.index.table().touch(std::iter::once(Line::of(extent.start)));
            // Compaction (which section 3.5.1 of the paper leaves undone): data that is overwritten before its record is closed takes no
            // more space. Only within a record: anything else would change the order of updates.
            let written = if env.config.compact { env.log.overwrite(extent, &self.buf, at) } else { None };
            env.statistics.compacted_sectors += written.map_or(0, |_| extent.sectors);
            let (place, crc) = written.unwrap_or_else(|| {
                env.open_record();
                env.log.append(EntryKind::Data, extent, &self.buf, at)
            });
            env.index.insert(extent, Place(place), crc, env.log.last_seq());
            keep.overwritten(extent, env.config);
            self.done += extent.sectors;
        }
    }

    fn append_range(&mut self, kind: EntryKind, keep: &mut Keep, env: &mut Env) -> bool {
        while self.done < self.extent.sectors {
            let sectors = (self.extent.sectors - self.done).min(RANGE_SECTORS_MAX);
            let mut extent = Extent::new(self.extent.start + self.done, sectors);
            if env.config.promise != Promise::Ordered {
                extent = env.index.table().step(extent);
            }
            if !env.index.has_room_for_range() {
                env.queue.want_space();
                return false;
            }
            if env.log.ends_before(1, 0) {
                env.seal();
            }
            if !env.make_room(1, 0) {
                return false;
            }
            env.log.announce(1, 0);
            let seq = env.open_record();
            let segment = env.log.note(Entry { kind, extent, crc: 0 });
            env.index.insert_range(extent, kind, seq, segment);
            keep.overwritten(extent, env.config);
            self.done += extent.sectors;
            if self.done < self.extent.sectors && extent.sectors < sectors {
                // The rest of a large range is done in another event.
                env.queue.yield_turn();
                return false;
            }
        }
        true
    }

    /// Answers a request that is in the log: now, a little later, or when it is durable.
    fn logged(self, destagers: &Destagers, env: &mut Env) {
        let PendingWrite { disk, id, extent, .. } = self;
        env.data[disk].written_again(extent);
        let seq = env.log.last_seq();
        env.statistics.logged_sectors += if self.change == PendingChange::Data { extent.sectors } else { 0 };
        let result = IoResult::ok(self.buf);
        let durable = self.durability == Durability::Durable && env.config.promise != Promise::Ordered;
        if durable || env.config.promise == Promise::Always {
            env.queue.wait(DurableWaiter { disk, id, seq, written: false, bypass: 0, result });
            return env.end_flush_epoch();
        }
        if self.durability == Durability::Durable {
            // Ordered destage keeps the order of flushes although no request waits.
            env.end_flush_epoch();
        }
        let seq = env.log.awaited(seq);
        if env.config.answers_when_written() && seq > env.log.written_seq() {
            return env.queue.wait(DurableWaiter { disk, id, seq, written: true, bypass: 0, result });
        }
        env.answer_paced(disk, id, extent.sectors, result, destagers);
    }
}

impl View<'_> {
    /// True when the dirty blocks of a disk take the disk's share of the log, so that its writes wait for its own destage. Disks of which
    /// nothing becomes clean have one share together.
    fn has_its_share(&self, disk: usize, destagers: &Destagers) -> bool {
        let disks = self.data.space().count();
        let is_stuck = |disk: usize| destagers[disk].is_stuck(self.now);
        let of_stuck =
            || (0..disks).filter(|disk| is_stuck(*disk)).map(|disk| self.index.part_of(disk)).sum();
        // One with nothing dirty would wait for nothing.
        let own = self.index.part_of(disk);
        let part = if is_stuck(disk) { of_stuck() } else { own };
        disks > 1 && own > 0.0 && part >= f64::from(self.config.share) / 100.0
    }

    /// True when no write in flight changes the extent on the data disk: neither a bypassing one nor one of a gap.
    fn is_still(&self, extent: Extent, destagers: &Destagers) -> bool {
        !self.data.at(extent).is_bypassed(extent) && !destagers.of(extent).is_filling(extent, self.config)
    }
}

impl Env<'_> {
    /// Records that the data disk has the newest copy; true if a record must be written first.
    fn invalidate(&mut self, extent: Extent) -> bool {
        if self.config.canary.is(LogCanary::BlindBypass) {
            return false;
        }
        if !self.index.is_visible_in(extent) {
            if !self.config.canary.is(LogCanary::StaleClean) {
                self.index.forget(extent, 0);
            }
            return self.data.at(extent).last_invalidate() > self.log.durable_seq();
        }
        self.log.announce(1, 0);
        let seq = self.open_record();
        self.log.note(Entry { kind: EntryKind::Invalidate, extent, crc: 0 });
        self.index.forget(extent, seq);
        self.data.at_mut(extent).invalidated(seq);
        self.statistics.invalidates += 1;
        true
    }

    /// Takes a write that bypassed the log, and answers it, or lets it wait for its record.
    pub fn bypass_completed(&mut self, disk: usize, key: u64, result: IoResult, keep: &mut Keep) {
        let bypass = self.data[disk].end_bypass(key, result.status.is_ok());
        if result.status.is_ok() {
            self.copy_passed(bypass.extent, &result.buf, keep);
        }
        if bypass.has_no_log && result.status.is_ok() {
            // Until now the lost blocks under the write were errors. (If the log failed later, what it took meanwhile is newer.)
            self.index.forget(bypass.extent, 0);
        }
        // Until the record is written, a kill would let an older copy in the log be destaged over this write.
        let (id, seq, written) = (bypass.id, bypass.seq, !bypass.durable);
        let reached = if written { self.log.written_seq() } else { 0 }.max(self.log.durable_seq());
        // A flush makes the discard durable that a dead log could not take.
        let flush =
            if written && self.config.promise == Promise::Always { self.data[disk].owed() } else { 0 };
        if result.status.is_ok() && (seq > reached || flush > 0) {
            self.queue.wait(DurableWaiter { disk, id, seq, written, bypass: flush, result });
        } else {
            self.finish(disk, id, result);
        }
    }

    /// Answers a write that is not durable yet, at the pace of destaging.
    pub fn answer_paced(
        &mut self,
        disk: usize,
        id: RequestId,
        sectors: u64,
        result: IoResult,
        destagers: &Destagers,
    ) {
        let pace = destagers[disk].pace(sectors, &self.view());
        let at = self.queue.pace(disk, self.cx.now, pace);
        if at <= self.cx.now {
            self.finish(disk, id, result);
        } else {
            self.statistics.throttled += 1;
            self.queue.delay(at, disk, id, result);
        }
    }
}
