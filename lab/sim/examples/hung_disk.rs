//! Measures the effect of a data disk that hangs on the others of its log, in virtual time: a log of 64 MiB before four modelled
//! disks, and for each a client that writes 4 KiB durably 150 times in a second. One disk hangs for a minute.
//!
//! `cargo run --release -p dcd-sim --example hung_disk`

#[allow(dead_code)] // Each program uses a part of it.
mod common;

use std::collections::BTreeMap;

use dcd_crash::dealt::{CHUNK_SECTORS, Dealt};
use dcd_crash::{DiskFaults, DriverProgress, Latency, MemDisk, SimRng, VirtualDriver};
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::log_cache::offline::{FormatOptions, add_disk, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig};
use dcd_engine::{
    Buf, Durability, Geometry, Io, Lba, Nanos, Pump, RequestId, SECTOR_BYTES, Stack, StackBuilder, Target,
};
use dcd_model::{Disk, DiskConfig};

const DISKS: usize = 4;
/// The disk that hangs.
const HUNG: usize = 3;
const MIB: u64 = (1 << 20) / SECTOR_BYTES;
const DATA_SECTORS: u64 = 512 * MIB;
const LOG_SECTORS: u64 = FIRST_SEGMENT_SECTOR + 64 * MIB;
const LOG_LATENCY: Latency = Latency::Uniform { min: Nanos::from_micros(80), max: Nanos::from_micros(120) };
/// Time between two writes to a disk.
const PAUSE: Nanos = Nanos::from_micros(6667);
const HANGS_AT: Nanos = Nanos::from_secs(120);
const ENDS_AT: Nanos = Nanos::from_secs(180);

fn rig() -> (Stack, VirtualDriver<MemDisk>) {
    let mut log = MemDisk::without_cuts(Geometry::plain(LOG_SECTORS), LOG_LATENCY, 1);
    let mut data: Vec<MemDisk> =
        (0..DISKS).map(|_| MemDisk::instant(Geometry::plain(DATA_SECTORS))).collect();
    format(&mut log, &mut data[0], &FormatOptions::new([1; 16], [2; 16])).expect("formatted");
    for (disk, data) in data.iter_mut().enumerate().skip(1) {
        add_disk(&mut log, data, [2 + disk as u8; 16]).expect("added");
    }
    let mut builder = StackBuilder::new();
    let mut ports = vec![builder.device(Geometry::plain(LOG_SECTORS))];
    let (drive, _) = common::drive_for(common::DRIVES[0], DATA_SECTORS * SECTOR_BYTES);
    for _ in &data {
        let device = builder.device(Geometry::plain(DATA_SECTORS));
        let disk = Disk::with_drive(drive.clone(), &DiskConfig::default());
        ports.push(builder.layer("spindle", Box::new(disk), &[device]));
    }
    let cache = LogCache::new(LogCacheConfig::default()).of_disks(DISKS);
    let Target::Layer(cache) = builder.layer("cache", Box::new(cache), &ports) else {
        unreachable!("a cache is a layer")
    };
    let disks: Vec<Target> = (0..DISKS).map(|disk| Target::Disk(cache, disk)).collect();
    let root = builder.layer("dealt", Box::new(Dealt::new(DISKS)), &disks);
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(std::iter::once(log).chain(data).collect());
    stack.activate(&mut driver).expect("an empty log starts");
    (stack, driver)
}

/// Returns the times of the writes to the other disks, of those asked for during the minute, and the segments carried forward.
fn times(hangs: bool) -> (Vec<Nanos>, u64) {
    let (mut stack, mut driver) = rig();
    let mut rng = SimRng::new(5);
    let mut asked: BTreeMap<RequestId, (usize, Nanos)> = BTreeMap::new();
    let mut times = Vec::new();
    let start = driver.now();
    for disk in 0..DISKS {
        driver.set_alarm(start + Nanos(PAUSE.0 * disk as u64 / DISKS as u64), disk as u64);
    }
    let (mut next, mut is_hung) = (0, false);
    while driver.now().since(start) < ENDS_AT {
        if hangs && !is_hung && driver.now().since(start) >= HANGS_AT {
            is_hung = true;
            driver.devices_mut()[1 + HUNG].set_faults(DiskFaults::hung(start + ENDS_AT, true));
        }
        if let DriverProgress::Alarm(disk) = driver.step(&mut stack) {
            let line = rng.below(DATA_SECTORS / 8);
            let (chunk, within) = (line * 8 / CHUNK_SECTORS, line * 8 % CHUNK_SECTORS);
            let at = Lba((chunk * DISKS as u64 + disk) * CHUNK_SECTORS + within);
            let buf = Buf::copy_of(&[1 + disk as u8; 4096]);
            next += 1;
            asked.insert(RequestId(next), (disk as usize, driver.now()));
            let write = Io::Write { at, buf, durability: Durability::Durable };
            driver.request(&mut stack, RequestId(next), write);
            driver.set_alarm(driver.now() + PAUSE, disk);
        }
        while let Some((id, result)) = driver.take_reply() {
            assert!(result.status.is_ok(), "good disks do what they are asked");
            let (disk, at) = asked.remove(&id).expect("it was asked");
            if disk != HUNG && at.since(start) >= HANGS_AT {
                times.push(driver.now().since(at));
            }
        }
    }
    let now = driver.now();
    times.extend(asked.values().filter(|(disk, _)| *disk != HUNG).map(|(_, at)| now.since(*at)));
    times.sort_unstable();
    let cache = stack.layers().find(|(_, name)| *name == "cache").expect("there is a cache").0;
    let status = stack.layer(cache).status(now).to_json();
    (times, status["statistics"]["carried_segments"].as_u64().unwrap_or(0))
}

fn main() {
    println!(
        "| one disk hangs | writes to the others | 50 % within | 99 % within | all within | segments carried |"
    );
    println!("|---|---:|---:|---:|---:|---:|");
    let mut nearly_all = Vec::new();
    for hangs in [false, true] {
        let (times, carried) = times(hangs);
        let micros = |part: usize| times[(times.len() - 1) * part / 100].0 / 1000;
        let [half, most, all] = [50, 99, 100].map(micros);
        let word = if hangs { "yes" } else { "no" };
        println!("| {word} | {} | {half} us | {most} us | {all} us | {carried} |", times.len());
        nearly_all.push(most as f64);
    }
    println!(
        "\nThe 99th percentile with the hang is {:.2} times that without.",
        nearly_all[1] / nearly_all[0]
    );
}
