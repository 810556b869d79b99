//! The thread of a remote device: moves bytes between the client's state machine and its connections, and reconnects.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dcd_engine::Nanos;
use dcd_nbd::{NbdClient, Offer};

use super::connect::{CONNECTIONS_MAX, Connector, Wire};
use super::{Answer, RemoteSpec, SharedLink, lock};

/// Pause before the next attempt to connect: first and maximum.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Lifetime after which a connection counts as good: the pauses then start again from the first.
const GOOD: Duration = Duration::from_secs(2);
const RECEIVE_BYTES: usize = 256 << 10;
/// Receives of one connection before the others have their turn.
const RECEIVES_MAX: usize = 16;
/// Interval of clock checks while the server owes an answer that has a time limit. If a check is late by `STALL`, this process itself was
/// stalled, and that time does not count against the server.
const LOOK_INTERVAL: Nanos = Nanos::from_millis(500);
const STALL: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(super) struct RemoteKeeper {
    spec: RemoteSpec,
    shared: Arc<SharedLink>,
    client: NbdClient,
    answers: BTreeMap<u64, Answer>,
    wires: Vec<Wire>,
    /// Number of connections to make: as many as the server has taken before.
    connections_max: usize,
    connector: Connector,
    started: Instant,
    /// Time that this process was stalled, which does not count; and the instant when it last ran.
    stalled: Duration,
    ran: Instant,
    connected_at: Instant,
    retry_at: Instant,
    pause: Duration,
    buffer: Vec<u8>,
}

impl RemoteKeeper {
    /// # Errors
    /// Where the system has no thread for further connections.
    pub fn new(
        spec: RemoteSpec,
        offer: Offer,
        wires: Vec<Wire>,
        shared: Arc<SharedLink>,
    ) -> io::Result<RemoteKeeper> {
        let now = Instant::now();
        let connector = Connector::new(spec.uri.clone(), Arc::clone(&shared))?;
        let mut client = NbdClient::new(offer);
        client.connected(Nanos::ZERO, wires.len(), &offer).expect("it is what it offers");
        Ok(RemoteKeeper {
            spec,
            shared,
            client,
            answers: BTreeMap::new(),
            connections_max: wires.len(),
            wires,
            connector,
            started: now,
            stalled: Duration::ZERO,
            ran: now,
            connected_at: now,
            retry_at: now,
            pause: PAUSE,
            buffer: vec![0; RECEIVE_BYTES],
        })
    }

    /// Runs until the device is closed.
    pub fn run(mut self) {
        while self.take_asked() {
            self.reconnect();
            self.client.send_waiting(self.now());
            if let Err(why) = self.send() {
                self.lose(&why.to_string());
            }
            self.give_up_late();
            self.tell_ended();
            match self.wait() {
                Ok(ready) => {
                    for index in ready {
                        if let Err(why) = self.receive(index) {
                            self.lose(&why);
                            break;
                        }
                    }
                }
                Err(why) => self.lose(&why.to_string()),
            }
            self.tell_ended();
        }
    }

    /// The time in which this process ran.
    fn now(&self) -> Nanos {
        Nanos((self.started.elapsed() - self.stalled).as_nanos() as u64)
    }

    /// Subtracts a stall from the time: this thread should have run again after `pause` at the latest.
    fn notice_stall(&mut self, pause: Duration) {
        let ran = Instant::now();
        let late = (ran - self.ran).saturating_sub(pause);
        if late >= STALL {
            self.stalled += late;
        }
        self.ran = ran;
    }

    /// False once the device is closed.
    fn take_asked(&mut self) -> bool {
        self.shared.bell.silence();
        let (asked, closed) = {
            let mut inbox = lock(&self.shared.inbox);
            (std::mem::take(&mut inbox.asked), inbox.closed)
        };
        let now = self.now();
        for (io, answer) in asked {
            let number = self.client.submit(now, io);
            self.answers.insert(number, answer);
        }
        !closed
    }

    fn tell_ended(&mut self) {
        for (number, result) in self.client.take_ended() {
            if let Some(answer) = self.answers.remove(&number) {
                answer(result);
            }
        }
    }

    /// Asks for connections if there are none, and takes those that were made.
    fn reconnect(&mut self) {
        if self.wires.is_empty() && !self.connector.is_busy() && Instant::now() >= self.retry_at {
            self.connector.begin(self.connections_max);
        }
        let Some(made) = self.connector.take() else { return };
        let taken = made.map_err(|error| error.to_string()).and_then(|(wires, offer)| {
            let now = self.now();
            self.client.connected(now, wires.len(), &offer).map_err(|error| error.to_string())?;
            Ok(wires)
        });
        match taken {
            Ok(wires) => {
                self.wires = wires;
                self.connected_at = Instant::now();
                let mut link = lock(&self.shared.link);
                (link.connections, link.since) = (self.wires.len(), self.connected_at);
            }
            Err(why) => {
                // The next server may accept a different number of connections.
                self.connections_max = CONNECTIONS_MAX;
                self.wait_with_next(&why);
            }
        }
    }

    /// Drops all connections, and notes why.
    fn lose(&mut self, why: &str) {
        if self.wires.is_empty() {
            return;
        }
        self.wires.clear();
        self.client.lost();
        if self.connected_at.elapsed() >= GOOD {
            self.pause = PAUSE;
        }
        {
            let mut link = lock(&self.shared.link);
            (link.connections, link.since) = (0, Instant::now());
            link.losses += 1;
        }
        self.wait_with_next(why);
    }

    fn wait_with_next(&mut self, why: &str) {
        lock(&self.shared.link).why = Some(why.to_owned());
        self.retry_at = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// Fails operations that the server has not answered within the time limit.
    fn give_up_late(&mut self) {
        self.notice_stall(Duration::ZERO);
        let is_late = self.give_up_at().is_some_and(|at| at <= self.now());
        if is_late {
            self.lose("the server has not answered for as long as the device's \"timeout\" allows");
            self.client.give_up();
        }
    }

    fn give_up_at(&self) -> Option<Nanos> {
        let timeout = Nanos(self.spec.timeout?.as_nanos() as u64);
        Some(self.client.oldest()? + timeout)
    }

    /// Sends as much as the connections take.
    fn send(&mut self) -> io::Result<()> {
        for (index, wire) in self.wires.iter_mut().enumerate() {
            let outgoing = self.client.outgoing(index);
            let mut sent = 0;
            while sent < outgoing.len() {
                match wire.write(&outgoing[sent..]) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(bytes) => sent += bytes,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if sent > 0 || !outgoing.is_empty() {
                wire.between_requests = sent == outgoing.len();
            }
            outgoing.drain(..sent);
            match wire.flush() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
        lock(&self.shared.link).kept_bytes = self.client.kept_bytes();
        Ok(())
    }

    /// Takes what a connection has brought.
    fn receive(&mut self, index: usize) -> Result<(), String> {
        for _ in 0..RECEIVES_MAX {
            match self.wires[index].read(&mut self.buffer) {
                Ok(0) => return Err("the server has ended the connection".to_owned()),
                Ok(bytes) => {
                    let now = self.now();
                    self.client
                        .receive(now, index, &self.buffer[..bytes])
                        .map_err(|error| error.to_string())?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(format!("the connection is lost: {error}")),
            }
        }
        Ok(())
    }

    /// Waits for work. Returns the connections that have received bytes.
    fn wait(&mut self) -> io::Result<Vec<usize>> {
        let mut fds = vec![poll_for(self.shared.bell.fd(), libc::POLLIN)];
        for (index, wire) in self.wires.iter().enumerate() {
            let holds = wire.is_holding() || !self.client.outgoing(index).is_empty();
            fds.push(poll_for(wire.fd(), if holds { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN }));
        }
        let now = self.now();
        let retry = (self.wires.is_empty() && !self.connector.is_busy()).then(|| {
            let rest = self.retry_at.saturating_duration_since(Instant::now());
            now + Nanos(rest.as_nanos() as u64)
        });
        let give_up = self.give_up_at().map(|at| at.min(now + LOOK_INTERVAL));
        let next = [retry, self.client.next_deadline(), give_up].into_iter().flatten().min();
        // Rounded up, so that a deadline has passed on return.
        let timeout =
            next.map_or(-1, |at| i32::try_from(at.since(now).0.div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: the array lives for the call, and its length is told.
        let done = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout) };
        self.notice_stall(u64::try_from(timeout).map_or(Duration::MAX, Duration::from_millis));
        if done < 0 {
            let error = io::Error::last_os_error();
            return if error.kind() == io::ErrorKind::Interrupted { Ok(Vec::new()) } else { Err(error) };
        }
        let came = libc::POLLIN | libc::POLLERR | libc::POLLHUP;
        let ready = fds[1..].iter().enumerate().filter(|(_, fd)| fd.revents & came != 0);
        Ok(ready.map(|(index, _)| index).collect())
    }
}

fn poll_for(fd: std::os::fd::RawFd, events: i16) -> libc::pollfd {
    libc::pollfd { fd, events, revents: 0 }
}
