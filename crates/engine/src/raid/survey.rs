//! Judges a window that a pass has read: the blocks that have to be written, and the findings. Pure.
//!
//! | the pass is a | a row that fits                      | one that does not            | a block that could not be read |
//! |---------------|--------------------------------------|------------------------------|--------------------------------|
//! | resync        | nothing                              | its parity is written        | is left, and the row in doubt; parity is written |
//! | scrub         | nothing                              | counted, and repaired if told | is computed and written       |
//! | rebuild       | gives the block of the new member    |                              | is computed and written        |
//!
//! A repair writes the one wrong block where RAID-6 can tell which it is, and the parity otherwise, which is counted apart. A row with a block that is
//! missing and one that is wrong is only counted: nothing says which of them would be made right.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::raid::layout::Layout;
use crate::raid::matrix::Shape;
use crate::raid::pass::PassKind;
use crate::raid::status::Findings;
use crate::raid::syndrome::{self, GroupVerdict};
use crate::{Buf, LINE_BYTES};

const BLOCK: usize = LINE_BYTES as usize;

/// Blocks of one member, in a row.
pub(super) struct Repair {
    pub role: usize,
    pub rows: Range<usize>,
    pub buf: Buf,
}

/// The outcome of a [`WindowSurvey`].
#[derive(Default)]
pub(super) struct Surveyed {
    pub findings: Findings,
    pub repairs: Vec<Repair>,
    /// Rows that stay as they are: more of them is missing than the parity makes up for, or it is in doubt itself.
    pub lost: Vec<usize>,
}

/// See the module's documentation. Rows are those of the window.
pub(super) struct WindowSurvey<'a> {
    pub layout: Layout,
    pub kind: PassKind,
    pub units: Range<u64>,
    /// The rows that each member gave.
    pub bytes: Vec<Option<Buf>>,
    /// Unreadable blocks, by role and row.
    pub unreadable: &'a BTreeSet<(usize, usize)>,
    /// Unreadable blocks that are lost, and lie in rows that do not fit.
    pub unsettled: &'a BTreeSet<(usize, usize)>,
}

/// The writes, before neighbours are put together.
#[derive(Default)]
struct Writes {
    blocks: BTreeMap<(usize, usize), Vec<u8>>,
    /// All that the new member gets.
    rebuilt: Option<Buf>,
}

impl WindowSurvey<'_> {
    const fn shape(&self) -> Shape {
        self.layout.shape
    }

    fn rows(&self) -> usize {
        (self.units.end - self.units.start) as usize * self.layout.rows
    }

    pub fn carry_out(&self) -> Surveyed {
        let mut found = Surveyed::default();
        let mut writes = Writes::default();
        let blank = self.bytes.iter().flatten().any(Buf::is_blank);
        if let PassKind::Rebuild { .. } = self.kind {
            let bytes = self.rows() * BLOCK;
            writes.rebuilt = Some(if blank { Buf::blank(bytes) } else { Buf::zeroed(bytes) });
        }
        if !blank {
            for unit in self.units.clone() {
                for rows in self.spans(unit) {
                    self.look_at(unit, rows, &mut found, &mut writes);
                }
            }
        }
        found.repairs = self.join(writes);
        found
    }

    /// Rows of a unit, cut where others of its blocks are missing.
    fn spans(&self, unit: u64) -> Vec<Range<usize>> {
        let first = (unit - self.units.start) as usize * self.layout.rows;
        let end = first + self.layout.rows;
        let all_read = self.unreadable.is_empty();
        let missing = |row: usize| (0..self.bytes.len()).filter(move |&role| !self.has(role, row));
        let mut spans: Vec<Range<usize>> = Vec::new();
        for row in first..end {
            match spans.last_mut() {
                Some(span)
                    if all_read || self.unsettled.is_empty() && missing(span.start).eq(missing(row)) =>
                {
                    span.end = row + 1;
                }
                _ => spans.push(row..row + 1),
            }
        }
        spans
    }

    /// The roles of the members that did not give their block of a row.
    pub fn missing(&self, row: usize) -> Vec<usize> {
        (0..self.bytes.len()).filter(|&role| !self.has(role, row)).collect()
    }

    fn has(&self, role: usize, row: usize) -> bool {
        self.bytes[role].is_some() && !self.unreadable.contains(&(role, row))
    }

    fn block(&self, role: usize, rows: &Range<usize>) -> Option<&[u8]> {
        let buf = self.bytes[role].as_ref().filter(|_| self.has(role, rows.start))?;
        Some(&buf.bytes()[rows.start * BLOCK..rows.end * BLOCK])
    }

    /// Examines rows of a unit of which the same blocks are missing.
    fn look_at(&self, unit: u64, rows: Range<usize>, found: &mut Surveyed, writes: &mut Writes) {
        let shape = self.shape();
        let role = |column: usize| self.layout.member(unit, column);
        let blocks: Vec<Option<&[u8]>> =
            (0..shape.columns()).map(|column| self.block(role(column), &rows)).collect();
        let missing = blocks.iter().filter(|block| block.is_none()).count();
        if missing == 0 {
            let blocks: Vec<&[u8]> = blocks.into_iter().flatten().collect();
            return self.compare(unit, rows, &blocks, found, writes);
        }
        if self.is_unsettled(unit, rows.start) {
            return self.void(unit, rows, &blocks, found, writes);
        }
        let unreadable = |column: &usize| self.unreadable.contains(&(role(*column), rows.start));
        let lost = blocks[..shape.data].iter().filter(|block| block.is_none()).count();
        // Nothing is computed of parity that a crash may have left half-written.
        let in_doubt = self.kind == PassKind::Resync && lost > 0;
        let Some(computed) = syndrome::complete(shape, &blocks).filter(|_| !in_doubt) else {
            found.findings.lost += (lost * rows.len()) as u64;
            return found.lost.extend(rows);
        };
        let count = (0..shape.columns()).filter(unreadable).count() * rows.len();
        found.findings.unreadable += count as u64;
        let doubtful = self.doubtful(&rows, &blocks, &computed);
        found.findings.mismatches += doubtful.len() as u64;
        for (column, block) in computed {
            for (index, row) in rows.clone().enumerate() {
                let block = &block[index * BLOCK..(index + 1) * BLOCK];
                if let (PassKind::Rebuild { role: to }, Some(rebuilt)) = (self.kind, &mut writes.rebuilt)
                    && role(column) == to
                {
                    rebuilt.bytes_mut()[row * BLOCK..(row + 1) * BLOCK].copy_from_slice(block);
                } else if unreadable(&column) && !doubtful.contains(&row) {
                    writes.blocks.insert((role(column), row), block.to_vec());
                }
            }
        }
    }

    fn is_unsettled(&self, unit: u64, row: usize) -> bool {
        let of_data = |column: usize| self.unsettled.contains(&(self.layout.member(unit, column), row));
        (0..self.shape().data).any(of_data)
    }

    /// A row with lost blocks, which does not fit: a resync puts zeroes in their place, and makes the parity fit.
    fn void(
        &self,
        unit: u64,
        rows: Range<usize>,
        blocks: &[Option<&[u8]>],
        found: &mut Surveyed,
        writes: &mut Writes,
    ) {
        let shape = self.shape();
        let role = |column: usize| self.layout.member(unit, column);
        let is_lost = |column: usize| self.unsettled.contains(&(role(column), rows.start));
        let zeroes = vec![0; rows.len() * BLOCK];
        let known = |column: usize| if is_lost(column) { Some(&zeroes[..]) } else { blocks[column] };
        let data: Option<Vec<&[u8]>> = (0..shape.data).map(known).collect();
        let Some(data) = data.filter(|_| self.kind == PassKind::Resync) else {
            let missing = blocks[..shape.data].iter().filter(|block| block.is_none()).count();
            found.findings.lost += (missing * rows.len()) as u64;
            return found.lost.extend(rows);
        };
        let parities = shape.parity_columns().zip(syndrome::parity_of(shape, &data));
        let voided = (0..shape.data).filter(|column| is_lost(*column)).map(|column| (column, zeroes.clone()));
        for (column, bytes) in voided.chain(parities) {
            for (row, block) in rows.clone().zip(bytes.chunks_exact(BLOCK)) {
                writes.blocks.insert((role(column), row), block.to_vec());
            }
        }
    }

    /// The rows of which something is missing and the rest does not fit either, as far as there is parity left to tell.
    fn doubtful(
        &self,
        rows: &Range<usize>,
        blocks: &[Option<&[u8]>],
        computed: &[(usize, Vec<u8>)],
    ) -> Vec<usize> {
        let shape = self.shape();
        if computed.len() == shape.parity {
            return Vec::new();
        }
        let whole = |(column, block): (usize, &Option<&'_ [u8]>)| match block {
            Some(block) => block.to_vec(),
            None => computed.iter().find(|(other, _)| *other == column).expect("it was computed").1.clone(),
        };
        let whole: Vec<Vec<u8>> = blocks.iter().enumerate().map(whole).collect();
        let all: Vec<&[u8]> = whole.iter().map(Vec::as_slice).collect();
        let parities = syndrome::parity_of(shape, &all[..shape.data]);
        let fits = |index: usize| {
            let at = index * BLOCK..(index + 1) * BLOCK;
            parities
                .iter()
                .enumerate()
                .all(|(which, parity)| parity[at.clone()] == all[shape.data + which][at.clone()])
        };
        rows.clone().enumerate().filter(|(index, _)| !fits(*index)).map(|(_, row)| row).collect()
    }

    /// Rows of which every block is there.
    fn compare(
        &self,
        unit: u64,
        rows: Range<usize>,
        blocks: &[&[u8]],
        found: &mut Surveyed,
        writes: &mut Writes,
    ) {
        let shape = self.shape();
        let parities = syndrome::parity_of(shape, &blocks[..shape.data]);
        if parities.iter().zip(&blocks[shape.data..]).all(|(parity, block)| parity == block) {
            return;
        }
        for (index, row) in rows.enumerate() {
            let at = index * BLOCK..(index + 1) * BLOCK;
            let blocks: Vec<&[u8]> = blocks.iter().map(|block| &block[at.clone()]).collect();
            let parities: Vec<Vec<u8>> = parities.iter().map(|parity| parity[at.clone()].to_vec()).collect();
            let verdict = syndrome::judge(shape, &blocks, &parities);
            if verdict == GroupVerdict::Right {
                continue;
            }
            found.findings.mismatches += 1;
            match (self.kind, verdict) {
                (PassKind::Scrub { repair: false }, _) => {}
                (PassKind::Scrub { .. }, GroupVerdict::Wrong { column, block }) => {
                    writes.blocks.insert((self.layout.member(unit, column), row), block);
                }
                (kind, _) => {
                    found.findings.unlocated += u64::from(kind != PassKind::Resync);
                    for (column, parity) in shape.parity_columns().zip(parities) {
                        writes.blocks.insert((self.layout.member(unit, column), row), parity);
                    }
                }
            }
        }
    }

    /// Neighbours on a member go in one command.
    fn join(&self, writes: Writes) -> Vec<Repair> {
        let mut runs: Vec<(usize, Range<usize>, Vec<u8>)> = Vec::new();
        for ((role, row), block) in writes.blocks {
            match runs.last_mut() {
                Some((last, rows, bytes)) if *last == role && rows.end == row => {
                    rows.end += 1;
                    bytes.extend(block);
                }
                _ => runs.push((role, row..row + 1, block)),
            }
        }
        let repair = |(role, rows, bytes): (usize, Range<usize>, Vec<u8>)| {
            let buf = Buf::copy_of(&bytes);
            Repair { role, rows, buf }
        };
        let mut repairs: Vec<Repair> = runs.into_iter().map(repair).collect();
        if let (PassKind::Rebuild { role }, Some(buf)) = (self.kind, writes.rebuilt) {
            repairs.push(Repair { role, rows: 0..self.rows(), buf });
        }
        repairs
    }
}
