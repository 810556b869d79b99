//! Parity: P is the XOR of the data blocks, Q the sum of g^j times the block of column j in GF(2^8), with g = 2 and the
//! polynomial x^8 + x^4 + x^3 + x^2 + 1 that all RAID-6 of this kind have (H. P. Anvin, "The mathematics of RAID-6").
//!
//! The loops are over plain bytes in a shape that compilers turn into vector instructions, and are compiled twice: for what
//! every processor of the kind has, and for AVX2. What they call is inlined always, or it would be compiled for the first alone.

use multiversion::multiversion;

/// x^8 is the same as this.
const REDUCED: u8 = 0x1d;

/// Bytes computed together: a cache line, and a few vector registers.
const LANES: usize = 64;

/// The number of a parity: P is 0, Q is 1.
pub const Q: usize = 1;

/// Adds `source` to `target`.
#[inline(always)]
pub fn add(target: &mut [u8], source: &[u8]) {
    assert_eq!(target.len(), source.len(), "blocks of one group have one size");
    for (t, s) in target.iter_mut().zip(source) {
        *t ^= s;
    }
}

/// Multiplies each byte by g.
#[inline(always)]
fn double(bytes: &mut [u8]) {
    for byte in bytes {
        *byte = doubled(*byte);
    }
}

#[inline(always)]
const fn doubled(byte: u8) -> u8 {
    // The sign bit, spread over the byte, says whether there is something to reduce.
    (byte << 1) ^ (((byte as i8) >> 7) as u8 & REDUCED)
}

/// Adds `factor` times `source` to `target`.
#[multiversion(targets("x86_64+avx2"))]
pub fn add_scaled(target: &mut [u8], source: &[u8], factor: u8) {
    assert_eq!(target.len(), source.len(), "blocks of one group have one size");
    if factor == 1 {
        return add(target, source);
    }
    let (targets, target_rest) = target.as_chunks_mut::<LANES>();
    let (sources, source_rest) = source.as_chunks::<LANES>();
    for (t, s) in targets.iter_mut().zip(sources) {
        let (mut shifted, mut left) = (*s, factor);
        // The branches are the same for all lanes, and end with the highest bit: small factors are cheap.
        while left > 0 {
            if left & 1 == 1 {
                add(t, &shifted);
            }
            double(&mut shifted);
            left >>= 1;
        }
    }
    for (t, s) in target_rest.iter_mut().zip(source_rest) {
        *t ^= times(*s, factor);
    }
}

/// The product in GF(2^8): one doubling for each bit of `b`, without branches on the data.
const fn times(a: u8, b: u8) -> u8 {
    let (mut product, mut shifted, mut bit) = (0, a, 0);
    while bit < 8 {
        let chosen = 0u8.wrapping_sub((b >> bit) & 1);
        product ^= shifted & chosen;
        shifted = doubled(shifted);
        bit += 1;
    }
    product
}

/// The inverse of each byte but 0.
const INVERSES: [u8; 256] = {
    let (mut inverses, mut exponent) = ([0; 256], 0);
    while exponent < 255 {
        // g^255 is 1.
        inverses[power(exponent) as usize] = power(255 - exponent);
        exponent += 1;
    }
    inverses
};

/// g to the power of `exponent`.
const fn power(exponent: usize) -> u8 {
    let (mut result, mut left) = (1, exponent % 255);
    while left > 0 {
        result = doubled(result);
        left -= 1;
    }
    result
}

const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    INVERSES[a as usize]
}

/// The weight of a data column in P or Q.
pub const fn weight(parity: usize, column: usize) -> u8 {
    if parity == Q { power(column) } else { 1 }
}

/// P and Q in one pass over the data: the blocks of columns 0, 1, ... in order.
#[multiversion(targets("x86_64+avx2"))]
pub fn p_and_q(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    let len = p.len();
    assert!(
        q.len() == len && data.iter().all(|block| block.len() == len),
        "blocks of one group have one size"
    );
    let whole = len / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let (mut p_sum, mut q_sum) = ([0; LANES], [0; LANES]);
        // By Horner: Q = ((D2 * g) + D1) * g + D0.
        for block in data.iter().rev() {
            let d = &block[at..at + LANES];
            add(&mut p_sum, d);
            double(&mut q_sum);
            add(&mut q_sum, d);
        }
        p[at..at + LANES].copy_from_slice(&p_sum);
        q[at..at + LANES].copy_from_slice(&q_sum);
    }
    for at in whole..len {
        p[at] = data.iter().fold(0, |sum, block| sum ^ block[at]);
        q[at] = data.iter().rev().fold(0, |sum, block| doubled(sum) ^ block[at]);
    }
}

/// P in one pass over the data.
#[multiversion(targets("x86_64+avx2"))]
pub fn p_only(data: &[&[u8]], p: &mut [u8]) {
    assert!(data.iter().all(|block| block.len() == p.len()), "blocks of one group have one size");
    let whole = p.len() / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let mut sum = [0; LANES];
        data.iter().for_each(|block| add(&mut sum, &block[at..at + LANES]));
        p[at..at + LANES].copy_from_slice(&sum);
    }
    for at in whole..p.len() {
        p[at] = data.iter().fold(0, |sum, block| sum ^ block[at]);
    }
}

/// Computes the missing data blocks of a group. `out[i]` comes as parity `parities[i]` with all *known* data blocks taken
/// out of it again, and becomes the block of column `unknown[i]`.
pub fn solve(unknown: &[usize], parities: &[usize], out: &mut [Vec<u8>]) {
    assert!(unknown.len() == parities.len() && unknown.len() == out.len(), "one parity for each block");
    match out {
        [] => {}
        [one] => {
            let sum = std::mem::replace(one, vec![0; one.len()]);
            add_scaled(one, &sum, inverse(weight(parities[0], unknown[0])));
        }
        [p, q] => {
            assert_eq!(parities, [0, Q], "two blocks need P and Q");
            let (a, b) = (weight(Q, unknown[0]), weight(Q, unknown[1]));
            // A + B = p and aA + bB = q, so A = (q + bp) / (a + b).
            add_scaled(q, p, b);
            let mut first = vec![0; p.len()];
            add_scaled(&mut first, q, inverse(a ^ b));
            q.copy_from_slice(p);
            add(q, &first);
            p.copy_from_slice(&first);
        }
        _ => unreachable!("RAID-6 makes up for two blocks"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_the_one_of_raid_6() {
        // Facts of the field that Anvin's paper gives: 2 generates it, and its order is 255.
        let mut seen = [false; 256];
        for exponent in 0..255 {
            assert!(!std::mem::replace(&mut seen[power(exponent) as usize], true), "g is a generator");
        }
        assert_eq!((power(255), power(8)), (1, REDUCED));
        for a in 1..=255u8 {
            assert_eq!(times(a, inverse(a)), 1);
            assert_eq!(times(a, 2), doubled(a));
        }
    }

    #[test]
    fn products_are_sums_of_powers() {
        // Any factor, and lengths that are no multiple of the lanes.
        let source: Vec<u8> = (0..200u8).collect();
        for factor in 0..=255u8 {
            let mut target = vec![0x5a; source.len()];
            add_scaled(&mut target, &source, factor);
            for (t, s) in target.iter().zip(&source) {
                assert_eq!(t ^ 0x5a, times(*s, factor), "{factor} times {s}");
            }
        }
    }

    #[test]
    fn any_two_blocks_come_back() {
        let byte = |d: u8, i: u8| i.wrapping_mul(7) ^ d.wrapping_mul(91);
        let data: Vec<Vec<u8>> = (0..7u8).map(|d| (0..100u8).map(|i| byte(d, i)).collect()).collect();
        let refs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let (mut p, mut q, mut p_alone) = (vec![0; 100], vec![0; 100], vec![1; 100]);
        p_and_q(&refs, &mut p, &mut q);
        p_only(&refs, &mut p_alone);
        assert_eq!(p_alone, p);
        let rest = |parity: usize, unknown: &[usize]| {
            let mut sum = if parity == Q { q.clone() } else { p.clone() };
            for column in (0..7).filter(|column| !unknown.contains(column)) {
                add_scaled(&mut sum, &data[column], weight(parity, column));
            }
            sum
        };
        for a in 0..7 {
            for parity in [0, Q] {
                let mut out = [rest(parity, &[a])];
                solve(&[a], &[parity], &mut out);
                assert_eq!(out[0], data[a]);
            }
            for b in a + 1..7 {
                let mut out = [rest(0, &[a, b]), rest(Q, &[a, b])];
                solve(&[a, b], &[0, Q], &mut out);
                assert_eq!((&out[0], &out[1]), (&data[a], &data[b]));
            }
        }
    }
}
