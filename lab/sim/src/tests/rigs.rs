//! A modelled disk and read-ahead as something to explore.

use dcd_engine::layers::read_ahead::{ReadAhead, ReadAheadConfig};
use dcd_engine::{Geometry, StackBuilder};
use dcd_model::{Disk, DiskConfig, WriteCache};

use crate::explore::{Rig, disk, prefill};
use crate::{SimRng, mix};

const DISK_SECTORS: u64 = 1024;

/// A modelled disk with delayed writes over a disk that keeps what it is given. Such a disk keeps the promise `flush`,
/// unless it ignores FUA (`WriteCache::On`).
pub(crate) fn modelled_disk_rig(seed: u64, write_cache: WriteCache) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0xd15c));
    // One drive begins to write at once, the other one waits for a quiet moment.
    let drive = rng.pick(&["atlas-10k", "nearline-2018"]);
    let volatile_cache = rng.chance(500);
    let mut below = disk(&mut rng, Geometry { volatile_cache, ..Geometry::plain(DISK_SECTORS) });
    let base = prefill(&mut below, DISK_SECTORS, seed);
    let config = DiskConfig { drive: drive.to_owned(), write_cache, ..DiskConfig::default() };
    let build = move |geometries: &[Geometry]| {
        let mut builder = StackBuilder::new();
        let device = builder.device(geometries[0]);
        let disk = Disk::new(&config).expect("a drive that is always there");
        let root = builder.layer("disk", Box::new(disk), &[device]);
        builder.finish(root)
    };
    Rig::plain(
        vec![below],
        base,
        Box::new(build),
        format!("{drive}, write cache {write_cache:?}, over a volatile device: {volatile_cache}"),
    )
}

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
