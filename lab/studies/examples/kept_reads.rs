//! Hit ratios of `reads = "keep"` beside FIFO with reinsertion of the same size, and the bytes of flash written for each hit.
//!
//! `cargo run --release -p dcd-studies --example kept_reads -- [TRACE ...]`
//!
//! Without traces: Zipf workloads alone. In virtual time, so the figures are the same in every run. `--lines FILE` writes the accesses of
//! the first workload as text instead, one line of 4 KiB each, for another simulator.
//!
//! FIFO with reinsertion (also called CLOCK): one queue of lines. An access to a line that is there sets its bit; one to a line that is not
//! puts it at the head. What comes to the tail with its bit set goes to the head without it, the rest is evicted.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::Write as _;

use dcd_crash::{BlankDisk, DriverProgress, Latency, MemDisk, SimDevice, SimRng, VirtualDriver};
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig, Reads};
use dcd_engine::{
    Buf, Durability, Extent, Geometry, Io, LINE_BYTES, LINE_SECTORS, LayerIndex, Lba, Nanos, RequestId,
    StackBuilder,
};

const FIRST_SEGMENT_SECTOR: u64 = 32;
const SEGMENT_BYTES: u64 = 64 << 10;
/// Between an answer and the next request.
const THINK: Nanos = Nanos::from_micros(200);

/// A request for whole lines.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub write: bool,
    pub first: u64,
    pub lines: u64,
}

/// Results of a cache under a workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Lines that were read, and those of them that the cache had.
    pub reads: u64,
    pub hits: u64,
    pub flash_bytes: u64,
}

impl Figures {
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.reads.max(1) as f64
    }

    pub fn flash_bytes_per_hit(&self) -> f64 {
        self.flash_bytes as f64 / self.hits.max(1) as f64
    }
}

/// Single lines by Zipf's law with this exponent, `writes` of a thousand of them written.
pub fn zipf(lines: u64, exponent: f64, accesses: u64, writes: u64) -> Vec<Access> {
    let mut sums = Vec::with_capacity(lines as usize);
    let mut sum = 0.0;
    for rank in 1..=lines {
        sum += (rank as f64).powf(-exponent);
        sums.push(sum);
    }
    let mut rng = SimRng::new(29);
    let draw = |_| {
        let at = rng.below(1 << 53) as f64 / (1u64 << 53) as f64 * sum;
        let rank = sums.partition_point(|&below| below <= at) as u64;
        // Ranks lie anywhere: the factor is a prime.
        Access { write: rng.chance(writes), first: rank * 2_654_435_761 % lines, lines: 1 }
    };
    (0..accesses).map(draw).collect()
}

/// Rule by which FIFO with reinsertion takes a line that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admits {
    Always,
    /// Takes a line that is written, or read again within as many other lines as the cache has.
    SecondReads,
}

/// FIFO with reinsertion of so many lines.
pub fn fifo_reinsertion(accesses: &[Access], capacity: u64, admits: Admits) -> Figures {
    let mut figures = Figures::default();
    let (mut ghosts, mut ghost_queue) = (HashSet::new(), VecDeque::new());
    let mut queue = VecDeque::new();
    let mut is_hot: HashMap<u64, bool> = HashMap::new();
    for access in accesses {
        for line in access.first..access.first + access.lines {
            figures.reads += u64::from(!access.write);
            if let Some(hot) = is_hot.get_mut(&line) {
                *hot = true;
                figures.hits += u64::from(!access.write);
                figures.flash_bytes += if access.write { LINE_BYTES } else { 0 };
                continue;
            }
            if admits == Admits::SecondReads && !access.write && !ghosts.remove(&line) {
                ghosts.insert(line);
                ghost_queue.push_back(line);
                while ghost_queue.len() as u64 > capacity {
                    let oldest = ghost_queue.pop_front().expect("it is too long");
                    ghosts.remove(&oldest);
                }
                continue;
            }
            while queue.len() as u64 >= capacity {
                let oldest = queue.pop_front().expect("it is full");
                let hot = is_hot.get_mut(&oldest).expect("what is in the queue is in the table");
                if std::mem::take(hot) {
                    queue.push_back(oldest);
                    figures.flash_bytes += LINE_BYTES;
                } else {
                    is_hot.remove(&oldest);
                }
            }
            queue.push_back(line);
            is_hot.insert(line, false);
            figures.flash_bytes += LINE_BYTES;
        }
    }
    figures
}

/// A device in virtual time, for work that runs before time begins.
struct Blank<'a>(&'a mut BlankDisk);

impl dcd_engine::BlockDevice for Blank<'_> {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn run(&mut self, io: Io) -> dcd_engine::IoResult {
        let ticket = self.0.submit(Nanos::ZERO, io);
        self.0.finish(ticket.done, ticket.token)
    }
}

/// dcd with a log of so many lines, headers and all, on an SSD; one client.
pub fn dcd(accesses: &[Access], capacity: u64, reads: Reads) -> Figures {
    let ssd = Latency::Uniform { min: Nanos::from_micros(20), max: Nanos::from_micros(100) };
    let disk = Latency::Uniform { min: Nanos::from_millis(2), max: Nanos::from_millis(8) };
    let segments = capacity * LINE_BYTES / SEGMENT_BYTES;
    let log_sectors = FIRST_SEGMENT_SECTOR + segments * SEGMENT_BYTES / 512;
    let end = accesses.iter().map(|access| access.first + access.lines).max().unwrap_or(1);
    let mut log = MemDisk::new(Geometry::plain(log_sectors), ssd, 1);
    let mut data = BlankDisk::new(Geometry::plain(end.max(1024) * LINE_SECTORS), disk, 2);
    let options = FormatOptions {
        log_block_bytes: Some(4096),
        segment_bytes: Some(SEGMENT_BYTES as u32),
        ..FormatOptions::new(*b"a cache measured", *b"its data disk...")
    };
    format(&mut log, &mut Blank(&mut data), &options).expect("formatted");
    let mut driver = VirtualDriver::new(vec![Box::new(log) as Box<dyn SimDevice>, Box::new(data)]);
    let mut builder = StackBuilder::new();
    let ports: Vec<_> = driver.geometries().iter().map(|&geometry| builder.device(geometry)).collect();
    let config = LogCacheConfig { reads, ..LogCacheConfig::default() };
    let root = builder.layer("cache", Box::new(LogCache::new(config)), &ports);
    let mut stack = builder.finish(root);
    let cache = LayerIndex(stack.layer_count() - 1);
    stack.activate(&mut driver).expect("active");
    let mut left = accesses.iter();
    driver.set_alarm(dcd_engine::Pump::now(&driver) + THINK, 0);
    loop {
        if let DriverProgress::Alarm(_) = driver.step(&mut stack) {
            let Some(access) = left.next() else { break };
            driver.request(&mut stack, RequestId(0), request(access));
        }
        while let Some((_, result)) = driver.take_reply() {
            result.status.expect("nothing fails here");
            driver.set_alarm(dcd_engine::Pump::now(&driver) + THINK, 0);
        }
    }
    let status = stack.layer(cache).status(dcd_engine::Pump::now(&driver)).to_json();
    let count = |name: &str| status["statistics"][name].as_u64().expect("a counter");
    let reads = count("read_bytes") / LINE_BYTES;
    if std::env::var_os("KEPT_READS_VERBOSE").is_some() {
        eprintln!("{}", status["statistics"]);
    }
    Figures { reads, hits: reads - count("read_miss_bytes") / LINE_BYTES, flash_bytes: count("log_bytes") }
}

fn request(access: &Access) -> Io {
    let extent = Extent::new(Lba(access.first * LINE_SECTORS), access.lines * LINE_SECTORS);
    let buf = Buf::zeroed((access.lines * LINE_BYTES) as usize);
    match access.write {
        true => Io::Write { at: extent.start, buf, durability: Durability::Volatile },
        false => Io::Read { at: extent.start, buf },
    }
}

/// The requests of a trace, grown to whole lines, its devices one after the other; and how many lines it touches.
fn trace(path: &str) -> Result<(Vec<Access>, u64), dcd_trace::TraceError> {
    let mut reader = dcd_trace::open(path.as_ref(), None)?.reader;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        if matches!(record.op, dcd_trace::RecordOp::Read | dcd_trace::RecordOp::Write) {
            records.push(record);
        }
    }
    let mut ends: std::collections::BTreeMap<dcd_trace::DeviceId, u64> = Default::default();
    for record in &records {
        let end = ends.entry(record.device).or_default();
        *end = (*end).max(record.extent.end().0.div_ceil(LINE_SECTORS));
    }
    let mut base = 0;
    for end in ends.values_mut() {
        base += std::mem::replace(end, base);
    }
    let mut touched = HashSet::new();
    let access = |record: &dcd_trace::Record| {
        let first = record.extent.start.0 / LINE_SECTORS;
        let lines = record.extent.end().0.div_ceil(LINE_SECTORS) - first;
        let first = ends[&record.device] + first;
        touched.extend(first..first + lines);
        Access { write: record.op == dcd_trace::RecordOp::Write, first, lines }
    };
    let accesses = records.iter().map(access).collect();
    Ok((accesses, touched.len() as u64))
}

const TITLES: &str = "| workload | log, of the lines touched | MiB | FIFO with reinsertion | from the second read on | keep | pass | writes of the first | of keep |
|---|---:|---:|---:|---:|---:|---:|---:|---:|";

/// Each access to a line, as text for another simulator.
fn write_lines(path: &str, accesses: &[Access]) -> std::io::Result<()> {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    for line in accesses.iter().flat_map(|access| access.first..access.first + access.lines) {
        writeln!(file, "{line}")?;
    }
    file.flush()
}

/// A line of the table for each size of the log.
fn compare(name: &str, accesses: &[Access], touched: u64) {
    for percent in [1, 5, 10, 20] {
        // Whole segments, and enough of them for a ring.
        let lines = SEGMENT_BYTES / LINE_BYTES;
        let capacity = (touched * percent / 100 / lines).max(8) * lines;
        let reference = fifo_reinsertion(accesses, capacity, Admits::Always);
        let second = fifo_reinsertion(accesses, capacity, Admits::SecondReads);
        let [pass, keep] = [Reads::Pass, Reads::Keep].map(|reads| dcd(accesses, capacity, reads));
        println!(
            "| {name} | {percent} % | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {:.2} |",
            capacity as f64 * LINE_BYTES as f64 / f64::from(1 << 20),
            100.0 * reference.hit_ratio(),
            100.0 * second.hit_ratio(),
            100.0 * keep.hit_ratio(),
            100.0 * pass.hit_ratio(),
            reference.flash_bytes_per_hit() / LINE_BYTES as f64,
            keep.flash_bytes_per_hit() / LINE_BYTES as f64,
        );
    }
}

#[allow(dead_code)] // The test of this name uses the measurement, not the program.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let lines_to = match arguments.first().map(String::as_str) {
        Some("--lines") if arguments.len() > 1 => arguments.drain(..2).next_back(),
        _ => None,
    };
    let mut workloads: Vec<(String, Vec<Access>, u64)> = Vec::new();
    for path in &arguments {
        let (accesses, touched) = trace(path)?;
        workloads.push((path.rsplit('/').next().unwrap_or(path).to_owned(), accesses, touched));
    }
    let lines = 100_000;
    for (exponent, writes) in [(0.8, 0), (1.0, 0), (1.2, 0), (1.0, 300)] {
        let name = format!("Zipf {exponent}, {} % writes", writes / 10);
        workloads.push((name, zipf(lines, exponent, 1_000_000, writes), lines));
    }
    if let Some(path) = lines_to {
        return Ok(write_lines(&path, &workloads[0].1)?);
    }
    println!("{TITLES}");
    for (name, accesses, touched) in &workloads {
        compare(name, accesses, *touched);
    }
    Ok(())
}
