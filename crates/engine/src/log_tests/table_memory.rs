//! RAM of the lookup table, counted by the allocator: what the table says of itself is what it takes.

use crate::log_tests::counting::ALLOCATED;
use dcd_engine::log_cache::AddressSpace;
use dcd_engine::log_cache::table::{Line, LookupTable, Piece, Place};

/// A data disk of 1 TiB.
const DISK_LINES: u64 = 1 << 28;
const COUNTERS_BYTES: u64 = 2 * DISK_LINES / LookupTable::LINES_PER_COUNTER;

/// Lines in an order without order: the factor is odd, and the lines are a power of two.
const fn scattered(line: u64) -> Line {
    Line(line.wrapping_mul(0x9e37_79b1) % DISK_LINES)
}

#[test]
fn a_line_costs_at_most_twenty_bytes_and_the_table_says_what_it_takes() {
    // Logs of 64 MiB, 1 GiB and 4 GiB.
    for lines in [1u64 << 14, 1 << 18, 1 << 20] {
        let before = ALLOCATED.get();
        let taken = || ALLOCATED.get() - before;
        let mut table = LookupTable::new(&AddressSpace::one(DISK_LINES * 8), lines as usize, 1);
        let at_start = taken();
        for line in 0..lines {
            let piece = Piece::written(Place(line * 8), 0, 8, line as u32);
            table.insert(scattered(line), piece, |_| ());
        }
        assert_eq!(table.counts().lines, lines);
        assert_eq!(taken(), at_start, "filling it with whole lines took memory");
        assert_eq!(taken() + size_of::<LookupTable>(), table.memory_bytes());
        assert!(
            table.memory_bytes() as u64 <= LookupTable::LINE_RAM_BYTES * lines + COUNTERS_BYTES,
            "{} bytes for {lines} lines",
            table.memory_bytes()
        );

        // Broken lines take more, up to the bound, and no more than that.
        let mut line = 0u64;
        while table.fragments_free() >= 2 {
            let piece = Piece::written(Place(lines * 8 + line * 8), 0, 4, 0);
            table.insert(scattered(line), piece, |_| ());
            line += 1;
        }
        assert_eq!(line, lines, "two pieces for every line");
        assert_eq!(taken() + size_of::<LookupTable>(), table.memory_bytes());
        assert!(
            table.memory_bytes() as u64 <= 52 * lines + COUNTERS_BYTES,
            "{} bytes for {lines} lines",
            table.memory_bytes()
        );
    }
}
