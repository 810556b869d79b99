//! Rule 14: destaging asks for no memory, as memory may be short because dirty data waits to be destaged.
//! Counted by the allocator: from the first batch to the last, hardly more than before, and only small allocations.

use crate::log_tests::counting::{ALLOCATED, LARGEST, PEAK};
use crate::log_tests::rig::{Ram, Rig};
use dcd_engine::log_cache::{Contiguity, LogCacheConfig, Strides};
use dcd_engine::*;

const LOG_BYTES: u64 = 64 << 20;
const DATA_BYTES: u64 = 1 << 30;
const WRITES: u64 = 8 << 10;
const BATCH: u64 = 256;
/// For the operations in flight, and what the rig notes of them. A window has 16 MiB, and so have its reads.
const GROWN_MAX: usize = 64 << 10;
/// The largest piece is the fingerprint that goes into a superblock.
const SINGLE_MAX: usize = 20 << 10;

/// Fills half of the log: three in four writes are of whole lines, the rest of two sectors.
fn filled(contiguity: Option<Contiguity>) -> Rig {
    let config = LogCacheConfig {
        contiguity,
        high_mark: 100,
        idle_empty: Nanos::MAX,
        idle_full: Nanos::MAX,
        ..Default::default()
    };
    let mut rig = Rig::new(config, 512, Ram::new(LOG_BYTES), Ram::new(DATA_BYTES));
    let mut batch = Vec::new();
    for first in (0..WRITES).step_by(BATCH as usize) {
        for at in first..first + BATCH {
            let line = at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (DATA_BYTES / LINE_BYTES);
            let (offset, sectors) = if at % 4 == 0 { (at % 3, 2) } else { (0, LINE_SECTORS) };
            let buf = Buf::copy_of(&vec![at as u8; (sectors * SECTOR_BYTES) as usize]);
            let at_lba = Lba(line * LINE_SECTORS + offset);
            let io = Io::Write { at: at_lba, buf, durability: Durability::Volatile };
            batch.push(Request { id: RequestId(at), disk: 0, io });
        }
        rig.serve(&mut batch, |_, _| {});
    }
    rig
}

fn drained(contiguity: Option<Contiguity>) {
    let mut rig = filled(contiguity);
    assert_eq!(rig.count("destage_batches"), 0, "everything is in the log");
    let before = ALLOCATED.get();
    PEAK.set(before);
    LARGEST.set(0);
    rig.drain();
    let grown = PEAK.get() - before;
    let largest = LARGEST.get();
    println!(
        "{} batches, {} sectors in gaps: {grown} bytes more at once, {largest} bytes in one piece",
        rig.count("destage_batches"),
        rig.count("gap_sectors")
    );
    assert!(rig.count("destaged_sectors") > WRITES * 6, "all of it went home");
    assert!(grown <= GROWN_MAX, "{grown} bytes more than before");
    assert!(largest <= SINGLE_MAX, "{largest} bytes in one piece");
}

#[test]
fn rule_14_destaging_asks_for_no_memory() {
    drained(None);
    // Most blocks are less than 100 lines apart, so that the memory is full of gaps.
    drained(Some(Contiguity { read: Strides::up_to(100), write: Strides::up_to(100) }));
}
