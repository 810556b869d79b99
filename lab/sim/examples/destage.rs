//! Measures how long it takes to destage a full log, and to write the same blocks sorted to the same disk, in virtual time.
//!
//! A log of 256 MiB is filled with 4 KiB blocks at random places of a modelled disk of 4 GiB, with destaging held back; then it
//! is drained. The floor is the same set of blocks, sorted by address with neighbours merged, written to the same disk with as
//! many writes in flight, and flushed: no cache can destage them in less.
//!
//! With `gaps` it destages a log on its own device with and without the contiguity transform: blocks at random places of a
//! region that has two, four or sixteen times as many, with one operation in flight at a drive without a queue and with
//! 32. The rules are what the stride benchmark finds on the same modelled drive.
//!
//! With `sustained` it writes four times the log's size of 4 KiB blocks at random places, 32 in flight, with default settings, and then
//! destages what is left. The sorted rate is that of the same blocks, in the order of their arrival, written by logfuls: each logful is
//! one sorted sweep, with as many writes in flight, and a flush. A cache with this log can sort no more than that at a time. The share is
//! that of the rate after the first logful, while the log stays full.
//!
//! `cargo run --release -p dcd-sim --example destage [gaps|sustained]`

#[allow(dead_code)] // Each program uses a part of it.
mod common;

use std::collections::{BTreeMap, BTreeSet};

use dcd_crash::{DriverProgress, SimDevice, SimRng, VirtualDriver};
use dcd_engine::layers::slice::Slice;
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{Contiguity, LogCache, LogCacheConfig, Strides, WhenPolicy};
use dcd_engine::raid::stride::{StrideBench, StridePass, THRESHOLD};
use dcd_engine::{
    Buf, Control, Durability, Extent, Geometry, Io, LayerIndex, Lba, Nanos, Pump, Report, RequestId,
    SECTOR_BYTES, Stack, StackBuilder, Target,
};
use dcd_model::{Disk, DiskConfig, Drive};

use common::{DRIVES, Front, Shared, StandIn, Timed, drive_for};

const MIB: u64 = (1 << 20) / SECTOR_BYTES;
const DATA_SECTORS: u64 = 4096 * MIB;
const LOG_SECTORS: u64 = FIRST_SEGMENT_SECTOR + 256 * MIB;
/// A log that a batch of the default memory would be all of.
const SMALL_LOG_SECTORS: u64 = FIRST_SEGMENT_SECTOR + 16 * MIB;
/// A log on its own device: a small solid-state disk.
const LOG_LATENCY: Nanos = Nanos::from_micros(100);
/// The longest stride that is measured.
const STRIDE_MAX: u64 = 40;
/// Writes asked for at once while the log is filled.
const FILLING: u64 = 64;

type Driver = VirtualDriver<Box<dyn SimDevice>>;

struct Bench {
    stack: Stack,
    driver: Driver,
    cache: LayerIndex,
}

fn spindle(builder: &mut StackBuilder, drive: &Drive, sectors: u64, queue_depth: Option<usize>) -> Target {
    let device = builder.device(Geometry::plain(sectors));
    let disk = Disk::with_drive(drive.clone(), &DiskConfig { queue_depth, ..DiskConfig::default() });
    builder.layer("spindle", Box::new(disk), &[device])
}

/// A formatted cache over a log device and a disk, or over two slices of one disk, that destages only when it is full or told to.
fn cached(drive: &Drive, own_device: bool, queue_depth: Option<usize>, config: LogCacheConfig) -> Bench {
    let config = LogCacheConfig { when: WhenPolicy::WhenFull, bypass_bytes: 0, ..config };
    cached_as(drive, own_device, LOG_SECTORS, queue_depth, config)
}

fn cached_as(
    drive: &Drive,
    own_device: bool,
    log_sectors: u64,
    queue_depth: Option<usize>,
    config: LogCacheConfig,
) -> Bench {
    let mut builder = StackBuilder::new();
    let mut driver_devices: Vec<Box<dyn SimDevice>> = Vec::new();
    let mut device = |sectors, latency| {
        let device = Shared::new(Geometry::plain(sectors));
        driver_devices.push(Box::new(Timed::new(&device, latency)));
        device
    };
    let (ports, log) = if own_device {
        let log = device(log_sectors, LOG_LATENCY);
        device(DATA_SECTORS, Nanos::ZERO);
        let port = builder.device(Geometry::plain(log_sectors));
        ([port, spindle(&mut builder, drive, DATA_SECTORS, queue_depth)], log)
    } else {
        let whole = device(log_sectors + DATA_SECTORS, Nanos::ZERO);
        let disk = spindle(&mut builder, drive, log_sectors + DATA_SECTORS, queue_depth);
        let mut slice = |name, first, sectors| {
            let slice = Slice::new(Extent::new(Lba(first), sectors));
            builder.layer(name, Box::new(slice), &[disk])
        };
        ([slice("log", 0, log_sectors), slice("data", log_sectors, DATA_SECTORS)], whole)
    };
    let mut log = Front { device: log, sectors: log_sectors };
    let mut data = StandIn { sectors: DATA_SECTORS };
    format(&mut log, &mut data, &FormatOptions::new([1; 16], [2; 16])).expect("formatted");
    let root = builder.layer("cache", Box::new(LogCache::new(config)), &ports);
    let Target::Layer(cache) = root else { unreachable!("a cache is a layer") };
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(driver_devices);
    stack.activate(&mut driver).expect("an empty log starts");
    Bench { stack, driver, cache }
}

/// Writes random blocks of a region until so much of the log is used, or all of it but for what would make it destage; the
/// blocks that are in it.
fn fill(bench: &mut Bench, region: u64, log_sectors: u64) -> BTreeSet<u64> {
    let mut rng = SimRng::new(7);
    let mut blocks = BTreeSet::new();
    let mut asked = 0;
    let room = log_sectors.min(LOG_SECTORS - 4 * MIB) * SECTOR_BYTES;
    while bench.stack.layer(bench.cache).status(Nanos::ZERO).to_json()["used_bytes"].as_u64() < Some(room) {
        let writes = (0..FILLING).map(|_| {
            let block = rng.below(region / 8);
            blocks.insert(block);
            Io::Write { at: Lba(block * 8), buf: Buf::blank(4096), durability: Durability::Volatile }
        });
        for io in writes.chain([Io::Flush]) {
            asked += 1;
            bench.driver.request(&mut bench.stack, RequestId(asked), io);
        }
        let mut open = FILLING + 1;
        while open > 0 {
            assert_ne!(bench.driver.step(&mut bench.stack), DriverProgress::Idle);
            while bench.driver.take_reply().is_some() {
                open -= 1;
            }
        }
    }
    blocks
}

/// The time and the disk operations until everything is destaged.
fn drain(bench: &mut Bench) -> (Nanos, u64) {
    let begun = bench.driver.now();
    let before = operations(&bench.stack);
    bench.driver.control(&mut bench.stack, bench.cache, Control::Drain);
    loop {
        assert_ne!(bench.driver.step(&mut bench.stack), DriverProgress::Idle, "the drain ends");
        if let Some((_, report)) = bench.driver.take_report() {
            assert_eq!(report, Report::Drained);
            return (bench.driver.now().since(begun), operations(&bench.stack) - before);
        }
    }
}

/// Reads and writes that the modelled disk has served.
fn operations(stack: &Stack) -> u64 {
    let disk = stack.layers().find(|(_, name)| *name == "spindle").expect("there is a disk").0;
    let status = stack.layer(disk).status(Nanos::ZERO).to_json();
    ["read", "write"].iter().filter_map(|kind| status["requests"][kind].as_u64()).sum()
}

/// Writes the blocks sorted, `depth` at a time, and flushes.
fn sorted(drive: &Drive, blocks: &BTreeSet<u64>, first: u64, depth: usize) -> (Nanos, u64) {
    let mut builder = StackBuilder::new();
    let root = spindle(&mut builder, drive, first + DATA_SECTORS, None);
    let mut stack = builder.finish(root);
    let device = Shared::new(Geometry::plain(first + DATA_SECTORS));
    let mut driver: Driver = VirtualDriver::new(vec![Box::new(Timed::new(&device, Nanos::ZERO))]);
    stack.activate(&mut driver).expect("a disk starts");
    let mut runs: BTreeMap<u64, u64> = BTreeMap::new();
    for &block in blocks {
        match runs.last_entry() {
            Some(mut run) if run.key() + run.get() == block => *run.get_mut() += 1,
            _ => drop(runs.insert(block, 1)),
        }
    }
    let count = runs.len() as u64;
    let mut runs = runs.into_iter();
    let (mut open, mut asked) = (0, 0);
    loop {
        while open < depth
            && let Some((block, blocks)) = runs.next()
        {
            let buf = Buf::blank(blocks as usize * 4096);
            let io = Io::Write { at: Lba(first + block * 8), buf, durability: Durability::Volatile };
            driver.request(&mut stack, RequestId(asked), io);
            (open, asked) = (open + 1, asked + 1);
        }
        if open == 0 {
            break;
        }
        driver.step(&mut stack);
        while driver.take_reply().is_some() {
            open -= 1;
        }
    }
    stack.run_blocking(&mut driver, root, Io::Flush).status.expect("flushed");
    (driver.now(), count)
}

/// Returns the rules that the stride benchmark finds on a drive.
fn rules(drive: &Drive, queue_depth: usize) -> Contiguity {
    let span = 4 * MIB;
    let rule = |writes: bool| {
        let passes = (1..=STRIDE_MAX).map(|stride| {
            let at = Extent::new(Lba(stride * 2 * span), span);
            StridePass::strided(writes, at, stride)
        });
        let mut builder = StackBuilder::new();
        let disk = spindle(&mut builder, drive, DATA_SECTORS, Some(queue_depth));
        let root = builder.layer("strides", Box::new(StrideBench::new(passes)), &[disk]);
        let mut stack = builder.finish(root);
        let device = Shared::new(Geometry::plain(DATA_SECTORS));
        let mut driver: Driver = VirtualDriver::new(vec![Box::new(Timed::new(&device, Nanos::ZERO))]);
        stack.activate(&mut driver).expect("a disk starts");
        let times: Vec<f64> = (1..=STRIDE_MAX)
            .map(|_| {
                let begun = driver.now();
                stack.run_blocking(&mut driver, root, Io::Flush).status.expect("a pass");
                driver.now().since(begun).as_secs_f64()
            })
            .collect();
        let curve: Vec<_> = (1..=STRIDE_MAX).zip(times.iter().map(|time| time / times[0])).collect();
        Strides::from_curve(&curve, THRESHOLD)
    };
    Contiguity { read: rule(false), write: rule(true) }
}

fn gaps() {
    println!(
        "{:<17} {:>5} {:>6} {:>6} {:>8} {:>9} {:>9} {:>9} {:>10} {:>8} {:>6}",
        "drive",
        "depth",
        "reads<",
        "writes<",
        "region",
        "seconds",
        "writes",
        "filled",
        "writes",
        "reads",
        "ratio"
    );
    for name in DRIVES {
        for depth in [1, 32] {
            let (drive, note) = drive_for(name, (LOG_SECTORS + DATA_SECTORS) * SECTOR_BYTES);
            let contiguity = rules(&drive, depth);
            for region in [2, 4, 16] {
                let run = |contiguity: Option<Contiguity>| {
                    let config =
                        LogCacheConfig { destage_depth: depth, contiguity, ..LogCacheConfig::default() };
                    let mut bench = cached(&drive, true, Some(depth), config);
                    fill(&mut bench, region * 64 * MIB, 64 * MIB);
                    let (time, _) = drain(&mut bench);
                    let status = bench.stack.layer(bench.cache).status(Nanos::ZERO).to_json();
                    let count = |name: &str| status["statistics"][name].as_u64().unwrap_or(0);
                    (time.as_secs_f64(), count("destage_writes"), count("gap_reads"))
                };
                let (plain, writes, _) = run(None);
                let (filled, fewer, reads) = run(Some(contiguity.clone()));
                println!(
                    "{name:<17} {depth:>5} {:>6} {:>7} {:>8} {plain:>9.1} {writes:>9} {filled:>9.1} {fewer:>10} {reads:>8} {:>5.2}x{note}",
                    contiguity.read.max,
                    contiguity.write.max,
                    format!("x{region}"),
                    plain / filled,
                );
            }
        }
    }
}

const LOGFULS: usize = 4;
const IN_FLIGHT: usize = 32;

/// Writes the blocks in their order: how long each took until its answer, and when the first logful and all of them were answered.
fn write_all(bench: &mut Bench, blocks: &[u64], logful: usize) -> (Vec<Nanos>, Nanos, Nanos) {
    let mut begun = vec![Nanos::ZERO; blocks.len()];
    let mut times = Vec::with_capacity(blocks.len());
    let mut next = 0;
    let mut first_logful = Nanos::ZERO;
    while times.len() < blocks.len() {
        while next < blocks.len() && next - times.len() < IN_FLIGHT {
            begun[next] = bench.driver.now();
            let buf = Buf::blank(4096);
            let io = Io::Write { at: Lba(blocks[next] * 8), buf, durability: Durability::Volatile };
            bench.driver.request(&mut bench.stack, RequestId(next as u64), io);
            next += 1;
        }
        while let Some((id, result)) = bench.driver.take_reply() {
            result.status.expect("good disks");
            times.push(bench.driver.now().since(begun[id.0 as usize]));
            if times.len() == logful {
                first_logful = bench.driver.now();
            }
        }
        if next - times.len() == IN_FLIGHT || next == blocks.len() && times.len() < next {
            assert_ne!(bench.driver.step(&mut bench.stack), DriverProgress::Idle);
        }
    }
    times.sort_unstable();
    (times, first_logful, bench.driver.now())
}

fn sustained() {
    println!(
        "{:<17} {:<18} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9}",
        "drive",
        "log",
        "size",
        "RAM",
        "answered",
        "full",
        "destaged",
        "sorted",
        "share",
        "p50 ms",
        "p99 ms",
        "max ms"
    );
    let depth = LogCacheConfig::default().destage_depth;
    let rows = [
        (true, LOG_SECTORS, 16),
        (true, LOG_SECTORS, 64),
        (false, LOG_SECTORS, 16),
        (false, LOG_SECTORS, 64),
        (false, LOG_SECTORS, 256),
        (true, SMALL_LOG_SECTORS, 16),
        (false, SMALL_LOG_SECTORS, 16),
    ];
    for (own_device, log_sectors, mib) in rows {
        let logful = (log_sectors / 8) as usize;
        let mut rng = SimRng::new(11);
        let blocks: Vec<u64> = (0..logful * LOGFULS).map(|_| rng.below(DATA_SECTORS / 8)).collect();
        let (drive, note) = drive_for(DRIVES[0], (log_sectors + DATA_SECTORS) * SECTOR_BYTES);
        let config = LogCacheConfig { destage_memory: mib << 20, ..LogCacheConfig::default() };
        let mut bench = cached_as(&drive, own_device, log_sectors, None, config);
        let (times, first_logful, answered) = write_all(&mut bench, &blocks, logful);
        let destaged = answered + drain(&mut bench).0;
        let first = if own_device { 0 } else { log_sectors };
        let sweeps = blocks.chunks(logful).map(|part| {
            let part: BTreeSet<u64> = part.iter().copied().collect();
            sorted(&drive, &part, first, depth).0.as_secs_f64()
        });
        let floor: f64 = sweeps.sum();
        let rate = |seconds: f64| blocks.len() as f64 / seconds;
        let while_full = (blocks.len() - logful) as f64 / answered.since(first_logful).as_secs_f64();
        let at = |part: usize| times[(times.len() - 1) * part / 1000].0 as f64 / 1e6;
        println!(
            "{:<17} {:<18} {:>4} MiB {mib:>4} MiB {:>7.0}/s {:>7.0}/s {:>7.0}/s {:>7.0}/s {:>6.1}% {:>9.2} {:>9.1} {:>9.1}{note}",
            DRIVES[0],
            if own_device { "on its own device" } else { "on the same disk" },
            log_sectors / MIB,
            rate(answered.as_secs_f64()),
            while_full,
            rate(destaged.as_secs_f64()),
            rate(floor),
            100.0 * while_full / rate(floor),
            at(500),
            at(990),
            at(1000),
        );
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "gaps") {
        return gaps();
    }
    if std::env::args().any(|argument| argument == "sustained") {
        return sustained();
    }
    let depth = LogCacheConfig::default().destage_depth;
    println!(
        "{:<17} {:<18} {:>8} {:>7} {:>9} {:>11} {:>9} {:>11} {:>6}",
        "drive", "log", "RAM", "blocks", "seconds", "operations", "sorted", "operations", "ratio"
    );
    for name in DRIVES {
        for (own_device, mib) in [(true, 16), (false, 16), (false, 64), (false, 256)] {
            let (drive, note) = drive_for(name, (LOG_SECTORS + DATA_SECTORS) * SECTOR_BYTES);
            let config = LogCacheConfig { destage_memory: mib << 20, ..LogCacheConfig::default() };
            let mut bench = cached(&drive, own_device, None, config);
            let blocks = fill(&mut bench, DATA_SECTORS, LOG_SECTORS);
            let first = if own_device { 0 } else { LOG_SECTORS };
            let (floor, floor_operations) = sorted(&drive, &blocks, first, depth);
            let (time, operations) = drain(&mut bench);
            println!(
                "{name:<17} {:<18} {mib:>4} MiB {:>7} {:>9.1} {operations:>11} {:>9.1} {floor_operations:>11} {:>5.2}x{note}",
                if own_device { "on its own device" } else { "on the same disk" },
                blocks.len(),
                time.as_secs_f64(),
                floor.as_secs_f64(),
                time.as_secs_f64() / floor.as_secs_f64(),
            );
        }
    }
}
