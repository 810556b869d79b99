//! Writes that go through: what the data disk has when they are answered, what a crash leaves of the log, and changes of the mode.

use super::*;
use crate::layer::{Control, Durability, ErrorKind, Io, IoError, LayerSettings};
use crate::log_cache::env::{DATA, LOG};
use crate::log_cache::testing_steps::{Kind as Sent, Steps, quiet};
use crate::{LINE_BYTES, Lba};

const AT: u64 = 2176;

fn through() -> LogCacheConfig {
    LogCacheConfig { writes: WriteRoute::Through, ..quiet() }
}

/// A cache that writes through.
fn start() -> Steps {
    let mut steps = Steps::new(40, through());
    steps.wait(1);
    assert_eq!(steps.reports, [Report::WritesThrough]);
    steps
}

fn set(steps: &mut Steps, config: LogCacheConfig) {
    steps.control(Control::Settings(Box::new(LayerSettings::LogCache(config))));
}

fn state(steps: &Steps) -> WritesState {
    steps.core.log.through().state()
}

/// Reads a line, and counts the reads of the data disk.
fn read(steps: &mut Steps, lba: u64) -> (Option<u8>, usize) {
    steps.sent.clear();
    let id = steps.send(Io::Read { at: Lba(lba), buf: Buf::zeroed(LINE_BYTES as usize) });
    let reads = steps.sent.iter().filter(|sent| sent.0 == DATA && sent.1 == Sent::Read).count();
    let result = steps.replies.remove(&id).expect("reads are not held back");
    (result.status.ok().map(|()| result.buf.bytes()[511]), reads)
}

#[test]
fn rule_16_a_write_is_answered_when_the_data_disk_has_it_and_read_from_the_log() {
    let mut steps = start();
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
    let id = steps.write(AT, 8, 1);
    assert!(!steps.is_ok(id), "the data disk lacks it");
    steps.let_go();
    assert!(steps.is_ok(id));
    assert_eq!((steps.on_data_disk(AT), steps.core.index.is_dirty()), (1, false));
    assert_eq!(read(&mut steps, AT), (Some(1), 0), "there is a copy");
    // A part of a line, and a large write, leave no copy of their lines.
    steps.write(AT + 2, 1, 2);
    assert_eq!(read(&mut steps, AT), (Some(1), 1));
    steps.write(AT, 8, 3);
    steps.write(AT, 128, 4);
    assert_eq!(read(&mut steps, AT), (Some(4), 1));
}

#[test]
fn rule_16_no_write_passes_the_log_before_both_superblocks_say_that_it_does_not_count() {
    let mut steps = Steps::new(40, quiet());
    steps.write(AT, 8, 1);
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Write { at: Lba(0..32), .. }));
    set(&mut steps, through());
    steps.wait(5);
    let id = steps.write(AT, 8, 2);
    for marks in 0..2 {
        assert_eq!((steps.held.len(), state(&steps)), (1, WritesState::Turning), "{marks}");
        assert!(!steps.is_ok(id) && steps.on_data_disk(AT) == 1);
        assert_eq!(steps.core.log.superblock().kept_seq, NO_COPIES);
        steps.carry_out(0);
        steps.settle();
    }
    assert!(steps.is_ok(id) && steps.on_data_disk(AT) == 2);
    assert_eq!(
        (state(&steps), steps.reports.as_slice()),
        (WritesState::Through, [Report::WritesThrough].as_slice())
    );
}

#[test]
fn rule_16_after_a_crash_no_copy_and_no_record_is_believed() {
    let mut steps = Steps::new(40, quiet());
    steps.write(AT, 8, 1);
    set(&mut steps, through());
    steps.wait(5);
    for tag in 2..5 {
        steps.write(AT, 8, tag);
        // A superblock that is written now would name the first record, which is older than the data disk.
        assert!(steps.core.view().oldest_live_seq() >= steps.core.log.superblock().live_seq);
        steps.wait(1);
    }
    // A large write leaves the last copy in the log.
    steps.write(AT, 128, 5);
    for config in [quiet(), through()] {
        let mut steps = Steps::start(steps.disks.clone(), config).unwrap();
        assert!(!steps.core.index.is_dirty());
        assert_eq!(read(&mut steps, AT), (Some(5), 1));
    }
}

#[test]
fn rule_16_a_failed_flush_of_the_data_disk_voids_all_copies() {
    let mut steps = start();
    let id = steps.write(AT, 8, 1);
    assert!(steps.is_ok(id));
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Flush));
    let flush = steps.flush();
    steps.fail(0, IoError::new(ErrorKind::Medium));
    steps.hold = Box::new(|_, _| false);
    assert!(steps.status(flush).unwrap().is_err());
    assert_eq!(read(&mut steps, AT).1, 1, "the disk may have lost it");
}

#[test]
fn rule_16_a_write_that_fails_leaves_no_copy() {
    let mut steps = start();
    steps.write(AT, 8, 1);
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
    let id = steps.write(AT, 8, 2);
    assert_eq!(read(&mut steps, AT).1, 1, "neither the old copy nor a new one is read");
    steps.fail(0, IoError::new(ErrorKind::Medium));
    assert!(steps.status(id).unwrap().is_err());
    assert_eq!(read(&mut steps, AT), (Some(1), 1));
}

#[test]
fn copies_are_read_again_after_a_clean_stop() {
    let mut steps = start();
    for tag in 1..4 {
        steps.write(AT, 8, tag);
        steps.write(AT + 80, 8, tag);
    }
    steps.write(AT + 80, 1, 9);
    steps.control(Control::Stop);
    assert!(steps.reports.contains(&Report::Stopped));
    assert!(steps.core.log.superblock().fingerprint.lines.iter().all(|line| line.sum.is_some()));
    let mut steps = steps.restart(through());
    assert_eq!(read(&mut steps, AT), (Some(3), 0));
    assert_eq!(read(&mut steps, AT + 80), (Some(9), 1), "an invalidate record says that this one is old");
}

#[test]
fn the_mode_changes_beside_clients_and_back() {
    let mut steps = Steps::new(40, quiet());
    steps.write(AT, 8, 1);
    steps.write(AT + 8, 8, 1);
    assert!(steps.core.index.is_dirty());
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
    set(&mut steps, through());
    assert_eq!(state(&steps), WritesState::Turning);
    let id = steps.write(AT, 8, 2);
    steps.let_go();
    steps.wait(5);
    assert!(steps.is_ok(id) && state(&steps) == WritesState::Through);
    assert_eq!((steps.on_data_disk(AT), steps.on_data_disk(AT + 8)), (2, 1));
    set(&mut steps, quiet());
    steps.write(AT, 8, 3);
    assert_eq!((state(&steps), steps.on_data_disk(AT)), (WritesState::Back, 2));
    steps.flush();
    steps.drain();
    assert_eq!(steps.on_data_disk(AT), 3);
    assert_ne!(steps.core.log.superblock().kept_seq, NO_COPIES);
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.read(AT), Some(3));
}

/// No event comes after the change.
#[test]
fn a_log_at_rest_is_emptied_at_once() {
    let mut steps = Steps::new(40, quiet());
    steps.write(AT, 8, 1);
    steps.flush();
    steps.wait(5);
    assert!(steps.core.index.is_dirty());
    set(&mut steps, through());
    assert_eq!((state(&steps), steps.on_data_disk(AT)), (WritesState::Through, 1));
}

/// Writes that come before all is destaged pass the log where they may, and wait at the end.
#[test]
fn a_log_that_is_never_quiet_is_emptied_all_the_same() {
    let mut steps = Steps::new(40, quiet());
    for line in 0..64 {
        steps.write(AT + 8 * line, 8, 1);
    }
    set(&mut steps, through());
    let ids: Vec<_> = (0..200).map(|round| steps.write(AT + 8 * (round % 64), 8, 2)).collect();
    steps.wait(5);
    assert_eq!(state(&steps), WritesState::Through);
    assert!(ids.into_iter().all(|id| steps.is_ok(id)));
}

#[test]
fn writes_do_not_wait_for_a_data_disk_that_fails() {
    let mut steps = Steps::new(40, quiet());
    steps.write(AT, 8, 1);
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
    set(&mut steps, through());
    for _ in 0..8 {
        while !steps.held.is_empty() {
            steps.fail(0, IoError::new(ErrorKind::Medium));
        }
        steps.wait(70);
    }
    let id = steps.write(AT, 8, 2);
    assert_eq!((state(&steps), steps.is_ok(id)), (WritesState::Turning, true), "the log takes it");
}

#[test]
fn always_is_durable_on_the_data_disk_and_ordered_is_refused() {
    let mut steps = Steps::new(40, LogCacheConfig { promise: Promise::Always, ..through() });
    steps.wait(1);
    steps.sent.clear();
    steps.write(AT, 8, 1);
    assert!(steps.sent.iter().any(|sent| sent.0 == DATA && sent.1 == Sent::WriteThrough));
    let disks = steps.disks;
    for config in [
        LogCacheConfig { promise: Promise::Ordered, ..through() },
        LogCacheConfig { ordered_destage: true, ..through() },
    ] {
        let error = Steps::start(disks.clone(), config).err().unwrap().to_string();
        assert!(error.contains("exclude each other"), "{error}");
    }
    let error = Steps::over(2, 40, through()).err().unwrap().to_string();
    assert!(error.contains("one data disk"), "{error}");
    let mut steps = Steps::over(2, 40, quiet()).unwrap();
    set(&mut steps, through());
    assert_eq!(state(&steps), WritesState::Back, "a running one goes on as before");
}

/// A line of the fingerprint may be written past the log. After a crash it is not compared.
#[test]
fn rule_16_covered_lines_that_were_written_through_keep_no_start_from_going_on() {
    let mut steps = start();
    steps.write(0, 8, 7);
    assert_eq!(steps.on_data_disk(0), 7);
    let disks = steps.disks.clone();
    assert_eq!(Steps::start(disks, quiet()).unwrap().read(0), Some(7));
    // Back again, the log has data, and the superblock says what it knows.
    set(&mut steps, quiet());
    steps.write_as(AT, 8, 2, Durability::Durable);
    steps.wait(5);
    let first = steps.core.log.superblock().fingerprint.lines[0];
    assert_eq!((first.line, first.sum), (0, None));
    assert_eq!(steps.restart(quiet()).read(0), Some(7));
}
