//! Two runs from one seed are one run, and time passes only where devices or deadlines say so.

use dcd_engine::layers::slice::Slice;
use dcd_engine::{Durability, Extent, Lba, StackBuilder};

use super::*;
use crate::{BlankDisk, Latency, MemDisk, SimRng};

const LATENCY: Latency = Latency::Uniform { min: Nanos(1_000), max: Nanos(90_000) };

fn slice_over(geometry: Geometry) -> Stack {
    let mut builder = StackBuilder::new();
    let device = builder.device(geometry);
    let sectors = geometry.sectors / 2;
    let slice = builder.layer("slice", Box::new(Slice::new(Extent::new(Lba(sectors), sectors))), &[device]);
    builder.finish(slice)
}

fn run(seed: u64, requests: u64) -> (u64, Vec<RequestId>) {
    let mut driver = VirtualDriver::new(vec![MemDisk::new(Geometry::plain(1024), LATENCY, seed)]);
    let mut stack = slice_over(Geometry::plain(1024));
    stack.activate(&mut driver).expect("activated");
    let mut rng = SimRng::new(9);
    let mut order = Vec::new();
    for id in 0..requests {
        let (at, byte) = (Lba(rng.below(500)), rng.below(256) as u8);
        let io = match rng.below(3) {
            0 => Io::Read { at, buf: Buf::zeroed(512) },
            1 => Io::Write { at, buf: Buf::copy_of(&[byte; 1024]), durability: Durability::Volatile },
            _ => Io::Flush,
        };
        driver.request(&mut stack, RequestId(id), io);
        if id % 4 == 3 {
            driver.step(&mut stack);
        }
    }
    while driver.step(&mut stack) != DriverProgress::Idle {
        while let Some((id, result)) = driver.take_reply() {
            result.status.expect("nothing fails");
            order.push(id);
        }
    }
    (driver.trace_hash(), order)
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let (hash, order) = run(1, 300);
    assert_eq!((hash, &order), (run(1, 300).0, &run(1, 300).1));
    assert_ne!(hash, run(2, 300).0, "the latencies of another seed");
    assert_ne!(hash, run(1, 301).0, "one more request");
    assert_eq!(order.len(), 300);
    assert!(!order.is_sorted(), "completions come out of order");
}

#[test]
fn alarms_come_at_their_time_and_in_order() {
    let mut driver =
        VirtualDriver::new(vec![BlankDisk::new(Geometry::plain(8), Latency::Fixed(Nanos(50)), 1)]);
    let mut stack = slice_over(Geometry::plain(8));
    stack.activate(&mut driver).expect("activated");
    driver.set_alarm(Nanos(50), 1);
    driver.set_alarm(Nanos(20), 2);
    driver.request(&mut stack, RequestId(0), Io::Read { at: Lba(0), buf: Buf::blank(512) });
    let mut seen = Vec::new();
    loop {
        match driver.step(&mut stack) {
            DriverProgress::Idle => break,
            progress => seen.push((driver.now().0, progress, driver.take_reply().is_some())),
        }
    }
    // The alarm was set before the read was carried out, so it comes first at the same instant.
    assert_eq!(
        seen,
        [
            (20, DriverProgress::Alarm(2), false),
            (50, DriverProgress::Alarm(1), false),
            (50, DriverProgress::Moved, true)
        ]
    );
}

#[test]
fn an_observer_sees_every_write_while_it_is_in_flight() {
    let mut driver = VirtualDriver::new(vec![MemDisk::new(Geometry::plain(16), LATENCY, 1)]);
    let mut stack = slice_over(Geometry::plain(16));
    stack.activate(&mut driver).expect("activated");
    let seen = std::rc::Rc::new(std::cell::Cell::new((0, 0)));
    let counts = std::rc::Rc::clone(&seen);
    driver.observe(Box::new(move |moment, _devices: &[MemDisk]| {
        let (writes, flushes) = counts.get();
        counts.set((writes + moment.writes, flushes + moment.flushes));
    }));
    for id in 0..3 {
        let io = Io::Write { at: Lba(id), buf: Buf::zeroed(512), durability: Durability::Durable };
        driver.request(&mut stack, RequestId(id), io);
    }
    driver.request(&mut stack, RequestId(3), Io::Flush);
    while driver.step(&mut stack) != DriverProgress::Idle {}
    assert_eq!(seen.get(), (3, 1));
}
