//! Holds a unit of the stripe cache: its blocks and the state of its lock. The cache updates the counts.

use std::collections::{BTreeSet, VecDeque};

use crate::Buf;
use crate::raid::layout::Chunk;
use crate::raid::matrix::BlockStatus;
use crate::raid::plan::BlockRun;

/// All sectors of a block.
pub(super) const WHOLE: u8 = 0xff;

/// A block: one bit for each sector.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CachedBlock {
    /// Sectors that the cache has.
    pub valid: u8,
    /// Sectors that are newer than on the disk.
    pub dirty: u8,
    /// The block must not change until a destage has computed the parity.
    pub pinned: bool,
    /// A destage writes what it is now.
    pub taken: bool,
}

impl CachedBlock {
    pub fn status(self) -> BlockStatus {
        match self {
            CachedBlock { valid: 0, .. } => BlockStatus::Empty,
            CachedBlock { valid: WHOLE, dirty: 0, .. } => BlockStatus::Clean,
            CachedBlock { valid: WHOLE, .. } => BlockStatus::Dirty,
            CachedBlock { dirty: 0, .. } => unreachable!("a block is filled whole or written"),
            CachedBlock { .. } => BlockStatus::Partial,
        }
    }
}

/// A part of a client's request that waits for a lock.
#[derive(Clone, Copy, Debug)]
pub struct RequestPart {
    pub request: u64,
    pub chunk: Chunk,
    /// The offset of its bytes in the request's buffer.
    pub at: usize,
}

/// A stripe, or a parity block group.
#[derive(Default)]
pub struct Unit {
    /// Row by row.
    pub(super) blocks: Vec<CachedBlock>,
    /// The data blocks of some rows each, column by column; none where none of them is held.
    pub(super) pieces: Vec<Option<Buf>>,
    /// The number of pieces that are held.
    pub(super) held: usize,
    pub(super) dirty_blocks: usize,
    /// Being destaged.
    pub(super) leaving: bool,
    /// The stamp of the first write since it left.
    pub(super) late: Option<u64>,
    /// The stamp of the write that made it dirty, of the last write, and of the last use.
    pub(super) since: u64,
    pub(super) written: u64,
    pub(super) used: u64,
    /// A dirty block of it was written again, since it became dirty or was passed over.
    pub referenced: bool,
    /// Reads at members.
    pub readers: u32,
    pub exclusive: bool,
    pub wanted: bool,
    /// The window of a pass that gets the lock next.
    pub claimed: Option<u64>,
    pub waiting: VecDeque<RequestPart>,
    /// Rows of which something has to be computed, as a member cannot give it.
    pub fetch: Option<BTreeSet<usize>>,
    /// The content on its members, read for its next destage (`prefetch`).
    pub(super) prefetched: Vec<(BlockRun, Buf)>,
    /// A read of several blocks has failed: which of them is found out one by one.
    pub singly: bool,
    /// Bad sectors, by (row, column).
    pub bad: BTreeSet<(usize, usize)>,
}

impl Unit {
    pub const fn is_dirty(&self) -> bool {
        self.dirty_blocks > 0
    }

    pub const fn is_held(&self) -> bool {
        self.held > 0
    }

    pub const fn since(&self) -> u64 {
        self.since
    }

    pub const fn written(&self) -> u64 {
        self.written
    }

    pub const fn dirty_blocks(&self) -> usize {
        self.dirty_blocks
    }

    /// New reads at members and writes have to wait, wherever they go.
    pub(super) fn is_closed(&self) -> bool {
        self.exclusive && !self.leaving
            || self.wanted
            || self.claimed.is_some()
            || self.fetch.is_some()
            || !self.waiting.is_empty()
    }

    /// True when only readers at members are in the way of the unit's destage.
    pub const fn may_leave(&self) -> bool {
        !self.exclusive && self.claimed.is_none() && self.fetch.is_none()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.readers == 0 && !self.exclusive && !self.is_closed()
    }
}
