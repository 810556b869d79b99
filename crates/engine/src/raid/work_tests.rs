//! The work of one event: it does not grow with what is dirty, and the policy alone decides what is destaged.

use super::*;
use crate::raid::destaging::LOOKS_MAX;

/// Units of one row, so that there are many of them.
fn rows(level: Level, members: usize) -> RaidConfig {
    RaidConfig { unit: CacheUnit::ParityBlockGroup, when: WhenPolicy::HighLow, ..config(level, members) }
}

#[test]
fn a_choice_closes_no_unit_that_it_does_not_choose() {
    let config = RaidConfig {
        what: WhatPolicy::LeastValidFirst,
        cache_bytes: 20 * 2 * BLOCK as u64,
        high_mark: 51,
        low_mark: 50,
        ..rows(Level::Raid5, 3)
    };
    let mut bench = Bench::new(config);
    // Ten units with a dirty block, of which another one is being read.
    for row in 0..10 {
        bench.write(row, 1, 1);
        bench.ask(Io::Read { at: Lba((16 + row) * 8), buf: Buf::zeroed(BLOCK) });
    }
    assert_eq!((bench.open.len(), bench.raid.array().stripes.cache.dirty().len()), (10, 10));
    bench.write(10, 1, 1);
    bench.settle();
    let dirty: Vec<u64> = bench.raid.array().stripes.cache.dirty().iter().copied().collect();
    assert_eq!(dirty, (0..10).collect::<Vec<_>>(), "they are below the mark when their readers end");
}

#[test]
fn where_all_is_being_read_one_unit_is_closed_so_that_writes_get_room() {
    for what in WhatPolicy::ALL {
        let config = RaidConfig {
            what,
            cache_bytes: 4 * 2 * BLOCK as u64,
            high_mark: 100,
            low_mark: 100,
            ..rows(Level::Raid5, 3)
        };
        let mut bench = Bench::new(config);
        for row in 0..4 {
            bench.write(row, 1, 1);
            bench.ask(Io::Read { at: Lba((16 + row) * 8), buf: Buf::zeroed(BLOCK) });
        }
        let waits = bench.write(4, 1, 1);
        assert!(bench.answers.iter().all(|(id, _)| *id != waits), "{what:?}: there is no room");
        // A new reader comes before the last one of the unit is gone, for ever, but for the closed one.
        for turn in 0..40 {
            let row = turn % 4;
            bench.ask(Io::Read { at: Lba((16 + row) * 8), buf: Buf::zeroed(BLOCK) });
            bench.returns();
        }
        bench.answer(waits).status.expect("written");
    }
}

#[test]
fn a_flush_looks_at_few_units_in_each_event() {
    let units = 4 * LOOKS_MAX as u64;
    let config = RaidConfig { when: WhenPolicy::WhenFull, cache_bytes: 64 << 20, ..rows(Level::Raid5, 3) };
    let mut bench = Bench::sized(config, true, DATA_SECTOR + units * 8);
    bench.checks = false;
    let block = |unit: u64| unit / 16 * 32 + unit % 16;
    for unit in 0..64 {
        bench.write(block(unit * 60), 1, 1);
    }
    let flush = bench.ask(Io::Flush);
    // Newer ones, which nobody waits for.
    for unit in (0..units).filter(|unit| unit % 60 != 0) {
        bench.write(block(unit), 1, 2);
    }
    let mut most = 0;
    while bench.answers.iter().all(|(id, _)| *id != flush) {
        if !bench.returns() {
            bench.wait();
        }
        most = most.max(bench.raid.array().stripes.destaging.looks());
    }
    assert!(bench.raid.array().stripes.cache.dirty().len() > 3 * LOOKS_MAX, "what came later stays");
    assert!(most > 0 && most <= 3 * LOOKS_MAX, "{most} looks in one event");
    bench.flush().expect("flushed");
    bench.check_parity();
}

#[test]
fn no_policy_looks_at_all_that_is_dirty() {
    let units = 4 * LOOKS_MAX as u64;
    for what in WhatPolicy::ALL {
        let config = RaidConfig {
            what,
            high_mark: 90,
            low_mark: 89,
            cache_bytes: units * 2 * BLOCK as u64,
            ..rows(Level::Raid5, 3)
        };
        let mut bench = Bench::sized(config, true, DATA_SECTOR + units * 8);
        bench.checks = false;
        let mut most = 0;
        for unit in 0..units {
            // All twice: then those that give second chances pass over all of them.
            for byte in 0..2 {
                bench.write(unit / 16 * 32 + unit % 16, 1, byte);
                most = most.max(bench.raid.array().stripes.destaging.looks());
            }
        }
        assert!(most > 0 && most <= 3 * LOOKS_MAX, "{what:?}: {most} looks in one event");
        bench.settle();
        assert!(
            bench.raid.array().stripes.cache.dirty().len() < units as usize,
            "{what:?}: some are destaged"
        );
    }
}
