//! The write cache under the conformance suite and the crash explorer: one to three small disks, with settings drawn from the seed.

use dcd_crash::{ExploreConfig, Latency, MemDisk, Rig, SimRng, VirtualDriver, disk, explore, mix, prefill};
use dcd_engine::destage::how::HowPolicy;
use dcd_engine::destage::what::WhatPolicy;
use dcd_engine::destage::when::WhenPolicy;
use dcd_engine::testing::conformance;
use dcd_engine::{Discards, Geometry, Lba, Nanos, SECTOR_BYTES, Stack, StackBuilder, StackDevice, Target};
use dcd_model::write_cache::{DiskMap, OnWrite, Piggyback, Regions, WriteCache, WriteCacheConfig};

/// 512 KiB in all: a few times the cache.
const DATA_SECTORS: u64 = 1024;
const LATENCY: Latency = Latency::Uniform { min: Nanos(1_000), max: Nanos(900_000) };

/// Draws the settings of one run.
fn draw_config(rng: &mut SimRng) -> WriteCacheConfig {
    let single = rng.chance(300);
    WriteCacheConfig {
        non_volatile: false,
        block_bytes: rng.pick(&[512, 512, 4096]),
        write_bytes: rng.pick(&[0, 16 << 10, 32 << 10, 128 << 10]),
        read_bytes: rng.pick(&[0, 16 << 10, 64 << 10]),
        single,
        partitioned: rng.chance(300),
        on_write: rng.pick(&[OnWrite::WritePurge, OnWrite::WriteUpdate, OnWrite::WriteAllocate]),
        when: rng.pick(&[
            WhenPolicy::Idle,
            WhenPolicy::HighLow,
            WhenPolicy::OneThreshold,
            WhenPolicy::TwoThresholds,
            WhenPolicy::Asap,
            WhenPolicy::WhenFull,
            WhenPolicy::Linear,
        ]),
        what: rng.pick(&WhatPolicy::ALL),
        how: rng.pick(&[HowPolicy::Sorted, HowPolicy::AsItComes]),
        high_mark: rng.pick(&[50, 95, 100]),
        low_mark: rng.pick(&[0, 20, 40]),
        dynamic_interval: if single { rng.pick(&[0, 20]) } else { 0 },
        piggyback: rng.pick(&[Piggyback::None, Piggyback::Full]),
        depth: rng.pick(&[1, 1, 3]),
        idle_empty: Nanos::from_millis(50),
        idle_full: Nanos::from_millis(1),
    }
}

/// A stack of one write cache over all of the devices.
fn stack(config: WriteCacheConfig, region_sectors: u64, geometries: &[Geometry]) -> Stack {
    let mut builder = StackBuilder::new();
    let ports: Vec<Target> = geometries.iter().map(|geometry| builder.device(*geometry)).collect();
    let map = |geometry: &Geometry| DiskMap {
        regions: Regions::uniform(geometry.sectors, region_sectors),
        arm: None,
    };
    let maps = geometries.iter().map(map).collect();
    let root = builder.layer("cache", Box::new(WriteCache::new(config, maps)), &ports);
    builder.finish(root)
}

/// The write cache in volatile RAM, with settings from the seed. `lies`: it says that its RAM is non-volatile, and it is not.
fn write_cache_rig(seed: u64, lies: bool) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0x93a5));
    let config = WriteCacheConfig { non_volatile: lies, ..draw_config(&mut rng) };
    let region_sectors = rng.pick(&[8, 32, 64]);
    let count = rng.range(1, 3);
    let sectors = DATA_SECTORS / count / 8 * 8;
    let geometry = Geometry {
        volatile_cache: rng.chance(850),
        discards: if rng.chance(500) { Discards::Zero } else { Discards::No },
        logical_block_bytes: config.block_bytes,
        physical_block_bytes: config.block_bytes,
        ..Geometry::plain(sectors)
    };
    let mut whole = MemDisk::instant(Geometry::plain(sectors * count));
    let base = prefill(&mut whole, sectors * count, seed);
    let part = |index: u64, rng: &mut SimRng| {
        let mut part = disk(rng, geometry);
        let mut bytes = vec![0; (sectors * SECTOR_BYTES) as usize];
        whole.current().read(Lba(index * sectors), &mut bytes);
        part.put(Lba(0), &bytes);
        part
    };
    let disks = (0..count).map(|index| part(index, &mut rng)).collect();
    Rig::plain(
        disks,
        base,
        Box::new(move |geometries| stack(config, region_sectors, geometries)),
        format!("write cache, {count} disks, regions of {region_sectors} sectors, {config:?}"),
    )
}

#[test]
fn a_write_cache_conforms_with_any_settings() {
    for seed in 0..60 {
        let mut rng = SimRng::new(mix(seed, 5));
        let config = WriteCacheConfig { non_volatile: rng.chance(500), ..draw_config(&mut rng) };
        let count = rng.range(1, 3);
        let geometry = Geometry {
            discards: if rng.chance(500) { Discards::Zero } else { Discards::No },
            fast_zeroes: rng.chance(500),
            ..Geometry::plain(4096 / count / 8 * 8)
        };
        let disks: Vec<MemDisk> =
            (0..count).map(|disk| MemDisk::new(geometry, LATENCY, seed + disk)).collect();
        let mut driver = VirtualDriver::new(disks);
        let mut stack = stack(config, 64, &driver.geometries());
        if seed < 20 {
            stack.enable_checks();
        }
        stack.activate(&mut driver).expect("active");
        let target = stack.root();
        conformance(&mut StackDevice { stack: &mut stack, pump: &mut driver, target }, seed);
    }
}

#[test]
fn volatile_ram_keeps_the_contract_of_a_block_device() {
    let explored = explore(&ExploreConfig::new(4, 3000), &|seed| write_cache_rig(seed, false), &mut |_| {});
    if let Some(violation) = explored.violation {
        panic!("{violation}");
    }
    assert_eq!(explored.counts.states, 3000);
}

#[test]
fn ram_that_only_claims_to_be_non_volatile_is_caught() {
    let explored = explore(&ExploreConfig::new(4, 1000), &|seed| write_cache_rig(seed, true), &mut |_| {});
    let violation = explored.violation.expect("flushed data is lost");
    assert!(violation.what.contains("the crash took data"), "{}", violation.what);
}
