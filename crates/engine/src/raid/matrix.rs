//! The stripe as a matrix: one row for each parity block group, one column for each strip, data strips first and then
//! parity (P, and Q on RAID-6). Z says what the cache has of each block, and the rxw-matrix what is to be done with it
//! (Baek and Park, sections II-A and III-B).

use std::fmt;
use std::ops::{Index, IndexMut};

/// The number of strips of a stripe that hold data, and of those that hold parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub data: usize,
    pub parity: usize,
}

impl Shape {
    /// All columns, one for each member.
    pub const fn columns(self) -> usize {
        self.data + self.parity
    }

    pub fn parity_columns(self) -> std::ops::Range<usize> {
        self.data..self.columns()
    }
}

/// The state of a data block in the cache: an element of the matrix Z.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockStatus {
    /// The cache has nothing of the block.
    #[default]
    Empty,
    /// As on the disk.
    Clean,
    /// Newer than the disk.
    Dirty,
    /// Some sectors newer than the disk, and the others missing: the paper has no such blocks, as its requests are blocks.
    Partial,
}

impl BlockStatus {
    pub const fn is_dirty(self) -> bool {
        matches!(self, BlockStatus::Dirty | BlockStatus::Partial)
    }
}

/// Access to a block on its member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    #[default]
    Whole,
    /// A bad sector: it cannot be read until it has been written.
    Unreadable,
    /// The member has failed.
    Failed,
}

/// The operations on one block: an element of the rxw-matrix, a subset of Table I's mnemonics.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Ops(u8);

impl Ops {
    pub const NONE: Ops = Ops(0);
    /// Read the block to the cache.
    pub const R: Ops = Ops(1);
    /// Read the block to temporary memory.
    pub const T: Ops = Ops(2);
    /// Write the block.
    pub const W: Ops = Ops(4);
    /// XOR what is in the cache.
    pub const X: Ops = Ops(8);
    /// XOR what is in the cache and what is in temporary memory.
    pub const XX: Ops = Ops(16);
    /// The result of the XOR: parity out.
    pub const OUT: Ops = Ops(32);
    /// Compute what is on the disk from the other members, as it cannot be read.
    pub const RECOVER: Ops = Ops(64);

    pub const fn with(self, other: Ops) -> Ops {
        Ops(self.0 | other.0)
    }

    pub const fn has(self, other: Ops) -> bool {
        self.0 & other.0 != 0
    }

    pub const fn reads(self) -> bool {
        self.has(Ops::R.with(Ops::T))
    }

    pub const fn writes(self) -> bool {
        self.has(Ops::W)
    }
}

impl fmt::Debug for Ops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (Ops::R, "r"),
            (Ops::T, "t"),
            (Ops::X, "x"),
            (Ops::XX, "xx"),
            (Ops::OUT, "out"),
            (Ops::RECOVER, "recover"),
            (Ops::W, "w"),
        ];
        let known: Vec<&str> =
            words.into_iter().filter(|(op, _)| self.has(*op)).map(|(_, word)| word).collect();
        write!(f, "{{{}}}", known.join(","))
    }
}

/// A matrix, addressed by (row, column).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid<T> {
    rows: usize,
    columns: usize,
    cells: Vec<T>,
}

impl<T: Copy + Default> Grid<T> {
    pub fn new(rows: usize, columns: usize) -> Grid<T> {
        Grid { rows, columns, cells: vec![T::default(); rows * columns] }
    }

    pub const fn rows(&self) -> usize {
        self.rows
    }

    pub const fn columns(&self) -> usize {
        self.columns
    }

    pub fn row(&self, row: usize) -> &[T] {
        &self.cells[row * self.columns..(row + 1) * self.columns]
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.cells.iter()
    }
}

impl<T> Index<(usize, usize)> for Grid<T> {
    type Output = T;
    fn index(&self, (row, column): (usize, usize)) -> &T {
        &self.cells[row * self.columns + column]
    }
}

impl<T> IndexMut<(usize, usize)> for Grid<T> {
    fn index_mut(&mut self, (row, column): (usize, usize)) -> &mut T {
        &mut self.cells[row * self.columns + column]
    }
}
