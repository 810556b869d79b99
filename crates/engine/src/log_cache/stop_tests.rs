//! Stops and drains that meet other work: none of them ends before it, and none waits for ever.

use super::LogCacheConfig;
use super::env::{DATA, LOG};
use super::testing_steps::{Kind, Steps, quiet};
use crate::layer::{Control, Durability, Io, Report};
use crate::{Buf, Extent, Lba, LogCacheState};

/// The log fails with a write that is only in RAM, and the data disk refuses that one write once. (A stop set no deadline for the next try:
/// the server waited until its limit for stopping, and then the write was gone.)
#[test]
fn rule_13_a_stop_with_a_dead_log_writes_back_what_could_not_be_written_at_first() {
    let mut steps = Steps::new(8, quiet());
    steps.write(128, 8, 3);
    let all: Vec<u64> = (0..steps.core.log.geometry().sectors).collect();
    steps.log().unwritable.extend(all);
    steps.data().unwritable.insert(130);
    steps.flush();
    assert_eq!(steps.reports, [Report::LogFailed]);
    steps.control(Control::LogFailureRecorded);
    assert_eq!(steps.on_data_disk(128), 0, "the data disk has refused it");
    steps.control(Control::Stop);
    steps.data().unwritable.clear();
    steps.wait(5);
    assert_eq!(steps.reports.last(), Some(&Report::Stopped));
    assert_eq!([128, 135].map(|lba| steps.on_data_disk(lba)), [3, 3]);
    assert_eq!(steps.core.status(steps.now).state, LogCacheState::LogFailed);
}

/// A start begins its epoch with a record, if need be without an entry, and the power goes: the next start finds nothing to destage, and the
/// tail before that record. (Only a write moved it: the drain was never answered. The crash explorer found it with a new seed.)
#[test]
fn a_drain_ends_where_a_start_finds_nothing_to_destage() {
    use super::testing::{Log, Ram};
    for ordered_destage in [false, true] {
        let mut log = Log::new(6, 512);
        log.append(&[]);
        let data = Ram::new(log.superblock.data_sectors);
        let config = LogCacheConfig { ordered_destage, ..quiet() };
        let mut steps = Steps::start(super::testing_steps::Disks(vec![log.device, data]), config).unwrap();
        assert!(!steps.core.index.is_dirty());
        steps.drain();
        assert_eq!(steps.reports, [Report::Drained], "ordered {ordered_destage}");
    }
}

/// A write had a buffer opened, and then had to wait for its disk's share. (The drain was answered with the next write only. The crash
/// explorer found work without a deadline.)
#[test]
fn a_drain_and_a_stop_end_beside_an_open_buffer_without_a_record() {
    let mut steps = Steps::new(8, quiet());
    steps.write_as(128, 8, 3, Durability::Durable);
    assert!(steps.core.log.open_buffer(steps.now, 1, 4096, 0, &mut steps.core.statistics));
    steps.drain();
    assert_eq!(steps.reports, [Report::Drained]);
    assert_eq!(steps.on_data_disk(128), 3);
    steps.write_as(64, 8, 4, Durability::Durable);
    assert!(steps.core.log.open_buffer(steps.now, 1, 4096, 0, &mut steps.core.statistics));
    steps.control(Control::Stop);
    steps.wait(5);
    assert_eq!(steps.reports.last(), Some(&Report::Stopped));
}

/// A write is pending, as a client still reads the segment that it needs. (The drain was reported as done.)
#[test]
fn a_drain_ends_when_the_writes_that_wait_are_destaged_too() {
    let mut steps = Steps::new(4, quiet());
    steps.write_as(0, 8, 1, Durability::Durable);
    // Destaging reads more than one block at a time.
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Read { buf, .. } if buf.len() == 4096));
    steps.send(Io::Read { at: Lba(0), buf: Buf::zeroed(4096) });
    assert_eq!(steps.held.len(), 1, "the first segment is being read");
    let mut last = steps.write(64, 8, 1);
    for line in 2..100 {
        if steps.core.queue.has_pending() {
            break;
        }
        last = steps.write(line * 64, 8, 1);
    }
    assert!(steps.core.queue.has_pending());
    steps.drain();
    assert_eq!(
        (steps.status(last), steps.reports.len()),
        (None, 0),
        "the write waits, and so does the drain"
    );
    steps.let_go();
    steps.wait(5);
    assert!(steps.is_ok(last));
    assert_eq!(steps.reports, [Report::Drained]);
    assert!(!steps.core.index.is_dirty());
}

/// A request over several records is half in the log. (It was refused, and the records behind it, which call blocks clean, counted as
/// a part of it: the next start dropped them, and destaged the blocks again.)
#[test]
fn rule_12_a_stop_lets_a_request_end_that_is_half_in_the_log() {
    let mut steps = Steps::new(8, LogCacheConfig { segment_buffers: 2, ..quiet() });
    steps.write(0, 8, 1);
    steps.drain();
    // The head's segment holds something dirty, so the clean block before it is in what a start reads.
    steps.write(64, 8, 2);
    steps.write(0, 8, 3);
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Write { .. }));
    let split = steps.write(800, 96, 4);
    let behind = steps.write(1600, 8, 5);
    assert!(steps.core.log.chain().is_some(), "the request is half in the log");
    steps.control(Control::Stop);
    assert_eq!(steps.status(split), None);
    assert!(
        steps.status(behind).is_some_and(|status| status.is_err()),
        "the request behind it has not begun"
    );
    steps.let_go();
    steps.wait(5);
    assert!(steps.is_ok(split));
    assert_eq!(steps.reports.last(), Some(&Report::Stopped));
    let dirty = steps.core.index.table().counts().dirty_sectors;
    assert_eq!(dirty, 8 + 8 + 96);
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.core.index.table().counts().dirty_sectors, dirty);
    steps.drain();
    let written = |steps: &Steps| {
        let writes = steps.sent.iter().filter(|(port, kind, _)| *port == DATA && *kind == Kind::Write);
        writes.filter_map(|sent| sent.2).map(|extent: Extent| extent.sectors).sum::<u64>()
    };
    assert_eq!(written(&steps), dirty, "nothing is destaged again");
    assert_eq!([0, 64, 800, 895].map(|lba| steps.on_data_disk(lba)), [3, 2, 4, 4]);
}
