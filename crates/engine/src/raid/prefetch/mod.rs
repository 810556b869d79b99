//! Prefetching reads the old content of dirty blocks before their destage needs it.
//!
//! While clients write into the cache, members have time. The old content changes only under the exclusive lock of its unit. So it is read
//! under the shared lock, and whichever operation takes the exclusive lock takes the content out: a destage uses it, a pass forgets it.
//! Parity is not read: more of it goes in one command when all of a stripe is destaged.
//!
//! Prefetches concern units that rest and whose dirty blocks are scattered: a unit that is being filled needs none of them. While clients
//! read, or wait for a destage, nothing is prefetched.

mod run;

use std::collections::BTreeSet;

use crate::raid::plan::Run;
use crate::{Buf, LINE_BYTES};

const BLOCK: usize = LINE_BYTES as usize;

/// A longer run of dirty blocks is a stream that may go on.
const RUN_MAX: usize = 4;
/// Prefetched blocks take at most this part of the stripe cache's capacity, beside it.
const SHARE: usize = 8;

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Prefetch {
    /// Units whose last write has this stamp or an older one have been looked at.
    seen: u64,
    /// Units that are next, and the place where the sweep through them continues.
    due: BTreeSet<u64>,
    hand: u64,
    /// Reads that have not returned.
    pub in_flight: u32,
    /// Blocks that are here, or will be.
    pub blocks: usize,
}

/// The part of a run that is not here. What lies between two such parts is read again.
pub(super) fn lacks(run: &Run, here: &[(Run, Buf)]) -> Option<Run> {
    let of_column = |(other, _): &&(Run, Buf)| other.column == run.column;
    let is_lacked = |row: &usize| !here.iter().filter(of_column).any(|(other, _)| other.rows.contains(row));
    let first = run.rows.clone().find(is_lacked)?;
    let last = run.rows.clone().rfind(is_lacked)?;
    Some(Run { column: run.column, rows: first..last + 1 })
}
