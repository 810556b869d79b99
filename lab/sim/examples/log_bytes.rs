//! Bytes of log for one fsynced write of 4 KiB: clients that each write 4 KiB somewhere, flush, think, and write again.
//!
//! `cargo run --release -p dcd-sim --example log_bytes`
//!
//! In virtual time, so the counts are the same in every run. The log is on an SSD (20 to 100 us for an operation) or on a
//! modelled disk, without and with gaps that save a flush the wait for a revolution. The clients of the last one, a current disk, think
//! longer, as applications do. Gaps are counted apart, as is what stays empty at the end of a segment: nothing is written there.

use dcd_crash::{BlankDisk, DriverProgress, Latency, MemDisk, SimDevice, SimRng, VirtualDriver};
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig};
use dcd_engine::{
    Buf, Durability, Geometry, Io, LINE_BYTES, LINE_SECTORS, Layer, LayerIndex, Lba, Nanos, RequestId,
    SECTOR_BYTES, Stack, StackBuilder, Target,
};
use dcd_model::{Disk, DiskConfig};
use dcd_sim::Offline;

const LOG_SECTORS: u64 = (256 << 20) / SECTOR_BYTES;
const DATA_SECTORS: u64 = (16 << 30) / SECTOR_BYTES;
const THINK_MAX: Nanos = Nanos::from_micros(100);
const LONG_THINK_MAX: Nanos = Nanos::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOn {
    Ssd,
    Disk,
    DiskWithGaps,
    CurrentDisk,
}

impl LogOn {
    fn think_max(self) -> Nanos {
        if self == LogOn::CurrentDisk { LONG_THINK_MAX } else { THINK_MAX }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Counted {
    pub writes: u64,
    /// Bytes of log records, headers and padding included.
    pub log_bytes: u64,
    pub log_writes: u64,
    pub gap_bytes: u64,
    pub rest_bytes: u64,
    pub elapsed: Nanos,
}

impl Counted {
    pub fn bytes_per_write(&self) -> f64 {
        self.log_bytes as f64 / self.writes as f64
    }
}

fn driver(log_block_bytes: u32, log_on: LogOn) -> (VirtualDriver, LogCacheConfig) {
    let latency = match log_on {
        LogOn::Ssd => Latency::Uniform { min: Nanos::from_micros(20), max: Nanos::from_micros(100) },
        _ => Latency::INSTANT,
    };
    let log = MemDisk::new(Geometry::plain(LOG_SECTORS), latency, 1);
    let mut data = BlankDisk::new(Geometry::plain(DATA_SECTORS), Latency::INSTANT, 2);
    let options = FormatOptions {
        log_block_bytes: Some(log_block_bytes),
        ..FormatOptions::new(*b"a cache measured", *b"its data disk...")
    };
    // Format measures the disk.
    let mut builder = StackBuilder::new();
    let part = log_part(&mut builder, SimDevice::geometry(&log), log_on);
    let offline = Offline::start(builder.finish(part), VirtualDriver::new(vec![log])).expect("active");
    format(&mut offline.part(part), &mut Blank(&mut data), &options).expect("formatted");
    let log = offline.into_pump().into_devices().remove(0);
    let config = LogCacheConfig { follow_head: log_on != LogOn::Disk, ..LogCacheConfig::default() };
    (VirtualDriver::new(vec![Box::new(log) as Box<dyn SimDevice>, Box::new(data)]), config)
}

fn log_part(builder: &mut StackBuilder, geometry: Geometry, log_on: LogOn) -> Target {
    let log = builder.device(geometry);
    if log_on == LogOn::Ssd {
        return log;
    }
    let mut config = DiskConfig::default();
    if log_on == LogOn::CurrentDisk {
        config.drive = "nearline-2018".to_owned();
    }
    let disk = Disk::new(&config).expect("a drive that is always there");
    builder.layer("disk", Box::new(disk), &[log])
}

/// A device in virtual time, for work that runs before time begins.
struct Blank<'a>(&'a mut BlankDisk);

impl dcd_engine::BlockDevice for Blank<'_> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&mut self, io: Io) -> dcd_engine::IoResult {
        let ticket = self.0.submit(Nanos::ZERO, io);
        self.0.finish(ticket.done, ticket.token)
    }
}

fn stack(driver: &VirtualDriver, config: LogCacheConfig, log_on: LogOn) -> (Stack, LayerIndex) {
    let mut builder = StackBuilder::new();
    let geometries = driver.geometries();
    let log = log_part(&mut builder, geometries[0], log_on);
    let data = builder.device(geometries[1]);
    let cache: Box<dyn Layer> = Box::new(LogCache::new(config));
    let root = builder.layer("cache", cache, &[log, data]);
    let stack = builder.finish(root);
    let index = LayerIndex(stack.layer_count() - 1);
    (stack, index)
}

/// Measures so many clients, each with so many fsynced writes.
pub fn measure(clients: u64, writes_each: u64, log_block_bytes: u32, log_on: LogOn) -> Counted {
    let (mut driver, config) = driver(log_block_bytes, log_on);
    let (mut stack, cache) = stack(&driver, config, log_on);
    stack.activate(&mut driver).expect("active");
    let mut rng = SimRng::new(3);
    let started = dcd_engine::Pump::now(&driver);
    for client in 0..clients {
        driver.set_alarm(started + Nanos(rng.below(log_on.think_max().0)), client);
    }
    let mut left = clients * writes_each;
    let mut flushed = 0;
    // A client's write and its flush have one name: they are never in flight together.
    let mut flushing = vec![false; clients as usize];
    while flushed < clients * writes_each {
        match driver.step(&mut stack) {
            DriverProgress::Alarm(client) if left > 0 => {
                left -= 1;
                let at = Lba(rng.below(DATA_SECTORS / LINE_SECTORS) * LINE_SECTORS);
                let buf = Buf::blank(LINE_BYTES as usize);
                let io = Io::Write { at, buf, durability: Durability::Volatile };
                driver.request(&mut stack, RequestId(client), io);
            }
            DriverProgress::Idle => panic!("nobody is left to go on"),
            _ => {}
        }
        while let Some((id, result)) = driver.take_reply() {
            result.status.expect("nothing fails here");
            let client = id.0 as usize;
            if flushing[client] {
                flushed += 1;
                driver
                    .set_alarm(dcd_engine::Pump::now(&driver) + Nanos(rng.below(log_on.think_max().0)), id.0);
            } else {
                driver.request(&mut stack, id, Io::Flush);
            }
            flushing[client] = !flushing[client];
        }
    }
    let elapsed = dcd_engine::Pump::now(&driver).since(started);
    let status = stack.layer(cache).status(started + elapsed).to_json();
    let count = |name: &str| status["statistics"][name].as_u64().expect("a counter");
    assert_eq!(count("destage_batches"), 0, "the log is not full");
    Counted {
        writes: flushed,
        log_bytes: count("log_bytes"),
        log_writes: count("log_writes"),
        gap_bytes: count("log_gap_bytes"),
        rest_bytes: count("log_rest_bytes"),
        elapsed,
    }
}

#[allow(dead_code)] // The test of this name uses the measurement, not the program.
fn main() {
    println!("bytes of log for one fsynced write of 4 KiB");
    println!(
        "{:>13} {:>7} {:>8} {:>9} {:>12} {:>6} {:>11} {:>12}",
        "log on", "block", "clients", "written", "writes/record", "gaps", "segment end", "ms for each"
    );
    for log_on in [LogOn::Ssd, LogOn::Disk, LogOn::DiskWithGaps, LogOn::CurrentDisk] {
        for log_block_bytes in [512, 4096] {
            for clients in [1, 2, 8, 32] {
                let counted = measure(clients, 2048 / clients, log_block_bytes, log_on);
                let each = |count: u64| count as f64 / counted.writes as f64;
                println!(
                    "{:>13} {log_block_bytes:>7} {clients:>8} {:>9.0} {:>12.2} {:>6.0} {:>11.0} {:>12.3}",
                    format!("{log_on:?}"),
                    counted.bytes_per_write(),
                    counted.writes as f64 / counted.log_writes as f64,
                    each(counted.gap_bytes),
                    each(counted.rest_bytes),
                    counted.elapsed.as_millis_f64() / counted.writes as f64,
                );
            }
        }
    }
}
