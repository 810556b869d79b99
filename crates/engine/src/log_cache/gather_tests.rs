//! Records that are held back for clients that were answered a moment ago, step by step.

use super::env::LOG;
use super::format::FIRST_SEGMENT_SECTOR;
use super::testing_steps::{Kind, Steps, quiet};
use crate::layer::{Io, IoError, RequestId};
use crate::{ErrorKind, Nanos};

const COMMIT: Nanos = Nanos::from_millis(1);

/// Two clients, of two disks, and a log whose writes take as long as the test says.
fn two() -> Steps {
    let mut steps = Steps::over(2, 64, quiet()).expect("it starts");
    steps.hold = Box::new(|port, io| port == LOG && is_record(io));
    steps
}

/// No superblock.
fn is_record(io: &Io) -> bool {
    matches!(io, Io::Write { at, .. } if at.0 >= FIRST_SEGMENT_SECTOR)
}

fn put(steps: &mut Steps, disk: usize) -> RequestId {
    let lba = 8 * (steps.sent.len() as u64 % 64);
    steps.on(disk).write(lba, 1, 7);
    steps.flush()
}

/// Ends the write of the log that is in flight.
fn commit(steps: &mut Steps) {
    assert_eq!(steps.held.len(), 1, "one write is on its way");
    steps.now += COMMIT;
    steps.carry_out(0);
    steps.settle();
}

fn writes(steps: &Steps) -> usize {
    steps.sent.iter().filter(|(port, kind, _)| *port == LOG && *kind == Kind::WriteThrough).count()
}

#[test]
fn clients_of_two_disks_that_flush_in_turn_share_each_flush_of_the_log() {
    let mut steps = two();
    let (mut one, mut other) = (put(&mut steps, 0), put(&mut steps, 1));
    commit(&mut steps);
    assert!(steps.is_ok(one) && !steps.is_ok(other));
    // All records fit the first segment.
    for round in 1..9 {
        // The first one comes back after a moment; until then the record of the other is held back.
        assert_eq!((writes(&steps), steps.held.len()), (round, 0));
        steps.now += Nanos::from_micros(50);
        one = put(&mut steps, 0);
        if round > 1 {
            assert_eq!(steps.held.len(), 0, "the other is to come");
            other = put(&mut steps, 1);
        }
        commit(&mut steps);
        assert!(steps.is_ok(one) && steps.is_ok(other));
    }
}

#[test]
fn a_client_that_is_alone_never_waits_for_others() {
    let mut steps = two();
    for round in 1..10 {
        let flush = put(&mut steps, 0);
        assert_eq!((writes(&steps), steps.held.len()), (round, 1));
        commit(&mut steps);
        assert!(steps.is_ok(flush));
    }
}

#[test]
fn a_record_is_held_back_for_half_a_commit_and_then_less_and_less_often() {
    let mut steps = two();
    let mut waited = 0;
    for _ in 0..200 {
        let (one, other) = (put(&mut steps, 0), put(&mut steps, 1));
        commit(&mut steps);
        assert!(steps.is_ok(one) && !steps.is_ok(other));
        if steps.held.is_empty() {
            waited += 1;
            assert_eq!(steps.core.next_deadline(), Some(steps.now + Nanos(COMMIT.0 / 2)));
            steps.wait(1);
        }
        // The first client is gone for long.
        commit(&mut steps);
        assert!(steps.is_ok(other));
        steps.wait(1);
    }
    assert!((2..=8).contains(&waited), "{waited}");
}

/// The record stays held back, and is written when it is old.
#[test]
fn a_client_that_is_answered_meanwhile_leaves_no_deadline() {
    let mut steps = two();
    let flush = put(&mut steps, 0);
    steps.on(1).write(1024, 512, 9);
    steps.hold = Box::new(|port, io| port == LOG || matches!(io, Io::Flush));
    let other = put(&mut steps, 1);
    let data_flush = steps.held.iter().position(|held| held.port != LOG).expect("it bypassed the log");
    let held = steps.held.remove(data_flush);
    commit(&mut steps);
    assert!(steps.is_ok(flush) && steps.held.is_empty());
    steps.held.push(held);
    steps.fail(0, IoError::new(ErrorKind::Medium));
    assert!(steps.status(other).is_some_and(|status| status.is_err()));
    steps.hold = Box::new(|_, _| false);
    let before = writes(&steps);
    steps.wait(1);
    assert_eq!(writes(&steps), before, "nobody waits for it");
    assert!(steps.core.log.is_durable());
}
