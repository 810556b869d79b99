//! Measures how fast the write cache's pool follows a policy, without any disk: requests a second of one core's time.
//!
//! The workload is that of cache simulators: 4 KiB objects drawn by Zipf's law with exponent 1 from a million, and a cache of
//! a tenth of them.
//!
//! `cargo run --release -p dcd-model --example write_cache_policy`: every request is a write, and regions of 8 blocks are purged in the order of
//! each policy when 95 % are dirty, down to 40 %. Each policy runs three times, in turns with the others.
//!
//! `... write_cache_policy trace FILE` writes the requests to a file that libCacheSim reads, in its format `oracleGeneral`.
//! `... write_cache_policy lru FILE` and `... fifo FILE` run it once, in caches that `scripts/bench-policies.sh` compares with those of
//! libCacheSim: a cache of reads without regions, and one of writes with regions of one block, where a purged block gives up its place.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // A measurement needs a clock.

use std::error::Error;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Duration;

use dcd_engine::destage::what::WhatPolicy;
use dcd_model::write_cache::stow::Stow;
use dcd_model::write_cache::{BlockId, Order, Pool, Position, RegionId, Regions};
use rand::{Rng, SeedableRng};

const OBJECTS: usize = 1_000_000;
const REQUESTS: usize = 10_000_000;
const CAPACITY: usize = OBJECTS / 10;
const REGION: u64 = 8;
const ROUNDS: usize = 3;

/// The CPU time that this thread has had: what others do on the machine meanwhile does not count.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Ranks drawn by inverting the cumulative sum of 1/k, as numbers of blocks scattered over the disk.
fn zipf() -> Vec<u32> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(42);
    let mut sum = 0.0;
    let cumulative: Vec<f64> = (1..=OBJECTS)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    (0..REQUESTS)
        .map(|_| {
            let draw = rng.random::<f64>() * sum;
            let rank = cumulative.partition_point(|&below| below < draw) as u64;
            (rank * 618_033 % OBJECTS as u64) as u32
        })
        .collect()
}

fn block(number: u64) -> BlockId {
    BlockId { disk: 0, number }
}

fn region_of(number: u64, blocks: u64) -> RegionId {
    RegionId { disk: 0, number: (number / blocks) as u32 }
}

/// Requests that went to the disk, and the time that all took.
struct Outcome {
    count: u64,
    seconds: f64,
}

fn timed(run: impl FnOnce() -> u64) -> Outcome {
    let start = cpu_time();
    let count = run();
    Outcome { count, seconds: (cpu_time() - start).as_secs_f64() }
}

/// A write cache with a policy and thresholds; the purges.
fn purging(requests: &[u32], what: WhatPolicy) -> u64 {
    let map = Regions::uniform(OBJECTS as u64, REGION);
    let mut pool = Pool::new(CAPACITY).with_order(Order::new(what, 1, [map].into_iter()));
    let mut stow = (what == WhatPolicy::Stow).then(Stow::default);
    let (mut purges, mut hand) = (0, 0);
    for (writer, &number) in requests.iter().enumerate() {
        let block = block(number.into());
        let slot = pool.find(block).inspect(|&slot| pool.touch(slot)).or_else(|| pool.insert(block));
        pool.write(slot.expect("5 % are clean"), region_of(block.number, REGION), writer as u32);
        if pool.dirty() * 100 > CAPACITY * 95 {
            while pool.dirty() * 100 > CAPACITY * 40 {
                hand = purge(&mut pool, what, &mut stow, hand);
                purges += 1;
            }
        }
    }
    purges
}

/// Purges a region as the write cache does; the region's number.
fn purge(pool: &mut Pool, what: WhatPolicy, stow: &mut Option<Stow>, hand: u32) -> u32 {
    let queue = stow.as_ref().map(|stow| {
        let [sequential, random] = pool.waiting_by_queue(0);
        stow.queue(sequential, random)
    });
    let hand = stow.as_ref().zip(queue).map_or(hand, |(stow, queue)| stow.hand(queue));
    let at = Position { disk: 0, hand, arm_at: hand };
    let region = *pool.choose(what, queue, at).expect("blocks are dirty");
    let passed = pool.pass_over(&region, what, queue, at);
    if let (Some(stow), Some(queue)) = (stow, queue) {
        (0..passed).for_each(|_| stow.passed(queue));
        stow.destaged(queue, region.id.number, u64::from(region.waiting()) == REGION);
    }
    let slots: Vec<_> = pool.waiting_blocks(&region).collect();
    slots.iter().for_each(|&slot| pool.begin_write(slot));
    for slot in slots {
        pool.end_write(slot, true);
    }
    region.id.number
}

/// The object of each request in a trace of libCacheSim's format `oracleGeneral`: time, object, size, and when it comes next.
fn objects(trace: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (records, _) = trace.as_chunks::<24>();
    records.iter().map(|record| u64::from_le_bytes(*record[4..].first_chunk().expect("24 bytes")))
}

/// A cache of reads, the least recently used block gives up its place; the misses.
fn lru(trace: &[u8]) -> u64 {
    let mut pool = Pool::new(CAPACITY);
    let mut misses = 0;
    for number in objects(trace) {
        match pool.find(block(number)) {
            Some(slot) => pool.touch(slot),
            None => {
                misses += 1;
                pool.insert(block(number)).expect("a clean block gives up its place");
            }
        }
    }
    misses
}

/// A cache of writes that is full: for a new block the one is purged that was dirty for the longest time; the misses.
fn fifo(trace: &[u8]) -> u64 {
    let what = WhatPolicy::OldestFirst;
    let map = Regions::uniform(OBJECTS as u64, 1);
    let mut pool = Pool::new(CAPACITY).with_order(Order::new(what, 1, [map].into_iter()));
    let mut misses = 0;
    for number in objects(trace) {
        let slot = pool.find(block(number)).or_else(|| {
            misses += 1;
            if pool.len() == CAPACITY {
                let at = Position { disk: 0, hand: 0, arm_at: 0 };
                let region = *pool.choose(what, None, at).expect("all blocks are dirty");
                let slot = pool.waiting_blocks(&region).next().expect("its block is dirty");
                pool.begin_write(slot);
                pool.end_write(slot, true);
                pool.remove(slot);
            }
            pool.insert(block(number))
        });
        pool.write(slot.expect("a block has given up its place"), region_of(number, 1), misses as u32);
    }
    misses
}

fn write_trace(path: &Path) -> std::io::Result<()> {
    let mut file = BufWriter::new(std::fs::File::create(path)?);
    for (time, number) in zipf().into_iter().enumerate() {
        file.write_all(&(time as u32).to_le_bytes())?;
        file.write_all(&u64::from(number).to_le_bytes())?;
        file.write_all(&1u32.to_le_bytes())?;
        // Neither LRU nor FIFO looks at the next access.
        file.write_all(&(-1i64).to_le_bytes())?;
    }
    file.flush()
}

fn all_policies() {
    let requests = zipf();
    let mut rates: [Vec<f64>; WhatPolicy::ALL.len()] = Default::default();
    let mut purges = [0; WhatPolicy::ALL.len()];
    for _ in 0..ROUNDS {
        for (index, what) in WhatPolicy::ALL.into_iter().enumerate() {
            let outcome = timed(|| purging(&requests, what));
            rates[index].push(requests.len() as f64 / outcome.seconds / 1e6);
            purges[index] = outcome.count;
        }
    }
    for (index, what) in WhatPolicy::ALL.into_iter().enumerate() {
        rates[index].sort_by(f64::total_cmp);
        let (low, median, high) = (rates[index][0], rates[index][ROUNDS / 2], rates[index][ROUNDS - 1]);
        let purges = purges[index];
        println!(
            "{what:?}: {median:.1} ({low:.1} to {high:.1}) million requests a second of CPU, {purges} purges"
        );
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let run = match arguments[..] {
        [] => {
            all_policies();
            return Ok(());
        }
        ["trace", path] => return Ok(write_trace(Path::new(path))?),
        ["lru", _] => lru,
        ["fifo", _] => fifo,
        _ => return Err("usage: write_cache_policy [trace FILE | lru FILE | fifo FILE]".into()),
    };
    let trace = std::fs::read(arguments[1])?;
    let outcome = timed(|| run(&trace));
    println!("{} {}", outcome.seconds, outcome.count);
    Ok(())
}
