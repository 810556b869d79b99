//! The interface of front-ends to the driver.
//!
//! A front-end is sans-IO: the driver moves its bytes, commands and wake-ups, and carries out the [`Actions`] of each call.
//!
//! | front-end      | its clients                         | methods beside those of all           |
//! |----------------|-------------------------------------|---------------------------------------|
//! | a session      | one, on a byte stream               | `receive` to `client_gone`            |
//! | own thread     | of a thread that rings an eventfd   | `bell`, `rang`, `user`                |
//! | in the ring    | of a driver of the kernel           | `begun` to `close`, `user`            |

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use dcd_engine::{Buf, Extent, Io, IoResult};

use crate::device::MappedRun;

/// A piece of output. Buffers go out as they are, without a copy.
#[derive(Debug)]
pub enum OutputPiece {
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

/// A question what sectors of a disk of the root hold, without reading them.
#[derive(Clone, Copy, Debug)]
pub struct MapCall {
    /// Chosen by the session; comes back with the answer.
    pub token: u64,
    /// Not empty, and within the root.
    pub extent: Extent,
    /// Maximum number of runs in the answer, at least one.
    pub runs_max: usize,
}

/// A command to a driver of the kernel, through the ring.
#[derive(Debug)]
pub struct KernelCommand {
    /// The file that takes the command.
    pub fd: RawFd,
    /// Chosen by the front-end; comes back with the end.
    pub slot: usize,
    pub op: u32,
    /// The first half of the command. The second half is the address of `buf`.
    pub head: [u8; 8],
    /// The kernel's until the command ends.
    pub buf: Buf,
    /// Bytes of `buf` that the kernel may use.
    pub bytes: usize,
}

/// Work that a front-end wants done.
#[derive(Debug, Default)]
pub struct Actions {
    /// Bytes for the client of a session.
    pub send: Vec<OutputPiece>,
    /// Requests to the front-end's disk of the root of the stack, each with a token chosen by the front-end, unique while it is unanswered.
    pub requests: Vec<(u64, Io)>,
    /// Calls of a session.
    pub calls: Vec<ControlCall>,
    /// Questions of a session.
    pub maps: Vec<MapCall>,
    pub commands: Vec<KernelCommand>,
    /// Close the session's connection once all of `send` is sent.
    pub close: bool,
}

/// Condition of a front-end after a call.
#[derive(Clone, Copy, Debug, Default)]
pub struct FrontEndCondition {
    /// The handshake is over; the driver closes connections that take longer than its limit.
    pub is_established: bool,
    /// The driver should not read more from this client: too much of its work is in flight.
    pub is_saturated: bool,
    /// A part of a request has arrived: the rest is worth a short wait.
    pub is_mid_request: bool,
    /// The session waits for memory that others hold. The driver calls [`FrontEnd::go_on`] when they may have released some.
    pub waits_for_memory: bool,
    /// The session holds memory for which others may wait.
    pub has_wanted_memory: bool,
    /// A client may use the device, and would be harmed by its loss.
    pub has_device: bool,
    /// Requests that arrive while the server stops stay unanswered: the client may send them to the next server.
    pub holds_requests: bool,
    /// The client may connect to the next server, and continue with it. It does not tell.
    pub may_reconnect: bool,
    /// The client continues with the next server, and is not harmed by the end of this one.
    pub outlives_server: bool,
}

/// News of a front-end, for the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontEndNews {
    /// Clients can use the device at `place`. `but`: a warning for the administrator.
    Ready { place: String, but: Option<String> },
    /// The front-end cannot serve, or no longer can; of a session: its handshake has failed.
    Failed(String),
    /// A warning for the administrator. The front-end goes on.
    Warning(String),
}

/// Looks for the device's user in tables of the system. May block for long, so it must not run on the driver's thread.
pub type Lookup = Box<dyn FnOnce() -> Option<String> + Send>;

/// Work that may take long, for a thread of its own.
pub type Task = Box<dyn FnOnce() -> io::Result<()> + Send>;

/// The end of a device that was removed: an error, in words, where it did not go away.
pub type Closing = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Fate of a front-end when its server ends.
pub enum Ending {
    /// The device stays for the next server, for this reason.
    Leave(String),
    /// The device could not be removed, for this reason.
    Failed(String),
    /// Runs a task that finds out whether the device may be removed, then [`FrontEnd::ended`]. Until then, requests wait.
    Ask(Task),
    /// Runs a task that removes the device, then [`FrontEnd::close`]. All requests fail from now on.
    Remove(Task),
}

/// Translates between clients and the stack. See the module's documentation.
pub trait FrontEnd {
    /// The client has just connected, or the front-end was added: its first commands go out together.
    fn start(&mut self, _actions: &mut Actions) {}

    /// The end of a request.
    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions);

    /// The disk of the root that its clients use: 0, unless the root is several. It does not change once there was a request.
    fn disk(&self) -> usize {
        0
    }

    fn condition(&self) -> FrontEndCondition {
        FrontEndCondition { is_established: true, ..FrontEndCondition::default() }
    }

    /// Returns news that the host has not heard yet.
    fn take_news(&mut self) -> Option<FrontEndNews> {
        None
    }

    /// Takes all bytes of the client, and keeps what is incomplete.
    fn receive(&mut self, _bytes: &[u8], _actions: &mut Actions) {}

    /// A buffer in `send` was sent whole. The session may reuse it, and may resume requests that waited for memory. The driver calls this
    /// for every buffer, in their order. A session thereby bounds the memory that a client which does not read makes the server hold.
    fn sent(&mut self, _buf: Buf, _actions: &mut Actions) {}

    /// The answer to one of its control calls. A call may be answered more than once (progress); the last has `done`.
    fn call_reply(&mut self, _token: u64, _body: serde_json::Value, _done: bool, _actions: &mut Actions) {}

    /// The answer to one of its questions: at least the first sectors of the extent, in order. Runs that follow each other differ.
    fn mapped(&mut self, _token: u64, _runs: &[MappedRun], _actions: &mut Actions) {}

    /// Resumes requests that waited for memory. Returns false if there is still too little.
    fn go_on(&mut self, _actions: &mut Actions) -> bool {
        false
    }

    /// The client is gone. Only replies to its requests follow: until then, these hold memory.
    fn client_gone(&mut self) {}

    /// Returns the eventfd by which another thread announces requests.
    fn bell(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The bell has rung: hands over the requests that have come in.
    fn rang(&mut self, _actions: &mut Actions) {}

    /// Returns the lookup of the device's user; none for the client of a connection, whom the driver knows.
    fn user(&self) -> Option<Lookup> {
        None
    }

    /// The kernel has the first commands. Does the remaining setup, and returns the task that lets clients in while the driver serves.
    ///
    /// # Errors
    /// Those of the kernel.
    fn begun(&mut self) -> io::Result<Option<Task>> {
        Ok(None)
    }

    /// The end of that task.
    fn task_ended(&mut self, _ended: io::Result<()>) {}

    /// The end of a command.
    fn completed(&mut self, _slot: usize, _result: i32, _buf: Buf, _actions: &mut Actions) {}

    /// Returns the status of a device that is announced by news.
    fn status(&self) -> Option<serde_json::Value> {
        None
    }

    /// The server ends. `unanswered`: requests without an answer. None: the front-end only has to be dropped.
    fn end(&mut self, _unanswered: usize) -> Option<Ending> {
        None
    }

    /// The task of [`Ending::Ask`] has ended, or that of [`Ending::Remove`] has failed.
    fn ended(&mut self, _result: io::Result<()>, _actions: &mut Actions) -> Ending {
        Ending::Leave(String::new())
    }

    /// The server goes on with the device after all, although it had begun to end it.
    fn stay(&mut self, _actions: &mut Actions) {}

    /// The device ends while the server goes on, where [`FrontEnd::end`] has nothing to ask.
    fn withdraw(&mut self) -> Ending {
        Ending::Remove(Box::new(|| Ok(())))
    }

    /// The device was removed: releases its file and memory. Returns the rest of the work, which may take long.
    fn close(self: Box<Self>) -> Closing {
        Box::new(|| Ok(()))
    }
}

/// Makes a session for each client of a listening socket.
pub trait SessionFactory {
    fn connect(&mut self) -> Box<dyn FrontEnd>;

    /// Returns the bytes that tell a client that `clients_max` others are connected; empty if the protocol has no such message.
    fn refusal(&self, _clients_max: usize) -> Vec<u8> {
        Vec::new()
    }
}
