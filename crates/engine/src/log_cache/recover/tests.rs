//! Walks over logs that were made by hand.

use super::*;
use crate::log_cache::spindle::{Spin, Spindle};
use crate::log_cache::testing::{Log, Part};
use crate::{Buf, Lba, Nanos};
use Part::{Data, Range};
use zerocopy::IntoBytes;

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
            log.append(&[Data(i * 8, 8, i as u8), Range(EntryKind::Discard, 1000, 50)]);
        }
        let end = log.sector;
        let (seen, walked) = walked(&mut log);
        assert_eq!(seen, (1..=12).collect::<Vec<_>>());
        assert_eq!((walked.next_seq, walked.end), (13, end));
        assert_eq!((walked.tail_seq, walked.tail_sector), (1, 32));
    }
}

/// Visitor that writes records behind the end, once.
struct Appender {
    seen: Vec<u64>,
    records: Vec<(Lba, Buf)>,
}

impl Visitor for Appender {
    fn record(&mut self, header: &Header, _: &[usize]) {
        self.seen.push(header.seq);
    }

    fn at_end(&mut self, log: &mut dyn BlockDevice, walked: &Walked) -> bool {
        assert_eq!(walked.next_seq, self.seen.len() as u64 + 1);
        let has_records = !self.records.is_empty();
        self.records.drain(..).for_each(|(at, buf)| log.write(at, buf).unwrap());
        has_records
    }
}

/// The last request is whole only with what is written at the end: its first record is not visited before, and then once.
#[test]
fn a_walk_goes_on_with_records_that_are_written_at_its_end() {
    for block in [512, 4096] {
        let mut log = Log::new(12, block);
        for i in 0..9 {
            log.append(&[Data(i * 8, 8, i as u8)]);
        }
        log.append_with(&[Data(80, 8, 10)], true);
        let first = log.sector;
        let header = log.append(&[Data(88, 8, 11)]);
        let last = header.sector.max(first);
        let sectors = u64::from(header.sectors);
        let extent = (last * SECTOR_BYTES) as usize..((last + sectors) * SECTOR_BYTES) as usize;
        let record = Buf::copy_of(&log.device.bytes[extent.clone()]);
        log.device.bytes[extent].fill(0);
        let mut appender = Appender { seen: Vec::new(), records: vec![(Lba(last), record)] };
        let walked = walk(&mut log.device, &log.superblock, WalkOptions::default(), &mut appender).unwrap();
        assert_eq!(appender.seen, (1..=11).collect::<Vec<_>>());
        assert_eq!((walked.next_seq, walked.records, walked.records_dropped), (12, 11, 0));
    }
}

#[test]
fn records_are_found_at_free_places_before_older_ones() {
    for block in [512, 4096] {
        let mut log = Log::new(4, block);
        let first = log.append(&[Range(EntryKind::Discard, 1, 8)]);
        let second_at = log.sector + u64::from(block) / 512;
        let third_at = std::mem::replace(&mut log.sector, second_at);
        log.append(&[Range(EntryKind::Discard, 2, 8)]);
        let end = std::mem::replace(&mut log.sector, third_at);
        log.append(&[Range(EntryKind::Discard, 3, 8)]);
        let (seen, found) = walked(&mut log);
        assert_eq!((seen, found.end), (vec![1, 2, 3], end), "the end is after all of them");
        assert!(found.destaged.is_empty());
        // The first two are destaged, which the third says; a fourth is in the next segment.
        log.sector = third_at;
        (log.seq, log.oldest_live_seq) = (3, 3);
        log.append(&[Range(EntryKind::Discard, 3, 8)]);
        log.sector = log.superblock.segment_start(1);
        log.append(&[Range(EntryKind::Discard, 4, 8)]);
        let (_, found) = walked(&mut log);
        assert_eq!((found.tail_seq, found.tail_sector), (3, third_at));
        assert_eq!(found.destaged, [first.sector..third_at, second_at..end]);
    }
}

/// Logs of disks whose head was followed have such records: places were chosen for records of 23 sectors, in blocks of 8.
#[test]
fn records_that_begin_within_a_block_are_found_where_the_head_was_followed() {
    let mut log = Log::new(8, 4096);
    let spin =
        Spin { revolution: Nanos(8_333_333), lead: Nanos(190_000), tracks: [4156; 4], write_cache: false };
    log.superblock.spindle = Spindle::Spins(spin);
    for (segment, odd) in [3, 5, 1, 7].into_iter().enumerate() {
        log.sector = log.superblock.segment_start(segment as u32) + odd;
        log.append(&[Data(odd * 8, 8, odd as u8)]);
    }
    let end = log.superblock.segment_start(3) + 24;
    let (seen, found) = walked(&mut log);
    assert_eq!((seen, found.end), (vec![1, 2, 3, 4], end), "the next record begins with a block");
    // The third one is the oldest that is needed, so a superblock names its place.
    log.oldest_live_seq = 3;
    log.append(&[Data(0, 8, 9)]);
    let (_, found) = walked(&mut log);
    (log.superblock.tail_seq, log.superblock.tail_sector) = (found.tail_seq, found.tail_sector);
    log.superblock.durable_seq = found.next_seq;
    assert!(found.tail_seq == 3 && found.tail_sector % 8 != 0, "{found:?}");
    let read = LogSuperblock::decode(log.superblock.encode().as_bytes()).expect("it is a good one");
    assert_eq!(read.tail_sector, found.tail_sector);
    assert_eq!(walked(&mut log).0, [3, 4, 5]);
}

#[test]
fn rule_03_of_two_records_with_one_number_that_of_the_later_activation_counts() {
    for ends in [false, true] {
        let mut log = Log::new(4, 512);
        let leftover_at = log.sector;
        log.sector = if ends { log.superblock.segment_start(1) - 9 } else { log.sector + 9 };
        log.append(&[Data(0, 8, 1)]);
        // Record 2 goes to a free place before record 1, and is torn.
        let end = std::mem::replace(&mut log.sector, leftover_at);
        let torn = log.append(&[Data(8, 8, 1)]);
        log.corrupt(torn.sector + 1, 0, 1);
        assert_eq!(walked(&mut log).1.end, end);
        (log.seq, log.sector) = (2, end);
        log.activate();
        log.append(&[Data(16, 8, 2)]);
        log.activate();
        let mut seen = Vec::new();
        let superblock = log.superblock.clone();
        let mut visit = |header: &Header, _: &[usize]| seen.push((header.seq, header.epoch));
        walk(&mut log.device, &superblock, WalkOptions::default(), &mut visit).unwrap();
        assert_eq!(seen, [(1, 1), (2, 2)], "the segment ends after record 1: {ends}");
    }
}

#[test]
fn rule_02_the_log_wraps_and_the_stale_lap_is_not_believed() {
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
fn rule_02_a_lost_record_is_not_replaced_by_the_one_of_the_lap_before() {
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
fn rule_04_a_missing_record_below_the_durable_mark_is_damage() {
    let mut log = Log::new(4, 512);
    let headers: Vec<_> = (0..5).map(|i| log.append(&[Data(i * 8, 8, 1)])).collect();
    log.superblock.durable_seq = 4;
    log.corrupt(headers[1].sector, 100, 1);
    let found = damage(&mut log);
    assert_eq!((found.kind, found.seq), (DamageKind::Missing, 2));
    let (seen, walked) = walk_with(&mut log, WalkOptions { accept_damage: true, ..Default::default() });
    let walked = walked.unwrap();
    assert_eq!(seen, [1, 3, 4, 5]);
    assert_eq!((walked.damages, walked.damage[0].seq, walked.damage[0].until_seq), (1, 2, 3));
}

#[test]
fn rule_03_records_behind_a_hole_do_not_join_the_log_of_the_next_activation() {
    let mut log = Log::new(4, 512);
    let headers: Vec<_> = (0..4).map(|i| log.append(&[Data(i * 8, 8, 1)])).collect();
    // Record 2 was lost in the crash; 3 and 4 were not. The log ends at 2, and the next activation begins there.
    log.corrupt(headers[1].sector, 0, 0xff);
    let (seen, found) = walked(&mut log);
    assert_eq!((seen, found.next_seq, found.end), (vec![1], 2, headers[1].sector));
    (log.seq, log.sector) = (found.next_seq, found.end);
    log.activate();
    log.append(&[Data(96, 8, 2)]);
    // Another crash right now: record 3 of the first activation is next to record 2 of the second.
    let (seen, found) = walked(&mut log);
    assert_eq!((seen, found.next_seq), (vec![1, 2], 3));
    // The planted bug takes it.
    #[cfg(feature = "planted-bugs")]
    {
        let canary = WalkOptions { canary: Some(LogCanary::IgnoreEpochs).into(), ..Default::default() };
        assert_eq!(walk_with(&mut log, canary).0, [1, 2, 3, 4]);
    }
}

#[test]
fn rule_02_a_torn_newest_record_costs_only_itself() {
    for block in [512u32, 4096] {
        let mut log = Log::new(4, block);
        for i in 0..2 {
            log.append(&[Data(i * 8, 8, 1)]);
        }
        let before = log.device.clone();
        let newest = log.append(&[Data(16, 8, 2), Range(EntryKind::Zeroes, 200, 9)]);
        // The write stopped after each sector, and, as disks do not promise more, after each byte.
        let (start, end) =
            (newest.sector as usize * 512, (newest.sector as usize + newest.sectors as usize) * 512);
        for cut in (start..end).step_by(if block == 512 { 1 } else { 67 }) {
            let mut torn = Log::new(4, block);
            torn.superblock = log.superblock.clone();
            torn.device = before.clone();
            torn.device.bytes[start..cut].copy_from_slice(&log.device.bytes[start..cut]);
            let (seen, found) = walked(&mut torn);
            // Padding and zeroes are the same before and after.
            let whole = torn.device.bytes == log.device.bytes;
            let expected: &[u64] = if whole { &[1, 2, 3] } else { &[1, 2] };
            assert_eq!(seen, expected, "cut at {cut}");
            assert!(whole || (found.next_seq == 3 && found.end == newest.sector));
        }
    }
}

#[test]
fn a_torn_payload_ends_the_log_and_is_damage_where_it_was_durable() {
    let mut log = Log::new(4, 512);
    log.append(&[Data(0, 8, 1)]);
    let torn = log.append(&[Data(8, 8, 1), Data(24, 4, 1)]);
    log.corrupt(torn.sector + 9, 5, 0x10);
    let (seen, found) = walked(&mut log);
    assert_eq!((seen, found.next_seq, found.torn_sector), (vec![1], 2, Some(torn.sector)));
    // A later record that does not call it durable changes nothing; one that does makes it damage.
    log.durable_seq = 2;
    log.append(&[Data(16, 8, 1)]);
    assert_eq!(walked(&mut log).0, [1]);
    log.durable_seq = 3;
    log.append(&[Data(40, 8, 1)]);
    let found = damage(&mut log);
    assert_eq!(
        (found.kind, found.seq, &found.lost[..]),
        (DamageKind::Payload, 2, &[Extent::new(Lba(24), 4)][..])
    );
    // Accepted, the record stays in the log, and its bad entry is named.
    let superblock = log.superblock.clone();
    let mut seen = Vec::new();
    let accept = WalkOptions { accept_damage: true, ..Default::default() };
    let mut visit = |header: &Header, bad: &[usize]| seen.push((header.seq, bad.to_vec()));
    let found = walk(&mut log.device, &superblock, accept, &mut visit).unwrap();
    assert_eq!(seen, [(1, vec![]), (2, vec![1]), (3, vec![]), (4, vec![])]);
    assert_eq!(found.damages, 1);
}

#[test]
fn payloads_below_the_durable_mark_are_left_for_their_readers() {
    let mut log = Log::new(4, 512);
    let record = log.append(&[Data(0, 8, 1)]);
    log.superblock.durable_seq = 2;
    log.corrupt(record.sector + 1, 0, 1);
    assert_eq!(walked(&mut log).0, [1]);
    let verify = WalkOptions { verify_all: true, ..Default::default() };
    assert!(matches!(walk_with(&mut log, verify).1, Err(RecoverError::Damage(_))));
}

#[test]
fn an_incomplete_request_did_not_happen() {
    let mut log = Log::new(6, 512);
    log.append(&[Data(0, 8, 1)]);
    let first = log.append_with(&[Data(8, 8, 1)], true);
    log.append_with(&[Data(16, 8, 1)], true);
    log.append_with(&[Data(24, 8, 1)], true);
    // The durable mark may stand within it: nobody was told that it is done.
    log.superblock.durable_seq = 4;
    let (seen, found) = walked(&mut log);
    assert_eq!((seen, found.records_dropped), (vec![1], 3));
    assert_eq!((found.next_seq, found.end, found.tail_seq), (2, first.sector, 1));
    log.append(&[Data(32, 8, 1)]);
    assert_eq!(walked(&mut log).0, [1, 2, 3, 4, 5], "with its last record it did");
}

#[test]
fn records_that_are_destaged_do_not_hold_the_tail() {
    let mut log = Log::new(6, 512);
    let headers: Vec<_> = (0..5).map(|i| log.append(&[Data(i * 8, 8, 1)])).collect();
    log.oldest_live_seq = 4;
    log.append(&[Data(48, 8, 1)]);
    let (_, found) = walked(&mut log);
    assert_eq!((found.tail_seq, found.tail_sector), (4, headers[3].sector));
    assert_eq!((found.records, found.records_destaged), (6, 3));
    // Everything is destaged: the tail is the end of the log.
    log.oldest_live_seq = 7;
    log.append(&[]);
    let (_, found) = walked(&mut log);
    assert_eq!((found.tail_seq, found.tail_sector), (7, log.sector - 1));
}

#[test]
fn a_full_last_segment_ends_where_the_ring_begins() {
    let mut log = Log::new(4, 512);
    log.sector = log.superblock.segment_start(3);
    log.superblock.tail_sector = log.sector;
    log.append(&[Data(0, 8, 1), Data(8, 8, 1), Data(16, 8, 1), Data(24, 7, 1)]);
    assert_eq!(log.sector, log.superblock.end_sector());
    let (_, found) = walked(&mut log);
    assert_eq!((found.end, found.end_segment), (log.superblock.end_sector(), 3));
    log.oldest_live_seq = 2;
    log.append(&[]);
    assert_eq!(walked(&mut log).0, [1, 2], "the next one is in the first segment");
}

#[test]
fn the_first_record_of_an_activation_wins_over_a_leftover_further_on() {
    let mut log = Log::new(4, 512);
    log.append(&[Data(0, 8, 1)]);
    // Record 2 was written with a gap before it, and torn; its header is whole.
    let end = log.sector;
    log.sector += 5;
    let leftover = log.append(&[Data(8, 8, 1)]);
    log.corrupt(leftover.sector + 3, 0, 1);
    let (_, found) = walked(&mut log);
    assert_eq!((found.next_seq, found.end), (2, end));
    (log.seq, log.sector) = (found.next_seq, found.end);
    log.activate();
    log.append(&[]);
    log.sector = log.superblock.segment_start(1);
    log.append(&[Data(8, 8, 2)]);
    // Later everything is durable and old: payloads are not read, and only the place tells the two apart.
    log.activate();
    let superblock = log.superblock.clone();
    let mut seen = Vec::new();
    let mut visit = |header: &Header, _: &[usize]| seen.push((header.seq, header.epoch));
    walk(&mut log.device, &superblock, WalkOptions::default(), &mut visit).unwrap();
    assert_eq!(seen, [(1, 1), (2, 2), (3, 2)]);
}

#[test]
fn a_lost_newest_superblock_is_damage() {
    let mut log = Log::new(4, 512);
    log.append(&[Data(0, 8, 1)]);
    let older = log.superblock.clone();
    log.activate();
    log.append(&[Data(8, 8, 2)]);
    log.append(&[Data(16, 8, 2)]);
    log.superblock = older;
    assert_eq!(damage(&mut log).kind, DamageKind::NewerEpoch);
    let accept = WalkOptions { accept_damage: true, ..Default::default() };
    let (seen, found) = walk_with(&mut log, accept);
    assert_eq!((seen, found.unwrap().epoch_max), (vec![1, 2, 3], 2));
}

#[test]
fn an_unreadable_place_at_the_end_may_have_held_a_record() {
    let mut log = Log::new(4, 512);
    log.append(&[Data(0, 8, 1)]);
    let newest = log.append(&[Data(8, 8, 1)]);
    log.device.unreadable.insert(newest.sector);
    assert_eq!(damage(&mut log).kind, DamageKind::Unreadable);
    let accept = WalkOptions { accept_damage: true, ..Default::default() };
    assert_eq!(walk_with(&mut log, accept).0, [1]);
    // In a gap, with the next record behind it, it does not matter.
    log.device.unreadable = [newest.sector + 9].into();
    log.sector += 1;
    log.append(&[Data(16, 8, 1)]);
    assert_eq!(walked(&mut log).0, [1, 2, 3]);
}

#[test]
fn an_unreadable_payload_at_the_end_may_have_been_acknowledged() {
    let mut log = Log::new(4, 512);
    log.append(&[Data(0, 8, 1)]);
    let newest = log.append(&[Data(8, 8, 1), Data(24, 8, 1)]);
    log.device.unreadable.insert(newest.sector + 1);
    let found = damage(&mut log);
    assert_eq!((found.kind, found.lost), (DamageKind::Payload, vec![Extent::new(Lba(8), 8)]));
    let accept = WalkOptions { accept_damage: true, ..Default::default() };
    assert_eq!(walk_with(&mut log, accept).0, [1, 2]);
    // One that can be read, and is not what it should be, was torn.
    log.device.unreadable.clear();
    log.corrupt(newest.sector + 1, 0, 1);
    assert_eq!(walked(&mut log).0, [1]);
}

/// Reads of a copy are of whole blocks of the log, and end with it.
#[test]
fn a_payload_that_begins_within_a_block_is_read_from_the_other_copy() {
    let mut log = Log::new(4, 4096);
    log.device.copies = 2;
    log.device.logical_block_bytes = 4096;
    log.sector = log.superblock.segment_start(3) + 16;
    log.superblock.tail_sector = log.sector;
    log.store_superblock();
    let newest = log.append(&[Data(0, 3, 1), Data(8, 5, 1)]);
    log.device.rotten.insert(newest.sector + 8 + 3);
    assert_eq!(walked(&mut log).0, [1]);
    // Readable nowhere: the blocks behind it are tried one by one.
    log.device.unreadable.insert(newest.sector + 8);
    assert_eq!(damage(&mut log).kind, DamageKind::Payload);
}

#[test]
fn a_hole_is_not_filled_with_leftovers() {
    let mut log = Log::new(6, 512);
    log.append(&[Data(0, 8, 1)]);
    // Records 2 and 3 of the first activation stay behind in what becomes a gap; record 2 is torn.
    let end = log.sector;
    let torn = log.append(&[Data(8, 8, 1)]);
    log.corrupt(torn.sector, 0, 1);
    log.append(&[Data(16, 8, 1)]);
    (log.seq, log.sector) = (2, end);
    log.activate();
    let lost = log.append(&[]);
    log.sector = log.superblock.segment_start(1);
    log.append(&[Data(24, 8, 2)]);
    log.append(&[Data(32, 8, 2)]);
    log.activate();
    // Now record 2 of the second activation rots: its record 3 follows, not that of the first.
    log.corrupt(lost.sector, 40, 1);
    let superblock = log.superblock.clone();
    let mut seen = Vec::new();
    let accept = WalkOptions { accept_damage: true, ..Default::default() };
    let mut visit = |header: &Header, _: &[usize]| seen.push((header.seq, header.epoch));
    walk(&mut log.device, &superblock, accept, &mut visit).unwrap();
    assert_eq!(seen, [(1, 1), (3, 2), (4, 2)]);
}

#[test]
fn large_records_are_hopped_over() {
    let mut log = Log::new(4, 4096);
    log.superblock.segment_bytes = 1 << 20;
    log.superblock.log_sectors = 32 + 4 * 2048;
    log.device.bytes.resize(log.superblock.log_sectors as usize * 512, 0);
    for i in 0..10 {
        let parts: Vec<Part> = (0..63).map(|j| Data((i * 63 + j) % 500 * 8, 8, 1)).collect();
        log.append(&parts);
    }
    log.superblock.durable_seq = 11;
    log.superblock.state = crate::log_cache::format::LogState::Stopped;
    let (seen, found) = walked(&mut log);
    assert_eq!(seen.len(), 10);
    // Once to begin with and once at the end it reads what may hold a small record.
    let whole = 10 * 64 * 4096;
    assert!(found.bytes_read < whole + (3 << 20), "{} bytes", found.bytes_read);
    assert!(found.reads < 40, "{} reads", found.reads);
    // After a crash all of the log is read once, for proofs of damage.
    log.superblock.state = crate::log_cache::format::LogState::Active;
    let after_crash = walked(&mut log).1;
    assert!(after_crash.bytes_read < found.bytes_read + (5 << 20), "{} bytes", after_crash.bytes_read);
}

/// A record in the middle of a burst rots, and the only header that calls it durable lies any number of segments further on. (The search
/// used to look into the next segment and at distances that double.)
#[test]
fn rule_04_a_proof_of_durability_is_found_wherever_it_lies() {
    for far in 1..15 {
        let mut log = Log::new(16, 512);
        let lost = log.append(&[Data(0, 8, 1)]);
        for i in 0..far {
            // Three records fill a segment.
            for j in 0..3 {
                log.append(&[Data((i * 3 + j) * 8, 8, 2)]);
            }
        }
        log.durable_seq = log.seq;
        log.append(&[Data(0, 8, 3)]);
        log.corrupt(lost.sector, 40, 1);
        let found = damage(&mut log);
        assert_eq!((found.kind, found.seq, found.until_seq), (DamageKind::Missing, 1, 2));
        log.corrupt(lost.sector, 40, 1);
        log.corrupt(lost.sector + 1, 40, 1);
        assert_eq!((damage(&mut log).kind, damage(&mut log).seq), (DamageKind::Payload, 1));
        // A log that was given up after a crash had no clean stop either.
        log.superblock.state = crate::log_cache::format::LogState::GivenUp;
        assert_eq!((damage(&mut log).kind, damage(&mut log).seq), (DamageKind::Payload, 1));
    }
}

/// The newest superblock is lost, and the head has come round into the very segment where the other one has the tail, before it: the
/// walk comes to the end of its lap, and what is newest lies where it began.
#[test]
fn rule_04_a_head_in_the_segment_of_an_older_tail_is_found() {
    let mut log = Log::new(4, 512);
    let mut places = vec![0];
    places.extend((0..12).map(|i| log.append(&[Data(i * 8, 8, 1)]).sector));
    log.superblock.tail_seq = 3;
    log.superblock.tail_sector = places[3];
    log.superblock.durable_seq = 3;
    log.oldest_live_seq = 10;
    log.append(&[Data(0, 8, 2)]);
    log.durable_seq = 14;
    log.append(&[Data(8, 8, 2)]);
    let (seen, found) = walked(&mut log);
    assert_eq!(seen, (3..=12).chain(10..=14).collect::<Vec<_>>());
    assert_eq!((found.next_seq, found.tail_seq), (15, 10));
}

#[test]
fn a_tail_that_was_overwritten_is_found_again_when_the_live_superblock_rots() {
    for activations in [0, 1] {
        let mut log = Log::new(4, 512);
        for i in 0..9 {
            log.append(&[Data(i * 8, 8, 1)]);
        }
        let older = log.superblock.clone();
        // The tail moves to record 7, and the first segment is used again, perhaps by another activation.
        log.oldest_live_seq = 7;
        log.superblock.tail_seq = 7;
        log.superblock.durable_seq = 10;
        for _ in 0..activations {
            log.activate();
        }
        log.durable_seq = 10;
        for i in 0..5 {
            log.append(&[Data(i * 8, 8, 2)]);
        }
        log.superblock = older;
        log.superblock.durable_seq = 3;
        let accept = WalkOptions { accept_damage: activations > 0, ..Default::default() };
        let (seen, found) = walk_with(&mut log, accept);
        let found = found.unwrap();
        assert_eq!(seen, (7..=14).collect::<Vec<_>>(), "{activations} activations");
        assert_eq!((found.next_seq, found.end, found.tail_seq), (15, log.sector, 7));
        assert_eq!(found.damages, activations);
        if activations > 0 {
            assert_eq!(damage(&mut log).kind, DamageKind::NewerEpoch);
        }
    }
}

#[test]
fn a_lost_record_that_is_destaged_is_no_damage() {
    let mut log = Log::new(4, 512);
    let headers: Vec<_> = (0..4).map(|i| log.append(&[Data(i * 8, 8, 1)])).collect();
    (log.oldest_live_seq, log.durable_seq) = (4, 5);
    log.append(&[Data(40, 8, 1)]);
    log.corrupt(headers[2].sector, 50, 1);
    let (seen, found) = walked(&mut log);
    assert_eq!(seen, [1, 2, 4, 5]);
    assert_eq!((found.tail_seq, found.tail_sector, found.records_destaged), (4, headers[3].sector, 2));
    // So it is with a lost payload.
    log.corrupt(headers[2].sector, 50, 1);
    log.corrupt(headers[2].sector + 1, 50, 1);
    assert_eq!(walked(&mut log).0, [1, 2, 4, 5]);
    log.corrupt(headers[2].sector + 1, 50, 1);
    // The one after it is not destaged.
    log.corrupt(headers[3].sector, 50, 1);
    assert_eq!(damage(&mut log).kind, DamageKind::Missing);
}

/// Whatever is on the device, the walk ends, and visits growing sequence numbers.
#[test]
fn garbage_is_survived() {
    use rand::{Rng, SeedableRng};
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(5);
    for round in 0..600 {
        let mut log = Log::new(4, if round % 2 == 0 { 512 } else { 4096 });
        for _ in 0..random.random_range(0..20) {
            log.seq = random.random_range(0..12);
            log.epoch = random.random_range(0..4);
            log.durable_seq = if random.random() { log.seq } else { random.random() };
            log.oldest_live_seq = if random.random() { random.random_range(0..12) } else { random.random() };
            let block = log.superblock.log_block_sectors();
            log.sector = 32 + random.random_range(0..128 / block) * block;
            log.append_with(&[Data(8, 8, 1), Range(EntryKind::Discard, 3, 700)], random.random());
        }
        for _ in 0..random.random_range(0..20) {
            let at = random.random_range(32 * 512..log.device.bytes.len());
            log.device.bytes[at] = random.random();
        }
        log.superblock.epoch = random.random_range(0..4);
        log.superblock.epoch_start_seq = random.random_range(1..12);
        log.superblock.durable_seq = random.random_range(11..14);
        log.superblock.tail_seq = random.random_range(1..11);
        for accept_damage in [false, true] {
            for verify_all in [false, true] {
                let (seen, found) =
                    walk_with(&mut log, WalkOptions { accept_damage, verify_all, ..WalkOptions::default() });
                assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
                if let Ok(found) = found {
                    assert!(found.tail_seq <= found.next_seq);
                    assert!(found.records_destaged <= found.records);
                }
            }
        }
    }
}

#[test]
fn rule_05_no_flipped_bit_changes_a_record_that_is_visited() {
    let mut log = Log::new(4, 512);
    for i in 0..6 {
        log.durable_seq = i + 1;
        log.append(&[Data(i * 8, 8, 1), Range(EntryKind::Zeroes, 100 + i, 9)]);
    }
    let superblock = log.superblock.clone();
    let mut original = Vec::new();
    walk(&mut log.device, &superblock, WalkOptions::default(), &mut |h: &Header, _: &[usize]| {
        original.push(h.clone())
    })
    .unwrap();
    for bit in (32 * 4096..log.sector as usize * 4096).step_by(3) {
        log.device.bytes[bit / 8] ^= 1 << (bit % 8);
        let mut seen = Vec::new();
        let result =
            walk(&mut log.device, &superblock, WalkOptions::default(), &mut |h: &Header, _: &[usize]| {
                seen.push(h.clone())
            });
        assert!(original.starts_with(&seen), "bit {bit}");
        // The newest record says that all before it are durable: only its own loss goes unnoticed, as it may be torn.
        assert!(result.is_err() || seen.len() >= 5, "bit {bit}");
        log.device.bytes[bit / 8] ^= 1 << (bit % 8);
    }
}

/// A misdirected write: the record is whole, and lies where it does not say that it lies.
#[test]
fn a_record_at_another_place_is_not_believed() {
    let mut log = Log::new(4, 512);
    log.append(&[Data(0, 1, 1)]);
    let header = log.append(&[Data(8, 1, 1)]);
    let (from, to) = (header.sector as usize * 512, (header.sector as usize + 5) * 512);
    let record = log.device.bytes[from..from + 1024].to_vec();
    log.device.bytes[from..from + 1024].fill(0);
    log.device.bytes[to..to + 1024].copy_from_slice(&record);
    assert_eq!(walked(&mut log).0, [1]);
}
