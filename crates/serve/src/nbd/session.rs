//! Serves an NBD connection, sans-IO: the framing of the byte stream, and the states that it goes through.
//!
//! | phase | needs | leads to |
//! |---|---|---|
//! | `ClientFlags` | 4 bytes | `OptionHeader`, `Ended` on an unknown flag |
//! | `OptionHeader` | 16 bytes | `OptionData`, `Ended` on a wrong magic, a long option, too many options |
//! | `OptionData` | the option's length | `OptionHeader`, `BeginsTls` (STARTTLS), `RequestHeader` (GO, EXPORT_NAME), `Ended` |
//! | `BeginsTls` | TLS, from outside | `OptionHeader`, `Ended` if bytes in the clear follow |
//! | `RequestHeader` | 28 bytes, or 32 | itself, `Payload`, `Skip`, `Draining` (DISC), `Ended` on a wrong magic or a long payload |
//! | `Payload` | the data of a write | `RequestHeader` |
//! | `Skip` | the data of a write that is refused | `RequestHeader` |
//! | `Draining` | nothing; bytes are ignored | `Ended` when the last request is answered |
//! | `Ended` | nothing; bytes are ignored | |
//!
//! Memory is bounded: an option by [`OPTION_BYTES_MAX`], a payload by [`PAYLOAD_BYTES_MAX`], the requests in flight by
//! [`FLIGHT_REQUESTS_MAX`], and their payload by the connection's share of the server's [`super::Budget`]. A request that has to wait for
//! memory is *parked*. Bytes that arrive after it wait in a backlog. This is no longer than a single read of the driver, since
//! [`FrontEndCondition::is_saturated`] is true meanwhile. The data of a read counts until the driver has sent it, so the server stops
//! reading from a client that does not take its replies.

use std::sync::Arc;

use dcd_engine::{Buf, Durability, Extent, Io, IoResult};
use dcd_io::backup_marks::{ChangedRun, DiskMarks};
use dcd_io::{Actions, FrontEnd, FrontEndCondition, MapCall, MappedRun, OutputPiece, SessionFactory};
use rustls::ServerConfig;

use super::budget::Share;
use super::exports::{NbdExports, PAYLOAD_BYTES_MAX};
use super::flight::{AnswerKind, PendingAnswer, RequestsInFlight};
use super::negotiation::{self, Agreed, CONTEXT_ID_FIRST, ClientFlags, MetaContext, OptionOutcome, Tls};
use super::protocol::{self as p, Errno, OptionHeader, RequestHeader};
use super::replies::{ReplyForm, ReplyTo, STATUS_BYTES_MAX, StatusRun, run_of_changes, run_of_holes};
use super::tls::TlsSession;
use super::transmission::{Transmission, Work};
use crate::Outlives;

/// The longest option that is read; a name of 4096 bytes and thousands of info requests fit. A longer one ends the
/// connection: skipping up to 4 GiB would let a client keep the server busy.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Maximum number of a client's options: a handshake needs a handful.
pub const OPTIONS_MAX: u32 = 1024;
/// Maximum number of a connection's requests in the engine; clients keep 16 to 128 in flight.
pub const FLIGHT_REQUESTS_MAX: usize = 512;
/// Limits for buffers that are reused, in number and bytes: clients mostly send requests of equal length, and a fresh
/// buffer costs more than all other work of a session.
const SPARE_BUFS_MAX: usize = 64;
const SPARE_BYTES_MAX: usize = 4 << 20;
/// Small replies are gathered in one piece up to this length.
const GATHER_BYTES_MAX: usize = 4096;

enum SessionPhase {
    ClientFlags,
    OptionHeader,
    OptionData { option: u32, length: usize },
    BeginsTls,
    RequestHeader,
    Payload { to: ReplyTo, durability: Durability, buf: Buf, filled: usize },
    Skip { to: ReplyTo, error: Errno, left: u64 },
    Draining,
    Ended,
}

pub struct NbdSession {
    exports: Arc<NbdExports>,
    phase: SessionPhase,
    flags: ClientFlags,
    tls: Tls,
    /// True if the client has said that it continues with the next server.
    goes_on: bool,
    options: u32,
    agreed: Agreed,
    /// The export of the transmission phase.
    transmission: Option<Transmission>,
    /// Received part of an incomplete header or option.
    partial: Vec<u8>,
    /// Bytes that arrived while too much was in flight, from `backlog_start` on.
    backlog: Vec<u8>,
    backlog_start: usize,
    flight: RequestsInFlight,
    /// The memory that its requests hold.
    share: Share,
    /// A request that waits for memory.
    parked: Option<RequestHeader>,
    spare: Vec<Buf>,
}

/// Makes the sessions of a listening socket.
pub struct NbdFactory {
    exports: Arc<NbdExports>,
    tls: Option<Arc<ServerConfig>>,
}

impl NbdFactory {
    pub fn new(exports: NbdExports) -> NbdFactory {
        NbdFactory { exports: Arc::new(exports), tls: None }
    }

    /// Makes a factory for clients that have to use TLS.
    pub fn over_tls(exports: NbdExports, tls: Arc<ServerConfig>) -> NbdFactory {
        NbdFactory { exports: Arc::new(exports), tls: Some(tls) }
    }
}

impl SessionFactory for NbdFactory {
    fn connect(&mut self) -> Box<dyn FrontEnd> {
        let exports = Arc::clone(&self.exports);
        match &self.tls {
            None => Box::new(NbdSession::new(exports)),
            Some(tls) => Box::new(TlsSession::new(NbdSession::over_tls(exports), Arc::clone(tls))),
        }
    }
}

impl FrontEnd for NbdSession {
    fn start(&mut self, actions: &mut Actions) {
        actions.send.push(OutputPiece::Bytes(negotiation::greeting()));
    }

    fn receive(&mut self, bytes: &[u8], actions: &mut Actions) {
        if self.has_backlog() {
            self.backlog.extend_from_slice(bytes);
            return;
        }
        let left = self.consume(bytes, actions);
        self.backlog.extend_from_slice(&bytes[bytes.len() - left..]);
    }

    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions) {
        if matches!(self.phase, SessionPhase::Ended) {
            // The client broke the protocol while this request was in flight: drop the answer.
            let bytes = self.flight.remove(token).bytes;
            self.share.give_back(bytes);
            return;
        }
        if self.answer(token, result, actions) {
            self.consume_backlog(actions);
        }
        if matches!(self.phase, SessionPhase::Draining) && self.flight.requests() == 0 {
            self.end(actions);
        }
    }

    fn sent(&mut self, buf: Buf, actions: &mut Actions) {
        self.share.give_back(buf.len());
        self.keep(buf);
        self.consume_backlog(actions);
    }

    fn mapped(&mut self, token: u64, runs: &[MappedRun], actions: &mut Actions) {
        let PendingAnswer { to, bytes, kind } = self.flight.remove(token);
        let AnswerKind::Status { extent, runs_max } = kind else { unreachable!("it was asked for this") };
        if matches!(self.phase, SessionPhase::Ended) {
            return self.share.give_back(bytes);
        }
        self.status(to, bytes, (extent, runs_max), runs, actions);
        self.consume_backlog(actions);
        if matches!(self.phase, SessionPhase::Draining) && self.flight.requests() == 0 {
            self.end(actions);
        }
    }

    fn go_on(&mut self, actions: &mut Actions) -> bool {
        let Some(header) = self.parked.take() else { return false };
        self.request(header, actions);
        let goes_on = self.parked.is_none();
        if goes_on {
            self.consume_backlog(actions);
        }
        goes_on
    }

    /// Ends the session. Requests in the engine keep their memory until they complete.
    fn client_gone(&mut self) {
        self.phase = SessionPhase::Ended;
        self.share.shrink_to(self.flight.bytes());
    }

    fn disk(&self) -> usize {
        self.transmission.as_ref().map_or(0, |transmission| transmission.disk)
    }

    fn condition(&self) -> FrontEndCondition {
        let transmits = self.transmission.is_some();
        let holds_requests = self.exports.outlives() != Outlives::No;
        FrontEndCondition {
            is_established: transmits,
            is_saturated: self.has_backlog() || self.must_wait(),
            is_mid_request: match self.phase {
                SessionPhase::RequestHeader => !self.partial.is_empty(),
                SessionPhase::Payload { .. } | SessionPhase::Skip { .. } => true,
                _ => false,
            },
            waits_for_memory: self.share.waits(),
            has_wanted_memory: self.share.has_of_pool(),
            has_device: transmits,
            holds_requests,
            may_reconnect: holds_requests && !self.goes_on,
            outlives_server: self.goes_on && holds_requests,
        }
    }
}

impl NbdSession {
    pub fn new(exports: Arc<NbdExports>) -> NbdSession {
        NbdSession {
            share: Share::of(exports.budget()),
            exports,
            phase: SessionPhase::ClientFlags,
            flags: ClientFlags { fixed_newstyle: false, no_zeroes: false },
            tls: Tls::No,
            goes_on: false,
            options: 0,
            agreed: Agreed::default(),
            transmission: None,
            partial: Vec::new(),
            backlog: Vec::new(),
            backlog_start: 0,
            flight: RequestsInFlight::default(),
            parked: None,
            spare: Vec::new(),
        }
    }

    /// Makes a session that refuses every option but STARTTLS before TLS has begun.
    pub(super) fn over_tls(exports: Arc<NbdExports>) -> NbdSession {
        NbdSession { tls: Tls::Needed, ..NbdSession::new(exports) }
    }

    /// True if the client has asked for TLS and sent nothing since: its next bytes are TLS.
    pub(super) fn begin_tls(&mut self) -> bool {
        let begins = matches!(self.phase, SessionPhase::BeginsTls);
        if begins {
            self.tls = Tls::Begun;
            self.phase = SessionPhase::OptionHeader;
        }
        begins
    }

    fn has_backlog(&self) -> bool {
        self.backlog_start < self.backlog.len()
    }

    /// True between two requests while too much is in flight. False in the middle of a payload: the rest of an accepted
    /// request must be read.
    fn must_wait(&self) -> bool {
        let full = self.parked.is_some() || self.flight.requests() >= FLIGHT_REQUESTS_MAX;
        full && matches!(self.phase, SessionPhase::RequestHeader)
    }

    /// Takes bytes until the session has to wait for the engine. Returns the number of bytes left.
    fn consume(&mut self, mut bytes: &[u8], actions: &mut Actions) -> usize {
        while !bytes.is_empty() && !self.must_wait() {
            match &mut self.phase {
                SessionPhase::ClientFlags => {
                    if let Some(flags) = gather::<{ p::CLIENT_FLAGS_BYTES }>(&mut self.partial, &mut bytes) {
                        self.client_flags(u32::from_be_bytes(flags), actions);
                    }
                }
                SessionPhase::OptionHeader => {
                    if let Some(header) = gather(&mut self.partial, &mut bytes) {
                        self.option_header(OptionHeader::parse(&header), actions);
                    }
                }
                &mut SessionPhase::OptionData { option, length } => {
                    let part = split(&mut bytes, length - self.partial.len());
                    self.partial.extend_from_slice(part);
                    if self.partial.len() == length {
                        self.option(option, actions);
                    }
                }
                SessionPhase::RequestHeader => {
                    let partial = &mut self.partial;
                    let header = match self.agreed.form {
                        ReplyForm::Extended => {
                            gather(partial, &mut bytes).map(|header| RequestHeader::parse_extended(&header))
                        }
                        _ => gather(partial, &mut bytes).map(|header| RequestHeader::parse(&header)),
                    };
                    if let Some(header) = header {
                        self.request(header, actions);
                    }
                }
                SessionPhase::Payload { buf, filled, .. } => {
                    let part = split(&mut bytes, buf.len() - *filled);
                    buf.bytes_mut()[*filled..*filled + part.len()].copy_from_slice(part);
                    *filled += part.len();
                    if *filled == buf.len() {
                        self.write(actions);
                    }
                }
                SessionPhase::Skip { to, error, left } => {
                    *left -= split(&mut bytes, usize::try_from(*left).unwrap_or(usize::MAX)).len() as u64;
                    if *left == 0 {
                        let reply = self.agreed.form.refused(*to, *error);
                        self.phase = SessionPhase::RequestHeader;
                        push_reply(actions, reply);
                    }
                }
                // Bytes before the TLS handshake are in the clear: an attacker may have injected them.
                SessionPhase::BeginsTls => self.end(actions),
                SessionPhase::Draining | SessionPhase::Ended => return 0,
            }
        }
        bytes.len()
    }

    fn consume_backlog(&mut self, actions: &mut Actions) {
        if let Some(header) = self.parked.take() {
            self.request(header, actions);
        }
        if !self.has_backlog() || self.must_wait() {
            return;
        }
        let mut backlog = std::mem::take(&mut self.backlog);
        let left = self.consume(&backlog[self.backlog_start..], actions);
        self.backlog_start = backlog.len() - left;
        if left == 0 {
            backlog.clear();
            self.backlog_start = 0;
        }
        self.backlog = backlog;
    }

    fn end(&mut self, actions: &mut Actions) {
        self.phase = SessionPhase::Ended;
        actions.close = true;
    }

    fn client_flags(&mut self, bits: u32, actions: &mut Actions) {
        match ClientFlags::parse(bits) {
            Some(flags) => {
                self.flags = flags;
                self.phase = SessionPhase::OptionHeader;
            }
            None => self.end(actions),
        }
    }

    fn option_header(&mut self, header: OptionHeader, actions: &mut Actions) {
        self.options += 1;
        if header.magic != p::OPTION_MAGIC || header.length > OPTION_BYTES_MAX || self.options > OPTIONS_MAX {
            return self.end(actions);
        }
        self.phase = SessionPhase::OptionData { option: header.option, length: header.length as usize };
        if header.length == 0 {
            self.option(header.option, actions);
        }
    }

    /// Handles an option, with its whole data.
    fn option(&mut self, option: u32, actions: &mut Actions) {
        let data = std::mem::take(&mut self.partial);
        let (exports, agreed) = (&self.exports, &mut self.agreed);
        match negotiation::answer(exports, self.flags, self.tls, agreed, option, &data, actions) {
            OptionOutcome::Continue => self.phase = SessionPhase::OptionHeader,
            OptionOutcome::GoesOn => {
                self.goes_on = true;
                self.phase = SessionPhase::OptionHeader;
            }
            OptionOutcome::BeginTls => self.phase = SessionPhase::BeginsTls,
            OptionOutcome::Close => self.end(actions),
            OptionOutcome::Transmit(export) => {
                let outlives = self.exports.outlives();
                self.transmission = Some(Transmission::new(&export, outlives, &self.agreed));
                self.phase = SessionPhase::RequestHeader;
            }
        }
    }

    fn request(&mut self, header: RequestHeader, actions: &mut Actions) {
        let extended = self.agreed.form == ReplyForm::Extended;
        if header.magic != if extended { p::EXTENDED_REQUEST_MAGIC } else { p::REQUEST_MAGIC } {
            return self.end(actions);
        }
        // An announced payload will arrive, even if the request is refused.
        let announced = extended && header.flags & p::CMD_FLAG_PAYLOAD_LEN != 0;
        let payload = if header.command == p::CMD_WRITE || announced { header.length } else { 0 };
        if payload > u64::from(PAYLOAD_BYTES_MAX) {
            return self.end(actions);
        }
        let reads = header.command == p::CMD_READ;
        let to = ReplyTo { cookie: header.cookie, offset: header.offset, reads };
        let transmission = self.transmission.as_ref().expect("requests come after an export was chosen");
        let work = transmission.check(&header);
        let bytes = match &work {
            Ok(Work::Write { .. } | Work::Read { .. }) => header.length as usize,
            Ok(Work::Status { .. }) => STATUS_BYTES_MAX * transmission.contexts.len(),
            _ => 0,
        };
        if !self.share.take(bytes) {
            self.parked = Some(header);
            return;
        }
        match work {
            Ok(Work::Write { durability }) => {
                self.phase = match self.buf(bytes) {
                    Some(buf) => SessionPhase::Payload { to, durability, buf, filled: 0 },
                    None => {
                        self.share.give_back(bytes);
                        SessionPhase::Skip { to, error: Errno::NoMem, left: payload }
                    }
                };
            }
            Ok(Work::Read { at, kind }) => match self.buf(bytes) {
                Some(buf) => {
                    let read = PendingAnswer { to, bytes, kind };
                    actions.requests.push((self.flight.insert(read), Io::Read { at, buf }));
                }
                None => {
                    self.share.give_back(bytes);
                    push_reply(actions, self.agreed.form.refused(to, Errno::NoMem));
                }
            },
            Ok(Work::Status { extent, runs_max }) => {
                let kind = AnswerKind::Status { extent, runs_max };
                let token = self.flight.insert(PendingAnswer { to, bytes, kind });
                // Each status waits for its turn. Without the context of holes it asks for next to none.
                let sectors = match transmission.contexts[0] {
                    MetaContext::Allocation => extent.sectors,
                    MetaContext::ChangedSince(_) => extent.sectors.min(8),
                };
                actions.maps.push(MapCall { token, extent: Extent { sectors, ..extent }, runs_max });
            }
            Ok(Work::Other { kind, io }) => {
                let token = self.flight.insert(PendingAnswer { to, bytes: 0, kind });
                actions.requests.push((token, io));
            }
            Ok(Work::Nothing) => push_reply(actions, self.agreed.form.done(to)),
            Ok(Work::Disconnect) if self.flight.requests() == 0 => self.end(actions),
            Ok(Work::Disconnect) => self.phase = SessionPhase::Draining,
            Err(error) if payload > 0 => {
                self.phase = SessionPhase::Skip { to, error, left: payload };
            }
            Err(error) => push_reply(actions, self.agreed.form.refused(to, error)),
        }
    }

    /// Sends the status of blocks in all contexts that the client has selected. `holes`: as the driver tells them. `bytes`: the memory that
    /// the request holds.
    fn status(
        &mut self,
        to: ReplyTo,
        bytes: usize,
        (extent, runs_max): (Extent, usize),
        holes: &[MappedRun],
        actions: &mut Actions,
    ) {
        let Some(transmission) = &self.transmission else { return self.share.give_back(bytes) };
        let (contexts, form) = (&transmission.contexts, self.agreed.form);
        let mut reply = Vec::new();
        for (place, context) in contexts.iter().enumerate() {
            let runs: Vec<StatusRun> = match context {
                MetaContext::Allocation => holes.iter().map(run_of_holes).collect(),
                MetaContext::ChangedSince(mark) => {
                    let of_mark = |own: &DiskMarks| own.changed(*mark, extent, runs_max);
                    let runs = self.exports.marks().of(transmission.disk, of_mark);
                    // A disk that has left its log.
                    let all = || vec![ChangedRun { sectors: extent.sectors, changed: true }];
                    runs.unwrap_or_else(all).iter().map(run_of_changes).collect()
                }
            };
            let id = CONTEXT_ID_FIRST + place as u32;
            reply.extend(form.status(to, id, &runs, place + 1 == contexts.len()));
        }
        // A buffer: until it is sent, its memory counts.
        let reply = Buf::copy_of(&reply);
        self.share.give_back(bytes - reply.len());
        actions.send.push(OutputPiece::Buf(reply));
    }

    /// Handles a write, with its whole payload.
    fn write(&mut self, actions: &mut Actions) {
        let SessionPhase::Payload { to, durability, buf, .. } =
            std::mem::replace(&mut self.phase, SessionPhase::RequestHeader)
        else {
            unreachable!("a payload ends in its phase");
        };
        let token = self.flight.insert(PendingAnswer { to, bytes: buf.len(), kind: AnswerKind::Write });
        let at = Transmission::lba(to.offset);
        actions.requests.push((token, Io::Write { at, buf, durability }));
    }

    /// Sends the answer to a request. Returns false if the request continues.
    fn answer(&mut self, token: u64, result: IoResult, actions: &mut Actions) -> bool {
        let pending = self.flight.get_mut(token);
        if pending.kind == AnswerKind::TrimThenFlush && result.status.is_ok() {
            pending.kind = AnswerKind::Flush;
            actions.requests.push((token, Io::Flush));
            return false;
        }
        let PendingAnswer { to, bytes, kind } = self.flight.remove(token);
        let form = self.agreed.form;
        if let Err(error) = result.status {
            let writes_data = matches!(kind, AnswerKind::Write | AnswerKind::Zeroes { .. });
            let fast_zero = matches!(kind, AnswerKind::Zeroes { fast: true });
            let number = Errno::of(error.kind, writes_data, fast_zero);
            push_reply(actions, form.failed(to, bytes as u64, number, &error));
        } else if kind != AnswerKind::Read {
            push_reply(actions, form.done(to));
        } else if result.buf.bytes().len() != bytes {
            // A short or blank buffer would put the stream out of step: the client would take other replies for its data.
            push_reply(actions, form.refused(to, Errno::Io));
        } else if let Some(reply) = form.zeroes(to, bytes).filter(|_| is_zero(result.buf.bytes())) {
            push_reply(actions, reply);
        } else {
            push_reply(actions, form.data(to, bytes));
            actions.send.push(OutputPiece::Buf(result.buf));
            return true;
        }
        self.share.give_back(bytes);
        self.keep(result.buf);
        true
    }

    /// Returns a buffer of `bytes`, reused from a write or new. None without memory: then this request fails.
    ///
    /// Old bytes in a reused buffer came from the same client, so no other client's data can leak.
    fn buf(&mut self, bytes: usize) -> Option<Buf> {
        match self.spare.pop() {
            Some(buf) if buf.len() == bytes => Some(buf),
            other => {
                if other.is_some() {
                    // The client has changed its request size.
                    self.spare.clear();
                }
                Buf::try_zeroed(bytes)
            }
        }
    }

    fn keep(&mut self, mut buf: Buf) {
        // They are all of one length; see `buf`.
        let spare = self.spare.len() + 1;
        let room = spare <= SPARE_BUFS_MAX && spare * buf.len() <= SPARE_BYTES_MAX;
        let same = self.spare.first().is_none_or(|first| first.len() == buf.len());
        if room && same && !buf.is_blank() && !buf.is_empty() && buf.reclaim() {
            self.spare.push(buf);
        }
    }
}

/// Takes up to `want` bytes off the front.
fn split<'a>(bytes: &mut &'a [u8], want: usize) -> &'a [u8] {
    let (part, rest) = bytes.split_at(want.min(bytes.len()));
    *bytes = rest;
    part
}

/// Takes `N` bytes, the first of which may have come earlier.
fn gather<const N: usize>(partial: &mut Vec<u8>, bytes: &mut &[u8]) -> Option<[u8; N]> {
    if partial.is_empty()
        && let Some((whole, rest)) = bytes.split_first_chunk::<N>()
    {
        *bytes = rest;
        return Some(*whole);
    }
    partial.extend_from_slice(split(bytes, N - partial.len()));
    let whole = partial.as_slice().try_into().ok()?;
    partial.clear();
    Some(whole)
}

/// Replies without data share a piece.
fn push_reply(actions: &mut Actions, reply: Vec<u8>) {
    match actions.send.last_mut() {
        Some(OutputPiece::Bytes(bytes)) if bytes.len() < GATHER_BYTES_MAX => bytes.extend_from_slice(&reply),
        _ => actions.send.push(OutputPiece::Bytes(reply)),
    }
}

/// True if all bytes are zero. Data mostly ends the search at its start.
fn is_zero(bytes: &[u8]) -> bool {
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
