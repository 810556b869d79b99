//! No event's work grows with the log: passes over the lookup table are done in parts ([`Steps`] counts the slots of each event), and a pass
//! that found nothing is not repeated.

use super::LogCacheConfig;
use super::env::LOG;
use super::testing_steps::{Disks, Steps, quiet};
use crate::layer::{Control, Durability, Report};
use crate::{LINE_SECTORS, Nanos};

/// A dead log on a disk that spins, so that a batch is small.
fn dead_log() -> Steps {
    let mut disks = Steps::new(16, quiet()).disks;
    disks.0[LOG.0].rotational = true;
    let config = LogCacheConfig { destage_memory: 4 << 12, ..quiet() };
    Steps::start(Disks(disks.0), config).unwrap()
}

fn fail_log(steps: &mut Steps) {
    let all: Vec<u64> = (0..steps.core.log.geometry().sectors).collect();
    steps.log().unwritable.extend(&all);
    steps.log().unreadable.extend(all);
}

/// More of the log is lost than a batch takes. (The same segments were chosen again for each batch. As nothing in them could be destaged,
/// all counted as destaged: the writes that only RAM had were dropped, and their flush was answered.)
#[test]
fn rule_13_with_a_dead_log_lost_blocks_do_not_hide_what_only_ram_has() {
    let mut steps = dead_log();
    for line in 0..24 {
        steps.write_as(line * 16, LINE_SECTORS, 1, Durability::Durable);
    }
    steps.write(1000, LINE_SECTORS, 2);
    fail_log(&mut steps);
    let first_segment = 32..64;
    steps.log().unreadable.retain(|sector| !first_segment.contains(sector));
    let flush = steps.flush();
    steps.control(Control::LogFailureRecorded);
    steps.wait(300);
    assert_eq!(steps.on_data_disk(1000), 2);
    assert!(steps.status(flush).is_some());
    assert_eq!([0, 16, 32].map(|lba| steps.on_data_disk(lba)), [1; 3], "the oldest can be read");
    assert_eq!(steps.core.index.lost.len(), 24 - 3);
    steps.control(Control::Stop);
    assert!(matches!(steps.reports.last(), Some(Report::Failed(_))), "{:?}", steps.reports);
}

/// Each batch was tried three times, in three seconds: a client that waited for its flush waited for all of the log.
#[test]
fn rule_13_a_dead_log_holds_up_a_flush_for_seconds_however_much_is_in_it() {
    let mut steps = dead_log();
    for line in 0..48 {
        steps.write_as(line * 16, LINE_SECTORS, 1, Durability::Durable);
    }
    steps.write(1000, LINE_SECTORS, 2);
    fail_log(&mut steps);
    let flush = steps.flush();
    steps.control(Control::LogFailureRecorded);
    steps.wait(6);
    assert!(steps.status(flush).is_some(), "six seconds are enough for 13 batches");
    assert_eq!(steps.on_data_disk(1000), 2);
    // A drain tries all again, and ends.
    steps.control(Control::Drain);
    steps.wait(6);
    assert!(matches!(steps.reports.last(), Some(Report::Failed(_))), "{:?}", steps.reports);
}

/// Every request and every completion looked through the whole table again.
#[test]
fn a_choice_that_found_nothing_is_not_repeated_before_something_changes() {
    let mut steps = dead_log();
    steps.write_as(0, LINE_SECTORS, 1, Durability::Durable);
    steps.write(64, LINE_SECTORS, 2);
    fail_log(&mut steps);
    steps.flush();
    steps.control(Control::LogFailureRecorded);
    steps.wait(60);
    assert_eq!(steps.core.index.lost.len(), 1);
    let before = steps.core.index.table().visited();
    for _ in 0..1000 {
        assert_eq!(steps.read(512), Some(0));
        steps.write(1024, LINE_SECTORS, 3);
    }
    assert_eq!(steps.core.index.table().visited(), before);
    assert_eq!(steps.core.next_deadline(), None);
    // The lost block is written again: nothing is left.
    steps.write(0, LINE_SECTORS, 4);
    assert_eq!((steps.read(0), steps.core.index.is_dirty()), (Some(4), false));
}

/// Zeroing takes as long as it takes; a sector of data is as fast as before. (An hour of zeroing and one block made writers wait a second for
/// each write above the high mark.)
#[test]
fn the_time_for_a_sector_is_measured_without_discards_and_zeroes() {
    let mut steps = Steps::new(16, quiet());
    let before = steps.core.destagers[0].nanos_per_sector();
    steps.hold = Box::new(|_, io| matches!(io, crate::Io::WriteZeroes { .. }));
    let extent = crate::Extent::new(crate::Lba(512), 64);
    steps.send(crate::Io::WriteZeroes { extent, unmap: false, durability: Durability::Durable });
    steps.write_as(0, LINE_SECTORS, 1, Durability::Durable);
    steps.control(Control::Drain);
    assert_eq!(steps.held.len(), 1, "the data disk is zeroing");
    steps.now += Nanos::from_secs(3600);
    steps.let_go();
    steps.wait(5);
    assert_eq!(steps.on_data_disk(0), 1);
    assert!(steps.core.destagers[0].nanos_per_sector() <= before);
}
