//! The pool beside a plain list.

use rand::{Rng, SeedableRng};

use super::*;

fn block(number: u64) -> BlockId {
    BlockId { disk: 0, number }
}

fn region(number: u64) -> RegionId {
    RegionId { disk: 0, number: (number / 4) as u32 }
}

#[test]
fn the_victim_is_the_least_recently_used_clean_block() {
    let mut pool = Pool::new(3);
    let slots: Vec<_> = (0..3).map(|n| pool.insert(block(n)).expect("there is room")).collect();
    pool.write(slots[0], region(0), 1);
    pool.touch(slots[1]);
    pool.insert(block(10)).expect("block 2 is clean");
    assert!(pool.find(block(2)).is_none(), "block 0 is older and dirty, block 1 was used");
    pool.begin_write(slots[0]);
    pool.end_write(slots[0], true);
    pool.insert(block(11)).expect("block 0 is clean now, and the oldest");
    assert!(pool.find(block(0)).is_none() && pool.find(block(1)).is_some());
    pool.check();
}

#[test]
fn a_block_written_being_written_stays_dirty() {
    let mut pool = Pool::new(1);
    let slot = pool.insert(block(7)).expect("there is room");
    pool.write(slot, region(7), 1);
    pool.begin_write(slot);
    assert_eq!(pool.region(region(7)).map(|region| pool.waiting_blocks(region).count()), Some(0));
    let before = pool.stamp();
    pool.write(slot, region(7), 2);
    let after = pool.stamp();
    let settled = pool.end_write(slot, true);
    assert!(settled.covers(before) && !settled.covers(after), "the newer content is not on the disk");
    assert!(pool.is_dirty(slot) && pool.insert(block(8)).is_none());
    pool.begin_write(slot);
    assert!(!pool.end_write(slot, false).covers(after), "an error cleans nothing");
    assert!(pool.is_dirty(slot));
    pool.begin_write(slot);
    assert!(pool.end_write(slot, true).covers(after));
    assert!(pool.regions().next().is_none());
}

/// Random use beside a list that is searched from end to end.
#[test]
fn a_pool_is_what_a_plain_list_would_be() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    let mut pool = Pool::new(16);
    // (block, dirty), least recently used first.
    let mut list: Vec<(u64, bool)> = Vec::new();
    for step in 0..20_000 {
        let number = rng.random_range(0..40u64);
        match rng.random_range(0..4) {
            0 | 1 => {
                let write = rng.random_bool(0.4);
                let known = list.iter().position(|&(other, _)| other == number);
                let slot = match pool.find(block(number)) {
                    Some(slot) => {
                        pool.touch(slot);
                        let entry = list.remove(known.expect("both know it"));
                        list.push(entry);
                        Some(slot)
                    }
                    None => {
                        assert_eq!(known, None);
                        let slot = pool.insert(block(number));
                        let full = list.len() == 16;
                        let victim = list.iter().position(|&(_, dirty)| !dirty);
                        assert_eq!(slot.is_none(), full && victim.is_none());
                        if full && let Some(victim) = victim {
                            list.remove(victim);
                        }
                        if slot.is_some() {
                            list.push((number, false));
                        }
                        slot
                    }
                };
                if let (Some(slot), true) = (slot, write) {
                    pool.write(slot, region(number), step);
                    list.last_mut().expect("it was used").1 = true;
                }
            }
            2 => {
                let dirty = pool.region(region(number)).into_iter();
                let slots: Vec<_> = dirty.flat_map(|region| pool.waiting_blocks(region)).collect();
                for slot in slots {
                    let at = list.iter().position(|&(other, _)| other == pool.block(slot).number);
                    assert!(std::mem::take(&mut list[at.expect("both know it")].1));
                    pool.begin_write(slot);
                    pool.end_write(slot, true);
                }
                assert!(list.iter().all(|&(other, dirty)| !dirty || region(other) != region(number)));
            }
            _ => {
                if let Some(slot) = pool.find(block(number)) {
                    pool.remove(slot);
                    list.retain(|&(other, _)| other != number);
                }
            }
        }
        pool.check();
        assert_eq!(pool.dirty(), list.iter().filter(|&&(_, dirty)| dirty).count());
    }
}
