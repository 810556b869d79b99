//! Interfaces of front-ends to the driver: sans-IO sessions on byte streams, and sources with a thread of their own.
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
    /// Close the connection once all of `send` is sent.
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

    /// A buffer in `send` was sent whole. The session may reuse it, and may resume requests that waited for memory: the driver looks at
    /// `actions` and at `is_saturated` again. The driver calls this for every buffer, in their order. A session thereby bounds the memory
    /// that a client which does not read makes the server hold.
    fn sent(&mut self, _buf: Buf, _actions: &mut Actions) {}

    /// The answer to one of its control calls. A call may be answered more than once (progress); the last has `done`.
    fn call_reply(&mut self, _token: u64, _body: serde_json::Value, _done: bool, _actions: &mut Actions) {}

    /// True while the driver should not read more from this client: too much of its work is in flight.
    fn is_saturated(&self) -> bool {
        false
    }

    /// True while it waits for memory that other sessions hold. The driver calls [`Session::go_on`] when they may have released some.
    fn waits_for_memory(&self) -> bool {
        false
    }

    /// True while it holds memory for which others may wait.
    fn has_wanted_memory(&self) -> bool {
        false
    }

    /// Resumes requests that waited for memory. Returns false if there is still too little.
    fn go_on(&mut self, _actions: &mut Actions) -> bool {
        false
    }

    /// The client is gone. Only replies to its requests follow: until then, these hold memory.
    fn client_gone(&mut self) {}

    /// Returns once, in words, why the client's handshake has failed, if it has.
    fn take_trouble(&mut self) -> Option<String> {
        None
    }

    /// True while only a part of a request has arrived: the rest is worth a short wait.
    fn is_mid_request(&self) -> bool {
        false
    }

    /// True while the client uses the device, and would be harmed by its loss.
    fn has_device(&self) -> bool {
        false
    }

    /// True if requests that arrive while the server stops stay unanswered: the client may send them to the next server.
    fn holds_requests(&self) -> bool {
        false
    }

    /// True if the client continues with the next server, and is not harmed by the end of this one.
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

    /// Returns the bytes that tell a client that `clients_max` others are connected; empty if the protocol has no such message.
    fn refusal(&self, _clients_max: usize) -> Vec<u8> {
        Vec::new()
    }
}

/// Looks for the device's user in tables of the system. May block for long, so it must not run on the driver's thread.
pub type Lookup = Box<dyn FnOnce() -> Option<String> + Send>;

/// A front-end with a thread of its own (FUSE): it signals an eventfd when it has requests.
pub trait Source {
    fn event_fd(&self) -> RawFd;

    /// Hands over the requests that have come in. Only `requests` is used.
    fn take(&mut self, actions: &mut Actions);

    fn reply(&mut self, token: u64, result: IoResult);

    /// Returns the lookup of the device's user, who would be harmed by the device's loss.
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
    /// Runs a task that finds out whether the device may be removed. Until its end, requests wait.
    Ask(Task),
    /// Runs a task that removes the device. All requests fail from now on.
    Remove(Task),
}

/// News of a front-end, for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontEndNews {
    /// Clients can use the device at `place`. `but`: a warning for the administrator.
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

    /// The kernel has the first commands. Does the remaining setup, and returns the task that lets clients in while the driver serves.
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

    /// Returns the lookup of the device's user.
    fn user(&self) -> Lookup;

    /// True if, at the end of a server, requests to a device in use wait for the next server.
    fn outlives_server(&self) -> bool;

    fn status(&self) -> serde_json::Value;

    /// The server ends. `unanswered`: requests that the stack has not answered.
    fn end(&mut self, unanswered: usize) -> Ending;

    /// The end of the task of [`Ending::Ask`].
    fn asked(&mut self, answer: io::Result<()>, actions: &mut Actions) -> Ending;

    /// The task of [`Ending::Remove`] has failed. Returns a text: why the device stays.
    ///
    /// # Errors
    /// In words, where that is a failure.
    fn not_removed(&self, error: &io::Error) -> Result<String, String>;

    /// The device was removed: releases its file and memory.
    ///
    /// # Errors
    /// In words, where it did not go away.
    fn close(self: Box<Self>) -> Result<(), String>;
}
