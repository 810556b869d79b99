//! Tests the memory disk: what it preserves and what it forgets.

use std::collections::BTreeSet;

use super::*;
use crate::{FaultOn, FaultRule};

fn disk() -> MemDisk {
    let geometry = Geometry { discards: Discards::Zero, ..Geometry::plain(64) };
    MemDisk::new(geometry, Latency::INSTANT, 1)
}

fn write(disk: &mut MemDisk, at: u64, sectors: usize, value: u8, durability: Durability) {
    let buf = Buf::copy_of(&vec![value; sectors * SECTOR]);
    disk.run(Io::Write { at: Lba(at), buf, durability }).status.expect("written");
}

fn begin(disk: &mut MemDisk, io: Io) -> u32 {
    disk.submit(Nanos::ZERO, io).token
}

fn sector(disk: &MemDisk, at: u64) -> u8 {
    let mut bytes = [0; SECTOR];
    disk.current().read(Lba(at), &mut bytes);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a sector is atomic");
    bytes[0]
}

/// Every content of some sectors that cuts of all styles have left.
fn after_cuts(disk: &MemDisk, sectors: std::ops::Range<u64>) -> BTreeSet<Vec<u8>> {
    let mut rng = SimRng::new(5);
    let styles = CutStyle::ALL.iter().cycle().take(700);
    let cuts = styles.map(|style| disk.power_cut(*style, &mut rng));
    cuts.map(|cut| sectors.clone().map(|at| sector(&cut, at)).collect()).collect()
}

#[test]
fn a_flush_covers_what_completed_before_it_was_submitted() {
    let mut disk = disk();
    write(&mut disk, 0, 1, 1, Durability::Volatile);
    let flush = begin(&mut disk, Io::Flush);
    write(&mut disk, 1, 1, 1, Durability::Volatile);
    assert_eq!(after_cuts(&disk, 0..2).len(), 4, "a flush in flight promises nothing");
    disk.finish(Nanos::ZERO, flush).status.expect("flushed");
    assert_eq!(after_cuts(&disk, 0..2), BTreeSet::from([vec![1, 0], vec![1, 1]]));
    assert_eq!((sector(&disk, 0), sector(&disk, 1)), (1, 1));
}

#[test]
fn overlapping_changes_in_flight_are_a_race_and_others_are_not() {
    let write = |at, sectors| {
        let buf = Buf::zeroed(sectors * SECTOR);
        Io::Write { at: Lba(at), buf, durability: Durability::Volatile }
    };
    let mut disk = disk();
    let first = begin(&mut disk, write(0, 8));
    begin(&mut disk, write(8, 8));
    begin(&mut disk, Io::Read { at: Lba(0), buf: Buf::zeroed(SECTOR) });
    disk.finish(Nanos::ZERO, first);
    begin(&mut disk, write(0, 8));
    assert_eq!(disk.race(), None);
    begin(&mut disk, Io::Discard { extent: Extent::new(Lba(15), 1) });
    assert_eq!(disk.race(), Some((Extent::new(Lba(8), 8), Extent::new(Lba(15), 1))));
}

#[test]
fn unflushed_sectors_are_lost_kept_or_torn() {
    let mut disk = disk();
    write(&mut disk, 0, 2, 1, Durability::Durable);
    write(&mut disk, 0, 2, 2, Durability::Volatile);
    write(&mut disk, 1, 1, 3, Durability::Volatile);
    let expected = [[1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]];
    assert_eq!(after_cuts(&disk, 0..2), expected.iter().map(|state| state.to_vec()).collect());
}

#[test]
fn a_durable_write_is_not_undone_by_an_older_volatile_one() {
    let mut disk = disk();
    write(&mut disk, 0, 4, 1, Durability::Volatile);
    write(&mut disk, 1, 2, 2, Durability::Durable);
    let states = after_cuts(&disk, 0..4);
    assert!(states.iter().all(|state| state[1..3] == [2, 2]), "{states:?}");
    assert_eq!(states.len(), 4);
}

#[test]
fn writes_in_flight_may_have_happened() {
    let mut disk = disk();
    let io = Io::Write { at: Lba(3), buf: Buf::copy_of(&[7; 2 * SECTOR]), durability: Durability::Durable };
    begin(&mut disk, io);
    assert_eq!(sector(&disk, 3), 0, "not visible before it completes");
    let expected = [[0, 0], [0, 7], [7, 0], [7, 7]];
    assert_eq!(after_cuts(&disk, 3..5), expected.iter().map(|state| state.to_vec()).collect());
}

#[test]
fn discards_and_zeroes_are_volatile_too() {
    let mut disk = disk();
    write(&mut disk, 0, 8, 1, Durability::Durable);
    disk.run(Io::Discard { extent: Extent::new(Lba(0), 2) }).status.expect("discarded");
    let zeroes =
        Io::WriteZeroes { extent: Extent::new(Lba(4), 1), unmap: false, durability: Durability::Durable };
    disk.run(zeroes).status.expect("zeroed");
    let expected = [[0, 0, 0], [0, 1, 0], [1, 0, 0], [1, 1, 0]];
    let states = after_cuts(&disk, 0..5);
    let seen: BTreeSet<Vec<u8>> = states.iter().map(|s| vec![s[0], s[1], s[4]]).collect();
    assert_eq!(seen, expected.iter().map(|state| state.to_vec()).collect());
}

/// After a discard, an SSD has anything: the old content, zeroes, or other bytes, sector by sector, and torn by a power cut.
#[test]
fn a_scrambled_discard_leaves_anything() {
    let geometry = Geometry { discards: Discards::Advisory, ..Geometry::plain(64) };
    let mut disk = MemDisk::new(geometry, Latency::INSTANT, 1).scrambling();
    write(&mut disk, 0, 64, 1, Durability::Durable);
    disk.run(Io::Discard { extent: Extent::new(Lba(0), 32) }).status.expect("discarded");
    let kinds = |disk: &MemDisk| {
        let count = |kind: fn(u8) -> bool| (0..32).filter(|at| kind(sector(disk, *at))).count();
        [count(|byte| byte == 1), count(|byte| byte == 0), count(|byte| byte > 1)]
    };
    assert!(kinds(&disk).iter().all(|count| *count > 3), "{:?}", kinds(&disk));
    assert!((32..64).all(|at| sector(&disk, at) == 1), "nothing beside it");
    let cut = disk.power_cut(CutStyle::AllLost, &mut SimRng::new(1));
    assert_eq!(kinds(&cut), [32, 0, 0], "it was not flushed");
    begin(&mut disk, Io::Discard { extent: Extent::new(Lba(40), 20) });
    let cut = disk.power_cut(CutStyle::AllKept, &mut SimRng::new(2));
    assert!((40..60).any(|at| sector(&cut, at) > 1), "one in flight scrambles, too");
}

#[test]
fn a_disk_without_a_cache_loses_nothing_that_completed() {
    let geometry = Geometry { volatile_cache: false, ..Geometry::plain(8) };
    let mut disk = MemDisk::new(geometry, Latency::INSTANT, 1);
    write(&mut disk, 0, 8, 1, Durability::Volatile);
    assert_eq!(after_cuts(&disk, 0..8), BTreeSet::from([vec![1; 8]]));
}

#[test]
fn a_liar_loses_what_was_flushed() {
    let mut disk = disk();
    disk.set_faults(DiskFaults::liar());
    write(&mut disk, 0, 1, 1, Durability::Durable);
    disk.run(Io::Flush).status.expect("it says so");
    assert_eq!(after_cuts(&disk, 0..1), BTreeSet::from([vec![0], vec![1]]));
}

#[test]
fn a_killed_process_leaves_the_cache_of_the_disk_alone() {
    let mut disk = disk();
    write(&mut disk, 0, 1, 1, Durability::Volatile);
    let found = disk.killed(&mut SimRng::new(3));
    assert_eq!(sector(&found, 0), 1);
    assert_eq!(after_cuts(&found, 0..1).len(), 2, "and it is still volatile");
}

#[test]
fn a_failed_flush_may_drop_writes_for_good() {
    let mut seen = BTreeSet::new();
    for seed in 0..20 {
        let mut disk = MemDisk::new(Geometry::plain(8), Latency::INSTANT, seed);
        disk.set_faults(DiskFaults::new(FaultRule::once(FaultOn::Flush, 0, ErrorKind::Medium)));
        write(&mut disk, 0, 1, 1, Durability::Volatile);
        assert_eq!(disk.run(Io::Flush).status, Err(IoError::new(ErrorKind::Medium)));
        disk.run(Io::Flush).status.expect("the second one does not know");
        assert_eq!(sector(&disk, 0), 1, "it still reads back");
        seen.insert(after_cuts(&disk, 0..1));
    }
    assert_eq!(seen, BTreeSet::from([BTreeSet::from([vec![0]]), BTreeSet::from([vec![1]])]));
}

#[test]
fn malformed_operations_are_refused() {
    let geometry = Geometry { logical_block_bytes: 4096, ..Geometry::plain(64) };
    let mut disk = MemDisk::new(geometry, Latency::INSTANT, 1);
    let kind = |result: Result<Buf, IoError>| result.map(|_| ()).map_err(|e| e.kind);
    assert_eq!(kind(disk.read(Lba(1), 4096)), Err(ErrorKind::Invalid));
    assert_eq!(kind(disk.read(Lba(0), 512)), Err(ErrorKind::Invalid));
    assert_eq!(kind(disk.read(Lba(64), 4096)), Err(ErrorKind::OutOfRange));
    assert_eq!(kind(disk.read(Lba(u64::MAX - 7), 4096)), Err(ErrorKind::OutOfRange));
    let discard = disk.run(Io::Discard { extent: Extent::new(Lba(0), 8) });
    assert_eq!(discard.status.map_err(|e| e.kind), Err(ErrorKind::Unsupported));
}
