//! Gaps that are filled: what is written, from where, and every way in which somebody else may change them meanwhile.

use proptest::prelude::*;

use super::super::env::{DATA, LOG};
use super::super::table::Line;
use super::super::testing_steps::{Kind, Steps, ZEROES, quiet};
use super::super::{Contiguity, LogCacheConfig, Strides};
use crate::layer::{Control, Durability, ErrorKind, Io, IoError, Port, Report};
use crate::{Extent, Lba};

/// A place whose lines are not in the fingerprint, so that writes there may bypass the log.
const MIDDLE: u64 = 2176;

fn filling(read: u64, write: u64) -> LogCacheConfig {
    let contiguity = Contiguity { read: Strides::up_to(read), write: Strides::up_to(write) };
    LogCacheConfig { contiguity: Some(contiguity), bypass_bytes: 8 << 10, ..quiet() }
}

fn steps(read: u64, write: u64) -> Steps {
    Steps::new(40, filling(read, write))
}

/// Durable blocks of a line each, so many lines from `MIDDLE` on.
fn write_lines(steps: &mut Steps, lines: &[u64], tag: u8) {
    for line in lines {
        let id = steps.write_as(MIDDLE + 8 * line, 8, tag, Durability::Durable);
        assert!(steps.is_ok(id));
    }
}

fn sent(steps: &Steps, kind: Kind) -> Vec<(u64, u64)> {
    let found = steps.sent.iter().filter(|sent| (sent.0, sent.1) == (DATA, kind));
    found.filter_map(|sent| sent.2.map(|e| (e.start.0.wrapping_sub(MIDDLE) / 8, e.sectors / 8))).collect()
}

fn tags(steps: &Steps, lines: std::ops::Range<u64>) -> Vec<u8> {
    lines.map(|line| steps.on_data_disk(MIDDLE + 8 * line + 7)).collect()
}

fn data_io(port: Port, io: &Io, write: bool) -> bool {
    port == DATA && if write { matches!(io, Io::Write { .. }) } else { matches!(io, Io::Read { .. }) }
}

#[test]
fn a_gap_is_read_and_written_where_both_rules_say_so() {
    for (read, write, reads, writes) in [
        (0, 0, vec![], vec![(0, 1), (2, 1), (5, 1)]),
        (0, 9, vec![], vec![(0, 1), (2, 1), (5, 1)]),
        (9, 0, vec![], vec![(0, 1), (2, 1), (5, 1)]),
        (9, 3, vec![(1, 1)], vec![(0, 3), (5, 1)]),
        // The block between the two gaps is read with them, and not used.
        (9, 9, vec![(1, 4)], vec![(0, 6)]),
        (3, 9, vec![(1, 1)], vec![(0, 3), (5, 1)]),
    ] {
        let mut steps = steps(read, write);
        write_lines(&mut steps, &[5, 0, 2], 1);
        steps.sent.clear();
        steps.drain();
        assert_eq!((sent(&steps, Kind::Read), sent(&steps, Kind::Write)), (reads, writes), "{read}, {write}");
        assert_eq!(tags(&steps, 0..6), [1, 0, 1, 0, 0, 1]);
        assert!(!steps.core.index.is_dirty());
    }
}

#[test]
fn reads_of_two_gaps_that_are_far_apart_are_not_joined() {
    let mut steps = steps(3, 9);
    write_lines(&mut steps, &[0, 2, 3, 4, 6], 1);
    steps.sent.clear();
    steps.drain();
    assert_eq!((sent(&steps, Kind::Read), sent(&steps, Kind::Write)), (vec![(1, 1), (5, 1)], vec![(0, 7)]));
}

#[test]
fn parts_of_lines_are_filled_too() {
    let mut steps = steps(9, 9);
    for sector in [0, 3, 7, 9] {
        steps.write_as(MIDDLE + sector, 1, 1, Durability::Durable);
    }
    steps.sent.clear();
    steps.drain();
    let written: Vec<_> =
        steps.sent.iter().filter(|sent| (sent.0, sent.1) == (DATA, Kind::Write)).map(|sent| sent.2).collect();
    assert_eq!(written, [Some(Extent::new(Lba(MIDDLE), 10))]);
    let written: Vec<u8> = (0..11).map(|sector| steps.on_data_disk(MIDDLE + sector)).collect();
    assert_eq!(written, [1, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0]);
}

/// Blocks around a gap whose own content is in the log and clean, as an older block that cannot be read keeps the tail.
fn with_clean_gap() -> Steps {
    let mut steps = steps(0, 9);
    steps.write_as(0, 8, 9, Durability::Durable);
    write_lines(&mut steps, &[1, 3], 1);
    steps.log().unreadable.extend(33..41);
    steps.drain();
    steps.control(Control::DrainCancel);
    assert_eq!(
        (tags(&steps, 0..5), steps.core.index.table().counts().dirty_sectors),
        (vec![0, 1, 0, 1, 0], 8)
    );
    steps.sent.clear();
    steps
}

#[test]
fn a_gap_is_filled_with_what_is_clean_in_the_log() {
    let mut steps = with_clean_gap();
    write_lines(&mut steps, &[0, 2], 2);
    // The data disk is not asked for its content.
    steps.data().unreadable.extend(MIDDLE..MIDDLE + 64);
    steps.log().unreadable.clear();
    steps.drain();
    let written = sent(&steps, Kind::Write);
    assert!(written.contains(&(0, 3)) && sent(&steps, Kind::Read).is_empty(), "{written:?}");
    assert_eq!((tags(&steps, 0..5), steps.core.statistics.gap_sectors), (vec![2, 1, 2, 1, 0], 8));
    assert!(!steps.core.index.is_dirty());
}

#[test]
fn a_clean_copy_that_is_rotten_leaves_its_gap_unfilled() {
    let mut steps = with_clean_gap();
    let place = steps.core.index.table().lookup(Line((MIDDLE + 8) / 8))[0].place.0;
    steps.log().bytes[place as usize * 512] ^= 1;
    write_lines(&mut steps, &[0, 2], 2);
    steps.log().unreadable.clear();
    steps.drain();
    assert_eq!(tags(&steps, 0..5), [2, 1, 2, 1, 0]);
    assert_eq!((steps.core.statistics.gap_sectors, steps.core.index.is_dirty()), (0, false));
}

#[test]
fn the_tail_does_not_pass_a_clean_copy_that_fills_a_gap() {
    let mut steps = with_clean_gap();
    let (tail, line) = (steps.core.log.ring().tail(), Line((MIDDLE + 8) / 8));
    let clean = steps.core.index.table().lookup(line)[0].place.0;
    assert_eq!(
        steps.core.log.ring().number(steps.core.index.segment_of(crate::log_cache::table::Place(clean))),
        tail
    );
    write_lines(&mut steps, &[0, 2], 2);
    // The block that keeps the tail is given up, so that it is not in the batch; then it is written again.
    steps.hold = Box::new(|port, io| port == LOG && matches!(io, Io::Read { .. }));
    steps.wait(1 << 31);
    assert!(!steps.held.is_empty() && !steps.core.destagers[0].is_idle());
    let again = steps.write_as(0, 8, 8, Durability::Durable);
    assert!(steps.is_ok(again));
    assert_eq!(steps.core.log.ring().tail(), tail);
    steps.let_go();
    steps.drain();
    assert!(steps.core.log.ring().tail() > tail && !steps.core.index.is_dirty());
    assert_eq!((tags(&steps, 0..4), steps.core.statistics.gap_sectors), (vec![2, 1, 2, 1], 8));
}

#[test]
fn rule_07_no_write_bypasses_the_log_over_a_gap_that_is_being_destaged() {
    for write in [false, true] {
        let mut steps = steps(9, 9);
        write_lines(&mut steps, &[0, 5], 1);
        steps.hold = Box::new(move |port, io| data_io(port, io, write));
        steps.control(Control::Drain);
        assert_eq!(steps.held.len(), 1, "the gap is read, or written");
        steps.control(Control::DrainCancel);
        let over = steps.write_as(MIDDLE + 8, 32, 2, Durability::Durable);
        assert!(steps.is_ok(over), "it goes through the log");
        assert_eq!(
            (steps.core.statistics.bypasses, steps.core.index.table().counts().dirty_sectors),
            (0, 48)
        );
        let beside = steps.write(MIDDLE + 48, 32, 3);
        assert_eq!((steps.core.statistics.bypasses, steps.status(beside).is_some()), (1, !write));
        steps.let_go();
        steps.drain();
        assert_eq!(tags(&steps, 0..7), [1, 2, 2, 2, 2, 1, 3]);
    }
}

#[test]
fn rule_07_a_gap_under_a_bypassing_write_is_not_filled() {
    let mut steps = steps(9, 9);
    steps.hold = Box::new(|port, io| data_io(port, io, true));
    let bypass = steps.write(MIDDLE + 8, 32, 2);
    assert_eq!((steps.held.len(), steps.core.statistics.bypasses), (1, 1));
    write_lines(&mut steps, &[0, 5, 7], 1);
    steps.hold = Box::new(|port, io| data_io(port, io, true) && io.extent().is_some_and(|e| e.sectors == 32));
    steps.sent.clear();
    steps.drain();
    assert_eq!(sent(&steps, Kind::Write), [(0, 1), (5, 3)]);
    assert!(steps.status(bypass).is_none());
    steps.let_go();
    assert_eq!(tags(&steps, 0..8), [1, 2, 2, 2, 2, 1, 0, 1]);
}

#[test]
fn a_gap_that_becomes_dirty_is_destaged_as_it_was_and_stays_dirty() {
    let mut steps = steps(9, 9);
    write_lines(&mut steps, &[0, 2], 1);
    steps.hold = Box::new(|port, io| data_io(port, io, true));
    steps.control(Control::Drain);
    assert_eq!(steps.held.len(), 1);
    write_lines(&mut steps, &[1], 2);
    steps.send(Io::Discard { extent: Extent::new(Lba(MIDDLE + 12), 2) });
    // The batch ends, and of the next one no write.
    steps.hold = Box::new(|port, io| data_io(port, io, true) && io.extent().is_some_and(|e| e.sectors < 24));
    steps.settle();
    assert_eq!((tags(&steps, 0..3), steps.core.index.table().counts().dirty_sectors), (vec![1, 0, 1], 6));
    assert_eq!([9, 12, 14].map(|at| steps.read(MIDDLE + at)), [Some(2), Some(ZEROES), Some(2)]);
    steps.let_go();
    steps.drain();
    let written = [9, 12, 14].map(|at| steps.on_data_disk(MIDDLE + at));
    assert_eq!((written, steps.core.index.is_dirty()), ([2, ZEROES, 2], false));
}

#[test]
fn a_gap_over_a_discard_or_zeroes_is_not_filled() {
    let mut steps = steps(9, 9);
    write_lines(&mut steps, &[0, 2, 4], 1);
    let zeroes = Extent::new(Lba(MIDDLE + 12), 1);
    steps.send(Io::WriteZeroes { extent: zeroes, unmap: false, durability: Durability::Durable });
    steps.sent.clear();
    steps.drain();
    assert_eq!(sent(&steps, Kind::Write), [(0, 1), (2, 3)]);
    assert_eq!([11, 12, 13].map(|at| steps.on_data_disk(MIDDLE + at)), [0, ZEROES, 0]);
}

#[test]
fn a_gap_that_cannot_be_read_is_left_out_and_its_neighbours_are_not() {
    let mut steps = steps(9, 9);
    write_lines(&mut steps, &[0, 2, 4, 6], 1);
    steps.data().unreadable.insert(MIDDLE + 28);
    steps.sent.clear();
    steps.drain();
    assert_eq!(sent(&steps, Kind::Write), [(0, 3), (4, 3)]);
    assert_eq!((tags(&steps, 0..7), steps.core.index.is_dirty()), (vec![1, 0, 1, 0, 1, 0, 1], false));
}

#[test]
fn a_gap_that_cannot_be_written_keeps_no_data_from_the_data_disk() {
    let mut steps = steps(9, 9);
    write_lines(&mut steps, &[0, 2, 4], 1);
    steps.data().unwritable.insert(MIDDLE + 12);
    steps.drain();
    assert_eq!((tags(&steps, 0..5), steps.core.index.is_dirty()), (vec![1, 0, 1, 0, 1], false));
    assert_eq!(steps.reports, [Report::Drained]);
}

#[test]
fn nothing_is_filled_after_the_log_has_failed_and_writes_wait_for_a_gap_that_is() {
    let mut steps = steps(9, 9);
    write_lines(&mut steps, &[0, 5], 1);
    steps.hold =
        Box::new(|port, io| port == LOG && matches!(io, Io::Write { .. }) || data_io(port, io, true));
    steps.control(Control::Drain);
    assert_eq!(steps.held.len(), 1, "the gap is written");
    steps.write(MIDDLE + 8 * 30, 8, 3);
    steps.fail(1, IoError::new(ErrorKind::Medium));
    assert_eq!(steps.reports, [Report::LogFailed]);
    steps.control(Control::LogFailureRecorded);
    let over = steps.write(MIDDLE + 8, 8, 2);
    assert_eq!((steps.held.len(), steps.status(over)), (1, None), "it waits for the gap");
    steps.let_go();
    assert!(steps.is_ok(over));
    assert_eq!(tags(&steps, 0..6), [1, 2, 0, 0, 0, 1]);
}

#[test]
fn ordered_destage_keeps_its_epochs_apart_with_gaps_filled() {
    let mut steps = Steps::new(40, LogCacheConfig { ordered_destage: true, ..filling(9, 9) });
    for (lines, tag) in [([0, 2], 1), ([1, 2], 2)] {
        for line in lines {
            steps.write(MIDDLE + 8 * line, 8, tag);
        }
        steps.flush();
    }
    steps.hold = Box::new(|port, io| port == DATA && matches!(io, Io::Flush));
    steps.control(Control::Drain);
    // The first epoch is written and not flushed. What lies in its gap is of the second.
    assert_eq!((tags(&steps, 0..3), steps.core.statistics.gap_sectors), (vec![1, 0, 1], 8));
    steps.let_go();
    steps.wait(10);
    assert_eq!((tags(&steps, 0..3), steps.core.index.is_dirty()), (vec![1, 2, 2], false));
}

#[test]
fn more_gaps_than_the_memory_holds_take_more_windows() {
    let config = LogCacheConfig { destage_memory: 16 * 4096, ..filling(9, 9) };
    let mut steps = Steps::new(40, config);
    let lines: Vec<u64> = (0..40).map(|n| 4 * n).collect();
    write_lines(&mut steps, &lines, 1);
    for line in &lines {
        // Lines of several pieces: none may be torn between two windows.
        steps.write_as(MIDDLE + 8 * line + 3, 2, 2, Durability::Durable);
    }
    steps.sent.clear();
    steps.drain();
    let written = sent(&steps, Kind::Write);
    assert!(written.iter().all(|(_, lines)| *lines <= 16), "{written:?}");
    assert_eq!(
        written.len(),
        10,
        "four blocks and three gaps are 13 lines, a fifth does not fit: {written:?}"
    );
    for line in 0..157 {
        let expected = if line % 4 == 0 { [1, 2] } else { [0, 0] };
        assert_eq!([0, 4].map(|at| steps.on_data_disk(MIDDLE + 8 * line + at)), expected, "line {line}");
    }
}

/// Events of a cache that destages, on 128 sectors.
#[derive(Clone, Debug)]
enum Act {
    Write {
        at: u64,
        sectors: u64,
        durable: bool,
    },
    Discard {
        at: u64,
        sectors: u64,
    },
    Flush,
    /// Carries out one of the operations that are held back.
    CarryOut(usize),
    Drain(bool),
    Wait,
}

const SPACE: u64 = 128;

fn extent(sectors: std::ops::Range<u64>) -> impl Strategy<Value = (u64, u64)> {
    (0..SPACE, sectors).prop_map(|(at, sectors)| (at, sectors.min(SPACE - at)))
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let write = |((at, sectors), durable)| Act::Write { at, sectors, durable };
    let act = prop_oneof![
        6 => (extent(1..9), any::<bool>()).prop_map(write),
        4 => (extent(9..33), any::<bool>()).prop_map(write),
        1 => extent(1..33).prop_map(|(at, sectors)| Act::Discard { at, sectors }),
        2 => Just(Act::Flush),
        10 => (0..8usize).prop_map(Act::CarryOut),
        3 => Just(Act::Drain(true)),
        1 => Just(Act::Drain(false)),
        1 => Just(Act::Wait),
    ];
    prop::collection::vec(act, 20..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn whatever_happens_meanwhile_the_data_disk_is_right(
        acts in acts(),
        read in 3..20u64,
        write in 3..20u64,
        segments in 6..20u32,
    ) {
        let config = LogCacheConfig { bypass_bytes: 9 * 512, ..filling(read, write) };
        let mut steps = Steps::new(segments, config);
        // The log answers at once, the data disk when a test says so, in any order.
        steps.hold = Box::new(|port, _| port == DATA);
        let mut expected = vec![0u8; SPACE as usize];
        for (number, act) in acts.iter().enumerate() {
            let tag = number as u8 + 1;
            match *act {
                Act::Write { at, sectors, durable } => {
                    let durability = if durable { Durability::Durable } else { Durability::Volatile };
                    steps.write_as(MIDDLE + at, sectors, tag, durability);
                    expected[at as usize..(at + sectors) as usize].fill(tag);
                }
                Act::Discard { at, sectors } => {
                    steps.send(Io::Discard { extent: Extent::new(Lba(MIDDLE + at), sectors) });
                    expected[at as usize..(at + sectors) as usize].fill(ZEROES);
                }
                Act::Flush => drop(steps.flush()),
                Act::CarryOut(index) if !steps.held.is_empty() => {
                    let index = index % steps.held.len();
                    steps.carry_out(index);
                    steps.settle();
                }
                Act::CarryOut(_) => {}
                Act::Drain(true) => steps.control(Control::Drain),
                Act::Drain(false) => steps.control(Control::DrainCancel),
                Act::Wait => steps.wait(1),
            }
        }
        steps.let_go();
        steps.drain();
        prop_assert!(!steps.core.index.is_dirty());
        let written: Vec<u8> = (0..SPACE).map(|at| steps.on_data_disk(MIDDLE + at)).collect();
        prop_assert_eq!(written, expected);
    }
}
