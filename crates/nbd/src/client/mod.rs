//! A client of the transmission phase that survives the loss of its server: a state machine without I/O.
//!
//! Input: operations, received bytes, and news that connections were made or lost. Output: bytes to send, and results of
//! operations. While there is no connection, operations wait. A server may have lost, together with the
//! connection, everything that it acknowledged and did not flush. So the client keeps such writes, and sends them again.
//!
//! ```text
//!             send              answer              flush
//!   waiting ───────▶ in flight ────────▶ kept ───────────────▶ (done)
//!      ▲                 │ lost            │ lost      reads, durable writes, flushes: done with the answer
//!      └─────────────────┴─────────────────┘
//! ```
//!
//! Guarantees of the client:
//! - An operation that overlaps an older one is sent when that is answered, unless both read. So writes that are sent again arrive
//!   in the order in which they were submitted.
//! - A flush is sent once all kept writes were sent again and answered.
//! - If a kept write cannot be written again, the next flush fails.
//! - A write that was in flight at a loss may still be carried out by the old server. A newer one over the same sectors
//!   waits [`SETTLE`] from the next connection on. The protocol offers no certainty.
//! - A server that says so has made durable what it has answered: then nothing is kept, and a flush is done at once.
//! - After a loss, the client first reads the start of the export and some flushed blocks. It sends nothing else before these match.

mod links;
mod start;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::{BTreeMap, BTreeSet};

use dcd_engine::{Buf, Durability, ErrorKind, Extent, Io, IoError, IoResult, Lba, Nanos, SECTOR_BYTES};

use crate::handshake::Offer;
use links::{DurableBlock, Hazard};
use start::PossibleContents;
use wire::Link;

pub use links::LinkError;

/// Maximum bytes of unflushed writes that are retained before the client flushes on its own. With twice as many, volatile writes wait.
pub const KEPT_BYTES_MAX: u64 = 32 << 20;
/// Time that a newer write waits, as an old server may still write to the same sectors.
pub const SETTLE: Nanos = Nanos::from_secs(10);
/// Requests in flight, of all connections.
const DEPTH: usize = 128;
/// Maximum number of waiting operations that are searched for one that can be sent.
const LOOKED_AT_MAX: usize = 256;
/// The longest read or write on the wire.
const PIECE_BYTES_MAX: u64 = 4 << 20;
/// The longest piece of a range that carries no data.
const RANGE_BYTES_MAX: u64 = 1 << 30;
/// The longest write of zeroes to a server that cannot write them itself.
const ZEROES_BYTES_MAX: u64 = 1 << 20;

/// Recipient of an operation's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultTo {
    Client,
    /// None: the operation was answered, and is sent again.
    Resent,
    /// None: the client itself has added a flush.
    Own,
    /// The client itself: a block that it knows by this checksum.
    Check(u32),
    /// The client itself: the start of the export.
    Start,
}

/// An operation that the server has not answered.
#[derive(Debug)]
struct ClientOp {
    io: Io,
    origin: ResultTo,
    /// Time of the first sending; before that, of the submission.
    since: Nanos,
    /// Time when the part in flight was sent.
    sent: Nanos,
    was_sent: bool,
    /// The connection that it is on; none while it waits.
    link: Option<usize>,
    /// Answered bytes (`done`), and bytes in flight (`piece`).
    done: u64,
    piece: u64,
    /// Count of answers when a flush was sent: it covers the writes that were answered by then.
    covers: u64,
}

/// A write that was answered and that no flush has covered.
#[derive(Debug)]
struct Kept {
    io: Io,
    /// Count of answers when this write was answered.
    answered: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct NbdClient {
    offer: Offer,
    next: u64,
    /// Operations by number, in the order of submission.
    ops: BTreeMap<u64, ClientOp>,
    waiting: BTreeSet<u64>,
    kept: BTreeMap<u64, Kept>,
    kept_bytes: u64,
    answers: u64,
    /// Empty while there is no connection.
    links: Vec<Link>,
    hazards: Vec<Hazard>,
    marks: Vec<DurableBlock>,
    start: PossibleContents,
    /// Error of an answered write that was lost: the next flush reports it.
    broken: Option<IoError>,
    ended: Vec<(u64, IoResult)>,
}

impl NbdClient {
    pub fn new(offer: Offer) -> NbdClient {
        NbdClient {
            start: PossibleContents::new(offer.bytes),
            offer,
            next: 0,
            ops: BTreeMap::new(),
            waiting: BTreeSet::new(),
            kept: BTreeMap::new(),
            kept_bytes: 0,
            answers: 0,
            links: Vec::new(),
            hazards: Vec::new(),
            marks: Vec::new(),
            broken: None,
            ended: Vec::new(),
        }
    }

    /// Takes an operation, and returns its number. [`NbdClient::take_ended`] returns its result under this number.
    pub fn submit(&mut self, now: Nanos, io: Io) -> u64 {
        if io.modifies() {
            let extent = io.extent().expect("what modifies has an extent");
            self.marks.retain(|mark| !mark.extent.overlaps(extent));
        }
        let number = self.add(now, io, ResultTo::Client);
        let io = &self.ops[&number].io;
        if self.offer.durable && matches!(io, Io::Flush) {
            self.end(number, Ok(()));
            return number;
        }
        if io.modifies() {
            self.start.written(number, io);
        }
        self.send_waiting(now);
        number
    }

    /// Returns the operations that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<(u64, IoResult)> {
        std::mem::take(&mut self.ended)
    }

    /// Time since which the server owes an answer to a caller, or to the client itself. While connected, unsent operations do not count,
    /// unless the client has not recognised the server yet.
    pub fn oldest(&self) -> Option<Nanos> {
        if !self.ops.values().any(|op| op.origin == ResultTo::Client) {
            return None;
        }
        let all_wait = self.links.is_empty() || self.is_checking();
        let owed = |op: &ClientOp| match op.origin {
            ResultTo::Client if op.link.is_some() || all_wait => Some(op.since),
            ResultTo::Client => None,
            _ => op.link.map(|_| op.sent),
        };
        self.ops.values().filter_map(owed).min()
    }

    /// Bytes of retained writes.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Fails all operations that callers wait for: the server has not answered for too long. Writes among them may have been
    /// carried out, or may be later. Answered writes are still kept.
    ///
    /// # Panics
    /// While connected: its late answers would be matched with other operations.
    pub fn give_up(&mut self) {
        assert!(self.links.is_empty(), "connections are lost before operations are given up");
        let waited_for = self.ops.iter().filter(|(_, op)| op.origin == ResultTo::Client);
        for number in waited_for.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.end(number, Err(ErrorKind::Medium));
        }
    }

    fn add(&mut self, now: Nanos, io: Io, origin: ResultTo) -> u64 {
        let number = self.next;
        self.next += 1;
        let op = ClientOp {
            io,
            origin,
            since: now,
            sent: now,
            was_sent: false,
            link: None,
            done: 0,
            piece: 0,
            covers: 0,
        };
        self.ops.insert(number, op);
        self.waiting.insert(number);
        number
    }

    /// Sends what can be sent.
    pub fn send_waiting(&mut self, now: Nanos) {
        if self.links.is_empty() || self.waiting.is_empty() {
            return;
        }
        self.hazards.retain(|hazard| hazard.until.is_none_or(|until| until > now));
        let checking = self.is_checking();
        let resending = self.ops.values().any(|op| op.origin == ResultTo::Resent);
        let in_flight = self.ops.values().filter(|op| op.link.is_some());
        let mut before: Vec<(Extent, bool)> =
            in_flight.filter_map(|op| Some((op.io.extent()?, op.io.modifies()))).collect();
        let mut depth = self.ops.len() - self.waiting.len();
        let looked_at: Vec<u64> = self.waiting.iter().take(LOOKED_AT_MAX).copied().collect();
        for number in looked_at {
            if depth >= DEPTH {
                return;
            }
            let op = &self.ops[&number];
            let may = match op.origin {
                ResultTo::Check(_) | ResultTo::Start => {
                    unreachable!("checks are sent as soon as there is a connection")
                }
                _ if checking => false,
                _ => match op.io.extent() {
                    None => !resending,
                    Some(extent) => {
                        let modifies = op.io.modifies();
                        let in_turn = before
                            .iter()
                            .all(|(other, wrote)| !(modifies || *wrote) || !other.overlaps(extent));
                        before.push((extent, modifies));
                        let settled =
                            !modifies || !self.hazards.iter().any(|hazard| hazard.holds(number, extent));
                        in_turn && settled && (self.has_room() || !self.will_be_kept(op))
                    }
                },
            };
            if may {
                self.waiting.remove(&number);
                self.send(now, number);
                let op = self.ops.get_mut(&number).expect("it was sent");
                if !std::mem::replace(&mut op.was_sent, true) {
                    op.since = now;
                }
                depth += 1;
            }
        }
    }

    fn has_room(&self) -> bool {
        self.kept_bytes < 2 * KEPT_BYTES_MAX
    }

    fn will_be_kept(&self, op: &ClientOp) -> bool {
        op.origin == ResultTo::Client && op.io.modifies() && !self.is_durable_when_answered(&op.io)
    }

    /// Sends the next piece of an operation.
    fn send(&mut self, now: Nanos, number: u64) {
        let answers = self.answers;
        let (index, link) = self
            .links
            .iter_mut()
            .enumerate()
            .min_by_key(|(_, link)| link.in_flight)
            .expect("operations are sent while there is a connection");
        let op = self.ops.get_mut(&number).expect("it is waiting");
        op.link = Some(index);
        op.sent = now;
        op.covers = answers;
        op.piece = link.push(&self.offer, number, &op.io, op.done);
    }

    /// The server has answered the piece in flight of an operation.
    fn answered(&mut self, now: Nanos, number: u64, status: Result<(), ErrorKind>) -> Result<(), LinkError> {
        let op = self.ops.get_mut(&number).expect("its link has looked");
        op.done += op.piece;
        if status.is_ok() && op.io.extent().is_some_and(|extent| op.done < extent.sectors * SECTOR_BYTES) {
            self.send(now, number);
            return Ok(());
        }
        self.answers += 1;
        match (op.origin, status) {
            (ResultTo::Check(sum), Ok(())) => {
                let found = self.remove(number).io.take_buf();
                if crc32c::crc32c(found.bytes()) != sum {
                    return Err(LinkError::OtherContent);
                }
            }
            (ResultTo::Start, Ok(())) => {
                let found = self.remove(number).io.take_buf();
                if !self.start.is_as_left(found.bytes()) {
                    return Err(LinkError::OtherContent);
                }
            }
            (ResultTo::Check(_) | ResultTo::Start, Err(_)) => return Err(LinkError::Unreadable),
            (ResultTo::Own, status) => {
                let covers = self.remove(number).covers;
                match status {
                    Ok(()) => self.covered(covers),
                    Err(kind) => self.broken = Some(IoError::new(kind)),
                }
            }
            (ResultTo::Resent, Ok(())) => {
                let op = self.remove(number);
                self.keep(number, op.io);
            }
            (ResultTo::Resent, Err(kind)) => {
                let op = self.remove(number);
                self.broken = Some(IoError { kind, extent: op.io.extent() });
            }
            (ResultTo::Client, status) => self.answer(now, number, status),
        }
        Ok(())
    }

    /// Ends an operation that a caller waits for, as the server has answered it.
    fn answer(&mut self, now: Nanos, number: u64, mut status: Result<(), ErrorKind>) {
        let op = &self.ops[&number];
        if matches!(op.io, Io::Flush) {
            let covers = op.covers;
            if status.is_ok() {
                self.covered(covers);
                if let Some(error) = self.broken.take() {
                    status = Err(error.kind);
                }
            }
            self.end(number, status);
        } else if op.io.modifies() && status.is_ok() {
            let mark = DurableBlock::of(&op.io);
            let extent = op.io.extent().expect("what modifies has an extent");
            let durable = self.is_durable_when_answered(&op.io);
            let kept = (!durable || self.is_over_kept(&op.io)).then(|| copy_of(&op.io));
            self.end(number, status);
            match kept {
                Some(io) => self.keep(number, io),
                None => {
                    self.start.is_durable(number, extent);
                    self.remember(mark);
                }
            }
        } else {
            self.end(number, status);
        }
        if self.kept_bytes >= KEPT_BYTES_MAX && !self.ops.values().any(|op| matches!(op.io, Io::Flush)) {
            self.add(now, Io::Flush, ResultTo::Own);
        }
    }

    fn is_durable_when_answered(&self, io: &Io) -> bool {
        self.offer.durable || is_durable(io)
    }

    /// True for a durable write over a kept one: after a loss, both must be sent again, in their order.
    fn is_over_kept(&self, io: &Io) -> bool {
        let extent = io.extent().expect("writes have an extent");
        self.kept.values().any(|kept| kept.io.extent().is_some_and(|other| other.overlaps(extent)))
    }

    fn keep(&mut self, number: u64, io: Io) {
        self.kept_bytes += size(&io);
        self.kept.insert(number, Kept { io, answered: self.answers });
    }

    /// A flush has covered what was answered before this count.
    fn covered(&mut self, answers: u64) {
        let mut last = None;
        let is_covered = |kept: &Kept| kept.answered <= answers;
        let numbers: Vec<u64> =
            self.kept.iter().filter(|(_, kept)| is_covered(kept)).map(|(number, _)| *number).collect();
        for number in numbers {
            let kept = self.kept.remove(&number).expect("counted");
            self.kept_bytes -= size(&kept.io);
            self.start.is_durable(number, kept.io.extent().expect("what modifies has an extent"));
            last = DurableBlock::of(&kept.io);
        }
        self.remember(last);
    }

    fn remove(&mut self, number: u64) -> ClientOp {
        self.waiting.remove(&number);
        self.ops.remove(&number).expect("it is there")
    }

    fn end(&mut self, number: u64, status: Result<(), ErrorKind>) {
        let op = self.remove(number);
        let extent = op.io.extent();
        let result = match status {
            Ok(()) => IoResult::ok(op.io.take_buf()),
            Err(kind) => IoResult::err(op.io.take_buf(), IoError { kind, extent }),
        };
        self.ended.push((number, result));
    }
}

fn is_durable(io: &Io) -> bool {
    matches!(
        io,
        Io::Write { durability: Durability::Durable, .. }
            | Io::WriteZeroes { durability: Durability::Durable, .. }
    )
}

/// Copies a write for the client to retain: the buffer goes back to the sender.
fn copy_of(io: &Io) -> Io {
    match io {
        Io::Write { at, buf, durability } | Io::WriteCopy { at, buf, durability, .. } => {
            Io::Write { at: *at, buf: Buf::copy_of(buf.bytes()), durability: *durability }
        }
        Io::WriteZeroes { extent, unmap, durability } => {
            Io::WriteZeroes { extent: *extent, unmap: *unmap, durability: *durability }
        }
        Io::Discard { extent } => Io::Discard { extent: *extent },
        Io::Read { .. } | Io::ReadCopy { .. } | Io::Flush => unreachable!("only what modifies is kept"),
    }
}

/// Returns the memory that a retained write takes.
fn size(io: &Io) -> u64 {
    const OF_ITS_OWN: u64 = 256;
    match io {
        Io::Write { buf, .. } | Io::WriteCopy { buf, .. } => buf.len() as u64 + OF_ITS_OWN,
        _ => OF_ITS_OWN,
    }
}

/// The first sector of an operation, as a byte offset.
fn offset(at: Lba) -> u64 {
    at.0 * SECTOR_BYTES
}
