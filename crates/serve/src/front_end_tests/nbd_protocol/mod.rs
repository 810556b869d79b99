//! The NBD session without a socket: every byte of the handshake and of the transmission, lies included.

mod chunks;
mod handshake;
mod hostile;
mod transmission;

use std::sync::Arc;

use dcd_engine::{Buf, Durability, Geometry, Io, IoResult};
use dcd_io::{Actions, FrontEnd, MapCall, OutputPiece};
use dcd_serve::nbd::{NbdExports, NbdSession, protocol as p};

use super::common::zero_runs;

/// A session with a device in memory, and everything that it has sent.
struct Peer {
    session: NbdSession,
    sent: Vec<u8>,
    /// Requests that the device has not finished.
    requests: Vec<(u64, Io)>,
    /// Questions about sectors that are not answered.
    maps: Vec<MapCall>,
    closed: bool,
    disk: Vec<u8>,
    /// Requests to the device, in words.
    log: Vec<String>,
    /// Buffers of `sent` that the client has not read; it does at once, unless told otherwise.
    unread: Vec<Buf>,
    reads_replies: bool,
    /// Bytes of `sent` that `take` has returned.
    taken: usize,
}

const DISK_BYTES: usize = 1 << 20;

fn geometry() -> Geometry {
    Geometry {
        discards: dcd_engine::Discards::Zero,
        fast_zeroes: true,
        ..Geometry::plain(DISK_BYTES as u64 / 512)
    }
}

impl Peer {
    /// A new connection with the greeting read.
    fn connect(exports: NbdExports) -> Peer {
        let mut peer = Peer {
            session: NbdSession::new(Arc::new(exports)),
            sent: Vec::new(),
            requests: Vec::new(),
            maps: Vec::new(),
            closed: false,
            disk: vec![0; DISK_BYTES],
            log: Vec::new(),
            unread: Vec::new(),
            reads_replies: true,
            taken: 0,
        };
        let mut actions = Actions::default();
        peer.session.start(&mut actions);
        peer.absorb(actions);
        assert_eq!(peer.take(), [&b"NBDMAGICIHAVEOPT"[..], &[0, 3]].concat());
        peer
    }

    fn single() -> Peer {
        Peer::connect(NbdExports::single("disk", geometry(), false))
    }

    /// A connection in the transmission phase.
    fn transmitting(geometry: Geometry, read_only: bool) -> Peer {
        Peer::transmitting_to(NbdExports::single("disk", geometry, read_only))
    }

    fn transmitting_to(exports: NbdExports) -> Peer {
        let mut peer = Peer::connect(exports);
        peer.give(&3u32.to_be_bytes());
        peer.give(&option(p::OPT_GO, &info_data(b"disk", &[])));
        assert!(peer.session.condition().is_established && !peer.closed);
        peer.take();
        peer
    }

    fn absorb(&mut self, actions: Actions) {
        assert!(
            !self.closed || actions.send.is_empty() && actions.requests.is_empty(),
            "it goes on after its end"
        );
        for piece in actions.send {
            match piece {
                OutputPiece::Bytes(bytes) => self.sent.extend_from_slice(&bytes),
                OutputPiece::Buf(buf) => {
                    self.sent.extend_from_slice(buf.bytes());
                    self.unread.push(buf);
                }
            }
        }
        self.requests.extend(actions.requests);
        self.maps.extend(actions.maps);
        assert!(actions.calls.is_empty());
        self.closed |= actions.close;
        if self.reads_replies {
            self.read_replies();
        }
    }

    /// The client takes everything that was sent to it.
    fn read_replies(&mut self) {
        for buf in std::mem::take(&mut self.unread) {
            let mut actions = Actions::default();
            self.session.sent(buf, &mut actions);
            self.absorb(actions);
        }
    }

    fn give(&mut self, bytes: &[u8]) {
        let mut actions = Actions::default();
        self.session.receive(bytes, &mut actions);
        self.absorb(actions);
    }

    fn reply(&mut self, token: u64, result: IoResult) {
        let mut actions = Actions::default();
        self.session.reply(token, result, &mut actions);
        self.absorb(actions);
    }

    /// Lets the device finish everything.
    fn finish(&mut self) {
        loop {
            if !self.requests.is_empty() {
                let (token, io) = self.requests.remove(0);
                let result = self.run(io);
                self.reply(token, result);
            } else if !self.maps.is_empty() {
                let MapCall { token, extent, runs_max } = self.maps.remove(0);
                let runs = zero_runs(&self.disk, extent, runs_max);
                let mut actions = Actions::default();
                self.session.mapped(token, &runs, &mut actions);
                self.absorb(actions);
            } else {
                return;
            }
        }
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        let mut words = io.name().to_owned();
        if let Some(extent) = io.extent() {
            words += &format!(" {}+{}", extent.start.0, extent.sectors);
        }
        match &io {
            Io::Write { durability: Durability::Durable, .. }
            | Io::WriteZeroes { durability: Durability::Durable, .. } => words += " durable",
            _ => {}
        }
        if let Io::WriteZeroes { unmap: true, .. } = &io {
            words += " unmap";
        }
        self.log.push(words);
        let range = io.extent().map(|e| e.start.bytes() as usize..e.end().bytes() as usize);
        match (&mut io, range) {
            (Io::Read { buf, .. }, Some(range)) => buf.bytes_mut().copy_from_slice(&self.disk[range]),
            (Io::Write { buf, .. }, Some(range)) => self.disk[range].copy_from_slice(buf.bytes()),
            (_, Some(range)) => self.disk[range].fill(0),
            _ => {}
        }
        IoResult::ok(io.take_buf())
    }

    /// Returns the bytes that were sent since the last call.
    fn take(&mut self) -> Vec<u8> {
        let new = self.sent[self.taken..].to_vec();
        self.taken = self.sent.len();
        new
    }

    /// Sends a request, lets it finish, and returns the error of its reply and what follows it.
    fn ask(&mut self, flags: u16, command: u16, offset: u64, length: u32, payload: &[u8]) -> (u32, Vec<u8>) {
        self.give(&request(flags, command, 0x0102_0304_0506_0708, offset, length));
        self.give(payload);
        self.finish();
        let reply = self.take();
        assert!(!self.closed && reply.len() >= 16, "no reply");
        assert_eq!(reply[..4], p::SIMPLE_REPLY_MAGIC.to_be_bytes());
        assert_eq!(p::u64_at(&reply, 8), 0x0102_0304_0506_0708, "the cookie comes back");
        (p::u32_at(&reply, 4), reply[16..].to_vec())
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

fn info_data(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(name);
    data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|kind| data.extend_from_slice(&kind.to_be_bytes()));
    data
}

fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = p::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// The replies to options in `bytes`: option, kind, data.
fn option_replies(mut bytes: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut replies = Vec::new();
    while !bytes.is_empty() {
        assert_eq!(p::u64_at(bytes, 0), p::OPTION_REPLY_MAGIC);
        let end = 20 + p::u32_at(bytes, 16) as usize;
        replies.push((p::u32_at(bytes, 8), p::u32_at(bytes, 12), bytes[20..end].to_vec()));
        bytes = &bytes[end..];
    }
    replies
}

/// The kinds alone.
fn kinds(bytes: &[u8]) -> Vec<u32> {
    option_replies(bytes).into_iter().map(|(_, kind, _)| kind).collect()
}

fn no_buf() -> Buf {
    Buf::none()
}
