//! Reads that are kept: what is copied to the log, what drops a copy, and what recovery makes of it.

use super::*;
use crate::layer::{Control, Durability, ErrorKind, Io, IoError};
use crate::log_cache::env::{DATA, LOG};
use crate::log_cache::testing::sector_of;
use crate::log_cache::testing_steps::{Kind as Sent, Steps, ZEROES, quiet};
use crate::log_cache::{LogCacheConfig, Reads};

const AT: u64 = 2176;

fn keeping() -> LogCacheConfig {
    LogCacheConfig { reads: Reads::Keep, ..quiet() }
}

/// A log of 40 segments of 16 KiB, whose clients have read enough for copies.
fn start() -> Steps {
    let mut steps = Steps::new(40, keeping());
    steps.core.keep.earn(1 << 20);
    steps
}

/// Reads a line, and counts the reads of the data disk.
fn read(steps: &mut Steps, lba: u64) -> (Option<u8>, usize) {
    steps.sent.clear();
    let id = steps.send(Io::Read { at: Lba(lba), buf: Buf::zeroed(LINE_BYTES as usize) });
    let reads = steps.sent.iter().filter(|sent| sent.0 == DATA && sent.1 == Sent::Read).count();
    let result = steps.replies.remove(&id).expect("reads are not held back");
    (result.status.ok().map(|()| result.buf.bytes()[511]), reads)
}

fn kept(steps: &Steps) -> u64 {
    steps.core.statistics.kept_blocks
}

/// A line that is kept.
fn with_copy() -> Steps {
    let mut steps = start();
    assert_eq!([read(&mut steps, AT), read(&mut steps, AT)], [(Some(0), 1), (Some(0), 1)]);
    assert_eq!(kept(&steps), 1);
    steps
}

#[test]
fn what_is_read_twice_is_read_from_the_log_from_then_on() {
    let mut steps = with_copy();
    assert_eq!(read(&mut steps, AT), (Some(0), 0));
    steps.wait(3);
    assert_eq!(read(&mut steps, AT), (Some(0), 0));
    assert!(!steps.core.index.is_dirty(), "a copy is clean");
    assert_eq!(steps.core.statistics.kept_bytes, 4096);
    // A part of a line is no reason.
    for _ in 0..3 {
        assert_eq!((steps.read(AT + 80), kept(&steps)), (Some(0), 1));
    }
}

#[test]
fn nothing_is_kept_unless_that_is_asked_for_and_then_not_on_a_log_that_spins() {
    let mut steps = Steps::new(40, quiet());
    for _ in 0..3 {
        assert_eq!(read(&mut steps, AT).1, 1);
    }
    assert_eq!((kept(&steps), steps.core.keep.memory_bytes()), (0, 0));
    let mut disks = steps.disks;
    let error = Steps::start(disks.clone(), LogCacheConfig { ordered_destage: true, ..keeping() }).err();
    assert!(error.unwrap().to_string().contains("exclude each other"));
    disks.0[0].rotational = true;
    let error = Steps::start(disks, keeping()).err();
    assert!(error.unwrap().to_string().contains("not rotational"));
}

/// Something newer comes while the block is on its way from the data disk, through the log or past it.
#[test]
fn rule_07_what_is_written_between_read_and_append_drops_the_copy() {
    let extent = Extent::new(Lba(AT), 8);
    let write = |sectors: u64| {
        let bytes: Vec<u8> = (AT..AT + sectors).flat_map(|lba| sector_of(lba, 2)).collect();
        Io::Write { at: Lba(AT), buf: Buf::copy_of(&bytes), durability: Durability::Volatile }
    };
    let zeroes = Io::WriteZeroes { extent, unmap: false, durability: Durability::Volatile };
    let cases =
        [(write(1), 2), (write(8), 2), (write(128), 2), (zeroes, ZEROES), (Io::Discard { extent }, ZEROES)];
    for (io, tag) in cases {
        let mut steps = start();
        read(&mut steps, AT);
        steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Read { .. }));
        let id = steps.send(Io::Read { at: Lba(AT), buf: Buf::zeroed(LINE_BYTES as usize) });
        steps.send(io);
        steps.flush();
        assert_eq!(steps.held.len(), 1, "the write and its flush are done");
        // The read's data disk is older than the write.
        let old: Vec<u8> = (AT..AT + 8).flat_map(|lba| sector_of(lba, 0)).collect();
        steps.answer(0, IoResult::ok(Buf::copy_of(&old)));
        steps.let_go();
        assert!(steps.is_ok(id));
        assert_eq!((kept(&steps), steps.read(AT)), (0, Some(tag)));
        steps.drain();
        assert_eq!(steps.read(AT), Some(tag));
    }
}

/// A crash may lose what a flush has not covered, and spare a copy of it in the log.
#[test]
fn rule_07_what_is_volatile_on_the_data_disk_is_not_copied() {
    let mut steps = start();
    steps.write(AT, 128, 2);
    assert_eq!(steps.core.statistics.bypasses, 1);
    for _ in 0..3 {
        assert_eq!(read(&mut steps, AT), (Some(2), 1));
    }
    assert_eq!(kept(&steps), 0);
    steps.flush();
    assert_eq!([read(&mut steps, AT).1, read(&mut steps, AT).1, read(&mut steps, AT).1], [1, 1, 0]);
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Flush));
    steps.write(AT + 128, 128, 2);
    steps.flush();
    steps.fail(0, IoError::new(ErrorKind::Medium));
    for _ in 0..3 {
        assert_eq!(read(&mut steps, AT + 128).1, 1, "it is at risk");
    }
}

/// Recovery takes a copy for what the data disk has. The record that says that it is old must not be lost with the write in place.
#[test]
fn rule_07_nothing_bypasses_the_log_where_recovery_finds_a_copy() {
    let mut steps = with_copy();
    steps.flush();
    steps.wait(2);
    let mut steps = steps.restart(keeping());
    assert_eq!(read(&mut steps, AT), (Some(0), 0), "it is warm");
    assert!(!steps.core.index.is_dirty());
    steps.write(AT, 128, 2);
    assert_eq!(steps.core.statistics.bypasses, 0);
    assert_eq!(steps.read(AT), Some(2));
    // The crash takes the write, and the copy is what the disk has.
    let mut steps = steps.restart(keeping());
    assert_eq!((read(&mut steps, AT), steps.on_data_disk(AT)), ((Some(0), 0), 0));
    steps.write(AT, 128, 3);
    steps.flush();
    let mut steps = steps.restart(keeping());
    assert_eq!(steps.read(AT), Some(3));
    steps.drain();
    assert_eq!((steps.read(AT), steps.on_data_disk(AT)), (Some(3), 3));
}

/// Also where reads are not kept any more.
#[test]
fn copies_are_warm_after_a_clean_stop_whatever_was_destaged_since() {
    let mut steps = with_copy();
    for round in 0..10 {
        for block in 0..3 {
            steps.write(block * 8, 8, 1);
        }
        steps.wait(2);
        if round == 5 {
            steps.drain();
            steps.core.keep.earn(1 << 20);
            for _ in 0..2 {
                read(&mut steps, AT + 64);
            }
        }
    }
    steps.control(Control::Stop);
    let again = Steps::start(steps.disks.clone(), quiet()).unwrap();
    assert!(
        !again.core.index.is_kept_in(Extent::new(Lba(AT), 8)),
        "it lies before what a drain has destaged"
    );
    let mut steps = steps.restart(keeping());
    assert_eq!(read(&mut steps, AT + 64), (Some(0), 0));
    assert_eq!(read(&mut steps, AT).1, 1);
    // And again, although nothing was written meanwhile.
    steps.control(Control::Stop);
    let mut steps = steps.restart(keeping());
    assert_eq!(read(&mut steps, AT + 64), (Some(0), 0));
    steps.core.check();
}

#[test]
fn rule_11_copies_are_forgotten_for_ever_where_nothing_says_that_the_disk_is_as_it_was() {
    let mut steps = with_copy();
    steps.flush();
    steps.wait(2);
    let mut steps = steps.restart(keeping());
    assert_eq!(read(&mut steps, AT), (Some(0), 0), "a start that knows the disk keeps the copy");
    steps.control(Control::Stop);
    let mut steps = steps.restart(LogCacheConfig { doubt_kept: true, ..keeping() });
    assert_eq!(read(&mut steps, AT), (Some(0), 1));
    let mut steps = steps.restart(keeping());
    assert_eq!(read(&mut steps, AT), (Some(0), 1));
}

#[test]
fn a_rotten_copy_is_read_from_the_data_disk_and_no_reason_to_refuse_the_start() {
    let mut steps = with_copy();
    steps.flush();
    steps.wait(2);
    let place = steps.core.index.table().lookup(Line::of(Lba(AT)))[0].place;
    steps.log().bytes[(place.0 * 512) as usize] ^= 1;
    for _ in 0..2 {
        steps = steps.restart(keeping());
        assert_eq!(read(&mut steps, AT), (Some(0), 1));
        // Recovery finds it again: what is written must not bypass the log.
        steps.write(AT, 128, 2);
        assert_eq!(steps.core.statistics.bypasses, 0);
    }
}

/// The walk begins earlier for the sake of copies. What is lost there was destaged.
#[test]
fn damage_where_recovery_only_looks_for_copies_is_no_reason_to_refuse_the_start() {
    let mut steps = with_copy();
    steps.flush();
    steps.wait(2);
    let place = steps.core.index.table().lookup(Line::of(Lba(AT)))[0].place;
    // Other copies fill its segment.
    for line in 1..5 {
        read(&mut steps, AT + line * 8);
        read(&mut steps, AT + line * 8);
    }
    steps.wait(2);
    for block in 0..3 {
        steps.write(block * 8, 8, 1);
    }
    steps.wait(3);
    steps.control(Control::Stop);
    let mut whole = Steps::start(steps.disks.clone(), keeping()).unwrap();
    assert_eq!((read(&mut whole, AT), whole.read(8)), ((Some(0), 0), Some(1)));
    // The header of its record; then, also the summary that has it.
    steps.log().bytes[(place.0 * 512) as usize - 512] ^= 1;
    let mut whole = Steps::start(steps.disks.clone(), keeping()).unwrap();
    assert_eq!((read(&mut whole, AT), whole.read(8)), ((Some(0), 0), Some(1)));
    let superblock = steps.core.log.superblock();
    let after = superblock.segment_start(superblock.segment_of(place.0) + 1);
    steps.log().bytes[(after * 512) as usize] ^= 1;
    let mut steps = steps.restart(keeping());
    assert_eq!((read(&mut steps, AT), steps.read(8)), ((Some(0), 1), Some(1)));
    steps.drain();
    assert_eq!(steps.on_data_disk(8), 1);
}

#[test]
fn a_destaged_copy_that_cannot_be_read_does_not_outlive_a_bypassing_write() {
    let mut steps = Steps::new(40, quiet());
    // No superblock says that it is destaged.
    steps.hold = Box::new(|port, io| port == LOG && io.extent().is_some_and(|extent| extent.start.0 < 32));
    steps.write(AT, 8, 1);
    steps.drain();
    let place = steps.core.index.table().lookup(Line::of(Lba(AT)))[0].place;
    steps.log().bytes[(place.0 * 512) as usize] ^= 1;
    assert_eq!(steps.read(AT), Some(1));
    steps.write(AT, 128, 2);
    steps.flush();
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.read(AT), Some(2));
}

#[test]
fn copies_give_way_to_those_who_wait() {
    let mut steps = start();
    read(&mut steps, AT);
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Write { .. }));
    steps.write_as(0, 8, 1, Durability::Durable);
    read(&mut steps, AT);
    assert_eq!((kept(&steps), steps.core.statistics.keep_dropped_blocks), (0, 1));
    steps.let_go();
    read(&mut steps, AT);
    assert_eq!(kept(&steps), 1, "the ghost list remembers it");
    // A flush does not wait for copies.
    steps.hold = Box::new(|port, _| port == LOG);
    let flush = steps.flush();
    assert!(steps.is_ok(flush));
}

#[test]
fn copies_are_at_most_a_share_of_what_clients_do() {
    let mut steps = Steps::new(40, keeping());
    for _ in 0..2 {
        for line in 0..100 {
            read(&mut steps, AT + line * 8);
        }
    }
    assert!(kept(&steps) > 40, "{}", kept(&steps));
    for line in 0..100 {
        read(&mut steps, AT + 1000 + line * 8);
    }
    let statistics = &steps.core.statistics;
    assert!(statistics.kept_bytes <= statistics.read_bytes / SHARE);
}

/// Hot blocks are appended again before their segment is written; the other blocks are not.
#[test]
fn what_is_hot_is_copied_again_once_a_lap() {
    let mut steps = start();
    for line in [0, 8, 16] {
        read(&mut steps, AT + line);
        read(&mut steps, AT + line);
    }
    assert_eq!(kept(&steps), 3);
    for lap in 0..3 {
        read(&mut steps, AT);
        for _ in 0..40 {
            for block in 0..3 {
                steps.write(block * 8, 8, lap);
            }
            steps.drain();
        }
        assert_eq!(steps.core.statistics.kept_again_blocks, u64::from(lap) + 1);
    }
    assert_eq!([read(&mut steps, AT), read(&mut steps, AT + 8)], [(Some(0), 0), (Some(0), 1)]);
    // It was hot once; two laps later it is gone.
    for _ in 0..120 {
        for block in 0..3 {
            steps.write(block * 8, 8, 9);
        }
        steps.drain();
    }
    assert_eq!(read(&mut steps, AT), (Some(0), 1));
}

#[test]
fn a_ghost_is_remembered_for_as_many_lines_as_there_are_and_not_for_ever() {
    let mut ghosts = Ghosts::new(1 << 12);
    let mut found = [0; 2];
    for line in 0..1 << 16 {
        ghosts.put(Line(line));
        for (age, found) in [1 << 11, 1 << 14].into_iter().zip(&mut found) {
            *found += u64::from(line >= age && ghosts.take(Line(line - age)));
        }
    }
    assert!(found[0] > 58_000, "{found:?}");
    assert!(found[1] < 3_000, "{found:?}");
    assert_eq!(size_of_val(&*ghosts.0), 1 << 12, "one byte for each line of the log");
}
