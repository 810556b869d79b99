//! Tests of a log with several data disks of which one hangs or fails: the others go on.

use super::env::data_port;
use super::queue::WriteWait;
use super::testing_steps::{Hold, Kind, Steps, kind, quiet};
use super::{LogCacheConfig, Promise};
use crate::layer::RequestId;
use crate::{LINE_SECTORS, Nanos};

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
    let status = steps.core.status().disks;
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
    assert!(steps.core.status().disks[1].stuck && !steps.core.status().disks[2].stuck);
    let second = write_lines(&mut steps, 2, 0..3);
    steps.wait(5);
    assert!(steps.core.status().disks[2].stuck);
    let more = [write_lines(&mut steps, 1, 12..15), write_lines(&mut steps, 2, 3..5)].concat();
    assert_eq!((answered(&steps, &first), answered(&steps, &second), answered(&steps, &more)), (12, 3, 1));
    steps.let_go();
    assert_eq!(answered(&steps, &more), 5);
}

/// Writes to a disk keep their order, and a write that needs room in the log is not passed for ever by those that need less.
#[test]
fn writes_pass_only_those_that_wait_for_their_own_disk() {
    let mut steps = three(LogCacheConfig { promise: Promise::Always, share: 100, ..quiet() });
    let queue = &mut steps.core.queue;
    let write = |disk: usize, id: u64| {
        let io = crate::Io::Write {
            at: super::disks::AddressSpace::start(disk),
            buf: crate::Buf::zeroed(4096),
            durability: crate::layer::Durability::Volatile,
        };
        super::queue::PendingWrite::new(disk, RequestId(id), io)
    };
    for (disk, id) in [(0, 1), (1, 2), (0, 3), (2, 4), (1, 5)] {
        assert_eq!(queue.push(write(disk, id)), [1, 2, 4].contains(&id), "{id}");
    }
    let next = |queue: &mut super::queue::Queue| queue.pop().map(|pending| (pending.id.0, pending));
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
    assert_eq!(steps.now, Nanos::from_secs(1));
}
