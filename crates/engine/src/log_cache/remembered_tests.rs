//! Clean copies in segments that recovery does not see any more: read until the head comes, and never after something newer.

use super::LogCacheConfig;
use super::env::DATA;
use super::table::Line;
use super::testing_steps::{Kind, Steps, ZEROES, quiet};
use crate::layer::{Durability, Io};
use crate::{Extent, Lba};

const AT: u64 = 2176;

/// A block that was destaged, in a segment that is free.
fn remembered(config: LogCacheConfig) -> Steps {
    let mut steps = Steps::new(40, config);
    steps.write(AT, 8, 1);
    for block in 0..4 {
        steps.write(block * 8, 8, 3);
    }
    steps.drain();
    assert!(!steps.core.index.is_visible_in(Extent::new(Lba(AT), 8)), "its segment is free");
    steps.sent.clear();
    steps
}

fn reads_of_data_disk(steps: &Steps) -> usize {
    steps.sent.iter().filter(|sent| sent.0 == DATA && sent.1 == Kind::Read).count()
}

#[test]
fn a_destaged_block_is_read_from_the_log_until_its_segment_is_written_again() {
    let mut steps = remembered(quiet());
    assert_eq!((steps.read(AT), reads_of_data_disk(&steps)), (Some(1), 0));
    assert_eq!((steps.core.statistics.read_clean_bytes, steps.core.statistics.read_miss_bytes), (512, 0));
    // Once round the ring, and the block is still what it was.
    for lap in 0..40 {
        for block in 0..4 {
            steps.write(lap * 32 + block * 8, 8, 2);
        }
        steps.drain();
    }
    assert_eq!((steps.read(AT), reads_of_data_disk(&steps)), (Some(1), 1));
    assert_eq!(steps.core.statistics.read_miss_bytes, 512);
    assert_eq!((steps.read(39 * 32), reads_of_data_disk(&steps)), (Some(2), 1));
}

#[test]
fn rule_07_a_bypassing_write_drops_what_is_remembered_and_says_nothing() {
    let mut steps = remembered(quiet());
    steps.write(AT, 128, 2);
    assert_eq!((steps.core.statistics.bypasses, steps.core.statistics.invalidates), (1, 0));
    assert_eq!((steps.read(AT), reads_of_data_disk(&steps)), (Some(2), 1));
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.read(AT), Some(2));
}

#[test]
fn rule_08_discards_and_zeroes_drop_what_is_remembered() {
    let extent = Extent::new(Lba(AT), 8);
    for io in
        [Io::Discard { extent }, Io::WriteZeroes { extent, unmap: false, durability: Durability::Volatile }]
    {
        let mut steps = remembered(quiet());
        steps.send(io);
        assert_eq!(steps.read(AT), Some(ZEROES));
        steps.drain();
        assert_eq!(steps.read(AT), Some(ZEROES));
    }
}

/// The data disk has the same: a bad sector of the log is no reason for an error.
#[test]
fn a_clean_copy_that_cannot_be_read_or_is_rotten_is_read_from_the_data_disk() {
    for rotten in [false, true] {
        let mut steps = remembered(quiet());
        let piece = steps.core.index.table().lookup(Line::of(Lba(AT)))[0];
        match rotten {
            true => steps.log().bytes[(piece.place.0 * 512) as usize] ^= 1,
            false => _ = steps.log().unreadable.insert(piece.place.0),
        }
        assert_eq!((steps.read(AT), reads_of_data_disk(&steps)), (Some(1), 1));
        assert_eq!(steps.core.statistics.log_read_errors, 1);
        assert_eq!((steps.read(AT), steps.core.statistics.log_read_errors), (Some(1), 1), "it is forgotten");
    }
}

/// More pieces than the table has room for: what is remembered makes way, and nobody waits for ever.
#[test]
fn what_is_remembered_makes_way_for_new_pieces() {
    let mut steps = Steps::new(40, LogCacheConfig { high_mark: 50, low_mark: 5, ..quiet() });
    for round in 1..=4u8 {
        for line in 0..1000 {
            let id = steps.write(line * 8 + u64::from(round), 1, round);
            if steps.status(id).is_none() {
                steps.wait(2);
            }
            assert!(steps.is_ok(id), "round {round}, line {line}");
        }
        steps.drain();
    }
    for line in 0..1000 {
        for round in 1..=4u8 {
            assert_eq!(steps.read(line * 8 + u64::from(round)), Some(round));
        }
    }
}

/// Several reads of a spinning log cost more than one of the data disk.
#[test]
fn a_log_that_spins_gives_clean_copies_in_one_piece_only() {
    let mut steps = Steps::new(40, quiet());
    steps.core.log.geometry_mut().rotational = true;
    for at in [0, 8, 64, 16] {
        steps.write_as(AT + at, 8, 1, Durability::Durable);
    }
    steps.write(AT + 128, 8, 1);
    steps.write(AT + 136, 8, 1);
    steps.drain();
    steps.sent.clear();
    let mut read = |at: u64, sectors: u64| {
        steps.sent.clear();
        steps.send(Io::Read { at: Lba(AT + at), buf: crate::Buf::zeroed(sectors as usize * 512) });
        reads_of_data_disk(&steps)
    };
    assert_eq!(read(128, 16), 0, "two blocks of one record");
    assert_eq!(read(0, 24), 1, "three records");
}

/// The data disk has read ahead for them.
#[test]
fn a_log_that_spins_gives_no_clean_copies_to_reads_that_go_on() {
    // A survey would drop the copies.
    let mut steps = Steps::new(40, LogCacheConfig { follow_head: false, ..quiet() });
    steps.core.log.geometry_mut().rotational = true;
    (0..8).for_each(|block| _ = steps.write(AT + 8 * block, 8, 1));
    steps.drain();
    let mut read = |at: u64| {
        steps.sent.clear();
        assert_eq!(steps.read(AT + at), Some(1));
        reads_of_data_disk(&steps)
    };
    assert_eq!([32, 40, 48, 0, 8].map(&mut read), [0, 1, 1, 0, 1]);
    // What is dirty is in the log alone.
    steps.write(AT + 16, 8, 2);
    assert_eq!(steps.read(AT + 16), Some(2));
}

#[test]
fn without_read_clean_destaged_blocks_come_from_the_data_disk() {
    let mut steps = remembered(LogCacheConfig { read_clean: false, ..quiet() });
    assert_eq!((steps.read(AT), reads_of_data_disk(&steps)), (Some(1), 1));
}
