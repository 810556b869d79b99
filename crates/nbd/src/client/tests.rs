//! The client beside a server that loses connections, its volatile writes, and time.

use std::collections::{BTreeMap, VecDeque};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::protocol as p;

const SECTORS: usize = 24;
const SECTOR: usize = SECTOR_BYTES as usize;
const FLAGS: u16 = p::TFLAG_HAS_FLAGS
    | p::TFLAG_SEND_FLUSH
    | p::TFLAG_SEND_FUA
    | p::TFLAG_SEND_TRIM
    | p::TFLAG_CAN_MULTI_CONN;

fn offer() -> Offer {
    Offer {
        bytes: (SECTORS * SECTOR) as u64,
        flags: FLAGS,
        durable: false,
        block_bytes_min: 512,
        block_bytes_preferred: 4096,
        // So that a request of three sectors takes two pieces.
        payload_bytes_max: 2 * SECTOR as u32,
    }
}

/// A request as it came.
#[derive(Clone, Debug)]
struct Asked {
    command: u16,
    flags: u16,
    cookie: u64,
    first: usize,
    sectors: usize,
    /// Content: a byte for each sector.
    data: Vec<u8>,
}

/// Sectors that each hold one byte over and over.
#[derive(Default)]
struct Server {
    durable: Vec<u8>,
    /// Writes that a crash may lose, the oldest first.
    volatile: Vec<(usize, u8)>,
    /// For each connection what came and was not parsed, and what was not carried out.
    links: Vec<(Vec<u8>, Vec<Asked>)>,
    /// Requests of lost connections, with the end of the time in which they may still be carried out; no time while there is no connection.
    late: Vec<(Asked, Option<Nanos>)>,
    /// Answers that have not gone out, with their connections.
    replies: Vec<(usize, Vec<u8>)>,
}

impl Server {
    fn now(&self, sector: usize) -> u8 {
        let newest = self.volatile.iter().rev().find(|(at, _)| *at == sector);
        newest.map_or(self.durable[sector], |(_, value)| *value)
    }

    fn flush(&mut self) {
        for (sector, value) in self.volatile.drain(..) {
            self.durable[sector] = value;
        }
    }

    /// Takes what the client sends.
    fn take(&mut self, client: &mut NbdClient) {
        for (index, (unparsed, asked)) in self.links.iter_mut().enumerate() {
            unparsed.append(client.outgoing(index));
            while unparsed.len() >= p::REQUEST_HEADER_BYTES {
                let header = unparsed.first_chunk().expect("that long");
                let header = p::RequestHeader::parse(header);
                assert_eq!(header.magic, p::REQUEST_MAGIC);
                let payload = if header.command == p::CMD_WRITE { header.length as usize } else { 0 };
                assert!(payload <= 2 * SECTOR, "longer than what the server takes");
                let end = p::REQUEST_HEADER_BYTES + payload;
                assert!(unparsed.len() >= end, "requests are sent whole here");
                asked.push(Asked {
                    command: header.command,
                    flags: header.flags,
                    cookie: header.cookie,
                    first: header.offset as usize / SECTOR,
                    sectors: header.length as usize / SECTOR,
                    data: unparsed[p::REQUEST_HEADER_BYTES..end].iter().step_by(SECTOR).copied().collect(),
                });
                unparsed.drain(..end);
            }
        }
    }

    /// Carries a request out, and answers.
    fn run(&mut self, asked: &Asked) -> Vec<u8> {
        let mut reply = p::simple_reply(0, asked.cookie).to_vec();
        let range = asked.first..asked.first + asked.sectors;
        match asked.command {
            p::CMD_READ => {
                for sector in range {
                    let value = self.now(sector);
                    reply.resize(reply.len() + SECTOR, value);
                }
            }
            p::CMD_WRITE => {
                for (sector, value) in range.zip(&asked.data) {
                    self.volatile.push((sector, *value));
                    if asked.flags & p::CMD_FLAG_FUA != 0 {
                        self.durable[sector] = *value;
                        self.volatile.retain(|(at, _)| *at != sector);
                    }
                }
            }
            // It need not do anything, and does that here.
            p::CMD_TRIM => {}
            p::CMD_FLUSH => self.flush(),
            other => panic!("command {other}"),
        }
        reply
    }

    /// Loses the connections, and where it crashes, some of what is volatile.
    fn lose(&mut self, random: &mut ChaCha8Rng) {
        self.replies.clear();
        let crashes = random.random_bool(0.5);
        if crashes {
            self.late.clear();
            for (sector, value) in std::mem::take(&mut self.volatile) {
                if random.random_bool(0.5) {
                    self.durable[sector] = value;
                }
            }
        }
        for (_, asked) in std::mem::take(&mut self.links) {
            // Of a server that goes on, all that came may still be carried out.
            let late = asked.into_iter().filter(|_| !crashes);
            self.late.extend(late.map(|asked| (asked, None)));
        }
    }
}

/// A request to the client, with its expected result.
enum Asking {
    Read(Vec<u8>),
    Write,
    /// For each sector: the newest write of it was answered when the flush was asked for.
    Flush(Vec<bool>),
}

struct Rig {
    random: ChaCha8Rng,
    now: Nanos,
    client: NbdClient,
    server: Server,
    content: Vec<u8>,
    /// The newest write of each sector.
    newest: Vec<Option<u64>>,
    asking: BTreeMap<u64, Asking>,
    losses: usize,
    /// Probability of a loss in each step.
    loss: f64,
}

impl Rig {
    fn new(seed: u64) -> Rig {
        Rig {
            random: ChaCha8Rng::seed_from_u64(seed),
            now: Nanos::from_secs(1),
            client: NbdClient::new(offer()),
            server: Server { durable: vec![0; SECTORS], ..Server::default() },
            content: vec![0; SECTORS],
            newest: vec![None; SECTORS],
            asking: BTreeMap::new(),
            losses: 0,
            loss: 0.08,
        }
    }

    fn ask(&mut self) {
        let sectors = self.random.random_range(1..=3);
        let first = self.random.random_range(0..=SECTORS - sectors);
        let (at, range) = (Lba(first as u64), first..first + sectors);
        match self.random.random_range(0..10) {
            0..3 => {
                let number =
                    self.client.submit(self.now, Io::Read { at, buf: Buf::zeroed(sectors * SECTOR) });
                self.asking.insert(number, Asking::Read(self.content[range].to_vec()));
            }
            3..8 => {
                let value = self.random.random();
                let buf = Buf::copy_of(&vec![value; sectors * SECTOR]);
                let durable = self.random.random_bool(0.3);
                let durability = if durable { Durability::Durable } else { Durability::Volatile };
                let number = self.client.submit(self.now, Io::Write { at, buf, durability });
                self.asking.insert(number, Asking::Write);
                self.content[range.clone()].fill(value);
                self.newest[range].fill(Some(number));
            }
            8 => {
                let extent = Extent::new(at, sectors as u64);
                let durability = Durability::Volatile;
                let number =
                    self.client.submit(self.now, Io::WriteZeroes { extent, unmap: true, durability });
                self.asking.insert(number, Asking::Write);
                self.content[range.clone()].fill(0);
                self.newest[range].fill(Some(number));
            }
            _ => self.flush(),
        }
    }

    fn flush(&mut self) {
        let is_answered = |write: &Option<u64>| write.is_none_or(|number| !self.asking.contains_key(&number));
        let answered = self.newest.iter().map(is_answered).collect();
        let number = self.client.submit(self.now, Io::Flush);
        self.asking.insert(number, Asking::Flush(answered));
    }

    /// Something happens.
    fn step(&mut self) {
        self.now += Nanos::from_millis(self.random.random_range(0..1500));
        if self.random.random_bool(0.5) {
            self.run_late();
        }
        if self.server.links.is_empty() {
            let links = self.random.random_range(1..=3);
            self.server.links.resize_with(links, Default::default);
            self.client.connected(self.now, links, &offer()).expect("it is the same export");
            for (_, until) in &mut self.server.late {
                until.get_or_insert(self.now + SETTLE);
            }
        } else if self.random.random_bool(self.loss) {
            self.losses += 1;
            self.server.take(&mut self.client);
            self.server.lose(&mut self.random);
            self.client.lost();
        } else if self.random.random_bool(0.5) {
            self.carry_out();
        } else {
            self.answer();
        }
        self.client.send_waiting(self.now);
        self.look_at_ended();
        self.server.take(&mut self.client);
        let Server { links, replies, .. } = &self.server;
        let waits =
            !links.is_empty() && links.iter().all(|(_, asked)| asked.is_empty()) && replies.is_empty();
        let goes_on = !waits || self.asking.is_empty() || self.client.next_deadline().is_some();
        assert!(goes_on, "work is left, nothing is in flight, and no deadline is set");
    }

    /// An old connection's request is carried out late.
    fn run_late(&mut self) {
        let now = self.now;
        self.server.late.retain(|(_, until)| until.is_none_or(|until| until > now));
        if !self.server.late.is_empty() {
            let index = self.random.random_range(0..self.server.late.len());
            let (asked, _) = self.server.late.remove(index);
            self.server.run(&asked);
        }
    }

    /// The server carries out one of the requests that it has, in any order.
    fn carry_out(&mut self) {
        self.server.take(&mut self.client);
        let all: Vec<(usize, usize)> = (0..self.server.links.len())
            .flat_map(|link| (0..self.server.links[link].1.len()).map(move |at| (link, at)))
            .collect();
        if !all.is_empty() {
            let (link, at) = all[self.random.random_range(0..all.len())];
            let asked = self.server.links[link].1.remove(at);
            let reply = self.server.run(&asked);
            self.server.replies.push((link, reply));
        }
    }

    /// The server answers one of those that it has carried out.
    fn answer(&mut self) {
        if self.server.replies.is_empty() {
            return;
        }
        let index = self.random.random_range(0..self.server.replies.len());
        let (link, reply) = self.server.replies.swap_remove(index);
        let mut reply = VecDeque::from(reply);
        while !reply.is_empty() {
            let take = self.random.random_range(1..=reply.len());
            let bytes: Vec<u8> = reply.drain(..take).collect();
            self.client.receive(self.now, link, &bytes).expect("it is an answer");
        }
    }

    fn look_at_ended(&mut self) {
        for (number, result) in self.client.take_ended() {
            assert_eq!(result.status, Ok(()));
            match self.asking.remove(&number).expect("it was asked for once") {
                Asking::Write => {}
                Asking::Read(expected) => {
                    let found: Vec<u8> = result.buf.bytes().iter().step_by(SECTOR).copied().collect();
                    assert_eq!(found, expected);
                }
                Asking::Flush(answered) => {
                    for (sector, was_answered) in answered.into_iter().enumerate() {
                        let is_newest = self.newest[sector].is_none_or(|newest| newest < number);
                        if was_answered && is_newest {
                            assert_eq!(self.server.durable[sector], self.content[sector], "sector {sector}");
                        }
                    }
                }
            }
        }
    }

    fn drain(&mut self) {
        self.loss = 0.01;
        for _ in 0..100_000 {
            if self.asking.is_empty() {
                return;
            }
            self.step();
        }
        panic!("it does not end");
    }
}

#[test]
fn nothing_is_lost_or_reordered_whatever_becomes_of_connections_and_servers() {
    let mut losses = 0;
    for seed in 0..400 {
        let mut rig = Rig::new(seed);
        for _ in 0..60 {
            for _ in 0..rig.random.random_range(0..3) {
                rig.ask();
            }
            rig.step();
        }
        rig.drain();
        rig.flush();
        rig.drain();
        assert_eq!(rig.server.durable, rig.content, "seed {seed}");
        losses += rig.losses;
    }
    assert!(losses > 1000, "{losses}");
}

/// A client with one connection, over which the bytes are looked at.
fn connected() -> NbdClient {
    let mut client = NbdClient::new(offer());
    client.connected(Nanos::ZERO, 1, &offer()).unwrap();
    show(&mut client, |_| 0).unwrap();
    client
}

/// Answers reads, and nothing else, by what sectors hold.
fn show(client: &mut NbdClient, holds: impl Fn(usize) -> u8) -> Result<(), LinkError> {
    let mut server = Server { links: vec![Default::default()], ..Server::default() };
    loop {
        server.take(client);
        let asked = std::mem::take(&mut server.links[0].1);
        if asked.is_empty() {
            return Ok(());
        }
        for asked in asked {
            assert_eq!(asked.command, p::CMD_READ);
            let mut reply = p::simple_reply(0, asked.cookie).to_vec();
            for sector in asked.first..asked.first + asked.sectors {
                reply.resize(reply.len() + SECTOR, holds(sector));
            }
            client.receive(Nanos::ZERO, 0, &reply)?;
            // What came after the reads is for the test.
            if !client.is_checking() {
                return Ok(());
            }
        }
    }
}

fn write(at: u64, value: u8, durability: Durability) -> Io {
    Io::Write { at: Lba(at), buf: Buf::copy_of(&[value; SECTOR]), durability }
}

/// The commands that wait to be sent, with their cookies.
fn sent(client: &mut NbdClient) -> Vec<(u16, u64)> {
    let mut server = Server { links: vec![Default::default()], ..Server::default() };
    server.take(client);
    server.links[0].1.iter().map(|asked| (asked.command, asked.cookie)).collect()
}

fn answer(client: &mut NbdClient, cookie: u64, error: u32) -> Result<(), LinkError> {
    client.receive(Nanos::ZERO, 0, &p::simple_reply(error, cookie))
}

#[test]
fn a_flush_fails_where_a_write_that_was_answered_cannot_be_written_again() {
    let mut client = connected();
    let number = client.submit(Nanos::ZERO, write(0, 1, Durability::Volatile));
    sent(&mut client);
    answer(&mut client, number, 0).unwrap();
    client.lost();
    let flush = client.submit(Nanos::ZERO, Io::Flush);
    client.connected(Nanos::ZERO, 1, &offer()).unwrap();
    show(&mut client, |_| 0).unwrap();
    assert_eq!(sent(&mut client), [(p::CMD_WRITE, number)], "the flush waits for what was answered");
    answer(&mut client, number, 5).unwrap();
    assert_eq!(sent(&mut client), [(p::CMD_FLUSH, flush)]);
    answer(&mut client, flush, 0).unwrap();
    let ended = client.take_ended();
    assert!(ended.iter().any(|(number, result)| *number == flush && result.status.is_err()));
    let flush = client.submit(Nanos::ZERO, Io::Flush);
    sent(&mut client);
    answer(&mut client, flush, 0).unwrap();
    assert_eq!(client.take_ended()[0].1.status, Ok(()), "it was told once");
}

#[test]
fn another_disk_under_the_name_is_refused_and_told_apart_by_what_was_flushed() {
    let mut client = connected();
    let number = client.submit(Nanos::ZERO, write(3, 7, Durability::Durable));
    sent(&mut client);
    answer(&mut client, number, 0).unwrap();
    client.lost();
    let larger = Offer { bytes: offer().bytes * 2, ..offer() };
    assert!(matches!(client.connected(Nanos::ZERO, 1, &larger), Err(LinkError::OtherSize { .. })));
    let read_only = Offer { flags: FLAGS | p::TFLAG_READ_ONLY, ..offer() };
    assert!(matches!(client.connected(Nanos::ZERO, 1, &read_only), Err(LinkError::OtherProperties { .. })));
    let next = client.submit(Nanos::ZERO, write(9, 1, Durability::Durable));
    for (value, is_taken) in [(8, false), (7, true)] {
        client.connected(Nanos::ZERO, 1, &offer()).unwrap();
        let taken = show(&mut client, |sector| if sector == 3 { value } else { 0 });
        if is_taken {
            taken.unwrap();
            assert_eq!(sent(&mut client), [(p::CMD_WRITE, next)]);
        } else {
            assert_eq!(taken, Err(LinkError::OtherContent));
            client.lost();
        }
    }
}

#[test]
fn a_server_whose_answers_are_durable_is_not_flushed_and_gets_nothing_again() {
    let durable = Offer { flags: FLAGS & !p::TFLAG_SEND_FLUSH, durable: true, ..offer() };
    let mut client = NbdClient::new(durable);
    client.connected(Nanos::ZERO, 1, &durable).unwrap();
    show(&mut client, |_| 0).unwrap();
    let number = client.submit(Nanos::ZERO, write(3, 7, Durability::Volatile));
    assert_eq!(sent(&mut client), [(p::CMD_WRITE, number)]);
    answer(&mut client, number, 0).unwrap();
    assert_eq!(client.kept_bytes(), 0);
    let flush = client.submit(Nanos::ZERO, Io::Flush);
    assert_eq!(sent(&mut client), []);
    let ended: Vec<u64> = client.take_ended().iter().map(|(number, _)| *number).collect();
    assert_eq!(ended, [number, flush]);
    client.lost();
    client.connected(Nanos::ZERO, 1, &durable).unwrap();
    show(&mut client, |sector| if sector == 3 { 7 } else { 0 }).unwrap();
    assert_eq!(sent(&mut client), [], "what was answered is not sent again");
    client.lost();
    client.connected(Nanos::ZERO, 1, &durable).unwrap();
    assert_eq!(show(&mut client, |_| 0), Err(LinkError::OtherContent), "a block that it knows to be durable");
}

#[test]
fn a_server_may_promise_more_than_before_and_not_less() {
    let durable = Offer { flags: FLAGS & !p::TFLAG_SEND_FLUSH, durable: true, ..offer() };
    let silent = Offer { durable: false, ..durable };
    for (before, now, is_taken) in [
        (durable, durable, true),
        (offer(), durable, true),
        (durable, offer(), false),
        (durable, silent, false),
        (offer(), silent, false),
    ] {
        let mut client = NbdClient::new(before);
        client.connected(Nanos::ZERO, 1, &before).unwrap();
        client.lost();
        let taken = client.connected(Nanos::ZERO, 1, &now);
        assert_eq!(taken, if is_taken { Ok(()) } else { Err(LinkError::LessDurable) });
    }
}

#[test]
fn the_server_is_known_again_however_much_is_to_be_sent_again() {
    let large = Offer { bytes: 1 << 30, ..offer() };
    let mut client = NbdClient::new(large);
    client.connected(Nanos::ZERO, 1, &large).unwrap();
    show(&mut client, |_| 0).unwrap();
    let durable = client.submit(Nanos::ZERO, write(0, 7, Durability::Durable));
    sent(&mut client);
    answer(&mut client, durable, 0).unwrap();
    let writes = 3 * LOOKED_AT_MAX as u64;
    for at in 1..=writes {
        let number = client.submit(Nanos::ZERO, write(at, 1, Durability::Volatile));
        sent(&mut client);
        answer(&mut client, number, 0).unwrap();
    }
    client.lost();
    client.connected(Nanos::ZERO, 1, &large).unwrap();
    show(&mut client, |sector| if sector == 0 { 7 } else { 0 }).expect("blocks are asked for first");
    let mut again = 0;
    loop {
        let all = sent(&mut client);
        if all.is_empty() {
            break;
        }
        again += all.len() as u64;
        for (command, number) in all {
            assert_eq!(command, p::CMD_WRITE);
            answer(&mut client, number, 0).unwrap();
        }
    }
    assert_eq!(again, writes);
}

#[test]
fn what_is_given_up_fails_and_what_was_answered_is_still_sent_again() {
    let mut client = connected();
    let kept = client.submit(Nanos::ZERO, write(0, 1, Durability::Volatile));
    sent(&mut client);
    answer(&mut client, kept, 0).unwrap();
    let open = client.submit(Nanos::from_secs(3), write(1, 1, Durability::Volatile));
    client.take_ended();
    client.lost();
    assert_eq!(client.oldest(), Some(Nanos::from_secs(3)));
    client.give_up();
    let ended = client.take_ended();
    assert!(ended.len() == 1 && ended[0].0 == open && ended[0].1.status.is_err());
    client.connected(Nanos::from_secs(20), 1, &offer()).unwrap();
    show(&mut client, |_| 0).unwrap();
    assert_eq!(sent(&mut client), [(p::CMD_WRITE, kept)]);
    answer(&mut client, kept, 0).unwrap();
    let newer = client.submit(Nanos::from_secs(20), write(1, 2, Durability::Volatile));
    assert_eq!(sent(&mut client), [], "the old server may still carry out what was given up");
    assert_eq!(client.next_deadline(), Some(Nanos::from_secs(20) + SETTLE));
    assert_eq!(client.oldest(), None, "the server does not know of it");
    client.send_waiting(Nanos::from_secs(20) + SETTLE);
    assert_eq!(sent(&mut client), [(p::CMD_WRITE, newer)]);
    assert_eq!(client.oldest(), Some(Nanos::from_secs(20) + SETTLE));
}

#[test]
fn unflushed_writes_are_bounded_by_flushes_of_its_own() {
    let big = Offer { bytes: 1 << 30, payload_bytes_max: 32 << 20, ..offer() };
    let mut client = NbdClient::new(big);
    client.connected(Nanos::ZERO, 1, &big).unwrap();
    show(&mut client, |_| 0).unwrap();
    let mut flush = None;
    let mut last = 0;
    for at in 0..200u64 {
        let buf = Buf::zeroed(1 << 20);
        last = client
            .submit(Nanos::ZERO, Io::Write { at: Lba(at * 2048), buf, durability: Durability::Volatile });
        if client.outgoing(0).is_empty() {
            break;
        }
        client.outgoing(0).clear();
        answer(&mut client, last, 0).unwrap();
        if let Some(header) = client.outgoing(0).first_chunk() {
            let header = p::RequestHeader::parse(header);
            assert_eq!((header.command, flush), (p::CMD_FLUSH, None), "one at a time");
            flush = Some(header.cookie);
            client.outgoing(0).clear();
        }
    }
    assert!(
        (2 * KEPT_BYTES_MAX..2 * KEPT_BYTES_MAX + (2 << 20)).contains(&client.kept_bytes()),
        "the last write waits"
    );
    answer(&mut client, flush.expect("it has been asked for"), 0).unwrap();
    assert!(client.kept_bytes() <= KEPT_BYTES_MAX + (1 << 20), "what the flush has covered is let go");
    let header = p::RequestHeader::parse(client.outgoing(0).first_chunk().expect("there is room again"));
    assert_eq!((header.command, header.cookie), (p::CMD_WRITE, last));
}

#[test]
fn a_server_that_answers_what_was_not_asked_is_left() {
    for reply in [[0xff; 16], p::simple_reply(0, 77)] {
        assert_eq!(connected().receive(Nanos::ZERO, 0, &reply), Err(LinkError::Protocol));
    }
    let mut client = connected();
    let number = client.submit(Nanos::ZERO, Io::Flush);
    sent(&mut client);
    assert_eq!(answer(&mut client, number, 108), Err(LinkError::ShuttingDown));
    client.lost();
    client.connected(Nanos::ZERO, 1, &offer()).unwrap();
    show(&mut client, |_| 0).unwrap();
    assert_eq!(sent(&mut client), [(p::CMD_FLUSH, number)]);
}

#[test]
fn what_another_machine_has_written_at_the_start_is_not_written_over() {
    // Of the first sector nothing but the durable write counts; of the second any of the two; of the third nothing is known.
    let mut client = connected();
    let durable = client.submit(Nanos::ZERO, write(0, 1, Durability::Durable));
    sent(&mut client);
    answer(&mut client, durable, 0).unwrap();
    client.submit(Nanos::ZERO, write(1, 2, Durability::Durable));
    client.submit(Nanos::ZERO, Io::Discard { extent: Extent::new(Lba(2), 1) });
    client.lost();
    for (first, second, third, fourth, is_taken) in [
        (0, 0, 0, 0, false),
        (1, 3, 0, 0, false),
        (1, 0, 0, 1, false),
        (1, 0, 9, 0, true),
        (1, 2, 0, 0, true),
    ] {
        client.connected(Nanos::ZERO, 1, &offer()).unwrap();
        let holds = [first, second, third, fourth];
        let taken = show(&mut client, |sector| holds.get(sector).copied().unwrap_or_default());
        assert_eq!(taken, if is_taken { Ok(()) } else { Err(LinkError::OtherContent) }, "{holds:?}");
        client.lost();
    }
}

/// As where the server is there again and answers the handshake alone: what it owes then is owed to the client itself.
#[test]
fn a_server_that_answers_no_check_owes_what_waits_for_it() {
    let mut client = connected();
    let kept = client.submit(Nanos::ZERO, write(0, 1, Durability::Volatile));
    sent(&mut client);
    answer(&mut client, kept, 0).unwrap();
    assert_eq!(client.oldest(), None);
    client.lost();
    client.connected(Nanos::from_secs(5), 1, &offer()).unwrap();
    assert_eq!(client.oldest(), None, "nobody waits");
    let waits = client.submit(Nanos::from_secs(3), write(9, 1, Durability::Volatile));
    assert_eq!(client.oldest(), Some(Nanos::from_secs(3)), "as long as it is not known again");
    let ops: Vec<u64> =
        client.ops.iter().filter(|(_, op)| op.origin == ResultTo::Resent).map(|(n, _)| *n).collect();
    assert_eq!(ops, [kept]);
    show(&mut client, |_| 0).unwrap();
    sent(&mut client);
    answer(&mut client, waits, 0).unwrap();
    let flush = client.submit(Nanos::from_secs(6), Io::Flush);
    assert!(sent(&mut client).is_empty(), "{flush} waits for what is sent again");
    assert_eq!(client.oldest(), Some(Nanos::ZERO), "which the server does not answer");
}

#[test]
fn an_export_that_takes_less_than_a_sector_at_a_time_is_not_gone_on_with() {
    let mut client = connected();
    client.lost();
    let narrow = Offer { payload_bytes_max: 511, ..offer() };
    assert!(matches!(client.connected(Nanos::ZERO, 1, &narrow), Err(LinkError::OtherProperties { .. })));
    assert!(!client.is_connected());
}

/// Answers of a server that wants to do harm: to requests that there are and to others, cut anywhere, with any data, of any length.
#[test]
fn a_hostile_server_gets_no_further_than_a_lost_connection() {
    for seed in 0..300 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut client = connected();
        let mut now = Nanos::from_secs(1);
        for _ in 0..60 {
            now += Nanos(random.random_range(0..=2 * SETTLE.0));
            if client.ops.len() < 40 {
                let at = random.random_range(0..SECTORS as u64 - 4);
                let extent = Extent::new(Lba(at), random.random_range(1..4));
                let io = match random.random_range(0..4) {
                    0 => Io::Flush,
                    1 => Io::Discard { extent },
                    2 => write(at, 7, Durability::Volatile),
                    _ => Io::Read { at: extent.start, buf: Buf::zeroed(extent.sectors as usize * SECTOR) },
                };
                client.submit(now, io);
            }
            client.send_waiting(now);
            let mut bytes = Vec::new();
            for _ in 0..random.random_range(0..4) {
                let cookie = match random.random_range(0..8) {
                    0 => random.random(),
                    _ => random.random_range(0..=client.next),
                };
                let error = *[0, 0, 0, 5, 28, 108, u32::MAX].get(random.random_range(0..7)).unwrap();
                bytes.extend_from_slice(&p::simple_reply(error, cookie));
                bytes.extend((0..random.random_range(0..3 * SECTOR)).map(|_| random.random::<u8>()));
            }
            let mut alive = client.is_connected();
            for chunk in bytes.chunks(random.random_range(1..600)) {
                alive = alive && client.receive(now, 0, chunk).is_ok();
            }
            for (_, result) in client.take_ended() {
                assert!(result.buf.len() <= 4 * SECTOR);
            }
            assert!(client.oldest().is_none_or(|since| since <= now));
            if !alive {
                client.lost();
                if random.random_bool(0.3) {
                    client.give_up();
                }
                let mut odd = offer();
                if random.random_bool(0.3) {
                    (odd.payload_bytes_max, odd.block_bytes_min) = (random.random(), random.random());
                }
                let taken = client.connected(now, 1, &odd);
                if taken.is_err() {
                    client.connected(now, 1, &offer()).unwrap();
                }
            }
        }
    }
}
