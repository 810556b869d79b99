//! Memory for the payload of requests: a limit for each connection, and one for all connections of a server together.
//!
//! Each connection has a little memory of its own, so that no client can block another. Memory beyond that comes from a pool. If the
//! pool has too little left, connections wait in line. The first in line is served first, so that small requests do not starve a
//! large one.
//!
//! A request holds the memory of its payload from its header until its answer; a read, until its data is sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use super::exports::PAYLOAD_BYTES_MAX;

/// Bytes that one connection may hold: two of the largest requests.
pub const CONNECTION_BYTES_MAX: usize = 2 * PAYLOAD_BYTES_MAX as usize;
/// Bytes that each connection has of its own: enough for a usual number of small requests in flight.
pub const OWN_BYTES: usize = 1 << 20;
/// Bytes in the pool. The server's memory is locked, so the pool is small compared to the RAM of the smallest machines.
pub const POOL_BYTES: usize = 256 << 20;

/// The pool of a server.
#[derive(Debug)]
pub struct Budget {
    pool: Mutex<Pool>,
}

#[derive(Debug)]
struct Pool {
    left: usize,
    tickets: u64,
    /// Tickets of the connections that wait, the first in line at the front.
    line: VecDeque<u64>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::of(POOL_BYTES)
    }
}

impl Budget {
    /// A pool of at least [`PAYLOAD_BYTES_MAX`], so that each request fits in it.
    fn of(bytes: usize) -> Budget {
        Budget { pool: Mutex::new(Pool { left: bytes, tickets: 0, line: VecDeque::new() }) }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect("nobody panics while holding it")
    }
}

/// Memory that one connection holds. Dropping it gives everything back.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    ticket: u64,
    held: usize,
    waits: bool,
}

impl Share {
    pub fn of(budget: &Arc<Budget>) -> Share {
        let mut pool = budget.lock();
        pool.tickets += 1;
        Share { budget: Arc::clone(budget), ticket: pool.tickets, held: 0, waits: false }
    }

    /// Takes `bytes`, at most [`PAYLOAD_BYTES_MAX`]. Returns false if the connection has to wait: until it releases memory itself or,
    /// if [`Share::waits`], until another connection does.
    pub fn take(&mut self, bytes: usize) -> bool {
        let held = self.held + bytes;
        if held > CONNECTION_BYTES_MAX {
            return false;
        }
        let wanted = beyond_own(held) - beyond_own(self.held);
        if wanted > 0 || self.waits {
            let mut pool = self.budget.lock();
            let is_first = pool.line.front().is_none_or(|first| *first == self.ticket);
            if wanted > 0 && (!is_first || pool.left < wanted) {
                if !std::mem::replace(&mut self.waits, true) {
                    pool.line.push_back(self.ticket);
                }
                return false;
            }
            pool.left -= wanted;
            if std::mem::take(&mut self.waits) {
                pool.line.retain(|ticket| *ticket != self.ticket);
            }
        }
        self.held = held;
        true
    }

    pub fn give_back(&mut self, bytes: usize) {
        let held = self.held - bytes;
        let returned = beyond_own(self.held) - beyond_own(held);
        if returned > 0 {
            self.budget.lock().left += returned;
        }
        self.held = held;
    }

    /// Releases memory beyond `bytes`, and leaves the line.
    pub fn shrink_to(&mut self, bytes: usize) {
        self.give_back(self.held - bytes);
        if std::mem::take(&mut self.waits) {
            self.budget.lock().line.retain(|ticket| *ticket != self.ticket);
        }
    }

    /// True while the connection waits in line for memory that others hold.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// True while the connection holds pool memory that others may wait for.
    pub fn has_of_pool(&self) -> bool {
        beyond_own(self.held) > 0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.shrink_to(0);
    }
}

/// Returns the bytes from the pool among the `held` bytes of a connection.
fn beyond_own(held: usize) -> usize {
    held.saturating_sub(OWN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = PAYLOAD_BYTES_MAX as usize;

    fn left(budget: &Budget) -> usize {
        budget.lock().left
    }

    #[test]
    fn a_connection_has_its_limit_and_gives_back_what_it_took() {
        let budget = Arc::new(Budget::default());
        let mut share = Share::of(&budget);
        assert!(share.take(OWN_BYTES) && left(&budget) == POOL_BYTES && !share.has_of_pool());
        assert!(share.take(LARGE) && left(&budget) == POOL_BYTES - LARGE && share.has_of_pool());
        assert!(!share.take(LARGE), "beyond its limit");
        assert!(!share.waits(), "no other connection can help");
        share.give_back(OWN_BYTES);
        assert!(share.take(LARGE));
        drop(share);
        assert_eq!(left(&budget), POOL_BYTES);
    }

    #[test]
    fn a_large_request_is_not_overtaken_for_ever_and_small_ones_always_go_on() {
        let budget = Arc::new(Budget::of(LARGE));
        let [mut one, mut other, mut third] = [(); 3].map(|()| Share::of(&budget));
        assert!(one.take(LARGE));
        assert!(!other.take(LARGE) && other.waits());
        assert!(!third.take(2 * OWN_BYTES) && third.waits());
        assert!(third.take(OWN_BYTES) && !third.waits(), "its own memory is nobody else's");
        third.give_back(OWN_BYTES);
        one.give_back(LARGE);
        assert!(!third.take(2 * OWN_BYTES), "another one was first");
        assert!(!one.take(2 * OWN_BYTES), "it is in line now");
        assert!(other.take(LARGE) && !other.waits());
        drop(other);
        assert!(third.take(2 * OWN_BYTES) && one.take(2 * OWN_BYTES));
        drop((one, third));
        assert!(left(&budget) == LARGE && budget.lock().line.is_empty());
    }

    #[test]
    fn a_connection_that_ends_leaves_the_line() {
        let budget = Arc::new(Budget::of(LARGE));
        let [mut one, mut other, mut third] = [(); 3].map(|()| Share::of(&budget));
        assert!(one.take(LARGE) && !other.take(LARGE) && !third.take(LARGE));
        drop(other);
        one.give_back(LARGE);
        assert!(third.take(LARGE));
    }
}
