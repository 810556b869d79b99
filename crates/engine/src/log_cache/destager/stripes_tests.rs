//! Over an array: stripes that are dirty as a whole are destaged first, and together.

use super::super::env::{DATA, LOG};
use super::super::testing_steps::{Kind, Steps, quiet};
use super::super::{LogCacheConfig, WhatPolicy};
use crate::LINE_BYTES;
use crate::layer::{Control, Durability, Io, Stripes};

/// Stripes of four lines, the first one from sector 8 on.
const STRIPES: Stripes = Stripes { sectors: 32, first: 8 };

fn steps(segments: u32, config: LogCacheConfig) -> Steps {
    let mut disks = Steps::new(segments, quiet()).disks;
    disks.0[DATA.0].stripes = Some(STRIPES);
    disks.0[LOG.0].rotational = true;
    Steps::start(disks, config).unwrap()
}

/// Durable lines of stripes, by stripe and number.
fn write_lines(steps: &mut Steps, lines: &[(u64, u64)]) {
    for (stripe, line) in lines {
        let id = steps.write_as(STRIPES.first + 32 * stripe + 8 * line, 8, 1, Durability::Durable);
        assert!(steps.is_ok(id));
    }
}

/// Returns what is sent to the data disk: the stripe and the lines of each write, and `None` for a flush.
fn sent(steps: &Steps) -> Vec<Option<(u64, u64)>> {
    let sent = steps.sent.iter().filter(|sent| sent.0 == DATA && matches!(sent.1, Kind::Write | Kind::Flush));
    sent.map(|sent| sent.2.map(|e| ((e.start.0 - STRIPES.first) / 32, e.sectors / 8))).collect()
}

#[test]
fn stripes_that_are_dirty_as_a_whole_go_first_and_in_one_write() {
    let lines = [(9, 0), (3, 2), (5, 0), (3, 0), (5, 1), (7, 1), (3, 3), (5, 3), (3, 1)];
    let rest = [Some((5, 2)), Some((5, 1)), Some((7, 1)), Some((9, 1)), None];
    for (first, expected) in [(true, [&[Some((3, 4)), None], &rest[..]].concat()), (false, Vec::new())] {
        let mut steps = steps(40, LogCacheConfig { full_stripes_first: first, ..quiet() });
        write_lines(&mut steps, &lines);
        steps.sent.clear();
        steps.drain();
        if first {
            assert_eq!(sent(&steps), expected);
        } else {
            assert_eq!(sent(&steps).iter().filter(|io| io.is_none()).count(), 1, "all in one batch");
        }
        assert!(!steps.core.index.is_dirty());
    }
}

#[test]
fn a_stripe_that_is_not_durable_as_a_whole_is_not_whole() {
    let mut steps = steps(40, quiet());
    write_lines(&mut steps, &[(3, 0), (3, 1), (3, 2), (5, 0)]);
    steps.hold = Box::new(|port, io| port == LOG && !matches!(io, Io::Read { .. }));
    steps.write(STRIPES.first + 32 * 3 + 24, 8, 1);
    steps.sent.clear();
    steps.control(Control::Drain);
    assert_eq!(sent(&steps), [Some((3, 3)), Some((5, 1)), None]);
    steps.let_go();
    steps.wait(3);
    assert!(!steps.core.index.is_dirty());
}

#[test]
fn where_space_is_short_the_oldest_go_first_with_all_of_their_stripes() {
    let config = LogCacheConfig {
        low_mark: 5,
        destage_memory: 8 * LINE_BYTES as usize,
        what: WhatPolicy::LastWriteFirst,
        ..quiet()
    };
    let mut steps = steps(20, config);
    // Three lines to a segment; a stripe has lines in the oldest segments and in the newest.
    write_lines(&mut steps, &[(9, 0), (3, 2), (6, 0), (3, 0), (7, 0), (8, 1)]);
    write_lines(&mut steps, &[(11, 0), (11, 1), (11, 2), (11, 3), (3, 3), (3, 1)]);
    steps.sent.clear();
    steps.drain();
    let batch: Vec<_> = sent(&steps).into_iter().map_while(|io| io).collect();
    assert!(batch.contains(&(3, 4)) && batch.contains(&(9, 1)), "{batch:?}");
    assert!(!batch.iter().any(|(stripe, _)| *stripe == 11), "the newest whole stripe waits: {batch:?}");
    assert!(!steps.core.index.is_dirty());
}

#[test]
fn a_whole_stripe_that_cannot_be_written_keeps_nothing_else_from_the_data_disk() {
    let mut steps = steps(40, quiet());
    write_lines(&mut steps, &[(9, 0), (3, 0), (3, 1), (3, 2), (3, 3)]);
    steps.data().unwritable.insert(STRIPES.first + 32 * 3);
    steps.drain();
    assert_eq!(steps.on_data_disk(STRIPES.first + 32 * 9), 1);
    assert_eq!(
        (steps.on_data_disk(STRIPES.first + 32 * 3), steps.core.index.table().counts().dirty_sectors),
        (0, 32)
    );
    steps.data().unwritable.clear();
    steps.wait(60);
    assert!(!steps.core.index.is_dirty());
    assert_eq!(steps.read(STRIPES.first + 32 * 3), Some(1));
}
