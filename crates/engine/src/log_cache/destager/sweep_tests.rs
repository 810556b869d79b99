//! Sweeps: what a batch takes, how fast writers may go meanwhile, and whom destaging lets go first.

use super::super::env::{DATA, LOG};
use super::super::table::{Line, Piece, Place};
use super::super::testing_steps::{Kind, Steps, quiet};
use super::super::{HowPolicy, LogCacheConfig};
use super::room::Item;
use super::sweep::{First, Sweep, batch_lines};
use crate::{Durability, Io, LINE_BYTES, LINE_SECTORS, Nanos};

const LINES: u64 = 1 << 20;

fn item(line: u64) -> Item {
    Item { line: Line(line), piece: Piece::written(Place(0), 0, LINE_SECTORS as u8, 0), failed: false }
}

fn sweep_at(line: u64) -> Sweep {
    let mut sweep = Sweep::new(0..LINES, 4);
    sweep.pass(&[item(line)]);
    sweep.begin_batch();
    sweep
}

#[test]
fn the_first_are_those_with_the_lowest_lines_whatever_the_order_in_which_they_come() {
    let (mut first, mut items) = (First::new(10), Vec::new());
    for line in 0..1000 {
        first.add(item(line * 7919 % 1000), &mut items);
        assert!(items.len() < 20, "it needs no more memory than for twice as many");
    }
    first.cut(&mut items);
    let mut lines: Vec<u64> = items.iter().map(|item| item.line.0).collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..10).collect::<Vec<u64>>());
}

#[test]
fn the_hand_passes_over_what_was_taken_and_a_lap_ends_where_nothing_is_ahead() {
    let mut sweep = sweep_at(500);
    assert!(!sweep.see(&item(499), 0) && sweep.see(&item(500), 0) && sweep.see(&item(501), 0));
    sweep.pass(&[item(700), item(600)]);
    assert!(!sweep.see(&item(699), 0) && sweep.see(&item(700), 0));
    sweep.pass(&[]);
    assert!(!sweep.see(&item(699), 0), "a batch of nothing moves no hand");
    assert!(sweep.begin_lap(1000), "there may be something behind it");
    assert!(sweep.see(&item(0), 0));
    assert!(!sweep.begin_lap(1000), "it was at the start");
}

#[test]
fn beside_writers_the_first_lap_is_short_and_each_may_take_a_quarter_more() {
    let mut sweep = sweep_at(0);
    assert_eq!(sweep.lap_lines(100_000, false), 100_000, "nobody waits: all of it");
    assert_eq!(sweep.lap_lines(100_000, true), 50_000);
    sweep.begin_lap(100_000);
    assert_eq!(sweep.lap_lines(100_000, true), 62_500);
    for _ in 0..10 {
        sweep.begin_lap(100_000);
    }
    assert_eq!(sweep.lap_lines(100_000, true), 100_000, "no more than there is");
    assert_eq!(sweep.lap_lines(100_000, false), 100_000);
    assert_eq!(sweep.lap_lines(100_000, true), 50_000, "after a rest it begins anew");
    assert_eq!((batch_lines(160_000, 1 << 16), batch_lines(100, 1 << 16)), (10_000, 1 << 10));
    assert_eq!(batch_lines(1 << 30, 1 << 16), 1 << 16);
}

/// Three segments, whose last pieces are a part of the disk ahead, two, and three; each has 800 sectors that are destaged in that order.
#[test]
fn writers_may_go_as_fast_as_the_tail_moves() {
    let plan = |free: u64, ends: [u64; 3], of_lap: [bool; 3]| {
        let mut sweep = sweep_at(0);
        for (segment, end) in ends.into_iter().enumerate() {
            for piece in 0..100 {
                assert!(sweep.see(&item(end * LINES / 4 - 1 - piece), segment as u32));
            }
        }
        sweep.plan(80, free, 1000, (0..3).zip(of_lap));
        sweep.slowdown()
    };
    let all = [true; 3];
    assert_eq!(plan(1000, [1, 2, 3], all), 0.8, "1600 for 2000 free, then, and 2400 for 3000");
    assert_eq!(plan(0, [1, 2, 3], all), 0.8, "a segment is written to while nothing is free");
    assert_eq!(plan(1000, [3, 2, 1], all), 2.4, "nothing is free before the last part of the disk has come");
    assert_eq!(plan(1000, [1, 2, 3], [false; 3]), 2.4, "nothing before the lap ends");
    assert_eq!(plan(1000, [1, 2, 3], [true, false, true]), 1.2, "the second is free then, 2400 for 2000");
    let mut alone = sweep_at(0);
    for free in [0, 1000] {
        alone.plan_alone(3000, free, 1000);
        assert_eq!(alone.slowdown(), 3.0, "a batch that is no part of a sweep");
    }
}

fn spinning_data(config: LogCacheConfig) -> Steps {
    let mut disks = Steps::new(64, quiet()).disks;
    disks.0[DATA.0].rotational = true;
    Steps::start(disks, config).unwrap()
}

fn written(steps: &Steps) -> Vec<u64> {
    let writes = steps.sent.iter().filter(|sent| (sent.0, sent.1) == (DATA, Kind::Write));
    writes.filter_map(|sent| sent.2.map(|extent| extent.start.0 / LINE_SECTORS)).collect()
}

/// A line in the middle is destaged. What comes then is taken in the order of lines from there on, and what lies before it last.
#[test]
fn a_batch_takes_what_is_ahead_of_the_hand_and_the_next_lap_what_is_behind_it() {
    let sorted = LogCacheConfig { destage_depth: 1, ..quiet() };
    for (config, order) in [
        (sorted.clone(), [500, 600, 900, 100, 300]),
        (LogCacheConfig { how: HowPolicy::AsItComes, ..sorted }, [500, 900, 100, 600, 300]),
    ] {
        let mut steps = spinning_data(config);
        for batch in [&[500][..], &[900, 100, 600, 300]] {
            for line in batch {
                let id = steps.write_as(line * LINE_SECTORS, LINE_SECTORS, 1, Durability::Durable);
                assert!(steps.is_ok(id));
            }
            steps.drain();
        }
        assert_eq!(written(&steps), order);
        assert!(!steps.core.index.is_dirty());
    }
}

/// On a log that spins a write has waited for 60 ms: destaging sends nothing more until it is answered.
#[test]
fn destaging_lets_a_write_go_first_that_a_log_has_held_up() {
    for (waits, gives_way) in [(40, false), (60, true)] {
        let mut disks = Steps::new(9, quiet()).disks;
        disks.0[LOG.0].rotational = true;
        let config = LogCacheConfig { destage_depth: 1, destage_memory: LINE_BYTES as usize, ..quiet() };
        let mut steps = Steps::start(disks, config).unwrap();
        for line in [10, 20, 30, 40] {
            steps.write_as(line * LINE_SECTORS, LINE_SECTORS, 1, Durability::Durable);
        }
        steps.hold = Box::new(|port, io| matches!(io, Io::Write { .. }) && (port == DATA || port == LOG));
        steps.control(crate::Control::Drain);
        let of = |steps: &Steps, wanted| steps.held.iter().position(|held| held.port == wanted);
        let destaged = of(&steps, DATA).expect("the first line goes home");
        let id = steps.write_as(50 * LINE_SECTORS, LINE_SECTORS, 2, Durability::Durable);
        assert!(of(&steps, LOG).is_some() && steps.status(id).is_none());
        steps.now += Nanos::from_millis(waits);
        steps.carry_out(destaged);
        steps.settle();
        assert_eq!(of(&steps, DATA).is_none(), gives_way, "after {waits} ms");
        let held_up = of(&steps, LOG).expect("it is still there");
        steps.carry_out(held_up);
        steps.settle();
        assert!(steps.is_ok(id));
        assert!(of(&steps, DATA).is_some(), "and it goes on");
        steps.let_go();
        steps.wait(10);
        assert_eq!((steps.on_data_disk(40 * LINE_SECTORS), steps.core.index.is_dirty()), (1, false));
    }
}
