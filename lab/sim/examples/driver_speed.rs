//! Counts the events that the virtual driver carries out in a second of real time.
//!
//! `cargo run --release -p dcd-sim --example driver_speed`

use std::time::Instant;

use dcd_crash::{BlankDisk, DriverProgress, Latency, MemDisk, SimDevice, SimRng, VirtualDriver};
use dcd_engine::layers::slice::Slice;
use dcd_engine::{Buf, Durability, Extent, Geometry, Io, Lba, Nanos, RequestId, Stack, StackBuilder};

const SECTORS: u64 = 1 << 16;
const REQUESTS: u64 = 2_000_000;
const DEPTH: u64 = 32;

fn slice() -> Stack {
    let mut builder = StackBuilder::new();
    let device = builder.device(Geometry::plain(SECTORS));
    let extent = Extent::new(Lba(0), SECTORS);
    let root = builder.layer("slice", Box::new(Slice::new(extent)), &[device]);
    builder.finish(root)
}

fn run(name: &str, device: Box<dyn SimDevice>, payload: bool) {
    let mut driver = VirtualDriver::new(vec![device]);
    let mut stack = slice();
    stack.activate(&mut driver).expect("active");
    let mut rng = SimRng::new(1);
    let mut spare: Vec<Buf> =
        (0..DEPTH).map(|_| if payload { Buf::zeroed(4096) } else { Buf::blank(4096) }).collect();
    let (mut asked, mut answered) = (0, 0);
    let started = Instant::now();
    while answered < REQUESTS {
        while asked < REQUESTS
            && let Some(buf) = spare.pop()
        {
            let at = Lba(rng.below(SECTORS / 8) * 8);
            let io = Io::Write { at, buf, durability: Durability::Durable };
            driver.request(&mut stack, RequestId(asked), io);
            asked += 1;
        }
        assert_ne!(driver.step(&mut stack), DriverProgress::Idle);
        while let Some((_, result)) = driver.take_reply() {
            answered += 1;
            spare.push(result.buf);
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{name}: {:.2} million requests/s, trace {:#018x}",
        REQUESTS as f64 / seconds / 1e6,
        driver.trace_hash()
    );
}

fn main() {
    let geometry = Geometry::plain(SECTORS);
    let latency = Latency::Uniform { min: Nanos(1_000), max: Nanos(90_000) };
    run("no bytes      ", Box::new(BlankDisk::new(geometry, latency, 1)), false);
    run("one image     ", Box::new(MemDisk::instant(geometry)), true);
    run("can be cut    ", Box::new(MemDisk::new(geometry, latency, 1)), true);
}
