//! A toy protocol, its client, and a host that does what a test says: enough to see what the driver does.
//!
//! Both ways messages have 16 bytes of header: verb or status, sectors, 2 unused, the first sector (u32), an id (u64).
//! A write's header is followed by its data, a read's answer by what was read.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dcd_engine::{Buf, Durability, Io, IoResult, Lba, Nanos, Report, Stack, StackBuilder, Target};
use dcd_io::{
    Actions, CallId, ClientId, Context, ControlCall, Device, DeviceSpec, Driver, FileSpec, FrontEnd,
    FrontEndCondition, Host, OutputPiece, SessionFactory, Signal, Signals, SocketRights, StopOutcome,
};
use serde_json::{Value, json};

pub const READ: u8 = b'r';
pub const WRITE: u8 = b'w';
pub const FLUSH: u8 = b'f';
/// A control call; the answer comes with the same id.
pub const CALL: u8 = b'c';
/// Closes the connection after an answer.
pub const BYE: u8 = b'b';
/// Ends the handshake of a session that has one.
pub const HELLO: u8 = b'h';

pub const HEADER: usize = 16;

pub fn header(verb: u8, sectors: u8, at: u32, id: u64) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0] = verb;
    bytes[1] = sectors;
    bytes[4..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..].copy_from_slice(&id.to_le_bytes());
    bytes
}

#[derive(Default)]
pub struct Toy {
    unread: Vec<u8>,
    needs_hello: bool,
    holds_requests: bool,
    /// Requests that are not answered, and buffers that have not gone out.
    held: usize,
    held_max: Option<usize>,
}

impl FrontEnd for Toy {
    fn receive(&mut self, bytes: &[u8], actions: &mut Actions) {
        self.unread.extend_from_slice(bytes);
        self.take_up(actions);
    }

    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions) {
        let status = if result.status.is_ok() { 0 } else { 1 };
        let is_read = token >> 63 == 1;
        let id = token & !(1 << 63);
        actions.send.push(OutputPiece::Bytes(header(status, (result.buf.len() / 512) as u8, 0, id).to_vec()));
        if is_read {
            actions.send.push(OutputPiece::Buf(result.buf));
        } else {
            self.held -= 1;
        }
        self.take_up(actions);
    }

    fn sent(&mut self, _buf: Buf, actions: &mut Actions) {
        self.held -= 1;
        self.take_up(actions);
    }

    fn call_reply(&mut self, token: u64, body: Value, done: bool, actions: &mut Actions) {
        let number = body["number"].as_u64().unwrap_or(0) as u32;
        actions.send.push(OutputPiece::Bytes(header(u8::from(done), 0, number, token).to_vec()));
    }

    fn condition(&self) -> FrontEndCondition {
        FrontEndCondition {
            is_established: !self.needs_hello,
            is_saturated: self.held_max.is_some_and(|max| self.held >= max),
            holds_requests: self.holds_requests,
            ..FrontEndCondition::default()
        }
    }
}

impl Toy {
    fn take_up(&mut self, actions: &mut Actions) {
        while self.unread.len() >= HEADER && !self.condition().is_saturated {
            let (verb, sectors) = (self.unread[0], usize::from(self.unread[1]));
            let at = Lba(u64::from(u32::from_le_bytes(self.unread[4..8].try_into().unwrap())));
            let id = u64::from_le_bytes(self.unread[8..16].try_into().unwrap());
            let payload = if verb == WRITE { sectors * 512 } else { 0 };
            if self.unread.len() < HEADER + payload {
                return;
            }
            let data = &self.unread[HEADER..HEADER + payload];
            match verb {
                READ => {
                    actions.requests.push((id | 1 << 63, Io::Read { at, buf: Buf::zeroed(sectors * 512) }))
                }
                WRITE => {
                    let buf = Buf::copy_of(data);
                    actions.requests.push((id, Io::Write { at, buf, durability: Durability::Volatile }));
                }
                FLUSH => actions.requests.push((id, Io::Flush)),
                CALL => actions.calls.push(ControlCall { token: id, body: json!({ "id": id }) }),
                HELLO => self.needs_hello = false,
                _ => {
                    actions.send.push(OutputPiece::Bytes(header(0, 0, 0, id).to_vec()));
                    actions.close = true;
                }
            }
            self.held += usize::from(matches!(verb, READ | WRITE | FLUSH));
            self.unread.drain(..HEADER + payload);
        }
    }
}

#[derive(Clone, Copy, Default)]
pub struct ToyFactory {
    pub needs_hello: bool,
    pub holds_requests: bool,
    pub held_max: Option<usize>,
}

impl SessionFactory for ToyFactory {
    fn connect(&mut self) -> Box<dyn FrontEnd> {
        let ToyFactory { needs_hello, holds_requests, held_max } = *self;
        Box::new(Toy { needs_hello, holds_requests, held_max, ..Toy::default() })
    }
}

/// Events that a test hears from the server's host.
#[derive(Debug, PartialEq)]
pub enum Heard {
    /// The server listens, on this thread of the kernel's.
    Ready(i32),
    Call(u64),
    Gone(ClientId),
    Report(Report),
    Signal(Signal),
    Quiesced,
    Stopped(StopOutcome),
}

/// Tells everything to the test; the call 0 stops, any other is answered twice.
pub struct Teller {
    heard: mpsc::Sender<Heard>,
    pub limit: Nanos,
    stop_call: Option<CallId>,
}

impl Host for Teller {
    fn call(&mut self, call: CallId, body: Value, context: &mut Context<'_>) {
        let id = body["id"].as_u64().unwrap();
        let _ = self.heard.send(Heard::Call(id));
        if id == 0 {
            self.stop_call = Some(call);
            context.stop(self.limit);
        } else {
            assert!(context.answer(call, json!({ "number": 1 }), false));
            assert!(context.answer(call, json!({ "number": 2 }), true));
            assert!(!context.answer(call, json!({ "number": 3 }), true), "it has been answered");
        }
    }

    fn client_gone(&mut self, client: ClientId, _context: &mut Context<'_>) {
        let _ = self.heard.send(Heard::Gone(client));
    }

    fn report(&mut self, _layer: dcd_engine::LayerIndex, report: &Report, _context: &mut Context<'_>) {
        let _ = self.heard.send(Heard::Report(report.clone()));
    }

    fn signal(&mut self, signal: Signal, context: &mut Context<'_>) {
        let _ = self.heard.send(Heard::Signal(signal));
        context.stop(self.limit);
    }

    fn quiesced(&mut self, context: &mut Context<'_>) {
        let _ = self.heard.send(Heard::Quiesced);
        context.stop_layers();
    }

    fn stopped(&mut self, outcome: &StopOutcome, context: &mut Context<'_>) {
        let _ = self.heard.send(Heard::Stopped(outcome.clone()));
        if let Some(call) = self.stop_call {
            context.answer(call, json!({ "number": 9 }), true);
        }
    }
}

/// A server on a thread of its own.
pub struct Server {
    pub dir: tempfile::TempDir,
    heard: mpsc::Receiver<Heard>,
    /// The kernel's number of its thread.
    pub thread_id: i32,
    thread: Option<thread::JoinHandle<StopOutcome>>,
}

pub type Build = fn(&mut StackBuilder, Target) -> Target;

impl Server {
    /// A file of 16 MiB in memory, the layers that `build` puts on it, and toy clients.
    pub fn start(factory: ToyFactory, limit: Nanos, build: Build) -> Server {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let path = dir.path().to_owned();
        let (teller, heard) = mpsc::channel();
        let thread = thread::spawn(move || serve(&path, factory, limit, build, teller));
        let mut server = Server { dir, heard, thread_id: 0, thread: Some(thread) };
        match server.next() {
            Heard::Ready(thread_id) => server.thread_id = thread_id,
            other => panic!("{other:?} before it listens"),
        }
        server
    }

    pub fn next(&self) -> Heard {
        self.heard.recv_timeout(Duration::from_secs(20)).expect("the host hears of it in time")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("run/socket")
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket())
    }

    /// Asks for a stop and waits for it.
    pub fn stop(mut self) -> StopOutcome {
        let mut client = self.client();
        client.send(&header(CALL, 0, 0, 0));
        let answer = client.receive().expect("the answer to the stop");
        assert_eq!(answer.at, 9, "it comes after the stop");
        self.thread.take().unwrap().join().unwrap()
    }

    /// Waits for the end of a server that was told to stop.
    pub fn join(mut self) -> StopOutcome {
        self.thread.take().unwrap().join().unwrap()
    }
}

fn serve(
    dir: &Path,
    factory: ToyFactory,
    limit: Nanos,
    build: Build,
    heard: mpsc::Sender<Heard>,
) -> StopOutcome {
    let mut driver = Driver::new().unwrap();
    let mut builder = StackBuilder::new();
    let spec = FileSpec { create: Some(16 << 20), ..FileSpec::new(dir.join("disk")) };
    let device = Device::open(&DeviceSpec::File(spec)).unwrap();
    let target = builder.device(device.geometry());
    driver.add_device(device).unwrap();
    let root = build(&mut builder, target);
    let mut stack: Stack = builder.finish(root);
    stack.enable_checks();
    stack.activate(&mut driver).unwrap();
    driver.take_signals(Signals::of_command().unwrap());
    driver.listen_unix(&dir.join("run/socket"), SocketRights::OWNER, Box::new(factory)).unwrap();
    // SAFETY: a plain system call.
    heard.send(Heard::Ready(unsafe { libc::gettid() })).unwrap();
    let mut host = Teller { heard, limit, stop_call: None };
    driver.run(&mut stack, &mut host).unwrap()
}

pub struct Client {
    pub stream: UnixStream,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u8,
    pub at: u32,
    pub id: u64,
    pub data: Vec<u8>,
}

impl Client {
    pub fn connect(path: &Path) -> Client {
        let stream = UnixStream::connect(path).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Client { stream }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes it");
    }

    pub fn write(&mut self, at: u32, sectors: u8, fill: u8, id: u64) {
        let mut message = header(WRITE, sectors, at, id).to_vec();
        message.resize(HEADER + usize::from(sectors) * 512, fill);
        self.send(&message);
    }

    /// The next answer; None where the server has closed.
    pub fn receive(&mut self) -> Option<Answer> {
        let mut head = [0; HEADER];
        self.stream.read_exact(&mut head).ok()?;
        let mut data = vec![0; usize::from(head[1]) * 512];
        let id = u64::from_le_bytes(head[8..].try_into().unwrap());
        if !data.is_empty() && id % 2 == 1 {
            self.stream.read_exact(&mut data).ok()?;
        }
        let at = u32::from_le_bytes(head[4..8].try_into().unwrap());
        Some(Answer { status: head[0], at, id, data })
    }
}
