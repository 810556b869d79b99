//! The NBD session over TLS, without a socket: what it makes the server hold, whatever its client asks for and takes.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;

use dcd_engine::{Geometry, Io, IoResult};
use dcd_io::{Actions, FrontEnd, OutputPiece, SessionFactory};
use dcd_serve::nbd::{
    CONNECTION_BYTES_MAX, FLIGHT_REQUESTS_MAX, NbdExports, NbdFactory, PAYLOAD_BYTES_MAX, protocol as p,
};
use proptest::prelude::*;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};

/// Encrypted bytes that may wait for the client, with the overhead of their records.
const SEALED_BYTES_MAX: usize = (1 << 20) + (256 << 10);
/// More than all requests of a case together.
const DISK_SECTORS: u64 = 1 << 30;

fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let key = KeyPair::generate().unwrap();
    let parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = parameters.self_signed(&key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let server = ServerConfig::builder().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate.der().clone()], key).unwrap();
    let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    (Arc::new(server), Arc::new(client))
}

/// Both ends of a connection. The server's messages wait in `outgoing` until the client takes them, as in the driver.
struct Pair {
    session: Box<dyn FrontEnd>,
    client: ClientConnection,
    outgoing: VecDeque<OutputPiece>,
    requests: VecDeque<(u64, Io)>,
    /// Bytes of reads that the engine was asked for.
    asked: usize,
    /// Bytes that the client has decrypted.
    got: Vec<u8>,
    closed: bool,
}

impl Pair {
    /// In the transmission phase.
    fn connect() -> Pair {
        let mut pair = Pair::begin(&configs());
        pair.establish();
        pair
    }

    fn establish(&mut self) {
        self.say(&option(p::OPT_GO, &[0; 6]));
        while !self.session.condition().is_established {
            self.deliver();
            self.take(usize::MAX);
        }
        self.take(usize::MAX);
        self.got.clear();
    }

    /// The client has asked for TLS, and has sent nothing of it.
    fn begin((server, client): &(Arc<ServerConfig>, Arc<ClientConfig>)) -> Pair {
        let exports = NbdExports::single("disk", Geometry::plain(DISK_SECTORS), false);
        let session = NbdFactory::over_tls(exports, Arc::clone(server)).connect();
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
        client.set_buffer_limit(None);
        let mut pair = Pair {
            session,
            client,
            outgoing: VecDeque::new(),
            requests: VecDeque::new(),
            asked: 0,
            got: Vec::new(),
            closed: false,
        };
        pair.call(|session, actions| session.start(actions));
        let starttls =
            [p::FLAG_C_FIXED_NEWSTYLE.to_be_bytes().to_vec(), option(p::OPT_STARTTLS, &[])].concat();
        pair.call(|session, actions| session.receive(&starttls, actions));
        // The greeting and the acknowledgement are in the clear.
        pair.outgoing.clear();
        pair
    }

    fn call(&mut self, call: impl FnOnce(&mut dyn FrontEnd, &mut Actions)) {
        let mut actions = Actions::default();
        call(self.session.as_mut(), &mut actions);
        for (_, io) in &actions.requests {
            if let Io::Read { buf, .. } = io {
                self.asked += buf.len();
            }
        }
        self.requests.extend(actions.requests);
        self.outgoing.extend(actions.send);
        self.closed |= actions.close;
        let waiting: usize = self.outgoing.iter().map(|piece| bytes_of(piece).len()).sum();
        assert!(waiting <= SEALED_BYTES_MAX, "{waiting} bytes wait for a client that takes nothing");
        let held = self.asked - self.got.len().min(self.asked);
        let may = CONNECTION_BYTES_MAX + SEALED_BYTES_MAX;
        assert!(held <= may, "{held} bytes are held for one client");
        assert!(self.requests.len() <= FLIGHT_REQUESTS_MAX);
    }

    /// The client encrypts this; see `deliver`.
    fn say(&mut self, bytes: &[u8]) {
        self.client.writer().write_all(bytes).unwrap();
    }

    /// The server receives what the client has sent, unless it does not listen.
    fn deliver(&mut self) {
        while self.client.wants_write() && !self.session.condition().is_saturated {
            let bytes = self.encrypted();
            self.call(|session, actions| session.receive(&bytes, actions));
        }
    }

    fn encrypted(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.client.write_tls(&mut bytes).unwrap();
        bytes
    }

    /// The server receives what no client has sent so, or what follows on that. It carries out nothing.
    fn mislead(&mut self, bytes: &[u8]) {
        let (was_established, requests) = (self.session.condition().is_established, self.requests.len());
        self.call(|session, actions| session.receive(bytes, actions));
        assert!(!was_established || self.requests.len() == requests, "a damaged message was carried out");
    }

    /// The client takes some of the messages.
    fn take(&mut self, messages: usize) {
        for _ in 0..messages {
            match self.outgoing.pop_front() {
                None => return,
                Some(OutputPiece::Bytes(bytes)) => {
                    let mut bytes = bytes.as_slice();
                    while !bytes.is_empty() {
                        self.client.read_tls(&mut bytes).unwrap();
                        let state = self.client.process_new_packets().unwrap();
                        let start = self.got.len();
                        self.got.resize(start + state.plaintext_bytes_to_read(), 0);
                        self.client.reader().read_exact(&mut self.got[start..]).unwrap();
                    }
                }
                Some(OutputPiece::Buf(buf)) => self.call(|session, actions| session.sent(buf, actions)),
            }
        }
    }

    /// The engine answers one of the oldest requests.
    fn answer(&mut self, at: usize) {
        let Some((token, mut io)) = self.requests.remove(at.min(self.requests.len().saturating_sub(1)))
        else {
            return;
        };
        if let Io::Read { at, buf } = &mut io {
            let fill = (at.0 / 8) as u8;
            buf.bytes_mut().fill(fill);
        }
        self.call(|session, actions| session.reply(token, IoResult::ok(io.take_buf()), actions));
    }
}

fn bytes_of(piece: &OutputPiece) -> &[u8] {
    match piece {
        OutputPiece::Bytes(bytes) => bytes,
        OutputPiece::Buf(buf) => buf.bytes(),
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = p::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    [bytes, data.to_vec()].concat()
}

fn read(cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = p::REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend([0, 0]);
    bytes.extend(p::CMD_READ.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(length.to_be_bytes());
    bytes
}

/// A hundred requests of the largest size would be 3.2 GB.
#[test]
fn a_client_that_takes_nothing_is_held_little_for() {
    let mut pair = Pair::connect();
    let burst: Vec<u8> = (0..100).flat_map(|cookie| read(cookie, 0, PAYLOAD_BYTES_MAX)).collect();
    pair.say(&burst);
    pair.deliver();
    while !pair.requests.is_empty() {
        pair.answer(0);
    }
    assert!(pair.session.condition().is_saturated && pair.asked <= CONNECTION_BYTES_MAX);
    // It takes everything at last.
    let (wanted, mut taken) = (100 * (16 + PAYLOAD_BYTES_MAX as usize), 0);
    while taken < wanted {
        assert!(!pair.outgoing.is_empty() || !pair.requests.is_empty(), "it goes on");
        pair.answer(0);
        pair.take(usize::MAX);
        pair.deliver();
        // The memory of the test is not the server's.
        taken += pair.got.len();
        pair.asked -= pair.got.len().min(pair.asked);
        pair.got.clear();
    }
    assert!(taken == wanted && !pair.session.condition().is_saturated && !pair.closed);
}

#[derive(Clone, Debug)]
enum Step {
    Ask { length: u32 },
    Answer { at: usize },
    Take { messages: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let length = prop_oneof![
        4 => (1..64u32).prop_map(|sectors| sectors * 512),
        2 => (1..64u32).prop_map(|units| units << 15),
        1 => Just(PAYLOAD_BYTES_MAX),
    ];
    prop_oneof![
        4 => length.prop_map(|length| Step::Ask { length }),
        3 => (0..8usize).prop_map(|at| Step::Answer { at }),
        1 => (1..40usize).prop_map(|messages| Step::Take { messages }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// `call` asserts the budget at each step; at the end the client has each reply, whole and right.
    #[test]
    fn whatever_is_asked_and_taken_memory_is_bounded_and_replies_are_right(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut pair = Pair::connect();
        let mut lengths = Vec::new();
        for step in steps {
            match step {
                Step::Ask { length } => {
                    let cookie = lengths.len() as u64;
                    lengths.push(length as usize);
                    pair.say(&read(cookie, cookie * 4096, length));
                    pair.deliver();
                }
                Step::Answer { at } => pair.answer(at),
                Step::Take { messages } => pair.take(messages),
            }
        }
        let wanted: usize = lengths.iter().map(|length| 16 + length).sum();
        while pair.got.len() < wanted {
            pair.deliver();
            prop_assert!(!pair.outgoing.is_empty() || !pair.requests.is_empty(), "it goes on");
            pair.answer(0);
            pair.take(usize::MAX);
        }
        prop_assert!(pair.got.len() == wanted && !pair.closed);
        let (mut rest, mut seen) = (pair.got.as_slice(), vec![false; lengths.len()]);
        while !rest.is_empty() {
            prop_assert_eq!(&rest[..8], &p::simple_reply(0, 0)[..8]);
            let cookie = p::u64_at(rest, 8) as usize;
            let length = lengths[cookie];
            prop_assert!(!std::mem::replace(&mut seen[cookie], true), "one reply for each");
            prop_assert!(rest[16..16 + length].iter().all(|byte| *byte == cookie as u8));
            rest = &rest[16 + length..];
        }
    }
}

/// An action of a client that does not keep to TLS.
#[derive(Debug, bolero::TypeGenerator)]
enum Misdeed {
    /// Sends its own bytes, with one bit changed, and without the last ones.
    Damage { at: u16, bit: u8, lost: u8 },
    /// Sends bytes of its own making.
    Noise(Vec<u8>),
    /// Asks as it should, and takes some messages.
    Ask { length: u8, take: u8 },
}

/// Bytes of a record's kind and version: rustls takes a sealed record whatever they are, and what is in it is genuine.
const UNSEALED_BYTES: usize = 3;

/// `call` asserts the budget at each step. A damaged message is never carried out.
#[test]
fn a_client_that_does_not_keep_to_tls_makes_the_server_do_nothing() {
    let configs = std::panic::AssertUnwindSafe(configs());
    bolero::check!().with_type().for_each(|(late, misdeeds): &(bool, Vec<Misdeed>)| {
        let mut pair = Pair::begin(&configs);
        if *late {
            pair.establish();
        }
        let mut is_damaged = false;
        for (cookie, misdeed) in (0..).zip(misdeeds) {
            if !is_damaged {
                // The client's bytes so far are good.
                pair.deliver();
                if pair.session.condition().is_saturated {
                    pair.take(usize::MAX);
                    continue;
                }
            }
            let mut bytes = match misdeed {
                Misdeed::Ask { length, take } if !is_damaged => {
                    pair.say(&read(cookie, 0, u32::from(*length) * 512 + 512));
                    pair.deliver();
                    pair.answer(0);
                    pair.take(usize::from(*take));
                    continue;
                }
                Misdeed::Noise(bytes) => bytes.clone(),
                Misdeed::Ask { .. } | Misdeed::Damage { .. } => {
                    pair.say(&read(cookie, 0, 512));
                    pair.encrypted()
                }
            };
            if let Misdeed::Damage { at, bit, lost } = misdeed
                && bytes.len() > UNSEALED_BYTES
            {
                let at = UNSEALED_BYTES + usize::from(*at) % (bytes.len() - UNSEALED_BYTES);
                bytes[at] ^= 1 << (bit % 8);
                bytes.truncate(bytes.len().saturating_sub(usize::from(*lost)).max(at + 1));
            }
            is_damaged |= !bytes.is_empty();
            pair.mislead(&bytes);
        }
    });
}
