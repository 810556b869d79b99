//! Handles a window of a pass: some units, read from all members at once, examined, and written where something has to be written.
//!
//! | it is    | until                                                            | then                              |
//! |----------|------------------------------------------------------------------|-----------------------------------|
//! | locking  | no lock of its units is held by anything else                    | reading                           |
//! | reading  | every member has given its part; what fails is read block by block | surveyed: what has to be written |
//! | writing  | all of that is written                                           | ended                             |
//! | ended    | those before it have ended too                                   | over, and its units free          |
//!
//! Only what is on the members counts here: what is dirty in the cache is destaged afterwards as ever. A window writes no
//! new data, so its writes need not be durable before the pass says that it has come so far.

mod run;

use std::collections::BTreeSet;
use std::ops::Range;

use crate::{Buf, LINE_BYTES};

const BLOCK: usize = LINE_BYTES as usize;

/// See the module's documentation. Rows are counted from its first one.
pub(super) struct Window {
    pub units: Range<u64>,
    /// Locks, or commands, that it waits for.
    left: usize,
    /// The rows that each member gave; none where it has failed.
    bytes: Vec<Option<Buf>>,
    /// Unreadable blocks, by role and row.
    unreadable: BTreeSet<(usize, usize)>,
    /// Unreadable blocks that are lost, and lie in rows that do not fit.
    unsettled: BTreeSet<(usize, usize)>,
    /// Rows that could not be made right.
    lost: Vec<usize>,
    ended: bool,
}
