//! Requests from above: reads go to one leg, and to another if that one fails; all other requests go to all legs.

use std::collections::VecDeque;

use super::{LegCanary, LegState, MirrorCore, MirrorOp};
use crate::layer::{Cx, Discards, ErrorKind, Io, IoError, IoKind, IoResult, Request, RequestId};
use crate::slab::Slab;
use crate::{Buf, Extent, Lba};

/// A request that is not answered yet.
struct MirrorRequest {
    id: RequestId,
    kind: IoKind,
    extent: Option<Extent>,
    /// Data to write; empty while a leg reads into it.
    buf: Buf,
    /// Operations under way.
    left: u32,
    /// A whole leg has completed the request.
    done: bool,
    error: Option<IoError>,
    /// Legs that failed it.
    failed: Vec<u64>,
    answered: bool,
}

#[derive(Default)]
pub struct MirrorRequests {
    all: Slab<MirrorRequest>,
    /// Requests that wait: another change is under way in their extent.
    waiting: VecDeque<Request>,
    /// Completed, but not answered before the labels name a leg that has missed something.
    held: Vec<(RequestId, IoResult)>,
}

impl MirrorRequests {
    /// True when a request under way changes something in the extent.
    pub fn changes(&self, extent: Extent) -> bool {
        let is_write = |client: &&MirrorRequest| !matches!(client.kind, IoKind::Read | IoKind::Flush);
        let extents = self.all.iter().filter(is_write).filter_map(|client| client.extent);
        extents.into_iter().any(|other| other.overlaps(extent))
    }

    pub fn is_idle(&self) -> bool {
        self.all.is_empty()
    }

    /// True while requests are not answered yet.
    pub fn are_waiting(&self) -> bool {
        !self.all.is_empty() || !self.waiting.is_empty() || !self.held.is_empty()
    }

    pub fn check(&self) {
        let writes: Vec<Extent> = self
            .all
            .iter()
            .filter(|client| !matches!(client.kind, IoKind::Read | IoKind::Flush))
            .filter_map(|client| client.extent)
            .collect();
        for (index, extent) in writes.iter().enumerate() {
            let overlaps = writes[..index].iter().any(|other| other.overlaps(*extent));
            assert!(!overlaps, "legs would end with different contents at {extent}");
        }
    }
}

/// Copies an operation for a leg, with a window of its buffer.
fn copy_of(io: &Io, buf: &Buf) -> Io {
    match io {
        Io::Write { at, durability, .. } | Io::WriteCopy { at, durability, .. } => {
            Io::Write { at: down(*at), buf: buf.window(0, buf.len()), durability: *durability }
        }
        Io::Discard { extent } => Io::Discard { extent: down_extent(*extent) },
        Io::WriteZeroes { extent, unmap, durability } => {
            Io::WriteZeroes { extent: down_extent(*extent), unmap: *unmap, durability: *durability }
        }
        Io::Flush | Io::Read { .. } | Io::ReadCopy { .. } => Io::Flush,
    }
}

/// Translates a sector of the mirror to its sector on a leg.
pub fn down(at: Lba) -> Lba {
    at + super::CONTENT_SECTOR
}

pub fn down_extent(extent: Extent) -> Extent {
    Extent::new(down(extent.start), extent.sectors)
}

/// Translates an error of a leg to the sectors of the mirror.
fn up(mut error: IoError) -> IoError {
    if let Some(extent) = &mut error.extent {
        extent.start = Lba(extent.start.0.saturating_sub(super::CONTENT_SECTOR));
    }
    error
}

impl MirrorCore {
    pub fn on_request(&mut self, Request { id, io, .. }: Request, cx: &mut Cx) {
        if let Err(error) = self.geometry.validate(&io) {
            return cx.reply(id, IoResult::err(io.take_buf(), error));
        }
        match io {
            Io::Read { at, buf } => self.read(id, at, buf, None, cx),
            Io::ReadCopy { at, buf, copy } => {
                let leg = self.leg_of(copy).or_else(|| self.reader(&[])).expect("one leg is whole");
                self.read(id, at, buf, Some(leg), cx);
            }
            io => {
                let waits = io.extent().is_some_and(|extent| {
                    let before =
                        |request: &Request| request.io.extent().is_some_and(|other| other.overlaps(extent));
                    self.is_taken(extent) || self.clients.waiting.iter().any(before)
                });
                match waits {
                    true => self.clients.waiting.push_back(Request { id, disk: 0, io }),
                    false => self.change(id, io, cx),
                }
            }
        }
    }

    /// The legs that get a write to one copy: its leg, and those that are being filled, as they may be copied from it.
    fn written_as(&self, copy: u8) -> Vec<u64> {
        let Some(leg) = self.leg_of(copy) else { return Vec::new() };
        let is_filled = |id: &u64| self.label.standing(*id) == Some(LegState::Filling);
        let filled = self.written().into_iter().filter(is_filled);
        [leg].into_iter().chain(filled).collect()
    }

    fn is_taken(&self, extent: Extent) -> bool {
        self.clients.changes(extent) || self.copier.holds(extent)
    }

    /// Starts waiting requests whose extent is free now.
    pub fn start_waiting(&mut self, cx: &mut Cx) {
        let mut passed: Vec<Extent> = Vec::new();
        let mut at = 0;
        while let Some(request) = self.clients.waiting.get(at) {
            let extent = request.io.extent().expect("only what has a place waits");
            if self.is_taken(extent) || passed.iter().any(|other| other.overlaps(extent)) {
                passed.push(extent);
                at += 1;
                continue;
            }
            let Request { id, io, .. } = self.clients.waiting.remove(at).expect("it was there just now");
            self.change(id, io, cx);
        }
    }

    /// Reads. `only`: the one leg to read from.
    fn read(&mut self, id: RequestId, at: Lba, buf: Buf, only: Option<u64>, cx: &mut Cx) {
        let leg = only.or_else(|| self.reader(&[])).expect("one leg is whole");
        let extent = Some(Extent::new(at, buf.len() as u64 / crate::SECTOR_BYTES));
        // With all other legs named as failed, an error is reported immediately.
        let failed = only.map_or(Vec::new(), |only| self.label.whole().filter(|id| *id != only).collect());
        let client = MirrorRequest {
            id,
            kind: IoKind::Read,
            extent,
            buf: Buf::none(),
            left: 1,
            done: false,
            error: None,
            failed,
            answered: false,
        };
        let client = self.clients.all.insert(client);
        self.submit(leg, MirrorOp::Client { client, leg }, Io::Read { at: down(at), buf }, cx);
    }

    fn change(&mut self, id: RequestId, mut io: Io, cx: &mut Cx) {
        let legs = match &io {
            Io::WriteCopy { copy, .. } => self.written_as(*copy),
            _ => self.written(),
        };
        if io.kind() == IoKind::Discard && self.geometry.discards == Discards::No {
            // It waited, and a leg that takes none was added meanwhile.
            return self
                .clients
                .held
                .push((id, IoResult::err(Buf::none(), IoError::new(ErrorKind::Unsupported))));
        }
        if legs.is_empty() {
            return self.clients.held.push((id, IoResult::ok(io.take_buf())));
        }
        // The data of a write to one leg alone is on another leg already.
        let done = matches!(io, Io::WriteCopy { .. });
        let (kind, extent) = (io.kind(), io.extent());
        let mut buf = Buf::none();
        if let Io::Write { buf: written, .. } | Io::WriteCopy { buf: written, .. } = &mut io {
            written.share();
            buf = std::mem::take(written);
        }
        let copies: Vec<Io> = legs.iter().map(|_| copy_of(&io, &buf)).collect();
        let left = legs.len() as u32;
        let client = MirrorRequest {
            id,
            kind,
            extent,
            buf,
            left,
            done,
            error: None,
            failed: Vec::new(),
            answered: false,
        };
        let client = self.clients.all.insert(client);
        for (leg, io) in legs.into_iter().zip(copies) {
            self.submit(leg, MirrorOp::Client { client, leg }, io, cx);
        }
    }

    pub fn on_client(&mut self, key: u64, leg: u64, result: IoResult, cx: &mut Cx) {
        let is_whole = self.label.standing(leg) == Some(LegState::Whole);
        let client = self.clients.all.get_mut(key);
        if client.kind == IoKind::Read {
            return self.on_read(key, leg, result, cx);
        }
        drop(result.buf);
        client.left -= 1;
        match result.status {
            Ok(()) => client.done |= is_whole,
            Err(error) => {
                client.error.get_or_insert(up(error));
                if client.kind != IoKind::Discard {
                    client.failed.push(leg);
                }
            }
        }
        let (left, done) = (client.left, client.done);
        if left > 0 {
            if done && self.canary.is(LegCanary::OneLeg) && !client.answered {
                client.answered = true;
                let early = client.buf.window(0, client.buf.len());
                cx.reply(client.id, IoResult::ok(early));
            }
            return;
        }
        let mut client = self.clients.all.remove(key);
        let status = match (client.done, client.error) {
            (false, Some(error)) => Err(error),
            // It is advice: no leg misses anything, and who gave it can stop giving it.
            (true, Some(error)) if client.kind == IoKind::Discard => Err(error),
            (_, error) => {
                let failed = client.failed.iter().filter_map(|leg| Some((*leg, error?)));
                failed.for_each(|(leg, error)| self.fail_leg(leg, error, cx));
                Ok(())
            }
        };
        client.buf.reclaim();
        if !client.answered {
            self.clients.held.push((client.id, IoResult { buf: client.buf, status }));
        }
        self.start_waiting(cx);
    }

    fn on_read(&mut self, key: u64, leg: u64, result: IoResult, cx: &mut Cx) {
        let client = self.clients.all.get_mut(key);
        let extent = client.extent.expect("a read has a place");
        if let Err(error) = result.status {
            client.error.get_or_insert(up(error));
            client.failed.push(leg);
            let failed = client.failed.clone();
            if let Some(other) = self.reader(&failed) {
                self.statistics.reads_elsewhere += 1;
                let io = Io::Read { at: down(extent.start), buf: result.buf };
                return self.submit(other, MirrorOp::Client { client: key, leg: other }, io, cx);
            }
            let client = self.clients.all.remove(key);
            let error = client.error.unwrap_or(IoError::at(ErrorKind::Medium, extent));
            return cx.reply(client.id, IoResult::err(result.buf, error));
        }
        let client = self.clients.all.remove(key);
        // A read of one particular leg has no error here.
        if client.error.is_some() {
            client.failed.iter().for_each(|leg| self.copier.mend(*leg, extent));
        }
        cx.reply(client.id, IoResult::ok(result.buf));
    }

    /// Answers completed requests, unless a leg has missed something that the labels do not name yet.
    pub fn answer_held(&mut self, cx: &mut Cx) {
        let dead = self.record.is_dead.filter(|_| !self.may_answer());
        if dead.is_none() && !self.may_answer() {
            return;
        }
        for (id, result) in self.clients.held.drain(..) {
            let status = dead.map_or(result.status, |error| Err(up(error)));
            cx.reply(id, IoResult { buf: result.buf, status });
        }
    }
}
