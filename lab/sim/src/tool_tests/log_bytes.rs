//! Checks that a fsynced write of 4 KiB costs at most 8 KiB of log and a hundredth of that for summaries, and that concurrent ones share
//! records and cost less.
//!
//! The counts are those of the program of the same name, in virtual time.

#[path = "../../examples/log_bytes.rs"]
mod program;

use program::{LogOn, measure};

const BOUND_BYTES: u64 = 8 << 10;

#[test]
fn one_fsynced_write_of_4_kib_costs_at_most_8_kib_of_log() {
    for (log_block_bytes, exactly) in [(512, 512 + 4096), (4096, 4096 + 4096)] {
        for log_on in [LogOn::Ssd, LogOn::Disk, LogOn::DiskWithGaps] {
            let alone = measure(1, 256, log_block_bytes, log_on);
            assert_eq!(alone.log_writes, alone.writes, "a record for each");
            let records = alone.writes * exactly;
            let summaries = if log_on == LogOn::Ssd { records / 100 } else { 0 };
            let may_be = records..=records + summaries;
            assert!(may_be.contains(&alone.log_bytes), "{log_on:?}, blocks of {log_block_bytes}: {alone:?}");
            assert!(alone.log_bytes <= alone.writes * BOUND_BYTES + summaries);
            let gaps = alone.gap_bytes > 0;
            assert_eq!(gaps, log_on == LogOn::DiskWithGaps, "{log_on:?} and {} of gaps", alone.gap_bytes);
        }
    }
}

#[test]
fn concurrent_fsynced_writes_share_records() {
    for log_block_bytes in [512, 4096] {
        for log_on in [LogOn::Ssd, LogOn::Disk, LogOn::DiskWithGaps] {
            let mut before = f64::INFINITY;
            for clients in [1, 8, 32] {
                let counted = measure(clients, 512 / clients, log_block_bytes, log_on);
                let bytes = counted.bytes_per_write();
                assert!(bytes < before, "{clients} clients, {log_on:?}: {bytes} after {before}");
                before = bytes;
            }
            // Far more than one write for each record: the others gather while one record is being written.
            let shared = measure(32, 16, log_block_bytes, log_on);
            assert!(shared.log_writes * 4 < shared.writes, "{shared:?}");
        }
    }
}

#[test]
fn free_places_between_records_are_used() {
    for (log_block_bytes, gaps_max) in [(512, 4 << 10), (4096, 8 << 10)] {
        let counted = measure(1, 2048, log_block_bytes, LogOn::CurrentDisk);
        let left_out = (counted.gap_bytes + counted.rest_bytes) / counted.writes;
        assert!(left_out < gaps_max, "{counted:?}");
    }
}
