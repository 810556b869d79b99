//! Handles requests of clients: reads from the cache, from members, and of computed blocks; writes that find room and writes
//! that wait for it; flushes.

use std::collections::VecDeque;

use crate::layer::{Durability, ErrorKind, Io, IoError, IoResult, Report, Request, RequestId, Unfinished};
use crate::raid::cache::StripeCache;
use crate::raid::env::Env;
use crate::raid::flight::Flight;
use crate::raid::layout::Chunk;
use crate::raid::record::Recorder;
use crate::raid::unit::RequestPart;
use crate::slab::Slab;
use crate::{Buf, LINE_SECTORS, Nanos, SECTOR_BYTES};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Read,
    Write(Durability),
}

/// A request that is not answered yet.
pub(super) struct Unanswered {
    id: RequestId,
    action: Action,
    buf: Buf,
    /// Pieces that are not done.
    left: u32,
    error: Option<IoError>,
    /// Units that a durable write has made dirty; taken when it begins to wait for them.
    units: Vec<u64>,
}

/// The one that waits until dirty data is safe.
pub(super) enum WaitingFor {
    Request(u64),
    Report(Report),
}

/// Waits until what was dirty at a stamp is destaged: all of it, or only some units.
pub(super) struct DestageWaiter {
    who: WaitingFor,
    pub stamp: u64,
    pub units: Option<Vec<u64>>,
}

impl DestageWaiter {
    fn is_destaged(&self, cache: &StripeCache) -> bool {
        match &self.units {
            Some(units) => !units.iter().any(|&unit| cache.is_behind(unit, self.stamp)),
            None => cache.by_since().next().is_none_or(|(since, _)| since > self.stamp),
        }
    }
}

/// The requests of clients that are not answered yet, and what they wait for.
#[derive(Default)]
pub(super) struct Clients {
    requests: Slab<Unanswered>,
    foreground: u64,
    last_activity: Nanos,
    /// Reads at members that have not returned.
    reading: u32,
    /// Pieces of writes that wait for room, in their order.
    stalled: VecDeque<RequestPart>,
    /// Flushes, durable writes and an administrator that wait until something is destaged.
    waiters: Vec<DestageWaiter>,
}

/// The member of a chunk has failed, or has a bad sector where the cache lacks something.
fn is_missing(chunk: Chunk, cache: &StripeCache, recorder: &Recorder) -> bool {
    cache.lacks(chunk).any(|row| is_missing_in(chunk, row, cache, recorder))
}

fn is_missing_in(chunk: Chunk, row: usize, cache: &StripeCache, recorder: &Recorder) -> bool {
    recorder.has_failed_at(recorder.layout.member(chunk.unit, chunk.column), chunk.unit)
        || cache.get(chunk.unit).is_some_and(|unit| unit.bad.contains(&(row, chunk.column)))
}

/// Lets a piece wait until the rows have been computed that its member lacks; where it is not known which it is, all of them.
fn want_fetch(piece: RequestPart, cache: &mut StripeCache, recorder: &Recorder) {
    let lacks: Vec<usize> = cache.lacks(piece.chunk).collect();
    let is_missing = |row: &usize| is_missing_in(piece.chunk, *row, cache, recorder);
    let mut rows: Vec<usize> = lacks.iter().copied().filter(is_missing).collect();
    if rows.is_empty() {
        rows = lacks;
    }
    let unit = cache.unit(piece.chunk.unit);
    unit.fetch.get_or_insert_default().extend(rows);
    unit.waiting.push_back(piece);
}

impl Clients {
    fn take(&mut self, id: RequestId, action: Action, buf: Buf) -> u64 {
        self.foreground += 1;
        self.requests.insert(Unanswered { id, action, buf, left: 1, error: None, units: Vec::new() })
    }

    /// Requests that are not answered.
    pub const fn foreground(&self) -> u64 {
        self.foreground
    }

    /// The time of the last request.
    pub const fn last_activity(&self) -> Nanos {
        self.last_activity
    }

    pub fn are_answered(&self) -> bool {
        self.requests.is_empty()
    }

    /// True when no request waits for an answer, and no command for a report.
    pub fn have_all(&self) -> bool {
        self.are_answered() && self.waiters.is_empty()
    }

    /// Writes wait for room.
    pub fn wait_for_room(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// No client reads at members, or waits for anything.
    pub fn only_write(&self) -> bool {
        self.reading == 0 && self.waiters.is_empty() && self.stalled.is_empty()
    }

    /// Those that wait until something is destaged.
    pub fn waiters(&self) -> &[DestageWaiter] {
        &self.waiters
    }

    /// A waiter waits until everything dirty is destaged.
    pub fn wait_for_flush(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.units.is_none())
    }

    /// Clients wait for a flush, and for nothing else.
    pub fn wait_for_flush_only(&self) -> bool {
        let clients = self.waiters.iter().filter(|waiter| matches!(waiter.who, WaitingFor::Request(_)));
        self.wait_for_flush() && clients.count() as u64 == self.foreground
    }

    /// An administrator's drain is called off.
    pub fn cancel_drains(&mut self) {
        self.waiters.retain(|waiter| !matches!(waiter.who, WaitingFor::Report(Report::Drained)));
    }

    /// Takes a request; gives the pieces of it that are to begin.
    pub fn accept(
        &mut self,
        request: Request,
        cache: &mut StripeCache,
        env: &mut Env,
    ) -> Option<(u64, Vec<RequestPart>)> {
        self.last_activity = env.cx.now;
        let mut valid = env.geometry.validate(&request.io);
        if valid.is_ok() && env.recorder.broken && request.io.modifies() {
            valid = Err(IoError { kind: ErrorKind::Medium, extent: request.io.extent() });
        }
        if let Err(error) = valid {
            env.cx.reply(request.id, IoResult::err(request.io.take_buf(), error));
            return None;
        }
        let action = match &request.io {
            Io::Read { .. } | Io::ReadCopy { .. } | Io::Flush => Action::Read,
            Io::Write { durability, .. }
            | Io::WriteCopy { durability, .. }
            | Io::WriteZeroes { durability, .. } => Action::Write(*durability),
            Io::Discard { .. } => unreachable!("an array offers none"),
        };
        let Some(extent) = request.io.extent() else {
            let key = self.take(request.id, action, Buf::none());
            let stamp = if env.config.non_volatile { 0 } else { cache.stamp() };
            self.wait_until_destaged(WaitingFor::Request(key), None, stamp);
            return None;
        };
        let buf = match request.io {
            Io::WriteZeroes { .. } => Buf::blank((extent.sectors * SECTOR_BYTES) as usize),
            io => {
                let buf = io.take_buf();
                cache.saw(&buf);
                buf
            }
        };
        let key = self.take(request.id, action, buf);
        let mut at = 0;
        let piece = |chunk: Chunk| {
            let piece = RequestPart { request: key, chunk, at };
            at += (chunk.sectors * SECTOR_BYTES) as usize;
            piece
        };
        let pieces: Vec<RequestPart> = env.layout.chunks(extent).map(piece).collect();
        self.requests.get_mut(key).left += pieces.len() as u32;
        Some((key, pieces))
    }

    /// Begins a piece of a request. True when it waits for something that has to be computed as soon as its unit is free.
    pub fn begin(&mut self, piece: RequestPart, cache: &mut StripeCache, env: &mut Env) -> bool {
        let reads = self.requests.get_mut(piece.request).action == Action::Read;
        if reads {
            return self.read(piece, cache, env);
        }
        let waits = !self.stalled.is_empty();
        if waits || !self.absorb(piece, cache, env) {
            env.statistics.stalls += u64::from(!waits);
            self.stalled.push_back(piece);
        }
        false
    }

    /// Reads a piece from the cache, or from its member, or has it computed.
    fn read(&mut self, piece: RequestPart, cache: &mut StripeCache, env: &mut Env) -> bool {
        let chunk = piece.chunk;
        if env.losses.has(chunk) {
            self.read_fails(piece, cache, env);
            return false;
        }
        if cache.has(chunk) {
            env.statistics.read_hits += 1;
            self.answer_read(piece, cache, env);
            return false;
        }
        let missing = is_missing(chunk, cache, env.recorder);
        let locked = cache.is_locked(chunk);
        let unit = cache.unit(chunk.unit);
        if locked {
            unit.waiting.push_back(piece);
            return false;
        }
        if missing {
            want_fetch(piece, cache, env.recorder);
            return true;
        }
        unit.readers += 1;
        let member = env.layout.member(chunk.unit, chunk.column);
        let row = (chunk.first / LINE_SECTORS) as usize;
        let lba = env.layout.member_lba(chunk.unit, row) + chunk.first % LINE_SECTORS;
        let buf = cache.buffer((chunk.sectors * SECTOR_BYTES) as usize);
        env.statistics.read_misses += 1;
        self.reading += 1;
        env.submit(member, Flight::Read(piece), Io::Read { at: lba, buf });
        false
    }

    fn read_fails(&mut self, piece: RequestPart, cache: &StripeCache, env: &mut Env) {
        self.piece_done(piece.request, Some(IoError::new(ErrorKind::Medium)), cache, env);
    }

    /// A read of a client has returned from its member.
    pub fn read_returned(
        &mut self,
        piece: RequestPart,
        result: IoResult,
        cache: &mut StripeCache,
        env: &mut Env,
    ) {
        self.reading -= 1;
        cache.unit(piece.chunk.unit).readers -= 1;
        if result.status.is_err() {
            // A write may have made it whole meanwhile.
            if cache.has(piece.chunk) {
                self.answer_read(piece, cache, env);
            } else {
                want_fetch(piece, cache, env.recorder);
            }
        } else {
            cache.keep(piece.chunk, &result.buf);
            let request = self.requests.get_mut(piece.request);
            request.buf.copy_from(piece.at, &result.buf, 0, result.buf.len());
            self.answer_read(piece, cache, env);
        }
    }

    /// Blocks in the cache are newer than those that a member gave.
    fn answer_read(&mut self, piece: RequestPart, cache: &mut StripeCache, env: &mut Env) {
        if cache.get(piece.chunk.unit).is_some() {
            let request = self.requests.get_mut(piece.request);
            cache.read(piece.chunk, &mut request.buf, piece.at);
        }
        env.losses.is_readable(piece.chunk);
        self.piece_done(piece.request, None, cache, env);
    }

    /// A row that could not be computed is an error for those who wait for it.
    pub fn fail_fetch(&mut self, unit: u64, row: usize, cache: &mut StripeCache, env: &mut Env) {
        let waiting = std::mem::take(&mut cache.unit(unit).waiting);
        for piece in waiting {
            let reads = self.requests.get_mut(piece.request).action == Action::Read;
            let wants = cache.lacks(piece.chunk).any(|lacks| lacks == row);
            if reads && wants && is_missing(piece.chunk, cache, env.recorder) {
                self.read_fails(piece, cache, env);
            } else {
                cache.unit(unit).waiting.push_back(piece);
            }
        }
    }

    /// Takes a write into the cache, as soon as its unit is free. False where there is no room.
    fn absorb(&mut self, piece: RequestPart, cache: &mut StripeCache, env: &mut Env) -> bool {
        let number = piece.chunk.unit;
        if env.recorder.broken {
            self.piece_done(piece.request, Some(IoError::new(ErrorKind::Medium)), cache, env);
            return true;
        }
        // Lost blocks are settled when their unit is destaged: no write may overtake that.
        let settling = !env.recorder.lost().is_empty();
        let locked = cache.is_locked(piece.chunk);
        let unit = cache.unit(number);
        if locked || (unit.exclusive && settling) {
            unit.waiting.push_back(piece);
            return true;
        }
        if !cache.hold(piece.chunk) {
            cache.release(number);
            return false;
        }
        if !env.losses.overwrite(piece.chunk) {
            self.piece_done(piece.request, Some(IoError::new(ErrorKind::Medium)), cache, env);
            cache.release(number);
            return true;
        }
        let request = self.requests.get_mut(piece.request);
        cache.write(piece.chunk, &request.buf, piece.at);
        if request.action == Action::Write(Durability::Durable) && request.units.last() != Some(&number) {
            request.units.push(number);
        }
        self.piece_done(piece.request, None, cache, env);
        true
    }

    /// Lets the writes that wait for room go on, in their order.
    pub fn go_on_writing(&mut self, cache: &mut StripeCache, env: &mut Env) {
        while let Some(piece) = self.stalled.pop_front() {
            if !self.absorb(piece, cache, env) {
                return self.stalled.push_front(piece);
            }
        }
    }

    /// Ends a piece of a request. After the last piece the request is answered, or waits until its writes are destaged.
    pub fn piece_done(&mut self, key: u64, error: Option<IoError>, cache: &StripeCache, env: &mut Env) {
        let request = self.requests.get_mut(key);
        request.error = request.error.or(error);
        request.left -= 1;
        if request.left > 0 {
            return;
        }
        if !env.config.non_volatile && request.error.is_none() && !request.units.is_empty() {
            request.left = 1;
            let units = std::mem::take(&mut request.units);
            return self.wait_until_destaged(WaitingFor::Request(key), Some(units), cache.stamp());
        }
        self.foreground -= 1;
        let request = self.requests.remove(key);
        let status = request.error.map_or(Ok(()), Err);
        env.cx.reply(request.id, IoResult { buf: request.buf, status });
    }

    /// Whoever it is learns when what was dirty at a stamp is destaged.
    pub fn wait_until_destaged(&mut self, who: WaitingFor, units: Option<Vec<u64>>, stamp: u64) {
        self.waiters.push(DestageWaiter { who, stamp, units });
    }

    /// Answers those whose blocks are destaged and flushed, or never will be. True when a stop has waited for that, the last of all.
    pub fn finish_waiters(&mut self, cache: &StripeCache, env: &mut Env) -> bool {
        let mut stops = false;
        let has_lost_journal = env.config.journal && env.recorder.journal.is_none();
        let mut index = 0;
        while index < self.waiters.len() {
            let waiter = &self.waiters[index];
            // A durable write asks nothing of what was there before it.
            let all = waiter.units.is_none();
            let destaged = waiter.is_destaged(cache);
            if destaged && all && env.members.unflushed {
                env.members.flush(|role| env.recorder.is_in_use(role), env.cx);
            }
            let safe = destaged && !(all && (env.members.unflushed || env.recorder.owes()));
            if !safe && !env.recorder.broken {
                index += 1;
                continue;
            }
            let waiter = self.waiters.remove(index);
            let error = env.recorder.broken.then_some(IoError::new(ErrorKind::Medium));
            match waiter.who {
                WaitingFor::Request(key) => self.piece_done(key, error, cache, env),
                WaitingFor::Report(_) if env.recorder.broken => {
                    let why = match has_lost_journal && env.config.journal_required {
                        true => Unfinished::Journal,
                        false => Unfinished::Members,
                    };
                    env.cx.report(Report::Failed(why));
                }
                WaitingFor::Report(Report::Stopped) => stops = true,
                WaitingFor::Report(report) => env.cx.report(report),
            }
        }
        stops
    }
}
