//! Tests of a log with several data disks of which one hangs or fails: the others go on.

use super::disks::AddressSpace;
use super::env::data_port;
use super::queue::{PendingWrite, Queue, WriteWait};
use super::table::Line;
use super::testing_steps::{Hold, Kind, Steps, ZEROES, kind, quiet};
use super::{LogCacheConfig, Promise};
use crate::layer::{Control, Durability, Io, RequestId};
use crate::{Buf, Extent, LINE_SECTORS, Lba};

/// A sector that the fingerprints do not cover.
const MIDDLE: u64 = 2048 + 512;

/// A log of 64 lines before three disks, and a share of 16 lines.
fn three(config: LogCacheConfig) -> Steps {
    Steps::over(3, 16, LogCacheConfig { share: 25, bypass_bytes: 0, ..config }).expect("it starts")
}

fn hangs(disk: usize) -> Hold {
    Box::new(move |port, io| port == data_port(disk) && kind(io) == Kind::Write)
}

/// Writes lines of a disk, each with one request, and returns these.
fn write_lines(steps: &mut Steps, disk: usize, lines: std::ops::Range<u64>) -> Vec<RequestId> {
    lines.map(|line| steps.on(disk).write(line * LINE_SECTORS, LINE_SECTORS, 1 + line as u8)).collect()
}

fn answered(steps: &Steps, ids: &[RequestId]) -> usize {
    ids.iter().filter(|id| steps.is_ok(**id)).count()
}

#[test]
fn a_disk_with_its_share_of_the_log_waits_alone_until_its_own_destage_goes_on() {
    let mut steps = three(quiet());
    steps.hold = hangs(1);
    let hung = write_lines(&mut steps, 1, 0..20);
    assert_eq!(answered(&steps, &hung), 16);
    let status = steps.core.status(steps.now).disks;
    assert_eq!([0, 1, 2].map(|disk| status[disk].waits_for_share), [false, true, false]);
    let others = [write_lines(&mut steps, 0, 0..4), write_lines(&mut steps, 2, 0..4)].concat();
    assert_eq!(answered(&steps, &others), 8, "writes to other disks pass");
    assert!(!steps.held.is_empty(), "the disk is written to, although nothing is idle or full");
    assert!([0, 2].iter().all(|disk| steps.core.destagers[*disk].is_idle()), "nothing hurries the others");
    steps.let_go();
    assert_eq!(answered(&steps, &hung), 20);
    assert!((0..20).all(|line| steps.on(1).read(line * LINE_SECTORS) == Some(1 + line as u8)));
}

#[test]
fn disks_that_have_nothing_to_do_are_not_stuck() {
    let mut steps = three(quiet());
    let first = [write_lines(&mut steps, 0, 0..10), write_lines(&mut steps, 1, 0..10)].concat();
    steps.wait(5);
    let more = write_lines(&mut steps, 0, 10..12);
    assert!(steps.core.status(steps.now).disks.iter().all(|disk| !disk.stuck));
    assert_eq!((answered(&steps, &first), answered(&steps, &more)), (20, 2));
    assert!(steps.sent.iter().all(|(port, ..)| *port != data_port(0)), "nothing is hurried");
}

#[test]
fn the_only_disk_of_a_log_has_no_share() {
    let config = LogCacheConfig { share: 1, bypass_bytes: 0, ..quiet() };
    let mut steps = Steps::over(1, 16, config).expect("it starts");
    let ids = write_lines(&mut steps, 0, 0..30);
    assert_eq!(
        (answered(&steps, &ids), steps.sent.iter().any(|(port, ..)| *port == data_port(0))),
        (30, false)
    );
}

#[test]
fn disks_that_make_no_progress_have_one_share_together() {
    let mut steps = three(LogCacheConfig { high_mark: 20, low_mark: 5, ..quiet() });
    steps.hold = Box::new(|port, io| hangs(1)(port, io) || hangs(2)(port, io));
    let first = write_lines(&mut steps, 1, 0..12);
    steps.wait(5);
    assert!(steps.core.status(steps.now).disks[1].stuck && !steps.core.status(steps.now).disks[2].stuck);
    let second = write_lines(&mut steps, 2, 0..3);
    steps.wait(5);
    assert!(steps.core.status(steps.now).disks[2].stuck);
    let more = [write_lines(&mut steps, 1, 12..15), write_lines(&mut steps, 2, 3..5)].concat();
    steps.wait(5);
    assert_eq!((answered(&steps, &first), answered(&steps, &second), answered(&steps, &more)), (12, 3, 1));
    steps.let_go();
    steps.wait(5);
    assert_eq!(answered(&steps, &more), 5);
}

/// Writes to a disk keep their order, and a write that needs room in the log is not passed for ever by those that need less.
#[test]
fn writes_pass_only_those_that_wait_for_their_own_disk() {
    let mut steps = three(LogCacheConfig { promise: Promise::Always, share: 100, ..quiet() });
    let queue = &mut steps.core.queue;
    let write = |disk: usize, id: u64| {
        let io = Io::Write {
            at: AddressSpace::start(disk),
            buf: Buf::zeroed(4096),
            durability: Durability::Volatile,
        };
        PendingWrite::new(disk, RequestId(id), io)
    };
    for (disk, id) in [(0, 1), (1, 2), (0, 3), (2, 4), (1, 5)] {
        assert_eq!(queue.push(write(disk, id)), [1, 2, 4].contains(&id), "{id}");
    }
    let next = |queue: &mut Queue| queue.pop().map(|pending| (pending.id.0, pending));
    let (id, first) = next(queue).expect("the oldest");
    assert_eq!(id, 1);
    queue.put_back(first, WriteWait::Disk);
    let (id, second) = next(queue).expect("the oldest of another disk");
    assert_eq!(id, 2);
    queue.put_back(second, WriteWait::Log);
    assert_eq!(next(queue).map(|(id, second)| (id, queue.put_back(second, WriteWait::Disk))), Some((2, ())));
    let (id, mut third) = next(queue).expect("only the last disk does not wait");
    assert_eq!(id, 4);
    third.done = 1;
    queue.put_back(third, WriteWait::Log);
    queue.try_all();
    assert_eq!(next(queue).map(|(id, _)| id), Some(4), "one that has begun goes first");
    assert_eq!([0; 4].map(|_| next(queue).expect("one is left").0), [1, 2, 3, 5]);
    assert!(!queue.has_pending());
}

/// Writes lines of the first disk over and over, each with a flush.
fn write_on(steps: &mut Steps, rounds: u64) -> usize {
    let mut ids = Vec::new();
    for round in 0..rounds {
        ids.push(steps.on(0).write(round % 10 * LINE_SECTORS, LINE_SECTORS, 100 + (round % 100) as u8));
        ids.push(steps.flush());
        if round % 8 == 0 {
            steps.wait(1);
        }
    }
    answered(steps, &ids)
}

/// A log that is destaged from early on, with one disk that hangs.
fn pressed() -> Steps {
    let mut steps = three(LogCacheConfig { high_mark: 40, low_mark: 5, ..quiet() });
    steps.hold = hangs(1);
    steps
}

#[test]
fn rule_06_the_tail_passes_blocks_of_a_disk_that_hangs_once_they_are_durable_at_the_head() {
    let mut steps = pressed();
    let hung = write_lines(&mut steps, 1, 0..8);
    steps.on(1).write(3 * LINE_SECTORS + 2, 3, 50);
    assert_eq!(write_on(&mut steps, 200), 400, "the first disk writes many times what the log holds");
    assert_eq!(answered(&steps, &hung), 8);
    let carried = steps.core.statistics.carried_segments;
    assert!(carried > 5, "{carried}");
    let tag = |sector: u64| if (26..29).contains(&sector) { 50 } else { 1 + (sector / 8) as u8 };
    let mut steps = steps.restart(quiet());
    assert!((0..64).all(|sector| steps.on(1).read(sector) == Some(tag(sector))), "after a crash, too");
    assert_eq!(steps.on(1).on_data_disk(0), 0);
    steps.drain();
    assert!((0..64).all(|sector| steps.on(1).on_data_disk(sector) == tag(sector)));
}

/// A disk whose batches go on needs none of it, and the only disk of a log holds up nobody.
#[test]
fn blocks_are_carried_only_for_a_disk_that_makes_no_progress() {
    let mut steps = three(LogCacheConfig { high_mark: 40, low_mark: 5, ..quiet() });
    write_lines(&mut steps, 1, 0..8);
    assert_eq!(write_on(&mut steps, 100), 200);
    assert_eq!(steps.core.statistics.carried_segments, 0);
    let config = LogCacheConfig { high_mark: 40, low_mark: 5, bypass_bytes: 0, ..quiet() };
    let mut steps = Steps::over(1, 16, config).expect("it starts");
    steps.hold = hangs(0);
    write_on(&mut steps, 100);
    assert_eq!(steps.core.statistics.carried_segments, 0);
}

/// Rule 9: a batch has read blocks, and hangs; they are carried, and their old places are written again. When the batch ends at last,
/// nothing is clean by it.
#[test]
fn rule_09_the_late_end_of_a_batch_makes_nothing_clean_that_was_carried() {
    let mut steps = pressed();
    write_lines(&mut steps, 1, 0..8);
    write_on(&mut steps, 100);
    let dirty = steps.core.index.dirty_sectors_on(1);
    assert!(dirty == 64 && steps.core.statistics.carried_segments > 5);
    // The flush of the batch is held back, so no other batch begins.
    steps.hold = Box::new(|port, io| port == data_port(1) && kind(io) == Kind::Flush);
    steps.control(Control::Drain);
    let held = steps.held.iter().position(|held| held.port == data_port(1)).expect("the flush");
    steps.hold = Box::new(|port, _| port == data_port(1));
    steps.carry_out(held);
    assert_eq!(steps.core.index.dirty_sectors_on(1), dirty);
    steps.let_go();
    steps.drain();
    assert!(!steps.core.index.is_dirty());
    assert!((0..8).all(|line| steps.on(1).on_data_disk(line * 8) == 1 + line as u8));
}

#[test]
fn zeroes_and_discards_are_carried_below_the_data_over_them() {
    let mut steps = pressed();
    steps.hold =
        Box::new(|port, io| port == data_port(1) && (kind(io) == Kind::Erase || kind(io) == Kind::Write));
    let zeroes = Extent::new(Lba(MIDDLE), 256);
    steps.on(1).send(Io::WriteZeroes { extent: zeroes, unmap: false, durability: Durability::Volatile });
    steps.on(1).send(Io::Discard { extent: Extent::new(Lba(MIDDLE + 512), 64) });
    for at in [0, 19, 100] {
        steps.on(1).write(MIDDLE + at, 9, 7);
    }
    assert_eq!(write_on(&mut steps, 200), 400);
    assert!(steps.core.statistics.carried_segments > 5);
    let tag = |at: u64| match at {
        0..9 | 19..28 | 100..109 => 7,
        0..256 | 512..576 => ZEROES,
        _ => 0,
    };
    let is_right = |steps: &mut Steps| (0..600).all(|at| steps.on(1).read(MIDDLE + at) == Some(tag(at)));
    assert!(is_right(&mut steps));
    let mut crashed = Steps::start(steps.disks.clone(), quiet()).expect("it starts");
    assert!(is_right(&mut crashed), "after a crash, too");
    steps.on(1).write(MIDDLE + 40, 8, 8);
    steps.let_go();
    steps.drain();
    let tag = |at| if (40..48).contains(&at) { 8 } else { tag(at) };
    assert!((0..600).all(|at| steps.on(1).on_data_disk(MIDDLE + at) == tag(at)));
}

/// A block that is bad in the log is not carried: the tail stays before it.
#[test]
fn a_block_that_fails_its_check_is_not_carried() {
    let mut steps = pressed();
    write_lines(&mut steps, 1, 0..3);
    steps.flush();
    let place = steps.core.index.table().lookup(Line::of(AddressSpace::start(1)))[0].place.0;
    let tail = steps.core.log.ring().tail();
    steps.log().bytes[place as usize * 512] ^= 1;
    write_on(&mut steps, 60);
    assert_eq!(steps.core.log.ring().tail(), tail);
    assert_eq!(steps.on(1).read(0), None);
    assert_eq!(steps.on(1).read(8), Some(2));
    let carried = steps.core.statistics.carried_segments;
    assert!((1..5).contains(&carried), "{carried}: it is not tried all the time");
}

/// With all of its share dirty and nothing to gain, the log is full, and blocks are not copied round and round.
#[test]
fn nothing_is_carried_where_nothing_is_gained() {
    let mut steps = three(LogCacheConfig { high_mark: 40, low_mark: 5, share: 100, ..quiet() });
    steps.hold = Box::new(|port, io| port != super::env::LOG && kind(io) == Kind::Write);
    for disk in [1, 2] {
        write_lines(&mut steps, disk, 0..40);
    }
    steps.wait(100);
    let before = steps.core.statistics.carried_segments;
    steps.wait(1000);
    assert!(steps.core.queue.wants_any_space());
    assert_eq!(steps.core.statistics.carried_segments, before);
}

/// Rule 11: a batch has sent a block to the first line, which is compared at each start, and hangs. That block is replaced, and its record
/// leaves the log. Whatever the crash makes of the batch, the disk is known again.
#[test]
fn rule_11_a_disk_is_known_again_whatever_a_batch_that_hangs_has_written() {
    let mut steps = pressed();
    write_lines(&mut steps, 1, 0..8);
    write_on(&mut steps, 20);
    assert!(steps.held.iter().any(|held| held.io.extent().is_some_and(|extent| extent.start == Lba(0))));
    steps.on(1).write(0, LINE_SECTORS, 60);
    write_on(&mut steps, 200);
    let mut disks = steps.disks.clone();
    let sectors = (0..8).flat_map(|lba| super::testing::sector_of(lba, 1));
    disks.0[data_port(1).0].bytes.splice(..4096, sectors);
    let mut steps = Steps::start(disks, quiet()).expect("it is the same disk");
    assert_eq!(steps.on(1).read(0), Some(60));
}
