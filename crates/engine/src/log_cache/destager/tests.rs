//! Tests which segments a batch takes, and how the log is read for it.

use super::super::env::{DATA, LOG};
use super::super::testing_steps::{Kind, Steps, ZEROES, quiet};
use super::super::{HowPolicy, LogCacheConfig, WhatPolicy, WhenPolicy};
use crate::{Control, Durability, Extent, Io, LINE_BYTES, Lba, Port};

/// Batches of one segment, the newest first; a log that spins, so that no more is taken at a time.
fn newest_first(low_mark: u8) -> LogCacheConfig {
    LogCacheConfig {
        what: WhatPolicy::LastWriteFirst,
        how: HowPolicy::AsItComes,
        low_mark,
        destage_memory: 3 * LINE_BYTES as usize,
        destage_depth: 1,
        ..quiet()
    }
}

fn spinning(segments: u32, config: LogCacheConfig) -> Steps {
    let mut disks = Steps::new(segments, quiet()).disks;
    disks.0[LOG.0].rotational = true;
    Steps::start(disks, config).unwrap()
}

/// Blocks one behind the other, three to a segment, until so many segments have been begun.
fn fill(steps: &mut Steps, segments: u64) -> u64 {
    let mut lba = 0;
    while steps.core.log.ring().live() < segments {
        let id = steps.write_as(lba, 8, 1, Durability::Durable);
        assert!(steps.is_ok(id));
        lba += 8;
    }
    lba - 8
}

fn sent(steps: &Steps, port: Port, kind: Kind) -> Vec<u64> {
    let found = steps.sent.iter().filter(|sent| (sent.0, sent.1) == (port, kind));
    found.filter_map(|sent| sent.2.map(|extent| extent.start.0)).collect()
}

#[test]
fn from_the_low_mark_on_the_oldest_are_destaged_first() {
    for (segments, newest_goes_first) in [(4, true), (6, false)] {
        let mut steps = spinning(9, newest_first(50));
        let newest = fill(&mut steps, segments);
        steps.drain();
        let written = sent(&steps, DATA, Kind::Write);
        assert_eq!(
            written.first(),
            Some(if newest_goes_first { &newest } else { &0 }),
            "{segments} segments"
        );
        assert!(!steps.core.index.is_dirty());
    }
}

#[test]
fn who_waits_for_space_waits_for_the_tail_alone() {
    let mut steps = spinning(9, newest_first(98));
    let newest = fill(&mut steps, 8);
    let mut lba = newest;
    while sent(&steps, DATA, Kind::Write).is_empty() {
        lba += 8;
        let id = steps.write_as(lba, 8, 1, Durability::Durable);
        assert!(steps.is_ok(id), "it did not have to wait for more");
    }
    let written = sent(&steps, DATA, Kind::Write);
    assert_eq!(written, [0], "three neighbours of the oldest segment, in one write");
}

/// Writes that are not aligned to lines leave more pieces in the log than lines. (The first version took as many as a batch has room for, in
/// the order of the table: of each segment some were left, always the same ones, and nothing was free before the whole log was destaged.)
#[test]
fn a_batch_of_many_small_pieces_takes_whole_segments() {
    let mut steps = spinning(9, LogCacheConfig { destage_memory: 8 * LINE_BYTES as usize, ..quiet() });
    let room = steps.core.destagers[0].room.items_max as u64;
    let mut lines = 0;
    while steps.core.log.ring().live() < 5 {
        steps.write(lines * 7 % 509 * 8, 1, 1);
        lines += 1;
    }
    steps.flush();
    assert!(lines / 4 <= room && 2 * (lines / 4) > room, "a segment has room in a batch, two have not");
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Flush));
    steps.control(Control::Drain);
    for batch in 1..=4 {
        let flush = steps.held.iter().position(|held| held.port == DATA).expect("the end of a batch");
        steps.carry_out(flush);
        assert!(steps.core.log.ring().tail() >= batch, "batch {batch} has freed no segment");
        steps.settle();
    }
}

#[test]
fn a_log_that_spins_is_read_through_what_is_not_needed() {
    for (spins, reads) in [(true, 1), (false, 2)] {
        let mut steps = if spins { spinning(9, quiet()) } else { Steps::new(9, quiet()) };
        fill(&mut steps, 2);
        // Of the three blocks in the first segment the middle one is written again, in the second.
        steps.write_as(8, 8, 2, Durability::Durable);
        steps.sent.clear();
        steps.drain();
        let start = |segment| steps.core.log.superblock().segment_start(segment);
        let first = start(0)..start(1);
        let read = sent(&steps, LOG, Kind::Read).into_iter().filter(|at| first.contains(at)).count();
        assert_eq!(
            (read, steps.on_data_disk(0), steps.on_data_disk(8), steps.on_data_disk(16)),
            (reads, 1, 2, 1)
        );
    }
}

#[test]
fn between_marks_the_data_disk_can_sleep_until_the_log_has_reached_the_high_one() {
    let mut steps = Steps::new(
        9,
        LogCacheConfig { when: WhenPolicy::HighLow, bypass_bytes: 0, ..LogCacheConfig::default() },
    );
    let newest = fill(&mut steps, 6);
    let flushed = steps.flush();
    let erased = steps.send(Io::Discard { extent: Extent::new(Lba(0), 8) });
    steps.wait(3600);
    assert!(steps.is_ok(flushed) && steps.is_ok(erased));
    assert_eq!((steps.read(0), steps.read(newest)), (Some(ZEROES), Some(1)));
    assert!(steps.sent.iter().all(|(port, ..)| *port == LOG), "{:?}", steps.sent);
    let mut lba = newest;
    while sent(&steps, DATA, Kind::Write).is_empty() {
        lba += 8;
        let id = steps.write_as(lba, 8, 1, Durability::Durable);
        assert!(steps.is_ok(id));
        steps.wait(1);
    }
    assert!(steps.core.log.ring().utilisation() <= 0.5, "down to the low mark");
    assert_eq!(steps.on_data_disk(8), 1);
}

/// A discard that is being destaged, and of which a part is discarded again meanwhile: the part is zeroes on the data disk, although the
/// record that says so is the newer one, which a crash may take. (The first version went by what was left of the older range, and the
/// next start took the data disk for another one.)
#[test]
fn the_fingerprint_knows_nothing_of_what_was_destaged_whatever_came_over_it() {
    for over in [Extent::new(Lba(8), 16), Extent::new(Lba(0), 16)] {
        let mut steps = Steps::new(9, quiet());
        steps.send(Io::Discard { extent: Extent::new(Lba(0), 16) });
        steps.flush();
        steps.hold = Box::new(|port, io| match port {
            LOG => !matches!(io, Io::Read { .. }),
            _ => matches!(io, Io::Discard { .. }),
        });
        steps.control(Control::Drain);
        let erase = steps.held.iter().position(|held| held.port == DATA).expect("it is being destaged");
        steps.send(Io::Discard { extent: over });
        steps.carry_out(erase);
        steps.settle();
        assert_eq!((steps.on_data_disk(0), steps.on_data_disk(8)), (ZEROES, ZEROES));
        let wrong = steps.core.data[0].fingerprint.differing(&steps.disks.0[DATA.0].bytes);
        assert_eq!(wrong, [0; 0], "{over}");
    }
}
