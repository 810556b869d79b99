//! The stripe cache by itself: its blocks, and both ways to give it memory.

use super::*;
use crate::raid::config::CacheUnit;
use crate::raid::matrix::Shape;

fn chunk(unit: u64, column: usize, first: u64, sectors: u64) -> Chunk {
    Chunk { unit, column, first, sectors }
}

const EACH: [CacheMemory; 2] = [CacheMemory::Row, CacheMemory::Unit];

fn cache(memory: CacheMemory, units: u64) -> StripeCache {
    let layout = Layout::new(Shape { data: 2, parity: 1 }, 32, 3200, CacheUnit::Stripe);
    let mut cache = StripeCache::new(layout, memory, units * layout.unit_bytes() as u64);
    cache.saw(&Buf::zeroed(512));
    cache
}

fn bring_home(cache: &mut StripeCache, unit: u64) {
    cache.take_all_along(unit);
    cache.destaged(unit);
}

#[test]
fn sectors_make_blocks_partial_and_then_dirty() {
    for memory in EACH {
        let mut cache = cache(memory, 2);
        let source = Buf::copy_of(&[7; 16 * 512]);
        for written in [chunk(3, 1, 6, 4), chunk(3, 1, 0, 6)] {
            assert!(cache.hold(written));
            cache.write(written, &source, 0);
            assert_eq!(cache.status(3, 1, 1), BlockStatus::Partial);
        }
        assert!(cache.has(chunk(3, 1, 0, 10)) && !cache.has(chunk(3, 1, 0, 11)));
        assert_eq!(cache.status(3, 0, 1), BlockStatus::Dirty);
        cache.fill(3, 1, 1, &[9; 4096]);
        assert_eq!(cache.status(3, 1, 1), BlockStatus::Dirty);
        let mut out = Buf::zeroed(16 * 512);
        cache.read(chunk(3, 1, 0, 16), &mut out, 0);
        assert_eq!((out.bytes()[10 * 512 - 1], out.bytes()[10 * 512]), (7, 9), "newer sectors are kept");
        cache.check();
        bring_home(&mut cache, 3);
        assert_eq!(cache.status(3, 0, 1), BlockStatus::Clean);
        cache.check();
    }
}

#[test]
fn each_byte_of_a_chunk_over_several_rows_has_its_place() {
    for memory in EACH {
        let mut cache = cache(memory, 1);
        let source = Buf::copy_of(&(0..32 * 512).map(|at| (at / 512) as u8).collect::<Vec<u8>>());
        for (column, first, sectors) in [(0, 3, 27), (1, 8, 16)] {
            let written = chunk(0, column, first, sectors);
            assert!(cache.hold(written));
            cache.write(written, &source, first as usize * 512);
        }
        for (column, first, sectors) in [(0, 3, 27), (0, 9, 2), (1, 8, 16), (1, 15, 3)] {
            let mut out = Buf::zeroed(40 * 512);
            cache.read(chunk(0, column, first, sectors), &mut out, 512);
            let expected = &source.bytes()[first as usize * 512..(first + sectors) as usize * 512];
            assert_eq!(&out.bytes()[512..512 + expected.len()], expected, "column {column}, from {first}");
            assert_eq!(out.bytes()[512 + expected.len()], 0, "and no more");
        }
        cache.check();
    }
}

#[test]
fn a_full_cache_gives_up_what_is_clean_and_was_not_used_for_the_longest_time() {
    let mut cache = cache(CacheMemory::Unit, 2);
    let source = Buf::copy_of(&[7; 4096]);
    for unit in [0, 1] {
        assert!(cache.hold(chunk(unit, 0, 0, 8)));
        cache.write(chunk(unit, 0, 0, 8), &source, 0);
    }
    assert!(!cache.hold(chunk(2, 0, 0, 8)), "all is dirty");
    cache.release(2);
    bring_home(&mut cache, 1);
    bring_home(&mut cache, 0);
    cache.read(chunk(1, 0, 0, 8), &mut Buf::zeroed(4096), 0);
    assert!(cache.hold(chunk(2, 0, 0, 8)));
    assert!(cache.has(chunk(1, 0, 0, 8)) && !cache.has(chunk(0, 0, 0, 8)));
    cache.check();
    cache.fill(3, 0, 0, &[7; 4096]);
    cache.fill(4, 0, 0, &[7; 4096]);
    cache.check();
    assert_eq!(cache.held_bytes(), 2 * cache.capacity_bytes(), "an operation needs memory at once");
    cache.trim();
    assert_eq!(cache.held_bytes(), cache.capacity_bytes());
    cache.check();
}

#[test]
fn memory_by_rows_has_room_for_blocks_of_many_units() {
    let mut cache = cache(CacheMemory::Row, 1);
    let source = Buf::copy_of(&[7; 4 * 4096]);
    for unit in 0..4 {
        assert!(
            cache.hold(chunk(unit, 0, 8, 8)),
            "a unit has four rows, so four units have room for one each"
        );
        cache.write(chunk(unit, 0, 8, 8), &source, 0);
    }
    assert_eq!(cache.utilisation(), 1.0);
    assert!(cache.hold(chunk(0, 1, 8, 8)), "the other column of the same row");
    assert!(!cache.hold(chunk(0, 1, 0, 8)), "another row of a dirty unit");
    // A block that is being destaged is no reason to destage more, but is still there.
    cache.unit(2).exclusive = true;
    cache.set_leaving(2, true);
    assert_eq!(cache.utilisation(), 0.75);
    assert!(!cache.hold(chunk(0, 1, 0, 8)));
    cache.check();
    cache.set_leaving(2, false);
    assert_eq!(cache.utilisation(), 1.0, "it did not get there");
    cache.set_leaving(2, true);
    bring_home(&mut cache, 2);
    cache.unit(2).exclusive = false;
    cache.check();
    assert!(cache.hold(chunk(0, 1, 0, 8)) && !cache.has(chunk(2, 0, 8, 8)), "its memory is used again");
    cache.check();
    assert!(!cache.hold(chunk(7, 0, 0, 32)), "a whole column needs all of the memory");
    for unit in [0, 1, 3] {
        bring_home(&mut cache, unit);
    }
    assert!(cache.hold(chunk(7, 0, 0, 32)));
}

#[test]
fn what_fills_a_unit_gives_it_no_second_chance_and_what_overwrites_it_does() {
    let mut cache = cache(CacheMemory::Row, 2);
    let source = Buf::copy_of(&[7; 16 * 512]);
    let mut write = |first, sectors| {
        assert!(cache.hold(chunk(1, 0, first, sectors)));
        cache.write(chunk(1, 0, first, sectors), &source, 0);
        cache.get(1).expect("it is there").referenced
    };
    assert!(!write(0, 4) && !write(4, 12));
    assert!(write(3, 2));
    cache.pass_over(1);
    assert!(!cache.get(1).expect("it is there").referenced);
}
