//! Defines what the driver needs of a front-end: sans-IO sessions on byte streams, and sources that live on a thread of their own.
//!
//! The driver moves the bytes; the front-end only sees bytes in, and answers with bytes, requests and control calls.

use std::io;
use std::os::fd::RawFd;

use dcd_engine::{Buf, Io, IoResult};

/// A piece of output. Buffers go out as they are, without a copy.
#[derive(Debug)]
pub enum Piece {
    Bytes(Vec<u8>),
    Buf(Buf),
}

/// A call on the host of the stack, from a control connection: a verb and its arguments as JSON.
#[derive(Debug)]
pub struct ControlCall {
    /// Chosen by the session; comes back with the answer.
    pub token: u64,
    pub body: serde_json::Value,
}

/// Work that a session or a source wants done.
#[derive(Debug, Default)]
pub struct Actions {
    pub send: Vec<Piece>,
    /// Requests to the root of the stack, each with a token chosen by the session, unique while it is unanswered.
    pub requests: Vec<(u64, Io)>,
    pub calls: Vec<ControlCall>,
    /// Commands to the kernel, of a [`CommandSource`].
    pub commands: Vec<Command>,
    /// Close the connection once everything in `send` has gone out.
    pub close: bool,
}

/// A client on a byte stream: an NBD connection, a control connection.
pub trait Session {
    /// The client has just connected.
    fn start(&mut self, _actions: &mut Actions) {}

    /// Takes all of `bytes`, and keeps what is incomplete.
    fn receive(&mut self, bytes: &[u8], actions: &mut Actions);

    /// The end of one of its requests.
    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions);

    /// A buffer in `send` has gone out whole. The session may use it again, and may take up what waited for room: the driver looks at
    /// `actions` and at `is_saturated` again. The driver calls this for every buffer, in their order. A session thereby bounds the memory
    /// that a client which does not read makes the server hold.
    fn sent(&mut self, _buf: Buf, _actions: &mut Actions) {}

    /// The answer to one of its control calls. A call may be answered more than once (progress); the last has `done`.
    fn call_reply(&mut self, _token: u64, _body: serde_json::Value, _done: bool, _actions: &mut Actions) {}

    /// True while the driver should not read more from this client: too much of its work is in flight.
    fn is_saturated(&self) -> bool {
        false
    }

    /// True while it waits for memory that other sessions hold: the driver calls [`Session::go_on`] when they may have given some back.
    fn waits_for_memory(&self) -> bool {
        false
    }

    /// True while it holds memory for which others may wait.
    fn has_wanted_memory(&self) -> bool {
        false
    }

    /// Takes up what waited for memory. False where there is still too little.
    fn go_on(&mut self, _actions: &mut Actions) -> bool {
        false
    }

    /// The client is gone. Only the ends of its requests follow, which still hold memory.
    fn client_gone(&mut self) {}

    /// Returns once, in words, why the client cannot be served, where its handshake has failed.
    fn take_trouble(&mut self) -> Option<String> {
        None
    }

    /// True while the rest of a request that has begun is missing: it is on its way, and worth a moment's wait.
    fn is_mid_request(&self) -> bool {
        false
    }

    /// True while the client uses what is served, and is harmed when that goes away.
    fn has_device(&self) -> bool {
        false
    }

    /// True where requests that come while the server stops stay unanswered: the client may ask the next one.
    fn holds_requests(&self) -> bool {
        false
    }

    /// True where the client goes on with the next server, and is not harmed by the end of this one.
    fn outlives_server(&self) -> bool {
        false
    }

    /// True once the handshake is over; the driver closes connections that take longer than its limit.
    fn is_established(&self) -> bool {
        true
    }
}

/// Makes a session for each client of a listening socket.
pub trait SessionFactory {
    fn connect(&mut self) -> Box<dyn Session>;

    /// The bytes that tell a client that there are `clients_max` others; none where the protocol has no words for it.
    fn refusal(&self, _clients_max: usize) -> Vec<u8> {
        Vec::new()
    }
}

/// Looks for who uses what is served, in tables of the system. That may take long: it is for another thread than the driver's.
pub type Lookup = Box<dyn FnOnce() -> Option<String> + Send>;

/// A front-end with a thread of its own (FUSE): it signals an eventfd when it has requests.
pub trait Source {
    fn event_fd(&self) -> RawFd;

    /// Hands over the requests that have come in. Only `requests` is used.
    fn take(&mut self, actions: &mut Actions);

    fn reply(&mut self, token: u64, result: IoResult);

    /// Looks for the user of what is served, who is harmed when that goes away.
    fn user(&self) -> Lookup {
        Box::new(|| None)
    }
}

/// A command to a driver of the kernel, through the ring.
#[derive(Debug)]
pub struct Command {
    /// Chosen by the front-end; comes back with the end. Small numbers, each with one command at a time.
    pub slot: usize,
    pub op: u32,
    /// The first half of the command. The second half is the address of `buf`.
    pub head: [u8; 8],
    /// Writable memory of [`CommandSource::buffer_bytes`]: the kernel's until the command ends.
    pub buf: Buf,
}

/// Work that may take long, for a thread of its own.
pub type Task = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// Fate of the device of a front-end when its server ends.
pub enum Ending {
    /// The device stays for the next server, for this reason.
    Leave(String),
    /// This finds out whether it may be taken away. Until then requests wait.
    Ask(Task),
    /// This takes it away. Until then all requests get errors.
    Remove(Task),
}

/// News of a front-end, for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontEndNews {
    /// Clients can use it there. `but`: something that an administrator should know of.
    Ready { place: String, but: Option<String> },
    /// The front-end cannot serve, or no longer can.
    Failed(String),
}

/// A front-end to which a driver of the kernel hands requests as the ends of commands in the ring (ublk).
pub trait CommandSource {
    /// The file that takes its commands.
    fn fd(&self) -> RawFd;

    /// Bytes of a command's buffer that the kernel may use.
    fn buffer_bytes(&self) -> usize;

    /// The first commands, which go out together.
    fn begin(&mut self, actions: &mut Actions);

    /// The kernel has them: what is left to do, and the task that lets clients in while the driver serves.
    ///
    /// # Errors
    /// Those of the kernel.
    fn begun(&mut self) -> io::Result<Task>;

    /// The end of that task.
    fn task_ended(&mut self, ended: io::Result<()>);

    /// Returns news that the host has not heard yet; called after each turn in which a task or a command has ended.
    fn take_news(&mut self) -> Option<FrontEndNews>;

    /// The end of a command.
    fn completed(&mut self, slot: usize, result: i32, buf: Buf, actions: &mut Actions);

    /// The end of a request.
    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions);

    /// The driver is stopping and does not carry a request out: it stays unanswered, for the next server.
    fn hold(&mut self, token: u64, io: Io);

    /// Looks for the user of what is served.
    fn user(&self) -> Lookup;

    /// True if its requests wait for the next server while the device is in use.
    fn outlives_server(&self) -> bool;

    fn status(&self) -> serde_json::Value;

    /// The server ends. `unanswered`: requests that the stack has not answered.
    fn end(&mut self, unanswered: usize) -> Ending;

    /// The end of the task that asks.
    fn asked(&mut self, answer: io::Result<()>, actions: &mut Actions) -> Ending;

    /// The task that takes it away has failed. In words, why the device stays.
    ///
    /// # Errors
    /// In words, where that is a failure.
    fn not_removed(&self, error: &io::Error) -> Result<String, String>;

    /// The device has been taken away: lets go of it.
    ///
    /// # Errors
    /// In words, where it did not go away.
    fn close(self: Box<Self>) -> Result<(), String>;
}
