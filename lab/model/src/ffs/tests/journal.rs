//! Metadata goes into the journal first, and to its place later.

use super::random::{Character, drive};
use super::*;

fn journaled(journal_bytes: u32) -> FfsConfig {
    FfsConfig {
        placement: Placement::Ext3,
        synchronous_metadata: false,
        journal_bytes,
        update_interval: Nanos::from_secs(5),
        ..small()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Journal,
    Data,
    Metadata,
}

/// The writes since the last time, each by the sector where it begins.
fn writes(bench: &mut Bench, data: &[u32]) -> Vec<To> {
    let (first, blocks) = bench.ffs.volume.journal.expect("there is one");
    let place = |line: String| -> Option<u32> {
        line.strip_prefix("write")?.trim_start_matches('!').trim().split_once('+')?.0.parse().ok()
    };
    let class = |sector: u32| match sector / 16 {
        block if (first.0 / 8..first.0 / 8 + blocks).contains(&block) => To::Journal,
        block if data.contains(&block) => To::Data,
        _ => To::Metadata,
    };
    bench.take_log().into_iter().filter_map(place).map(class).collect()
}

fn blocks(bench: &Bench, file: Ino) -> Vec<u32> {
    bench.ffs.volume.inodes.get(file).blocks.iter().map(|at| at.0 / 8).collect()
}

fn pass(bench: &mut Bench, seconds: u64) {
    bench.call(Op::Think { time: Nanos::from_secs(seconds) }).unwrap();
}

#[test]
fn a_commit_writes_data_home_and_metadata_into_the_journal() {
    let mut bench = Bench::new(journaled(256 << 10), 16 * MIB);
    let file = bench.create("/a", 3 * 8192);
    bench.close(file);
    let data = blocks(&bench, file);
    assert_eq!(writes(&mut bench, &data), [], "nothing is due");
    pass(&mut bench, 6);
    assert_eq!(writes(&mut bench, &data), [To::Data, To::Journal]);
    pass(&mut bench, 20);
    assert_eq!(writes(&mut bench, &data), [], "it is not old enough");
    pass(&mut bench, 12);
    // The directory, the block of inodes, and the bitmaps.
    assert_eq!(writes(&mut bench, &data), [To::Metadata; 3]);
    pass(&mut bench, 60);
    assert_eq!(writes(&mut bench, &data), []);
}

#[test]
fn a_sync_brings_everything_home() {
    let mut bench = Bench::new(journaled(256 << 10), 16 * MIB);
    let file = bench.create("/a", 8192);
    bench.close(file);
    bench.call(Op::Sync).unwrap();
    let data = blocks(&bench, file);
    let seen = writes(&mut bench, &data);
    assert_eq!(seen[..2], [To::Data, To::Journal], "{seen:?}");
    assert_eq!(seen[2..], [To::Metadata; 3]);
    bench.call(Op::Unlink { path: "/a".into() }).unwrap();
    bench.call(Op::Remount).unwrap();
    assert_eq!(bench.ffs.cache.dirty(), 0);
}

#[test]
fn an_fsync_commits_and_waits_for_the_journal() {
    let mut bench = Bench::new(journaled(256 << 10), 16 * MIB);
    let file = bench.create("/a", 8192);
    bench.call(Op::Fsync { file }).unwrap();
    assert!(bench.requests.is_empty(), "all is answered");
    let data = blocks(&bench, file);
    assert_eq!(writes(&mut bench, &data), [To::Data, To::Journal]);
}

#[test]
fn what_fills_a_quarter_of_the_journal_is_committed_at_once_and_goes_home_before_it_is_full() {
    // Of 16 blocks.
    let mut bench = Bench::new(journaled(128 << 10), 16 * MIB);
    let commits = (0..12).map(|number| {
        bench.call(Op::Mkdir { path: format!("/d{number}") }).unwrap();
        writes(&mut bench, &[])
    });
    let seen: Vec<To> = commits.flatten().collect();
    assert!(bench.now < Nanos::from_secs(5), "before any commit is due");
    // Four blocks, one that describes them and one that ends the commit: two of them fit in three quarters.
    let first_home = seen.iter().position(|to| *to == To::Metadata).expect("some were written back");
    let before = seen[..first_home].iter().filter(|to| **to == To::Journal).count();
    assert_eq!(before, 2, "{seen:?}");
}

#[test]
fn lack_of_room_in_memory_does_not_bring_home_what_the_journal_lacks() {
    let config = FfsConfig { buffer_cache_bytes: 256 << 10, ..journaled(512 << 10) };
    let mut bench = Bench::new(config, 8 * MIB);
    let file = bench.create("/a", 10 * 8192);
    for _ in 0..4 {
        bench.call(Op::Append { file, bytes: 128 << 10 }).unwrap();
    }
    assert!(bench.now < Nanos::from_secs(5), "before any commit is due");
    let data = blocks(&bench, file);
    let seen = writes(&mut bench, &data);
    assert!(seen.len() > 3 && seen.iter().all(|to| *to == To::Data), "{seen:?}");
}

#[test]
fn freed_metadata_is_forgotten() {
    let mut bench = Bench::new(journaled(256 << 10), 16 * MIB);
    bench.call(Op::Mkdir { path: "/d".into() }).unwrap();
    bench.call(Op::Rmdir { path: "/d".into() }).unwrap();
    let file = bench.create("/large", 20 * 8192);
    bench.close(file);
    pass(&mut bench, 6);
    bench.call(Op::Unlink { path: "/large".into() }).unwrap();
    bench.call(Op::Sync).unwrap();
    let last = bench.create("/small", 8192);
    assert!(bench.ffs.cache.dirty() > 0);
    bench.close(last);
    bench.call(Op::Remount).unwrap();
}

#[test]
fn what_was_freed_is_not_used_again_before_the_commit_unless_all_else_is() {
    let mut bench = Bench::new(journaled(512 << 10), 8 * MIB);
    let old = bench.create("/old", 3 * 8192);
    let held = blocks(&bench, old);
    bench.close(old);
    bench.call(Op::Sync).unwrap();
    bench.call(Op::Unlink { path: "/old".into() }).unwrap();
    let next = bench.create("/next", 3 * 8192);
    assert!(blocks(&bench, next).iter().all(|block| !held.contains(block)));
    bench.close(next);
    bench.call(Op::Sync).unwrap();
    let later = bench.create("/later", 3 * 8192);
    assert_eq!(blocks(&bench, later), held);

    let (mut free, mut large) = (bench.ffs.free_bytes(), 0);
    while free > 9 << 17 {
        bench.call(Op::Append { file: later, bytes: 64 << 10 }).unwrap();
        large += 64 << 10;
        free = bench.ffs.free_bytes();
    }
    bench.close(later);
    bench.call(Op::Sync).unwrap();
    bench.call(Op::Unlink { path: "/later".into() }).unwrap();
    assert_eq!(bench.ffs.free_bytes(), free, "not yet");
    assert!(large > free, "more than there is beside it");
    let other = bench.create("/other", large);
    bench.close(other);
}

#[test]
fn a_journal_does_not_stop_programs_that_lack_room() {
    let config = FfsConfig { buffer_cache_bytes: 256 << 10, ..journaled(128 << 10) };
    for seed in 0..3 {
        let mut bench = Bench::new(config, 8 * MIB);
        drive(&mut bench, 300 + seed, Character { processes: 4, calls: 300, check_every: 20 });
    }
}

#[test]
fn a_journal_that_cannot_be_is_refused() {
    let wrong = |config| Ffs::new(config, 16 * MIB / 512).err().expect("it cannot be").field;
    assert_eq!(wrong(journaled(1000)), "journal-bytes");
    assert_eq!(wrong(journaled(8 << 20)), "journal-bytes", "larger than a group");
    assert_eq!(wrong(FfsConfig { synchronous_metadata: true, ..journaled(64 << 10) }), "journal-bytes");
}
