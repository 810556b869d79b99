//! Tests of prefetching. Of six members, stripe 0 has block `b` in row `b % 16` of column `b / 16`, on the member of
//! the same number, and its parity on member 5; block 80 is the first one of stripe 1, on member 5.

use super::*;

fn prefetching() -> RaidConfig {
    RaidConfig { prefetch_after: 1, ..config(Level::Raid5, 6) }
}

/// Block 0 is dirty, and rests.
fn rested(config: RaidConfig) -> Bench {
    let mut bench = Bench::new(config);
    bench.write(0, 1, 1);
    assert!(bench.sent().is_empty(), "it has just been written");
    bench.write(80, 1, 2);
    bench
}

/// Everything is destaged and right, after a restart as well.
#[track_caller]
fn holds(mut bench: Bench, blocks: &[(u64, u8)]) {
    bench.flush().expect("flushed");
    bench.check_parity();
    assert_eq!(bench.array().stripes.prefetch.blocks, 0, "it has all been used, or forgotten");
    let config = bench.raid.config.clone();
    let mut bench = Bench::start(config, bench.members).expect("active");
    for &(block, byte) in blocks {
        assert!(bench.read(block, 1).expect("read") == [byte; BLOCK], "block {block}");
    }
}

#[test]
fn a_destage_does_not_read_again_what_was_read_while_its_stripe_rested() {
    let mut bench = rested(prefetching());
    assert_eq!(bench.sent(), ["r0 0+1"], "the old content of the block");
    bench.settle();
    bench.write(7, 1, 3);
    bench.write(81, 1, 4);
    assert_eq!(bench.sent(), ["r0 7+1", "r5 16+1"], "of what came since, and of the other stripe");
    bench.settle();
    assert_eq!(bench.raid.statistics().prefetches, 3);
    bench.flush().expect("flushed");
    let reads: Vec<String> = bench.sent().into_iter().filter(|sent| sent.starts_with('r')).collect();
    assert_eq!(reads, ["r4 16+2", "r5 0+1", "r5 17+1", "r5 7+1"], "the parity, and what did not rest");
    holds(bench, &[(0, 1), (7, 3), (80, 2), (81, 4)]);
}

#[test]
fn a_stripe_that_was_destaged_is_read_for_anew() {
    let mut bench = rested(prefetching());
    bench.settle();
    bench.flush().expect("flushed");
    bench.write(0, 1, 5);
    bench.write(80, 1, 6);
    bench.sent();
    bench.write(81, 1, 7);
    bench.settle();
    holds(bench, &[(0, 5), (80, 6), (81, 7)]);
}

#[test]
fn nobody_waits_for_it_but_a_destage() {
    let mut bench = rested(prefetching());
    let again = bench.write(0, 1, 3);
    assert!(bench.answer(again).status.is_ok(), "a write of the same block");
    bench.write(81, 1, 4);
    assert_eq!(bench.sent(), ["r0 0+1", "r5 16+1"], "which is read once");
    let flush = bench.ask(Io::Flush);
    assert!(!bench.sent().iter().any(|sent| sent.starts_with("w0")), "the lock is shared still");
    bench.settle();
    bench.answer(flush).status.expect("flushed");
    holds(bench, &[(0, 3), (80, 2), (81, 4)]);
}

#[test]
fn what_a_scrub_repairs_is_read_again() {
    let config = RaidConfig { prefetch_after: 1, ..config(Level::Raid6, 6) };
    let mut bench = Bench::filled(config);
    let at = (DATA_SECTOR * 512) as usize;
    bench.members.0[2].0[at..at + BLOCK].fill(0xee);
    bench.write(0, 1, 1);
    bench.write(64, 1, 2);
    let sent = bench.sent();
    assert!(sent.contains(&"r2 0+1".to_owned()), "a neighbour, which is wrong there: {sent:?}");
    bench.settle();
    assert_eq!(bench.scrub(true).repaired, 1);
    bench.flush().expect("flushed");
    bench.check_parity();
    assert_eq!(bench.read(0, 1).expect("read"), [1; BLOCK]);
}

#[test]
fn a_read_that_fails_is_left_to_the_destage() {
    let mut bench = Bench::new(prefetching());
    bench.bad_reads.push((0, Lba(DATA_SECTOR)));
    bench.write(0, 1, 1);
    bench.write(80, 1, 2);
    bench.settle();
    bench.flush().expect("flushed");
    assert_eq!(bench.raid.statistics().sectors_repaired, 1);
    holds(bench, &[(0, 1), (80, 2)]);
}

#[test]
fn a_member_that_fails_afterwards_is_made_up_for() {
    let mut bench = Bench::filled(prefetching());
    bench.write(0, 1, 1);
    bench.sent();
    bench.write(80, 1, 2);
    assert_eq!(bench.sent(), ["r0 0+1"]);
    bench.settle();
    bench.dead = vec![0];
    bench.flush().expect("the parity has it");
    bench.stop();
    let mut bench = Bench::start(prefetching(), bench.members).expect("active");
    for (block, byte) in [(0, 1), (16, passes::byte_of(16)), (80, 2)] {
        assert!(bench.read(block, 1).expect("read") == [byte; BLOCK], "block {block}");
    }
    assert!(bench.raid.statistics().fetches > 0, "block 0 is computed");
}

#[test]
fn it_is_left_out_where_it_would_be_in_the_way_or_in_vain() {
    let group = CacheUnit::ParityBlockGroup;
    for config in [
        RaidConfig { prefetch_after: 0, ..prefetching() },
        RaidConfig { prefetch_after: 100, ..prefetching() },
        RaidConfig { non_volatile: true, ..prefetching() },
        RaidConfig { unit: group, ..prefetching() },
    ] {
        assert!(rested(config.clone()).sent().is_empty(), "{config:?}");
    }

    let mut filled = Bench::new(prefetching());
    filled.write(0, 5, 1);
    filled.write(80, 1, 2);
    assert!(filled.sent().is_empty(), "a stripe that is being filled");

    let mut reading = Bench::new(prefetching());
    reading.write(0, 1, 1);
    reading.ask(Io::Read { at: Lba(160 * 8), buf: Buf::zeroed(BLOCK) });
    reading.sent();
    reading.write(80, 1, 2);
    assert!(reading.sent().is_empty(), "clients read");
    assert!(reading.returns());
    assert_eq!(reading.sent(), ["r0 0+1"], "until then");

    let mut waiting = Bench::new(prefetching());
    waiting.write(0, 1, 1);
    waiting.ask(Io::Flush);
    waiting.sent();
    waiting.write(80, 1, 2);
    waiting.write(160, 1, 3);
    assert!(waiting.sent().is_empty(), "somebody waits for a destage");

    let mut failed = Bench::new(prefetching());
    failed.dead = vec![3];
    failed.write(48, 1, 1);
    failed.flush().expect("the parity has it");
    failed.write(1, 1, 1);
    failed.sent();
    failed.write(80, 1, 2);
    assert!(failed.sent().is_empty(), "a member has failed");
}

#[test]
fn it_takes_an_eighth_of_what_the_cache_has() {
    // Sixteen rows of five blocks, all of them dirty: ten blocks of their old content.
    let small = RaidConfig { cache_bytes: 80 * BLOCK as u64, when: WhenPolicy::WhenFull, ..prefetching() };
    let mut bench = Bench::new(small);
    let blocks: Vec<(u64, u8)> =
        (0..16).map(|number| (80 * (number % 4) + 5 * (number / 4), number as u8 + 1)).collect();
    for &(block, byte) in &blocks {
        bench.write(block, 1, byte);
        bench.settle();
    }
    assert_eq!(bench.array().stripes.prefetch.blocks, 10);
    holds(bench, &blocks);
}
