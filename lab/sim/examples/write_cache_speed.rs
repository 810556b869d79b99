//! Measures how fast the write cache runs with everything under it: requests through the cache, its policies, its queue and a modelled
//! disk, in the virtual driver, on one core.
//!
//! `cargo run --release -p dcd-sim --example write_cache_speed`
//!
//! Each policy runs three times, in turns with the others; shown are the median, the lowest and the highest. The hash of the trace is that of
//! everything that the disk was asked for: a change that makes the cache faster leaves it as it is.
//!
//! The cache is that of Biswas, Ramakrishnan and Towsley 1993: blocks of 512 bytes, 1 MiB for writes and 2 MiB for reads,
//! thresholds of 95 and 40 %, full track piggybacking, before an RA81. Requests of one to eight blocks, three in five of
//! them writes, four a second; four in five go to one of 2000 places, the others anywhere.

// An example is a program: it has a clock and reads files.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::error::Error;

use dcd_crash::{BlankDisk, DriverProgress, Latency, SimRng, VirtualDriver};
use dcd_engine::destage::what::WhatPolicy;
use dcd_engine::{Buf, Durability, Extent, Geometry, Io, Lba, Nanos, Pump, RequestId, StackBuilder};
use dcd_model::write_cache::{Piggyback, RegionUnit, WriteCache, WriteCacheConfig};
use dcd_model::{Disk, DiskConfig, Drive, Scheduler, disk_map, drive};

const REQUESTS: usize = 1_000_000;
const HOT: u64 = 2000;
const ROUNDS: usize = 3;

struct Arrival {
    at: Nanos,
    extent: Extent,
    write: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let drive = drive::builtin("ra81")?;
    let arrivals = arrivals(drive.sectors());
    println!("{}, {} requests", drive.name(), arrivals.len());
    let mut rates: [Vec<f64>; WhatPolicy::ALL.len()] = Default::default();
    let mut traces = [0; WhatPolicy::ALL.len()];
    for _ in 0..ROUNDS {
        for (index, what) in WhatPolicy::ALL.into_iter().enumerate() {
            let (rate, trace) = run(&drive, what, &arrivals)?;
            rates[index].push(rate);
            traces[index] = trace;
        }
    }
    for (index, what) in WhatPolicy::ALL.into_iter().enumerate() {
        rates[index].sort_by(f64::total_cmp);
        let (low, median, high) = (rates[index][0], rates[index][ROUNDS / 2], rates[index][ROUNDS - 1]);
        let trace = traces[index];
        println!("{what:?}: {median:.0} ({low:.0} to {high:.0}) requests/s of CPU, trace {trace:#018x}");
    }
    Ok(())
}

fn arrivals(sectors: u64) -> Vec<Arrival> {
    let mut rng = SimRng::new(1);
    let mut at = 0;
    let one = |_| {
        at += rng.range(0, 500_000_000);
        let hot = rng.chance(800);
        let place =
            if hot { rng.range(0, HOT - 1) * 7919 % (sectors / 8) } else { rng.range(0, sectors / 8 - 1) };
        let extent = Extent::new(Lba(place * 8), 1 + place * 5 % 8);
        Arrival { at: Nanos(at), extent, write: rng.chance(600) }
    };
    (0..REQUESTS).map(one).collect()
}

fn run(drive: &Drive, what: WhatPolicy, arrivals: &[Arrival]) -> Result<(f64, u64), Box<dyn Error>> {
    let geometry = Geometry { volatile_cache: false, ..Geometry::plain(drive.sectors()) };
    let mut builder = StackBuilder::new();
    let device = builder.device(geometry);
    let disk = DiskConfig { queue: Scheduler::Fcfs, ..DiskConfig::default() };
    let disk = builder.layer("disk", Box::new(Disk::with_drive(drive.clone(), &disk)), &[device]);
    let config = WriteCacheConfig {
        non_volatile: true,
        what,
        piggyback: Piggyback::Full,
        ..WriteCacheConfig::default()
    };
    let cache = WriteCache::new(config, vec![disk_map(drive, RegionUnit::Track)]);
    let root = builder.layer("cache", Box::new(cache), &[disk]);
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(vec![BlankDisk::new(geometry, Latency::INSTANT, 1)]);
    stack.activate(&mut driver)?;
    let begin = driver.now();
    let cpu = cpu_seconds();
    for (index, arrival) in arrivals.iter().enumerate() {
        driver.set_alarm(begin + arrival.at, index as u64);
        while driver.step(&mut stack) != DriverProgress::Alarm(index as u64) {
            while driver.take_reply().is_some() {}
        }
        let (at, buf) = (arrival.extent.start, Buf::blank(arrival.extent.sectors as usize * 512));
        let io = match arrival.write {
            true => Io::Write { at, buf, durability: Durability::Volatile },
            false => Io::Read { at, buf },
        };
        driver.request(&mut stack, RequestId(index as u64), io);
    }
    while driver.step(&mut stack) != DriverProgress::Idle {
        while driver.take_reply().is_some() {}
    }
    Ok((arrivals.len() as f64 / (cpu_seconds() - cpu).max(1e-3), driver.trace_hash()))
}

/// Returns the user and system time of this process in seconds; the kernel counts hundredths.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    after_name.split_whitespace().skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
        / 100.0
}
