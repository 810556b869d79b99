//! A rig of an array: small members with settings drawn from the seed, alone or below a log cache.

use std::rc::Rc;

use dcd_engine::destage::what::WhatPolicy;
use dcd_engine::destage::when::WhenPolicy;
use dcd_engine::layers::slice::Slice;
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig, Promise};
use dcd_engine::raid::contiguity::{Contiguity, Strides};
use dcd_engine::raid::offline::make_spare;
use dcd_engine::raid::{
    ArrayCanary, ArraySuperblock, CacheMemory, CacheUnit, DATA_SECTOR, Level, MemberIdentity, RaidConfig,
    RaidLayer, create,
};
use dcd_engine::{
    BlockDevice, Buf, Control, Durability, ErrorKind, Extent, Geometry, Io, IoError, IoResult, LayerIndex,
    Lba, Nanos, Report, SECTOR_BYTES, Stack, StackBuilder, Target,
};

use crate::explore::{Build, HotAdd, LossRule, MayLose, Rig, disk, prefill};
use crate::{CutStyle, MemDisk, SimRng, Value, VirtualDriver, cache, mix};

/// The size of an array alone; a little more where its stripes do not divide it.
const DATA_SECTORS: u64 = 1024;
/// Below a log cache, which treats the first and the last MiB of its data differently.
const CACHED_SECTORS: u64 = 6144;

/// Place of the log of a cache on an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogPlace {
    /// On a device of its own.
    Device,
    /// On the first stripes of the array itself.
    Slice,
}

/// Array to explore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaidSubject {
    pub level: Level,
    pub journal: bool,
    /// Number of spares. They are rebuilt in place of lost members, and may then be lost themselves.
    pub spares: usize,
    /// True if crashes destroy as many members as the parity can replace; otherwise only arrays at rest lose members.
    pub loses_members: bool,
    /// True if members fail, are removed and are added again while the array runs. It needs a journal: without one a crash while a
    /// member is missing is refused.
    pub hot_add: bool,
    /// A log cache stands on the array.
    pub log_cache: Option<LogPlace>,
    /// True if the array declares volatile RAM as non-volatile.
    pub lies: bool,
    /// True if all parity may be out of sync at first, as after a crash without a journal.
    pub in_doubt: bool,
    pub canary: Option<ArrayCanary>,
}

impl RaidSubject {
    pub const fn new(level: Level) -> RaidSubject {
        RaidSubject {
            level,
            journal: false,
            spares: 0,
            loses_members: false,
            hot_add: false,
            log_cache: None,
            lies: false,
            in_doubt: false,
            canary: None,
        }
    }
}

/// Draws the settings of one run.
pub fn draw_config(rng: &mut SimRng, level: Level) -> RaidConfig {
    let members = rng.range(level.parity() as u64 + 2, level.parity() as u64 + 4) as usize;
    let strip_sectors = rng.pick(&[8, 32, 64]);
    let unit = rng.pick(&[CacheUnit::Stripe, CacheUnit::Stripe, CacheUnit::ParityBlockGroup]);
    let strides = |rng: &mut SimRng| Strides::up_to(rng.range(0, 8));
    let contiguity = rng.chance(600).then(|| Contiguity { read: strides(rng), write: strides(rng) });
    let unit_rows = if unit == CacheUnit::Stripe { strip_sectors } else { 8 };
    RaidConfig {
        level,
        strip_sectors,
        present: vec![true; members],
        region_bytes: rng.pick(&[1, 64 << 10, 64 << 20]),
        cache_bytes: rng.range(1, 6) * (members - level.parity()) as u64 * unit_rows * SECTOR_BYTES,
        unit,
        contiguity,
        when: rng.pick(&[
            WhenPolicy::HighLow,
            WhenPolicy::HighLow,
            WhenPolicy::Idle,
            WhenPolicy::Asap,
            WhenPolicy::WhenFull,
            WhenPolicy::Linear,
        ]),
        what: rng.pick(&[
            WhatPolicy::LeastRecentlyWritten,
            WhatPolicy::LeastRecentlyWritten,
            WhatPolicy::OldestFirst,
            WhatPolicy::MostDirty,
            WhatPolicy::CScan,
            WhatPolicy::Wow,
        ]),
        high_mark: rng.pick(&[50, 95, 100]),
        low_mark: rng.pick(&[0, 20, 40]),
        destage_depth: rng.pick(&[1, 3, 32]),
        // Drawn from a copy, so that the other numbers of a seed do not change.
        prefetch_after: rng.clone().pick(&[0, 1, 4]),
        idle_empty: Nanos::from_millis(50),
        idle_full: Nanos::from_millis(1),
        pass_rate: rng.pick(&[64 << 10, 10 << 20]),
        pass_bytes: rng.pick(&[1, 512 << 10, 32 << 20]),
        memory: rng.pick(&[CacheMemory::Row, CacheMemory::Row, CacheMemory::Unit]),
        ..RaidConfig::default()
    }
}

/// The geometry of a member that gives an array of about so many sectors.
pub fn member_geometry(config: &RaidConfig, sectors: u64) -> Geometry {
    let data = (config.present.len() - config.level.parity()) as u64;
    let stripes = sectors.div_ceil(data * config.strip_sectors);
    Geometry::plain(DATA_SECTOR + stripes * config.strip_sectors)
}

/// Adds an array over devices: its members, those that it has, and then its journal.
pub fn add(builder: &mut StackBuilder, config: RaidConfig, geometries: &[Geometry]) -> Target {
    let devices: Vec<Target> = geometries.iter().map(|geometry| builder.device(*geometry)).collect();
    let is_there = |device: &usize| config.present.get(*device).is_none_or(|present| *present);
    let ports: Vec<Target> = (0..devices.len()).filter(is_there).map(|device| devices[device]).collect();
    builder.layer("array", Box::new(RaidLayer::new(config)), &ports)
}

/// Fresh members of an array whose parity is right, as they are all zeroes, and its spares.
pub fn members(config: &RaidConfig, geometry: Geometry) -> Vec<MemDisk> {
    let mut members: Vec<MemDisk> = config.present.iter().map(|_| MemDisk::instant(geometry)).collect();
    let mut all: Vec<Option<&mut dyn BlockDevice>> =
        members.iter_mut().map(|member| Some(member as &mut dyn BlockDevice)).collect();
    let made = create(&mut all, config, *b"a simulated raid", true).expect("good disks make an array");
    for spare in 0..config.spares.len() {
        let mut device = MemDisk::instant(geometry);
        make_spare(&mut device, &made, spare as u64 + 1).expect("a good disk is a spare");
        members.push(device);
    }
    members
}

/// Read-only view of a disk's current content.
pub(crate) struct Now<'a>(pub &'a MemDisk);

impl BlockDevice for Now<'_> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&mut self, io: Io) -> IoResult {
        let Io::Read { at, mut buf } = io else { unreachable!("nobody writes for a look") };
        let extent = Extent::new(at, buf.len() as u64 / SECTOR_BYTES);
        if self.0.unreadable().range(at.0..extent.end().0).next().is_some() {
            return IoResult::err(buf, IoError::at(ErrorKind::Medium, extent));
        }
        self.0.current().read(at, buf.bytes_mut());
        IoResult::ok(buf)
    }
}

/// Returns the disks that may be lost: without any single one of them, parity still gives all data. `devices`: number of members and
/// spares, which come first. After a kill, the disks' caches may still lose data, so this must hold with and without them.
fn may_lose(devices: usize) -> MayLose {
    Box::new(move |disks| {
        let disks = &disks[..devices];
        let durable: Vec<MemDisk> =
            disks.iter().map(|disk| disk.power_cut(CutStyle::AllLost, &mut SimRng::new(0))).collect();
        let images = [superblocks(disks.iter()), superblocks(durable.iter())];
        let alive = |disk: &usize| !disks[*disk].faults().dead && images[0][*disk].is_some();
        (0..devices)
            .filter(|disk| alive(disk) && images.iter().all(|read| holds_without(read, *disk)))
            .collect()
    })
}

fn superblocks<'a>(
    disks: impl Iterator<Item = &'a MemDisk>,
) -> Vec<Option<(ArraySuperblock, MemberIdentity)>> {
    disks
        .map(|disk| if disk.faults().dead { None } else { ArraySuperblock::read(&mut Now(disk)).ok() })
        .collect()
}

fn holds_without(read: &[Option<(ArraySuperblock, MemberIdentity)>], lost: usize) -> bool {
    let left = || read.iter().enumerate().filter(|(index, _)| *index != lost).flat_map(|(_, read)| read);
    let roles = left().filter(|(_, identity)| identity.role.is_some());
    let newest = ArraySuperblock::newest_of(roles.map(|(superblock, _)| superblock));
    newest.is_some_and(|newest| {
        let whole = |role: &usize| {
            let id = newest.member_ids[*role];
            newest.failed >> role & 1 == 0 && left().any(|(_, identity)| identity.id == id)
        };
        let missing = (0..newest.members).filter(|role| !whole(role)).count();
        missing <= newest.level.parity()
    })
}

/// Writes `content`, made for the array's size, through the array's layer, and then stops or kills the layer.
fn filled<T>(
    config: &RaidConfig,
    members: Vec<MemDisk>,
    stops: bool,
    content: impl FnOnce(u64) -> (MemDisk, T),
) -> (Vec<MemDisk>, T) {
    let mut driver = VirtualDriver::new(members);
    let mut builder = StackBuilder::new();
    let bare = RaidConfig { journal: false, journal_given_up: true, ..config.clone() };
    let root = add(&mut builder, bare, &driver.geometries());
    let mut stack = builder.finish(root);
    stack.activate(&mut driver).expect("a new array starts");
    let sectors = stack.geometry(root).sectors;
    let (source, made) = content(sectors);
    let mut bytes = Buf::zeroed((sectors * SECTOR_BYTES) as usize);
    source.current().read(Lba(0), bytes.bytes_mut());
    let write = Io::Write { at: Lba(0), buf: bytes, durability: Durability::Durable };
    stack.run_blocking(&mut driver, root, write).status.expect("written");
    if !stops {
        return (driver.into_devices(), made);
    }
    driver.control(&mut stack, LayerIndex(0), Control::Stop);
    while driver.take_report().is_none_or(|(_, report)| report != Report::Stopped) {
        driver.step(&mut stack);
    }
    (driver.into_devices(), made)
}

/// A disk with the content of another, and latencies of its own.
fn copy(rng: &mut SimRng, geometry: Geometry, from: &MemDisk) -> MemDisk {
    let mut copy = disk(rng, geometry);
    // Between the superblocks and the first stripe there is nothing.
    for (first, end) in [(0, 32), (DATA_SECTOR, geometry.sectors)] {
        let mut bytes = vec![0; ((end - first) * SECTOR_BYTES) as usize];
        from.current().read(Lba(first), &mut bytes);
        copy.put(Lba(first), &bytes);
    }
    copy
}

fn draw_log_sectors(rng: &mut SimRng) -> u64 {
    FIRST_SEGMENT_SECTOR + rng.range(8, 16) * 32
}

/// Returns a log that was formatted for the disk `data`.
fn log(rng: &mut SimRng, seed: u64, sectors: u64, data: &mut MemDisk) -> MemDisk {
    let mut log = disk(rng, Geometry::plain(sectors));
    let mut options = FormatOptions::new(*b"a cache on  raid", *b"simulated   raid");
    options.segment_bytes = Some(16 << 10);
    options.log_block_bytes = Some(512);
    format(&mut log, data, &options).expect("good disks are formatted");
    cache::store_spindle(&mut log, cache::draw_spindle(&mut SimRng::new(mix(seed, 5))));
    log
}

/// First content of an array.
struct FirstContent {
    base: Vec<Value>,
    /// A log with a device of its own.
    log: Option<MemDisk>,
    /// Sectors at the beginning of the array that are a log.
    log_sectors: u64,
}

fn content(rng: &mut SimRng, seed: u64, place: Option<LogPlace>, sectors: u64) -> (MemDisk, FirstContent) {
    let filled = |sectors| {
        let mut disk = MemDisk::instant(Geometry::plain(sectors));
        let base = prefill(&mut disk, sectors, seed);
        (disk, base)
    };
    let Some(place) = place else {
        let (disk, base) = filled(sectors);
        return (disk, FirstContent { base, log: None, log_sectors: 0 });
    };
    let log_sectors = draw_log_sectors(rng);
    match place {
        LogPlace::Device => {
            let (mut data, base) = filled(sectors);
            let log = log(rng, seed, log_sectors, &mut data);
            (data, FirstContent { base, log: Some(log), log_sectors: 0 })
        }
        LogPlace::Slice => {
            let (mut data, base) = filled(sectors - log_sectors);
            let log = log(rng, seed, log_sectors, &mut data);
            (cache::joined(rng, &log, &data), FirstContent { base, log: None, log_sectors })
        }
    }
}

/// An array with settings from the seed. The disks are its members, then its journal, then a log.
pub fn raid_rig(seed: u64, subject: RaidSubject) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0x4a1d));
    let config = RaidConfig {
        journal: subject.journal,
        spares: vec![true; subject.spares],
        non_volatile: subject.lies,
        canary: subject.canary.into(),
        // Without a journal nothing is promised after a crash that destroyed a member: the explorer shows the consequences.
        accept_damage: subject.loses_members && !subject.journal,
        ..draw_config(&mut rng, subject.level)
    };
    let volatile_cache = rng.chance(850);
    let sectors = if subject.log_cache.is_some() { CACHED_SECTORS } else { DATA_SECTORS };
    let geometry = Geometry { volatile_cache, ..member_geometry(&config, sectors) };
    let (fresh, FirstContent { base, log, log_sectors }) =
        filled(&config, members(&config, geometry), !subject.in_doubt, |sectors| {
            content(&mut rng, seed, subject.log_cache, sectors)
        });
    let count = config.present.len();
    let mut disks: Vec<MemDisk> = fresh.iter().map(|member| copy(&mut rng, geometry, member)).collect();
    if subject.journal {
        // Room for two records at least: a stripe with its parity, and a header.
        let record = (count as u64 + 2) * config.strip_sectors;
        let sectors = rng.range(2, 6) * record;
        disks.push(disk(&mut rng, Geometry { volatile_cache, ..Geometry::plain(sectors) }));
    }
    disks.extend(log);
    let (cache_config, _) = cache::draw_config(&mut rng, Promise::Flush, None);
    let about = format!("{subject:?}, {config:?}, members of {} sectors", geometry.sectors);
    let data = Extent::new(Lba(log_sectors), base.len() as u64);
    let after_log_failure = subject.log_cache.map(|place| without_log(config.clone(), place, data));
    let make = move |config: &RaidConfig, geometries: &[Geometry]| match subject.log_cache {
        None => stack(config, geometries),
        Some(place) => cached_stack(config, cache_config.clone(), place, data, geometries),
    };
    let make = Rc::new(make);
    let hot_add = subject.hot_add.then(|| hot_add(config.clone(), Rc::clone(&make)));
    let build = move |geometries: &[Geometry]| make(&config, geometries);
    Rig {
        build_after_log_failure: after_log_failure,
        overlaps: subject.log_cache.is_some(),
        upper_first: subject.log_cache.is_some(),
        losses: (!subject.lies).then(|| LossRule {
            may_lose: may_lose(count + subject.spares),
            in_crashes: subject.loses_members,
        }),
        hot_add,
        ..Rig::plain(disks, base, Box::new(build), about)
    }
}

fn stack(config: &RaidConfig, geometries: &[Geometry]) -> Stack {
    let mut builder = StackBuilder::new();
    let root = add(&mut builder, config.clone(), geometries);
    builder.finish(root)
}

/// Makes a log cache over an array. `data`: the data's extent on the array, if the array holds the log as well.
fn cached_stack(
    config: &RaidConfig,
    cache: LogCacheConfig,
    place: LogPlace,
    data: Extent,
    geometries: &[Geometry],
) -> Stack {
    let mut builder = StackBuilder::new();
    let below = match place {
        LogPlace::Device => {
            let (log, array) = geometries.split_last().expect("a log and members");
            let array = add(&mut builder, config.clone(), array);
            [builder.device(*log), array]
        }
        LogPlace::Slice => {
            let array = add(&mut builder, config.clone(), geometries);
            cache::slices(&mut builder, array, data)
        }
    };
    let root = builder.layer("cache", Box::new(LogCache::new(cache)), &below);
    builder.finish(root)
}

/// Makes the stack that a server starts once it is recorded that the log has failed: the array, or the part of it with the data.
fn without_log(config: RaidConfig, place: LogPlace, data: Extent) -> Build {
    Box::new(move |geometries| {
        let members = match place {
            LogPlace::Device => &geometries[..geometries.len() - 1],
            LogPlace::Slice => geometries,
        };
        let mut builder = StackBuilder::new();
        let array = add(&mut builder, config.clone(), members);
        let root = builder.layer("data", Box::new(Slice::new(data)), &[array]);
        builder.finish(root)
    })
}

fn hot_add(config: RaidConfig, make: Rc<impl Fn(&RaidConfig, &[Geometry]) -> Stack + 'static>) -> HotAdd {
    let (members, spares) = (config.present.len(), config.spares.len());
    let build_without = move |geometries: &[Geometry], roles: &[usize]| {
        let mut config = config.clone();
        roles.iter().for_each(|role| config.present[*role] = false);
        make(&config, geometries)
    };
    HotAdd { layer: LayerIndex(0), members, spares, build_without: Box::new(build_without) }
}

#[cfg(test)]
#[path = "raid_tests.rs"]
mod tests;
