//! Measures a start on a full log of an NVMe drive, in virtual time: its duration, how much of the log it reads, and its processor time.
//!
//! A log is filled through the log cache by 4 KiB writes at random places, each flushed before the next, with destaging held back; then
//! the power goes, and the log is started again. The drive answers a read after 80 us, and gives 3 GB each second. It keeps no payload
//! (that is zeroes), and of a segment with a summary no headers: a start has to do without them.
//!
//! `cargo run --release -p dcd-sim --example start [GIB ...]` (default: 1 8 93, which is 100 GB)

#[allow(dead_code)] // Each program uses a part of it.
mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use dcd_crash::{BlankDisk, Latency, SimDevice, SimRng, Ticket, VirtualDriver};
use dcd_engine::log_cache::format::{LogSuperblock, RECORD_MAGIC};
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::summary::SUMMARY_MAGIC;
use dcd_engine::log_cache::{LogCache, LogCacheConfig, WhenPolicy};
use dcd_engine::{
    BlockDevice, Buf, Durability, Geometry, Io, IoResult, Lba, Nanos, Pump, RequestId, SECTOR_BYTES, Stack,
    StackBuilder,
};

use common::StandIn;

const GIB: u64 = 1 << 30;
const DATA_SECTORS: u64 = 1024 * GIB / SECTOR_BYTES;
const READ_LATENCY: Nanos = Nanos::from_micros(80);
const NANOS_PER_KIB: u64 = 341;
const SECTOR: usize = SECTOR_BYTES as usize;

/// Content of the drive, and counts.
struct Kept {
    geometry: Geometry,
    segments: Option<LogSuperblock>,
    sectors: BTreeMap<u64, Box<[u8; SECTOR]>>,
    reads: u64,
    bytes_read: u64,
}

impl Kept {
    fn read(&mut self, at: u64, buf: &mut Buf) {
        self.reads += 1;
        self.bytes_read += buf.len() as u64;
        buf.zero(0, buf.len());
        for (lba, bytes) in self.sectors.range(at..at + (buf.len() / SECTOR) as u64) {
            let from = (lba - at) as usize * SECTOR;
            buf.bytes_mut()[from..from + SECTOR].copy_from_slice(&bytes[..]);
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (index, bytes) in bytes.chunks_exact(SECTOR).enumerate() {
            if bytes.iter().any(|&byte| byte != 0) {
                self.sectors.insert(at + index as u64, Box::new(bytes.try_into().expect("a sector")));
            }
        }
        let Some(superblock) = self.segments.as_ref().filter(|_| bytes.starts_with(&SUMMARY_MAGIC)) else {
            return;
        };
        let before = at - superblock.segment_sectors()..at;
        let is_header = |bytes: &[u8; SECTOR]| bytes.starts_with(&RECORD_MAGIC);
        let headers: Vec<u64> =
            self.sectors.range(before).filter(|(_, bytes)| is_header(bytes)).map(|(lba, _)| *lba).collect();
        for lba in headers {
            self.sectors.remove(&lba);
        }
    }
}

#[derive(Clone)]
struct Drive(Rc<RefCell<Kept>>);

impl BlockDevice for Drive {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry
    }

    fn run(&mut self, mut io: Io) -> IoResult {
        match &mut io {
            Io::Read { at, buf } | Io::ReadCopy { at, buf, .. } => self.0.borrow_mut().read(at.0, buf),
            Io::Write { at, buf, .. } | Io::WriteCopy { at, buf, .. } => {
                self.0.borrow_mut().write(at.0, buf.bytes())
            }
            Io::Flush => {}
            Io::Discard { .. } | Io::WriteZeroes { .. } => unreachable!("a log is written with data"),
        }
        IoResult::ok(io.take_buf())
    }
}

/// The drive in virtual time, one operation after another.
struct Timed {
    drive: Drive,
    /// The processor's time that the model of the drive has taken.
    spent: Rc<Cell<Duration>>,
    open: BTreeMap<u32, IoResult>,
    next: u32,
}

impl SimDevice for Timed {
    fn geometry(&self) -> Geometry {
        BlockDevice::geometry(&self.drive)
    }

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket {
        let bytes = match &io {
            Io::Read { buf, .. } => buf.len() as u64,
            _ => 0,
        };
        let began = processor();
        let result = self.drive.run(io);
        self.spent.set(self.spent.get() + (processor() - began));
        self.next = self.next.wrapping_add(1);
        self.open.insert(self.next, result);
        let latency = if bytes > 0 { READ_LATENCY } else { Nanos::ZERO };
        Ticket { token: self.next, done: now + latency + Nanos(bytes / 1024 * NANOS_PER_KIB) }
    }

    fn finish(&mut self, _now: Nanos, token: u32) -> IoResult {
        self.open.remove(&token).expect("an operation ends once")
    }
}

type Rig = (Stack, VirtualDriver<Box<dyn SimDevice>>, Rc<Cell<Duration>>);

fn stack(drive: &Drive) -> Rig {
    let mut builder = StackBuilder::new();
    let log = builder.device(BlockDevice::geometry(drive));
    let data = builder.device(Geometry::plain(DATA_SECTORS));
    let config = LogCacheConfig { when: WhenPolicy::WhenFull, bypass_bytes: 0, ..LogCacheConfig::default() };
    let root = builder.layer("cache", Box::new(LogCache::new(config)), &[log, data]);
    let spent = Rc::new(Cell::new(Duration::ZERO));
    let timed = Timed { drive: drive.clone(), spent: spent.clone(), open: BTreeMap::new(), next: 0 };
    let disk = BlankDisk::new(Geometry::plain(DATA_SECTORS), Latency::INSTANT, 1);
    (builder.finish(root), VirtualDriver::new(vec![Box::new(timed), Box::new(disk)]), spent)
}

fn status(stack: &Stack, key: &str) -> u64 {
    let (cache, _) = stack.layers().next().expect("the cache is the only layer");
    stack.layer(cache).status(Nanos::ZERO).to_json()[key].as_u64().expect("the log cache tells")
}

/// A log that a crash left: of so many bytes, nearly all in use. Also how many writes that took, and the dirty bytes.
fn filled(log_bytes: u64) -> (Drive, u64, u64) {
    let geometry = Geometry::plain(log_bytes / SECTOR_BYTES);
    let (sectors, reads, bytes_read) = (BTreeMap::new(), 0, 0);
    let mut drive =
        Drive(Rc::new(RefCell::new(Kept { geometry, segments: None, sectors, reads, bytes_read })));
    let mut data = StandIn { sectors: DATA_SECTORS };
    let superblock = format(&mut drive, &mut data, &FormatOptions::new([1; 16], [2; 16])).expect("formatted");
    drive.0.borrow_mut().segments = Some(superblock);
    let (mut stack, mut driver, _) = stack(&drive);
    stack.activate(&mut driver).expect("an empty log starts");
    let mut rng = SimRng::new(7);
    let mut writes = 0;
    loop {
        if writes % 1024 == 0 && status(&stack, "used_bytes") * 100 > log_bytes * 99 {
            let dirty = status(&stack, "dirty_bytes");
            return (drive, writes, dirty);
        }
        writes += 1;
        let at = Lba(rng.below(DATA_SECTORS / 8) * 8);
        let io = Io::Write { at, buf: Buf::blank(4096), durability: Durability::Durable };
        driver.request(&mut stack, RequestId(writes), io);
        while driver.take_reply().is_none() {
            driver.step(&mut stack);
        }
    }
}

/// The time that this thread has had a processor.
fn processor() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let asked: Vec<u64> = std::env::args().skip(1).map(|gib| gib.parse().expect("a size in GiB")).collect();
    println!(
        "| log | 4 KiB writes in it | reads | MiB read | of the log | seconds of the drive | seconds of the processor |"
    );
    println!("|---|---|---|---|---|---|---|");
    for gib in if asked.is_empty() { vec![1, 8, 93] } else { asked } {
        let (drive, writes, dirty) = filled(gib * GIB);
        (drive.0.borrow_mut().reads, drive.0.borrow_mut().bytes_read) = (0, 0);
        let (mut stack, mut driver, drives) = stack(&drive);
        let began = processor();
        stack.activate(&mut driver).expect("it starts again");
        let processor = (processor() - began - drives.get()).as_secs_f64();
        assert_eq!(status(&stack, "dirty_bytes"), dirty, "all is dirty again");
        let kept = drive.0.borrow();
        println!(
            "| {gib} GiB | {writes} | {} | {:.0} | {:.2} % | {:.2} | {processor:.2} |",
            kept.reads,
            kept.bytes_read as f64 / f64::from(1 << 20),
            kept.bytes_read as f64 * 100.0 / (gib * GIB) as f64,
            driver.now().as_secs_f64(),
        );
    }
}
