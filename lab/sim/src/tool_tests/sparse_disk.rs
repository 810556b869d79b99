//! The suite for every device, on the disk that holds only what is not zero.

use dcd_crash::Latency;
use dcd_engine::testing::conformance;
use dcd_engine::{Discards, Geometry, Nanos};
use dcd_sim::SparseDisk;

#[test]
fn a_sparse_disk_conforms() {
    let latency = Latency::Uniform { min: Nanos(1_000), max: Nanos(900_000) };
    let plain = Geometry::plain(32_768);
    let geometries = [
        plain,
        Geometry { discards: Discards::Zero, fast_zeroes: true, ..plain },
        Geometry { logical_block_bytes: 4096, physical_block_bytes: 4096, ..plain },
    ];
    for (seed, geometry) in (0..).zip(geometries) {
        conformance(&mut SparseDisk::new(geometry, latency, seed), seed);
    }
}
