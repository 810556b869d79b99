//! Connections: accept, receive and send through the ring, and the bounds that keep clients from harming others.
//!
//! A connection is *open* until it is closed by its client, its session, an error or a time limit; then it is *dead*:
//! its session is gone, and only its place remains until the kernel has let go of its buffers. Requests of a dead
//! connection complete, and their results are dropped.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use dcd_engine::{ErrorKind, IoError, IoKind, IoResult, Nanos, Request, RequestId, Stack};
use io_uring::{opcode, types};

use super::outgoing::Outgoing;
use super::{AnswerTo, ClientId, Context, Driver, Host, Refused, RequestOrigin, TURN_MAX, keys};
use crate::listen::ListenSocket;
use crate::ring::{RingPurpose, Token};
use crate::{Actions, FrontEnd, FrontEndCondition, FrontEndNews, SessionFactory};

/// Size of the receive buffer: thousands of small requests, or some thirty writes of 4 KiB.
const RECEIVE_BYTES: usize = 144 << 10;
/// Unsent reply bytes from which on a client's requests are not read: the client does not take its replies.
const UNSENT_BYTES_MAX: usize = 1 << 20;
/// Bytes that are received in a turn beyond what the ring has brought: some 200 us of copying. So a client that sends without end does not
/// starve the others.
const TURN_BYTES_MAX: usize = 1 << 20;
/// Clients of one listening socket at a time.
const CONNECTIONS_MAX: usize = 100;
/// Descriptors reserved for records, devices and commands: this many, or a fraction of a low limit.
const DESCRIPTORS_KEPT: u64 = 16;
const DESCRIPTORS_KEPT_PART: u64 = 4;
/// Time for a handshake, and for the last bytes of a connection that is closed.
const PATIENCE: Nanos = Nanos::from_secs(10);
/// Time of polling for the rest of a request before sleeping: several times what a client needs to send 4 KiB.
const REST_PATIENCE: Nanos = Nanos::from_micros(10);
/// Maximum time without progress of a client that holds memory for which others wait.
const HOLD_PATIENCE: Nanos = Nanos::from_secs(30);
/// Pause before the next client is accepted when descriptors or memory are short.
const ACCEPT_PAUSE: Nanos = Nanos::from_millis(100);

pub(super) struct Listener {
    pub socket: ListenSocket,
    factory: Box<dyn SessionFactory>,
    connections: usize,
    accepting: bool,
    paused_until: Option<Nanos>,
    pub closing: bool,
}

impl Listener {
    pub fn new(socket: ListenSocket, factory: Box<dyn SessionFactory>) -> Listener {
        Listener { socket, factory, connections: 0, accepting: false, paused_until: None, closing: false }
    }
}

pub(super) struct Connection {
    fd: OwnedFd,
    client: ClientId,
    listener: usize,
    /// None while it is being called, and once the connection is dead.
    session: Option<Box<dyn FrontEnd>>,
    buffer: Box<[u8]>,
    receiving: bool,
    pub outgoing: Outgoing,
    /// Requests and calls that are not answered.
    pub unanswered: usize,
    /// Unanswered requests, without calls.
    requests: usize,
    /// Time of the last receive.
    pub heard: Nanos,
    /// Time when the client last took sent data.
    took: Nanos,
    /// True while the session waits for memory.
    crowded: bool,
    /// The session's condition after its last call.
    condition: FrontEndCondition,
    /// True if the client sends no more.
    ended: bool,
    /// True if the session wants no more input.
    closing: bool,
    dead: bool,
    deadline: Option<Nanos>,
    /// True while the connection is in the driver's `listed`.
    listed: bool,
}

impl Connection {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn has_device(&self) -> bool {
        !self.dead && self.condition.has_device
    }

    pub fn outlives_server(&self) -> bool {
        self.condition.outlives_server
    }

    pub fn may_reconnect(&self) -> bool {
        self.condition.may_reconnect
    }

    /// The disk of the root that the client uses.
    pub fn disk(&self) -> usize {
        self.session.as_ref().map_or(0, |session| session.disk())
    }

    fn wants_more(&self) -> bool {
        let open = !self.dead && !self.closing && !self.ended;
        open && !self.receiving && !self.condition.is_saturated && self.outgoing.bytes() <= UNSENT_BYTES_MAX
    }

    /// True if the connection holds memory that others may wait for, and has made no progress since `since`.
    fn is_stuck(&self, since: Nanos) -> bool {
        let FrontEndCondition { is_mid_request, is_saturated, has_wanted_memory, .. } = self.condition;
        let takes_nothing = !self.outgoing.is_empty() && self.took <= since;
        let sends_nothing = is_mid_request && !is_saturated && self.heard <= since;
        !self.dead && has_wanted_memory && (takes_nothing || sends_nothing)
    }

    fn is_finished(&self) -> bool {
        let over = self.closing || (self.ended && self.unanswered == 0 && !self.crowded);
        !self.dead && over && self.outgoing.is_empty()
    }
}

/// The session of a client that is gone, with requests that are not answered.
pub(super) struct Orphan {
    session: Box<dyn FrontEnd>,
    requests: usize,
}

impl Driver {
    pub(super) fn add_listener(&mut self, socket: ListenSocket, factory: Box<dyn SessionFactory>) {
        let index = self.listeners.insert(Listener::new(socket, factory));
        self.accept(index);
    }

    fn accept(&mut self, index: usize) {
        let listener = self.listeners.get_mut(index).expect("a listener that accepts");
        let fd = types::Fd(listener.socket.fd());
        let entry = opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build();
        listener.accepting = true;
        // SAFETY: no address is asked for, so the entry names no memory.
        unsafe { self.ring.push(entry, Token::new(RingPurpose::Accept, index)) };
    }

    /// Takes no more clients; those that are connected stay.
    pub(super) fn close_listener(&mut self, index: usize) {
        let Some(listener) = self.listeners.get_mut(index) else { return };
        listener.closing = true;
        self.unlinks.extend(listener.socket.unlink());
        if listener.accepting {
            self.ring.cancel(Token::new(RingPurpose::Accept, index));
        }
        self.free_listener(index);
    }

    fn free_listener(&mut self, index: usize) {
        let idle = |l: &Listener| l.closing && !l.accepting && l.connections == 0;
        if self.listeners.get(index).is_some_and(idle) {
            self.listeners.remove(index);
        }
    }

    pub(super) fn accepted(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize, result: i32) {
        let listener = self.listeners.get_mut(index).expect("a listener stays while it accepts");
        listener.accepting = false;
        // SAFETY: the kernel has just made this descriptor for us.
        let fd = (result >= 0).then(|| unsafe { OwnedFd::from_raw_fd(result) });
        if listener.closing {
            return self.free_listener(index);
        }
        let short = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS];
        if short.contains(&-result) {
            let until = self.now + ACCEPT_PAUSE;
            listener.paused_until = Some(until);
            self.sweep_by(until);
            let error = io::Error::from_raw_os_error(-result);
            return host.client_refused(Refused::System(error), &mut Context { driver: self, stack });
        }
        self.accept(index);
        if let Some(fd) = fd {
            self.connect(stack, host, index, fd);
        }
    }

    fn connect(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize, fd: OwnedFd) {
        if self.listeners[index].connections >= CONNECTIONS_MAX {
            self.turned_away(stack, host, Refused::Places(CONNECTIONS_MAX));
            match self.slowest_handshake(index) {
                Some(slowest) => self.disconnect(stack, host, slowest),
                None => return refuse(&fd, self.listeners[index].factory.refusal(CONNECTIONS_MAX)),
            }
        }
        // The kernel assigns the lowest free number.
        if fd.as_raw_fd() >= self.descriptors_max {
            drop(fd);
            return self.turned_away(stack, host, Refused::Descriptors);
        }
        let mut buffer = Vec::new();
        if buffer.try_reserve_exact(RECEIVE_BYTES).is_err() {
            drop(fd);
            return self.turned_away(stack, host, Refused::System(io::ErrorKind::OutOfMemory.into()));
        }
        buffer.resize(RECEIVE_BYTES, 0);
        let listener = self.listeners.get_mut(index).expect("a listener that has accepted");
        if listener.socket.address.is_some() {
            let (options, fd) = (tcp_options(), fd.as_raw_fd());
            options.into_iter().for_each(|(level, option, value)| set_option(fd, level, option, value));
        }
        listener.connections += 1;
        let session = listener.factory.connect();
        self.clients += 1;
        let deadline = self.now + PATIENCE;
        let connection = self.connections.insert(Connection {
            fd,
            client: ClientId(self.clients),
            listener: index,
            session: Some(session),
            buffer: buffer.into_boxed_slice(),
            receiving: false,
            outgoing: Outgoing::default(),
            unanswered: 0,
            requests: 0,
            heard: self.now,
            took: self.now,
            crowded: false,
            condition: FrontEndCondition::default(),
            ended: false,
            closing: false,
            dead: false,
            deadline: Some(deadline),
            listed: false,
        });
        self.sweep_by(deadline);
        self.with_session(stack, host, connection, |session, actions| session.start(actions));
    }

    fn turned_away(&mut self, stack: &mut Stack, host: &mut dyn Host, why: Refused) {
        self.statistics.connections_refused += 1;
        host.client_refused(why, &mut Context { driver: self, stack });
    }

    /// Returns the client of a listener whose handshake began first. It loses its place, so that endless handshakes keep nobody out.
    fn slowest_handshake(&self, listener: usize) -> Option<usize> {
        let in_handshake = |c: &Connection| c.listener == listener && !c.dead && !c.condition.is_established;
        let found = self.connections.iter().filter(|(_, connection)| in_handshake(connection));
        found.min_by_key(|(_, connection)| connection.deadline).map(|(index, _)| index)
    }

    /// Tells the host why a client is not served.
    fn trouble(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize, what: &str) {
        let who = self.connections[index].remote().unwrap_or_else(|| "a client".to_owned());
        host.client_failed(&who, what, &mut Context { driver: self, stack });
    }

    /// Calls the session of a connection, if it is open, and carries out what it wants.
    pub(super) fn with_session(
        &mut self,
        stack: &mut Stack,
        host: &mut dyn Host,
        index: usize,
        call: impl FnOnce(&mut dyn FrontEnd, &mut Actions),
    ) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        let Some(mut session) = connection.session.take() else { return };
        let mut actions = self.spare_actions.pop().unwrap_or_default();
        call(session.as_mut(), &mut actions);
        let before = std::mem::replace(&mut connection.condition, session.condition());
        if !before.is_established && connection.condition.is_established {
            connection.deadline = None;
        }
        if connection.condition.waits_for_memory && !std::mem::replace(&mut connection.crowded, true) {
            self.crowded.push((index, connection.client));
            if self.crowded.len() == 1 {
                self.crowded_since = self.now;
                self.sweep_by(self.now + HOLD_PATIENCE);
            }
        }
        let news = session.take_news();
        let connection = self.connections.get_mut(index).expect("looked at above");
        connection.session = Some(session);
        if let Some(FrontEndNews::Failed(what)) = news {
            self.trouble(stack, host, index, &what);
        }
        self.carry_out(stack, host, index, &mut actions);
        self.spare_actions.push(actions);
    }

    fn carry_out(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize, actions: &mut Actions) {
        let connection = self.connections.get_mut(index).expect("its session has just been called");
        let client = connection.client;
        let disk = connection.disk();
        actions.send.drain(..).for_each(|piece| connection.outgoing.push(piece));
        connection.unanswered += actions.requests.len() + actions.calls.len() + actions.maps.len();
        if self.stopping.is_some() && connection.condition.holds_requests {
            actions.requests.clear();
        }
        connection.requests += actions.requests.len();
        if std::mem::take(&mut actions.close) && !connection.closing {
            connection.closing = true;
            let deadline = self.now + PATIENCE;
            connection.deadline = Some(deadline);
            self.sweep_by(deadline);
        }
        self.list(index);
        for (token, io) in actions.requests.drain(..) {
            self.request(AnswerTo::Session { connection: index, client, token }, disk, io);
        }
        for map in actions.maps.drain(..) {
            self.map(index, client, disk, map);
        }
        for call in actions.calls.drain(..) {
            let id = self.calls.begin(client, index, call.token);
            let mut context = Context { driver: self, stack };
            host.call(id, call.body, &mut context);
        }
    }

    /// Takes a request from outside; a stopping server refuses it.
    pub(super) fn request(&mut self, to: AnswerTo, disk: usize, io: dcd_engine::Io) {
        self.statistics.requests += 1;
        let is_change = matches!(io.kind(), IoKind::Write | IoKind::WriteZeroes | IoKind::Discard);
        let changes = io.extent().filter(|_| is_change).map(|extent| (disk, extent));
        let id = self.origins.insert(RequestOrigin { to, changes });
        if self.stopping.is_some() {
            let error = IoError { kind: ErrorKind::Shutdown, extent: io.extent() };
            self.refused.push_back((id, IoResult::err(io.take_buf(), error)));
        } else {
            self.arrived.push_back(Request { id: RequestId(id as u64), disk, io });
        }
    }

    /// Passes the answer to the client that made the request, if it is still connected.
    pub(super) fn deliver(&mut self, stack: &mut Stack, host: &mut dyn Host, id: usize, result: IoResult) {
        let RequestOrigin { to, changes } = self.origins.remove(id);
        // A request that failed may have changed something, too.
        if let Some((disk, extent)) = changes {
            self.marks.note(disk, extent);
        }
        match to {
            AnswerTo::Session { connection, client, token } => {
                if self.is_client(connection, client) {
                    self.connections[connection].requests -= 1;
                    self.answered(connection);
                    self.with_session(stack, host, connection, |s, actions| s.reply(token, result, actions));
                } else {
                    self.answer_orphan(client, token, result);
                }
            }
            AnswerTo::FrontEnd { index, token } => self.answer_front_end(index, token, result),
            AnswerTo::LastFlush => self.last_flush_ended(result.status),
        }
    }

    fn answer_orphan(&mut self, client: ClientId, token: u64, result: IoResult) {
        let Some(orphan) = self.orphans.get_mut(&client) else { return };
        // There is nobody to send anything to.
        orphan.session.reply(token, result, &mut Actions::default());
        orphan.requests -= 1;
        if orphan.requests == 0 {
            self.orphans.remove(&client);
        }
    }

    /// Resumes sessions that wait for memory, as far as others have released some. Returns true if a session resumed.
    pub(super) fn serve_crowded(&mut self, stack: &mut Stack, host: &mut dyn Host) -> bool {
        let mut any = false;
        for at in (0..self.crowded.len()).rev() {
            let (index, client) = self.crowded[at];
            if self.is_client(index, client) {
                self.with_session(stack, host, index, |session, actions| any |= session.go_on(actions));
            }
            let waits = self.connections.get(index).is_some_and(|c| c.condition.waits_for_memory);
            if !self.is_client(index, client) || !waits {
                self.crowded.swap_remove(at);
                if self.is_client(index, client) {
                    self.connections[index].crowded = false;
                }
            }
        }
        if any {
            self.crowded_since = self.now;
        }
        any
    }

    pub(super) fn is_client(&self, connection: usize, client: ClientId) -> bool {
        self.connections.get(connection).is_some_and(|c| c.client == client && !c.dead)
    }

    /// Counts an answer to a request or call of the connection.
    pub(super) fn answered(&mut self, connection: usize) {
        if let Some(connection) = self.connections.get_mut(connection) {
            connection.unanswered -= 1;
        }
        self.list(connection);
    }

    pub(super) fn received(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize, result: i32) {
        let mut result = result;
        loop {
            self.turn_bytes += usize::try_from(result).unwrap_or(0);
            if !self.take_received(stack, host, index, result) || self.turn_bytes >= TURN_BYTES_MAX {
                break;
            }
            result = self.receive_rest(index);
        }
        let most = &mut self.statistics.turn_bytes_max;
        *most = (*most).max(self.turn_bytes as u64);
        self.list(index);
    }

    /// Passes received bytes to the session. Returns true if the rest of a request should arrive soon.
    fn take_received(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize, result: i32) -> bool {
        let connection = self.connections.get_mut(index).expect("a connection stays while it receives");
        connection.receiving = false;
        connection.heard = self.now;
        match result {
            _ if connection.dead => {}
            1.. => {
                let buffer = std::mem::take(&mut connection.buffer);
                let bytes = &buffer[..result as usize];
                self.with_session(stack, host, index, |session, actions| session.receive(bytes, actions));
                let connection = self.connections.get_mut(index).expect("it receives no more, but is here");
                connection.buffer = buffer;
                let mid_request = connection.condition.is_mid_request;
                // With other work to do, do not poll: the rest will have arrived by its end.
                return mid_request && connection.wants_more() && self.arrived.is_empty();
            }
            0 => connection.ended = true,
            _ if matches!(-result, libc::EINTR | libc::EAGAIN) => {}
            _ => self.disconnect(stack, host, index),
        }
        false
    }

    /// Clients send a header and its payload by two system calls. Sleeping in between costs more than polling
    /// for the payload, for a bounded time. Returns a count or a negative error number.
    fn receive_rest(&mut self, index: usize) -> i32 {
        let turn_ends = self.now + TURN_MAX;
        let until = (self.elapsed() + REST_PATIENCE).min(turn_ends);
        let connection = self.connections.get_mut(index).expect("it has just received");
        let (fd, buffer) = (connection.fd.as_raw_fd(), &mut connection.buffer);
        loop {
            // SAFETY: the buffer is this connection's, and no entry of the ring names it while none receives.
            let count =
                unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
            if count >= 0 {
                return i32::try_from(count).expect("the buffer is smaller");
            }
            let error = -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            if error != -libc::EAGAIN || Nanos(self.started.elapsed().as_nanos() as u64) >= until {
                return error;
            }
            std::hint::spin_loop();
        }
    }

    pub(super) fn sent(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize, result: i32) {
        let connection = self.connections.get_mut(index).expect("a connection stays while it sends");
        let mut gone = std::mem::take(&mut self.spare_bufs);
        connection.outgoing.sent(result.max(0) as usize, &mut gone);
        let dead = connection.dead;
        if result > 0 {
            connection.took = self.now;
        }
        match -result {
            _ if result >= 0 => connection.outgoing.waits = connection.outgoing.bytes() > 0,
            libc::EAGAIN => connection.outgoing.waits = true,
            libc::EINTR => {}
            _ if !dead => self.disconnect(stack, host, index),
            _ => {}
        }
        for buf in gone.drain(..) {
            self.with_session(stack, host, index, |session, actions| session.sent(buf, actions));
        }
        self.spare_bufs = gone;
        self.list(index);
    }

    /// Adds a connection to `listed`, to be served before the next system call.
    pub(super) fn list(&mut self, index: usize) {
        if let Some(connection) = self.connections.get_mut(index)
            && !std::mem::replace(&mut connection.listed, true)
        {
            self.listed.push(index);
        }
    }

    /// Sends and receives on the listed connections.
    pub(super) fn serve_listed(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        // Serving a connection may list it again, or another: a host that is told of a client's end may answer a third.
        while let Some(index) = self.listed.pop() {
            let Some(connection) = self.connections.get_mut(index) else { continue };
            connection.listed = false;
            if connection.is_finished() {
                self.disconnect(stack, host, index);
            }
            let Some(connection) = self.connections.get_mut(index) else { continue };
            if connection.dead {
                self.free_connection(index);
                continue;
            }
            if !connection.outgoing.is_empty() && !connection.outgoing.in_flight {
                self.send(stack, host, index);
            }
            if self.connections.get(index).is_some_and(Connection::wants_more) {
                self.receive(index);
            }
        }
    }

    /// Only sends: while requests that have arrived wait, no more are taken from the clients.
    pub(super) fn send_listed(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        let mut at = 0;
        // Sending may list others. All stay on the list.
        while let Some(&index) = self.listed.get(at) {
            at += 1;
            let sends = |c: &Connection| !c.dead && !c.outgoing.is_empty() && !c.outgoing.in_flight;
            if self.connections.get(index).is_some_and(sends) {
                self.send(stack, host, index);
            }
        }
    }

    /// Sends the queued bytes. A socket with space gets them by a system call of its own: it completes immediately, and the
    /// client wakes up while this thread goes on. A full socket is left to the ring.
    fn send(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize) {
        let connection = self.connections.get_mut(index).expect("it has something to send");
        let fd = connection.fd.as_raw_fd();
        let message = connection.outgoing.message();
        if connection.outgoing.waits {
            let entry = opcode::SendMsg::new(types::Fd(fd), message).flags(libc::MSG_NOSIGNAL as u32).build();
            // SAFETY: the message and its pieces lie on the heap, belong to the connection, and are neither changed
            // nor dropped while they are in flight; the connection stays until then.
            unsafe { self.ring.push(entry, Token::new(RingPurpose::Send, index)) };
        } else {
            self.statistics.sends += 1;
            // SAFETY: the message is valid for the call.
            let count = unsafe { libc::sendmsg(fd, message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
            let failed = || -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
            // The kernel moves less than 2 GiB at a time.
            let result = if count < 0 { failed() } else { i32::try_from(count).unwrap_or(i32::MAX) };
            self.sent(stack, host, index, result);
        }
    }

    fn receive(&mut self, index: usize) {
        let connection = self.connections.get_mut(index).expect("it wants more");
        connection.receiving = true;
        let (pointer, len) = (connection.buffer.as_mut_ptr(), connection.buffer.len() as u32);
        let entry = opcode::Recv::new(types::Fd(connection.fd.as_raw_fd()), pointer, len).build();
        // SAFETY: the buffer lies on the heap, belongs to the connection, and is not touched while `receiving`.
        unsafe { self.ring.push(entry, Token::new(RingPurpose::Receive, index)) };
    }

    /// Ends a connection, and shuts its socket down so that kernel operations on it end soon.
    pub(super) fn disconnect(&mut self, stack: &mut Stack, host: &mut dyn Host, index: usize) {
        let Some(connection) = self.connections.get_mut(index) else { return };
        if std::mem::replace(&mut connection.dead, true) {
            return;
        }
        // SAFETY: a plain system call on a descriptor that is open.
        unsafe { libc::shutdown(connection.fd.as_raw_fd(), libc::SHUT_RDWR) };
        if let (Some(mut session), requests @ 1..) = (connection.session.take(), connection.requests) {
            session.client_gone();
            self.orphans.insert(connection.client, Orphan { session, requests });
        }
        connection.deadline = None;
        let (client, listener) = (connection.client, connection.listener);
        if let Some(listener) = self.listeners.get_mut(listener) {
            listener.connections -= 1;
        }
        self.free_listener(listener);
        self.calls.forget(client);
        self.list(index);
        host.client_gone(client, &mut Context { driver: self, stack });
    }

    fn free_connection(&mut self, index: usize) {
        let unused = |c: &Connection| c.dead && !c.receiving && !c.outgoing.in_flight;
        if self.connections.get(index).is_some_and(unused) {
            self.connections.remove(index);
        }
    }

    /// Schedules a check of the time limits at an instant.
    fn sweep_by(&mut self, at: Nanos) {
        self.sweep_at = Some(self.sweep_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// Ends connections past their time limits, and resumes paused listeners.
    pub(super) fn sweep(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        if self.sweep_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.sweep_at = None;
        for index in keys(&self.connections) {
            match self.connections.get(index).and_then(|c| c.deadline) {
                Some(deadline) if deadline <= self.now => self.disconnect(stack, host, index),
                Some(deadline) => self.sweep_by(deadline),
                None => {}
            }
        }
        self.end_stuck(stack, host);
        for index in keys(&self.listeners) {
            let listener = self.listeners.get_mut(index).expect("a key in use");
            match listener.paused_until {
                Some(until) if until <= self.now => {
                    listener.paused_until = None;
                    if !listener.closing {
                        self.accept(index);
                    }
                }
                Some(until) => self.sweep_by(until),
                None => {}
            }
        }
    }

    /// Ends connections that make no progress and hold memory that others have waited for too long.
    fn end_stuck(&mut self, stack: &mut Stack, host: &mut dyn Host) {
        if self.crowded.is_empty() {
            return;
        }
        let until = self.crowded_since + HOLD_PATIENCE;
        if until > self.now {
            return self.sweep_by(until);
        }
        for index in keys(&self.connections) {
            let since = Nanos(self.now.0.saturating_sub(HOLD_PATIENCE.0));
            if self.connections.get(index).is_some_and(|connection| connection.is_stuck(since)) {
                self.trouble(
                    stack,
                    host,
                    index,
                    "it holds memory that others wait for, and has made no progress with its requests for 30 s",
                );
                self.disconnect(stack, host, index);
            }
        }
        self.sweep_by(self.now + HOLD_PATIENCE);
    }
}

/// Tells a client why it is not served, as far as its socket takes that.
fn refuse(fd: &OwnedFd, words: Vec<u8>) {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes live for the call.
    unsafe { libc::send(fd.as_raw_fd(), words.as_ptr().cast(), words.len(), flags) };
}

/// Returns the lowest descriptor that clients must not use.
pub(super) fn descriptors_max() -> RawFd {
    // SAFETY: plain data, for which all zeroes is a valid value, and which the kernel fills.
    let limit = unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur
    };
    RawFd::try_from(limit - DESCRIPTORS_KEPT.min(limit / DESCRIPTORS_KEPT_PART)).unwrap_or(RawFd::MAX)
}

/// Options of a TCP socket. Replies are already gathered here, so the kernel must not delay them. A client whose machine has vanished
/// would keep its place: after a minute of silence the kernel probes it, and gives up a minute later.
fn tcp_options() -> [(libc::c_int, libc::c_int, libc::c_int); 5] {
    [
        (libc::IPPROTO_TCP, libc::TCP_NODELAY, 1),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 15),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 4),
    ]
}

/// Sets an option. If that fails, the connection is only slower, or ends later.
fn set_option(fd: RawFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) {
    let size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is one `int`, which lives for the call.
    unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size) };
}
