//! Destaging gives way to a client that reads: how long reads take beside those of the plain disk, in virtual time.

use dcd_crash::{MemDisk, SimRng, VirtualDriver};
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig};
use dcd_engine::{
    Buf, Control, Durability, Geometry, Io, LINE_BYTES, LINE_SECTORS, LayerIndex, Lba, Nanos, Pump,
    RequestId, Stack, StackBuilder,
};
use dcd_model::{Disk, DiskConfig};

const LOG_BYTES: u64 = 64 << 20;
const DATA_SECTORS: u64 = 400 << 21;
const READS: usize = 2000;

type Driver = VirtualDriver<MemDisk>;

fn wait(driver: &mut Driver, stack: &mut Stack) -> bool {
    loop {
        if let Some((_, result)) = driver.take_reply() {
            result.status.expect("good disks");
            return true;
        }
        if driver.step(stack) == dcd_crash::DriverProgress::Idle {
            return false;
        }
    }
}

/// A log on a fast device before a modelled disk; `cached`: there is a log.
fn stack(cached: bool) -> (Stack, Driver) {
    stack_as(cached, LogCacheConfig::default())
}

fn stack_as(cached: bool, config: LogCacheConfig) -> (Stack, Driver) {
    let log_sectors = LOG_BYTES / 512;
    let mut log = MemDisk::instant(Geometry::plain(log_sectors));
    let mut data = MemDisk::instant(Geometry::plain(DATA_SECTORS));
    format(&mut log, &mut data, &FormatOptions::new(*b"reads before all", *b"a slow data disk"))
        .expect("made");
    let mut builder = StackBuilder::new();
    let log_port = builder.device(dcd_engine::BlockDevice::geometry(&log));
    let data_port = builder.device(dcd_engine::BlockDevice::geometry(&data));
    let drive = DiskConfig { drive: "nearline-2018".to_owned(), ..DiskConfig::default() };
    let disk =
        builder.layer("disk", Box::new(Disk::new(&drive).expect("a drive that is there")), &[data_port]);
    let root = match cached {
        true => builder.layer("cache", Box::new(LogCache::new(config)), &[log_port, disk]),
        false => disk,
    };
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(vec![log, data]);
    stack.activate(&mut driver).expect("active");
    (stack, driver)
}

/// Load of the clients.
#[derive(Clone, Copy, Debug)]
struct Scene {
    /// Lines that are dirty at the start. The high mark is at three quarters of 16,384.
    dirty: usize,
    /// An administrator has all of it destaged meanwhile.
    drains: bool,
    think: Nanos,
}

/// The 99th percentile of the response to random reads, in milliseconds, and how many lines were destaged meanwhile.
fn reads(cached: bool, scene: Scene) -> (f64, u64) {
    let (mut stack, mut driver) = stack(cached);
    let root = LayerIndex(stack.layer_count() - 1);
    let mut rng = SimRng::new(3);
    let mut id = 0;
    let mut ask = |driver: &mut Driver, stack: &mut Stack, io: Io| {
        id += 1;
        driver.request(stack, RequestId(id), io);
    };
    for _ in 0..if cached { scene.dirty } else { 0 } {
        let at = Lba(rng.below(DATA_SECTORS / LINE_SECTORS) * LINE_SECTORS);
        let io = Io::Write { at, buf: Buf::blank(LINE_BYTES as usize), durability: Durability::Volatile };
        ask(&mut driver, &mut stack, io);
        wait(&mut driver, &mut stack);
    }
    if scene.drains {
        driver.control(&mut stack, root, Control::Drain);
    }
    let destaged = |stack: &Stack, now| {
        stack.layer(root).status(now).to_json()["statistics"]["destaged_sectors"].as_u64().unwrap_or(0)
    };
    let before = destaged(&stack, driver.now());
    let mut times = Vec::new();
    for read in 0..READS {
        let at = Lba(rng.below(DATA_SECTORS / LINE_SECTORS) * LINE_SECTORS);
        let began = driver.now();
        ask(&mut driver, &mut stack, Io::Read { at, buf: Buf::blank(LINE_BYTES as usize) });
        wait(&mut driver, &mut stack);
        times.push((driver.now().0 - began.0) as f64 / 1e6);
        driver.set_alarm(driver.now() + scene.think, read as u64);
        while driver.step(&mut stack) != dcd_crash::DriverProgress::Alarm(read as u64) {}
    }
    times.sort_by(f64::total_cmp);
    (times[READS * 99 / 100], (destaged(&stack, driver.now()) - before) / LINE_SECTORS)
}

#[test]
fn reads_beside_destaging_take_at_most_half_as_long_again() {
    let serving = |millis| Scene { dirty: 14_500, drains: false, think: Nanos::from_millis(millis) };
    for (scene, most) in [
        (serving(0), 1.5),
        (serving(10), 1.5),
        (serving(50), 2.0),
        // An administrator waits, too: every other operation is his.
        (Scene { dirty: 6000, drains: true, think: Nanos::ZERO }, 2.0),
    ] {
        let (plain, _) = reads(false, scene);
        let (cached, destaged) = reads(true, scene);
        println!(
            "{scene:?}: p99 {cached:.1} ms, {:.2} of the plain disk's; {destaged} destaged",
            cached / plain
        );
        assert!(destaged > 0, "{scene:?}: destaging stands still");
        assert!(cached <= most * plain, "{scene:?}: {cached:.1} ms beside {plain:.1} ms");
    }
}

/// Writes a second beside several readers, from when the log is at its high mark.
fn writes_beside_readers(destage_depth: usize) -> f64 {
    const WRITES: u64 = 20_000;
    const IN_FLIGHT: u64 = 8;
    let (mut stack, mut driver) =
        stack_as(true, LogCacheConfig { destage_depth, ..LogCacheConfig::default() });
    let mut rng = SimRng::new(5);
    let mut begun = Nanos::ZERO;
    let (mut asked, mut written) = (0, 0);
    // Readers and writers have even and odd numbers.
    let mut ask = |driver: &mut Driver, stack: &mut Stack, kind: u64| {
        let at = Lba(rng.below(DATA_SECTORS / LINE_SECTORS) * LINE_SECTORS);
        let buf = Buf::blank(LINE_BYTES as usize);
        let write = Io::Write { at, buf: Buf::blank(LINE_BYTES as usize), durability: Durability::Volatile };
        asked += 1;
        let io = if kind == 0 { Io::Read { at, buf } } else { write };
        driver.request(stack, RequestId(asked * 2 + kind), io);
    };
    (0..IN_FLIGHT * 2).for_each(|client| ask(&mut driver, &mut stack, client % 2));
    while written < WRITES {
        while let Some((id, result)) = driver.take_reply() {
            result.status.expect("good disks");
            written += id.0 % 2;
            if written == WRITES / 2 && id.0 % 2 == 1 {
                begun = driver.now();
            }
            ask(&mut driver, &mut stack, id.0 % 2);
        }
        assert_ne!(driver.step(&mut stack), dcd_crash::DriverProgress::Idle);
    }
    (WRITES / 2) as f64 / driver.now().since(begun).as_secs_f64()
}

/// A single operation at a time would wait for all readers at the disk, each time: writers would stand still before a full log.
#[test]
fn beside_writers_destaging_has_many_operations_in_flight() {
    let [many, one] = [32, 1].map(writes_beside_readers);
    println!("{many:.0} writes a second, and {one:.0} with one operation in flight");
    assert!(many > 1.5 * one, "{many:.0} writes a second, and {one:.0} with one operation in flight");
}
