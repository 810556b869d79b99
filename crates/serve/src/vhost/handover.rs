//! Requests and answers between the thread of a machine and the driver. Each is moved under a lock that nobody holds for long.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use dcd_engine::{Io, IoResult};
use dcd_io::Bell;

/// Maximum number of different warnings, so that no client fills the log.
const WARNINGS_MAX: usize = 32;

#[derive(Default)]
struct HandedOver {
    requests: Vec<(u64, Io)>,
    answers: Vec<(u64, IoResult)>,
    connection: Option<UnixStream>,
    is_stopped: bool,
    /// No client is let in any more.
    is_closed: bool,
    /// Queues that have begun without an earlier request, one bit each.
    began_empty: u64,
    /// All warnings, and the number of those that the driver has.
    warnings: Vec<String>,
    warned: usize,
}

pub struct Handover {
    /// The socket, as warnings name it.
    place: String,
    handed: Mutex<HandedOver>,
    /// Rings when there are requests.
    for_driver: Bell,
    /// Rings when there are answers, and at the end.
    for_thread: Bell,
}

impl Handover {
    pub fn new(place: String) -> io::Result<Handover> {
        let (for_driver, for_thread) = (Bell::new()?, Bell::new()?);
        Ok(Handover { place, handed: Mutex::default(), for_driver, for_thread })
    }

    fn lock(&self) -> MutexGuard<'_, HandedOver> {
        // Nothing is done under the lock that could be left half done.
        self.handed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn driver_bell(&self) -> BorrowedFd<'_> {
        self.for_driver.as_fd()
    }

    pub fn thread_bell(&self) -> BorrowedFd<'_> {
        self.for_thread.as_fd()
    }

    /// Asks the driver.
    pub fn request(&self, token: u64, io: Io) {
        let mut handed = self.lock();
        let was_empty = handed.requests.is_empty();
        handed.requests.push((token, io));
        drop(handed);
        if was_empty {
            self.for_driver.ring();
        }
    }

    /// Moves all requests to the driver. A request that comes in between rings the bell again.
    pub fn take_requests(&self, to: &mut Vec<(u64, Io)>) {
        self.for_driver.silence();
        to.append(&mut self.lock().requests);
    }

    pub fn answer(&self, token: u64, result: IoResult) {
        let mut handed = self.lock();
        let was_empty = handed.answers.is_empty();
        handed.answers.push((token, result));
        drop(handed);
        if was_empty {
            self.for_thread.ring();
        }
    }

    pub fn take_answers(&self) -> Vec<(u64, IoResult)> {
        self.for_thread.silence();
        std::mem::take(&mut self.lock().answers)
    }

    /// Notes a client; false if none is let in any more.
    pub fn connected(&self, connection: UnixStream) -> bool {
        let mut handed = self.lock();
        let is_open = !handed.is_closed && !handed.is_stopped;
        handed.connection = is_open.then_some(connection);
        is_open
    }

    pub fn disconnected(&self) {
        self.lock().connection = None;
    }

    /// The process of the client, where the system tells it; none without a client.
    pub fn client(&self) -> Option<Option<i32>> {
        let handed = self.lock();
        handed.connection.as_ref().map(|connection| dcd_io::process_of(connection.as_fd()))
    }

    /// Lets no client in any more, unless one is connected.
    pub fn close(&self) -> bool {
        let mut handed = self.lock();
        handed.is_closed = handed.connection.is_none();
        handed.is_closed
    }

    /// Lets clients in again.
    pub fn reopen(&self) {
        self.lock().is_closed = false;
    }

    /// Warns the administrator, once for each text.
    pub fn warn(&self, what: &str) {
        let what = format!("{}: {what}", self.place);
        let mut handed = self.lock();
        if handed.warnings.len() < WARNINGS_MAX && !handed.warnings.contains(&what) {
            handed.warnings.push(what);
            drop(handed);
            self.for_driver.ring();
        }
    }

    /// Returns the warnings that are new.
    pub fn take_warnings(&self) -> Option<String> {
        let mut handed = self.lock();
        let new = handed.warnings[handed.warned..].join("; ");
        handed.warned = handed.warnings.len();
        (!new.is_empty()).then_some(new)
    }

    /// Notes that a queue starts after this number of requests (modulo 2^16); false if it has never begun without one here.
    pub fn starts(&self, queue: usize, after: u16) -> bool {
        let mut handed = self.lock();
        handed.began_empty |= u64::from(after == 0) << queue;
        handed.began_empty & 1 << queue != 0
    }

    /// Ends the thread, which may be reading from its client.
    pub fn stop(&self) {
        let mut handed = self.lock();
        handed.is_stopped = true;
        if let Some(connection) = &handed.connection {
            // It fails only if the client has gone.
            let _ = connection.shutdown(Shutdown::Both);
        }
        drop(handed);
        self.for_thread.ring();
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }
}
