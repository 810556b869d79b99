//! Carries out an operation on one unit of the cache, under its exclusive lock: a destage, or the recovery of blocks that a member
//! cannot give.
//!
//! | it is      | until                                                          | then                                |
//! |------------|----------------------------------------------------------------|-------------------------------------|
//! | reading    | all that its plan reads has returned                           | computed, or planned anew if a read failed |
//! | held       | the superblocks say that writes are under way, and name the failed members | journaling or writing   |
//! | journaling | its record is durable                                          | writing                             |
//! | writing    | all that its plan writes is durable                            | ending                              |
//! | ending     | the superblocks name a member that failed meanwhile            | over                                |
//!
//! A read that failed makes the block a bad sector, which the next plan computes from the others and writes again. A write
//! that failed makes the member a failed one: what it should have had is in the parity by then.

mod run;

use crate::raid::bitmap::{Bitmap, Regions};
use crate::raid::cache::StripeCache;
use crate::raid::compute::Blocks;
use crate::raid::matrix::Grid;
use crate::raid::plan::{Plan, Run, StripeView};
use crate::slab::Slab;
use crate::{Buf, LINE_BYTES};

const BLOCK: usize = LINE_BYTES as usize;

/// The purpose of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    Destage,
    Fetch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationPhase {
    Reading,
    Held,
    Journaling,
    Writing,
    Ending,
}

/// A plan, and what was read for it.
struct Work {
    view: StripeView,
    plan: Plan,
    reads: Reads,
}

/// Runs of blocks that were read, and for each block its run's number and place in it, from 1.
struct Reads {
    runs: Vec<(Run, Option<Buf>)>,
    index: Grid<u32>,
}

/// See the module's documentation.
pub(super) struct Operation {
    pub unit: u64,
    goal: Goal,
    /// Blocks that were dirty when the operation began.
    blocks: usize,
    pub phase: OperationPhase,
    work: Option<Work>,
    /// Blocks that were read before the operation began.
    prefetched: Vec<(Run, Buf)>,
    pub writes: Vec<(Run, Buf)>,
    /// Commands that have not returned.
    left: u32,
    failed_reads: bool,
    /// A write failed that the parity does not make up for.
    unwritten: bool,
    /// Number of the operation's record in the journal.
    pub record: Option<u64>,
    /// Rows in doubt whose parity is right when the operation has written.
    made_right: Vec<usize>,
}

/// The regions, or the tracts, of the operations that are under way.
pub(super) fn in_use(operations: &Slab<Operation>, regions: Regions) -> Bitmap {
    let mut used = Bitmap::default();
    for operation in operations.iter() {
        used.insert(regions.of_unit(operation.unit));
    }
    used
}

/// The blocks of a plan.
struct Bytes<'a> {
    cache: &'a StripeCache,
    unit: u64,
    reads: &'a Reads,
}

impl Blocks for Bytes<'_> {
    fn cached(&self, row: usize, column: usize) -> &[u8] {
        self.cache.bytes(self.unit, row, column)
    }

    fn read(&self, row: usize, column: usize) -> &[u8] {
        self.reads.block(row, column)
    }
}

impl Reads {
    fn block(&self, row: usize, column: usize) -> &[u8] {
        let (run, buf) = &self.runs[self.index[(row, column)] as usize - 1];
        let buf = buf.as_ref().expect("all reads have returned");
        if buf.is_blank() {
            return &[];
        }
        let at = (row - run.rows.start) * BLOCK;
        &buf.bytes()[at..at + BLOCK]
    }
}
