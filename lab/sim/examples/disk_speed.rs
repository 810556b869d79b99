//! Measures the speed of the disk model and prints its figures: a million random 4 KiB requests to an Atlas 10K in full detail, through
//! the model's controller alone and through the whole virtual driver; or the requests of a file in DiskSim's ASCII format.
//!
//! `cargo run --release -p dcd-sim --example disk_speed`
//! `cargo run --release -p dcd-sim --example disk_speed -- TRACE [DRIVE] [SCHEDULER] [DISKS]`
//!
//! Each device of a trace gets a disk of its own, its write cache on; with more `DISKS`, the others are there and rest.

// An example is a program: it has a clock and reads files.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::error::Error;
use std::time::Instant;

use dcd_crash::{BlankDisk, DriverProgress, Latency, SimRng, VirtualDriver};
use dcd_engine::{
    Buf, Durability, Extent, Geometry, Io, Lba, Nanos, Pump, RequestId, Stack, StackBuilder, Target,
};
use dcd_model::{Access, Controller, Disk, DiskConfig, Drive, Scheduler, Served, WriteCache, drive};

/// The rate of the bus on which the Atlas was measured: 0.099 ms for a block.
const BUS: u64 = 5_171_717;

#[derive(Clone, Copy)]
struct Arrival {
    at: Nanos,
    device: usize,
    extent: Extent,
    read: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, scheduler) = (arguments.get(1), arguments.get(2));
    let atlas = drive::builtin(name.map_or("atlas-10k", String::as_str))?.with_bus(BUS)?;
    let scheduler = match scheduler.map_or("fcfs", String::as_str) {
        "fcfs" => Scheduler::Fcfs,
        "look" => Scheduler::Look,
        "c-look" => Scheduler::CLook,
        "sstf" => Scheduler::Sstf,
        "sptf" => Scheduler::Sptf,
        other => return Err(format!("no scheduler is called {other}").into()),
    };
    let arrivals = match arguments.first() {
        Some(file) => read(&std::fs::read_to_string(file)?, atlas.sectors())?,
        None => random(1_000_000, atlas.sectors()),
    };
    let devices = arrivals.iter().map(|arrival| arrival.device).max().map_or(1, |last| last + 1);
    let disks = arguments.get(3).map_or(Ok(devices), |disks| disks.parse())?;
    if disks < devices {
        return Err(format!("the trace has {devices} devices, and {disks} disks are too few").into());
    }
    println!("{}, {} requests to {devices} of {disks} disks, {scheduler:?}", atlas.name(), arrivals.len());
    for _ in 0..3 {
        if devices == 1 && scheduler == Scheduler::Fcfs {
            through_controller(&atlas, &arrivals);
        }
        through_driver(&atlas, scheduler, disks, &arrivals);
    }
    Ok(())
}

/// 60 requests a second, two in three of them reads.
fn random(count: usize, sectors: u64) -> Vec<Arrival> {
    let mut rng = SimRng::new(1);
    let mut at = 0;
    let one = |_| {
        at += rng.range(0, 33_333_333);
        let extent = Extent::new(Lba(rng.range(0, sectors / 8 - 1) * 8), 8);
        Arrival { at: Nanos(at), device: 0, extent, read: rng.chance(660) }
    };
    (0..count).map(one).collect()
}

/// Milliseconds, device, first block, blocks, flags (1: read); devices are numbered as they come.
fn read(text: &str, sectors: u64) -> Result<Vec<Arrival>, Box<dyn Error>> {
    let mut devices: Vec<u64> = Vec::new();
    let mut arrivals = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [at, device, first, count, flags] = words[..] else { return Err("not five words".into()) };
        let device: u64 = device.parse()?;
        let known = devices.iter().position(|known| *known == device);
        let device = known.unwrap_or_else(|| {
            devices.push(device);
            devices.len() - 1
        });
        let count: u64 = count.parse::<u64>()?.clamp(1, 4096);
        let extent = Extent::new(Lba(first.parse::<u64>()? % (sectors - count)), count);
        let read = u64::from_str_radix(flags, 16)? & 1 == 1;
        arrivals.push(Arrival { at: Nanos((at.parse::<f64>()? * 1e6) as u64), device, extent, read });
    }
    Ok(arrivals)
}

/// Requests in a second of this processor, whatever else uses it; and in a second on the wall.
struct Clock {
    cpu: f64,
    wall: Instant,
}

impl Clock {
    fn start() -> Clock {
        Clock { cpu: cpu_seconds(), wall: Instant::now() }
    }

    fn rate(&self, requests: usize) -> String {
        let rate = |seconds: f64| requests as f64 / seconds.max(1e-3);
        let (cpu, wall) = (cpu_seconds() - self.cpu, self.wall.elapsed().as_secs_f64());
        format!("{:>9.0} requests/s of CPU, {:>9.0} on the wall", rate(cpu), rate(wall))
    }
}

/// Returns the user and system time of this process in seconds; the kernel counts hundredths.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}

fn through_controller(drive: &Drive, arrivals: &[Arrival]) {
    let mut controller = Controller::new(drive.clone());
    let mut free = Nanos::ZERO;
    let (mut response, mut seek, mut rotation, mut transfer) = (0, 0, 0, 0);
    let (mut hits, mut busy) = (0, 0);
    let clock = Clock::start();
    for arrival in arrivals {
        let start = free.max(arrival.at);
        controller.rest(free, start, false);
        while controller.take_destaged(start).is_some() {}
        let access = if arrival.read { Access::Read } else { Access::WriteBehind };
        let service = controller.serve(start, start, access, arrival.extent);
        free = service.end;
        response += service.end.since(arrival.at).0;
        busy += service.end.since(start).0;
        seek += service.seek.0;
        rotation += service.rotation.0;
        transfer += service.transfer.0;
        hits += u64::from(arrival.read && service.served == Served::Cache);
    }
    let rate = clock.rate(arrivals.len());
    let count = arrivals.len() as f64;
    let mean = |sum: u64| sum as f64 / count / 1e6;
    println!(
        "controller: {rate}; mean ms: response {:.3}, service {:.3}, seek {:.4}, rotation {:.4}, transfer {:.4}; \
         read hits {:.4} of all",
        mean(response),
        mean(busy),
        mean(seek),
        mean(rotation),
        mean(transfer),
        hits as f64 / count
    );
}

fn stack(drive: &Drive, scheduler: Scheduler) -> Stack {
    let mut builder = StackBuilder::new();
    let device = builder.device(Geometry { volatile_cache: false, ..Geometry::plain(drive.sectors()) });
    let config = DiskConfig {
        queue: scheduler,
        queue_depth: (scheduler != Scheduler::Fcfs).then_some(4096),
        write_cache: WriteCache::IgnoresFua,
        ..DiskConfig::default()
    };
    let root: Target = builder.layer("disk", Box::new(Disk::with_drive(drive.clone(), &config)), &[device]);
    builder.finish(root)
}

/// A disk on its own does not know of the others, so each has a driver, one after the other.
fn through_driver(drive: &Drive, scheduler: Scheduler, disks: usize, arrivals: &[Arrival]) {
    let mut split: Vec<Vec<Arrival>> = vec![Vec::new(); disks];
    for arrival in arrivals {
        split[arrival.device].push(*arrival);
    }
    let clock = Clock::start();
    let mut response = 0;
    let mut max = 0;
    for arrivals in &split {
        let geometry = Geometry { volatile_cache: false, ..Geometry::plain(drive.sectors()) };
        let mut driver = VirtualDriver::new(vec![BlankDisk::new(geometry, Latency::INSTANT, 1)]);
        let mut stack = stack(drive, scheduler);
        stack.activate(&mut driver).expect("the drive fits");
        let mut next = 0;
        let mut answered = 0;
        while answered < arrivals.len() {
            if next == 0 {
                driver.set_alarm(arrivals[0].at, 0);
                next = 1;
            }
            if let DriverProgress::Alarm(index) = driver.step(&mut stack) {
                let arrival = &arrivals[index as usize];
                if next < arrivals.len() {
                    driver.set_alarm(arrivals[next].at, next as u64);
                    next += 1;
                }
                let (at, buf) = (arrival.extent.start, Buf::blank(arrival.extent.sectors as usize * 512));
                let io = match arrival.read {
                    true => Io::Read { at, buf },
                    false => Io::Write { at, buf, durability: Durability::Volatile },
                };
                driver.request(&mut stack, RequestId(index), io);
            }
            while let Some((id, _)) = driver.take_reply() {
                let took = driver.now().since(arrivals[id.0 as usize].at).0;
                response += took;
                max = max.max(took);
                answered += 1;
            }
        }
    }
    let rate = clock.rate(arrivals.len());
    let count = arrivals.len() as f64;
    println!(
        "driver:     {rate}; mean response {:.3} ms, longest {:.0} ms",
        response as f64 / count / 1e6,
        max as f64 / 1e6
    );
}
