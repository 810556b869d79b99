//! Clients: many at once, slow, rude and gone. In the toy protocol of `common`, ids of reads are odd and others even.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use dcd_engine::Nanos;
use dcd_io::SocketRights;

use super::common::{BYE, CALL, Client, FLUSH, HEADER, Heard, READ, Server, ToyFactory, header};

const LIMIT: Nanos = Nanos::from_secs(10);

fn plain() -> Server {
    Server::start(ToyFactory::default(), LIMIT, |_, device| device)
}

#[test]
fn what_is_written_is_read() {
    let server = plain();
    let mut client = server.client();
    client.write(80, 8, 0x77, 2);
    assert_eq!(client.receive().expect("answer").id, 2);
    client.send(&header(FLUSH, 0, 0, 4));
    assert_eq!(client.receive().expect("answer").status, 0);
    client.send(&header(READ, 9, 80, 5));
    let read = client.receive().expect("answer");
    assert_eq!((read.status, read.data.len()), (0, 9 * 512));
    assert!(read.data[..4096].iter().all(|byte| *byte == 0x77) && read.data[4096] == 0);
    client.send(&header(READ, 8, u32::MAX, 7));
    assert_eq!(client.receive().expect("answer").status, 1, "past the end");
    assert!(server.stop().is_clean());
}

/// A request that arrives in pieces, and many that arrive at once.
#[test]
fn framing_does_not_matter() {
    let server = plain();
    let mut client = server.client();
    for byte in header(READ, 1, 0, 1) {
        client.send(&[byte]);
    }
    assert_eq!(client.receive().expect("answer").id, 1);
    let many: Vec<u8> = (0..1000).flat_map(|n| header(READ, 2, n % 100, u64::from(n) * 2 + 1)).collect();
    client.send(&many);
    let mut ids: Vec<u64> = (0..1000).map(|_| client.receive().expect("answer").id).collect();
    ids.sort_unstable();
    assert!(ids.iter().enumerate().all(|(n, id)| *id == n as u64 * 2 + 1));
    assert!(server.stop().is_clean());
}

#[test]
fn many_clients_at_once() {
    let server = plain();
    std::thread::scope(|scope| {
        for n in 0..40u32 {
            let mut client = server.client();
            scope.spawn(move || {
                for round in 0..50u32 {
                    let fill = (n * 7 + round) as u8;
                    client.write(n * 64, 16, fill, 2);
                    assert_eq!(client.receive().expect("answer").status, 0);
                    client.send(&header(READ, 16, n * 64, 1));
                    let read = client.receive().expect("answer");
                    assert!(read.data.iter().all(|byte| *byte == fill), "client {n}, round {round}");
                }
            });
        }
    });
    assert!(server.stop().is_clean());
}

/// Resident memory of this process, in bytes; the server is a thread of it.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// A client that asks for much and reads nothing: the server stops listening to it, and serves the others.
fn refuses_to_read(factory: ToyFactory, sectors: u8, memory_max: usize) {
    // The sockets hold some ten thousand requests; a server that reads on takes them all.
    const ASKED_MAX: u32 = 100_000;
    let server = Server::start(factory, LIMIT, |_, device| device);
    let mut greedy = server.client();
    greedy.stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    let before = resident();
    let asks: Vec<u8> = (0..100).flat_map(|n| header(READ, sectors, 0, 2 * n + 1)).collect();
    let mut asked = 0;
    while asked < ASKED_MAX && greedy.stream.write_all(&asks).is_ok() {
        asked += 100;
    }
    assert!(asked < ASKED_MAX, "the server reads on and on");
    let grown = resident().saturating_sub(before);
    assert!(grown < memory_max, "{asked} reads asked for; the process grew by {grown} bytes");
    println!("{asked} reads of {sectors} sectors asked for; the process grew by {} MiB", grown >> 20);
    let mut other = server.client();
    let start = Instant::now();
    other.send(&header(READ, 8, 0, 1));
    assert_eq!(other.receive().expect("answer").data.len(), 4096);
    println!("another client was served in {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(1));
    // It reads at last, and everything comes.
    let mut sink = vec![0; 1 << 20];
    let mut taken = 0;
    while taken < (asked as usize * usize::from(sectors) * 512).min(500 << 20) {
        let count = greedy.stream.read(&mut sink).expect("the replies come");
        assert!(count > 0);
        taken += count;
    }
    drop(greedy);
    assert!(server.stop().is_clean());
}

/// The two cases run in turn, as both look at the memory of the whole process.
#[test]
fn clients_that_do_not_read_are_bounded() {
    // By a session that counts what it holds.
    refuses_to_read(ToyFactory { held_max: Some(32), ..ToyFactory::default() }, 255, 100 << 20);
    // By the driver, which does not read from them.
    refuses_to_read(ToyFactory::default(), 1, 300 << 20);
}

#[test]
fn a_client_that_leaves_harms_nobody() {
    let server = plain();
    for _ in 0..50 {
        let mut client = server.client();
        let many: Vec<u8> = (0..100).flat_map(|n| header(READ, 255, 0, 2 * n + 1)).collect();
        client.send(&many);
        drop(client);
    }
    let mut client = server.client();
    client.send(&header(READ, 1, 0, 1));
    assert_eq!(client.receive().expect("answer").id, 1);
    for _ in 0..50 {
        assert!(matches!(server.next(), Heard::Gone(_)));
    }
    assert!(server.stop().is_clean());
}

/// A client may say that it sends no more and still wait for its answers.
#[test]
fn a_half_closed_client_gets_its_answers() {
    let server = plain();
    let mut client = server.client();
    let many: Vec<u8> = (0..100).flat_map(|n| header(READ, 64, 0, 2 * n + 1)).collect();
    client.send(&many);
    client.stream.shutdown(std::net::Shutdown::Write).unwrap();
    for _ in 0..100 {
        assert_eq!(client.receive().expect("answer").data.len(), 64 * 512);
    }
    assert!(client.receive().is_none(), "then it is closed");
    assert!(server.stop().is_clean());
}

#[test]
fn a_session_closes_after_its_last_bytes() {
    let server = plain();
    let mut client = server.client();
    client.send(&header(BYE, 0, 0, 6));
    assert_eq!(client.receive().expect("the last answer").id, 6);
    assert!(client.receive().is_none());
    assert!(server.stop().is_clean());
}

#[test]
fn control_calls_are_answered_more_than_once() {
    let server = plain();
    let mut client = server.client();
    client.send(&header(CALL, 0, 0, 12));
    let first = client.receive().expect("progress");
    let last = client.receive().expect("the end");
    assert_eq!((first.status, first.at, last.status, last.at), (0, 1, 1, 2));
    assert_eq!(server.next(), Heard::Call(12));
    assert!(server.stop().is_clean());
}

#[test]
fn the_hundred_and_first_client_is_turned_away() {
    let server = plain();
    let mut clients: Vec<Client> = (0..100).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send(&header(READ, 1, 0, 1));
        assert!(client.receive().is_some());
    }
    let mut late = server.client();
    assert_eq!(late.stream.read(&mut [0; HEADER]).unwrap_or(0), 0, "closed at once");
    clients.pop();
    assert!(matches!(server.next(), Heard::Gone(_)));
    let mut next = server.client();
    next.send(&header(READ, 1, 0, 1));
    assert!(next.receive().is_some(), "there is a place again");
    drop(clients);
    assert!(server.stop().is_clean());
}

/// Without a certificate anybody can begin a handshake.
#[test]
fn handshakes_that_never_end_keep_nobody_out() {
    let server =
        Server::start(ToyFactory { needs_hello: true, ..ToyFactory::default() }, LIMIT, |_, device| device);
    let mut idle: Vec<Client> = (0..99).map(|_| server.client()).collect();
    let mut first = server.client();
    first.send(&header(super::common::HELLO, 0, 0, 0));
    for _ in 0..20 {
        let mut client = server.client();
        client.send(&header(super::common::HELLO, 0, 0, 0));
        client.send(&header(READ, 1, 0, 1));
        assert!(client.receive().is_some());
    }
    assert_eq!(
        idle[0].stream.read(&mut [0; HEADER]).unwrap_or(0),
        0,
        "the one that has idled for longest made a place"
    );
    first.send(&header(READ, 1, 0, 1));
    assert!(first.receive().is_some(), "who has ended the handshake stays");
}

#[test]
fn a_handshake_that_never_ends_is_ended() {
    let server =
        Server::start(ToyFactory { needs_hello: true, ..ToyFactory::default() }, LIMIT, |_, device| device);
    let mut idle = server.client();
    let mut polite = server.client();
    polite.send(&header(super::common::HELLO, 0, 0, 0));
    let start = Instant::now();
    assert_eq!(idle.stream.read(&mut [0; HEADER]).expect("closed, not silent"), 0);
    println!("an idle handshake was ended after {:?}", start.elapsed());
    assert!(start.elapsed() > Duration::from_secs(9) && start.elapsed() < Duration::from_secs(15));
    polite.send(&header(READ, 1, 0, 1));
    assert!(polite.receive().is_some());
}

#[test]
fn sockets_are_private_and_stale_ones_are_replaced() {
    let server = plain();
    let path = server.socket();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    let mut second = dcd_io::Driver::new().unwrap();
    let open = server.dir.path().join("for/group/socket");
    let rights = SocketRights { mode: 0o660, group: Some(1) };
    second.listen_unix(&open, rights, Box::new(ToyFactory::default())).unwrap();
    let group = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(&open).unwrap());
    let modes = [0, 1, 2].map(|up| mode(open.ancestors().nth(up).unwrap()));
    assert_eq!((group, modes), (1, [0o660, 0o711, 0o711]), "others pass through, and see nothing else");
    let listen = |driver: &mut dcd_io::Driver, path: &std::path::Path| {
        driver.listen_unix(path, SocketRights::OWNER, Box::new(ToyFactory::default()))
    };
    let error = listen(&mut second, &path).expect_err("a server answers there");
    assert!(matches!(error, dcd_io::ListenError::InUse { .. }), "{error}");
    let file = server.dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    let error = listen(&mut second, &file).expect_err("not a socket");
    assert!(matches!(error, dcd_io::ListenError::NotASocket { .. }), "{error}");
    let stale = server.dir.path().join("stale");
    drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
    listen(&mut second, &stale).expect("nobody listens there");
    drop(second);
    assert!(!stale.exists(), "a socket's file goes with its server");
    assert!(path.exists(), "and only its own");
    // A server that is stopped, with as many callers as the kernel lets wait: nobody waits for it, and its socket stays its own.
    let deaf = server.dir.path().join("deaf");
    let listener = std::os::unix::net::UnixListener::bind(&deaf).unwrap();
    // SAFETY: a plain system call on an open descriptor.
    assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&listener), 0) }, 0);
    let _caller = std::os::unix::net::UnixStream::connect(&deaf).unwrap();
    let mut third = dcd_io::Driver::new().unwrap();
    let error = listen(&mut third, &deaf).expect_err("a server listens there");
    assert!(matches!(error, dcd_io::ListenError::InUse { .. }), "{error}");
    // Nor for somebody who has locked the directory, or the lock.
    let locked = |file: std::fs::File| {
        // SAFETY: a plain system call on an open descriptor.
        assert_eq!(unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(&file), libc::LOCK_EX) }, 0);
        file
    };
    let _directory = locked(std::fs::File::open(server.dir.path()).unwrap());
    listen(&mut third, &stale).expect("a directory is not locked");
    let held = server.dir.path().join("held");
    let _lock = locked(std::fs::File::create(server.dir.path().join("held.lock")).unwrap());
    let error = listen(&mut third, &held).expect_err("somebody has the lock");
    assert!(matches!(error, dcd_io::ListenError::InUse { .. }), "{error}");
    drop(third);
    assert!(server.stop().is_clean());
}

/// Stops after a while.
struct StopSoon(Nanos);

impl dcd_io::Host for StopSoon {
    fn call(&mut self, _: dcd_io::CallId, _: serde_json::Value, _: &mut dcd_io::Context<'_>) {}

    fn next_deadline(&self) -> Option<Nanos> {
        Some(self.0)
    }

    fn wake(&mut self, context: &mut dcd_io::Context<'_>) {
        self.0 = Nanos::MAX;
        context.stop(LIMIT);
    }
}

#[test]
fn tcp_clients_are_served() {
    let (tell, hear) = std::sync::mpsc::channel();
    let server = std::thread::spawn(move || {
        let mut driver = dcd_io::Driver::new().unwrap();
        let spec = dcd_io::DeviceSpec::Memory { bytes: 1 << 20 };
        let device = dcd_io::Device::open(&spec).unwrap();
        let mut builder = dcd_engine::StackBuilder::new();
        let root = builder.device(device.geometry());
        driver.add_device(device).unwrap();
        let mut stack = builder.finish(root);
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let address = driver.listen_tcp(any, Box::new(ToyFactory::default())).unwrap();
        tell.send(address).unwrap();
        driver.run(&mut stack, &mut StopSoon(Nanos::from_secs(2))).unwrap()
    });
    let address = hear.recv().unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    client.write_all(&header(READ, 4, 0, 1)).unwrap();
    let mut answer = [0xff; HEADER + 4 * 512];
    client.read_exact(&mut answer).unwrap();
    assert!(answer[0] == 0 && answer[HEADER..].iter().all(|byte| *byte == 0));
    assert!(server.join().unwrap().is_clean());
}

/// Takes everything that the first client sends as the rest of one request; the others speak the toy protocol.
struct EndlessFirst(ToyFactory, bool);

struct Endless;

impl dcd_io::FrontEnd for Endless {
    fn receive(&mut self, _bytes: &[u8], _actions: &mut dcd_io::Actions) {}

    fn reply(&mut self, _token: u64, _result: dcd_engine::IoResult, _actions: &mut dcd_io::Actions) {}

    fn condition(&self) -> dcd_io::FrontEndCondition {
        dcd_io::FrontEndCondition { is_established: true, is_mid_request: true, ..Default::default() }
    }
}

impl dcd_io::SessionFactory for EndlessFirst {
    fn connect(&mut self) -> Box<dyn dcd_io::FrontEnd> {
        match std::mem::replace(&mut self.1, true) {
            false => Box::new(Endless),
            true => self.0.connect(),
        }
    }
}

/// Stops at the first call.
struct StopAtCall;

impl dcd_io::Host for StopAtCall {
    fn call(&mut self, _: dcd_io::CallId, _: serde_json::Value, context: &mut dcd_io::Context<'_>) {
        context.stop(LIMIT);
    }
}

#[test]
fn a_client_that_sends_without_end_keeps_nobody_from_their_turn() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("run/socket");
    let (tell, hear) = std::sync::mpsc::channel();
    let path = socket.clone();
    let server = std::thread::spawn(move || {
        let mut driver = dcd_io::Driver::new().unwrap();
        let device = dcd_io::Device::open(&dcd_io::DeviceSpec::Memory { bytes: 1 << 20 }).unwrap();
        let mut builder = dcd_engine::StackBuilder::new();
        let root = builder.device(device.geometry());
        driver.add_device(device).unwrap();
        let mut stack = builder.finish(root);
        driver
            .listen_unix(&path, SocketRights::OWNER, Box::new(EndlessFirst(ToyFactory::default(), false)))
            .unwrap();
        tell.send(()).unwrap();
        driver.run(&mut stack, &mut StopAtCall).unwrap();
        driver.statistics()
    });
    hear.recv().unwrap();
    let mut endless = Client::connect(&socket).stream;
    let (begun, begins) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let bytes = vec![0; 8 << 20];
        let mut told = Some(begun);
        // Until the server has stopped.
        while endless.write_all(&bytes).is_ok() {
            told.take().into_iter().for_each(|begun| begun.send(()).unwrap());
        }
    });
    begins.recv().unwrap();
    let mut other = Client::connect(&socket);
    for n in 0..100u64 {
        other.send(&header(READ, 1, 0, 2 * n + 1));
        assert_eq!(other.receive().expect("answer").id, 2 * n + 1);
    }
    other.send(&header(CALL, 0, 0, 0));
    let most = server.join().unwrap().turn_bytes_max;
    assert!(most < 2 << 20, "{most} bytes in one turn");
}
