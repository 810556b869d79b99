//! Read-ahead as something to explore.

use dcd_engine::layers::read_ahead::{ReadAhead, ReadAheadConfig};
use dcd_engine::{Geometry, StackBuilder};

use crate::explore::{Rig, disk, prefill};
use crate::{SimRng, mix};

const DISK_SECTORS: u64 = 1024;

/// A disk whose reads are read ahead, in pieces so small that they end within it.
pub(crate) fn read_ahead_rig(seed: u64) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0xa4ead));
    let config = ReadAheadConfig {
        streams: rng.range(1, 4) as usize,
        bytes: rng.pick(&[16 << 10, 32 << 10, 64 << 10]),
    };
    let mut below = disk(&mut rng, Geometry::plain(DISK_SECTORS));
    let base = prefill(&mut below, DISK_SECTORS, seed);
    let build = move |geometries: &[Geometry]| {
        let mut builder = StackBuilder::new();
        let device = builder.device(geometries[0]);
        let root = builder.layer("read-ahead", Box::new(ReadAhead::new(config)), &[device]);
        builder.finish(root)
    };
    Rig::plain(vec![below], base, Box::new(build), format!("{config:?}"))
}
