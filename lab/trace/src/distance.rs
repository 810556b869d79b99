//! Computes how much of what is written an LRU cache of any size would absorb, in one pass over a trace.
//!
//! LRU has the inclusion property (Mattson, Gecsei, Slutz and Traiger, IBM Systems Journal 1970): a cache of n blocks holds
//! what a smaller one holds. So one pass that measures how many other blocks were written since a block was last written,
//! its *stack distance*, answers for all sizes at once. Blocks are sampled by a hash of their address at a fixed rate, and
//! the distances scaled by it (SHARDS: Waldspurger, Park, Garthwaite and Ahmad, FAST 2015).

use rustc_hash::FxHashMap;

/// Counts of a distance are kept for each power of two, cut into so many parts.
const PARTS: u32 = 8;
/// The list of places is written anew when it has so many for each block that is in use.
const PLACES_PER_BLOCK: usize = 4;
const PLACES_MIN: usize = 1 << 12;

/// Takes the written blocks of a trace, in order.
#[derive(Debug)]
pub struct OverwriteDistances {
    sampling_bits: u32,
    /// Place of each block in the order of last writes.
    last: FxHashMap<u64, usize>,
    order: Order,
    writes: u64,
    /// Sampled overwrites by their distance: see `bucket`.
    counts: Vec<u64>,
}

/// The places of blocks in the order of their last writes: a Fenwick tree over which of them are still the last.
#[derive(Debug, Default)]
struct Order {
    sums: Vec<u32>,
    used: usize,
}

impl Order {
    fn with_places(places: usize) -> Order {
        Order { sums: vec![0; places + 1], used: 0 }
    }

    fn change(&mut self, place: usize, add: bool) {
        let mut index = place + 1;
        while index < self.sums.len() {
            self.sums[index] = if add { self.sums[index] + 1 } else { self.sums[index] - 1 };
            index += index & index.wrapping_neg();
        }
    }

    /// Counts the places before this one that are in use.
    fn before(&self, place: usize) -> u64 {
        let (mut index, mut sum) = (place, 0);
        while index > 0 {
            sum += u64::from(self.sums[index]);
            index &= index - 1;
        }
        sum
    }

    fn is_full(&self) -> bool {
        self.used + 1 == self.sums.len()
    }

    fn take(&mut self) -> usize {
        self.used += 1;
        self.change(self.used - 1, true);
        self.used - 1
    }
}

const fn bucket(distance: u64) -> usize {
    let bits = distance.ilog2();
    let part = if bits >= 3 { (distance >> (bits - 3)) & 7 } else { (distance << (3 - bits)) & 7 };
    (bits * PARTS + part as u32) as usize
}

/// The largest distance that a bucket counts.
const fn bucket_end(bucket: usize) -> u64 {
    let (bits, part) = (bucket as u32 / PARTS, bucket as u64 % PARTS as u64);
    if bits >= 3 {
        ((PARTS as u64 + part + 1) << (bits - 3)) - 1
    } else {
        (PARTS as u64 + part) >> (3 - bits)
    }
}

const fn hash(block: u64) -> u64 {
    let mut x = block.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl OverwriteDistances {
    /// Follows one block in 2^`sampling_bits`.
    ///
    /// # Panics
    /// For 32 bits or more.
    pub fn new(sampling_bits: u32) -> OverwriteDistances {
        assert!(sampling_bits < 32, "a sample is a part of something");
        OverwriteDistances {
            sampling_bits,
            last: FxHashMap::default(),
            order: Order::with_places(PLACES_MIN),
            writes: 0,
            counts: vec![0; bucket(u64::MAX) + 1],
        }
    }

    pub fn write(&mut self, block: u64) {
        if hash(block) & ((1 << self.sampling_bits) - 1) != 0 {
            return;
        }
        self.writes += 1;
        if self.order.is_full() {
            self.compact();
        }
        let place = self.order.take();
        if let Some(former) = self.last.insert(block, place) {
            let since = self.order.before(place) - self.order.before(former);
            self.order.change(former, false);
            // The block itself needs room, too.
            self.counts[bucket(since << self.sampling_bits)] += 1;
        }
    }

    /// Gives the blocks new places in the same order.
    fn compact(&mut self) {
        let mut blocks: Vec<(usize, u64)> = self.last.iter().map(|(&block, &place)| (place, block)).collect();
        blocks.sort_unstable();
        self.order = Order::with_places((blocks.len() * PLACES_PER_BLOCK).max(PLACES_MIN));
        for (_, block) in blocks {
            let place = self.order.take();
            self.last.insert(block, place);
        }
    }

    /// Estimates from the sample how many blocks are written at all.
    pub fn footprint(&self) -> u64 {
        (self.last.len() as u64) << self.sampling_bits
    }

    /// (blocks of cache, share of the written blocks that an LRU cache of that size absorbs), rising.
    pub fn curve(&self) -> Vec<(u64, f64)> {
        let mut absorbed = 0;
        let mut points = Vec::new();
        for (index, &count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            absorbed += count;
            points.push((bucket_end(index), absorbed as f64 / self.writes as f64));
        }
        points
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share that a real LRU list of a size absorbs.
    fn lru(blocks: &[u64], size: usize) -> f64 {
        let mut list: Vec<u64> = Vec::new();
        let mut absorbed = 0;
        for &block in blocks {
            if let Some(at) = list.iter().position(|&other| other == block) {
                list.remove(at);
                absorbed += 1;
            } else if list.len() == size {
                list.remove(0);
            }
            list.push(block);
        }
        f64::from(absorbed) / blocks.len() as f64
    }

    /// Small numbers are likelier.
    fn skewed(count: u64, blocks: u64) -> Vec<u64> {
        let draw = |i: u64| {
            let unit = (hash(i) >> 11) as f64 / (1u64 << 53) as f64;
            (blocks as f64 * unit * unit * unit) as u64
        };
        (0..count).map(draw).collect()
    }

    #[test]
    fn one_pass_says_what_a_list_of_each_size_does() {
        let blocks = skewed(20_000, 2_000);
        let mut distances = OverwriteDistances::new(0);
        blocks.iter().for_each(|&block| distances.write(block));
        let curve = distances.curve();
        for size in [1, 7, 15, 63, 127, 511, 1023] {
            let ours = curve.iter().take_while(|point| point.0 <= size).last().map_or(0.0, |point| point.1);
            assert!((ours - lru(&blocks, size as usize)).abs() < 1e-9, "{size}: {ours}");
        }
        let mut distinct = blocks.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distances.footprint(), distinct.len() as u64);
    }

    #[test]
    fn a_sample_is_near_the_whole() {
        let blocks = skewed(200_000, 40_000);
        let [whole, sample] = [0, 4].map(|bits| {
            let mut distances = OverwriteDistances::new(bits);
            blocks.iter().for_each(|&block| distances.write(block));
            distances
        });
        assert!(sample.last.len() * 10 < whole.last.len());
        for size in [1 << 10, 1 << 12, 1 << 14] {
            let of = |distances: &OverwriteDistances| {
                distances.curve().iter().take_while(|point| point.0 <= size).last().map_or(0.0, |p| p.1)
            };
            let (whole, sample) = (of(&whole), of(&sample));
            assert!((whole - sample).abs() < 0.05, "{size}: {whole} and {sample}");
        }
    }

    #[test]
    fn buckets_are_in_order_and_end_where_the_next_begins() {
        let mut last = 0;
        for distance in 1..5_000u64 {
            let bucket = bucket(distance);
            assert!(bucket >= last && distance <= bucket_end(bucket), "{distance}");
            assert!(bucket == last || distance == bucket_end(last) + 1 || last == 0, "{distance}");
            last = bucket;
        }
    }
}
