//! RAM for each block of a write cache besides its data, counted by the allocator, with everything that grows with the cache.
//! `cargo test -p dcd-model --lib write_cache_memory -- --nocapture` prints the figures.

use crate::disk_tests::counting::ALLOCATED;
use dcd_engine::destage::what::WhatPolicy;
use dcd_model::write_cache::{BlockId, Order, Pool, Position, RegionId, Regions};

/// A power of two is the worst case for the index: it takes the next one for its load.
const BLOCKS: u64 = 1 << 18;
/// The most that a block may take: where many lie together, and where each lies in a region of its own.
const TOGETHER_MAX: f64 = 96.0;
const ALONE_MAX: f64 = 240.0;

/// Fills a cache with dirty blocks at scattered places, asks its policy now and then, and counts.
fn bytes_per_block(what: WhatPolicy, region: u64) -> f64 {
    let before = ALLOCATED.get();
    let map = Regions::uniform(BLOCKS * 2, region);
    let mut pool = Pool::new(BLOCKS as usize).with_order(Order::new(what, 1, [map].into_iter()));
    let at = Position { disk: 0, hand: 0, arm_at: 0 };
    for index in 0..BLOCKS {
        let number = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) % BLOCKS * 2;
        let slot = pool.insert(BlockId { disk: 0, number }).expect("there is room");
        pool.write(slot, RegionId { disk: 0, number: (number / region) as u32 }, 0);
        if index % 1000 == 0 {
            pool.choose(what, None, at).expect("blocks are dirty");
        }
    }
    assert_eq!(pool.dirty() as u64, BLOCKS);
    (ALLOCATED.get() - before) as f64 / BLOCKS as f64
}

#[test]
fn a_block_of_a_write_cache_costs_at_most_240_bytes_of_ram_besides_its_data() {
    let reads = {
        let before = ALLOCATED.get();
        let _pool = Pool::new(BLOCKS as usize);
        (ALLOCATED.get() - before) as f64 / BLOCKS as f64
    };
    println!("for reads: {reads:.1} bytes for each block");
    assert!(reads <= 80.0);
    for what in
        [WhatPolicy::OldestFirst, WhatPolicy::LeastRecentlyWritten, WhatPolicy::MostDirty, WhatPolicy::CScan]
    {
        let (together, alone) = (bytes_per_block(what, 256), bytes_per_block(what, 1));
        println!("{what:?}: {together:.1} bytes with 256 sectors in a region, {alone:.1} with one");
        assert!(together <= TOGETHER_MAX && alone <= ALONE_MAX, "{what:?}: {together}, {alone}");
    }
}
