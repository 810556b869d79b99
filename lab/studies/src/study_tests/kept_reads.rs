//! Kept reads hit at least as often as FIFO with reinsertion of the same size, and write less flash for each hit.
//!
//! The figures are those of the program of the same name, in virtual time.

#[path = "../../examples/kept_reads.rs"]
mod program;

use dcd_engine::log_cache::Reads;
use program::{Admits, dcd, fifo_reinsertion, zipf};

const LINES: u64 = 20_000;
const ACCESSES: u64 = 100_000;

#[test]
fn kept_reads_hit_at_least_as_often_as_fifo_with_reinsertion() {
    for exponent in [1.0, 0.8] {
        let accesses = zipf(LINES, exponent, ACCESSES, 0);
        let reference = fifo_reinsertion(&accesses, LINES / 20, Admits::Always);
        let [keep, pass] = [Reads::Keep, Reads::Pass].map(|reads| dcd(&accesses, LINES / 20, reads));
        let ratios = [keep, reference, pass].map(|figures| figures.hit_ratio());
        assert!(ratios[0] >= ratios[1], "Zipf {exponent}: {ratios:?}");
        assert!(ratios[0] > ratios[2], "{ratios:?}");
        let flash = [keep, reference].map(|figures| figures.flash_bytes_per_hit());
        assert!(flash[0] < flash[1] / 2.0, "bytes of flash for a hit: {flash:?}");
    }
}
