//! The rules that keep data safe (docs/safety.md has the table), those that can be seen step by step.

use super::env::{DATA, LOG};
use super::testing::sector_of;
use super::testing_steps::{Disks, Kind, Steps, ZEROES, quiet};
use super::{LogCacheConfig, LogError, Promise, WhatPolicy};
use crate::layer::{Control, Discards, Durability, ErrorKind, Io, IoError, Port, Report, Unfinished};
use crate::{Extent, Lba, LogCacheState};

/// A place whose lines are not in the fingerprint, so that writes there may bypass the log.
const MIDDLE: u64 = 2176;

fn data_write(port: Port, io: &Io) -> bool {
    port == DATA && matches!(io, Io::Write { .. })
}

fn data_flush(port: Port, io: &Io) -> bool {
    port == DATA && matches!(io, Io::Flush)
}

/// Durable writes of one block after the other, until `segments` have been used beyond the one where it began.
fn fill(steps: &mut Steps, segments: u64, mut lba: u64, tag: u8) {
    let head = steps.core.log.ring().head();
    while steps.core.log.ring().head() < head + segments {
        let id = steps.write_as(lba, 8, tag, Durability::Durable);
        assert!(steps.is_ok(id));
        lba += 8;
    }
}

#[test]
fn rule_01_a_clean_segment_behind_a_dirty_one_is_not_free() {
    // The newest segments are destaged first, but for one block in the oldest one that cannot be read.
    let newest_first = LogCacheConfig { what: WhatPolicy::LastWriteFirst, low_mark: 98, ..quiet() };
    let mut steps = Steps::new(6, newest_first);
    let oldest = steps.write_as(0, 8, 1, Durability::Durable);
    assert!(steps.is_ok(oldest));
    fill(&mut steps, 3, 64, 2);
    let tail = steps.core.log.ring().tail();
    let unreadable: Vec<u64> = (33..41).collect();
    steps.log().unreadable.extend(&unreadable);
    steps.drain();
    assert_eq!(steps.core.index.table().counts().dirty_sectors, 8, "all but the oldest block is clean");
    assert_eq!(steps.core.log.ring().tail(), tail, "and keeps the clean segments after it");
    steps.log().unreadable.clear();
    steps.drain();
    assert_eq!((steps.core.log.ring().live(), steps.on_data_disk(0), steps.on_data_disk(64)), (1, 1, 2));
}

#[test]
fn rule_06_a_segment_is_reused_only_after_its_data_disk_flush() {
    let mut steps = Steps::new(6, quiet());
    fill(&mut steps, 2, 0, 1);
    let tail = steps.core.log.ring().tail();
    steps.hold = Box::new(data_flush);
    steps.drain();
    assert_eq!((steps.on_data_disk(0), steps.core.log.ring().tail()), (1, tail), "written, and not flushed");
    assert!(steps.core.index.is_dirty());
    steps.let_go();
    assert!(steps.core.log.ring().tail() > tail && !steps.core.index.is_dirty());
}

#[test]
fn rule_06_what_a_failed_flush_should_have_covered_counts_as_unwritten() {
    for fail_write in [false, true] {
        let mut steps = Steps::new(6, quiet());
        fill(&mut steps, 2, 0, 1);
        let (tail, dirty) = (steps.core.log.ring().tail(), steps.core.index.table().counts().dirty_sectors);
        steps.hold =
            Box::new(move |port, io| if fail_write { data_write(port, io) } else { data_flush(port, io) });
        steps.control(Control::Drain);
        steps.fail(0, IoError::new(ErrorKind::Medium));
        if fail_write {
            steps.hold = Box::new(data_write);
            steps.let_go();
        }
        assert_eq!(
            (steps.core.log.ring().tail(), steps.core.index.table().counts().dirty_sectors),
            (tail, dirty),
            "an error keeps it dirty"
        );
        steps.let_go();
        steps.wait(5);
        assert!(!steps.core.index.is_dirty() && steps.on_data_disk(0) == 1, "and it is tried again");
    }
}

#[test]
fn rule_06_what_was_replaced_is_kept_until_its_successor_is_durable() {
    let mut steps = Steps::new(6, quiet());
    // Three blocks in the first segment, one in the second.
    for i in 0..4 {
        steps.write_as(8 * i, 8, 1, Durability::Durable);
    }
    let tail = steps.core.log.ring().tail();
    assert_eq!(steps.core.log.ring().head(), tail + 1);
    // Every block of the tail is replaced, by records that a crash could take.
    steps.hold = Box::new(|port, io| port == LOG && !matches!(io, Io::Read { .. }));
    for i in 0..3 {
        steps.write(8 * i, 8, 2);
    }
    assert_eq!(steps.core.index.dirty_sectors_of(steps.core.log.ring().index(tail), 0), 0);
    steps.core.advance_tail();
    assert_eq!(steps.core.log.ring().tail(), tail, "the old copy is the only durable one");
    steps.hold = Box::new(|_, _| false);
    let flush = steps.flush();
    assert!(steps.is_ok(flush) && steps.core.log.ring().tail() > tail);
}

/// The first record of an activation begins where the log ended, if need be without an entry. Such a record is clean before it is
/// written: nothing dirty kept its segment, the head came round while the write was still in flight, and when that ended last
/// it lay over a newer block. The crash explorer found it with five segments of 16 KiB.
#[test]
fn rule_06_a_segment_is_not_reused_while_a_write_to_it_is_in_flight() {
    // The head can come round to such a write only where there are more buffers than segments.
    let config = || LogCacheConfig { segment_buffers: 8, ..quiet() };
    let mut steps = Steps::new(5, config());
    steps.write_as(0, 24, 1, Durability::Durable);
    steps.drain();
    assert!(!steps.core.index.is_dirty());
    let mut steps = steps.restart(config());
    steps.core.log.geometry_mut().volatile_cache = false;
    // Nine sectors do not fit the seven that are left of the first segment.
    let first_segment = |extent: Extent| (32..64).contains(&extent.start.0);
    steps.hold = Box::new(move |port, io| {
        port == LOG && matches!(io, Io::Write { .. }) && io.extent().is_some_and(first_segment)
    });
    for block in 0..24 {
        steps.write(8 * block, 8, 2);
    }
    steps.flush();
    steps.wait(1);
    assert_eq!(steps.held.len(), 1, "only the record without entries, however late it is");
    steps.let_go();
    let flush = steps.flush();
    assert!(steps.is_ok(flush));
    let mut steps = steps.restart(config());
    assert!((0..24).all(|block| steps.read(8 * block) == Some(2)));
}

/// Zeroes over a part of older zeroes: what is left of those is destaged, and nothing in their segment is dirty any more. The old record
/// is still the only durable one for the part that was written again. The crash explorer found it, once in two million states.
#[test]
fn rule_06_a_range_of_which_a_part_was_replaced_is_kept_until_its_successor_is_durable() {
    let zero = |at: u64, sectors: u64, durability: Durability| {
        let extent = Extent::new(Lba(MIDDLE + at), sectors);
        Io::WriteZeroes { extent, unmap: false, durability }
    };
    let mut steps = Steps::new(6, quiet());
    let old = steps.send(zero(0, 64, Durability::Durable));
    assert!(steps.is_ok(old));
    fill(&mut steps, 1, 0, 1);
    let tail = steps.core.log.ring().tail();
    steps.hold = Box::new(|port, io| port == LOG && !matches!(io, Io::Read { .. }));
    steps.send(zero(32, 64, Durability::Volatile));
    steps.drain();
    assert_eq!(
        (steps.on_data_disk(MIDDLE), steps.on_data_disk(MIDDLE + 32), steps.on_data_disk(0)),
        (ZEROES, 0, 1)
    );
    steps.core.advance_tail();
    assert_eq!(steps.core.log.ring().tail(), tail, "a crash would leave the first content there");
    let mut steps = Steps::start(steps.disks, quiet()).unwrap();
    assert_eq!(steps.read(MIDDLE + 32), Some(ZEROES));
}

#[test]
fn rule_07_large_writes_bypass_the_log_only_where_it_has_nothing() {
    let mut steps = Steps::new(40, quiet());
    let bypass = |steps: &Steps| steps.core.statistics.bypasses;
    steps.write(MIDDLE, 128, 1);
    assert_eq!((bypass(&steps), steps.on_data_disk(MIDDLE)), (1, 1), "nothing of it is in the log");
    steps.write(MIDDLE + 8, 8, 2);
    steps.write(MIDDLE, 128, 3);
    assert_eq!((bypass(&steps), steps.read(MIDDLE + 8)), (1, Some(3)), "some of it is dirty");
    steps.drain();
    let invalidates = steps.core.statistics.invalidates;
    fill(&mut steps, 1, 0, 9);
    steps.write_as(MIDDLE + 256, 8, 4, Durability::Durable);
    steps.hold = Box::new(|_, _| false);
    steps.drain();
    fill(&mut steps, 1, 0, 9);
    steps.write_as(MIDDLE + 256, 128, 5, Durability::Durable);
    // Recovery would see the clean copy of it, unless its segment is free by now.
    let told = steps.core.statistics.invalidates - invalidates;
    assert!(told == 1 || !steps.core.index.is_visible_in(Extent::new(Lba(MIDDLE + 256), 128)));
    let mut steps = steps.restart(quiet());
    assert_eq!((steps.read(MIDDLE + 256), steps.read(MIDDLE)), (Some(5), Some(3)));
}

/// A kernel splits 512 KiB into 504 and 8; of such a stream nothing stays in the log.
#[test]
fn the_rest_of_a_large_write_bypasses_the_log_with_it() {
    let mut steps = Steps::new(8, quiet());
    for at in [0, 256] {
        steps.write(MIDDLE + at, 240, 1);
        steps.write(MIDDLE + at + 240, 16, 2);
    }
    assert_eq!(steps.core.statistics.bypasses, 4);
    assert_eq!((steps.on_data_disk(MIDDLE + 240), steps.on_data_disk(MIDDLE + 496)), (2, 2));
    steps.write(MIDDLE + 512, 8, 3);
    assert_eq!(steps.core.statistics.bypasses, 4, "what follows a rest is no rest");
    steps.sent.clear();
    let flush = steps.flush();
    assert!(steps.is_ok(flush) && steps.sent.contains(&(DATA, Kind::Flush, None)));
    // Durable, or behind a flush: a journal's commit record.
    steps.write(MIDDLE + 1024, 128, 4);
    let commit = steps.write_as(MIDDLE + 1152, 8, 4, Durability::Durable);
    steps.write(MIDDLE + 2048, 128, 5);
    steps.flush();
    steps.write(MIDDLE + 2176, 8, 5);
    // Some of the rest is in the log.
    steps.write(MIDDLE + 3208, 8, 6);
    steps.write(MIDDLE + 3072, 128, 7);
    steps.write(MIDDLE + 3200, 16, 7);
    assert!(steps.is_ok(commit));
    assert_eq!((steps.core.statistics.bypasses, steps.read(MIDDLE + 3208)), (7, Some(7)));
    let mut steps = steps.restart(quiet());
    assert_eq!((steps.read(MIDDLE + 1152), steps.read(MIDDLE + 240)), (Some(4), Some(2)));
}

#[test]
fn rule_07_a_clean_copy_that_recovery_would_bring_back_is_invalidated_first() {
    let mut steps = Steps::new(8, quiet());
    // An older dirty block keeps the tail, so the clean copy stays in the log.
    steps.write_as(0, 8, 9, Durability::Durable);
    fill(&mut steps, 1, MIDDLE, 1);
    steps.log().unreadable.extend(33..41);
    steps.drain();
    steps.log().unreadable.clear();
    assert_eq!(steps.on_data_disk(MIDDLE), 1);
    let id = steps.write_as(MIDDLE, 128, 2, Durability::Durable);
    assert!(steps.is_ok(id));
    assert_eq!((steps.core.statistics.bypasses, steps.core.statistics.invalidates), (1, 1));
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.read(MIDDLE), Some(2), "the log would have said 1");
    steps.drain();
    assert_eq!((steps.on_data_disk(MIDDLE), steps.on_data_disk(0)), (2, 9));
}

/// A server that is killed leaves what it has written, and a client that outlives it relies on every answer.
#[test]
fn rule_07_a_write_over_a_clean_copy_is_answered_once_the_log_calls_that_old() {
    let outlives = || LogCacheConfig { outlives_server: true, ..quiet() };
    let mut steps = Steps::new(8, outlives());
    steps.write_as(0, 8, 9, Durability::Durable);
    fill(&mut steps, 1, MIDDLE, 1);
    steps.log().unreadable.extend(33..41);
    steps.drain();
    steps.log().unreadable.clear();
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    let id = steps.write(MIDDLE, 128, 2);
    assert_eq!((steps.core.statistics.bypasses, steps.core.statistics.invalidates), (1, 1));
    assert_eq!(steps.on_data_disk(MIDDLE), 2);
    assert_eq!(steps.status(id), None, "a kill would bring the copy back");
    steps.let_go();
    assert!(steps.is_ok(id));
    assert_eq!(steps.restart(outlives()).read(MIDDLE), Some(2));
}

#[test]
fn rule_07_a_write_over_a_clean_copy_waits_for_no_flush_where_the_log_has_said_so() {
    let mut steps = Steps::new(8, LogCacheConfig { outlives_server: true, ..quiet() });
    steps.write_as(0, 8, 9, Durability::Durable);
    fill(&mut steps, 1, MIDDLE, 1);
    steps.log().unreadable.extend(33..41);
    steps.drain();
    steps.log().unreadable.clear();
    let log_flush = |port, io: &Io| port == LOG && matches!(io, Io::Flush);
    steps.hold = Box::new(move |port, io| port == DATA && io.modifies() || log_flush(port, io));
    let id = steps.write(MIDDLE, 128, 2);
    let small = steps.write(64, 8, 3);
    assert!(steps.is_ok(small), "its record is written, and the one before it");
    assert_eq!(steps.status(id), None);
    steps.hold = Box::new(log_flush);
    steps.settle();
    assert!(steps.is_ok(id));
}

#[test]
fn rule_07_a_flush_reaches_the_data_disk_after_a_bypass() {
    let mut steps = Steps::new(8, quiet());
    steps.write(MIDDLE, 128, 1);
    steps.sent.clear();
    let flush = steps.flush();
    assert!(steps.is_ok(flush) && steps.sent.contains(&(DATA, Kind::Flush, None)));
    steps.sent.clear();
    let flush = steps.flush();
    assert!(steps.is_ok(flush) && steps.sent.is_empty(), "nothing bypassed the log since");
    steps.write(MIDDLE, 128, 2);
    steps.hold = Box::new(data_flush);
    let flush = steps.flush();
    assert_eq!(steps.status(flush), None);
    steps.fail(0, IoError::new(ErrorKind::Medium));
    assert!(steps.status(flush).is_some_and(|status| status.is_err()));
    let flush = steps.flush();
    assert!(
        steps.status(flush).is_some_and(|status| status.is_err()),
        "nor is it tried again and acknowledged"
    );
}

/// The flush of a client fails while a batch is destaged, and the disk drops what the batch has written by then. The batch's own flush
/// succeeds all the same.
#[test]
fn rule_06_what_a_failed_flush_of_a_client_took_from_a_batch_is_not_clean() {
    let mut steps = Steps::new(6, quiet());
    steps.write_as(0, 8, 1, Durability::Durable);
    steps.write_as(64, 8, 1, Durability::Durable);
    let old = steps.data().bytes[..4096].to_vec();
    // The batch waits for its second block, and its first one is written.
    let second = |io: &Io| io.extent().is_some_and(|extent| extent.start == Lba(64));
    steps.hold = Box::new(move |port, io| port == DATA && (matches!(io, Io::Flush) || second(io)));
    steps.control(Control::Drain);
    assert_eq!((steps.on_data_disk(0), steps.held.len()), (1, 1));
    steps.write(MIDDLE, 128, 2);
    steps.flush();
    let flush = steps.held.iter().position(|held| matches!(held.io, Io::Flush)).expect("it is on its way");
    steps.data().bytes[..4096].copy_from_slice(&old);
    steps.fail(flush, IoError::new(ErrorKind::Medium));
    steps.let_go();
    assert_eq!(steps.core.index.table().counts().dirty_sectors, 16, "nothing of the batch is clean");
    steps.wait(5);
    assert!(!steps.core.index.is_dirty() && steps.on_data_disk(0) == 1, "and it is destaged again");
}

/// The disk may have dropped all that it could not write. What the client writes again is as good as new, wherever it goes.
#[test]
fn rule_07_flushes_succeed_again_when_all_that_a_failed_one_lost_was_written_again() {
    let mut steps = Steps::new(40, quiet());
    steps.write(MIDDLE, 128, 1);
    steps.write(MIDDLE + 1000, 128, 1);
    steps.hold = Box::new(data_flush);
    steps.flush();
    steps.fail(0, IoError::new(ErrorKind::Medium));
    steps.let_go();
    let status = steps.core.status(steps.now);
    assert_eq!((status.flush_at_risk_bytes, status.flush_error.is_some()), (256 * 512, true));
    let fails = |steps: &mut Steps| {
        let flush = steps.flush();
        steps.status(flush).is_some_and(|status| status.is_err())
    };
    assert!(fails(&mut steps));
    steps.write(MIDDLE, 128, 2);
    assert!(fails(&mut steps), "the other range is still at risk");
    for at in (0..128).step_by(8) {
        assert!(fails(&mut steps), "and so is a part of it");
        steps.write(MIDDLE + 1000 + at, 8, 3);
    }
    steps.sent.clear();
    assert!(!fails(&mut steps));
    let flushed =
        [DATA, LOG].map(|port| steps.sent.iter().any(|sent| sent.0 == port && sent.1 != Kind::Write));
    assert_eq!(flushed, [true, true], "what bypassed the log, and what went into the log");
    assert!(steps.core.status(steps.now).flush_error.is_none());
    let mut steps = steps.restart(quiet());
    assert_eq!((steps.read(MIDDLE), steps.read(MIDDLE + 1127)), (Some(2), Some(3)));
}

#[test]
fn rule_07_nothing_bypasses_the_log_where_the_order_of_writes_is_promised() {
    for config in [
        LogCacheConfig { promise: Promise::Ordered, ..quiet() },
        LogCacheConfig { ordered_destage: true, ..quiet() },
    ] {
        let mut steps = Steps::new(40, config);
        steps.write(MIDDLE, 128, 1);
        assert_eq!((steps.core.statistics.bypasses, steps.read(MIDDLE)), (0, Some(1)));
    }
}

#[test]
fn rule_08_discards_and_zeroes_are_records_and_read_as_zeroes_for_ever() {
    let mut steps = Steps::new(8, quiet());
    let extents = [Extent::new(Lba(80), 3), Extent::new(Lba(4000), 900)];
    for extent in extents {
        steps.write_as(extent.start.0, 2, 1, Durability::Durable);
        let id = steps.send(Io::Discard { extent });
        assert!(steps.is_ok(id));
    }
    let zeroes = Extent::new(Lba(100), 5);
    steps.send(Io::WriteZeroes { extent: zeroes, unmap: false, durability: Durability::Durable });
    let all = |steps: &mut Steps| [80, 82, 83, 4000, 4899, 4900, 100, 105].map(|lba| steps.read(lba));
    let expected = [ZEROES, ZEROES, 0, ZEROES, ZEROES, 0, ZEROES, 0].map(Some);
    assert_eq!(all(&mut steps), expected);
    assert_eq!(steps.on_data_disk(80), 0, "only the log knows");
    let mut steps = steps.restart(quiet());
    assert_eq!(all(&mut steps), expected);
    steps.drain();
    assert_eq!(all(&mut steps), expected);
    assert_eq!(
        (steps.on_data_disk(80), steps.on_data_disk(83), steps.on_data_disk(4899)),
        (ZEROES, 0, ZEROES)
    );
}

/// mkfs discards a whole disk: what that costs is what it costs on the disk itself, and the next start does not know better.
#[test]
fn rule_08_a_discard_is_passed_on_and_never_written_as_zeroes() {
    let mut steps = Steps::new(6, quiet());
    steps.data().discards = Discards::Advisory;
    let mut steps = steps.restart(quiet());
    steps.write(MIDDLE, 8, 1);
    steps.send(Io::Discard { extent: Extent::new(Lba(MIDDLE - 64), 512) });
    assert_eq!(steps.read(MIDDLE), Some(ZEROES), "while the log has it");
    steps.hold = Box::new(|port, io| {
        assert!(port == LOG || !matches!(io, Io::Write { .. } | Io::WriteZeroes { .. }), "{io:?}");
        false
    });
    let written = steps.data().operations;
    steps.drain();
    assert!(!steps.core.index.is_dirty());
    assert_eq!(steps.data().operations - written, 2, "a discard and a flush");
}

#[test]
fn rule_09_a_block_that_is_overwritten_while_it_is_destaged_stays_dirty() {
    let mut steps = Steps::new(8, quiet());
    steps.write_as(0, 8, 1, Durability::Durable);
    steps.hold = Box::new(data_write);
    steps.control(Control::Drain);
    assert_eq!(steps.held.len(), 1);
    let id = steps.write_as(0, 8, 2, Durability::Durable);
    assert!(steps.is_ok(id));
    steps.control(Control::DrainCancel);
    steps.let_go();
    assert_eq!(
        (steps.on_data_disk(0), steps.core.index.table().counts().dirty_sectors),
        (1, 8),
        "the newer copy is not destaged"
    );
    assert_eq!(steps.read(0), Some(2));
    steps.drain();
    assert_eq!((steps.on_data_disk(0), steps.core.index.table().counts().dirty_sectors), (2, 0));
}

/// The crash explorer found it: a write that bypasses the log was slow, a newer one of the same place had gone through the log, was
/// durable and destaged before the slow one ended, and that overwrote it on the data disk.
#[test]
fn rule_09_destaging_waits_for_an_older_write_that_bypasses_the_log() {
    let mut steps = Steps::new(8, quiet());
    steps.hold = Box::new(data_write);
    let old = steps.write(MIDDLE, 256, 1);
    assert_eq!(steps.held.len(), 1, "it bypasses the log");
    let new = steps.write_as(MIDDLE + 32, 8, 2, Durability::Durable);
    let zeroes = Extent::new(Lba(MIDDLE + 64), 8);
    steps.send(Io::WriteZeroes { extent: zeroes, unmap: false, durability: Durability::Durable });
    assert!(steps.is_ok(new) && steps.status(old).is_none());
    let bypass = Extent::new(Lba(MIDDLE), 256);
    steps.hold = Box::new(move |port, io| port == DATA && io.extent() == Some(bypass));
    steps.drain();
    assert!(steps.reports.is_empty() && steps.on_data_disk(MIDDLE + 32) == 0, "not before the older one");
    steps.let_go();
    steps.wait(3);
    assert_eq!(steps.reports, [Report::Drained]);
    let destaged = [24, 32, 64].map(|at| steps.on_data_disk(MIDDLE + at));
    assert_eq!(destaged, [1, 2, ZEROES]);
}

#[test]
fn rule_09_data_is_not_destaged_before_an_older_discard_that_has_to_wait() {
    let mut steps = Steps::new(8, quiet());
    steps.hold = Box::new(data_write);
    steps.write(MIDDLE, 256, 1);
    // The discard waits for the write that bypasses the log, and reaches further.
    let discard = Extent::new(Lba(MIDDLE + 200), 100);
    steps.send(Io::WriteZeroes { extent: discard, unmap: false, durability: Durability::Durable });
    let new = steps.write_as(MIDDLE + 280, 8, 2, Durability::Durable);
    assert!(steps.is_ok(new));
    let bypass = Extent::new(Lba(MIDDLE), 256);
    steps.hold = Box::new(move |port, io| port == DATA && io.extent() == Some(bypass));
    steps.drain();
    assert!(steps.reports.is_empty() && steps.on_data_disk(MIDDLE + 280) == 0, "not before the older one");
    steps.let_go();
    steps.wait(3);
    assert_eq!(steps.reports, [Report::Drained]);
    let destaged = [24, 240, 270, 280].map(|at| steps.on_data_disk(MIDDLE + at));
    assert_eq!(destaged, [1, ZEROES, ZEROES, 2]);
}

#[test]
fn rule_10_fua_is_answered_when_data_and_mapping_are_durable() {
    let mut steps = Steps::new(8, quiet());
    steps.hold = Box::new(|port, io| port == LOG && !matches!(io, Io::Read { .. }));
    let id = steps.write_as(0, 8, 1, Durability::Durable);
    assert_eq!(steps.held.len(), 1);
    assert_eq!(steps.status(id), None, "it is only on its way");
    assert_eq!(
        super::testing_steps::kind(&steps.held[0].io),
        Kind::WriteThrough,
        "data and header, past the disk's cache"
    );
    // A second one, behind it: written, it is not durable before it is flushed.
    let second = steps.write_as(8, 8, 2, Durability::Durable);
    steps.let_go();
    assert!(steps.is_ok(id) && steps.is_ok(second));
    assert_eq!(steps.core.log.durable_seq(), steps.core.log.next_seq() - 1);
}

#[test]
fn rule_10_a_flush_covers_every_write_that_was_answered_before_it() {
    let mut steps = Steps::new(8, quiet());
    let first = steps.write(0, 8, 1);
    let second = steps.write(8, 8, 2);
    assert!(steps.is_ok(first) && steps.is_ok(second), "answered from RAM");
    steps.hold = Box::new(|port, io| port == LOG && !matches!(io, Io::Read { .. }));
    let flush = steps.flush();
    let later = steps.write(16, 8, 3);
    assert!(steps.is_ok(later) && steps.status(flush).is_none());
    while steps.status(flush).is_none() {
        let undurable = steps.core.log.durable_seq() < 1;
        assert!(undurable, "it waits for its records only");
        steps.carry_out(0);
    }
    assert!(steps.is_ok(flush));
    let mut steps = steps.restart(quiet());
    assert_eq!((steps.read(0), steps.read(8)), (Some(1), Some(2)));
}

#[test]
fn rule_11_a_data_disk_that_changed_behind_the_cache_is_refused_and_nothing_is_written() {
    let mut steps = Steps::new(8, quiet());
    steps.write_as(0, 8, 1, Durability::Durable);
    let [log, mut data] = steps.disks.clone().two();
    data.bytes[512 * 100] ^= 1;
    let before = data.bytes.clone();
    let mut disks = Disks(vec![log.clone(), data]);
    let error = super::activate::activate(quiet(), None, 1, &mut disks).err().expect("another disk");
    assert!(matches!(error, LogError::OtherData(_)), "{error}");
    assert!(disks.0[0].bytes == log.bytes && disks.0[1].bytes == before, "a refusal changes nothing");
    // The log may have begun to write there, but nothing else than it holds.
    let [log, mut data] = steps.disks.two();
    data.bytes[..512].copy_from_slice(&sector_of(0, 1));
    assert!(super::activate::activate(quiet(), None, 1, &mut Disks(vec![log.clone(), data.clone()])).is_ok());
    data.bytes[0] ^= 1;
    assert!(super::activate::activate(quiet(), None, 1, &mut Disks(vec![log, data])).is_err());
}

#[test]
fn rule_12_after_a_clean_stop_the_dirty_set_is_what_it_was_and_nothing_is_redone() {
    let mut steps = Steps::new(8, quiet());
    for i in 0..5 {
        steps.write(i * 64, 8, 1);
    }
    steps.drain();
    for i in 0..3 {
        steps.write(i * 64, 4, 2);
    }
    steps.send(Io::Discard { extent: Extent::new(Lba(1000), 50) });
    steps.control(Control::Stop);
    assert_eq!(steps.reports.last(), Some(&Report::Stopped));
    let (dirty, ranges, next) = (
        steps.core.index.table().counts().dirty_sectors,
        steps.core.index.ranges().len(),
        steps.core.log.next_seq(),
    );
    let mut steps = steps.restart(quiet());
    assert_eq!(
        (
            steps.core.index.table().counts().dirty_sectors,
            steps.core.index.ranges().len(),
            steps.core.log.next_seq()
        ),
        (dirty, ranges, next)
    );
    steps.sent.clear();
    steps.drain();
    let mut destaged: Vec<_> = steps
        .sent
        .iter()
        .filter(|(port, kind, _)| *port == DATA && *kind == Kind::Write)
        .map(|sent| sent.2)
        .collect();
    destaged.sort_unstable();
    let expected = [0, 64, 128].map(|lba| Some(Extent::new(Lba(lba), 4)));
    assert_eq!(destaged, expected, "exactly what was dirty");
}

/// Every whole line is said to be clean once, and neighbours in one entry; a part of a line by itself. The dirty line between them is not.
#[test]
fn rule_12_a_clean_stop_names_runs_of_clean_lines() {
    use super::format::{EntryKind, Header};
    use super::recover::{Visitor, WalkOptions, walk};
    struct Clean(Vec<Extent>);
    impl Visitor for Clean {
        fn record(&mut self, header: &Header, _bad: &[usize]) {
            let entries = header.entries.iter().filter(|entry| entry.kind == EntryKind::Invalidate);
            self.0.extend(entries.map(|entry| entry.extent));
        }
    }
    // With the newest first, the oldest segment keeps the tail back.
    let mut steps =
        Steps::new(40, LogCacheConfig { what: WhatPolicy::LastWriteFirst, low_mark: 98, ..quiet() });
    steps.write(8 * 200, 8, 1);
    for line in 60..140 {
        steps.write(8 * line, 8, 1);
    }
    steps.write(8 * 150 + 2, 3, 1);
    steps.flush();
    // The first line cannot be written to the data disk.
    steps.data().unwritable.insert(8 * 200);
    steps.drain();
    steps.write(8 * 70, 8, 2);
    steps.control(Control::Stop);
    steps.wait(5);
    assert_eq!(steps.reports.last(), Some(&Report::Stopped));
    let superblock = steps.core.log.superblock().clone();
    let mut clean = Clean(Vec::new());
    walk(steps.log(), &superblock, WalkOptions::default(), &mut clean).unwrap();
    clean.0.sort_unstable();
    let lines =
        |lines: std::ops::Range<u64>| Extent::new(Lba(8 * lines.start), 8 * (lines.end - lines.start));
    assert_eq!(
        clean.0,
        [lines(60..64), lines(64..70), lines(71..128), lines(128..140), Extent::new(Lba(8 * 150 + 2), 3)]
    );
}

#[test]
fn rule_12_after_a_crash_no_more_is_destaged_again_than_the_log_still_calls_live() {
    let mut steps = Steps::new(16, quiet());
    for i in 0..40 {
        steps.write_as(i * 8, 8, 1, Durability::Durable);
    }
    // Everything is destaged; the superblock that would say so does not get through.
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Write { .. }));
    steps.drain();
    assert_eq!((steps.core.index.table().counts().dirty_sectors, steps.on_data_disk(0)), (0, 1));
    let live = steps.core.log.ring().head() - steps.core.log.ring().kept() + 1;
    let steps = steps.restart(quiet());
    assert_eq!(
        steps.core.index.table().counts().dirty_sectors,
        40 * 8,
        "the crash came first: all of it once more"
    );
    assert!(steps.core.index.table().counts().dirty_sectors <= live * 32);
    // The next record says what is destaged, and that bounds it.
    let mut steps = steps;
    steps.drain();
    steps.write_as(8, 8, 2, Durability::Durable);
    let steps = steps.restart(quiet());
    assert_eq!(steps.core.index.table().counts().dirty_sectors, 8);
}

#[test]
fn rule_13_with_a_dead_log_writes_go_through_once_the_host_has_recorded_it() {
    let mut steps = Steps::new(8, quiet());
    steps.write_as(0, 8, 1, Durability::Durable);
    steps.write_as(64, 8, 2, Durability::Durable);
    steps.write(128, 8, 3);
    // The log takes no writes any more, and one block of it cannot be read.
    let all: Vec<u64> = (0..steps.core.log.geometry().sectors).collect();
    steps.log().unwritable.extend(all);
    steps.log().unreadable.extend(33..41);
    let flush = steps.flush();
    assert_eq!(steps.reports, [Report::LogFailed]);
    let through = steps.write(192, 8, 4);
    assert_eq!(steps.status(through), None, "not before a later start knows it");
    steps.control(Control::LogFailureRecorded);
    steps.wait(5);
    assert!(steps.is_ok(through) && steps.is_ok(flush), "what was flushed is on the data disk now");
    assert_eq!([64, 128, 192].map(|lba| steps.on_data_disk(lba)), [2, 3, 4]);
    let read = [0, 7, 8, 64, 128, 192].map(|lba| steps.read(lba));
    assert_eq!(read, [None, None, Some(0), Some(2), Some(3), Some(4)], "an error for exactly what is lost");
    assert_eq!(steps.core.status(steps.now).state, LogCacheState::LogFailed);
    let again = steps.write(0, 8, 5);
    assert!(steps.is_ok(again) && steps.read(0) == Some(5), "until it is written again");
}

/// With `always` clients need not flush, and a discard cannot be sent durably.
#[test]
fn rule_13_with_a_dead_log_and_the_promise_always_a_discard_is_flushed_before_its_answer() {
    let mut steps = Steps::new(8, LogCacheConfig { promise: Promise::Always, ..quiet() });
    let all: Vec<u64> = (0..steps.core.log.geometry().sectors).collect();
    steps.log().unwritable.extend(all);
    let _ = steps.write(0, 8, 1);
    steps.control(Control::LogFailureRecorded);
    steps.wait(5);
    steps.hold = Box::new(data_flush);
    let discard = steps.send(Io::Discard { extent: Extent::new(Lba(64), 8) });
    assert_eq!((steps.status(discard), steps.held.len()), (None, 1));
    steps.let_go();
    assert!(steps.is_ok(discard));
    steps.hold = Box::new(data_flush);
    let discard = steps.send(Io::Discard { extent: Extent::new(Lba(64), 8) });
    steps.fail(0, IoError::new(ErrorKind::Medium));
    assert!(steps.status(discard).is_some_and(|status| status.is_err()));
}

#[test]
fn rule_13_a_block_that_could_not_be_read_once_is_not_lost() {
    let mut steps = Steps::new(8, quiet());
    steps.write_as(0, 8, 1, Durability::Durable);
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Read { .. }));
    steps.control(Control::Drain);
    steps.fail(0, IoError::new(ErrorKind::Medium));
    steps.let_go();
    steps.wait(5);
    assert_eq!((steps.on_data_disk(0), steps.core.index.lost.len()), (1, 0));
    assert_eq!(steps.reports, [Report::Drained]);
}

#[test]
fn rule_13_a_lost_block_is_one_error_a_drain_says_so_and_the_rest_is_destaged() {
    let mut steps = Steps::new(8, quiet());
    steps.write_as(0, 3, 1, Durability::Durable);
    steps.write_as(4, 2, 2, Durability::Durable);
    steps.log().unreadable.insert(33);
    steps.drain();
    assert!(matches!(&steps.reports[..], [Report::Failed(Unfinished::LostBlocks(1))]), "{:?}", steps.reports);
    assert_eq!(
        (steps.on_data_disk(4), steps.core.index.lost.len()),
        (2, 1),
        "the other part of the same line is destaged"
    );
    let read = [0, 2, 3, 4].map(|lba| steps.read(lba));
    assert_eq!(read, [None, None, Some(0), Some(2)]);
    let id = steps.write(0, 3, 3);
    assert!(steps.is_ok(id));
    assert_eq!((steps.core.index.lost.len(), steps.read(0)), (0, Some(3)));
}

#[test]
fn rule_13_a_failing_data_disk_leaves_everything_in_the_log() {
    let mut steps = Steps::new(8, quiet());
    steps.write_as(0, 8, 1, Durability::Durable);
    steps.data().unwritable.extend(0..8192);
    steps.drain();
    assert!(steps.core.index.is_dirty() && steps.reports.is_empty());
    assert_eq!(steps.core.statistics.last_error.map(|error| error.kind), Some(ErrorKind::Medium));
    let id = steps.write_as(8, 8, 2, Durability::Durable);
    assert!(steps.is_ok(id) && steps.read(0) == Some(1), "writes go on");
    steps.data().unwritable.clear();
    let mut steps = steps.restart(quiet());
    steps.drain();
    assert_eq!((steps.on_data_disk(0), steps.on_data_disk(8)), (1, 2));
}

/// A log full of lost blocks fails when a write wants space. The same event looks for more to destage: it finds nothing, and nothing is
/// written before the host has recorded the failure.
#[test]
fn rule_13_a_log_that_fails_as_it_is_full_of_lost_blocks_changes_nothing_before_the_record() {
    let mut steps = Steps::new(8, LogCacheConfig { bypass_bytes: 0, ..quiet() });
    let mut last = steps.write_as(0, 8, 1, Durability::Durable);
    let all: Vec<u64> = (32..steps.core.log.geometry().sectors).collect();
    steps.log().unreadable.extend(all);
    for line in 1..200 {
        if !steps.is_ok(last) {
            break;
        }
        last = steps.write_as(line * 8, 8, 1, Durability::Durable);
    }
    assert_eq!(steps.status(last), None, "the log is full");
    while steps.reports.is_empty() {
        steps.wait(1);
    }
    assert_eq!(steps.reports, [Report::LogFailed]);
    assert_eq!(steps.status(last), None, "not before a later start knows it");
    steps.wait(60);
    let reads_or_flushes =
        |(port, kind, _): &(Port, Kind, _)| *port == LOG || matches!(kind, Kind::Read | Kind::Flush);
    assert!(steps.sent.iter().all(reads_or_flushes), "the data disk is as before");
    steps.control(Control::LogFailureRecorded);
    assert!(steps.is_ok(last));
}

/// Space that never comes would be a wait without end: the client is slowed down by destaging, and reads never wait.
#[test]
fn a_log_of_four_segments_takes_many_times_its_size() {
    let mut steps = Steps::new(4, LogCacheConfig { high_mark: 50, low_mark: 5, ..quiet() });
    for i in 0..400 {
        let id = steps.write(i * 16, 8, (i % 250) as u8 + 1);
        for _ in 0..3 {
            if steps.status(id).is_none() {
                steps.wait(1);
            }
        }
        assert!(steps.is_ok(id), "write {i} is answered");
        assert_eq!(steps.read(i * 16 / 2 / 16 * 16), Some((i / 2 % 250) as u8 + 1));
    }
}

/// The speed of the data disk says how long an answer is held back, and the disk may become faster meanwhile.
#[test]
fn a_data_disk_that_was_slow_holds_nobody_back_once_it_is_fast() {
    let mut steps = Steps::new(8, LogCacheConfig { high_mark: 50, low_mark: 5, ..quiet() });
    steps.hold = Box::new(|port, _| port == DATA);
    let mut ids = Vec::new();
    for i in 0..100 {
        ids.push(steps.write(i * 16, 8, 1));
        if !steps.held.is_empty() {
            steps.now += crate::Nanos::from_secs(100);
            steps.carry_out(0);
            steps.settle();
        }
    }
    let waiting = |steps: &Steps| ids.iter().filter(|id| steps.status(**id).is_none()).count();
    assert!(waiting(&steps) > 0, "the log is full");
    steps.let_go();
    // One second for the answers that were held back by then, and one for those of writes that had waited for space.
    steps.wait(2);
    assert_eq!(waiting(&steps), 0);
}

/// A data disk that hangs: writes go on at the speed of the log while it has space, reads of what is cached are served, and all is
/// destaged when the disk comes back.
#[test]
fn a_hung_data_disk_stops_nobody_while_the_log_has_space() {
    let mut steps = Steps::new(8, LogCacheConfig { high_mark: 10, low_mark: 5, bypass_bytes: 0, ..quiet() });
    steps.hold = Box::new(|port, _| port == DATA);
    for i in 0..12 {
        let id = steps.write_as(i * 8, 8, 1, Durability::Durable);
        steps.wait(60);
        assert!(steps.is_ok(id) && steps.read(i * 8) == Some(1));
    }
    steps.let_go();
    steps.drain();
    assert_eq!((steps.on_data_disk(0), steps.on_data_disk(88)), (1, 1));
}

/// Only sequence numbers order anything: a clock that begins again, far back or far ahead, changes nothing.
#[test]
fn clocks_order_nothing() {
    let mut steps = Steps::new(8, quiet());
    for (round, now) in [1 << 62, 0, 1 << 40].into_iter().enumerate() {
        steps.now = crate::Nanos(now);
        let tag = round as u8 + 1;
        let id = steps.write_as(0, 8, tag, Durability::Durable);
        assert!(steps.is_ok(id));
        steps = steps.restart(quiet());
        assert_eq!(steps.read(0), Some(tag));
    }
}

/// Sequence numbers end at three quarters of 64 bits, far beyond any log; near that end it is served, and then refused.
#[test]
fn the_last_sequence_numbers_are_served_and_then_the_log_is_refused() {
    use super::testing::{Log, Ram};
    let limit = u64::MAX / 4 * 3;
    let mut log = Log::new(8, 512);
    let superblock = &mut log.superblock;
    (superblock.tail_seq, superblock.durable_seq, superblock.epoch_start_seq) =
        (limit - 20, limit - 20, limit - 20);
    superblock.generation += 1;
    log.store_superblock();
    let mut steps = Steps::start(Disks(vec![log.device, Ram::new(4096)]), quiet()).unwrap();
    for i in 0..10 {
        let id = steps.write_as(i * 8, 8, 1, Durability::Durable);
        assert!(steps.is_ok(id));
    }
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.read(72), Some(1));
    for i in 0..20 {
        steps.write_as(i * 8, 8, 2, Durability::Durable);
    }
    steps.control(Control::Stop);
    let error = Steps::start(steps.disks, quiet()).err().expect("refused");
    assert!(matches!(error, LogError::NoSuperblock(..)), "{error}");
}

/// A superblock may be anybody's: whatever its fields say, with a checksum that fits, the cache starts or refuses, in bounded
/// memory and time, and never panics.
#[test]
fn hostile_superblocks_with_good_checksums_are_survived() {
    use super::format::{SUPERBLOCK_BYTES, SUPERBLOCK_SECTORS};
    use rand::{Rng, SeedableRng};
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    let mut steps = Steps::new(8, quiet());
    for i in 0..20 {
        steps.write_as(i * 16, 8, 1, Durability::Durable);
    }
    let (mut started, mut refused) = (0, 0);
    for round in 0..600 {
        let mut disks = steps.disks.clone();
        for copy in SUPERBLOCK_SECTORS {
            let at = copy.0 as usize * 512;
            let block = &mut disks.0[0].bytes[at..at + SUPERBLOCK_BYTES];
            // The fields, and a little of the fingerprint.
            for _ in 0..random.random_range(1..4) {
                let byte = random.random_range(10..220);
                match round % 3 {
                    0 => block[byte] ^= 1 << random.random_range(0..8),
                    1 => block[byte] = random.random(),
                    _ => block[byte..byte + 4].fill([0, 0xff][random.random_range(0..2)]),
                }
            }
            block[12..16].fill(0);
            let crc = crc32c::crc32c(block);
            block[12..16].copy_from_slice(&crc.to_le_bytes());
        }
        match super::activate::activate(quiet(), None, 1, &mut disks) {
            Ok(core) => {
                core.check();
                started += 1;
            }
            Err(_) => refused += 1,
        }
    }
    assert!(started > 20 && refused > 100, "{started} {refused}");
}

/// A range of zeroes is one entry of the log, and as much work and as much at risk as data of its size.
#[test]
fn zeroes_and_discards_count_as_dirty_until_they_are_written_back() {
    let mut steps = Steps::new(8, quiet());
    let dirty = |steps: &Steps| steps.core.status(steps.now).dirty_bytes / 512;
    let zero = |start, sectors| Io::WriteZeroes {
        extent: Extent::new(Lba(start), sectors),
        unmap: false,
        durability: Durability::Durable,
    };
    steps.send(zero(1000, 3000));
    assert_eq!(dirty(&steps), 3000);
    steps.send(zero(900, 300));
    assert_eq!(dirty(&steps), 3100, "the newer one has cut the older one");
    steps.write_as(8, 8, 1, Durability::Durable);
    steps.send(Io::Discard { extent: Extent::new(Lba(5000), 16) });
    assert_eq!(dirty(&steps), 3124);
    steps.control(Control::Stop);
    let mut steps = steps.restart(quiet());
    assert_eq!(dirty(&steps), 3124);
    steps.drain();
    assert_eq!(dirty(&steps), 0);
}

/// Destaging does not move the tail here: the first write has to.
#[test]
fn a_write_over_several_segments_gets_the_room_of_what_is_clean_at_the_start() {
    use super::format::EntryKind;
    use super::testing::{Log, Part, Ram};
    let mut log = Log::new(4, 512);
    for _ in 0..2 {
        log.append(&[Part::Data(0, 8, 1), Part::Data(8, 8, 1), Part::Data(16, 8, 1), Part::Data(24, 7, 1)]);
    }
    log.append(&[Part::Range(EntryKind::Invalidate, 0, 32)]);
    let config = LogCacheConfig { bypass_bytes: 0, ..quiet() };
    let mut steps = Steps::start(Disks(vec![log.device, Ram::new(4096)]), config).unwrap();
    assert!(!steps.core.index.is_dirty() && steps.core.log.ring().free() == 1);
    let id = steps.write(0, 40, 2);
    steps.wait(3);
    assert!(steps.is_ok(id), "it waits for ever");
}

/// The head has left a free place before the last record, which ends with its segment, and everything is destaged.
#[test]
fn rule_02_no_record_goes_before_the_sector_where_a_walk_begins() {
    let mut steps = Steps::new(4, quiet());
    let end = steps.core.log.superblock().segment_start(1);
    steps.write(0, 8, 1);
    steps.flush();
    // A header and eight sectors.
    steps.core.log.move_head(end - 9);
    steps.write(8, 8, 2);
    steps.drain();
    assert_eq!(steps.core.log.superblock().tail_sector, end);
    steps.write(16, 8, 3);
    let flush = steps.flush();
    assert!(steps.is_ok(flush));
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.read(16), Some(3));
}
