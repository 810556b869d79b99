//! Requests of clients: reads that hit and reads that miss, writes that find room and writes that wait for it, flushes.

use dcd_engine::{Buf, Durability, Extent, IoError, Report, RequestId};

mod run;

/// The effect of a request on its sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write(Durability),
    Discard,
    Zeroes { unmap: bool },
}

/// A request that is not answered yet.
pub(super) struct Unanswered {
    id: RequestId,
    pub action: Action,
    pub buf: Buf,
    /// Pieces that are not done.
    left: u32,
    error: Option<IoError>,
    /// True once it is counted among those that had to wait.
    stalled: bool,
    /// The number of the write, to tell the blocks of one from those of another.
    writer: u32,
}

/// The part of a request that lies on one disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClientPiece {
    pub request: u64,
    pub disk: u32,
    /// On the disk.
    pub extent: Extent,
    /// The offset of its bytes in the request's buffer.
    pub at: usize,
}

/// The one that waits until dirty data is safe.
pub(super) enum WaitingFor {
    Request(u64),
    Report(Report),
}

/// The blocks of a share of the cache that were dirty at a stamp.
pub(super) struct Awaited {
    stamp: u64,
    /// Those that still are.
    left: u64,
    /// Those among them that are in resting regions, and not being written.
    resting: u64,
}

/// Waits until what was dirty at a stamp is purged, then until the disks have been flushed.
pub(super) struct Waiter {
    id: u64,
    who: WaitingFor,
    /// For each share of the cache.
    dirty: Vec<Awaited>,
    /// Flushes of disks that have not returned; `None` before they were sent.
    flushes: Option<u32>,
    error: Option<IoError>,
}
