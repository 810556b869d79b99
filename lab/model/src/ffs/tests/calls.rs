//! Each call: what it gives, and which block requests it takes.

use super::*;

fn bench() -> Bench {
    let mut bench = Bench::new(small(), 16 * MIB);
    // What the first calls need is in memory, so that the requests below are those of the call alone.
    let file = bench.create("/first", 0);
    bench.close(file);
    bench.take_log();
    bench
}

/// Counts the requests that are writes.
fn writes(log: &[String]) -> usize {
    log.iter().filter(|line| line.starts_with("write")).count()
}

#[test]
fn a_create_waits_for_the_inode_and_then_the_entry() {
    let mut bench = bench();
    let begin = bench.now;
    bench.create("/a", 0);
    let log = bench.take_log();
    assert_eq!(log.len(), 2, "{log:?}");
    let layout = &bench.ffs.volume.allocator.layout;
    let inode = layout.extent(layout.inode_block(Ino::ROOT), 8).start.0;
    let entry = layout.extent(bench.ffs.volume.inodes.get(Ino::ROOT).blocks[0], 1).start.0;
    assert_eq!(log, [format!("write! {inode}+16"), format!("write! {entry}+2")]);
    let spent = bench.now.since(begin);
    assert_eq!(spent, REQUEST_TIME + REQUEST_TIME + CpuCosts::TABLE_1.system_call);
}

#[test]
fn an_unlink_waits_for_the_entry_and_then_the_inode() {
    let mut bench = bench();
    let file = bench.create("/a", 9900);
    bench.close(file);
    bench.take_log();
    assert_eq!(bench.call(Op::Unlink { path: "/a".into() }), Ok(Done::Nothing));
    let log = bench.take_log();
    assert_eq!((log.len(), writes(&log)), (2, 2), "{log:?}");
    assert!(log[0].ends_with("+2") && log[1].ends_with("+16"), "a fragment, then an inode block: {log:?}");
    assert_eq!(bench.ffs.volume.inodes.find(file).map(|_| ()), None);
    // Its data was never written, and is not any more.
    assert_eq!(bench.call(Op::Sync), Ok(Done::Nothing));
    let log = bench.take_log();
    assert!(log.iter().all(|line| !line.ends_with("+20")), "{log:?}");
}

/// By this a disk with selective write caching knows metadata.
#[test]
fn only_what_a_call_waits_for_is_durable() {
    let mut bench = bench();
    bench.call(Op::Mkdir { path: "/d".into() }).unwrap();
    let file = bench.create("/d/a", 200_000);
    bench.close(file);
    bench.call(Op::Unlink { path: "/first".into() }).unwrap();
    let durable = |log: &[String]| log.iter().filter(|line| line.starts_with("write!")).count();
    let log = bench.take_log();
    let waited = bench.ffs.measured().class(RequestClass::SyncMetadata).response.count();
    // The first file's create came before the log that was taken; the indirect block is in it.
    assert_eq!((durable(&log), waited), (2 + 5 + 2 + 1, 2 + 5 + 2 + 1 + 2), "{log:?}");
    bench.call(Op::Sync).unwrap();
    assert_eq!(durable(&bench.take_log()), 0, "bitmaps, times and data");
}

#[test]
fn data_is_written_when_a_cluster_is_full_and_else_by_the_daemon() {
    let mut bench = bench();
    let file = bench.create("/a", 0);
    bench.take_log();
    for block in 0..9 {
        bench.call(Op::Write { file, offset: block * 8192, bytes: 8192 }).unwrap();
    }
    let full: Vec<String> = bench.take_log().into_iter().filter(|line| line.starts_with("write")).collect();
    assert_eq!(full.len(), 1, "{full:?}");
    assert!(full[0].ends_with("+128"), "eight blocks in one request: {full:?}");
    while bench.log.iter().all(|line| !line.starts_with("write")) {
        bench.step();
    }
    assert_eq!(bench.now, Nanos::from_secs(30), "the update daemon");
    let log = bench.take_log();
    assert!(log.iter().any(|line| line.ends_with("+16")), "the ninth block: {log:?}");
}

#[test]
fn the_last_close_may_write_what_is_dirty_of_whole_blocks() {
    let mut bench = Bench::new(FfsConfig { push_at_close: true, ..small() }, 16 * MIB);
    let file = bench.create("/a", 0);
    assert_eq!(bench.call(Op::Open { path: "/a".into() }), Ok(Done::Opened(file)));
    for block in 0..11 {
        bench.call(Op::Write { file, offset: block * 8192, bytes: 8192 }).unwrap();
    }
    // The end goes behind a fragment of another file.
    bench.create("/b", 1000);
    bench.call(Op::Append { file, bytes: 1000 }).unwrap();
    bench.take_log();
    bench.close(file);
    assert_eq!(writes(&bench.take_log()), 0, "somebody has it open");
    let begin = bench.now;
    bench.close(file);
    assert_eq!(bench.now.since(begin), CpuCosts::TABLE_1.system_call, "nobody waits");
    let log = bench.take_log();
    assert!(matches!(&log[..], [row] if row.starts_with("write ") && row.ends_with("+48")), "{log:?}");
    // What has been removed has nothing to write.
    let file = bench.create("/c", 8192);
    bench.call(Op::Unlink { path: "/c".into() }).unwrap();
    bench.take_log();
    bench.close(file);
    assert!(bench.take_log().iter().all(|line| line.starts_with("write!")), "its inode alone");
}

#[test]
fn metadata_in_memory_of_its_own_is_written_when_it_was_dirty_for_the_interval() {
    let config = FfsConfig { metadata_cache_bytes: Some(128 << 10), update_slices: 6, ..small() };
    let mut bench = Bench::new(config, 16 * MIB);
    bench.call(Op::Think { time: Nanos::from_secs(17) }).unwrap();
    bench.create("/a", 1000);
    let layout = &bench.ffs.volume.allocator.layout;
    let maps = layout.extent(layout.group_block(layout.group_of_inode(Ino::ROOT)), layout.map_frags);
    let written = format!("write {}+{}", maps.start.0, maps.sectors);
    bench.take_log();
    while !bench.log.contains(&written) {
        bench.step();
    }
    // The daemon comes every 5 s, and finds the bitmaps dirty since a little after 17 s.
    assert_eq!(bench.now, Nanos::from_secs(50));
    // Data had its turn before.
    assert!(
        bench.log.iter().any(|line| line.starts_with("write ") && line.ends_with("+2")),
        "{:?}",
        bench.log
    );
}

#[test]
fn a_file_grows_by_fragments_and_stays_in_a_row() {
    let mut bench = bench();
    let file = bench.create("/a", 1000);
    let blocks = |bench: &Bench| bench.ffs.volume.inodes.get(file).blocks.clone();
    let first = blocks(&bench)[0];
    let other = bench.create("/b", 1000);
    assert_eq!(bench.ffs.volume.inodes.get(other).blocks[0], first.plus(1), "the next fragment of the block");
    bench.call(Op::Append { file, bytes: 2000 }).unwrap();
    assert_ne!(blocks(&bench)[0], first, "there was no room behind the first fragment");
    bench.call(Op::Append { file, bytes: 60_000 }).unwrap();
    let all = blocks(&bench);
    assert_eq!(all.len(), 8);
    assert!(all.windows(2).skip(1).all(|pair| pair[0].plus(8) == pair[1]), "{all:?}");
    assert_eq!(bench.call(Op::Stat { path: "/a".into() }), Ok(Done::Stat { bytes: 63_000, links: 1 }));
}

#[test]
fn large_files_have_indirect_blocks_and_change_groups() {
    let mut bench = bench();
    let file = bench.create("/large", 96 << 10);
    bench.take_log();
    bench.call(Op::Append { file, bytes: 8192 }).unwrap();
    let log = bench.take_log();
    assert!(log.iter().any(|line| line.starts_with("write") && line.ends_with("+16")), "{log:?}");
    let inode = bench.ffs.volume.inodes.get(file);
    let layout = &bench.ffs.volume.allocator.layout;
    assert_eq!(inode.indirects.len(), 1);
    assert_ne!(layout.group_of(inode.blocks[12]), layout.group_of(inode.blocks[11]));
    assert_eq!(inode.indirects[0].plus(8), inode.blocks[12]);
    bench.close(file);
    bench.call(Op::Unlink { path: "/large".into() }).unwrap();
}

#[test]
fn a_cold_sequential_reader_reads_ahead_in_growing_steps() {
    let mut bench = bench();
    let file = bench.create("/a", 90_000);
    bench.close(file);
    bench.call(Op::Remount).unwrap();
    assert_eq!(bench.call(Op::Open { path: "/a".into() }), Ok(Done::Opened(file)));
    bench.take_log();
    for offset in (0..90_000).step_by(1024) {
        bench.call(Op::Read { file, offset, bytes: 1024 }).unwrap();
    }
    let log = bench.take_log();
    let sizes: Vec<u64> = log.iter().filter_map(|line| line.split_once('+')?.1.parse().ok()).collect();
    assert_eq!(sizes.iter().sum::<u64>(), 88 * 2, "each fragment once: {log:?}");
    assert_eq!(&sizes[..3], [16, 16, 32], "{log:?}");
    let measured = bench.ffs.measured();
    assert_eq!(measured.class(RequestClass::DataRead).response.count(), 1, "only the first is waited for");
}

#[test]
fn a_whole_small_file_is_one_request() {
    let mut bench = bench();
    let file = bench.create("/a", 16_384);
    bench.close(file);
    bench.call(Op::Remount).unwrap();
    bench.call(Op::Open { path: "/a".into() }).unwrap();
    bench.take_log();
    bench.ffs.reset_measured();
    assert_eq!(bench.call(Op::Read { file, offset: 0, bytes: 20_000 }), Ok(Done::Bytes(16_384)));
    assert_eq!(bench.take_log().len(), 1);
    assert_eq!(bench.ffs.measured().waited_for_reads, REQUEST_TIME);
    assert_eq!(bench.call(Op::Read { file, offset: 0, bytes: 20_000 }), Ok(Done::Bytes(16_384)));
    assert_eq!(bench.ffs.measured().waited_for_reads, REQUEST_TIME, "it is in memory");
}

/// Reads of the blocks that a create needs, after a file was read that is larger than the memory for data.
fn metadata_read_again(metadata_cache_bytes: Option<u64>) -> usize {
    let config = FfsConfig { buffer_cache_bytes: 256 << 10, metadata_cache_bytes, ..small() };
    let mut bench = Bench::new(config, 16 * MIB);
    let large = bench.create("/large", MIB);
    let small = bench.create("/small", 100);
    bench.close(small);
    bench.call(Op::Read { file: large, offset: 0, bytes: MIB }).unwrap();
    bench.take_log();
    bench.create("/another", 0);
    bench.take_log().iter().filter(|line| line.starts_with("read")).count()
}

#[test]
fn data_does_not_push_metadata_out_of_memory_of_its_own() {
    assert!(metadata_read_again(None) > 1);
    assert_eq!(metadata_read_again(Some(128 << 10)), 1, "the directory lies where the data does");
}

#[test]
fn of_a_groups_block_only_the_bitmaps_are_read_and_written() {
    let mut bench = Bench::new(FfsConfig::default(), 64 * MIB);
    bench.create("/file", 0);
    bench.call(Op::Sync).unwrap();
    let layout = &bench.ffs.volume.allocator.layout;
    // Those of 4096 inodes, 16,384 fragments and 2048 blocks, and the counts before them, are less than 4 KiB.
    let maps = layout.extent(layout.group_block(layout.group_of_inode(Ino::ROOT)), 4);
    let written = format!("write {}+8", maps.start.0);
    let log = bench.take_log();
    assert!(log.contains(&written), "{written} in {log:?}");
}

#[test]
fn metadata_has_no_more_memory_than_its_own() {
    let reads = |metadata_cache_bytes| {
        let mut bench = Bench::new(FfsConfig { metadata_cache_bytes, ..small() }, 32 * MIB);
        for number in 0..24 {
            bench.call(Op::Mkdir { path: format!("/d{number}") }).unwrap();
        }
        bench.take_log();
        bench.create("/d0/file", 0);
        bench.take_log().iter().filter(|line| line.starts_with("read")).count()
    };
    // Each directory lies in a group of its own, whose maps and inodes are two blocks; there is room for 16.
    assert!(reads(Some(128 << 10)) > 0, "they had to leave");
    assert_eq!(reads(None), 0);
}

#[test]
fn a_write_that_a_cache_takes_costs_its_copy() {
    let (plain, cached) = (CpuCosts::ULTRA_1, CpuCosts::ULTRA_1_WITH_CACHE);
    assert_eq!([plain.request(true, 8192), plain.request(false, 8192)], [Nanos::from_micros(100); 2]);
    assert_eq!(cached.request(true, 8192), Nanos::from_micros(20 + 8 * 12));
    assert_eq!(cached.request(false, 8192), Nanos::from_micros(100));
}

#[test]
fn directories_are_spread_and_files_are_near_theirs() {
    let mut bench = bench();
    let mut groups = Vec::new();
    for name in ["/d0", "/d1", "/d2", "/d3"] {
        bench.call(Op::Mkdir { path: name.into() }).unwrap();
        let file = bench.create(&format!("{name}/file"), 100);
        let volume = &bench.ffs.volume;
        let directory = volume.resolve(name).unwrap().target.unwrap();
        let layout = &volume.allocator.layout;
        let group = layout.group_of_inode(directory);
        assert_eq!(layout.group_of_inode(file), group);
        assert_eq!(layout.group_of(volume.inodes.get(file).blocks[0]), group);
        groups.push(group);
    }
    groups.dedup();
    assert_eq!(groups.len(), 4, "{groups:?}");
}

#[test]
fn two_processes_that_want_one_block_wait_for_one_read() {
    let mut bench = bench();
    let (a, b) = (bench.create("/a", 500), bench.create("/b", 500));
    bench.close(a);
    bench.close(b);
    bench.call(Op::Remount).unwrap();
    bench.take_log();
    bench.start(0, Op::Stat { path: "/a".into() });
    bench.start(1, Op::Stat { path: "/b".into() });
    let mut ended = Vec::new();
    while ended.len() < 2 {
        ended.extend(bench.step());
    }
    // The root's inode block, which has both files' inodes too, and the root's only block.
    assert_eq!(bench.take_log().len(), 2);
}

#[test]
fn calls_on_one_directory_take_turns() {
    let mut bench = bench();
    bench.start(0, Op::Create { path: "/a".into() });
    bench.start(1, Op::Create { path: "/b".into() });
    let mut ended = Vec::new();
    while ended.len() < 2 {
        ended.extend(bench.step());
    }
    let log = bench.take_log();
    let sizes: Vec<&str> = log.iter().filter_map(|line| Some(line.split_once('+')?.1)).collect();
    assert_eq!(sizes, ["16", "2", "16", "2"], "{log:?}");
    bench.ffs.check();
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let mut bench = bench();
    let path = |path: &str| path.to_owned();
    bench.call(Op::Mkdir { path: path("/d") }).unwrap();
    let file = bench.create("/d/file", 10);
    for (op, error) in [
        (Op::Create { path: path("/d/file") }, FsError::Exists),
        (Op::Mkdir { path: path("/d") }, FsError::Exists),
        (Op::Open { path: path("/none") }, FsError::NotFound),
        (Op::Open { path: path("/d") }, FsError::IsADirectory),
        (Op::Create { path: path("/none/file") }, FsError::NotFound),
        (Op::Create { path: path("/d/file/deeper") }, FsError::NotADirectory),
        (Op::Create { path: format!("/{}", "x".repeat(256)) }, FsError::BadName),
        (Op::Unlink { path: path("/d") }, FsError::IsADirectory),
        (Op::Rmdir { path: path("/d") }, FsError::NotEmpty),
        (Op::Rmdir { path: path("/") }, FsError::Busy),
        (Op::Rename { from: path("/d"), to: path("/d/inside") }, FsError::Exists),
        (Op::Rename { from: path("/first"), to: path("/d") }, FsError::IsADirectory),
        (Op::Remount, FsError::Busy),
        (Op::Append { file, bytes: 100 * MIB }, FsError::NoSpace),
    ] {
        assert_eq!(bench.call(op.clone()), Err(error), "{op:?}");
    }
    bench.close(file);
    assert_eq!(bench.call(Op::Read { file, offset: 0, bytes: 1 }), Err(FsError::NotOpen));
    assert_eq!(bench.call(Op::Readdir { path: path("/d") }), Ok(Done::Names(1)));
}

#[test]
fn a_removed_file_lives_until_it_is_closed() {
    let mut bench = bench();
    let file = bench.create("/a", 20_000);
    let free = bench.ffs.free_bytes();
    bench.call(Op::Unlink { path: "/a".into() }).unwrap();
    assert_eq!(bench.call(Op::Read { file, offset: 0, bytes: 20_000 }), Ok(Done::Bytes(20_000)));
    assert_eq!(bench.ffs.free_bytes(), free);
    bench.close(file);
    assert_eq!(bench.ffs.free_bytes(), free + 20 * 1024);
}

#[test]
fn rename_moves_files_and_directories() {
    let mut bench = bench();
    for path in ["/a", "/b", "/a/inner"] {
        bench.call(Op::Mkdir { path: path.into() }).unwrap();
    }
    let file = bench.create("/a/file", 3000);
    bench.close(file);
    let gone = bench.create("/b/other", 3000);
    bench.close(gone);
    bench.call(Op::Rename { from: "/a/file".into(), to: "/b/other".into() }).unwrap();
    assert_eq!(bench.call(Op::Open { path: "/b/other".into() }), Ok(Done::Opened(file)));
    bench.call(Op::Rename { from: "/a/inner".into(), to: "/b/inner".into() }).unwrap();
    assert_eq!(bench.call(Op::Stat { path: "/b".into() }), Ok(Done::Stat { bytes: 512, links: 3 }));
    assert_eq!(bench.call(Op::Rmdir { path: "/a".into() }), Ok(Done::Nothing));
}

#[test]
fn fsync_waits_for_data_inode_and_device() {
    let mut bench = bench();
    let file = bench.create("/a", 24_576);
    bench.take_log();
    bench.call(Op::Fsync { file }).unwrap();
    let log = bench.take_log();
    let sizes: Vec<&str> = log.iter().map(|line| line.split_once('+').map_or("", |(_, size)| size)).collect();
    assert_eq!(sizes, ["48", "16", ""], "three blocks of data, the inode, a flush: {log:?}");
}

/// Without a reserve the last space is fragments, of which no block can be made.
#[test]
fn a_file_system_without_a_reserve_fills_up_and_says_so() {
    let config = FfsConfig { reserve_percent: 0, ..small() };
    let mut bench = Bench::new(config, 4 * MIB);
    let mut files = 0;
    let full = loop {
        let path = format!("/file{files}");
        let made = bench.call(Op::Create { path });
        let Ok(Done::Opened(file)) = made else { break made };
        // Three fragments of each block are left over, and nothing fits them.
        let written = bench.call(Op::Write { file, offset: 0, bytes: 5 * 1024 });
        bench.close(file);
        if written.is_err() {
            break written;
        }
        files += 1;
    };
    assert_eq!(full, Err(FsError::NoSpace));
    assert!(files > 300, "{files} files in 4 MiB");
    assert!(bench.ffs.free_bytes() > MIB, "all of it fragments");
}

#[test]
fn a_copy_has_the_same_files() {
    let mut first = Bench::new(small(), 16 * MIB);
    for name in ["/a", "/b", "/c"] {
        let Ok(Done::Opened(file)) = first.ffs.set_up(&Op::Create { path: name.into() }) else { panic!() };
        first.ffs.set_up(&Op::Append { file, bytes: 30_000 }).unwrap();
        first.ffs.set_up(&Op::Close { file }).unwrap();
    }
    first.ffs.set_up(&Op::Unlink { path: "/b".into() }).unwrap();
    let mut second = Bench::new(small(), 16 * MIB);
    second.ffs = first.ffs.copy();
    let logs = [&mut first, &mut second].map(|bench| {
        bench.create("/d", 50_000);
        bench.call(Op::Unlink { path: "/a".into() }).unwrap();
        bench.call(Op::Sync).unwrap();
        bench.take_log()
    });
    assert_eq!(logs[0], logs[1]);
    assert!(logs[0].len() > 5);
}
