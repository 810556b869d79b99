//! Measures how long recovery of a full log takes on a spinning disk, in virtual time, and how much of the log it reads.
//!
//! A log is filled by 4 KiB writes through the log cache, with destaging held back; then the power goes, and the same log is
//! recovered on a modelled drive. The log's headers are real, its payload is zeroes (which cost no memory here), so what
//! is read is what a real recovery reads. Beside it: reading the whole log from end to end at the drive's own speed.
//!
//! `cargo run --release -p dcd-sim --example recovery`

#[allow(dead_code)] // Each program uses a part of it.
mod common;

use dcd_crash::{BlankDisk, Latency, SimDevice, SimRng, VirtualDriver};
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig, WhenPolicy};
use dcd_engine::{
    BlockDevice, Buf, Durability, Geometry, Io, Lba, Nanos, Pump, RequestId, SECTOR_BYTES, Stack,
    StackBuilder, StackDevice,
};
use dcd_model::{Disk, DiskConfig, Drive};

use common::{DRIVES, Shared, Sparse, StandIn, Timed, drive_for};

const GIB: u64 = 1 << 30;
const DATA_SECTORS: u64 = 64 * GIB / SECTOR_BYTES;
/// Writes asked for at once while the log is filled.
const DEPTH: u64 = 64;

fn driver(log: &Shared) -> VirtualDriver<Box<dyn SimDevice>> {
    let data = BlankDisk::new(Geometry::plain(DATA_SECTORS), Latency::INSTANT, 1);
    VirtualDriver::new(vec![Box::new(Timed::new(log, Nanos::ZERO)), Box::new(data)])
}

fn stack(log_geometry: Geometry, spindle: Option<Drive>) -> Stack {
    let mut builder = StackBuilder::new();
    let mut log = builder.device(log_geometry);
    let data = builder.device(Geometry::plain(DATA_SECTORS));
    if let Some(drive) = spindle {
        let disk = Disk::with_drive(drive, &DiskConfig::default());
        log = builder.layer("spindle", Box::new(disk), &[log]);
    }
    let config = LogCacheConfig { when: WhenPolicy::WhenFull, bypass_bytes: 0, ..LogCacheConfig::default() };
    let root = builder.layer("cache", Box::new(LogCache::new(config)), &[log, data]);
    builder.finish(root)
}

/// Fills a fresh log; a flush after every `flush_every` writes.
fn filled(log_bytes: u64, sequential: bool, flush_every: u64) -> Shared {
    let sectors = FIRST_SEGMENT_SECTOR + log_bytes / SECTOR_BYTES;
    let geometry = Geometry::plain(sectors);
    let mut log = Shared::new(geometry);
    let mut data = StandIn { sectors: DATA_SECTORS };
    format(&mut log, &mut data, &FormatOptions::new([1; 16], [2; 16])).expect("formatted");
    let mut driver = driver(&log);
    let mut stack = stack(geometry, None);
    stack.activate(&mut driver).expect("an empty log starts");
    let mut rng = SimRng::new(7);
    let lines = DATA_SECTORS / 8;
    let (mut asked, mut open) = (0, 0);
    // Two segments are left: the last ones are only filled under pressure, which would destage.
    let room = log_bytes - 2 * (512 << 10);
    while log_used(&stack) < room {
        for _ in 0..DEPTH {
            asked += 1;
            open += 1;
            let line = if sequential { asked % lines } else { rng.below(lines) };
            let io = Io::Write { at: Lba(line * 8), buf: Buf::blank(4096), durability: Durability::Volatile };
            driver.request(&mut stack, RequestId(asked), io);
            if asked % flush_every == 0 {
                open += 1;
                driver.request(&mut stack, RequestId(u64::MAX - asked), Io::Flush);
            }
        }
        while open > 0 {
            driver.step(&mut stack);
            while let Some((_, result)) = driver.take_reply() {
                result.status.expect("written");
                open -= 1;
            }
        }
    }
    log
}

fn log_used(stack: &Stack) -> u64 {
    let (cache, _) = stack.layers().next().expect("the cache is the only layer");
    let status = stack.layer(cache).status(Nanos::ZERO).to_json();
    status["used_bytes"].as_u64().expect("the log cache tells")
}

/// Reads the whole log in requests of 1 MiB: the time that the drive needs.
fn end_to_end(log: &Shared, drive: Drive) -> Nanos {
    let geometry = BlockDevice::geometry(log);
    let mut driver = driver(log);
    let mut builder = StackBuilder::new();
    let device = builder.device(geometry);
    builder.device(Geometry::plain(DATA_SECTORS));
    let root = builder.layer("spindle", Box::new(Disk::with_drive(drive, &DiskConfig::default())), &[device]);
    let mut stack = builder.finish(root);
    stack.activate(&mut driver).expect("active");
    let mut device = StackDevice { stack: &mut stack, pump: &mut driver, target: root };
    let mut at = 0;
    while at < geometry.sectors {
        let sectors = (geometry.sectors - at).min(2048);
        let buf = Buf::blank((sectors * SECTOR_BYTES) as usize);
        device.run(Io::Read { at: Lba(at), buf }).status.expect("read");
        at += sectors;
    }
    driver.now()
}

fn main() {
    println!(
        "{:<17} {:>8} {:<34} {:>9} {:>8} {:>10} {:>7} {:>11} {:>6}",
        "drive",
        "log",
        "filled by 4 KiB writes",
        "seconds",
        "reads",
        "MiB read",
        "of log",
        "end to end",
        "ratio"
    );
    for gib in [1, 16] {
        for (sequential, flush_every, about) in [
            (false, 32, "random, a flush after 32"),
            (true, u64::MAX, "sequential, never a flush"),
            (false, 1, "random, each with a flush"),
        ] {
            // Sixteen million headers do not fit in memory here.
            if gib == 16 && flush_every == 1 {
                continue;
            }
            let crashed = filled(gib * GIB, sequential, flush_every);
            for name in DRIVES {
                // Each recovery writes a superblock, from which the next one would know more.
                let log = crashed.copy();
                let bytes = gib * GIB + (1 << 20);
                let (drive, note) = drive_for(name, bytes);
                let whole = end_to_end(&log, drive.clone());
                (log.0.borrow_mut().reads, log.0.borrow_mut().bytes_read) = (0, 0);
                let mut driver = driver(&log);
                let mut stack = stack(BlockDevice::geometry(&log), Some(drive));
                stack.activate(&mut driver).expect("recovered");
                let Sparse { reads, bytes_read, .. } = &*log.0.borrow();
                println!(
                    "{name:<17} {gib:>4} GiB {about:<34} {:>9.2} {reads:>8} {:>10.0} {:>6.0}% {:>11.2} {:>5.2}x{note}",
                    driver.now().as_secs_f64(),
                    *bytes_read as f64 / f64::from(1 << 20),
                    100.0 * *bytes_read as f64 / (gib * GIB) as f64,
                    whole.as_secs_f64(),
                    driver.now().as_secs_f64() / whole.as_secs_f64(),
                );
            }
        }
    }
}
