//! The suite for every device, on simulated disks and on stacks over them.

use dcd_crash::{Latency, MemDisk, VirtualDriver};
use dcd_engine::layers::read_ahead::{ReadAhead, ReadAheadConfig};
use dcd_engine::layers::slice::Slice;
use dcd_engine::layers::trace::Trace;
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{Contiguity, LogCache, LogCacheConfig, Strides};
use dcd_engine::testing::{conformance, conformance_read_only};
use dcd_engine::{Discards, Extent, Geometry, Lba, Nanos, Stack, StackBuilder, StackDevice};

const SECTORS: u64 = 32_768;
const LATENCY: Latency = Latency::Uniform { min: Nanos(1_000), max: Nanos(900_000) };

fn geometries() -> [Geometry; 4] {
    let plain = Geometry::plain(SECTORS);
    [
        plain,
        Geometry { discards: Discards::Zero, fast_zeroes: true, ..plain },
        Geometry { volatile_cache: false, ..plain },
        Geometry {
            logical_block_bytes: 4096,
            physical_block_bytes: 4096,
            discards: Discards::Advisory,
            ..plain
        },
    ]
}

fn stack_conforms(mut stack: Stack, disks: Vec<MemDisk>, seed: u64) {
    let mut driver = VirtualDriver::new(disks);
    stack.enable_checks();
    stack.activate(&mut driver).expect("active");
    let target = stack.root();
    conformance(&mut StackDevice { stack: &mut stack, pump: &mut driver, target }, seed);
}

#[test]
fn disks_in_memory_conform() {
    for (seed, geometry) in (0..).zip(geometries()) {
        conformance(&mut MemDisk::new(geometry, LATENCY, seed), seed);
        conformance(&mut MemDisk::instant(geometry), seed);
    }
}

#[test]
fn a_read_only_disk_takes_no_writes() {
    let geometry = Geometry { read_only: true, ..Geometry::plain(SECTORS) };
    conformance_read_only(&mut MemDisk::new(geometry, LATENCY, 1));
}

#[test]
fn a_traced_slice_of_a_disk_conforms() {
    for (seed, geometry) in (0..).zip(geometries()) {
        let mut builder = StackBuilder::new();
        let device = builder.device(geometry);
        let extent = Extent::new(Lba(8), SECTORS - 16);
        let slice = builder.layer("slice", Box::new(Slice::new(extent)), &[device]);
        let root = builder.layer("trace", Box::new(Trace::new(100)), &[slice]);
        stack_conforms(builder.finish(root), vec![MemDisk::new(geometry, LATENCY, seed)], seed);
    }
}

#[test]
fn a_disk_that_is_read_ahead_conforms() {
    for (seed, geometry) in (0..).zip(geometries()) {
        let mut builder = StackBuilder::new();
        let device = builder.device(geometry);
        let layer = ReadAhead::new(ReadAheadConfig { streams: 3, bytes: 32 << 10 });
        let root = builder.layer("read-ahead", Box::new(layer), &[device]);
        stack_conforms(builder.finish(root), vec![MemDisk::new(geometry, LATENCY, seed)], seed);
    }
}

#[test]
fn a_log_cache_that_fills_gaps_conforms() {
    for (seed, geometry) in (0..).zip(geometries()) {
        // The log is so small that it goes around many times.
        let log_geometry = Geometry::plain(FIRST_SEGMENT_SECTOR + 16 * 128);
        let mut disks =
            vec![MemDisk::new(log_geometry, LATENCY, seed), MemDisk::new(geometry, LATENCY, seed)];
        let [log, data] = &mut disks[..] else { unreachable!("two disks") };
        let options = FormatOptions { segment_bytes: Some(64 << 10), ..FormatOptions::new([1; 16], [2; 16]) };
        format(log, data, &options).expect("formatted");
        let strides = || Strides::up_to(50);
        let contiguity = Some(Contiguity { read: strides(), write: strides() });
        let config = LogCacheConfig { contiguity, idle_empty: Nanos::from_micros(100), ..Default::default() };
        let mut builder = StackBuilder::new();
        let ports = [builder.device(log_geometry), builder.device(geometry)];
        let root = builder.layer("cache", Box::new(LogCache::new(config)), &ports);
        stack_conforms(builder.finish(root), disks, seed);
    }
}
