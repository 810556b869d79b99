//! Summaries: what they repeat, what is believed of them, and what a start does without them.

use super::format::{Entries, Entry, EntryKind, Header};
use super::offline::read_superblock;
use super::recover::{RecoverError, WalkOptions, Walked, walk};
use super::summary::{Gathered, Summary};
use super::testing::Log;
use super::testing_steps::{Steps, quiet};
use super::{LogCacheConfig, LogError};
use crate::{Extent, Lba, SECTOR_BYTES};

/// A log of 40 segments with 101 blocks, each flushed, as a crash leaves it.
fn crashed() -> Steps {
    let mut steps = Steps::new(40, quiet());
    for block in 0..101 {
        steps.write(block * 16, 8, block as u8 % 250 + 1);
        steps.flush();
    }
    assert!(steps.core.log.ring().head() > 30, "two dozen summaries");
    steps
}

/// A record's number, its place and its entries.
type Record = (u64, u64, Entries);

fn walked(steps: &mut Steps, summaries: bool) -> Result<(Vec<Record>, Walked), RecoverError> {
    let superblock = read_superblock(steps.log()).expect("a superblock");
    let mut records = Vec::new();
    let options = WalkOptions { summaries, ..WalkOptions::default() };
    let mut visit = |header: &Header, _: &[usize]| {
        records.push((header.seq, header.sector, header.entries.clone()));
    };
    let walked = walk(steps.log(), &superblock, options, &mut visit)?;
    Ok((records, walked))
}

/// The first segment with a summary, and where its summary lies.
fn summary_of(steps: &mut Steps, segment: u32) -> u64 {
    let superblock = read_superblock(steps.log()).expect("a superblock");
    let sector = superblock.segment_start(segment + 1);
    let block = &steps.log().bytes[(sector * SECTOR_BYTES) as usize..][..512];
    assert!(Summary::decode(block, &superblock, segment, sector).is_some());
    sector
}

#[test]
fn a_summary_comes_back_and_every_flipped_bit_is_noticed() {
    let superblock = Log::new(8, 512).superblock;
    let (start, sector) = (superblock.segment_start(2), superblock.segment_start(3));
    let header = |seq, at| Header {
        epoch: superblock.epoch,
        seq,
        sector: start + at,
        oldest_live_seq: 3,
        durable_seq: 9,
        flush_epoch: seq / 2,
        sectors: 10,
        continues: seq == 12,
        entries: smallvec::smallvec![
            Entry { kind: EntryKind::Data, extent: Extent::new(Lba(seq * 8), 8), crc: 77 },
            Entry { kind: EntryKind::Data, extent: Extent::new(Lba(2000), 1), crc: 78 },
            Entry { kind: EntryKind::Discard, extent: Extent::new(Lba(0), 800), crc: 0 },
        ],
    };
    let headers = [header(11, 1), header(12, 11), header(13, 21)];
    let mut gathered = Gathered::default();
    gathered.note(1, 0, &header(5, 0));
    headers.iter().for_each(|header| gathered.note(2, header.sector - start, header));
    assert!(gathered.encode(1, &superblock, sector, 9, 8).is_empty(), "that segment's is gone");
    let bytes = gathered.encode(2, &superblock, sector, 9, 8);
    let summary = Summary::decode(&bytes[..512], &superblock, 2, sector).expect("a summary");
    assert_eq!(summary.headers(&bytes, &superblock).expect("headers"), headers);
    for bit in 0..summary.bytes() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let summary = Summary::decode(&bytes[..512], &superblock, 2, sector);
        assert!(summary.and_then(|summary| summary.headers(&bytes, &superblock)).is_none(), "bit {bit}");
    }
    assert!(Summary::decode(&bytes, &superblock, 2, sector + 1).is_none(), "it lies somewhere else");
    (14..60).for_each(|seq| gathered.note(2, 31 - 31 % seq, &header(seq, 0)));
    assert!(gathered.encode(2, &superblock, sector, 9, 8).is_empty(), "longer than an eighth of a segment");
}

#[test]
fn a_start_finds_by_summaries_what_it_finds_by_headers_and_reads_a_part_of_it() {
    let mut steps = crashed();
    let (by_headers, slow) = walked(&mut steps, false).unwrap();
    let (by_summaries, quick) = walked(&mut steps, true).unwrap();
    assert_eq!(by_headers, by_summaries);
    assert_eq!((slow.next_seq, slow.end, slow.tail_seq), (quick.next_seq, quick.end, quick.tail_seq));
    let (slow, quick) = (slow.bytes_read, quick.bytes_read);
    assert!(quick * 3 < slow, "{quick} bytes in place of {slow}");
}

#[test]
fn a_start_reads_segments_of_earlier_activations_by_their_summaries() {
    let mut steps = Steps::new(40, quiet());
    for block in 0..101 {
        if block == 50 {
            steps = steps.restart(quiet());
        }
        steps.write(block * 16, 8, block as u8 % 250 + 1);
        steps.flush();
    }
    let (by_headers, slow) = walked(&mut steps, false).unwrap();
    let (by_summaries, quick) = walked(&mut steps, true).unwrap();
    assert_eq!(by_headers, by_summaries);
    let (slow, quick) = (slow.bytes_read, quick.bytes_read);
    assert!(quick * 3 < slow, "{quick} bytes in place of {slow}");
}

/// A log of 400 segments, of which a few have records, as a crash leaves it.
fn barely_used() -> Steps {
    let mut steps = Steps::new(400, quiet());
    for block in 0..60 {
        steps.write(block * 16, 8, block as u8 + 1);
        steps.flush();
    }
    steps
}

#[test]
fn a_start_reads_no_more_than_the_beginning_of_segments_that_were_never_used() {
    let mut steps = barely_used();
    let (by_headers, slow) = walked(&mut steps, false).unwrap();
    let (by_summaries, quick) = walked(&mut steps, true).unwrap();
    assert_eq!(by_headers, by_summaries);
    let (slow, quick) = (slow.bytes_read, quick.bytes_read);
    assert!(quick * 4 < slow, "{quick} bytes in place of {slow}");
}

#[test]
fn rule_04_a_hole_is_proven_by_a_segment_far_behind_ones_that_look_unused() {
    let mut steps = barely_used();
    let superblock = read_superblock(steps.log()).expect("a superblock");
    let used = steps.core.log.ring().head() as u32;
    assert!(used > 16, "there are more segments than buffers, twice");
    let bytes = |segment| (superblock.segment_start(segment) * SECTOR_BYTES) as usize;
    steps.log().bytes[bytes(2)..bytes(used - 2)].fill(0);
    for segment in used - 2..=used {
        // Of the rest, the summaries are bad.
        steps.log().bytes[bytes(segment) + 40] ^= 1;
    }
    assert!(walked(&mut steps, true).is_err());
    let error = Steps::start(steps.disks, quiet()).map(|_| ()).expect_err("durable records are gone");
    assert!(matches!(error, LogError::Recover(RecoverError::Damage(_))), "{error}");
}

#[test]
fn a_segment_whose_summary_is_bad_is_read_by_its_headers() {
    let mut steps = crashed();
    let (by_headers, _) = walked(&mut steps, false).unwrap();
    for segment in [0, 3, 4, 9] {
        let sector = summary_of(&mut steps, segment);
        // The fixed part, or what follows.
        steps.log().bytes[(sector * SECTOR_BYTES) as usize + 40 * (1 + segment as usize % 3)] ^= 1;
    }
    let unreadable = summary_of(&mut steps, 12);
    steps.log().unreadable.insert(unreadable);
    assert_eq!(walked(&mut steps, true).unwrap().0, by_headers);
}

#[test]
fn rule_04_a_start_that_comes_upon_damage_does_not_judge_it_by_summaries() {
    let mut steps = crashed();
    // The newest records are in no summary.
    let (records, _) = walked(&mut steps, false).unwrap();
    let (_, sector, _) = records[records.len() - 2];
    steps.log().bytes[(sector * SECTOR_BYTES) as usize] ^= 1;
    let by_headers = walked(&mut steps, false).unwrap_err();
    let Err(LogError::Recover(error)) = Steps::start(steps.disks, quiet()).map(|_| ()) else {
        panic!("it starts on a damaged log")
    };
    assert_eq!(error.to_string(), by_headers.to_string());
}

/// A header that has rotted is in the summary, and what it says of its payload can be checked as before.
#[test]
fn a_header_that_has_rotted_takes_nothing_where_a_summary_has_it() {
    let mut steps = crashed();
    let (records, _) = walked(&mut steps, false).unwrap();
    let (_, sector, ref entries) = records[20];
    let lba = entries[0].extent.start.0;
    let before = steps.read(lba);
    steps.log().bytes[(sector * SECTOR_BYTES) as usize] ^= 1;
    assert!(walked(&mut steps, false).is_err());
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.read(lba), before);
}

#[test]
fn rule_03_behind_accepted_damage_no_older_summary_is_believed() {
    let mut steps = crashed();
    let (records, _) = walked(&mut steps, false).unwrap();
    let (_, sector, _) = records[records.len() - 2];
    steps.log().bytes[(sector * SECTOR_BYTES) as usize] ^= 1;
    let believed = read_superblock(steps.log()).unwrap().summaries_epoch;
    let mut steps = steps.restart(LogCacheConfig { accept_damage: true, ..quiet() });
    let superblock = read_superblock(steps.log()).unwrap();
    assert!(believed < superblock.epoch && superblock.summaries_epoch == superblock.epoch);
    steps.write(0, 8, 99);
    steps.drain();
    let mut steps = steps.restart(quiet());
    assert_eq!(steps.read(0), Some(99));
    assert_eq!(read_superblock(steps.log()).unwrap().summaries_epoch, superblock.epoch, "it stays there");
}
