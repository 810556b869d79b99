//! The explorer finds nothing in the reference cache, and finds each bug that is planted in it.

use super::*;
use crate::{DiskFaults, ExploreConfig, Explored, explore};

fn explored(promise: Promise, bug: Option<ReferenceBug>, faults: DiskFaults, states: u64) -> Explored {
    let subject = |seed| {
        let mut rig = reference_rig(seed, promise, bug);
        rig.disks.iter_mut().for_each(|disk| disk.set_faults(faults.clone()));
        rig
    };
    explore(&ExploreConfig::new(3, states), &subject, &mut |_| {})
}

#[track_caller]
fn holds(promise: Promise) {
    let explored = explored(promise, None, DiskFaults::default(), 3000);
    if let Some(violation) = explored.violation {
        panic!("{violation}");
    }
    for kind in ["while recovering", "while destaging", "while at rest", "cut 3 deep", "killed"] {
        assert!(explored.counts.kinds.contains_key(kind), "{kind}: {:?}", explored.counts);
    }
}

#[track_caller]
fn caught(promise: Promise, bug: ReferenceBug) {
    let explored = explored(promise, Some(bug), DiskFaults::default(), 1000);
    assert!(explored.violation.is_some(), "{bug:?} is not caught: {:?}", explored.counts);
}

#[test]
fn the_promise_flush_holds() {
    holds(Promise::Flush);
}

#[test]
fn the_promise_always_holds() {
    holds(Promise::Always);
}

#[test]
fn the_promise_ordered_holds() {
    holds(Promise::Ordered);
}

#[test]
fn records_of_an_older_epoch_are_caught() {
    caught(Promise::Flush, ReferenceBug::IgnoreEpochs);
}

#[test]
fn a_journal_that_starts_again_too_early_is_caught() {
    caught(Promise::Flush, ReferenceBug::NoDataFlush);
}

#[test]
fn recovery_from_a_journal_that_is_not_durable_is_caught() {
    let explored = explored(Promise::Ordered, Some(ReferenceBug::NoLogFlush), DiskFaults::default(), 10_000);
    assert!(explored.violation.is_some(), "it takes a kill, and then a cut while recovering");
}

#[test]
fn a_torn_record_is_caught() {
    caught(Promise::Flush, ReferenceBug::NoChecksum);
}

#[test]
fn an_answer_before_the_commit_is_caught() {
    caught(Promise::Always, ReferenceBug::EarlyAnswer);
    caught(Promise::Flush, ReferenceBug::EarlyAnswer);
}

#[test]
fn a_mix_of_writes_is_caught() {
    caught(Promise::Ordered, ReferenceBug::SplitWrites);
}

#[test]
fn disks_that_ignore_flushes_are_caught() {
    for promise in [Promise::Flush, Promise::Always] {
        assert!(explored(promise, None, DiskFaults::liar(), 1000).violation.is_some(), "{promise:?}");
    }
}
