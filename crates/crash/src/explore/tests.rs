//! The explorer on layers that are right by being simple, and on layers that are wrong.

use super::*;
use crate::DiskFaults;
use crate::tests::rigs::read_ahead_rig;
use crate::tests::simple::{Twist, rig};

fn explored(promise: Promise, twist: Twist, faults: DiskFaults, states: u64) -> Explored {
    let subject = |seed| rig(seed, promise, twist, &faults);
    explore(&ExploreConfig::new(11, states), &subject, &mut |_| {})
}

#[track_caller]
fn caught(promise: Promise, twist: Twist, faults: DiskFaults) -> Violation {
    let violation = explored(promise, twist, faults, 1000).violation.expect("caught within 1,000 states");
    assert!(!violation.story.is_empty());
    violation
}

#[test]
fn a_slice_of_a_disk_keeps_the_promise_of_a_disk() {
    let explored = explored(Promise::Flush, Twist::None, DiskFaults::default(), 2000);
    if let Some(violation) = explored.violation {
        panic!("{violation}");
    }
    assert_eq!(explored.counts.states, 2000);
    for kind in ["cut 2 deep", "cut 3 deep", "while serving", "killed", "while just recovered"] {
        assert!(explored.counts.kinds.contains_key(kind), "{kind}: {:?}", explored.counts);
    }
}

#[test]
fn writing_through_keeps_the_promise_always() {
    let explored = explored(Promise::Always, Twist::Through, DiskFaults::default(), 2000);
    if let Some(violation) = explored.violation {
        panic!("{violation}");
    }
}

#[test]
fn the_same_seed_explores_the_same_states() {
    let one = |seed| {
        let subject = |run| rig(run, Promise::Flush, Twist::None, &DiskFaults::default());
        explore(&ExploreConfig::new(seed, 500), &subject, &mut |_| {}).counts
    };
    assert_eq!(one(3), one(3));
    assert_ne!(one(3).trace, one(4).trace);
}

#[test]
fn a_disk_that_ignores_flushes_is_caught() {
    caught(Promise::Flush, Twist::None, DiskFaults::liar());
}

#[test]
fn a_layer_that_swallows_flushes_is_caught() {
    caught(Promise::Flush, Twist::SwallowFlushes, DiskFaults::default());
}

#[test]
fn a_layer_that_drops_fua_is_caught() {
    caught(Promise::Flush, Twist::DropFua, DiskFaults::default());
}

#[test]
fn a_plain_disk_keeps_neither_always_nor_order() {
    caught(Promise::Always, Twist::None, DiskFaults::default());
    let violation = caught(Promise::Ordered, Twist::None, DiskFaults::default());
    let words = ["prefix", "took more", "never was"];
    assert!(words.iter().any(|word| violation.what.contains(word)), "{}", violation.what);
}

#[test]
fn a_request_that_is_never_answered_is_caught_and_replayed() {
    let violation = caught(Promise::Flush, Twist::Stall, DiskFaults::default());
    assert!(violation.what.contains("never answered"), "{}", violation.what);
    let subject = |seed| rig(seed, Promise::Flush, Twist::Stall, &DiskFaults::default());
    let again = replay(&ExploreConfig::new(11, 1000), violation.run_seed, &subject).expect("the same again");
    assert_eq!((again.what, again.story), (violation.what, violation.story));
}

#[test]
fn a_disk_that_is_read_ahead_keeps_the_promise_of_a_disk() {
    let explored = explore(&ExploreConfig::new(5, 2000), &read_ahead_rig, &mut |_| {});
    if let Some(violation) = explored.violation {
        panic!("{violation}");
    }
}
