//! Carrying out the requests of clients.

use super::{Action, Waiter, WaitingFor};
use crate::layer::{Durability, ErrorKind, Io, IoError, IoResult, Outbox, Report, Request, Unfinished};
use crate::raid::array::Array;
use crate::raid::lost::unknown;
use crate::raid::members::Flight;
use crate::raid::plan::StripeView;
use crate::raid::stripe::Goal;
use crate::raid::unit::Piece;
use crate::{Buf, LINE_SECTORS, Nanos, SECTOR_BYTES};

impl Array {
    pub fn accept(&mut self, now: Nanos, request: Request, out: &mut Outbox) {
        self.clients.last_activity = now;
        let mut valid = self.geometry.validate(&request.io);
        if valid.is_ok() && self.recorder.broken && request.io.modifies() {
            valid = Err(IoError { kind: ErrorKind::Medium, extent: request.io.extent() });
        }
        if let Err(error) = valid {
            return out.reply(request.id, IoResult::err(request.io.take_buf(), error));
        }
        let action = match &request.io {
            Io::Read { .. } | Io::ReadCopy { .. } | Io::Flush => Action::Read,
            Io::Write { durability, .. }
            | Io::WriteCopy { durability, .. }
            | Io::WriteZeroes { durability, .. } => Action::Write(*durability),
            Io::Discard { .. } => unreachable!("an array offers none"),
        };
        let Some(extent) = request.io.extent() else {
            let key = self.clients.take(request.id, action, Buf::none());
            return self.wait_until_destaged(WaitingFor::Request(key), None);
        };
        let buf = match request.io {
            Io::WriteZeroes { .. } => Buf::blank((extent.sectors * SECTOR_BYTES) as usize),
            io => {
                let buf = io.take_buf();
                self.cache.saw(&buf);
                buf
            }
        };
        let key = self.clients.take(request.id, action, buf);
        let mut at = 0;
        for chunk in self.layout.chunks(extent) {
            let piece = Piece { request: key, chunk, at };
            at += (chunk.sectors * SECTOR_BYTES) as usize;
            self.clients.requests.get_mut(key).left += 1;
            self.begin(piece, out);
        }
        self.piece_done(key, None, out);
    }

    fn begin(&mut self, piece: Piece, out: &mut Outbox) {
        match self.clients.requests.get_mut(piece.request).action {
            Action::Read => self.read(piece, out),
            Action::Write(_) if self.clients.stalled.is_empty() => self.write(piece, out),
            Action::Write(_) => self.clients.stalled.push_back(piece),
        }
    }

    /// Reads a piece from the cache, or from its member, or has it computed.
    pub fn read(&mut self, piece: Piece, out: &mut Outbox) {
        let chunk = piece.chunk;
        if self.losses.has(chunk) {
            return self.read_fails(piece, out);
        }
        if self.cache.has(chunk) {
            self.statistics.read_hits += 1;
            return self.answer_read(piece, out);
        }
        let missing = self.is_missing(piece);
        let locked = self.cache.is_locked(chunk);
        let unit = self.cache.unit(chunk.unit);
        if locked {
            return unit.waiting.push_back(piece);
        }
        if missing {
            self.want_fetch(piece);
            return self.unlocked(chunk.unit, out);
        }
        unit.readers += 1;
        let member = self.layout.member(chunk.unit, chunk.column);
        let row = (chunk.first / LINE_SECTORS) as usize;
        let lba = self.layout.member_lba(chunk.unit, row) + chunk.first % LINE_SECTORS;
        let buf = self.cache.buffer((chunk.sectors * SECTOR_BYTES) as usize);
        self.statistics.read_misses += 1;
        self.clients.reading += 1;
        self.members.submit(member, Flight::Read(piece), Io::Read { at: lba, buf }, out);
    }

    fn read_fails(&mut self, piece: Piece, out: &mut Outbox) {
        self.piece_done(piece.request, Some(IoError::new(ErrorKind::Medium)), out);
    }

    /// The member of a piece has failed, or has a bad sector where the cache lacks something.
    fn is_missing(&self, piece: Piece) -> bool {
        self.cache.lacks(piece.chunk).any(|row| self.is_missing_in(piece, row))
    }

    fn is_missing_in(&self, piece: Piece, row: usize) -> bool {
        let chunk = piece.chunk;
        self.recorder.has_failed_at(self.layout.member(chunk.unit, chunk.column), chunk.unit)
            || self.cache.get(chunk.unit).is_some_and(|unit| unit.bad.contains(&(row, chunk.column)))
    }

    /// A piece waits until the rows have been computed that its member lacks; where it is not known which it is, all of them.
    fn want_fetch(&mut self, piece: Piece) {
        let lacks: Vec<usize> = self.cache.lacks(piece.chunk).collect();
        let mut rows: Vec<usize> =
            lacks.iter().copied().filter(|row| self.is_missing_in(piece, *row)).collect();
        if rows.is_empty() {
            rows = lacks;
        }
        let unit = self.cache.unit(piece.chunk.unit);
        unit.fetch.get_or_insert_default().extend(rows);
        unit.waiting.push_back(piece);
    }

    /// A read of a client has returned from its member.
    pub fn read_returned(&mut self, piece: Piece, result: IoResult, out: &mut Outbox) {
        self.clients.reading -= 1;
        self.cache.unit(piece.chunk.unit).readers -= 1;
        if result.status.is_err() {
            // A write may have made it whole meanwhile.
            if self.cache.has(piece.chunk) {
                self.answer_read(piece, out);
            } else {
                self.want_fetch(piece);
            }
        } else {
            self.cache.keep(piece.chunk, &result.buf);
            let request = self.clients.requests.get_mut(piece.request);
            request.buf.copy_from(piece.at, &result.buf, 0, result.buf.len());
            self.answer_read(piece, out);
        }
        self.unlocked(piece.chunk.unit, out);
    }

    /// Blocks in the cache are newer than those that a member gave.
    fn answer_read(&mut self, piece: Piece, out: &mut Outbox) {
        if self.cache.get(piece.chunk.unit).is_some() {
            let request = self.clients.requests.get_mut(piece.request);
            self.cache.read(piece.chunk, &mut request.buf, piece.at);
        }
        self.losses.is_readable(piece.chunk);
        self.piece_done(piece.request, None, out);
    }

    /// A row that could not be computed is an error for those who wait for it.
    pub fn fail_fetch(&mut self, unit: u64, row: usize, view: &StripeView, out: &mut Outbox) {
        self.statistics.lost_rows += 1;
        self.losses.cannot_read(unit, row, unknown(view, row));
        let waiting = std::mem::take(&mut self.cache.unit(unit).waiting);
        for piece in waiting {
            let reads = self.clients.requests.get_mut(piece.request).action == Action::Read;
            let wants = self.cache.lacks(piece.chunk).any(|lacks| lacks == row);
            if reads && wants && self.is_missing(piece) {
                self.read_fails(piece, out);
            } else {
                self.cache.unit(unit).waiting.push_back(piece);
            }
        }
    }

    /// Takes a write into the cache, if its unit is free and there is room.
    pub fn write(&mut self, piece: Piece, out: &mut Outbox) {
        if !self.absorb(piece, out) {
            self.statistics.stalls += 1;
            self.clients.stalled.push_back(piece);
        }
    }

    /// False where there is no room.
    fn absorb(&mut self, piece: Piece, out: &mut Outbox) -> bool {
        let number = piece.chunk.unit;
        if self.recorder.broken {
            self.piece_done(piece.request, Some(IoError::new(ErrorKind::Medium)), out);
            return true;
        }
        // Lost blocks are settled when their unit is destaged: no write may overtake that.
        let settling = !self.recorder.lost().is_empty();
        let locked = self.cache.is_locked(piece.chunk);
        let unit = self.cache.unit(number);
        if locked || (unit.exclusive && settling) {
            unit.waiting.push_back(piece);
            return true;
        }
        if !self.cache.hold(piece.chunk) {
            self.cache.release(number);
            return false;
        }
        if !self.losses.overwrite(piece.chunk) {
            self.piece_done(piece.request, Some(IoError::new(ErrorKind::Medium)), out);
            self.cache.release(number);
            return true;
        }
        let request = self.clients.requests.get_mut(piece.request);
        self.cache.write(piece.chunk, &request.buf, piece.at);
        if request.action == Action::Write(Durability::Durable) && request.units.last() != Some(&number) {
            request.units.push(number);
        }
        self.piece_done(piece.request, None, out);
        true
    }

    /// Lets the writes that wait for room go on, in their order.
    pub fn go_on_writing(&mut self, out: &mut Outbox) {
        while let Some(piece) = self.clients.stalled.pop_front() {
            if !self.absorb(piece, out) {
                return self.clients.stalled.push_front(piece);
            }
        }
    }

    /// Lets the pieces that wait for a unit go on, in their order.
    pub fn go_on_with(&mut self, unit: u64, out: &mut Outbox) {
        for piece in std::mem::take(&mut self.cache.unit(unit).waiting) {
            self.begin(piece, out);
        }
    }

    /// Ends a piece of a request. After the last piece the request is answered, or waits until its writes are destaged.
    fn piece_done(&mut self, key: u64, error: Option<IoError>, out: &mut Outbox) {
        let request = self.clients.requests.get_mut(key);
        request.error = request.error.or(error);
        request.left -= 1;
        if request.left > 0 {
            return;
        }
        if !self.config.non_volatile && request.error.is_none() && !request.units.is_empty() {
            request.left = 1;
            let units = std::mem::take(&mut request.units);
            return self.wait_until_destaged(WaitingFor::Request(key), Some(units));
        }
        self.clients.foreground -= 1;
        let request = self.clients.requests.remove(key);
        let status = request.error.map_or(Ok(()), Err);
        out.reply(request.id, IoResult { buf: request.buf, status });
    }

    /// Whoever it is learns when what is dirty now is destaged.
    pub fn wait_until_destaged(&mut self, who: WaitingFor, units: Option<Vec<u64>>) {
        let everything = matches!(who, WaitingFor::Report(_)) || !self.config.non_volatile;
        let stamp = if everything { self.cache.stamp() } else { 0 };
        self.clients.waiters.push(Waiter { who, stamp, units });
    }

    /// Returns a unit that a waiter waits for: the next one in the direction of rising addresses, if it is near, or else the oldest.
    /// Readers that are in the way keep others out from now on.
    pub fn wanted_by_waiters(&mut self) -> Option<u64> {
        let (mut whole, mut close) = (0, Vec::new());
        let mut found = None;
        for waiter in self.clients.waiters.iter() {
            match &waiter.units {
                None => whole = whole.max(waiter.stamp),
                Some(units) if found.is_none() => {
                    let (unit, read) =
                        self.first_behind(self.destaging.look_at(units.iter().copied()), waiter.stamp);
                    found = unit;
                    close.extend(read);
                }
                Some(_) => {}
            }
        }
        let is_behind = |since: Option<(u64, u64)>| since.is_some_and(|(since, _)| since <= whole);
        if found.is_none() && is_behind(self.cache.by_since().next()) {
            let (unit, read) = self.first_behind(self.in_sweep(), whole);
            found = unit;
            close.extend(read);
            if found.is_none() {
                let oldest = self.cache.by_since().take_while(|(since, _)| *since <= whole);
                let oldest = self.destaging.look_at(oldest.map(|(_, unit)| unit));
                let (unit, read) = self.first_behind(oldest, whole);
                found = unit;
                close.extend(read);
            }
        }
        close.into_iter().for_each(|unit| self.cache.unit(unit).wanted = true);
        found
    }

    /// Dirty since a stamp, or for longer.
    fn is_behind(&self, unit: u64, stamp: u64) -> bool {
        self.cache.get(unit).is_some_and(|unit| unit.is_dirty() && unit.since() <= stamp)
    }

    fn is_destaged(&self, waiter: &Waiter) -> bool {
        match &waiter.units {
            Some(units) => !units.iter().any(|&unit| self.is_behind(unit, waiter.stamp)),
            None => self.cache.by_since().next().is_none_or(|(since, _)| since > waiter.stamp),
        }
    }

    /// Answers those whose blocks are destaged and flushed, or never will be.
    pub fn finish_waiters(&mut self, out: &mut Outbox) {
        let mut index = 0;
        while index < self.clients.waiters.len() {
            let waiter = &self.clients.waiters[index];
            // A durable write asks nothing of what was there before it.
            let all = waiter.units.is_none();
            let destaged = self.is_destaged(waiter);
            if destaged && all && self.members.unflushed {
                self.members.flush(&self.recorder, out);
            }
            let safe = destaged && !(all && (self.members.unflushed || self.recorder.owes()));
            if !safe && !self.recorder.broken {
                index += 1;
                continue;
            }
            let waiter = self.clients.waiters.remove(index);
            let error = self.recorder.broken.then_some(IoError::new(ErrorKind::Medium));
            match waiter.who {
                WaitingFor::Request(key) => self.piece_done(key, error, out),
                WaitingFor::Report(_) if self.recorder.broken => {
                    let why = match self.recorder.journal_failed && self.config.journal_required {
                        true => Unfinished::Journal,
                        false => Unfinished::Members,
                    };
                    out.report(Report::Failed(why));
                }
                WaitingFor::Report(Report::Stopped) => self.close(out),
                WaitingFor::Report(report) => out.report(report),
            }
        }
    }

    /// Starts to compute what readers of a unit wait for, or to destage it, or gives it to a pass, or lets what waits for it go on: its
    /// lock may be free.
    pub fn unlocked(&mut self, number: u64, out: &mut Outbox) {
        loop {
            let Some(unit) = self.cache.get(number) else { return };
            if unit.exclusive || unit.readers > 0 {
                return;
            }
            let (dirty, wanted, fetch) = (unit.is_dirty(), unit.wanted, unit.fetch.is_some());
            if fetch {
                return self.start(number, Goal::Fetch, out);
            }
            if unit.claimed.is_some() {
                return self.lock_for_window(number, out);
            }
            if wanted && dirty && !self.recorder.broken {
                return self.start(number, Goal::Destage, out);
            }
            let unit = self.cache.unit(number);
            unit.wanted = false;
            if unit.waiting.is_empty() {
                return self.cache.release(number);
            }
            self.go_on_with(number, out);
        }
    }
}
