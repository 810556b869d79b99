//! RAM for each cached 4 KiB, counted by the allocator: a whole log cache over a full log of 1 GiB, with everything in it
//! that grows with the log. `cargo test -p dcd-engine --lib log_memory -- --nocapture` prints the figures.

use crate::log_tests::counting::{ALLOCATED, PEAK};
use crate::log_tests::rig::{Ram, Rig};
use dcd_engine::log_cache::LogCacheConfig;
use dcd_engine::*;

const LOG_BYTES: u64 = 1 << 30;
const DATA_BYTES: u64 = 1 << 40;
const DATA_LINES: u64 = DATA_BYTES / LINE_BYTES;
/// The smallest log: what a cache with it has in RAM does not grow with the log.
const SMALL_LOG_BYTES: u64 = 4 << 20;
/// The most that a cached 4 KiB may take.
const LINE_RAM_MAX: f64 = 21.0;
/// Utilisation from which a log counts as full: four segments of 2048 may be free, in which the next batch has room.
const FULL: f64 = 0.998;
/// Fragments of half a line or less have a list: one entry and two nodes of 16 bytes, by the load of the table.
const BROKEN_RAM_MAX: f64 = 56.0;
/// More than one write at a time, as clients have it.
const BATCH: usize = 256;

/// Counts of a cache.
struct Counted {
    lines: u64,
    bytes_per_line: f64,
    destaging: usize,
}

fn empty(log_bytes: u64) -> Rig {
    let config = LogCacheConfig {
        high_mark: 100,
        idle_empty: Nanos::MAX,
        idle_full: Nanos::MAX,
        ..Default::default()
    };
    Rig::new(config, 4096, Ram::without_bytes(log_bytes), Ram::without_bytes(DATA_BYTES))
}

/// Bytes of RAM of a cache that do not depend on the size of its log: segment buffers, and the memory for destaging.
fn fixed_bytes() -> usize {
    let before = ALLOCATED.get();
    let rig = empty(SMALL_LOG_BYTES);
    let fixed = ALLOCATED.get() - before;
    drop(rig);
    fixed
}

/// Writes pieces until the log is full, or there are as many lines as it can hold, and counts.
fn count(sectors: u64, pieces_per_line: u64, line_of: impl Fn(u64) -> u64) -> Counted {
    let fixed = fixed_bytes();
    let before = ALLOCATED.get();
    let mut rig = empty(LOG_BYTES);
    let mut batch = Vec::with_capacity(BATCH);
    let lines_max = LOG_BYTES / LINE_BYTES - BATCH as u64;
    let mut written = 0;
    while written < lines_max * pieces_per_line && rig.status()["utilisation"].as_f64() < Some(FULL) {
        for id in 0..BATCH as u64 {
            let at = Lba(line_of(written / pieces_per_line) * LINE_SECTORS + written % pieces_per_line * 2);
            let buf = Buf::blank((sectors * SECTOR_BYTES) as usize);
            let io = Io::Write { at, buf, durability: Durability::Volatile };
            batch.push(Request { id: RequestId(id), disk: 0, io });
            written += 1;
        }
        rig.serve(&mut batch, |_, _| {});
    }
    drop(batch);
    assert_eq!(rig.count("destage_batches"), 0, "everything is in the log");
    let full = ALLOCATED.get();
    let lines = written / pieces_per_line;
    assert_eq!(rig.status()["cached_bytes"], written * sectors * SECTOR_BYTES, "every piece is cached once");
    let grown = full - before - fixed;
    PEAK.set(full);
    rig.drain();
    let destaging = PEAK.get() - full;
    Counted { lines, bytes_per_line: grown as f64 / lines as f64, destaging }
}

/// Every line once, in an order without order: the factor is odd, and the lines are a power of two.
fn scattered(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % DATA_LINES
}

#[test]
fn a_cached_4_kib_costs_at_most_21_bytes_of_ram_everything_counted() {
    let cases: [(&str, f64, Counted); 4] = [
        ("4 KiB, one after the other", LINE_RAM_MAX, count(8, 1, |at| at)),
        ("4 KiB, at random", LINE_RAM_MAX, count(8, 1, scattered)),
        ("512 B, each in a line of its own", LINE_RAM_MAX, count(1, 1, scattered)),
        ("512 B, two in each line", BROKEN_RAM_MAX, count(1, 2, scattered)),
    ];
    println!("whatever the size of the log: {} KiB", fixed_bytes() >> 10);
    for (name, bound, counted) in &cases {
        println!(
            "{name}: {} lines, {:.2} bytes for each; while destaging {} KiB more",
            counted.lines,
            counted.bytes_per_line,
            counted.destaging >> 10
        );
        assert!(counted.bytes_per_line <= *bound, "{name}: {}", counted.bytes_per_line);
        assert!(counted.lines as f64 > 0.96 * (LOG_BYTES / LINE_BYTES) as f64, "{name}: the log is full");
    }
}
