//! A queue of requests from the kernel-facing thread to the driver's, with an eventfd as the bell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::ReadWriteFlags;

use super::jobs::ByteIo;
use super::reply::Waiter;

/// Bytes of reads and writes that the kernel has asked for and that are not answered. The kernel bounds its own
/// background requests; this bounds what a thousand programs at once can make the server hold.
const FLIGHT_BYTES_MAX: usize = 128 << 20;

#[derive(Default)]
struct Inner {
    requests: Vec<(ByteIo, Waiter)>,
    flight_bytes: usize,
    stopped: bool,
    /// The image is not opened any more.
    closed: bool,
}

pub struct RequestQueue {
    inner: Mutex<Inner>,
    /// Some bytes of the flight have been answered, or the queue was stopped.
    room: Condvar,
    bell: OwnedFd,
    /// Number of times that the image is open.
    pub opens: AtomicUsize,
}

impl RequestQueue {
    pub fn new() -> std::io::Result<RequestQueue> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(RequestQueue { inner: Mutex::default(), room: Condvar::new(), bell, opens: AtomicUsize::new(0) })
    }

    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("nobody panics while holding the queue")
    }

    /// Hands a request over; waits while too much is in flight. Gives the waiter back when the driver has stopped.
    pub fn push(&self, io: ByteIo, waiter: Waiter) -> Result<(), Waiter> {
        let bytes = waiter.flight_bytes();
        let full = |inner: &mut Inner| inner.flight_bytes > FLIGHT_BYTES_MAX && !inner.stopped;
        let mut inner =
            self.room.wait_while(self.lock(), full).expect("nobody panics while holding the queue");
        if inner.stopped {
            return Err(waiter);
        }
        inner.flight_bytes += bytes;
        let was_empty = inner.requests.is_empty();
        inner.requests.push((io, waiter));
        drop(inner);
        if was_empty {
            self.ring();
        }
        Ok(())
    }

    pub fn ring(&self) {
        // It fails only when the counter is full, and then the bell rings already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Silences the bell and takes all requests. A request that comes in between rings it again.
    pub fn take(&self) -> Vec<(ByteIo, Waiter)> {
        let mut count = [0; 8];
        let mut bufs = [std::io::IoSliceMut::new(&mut count)];
        // Another reader may have silenced the bell already, so this must not block. Offset -1: no position.
        let _ = rustix::io::preadv2(&self.bell, &mut bufs, u64::MAX, ReadWriteFlags::NOWAIT);
        std::mem::take(&mut self.lock().requests)
    }

    /// A request has been answered.
    pub fn answered(&self, bytes: usize) {
        let mut inner = self.lock();
        let was_full = inner.flight_bytes > FLIGHT_BYTES_MAX;
        inner.flight_bytes -= bytes;
        if was_full {
            self.room.notify_all();
        }
    }

    /// Notes that the image is opened; false if it is not any more.
    pub fn open(&self) -> bool {
        let inner = self.lock();
        if !inner.closed {
            self.opens.fetch_add(1, Ordering::Relaxed);
        }
        !inner.closed
    }

    /// Lets nobody open the image any more, unless somebody has it open.
    pub fn close(&self) -> bool {
        let mut inner = self.lock();
        inner.closed = self.opens.load(Ordering::Relaxed) == 0;
        inner.closed
    }

    /// Lets the image be opened again.
    pub fn reopen(&self) {
        self.lock().closed = false;
    }

    /// Takes no more requests; those that wait are dropped, which answers them with an error.
    pub fn stop(&self) {
        let mut inner = self.lock();
        inner.stopped = true;
        let dropped = std::mem::take(&mut inner.requests);
        drop(inner);
        self.room.notify_all();
        dropped.into_iter().for_each(|(_, waiter)| waiter.refuse());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_open_is_not_closed_and_a_closed_one_is_not_opened() {
        let queue = RequestQueue::new().unwrap();
        assert!(queue.open() && !queue.close() && queue.open());
        queue.opens.store(0, Ordering::Relaxed);
        assert!(queue.close() && !queue.open());
        queue.reopen();
        assert!(queue.open());
        queue.opens.store(0, Ordering::Relaxed);
        assert!(queue.close() && !queue.open());
        assert_eq!(queue.opens.load(Ordering::Relaxed), 0);
    }
}
