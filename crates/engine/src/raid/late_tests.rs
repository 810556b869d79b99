//! Requests for a stripe that is being destaged. Of six members, stripe 0 has block `b` in row `b % 16` of column `b / 16`, on the
//! member of the same number; the parity is on member 5.

use super::*;

/// Block 0 is dirty, and a flush has begun to read for it: its old content and the old parity.
fn reading() -> (Bench, u64) {
    let mut bench = Bench::new(config(Level::Raid5, 6));
    bench.write(0, 1, 1);
    let flush = bench.ask(Io::Flush);
    assert_eq!(bench.sent(), ["r0 0+1", "r5 0+1"]);
    (bench, flush)
}

fn is_answered(bench: &Bench, id: u64) -> bool {
    bench.answers.iter().any(|(other, _)| *other == id)
}

/// Everything is destaged and right, after a restart as well.
#[track_caller]
fn holds(mut bench: Bench, blocks: &[(u64, u8)]) {
    bench.flush().expect("flushed");
    bench.check_parity();
    let mut bench = Bench::start(config(Level::Raid5, 6), bench.members).expect("active");
    for &(block, byte) in blocks {
        assert!(bench.read(block, 1).expect("read") == [byte; BLOCK], "block {block}");
    }
}

#[test]
fn a_dirty_block_that_is_written_again_goes_home_as_it_is_when_the_parity_is_computed() {
    let (mut bench, flush) = reading();
    let again = bench.write(0, 1, 2);
    assert!(is_answered(&bench, again), "nobody waits for the destage");
    bench.settle();
    bench.answer(flush).status.expect("flushed");
    assert_eq!(bench.sent(), ["w0 0+1", "w5 0+1"], "one destage has both");
    holds(bench, &[(0, 2)]);
}

#[test]
fn what_is_written_while_the_writes_are_under_way_stays_dirty() {
    let (mut bench, flush) = reading();
    assert!(bench.returns() && bench.returns());
    // The superblocks mark the region first.
    while bench.sent().is_empty() {
        assert!(bench.returns());
    }
    let late = [(0, 5), (1, 6), (17, 7)].map(|(block, byte)| bench.write(block, 1, byte));
    assert!(late.iter().all(|id| is_answered(&bench, *id)));
    let read = bench.ask(Io::Read { at: Lba(0), buf: Buf::zeroed(BLOCK) });
    assert_eq!(bench.answer(read).buf.bytes(), [5; BLOCK], "the newest is read");
    let second = bench.ask(Io::Flush);
    while !is_answered(&bench, flush) {
        assert!(bench.returns());
    }
    assert!(!is_answered(&bench, second), "this one waits for them, the first one did not");
    bench.settle();
    bench.answer(second).status.expect("flushed");
    holds(bench, &[(0, 5), (1, 6), (17, 7)]);
}

#[test]
fn what_a_plan_does_not_touch_is_written_and_read() {
    let (mut bench, _) = reading();
    let written = bench.write(20, 1, 4);
    let read = bench.ask(Io::Read { at: Lba(33 * 8), buf: Buf::zeroed(BLOCK) });
    assert!(is_answered(&bench, written));
    assert_eq!(bench.sent(), ["r2 1+1"], "the read goes to its member");
    bench.settle();
    assert!(is_answered(&bench, read));
    holds(bench, &[(0, 1), (20, 4)]);
}

#[test]
fn a_clean_block_that_the_parity_is_computed_from_waits_until_it_is() {
    // All of row 0 is in the cache, so its parity needs no read.
    let mut bench = Bench::new(config(Level::Raid5, 6));
    for column in 0..5 {
        bench.write(16 * column, 1, 1);
    }
    bench.flush().expect("flushed");
    bench.write(0, 1, 2);
    bench.write(1, 1, 2);
    bench.sent();
    bench.ask(Io::Flush);
    assert_eq!(bench.sent(), ["r0 1+1", "r5 1+1"], "for row 1 alone");
    let clean = bench.write(32, 1, 9);
    assert!(!is_answered(&bench, clean));
    assert!(bench.returns() && bench.returns());
    assert!(is_answered(&bench, clean), "the parity is computed now");
    bench.settle();
    holds(bench, &[(0, 2), (1, 2), (16, 1), (32, 9)]);
}

#[test]
fn a_gap_that_is_read_to_be_written_waits_too() {
    let strides = Strides::up_to(8);
    let fills = RaidConfig {
        contiguity: Some(Contiguity { read: strides.clone(), write: strides }),
        ..config(Level::Raid5, 6)
    };
    let mut bench = Bench::new(fills);
    bench.write(0, 1, 1);
    bench.write(2, 1, 1);
    bench.ask(Io::Flush);
    assert_eq!(bench.sent(), ["r0 0+3", "r5 0+3"]);
    let gap = bench.write(1, 1, 9);
    assert!(!is_answered(&bench, gap), "its old content is destaged between the two");
    bench.settle();
    assert!(is_answered(&bench, gap));
    holds(bench, &[(0, 1), (1, 9), (2, 1)]);
}

#[test]
fn a_destage_that_fails_leaves_late_writes_dirty() {
    let (mut bench, flush) = reading();
    bench.write(17, 1, 4);
    bench.dead = (0..6).collect();
    bench.settle();
    bench.answer(flush).status.expect_err("nothing is written any more");
    let read = |bench: &mut Bench, block: u64| bench.read(block, 1).expect("the cache has it");
    assert_eq!((read(&mut bench, 0), read(&mut bench, 17)), (vec![1; BLOCK], vec![4; BLOCK]));
}
