//! Tests of a log with several data disks: each disk keeps its own data, flushes, batches and failures.

use super::disks::{AddressSpace, PART_SECTORS};
use super::env::{LOG, data_port};
use super::table::{Line, LookupTable, Piece, Place};
use super::testing::Ram;
use super::testing_steps::{Disks, Kind, Steps, kind, quiet};
use super::{LogCacheConfig, LogError, OtherData, Promise};
use crate::layer::{Control, ErrorKind, Io, IoError, MapSource, Report, SectorState, Stripes};
use crate::{Buf, Extent, LINE_SECTORS, Lba, Nanos};

/// A sector that the fingerprints do not cover.
const MIDDLE: u64 = 2048 + 512;

fn three(config: LogCacheConfig) -> Steps {
    Steps::over(3, 16, config).expect("it starts")
}

/// Writes the same sectors of each disk, with content of its own.
fn write_all(steps: &mut Steps, lba: u64) {
    (0..3).for_each(|disk| _ = steps.on(disk).write(lba, LINE_SECTORS, 10 + disk as u8));
}

fn is_all_there(steps: &mut Steps, lba: u64) -> bool {
    (0..3).all(|disk| steps.on(disk).read(lba) == Some(10 + disk as u8))
}

fn on_disks(steps: &mut Steps, lba: u64) -> [u8; 3] {
    std::array::from_fn(|disk| steps.on(disk).on_data_disk(lba))
}

/// Clients of a disk go on while a request of it is held back.
fn holds_reads_of(disk: usize) -> super::testing_steps::Hold {
    Box::new(move |port, io| port == data_port(disk) && kind(io) == Kind::Read)
}

#[test]
fn each_disk_has_its_own_data_at_the_same_address() {
    let mut steps = three(quiet());
    write_all(&mut steps, 0);
    write_all(&mut steps, MIDDLE);
    assert!(is_all_there(&mut steps, 0) && steps.on(1).read(8) == Some(0));
    assert!(steps.on(2).flush().0 > 0);
    let mut steps = steps.restart(quiet());
    assert!(is_all_there(&mut steps, 0), "after a start, too");
    assert_eq!(on_disks(&mut steps, MIDDLE), [0; 3]);
    steps.drain();
    assert_eq!((on_disks(&mut steps, 0), on_disks(&mut steps, MIDDLE)), ([10, 11, 12], [10, 11, 12]));
    assert!(!steps.core.index.is_dirty() && is_all_there(&mut steps, MIDDLE));
    let batches: Vec<_> =
        steps.sent.iter().filter(|(port, of, _)| *port != LOG && *of == Kind::Write).collect();
    assert!(batches.iter().all(|(_, _, extent)| extent.is_some_and(|extent| extent.end().0 <= 8192)));
}

#[test]
fn one_write_of_the_log_answers_the_flushes_of_all_disks() {
    let mut steps = three(quiet());
    steps.on(0).write(0, 8, 1);
    steps.hold = Box::new(|port, io| port == LOG && io.modifies());
    steps.flush();
    assert_eq!(steps.held.len(), 1, "a write of the log is under way");
    let flushes: Vec<_> = (0..3)
        .map(|disk| {
            steps.on(disk).write(8, 8, 2);
            steps.flush()
        })
        .collect();
    let before = steps.core.statistics.log_writes;
    steps.let_go();
    assert!(flushes.iter().all(|id| steps.is_ok(*id)));
    assert_eq!(steps.core.statistics.log_writes - before, 1);
    assert!(steps.sent.iter().all(|(port, ..)| *port == LOG), "nothing had bypassed the log");
}

#[test]
fn a_flush_covers_the_writes_past_the_log_of_its_own_disk() {
    let mut steps = three(LogCacheConfig { bypass_bytes: 64 << 10, ..quiet() });
    let is_covered = |steps: &Steps, disk: usize, at: u64| {
        let extent = Extent::new(AddressSpace::start(disk) + at, 128);
        steps.core.data[disk].fingerprint.covers(extent)
    };
    let mut places = (2048..6144).step_by(128);
    let at =
        places.find(|at| !(0..2).any(|disk| is_covered(&steps, disk, *at))).expect("few lines are covered");
    let write = |steps: &mut Steps, disk| {
        let id = steps.on(disk).write(at, 128, 1);
        assert!(steps.is_ok(id));
    };
    write(&mut steps, 0);
    write(&mut steps, 1);
    assert_eq!(steps.core.statistics.bypasses, 2);
    steps.hold = Box::new(|port, io| port == data_port(0) && kind(io) == Kind::Flush);
    let [slow, quick, none] = [0, 1, 2].map(|disk| steps.on(disk).flush());
    assert_eq!([slow, quick, none].map(|id| steps.is_ok(id)), [false, true, true]);
    // Only the first disk has writes at risk.
    steps.fail(0, IoError::new(ErrorKind::Medium));
    steps.let_go();
    assert!(matches!(steps.status(slow), Some(Err(_))));
    write(&mut steps, 1);
    let [failed, good] = [0, 1].map(|disk| steps.on(disk).flush());
    assert!(matches!(steps.status(failed), Some(Err(_))) && steps.is_ok(good));
    assert_eq!(steps.core.status(steps.now).flush_at_risk, [Extent::new(Lba(at), 128)]);
    write(&mut steps, 0);
    let flush = steps.on(0).flush();
    assert!(steps.is_ok(flush), "once it is written again");
}

#[test]
fn a_disk_is_destaged_when_its_own_clients_are_idle() {
    let config =
        LogCacheConfig { idle_empty: Nanos::from_secs(1), idle_full: Nanos::from_millis(1), ..quiet() };
    let mut steps = three(config);
    write_all(&mut steps, 0);
    steps.hold = holds_reads_of(1);
    let read = steps.on(1).send(Io::Read { at: Lba(MIDDLE), buf: Buf::zeroed(4096) });
    steps.wait(5);
    assert_eq!(on_disks(&mut steps, 0), [10, 0, 12], "a client of the second one waits");
    steps.let_go();
    assert!(steps.is_ok(read));
    steps.wait(5);
    assert_eq!(on_disks(&mut steps, 0), [10, 11, 12]);
}

/// Rule 6: nothing of a disk that fails is clean, and the tail stays before it.
#[test]
fn rule_06_a_disk_that_fails_keeps_its_own_blocks_in_the_log() {
    for flushes in [false, true] {
        let mut steps = three(quiet());
        write_all(&mut steps, 0);
        let tail = steps.core.log.ring().tail();
        let all: Vec<u64> = (0..8192).collect();
        if flushes {
            steps.hold = Box::new(|port, io| port == data_port(1) && kind(io) == Kind::Flush);
        } else {
            steps.disks.0[data_port(1).0].unwritable.extend(&all);
        }
        steps.control(Control::Drain);
        if flushes {
            steps.fail(0, IoError::new(ErrorKind::Medium));
        }
        let is_dirty = [0, 1, 2].map(|disk| steps.core.index.is_dirty_on(disk));
        assert_eq!(is_dirty, [false, true, false]);
        assert_eq!(steps.core.log.ring().tail(), tail);
        assert_eq!(steps.reports.last(), Some(&Report::Drained), "it leaves the blocks in the log");
        assert!(is_all_there(&mut steps, 0));
        let mut steps = steps.restart(quiet());
        assert!(is_all_there(&mut steps, 0));
        steps.disks.0[data_port(1).0].unwritable.clear();
        steps.drain();
        assert_eq!((on_disks(&mut steps, 0), &steps.reports[..]), ([10, 11, 12], &[Report::Drained][..]));
    }
}

/// A batch of one disk does not hold up the batch of another, and its flush says nothing of the other.
#[test]
fn rule_06_batches_of_two_disks_run_side_by_side() {
    let mut steps = three(quiet());
    write_all(&mut steps, 0);
    steps.hold = Box::new(|port, io| port == data_port(0) && kind(io) == Kind::Write);
    steps.control(Control::Drain);
    assert_eq!(on_disks(&mut steps, 0), [0, 11, 12]);
    assert_eq!([0, 1, 2].map(|disk| steps.core.index.is_dirty_on(disk)), [true, false, false]);
    steps.let_go();
    assert_eq!((on_disks(&mut steps, 0), &steps.reports[..]), ([10, 11, 12], &[Report::Drained][..]));
}

/// Rule 13: after the log has failed, a flush is answered only once every disk has what only RAM had.
#[test]
fn rule_13_a_dead_log_is_given_up_once_all_disks_have_its_data() {
    let mut steps = three(quiet());
    write_all(&mut steps, 0);
    let all: Vec<u64> = (0..steps.core.log.geometry().sectors).collect();
    steps.log().unwritable.extend(&all);
    steps.hold = Box::new(|port, io| port == data_port(2) && kind(io) == Kind::Write);
    let flush = steps.on(0).flush();
    assert_eq!(steps.reports, [Report::LogFailed]);
    steps.control(Control::LogFailureRecorded);
    assert_eq!((on_disks(&mut steps, 0), steps.status(flush)), ([10, 11, 0], None));
    steps.let_go();
    assert_eq!((on_disks(&mut steps, 0), steps.is_ok(flush)), ([10, 11, 12], true));
    steps.control(Control::Stop);
    assert_eq!(steps.reports[1..], [Report::Stopped]);
}

/// An error tells a client the address on its disk.
#[test]
fn a_lost_block_is_an_error_at_the_address_of_its_disk() {
    let mut steps = three(LogCacheConfig { promise: Promise::Always, ..quiet() });
    steps.on(2).write(16, 8, 1);
    let place = steps.core.index.table().lookup(Line::of(AddressSpace::start(2) + 16))[0].place.0;
    steps.log().unreadable.insert(place);
    let read = steps.on(2).send(Io::Read { at: Lba(16), buf: Buf::zeroed(4096) });
    let error = IoError::at(ErrorKind::Lost, Extent::new(Lba(16), 8));
    assert_eq!(steps.status(read), Some(Err(error)));
    assert_eq!(steps.on(1).read(16), Some(0));
}

#[test]
fn discards_and_zeroes_reach_their_own_disk_and_show_in_its_map() {
    let mut steps = three(quiet());
    let extent = Extent::new(Lba(MIDDLE), 256);
    steps.on(1).send(Io::Discard { extent });
    steps.on(2).write(MIDDLE, 8, 1);
    let state = |steps: &Steps, disk| steps.core.view().map(disk, extent);
    assert_eq!(state(&steps, 1).source, MapSource::Known(SectorState::Hole));
    assert_eq!(state(&steps, 0).source, MapSource::Known(SectorState::Data));
    assert_eq!(steps.on(1).read(MIDDLE), Some(super::testing_steps::ZEROES));
    assert_eq!(steps.on(0).read(MIDDLE), Some(0));
    steps.drain();
    assert_eq!(on_disks(&mut steps, MIDDLE), [0, super::testing_steps::ZEROES, 1]);
    steps.disks.0[data_port(2).0].holes = true;
    let steps = steps.restart(quiet());
    assert_eq!(state(&steps, 2).source, MapSource::Below(data_port(2), Lba(MIDDLE)));
}

/// Stripes are counted from the start of each disk.
#[test]
fn whole_stripes_of_each_disk_are_destaged_together() {
    let mut disks = three(quiet()).disks;
    disks.0[data_port(2).0].stripes = Some(Stripes { sectors: 48, first: 8 });
    let mut steps = Steps::start(disks, quiet()).expect("it starts");
    steps.on(2).write(8 + 48, 48, 1);
    steps.on(2).write(8 + 96, 40, 2);
    steps.hold = Box::new(|port, io| port == data_port(2) && kind(io) == Kind::Flush);
    steps.control(Control::Drain);
    let writes = steps.sent.iter().filter(|(port, of, _)| *port == data_port(2) && *of == Kind::Write);
    let extents: Vec<_> = writes.filter_map(|(_, _, extent)| *extent).collect();
    assert_eq!(extents, [Extent::new(Lba(56), 48)], "the whole stripe comes first");
    steps.let_go();
    assert_eq!((steps.on(2).on_data_disk(56), steps.on_data_disk(104)), (1, 2));
}

/// A clean stop reads the fingerprint of each disk, in its own addresses.
#[test]
fn a_clean_stop_leaves_nothing_to_do_on_any_disk() {
    let mut steps = three(quiet());
    write_all(&mut steps, 0);
    write_all(&mut steps, MIDDLE);
    steps.drain();
    (0..3).for_each(|disk| _ = steps.on(disk).send(Io::Discard { extent: Extent::new(Lba(0), 8) }));
    steps.drain();
    steps.control(Control::Stop);
    assert_eq!(steps.reports, [Report::Drained, Report::Drained, Report::Stopped]);
    for disk in 0..3 {
        let bytes = &steps.disks.0[data_port(disk).0].bytes;
        assert!(steps.core.data[disk].fingerprint.differing(bytes).is_empty(), "disk {disk}");
    }
    let mut steps = steps.restart(quiet());
    assert!(!steps.core.index.is_dirty() && is_all_there(&mut steps, MIDDLE));
}

#[test]
fn settings_and_disks_without_a_place_are_refused() {
    let refused = |disks, config| match Steps::over(disks, 16, config) {
        Err(LogError::Options(why)) => why.to_owned(),
        _ => panic!("it is refused"),
    };
    let ordered = LogCacheConfig { ordered_destage: true, ..quiet() };
    assert!(refused(2, ordered).contains("ordered-destage"));
    assert!(Steps::over(64, 16, quiet()).is_ok());
}

/// Rule 11: a start with fewer disks would take records of the others for torn ones, and end the log there.
#[test]
fn rule_11_a_log_is_served_with_all_its_disks() {
    let steps = three(LogCacheConfig { promise: Promise::Always, ..quiet() });
    for disks in [2, 4] {
        let mut other = steps.disks.clone();
        other.0.resize(1 + disks, steps.disks.0[1].clone());
        let error = Steps::start(other, quiet()).err().expect("another number of disks");
        assert!(matches!(error, LogError::Disks { found, recorded: 3 } if found == disks), "{error}");
    }
    let mut small = steps.disks.clone();
    small.0[2] = Ram::new(8000);
    let error = Steps::start(small, quiet()).err().expect("a disk that has shrunk");
    assert!(matches!(error, LogError::Smaller { .. }), "{error}");
}

/// Rule 11: the disks are told apart by their content, and only what the cache has written may differ.
#[test]
fn rule_11_disks_that_were_exchanged_or_changed_are_refused() {
    let mut steps = three(quiet());
    write_all(&mut steps, 0);
    steps.drain();
    // This start learns the content; from here on it is recorded.
    let mut steps = steps.restart(quiet());
    steps.on(2).write(0, 8, 20);
    steps.flush();
    let differs = |disks: Disks| match Steps::start(disks, quiet()) {
        Err(LogError::OtherData(OtherData { disk, .. })) => disk,
        _ => panic!("it is refused"),
    };
    let mut exchanged = steps.disks.clone();
    exchanged.0.swap(2, 3);
    assert_eq!(differs(exchanged), 1);
    let mut changed = steps.disks.clone();
    changed.0[3].bytes[0] ^= 1;
    assert_eq!(differs(changed), 2);
    let mut steps = steps.restart(quiet());
    steps.drain();
    let mut steps = steps.restart(quiet());
    assert_eq!(on_disks(&mut steps, 0), [10, 11, 20]);
}

#[test]
fn a_disk_that_has_grown_is_served_whole_if_it_is_to() {
    let mut disks = three(quiet()).disks;
    disks.0[2].bytes.resize(9000 * 512, 0);
    let steps = Steps::start(disks.clone(), quiet()).expect("it starts");
    assert_eq!([1, 2].map(|disk| steps.core.view().geometry(disk).sectors), [8192, 8192]);
    let mut steps = Steps::start(disks, LogCacheConfig { grow: true, ..quiet() }).expect("it starts");
    assert_eq!([1, 2].map(|disk| steps.core.view().geometry(disk).sectors), [9000, 8192]);
    steps.on(1).write(8992, 8, 1);
    steps.flush();
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.on(1).read(8999), Some(1));
}

#[test]
fn the_table_keeps_lines_of_several_disks_apart() {
    let space = AddressSpace::new(vec![100_000, 8, 1 << 20]);
    let mut table = LookupTable::new(&space, 100, 7);
    let lines =
        [0, 12_499, PART_SECTORS / 8, 2 * PART_SECTORS / 8, 2 * PART_SECTORS / 8 + (1 << 17) - 1].map(Line);
    for (place, line) in lines.into_iter().enumerate() {
        table.insert(line, Piece::written(Place(place as u64 * 8), 0, 8, 0), |_| {});
    }
    table.check();
    let count = |table: &LookupTable, disk| table.dirty_in(space.extent(disk)) / 8;
    assert_eq!([0, 1, 2].map(|disk| count(&table, disk)), [2, 1, 2]);
    table.remove_extent(space.extent(1), |_| {});
    table.remove_extent(Extent::new(Lba(2 * PART_SECTORS), 8), |_| {});
    table.check();
    assert_eq!([0, 1, 2].map(|disk| count(&table, disk)), [2, 0, 1]);
    assert!(table.contains_line(lines[4]) && !table.contains_line(lines[3]));
    assert_eq!(table.step(space.extent(2)), space.extent(2));
}

#[test]
fn disks_share_the_memory_for_destaging() {
    let config = LogCacheConfig { destage_memory: 1 << 20, ..quiet() };
    let bytes = |disks| {
        let steps = Steps::over(disks, 16, config.clone()).expect("it starts");
        assert_eq!(steps.core.destage_reads.count(), config.destage_depth);
        steps.core.destagers.iter().map(super::destager::Destager::memory_bytes).sum::<usize>()
    };
    assert_eq!(bytes(1), 1 << 20);
    assert_eq!(bytes(4), 1 << 20);
}

/// While the reads of one disk have all buffers, the others wait; each end of a read lets them go on.
#[test]
fn disks_take_the_buffers_for_reads_of_the_log_in_turn() {
    for destage_depth in [1, 2] {
        let mut steps = three(LogCacheConfig { destage_depth, ..quiet() });
        (0..3).for_each(|line| write_all(&mut steps, 1000 * line));
        steps.flush();
        steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Read { .. }));
        steps.control(Control::Drain);
        while steps.core.index.is_dirty() {
            assert!((1..=destage_depth).contains(&steps.held.len()), "{} reads", steps.held.len());
            steps.carry_out(0);
            steps.settle();
            steps.wait(1);
        }
        assert_eq!(on_disks(&mut steps, 2000), [10, 11, 12]);
    }
}
