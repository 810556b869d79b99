//! The log cache as something to explore: a log and one data disk or several, or two slices of one disk, with settings drawn from the seed.
//!
//! Everything is small, so that the log wraps around many times in a run: 5 MiB of data behind a log of 64 KiB to 1 MiB.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use dcd_engine::layers::slice::Slice;
use dcd_engine::log_cache::fingerprint::Fingerprint;
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::log_cache::offline::{FormatOptions, add_disk, format, read_superblock, write_superblock};
use dcd_engine::log_cache::spindle::{Spin, Spindle};
use dcd_engine::log_cache::{
    Contiguity, HowPolicy, LogCache, LogCacheConfig, LogCanary, Promise, Reads, Strides, WhatPolicy,
    WhenPolicy, WriteRoute,
};
use dcd_engine::mirror::MirrorConfig;
use dcd_engine::{
    Discards, Extent, Geometry, LINE_SECTORS, Layer, Lba, Nanos, Port, SECTOR_BYTES, Stack, StackBuilder,
    Target,
};

use crate::dealt::{self, CHUNK_SECTORS, Dealt};
use crate::explore::{
    Build, BuildMissing, GUEST_SECTORS, GuestPlace, LogArea, ORDERED_SLACK, Rescued, Rig, Who, add_mirror,
    disk, prefill,
};
use crate::mirror::{self, MirrorLegs};
use crate::{Latency, MemDisk, SimMemory, SimRng, Value, mix};

/// 5 MiB: the fingerprint covers the first, the last, and four lines between; most large writes there bypass the log.
const DATA_SECTORS: u64 = 10240;
/// 3 MiB of each disk, where there are several: the fingerprint covers the first and the last.
const PART_SECTORS: u64 = 6144;
/// No client asks for more at once (see `Character`).
const LARGEST_REQUEST_BYTES: u64 = 128 << 10;

/// Share of a disk in a log that always has room for the largest requests of others.
const ROOMY_SHARE: u8 = 20;

/// Makes the log cache; an argument, so that a changed one can be explored.
pub type MakeCache = Rc<dyn Fn(LogCacheConfig) -> Box<dyn Layer>>;

/// Draws the rotation of the log's disk: a log on a spinning disk leaves gaps, whatever the simulated latencies are.
pub(crate) fn draw_spindle(rng: &mut SimRng) -> Spindle {
    let turns = rng.pick(&[false, false, true]);
    // Records of one size take places at multiples of it on a track that holds 64 of them.
    let track = rng.pick(&[16, 80, 1600]);
    let revolution = Nanos::from_millis(8);
    let spin = Spin { revolution, lead: Nanos(revolution.0 / 16), tracks: [track; 4], write_cache: false };
    if turns { Spindle::Spins(spin) } else { Spindle::NotMeasured }
}

/// Draws the settings of one run, and the rotation of the log's disk.
pub fn draw_config(
    rng: &mut SimRng,
    promise: Promise,
    canary: Option<LogCanary>,
) -> (LogCacheConfig, Spindle) {
    let spindle;
    let config = LogCacheConfig {
        promise,
        outlives_server: false,
        delay_max: Nanos::from_millis(rng.range(1, 60)),
        segment_buffers: rng.range(2, 6) as usize,
        bypass_bytes: rng.pick(&[0, 16 << 10, 16 << 10, 64 << 10]),
        reads: Reads::Pass,
        writes: WriteRoute::Back,
        when: rng.pick(&[WhenPolicy::Idle, WhenPolicy::HighLow]),
        what: rng.pick(&[WhatPolicy::OldestFirst, WhatPolicy::LastWriteFirst, WhatPolicy::LeastValidFirst]),
        full_stripes_first: true,
        how: rng.pick(&[HowPolicy::Sorted, HowPolicy::AsItComes]),
        contiguity: None,
        calibrated: true,
        high_mark: rng.pick(&[50, 75, 90]),
        low_mark: rng.pick(&[5, 25, 45]),
        share: 50,
        idle_empty: rng.pick(&[Nanos::from_millis(3), Nanos::from_millis(100), Nanos::from_secs(1)]),
        idle_full: Nanos::from_millis(1),
        // 2 MiB hold all of the largest log. More would only cost time to zero at every start.
        destage_memory: rng.pick(&[64 << 10, 1 << 20, 2 << 20]),
        destage_depth: rng.pick(&[1, 4, 32]),
        // Drawn from a copy, and off with planted bugs, for the same reasons as below.
        destage_rate: match canary {
            None => rng.clone().pick(&[0, 0, 64 << 10, 1 << 20]),
            Some(_) => 0,
        },
        ordered_destage: rng.chance(150),
        // Drawn here, so that the later numbers of a seed do not change.
        follow_head: {
            spindle = draw_spindle(rng);
            true
        },
        read_clean: true,
        discard_freed: true,
        wear_budget: 0,
        // Drawn from a copy, so that the later numbers of a seed do not change. Off with planted bugs: their numbers of states were
        // counted without it.
        compact: canary.is_none() && rng.clone().chance(500),
        accept_damage: false,
        doubt_kept: false,
        machine: 0,
        take_over: false,
        grow: false,
        missing: 0,
        scan_slots: LogCacheConfig::default().scan_slots,
        canary: canary.into(),
    };
    (config, spindle)
}

/// Stores the rotation of the log's disk, as format does where it can measure that.
pub(crate) fn store_spindle(log: &mut MemDisk, spindle: Spindle) {
    if spindle != Spindle::NotMeasured {
        let mut superblock = read_superblock(log).expect("it is formatted");
        superblock.spindle = spindle;
        write_superblock(log, &mut superblock).expect("good disks are written");
    }
}

/// Makes the superblock record a smaller data disk: the first start then finds that the disk has grown.
fn make_smaller(log: &mut MemDisk, data: &mut MemDisk, seed: u64) {
    let mut superblock = read_superblock(log).expect("it is formatted");
    let lines = DATA_SECTORS / LINE_SECTORS;
    superblock.data_sectors = SimRng::new(mix(seed, 0x961)).range(1, lines - 1) * LINE_SECTORS;
    superblock.fingerprint = Fingerprint::read(data, superblock.data_sectors, &superblock.cache_uuid)
        .expect("good disks are read");
    write_superblock(log, &mut superblock).expect("good disks are written");
}

fn data_geometry(rng: &mut SimRng) -> Geometry {
    let volatile_cache = rng.chance(850);
    let discards = if rng.chance(700) { Discards::Zero } else { Discards::No };
    Geometry { volatile_cache, discards, ..Geometry::plain(DATA_SECTORS) }
}

/// Data disks on which the chunks of one prefilled device lie, and the content of that device.
fn dealt_disks(rng: &mut SimRng, geometry: Geometry, disks: usize, seed: u64) -> (Vec<MemDisk>, Vec<Value>) {
    let sectors = PART_SECTORS * disks as u64;
    let mut whole = MemDisk::new(Geometry::plain(sectors), Latency::INSTANT, 0);
    let base = prefill(&mut whole, sectors, seed);
    let mut parts: Vec<MemDisk> =
        (0..disks).map(|_| disk(rng, Geometry { sectors: PART_SECTORS, ..geometry })).collect();
    let mut bytes = vec![0; (CHUNK_SECTORS * SECTOR_BYTES) as usize];
    for start in (0..sectors).step_by(CHUNK_SECTORS as usize).map(Lba) {
        whole.current().read(start, &mut bytes);
        let (disk, at) = dealt::place_of(start, disks);
        parts[disk].put(at, &bytes);
    }
    (parts, base)
}

/// Draws a rare combination: fewer segments than segment buffers, and a log whose writes are durable when they complete. The head can
/// then wrap around while an old write is in flight. (Under `ordered` a log has more segments than that.)
fn is_crowded(seed: u64, promise: Promise, canary: Option<LogCanary>) -> bool {
    let drawn = SimRng::new(mix(seed, 0xc0d)).chance(100);
    let asked = matches!(
        canary,
        Some(LogCanary::ReuseInFlight | LogCanary::UnpinnedProbe | LogCanary::UnpinnedDiscard)
    );
    promise != Promise::Ordered && (asked || canary.is_none() && drawn)
}

/// Formats a log for a prefilled data disk.
fn formatted(
    rng: &mut SimRng,
    data: &mut MemDisk,
    promise: Promise,
    crowded: bool,
    roomy: bool,
    discards: bool,
) -> (MemDisk, LogArea, String) {
    let mut segment_bytes: u32 = rng.pick(&[16 << 10, 16 << 10, 32 << 10, 64 << 10]);
    // A request can be taken back as a whole only where it fits half the log, headers and all.
    let least =
        if promise == Promise::Ordered { LARGEST_REQUEST_BYTES * 8 / u64::from(segment_bytes) } else { 4 };
    let mut segments = rng.range(least.max(4), least.max(4) + 12);
    let mut log_block_bytes = rng.pick(&[512, 4096]);
    if crowded {
        // A segment holds one record or two.
        (segments, segment_bytes, log_block_bytes) = (4 + segments % 2, 16 << 10, 4096);
    }
    if roomy {
        (segments, segment_bytes) = (20 + segments % 10, 32 << 10);
    }
    let sectors = FIRST_SEGMENT_SECTOR + segments * u64::from(segment_bytes) / SECTOR_BYTES;
    let volatile_cache = rng.chance(850) && !crowded;
    let geometry = Geometry { volatile_cache, ..Geometry::plain(sectors) };
    let mut log = match discards {
        true => disk(rng, Geometry { discards: Discards::Advisory, ssd: true, ..geometry }).scrambling(),
        false => disk(rng, geometry),
    };
    let mut uuid = || {
        let (a, b) = (rng.next_u64(), rng.next_u64());
        (u128::from(a) << 64 | u128::from(b)).to_le_bytes()
    };
    let mut options = FormatOptions::new(uuid(), uuid());
    options.segment_bytes = Some(segment_bytes);
    options.log_block_bytes = Some(log_block_bytes);
    format(&mut log, data, &options).expect("good disks are formatted");
    let area = LogArea { sectors, block_sectors: u64::from(log_block_bytes) / SECTOR_BYTES };
    (
        log,
        area,
        format!("{segments} segments of {} KiB, log blocks of {log_block_bytes}", segment_bytes >> 10),
    )
}

/// Copies a log disk and a data disk to one disk: the log first, then the data.
pub(crate) fn joined(rng: &mut SimRng, log: &MemDisk, data: &MemDisk) -> MemDisk {
    let discards = match dcd_engine::BlockDevice::geometry(data).discards {
        Discards::Advisory => Discards::Advisory,
        Discards::No | Discards::Zero => Discards::Zero,
    };
    let (log_sectors, data_sectors) = (log.current().sectors(), data.current().sectors());
    let mut both = disk(rng, Geometry { discards, ..Geometry::plain(log_sectors + data_sectors) });
    for (part, start, sectors) in [(log, 0, log_sectors), (data, log_sectors, data_sectors)] {
        let mut bytes = vec![0; (sectors * SECTOR_BYTES) as usize];
        part.current().read(Lba(0), &mut bytes);
        both.put(Lba(start), &bytes);
    }
    both
}

/// The parts of the stack below the cache: the log and the data disks.
fn ports(
    builder: &mut StackBuilder,
    geometries: &[Geometry],
    log_sectors: u64,
    legs: Option<&MirrorConfig>,
) -> Vec<Target> {
    if let Some(config) = legs {
        let (data, legs) = geometries.split_last().expect("legs and a data disk");
        return vec![add_mirror(builder, config, legs), builder.device(*data)];
    }
    let devices: Vec<Target> = geometries.iter().map(|geometry| builder.device(*geometry)).collect();
    if let [both] = devices[..] {
        let data = Extent::new(Lba(log_sectors), geometries[0].sectors - log_sectors);
        return slices(builder, both, data).to_vec();
    }
    devices
}

/// Two slices of what is `below`: a log, and the data behind it.
pub(crate) fn slices(builder: &mut StackBuilder, below: Target, data: Extent) -> [Target; 2] {
    let log = Extent::new(Lba(0), data.start.0);
    let mut slice = |name, extent| builder.layer(name, Box::new(Slice::new(extent)), &[below]);
    [slice("log", log), slice("data", data)]
}

/// Returns a builder of the stack in which a data disk may be missing. On spinning disks, the cache gives way to clients.
fn builds_missing(
    make: MakeCache,
    config: LogCacheConfig,
    log_sectors: u64,
    legs: Option<MirrorConfig>,
    spins: bool,
) -> impl Fn(&[Geometry], Option<usize>) -> Stack {
    move |geometries, missing| {
        let config = LogCacheConfig { missing: missing.map_or(0, |disk| 1 << disk), ..config.clone() };
        let mut builder = StackBuilder::new();
        let spinning = |geometry: &Geometry| Geometry { rotational: spins, ..*geometry };
        let geometries: Vec<Geometry> = geometries.iter().map(spinning).collect();
        let ports = ports(&mut builder, &geometries, log_sectors, legs.as_ref());
        let disks = ports.len() - 1;
        let mut root = builder.layer("cache", make(config), &ports);
        if let Target::Layer(cache) = root
            && disks > 1
        {
            let disks: Vec<Target> = (0..disks).map(|disk| Target::Disk(cache, disk)).collect();
            root = builder.layer("dealt", Box::new(Dealt::without(disks.len(), missing)), &disks);
        }
        builder.finish(root)
    }
}

/// Returns a builder of the stack, and one without the log.
fn builds(
    make: MakeCache,
    config: LogCacheConfig,
    log_sectors: u64,
    legs: Option<MirrorConfig>,
    spins: bool,
) -> (Build, Build) {
    let legs_without = legs.clone();
    let any = builds_missing(make, config, log_sectors, legs, spins);
    let with_log = move |geometries: &[Geometry]| any(geometries, None);
    let without_log = move |geometries: &[Geometry]| -> Stack {
        let mut builder = StackBuilder::new();
        let ports = ports(&mut builder, geometries, log_sectors, legs_without.as_ref());
        let bare: Box<dyn Layer> = match ports.len() {
            2 => Box::new(Slice::new(Extent::new(Lba(0), DATA_SECTORS))),
            ports => Box::new(Dealt::new(ports - 1)),
        };
        let root = builder.layer("bare", bare, &ports[1..]);
        builder.finish(root)
    };
    (Box::new(with_log), Box::new(without_log))
}

/// The log cache, with settings from the seed, and a bug where one is asked for.
pub fn log_cache_rig(seed: u64, promise: Promise, canary: Option<LogCanary>) -> Rig {
    let make: MakeCache = Rc::new(|config| Box::new(LogCache::new(config)));
    cache_rig(seed, promise, canary, &make)
}

/// The log cache with ordered destage in every run. With `plain`, the cache destages without order, and the explorer must notice.
pub fn ordered_destage_rig(seed: u64, promise: Promise, plain: bool) -> Rig {
    let make: MakeCache = Rc::new(move |config| {
        let told = LogCacheConfig { ordered_destage: !plain, bypass_bytes: 0, ..config };
        Box::new(LogCache::new(told))
    });
    rig_of(seed, promise, None, &|config, _| config.ordered_destage = true, &make, None, 1)
}

/// The log cache whose log is damaged at rest, one block at a time. Most of the time nothing is destaged before space runs short,
/// so that the log has much to lose.
pub fn rotting_rig(seed: u64, promise: Promise, canary: Option<LogCanary>) -> Rig {
    let make: MakeCache = Rc::new(|config| Box::new(LogCache::new(config)));
    let lazy = |config: &mut LogCacheConfig, rng: &mut SimRng| {
        if rng.chance(750) {
            (config.idle_empty, config.idle_full) = (Nanos::from_secs(3600), Nanos::from_secs(3600));
            (config.when, config.high_mark) = (WhenPolicy::Idle, 90);
        }
    };
    let rig = rig_of(seed, promise, canary, &lazy, &make, None, 1);
    Rig { data_alone: None, rots: true, tuned: None, ..rig }
}

/// The log cache with gap filling in its destage, by rules from the seed. It destages in every pause, one operation after the other,
/// so that clients overwrite gaps that are being filled.
pub fn filling_rig(seed: u64, promise: Promise, ordered_destage: bool, canary: Option<LogCanary>) -> Rig {
    let make: MakeCache = Rc::new(|config| Box::new(LogCache::new(config)));
    let fill = |config: &mut LogCacheConfig, rng: &mut SimRng| {
        let read = Strides::up_to(rng.pick(&[0, 30, 300, 300]));
        let write = Strides::up_to(rng.pick(&[3, 30, 300, 300]));
        config.contiguity = Some(Contiguity { read, write });
        config.how = HowPolicy::Sorted;
        config.bypass_bytes = rng.pick(&[1 << 10, 4 << 10, 16 << 10]);
        config.when = WhenPolicy::Idle;
        (config.idle_empty, config.idle_full) = (Nanos::from_micros(500), Nanos::from_micros(10));
        config.destage_depth = rng.pick(&[1, 1, 4]);
        config.ordered_destage = ordered_destage;
    };
    rig_of(seed, promise, canary, &fill, &make, None, 1)
}

/// The log cache whose writes go through to the data disk, most of the time: an administrator changes that while it runs.
pub fn through_rig(seed: u64, promise: Promise, canary: Option<LogCanary>) -> Rig {
    let next = SimRng::new(mix(seed, 0x3e3)).chance(300).then(NextMemory::default);
    let memory = next.clone();
    let make: MakeCache = Rc::new(move |config| match &memory {
        Some(memory) => Box::new(LogCache::with_memory(config, Box::new(memory.borrow().clone()))),
        None => Box::new(LogCache::new(config)),
    });
    let relies = next.is_some() && promise == Promise::Flush;
    let drawn = RefCell::new(LogCacheConfig::default());
    let change = |config: &mut LogCacheConfig, rng: &mut SimRng| {
        (config.ordered_destage, config.outlives_server) = (false, relies);
        config.writes = rng.pick(&[WriteRoute::Through, WriteRoute::Through, WriteRoute::Back]);
        if rng.chance(300) {
            config.bypass_bytes = 0;
        }
        drawn.replace(config.clone());
    };
    let rig = rig_of(seed, promise, canary, &change, &make, None, 1);
    let log_sectors = rig.log.as_ref().map_or(0, |log| log.sectors);
    let data_place = if rig.disks.len() == 1 { (0, Lba(log_sectors)) } else { (1, Lba(0)) };
    let rescued = rig.rescued.clone().filter(|_| next.is_none());
    let tuned = Some(drawn.into_inner());
    Rig { tuned, through: Some(data_place), memory: next, rescued, ..rig }
}

/// The log cache as `make` makes it, with settings from the seed.
pub fn cache_rig(seed: u64, promise: Promise, canary: Option<LogCanary>, make: &MakeCache) -> Rig {
    rig_of(seed, promise, canary, &|_, _| {}, make, None, 1)
}

/// The log cache with its log on legs: see [`mirror::mirrored_rig`].
pub(crate) fn rig_on_legs(
    seed: u64,
    promise: Promise,
    canary: Option<LogCanary>,
    legs: &MirrorLegs,
    who: &Rc<Cell<Who>>,
    memory: Option<NextMemory>,
) -> Rig {
    let (who, next) = (Rc::clone(who), memory.clone());
    let make: MakeCache = Rc::new(move |config| {
        let Who { machine, takes_over: take_over } = who.get();
        let config = LogCacheConfig { machine, take_over, ..config };
        Box::new(match &next {
            Some(next) => LogCache::with_memory(config, Box::new(next.borrow().clone())),
            None => LogCache::new(config),
        })
    });
    let as_drawn: ChangeSettings = &|_, _| {};
    let change = if memory.is_some() { &relied_on } else { as_drawn };
    Rig { memory, ..rig_of(seed, promise, canary, change, &make, Some(legs), 1) }
}

/// Memory for the stack that is built next.
pub(crate) type NextMemory = Rc<RefCell<SimMemory>>;

/// The log cache with memory that outlives its process, which most crashes kill: nothing that was answered may be lost.
pub fn memory_rig(seed: u64, promise: Promise, canary: Option<LogCanary>) -> Rig {
    let next = NextMemory::default();
    let memory = Rc::clone(&next);
    let make: MakeCache =
        Rc::new(move |config| Box::new(LogCache::with_memory(config, Box::new(memory.borrow().clone()))));
    let rig = rig_of(seed, promise, canary, &relied_on, &make, None, 1);
    Rig { memory: Some(next), rescued: None, ..rig }
}

/// The log cache over one to so many data disks. Over several, if there is a bug to plant.
pub fn disks_rig(seed: u64, promise: Promise, canary: Option<LogCanary>, disks_max: usize) -> Rig {
    let disks =
        SimRng::new(mix(seed, 0xd15c)).range(if canary.is_some() { 2 } else { 1 }, disks_max as u64) as usize;
    let make: MakeCache = Rc::new(move |config| Box::new(LogCache::new(config).of_disks(disks)));
    // With bugs of the tail in every run, with others in none: their numbers of states were counted without it.
    let in_trouble = match canary {
        None => SimRng::new(mix(seed, 0x7b1e)).chance(500),
        canary => matches!(canary, Some(LogCanary::PassMissing | LogCanary::CarryBlindly)),
    };
    let is_troubled = in_trouble && disks > 1;
    let goes_away = match canary {
        None => SimRng::new(mix(seed, 0x3155)).chance(500),
        canary => {
            matches!(canary, Some(LogCanary::FreeMissing | LogCanary::SkipMissing | LogCanary::ExactMissing))
        }
    };
    let may_miss = goes_away && disks > 1;
    let in_no_order: ChangeSettings = &|config, rng| {
        config.ordered_destage = false;
        config.share = rng.pick(&[ROOMY_SHARE, 50, 100]);
        if is_troubled {
            // A write past the log would fail, or hang. A log with room for the largest request is not filled by one disk.
            config.bypass_bytes = 0;
        }
        if is_troubled || may_miss {
            config.share = ROOMY_SHARE;
        }
    };
    let as_drawn: ChangeSettings = &|_, _| {};
    let change = if disks > 1 { in_no_order } else { as_drawn };
    let rig = rig_of(seed, promise, canary, change, &make, None, disks);
    let tuned = rig.tuned.clone().filter(|_| !is_troubled);
    let build_missing = rig.build_missing.filter(|_| may_miss);
    Rig { troubled: is_troubled.then_some(disks), dealt: disks, tuned, build_missing, ..rig }
}

/// The log cache of [`disks_rig`], to which a data disk more comes, and which it leaves, while it runs.
pub fn guest_rig(seed: u64, promise: Promise, canary: Option<LogCanary>, disks_max: usize) -> Rig {
    let disks = SimRng::new(mix(seed, 0x60e5)).range(1, disks_max as u64) as usize;
    let is_there = Rc::new(Cell::new(false));
    let guest = Rc::clone(&is_there);
    let make: MakeCache =
        Rc::new(move |config| Box::new(LogCache::new(config).of_disks(disks + usize::from(guest.get()))));
    let several: ChangeSettings = &|config, rng| {
        config.ordered_destage = false;
        config.share = rng.pick(&[ROOMY_SHARE, 50, 100]);
    };
    let rig = rig_of(seed, promise, canary, several, &make, None, disks);
    let (build, device) = (rig.build, rig.disks.len());
    let place = GuestPlace { device, disk: disks, is_there: Rc::clone(&is_there) };
    let with_guest: Build = Box::new(move |geometries: &[Geometry]| {
        let (own, all) = geometries.split_last().expect("the guest is the last device");
        let mut stack = build(all);
        let device = stack.add_device(*own);
        let cache = stack.layers().find(|(_, name)| *name == "cache").map(|(layer, _)| layer);
        if let Some(cache) = cache.filter(|_| is_there.get()) {
            stack.connect(cache, Port(1 + disks), device);
        }
        stack
    });
    let mut rng = SimRng::new(mix(seed, 0x90e5));
    let volatile_cache = rng.chance(850);
    let own = disk(&mut rng, Geometry { volatile_cache, ..Geometry::plain(GUEST_SECTORS) });
    Rig {
        disks: rig.disks.into_iter().chain([own]).collect(),
        build: with_guest,
        build_missing: None,
        build_after_log_failure: None,
        build_accepting: None,
        rescued: None,
        guest: Some(place),
        dealt: disks,
        about: format!("{}, and a disk that comes and goes", rig.about),
        ..rig
    }
}

/// Has clients outlive the server.
fn relied_on(config: &mut LogCacheConfig, _: &mut SimRng) {
    config.outlives_server = true;
}

/// Changes the drawn settings, with a random stream of its own.
type ChangeSettings<'a> = &'a dyn Fn(&mut LogCacheConfig, &mut SimRng);

fn rig_of(
    seed: u64,
    promise: Promise,
    canary: Option<LogCanary>,
    change: ChangeSettings,
    make: &MakeCache,
    legs: Option<&MirrorLegs>,
    data_disks: usize,
) -> Rig {
    let mut rng = SimRng::new(mix(seed, 0xdcd));
    let (mut config, mut spindle) = draw_config(&mut rng, promise, canary);
    let is_surveyed = canary == Some(LogCanary::UnpinnedProbe);
    if is_surveyed {
        spindle = Spindle::NotMeasured;
    }
    // Drawn from a stream of its own. Off with other planted bugs: their numbers of states were counted without it.
    let keeps = match canary {
        None => SimRng::new(mix(seed, 0x4ee9)).chance(400),
        canary => canary == Some(LogCanary::StaleKeep),
    };
    if keeps && !config.ordered_destage {
        config.reads = Reads::Keep;
    }
    // The same.
    let outlives = match canary {
        None => SimRng::new(mix(seed, 0x0417)).chance(300),
        canary => canary == Some(LogCanary::EarlyAnswer),
    };
    config.outlives_server = outlives && promise == Promise::Flush;
    // A pass over the table takes many events, or one.
    if canary.is_none() {
        config.scan_slots = SimRng::new(mix(seed, 0x5ca7)).pick(&[8, 100, config.scan_slots]);
    }
    change(&mut config, &mut SimRng::new(mix(seed, 0x9a9)));
    if config.ordered_destage {
        config.reads = Reads::Pass;
    }
    let roomy = data_disks > 1 && config.share == ROOMY_SHARE;
    let crowded = is_crowded(seed, promise, canary) && !roomy;
    if crowded {
        (config.segment_buffers, config.bypass_bytes) = (8, 0);
    }
    let mut geometry = data_geometry(&mut rng);
    // The oracle can judge a whole device, or the data disk alone, only if all content is known.
    let known = promise == Promise::Ordered || config.ordered_destage;
    if geometry.discards == Discards::Zero && !known && SimRng::new(mix(seed, 0xad)).chance(500) {
        geometry.discards = Discards::Advisory;
    }
    let (mut data, base) = match data_disks {
        1 => {
            let mut data = disk(&mut rng, geometry);
            let base = prefill(&mut data, DATA_SECTORS, seed);
            (vec![data], base)
        }
        disks => dealt_disks(&mut rng, geometry, disks, seed),
    };
    // The same. A log that spins is not discarded.
    let discards = match canary {
        None => SimRng::new(mix(seed, 0xf4ee)).chance(500),
        canary => canary.is_some_and(LogCanary::is_of_discards),
    };
    config.discard_freed = discards;
    // The same. Without a bypass, a write past the log may have been ruled out.
    if canary.is_none() && config.bypass_bytes > 0 {
        config.wear_budget = SimRng::new(mix(seed, 0x3ea2)).pick(&[0, 0, 64 << 10, 1 << 20]);
    }
    let (mut log, area, log_about) = formatted(&mut rng, &mut data[0], promise, crowded, roomy, discards);
    for (disk, data) in data.iter_mut().enumerate().skip(1) {
        add_disk(&mut log, data, [disk as u8; 16]).expect("good disks are added");
    }
    store_spindle(&mut log, spindle);
    // Drawn from a stream of its own. Off with planted bugs.
    config.grow = canary.is_none() && data_disks == 1 && SimRng::new(mix(seed, 0x960)).chance(200);
    if config.grow {
        make_smaller(&mut log, &mut data[0], seed);
    }
    let may_spin = canary.is_none() && config.reads == Reads::Pass;
    let spins = is_surveyed || may_spin && SimRng::new(mix(seed, 0x591)).chance(400);
    let log_sectors = log.current().sectors();
    let logical = rng.chance(200) && legs.is_none() && data_disks == 1;
    // Ordered destage reads whole segments, even unused parts. If no leg can read one, the log counts as failed.
    let tears = legs.is_some_and(|legs| legs.tears) && !config.ordered_destage;
    let disks = match legs {
        Some(legs) => legs.of(&mut rng, &log, tears).into_iter().chain(data).collect(),
        None if logical => vec![joined(&mut rng, &log, &data[0])],
        None => std::iter::once(log).chain(data).collect(),
    };
    let data_device = disks.len() - 1;
    let about = format!("{config:?}, {spindle:?}{}", if spins { ", disks that spin" } else { "" });
    let (ordered_destage, delay_max) = (config.ordered_destage, config.delay_max);
    let outlives_server = config.outlives_server || promise == Promise::Always;
    let reads_again = config.reads == Reads::Keep;
    let legs = legs.map(|legs| legs.config.clone());
    // Off with planted bugs, which starts catch.
    let is_rescued = canary.is_none() && !logical;
    let is_tuned = canary.is_none() && legs.is_none() && SimRng::new(mix(seed, 0x7e5)).chance(250);
    let tuned = is_tuned.then(|| config.clone());
    let rescued = is_rescued.then(|| Rescued {
        data_disks,
        legs: legs.clone(),
        log_is_never_flushed: false,
        data_is_never_flushed: false,
    });
    let accepting = LogCacheConfig { accept_damage: true, ..config.clone() };
    let (build_accepting, _) = builds(Rc::clone(make), accepting, log_sectors, legs.clone(), spins);
    let missing = builds_missing(Rc::clone(make), config.clone(), log_sectors, legs.clone(), spins);
    let build_missing: BuildMissing = Box::new(move |geometries, disk| missing(geometries, Some(disk)));
    let (build, bare) = builds(Rc::clone(make), config, log_sectors, legs, spins);
    let data_place = if logical { (0, Lba(log_sectors)) } else { (data_device, Lba(0)) };
    Rig {
        build_after_log_failure: Some(bare),
        data_alone: ordered_destage.then_some(data_place),
        promise,
        outlives_server,
        delay_max: delay_max + ORDERED_SLACK,
        overlaps: promise != Promise::Ordered,
        chunk: if data_disks > 1 { CHUNK_SECTORS } else { u64::MAX },
        reads_again,
        log: Some(area),
        rescued,
        build_missing: (data_disks > 1).then_some(build_missing),
        are_torn: tears.then(|| mirror::are_torn(data_device)),
        build_accepting: Some(build_accepting),
        tuned,
        ..Rig::plain(
            disks,
            base,
            build,
            format!(
                "log cache, {log_about}, {}, {about}",
                if logical {
                    "logical (one disk)".into()
                } else {
                    format!("physical ({data_disks} data disks)")
                }
            ),
        )
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
