//! The contiguity transform (Baek and Park, sections III-B to III-E): what lies between two reads of a column is read too,
//! and what lies between two writes is written too, where that is right and where it is not slower. A disk that has to
//! leave out a few blocks often misses the next one and waits for a revolution.
//!
//! Reads come first: a block that was read can be written. Numbers in brackets are the paper's predicates.

pub use crate::destage::contiguity::{Contiguity, Strides};
use crate::raid::matrix::{Access, BlockStatus, Grid, Ops, Shape};

/// The gaps of a column, (4) and (5): pairs of rows for which `is` holds, with none between them and something left out.
pub fn gaps(rows: usize, is: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let marked: Vec<usize> = (0..rows).filter(|&row| is(row)).collect();
    marked.windows(2).map(|pair| (pair[0], pair[1])).filter(|(a, b)| b - a > 1).collect()
}

/// The read that fills a gap without spoiling newer data, (6).
pub const fn fill_read(is_parity: bool, status: BlockStatus) -> Ops {
    // Parity is not cached, so there is nothing newer to spoil.
    if !is_parity && status.is_dirty() { Ops::T } else { Ops::R }
}

/// True when the content of a block is known before the writes, so that the block may be written, (7).
pub const fn has_content(is_parity: bool, status: BlockStatus, ops: Ops) -> bool {
    let in_cache = !is_parity && !matches!(status, BlockStatus::Empty);
    in_cache || ops.has(Ops::R.with(Ops::RECOVER))
}

/// Fills gaps between reads.
pub fn read_transform(
    matrix: &mut Grid<Ops>,
    z: &Grid<BlockStatus>,
    access: &Grid<Access>,
    shape: Shape,
    rule: &Strides,
) {
    for column in 0..shape.columns() {
        for (a, b) in gaps(matrix.rows(), |row| matrix[(row, column)].reads()) {
            let readable = (a + 1..b).all(|row| access[(row, column)] == Access::Whole);
            if !readable || !rule.allow((b - a) as u64) {
                continue;
            }
            for row in a + 1..b {
                let is_parity = column >= shape.data;
                let status = if is_parity { BlockStatus::Empty } else { z[(row, column)] };
                matrix[(row, column)] = matrix[(row, column)].with(fill_read(is_parity, status));
            }
        }
    }
}

/// Fills gaps between writes.
pub fn write_transform(matrix: &mut Grid<Ops>, z: &Grid<BlockStatus>, shape: Shape, rule: &Strides) {
    for column in 0..shape.columns() {
        for (a, b) in gaps(matrix.rows(), |row| matrix[(row, column)].writes()) {
            let is_parity = column >= shape.data;
            let known = |row: usize| {
                let status = if is_parity { BlockStatus::Empty } else { z[(row, column)] };
                has_content(is_parity, status, matrix[(row, column)])
            };
            if !rule.allow((b - a) as u64) || !(a + 1..b).all(known) {
                continue;
            }
            for row in a + 1..b {
                matrix[(row, column)] = matrix[(row, column)].with(Ops::W);
            }
        }
    }
}
