//! Measures a log that four data disks share beside four stacks with a quarter of the log each, in virtual time: random writes of 4 KiB,
//! each with a flush, on all disks at once. The logs of the four stacks are partitions of the same SSD.
//!
//! `cargo run --release -p dcd-sim --example shared_log`; an argument is the mean time between an answer and the client's next request, in
//! microseconds.

#[allow(dead_code)] // Each program uses a part of it.
mod common;

use std::cell::Cell;
use std::rc::Rc;

use dcd_crash::dealt::Dealt;
use dcd_crash::{DriverProgress, MemDisk, SimDevice, SimRng, Ticket, VirtualDriver};
use dcd_engine::layers::slice::Slice;
use dcd_engine::log_cache::format::FIRST_SEGMENT_SECTOR;
use dcd_engine::log_cache::offline::{FormatOptions, add_disk, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig};
use dcd_engine::{
    Buf, Durability, Extent, Geometry, Io, IoResult, Lba, Nanos, Pump, RequestId, SECTOR_BYTES, Stack,
    StackBuilder, Target,
};
use dcd_model::{Disk, DiskConfig};

const DISKS: usize = 4;
const MIB: u64 = (1 << 20) / SECTOR_BYTES;
const DATA_SECTORS: u64 = 512 * MIB;
const QUARTER_SECTORS: u64 = FIRST_SEGMENT_SECTOR + 64 * MIB;
/// Writes to each disk: they fit a quarter of the log, so nothing waits for a spinning disk.
const WRITES: usize = 6000;
/// Mean time between an answer and the client's next request, in microseconds.
const THINKS: u64 = 20;

/// An SSD of which each channel does one request at a time. A flush begins when earlier writes and flushes have ended, and a durable write
/// is a write and a flush. (The numbers are those of `scripts/peers/modelled`.)
struct Ssd {
    store: MemDisk,
    rng: SimRng,
    channels: [Nanos; 8],
    bus: Nanos,
    writes_end: Nanos,
    flushes_end: Nanos,
    flush: Nanos,
    flushes: Rc<Cell<u64>>,
}

impl Ssd {
    fn new(store: MemDisk, flush: Nanos, flushes: &Rc<Cell<u64>>) -> Ssd {
        let (rng, zero) = (SimRng::new(7), Nanos::ZERO);
        let flushes = Rc::clone(flushes);
        Ssd {
            store,
            rng,
            channels: [zero; 8],
            bus: zero,
            writes_end: zero,
            flushes_end: zero,
            flush,
            flushes,
        }
    }

    fn transfer(&mut self, now: Nanos, bytes: u64, takes: Nanos) -> Nanos {
        let channel = self.channels.iter_mut().min().expect("it has channels");
        let begin = now.max(*channel);
        // 1 GB/s.
        self.bus = self.bus.max(begin) + Nanos(bytes);
        *channel = self.bus.max(begin + takes);
        *channel
    }

    fn flushed(&mut self, from: Nanos) -> Nanos {
        self.flushes.set(self.flushes.get() + 1);
        self.flushes_end = from.max(self.writes_end).max(self.flushes_end) + self.flush;
        self.flushes_end
    }
}

impl SimDevice for Ssd {
    fn geometry(&self) -> Geometry {
        SimDevice::geometry(&self.store)
    }

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket {
        let bytes = io.extent().map_or(0, |extent| extent.sectors * SECTOR_BYTES);
        let done = match &io {
            Io::Flush => self.flushed(now),
            Io::Read { .. } | Io::ReadCopy { .. } => self.transfer(now, bytes, Nanos::from_micros(80)),
            _ => {
                let takes = Nanos(self.rng.range(20_000, 80_000));
                let end = self.transfer(now, bytes, takes);
                self.writes_end = self.writes_end.max(end);
                let is_durable = matches!(&io, Io::Write { durability: Durability::Durable, .. });
                if is_durable { self.flushed(end) } else { end }
            }
        };
        Ticket { done, ..self.store.submit(now, io) }
    }

    fn finish(&mut self, now: Nanos, token: u32) -> IoResult {
        self.store.finish(now, token)
    }
}

struct Rig {
    stack: Stack,
    driver: VirtualDriver,
    disks: Vec<Target>,
    flushes: Rc<Cell<u64>>,
}

/// Makes one log for all disks, or a log for each.
fn rig(logs: usize, flush: Nanos) -> Rig {
    let log_sectors = QUARTER_SECTORS * (DISKS / logs) as u64;
    let mut ssd = MemDisk::instant(Geometry::plain(QUARTER_SECTORS * DISKS as u64));
    let mut data: Vec<MemDisk> =
        (0..DISKS).map(|_| MemDisk::instant(Geometry::plain(DATA_SECTORS))).collect();
    for (number, data) in data.chunks_mut(DISKS / logs).enumerate() {
        let mut log = MemDisk::instant(Geometry::plain(log_sectors));
        let (first, others) = data.split_first_mut().expect("a log has a disk");
        let ids = ([1 + number as u8; 16], [11 + number as u8; 16]);
        format(&mut log, first, &FormatOptions::new(ids.0, ids.1)).expect("formatted");
        for (other, data) in others.iter_mut().enumerate() {
            add_disk(&mut log, data, [21 + other as u8; 16]).expect("added");
        }
        let mut head = vec![0; (FIRST_SEGMENT_SECTOR * SECTOR_BYTES) as usize];
        log.current().read(Lba(0), &mut head);
        ssd.put(Lba(number as u64 * log_sectors), &head);
    }
    let mut builder = StackBuilder::new();
    let device = builder.device(Geometry::plain(QUARTER_SECTORS * DISKS as u64));
    let (drive, _) = common::drive_for(common::DRIVES[0], DATA_SECTORS * SECTOR_BYTES);
    let mut disks = Vec::new();
    for number in 0..logs {
        let part = Extent::new(Lba(number as u64 * log_sectors), log_sectors);
        let mut ports = vec![builder.layer("log", Box::new(Slice::new(part)), &[device])];
        for _ in 0..DISKS / logs {
            let device = builder.device(Geometry::plain(DATA_SECTORS));
            let disk = Disk::with_drive(drive.clone(), &DiskConfig::default());
            ports.push(builder.layer("spindle", Box::new(disk), &[device]));
        }
        let cache = LogCache::new(LogCacheConfig::default()).of_disks(DISKS / logs);
        let Target::Layer(cache) = builder.layer("cache", Box::new(cache), &ports) else {
            unreachable!("a cache is a layer")
        };
        disks.extend((0..DISKS / logs).map(|disk| Target::Disk(cache, disk)));
    }
    let root = builder.layer("dealt", Box::new(Dealt::new(DISKS)), &disks);
    let mut stack = builder.finish(root);
    let flushes = Rc::new(Cell::new(0));
    let ssd: Box<dyn SimDevice> = Box::new(Ssd::new(ssd, flush, &flushes));
    let data = data.into_iter().map(|data| -> Box<dyn SimDevice> { Box::new(data) });
    let mut driver = VirtualDriver::new(std::iter::once(ssd).chain(data).collect());
    stack.activate(&mut driver).expect("empty logs start");
    Rig { stack, driver, disks, flushes }
}

struct SharedLogRun {
    /// Flushes of the SSD for each flush of a client.
    flushes: f64,
    per_second: f64,
    p50: u64,
    p99: u64,
}

/// Runs clients on so many of the disks: each writes a block, waits, flushes, waits, and thinks.
fn run(logs: usize, flush: Nanos, thinks: Nanos, (busy, clients): (usize, usize)) -> SharedLogRun {
    let Rig { mut stack, mut driver, disks, flushes } = rig(logs, flush);
    let mut rng = SimRng::new(5);
    let (start, before) = (driver.now(), flushes.get());
    let mut begun = vec![start; busy * clients];
    let (mut left, mut times, mut next) = (vec![WRITES / clients; busy * clients], Vec::new(), 0);
    for client in 0..busy * clients {
        let at = start + Nanos(rng.below(thinks.0));
        driver.set_alarm(at, client as u64);
    }
    let (count, mut end) = (busy * (WRITES / clients) * clients, start);
    while times.len() < count {
        if let DriverProgress::Alarm(client) = driver.step(&mut stack) {
            let client = client as usize;
            next += 2;
            begun[client] = driver.now();
            let at = Lba(rng.below(DATA_SECTORS / 8) * 8);
            let write = Io::Write { at, buf: Buf::copy_of(&[1; 4096]), durability: Durability::Volatile };
            let id = RequestId((client as u64) << 32 | next);
            driver.request_at(&mut stack, disks[client % busy], id, write);
        }
        while let Some((RequestId(id), result)) = driver.take_reply() {
            assert!(result.status.is_ok(), "good disks do what they are asked");
            let client = (id >> 32) as usize;
            if id & 1 == 0 {
                driver.request_at(&mut stack, disks[client % busy], RequestId(id | 1), Io::Flush);
                continue;
            }
            end = driver.now();
            times.push(end.since(begun[client]));
            left[client] -= 1;
            if left[client] > 0 {
                let thinks = Nanos(rng.range(thinks.0 / 2, thinks.0 * 3 / 2));
                driver.set_alarm(end + thinks, client as u64);
            }
        }
    }
    times.sort_unstable();
    let micros = |part: usize| times[(times.len() - 1) * part / 100].0 / 1000;
    SharedLogRun {
        flushes: (flushes.get() - before) as f64 / count as f64,
        per_second: count as f64 * 1e9 / end.since(start).0 as f64,
        p50: micros(50),
        p99: micros(99),
    }
}

fn main() {
    let thinks = std::env::args().nth(1).map_or(THINKS, |text| text.parse().expect("microseconds"));
    println!(
        "| flush of the SSD | busy disks, clients of each | logs | flushes of the SSD for each | writes and flushes a second | 50 % within | 99 % within |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for flush in [20, 1000] {
        for (busy, clients) in [(1, 1), (1, 4), (DISKS, 1), (DISKS, 4)] {
            for logs in [1, DISKS] {
                let SharedLogRun { flushes, per_second, p50, p99 } =
                    run(logs, Nanos::from_micros(flush), Nanos::from_micros(thinks), (busy, clients));
                println!(
                    "| {flush} us | {busy}, {clients} | {logs} | {flushes:.2} | {per_second:.0} | {p50} us | {p99} us |"
                );
            }
        }
    }
}
