//! Walks over logs that were made by hand.

use super::*;
use crate::log_cache::testing::{Log, Part};
use Part::{Data, Range};

fn walk_with(log: &mut Log, options: WalkOptions) -> (Vec<u64>, Result<Walked, RecoverError>) {
    let mut seen = Vec::new();
    let superblock = log.superblock.clone();
    let walked = walk(&mut log.device, &superblock, options, &mut |header: &Header, _: &[usize]| {
        seen.push(header.seq)
    });
    (seen, walked)
}

fn walked(log: &mut Log) -> (Vec<u64>, Walked) {
    let (seen, walked) = walk_with(log, WalkOptions::default());
    (seen, walked.unwrap())
}

fn damage(log: &mut Log) -> Damage {
    match walk_with(log, WalkOptions::default()).1 {
        Err(RecoverError::Damage(damage)) => *damage,
        other => panic!("damage is found, not {other:?}"),
    }
}

#[test]
fn an_empty_log_ends_where_it_begins() {
    for block in [512, 4096] {
        let mut log = Log::new(4, block);
        let (seen, walked) = walked(&mut log);
        assert!(seen.is_empty());
        assert_eq!((walked.next_seq, walked.end, walked.tail_sector), (1, 32, 32));
    }
}

#[test]
fn records_are_visited_in_order_over_gaps_and_segments() {
    for block in [512, 4096] {
        let mut log = Log::new(12, block);
        for i in 0..12 {
            if i % 3 == 1 {
                log.sector += 8;
            }
            log.append(&[Data(i * 8, 8, i as u8), Range(Kind::Discard, 1000, 50)]);
        }
        let end = log.sector;
        let (seen, walked) = walked(&mut log);
        assert_eq!(seen, (1..=12).collect::<Vec<_>>());
        assert_eq!((walked.next_seq, walked.end), (13, end));
        assert_eq!((walked.tail_seq, walked.tail_sector), (1, 32));
    }
}

#[test]
fn the_log_wraps_and_the_stale_lap_is_not_believed() {
    let mut log = Log::new(4, 512);
    let mut places = vec![0];
    for i in 0..30u64 {
        // Three records of 9 sectors in a segment of 32; three segments are live.
        places.push(log.append(&[Data(i % 16 * 8, 8, i as u8)]).sector);
        if i >= 9 {
            log.superblock.tail_seq = i - 5;
            log.superblock.tail_sector = places[(i - 5) as usize];
        }
        log.superblock.durable_seq = log.superblock.tail_seq;
        log.oldest_live_seq = log.superblock.tail_seq;
        let (seen, walked) = walked(&mut log);
        assert_eq!(seen, (log.superblock.tail_seq..=i + 1).collect::<Vec<_>>());
        assert_eq!(walked.end, log.sector);
    }
}

#[test]
fn a_lost_record_is_not_replaced_by_the_one_of_the_lap_before() {
    let mut log = Log::new(4, 512);
    for i in 0..12 {
        log.append(&[Data(i * 8, 8, 1)]);
    }
    // The second lap begins: record 13 lies where record 1 was. Its write was lost, that of 14 was not.
    let old = log.device.clone();
    let lost = log.append(&[Data(0, 8, 2)]);
    log.append(&[Data(8, 8, 2)]);
    let range = lost.sector as usize * 512..(lost.sector + 9) as usize * 512;
    log.device.bytes[range.clone()].copy_from_slice(&old.bytes[range]);
    log.superblock.tail_seq = 10;
    log.superblock.durable_seq = 10;
    log.superblock.tail_sector = log.superblock.segment_start(3);
    let (seen, walked) = walked(&mut log);
    assert_eq!(seen, [10, 11, 12]);
    assert_eq!(walked.next_seq, 13);
}

#[test]
fn a_missing_record_below_the_durable_mark_is_damage() {
    let mut log = Log::new(4, 512);
    let headers: Vec<_> = (0..5).map(|i| log.append(&[Data(i * 8, 8, 1)])).collect();
    log.superblock.durable_seq = 4;
    log.spoil(headers[1].sector, 100, 1);
    let found = damage(&mut log);
    assert_eq!((found.kind, found.seq), (DamageKind::Missing, 2));
    let (seen, walked) = walk_with(&mut log, WalkOptions { accept_damage: true, ..Default::default() });
    let walked = walked.unwrap();
    assert_eq!(seen, [1, 3, 4, 5]);
    assert_eq!((walked.damages, walked.damage[0].seq, walked.damage[0].until_seq), (1, 2, 3));
}

#[test]
fn records_behind_a_hole_do_not_join_the_log_of_the_next_activation() {
    let mut log = Log::new(4, 512);
    let headers: Vec<_> = (0..4).map(|i| log.append(&[Data(i * 8, 8, 1)])).collect();
    // Record 2 was lost in the crash; 3 and 4 were not. The log ends at 2, and the next activation begins there.
    log.spoil(headers[1].sector, 0, 0xff);
    let (seen, found) = walked(&mut log);
    assert_eq!((seen, found.next_seq, found.end), (vec![1], 2, headers[1].sector));
    (log.seq, log.sector) = (found.next_seq, found.end);
    log.activate();
    log.append(&[Data(96, 8, 2)]);
    // Another crash right now: record 3 of the first activation is next to record 2 of the second.
    let (seen, found) = walked(&mut log);
    assert_eq!((seen, found.next_seq), (vec![1, 2], 3));
    // The planted bug takes it.
    let canary = WalkOptions { canary: Some(Canary::IgnoreEpochs), ..Default::default() };
    assert_eq!(walk_with(&mut log, canary).0, [1, 2, 3, 4]);
}
