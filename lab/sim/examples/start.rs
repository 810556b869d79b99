//! Measures a start on a full log of an NVMe drive, in virtual time: its duration, how much of the log it reads, and its processor time.
//!
//! A log is filled through the log cache by 4 KiB writes at random places, each flushed before the next, with destaging held back; the
//! power goes when a tenth of it is full, and when all is. At last the process is killed with 1000 writes that only its memory has.
//! The drive answers a read after 80 us, reads side by side too, and gives 3 GB each second to all of them. It keeps no payload (that is
//! zeroes), and of a segment with a summary no headers: a start has to do without them.
//!
//! `cargo run --release -p dcd-sim --example start [GIB ...]` (default: 1 8 93, which is 100 GB)

#[allow(dead_code)] // Each program uses a part of it.
mod common;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use dcd_crash::{BlankDisk, Latency, LeftMemory, SimDevice, SimMemory, SimRng, Ticket, VirtualDriver};
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
    /// End of the log at the last start: a summary has no records of its segment from before.
    started: u64,
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
        let before = self.started.max(at - superblock.segment_sectors())..at;
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

/// The drive in virtual time: operations wait side by side, and share one channel.
struct Timed {
    drive: Drive,
    /// The processor's time that the model of the drive has taken.
    spent: Rc<Cell<Duration>>,
    open: BTreeMap<u32, IoResult>,
    next: u32,
    /// Time at which the channel is free.
    free: Nanos,
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
        self.free = self.free.max(now + latency) + Nanos(bytes / 1024 * NANOS_PER_KIB);
        Ticket { token: self.next, done: self.free }
    }

    fn finish(&mut self, _now: Nanos, token: u32) -> IoResult {
        self.open.remove(&token).expect("an operation ends once")
    }
}

/// A cache on the drive, and its driver.
struct Rig {
    stack: Stack,
    driver: VirtualDriver<Box<dyn SimDevice>>,
    spent: Rc<Cell<Duration>>,
    memory: SimMemory,
    rng: SimRng,
    writes: u64,
}

impl Rig {
    /// A process that finds this memory of the last one, and may make so many bytes of its own.
    fn new(drive: &Drive, left: LeftMemory, memory_max: usize) -> Rig {
        let mut builder = StackBuilder::new();
        let log = builder.device(BlockDevice::geometry(drive));
        let data = builder.device(Geometry::plain(DATA_SECTORS));
        let config =
            LogCacheConfig { when: WhenPolicy::WhenFull, bypass_bytes: 0, ..LogCacheConfig::default() };
        let memory = SimMemory::new(left, memory_max);
        let cache = LogCache::with_memory(config, Box::new(memory.clone()));
        let root = builder.layer("cache", Box::new(cache), &[log, data]);
        let spent = Rc::new(Cell::new(Duration::ZERO));
        let timed = Timed {
            drive: drive.clone(),
            spent: spent.clone(),
            open: BTreeMap::new(),
            next: 0,
            free: Nanos::ZERO,
        };
        let disk = BlankDisk::new(Geometry::plain(DATA_SECTORS), Latency::INSTANT, 1);
        let driver = VirtualDriver::new(vec![Box::new(timed) as Box<dyn SimDevice>, Box::new(disk)]);
        Rig { stack: builder.finish(root), driver, spent, memory, rng: SimRng::new(7), writes: 0 }
    }

    fn status(&self, key: &str) -> u64 {
        let (cache, _) = self.stack.layers().next().expect("the cache is the only layer");
        self.stack.layer(cache).status(Nanos::ZERO).to_json()[key].as_u64().expect("the log cache tells")
    }

    fn write(&mut self, buf: Buf, durability: Durability) {
        self.writes += 1;
        let at = Lba(self.rng.below(DATA_SECTORS / 8) * 8);
        let io = Io::Write { at, buf, durability };
        self.driver.request(&mut self.stack, RequestId(self.writes), io);
        while self.driver.take_reply().is_none() {
            self.driver.step(&mut self.stack);
        }
    }

    /// Writes until so much of the log is in use.
    fn fill(&mut self, bytes: u64) {
        while !self.writes.is_multiple_of(1024) || self.status("used_bytes") < bytes {
            self.write(Buf::blank(4096), Durability::Durable);
        }
    }

    /// Ends here; the next process starts with what is left, and a line tells how.
    fn ends(self, drive: &Drive, what: &str, left: LeftMemory, memory_max: usize) -> Rig {
        let dirty = self.status("dirty_bytes");
        {
            let mut kept = drive.0.borrow_mut();
            (kept.reads, kept.bytes_read) = (0, 0);
            kept.started = kept.sectors.last_key_value().map_or(0, |(last, _)| last + 1);
        }
        let mut next = Rig::new(drive, left, memory_max);
        (next.rng, next.writes) = (self.rng, self.writes);
        let began = processor();
        next.stack.activate(&mut next.driver).expect("it starts again");
        let processor = (processor() - began - next.spent.get()).as_secs_f64();
        assert_eq!(next.status("dirty_bytes"), dirty, "all is dirty again");
        let kept = drive.0.borrow();
        let log_bytes = kept.geometry.sectors * SECTOR_BYTES;
        println!(
            "| {} GiB, {what} | {} | {} | {:.0} | {:.2} % | {:.2} | {processor:.2} |",
            log_bytes / GIB,
            dirty / 4096,
            kept.reads,
            kept.bytes_read as f64 / f64::from(1 << 20),
            kept.bytes_read as f64 * 100.0 / log_bytes as f64,
            next.driver.now().as_secs_f64(),
        );
        next
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
        "| log | dirty blocks of 4 KiB | reads | MiB read | of the log | seconds of the drive | seconds of the processor |"
    );
    println!("|---|---|---|---|---|---|---|");
    for gib in if asked.is_empty() { vec![1, 8, 93] } else { asked } {
        let bytes = gib * GIB;
        let geometry = Geometry::plain(bytes / SECTOR_BYTES);
        let (segments, sectors, started, reads, bytes_read) = (None, BTreeMap::new(), 0, 0, 0);
        let kept = Kept { geometry, segments, sectors, started, reads, bytes_read };
        let drive = Drive(Rc::new(RefCell::new(kept)));
        let mut data = StandIn { sectors: DATA_SECTORS };
        let options = FormatOptions::new([1; 16], [2; 16]);
        drive.0.borrow_mut().segments =
            Some(format(&mut drive.clone(), &mut data, &options).expect("formatted"));
        let mut rig = Rig::new(&drive, LeftMemory::default(), 0);
        rig.stack.activate(&mut rig.driver).expect("an empty log starts");
        rig.fill(bytes / 10);
        let other_boot = |boot| LeftMemory { boot, ..LeftMemory::default() };
        rig = rig.ends(&drive, "a tenth full, power cut", other_boot(1), 0);
        rig.fill(bytes / 100 * 99);
        rig = rig.ends(&drive, "full, power cut", other_boot(2), usize::MAX);
        // Their summaries call none of them durable: a start reads their headers.
        drive.0.borrow_mut().segments = None;
        for _ in 0..1000 {
            rig.write(Buf::zeroed(4096), Durability::Volatile);
        }
        let left = rig.memory.left();
        rig.ends(&drive, "full, killed", left, 0);
    }
}
