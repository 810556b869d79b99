//! Handles requests of clients: reads from the cache, from members, and of computed blocks; writes that find room and writes
//! that wait for it; flushes.

mod run;

use std::collections::VecDeque;

use crate::layer::{Durability, IoError, Report, RequestId};
use crate::raid::unit::Piece;
use crate::slab::Slab;
use crate::{Buf, Nanos};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Read,
    Write(Durability),
}

/// A request that is not answered yet.
pub(super) struct Unanswered {
    id: RequestId,
    action: Action,
    buf: Buf,
    /// Pieces that are not done.
    left: u32,
    error: Option<IoError>,
    /// Units that a durable write has made dirty; taken when it begins to wait for them.
    units: Vec<u64>,
}

/// The one that waits until dirty data is safe.
pub(super) enum WaitingFor {
    Request(u64),
    Report(Report),
}

/// Waits until what was dirty at a stamp is destaged: all of it, or only some units.
pub(super) struct Waiter {
    who: WaitingFor,
    stamp: u64,
    units: Option<Vec<u64>>,
}

/// The requests of clients that are not answered yet, and what they wait for.
#[derive(Default)]
pub(super) struct Clients {
    requests: Slab<Unanswered>,
    foreground: u64,
    last_activity: Nanos,
    /// Reads at members that have not returned.
    reading: u32,
    /// Pieces of writes that wait for room, in their order.
    stalled: VecDeque<Piece>,
    /// Flushes, durable writes and an administrator that wait until something is destaged.
    waiters: Vec<Waiter>,
}

impl Clients {
    fn take(&mut self, id: RequestId, action: Action, buf: Buf) -> u64 {
        self.foreground += 1;
        self.requests.insert(Unanswered { id, action, buf, left: 1, error: None, units: Vec::new() })
    }

    /// Requests that are not answered.
    pub const fn foreground(&self) -> u64 {
        self.foreground
    }

    /// The time of the last request.
    pub const fn last_activity(&self) -> Nanos {
        self.last_activity
    }

    pub fn are_answered(&self) -> bool {
        self.requests.is_empty()
    }

    /// True when no request waits for an answer, and no command for a report.
    pub fn have_all(&self) -> bool {
        self.are_answered() && self.waiters.is_empty()
    }

    /// Writes wait for room.
    pub fn wait_for_room(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// No client reads at members, or waits for anything.
    pub fn only_write(&self) -> bool {
        self.reading == 0 && self.waiters.is_empty() && self.stalled.is_empty()
    }

    /// A waiter waits until everything dirty is destaged.
    pub fn wait_for_flush(&self) -> bool {
        self.waiters.iter().any(|waiter| waiter.units.is_none())
    }

    /// Clients wait for a flush, and for nothing else.
    pub fn wait_for_flush_only(&self) -> bool {
        let clients = self.waiters.iter().filter(|waiter| matches!(waiter.who, WaitingFor::Request(_)));
        self.wait_for_flush() && clients.count() as u64 == self.foreground
    }

    /// An administrator's drain is called off.
    pub fn cancel_drains(&mut self) {
        self.waiters.retain(|waiter| !matches!(waiter.who, WaitingFor::Report(Report::Drained)));
    }
}
