//! A log on a disk that turns: what format measures of modelled drives, and what the cache makes of it.

use std::cell::Cell;
use std::rc::Rc;

use dcd_crash::{DriverProgress, Latency, MemDisk, SimRng, VirtualDriver};
use dcd_engine::layers::slice::Slice;
use dcd_engine::log_cache::format::{FIRST_SEGMENT_SECTOR, LogSuperblock};
use dcd_engine::log_cache::offline::{FormatOptions, format, read_superblock, write_superblock};
use dcd_engine::log_cache::spindle::{Spin, Spindle};
use dcd_engine::log_cache::{LogCache, LogCacheConfig};
use dcd_engine::{
    BlockDevice, Buf, Control, Durability, ErrorKind, Extent, Geometry, Io, IoError, IoResult, LayerIndex,
    Lba, LogCacheStatus, LogHead, Nanos, Pump, Report, Stack, StackBuilder, StackDevice, Target,
};
use dcd_model::{Access, Disk, DiskConfig, Drive, WriteCache, drive};

use super::busy_host::BusyHost;
use crate::{Offline, OfflinePart};

const MIB: u64 = 2048;

/// Layers below the slice that is the log.
type Below<'a> = &'a dyn Fn(&mut StackBuilder, Target) -> Target;

fn modelled(config: DiskConfig) -> impl Fn(&mut StackBuilder, Target) -> Target {
    move |builder, device| builder.layer("disk", Box::new(Disk::new(&config).expect("a drive")), &[device])
}

/// A modelled drive below a busy host.
fn below_busy_host(config: DiskConfig, seed: u64) -> impl Fn(&mut StackBuilder, Target) -> Target {
    let disk = modelled(config);
    move |builder, device| {
        let disk = disk(builder, device);
        builder.layer("host", Box::new(BusyHost::new(seed)), &[disk])
    }
}

const DATA_SECTORS: u64 = 64 * MIB;

/// Formats a log on a part of a device, and gives that back; the time that it took, too.
fn format_on(device: MemDisk, below: Below<'_>, log: Extent) -> (MemDisk, LogSuperblock, Nanos) {
    let mut builder = StackBuilder::new();
    let port = builder.device(BlockDevice::geometry(&device));
    let disk = below(&mut builder, port);
    let slice = builder.layer("log", Box::new(Slice::new(log)), &[disk]);
    let offline = Offline::start(builder.finish(slice), VirtualDriver::new(vec![device])).expect("active");
    let mut part: OfflinePart<_> = offline.part(slice);
    let mut data = MemDisk::instant(Geometry::plain(DATA_SECTORS));
    let superblock = format(&mut part, &mut data, &FormatOptions::new([1; 16], [2; 16])).expect("formatted");
    let took = part.now().expect("it has a clock");
    drop(part);
    (offline.into_pump().into_devices().remove(0), superblock, took)
}

fn formatted(config: &DiskConfig, log: Extent) -> (LogSuperblock, Nanos) {
    let device = MemDisk::instant(Geometry::plain(log.end().0));
    let (_, superblock, took) = format_on(device, &modelled(config.clone()), log);
    (superblock, took)
}

/// A cache that is served, with its log on `log`.
struct Served {
    stack: Stack,
    driver: VirtualDriver<MemDisk>,
    cache: LayerIndex,
    log: Target,
    written: u64,
}

impl Served {
    fn start(log: MemDisk, below: Below<'_>) -> Served {
        Served::start_as(log, below, LogCacheConfig::default())
    }

    fn start_as(log: MemDisk, below: Below<'_>, config: LogCacheConfig) -> Served {
        let sectors = BlockDevice::geometry(&log).sectors;
        let mut builder = StackBuilder::new();
        let devices =
            [builder.device(BlockDevice::geometry(&log)), builder.device(Geometry::plain(DATA_SECTORS))];
        let disk = below(&mut builder, devices[0]);
        let log_part = builder.layer("log", Box::new(Slice::new(Extent::new(Lba(0), sectors))), &[disk]);
        let cache = LogCache::new(config);
        let root = builder.layer("cache", Box::new(cache), &[log_part, devices[1]]);
        let Target::Layer(cache) = root else { unreachable!("a cache is a layer") };
        let mut stack = builder.finish(root);
        let mut driver = VirtualDriver::new(vec![log, MemDisk::instant(Geometry::plain(DATA_SECTORS))]);
        stack.activate(&mut driver).expect("it starts");
        Served { stack, driver, cache, log: log_part, written: 0 }
    }

    /// A write and a flush, one after the other; how long both took.
    fn commit(&mut self) -> Nanos {
        let begun = self.driver.now();
        let root = self.stack.root();
        let at = Lba(self.written * 8 % DATA_SECTORS);
        self.written += 1;
        let mut device = StackDevice { stack: &mut self.stack, pump: &mut self.driver, target: root };
        device
            .run(Io::Write { at, buf: Buf::zeroed(4096), durability: Durability::Volatile })
            .status
            .expect("written");
        device.flush().expect("flushed");
        self.driver.now().since(begun)
    }

    /// Lets time pass without a request.
    fn rest(&mut self, time: Nanos) {
        let until = self.driver.now() + time;
        self.driver.set_alarm(until, 0);
        while self.driver.now() < until {
            assert_ne!(self.driver.step(&mut self.stack), DriverProgress::Idle);
        }
    }

    fn head(&self) -> LogHead {
        self.stack
            .layer(self.cache)
            .status(self.driver.now())
            .get::<LogCacheStatus>()
            .expect("a log cache")
            .log_head
    }

    /// The head's status after so many commits.
    fn after(mut self, commits: usize) -> LogHead {
        for _ in 0..commits {
            self.commit();
        }
        self.head()
    }

    /// Has the cache do this, and waits for the end.
    fn control(&mut self, control: Control, end: Report) {
        self.driver.control(&mut self.stack, self.cache, control);
        while self.driver.take_report().is_none_or(|(_, report)| report != end) {
            assert_ne!(self.driver.step(&mut self.stack), DriverProgress::Idle);
        }
    }

    /// Stops the cache, and reads what the log says.
    fn stop(mut self) -> LogSuperblock {
        self.control(Control::Stop, Report::Stopped);
        let mut log = StackDevice { stack: &mut self.stack, pump: &mut self.driver, target: self.log };
        read_superblock(&mut log).expect("it is there")
    }
}

fn config(drive: &str, write_cache: WriteCache) -> DiskConfig {
    DiskConfig { drive: drive.to_owned(), write_cache, ..DiskConfig::default() }
}

fn spin(superblock: &LogSuperblock) -> Spin {
    match superblock.spindle {
        Spindle::Spins(spin) => spin,
        other => panic!("{other:?}"),
    }
}

fn close(found: u64, real: u64, what: &str) {
    let off = found.abs_diff(real) as f64 / real as f64;
    assert!(off < 0.03, "{what}: {found} for {real}, {:.1} %", off * 100.0);
}

/// Compares with the drive's own figures, at the places where a log of this extent is measured.
fn compare(name: &str, drive: &Drive, log: Extent, superblock: &LogSuperblock) {
    let spin = spin(superblock);
    close(spin.revolution.0, drive.revolution().0, &format!("{name}: revolution"));
    let length = superblock.end_sector() - FIRST_SEGMENT_SECTOR;
    for part in 0..4 {
        let at = length * part / 3;
        let near = at.min(length - 8 * u64::from(spin.tracks[0]));
        let real = drive.track_at(log.start + FIRST_SEGMENT_SECTOR + near).sectors;
        close(spin.track_at(at, length), real.into(), &format!("{name}: track {part}"));
    }
    let overhead = drive.command_overhead(Access::Write).0;
    // In steps of a sixty-fourth of a turn, with one more to be sure, and by blocks.
    let block = drive.revolution().0 * 8 / u64::from(spin.tracks[0]);
    let least = drive.revolution().0 / 64;
    assert!(
        (overhead..overhead.max(least) + 2 * least + 2 * block).contains(&spin.lead.0),
        "{name}: a lead of {} over {}",
        spin.lead,
        Nanos(overhead)
    );
}

#[test]
fn format_finds_the_figures_of_modelled_drives() {
    for name in [
        "atlas-10k",
        "barracuda-1996",
        "barracuda-st32171w",
        "cheetah-15k4",
        "nearline-2018",
        "ra81",
        "ra82",
        "ra90",
    ] {
        let drive = drive::builtin(name).expect("a drive");
        let whole = drive.sectors().min(512 << 21);
        for log in [Extent::new(Lba(0), 64 * MIB), Extent::new(Lba(whole / 2), whole / 2)] {
            let (superblock, took) = formatted(&config(name, WriteCache::Off), log);
            compare(name, &drive, log, &superblock);
            assert!(!spin(&superblock).write_cache);
            assert!(took < Nanos::from_secs(6), "{name}: {took}");
        }
    }
}

/// The drive writes first to places of its own, and not where it is told.
#[test]
fn a_shingled_drive_shows_no_head() {
    let (superblock, _) = formatted(&config("smr-2014", WriteCache::Off), Extent::new(Lba(0), 64 * MIB));
    assert_eq!(superblock.spindle, Spindle::NotShown);
}

/// Slower than any drive that was built: a disk that is paced, or a virtual one over a drive.
#[test]
fn format_finds_the_figures_of_a_drive_that_turns_slowly() {
    let text = drive::text("nearline-2018").expect("its file").replace("rpm = 7200", "rpm = 1600");
    let drive = Drive::parse(&text).expect("a drive");
    assert_eq!(drive.revolution(), Nanos::from_micros(37_500));
    let below = |builder: &mut StackBuilder, device: Target| {
        let config = DiskConfig { write_cache: WriteCache::Off, ..DiskConfig::default() };
        builder.layer("disk", Box::new(Disk::with_drive(drive.clone(), &config)), &[device])
    };
    let log = Extent::new(Lba(0), 256 * MIB);
    let device = MemDisk::instant(Geometry::plain(log.sectors));
    let (_, superblock, _) = format_on(device, &below, log);
    compare("at 1600 rpm", &drive, log, &superblock);
}

fn log_on(drive: &str, write_cache: WriteCache) -> (MemDisk, LogSuperblock) {
    let log = Extent::new(Lba(0), 128 * MIB);
    let device = MemDisk::instant(Geometry::plain(log.sectors));
    let (device, superblock, _) = format_on(device, &modelled(config(drive, write_cache)), log);
    (device, superblock)
}

/// Measures a write with a flush in revolutions, a hundred times three in a row: the mean, and the longest.
fn steps(served: &mut Served, revolution: Nanos) -> (f64, f64) {
    // The first record of an activation is where the log ends, whatever turns.
    served.commit();
    let all: Vec<f64> = (0..300).map(|_| served.commit().0 as f64 / revolution.0 as f64).collect();
    (all.iter().sum::<f64>() / all.len() as f64, all.iter().copied().fold(0.0, f64::max))
}

#[test]
fn three_commits_in_a_row_wait_for_no_turn_and_the_superblock_keeps_what_was_measured() {
    for (name, most) in [("nearline-2018", 0.04), ("barracuda-1996", 0.33)] {
        let (log, superblock) = log_on(name, WriteCache::Off);
        let revolution = spin(&superblock).revolution;
        let mut served = Served::start(log, &modelled(config(name, WriteCache::Off)));
        let (mean, worst) = steps(&mut served, revolution);
        println!("{name}: {mean:.3} of a revolution for a step, {worst:.3} at most");
        assert!(mean < most && worst < 0.7, "{name}: {mean:.3} of a revolution, {worst:.3} at most");
        assert_eq!(served.head(), LogHead::Followed);
        assert_eq!(served.stop().spindle, superblock.spindle, "each superblock since has it");

        let (log, _) = log_on(name, WriteCache::Off);
        let sector_after_sector = LogCacheConfig { follow_head: false, ..LogCacheConfig::default() };
        let below = modelled(config(name, WriteCache::Off));
        let (mean, _) = steps(&mut Served::start_as(log, &below, sector_after_sector), revolution);
        assert!(mean > 0.95, "{name}, without following: {mean:.3} of a revolution");
    }
}

#[test]
fn a_write_cache_that_obeys_fua_is_seen_and_the_head_is_followed() {
    let (log, superblock) = log_on("nearline-2018", WriteCache::On);
    assert!(spin(&superblock).write_cache);
    let below = modelled(config("nearline-2018", WriteCache::On));
    assert_eq!(Served::start(log, &below).after(3000), LogHead::Followed);
}

#[test]
fn where_the_write_cache_answers_every_write_no_head_is_seen_and_none_is_followed() {
    for name in ["nearline-2018", "barracuda-1996"] {
        let (log, superblock) = log_on(name, WriteCache::IgnoresFua);
        let served = Served::start(log, &modelled(config(name, WriteCache::IgnoresFua)));
        // The barracuda's cache writes back at times of its own, which look like noise.
        assert!(!matches!(superblock.spindle, Spindle::Spins(_)), "{name}: {:?}", superblock.spindle);
        assert_ne!(served.after(10), LogHead::Followed, "{name}");
        // It is switched on after the log was made.
        let (log, _) = log_on(name, WriteCache::Off);
        let served = Served::start(log, &modelled(config(name, WriteCache::IgnoresFua)));
        assert_eq!(served.after(1200), LogHead::DoesNotPay, "{name}");
    }
}

#[test]
fn flash_and_virtual_disks_that_call_themselves_rotational_show_no_head() {
    let geometry = Geometry { rotational: true, ..Geometry::plain(128 * MIB) };
    let plain = |_: &mut StackBuilder, device: Target| device;
    let uniform = |min, max| Latency::Uniform { min: Nanos::from_micros(min), max: Nanos::from_micros(max) };
    for (about, latency) in [
        ("an SSD behind a RAID controller", uniform(40, 120)),
        ("flash whose flush takes as long as a turn", Latency::Fixed(Nanos::from_micros(8333))),
        ("a virtual disk", uniform(200, 9000)),
    ] {
        let device = MemDisk::without_cuts(geometry, latency, 3);
        let (log, superblock, took) = format_on(device, &plain, Extent::new(Lba(0), geometry.sectors));
        assert_eq!(superblock.spindle, Spindle::NotShown, "{about}");
        assert!(took < Nanos::from_secs(16), "{about}: {took}");
        assert_eq!(Served::start(log, &plain).after(10), LogHead::NotShown, "{about}");
        // A log that was made on a disk that turns, and copied.
        let (from, _) = log_on("nearline-2018", WriteCache::Off);
        let mut bytes = vec![0; 32 * 512];
        from.current().read(Lba(0), &mut bytes);
        let mut copied = MemDisk::without_cuts(geometry, latency, 4);
        copied.put(Lba(0), &bytes);
        assert_eq!(Served::start(copied, &plain).after(6000), LogHead::DoesNotPay, "{about}, copied");
    }
}

/// A device that notes where it is written, and dies after so many operations.
struct Watched<D> {
    device: D,
    left: u64,
    written: Vec<Extent>,
}

impl<D: BlockDevice + ?Sized> BlockDevice for Watched<&mut D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&mut self, io: Io) -> IoResult {
        if self.left == 0 {
            return IoResult::err(io.take_buf(), IoError::new(ErrorKind::PowerCut));
        }
        self.left -= 1;
        self.written.extend(io.extent().filter(|_| io.modifies()));
        self.device.run(io)
    }

    fn now(&self) -> Option<Nanos> {
        self.device.now()
    }
}

/// A host that notices the end of an operation late, now and then.
struct Noticed<D> {
    device: D,
    rng: SimRng,
    /// Percent of the completions that are noticed late, and the maximum delay.
    late: (u64, Nanos),
    delay: Nanos,
}

impl<D> Noticed<D> {
    fn new(device: D, percent: u64, most: Nanos) -> Noticed<D> {
        Noticed { device, rng: SimRng::new(7), late: (percent, most), delay: Nanos::ZERO }
    }
}

impl<D: BlockDevice> BlockDevice for Noticed<D> {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn run(&mut self, io: Io) -> IoResult {
        let is_late = self.rng.below(100) < self.late.0;
        self.delay = if is_late { Nanos(self.rng.below(self.late.1.0)) } else { Nanos::ZERO };
        self.device.run(io)
    }

    fn now(&self) -> Option<Nanos> {
        self.device.now().map(|now| now + self.delay)
    }
}

/// Has a modelled drive as a log, below a host that notices some ends late.
fn noticed<T>(
    drive: &str,
    percent: u64,
    most: Nanos,
    log: MemDisk,
    use_it: impl FnOnce(&mut dyn BlockDevice) -> T,
) -> (T, MemDisk) {
    let mut builder = StackBuilder::new();
    let port = builder.device(BlockDevice::geometry(&log));
    let disk = modelled(config(drive, WriteCache::Off))(&mut builder, port);
    let offline = Offline::start(builder.finish(disk), VirtualDriver::new(vec![log])).expect("active");
    let mut device = Noticed::new(offline.part(disk), percent, most);
    let used = use_it(&mut device);
    drop(device);
    (used, offline.into_pump().into_devices().remove(0))
}

#[test]
fn a_busy_host_hides_no_head_and_one_that_is_too_busy_is_not_taken_for_a_disk_without_a_head() {
    let log = Extent::new(Lba(0), 64 * MIB);
    let made = |name: &str, percent, most| {
        let device = MemDisk::instant(Geometry::plain(log.sectors));
        let mut data = MemDisk::instant(Geometry::plain(DATA_SECTORS));
        let options = FormatOptions::new([1; 16], [2; 16]);
        noticed(name, percent, most, device, |log| format(log, &mut data, &options).expect("formatted")).0
    };
    for name in ["nearline-2018", "cheetah-15k4", "barracuda-1996"] {
        let drive = drive::builtin(name).expect("a drive");
        compare(name, &drive, log, &made(name, 30, Nanos::from_micros(1500)));
    }
    // What is below adds times of its own, so nothing can be told.
    let geometry = Geometry { rotational: true, ..Geometry::plain(64 * MIB) };
    let latency = Latency::Uniform { min: Nanos::from_millis(3), max: Nanos::from_millis(40) };
    let device = MemDisk::without_cuts(geometry, latency, 3);
    let plain = |_: &mut StackBuilder, device: Target| device;
    let (_, superblock, took) = format_on(device, &plain, log);
    assert_eq!(superblock.spindle, Spindle::NotMeasured);
    assert!(took < Nanos::from_secs(16), "{took}");
}

/// A log on a disk of which this is known.
fn known_as(spindle: Spindle, (mut log, mut superblock): (MemDisk, LogSuperblock)) -> MemDisk {
    superblock.spindle = spindle;
    write_superblock(&mut log, &mut superblock).expect("written");
    write_superblock(&mut log, &mut superblock).expect("written");
    log
}

#[test]
fn a_head_that_format_has_not_found_is_found_while_the_cache_serves_and_the_next_start_knows_it() {
    for (name, known) in [
        ("nearline-2018", Spindle::NotMeasured),
        ("nearline-2018", Spindle::NotShown),
        ("cheetah-15k4", Spindle::NotShown),
        ("barracuda-1996", Spindle::NotMeasured),
        ("barracuda-st32171w", Spindle::NotShown),
        ("atlas-10k", Spindle::NotShown),
        ("ra81", Spindle::NotShown),
        ("ra82", Spindle::NotShown),
        ("ra90", Spindle::NotShown),
    ] {
        let (log, superblock) = log_on(name, WriteCache::Off);
        let log = known_as(known, (log, superblock.clone()));
        let mut served = Served::start(log, &modelled(config(name, WriteCache::Off)));
        assert_ne!(served.head(), LogHead::Followed, "{name}, {known:?}");
        // Clients come in the middle of it, again and again.
        for _ in 0..40 {
            served.commit();
            served.rest(Nanos::from_millis(1500));
        }
        assert_eq!(served.head(), LogHead::Followed, "{name}, {known:?}");
        for _ in 0..300 {
            served.commit();
        }
        assert_eq!(served.head(), LogHead::Followed, "{name}, {known:?}");
        let (before, found) = (spin(&superblock), spin(&served.stop()));
        close(found.revolution.0, before.revolution.0, &format!("{name}: revolution"));
        close(found.tracks[0].into(), before.tracks[0].into(), &format!("{name}: track"));
    }
}

#[test]
fn a_disk_without_a_head_is_measured_more_and_more_rarely_and_never_woken() {
    let geometry = Geometry { rotational: true, ..Geometry::plain(128 * MIB) };
    let latency = Latency::Uniform { min: Nanos::from_micros(40), max: Nanos::from_micros(120) };
    let device = MemDisk::without_cuts(geometry, latency, 3);
    let plain = |_: &mut StackBuilder, device: Target| device;
    let (log, _, _) = format_on(device, &plain, Extent::new(Lba(0), geometry.sectors));
    let mut served = Served::start(log, &plain);
    let writes = Rc::new(Cell::new(0));
    let counter = Rc::clone(&writes);
    served.driver.observe(Box::new(move |moment, _| counter.set(counter.get() + moment.writes)));
    let mut surveys = 0;
    for hour in 0..48 {
        let before = writes.get();
        served.commit();
        served.rest(Nanos::from_secs(30));
        // A survey writes one block sixteen times. The commit, its destaging and superblocks are fewer.
        surveys += usize::from(writes.get() - before > 16);
        let rested = writes.get();
        served.rest(Nanos::from_secs(3570));
        assert_eq!(writes.get(), rested, "hour {hour}: the disk sleeps");
    }
    println!("{surveys} surveys in two days");
    assert!((4..=13).contains(&surveys), "{surveys} surveys in two days");
    assert_eq!(served.head(), LogHead::NotShown);
}

#[test]
fn a_cut_while_a_log_is_measured_leaves_no_superblock_over_what_was_written() {
    let log = Extent::new(Lba(0), 16 * MIB);
    let superblocks = Extent::new(Lba(0), FIRST_SEGMENT_SECTOR);
    let forced = FormatOptions { force: true, ..FormatOptions::new([3; 16], [4; 16]) };
    let mut cuts = 0;
    for left in (0..).step_by(5) {
        let mut builder = StackBuilder::new();
        let port = builder.device(Geometry::plain(log.end().0));
        let disk = modelled(config("barracuda-1996", WriteCache::Off))(&mut builder, port);
        let (device, old, _) = format_on(
            MemDisk::instant(Geometry::plain(log.end().0)),
            &modelled(config("barracuda-1996", WriteCache::Off)),
            log,
        );
        let offline = Offline::start(builder.finish(disk), VirtualDriver::new(vec![device])).expect("active");
        let mut part = offline.part(disk);
        let mut watched = Watched { device: &mut part, left, written: Vec::new() };
        let mut data = MemDisk::instant(Geometry::plain(DATA_SECTORS));
        let done = format(&mut watched, &mut data, &forced).is_ok();
        let measured = watched.written.iter().any(|extent| extent.start >= superblocks.end());
        watched.left = u64::MAX;
        match read_superblock(&mut watched) {
            Ok(found) if found.cache_uuid == old.cache_uuid => assert!(!measured, "cut after {left}"),
            Ok(found) => assert!(matches!(found.spindle, Spindle::Spins(_)), "cut after {left}"),
            Err(_) => assert!(!done, "cut after {left}"),
        }
        let end = Lba(old.end_sector());
        assert!(watched.written.iter().all(|extent| extent.end() <= end), "nothing behind the segments");
        if done {
            break;
        }
        cuts += usize::from(measured);
    }
    assert!(cuts > 20, "{cuts} cuts while it was measured");
}

/// A log of 64 MiB, formatted on a drive below a busy host.
fn busy(config: &DiskConfig, seed: u64) -> (MemDisk, LogSuperblock, Nanos) {
    let log = Extent::new(Lba(0), 64 * MIB);
    let device = MemDisk::instant(Geometry::plain(log.sectors));
    format_on(device, &below_busy_host(config.clone(), seed), log)
}

#[test]
fn format_finds_the_head_below_a_busy_host() {
    for (drive, cache, seeds) in [
        ("nearline-2018", WriteCache::Off, 100),
        ("nearline-2018", WriteCache::On, 20),
        ("cheetah-15k4", WriteCache::Off, 20),
        ("barracuda-1996", WriteCache::Off, 20),
        ("atlas-10k", WriteCache::Off, 20),
        ("ra81", WriteCache::Off, 20),
    ] {
        let (mut found, mut longest) = (0, Nanos::ZERO);
        for seed in 0..seeds {
            let (_, superblock, took) = busy(&config(drive, cache), seed);
            found += u64::from(matches!(superblock.spindle, Spindle::Spins(_)));
            longest = longest.max(took);
        }
        println!("{drive}, {cache:?}: found in {found} of {seeds}, {longest} at most");
        assert!(found * 100 >= seeds * 99, "{drive}: found in {found} of {seeds}");
        assert!(longest < Nanos::from_secs(60), "{drive}: {longest}");
    }
}

#[test]
fn no_head_is_found_below_a_busy_host_where_a_cache_answers_and_that_takes_less_than_a_minute() {
    for drive in ["nearline-2018", "barracuda-1996"] {
        for seed in 0..10 {
            let (_, superblock, took) = busy(&config(drive, WriteCache::IgnoresFua), seed);
            assert!(
                !matches!(superblock.spindle, Spindle::Spins(_)),
                "{drive}, {seed}: {:?}",
                superblock.spindle
            );
            assert!(took < Nanos::from_secs(60), "{drive}, {seed}: {took}");
        }
    }
}

/// Serves a log below a busy host for a minute of commits: the mean of their times, and the head's status then. A log above its high mark
/// leaves no space for the head, so it is drained now and then.
fn minute(config: &DiskConfig, seed: u64, follow_head: bool) -> (Nanos, LogHead) {
    let (log, ..) = busy(config, seed);
    let settings = LogCacheConfig { follow_head, ..LogCacheConfig::default() };
    let mut served = Served::start_as(log, &below_busy_host(config.clone(), seed), settings);
    let (mut commits, mut took) = (0_u64, 0);
    while took < 60_000_000_000 {
        (commits, took) = (commits + 1, took + served.commit().0);
        if commits.is_multiple_of(64) {
            served.control(Control::Drain, Report::Drained);
        }
    }
    (Nanos(took / commits), served.head())
}

#[test]
fn the_head_is_followed_after_a_minute_below_a_busy_host_and_that_is_never_slower() {
    for (drive, cache, seeds) in [
        ("nearline-2018", WriteCache::Off, 6),
        ("nearline-2018", WriteCache::On, 2),
        ("cheetah-15k4", WriteCache::Off, 2),
        ("barracuda-1996", WriteCache::Off, 2),
        ("atlas-10k", WriteCache::Off, 2),
    ] {
        for seed in 0..seeds {
            let config = config(drive, cache);
            let ((mean, head), (without, _)) = (minute(&config, seed, true), minute(&config, seed, false));
            println!("{drive}, {cache:?}: {head:?}, {mean} for a commit, {without} without");
            assert_eq!(head, LogHead::Followed, "{drive}, {seed}");
            assert!(mean < without, "{drive}, {seed}: {mean}, {without} without");
        }
    }
}
