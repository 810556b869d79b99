//! The write cache under the conformance suite and the crash explorer.

use dcd_engine::StackDevice;
use dcd_engine::testing::conformance;

use super::*;
use crate::{ExploreConfig, Latency, VirtualDriver, explore};

const LATENCY: Latency = Latency::Uniform { min: Nanos(1_000), max: Nanos(900_000) };

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
