//! Measures the engine's CPU time: ns for a 4 KiB write and for a 4 KiB read hit, the copy and the checksum included. The floor, which
//! cannot be avoided, is beside it: a copy of 4 KiB and its CRC32C, between memory of the same temperature.
//!
//! `cargo run --release -p dcd-engine --example engine_cost [PART OF A NAME]`
//!
//! The devices answer at once and are off the clock. Rounds of engine and floor take turns; a figure is the median
//! over the rounds, with the quartiles, and a ratio is the median of the ratios within a round.

mod rig;

use std::time::Duration;

use dcd_engine::log_cache::{LogCacheConfig, WhenPolicy};
use dcd_engine::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rig::{Ram, Rig, cpu_time};

const BLOCK: usize = LINE_BYTES as usize;
const LOG_BYTES: u64 = 1 << 30;
const DATA_BYTES: u64 = 64 << 30;
/// Clients' buffers, more than any cache of a processor holds.
const POOL_BUFFERS: usize = 256 << 10;
/// The engine copies writes into a ring of 8 segment buffers of 512 KiB. So does the floor.
const RING_BUFFERS: usize = 8;
const RING_BLOCKS: usize = 128;
const BATCH: usize = 32;
/// Short, so that most rounds are not interrupted on a busy machine.
const ROUND: usize = 8 * BATCH;
const ROUNDS: usize = 401;
/// Destaging goes by batches of up to 16 Ki blocks or more: its rounds are so many times as long, and fewer.
const DESTAGE_ROUND: usize = 384;
const DESTAGE_ROUNDS: usize = 15;

fn filled(count: usize, bytes: usize, random: &mut ChaCha8Rng) -> Vec<Buf> {
    let mut one = |_| {
        let mut buf = Buf::zeroed(bytes);
        buf.bytes_mut().fill(random.random());
        buf
    };
    (0..count).map(&mut one).collect()
}

/// Does the work that cannot be avoided: copies a block, and sums it up.
fn copy_and_check(to: &mut [u8], from: &[u8]) {
    to.copy_from_slice(from);
    std::hint::black_box(crc32c::crc32c(to));
}

/// A figure over the rounds.
#[derive(Default)]
struct Rounds(Vec<f64>);

impl Rounds {
    fn quartiles(&self) -> [f64; 3] {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        [1, 2, 3].map(|quarter| sorted[(sorted.len() - 1) * quarter / 4])
    }
}

/// A line of the report: the engine and its floor, measured in turns.
struct Line {
    name: &'static str,
    engine: Rounds,
    floor: Rounds,
    ratio: Rounds,
}

impl Line {
    fn new(name: &'static str) -> Line {
        Line { name, engine: Rounds::default(), floor: Rounds::default(), ratio: Rounds::default() }
    }

    fn add(&mut self, engine: Duration, floor: Duration) {
        let nanos = |span: Duration| span.as_nanos() as f64 / ROUND as f64;
        self.engine.0.push(nanos(engine));
        self.floor.0.push(nanos(floor));
        self.ratio.0.push(engine.as_secs_f64() / floor.as_secs_f64());
    }

    fn print(&self) {
        let [low, mid, high] = self.engine.quartiles();
        let [_, floor, _] = self.floor.quartiles();
        let [ratio_low, ratio, ratio_high] = self.ratio.quartiles();
        println!(
            "{:<50} {mid:>6.0} [{low:.0}, {high:.0}] ns  floor {floor:>5.0} ns  {ratio:.2}x [{ratio_low:.2}, {ratio_high:.2}]",
            self.name
        );
    }
}

/// Flush behaviour of the clients of a run.
#[derive(Clone, Copy, PartialEq)]
enum Flushes {
    /// After every batch of 32 writes.
    Batch,
    /// Each write is FUA; those of a batch share records.
    Each,
    /// Each write is FUA, and there is one client.
    Alone,
}

struct Bench {
    random: ChaCha8Rng,
    pool: Vec<Buf>,
    ring: Vec<Buf>,
    /// Index in the ring of the floor's next copy.
    ring_at: usize,
}

impl Bench {
    fn new() -> Bench {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let pool = filled(POOL_BUFFERS, BLOCK, &mut random);
        let ring = filled(RING_BUFFERS, RING_BLOCKS * BLOCK, &mut random);
        Bench { random, pool, ring, ring_at: 0 }
    }

    fn line(&mut self) -> Lba {
        Lba(self.random.random_range(0..DATA_BYTES / LINE_BYTES) * LINE_SECTORS)
    }

    /// The buffers of a round: any of the pool, or 32 that are used again and again.
    fn picks(&mut self, warm: bool) -> Vec<usize> {
        let any = |at: usize| if warm { at % BATCH } else { self.random.random_range(0..POOL_BUFFERS) };
        let mut picks: Vec<usize> = (0..ROUND).map(any).collect();
        // A buffer is in one request at a time.
        for batch in picks.chunks_mut(BATCH) {
            batch.sort_unstable();
            for at in 1..batch.len() {
                batch[at] = batch[at].max(batch[at - 1] + 1) % POOL_BUFFERS;
            }
        }
        picks
    }

    fn write_floor(&mut self, warm: bool) -> Duration {
        let picks = self.picks(warm);
        let started = cpu_time();
        for pick in picks {
            self.ring_at = (self.ring_at + 1) % (RING_BUFFERS * RING_BLOCKS);
            let (buf, at) = (self.ring_at / RING_BLOCKS, self.ring_at % RING_BLOCKS * BLOCK);
            let to = &mut self.ring[buf].bytes_mut()[at..at + BLOCK];
            copy_and_check(to, self.pool[pick].bytes());
        }
        cpu_time() - started
    }

    fn read_floor(&mut self) -> Duration {
        let from = |_| (self.random.random_range(0..RING_BUFFERS), self.random.random_range(0..RING_BLOCKS));
        let from: Vec<(usize, usize)> = (0..ROUND).map(from).collect();
        let picks = self.picks(false);
        let started = cpu_time();
        for (pick, (buf, block)) in picks.into_iter().zip(from) {
            let from = &self.ring[buf].bytes()[block * BLOCK..(block + 1) * BLOCK];
            copy_and_check(self.pool[pick].bytes_mut(), from);
        }
        cpu_time() - started
    }

    /// A round of requests; the answer is the engine's time.
    fn round(
        &mut self,
        rig: &mut Rig,
        warm: bool,
        batch: usize,
        mut io: impl FnMut(&mut Bench, Buf) -> Io,
        flush: bool,
    ) -> Duration {
        let before = rig.spent;
        let mut requests = Vec::new();
        for picks in self.picks(warm).chunks(batch) {
            for &pick in picks {
                let buf = std::mem::take(&mut self.pool[pick]);
                let io = io(self, buf);
                requests.push(Request { id: RequestId(pick as u64), disk: 0, io });
            }
            if flush {
                requests.push(Request { id: RequestId(u64::MAX), disk: 0, io: Io::Flush });
            }
            rig.serve(&mut requests, |id, buf| {
                if id.0 != u64::MAX {
                    self.pool[id.0 as usize] = buf;
                }
            });
        }
        rig.spent - before
    }

    fn writes(&mut self, rig: &mut Rig, warm: bool, flushes: Flushes) -> Duration {
        let durability = if flushes == Flushes::Batch { Durability::Volatile } else { Durability::Durable };
        let batch = if flushes == Flushes::Alone { 1 } else { BATCH };
        let io = move |bench: &mut Bench, buf| Io::Write { at: bench.line(), buf, durability };
        self.round(rig, warm, batch, io, flushes == Flushes::Batch)
    }

    /// Writes that fill the log, up to a half, while nothing is destaged.
    fn measure_writes(&mut self, name: &'static str, warm: bool, flushes: Flushes) {
        let mut rig = rig(LogCacheConfig { idle_empty: Nanos::from_secs(1000), ..LogCacheConfig::default() });
        let mut line = Line::new(name);
        for _ in 0..ROUNDS {
            let floor = self.write_floor(warm);
            let destaged = rig.count("destage_batches");
            let engine = self.writes(&mut rig, warm, flushes);
            assert_eq!(rig.count("destage_batches"), destaged, "nothing goes home while the clock runs");
            line.add(engine, floor);
            if rig.status()["utilisation"].as_f64().expect("a number") > 0.5 {
                rig.drain();
            }
        }
        line.print();
    }

    /// Writes to a log that is being emptied all the time, and so goes round and round: everything is counted.
    fn measure_destage(&mut self, name: &'static str) {
        let config = LogCacheConfig { when: WhenPolicy::HighLow, ..LogCacheConfig::default() };
        let mut rig = rig(LogCacheConfig { high_mark: 20, low_mark: 10, ..config });
        while rig.count("destage_batches") < 3 {
            self.writes(&mut rig, false, Flushes::Batch);
        }
        let mut line = Line::new(name);
        for _ in 0..DESTAGE_ROUNDS {
            let (mut floor, mut engine) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..DESTAGE_ROUND {
                floor += self.write_floor(false);
                engine += self.writes(&mut rig, false, Flushes::Batch);
            }
            line.add(engine / DESTAGE_ROUND as u32, floor / DESTAGE_ROUND as u32);
        }
        line.print();
    }

    fn measure_reads(&mut self, name: &'static str, lines: usize, flushed: bool) {
        let mut rig = rig(LogCacheConfig { idle_empty: Nanos::from_secs(1000), ..LogCacheConfig::default() });
        let written: Vec<Lba> = (0..lines).map(|_| self.line()).collect();
        for at in &written {
            let io = Io::Write { at: *at, buf: Buf::copy_of(&[7; BLOCK]), durability: Durability::Volatile };
            rig.serve(&mut vec![Request { id: RequestId(0), disk: 0, io }], |_, _| {});
        }
        if flushed {
            rig.serve(&mut vec![Request { id: RequestId(0), disk: 0, io: Io::Flush }], |_, _| {});
        }
        let mut line = Line::new(name);
        for _ in 0..ROUNDS {
            let floor = self.read_floor();
            let io = |bench: &mut Bench, buf| {
                let at = written[bench.random.random_range(0..lines)];
                Io::Read { at, buf }
            };
            let engine = self.round(&mut rig, false, BATCH, io, false);
            line.add(engine, floor);
        }
        assert_eq!(rig.count("read_hits"), (ROUNDS * ROUND) as u64);
        line.print();
    }
}

fn rig(config: LogCacheConfig) -> Rig {
    Rig::new(config, 4096, Ram::new(LOG_BYTES), Ram::without_bytes(DATA_BYTES))
}

/// Measures what the name says, and prints it.
type Measure = fn(&mut Bench, &'static str);

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut bench = Bench::new();
    println!("4 KiB, random, in batches of 32; median [quartiles] of {ROUNDS} rounds of {ROUND}");
    let lines: [(&'static str, Measure); 7] = [
        ("write, a flush for 32", |bench, name| bench.measure_writes(name, false, Flushes::Batch)),
        ("write, a flush for 32, from a warm buffer", |bench, name| {
            bench.measure_writes(name, true, Flushes::Batch)
        }),
        ("write, each one FUA, 32 at once", |bench, name| bench.measure_writes(name, false, Flushes::Each)),
        ("write, each one FUA, one at a time", |bench, name| {
            bench.measure_writes(name, false, Flushes::Alone)
        }),
        ("write, a flush for 32, and its way home", Bench::measure_destage),
        ("read hit, in a segment buffer", |bench, name| {
            bench.measure_reads(name, RING_BUFFERS * RING_BLOCKS / 2, false)
        }),
        ("read hit, in the log", |bench, name| {
            bench.measure_reads(name, LOG_BYTES as usize / BLOCK / 2, true)
        }),
    ];
    for (name, measure) in lines {
        if wanted.is_empty() || wanted.iter().any(|part| name.contains(part)) {
            measure(&mut bench, name);
        }
    }
}
