//! How fast the write cache's pool follows a policy, without any disk: requests a second on one core.
//!
//! The workload is that of cache simulators: 4 KiB objects drawn by Zipf's law with exponent 1 from a million, and a cache of
//! a tenth of them. First as a plain LRU cache of reads; then every request is a write, and the least recently written
//! region of 8 blocks is purged when 95 % are dirty, down to 40 %.
//!
//! `cargo run --release -p dcd-engine --example write_cache_policy`
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // A measurement needs a clock.

use std::time::Instant;

use dcd_engine::destage::what::{self, Part, WhatPolicy};
use dcd_engine::write_cache::{BlockId, Pool, RegionId};
use rand::{Rng, SeedableRng};

const OBJECTS: usize = 1_000_000;
const REQUESTS: usize = 20_000_000;
const CAPACITY: usize = OBJECTS / 10;

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

fn block(number: u32) -> BlockId {
    BlockId { disk: 0, number: u64::from(number) }
}

fn reads(requests: &[u32]) -> u64 {
    let mut pool = Pool::new(CAPACITY);
    let mut misses = 0;
    for &number in requests {
        match pool.find(block(number)) {
            Some(slot) => pool.touch(slot),
            None => {
                misses += 1;
                pool.insert(block(number)).expect("a clean block gives its place");
            }
        }
    }
    misses
}

fn purge(pool: &mut Pool) -> u64 {
    let mut parts: Vec<(Part, RegionId)> = pool
        .regions()
        .iter()
        .map(|region| (Part { number: region.since, written: region.written, ..Part::default() }, region.id))
        .collect();
    let policy = what::policy(WhatPolicy::LeastRecentlyWritten);
    parts.sort_unstable_by_key(|(part, _)| policy.key(part));
    let mut purges = 0;
    for (_, region) in parts {
        if pool.dirty() * 100 <= CAPACITY * 40 {
            break;
        }
        let slots: Vec<_> = pool.waiting_blocks(region).collect();
        for slot in slots {
            pool.begin_write(slot, region);
            pool.end_write(slot, region, true);
        }
        purges += 1;
    }
    purges
}

fn writes(requests: &[u32]) -> u64 {
    let mut pool = Pool::new(CAPACITY);
    let mut purges = 0;
    for (writer, &number) in requests.iter().enumerate() {
        let slot = match pool.find(block(number)) {
            Some(slot) => {
                pool.touch(slot);
                slot
            }
            None => pool.insert(block(number)).expect("5 % are clean"),
        };
        pool.write(slot, RegionId { disk: 0, number: number / 8 }, writer as u32);
        if pool.dirty() * 100 > CAPACITY * 95 {
            purges += purge(&mut pool);
        }
    }
    purges
}

fn main() {
    let requests = zipf();
    for (name, run) in [("LRU, reads", reads as fn(&[u32]) -> u64), ("LRW, writes, two thresholds", writes)] {
        let mut rates: Vec<f64> = Vec::new();
        let mut result = 0;
        for _ in 0..3 {
            let start = Instant::now();
            result = run(&requests);
            rates.push(REQUESTS as f64 / start.elapsed().as_secs_f64() / 1e6);
        }
        rates.sort_by(f64::total_cmp);
        println!(
            "{name}: {:.1} million requests a second ({:.1} to {:.1}), {result} misses or purges, {:.4} of the requests",
            rates[1],
            rates[0],
            rates[2],
            result as f64 / REQUESTS as f64
        );
    }
}
