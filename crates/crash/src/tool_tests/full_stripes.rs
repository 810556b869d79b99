//! Tests a log cache over an array: whole stripes are destaged together, so that the array need not read for their parity.

use dcd_crash::{DriverProgress, Latency, MemDisk, SimRng, VirtualDriver};
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig, WhenPolicy};
use dcd_engine::raid::offline::create;
use dcd_engine::raid::{DATA_SECTOR, Level, RaidConfig, RaidLayer};
use dcd_engine::{
    BlockDevice, Buf, Control, Durability, Geometry, Io, LINE_BYTES, LayerIndex, Lba, Nanos, Report, Stack,
    StackBuilder, StackDevice, Target,
};

const STRIP_SECTORS: u64 = 32;
const STRIPE_LINES: u64 = 3 * STRIP_SECTORS / 8;
const STRIPES: u64 = 64;
const LOG_SECTORS: u64 = FIRST_SEGMENT_SECTOR + 64 * 128;

/// An array of four members and a log cache over it, on a log that spins: a batch is what its memory holds.
fn cached(full_stripes_first: bool) -> (Stack, VirtualDriver<MemDisk>) {
    let config = RaidConfig {
        level: Level::Raid5,
        strip_sectors: STRIP_SECTORS,
        present: vec![true; 4],
        ..RaidConfig::default()
    };
    let member = Geometry::plain(DATA_SECTOR + STRIPES * STRIP_SECTORS);
    let mut disks: Vec<MemDisk> = (0..4).map(|_| MemDisk::instant(member)).collect();
    let mut all: Vec<Option<&mut dyn BlockDevice>> =
        disks.iter_mut().map(|disk| Some(disk as &mut dyn BlockDevice)).collect();
    create(&mut all, &config, *b"stripes of four!", true).expect("made");
    let log_geometry = Geometry { rotational: true, ..Geometry::plain(LOG_SECTORS) };
    let mut log = MemDisk::instant(log_geometry);
    let mut data = MemDisk::instant(Geometry::plain(STRIPES * STRIPE_LINES * 8));
    let options = FormatOptions { segment_bytes: Some(64 << 10), ..FormatOptions::new([1; 16], [2; 16]) };
    format(&mut log, &mut data, &options).expect("formatted");
    disks.push(log);

    let latency = Latency::Uniform { min: Nanos(50_000), max: Nanos(200_000) };
    let slow = |(seed, disk): (u64, MemDisk)| disk_like(&disk, latency, seed);
    let driver = VirtualDriver::new((0..).zip(disks).map(slow).collect());
    let mut builder = StackBuilder::new();
    let members: Vec<Target> = (0..4).map(|_| builder.device(member)).collect();
    let log = builder.device(log_geometry);
    let array = builder.layer("array", Box::new(RaidLayer::new(config)), &members);
    let config = LogCacheConfig {
        when: WhenPolicy::WhenFull,
        low_mark: 97,
        high_mark: 98,
        destage_memory: 128 * LINE_BYTES as usize,
        full_stripes_first,
        ..LogCacheConfig::default()
    };
    let root = builder.layer("cache", Box::new(LogCache::new(config)), &[log, array]);
    (builder.finish(root), driver)
}

/// A disk with the content of another, and a latency.
fn disk_like(from: &MemDisk, latency: Latency, seed: u64) -> MemDisk {
    let geometry = BlockDevice::geometry(from);
    let mut disk = MemDisk::new(geometry, latency, seed);
    let mut bytes = vec![0; (geometry.sectors * 512) as usize];
    from.current().read(Lba(0), &mut bytes);
    disk.put(Lba(0), &bytes);
    disk
}

fn count(stack: &Stack, name: &str) -> u64 {
    let (array, _) = stack.layers().find(|(_, layer)| *layer == "array").expect("an array");
    stack.layer(array).status(Nanos::ZERO).to_json()["statistics"][name].as_u64().expect("a counter")
}

/// Counts member reads for parity, and destages, after lines are written in this order and destaged.
fn member_reads(lines: &[u64], full_stripes_first: bool) -> (u64, u64) {
    let (mut stack, mut driver) = cached(full_stripes_first);
    stack.enable_checks();
    stack.activate(&mut driver).expect("active");
    let root = stack.root();
    for &line in lines {
        let buf = Buf::copy_of(&[line as u8; LINE_BYTES as usize]);
        let io = Io::Write { at: Lba(8 * line), buf, durability: Durability::Volatile };
        stack.run_blocking(&mut driver, root, io).status.expect("written");
    }
    stack.run_blocking(&mut driver, root, Io::Flush).status.expect("flushed");
    assert_eq!(count(&stack, "destages"), 0, "everything is in the log");
    let Target::Layer(cache) = root else { unreachable!("a cache is a layer") };
    driver.control(&mut stack, cache, Control::Drain);
    while driver.take_report().is_none_or(|(_, report)| report != Report::Drained) {
        assert_ne!(driver.step(&mut stack), DriverProgress::Idle, "the drain ends");
    }
    let counts = (count(&stack, "destage_reads"), count(&stack, "destages"));
    let array = Target::Layer(LayerIndex(0));
    let mut device = StackDevice { stack: &mut stack, pump: &mut driver, target: array };
    for &line in lines {
        let found = device.read(Lba(8 * line), LINE_BYTES as usize).expect("read");
        assert!(found.bytes().iter().all(|byte| *byte == line as u8), "line {line}");
    }
    counts
}

/// Shuffles lines, so that the segments of a log have a few of each stripe.
fn shuffled(mut lines: Vec<u64>) -> Vec<u64> {
    let mut rng = SimRng::new(3);
    for index in (1..lines.len()).rev() {
        lines.swap(index, rng.below(index as u64 + 1) as usize);
    }
    lines
}

#[test]
fn full_stripes_cost_no_member_reads() {
    let stripes = 40;
    let whole = shuffled((0..stripes * STRIPE_LINES).collect());
    assert_eq!(member_reads(&whole, true), (0, stripes), "each stripe is written once");
    let (reads, destages) = member_reads(&whole, false);
    assert!(reads > stripes && destages > 2 * stripes, "{reads} reads, {destages} destages");
    // One block in each of the others: only these are read for.
    let singles = (stripes..STRIPES).map(|stripe| stripe * STRIPE_LINES);
    let mixed = shuffled((0..stripes * STRIPE_LINES).chain(singles).collect());
    let (few, destages) = member_reads(&mixed, true);
    assert!(few <= 4 * (STRIPES - stripes) && destages <= STRIPES, "{few} reads, {destages} destages");
}
