//! Tests the differences where files are placed as ext3 places them, and where metadata may wait.

use super::*;

fn ext3() -> FfsConfig {
    FfsConfig { placement: Placement::Ext3, ..small() }
}

fn group_of(bench: &Bench, path: &str) -> super::super::layout::GroupIndex {
    let volume = &bench.ffs.volume;
    let ino = volume.resolve(path).unwrap().target.unwrap();
    volume.allocator.layout.group_of_inode(ino)
}

fn blocks(bench: &Bench, file: Ino) -> Vec<u32> {
    bench.ffs.volume.inodes.get(file).blocks.iter().map(|at| at.0 / 8).collect()
}

#[test]
fn files_have_whole_blocks_and_lie_one_behind_the_other() {
    let mut bench = Bench::new(ext3(), 16 * MIB);
    let a = bench.create("/a", 1000);
    bench.close(a);
    let b = bench.create("/b", 9000);
    let first = blocks(&bench, a)[0];
    assert_eq!(blocks(&bench, b), [first + 1, first + 2]);
    bench.close(b);
    bench.call(Op::Open { path: "/a".into() }).unwrap();
    bench.call(Op::Append { file: a, bytes: 2000 }).unwrap();
    assert_eq!(blocks(&bench, a), [first], "it grows where it is");
    bench.close(a);
    bench.call(Op::Sync).unwrap();
    bench.call(Op::Unlink { path: "/a".into() }).unwrap();
    let other = bench.create("/c", 2 * 8192);
    assert_eq!(blocks(&bench, other), [first, first + 3], "the first place that is free, and the next one");
}

#[test]
fn files_that_are_written_together_do_not_take_each_others_next_blocks() {
    let mut bench = Bench::new(ext3(), 16 * MIB);
    let root = blocks(&bench, Ino::ROOT)[0];
    // Up to a multiple of eight, so that a window from there on is free as a whole.
    let full = bench.create("/full", u64::from(7 - root % 8) * 8192);
    bench.close(full);
    let (a, b) = (bench.create("/a", 8192), bench.create("/b", 8192));
    for (file, count) in [(a, 6), (b, 6), (a, 5), (b, 5)] {
        bench.call(Op::Append { file, bytes: count * 8192 }).unwrap();
    }
    let first = blocks(&bench, a)[0];
    // Windows of 8, and then of 16 as all of the first was taken.
    let row = |from: u32, count: u32| (first + from..first + from + count).collect::<Vec<_>>();
    assert_eq!(blocks(&bench, a), [row(0, 8), row(16, 4)].concat());
    assert_eq!(blocks(&bench, b), [row(8, 8), row(32, 4)].concat());
    bench.close(a);
    let c = bench.create("/c", 8192);
    assert_eq!(blocks(&bench, c), row(20, 1), "what a's window had left");
}

#[test]
fn what_is_written_first_lies_first() {
    let mut bench = Bench::new(ext3(), 16 * MIB);
    let file = bench.create("/a", 0);
    bench.call(Op::Write { file, offset: 7 * 8192, bytes: 1 }).unwrap();
    bench.call(Op::Write { file, offset: 0, bytes: 8 * 8192 }).unwrap();
    let placed = blocks(&bench, file);
    assert_eq!(placed[..7], (placed[7] + 1..placed[7] + 8).collect::<Vec<_>>());
}

#[test]
fn only_directories_of_the_root_are_spread() {
    let mut bench = Bench::new(ext3(), 16 * MIB);
    for path in ["/a", "/b", "/a/1", "/a/2", "/a/2/x"] {
        bench.call(Op::Mkdir { path: path.into() }).unwrap();
    }
    let group = group_of(&bench, "/a");
    assert_ne!(group_of(&bench, "/b"), group);
    assert_eq!(["/a/1", "/a/2", "/a/2/x"].map(|path| group_of(&bench, path)), [group; 3]);
}

#[test]
fn a_file_leaves_a_group_that_has_no_block_left_and_inodes_are_taken_from_the_first() {
    let mut bench = Bench::new(ext3(), 16 * MIB);
    bench.call(Op::Mkdir { path: "/a".into() }).unwrap();
    let home = group_of(&bench, "/a");
    let inodes: Vec<Ino> = ["/a/1", "/a/2"].map(|path| bench.create(path, 0)).to_vec();
    bench.close(inodes[0]);
    bench.call(Op::Unlink { path: "/a/1".into() }).unwrap();
    assert_eq!(bench.create("/a/3", 0), inodes[0], "the first that is free");
    let free = u64::from(bench.ffs.volume.allocator.map(home).free_blocks);
    let full = bench.create("/a/full", free * 8192);
    bench.close(full);
    assert_eq!(bench.ffs.volume.allocator.map(home).free_blocks, 0);
    bench.create("/a/4", 8192);
    bench.create("/a/5", 8192);
    assert_ne!(group_of(&bench, "/a/4"), home);
    assert_eq!(group_of(&bench, "/a/4"), group_of(&bench, "/a/5"), "files of a directory stay together");
}

#[test]
fn a_directory_leaves_a_group_that_has_its_share_of_directories() {
    let mut bench = Bench::new(ext3(), 16 * MIB);
    bench.call(Op::Mkdir { path: "/a".into() }).unwrap();
    let inodes = bench.ffs.volume.allocator.layout.inodes_per_group;
    for number in 0..inodes / 4 {
        bench.ffs.set_up(&Op::Mkdir { path: format!("/a/{number}") }).unwrap();
    }
    let home = group_of(&bench, "/a");
    let near = (0..inodes / 4).filter(|number| group_of(&bench, &format!("/a/{number}")) == home).count();
    assert!((inodes as usize / 16..inodes as usize / 8).contains(&near), "{near} of {}", inodes / 4);
}

#[test]
fn a_large_file_goes_on_where_it_is() {
    let mut bench = Bench::new(ext3(), 16 * MIB);
    let file = bench.create("/large", 300_000);
    let inode = bench.ffs.volume.inodes.get(file);
    let before = inode.blocks[11];
    assert_eq!((inode.indirects[0], inode.blocks[12]), (before.plus(8), before.plus(16)));
}

#[test]
fn names_may_be_written_later_but_not_what_is_synced() {
    let config = FfsConfig { synchronous_metadata: false, ..small() };
    let mut bench = Bench::new(config, 16 * MIB);
    let file = bench.create("/first", 3000);
    bench.take_log();
    bench.call(Op::Mkdir { path: "/d".into() }).unwrap();
    let other = bench.create("/d/a", 200_000);
    bench.close(other);
    bench.call(Op::Unlink { path: "/d/a".into() }).unwrap();
    let log = bench.take_log();
    assert!(log.iter().all(|line| !line.starts_with("write!")), "{log:?}");
    bench.call(Op::Fsync { file }).unwrap();
    let log = bench.take_log();
    assert_eq!(log.iter().filter(|line| line.starts_with("write!")).count(), 1, "{log:?}");
}

#[test]
fn a_host_may_read_further_ahead_than_a_request_is_long() {
    let config = FfsConfig {
        cluster_bytes: 16 << 10,
        read_ahead_bytes: Some(64 << 10),
        placement: Placement::Ext3,
        ..small()
    };
    let mut bench = Bench::new(config, 16 * MIB);
    let file = bench.create("/a", 256 << 10);
    bench.close(file);
    bench.call(Op::Remount).unwrap();
    bench.call(Op::Open { path: "/a".into() }).unwrap();
    bench.take_log();
    let mut most = 0;
    for offset in (0..256 << 10).step_by(8192) {
        bench.call(Op::Read { file, offset, bytes: 8192 }).unwrap();
        most = most.max(bench.requests.len());
    }
    let log = bench.take_log();
    let sizes: Vec<u64> = log.iter().filter_map(|line| line.split_once('+')?.1.parse().ok()).collect();
    assert!(sizes.iter().all(|sectors| *sectors <= 32), "{log:?}");
    assert!(most >= 4, "64 KiB in requests of 16 KiB: {most}");
}
