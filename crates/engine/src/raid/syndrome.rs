//! Compares the blocks of a parity block group with each other: which are missing and can be computed, whether data and
//! parity fit, and which block is wrong where exactly one is.
//!
//! RAID-6 can tell which one (H. P. Anvin, "The mathematics of RAID-6", on the corruption of one disk). Where the block of data
//! column z is wrong by E, P differs from what the data says by E, and Q by g^z E; where only one of the two differs, it is
//! the wrong one.

use crate::raid::matrix::Shape;
use crate::raid::parity::{self, Q};

/// The verdict on a group of which every block could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupVerdict {
    Right,
    /// Exactly this block is wrong, and this is what it should be.
    Wrong {
        column: usize,
        block: Vec<u8>,
    },
    /// Data and parity do not fit, and nothing says why.
    Mismatch,
}

/// Computes the blocks that are missing, data and parity, from the others; none where the parity does not make up for them.
pub fn complete(shape: Shape, blocks: &[Option<&[u8]>]) -> Option<Vec<(usize, Vec<u8>)>> {
    let missing = |column: &usize| blocks[*column].is_none();
    let unknown: Vec<usize> = (0..shape.data).filter(missing).collect();
    let known_parity = shape.parity_columns().filter(|column| !missing(column));
    let (mut out, mut parities) = (Vec::new(), Vec::new());
    for column in known_parity.take(unknown.len()) {
        let which = column - shape.data;
        let mut sum = blocks[column]?.to_vec();
        for (data, block) in blocks[..shape.data].iter().enumerate() {
            if let Some(block) = block {
                parity::add_scaled(&mut sum, block, parity::weight(which, data));
            }
        }
        parities.push(which);
        out.push(sum);
    }
    if out.len() < unknown.len() {
        return None;
    }
    parity::solve(&unknown, &parities, &mut out);
    let mut computed: Vec<(usize, Vec<u8>)> = unknown.into_iter().zip(out).collect();
    if shape.parity_columns().any(|column| missing(&column)) {
        let data = |column| match blocks[column] {
            Some(block) => Some(block),
            None => computed.iter().find(|(other, _)| *other == column).map(|(_, block)| block.as_slice()),
        };
        let data: Option<Vec<&[u8]>> = (0..shape.data).map(data).collect();
        let parities = parity_of(shape, &data?);
        computed.extend(shape.parity_columns().zip(parities).filter(|(column, _)| missing(column)));
    }
    Some(computed)
}

/// The parity blocks of a group.
pub fn parity_of(shape: Shape, data: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut p = vec![0; data[0].len()];
    if shape.parity == 1 {
        parity::p_only(data, &mut p);
        return vec![p];
    }
    let mut q = vec![0; p.len()];
    parity::p_and_q(data, &mut p, &mut q);
    vec![p, q]
}

/// Checks that the blocks of a group fit, and finds the one that does not. `parities`: computed from the data.
pub fn judge(shape: Shape, blocks: &[&[u8]], parities: &[Vec<u8>]) -> GroupVerdict {
    let differs = |which: usize| {
        let mut difference = parities[which].clone();
        parity::add(&mut difference, blocks[shape.data + which]);
        difference
    };
    let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
    let p = differs(0);
    if shape.parity == 1 {
        return if is_zero(&p) { GroupVerdict::Right } else { GroupVerdict::Mismatch };
    }
    let q = differs(Q);
    match (is_zero(&p), is_zero(&q)) {
        (true, true) => GroupVerdict::Right,
        (false, true) => GroupVerdict::Wrong { column: shape.data, block: parities[0].clone() },
        (true, false) => GroupVerdict::Wrong { column: shape.data + Q, block: parities[Q].clone() },
        (false, false) => {
            let explains = |column: &usize| {
                let mut rest = q.clone();
                parity::add_scaled(&mut rest, &p, parity::weight(Q, *column));
                is_zero(&rest)
            };
            let Some(column) = (0..shape.data).find(explains) else { return GroupVerdict::Mismatch };
            let mut block = blocks[column].to_vec();
            parity::add(&mut block, &p);
            GroupVerdict::Wrong { column, block }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(shape: Shape) -> Vec<Vec<u8>> {
        let byte = |column: usize, at: usize| (at * 7 + column * 91) as u8 ^ (at >> 3) as u8;
        let mut blocks: Vec<Vec<u8>> =
            (0..shape.data).map(|column| (0..200).map(|at| byte(column, at)).collect()).collect();
        let data: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        let parities = parity_of(shape, &data);
        blocks.extend(parities);
        blocks
    }

    const SHAPES: [Shape; 3] =
        [Shape { data: 4, parity: 1 }, Shape { data: 5, parity: 2 }, Shape { data: 2, parity: 2 }];

    #[test]
    fn as_many_blocks_as_there_is_parity_come_back_and_no_more() {
        for shape in SHAPES {
            let whole = group(shape);
            for missing in 0u32..1 << shape.columns() {
                let gone = |column: usize| missing >> column & 1 == 1;
                let blocks: Vec<Option<&[u8]>> =
                    whole.iter().enumerate().map(|(c, block)| (!gone(c)).then_some(&block[..])).collect();
                let computed = complete(shape, &blocks);
                assert_eq!(computed.is_some(), missing.count_ones() as usize <= shape.parity, "{missing:b}");
                for (column, block) in computed.iter().flatten() {
                    assert!(gone(*column) && *block == whole[*column], "{missing:b}, column {column}");
                }
                assert!(computed.is_none_or(|found| found.len() == missing.count_ones() as usize));
            }
        }
    }

    fn verdict(shape: Shape, blocks: &[Vec<u8>]) -> GroupVerdict {
        let all: Vec<&[u8]> = blocks.iter().map(Vec::as_slice).collect();
        judge(shape, &all, &parity_of(shape, &all[..shape.data]))
    }

    #[test]
    fn raid_6_says_which_block_is_wrong_and_what_it_should_be() {
        for shape in SHAPES {
            let right = group(shape);
            assert_eq!(verdict(shape, &right), GroupVerdict::Right);
            for column in 0..shape.columns() {
                let mut blocks = right.clone();
                blocks[column][17] ^= 0x40;
                blocks[column][199] ^= 0x01;
                let expected = match shape.parity {
                    1 => GroupVerdict::Mismatch,
                    _ => GroupVerdict::Wrong { column, block: right[column].clone() },
                };
                assert_eq!(verdict(shape, &blocks), expected);
            }
        }
    }

    #[test]
    fn two_wrong_blocks_are_blamed_on_nobody() {
        let shape = Shape { data: 5, parity: 2 };
        for (a, b) in [(0, 1), (1, 4), (0, 6), (5, 6)] {
            let mut blocks = group(shape);
            blocks[a][3] ^= 0x11;
            blocks[b][100] ^= 0x22;
            assert_eq!(verdict(shape, &blocks), GroupVerdict::Mismatch, "{a} and {b}");
        }
    }
}
