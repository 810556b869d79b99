//! What the driver needs of a front-end: sans-IO sessions on byte streams, and sources that live on a thread of their own.
//!
//! The driver moves the bytes; the front-end only sees bytes in, and answers with bytes, requests and control calls.

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

/// What a session or a source wants done.
#[derive(Debug, Default)]
pub struct Actions {
    pub send: Vec<Piece>,
    /// Requests to the root of the stack, each with a token chosen by the session, unique while it is unanswered.
    pub requests: Vec<(u64, Io)>,
    pub calls: Vec<ControlCall>,
    /// Close the connection once everything in `send` has gone out.
    pub close: bool,
}

/// One client on a byte stream: an NBD connection, a control connection.
pub trait Session {
    /// The client has just connected.
    fn start(&mut self, _actions: &mut Actions) {}

    /// Takes all of `bytes`, and keeps what is incomplete.
    fn receive(&mut self, bytes: &[u8], actions: &mut Actions);

    /// The end of one of its requests.
    fn reply(&mut self, token: u64, result: IoResult, actions: &mut Actions);

    /// One of the buffers in `send` has gone out whole. The session may use it again, and may take up what waited for
    /// room: the driver looks at `actions` and at `is_saturated` again. Called for every buffer, in their order; by this
    /// a session bounds what a client that does not read makes the server hold.
    fn sent(&mut self, _buf: Buf, _actions: &mut Actions) {}

    /// The answer to one of its control calls. A call may be answered more than once (progress); the last has `done`.
    fn call_reply(&mut self, _token: u64, _body: serde_json::Value, _done: bool, _actions: &mut Actions) {}

    /// True while the driver should not read more from this client: too much of its work is in flight.
    fn is_saturated(&self) -> bool {
        false
    }

    /// True while the rest of a request that has begun is missing: it is on its way, and worth a moment's wait.
    fn is_mid_request(&self) -> bool {
        false
    }

    /// True while the client uses what is served, and is harmed when that goes away.
    fn has_device(&self) -> bool {
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
}

/// A front-end with a thread of its own (FUSE): it signals an eventfd when it has requests.
pub trait Source {
    fn event_fd(&self) -> RawFd;

    /// Hands over the requests that have come in. Only `requests` is used.
    fn take(&mut self, actions: &mut Actions);

    fn reply(&mut self, token: u64, result: IoResult);

    /// Who uses what is served, and is harmed when that goes away.
    fn user(&self) -> Option<String> {
        None
    }
}
