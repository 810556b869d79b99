//! Durability: writing buffers to the log, flushing it, answering those who wait; superblocks; the clean stop.
//!
//! Flushes are group commits: while one write of the log is on its way, everything that comes in goes into the next one,
//! so concurrent flushes share a record.

use super::core::{Core, DATA, LOG, Mode, Op, Stop};
use super::destager::Pressure;
use super::format::{Entry, Kind, SUPERBLOCK_SECTORS, State};
use super::ordered::Cursor;
use super::read::masked_runs;
use super::{Promise, buffers};
use crate::layer::{Durability, Io, IoResult, Outbox, Report, RequestId};
use crate::{Buf, Extent, IoError, Nanos, SECTOR_BYTES};
use zerocopy::IntoBytes;

/// When nothing was written to the log for so long, a superblock says how far it is durable. Until then the newest records have no
/// later one that calls them durable, and one that rots looks as if a power cut had torn it.
pub const REST: Nanos = Nanos::from_secs(1);

/// Somebody who is answered once a record is durable, and the data disk was flushed after so many writes around the log.
pub struct Waiter {
    pub id: RequestId,
    pub seq: u64,
    pub around: u64,
    pub result: IoResult,
}

/// A superblock on its way: afterwards, segments before `tail` may be written again.
pub struct Release {
    pub tail: u64,
}

impl Core {
    pub fn wait_for(&mut self, id: RequestId, seq: u64, around: u64, result: IoResult) {
        self.waiters.push(Waiter { id, seq, around, result });
    }

    /// The newest record that holds anything, sealed or not.
    fn last_seq(&self) -> u64 {
        self.next_seq - 1
    }

    pub fn on_flush(&mut self, now: Nanos, id: RequestId, out: &mut Outbox) {
        let ok = IoResult::ok(Buf::none());
        self.streams.flush();
        if self.config.promise == Promise::Ordered && self.mode == Mode::Serving {
            self.end_flush_epoch(now);
            return self.finish(now, id, ok, out);
        }
        if let Some(error) = self.data_flush.error() {
            return self.finish(now, id, IoResult::err(Buf::none(), error), out);
        }
        self.end_flush_epoch(now);
        let around = self.data_flush.completed;
        let around = if self.data_flush.is_owed() { around } else { 0 };
        if self.last_seq() <= self.durable_seq && around == 0 {
            return self.finish(now, id, ok, out);
        }
        self.wait_for(id, self.last_seq(), around, ok);
    }

    /// What comes now is of a later flush epoch (for ordered destage).
    pub fn end_flush_epoch(&mut self, now: Nanos) {
        if self.config.ordered_destage {
            self.seal(now);
            self.flush_epoch += 1;
        }
    }

    /// `ordered`: the oldest write that a crash would take is as old as is allowed.
    pub fn is_overdue(&self, now: Nanos) -> bool {
        self.oldest_volatile().is_some_and(|since| now >= since.saturating_add(self.config.delay_max))
    }

    fn oldest_volatile(&self) -> Option<Nanos> {
        self.buffers.live.front().or(self.buffers.filling.as_ref()).filter(|b| !b.is_empty()).map(|b| b.since)
    }

    /// When the filling buffer is written although nobody waits: half of what may be lost is spent.
    fn write_at(&self) -> Option<Nanos> {
        let filling = self.buffers.filling.as_ref().filter(|filling| !filling.is_empty())?;
        Some(filling.since.saturating_add(Nanos(self.config.delay_max.0 / 2)))
    }

    pub fn commit_deadline(&self) -> Option<Nanos> {
        if self.mode != Mode::Serving {
            return None;
        }
        let flushes = !self.log_flushing && self.written_seq > self.durable_seq;
        let flush = self.log_flush_at.filter(|_| flushes);
        [self.write_at().filter(|_| !self.is_writing()), flush, self.mark_at()].into_iter().flatten().min()
    }

    /// When a superblock says how far the log is durable, because it is at rest and no superblock says so yet.
    fn mark_at(&self) -> Option<Nanos> {
        let filling = self.buffers.filling.as_ref().is_some_and(|filling| !filling.is_empty());
        let rests = !filling && self.buffers.live.is_empty() && self.release.is_none();
        let unmarked = self.safe_seq() + 1 > self.superblock.durable_seq;
        let told = self.config.canary.is_some_and(super::Canary::is_of_rot);
        (rests && unmarked && !told && self.stop == Stop::No).then(|| self.log_written.saturating_add(REST))
    }

    /// Starts whatever write or flush is due; runs after every event.
    pub fn commit_step(&mut self, now: Nanos, out: &mut Outbox) {
        self.flush_data_for_waiters(out);
        if self.mode != Mode::Serving {
            return;
        }
        let filling = self.buffers.filling.as_ref().is_some_and(|filling| !filling.is_empty());
        if filling {
            let waited = self.waiters.iter().any(|waiter| waiter.seq > self.sent_seq());
            let writing = self.is_writing();
            let due = self.write_at().is_some_and(|at| at <= now);
            let urged = self.draining || self.stop != Stop::No || due || (self.destager.wants_durable());
            if (waited || urged) && !writing {
                self.dispatch(now, out);
            }
        }
        self.maybe_flush_log(now, out);
        self.maybe_release(now, out);
    }

    pub fn is_writing(&self) -> bool {
        self.buffers.live.iter().any(|buffer| buffer.state == buffers::State::Writing)
    }

    /// The newest record that is on its way to the log.
    fn sent_seq(&self) -> u64 {
        self.buffers.live.back().map_or(self.written_seq, |buffer| buffer.last_seq)
    }

    /// Writes the filling buffer, whatever is in it.
    pub fn dispatch(&mut self, now: Nanos, out: &mut Outbox) {
        self.seal(now);
        let Some(mut filling) = self.buffers.filling.take() else { return };
        if filling.is_empty() {
            return self.buffers.give_back(filling);
        }
        let (at, image) = filling.image();
        let first = filling.first_seq;
        filling.state = buffers::State::Writing;
        let alone = self.durable_seq + 1 == first;
        let waiting = self.waiters.iter().filter(|waiter| waiter.seq >= first).count();
        let waited = waiting > 0;
        self.statistics.shared_commits += u64::from(waiting > 1);
        filling.through = alone && waited && self.log.volatile_cache;
        let durability = if filling.through { Durability::Durable } else { Durability::Volatile };
        self.head_sector = filling.end();
        self.rotation.sending(now);
        self.log_written = now;
        self.statistics.log_writes += 1;
        self.statistics.log_bytes += image.len() as u64;
        self.buffers.live.push_back(filling);
        self.submit(LOG, Op::LogWrite(first), Io::Write { at, buf: image, durability }, out);
    }

    pub fn on_log_written(&mut self, now: Nanos, first: u64, result: IoResult, out: &mut Outbox) {
        drop(result.buf);
        if let Err(error) = result.status {
            return self.log_failed(now, error, out);
        }
        self.rotation.written(now);
        let mut through = None;
        for buffer in &mut self.buffers.live {
            if buffer.first_seq == first {
                buffer.state = buffers::State::Written;
                through = buffer.through.then_some(buffer.last_seq);
            }
        }
        let written = self.buffers.live.iter().take_while(|b| b.state == buffers::State::Written).last();
        self.written_seq = written.map_or(self.written_seq, |buffer| buffer.last_seq.max(self.written_seq));
        if !self.log.volatile_cache {
            self.made_durable(now, self.written_seq, out);
        } else if let Some(last) = through.filter(|_| self.durable_seq + 1 == first) {
            // Only this one: others may be written, but not with FUA.
            self.made_durable(now, last, out);
        } else if self.log_flush_at.is_none() {
            self.log_flush_at = Some(now.saturating_add(Nanos(self.config.delay_max.0 / 4)));
        }
    }

    fn maybe_flush_log(&mut self, now: Nanos, out: &mut Outbox) {
        if self.log_flushing || self.written_seq <= self.durable_seq {
            return;
        }
        let waited = self.waiters.iter().any(|w| self.durable_seq < w.seq && w.seq <= self.written_seq);
        let short = self.buffers.free() <= self.buffers.count() / 2;
        let due = self.log_flush_at.is_some_and(|at| at <= now);
        if waited || short || due || self.draining || self.stop != Stop::No || self.destager.wants_durable() {
            self.log_flushing = true;
            self.statistics.log_flushes += 1;
            self.submit(LOG, Op::LogFlush(self.written_seq), Io::Flush, out);
        }
    }

    pub fn on_log_flushed(&mut self, now: Nanos, seq: u64, result: IoResult, out: &mut Outbox) {
        self.log_flushing = false;
        match result.status {
            Ok(()) if self.mode == Mode::Serving => self.made_durable(now, seq, out),
            Ok(()) => {}
            Err(error) => self.log_failed(now, error, out),
        }
    }

    fn made_durable(&mut self, now: Nanos, seq: u64, out: &mut Outbox) {
        self.durable_seq = self.durable_seq.max(seq);
        self.log_flush_at = None;
        if self.written_seq > self.durable_seq {
            self.log_flush_at = Some(now.saturating_add(Nanos(self.config.delay_max.0 / 4)));
        }
        while self.chains.front().is_some_and(|chain| chain.last <= self.durable_seq) {
            self.chains.pop_front();
        }
        self.buffers.release(self.durable_seq);
        self.answer_waiters(now, out);
        self.advance_tail();
        self.retry_pending(now, out);
    }

    /// Answers everybody for whom enough is durable.
    pub fn answer_waiters(&mut self, now: Nanos, out: &mut Outbox) {
        let mut index = 0;
        while index < self.waiters.len() {
            let waiter = &self.waiters[index];
            let logged = waiter.seq <= self.durable_seq;
            if logged && waiter.around <= self.data_flush.flushed {
                let waiter = self.waiters.remove(index);
                self.finish(now, waiter.id, waiter.result, out);
            } else {
                index += 1;
            }
        }
    }

    fn flush_data_for_waiters(&mut self, out: &mut Outbox) {
        let flush = &self.data_flush;
        if flush.is_flying() || !self.waiters.iter().any(|waiter| waiter.around > flush.flushed) {
            return;
        }
        self.data_flush.begin();
        self.submit(DATA, Op::DataFlush, Io::Flush, out);
    }

    pub fn on_data_flushed(&mut self, now: Nanos, result: IoResult, out: &mut Outbox) {
        if self.stop == Stop::Flushing {
            self.stop = Stop::Asked;
            self.destager.kept.flushed(result.status.is_ok());
        }
        let flushed = self.data_flush.flushed;
        self.data_flush.landed(result.status);
        if let Err(error) = result.status {
            // What a batch has written by now may be gone with it, and the next flush succeeds all the same.
            self.destager.spoil();
            self.refuse_waiters(now, flushed, error, out);
            out.report(Report::Notice);
        }
        self.answer_waiters(now, out);
    }

    /// A flush for destaging covers what went around the log, too: where it fails, that may be gone, although nobody had asked
    /// for it to be flushed yet. (What was destaged is still in the log.)
    pub fn on_batch_flushed(&mut self, now: Nanos, result: &IoResult, out: &mut Outbox) {
        let flushed = self.data_flush.flushed;
        self.data_flush.batch_landed(result.status, self.destager.is_spoiled());
        if let Err(error) = result.status {
            self.refuse_waiters(now, flushed, error, out);
            out.report(Report::Notice);
        }
    }

    /// Rule 6, for what went around the log: after a failed flush it counts as unwritten, and only the client can write it again.
    fn refuse_waiters(&mut self, now: Nanos, flushed: u64, error: IoError, out: &mut Outbox) {
        let mut kept = Vec::new();
        for waiter in std::mem::take(&mut self.waiters) {
            if waiter.around > flushed {
                let result = IoResult::err(waiter.result.buf, error);
                self.finish(now, waiter.id, result, out);
            } else {
                kept.push(waiter);
            }
        }
        self.waiters = kept;
    }

    /// Moves the tail over what nobody needs.
    pub fn advance_tail(&mut self) {
        let safe = self.safe_seq();
        self.skip_clean(safe);
        if self.config.canary == Some(super::Canary::ReclaimOutOfOrder) {
            self.advance_tail_out_of_order(safe);
        }
        let careless = self.config.canary == Some(super::Canary::ReuseInFlight);
        let ended = if careless { u64::MAX } else { safe };
        self.ring.advance_tail(|segment| self.index.is_clean(segment, safe), ended, self.destager.hold());
    }

    /// Moves the tail as far as any clean segment lies, also over dirty ones: a planted bug (rule 1 broken).
    fn advance_tail_out_of_order(&mut self, safe: u64) {
        let mut dirty_or_clean = self.ring.tail()..self.ring.head();
        let clean = dirty_or_clean.rfind(|number| self.index.is_clean(self.ring.index(*number), safe));
        if let Some(number) = clean {
            for skipped in self.ring.tail()..number {
                self.index.skip(self.ring.index(skipped));
            }
            self.ring.skip_to(number + 1);
        }
    }

    /// Ordered destage need not read what nobody needs any more.
    fn skip_clean(&mut self, safe: u64) {
        let empty = self.buffers.filling.is_none() && self.buffers.live.is_empty() && safe == self.last_seq();
        if empty && !self.index.is_dirty() && self.destager.is_idle() {
            let (seq, segment) = (self.next_seq, self.ring.head());
            let cursor = Cursor { seq, segment, sector: self.head_sector, epoch: self.superblock.epoch };
            if let Some(ordered) = &mut self.destager.ordered {
                ordered.skip_to(cursor);
            }
        }
    }

    /// Writes a superblock when segments run short, when the log has become empty, or when it has come to rest.
    fn maybe_release(&mut self, now: Nanos, out: &mut Outbox) {
        if self.release.is_some() || self.stop == Stop::Marking || self.stop == Stop::Done {
            return;
        }
        let gained = self.ring.tail() - self.ring.kept();
        let table_full = !self.index.table().has_room(self.index.table().lines_max() / 8);
        let pressed = self.destager.pressure == Pressure::Full;
        let short = self.ring.free() <= (self.ring.count() / 8).max(1) || table_full || pressed;
        let emptied = !self.index.is_dirty() && self.oldest_live_seq() == self.next_seq;
        let stale = self.superblock.tail_seq != self.next_seq;
        let rested = self.mark_at().is_some_and(|at| at <= now);
        let mark = std::mem::take(&mut self.destager.wants_mark) || rested;
        if mark || gained > 0 && short || emptied && stale && !self.is_pinned_before_tail() {
            self.write_superblock(State::Active, out);
        }
    }

    fn is_pinned_before_tail(&self) -> bool {
        self.ring.is_pinned(self.ring.kept()..self.ring.tail())
    }

    fn write_superblock(&mut self, state: State, out: &mut Outbox) {
        let tail = self.ring.tail();
        let mut next = self.superblock.clone();
        next.state = state;
        next.generation += 1;
        next.tail_seq = self.oldest_live_seq();
        let index = self.ring.index(tail);
        next.tail_sector = match next.tail_seq == self.next_seq {
            true => self.wrapped(self.head_sector),
            false => self.ring.at(index).first_sector.unwrap_or(self.superblock.segment_start(index)),
        };
        next.live_seq = self.destaged_seq().max(next.tail_seq);
        next.durable_seq = (self.safe_seq() + 1).max(next.live_seq);
        next.flush_epoch = self.flush_epoch;
        next.fingerprint = self.destager.kept.fingerprint();
        let at = SUPERBLOCK_SECTORS[(next.generation % 2) as usize];
        let buf = Buf::copy_of(next.encode().as_bytes());
        self.superblock = next;
        self.release = Some(Release { tail });
        self.statistics.superblocks += 1;
        self.submit(LOG, Op::Superblock, Io::Write { at, buf, durability: Durability::Durable }, out);
    }

    /// Where the walk begins to look: a place inside the ring.
    fn wrapped(&self, sector: u64) -> u64 {
        let head = self.ring.index(self.ring.head());
        let end = self.superblock.segment_start(head) + self.superblock.segment_sectors();
        if sector + self.superblock.log_block_sectors() <= end {
            return sector;
        }
        self.superblock.segment_start(self.ring.index(self.ring.head() + 1))
    }

    pub fn on_superblock(&mut self, now: Nanos, result: IoResult, out: &mut Outbox) {
        let release = self.release.take().expect("a superblock was in flight");
        if let Err(error) = result.status {
            if self.stop == Stop::Marking {
                self.stop = Stop::Done;
                out.report(Report::Failed(format!("the log's superblock could not be written: {error}")));
            }
            return self.log_failed(now, error, out);
        }
        if self.stop == Stop::Marking {
            self.stop = Stop::Done;
            return out.report(Report::Stopped);
        }
        let freed = self.ring.kept()..release.tail;
        if !freed.is_empty() {
            let segments: Vec<u32> = freed.map(|number| self.ring.index(number)).collect();
            self.index.release(&segments);
            self.ring.keep_from(release.tail);
        }
        self.retry_pending(now, out);
    }

    /// A part of the fingerprint was read before the clean stop; what could not be read stays unknown.
    pub fn on_fingerprint(&mut self, extent: Extent, result: &IoResult) {
        if result.status.is_ok() {
            self.destager.kept.learn(extent, &result.buf);
        }
    }

    pub fn stop_asked(&mut self, now: Nanos, out: &mut Outbox) {
        if self.stop != Stop::No {
            return;
        }
        self.stop = Stop::Asked;
        self.draining = false;
        // A request that is split and half in the log never happened; neither did those behind it.
        for pending in std::mem::take(&mut self.pending) {
            let error = IoError::new(crate::layer::ErrorKind::Shutdown);
            self.finish(now, pending.id, IoResult::err(pending.into_buf(), error), out);
        }
        while let Some(((_, _), (id, result))) = self.delayed.pop_first() {
            out.reply(id, result);
        }
    }

    /// Proceeds with a stop once nothing is in flight.
    pub fn stop_step(&mut self, now: Nanos, out: &mut Outbox) {
        if self.stop != Stop::Asked || !self.arounds.is_empty() || !self.readings.is_empty() {
            return;
        }
        if matches!(self.mode, Mode::LogFailed { .. }) {
            return self.stop_without_log(out);
        }
        let settled =
            self.buffers.filling.is_none() && self.buffers.live.is_empty() && self.waiters.is_empty();
        if !settled || self.release.is_some() || !self.ops.is_empty() {
            return;
        }
        let good = !self.data_flush.last_failed();
        if self.data_flush.is_owed() || self.destager.kept.needs_flush() && good {
            self.stop = Stop::Flushing;
            self.data_flush.begin();
            return self.submit(DATA, Op::DataFlush, Io::Flush, out);
        }
        // After a failed flush nobody knows what a power cut leaves.
        self.destager.kept.flushed(false);
        if good && let Some(extent) = self.destager.kept.next_unknown() {
            let buf = Buf::zeroed((extent.sectors * SECTOR_BYTES) as usize);
            return self.submit(DATA, Op::Fingerprint(extent), Io::Read { at: extent.start, buf }, out);
        }
        if !self.clean_is_recorded {
            self.clean_is_recorded = true;
            self.record_clean(now, out);
            if self.buffers.filling.is_some() || !self.buffers.live.is_empty() {
                return self.commit_step(now, out);
            }
        }
        self.stop = Stop::Marking;
        self.write_superblock(State::Stopped, out);
    }

    /// Rule 12: the tail is as fine as a segment, and what lies after it counts as dirty at the next start. What of it is clean
    /// is said to be on the data disk, as far as the log has room. (Ordered destage has its own mark.)
    fn record_clean(&mut self, now: Nanos, out: &mut Outbox) {
        if self.config.ordered_destage {
            return;
        }
        let mut clean: Vec<Extent> = Vec::new();
        let live = |segment: u32| self.ring.number(segment) >= self.ring.tail();
        self.index.table().scan(|line, piece| {
            if !piece.dirty && live(self.index.segment_of(piece.place)) {
                masked_runs(line, piece.mask, |run| clean.push(run));
            }
        });
        let ranges = self.index.destaged_ranges().filter(|(segment, _)| live(*segment));
        clean.extend(ranges.map(|(_, extent)| extent).filter(|extent| !self.index.is_dirty_in(*extent)));
        clean.sort_unstable();
        clean.dedup_by(|next, last| {
            let joins = next.start <= last.end();
            if joins {
                last.sectors = last.sectors.max(next.end() - last.start);
            }
            joins
        });
        for extent in clean {
            if !self.make_room(now, 1, 0, out) {
                return;
            }
            self.open_record(now, out);
            let filling = self.buffers.filling.as_mut().expect("there is room");
            filling.note(Entry { kind: Kind::Invalidate, extent, crc: 0 });
        }
    }
}
