//! Tests of the limits that an administrator sets: bytes a second, and times at which nothing is destaged.

use super::super::env::{DATA, LOG};
use super::super::testing_steps::{Kind, Steps, quiet};
use super::super::{LogCacheConfig, WhenPolicy};
use super::rate::ACTIVE;
use crate::layer::{Control, Durability, LayerSettings};
use crate::{Io, LINE_BYTES, LINE_SECTORS};

/// A cache that destages as soon as no request waits, one block in a write, at 8 KiB a second.
fn limited() -> LogCacheConfig {
    LogCacheConfig { when: WhenPolicy::Asap, destage_rate: 2 * LINE_BYTES, destage_depth: 4, ..quiet() }
}

/// Blocks apart from each other, durable in the log.
fn write(steps: &mut Steps, lines: std::ops::Range<u64>) {
    for line in lines {
        let id = steps.write_as(line % 500 * 2 * LINE_SECTORS, LINE_SECTORS, 1, Durability::Durable);
        if !steps.is_ok(id) {
            // Above the high mark the answer is delayed.
            steps.wait(2);
        }
        assert!(steps.is_ok(id));
    }
}

fn destaged(steps: &Steps) -> usize {
    steps.sent.iter().filter(|sent| (sent.0, sent.1) == (DATA, Kind::Write)).count()
}

/// Has a client ask for something again and again for so long.
fn stay_active(steps: &mut Steps, seconds: u64) {
    for _ in 0..seconds {
        steps.wait(1);
        steps.read(500 * LINE_SECTORS);
    }
}

#[test]
fn destaging_keeps_to_its_rate_while_clients_are_active() {
    let mut steps = Steps::new(100, limited());
    write(&mut steps, 0..40);
    let begun = destaged(&steps);
    stay_active(&mut steps, 10);
    let written = destaged(&steps) - begun;
    assert!((18..=21).contains(&written), "{written} blocks in 10 s at 2 a second");
    // The clients rest: after a while it is as fast as the disk.
    steps.wait(ACTIVE.0 / 1_000_000_000 + 1);
    assert_eq!(destaged(&steps), 40);
    assert!(!steps.core.index.is_dirty());
}

#[test]
fn a_drain_and_a_full_log_have_no_rate() {
    let mut steps = Steps::new(100, limited());
    write(&mut steps, 0..40);
    steps.control(Control::Drain);
    assert_eq!(destaged(&steps), 40, "somebody waits for the drain");
    // Below the high mark the rate allows for one block by now.
    let mut steps = Steps::new(9, LogCacheConfig { high_mark: 50, low_mark: 5, ..limited() });
    let mut line = 0;
    while destaged(&steps) <= 1 {
        assert!(steps.core.log.ring().utilisation() < 0.6, "nothing is destaged above the high mark");
        write(&mut steps, line..line + 1);
        line += 1;
    }
    assert!(line > 9, "half of the log");
}

#[test]
fn a_rate_that_is_changed_counts_at_once() {
    let mut steps = Steps::new(100, LogCacheConfig { destage_rate: 1, ..limited() });
    write(&mut steps, 0..20);
    stay_active(&mut steps, 10);
    assert_eq!(destaged(&steps), 1, "the second block would come after an hour");
    let config = LogCacheConfig { destage_rate: 0, ..limited() };
    steps.control(Control::Settings(Box::new(LayerSettings::LogCache(config))));
    assert_eq!(destaged(&steps), 20);
}

/// A batch that the rate has slowed says nothing about the speed of the disk, by which clients are slowed down above the high mark.
#[test]
fn a_limited_batch_is_not_timed() {
    let mut steps = Steps::new(100, limited());
    let before = steps.core.destagers[0].nanos_per_sector();
    steps.control(Control::HoldDestage(true));
    write(&mut steps, 0..6);
    steps.control(Control::HoldDestage(false));
    // No request suspends it, and the clients still count as active.
    steps.wait(4);
    assert_eq!(destaged(&steps), 6);
    assert_eq!(steps.core.destagers[0].nanos_per_sector(), before);
}

#[test]
fn a_cache_that_is_held_back_destages_nothing_below_the_high_mark() {
    // A log that spins, so that a batch is small.
    let mut disks = Steps::new(9, quiet()).disks;
    disks.0[LOG.0].rotational = true;
    let destage_memory = 3 * LINE_BYTES as usize;
    let config = LogCacheConfig { destage_rate: 0, high_mark: 60, low_mark: 5, destage_memory, ..limited() };
    let mut steps = Steps::start(disks, config).unwrap();
    steps.control(Control::HoldDestage(true));
    write(&mut steps, 0..10);
    steps.wait(3600);
    assert_eq!(destaged(&steps), 0);
    assert!(steps.core.status(steps.now).destage_held);
    let mut line = 10;
    while destaged(&steps) == 0 {
        assert!(
            steps.core.log.ring().utilisation() < 0.7,
            "the high mark is passed, and nothing is destaged"
        );
        write(&mut steps, line..line + 1);
        line += 1;
    }
    steps.wait(3600);
    assert!(steps.core.log.ring().utilisation() < 0.6, "it is below the high mark again");
    assert!(steps.core.index.is_dirty(), "and holds the rest back");
    // Nobody waits for ever.
    write(&mut steps, line..line + 300);
    let held = destaged(&steps);
    steps.control(Control::HoldDestage(false));
    steps.wait(10);
    assert!(destaged(&steps) > held);
}

#[test]
fn a_drain_goes_on_while_destaging_is_held_back() {
    let mut steps = Steps::new(100, LogCacheConfig { destage_rate: 0, ..limited() });
    steps.control(Control::HoldDestage(true));
    write(&mut steps, 0..10);
    steps.control(Control::Drain);
    assert_eq!(destaged(&steps), 10);
    write(&mut steps, 10..20);
    steps.wait(3600);
    assert_eq!(destaged(&steps), 10, "the drain is over");
    assert!(steps.core.status(steps.now).destage_held);
}

/// A batch that is held back in its middle goes on there.
#[test]
fn a_batch_that_is_held_back_in_its_middle_goes_on_later() {
    let mut steps = Steps::new(100, LogCacheConfig { destage_rate: 0, destage_depth: 1, ..limited() });
    steps.control(Control::HoldDestage(true));
    write(&mut steps, 0..10);
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Write { .. }));
    steps.control(Control::HoldDestage(false));
    assert_eq!(destaged(&steps), 1);
    steps.control(Control::HoldDestage(true));
    steps.let_go();
    steps.wait(60);
    assert_eq!(destaged(&steps), 1, "what was sent has ended, and no more is sent");
    steps.control(Control::HoldDestage(false));
    assert_eq!(destaged(&steps), 10);
    assert!(!steps.core.index.is_dirty());
}

/// A raised depth is used as soon as there is memory for it, which comes in small parts.
#[test]
fn a_raised_depth_takes_its_memory_one_buffer_at_a_time() {
    let mut steps = Steps::new(100, LogCacheConfig { destage_rate: 0, destage_depth: 1, ..limited() });
    assert_eq!(steps.core.destage_reads.count(), 1);
    let config = LogCacheConfig { destage_rate: 0, destage_depth: 8, ..limited() };
    steps.control(Control::Settings(Box::new(LayerSettings::LogCache(config))));
    assert!(steps.core.destage_reads.count() <= 3);
    write(&mut steps, 0..20);
    assert_eq!(steps.core.destage_reads.count(), 8);
    steps.drain();
    assert!(!steps.core.index.is_dirty());
}
