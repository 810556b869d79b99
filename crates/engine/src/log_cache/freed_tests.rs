//! Discards of freed segments, step by step, and reads that hold one up.

use super::LogCacheConfig;
use super::env::LOG;
use super::format::SUPERBLOCK_SECTORS;
use super::freed::FreedDiscards;
use super::testing::Ram;
use super::testing_steps::{Kind, Steps, quiet};
use crate::layer::{Control, Discards, Io, LayerSettings, Port, RequestId};
use crate::{Buf, ErrorKind, Extent, IoError, Lba, Nanos};

/// A cache over a log of so many segments, whose device is changed before it starts.
fn steps(segments: u32, change: fn(&mut Ram)) -> Steps {
    let mut disks = Steps::new(segments, quiet()).disks;
    (disks.0[LOG.0].discards, disks.0[LOG.0].ssd) = (Discards::Advisory, true);
    change(&mut disks.0[LOG.0]);
    Steps::start(disks, quiet()).unwrap()
}

fn discards(steps: &Steps) -> Vec<Extent> {
    let sent = steps.sent.iter().filter(|(port, kind, _)| *port == LOG && *kind == Kind::Erase);
    sent.filter_map(|(_, _, extent)| *extent).collect()
}

/// The numbers of the segments in the discards so far.
fn discarded(steps: &Steps) -> Vec<u64> {
    let superblock = steps.core.log.superblock();
    let mut all = Vec::new();
    for extent in discards(steps) {
        let (first, last) =
            (superblock.segment_of(extent.start.0), superblock.segment_of(extent.end().0 - 1));
        assert_eq!(extent.start.0, superblock.segment_start(first));
        assert_eq!(extent.sectors, u64::from(last - first + 1) * superblock.segment_sectors());
        all.extend((first..=last).map(u64::from));
    }
    all
}

fn status(steps: &Steps) -> FreedDiscards {
    steps.core.status(steps.now).freed_discards
}

/// Has the cache write a superblock: before that, the older copy may name any tail.
fn rest(steps: &mut Steps) {
    steps.write(8000, 8, 5);
    steps.flush();
    steps.wait(2);
}

/// Holds back the discards of the log.
fn hold_discards(steps: &mut Steps) {
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Discard { .. }));
}

#[test]
fn free_segments_are_discarded_but_those_that_the_head_enters_next() {
    let mut steps = steps(16, |_| {});
    steps.flush();
    steps.wait(10);
    assert_eq!((status(&steps), discards(&steps)), (FreedDiscards::On, Vec::new()));
    rest(&mut steps);
    steps.wait(10);
    // The head is in the first one, and three more are left to it.
    assert_eq!(discarded(&steps), (4..16).collect::<Vec<u64>>());
    assert_eq!(steps.core.statistics.log_discarded_bytes, 12 * (16 << 10));
    steps.wait(1000);
    assert_eq!(discards(&steps).len(), 12, "each once");
}

/// Dirty segments and clean ones that the superblock still needs stay as they are, lap by lap. The superblock is held back, so that what is
/// needed is known before any discard goes out.
#[test]
fn segments_that_recovery_needs_are_never_discarded() {
    let mut steps = steps(16, |_| {});
    let mut held = 0;
    for lap in 1..=60_u8 {
        steps.hold = Box::new(writes_superblock);
        let ring = steps.core.log.ring();
        let (kept, before) = (ring.kept(), discards(&steps).len());
        steps.write(u64::from(lap) * 64, 16, lap);
        steps.flush();
        if lap % 10 == 0 {
            steps.control(Control::Drain);
        }
        steps.wait(2);
        let (superblock, ring) = (steps.core.log.superblock(), steps.core.log.ring());
        held += u32::from(!steps.held.is_empty() && ring.tail() > kept);
        assert_eq!(ring.kept(), kept, "no later superblock is durable");
        let needed: Vec<u32> = (kept..=ring.head()).map(|number| ring.index(number)).collect();
        for extent in &discards(&steps)[before..] {
            let segment = superblock.segment_of(extent.start.0);
            assert!(!needed.contains(&segment), "segment {segment} of {needed:?} in lap {lap}");
        }
        steps.let_go();
    }
    assert!(held > 3, "superblocks that would free segments were held back: {held}");
    assert!(discards(&steps).len() > 20, "every lap frees some: {}", discards(&steps).len());
    let mut steps = steps.restart(quiet());
    for lap in 1..=60_u8 {
        assert_eq!(steps.read(u64::from(lap) * 64), Some(lap));
    }
}

fn writes_superblock(port: Port, io: &Io) -> bool {
    let is_there = |extent: Extent| SUPERBLOCK_SECTORS.contains(&extent.start);
    port == LOG && io.modifies() && io.extent().is_some_and(is_there)
}

/// Starts from the older copy of the superblock, as the newest one on the medium rots; returns what the clients read.
fn start_from_older(steps: &Steps, laps: u8) -> Option<Vec<Option<u8>>> {
    let in_flight = steps.held.iter().filter(|held| writes_superblock(held.port, &held.io)).count();
    let newest = steps.core.log.superblock().generation - in_flight as u64;
    let mut disks = steps.disks.clone();
    let at = SUPERBLOCK_SECTORS[(newest % 2) as usize].bytes() as usize;
    disks.0[LOG.0].bytes[at..at + 512].fill(7);
    let mut started = Steps::start(disks, quiet()).ok()?;
    Some((1..=laps).map(|lap| started.read(u64::from(lap) * 64)).collect())
}

/// The power fails between any two superblocks, and the newest one rots: a start finds as much as without discards.
#[test]
fn the_older_superblock_is_as_good_as_without_discards() {
    let starts = |discard_freed| {
        let config = || LogCacheConfig { discard_freed, ..quiet() };
        let disks = steps(16, |_| {}).disks;
        let mut steps = Steps::start(disks, config()).unwrap();
        steps.hold = Box::new(writes_superblock);
        let mut found = Vec::new();
        for lap in 1..=70_u8 {
            // A segment each, so that the log is nearly full before it is drained.
            steps.write(u64::from(lap) * 64, 28, lap);
            steps.flush();
            if lap % 14 == 0 {
                steps.control(Control::Drain);
            }
            for _ in 0..4 {
                steps.wait(1);
                found.push((lap, start_from_older(&steps, lap)));
                if !steps.held.is_empty() {
                    steps.carry_out(0);
                    steps.settle();
                    found.push((lap, start_from_older(&steps, lap)));
                }
            }
        }
        (found, discards(&steps).len())
    };
    let ((with, discarded), (without, none)) = (starts(true), starts(false));
    for (with, without) in with.iter().zip(&without) {
        assert_eq!(with, without, "lap {}", with.0);
    }
    let good = with.iter().filter(|(_, found)| found.is_some()).count();
    assert!(
        good > 100 && discarded > 20 && none == 0,
        "{good} starts of {}, {discarded} discards",
        with.len()
    );
}

/// A discard that hangs is never overtaken by a record; then the head waits, as the order in which the two arrive is not known.
#[test]
fn no_record_is_written_where_a_discard_is_in_flight() {
    let mut steps = steps(8, |_| {});
    hold_discards(&mut steps);
    rest(&mut steps);
    assert_eq!((discarded(&steps), steps.held.len()), (vec![4], 1));
    let ids: Vec<_> = (0..8).map(|write| steps.write(write * 64, 28, 7)).collect();
    assert_eq!(steps.core.log.ring().head(), 3, "the head stands before it");
    assert!(!steps.is_ok(ids[7]));
    steps.hold = Box::new(|_, _| false);
    steps.settle();
    steps.drain();
    steps.wait(10);
    assert!(ids.iter().all(|id| steps.is_ok(*id)));
    assert!((0..8).all(|write| steps.read(write * 64) == Some(7)), "what was written after it is there");
}

/// A cache whose log of 8 segments has gone round to the segment of a clean copy, which a held read pins.
fn with_pinned_copy() -> (Steps, RequestId) {
    let mut disks = Steps::new(8, quiet()).disks;
    (disks.0[LOG.0].discards, disks.0[LOG.0].ssd) = (Discards::Advisory, true);
    let mut steps = Steps::start(disks, quiet()).unwrap();
    steps.write(5000, 8, 9);
    steps.drain();
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Read { .. }));
    let read = steps.send(Io::Read { at: Lba(5000), buf: Buf::zeroed(4096) });
    assert_eq!(steps.held.len(), 1, "the log has a clean copy");
    let pinned = steps.core.log.superblock().segment_of(steps.held[0].io.extent().unwrap().start.0);
    for write in 0.. {
        let head = steps.core.log.ring().head();
        if steps.core.log.ring().index(head + 1) == pinned {
            break;
        }
        steps.write(write * 64, 24, 7);
        steps.drain();
    }
    (steps, read)
}

/// Otherwise the read would find a copy that is not there any more.
#[test]
fn a_segment_that_is_being_read_is_not_discarded() {
    let (mut steps, read) = with_pinned_copy();
    assert!(!discarded(&steps).contains(&0), "{:?}", discarded(&steps));
    steps.let_go();
    assert_eq!(steps.replies.remove(&read).unwrap().buf.bytes()[511], 9);
    assert_eq!(steps.core.statistics.log_read_errors, 0);
}

#[test]
fn discards_end_where_the_device_is_slow_and_begin_again_when_they_are_asked_for() {
    let mut steps = steps(64, |_| {});
    hold_discards(&mut steps);
    rest(&mut steps);
    for _ in 0..4 {
        assert_eq!(status(&steps), FreedDiscards::On);
        while steps.held.is_empty() {
            steps.now = steps.now.max(steps.core.next_deadline().expect("more is to be discarded"));
            steps.settle();
        }
        assert_eq!(steps.held.len(), 1, "one at a time");
        steps.now += Nanos::from_millis(60);
        steps.carry_out(0);
        steps.settle();
    }
    steps.wait(100);
    assert_eq!((status(&steps), steps.held.len()), (FreedDiscards::Slow, 0));
    let set = |steps: &mut Steps, discard_freed| {
        let config = LogCacheConfig { discard_freed, ..quiet() };
        steps.control(Control::Settings(Box::new(LayerSettings::LogCache(config))));
    };
    set(&mut steps, false);
    assert_eq!(status(&steps), FreedDiscards::Off);
    steps.let_go();
    steps.wait(100);
    assert_eq!(discards(&steps).len(), 4, "none while it is off");
    set(&mut steps, true);
    steps.wait(100);
    assert_eq!((status(&steps), discarded(&steps)), (FreedDiscards::On, (5..64).collect()));
}

/// A device that refuses them is not a device that fails.
#[test]
fn a_discard_that_fails_is_the_last_and_harms_nothing() {
    let mut steps = steps(16, |_| {});
    hold_discards(&mut steps);
    rest(&mut steps);
    steps.fail(0, IoError::new(ErrorKind::Unsupported));
    steps.let_go();
    steps.wait(100);
    assert_eq!((status(&steps), discards(&steps).len()), (FreedDiscards::Failed, 1));
    let flush = steps.flush();
    assert!(steps.is_ok(flush) && !steps.core.log.has_failed());
    steps.control(Control::Stop);
    assert_eq!(steps.read(0), None, "it has stopped");
}

#[test]
fn there_are_none_where_the_log_is_on_no_plain_ssd_and_where_the_device_takes_none() {
    let changes: [fn(&mut Ram); 2] = [|log| log.ssd = false, |log| log.discards = Discards::No];
    for change in changes {
        let mut steps = steps(16, change);
        rest(&mut steps);
        steps.wait(100);
        assert_eq!((status(&steps), discards(&steps).len()), (FreedDiscards::None, 0));
    }
}
