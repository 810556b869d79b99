//! Names the commands under way below the array: what each is for.

use std::ops::Range;

use crate::layer::Port;
use crate::raid::plan::BlockRun;
use crate::raid::unit::RequestPart;

/// Rows of a window that one member gives or gets.
pub(super) struct WindowPart {
    /// The window's key.
    pub window: u64,
    pub role: usize,
    pub rows: Range<usize>,
}

/// A command under way below the array.
pub(super) enum Flight {
    /// A read of a request of a client that missed the cache.
    Read(RequestPart),
    OperationRead {
        key: u64,
        run: usize,
    },
    OperationWrite {
        key: u64,
        run: BlockRun,
    },
    /// A read for a destage that has not begun.
    Prefetch {
        unit: u64,
        run: BlockRun,
    },
    Superblock,
    /// The record of an operation, or the one that opens an epoch.
    Journal {
        operation: Option<u64>,
    },
    Flush,
    /// A command to the device on this port, which becomes a spare, or comes back.
    Join {
        port: Port,
        number: usize,
    },
    WindowRead(WindowPart),
    WindowWrite(WindowPart),
    /// A flush after the writes of a pass.
    PassFlush,
}

impl Flight {
    /// The member of a role has it.
    pub const fn is_at_member(&self) -> bool {
        !matches!(self, Flight::Journal { .. } | Flight::Join { .. })
    }

    pub const fn reads(&self) -> bool {
        use Flight::{OperationRead, Prefetch, Read, WindowRead};
        matches!(self, Read(_) | OperationRead { .. } | Prefetch { .. } | WindowRead(_))
    }

    /// A member whose command fails has failed: it lacks something from then on.
    pub const fn fails_member(&self) -> bool {
        self.is_at_member() && !self.reads()
    }
}
