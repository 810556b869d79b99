//! The explorer on layers that are right by being simple, and on layers that are wrong.

use std::collections::VecDeque;

use dcd_engine::layers::slice::Slice;
use dcd_engine::{
    ActivateError, Durability, Event, Extent, Io, IoResult, Layer, Lba, OpId, Outbox, Port, Ports, RequestId,
    StackBuilder,
};

use super::*;
use crate::{FaultPlan, Latency};

const SECTORS: u64 = 1024;
const LATENCY: Latency =
    Latency::Tailed { min: Nanos(5_000), max: Nanos(300_000), slow: Nanos(9_000_000), slow_per_mille: 30 };

/// A layer that changes what passes in one way.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Twist {
    None,
    /// Answers flushes by itself.
    SwallowFlushes,
    /// Passes FUA on as if it were not there.
    DropFua,
    /// Makes every write durable.
    Through,
    /// Answers the first flush never.
    Stall,
}

struct Twisted {
    twist: Twist,
    geometry: Option<Geometry>,
    stalled: VecDeque<RequestId>,
}

impl Layer for Twisted {
    fn handle(&mut self, _now: Nanos, event: Event, out: &mut Outbox) {
        match event {
            Event::Request(request) => {
                let io = match (self.twist, request.io) {
                    (Twist::SwallowFlushes, Io::Flush) => {
                        return out.reply(request.id, IoResult::ok(dcd_engine::Buf::none()));
                    }
                    (Twist::Stall, Io::Flush) => return self.stalled.push_back(request.id),
                    (Twist::DropFua, Io::Write { at, buf, .. }) => {
                        Io::Write { at, buf, durability: Durability::Volatile }
                    }
                    (Twist::Through, Io::Write { at, buf, .. }) => {
                        Io::Write { at, buf, durability: Durability::Durable }
                    }
                    (Twist::Through, Io::WriteZeroes { extent, unmap, .. }) => {
                        Io::WriteZeroes { extent, unmap, durability: Durability::Durable }
                    }
                    (_, io) => io,
                };
                out.submit(Port(0), OpId(request.id.0), io);
            }
            Event::Completed { op, result } => out.reply(RequestId(op.0), result),
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        None
    }

    fn geometry(&self) -> Geometry {
        // A discard cannot be made durable, so a layer that promises `always` does not offer it.
        let below = self.geometry.expect("active");
        Geometry { discards: below.discards && self.twist != Twist::Through, ..below }
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        self.geometry = Some(below.geometry(Port(0)));
        Ok(())
    }
}

fn rig(seed: u64, promise: Promise, twist: Twist, faults: &FaultPlan) -> Rig {
    let geometry = Geometry { discards: true, ..Geometry::plain(2 * SECTORS) };
    let mut disk = MemDisk::new(geometry, LATENCY, seed);
    let mut bytes = vec![0; (SECTORS * 512) as usize];
    crate::stamp::stamp(&mut bytes, Lba(0), 0, seed);
    disk.put(Lba(SECTORS), &bytes);
    disk.set_faults(faults.clone());
    let build = move |geometries: &[Geometry]| {
        let mut builder = StackBuilder::new();
        let device = builder.device(geometries[0]);
        let extent = Extent::new(Lba(SECTORS), SECTORS);
        let slice = builder.layer("slice", Box::new(Slice::new(extent)), &[device]);
        let twisted = Twisted { twist, geometry: None, stalled: VecDeque::new() };
        let root = builder.layer("twisted", Box::new(twisted), &[slice]);
        builder.finish(root)
    };
    Rig {
        disks: vec![disk],
        base: vec![Value::Write(0); SECTORS as usize],
        build: Box::new(build),
        promise,
        delay_max: Nanos::ZERO,
        overlaps: false,
        about: "a slice".into(),
    }
}

fn explored(promise: Promise, twist: Twist, faults: FaultPlan, states: u64) -> Explored {
    let subject = |seed| rig(seed, promise, twist, &faults);
    explore(&ExploreConfig::new(11, states), &subject, &mut |_| {})
}

#[track_caller]
fn caught(promise: Promise, twist: Twist, faults: FaultPlan) -> Violation {
    let violation = explored(promise, twist, faults, 1000).violation.expect("caught within 1,000 states");
    assert!(!violation.story.is_empty());
    violation
}

#[test]
fn a_slice_of_a_disk_keeps_the_promise_of_a_disk() {
    let explored = explored(Promise::Flush, Twist::None, FaultPlan::default(), 2000);
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
    let explored = explored(Promise::Always, Twist::Through, FaultPlan::default(), 2000);
    if let Some(violation) = explored.violation {
        panic!("{violation}");
    }
}

#[test]
fn the_same_seed_explores_the_same_states() {
    let one = |seed| {
        let subject = |run| rig(run, Promise::Flush, Twist::None, &FaultPlan::default());
        explore(&ExploreConfig::new(seed, 500), &subject, &mut |_| {}).counts
    };
    assert_eq!(one(3), one(3));
    assert_ne!(one(3).trace, one(4).trace);
}

#[test]
fn a_disk_that_ignores_flushes_is_caught() {
    caught(Promise::Flush, Twist::None, FaultPlan::liar());
}

#[test]
fn a_layer_that_swallows_flushes_is_caught() {
    caught(Promise::Flush, Twist::SwallowFlushes, FaultPlan::default());
}

#[test]
fn a_layer_that_drops_fua_is_caught() {
    caught(Promise::Flush, Twist::DropFua, FaultPlan::default());
}

#[test]
fn a_plain_disk_keeps_neither_always_nor_order() {
    caught(Promise::Always, Twist::None, FaultPlan::default());
    let violation = caught(Promise::Ordered, Twist::None, FaultPlan::default());
    assert!(violation.what.contains("prefix") || violation.what.contains("took more"), "{}", violation.what);
}

#[test]
fn a_request_that_is_never_answered_is_caught_and_replayed() {
    let violation = caught(Promise::Flush, Twist::Stall, FaultPlan::default());
    assert!(violation.what.contains("never answered"), "{}", violation.what);
    let subject = |seed| rig(seed, Promise::Flush, Twist::Stall, &FaultPlan::default());
    let again = replay(&ExploreConfig::new(11, 1000), violation.run_seed, &subject).expect("the same again");
    assert_eq!((again.what, again.story), (violation.what, violation.story));
}
