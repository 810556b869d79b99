//! Measures the speed of the lookup table: ns for each operation on a full table of a million lines, in random order.
//!
//! `cargo run --release -p dcd-engine --example table_speed`
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // A measurement needs a clock.

use std::hint::black_box;
use std::ops::Range;
use std::time::Instant;

use dcd_engine::log_cache::AddressSpace;
use dcd_engine::log_cache::table::{Line, LookupTable, Piece, Place, TablePart};
use rand::{Rng, SeedableRng, seq::SliceRandom};
use rand_chacha::ChaCha8Rng;

const LINES: usize = 1 << 20;

fn report(name: &str, operations: usize, start: Instant) {
    let nanos = start.elapsed().as_nanos() as f64;
    println!("{name:<34} {:8.1} ns each {:10.2} ms in all", nanos / operations as f64, nanos / 1e6);
}

/// Purges the table in a single part.
fn purge(table: &mut LookupTable, places: Range<Place>) {
    assert!(table.purge(&[places], TablePart::first(usize::MAX)).is_none());
}

fn main() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    // A gap before each: lines that are certainly there, and lines that are certainly not.
    let mut lines: Vec<u64> = (0..LINES as u64).map(|at| at * 64 + random.random_range(0..63)).collect();
    lines.shuffle(&mut random);
    let mut table = LookupTable::new(&AddressSpace::one(LINES as u64 * 64 * 8), LINES, 1);

    let start = Instant::now();
    for (at, line) in lines.iter().enumerate() {
        table.insert(Line(*line), Piece::written(Place(at as u64 * 8), 0, 8, at as u32), |_| ());
    }
    report("insert, empty to full", LINES, start);

    lines.shuffle(&mut random);
    let start = Instant::now();
    for line in &lines {
        black_box(table.lookup(Line(*line)));
    }
    report("lookup, there", LINES, start);

    let start = Instant::now();
    for line in &lines {
        black_box(table.lookup(Line(line | 63)));
    }
    report("lookup, missing", LINES, start);

    lines.shuffle(&mut random);
    let log = LINES as u64 * 8;
    let start = Instant::now();
    for (at, line) in lines.iter().enumerate() {
        table.insert(Line(*line), Piece::written(Place(log + at as u64 * 8), 0, 8, 0), |lost| {
            black_box(lost);
        });
    }
    report("insert over an older copy", LINES, start);

    let start = Instant::now();
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(table.mark_clean(Line(*line), Place(log + at as u64 * 8)), Some(8));
    }
    report("mark_clean", LINES, start);

    let start = Instant::now();
    purge(&mut table, Place(0)..Place(log));
    report("purge of nothing, each line", LINES, start);
    let start = Instant::now();
    purge(&mut table, Place(log)..Place(log + log / 32));
    report("purge of a 32nd, each line", LINES, start);
    assert_eq!(table.counts().lines as usize, LINES - LINES / 32);

    let start = Instant::now();
    for line in &lines {
        table.remove_sectors(Line(*line), 0xff, |lost| {
            black_box(lost);
        });
    }
    report("remove", LINES, start);
    assert_eq!(table.counts().lines, 0);
    println!("{:.2} bytes a line", table.memory_bytes() as f64 / LINES as f64);
}
