//! Measures the speed of parity in GB of data a second, beside memcpy of the same data in the same run.
//!
//! `cargo run --release -p dcd-engine --example parity_speed`
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // A measurement needs a clock.

use std::hint::black_box;
use std::time::Instant;

use dcd_engine::raid::parity;

const BLOCK: usize = 4096;
/// Data in all: much more than the processor's caches hold, and little enough for any machine.
const BYTES: usize = 64 << 20;
/// The best of so many passes: what another program took is not ours.
const PASSES: usize = 30;

/// GB of data a second in the best pass.
fn rate(mut pass: impl FnMut()) -> f64 {
    let seconds = (0..PASSES).map(|_| {
        let start = Instant::now();
        pass();
        start.elapsed().as_secs_f64()
    });
    BYTES as f64 / 1e9 / seconds.fold(f64::INFINITY, f64::min)
}

fn main() {
    let data: Vec<u8> = (0..BYTES).map(|at| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) as u8).collect();
    let mut copy = vec![0u8; BYTES];
    println!("members       memcpy         P             P and Q       changed P and Q    one block back");
    for columns in [4, 8, 16] {
        let groups: Vec<Vec<&[u8]>> =
            data.chunks_exact(columns * BLOCK).map(|group| group.chunks_exact(BLOCK).collect()).collect();
        let (mut p, mut q) = (vec![0u8; BLOCK], vec![0u8; BLOCK]);
        let memcpy = rate(|| {
            for (from, to) in data.chunks_exact(BLOCK).zip(copy.chunks_exact_mut(BLOCK)) {
                black_box(to).copy_from_slice(black_box(from));
            }
        });
        let p_rate = rate(|| groups.iter().for_each(|group| parity::p_only(black_box(group), &mut p)));
        let pq_rate =
            rate(|| groups.iter().for_each(|group| parity::p_and_q(black_box(group), &mut p, &mut q)));
        // A read-modify-write: what each block changed, into both.
        let changed = rate(|| {
            for group in &groups {
                for (column, block) in group.iter().enumerate() {
                    parity::add_scaled(&mut p, black_box(block), parity::weight(0, column));
                    parity::add_scaled(&mut q, black_box(block), parity::weight(parity::Q, column));
                }
            }
        });
        let recovered = rate(|| {
            for group in &groups {
                let mut out = [p.clone()];
                for (column, block) in group.iter().enumerate().skip(1) {
                    parity::add_scaled(&mut out[0], black_box(block), parity::weight(0, column));
                }
                parity::solve(&[0], &[0], &mut out);
                black_box(&out);
            }
        });
        black_box((&p, &q, &copy));
        let of = |rate: f64| format!("{rate:5.1} ({:4.2}x)", rate / memcpy);
        println!(
            "{columns:>2} + parity  {memcpy:5.1} GB/s  {}  {}  {}     {}",
            of(p_rate),
            of(pq_rate),
            of(changed),
            of(recovered)
        );
    }
}
