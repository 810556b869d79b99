//! Measures the cost of a second leg of the log, in virtual time: 4 KiB writes that are durable when they are answered, and reads
//! of what only the log has, with one device and with two that are as fast.
//!
//! A write waits for the slower of two legs. So the price depends on how much the times of a drive differ, which each row has.
//!
//! `cargo run --release -p dcd-sim --example legs`

use dcd_crash::{DriverProgress, Latency, MemDisk, SimDevice, SimRng, VirtualDriver};
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig, WhenPolicy};
use dcd_engine::mirror::{CONTENT_SECTOR, Mirror, MirrorConfig, offline};
use dcd_engine::{
    BlockDevice, Buf, Durability, Extent, Geometry, Io, Lba, Nanos, Pump, RequestId, Stack, StackBuilder,
    layers::slice::Slice,
};

const MIB_SECTORS: u64 = (1 << 20) / 512;
const LOG_SECTORS: u64 = 256 * MIB_SECTORS;
const DATA_SECTORS: u64 = 64 * MIB_SECTORS;
const REQUESTS: u64 = 20_000;
/// The mean time of an operation, and the least in percent of it: the most lies as far above.
const MEAN_NANOS: u64 = 20_000;
const LEAST: [u64; 3] = [100, 80, 50];

/// Formatted legs, and a cache over them.
fn rig(count: usize, latency: Latency) -> (Stack, VirtualDriver<Box<dyn SimDevice>>) {
    let geometry = Geometry::plain(CONTENT_SECTOR + LOG_SECTORS);
    let mut plain = MemDisk::instant(Geometry::plain(LOG_SECTORS));
    let mut data = MemDisk::instant(Geometry::plain(DATA_SECTORS));
    format(&mut plain, &mut data, &FormatOptions::new([1; 16], [2; 16])).expect("formatted");
    let mut front = vec![0; (MIB_SECTORS * 512) as usize];
    plain.current().read(Lba(0), &mut front);
    let mut legs: Vec<MemDisk> =
        (0..count).map(|leg| MemDisk::new(geometry, latency, leg as u64 + 1)).collect();
    for leg in &mut legs {
        leg.put(Lba(CONTENT_SECTOR), &front);
    }
    let mut builder = StackBuilder::new();
    let mut ports: Vec<_> = legs.iter().map(|_| builder.device(geometry)).collect();
    if count > 1 {
        let mut devices: Vec<&mut dyn BlockDevice> =
            legs.iter_mut().map(|leg| leg as &mut dyn BlockDevice).collect();
        let ids: Vec<u64> = (1..=count as u64).collect();
        offline::create(&mut devices, [3; 16], &ids).expect("good disks become legs");
        let names = ids.iter().map(u64::to_string).collect();
        let mirror = Mirror::new(MirrorConfig { names, ..MirrorConfig::default() });
        ports = vec![builder.layer("legs", Box::new(mirror), &ports)];
    } else {
        let slice = Slice::new(Extent::new(Lba(CONTENT_SECTOR), LOG_SECTORS));
        ports = vec![builder.layer("slice", Box::new(slice), &ports)];
    }
    let data_port = builder.device(Geometry::plain(DATA_SECTORS));
    let config = LogCacheConfig { when: WhenPolicy::WhenFull, bypass_bytes: 0, ..LogCacheConfig::default() };
    let root = builder.layer("cache", Box::new(LogCache::new(config)), &[ports[0], data_port]);
    let mut devices: Vec<Box<dyn SimDevice>> =
        legs.into_iter().map(|leg| Box::new(leg) as Box<dyn SimDevice>).collect();
    devices.push(Box::new(data));
    let (mut stack, mut driver) = (builder.finish(root), VirtualDriver::new(devices));
    stack.activate(&mut driver).expect("an empty log starts");
    (stack, driver)
}

/// Returns the mean time of requests, with so many in flight.
fn mean(
    stack: &mut Stack,
    driver: &mut VirtualDriver<Box<dyn SimDevice>>,
    depth: u64,
    io: impl Fn(Lba) -> Io,
) -> f64 {
    let mut rng = SimRng::new(11);
    let began = driver.now();
    let (mut asked, mut answered) = (0, 0);
    while answered < REQUESTS {
        while asked < REQUESTS && asked - answered < depth {
            driver.request(stack, RequestId(asked), io(Lba(rng.below(DATA_SECTORS / 8) * 8)));
            asked += 1;
        }
        assert_ne!(driver.step(stack), DriverProgress::Idle, "requests are on their way");
        while let Some((_, result)) = driver.take_reply() {
            assert!(result.status.is_ok(), "good disks do what they are asked");
            answered += 1;
        }
    }
    driver.now().since(began).as_secs_f64() * 1e6 * depth as f64 / REQUESTS as f64
}

fn main() {
    println!("| a device takes | | depth | one leg | two legs | ratio |");
    println!("|---|---|---:|---:|---:|---:|");
    for least in LEAST {
        let (min, max) = (MEAN_NANOS * least / 100, MEAN_NANOS * (200 - least) / 100);
        let latency = Latency::Uniform { min: Nanos(min), max: Nanos(max) };
        for depth in [1, 32] {
            let [one, two] = [1, 2].map(|count| {
                let (mut stack, mut driver) = rig(count, latency);
                let write = |at| Io::Write { at, buf: Buf::zeroed(4096), durability: Durability::Durable };
                let writes = mean(&mut stack, &mut driver, depth, write);
                let read = |at| Io::Read { at, buf: Buf::zeroed(4096) };
                [writes, mean(&mut stack, &mut driver, depth, read)]
            });
            for (what, one, two) in [("write", one[0], two[0]), ("read", one[1], two[1])] {
                println!(
                    "| {} to {} us | {what} | {depth} | {one:.1} us | {two:.1} us | {:.2}x |",
                    min / 1000,
                    max / 1000,
                    two / one
                );
            }
        }
    }
}
