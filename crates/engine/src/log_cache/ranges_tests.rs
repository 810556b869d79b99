//! Many discards and zeroes: none waits for ever, and no event has to look at all of them.

use super::env::DATA;
use super::format::EntryKind;
use super::index::Index;
use super::testing::{Log, Ram, unknown};
use super::testing_steps::{Disks, Steps, quiet};
use super::{AddressSpace, LogCacheConfig, Reads};
use crate::layer::{Control, Discards, Io, RequestId};
use crate::{BlockDevice, Buf, Extent, Lba, Nanos};

/// A cache whose segments take more entries than the index takes ranges.
fn large_segments(config: LogCacheConfig) -> Steps {
    let log = Log::new(4, 512);
    let (segment_bytes, data_sectors) = (8 << 20, 1 << 18);
    let mut superblock = log.superblock;
    let log_sectors = superblock.log_sectors + 4 * u64::from(segment_bytes) / 512;
    (superblock.segment_bytes, superblock.log_sectors) = (segment_bytes, log_sectors);
    (superblock.data_sectors, superblock.fingerprint) = (data_sectors, unknown(data_sectors));
    let mut device = Ram::new(log_sectors);
    let copy = super::format::SUPERBLOCK_SECTORS[(superblock.generation % 2) as usize];
    device.write(copy, Buf::copy_of(zerocopy::IntoBytes::as_bytes(&superblock.encode()))).unwrap();
    let data = Ram { discards: Discards::Zero, ..Ram::new(data_sectors) };
    Steps::start(Disks(vec![device, data]), config).unwrap()
}

/// Sends ranges of one sector, apart from each other: first 70,000 of them, which are destaged, then some more. (The index took 65,536
/// ranges that were destaged and still in the log. It never released those of the head's segment, and never left the segment without room
/// for one more: every later write waited for ever.)
#[test]
fn a_write_is_answered_after_more_ranges_in_a_segment_than_the_index_takes() {
    for reads in [Reads::Pass, Reads::Keep] {
        let mut steps = large_segments(LogCacheConfig { reads, ..quiet() });
        let mut ids: Vec<RequestId> = Vec::new();
        for (round, ranges) in [(0, 70_000_u64), (1, 10)] {
            for range in 0..ranges {
                let extent = Extent::new(Lba((range * 2 + round) % (1 << 18)), 1);
                let io = if range % 2 == 0 {
                    Io::Discard { extent }
                } else {
                    Io::WriteZeroes { extent, unmap: false, durability: crate::layer::Durability::Volatile }
                };
                ids.push(steps.send(io));
            }
            steps.drain();
        }
        ids.push(steps.write(0, 8, 1));
        steps.wait(5);
        let waiting = ids.iter().filter(|id| !steps.is_ok(**id)).count();
        assert_eq!(waiting, 0, "{reads:?}");
        assert_eq!(steps.core.index.ranges().len(), 0);
    }
}

/// Each batch takes the oldest ranges, and takes a range as a whole: a part that stayed would be destaged over newer data.
#[test]
fn a_batch_takes_the_oldest_ranges_and_no_more_than_a_stated_number() {
    let mut steps = large_segments(LogCacheConfig { idle_empty: Nanos::from_millis(1), ..quiet() });
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Flush));
    for range in (0..3000_u64).rev() {
        steps.send(Io::Discard { extent: Extent::new(Lba(range * 2), 1) });
    }
    // The last range of the first batch is cut in two.
    steps.write((3000 - 1024) * 2, 1, 1);
    steps.wait(2);
    assert_eq!(steps.held.len(), 1, "the first batch has to be flushed");
    let erased: Vec<Extent> = steps
        .sent
        .iter()
        .filter(|(port, kind, _)| *port == DATA && *kind == super::testing_steps::Kind::Erase)
        .filter_map(|sent| sent.2)
        .collect();
    assert_eq!(erased.len(), 1024);
    assert_eq!(erased[0], Extent::new(Lba(2999 * 2), 1), "the oldest goes first");
    steps.let_go();
    steps.wait(20);
    assert_eq!(steps.core.index.ranges().len(), 0);
}

#[test]
fn an_index_that_is_cleared_forgets_what_was_destaged() {
    let mut index = Index::new(&Log::new(4, 512).superblock, AddressSpace::one(1 << 20), 100);
    let extent = Extent::new(Lba(64), 8);
    index.insert_range(extent, EntryKind::Discard, 1, 0);
    index.clean_range(1);
    assert!(!index.is_silent_on(extent), "recovery would find the range");
    index.clear();
    assert!(index.is_silent_on(extent));
}

/// The superblock of an empty log names the next record, and a later one names the first record of that segment again: recovery repeats
/// the discard. (A discard that was destaged was forgotten with the first of the two. A write that bypassed the log over it became zeroes
/// after a stop and a crash.)
#[test]
fn rule_07_no_write_bypasses_the_log_over_a_discard_that_a_later_superblock_names_again() {
    // No line of the fingerprint is near: no write bypasses the log there.
    const AT: u64 = 100_000;
    let mut steps = large_segments(quiet());
    steps.send(Io::Discard { extent: Extent::new(Lba(AT), 1) });
    steps.drain();
    let emptied = steps.core.log.superblock().tail_seq;
    assert_eq!(emptied, steps.core.log.next_seq(), "the log is empty");
    steps.write(AT + 4096, 1, 1);
    steps.write(AT - 64, 128, 2);
    steps.flush();
    steps.control(Control::Stop);
    assert!(steps.core.log.superblock().tail_seq < emptied, "the first record is named again");
    let mut steps = steps.restart(quiet());
    assert_eq!((steps.read(AT), steps.read(AT + 4096)), (Some(2), Some(1)));
    steps.drain();
    assert_eq!((steps.read(AT), steps.on_data_disk(AT)), (Some(2), 2));
}
