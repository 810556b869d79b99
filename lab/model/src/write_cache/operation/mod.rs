//! Operations at a disk: reads that missed, with the dirty blocks that they take along, purges, and what bypasses the cache.
//! Each is some commands below, and ends when all of them have returned.

mod merge;
mod run;

use std::ops::Range;

use dcd_engine::{Buf, Extent, IoError, Nanos};

use crate::write_cache::SlotIndex;
use crate::write_cache::clients::ClientPiece;

pub(super) enum OperationKind {
    Read { piece: ClientPiece, buf: Option<Buf>, overlay: Vec<(usize, Buf)>, tainted: bool, done: bool },
    Purge { share: usize, immediate: bool },
    Through { piece: ClientPiece, stamp: u64 },
    Flush { waiter: u64, covers: u64 },
}

pub(super) struct Operation {
    disk: u32,
    kind: OperationKind,
    started: Nanos,
    /// Commands that have not returned.
    left: u32,
    error: Option<IoError>,
    /// Dirty blocks that are being written, in the order of the commands.
    blocks: Vec<SlotIndex>,
}

enum Step {
    /// The main command: the read, or what bypasses the cache.
    Main,
    /// A run of the operation's blocks.
    Run(Range<usize>),
    /// The flush after a discard.
    Settling,
}

/// A command to a layer below.
pub(super) struct CacheFlight {
    operation: u64,
    what: Step,
}

/// A run of dirty blocks that are written with one command.
pub(super) struct WriteBackRun {
    pub extent: Extent,
    pub slots: Vec<SlotIndex>,
}
