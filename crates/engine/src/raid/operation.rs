//! Holds an operation on a unit of the cache: its plan, what it has read, what it writes, and how far it has come.

use crate::raid::bitmap::{Bitmap, Regions};
use crate::raid::cache::StripeCache;
use crate::raid::compute::{self, Blocks, Computed};
use crate::raid::matrix::{Access, BlockStatus, Grid, Ops};
use crate::raid::plan::{BlockRun, Plan, StripeView};
use crate::raid::record::Recorder;
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

/// See `stripe`, which carries it out.
pub(super) struct Operation {
    pub unit: u64,
    pub goal: Goal,
    /// Blocks that were dirty when the operation began.
    pub blocks: usize,
    pub phase: OperationPhase,
    pub work: Option<PlannedWork>,
    /// Blocks that were read before the operation began.
    pub prefetched: Vec<(BlockRun, Buf)>,
    pub writes: Vec<(BlockRun, Buf)>,
    /// Commands that have not returned.
    pub left: u32,
    pub failed_reads: bool,
    /// A write failed that the parity does not make up for.
    pub unwritten: bool,
    /// Number of the operation's record in the journal.
    pub record: Option<u64>,
    /// Rows in doubt whose parity is right when the operation has written.
    pub made_right: Vec<usize>,
}

impl Operation {
    /// An operation that has just taken the lock of its unit. `blocks`, `prefetched`: see the fields.
    pub const fn new(unit: u64, goal: Goal, blocks: usize, prefetched: Vec<(BlockRun, Buf)>) -> Operation {
        Operation {
            unit,
            goal,
            blocks,
            phase: OperationPhase::Reading,
            work: None,
            prefetched,
            writes: Vec::new(),
            left: 0,
            failed_reads: false,
            unwritten: false,
            record: None,
            made_right: Vec::new(),
        }
    }
}

/// The regions, or the tracts, of the operations that are under way.
pub(super) fn in_use(operations: &Slab<Operation>, regions: Regions) -> Bitmap {
    let mut used = Bitmap::default();
    for operation in operations.iter() {
        used.insert(regions.of_unit(operation.unit));
    }
    used
}

/// The unit as a plan sees it.
pub(super) fn view(unit: u64, cache: &StripeCache, recorder: &Recorder) -> StripeView {
    let (layout, shape) = (recorder.layout, recorder.layout.shape);
    let access = Grid::new(layout.rows, shape.columns());
    let mut view = StripeView { shape, z: cache.z(unit), access };
    let entry = cache.get(unit).expect("it is locked");
    for column in 0..shape.columns() {
        let failed = recorder.has_failed_at(layout.member(unit, column), unit);
        // Nothing is computed of parity that a crash may have left half-written, nor of what is lost.
        let unsynced = column >= shape.data && recorder.is_unsynced(unit);
        for row in 0..layout.rows {
            let in_doubt = unsynced && !recorder.right_rows.contains(unit, row)
                || recorder.is_unsettled(unit, row, column);
            view.access[(row, column)] = match failed {
                true => Access::Failed,
                false if in_doubt || entry.bad.contains(&(row, column)) => Access::Unreadable,
                false => Access::Whole,
            };
        }
    }
    view
}

/// A plan, and what was read for it.
pub(super) struct PlannedWork {
    pub view: StripeView,
    pub plan: Plan,
    pub reads: PlanReads,
}

/// Runs of blocks that were read, and for each block its run's number and place in it, from 1.
pub(super) struct PlanReads {
    pub runs: Vec<(BlockRun, Option<Buf>)>,
    index: Grid<u32>,
}

/// The blocks of a plan.
struct PlanBlocks<'a> {
    cache: &'a StripeCache,
    unit: u64,
    reads: &'a PlanReads,
}

impl Blocks for PlanBlocks<'_> {
    fn cached(&self, row: usize, column: usize) -> &[u8] {
        self.cache.bytes(self.unit, row, column)
    }

    fn read(&self, row: usize, column: usize) -> &[u8] {
        self.reads.block(row, column)
    }
}

impl PlanReads {
    /// The runs that a plan reads, in rows as the view has them.
    pub fn new(runs: Vec<(BlockRun, Option<Buf>)>, view: &StripeView) -> PlanReads {
        let mut index = Grid::new(view.rows(), view.shape.columns());
        for (number, (run, _)) in runs.iter().enumerate() {
            run.rows.clone().for_each(|row| index[(row, run.column)] = number as u32 + 1);
        }
        PlanReads { runs, index }
    }

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

impl PlannedWork {
    /// Computes what has to be computed, as all that the plan reads is there. What was read is in the cache afterwards. Returns the writes.
    pub fn compute(&self, unit: u64, cache: &mut StripeCache) -> Vec<(BlockRun, Buf)> {
        let carries_bytes = cache.carries_bytes();
        let mut recovered = Computed::default();
        if carries_bytes {
            let blocks = PlanBlocks { cache, unit, reads: &self.reads };
            recovered = compute::recovered(&self.plan, &self.view, &blocks);
        }
        self.fill(unit, &recovered, cache);
        let mut parity = Computed::default();
        if carries_bytes {
            let blocks = PlanBlocks { cache, unit, reads: &self.reads };
            parity = compute::parity_out(&self.plan, &self.view, &blocks, &recovered);
        }
        let mut writes = Vec::with_capacity(self.plan.writes.len());
        for run in &self.plan.writes {
            let mut buf = cache.buffer(run.rows.len() * BLOCK);
            for (index, row) in run.rows.clone().enumerate() {
                let at = index * BLOCK;
                if run.column < self.view.shape.data {
                    cache.copy_out(unit, row, run.column, &mut buf, at);
                } else if carries_bytes {
                    let computed = parity.get(row, run.column);
                    let block = computed.unwrap_or_else(|| self.reads.block(row, run.column));
                    buf.bytes_mut()[at..at + BLOCK].copy_from_slice(block);
                }
            }
            writes.push((run.clone(), buf));
        }
        writes
    }

    /// Puts what was found out into the cache: r, what was recovered, and what partial blocks lack.
    fn fill(&self, unit: u64, recovered: &Computed, cache: &mut StripeCache) {
        for row in 0..self.view.rows() {
            for column in 0..self.view.shape.data {
                let ops = self.plan.matrix[(row, column)];
                let fills = match self.view.z[(row, column)] {
                    BlockStatus::Empty => ops.has(Ops::R.with(Ops::RECOVER)),
                    BlockStatus::Partial => ops.reads() || ops.has(Ops::RECOVER),
                    BlockStatus::Clean | BlockStatus::Dirty => false,
                };
                if fills {
                    let block = match recovered.get(row, column) {
                        Some(block) => block,
                        None if ops.has(Ops::RECOVER) => &[],
                        None => self.reads.block(row, column),
                    };
                    cache.fill(unit, row, column, block);
                }
            }
        }
    }
}
