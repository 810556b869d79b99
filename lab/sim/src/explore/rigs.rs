//! Rigs: what can be explored, made from a seed.

use dcd_engine::layers::read_ahead::{ReadAhead, ReadAheadConfig};
use dcd_engine::log_cache::Promise;
use dcd_engine::{Extent, Geometry, Lba, Nanos, SECTOR_BYTES, StackBuilder};

use dcd_model::{Disk, DiskConfig, WriteCache};

use super::Rig;
use crate::reference::{Reference, ReferenceBug, format_reference};
use crate::{Latency, MemDisk, SimRng, Value, mix, stamp};

const FAST: Latency =
    Latency::Tailed { min: Nanos(20_000), max: Nanos(90_000), slow: Nanos(3_000_000), slow_per_mille: 20 };
const SLOW: Latency = Latency::Uniform { min: Nanos(200_000), max: Nanos(15_000_000) };

/// How long past `delay_max` the devices may need to carry a commit out: a slow one behind another, and a checkpoint.
pub(crate) const ORDERED_SLACK: Nanos = Nanos::from_millis(200);

/// Puts first content on every other 64 sectors of a disk, and says what it then holds.
pub(crate) fn prefill(disk: &mut MemDisk, sectors: u64, seed: u64) -> Vec<Value> {
    let mut base = vec![Value::Zero; sectors as usize];
    for start in (0..sectors).step_by(128) {
        let extent = Extent::new(Lba(start), 64.min(sectors - start));
        let mut bytes = vec![0; (extent.sectors * SECTOR_BYTES) as usize];
        stamp::stamp(&mut bytes, extent.start, 0, seed);
        disk.put(extent.start, &bytes);
        base[start as usize..extent.end().0 as usize].fill(Value::Write(0));
    }
    base
}

pub(crate) fn disk(rng: &mut SimRng, geometry: Geometry) -> MemDisk {
    let latency = rng.pick(&[FAST, SLOW]);
    MemDisk::new(geometry, latency, rng.next_u64())
}

const DISK_SECTORS: u64 = 1024;

/// A modelled disk with delayed writes over a disk that keeps what it is given. Such a disk keeps the promise `flush`,
/// unless it ignores FUA (`WriteCache::On`).
pub fn modelled_disk_rig(seed: u64, write_cache: WriteCache) -> Rig {
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
    Rig {
        disks: vec![below],
        base,
        build: Box::new(build),
        build_after_log_failure: None,
        data_alone: None,
        promise: Promise::Flush,
        delay_max: Nanos::ZERO,
        overlaps: false,
        upper_first: false,
        losses: None,
        hot_add: None,
        rots: false,
        log: None,
        about: format!("{drive}, write cache {write_cache:?}, over a volatile device: {volatile_cache}"),
    }
}

/// A disk whose reads are read ahead, in pieces so small that they end within it.
pub fn read_ahead_rig(seed: u64) -> Rig {
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
    Rig {
        disks: vec![below],
        base,
        build: Box::new(build),
        build_after_log_failure: None,
        data_alone: None,
        promise: Promise::Flush,
        delay_max: Nanos::ZERO,
        overlaps: false,
        upper_first: false,
        losses: None,
        hot_add: None,
        rots: false,
        log: None,
        about: format!("{config:?}"),
    }
}

const REFERENCE_SECTORS: u64 = 1024;

/// The reference cache over two disks.
pub fn reference_rig(seed: u64, promise: Promise, bug: Option<ReferenceBug>) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0x7e57));
    // One commit may hold every sector of the data, and must fit.
    let log_sectors = rng.range(REFERENCE_SECTORS + 50, 2 * REFERENCE_SECTORS);
    let mut log = disk(&mut rng, Geometry::plain(log_sectors));
    format_reference(&mut log);
    let mut data = disk(&mut rng, Geometry::plain(REFERENCE_SECTORS));
    let base = prefill(&mut data, REFERENCE_SECTORS, seed);
    let delay_max = Nanos::from_millis(rng.range(1, 50));
    let build = move |geometries: &[Geometry]| {
        let mut builder = StackBuilder::new();
        let ports: Vec<_> = geometries.iter().map(|geometry| builder.device(*geometry)).collect();
        let cache = Reference::new(promise, delay_max, bug);
        let root = builder.layer("reference", Box::new(cache), &ports);
        builder.finish(root)
    };
    Rig {
        disks: vec![log, data],
        base,
        build: Box::new(build),
        build_after_log_failure: None,
        data_alone: None,
        promise,
        delay_max: delay_max + ORDERED_SLACK,
        overlaps: true,
        upper_first: false,
        losses: None,
        hot_add: None,
        rots: false,
        log: None,
        about: format!(
            "reference cache, {promise:?}, journal of {log_sectors} sectors, delay {delay_max}, bug {bug:?}"
        ),
    }
}
