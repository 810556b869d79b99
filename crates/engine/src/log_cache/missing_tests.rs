//! Tests of a log with several data disks of which one is missing at a start, or does not answer at the end.

use super::LogCacheConfig;
use super::env::{DATA, data_port};
use super::error::{LogError, OtherData};
use super::fingerprint::Fingerprint;
use super::offline::read_superblock;
use super::testing::Ram;
use super::testing_steps::{Disks, Kind, Steps, kind, quiet};
use crate::layer::{Control, DiskChangeError, DiskCommand, Io, IoError, Report, Unfinished};
use crate::{ErrorKind, Extent, LINE_SECTORS, Lba, Nanos};

/// A sector that the fingerprints do not cover.
const MIDDLE: u64 = 2048 + 512;

fn without(disk: usize) -> LogCacheConfig {
    LogCacheConfig { missing: 1 << disk, bypass_bytes: 0, ..quiet() }
}

/// Three disks, and a log with a line for each of them.
fn written() -> Steps {
    let mut steps = Steps::over(3, 16, quiet()).expect("it starts");
    (0..3).for_each(|disk| _ = steps.on(disk).write(MIDDLE, LINE_SECTORS, 10 + disk as u8));
    assert!((0..3).all(|disk| steps.on(disk).read(MIDDLE) == Some(10 + disk as u8)));
    steps.on(0).flush();
    steps
}

/// Starts without a disk, and with one in its place that can do nothing. Returns the disk that is missing, too.
fn start_without(mut disks: Disks, disk: usize) -> (Steps, Ram) {
    let mut dead = disks.0[DATA.0 + disk].clone();
    dead.operations_left = 0;
    let away = std::mem::replace(&mut disks.0[DATA.0 + disk], dead);
    (Steps::start(disks, without(disk)).expect("it starts without the disk"), away)
}

fn come_back(steps: Steps, disk: usize, away: Ram) -> Disks {
    let mut disks = steps.disks;
    disks.0[DATA.0 + disk] = away;
    disks
}

fn fingerprint(disks: &mut Disks, disk: usize) -> Fingerprint {
    read_superblock(&mut disks.0[0]).expect("it is a log").fingerprint_of(disk).clone()
}

#[test]
fn no_disk_is_added_or_removed_while_one_is_missing() {
    let (mut steps, _away) = start_without(written().disks, 1);
    for disk in [1, 2] {
        steps.control(Control::Disk(DiskCommand::Remove { disk }));
        steps.wait(5);
        let told = steps.reports.last();
        assert!(matches!(told, Some(Report::Disk(Err(DiskChangeError::Refused(_))))), "{disk}: {told:?}");
    }
    assert_eq!(steps.on(2).read(MIDDLE), Some(12));
}

#[test]
fn a_missing_disk_keeps_its_blocks_in_the_log_and_the_others_are_served() {
    for missing in 0..3 {
        let (mut steps, away) = start_without(written().disks, missing);
        let status = steps.core.status(Nanos::ZERO);
        assert!(status.disks[missing].missing && status.disks[missing].stuck, "{missing}");
        assert_eq!(status.disks[missing].size_bytes, 8192 * 512);
        let refused = steps.on(missing).write(0, 8, 1);
        assert_eq!(steps.status(refused), Some(Err(IoError::new(ErrorKind::Medium))));
        let flush = steps.flush();
        assert!(steps.is_ok(flush), "it has nothing to wait for");
        let other = (missing + 1) % 3;
        assert_eq!(steps.on(other).read(MIDDLE), Some(10 + other as u8));
        // The log is written many times over.
        for round in 0..40 {
            for line in 0..8 {
                let id = steps.on(other).write(line * LINE_SECTORS, LINE_SECTORS, 100 + round);
                steps.wait(1);
                assert!(steps.is_ok(id), "round {round}, line {line}");
            }
        }
        assert!(steps.core.statistics.carried_segments > 0);
        steps.on(other).flush();
        // Nothing was stopped cleanly, and then it is.
        let (mut steps, away) = start_without(come_back(steps, missing, away), missing);
        steps.control(Control::Drain);
        steps.wait(10);
        steps.control(Control::Stop);
        assert_eq!(steps.reports, [Report::Drained, Report::Stopped]);
        let status = steps.core.status(Nanos::ZERO).disks;
        assert!((0..3).all(|disk| (status[disk].dirty_bytes > 0) == (disk == missing)), "{status:?}");
        let mut steps = Steps::start(come_back(steps, missing, away), quiet()).expect("it is back");
        assert_eq!(steps.on(missing).read(MIDDLE), Some(10 + missing as u8));
        assert_eq!(steps.on(other).read(0), Some(139));
        steps.drain();
        assert_eq!(steps.on(missing).on_data_disk(MIDDLE), 10 + missing as u8);
        assert!(!steps.core.index.is_dirty());
    }
}

#[test]
fn rule_11_a_missing_disk_keeps_its_fingerprint() {
    let mut steps = written();
    steps.control(Control::Stop);
    let mut disks = steps.disks;
    let before = fingerprint(&mut disks, 1);
    assert!(before.lines.len() > 3 && before.lines.iter().all(|line| line.sum.is_some()));
    let (mut steps, away) = start_without(disks, 1);
    assert_eq!(fingerprint(&mut steps.disks, 1), before, "the start leaves it as it is");
    steps.control(Control::Stop);
    let mut disks = come_back(steps, 1, away);
    assert_eq!(fingerprint(&mut disks, 1), before, "and so does the stop");
    // Somebody writes to the disk while it is away.
    let line = before.lines[1].line as usize;
    disks.0[DATA.0 + 1].bytes[line * 4096] ^= 1;
    let refused = Steps::start(disks.clone(), quiet()).err();
    assert!(matches!(refused, Some(LogError::OtherData(OtherData { disk: 1, lines: 1, .. }))), "{refused:?}");
    disks.0[DATA.0 + 1].bytes[line * 4096] ^= 1;
    assert!(Steps::start(disks, quiet()).is_ok());
}

/// A batch was cut off by a crash: the disk has an older block than the log. While the disk is away, the record of the older block is
/// overwritten, so nothing would explain that block.
#[test]
fn rule_11_a_block_that_was_being_written_back_is_explained_when_its_disk_comes_back() {
    let mut steps = written();
    let line = {
        let covered = fingerprint(&mut steps.disks, 1);
        covered.lines[1].line
    };
    let at = line * LINE_SECTORS;
    steps.on(1).write(at, LINE_SECTORS, 50);
    steps.flush();
    steps.hold = Box::new(|port, io| port == data_port(1) && kind(io) == Kind::Flush);
    steps.control(Control::Drain);
    steps.wait(1);
    assert_eq!(steps.on(1).on_data_disk(at), 50, "it is written, and nothing has noted that");
    steps.control(Control::DrainCancel);
    steps.on(1).write(at, LINE_SECTORS, 51);
    steps.on(0).flush();
    let (mut steps, away) = start_without(steps.disks, 1);
    for round in 0..100 {
        steps.on(0).write(0, LINE_SECTORS, round);
        steps.wait(1);
    }
    steps.control(Control::Stop);
    assert_eq!(steps.reports, [Report::Stopped]);
    let mut disks = come_back(steps, 1, away);
    let known =
        |fingerprint: &Fingerprint| fingerprint.lines.iter().filter(|line| line.sum.is_some()).count();
    let kept = fingerprint(&mut disks, 1);
    assert_eq!(known(&kept), kept.lines.len() - 1, "all other lines are compared");
    let mut steps = Steps::start(disks, quiet()).expect("it is the same disk");
    assert_eq!(steps.on(1).read(at), Some(51));
}

/// As before, but the disk comes back while the record of the older block is still in the log, after a kill or a stop.
#[test]
fn rule_11_a_block_is_compared_as_long_as_its_records_are_there() {
    for is_stopped in [false, true] {
        let mut steps = written();
        let line = fingerprint(&mut steps.disks, 1).lines[1].line;
        let at = line * LINE_SECTORS;
        for tag in [50, 51] {
            steps.on(1).write(at, LINE_SECTORS, tag);
            steps.flush();
            // The disk was not flushed, so no superblock has the sum of its content.
            if tag == 50 {
                let bytes: Vec<u8> =
                    (at..at + LINE_SECTORS).flat_map(|lba| super::testing::sector_of(lba, tag)).collect();
                steps.disks.0[DATA.0 + 1].bytes[line as usize * 4096..][..4096].copy_from_slice(&bytes);
            }
        }
        let (mut steps, away) = start_without(steps.disks, 1);
        if is_stopped {
            steps.control(Control::Stop);
        }
        let mut disks = come_back(steps, 1, away);
        let good = disks.clone();
        disks.0[DATA.0 + 1].bytes[line as usize * 4096] ^= 1;
        let refused = Steps::start(disks, quiet()).err();
        assert!(matches!(refused, Some(LogError::OtherData(_))), "stopped: {is_stopped}, {refused:?}");
        let mut steps = Steps::start(good, quiet()).expect("a record explains it");
        assert_eq!(steps.on(1).read(at), Some(51));
    }
}

#[test]
fn only_some_disks_that_the_log_knows_may_be_missing() {
    let refused = |missing| {
        let config = LogCacheConfig { missing, ..quiet() };
        matches!(Steps::start(written().disks, config).err(), Some(LogError::Options(_)))
    };
    assert!(refused(0b111) && !refused(0b110));
    let one = LogCacheConfig { missing: 1, ..quiet() };
    let disks = Steps::new(8, quiet()).disks;
    assert!(matches!(Steps::start(disks, one).err(), Some(LogError::Options(_))));
}

/// Tells of each disk whether the log has something for it.
fn dirty(steps: &Steps) -> [bool; 3] {
    let disks = steps.core.status(Nanos::ZERO).disks;
    std::array::from_fn(|disk| disks[disk].dirty_bytes > 0)
}

fn hangs(disk: usize) -> super::testing_steps::Hold {
    Box::new(move |port, io: &Io| port == data_port(disk) && io.modifies())
}

#[test]
fn a_drain_leaves_the_blocks_of_a_disk_that_hangs_or_fails() {
    let mut steps = written();
    steps.hold = hangs(1);
    steps.control(Control::Drain);
    steps.wait(20);
    assert_eq!(steps.reports, [], "a disk that sleeps answers later");
    steps.wait(20);
    assert_eq!(steps.reports, [Report::Drained]);
    assert_eq!(dirty(&steps), [false, true, false]);
    steps.let_go();
    steps.wait(60);
    assert_eq!(steps.on(1).on_data_disk(MIDDLE), 11, "it answers after all");
    // The next one fails.
    let mut steps = written();
    let all: Vec<u64> = (0..8192).collect();
    steps.disks.0[DATA.0 + 1].unwritable.extend(all);
    steps.control(Control::Drain);
    steps.wait(1);
    assert_eq!(steps.reports, [Report::Drained]);
    assert_eq!(dirty(&steps), [false, true, false]);
    // It is repaired: the next drain tries at once.
    steps.disks.0[DATA.0 + 1].unwritable.clear();
    steps.reports.clear();
    steps.control(Control::Drain);
    assert_eq!(steps.reports, [Report::Drained]);
    assert!(!steps.core.index.is_dirty());
}

#[test]
fn a_stop_ends_although_a_disk_hangs_and_loses_nothing() {
    let mut steps = written();
    steps.hold = hangs(1);
    steps.control(Control::Drain);
    steps.wait(5);
    steps.control(Control::Stop);
    steps.wait(20);
    assert_eq!(steps.reports, [], "it may answer yet");
    steps.wait(20);
    assert_eq!(steps.reports, [Report::Failed(Unfinished::Hangs)]);
    let mut steps = Steps::start(steps.disks, quiet()).expect("it starts as after a crash");
    assert!((0..3).all(|disk| steps.on(disk).read(MIDDLE) == Some(10 + disk as u8)));
    steps.drain();
    assert_eq!(steps.on(1).on_data_disk(MIDDLE), 11);
}

#[test]
fn rule_13_a_dead_log_says_what_it_has_for_a_missing_disk() {
    let (mut steps, _) = start_without(written().disks, 1);
    let all: Vec<u64> = (0..steps.core.log.geometry().sectors).collect();
    steps.log().unwritable.extend(all);
    steps.on(0).write(0, 8, 1);
    steps.flush();
    assert_eq!(steps.reports, [Report::LogFailed]);
    steps.control(Control::LogFailureRecorded);
    steps.wait(10);
    steps.control(Control::Stop);
    steps.wait(10);
    assert_eq!(steps.reports.last(), Some(&Report::Failed(Unfinished::LogFailedWithout(LINE_SECTORS * 512))));
    assert_eq!([0, 2].map(|disk| steps.on(disk).on_data_disk(MIDDLE)), [10, 12]);
}

#[test]
fn discards_for_a_missing_disk_are_kept_too() {
    let mut steps = written();
    steps.on(1).send(Io::Discard { extent: Extent::new(Lba(4096), 64) });
    steps.on(1).flush();
    let (mut steps, away) = start_without(steps.disks, 1);
    for round in 0..100 {
        steps.on(0).write(0, LINE_SECTORS, round);
        steps.wait(1);
    }
    assert!(steps.core.statistics.carried_segments > 0, "the discard's record is overwritten");
    steps.control(Control::Stop);
    let mut steps = Steps::start(come_back(steps, 1, away), quiet()).expect("it is back");
    assert_eq!(steps.on(1).read(4100), Some(super::testing_steps::ZEROES));
    assert_eq!(steps.on(1).read(MIDDLE), Some(11));
}
