//! The XORs of a plan, on bytes: between its reads and its writes.

use std::collections::BTreeMap;

use crate::raid::matrix::{BlockStatus, Ops};
use crate::raid::parity::{self, Q};
use crate::raid::plan::{Plan, StripeView};

/// Gives the bytes of a stripe's blocks.
pub trait Blocks {
    /// The block in the cache; asked for only where the cache has something.
    fn cached(&self, row: usize, column: usize) -> &[u8];
    /// The block that was read; asked for only where the plan reads.
    fn read(&self, row: usize, column: usize) -> &[u8];
}

/// Blocks that were computed, by (row, column).
#[derive(Debug, Default)]
pub struct Computed(BTreeMap<(usize, usize), Vec<u8>>);

impl Computed {
    pub fn get(&self, row: usize, column: usize) -> Option<&[u8]> {
        self.0.get(&(row, column)).map(Vec::as_slice)
    }
}

/// The content of blocks that cannot be read.
pub fn recovered(plan: &Plan, view: &StripeView, blocks: &dyn Blocks) -> Computed {
    let mut computed = Computed::default();
    for row in 0..view.rows() {
        let unknown: Vec<usize> =
            (0..view.shape.data).filter(|&c| plan.matrix[(row, c)].has(Ops::RECOVER)).collect();
        if unknown.is_empty() {
            continue;
        }
        let read = |column: &usize| plan.matrix[(row, *column)].has(Ops::R);
        let columns: Vec<usize> = view.shape.parity_columns().filter(read).take(unknown.len()).collect();
        let mut out: Vec<Vec<u8>> = columns.iter().map(|&column| blocks.read(row, column).to_vec()).collect();
        let parities: Vec<usize> = columns.iter().map(|column| column - view.shape.data).collect();
        for column in (0..view.shape.data).filter(|column| !unknown.contains(column)) {
            let old = match view.z[(row, column)] {
                BlockStatus::Clean => blocks.cached(row, column),
                _ => blocks.read(row, column),
            };
            for (sum, &parity) in out.iter_mut().zip(&parities) {
                parity::add_scaled(sum, old, parity::weight(parity, column));
            }
        }
        parity::solve(&unknown, &parities, &mut out);
        computed.0.extend(unknown.into_iter().zip(out).map(|(column, block)| ((row, column), block)));
    }
    computed
}

/// The present content of a data block on its disk, if the plan finds it out.
pub fn old<'a>(
    plan: &Plan,
    blocks: &'a dyn Blocks,
    recovered: &'a Computed,
    row: usize,
    column: usize,
) -> &'a [u8] {
    if plan.matrix[(row, column)].has(Ops::RECOVER) {
        return recovered.get(row, column).expect("it was computed");
    }
    blocks.read(row, column)
}

/// The new parity. Missing sectors of dirty blocks must have been filled by now.
pub fn parity_out(plan: &Plan, view: &StripeView, blocks: &dyn Blocks, recovered: &Computed) -> Computed {
    let mut computed = Computed::default();
    for row in 0..view.rows() {
        let out = |column: &usize| plan.matrix[(row, *column)].has(Ops::OUT);
        let columns: Vec<usize> = view.shape.parity_columns().filter(out).collect();
        let changes = columns.iter().any(|&column| plan.matrix[(row, column)].has(Ops::X));
        let blocks_out = if changes {
            changed_parity(plan, view, blocks, row, &columns)
        } else {
            whole_parity(plan, view, blocks, recovered, row, &columns)
        };
        computed.0.extend(columns.into_iter().zip(blocks_out).map(|(column, block)| ((row, column), block)));
    }
    computed
}

/// Read-modify-write: the old parity, and what each dirty block changed.
fn changed_parity(
    plan: &Plan,
    view: &StripeView,
    blocks: &dyn Blocks,
    row: usize,
    columns: &[usize],
) -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = columns.iter().map(|&column| blocks.read(row, column).to_vec()).collect();
    for column in (0..view.shape.data).filter(|&c| plan.matrix[(row, c)].has(Ops::XX)) {
        let mut change = blocks.cached(row, column).to_vec();
        parity::add(&mut change, blocks.read(row, column));
        for (sum, parity) in out.iter_mut().zip(columns) {
            parity::add_scaled(sum, &change, parity::weight(parity - view.shape.data, column));
        }
    }
    out
}

/// Reconstruct-write: all data blocks.
fn whole_parity(
    plan: &Plan,
    view: &StripeView,
    blocks: &dyn Blocks,
    recovered: &Computed,
    row: usize,
    columns: &[usize],
) -> Vec<Vec<u8>> {
    if columns.is_empty() {
        return Vec::new();
    }
    let data: Vec<&[u8]> = (0..view.shape.data)
        .map(|column| match view.z[(row, column)] {
            BlockStatus::Empty => old(plan, blocks, recovered, row, column),
            _ => blocks.cached(row, column),
        })
        .collect();
    let mut p = vec![0; data[0].len()];
    if columns == [view.shape.data] {
        parity::p_only(&data, &mut p);
        return vec![p];
    }
    let mut q = vec![0; p.len()];
    parity::p_and_q(&data, &mut p, &mut q);
    let by_column = |&column: &usize| if column - view.shape.data == Q { q.clone() } else { p.clone() };
    columns.iter().map(by_column).collect()
}
