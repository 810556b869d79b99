//! A modelled disk under the crash explorer.

use dcd_crash::{ExploreConfig, Explored, Rig, SimRng, disk, explore, mix, prefill};
use dcd_engine::{Geometry, StackBuilder};
use dcd_model::{AnyDrive, Disk, DiskConfig, SolidDisk, WriteCache, drive};

const DISK_SECTORS: u64 = 1024;

/// A modelled disk with delayed writes over a disk that keeps what it is given. Such a disk keeps the promise `flush`,
/// unless it ignores FUA (`WriteCache::IgnoresFua`).
fn modelled_disk_rig(seed: u64, write_cache: WriteCache) -> Rig {
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

fn disk_explored(write_cache: WriteCache, states: u64) -> Explored {
    let subject = |seed| modelled_disk_rig(seed, write_cache);
    explore(&ExploreConfig::new(23, states), &subject, &mut |_| {})
}

#[test]
fn a_modelled_disk_keeps_the_promise_of_a_disk() {
    for write_cache in [WriteCache::Off, WriteCache::On] {
        if let Some(violation) = disk_explored(write_cache, 800).violation {
            panic!("{write_cache:?}: {violation}");
        }
    }
}

#[test]
fn a_modelled_disk_that_ignores_fua_is_caught() {
    let violation =
        disk_explored(WriteCache::IgnoresFua, 1000).violation.expect("caught within 1,000 states");
    assert!(!violation.story.is_empty());
}

/// A device without heads, whose volatile buffer holds a few writes if it has one, over a disk that keeps what it is given.
fn solid_rig(seed: u64, name: &str) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0x55d));
    let volatile_cache = rng.chance(500);
    let mut below = disk(&mut rng, Geometry { volatile_cache, ..Geometry::plain(DISK_SECTORS) });
    let base = prefill(&mut below, DISK_SECTORS, seed);
    let text = drive::text(name).expect("a drive that is always there").replace("64MiB", "32KiB");
    let any = AnyDrive::parse(&text).expect("a small buffer");
    let build = move |geometries: &[Geometry]| {
        let mut builder = StackBuilder::new();
        let device = builder.device(geometries[0]);
        let solid = any.solid().expect("it has no heads").clone();
        let root = builder.layer("disk", Box::new(SolidDisk::new(solid, None)), &[device]);
        builder.finish(root)
    };
    Rig::plain(
        vec![below],
        base,
        Box::new(build),
        format!("{name}, over a volatile device: {volatile_cache}"),
    )
}

#[test]
fn a_power_cut_takes_nothing_that_a_device_without_heads_promised() {
    for name in ["ssd-nvme-2020", "ssd-plp-2017", "ebs-gp3"] {
        let subject = |seed| solid_rig(seed, name);
        if let Some(violation) = explore(&ExploreConfig::new(29, 800), &subject, &mut |_| {}).violation {
            panic!("{name}: {violation}");
        }
    }
}
