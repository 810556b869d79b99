//! The head of the log: room for records, the open record, and the write of the filling buffer.

use super::Promise;
use super::carry_forward::RESERVE;
use super::env::{Env, LOG, Op, View};
use super::queue::DurableWaiter;

/// Number of segments that the head should be able to move to immediately; one request takes no more.
pub const SEGMENTS_READY: u64 = 3;

impl View<'_> {
    /// The oldest record that is not destaged yet; the next one to be written where all are.
    pub fn oldest_live_seq(&self) -> u64 {
        let (log, ring) = (self.log, self.log.ring());
        let head = ring.index(ring.head());
        let is_empty_at_head = ring.tail() == ring.head() && self.index.is_clean(head, log.safe_seq());
        let destaged = self.destaged_seq.is_none_or(|seq| seq == log.next_seq());
        if log.buffers().is_empty() && destaged && is_empty_at_head {
            log.next_seq()
        } else {
            ring.at(ring.index(ring.tail())).first_seq
        }
    }

    /// Records before this one need not be read by recovery.
    pub fn live_seq(&self) -> u64 {
        self.oldest_live_seq().max(self.destaged_seq.unwrap_or(0))
    }

    /// Segments that clients leave for carrying blocks forward: none for one disk. A request over several segments always has room.
    pub fn reserve(&self) -> u64 {
        let count = self.log.ring().count();
        match self.data.space().count() {
            1 => 0,
            _ => RESERVE.min(count - 1 - (count / 2).max(1)),
        }
    }

    /// Segments that the head can still move to for clients.
    pub fn free_segments(&self) -> u64 {
        self.log.ring().free().saturating_sub(self.reserve())
    }

    /// With no more free segments, a superblock has to free some.
    pub fn few_segments(&self) -> u64 {
        (self.log.ring().count() / 8).max(1)
    }
}

impl Env<'_> {
    /// Ends the open record.
    pub fn seal(&mut self) {
        let live_seq = self.view().live_seq();
        self.log.seal(live_seq);
    }

    /// Makes sure that a record with space for an entry is open in the filling buffer; returns its number.
    pub fn open_record(&mut self) -> u64 {
        if self.log.record_is_full() {
            self.seal();
        }
        let live_seq = self.view().live_seq();
        self.log.open_record(self.cx.now, live_seq)
    }

    /// Begins a chain with the next record, if none has begun.
    pub fn begin_chain(&mut self) {
        if self.log.chain().is_none() {
            self.seal();
            self.log.begin_chain();
        }
    }

    pub fn end_chain(&mut self) {
        self.statistics.chains += u64::from(self.log.end_chain());
    }

    /// Writes the filling buffer, whatever is in it.
    pub fn dispatch(&mut self) {
        self.seal();
        let waits = |first: u64, waiter: &DurableWaiter| waiter.waits_after(first - 1);
        let waiting = |first| self.queue.waiters().iter().filter(|waiter| waits(first, waiter)).count();
        if let Some((first, io)) = self.log.send(self.cx.now, waiting, self.statistics) {
            self.queue.gathering.sent(self.cx.now);
            self.submit(LOG, Op::LogWrite(first), io);
        }
    }

    /// Makes sure that the filling buffer has space for a record of this size.
    pub fn make_room(&mut self, pieces: usize, bytes: usize) -> bool {
        if !self.index.table().has_room(pieces) {
            match self.log.ring().remembered() {
                0 => self.queue.want_space(),
                _ => self.index.ask_for_room(),
            }
            return false;
        }
        if self.config.promise == Promise::Ordered && self.log.is_overdue(self.cx.now) {
            return false;
        }
        if self.log.fits(pieces, bytes) {
            return true;
        }
        if !self.log.fits_a_segment(pieces, bytes) {
            return false;
        }
        let high = f64::from(self.config.high_mark) / 100.0;
        if self.log.buffers().filling.is_some() {
            self.finish_buffer();
        } else if self.log.ring().utilisation() < high && self.view().free_segments() > 0 {
            self.log.turn_ahead(self.cx.now, pieces, bytes, self.statistics);
        }
        if self.open_buffer(pieces, bytes) && !self.log.fits(pieces, bytes) {
            self.finish_buffer();
            return self.open_buffer(pieces, bytes);
        }
        self.log.buffers().filling.is_some()
    }

    /// Makes room as [`Env::make_room`] does for a copy of a block, but leaves a buffer and some segments for clients.
    pub fn make_room_for_copy(&mut self, bytes: usize) -> bool {
        self.make_room_beside_clients(bytes, 2, self.view().few_segments())
    }

    /// Makes room for one entry if so many buffers, and more than so many segments, are free; if zero, without any that is free.
    pub fn make_room_beside_clients(&mut self, bytes: usize, buffers: usize, segments: u64) -> bool {
        if self.log.fits_one(bytes) {
            return true;
        }
        let are_few = segments > 0 && self.log.ring().free() <= segments;
        if self.log.buffers().free() < buffers || are_few {
            return false;
        }
        if self.log.buffers().filling.is_none()
            && self.log.open_buffer(self.cx.now, 1, bytes, 0, self.statistics)
            && self.log.fits_one(bytes)
        {
            return true;
        }
        self.finish_buffer();
        self.log.open_buffer(self.cx.now, 1, bytes, 0, self.statistics) && self.log.fits_one(bytes)
    }

    /// Writes the filling buffer, whose stretch of the log is too short for the next record.
    fn finish_buffer(&mut self) {
        if self.log.wants_empty_record() {
            self.open_record();
        }
        self.dispatch();
    }

    fn open_buffer(&mut self, pieces: usize, bytes: usize) -> bool {
        let reserve = self.view().reserve();
        let is_open = self.log.open_buffer(self.cx.now, pieces, bytes, reserve, self.statistics);
        // The next segment may only need its clean copies forgotten.
        let comes = self.log.ring().ready() == 0 && self.log.ring().remembered() > 0;
        if !is_open && !comes && self.log.buffers().free() > 0 {
            self.queue.want_space();
        }
        is_open
    }
}
