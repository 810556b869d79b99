//! Writes, discards and zeroes: appended to the log, always at the head, even when they overwrite (section 3.5.1). Large
//! writes bypass the log if that is safe (rule 7).

use super::core::Core;

use super::data_disk::Bypass;
use super::env::{DATA, Op};
use super::format::{Entry, Kind};
use super::queue::{Change, DurableWaiter, PendingWrite};
use super::table::{Line, Place};
use super::{Canary, Promise};
use crate::layer::{Cx, Durability, IoResult, RequestId};
use crate::{Buf, Extent, LINE_BYTES, Nanos, SECTOR_BYTES};

/// Maximum sectors of one entry without payload.
const RANGE_SECTORS_MAX: u64 = 1 << 31;
impl Core {
    pub fn on_modify(&mut self, pending: PendingWrite, cx: &mut Cx) {
        if self.queue.push(pending) {
            self.retry_pending(cx);
        }
    }

    /// Handles the requests at the front of the queue, until one has to wait for space.
    pub fn retry_pending(&mut self, cx: &mut Cx) {
        while let Some(mut pending) = self.queue.pop() {
            let through = self.log.has_failed();
            if through && !self.may_write_through(&pending) || !through && !self.try_log(&mut pending, cx) {
                self.queue.put_back(pending);
                return;
            }
            self.queue.got_space();
            if through {
                self.bypass(pending, 0, cx);
            } else if pending.done < pending.extent.sectors {
                let seq = if self.invalidate(pending.extent, cx) { self.data.last_invalidate() } else { 0 };
                self.bypass(pending, seq, cx);
            } else {
                self.logged(pending, cx);
            }
        }
    }

    /// Puts a request into the log. True when all of it is in, or when it may bypass the log (none of it is in then); false if it has to
    /// wait.
    fn try_log(&mut self, pending: &mut PendingWrite, cx: &mut Cx) -> bool {
        if pending.done == 0 && self.log.chain().is_none() && self.may_bypass(pending) {
            return self.room_to_invalidate(pending, cx);
        }
        match pending.change {
            Change::Data => self.append_data(pending, cx),
            Change::Range(kind) => self.append_range(pending, kind, cx),
        }
    }

    /// Rule 7: nothing of the range is dirty in the log or bypassing it. The range also covers no line of the fingerprint: after a crash,
    /// records explain all changes there.
    fn may_bypass(&self, pending: &PendingWrite) -> bool {
        let extent = pending.extent;
        let rest = pending.durability == Durability::Volatile
            && !self.is_always()
            && self.data.continues_stream(extent.start)
            && !self.index.is_visible_in(extent);
        if pending.change != Change::Data || !(self.is_large(extent) || rest) {
            return false;
        }
        self.config.promise != Promise::Ordered
            && !self.config.ordered_destage
            && !self.data.fingerprint.covers(extent)
            // A crash could take the record that invalidates the copy, and leave the copy and the write.
            && !self.index.is_kept_in(extent)
            && (self.log_is_silent_on(extent) || self.config.canary.is(Canary::BlindBypass))
    }

    const fn is_large(&self, extent: Extent) -> bool {
        self.config.bypass_bytes > 0 && extent.sectors * SECTOR_BYTES >= self.config.bypass_bytes
    }

    /// True when nothing of the extent is dirty in the log or being destaged, and recovery would not destage anything of it again.
    fn log_is_silent_on(&self, extent: Extent) -> bool {
        self.index.is_silent_on(extent)
            && !self.data.is_bypassed(extent)
            && !self.destager.is_filling(extent, &self.config)
    }

    fn room_to_invalidate(&mut self, pending: &PendingWrite, cx: &mut Cx) -> bool {
        !self.index.is_visible_in(pending.extent) || self.env(cx).make_room(1, 0)
    }

    /// Records that the data disk has the newest copy; true if a record must be written first.
    fn invalidate(&mut self, extent: Extent, cx: &mut Cx) -> bool {
        if self.config.canary.is(Canary::BlindBypass) {
            return false;
        }
        if !self.index.is_visible_in(extent) {
            if !self.config.canary.is(Canary::StaleClean) {
                self.index.forget(extent, 0);
            }
            return self.data.last_invalidate() > self.log.durable_seq();
        }
        self.log.announce(1, 0);
        let seq = self.env(cx).open_record();
        self.log.note(Entry { kind: Kind::Invalidate, extent, crc: 0 });
        self.index.forget(extent, seq);
        self.data.invalidated(seq);
        self.statistics.invalidates += 1;
        true
    }

    fn bypass(&mut self, pending: PendingWrite, seq: u64, cx: &mut Cx) {
        let through = pending.durability == Durability::Durable || self.is_always();
        // Over a block that a dead log has lost: if this write were lost as well, older data would come back unnoticed.
        let extent = pending.extent;
        let over_lost = self.log.has_failed() && self.index.is_dirty_in(extent);
        let durability = if through || over_lost { Durability::Durable } else { Durability::Volatile };
        let bypass = Bypass {
            id: pending.id,
            extent,
            seq: match through {
                true => seq,
                false if self.answers_when_written() => self.log.awaited(seq),
                false => 0,
            },
            durable: durability == Durability::Durable,
        };
        self.queue.touch(cx.now);
        self.keep.overwritten(extent, &self.config);
        let key = self.data.send_bypass(bypass, self.is_large(extent));
        self.statistics.bypasses += 1;
        self.statistics.bypassed_sectors += pending.extent.sectors;
        self.submit(DATA, Op::Bypass(key), pending.into_io(durability), cx);
    }

    pub fn on_bypass(&mut self, key: u64, result: IoResult, cx: &mut Cx) {
        let bypass = self.data.end_bypass(key, result.status.is_ok());
        self.destager.bypass_ended();
        if self.log.has_failed() && result.status.is_ok() {
            // Until now the lost blocks under the write were errors.
            self.index.forget(bypass.extent, 0);
        }
        // Until the record is written, a kill would let an older copy in the log be destaged over this write.
        let (id, seq, written) = (bypass.id, bypass.seq, !bypass.durable);
        let reached = if written { self.log.written_seq() } else { 0 }.max(self.log.durable_seq());
        if result.status.is_ok() && seq > reached {
            self.queue.wait(DurableWaiter { id, seq, written, bypass: 0, result });
        } else {
            self.finish(id, result, cx);
        }
        self.retry_pending(cx);
    }

    /// Appends the rest of a write. A request that fits is one record; a larger one is a chain of records, which
    /// counts only as a whole.
    fn append_data(&mut self, pending: &mut PendingWrite, cx: &mut Cx) -> bool {
        while pending.done < pending.extent.sectors {
            let (pieces, bytes) = (pending.pieces_left(), pending.bytes_left());
            let half = (self.log.ring().count() / 2).max(1);
            if self.env(cx).make_room(pieces, bytes) {
                if !self.log.fits_record(pieces) {
                    self.seal();
                    if self.log.is_longer_than_a_record(pieces) {
                        self.begin_chain();
                    }
                }
                self.append_pieces(pending, pieces, cx);
                self.end_chain();
                return true;
            }
            // As many lines as fit one buffer, in records of their own.
            let lines = self.log.lines_of_a_segment().min(pieces - 1);
            if self.log.fits_a_segment(pieces, bytes) || lines == 0 {
                return false;
            }
            // Once begun, the chain must be able to end: until then the copies that it replaces pin the tail.
            let segments = (pieces.div_ceil(lines) as u64 + 1).min(half);
            if self.log.chain().is_none() && self.log.ring().free() < segments {
                self.queue.want_space();
                return false;
            }
            if !self.env(cx).make_room(lines, lines * LINE_BYTES as usize) {
                return false;
            }
            self.begin_chain();
            self.append_pieces(pending, lines, cx);
            if self.log.chain().is_some_and(|chain| self.log.ring().head() - chain.segment + 1 >= half) {
                // Larger than half the log: no crash can take it as a whole, as the log is emptied while it is written.
                self.end_chain();
            }
            self.env(cx).dispatch();
        }
        true
    }

    fn begin_chain(&mut self) {
        if self.log.chain().is_none() {
            self.seal();
            self.log.begin_chain();
        }
    }

    fn end_chain(&mut self) {
        self.statistics.chains += u64::from(self.log.end_chain());
    }

    fn append_pieces(&mut self, pending: &mut PendingWrite, pieces: usize, cx: &mut Cx) {
        self.log.announce(pieces, pending.bytes_left().min(pieces * LINE_BYTES as usize));
        for _ in 0..pieces {
            let extent = pending.next_piece();
            let at = (pending.done * SECTOR_BYTES) as usize;
            // Prefetches the line's slot while the data is copied.
            self.index.table().touch(std::iter::once(Line::of(extent.start)));
            let (place, crc) = match self.overwrite(extent, &pending.buf, at) {
                Some(written) => written,
                None => {
                    self.env(cx).open_record();
                    self.log.append(Kind::Data, extent, &pending.buf, at)
                }
            };
            self.index.insert(extent, Place(place), crc, self.log.last_seq());
            self.keep.overwritten(extent, &self.config);
            pending.done += extent.sectors;
        }
    }

    /// Compaction (which section 3.5.1 of the paper leaves undone): data that is overwritten before its record is closed takes no more
    /// space. Only within a record: anything else would change the order of updates.
    fn overwrite(&mut self, extent: Extent, buf: &Buf, at: usize) -> Option<(u64, u32)> {
        if !self.config.compact {
            return None;
        }
        let written = self.log.overwrite(extent, buf, at)?;
        self.statistics.compacted_sectors += extent.sectors;
        Some(written)
    }

    fn append_range(&mut self, pending: &mut PendingWrite, kind: Kind, cx: &mut Cx) -> bool {
        while pending.done < pending.extent.sectors {
            let sectors = (pending.extent.sectors - pending.done).min(RANGE_SECTORS_MAX);
            let mut extent = Extent::new(pending.extent.start + pending.done, sectors);
            if self.config.promise != Promise::Ordered {
                extent = self.index.table().step(extent);
            }
            if !self.index.has_room_for_range() {
                self.queue.want_space();
                return false;
            }
            if !self.env(cx).make_room(1, 0) {
                return false;
            }
            self.log.announce(1, 0);
            let seq = self.env(cx).open_record();
            let segment = self.log.note(Entry { kind, extent, crc: 0 });
            self.index.insert_range(extent, kind, seq, segment);
            self.keep.overwritten(extent, &self.config);
            pending.done += extent.sectors;
            if pending.done < pending.extent.sectors && extent.sectors < sectors {
                // The rest of a large range is done in another event.
                self.queue.yield_turn();
                return false;
            }
        }
        true
    }

    /// True if a client may outlive the server, and relies on every answer: what memory does not keep has to be written.
    fn answers_when_written(&self) -> bool {
        self.config.outlives_server
            && self.config.promise != Promise::Always
            && !self.config.canary.is(Canary::EarlyAnswer)
    }

    /// Answers a request that is in the log: now, a little later, or when it is durable.
    fn logged(&mut self, pending: PendingWrite, cx: &mut Cx) {
        self.data.written_again(pending.extent);
        let seq = self.log.last_seq();
        self.statistics.logged_sectors +=
            if pending.change == Change::Data { pending.extent.sectors } else { 0 };
        let result = IoResult::ok(pending.buf);
        let durable = pending.durability == Durability::Durable && self.config.promise != Promise::Ordered;
        if durable || self.is_always() {
            self.wait_for(pending.id, seq, 0, result);
            self.end_flush_epoch();
            return;
        }
        if pending.durability == Durability::Durable {
            // Ordered destage keeps the order of flushes although no request waits.
            self.end_flush_epoch();
        }
        let seq = self.log.awaited(seq);
        if self.answers_when_written() && seq > self.log.written_seq() {
            return self.queue.wait(DurableWaiter { id: pending.id, seq, written: true, bypass: 0, result });
        }
        self.answer_paced(pending.id, pending.extent.sectors, result, cx);
    }

    /// Answers a write that is not durable yet.
    pub fn answer_paced(&mut self, id: RequestId, sectors: u64, result: IoResult, cx: &mut Cx) {
        let delay = self.pace(cx.now, sectors);
        if delay <= cx.now {
            self.finish(id, result, cx);
        } else {
            self.statistics.throttled += 1;
            self.queue.delay(delay, id, result);
        }
    }

    /// Returns when a write may be answered. From the high mark on, answers are delayed, more and more: clients slow down to the speed of
    /// destaging before the log is full, and the free space lasts until the tail moves.
    fn pace(&mut self, now: Nanos, sectors: u64) -> Nanos {
        let high = f64::from(self.config.high_mark.min(99)) / 100.0;
        let over = (self.log.ring().utilisation() - high) / (1.0 - high);
        if over <= 0.0 {
            return self.queue.pace(now, None);
        }
        let nanos =
            self.destager.nanos_per_sector() * sectors as f64 * self.destager.slowdown().max(over * 1.1);
        self.queue.pace(now, Some(nanos as u64))
    }
}
