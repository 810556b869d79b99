//! Plans a destage of a stripe, or the recovery of blocks that a member cannot give: the rxw-matrix, and from it the reads, the
//! XORs and the writes. Pure: a view of the stripe goes in, a [`Plan`] comes out.
//!
//! Each row, a parity block group, has its own cycle:
//!
//! | cycle               | reads                                       | parity is                          |
//! |---------------------|---------------------------------------------|------------------------------------|
//! | reconstruct-write   | the data blocks that the cache lacks        | computed from all data blocks      |
//! | read-modify-write   | the old content of dirty blocks, old parity | old parity, changed by what changed|
//! | recover             | all that is readable                        | as in a reconstruct-write          |
//!
//! The cheaper of the first two is taken (Baek and Park, section II-A); recover is for rows where a failed member or a bad
//! sector holds something that the others would need.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::raid::contiguity::{self, Contiguity};
use crate::raid::matrix::{Access, BlockStatus, Grid, Ops, Shape};

/// The state of a stripe, or of a part of its rows.
#[derive(Clone, Debug)]
pub struct StripeView {
    pub shape: Shape,
    /// The matrix Z: data columns only.
    pub z: Grid<BlockStatus>,
    /// All columns.
    pub access: Grid<Access>,
}

impl StripeView {
    pub fn new(shape: Shape, rows: usize) -> StripeView {
        StripeView { shape, z: Grid::new(rows, shape.data), access: Grid::new(rows, shape.columns()) }
    }

    pub const fn rows(&self) -> usize {
        self.z.rows()
    }
}

/// Purpose of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanPurpose {
    /// Destage all that is dirty.
    Destage,
    /// Compute what cannot be read in these rows; dirty blocks stay.
    Fetch(BTreeSet<usize>),
    /// As a destage, and computes the parity of every row anew, where it can: what is on the disk may be wrong, but for these rows.
    Resync(BTreeSet<usize>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cycle {
    Nothing,
    ReconstructWrite,
    ReadModifyWrite,
    Recover,
}

/// Blocks of one column that go in one command: the scatter-gather list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRun {
    pub column: usize,
    pub rows: Range<usize>,
}

/// See the module's documentation. The order is: all reads, then the XORs, then all writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub cycles: Vec<Cycle>,
    pub matrix: Grid<Ops>,
    pub reads: Vec<BlockRun>,
    pub writes: Vec<BlockRun>,
}

/// More of a row is missing than its parity can make up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more blocks of a parity block group are missing than its parity makes up for")]
pub struct TooManyMissing {
    pub row: usize,
}

/// Makes the plan. Without `contiguity` it is the basic rxw-matrix (SC, PBGC).
pub fn plan(
    view: &StripeView,
    purpose: &PlanPurpose,
    contiguity: Option<&Contiguity>,
) -> Result<Plan, TooManyMissing> {
    let mut matrix = Grid::new(view.rows(), view.shape.columns());
    let mut cycles = Vec::with_capacity(view.rows());
    for row in 0..view.rows() {
        let cycle = match purpose {
            PlanPurpose::Destage => cheapest(view, row),
            PlanPurpose::Resync(right) if right.contains(&row) => cheapest(view, row),
            PlanPurpose::Resync(_) if reconstruct_write_blocks(view, row).is_some() => {
                Cycle::ReconstructWrite
            }
            // It stays in doubt, and nobody loses anything by that.
            PlanPurpose::Resync(_) if !has_dirty(view, row) => Cycle::Nothing,
            PlanPurpose::Resync(_) => Cycle::Recover,
            PlanPurpose::Fetch(rows) if rows.contains(&row) => Cycle::Recover,
            PlanPurpose::Fetch(_) => Cycle::Nothing,
        };
        match cycle {
            Cycle::Nothing => {}
            Cycle::ReconstructWrite => reconstruct_write(view, row, &mut matrix),
            Cycle::ReadModifyWrite => read_modify_write(view, row, &mut matrix),
            Cycle::Recover => {
                recover(view, row, &mut matrix)?;
                if !matches!(purpose, PlanPurpose::Fetch(_)) {
                    write_all(view, row, &mut matrix);
                }
            }
        }
        cycles.push(cycle);
    }
    // A fetch leaves dirty blocks where they are: they must not slip in between two repaired ones, past the parity.
    if let Some(rule) = contiguity.filter(|_| *purpose == PlanPurpose::Destage) {
        contiguity::read_transform(&mut matrix, &view.z, &view.access, view.shape, &rule.read);
        contiguity::write_transform(&mut matrix, &view.z, view.shape, &rule.write);
    }
    let (reads, writes) = (runs(&matrix, Ops::reads), runs(&matrix, Ops::writes));
    Ok(Plan { cycles, matrix, reads, writes })
}

/// The number of blocks that a reconstruct-write moves; none where it would have to read what cannot be read.
pub fn reconstruct_write_blocks(view: &StripeView, row: usize) -> Option<usize> {
    let fills = |status: BlockStatus| needs_fill(view, row, status);
    let z = view.z.row(row).iter().zip(view.access.row(row));
    let missing = z.clone().any(|(status, access)| fills(*status) && *access != Access::Whole);
    let reads = z.filter(|(status, _)| fills(**status)).count();
    (!missing).then_some(reads + written(view, row))
}

/// The number of blocks that a read-modify-write moves; none where it would have to read what cannot be read.
pub fn read_modify_write_blocks(view: &StripeView, row: usize) -> Option<usize> {
    let unreadable = |column: usize| view.access[(row, column)] != Access::Whole;
    let bad_dirty = (0..view.shape.data).any(|c| view.z[(row, c)].is_dirty() && unreadable(c));
    let bad_parity =
        view.shape.parity_columns().any(|column| view.access[(row, column)] == Access::Unreadable);
    // It reads the blocks that it writes: the dirty ones and the parity.
    (!bad_dirty && !bad_parity).then_some(2 * written(view, row))
}

fn written(view: &StripeView, row: usize) -> usize {
    let there = |column: usize| view.access[(row, column)] != Access::Failed;
    let dirty = (0..view.shape.data).filter(|&c| view.z[(row, c)].is_dirty() && there(c)).count();
    dirty + view.shape.parity_columns().filter(|&column| there(column)).count()
}

/// A reconstruct-write has to read this block: for the parity, if any is left to be written, or for its missing sectors.
fn needs_fill(view: &StripeView, row: usize, status: BlockStatus) -> bool {
    match status {
        BlockStatus::Empty => has_parity(view, row),
        BlockStatus::Partial => true,
        BlockStatus::Clean | BlockStatus::Dirty => false,
    }
}

fn has_dirty(view: &StripeView, row: usize) -> bool {
    view.z.row(row).iter().any(|status| status.is_dirty())
}

fn has_parity(view: &StripeView, row: usize) -> bool {
    view.shape.parity_columns().any(|column| view.access[(row, column)] != Access::Failed)
}

/// Section II-A: read-modify-write where it moves fewer blocks, N - c > 2(1 + d) on a whole RAID-5.
fn cheapest(view: &StripeView, row: usize) -> Cycle {
    if !has_dirty(view, row) {
        return Cycle::Nothing;
    }
    match (reconstruct_write_blocks(view, row), read_modify_write_blocks(view, row)) {
        (Some(all), Some(changed)) if all > changed => Cycle::ReadModifyWrite,
        (Some(_), _) => Cycle::ReconstructWrite,
        (None, Some(_)) => Cycle::ReadModifyWrite,
        (None, None) => Cycle::Recover,
    }
}

fn add(matrix: &mut Grid<Ops>, row: usize, column: usize, ops: Ops) {
    matrix[(row, column)] = matrix[(row, column)].with(ops);
}

fn reconstruct_write(view: &StripeView, row: usize, matrix: &mut Grid<Ops>) {
    for column in 0..view.shape.data {
        let status = view.z[(row, column)];
        if needs_fill(view, row, status) {
            add(matrix, row, column, contiguity::fill_read(false, status));
        }
    }
    write_all(view, row, matrix);
}

fn read_modify_write(view: &StripeView, row: usize, matrix: &mut Grid<Ops>) {
    for column in 0..view.shape.data {
        if view.z[(row, column)].is_dirty() {
            add(matrix, row, column, Ops::T.with(Ops::XX).with(Ops::W));
        }
    }
    for column in view.shape.parity_columns() {
        if view.access[(row, column)] == Access::Whole {
            add(matrix, row, column, Ops::R.with(Ops::X).with(Ops::OUT).with(Ops::W));
        }
    }
}

/// Reads all that can be read of a row, so that the rest can be computed; what a bad sector held is written again.
fn recover(view: &StripeView, row: usize, matrix: &mut Grid<Ops>) -> Result<(), TooManyMissing> {
    let mut unknown = 0;
    for column in 0..view.shape.data {
        let status = view.z[(row, column)];
        if status == BlockStatus::Clean {
            continue;
        }
        match view.access[(row, column)] {
            Access::Whole => add(matrix, row, column, contiguity::fill_read(false, status)),
            access => {
                unknown += 1;
                add(matrix, row, column, Ops::RECOVER);
                // A dirty block is written when it is destaged.
                if access == Access::Unreadable && status == BlockStatus::Empty {
                    add(matrix, row, column, Ops::W);
                }
            }
        }
    }
    let readable = |column: &usize| view.access[(row, *column)] == Access::Whole;
    let parity: Vec<usize> = view.shape.parity_columns().filter(readable).take(unknown).collect();
    if parity.len() < unknown {
        return Err(TooManyMissing { row });
    }
    parity.into_iter().for_each(|column| add(matrix, row, column, Ops::R));
    Ok(())
}

/// Parity from all data blocks, and the writes.
fn write_all(view: &StripeView, row: usize, matrix: &mut Grid<Ops>) {
    for column in 0..view.shape.data {
        if has_parity(view, row) {
            add(matrix, row, column, Ops::X);
        }
        if view.z[(row, column)].is_dirty() && view.access[(row, column)] != Access::Failed {
            add(matrix, row, column, Ops::W);
        }
    }
    for column in view.shape.parity_columns() {
        if view.access[(row, column)] != Access::Failed {
            add(matrix, row, column, Ops::OUT.with(Ops::W));
        }
    }
}

/// Neighbours in a column go in one command.
fn runs(matrix: &Grid<Ops>, is: fn(Ops) -> bool) -> Vec<BlockRun> {
    let mut runs: Vec<BlockRun> = Vec::new();
    for column in 0..matrix.columns() {
        for row in (0..matrix.rows()).filter(|&row| is(matrix[(row, column)])) {
            match runs.last_mut() {
                Some(run) if run.column == column && run.rows.end == row => run.rows.end += 1,
                _ => runs.push(BlockRun { column, rows: row..row + 1 }),
            }
        }
    }
    runs
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
