//! Tests which changes of a data disk are noticed, after a crash and after a clean stop.

use super::super::env::DATA;
use super::super::format::{EntryKind, LogState, LogSuperblock, encode_header};
use super::super::recover::{WalkOptions, walk};
use super::super::testing::{Log, Part, Ram, sector_of};
use super::super::testing_steps::{Steps, ZEROES, quiet};
use super::*;
use crate::layer::Control;
use crate::{Durability, Io, IoError};

/// 16 MiB.
const DATA_SECTORS: u64 = 1 << 15;

fn put(disk: &mut Ram, lba: u64, tag: u8) {
    disk.bytes[lba as usize * SECTOR..][..SECTOR].copy_from_slice(&sector_of(lba, tag));
}

/// Lines that differ although no record explains it.
fn differing(log: &mut Log, data: &mut Ram) -> Vec<u64> {
    let mut comparison = Comparison::new(&log.superblock, 0, data).unwrap();
    let visitor = &mut |header: &_, _: &[usize]| comparison.record(header);
    let walked = walk(&mut log.device, &log.superblock, WalkOptions::default(), visitor).unwrap();
    comparison.finish(&mut log.device, &walked).unwrap().differing
}

/// Sectors and what is on the disk there; then whether that can be after a crash.
type Case<'a> = (&'a str, &'a [(u64, u8)], bool);

#[test]
fn rule_11_a_line_differs_only_by_what_a_record_has_there_and_after_a_clean_stop_not_at_all() {
    let cases: [Case; 13] = [
        ("nothing", &[], true),
        ("a whole entry", &[(8, 1), (9, 1), (10, 1), (11, 1), (12, 1), (13, 1), (14, 1), (15, 1)], true),
        ("some sectors of it", &[(9, 1), (15, 1)], true),
        ("one entry over another", &[(8, 1), (9, 1), (10, 2), (11, 2), (12, 1)], true),
        ("a sector that nobody wrote", &[(12, 9)], false),
        ("the same beside right ones", &[(9, 1), (10, 2), (12, 9)], false),
        ("a line with an entry elsewhere, changed there", &[(16, 3), (17, 9)], false),
        ("only that entry", &[(16, 3), (17, 0)], true),
        ("zeroes where there may be", &[(24, ZEROES), (27, ZEROES)], true),
        ("zeroes beyond", &[(24, ZEROES), (28, ZEROES)], false),
        ("anything that was discarded, and no more", &[(32, 9), (33, 8)], true),
        ("a line that was only invalidated", &[(40, 9)], false),
        ("a line without a record", &[(DATA_SECTORS - 8, 9)], false),
    ];
    let mut before = Ram::new(DATA_SECTORS);
    (0..DATA_SECTORS).for_each(|lba| put(&mut before, lba, 0));
    let mut log = Log::new(4, 512);
    log.superblock.data_sectors = DATA_SECTORS;
    log.superblock.fingerprint = Fingerprint::read(&mut before, DATA_SECTORS, &[5; 16]).unwrap();
    log.append(&[Part::Data(8, 8, 1), Part::Data(16, 1, 3)]);
    log.append(&[Part::Data(10, 2, 2), Part::Range(EntryKind::Zeroes, 24, 4)]);
    log.append(&[Part::Range(EntryKind::Discard, 32, 2), Part::Range(EntryKind::Invalidate, 40, 8)]);
    for (name, changes, may_be) in cases {
        let mut data = before.clone();
        for &(lba, tag) in changes {
            put(&mut data, lba, tag);
            if tag == ZEROES {
                data.bytes[lba as usize * SECTOR..][..SECTOR].fill(0);
            }
        }
        log.superblock.state = LogState::Active;
        assert_eq!(differing(&mut log, &mut data).is_empty(), may_be, "{name}, after a crash");
        log.superblock.state = LogState::Stopped;
        let is_changed = data.bytes != before.bytes;
        assert_eq!(!differing(&mut log, &mut data).is_empty(), is_changed, "{name}, after a clean stop");
    }
}

/// A sector as ext4, xfs or btrfs would write it, with the CRC32C of the rest at its end: that of the whole is always the same.
fn checksummed(tag: u8) -> Vec<u8> {
    let mut bytes = vec![tag; SECTOR - 4];
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// ext4, mounted for a moment behind its cache, was served for that reason.
#[test]
fn rule_11_blocks_that_contain_their_own_checksum_are_told_apart() {
    let crc = crc32c::crc32c(&checksummed(1));
    assert!((2..9).all(|tag| crc32c::crc32c(&checksummed(tag)) == crc));
    for line in [0, 1] {
        let mut data = Ram::new(DATA_SECTORS);
        data.bytes[..SECTOR].copy_from_slice(&checksummed(1));
        let mut log = Log::new(4, 512);
        log.superblock.data_sectors = DATA_SECTORS;
        log.superblock.fingerprint = Fingerprint::read(&mut data, DATA_SECTORS, &[5; 16]).unwrap();
        let mut header = log.append(&[Part::Data(line * 8, 1, 1)]);
        // The record has one, too.
        header.entries[0].crc = crc;
        let at = header.sector as usize * SECTOR;
        let (block, payload) = log.device.bytes[at..at + 2 * SECTOR].split_at_mut(SECTOR);
        encode_header(block, log.superblock.cache_uuid, &header);
        payload.copy_from_slice(&checksummed(2));
        for (tag, may_be) in [(1, true), (2, line == 0), (3, false)] {
            data.bytes[..SECTOR].copy_from_slice(&checksummed(tag));
            let found = differing(&mut log, &mut data);
            assert_eq!(found.is_empty(), may_be, "{tag}, a record of line {line}");
        }
    }
}

/// A sector of a line that the log also has data for, changed so that its sum has the lowest byte that it had. (`wipefs` on btrfs was
/// served for that reason, once in 256 times.)
#[test]
fn rule_11_a_sector_that_looks_unchanged_is_judged_by_the_sum_of_its_line() {
    let alike = |tag: u8| {
        let lowest = |bytes: &[u8]| sum(bytes) as u8;
        let mut bytes = vec![tag; SECTOR];
        (0..).find(|n: &u32| {
            bytes[..4].copy_from_slice(&n.to_le_bytes());
            lowest(&bytes) == lowest(&[0; SECTOR])
        });
        bytes
    };
    let (written, foreign) = (alike(1), alike(9));
    // Sectors that a record has, and sectors that are on the disk.
    type Sectors<'a> = &'a [(u64, &'a [u8])];
    let zero = &[0; SECTOR][..];
    let cases: [(&str, Sectors, Sectors, bool); 5] = [
        ("a whole entry", &[(8, &written)], &[(8, &written)], true),
        ("a sector of one that is torn", &[(8, &written), (9, &foreign)], &[(8, &written)], true),
        ("beside an entry", &[(8, &written)], &[(12, &foreign)], false),
        ("in an entry", &[(8, &written), (9, zero), (10, zero)], &[(8, &foreign)], false),
        ("in a line without a record", &[(16, &written)], &[(8, &foreign)], false),
    ];
    for (name, entry, disk, may_be) in cases {
        let mut data = Ram::new(DATA_SECTORS);
        let mut log = Log::new(4, 512);
        log.superblock.data_sectors = DATA_SECTORS;
        log.superblock.fingerprint = Fingerprint::read(&mut data, DATA_SECTORS, &[5; 16]).unwrap();
        log.superblock.state = LogState::Active;
        let payload = entry.iter().map(|(_, bytes)| *bytes).collect::<Vec<_>>().concat();
        let mut header = log.append(&[Part::Data(entry[0].0, entry.len() as u64, 1)]);
        header.entries[0].crc = crc32c::crc32c(&payload);
        let at = header.sector as usize * SECTOR;
        let (block, behind) = log.device.bytes[at..].split_at_mut(SECTOR);
        encode_header(block, log.superblock.cache_uuid, &header);
        behind[..payload.len()].copy_from_slice(&payload);
        for (lba, bytes) in disk {
            data.bytes[*lba as usize * SECTOR..][..SECTOR].copy_from_slice(bytes);
        }
        assert_eq!(differing(&mut log, &mut data).is_empty(), may_be, "{name}");
    }
}

/// Earlier versions kept no checksums of sectors, and did not count what an interrupted batch had written.
#[test]
fn logs_of_earlier_versions_are_judged_as_far_as_they_tell() {
    let mut data = Ram::new(DATA_SECTORS);
    let mut log = Log::new(4, 512);
    log.superblock.data_sectors = DATA_SECTORS;
    let sum = |line| LineSum { line, sum: Some(crc32c::crc32c(&[0; LINE])), sectors: None };
    log.superblock.fingerprint =
        Fingerprint { lines: ends(DATA_SECTORS).map(sum).collect(), is_exact: false };
    log.superblock.state = LogState::Stopped;
    log.append(&[Part::Data(8, 2, 1)]);
    put(&mut data, 8, 1);
    assert_eq!(differing(&mut log, &mut data), [0; 0]);
    put(&mut data, 16, 1);
    assert_eq!(differing(&mut log, &mut data), [2]);
}

struct Counted(Ram, u64);

impl BlockDevice for Counted {
    fn geometry(&self) -> crate::Geometry {
        self.0.geometry()
    }

    fn run(&mut self, io: Io) -> crate::IoResult {
        self.1 += 1;
        self.0.run(io)
    }
}

#[test]
fn each_end_of_the_disk_is_one_request_unless_it_has_bad_blocks() {
    for sectors in [8, 3000, 5000, 8192] {
        let mut disk = Counted(Ram::new(sectors), 0);
        let read = |disk: &mut Counted| Fingerprint::read(disk, sectors, &[1; 16]).unwrap();
        let good = read(&mut disk);
        let samples = good.lines.len() as u64 - (sectors / LINE_SECTORS).min(512);
        assert!(disk.1 <= 2 + samples, "{} requests for {sectors} sectors", disk.1);
        assert!(good.lines.iter().all(|sum| sum.sum.is_some()));
        disk.0.unreadable.insert(9);
        let bad = read(&mut disk);
        let differ = bad.lines.iter().zip(&good.lines).filter(|(bad, good)| bad != good);
        let unknown: Vec<u64> = differ.map(|(bad, _)| bad.line).collect();
        assert_eq!(unknown, if sectors > 9 { vec![1] } else { vec![] });
    }
}

/// On a data disk of 4 MiB: the ends, and a few lines between them.
fn covered(steps: &Steps) -> Vec<u64> {
    steps.core.data[0].fingerprint.lines().collect()
}

fn changed_after(steps: &Steps, line: u64) -> bool {
    let mut disks = steps.disks.clone();
    disks.0[DATA.0].bytes[(line * LINE_BYTES) as usize + 100] ^= 1;
    Steps::start(disks, quiet()).is_err()
}

fn stop(steps: &mut Steps) -> LogSuperblock {
    steps.let_go();
    steps.control(Control::Stop);
    let superblock = super::super::offline::read_superblock(steps.log()).unwrap();
    assert_eq!(superblock.state, LogState::Stopped);
    superblock
}

/// Whatever was on its way when the cache was stopped: afterwards every covered line is known, and any other content is refused.
#[test]
fn rule_11_after_a_clean_stop_every_covered_line_is_known() {
    for held in 0..3 {
        let mut steps = Steps::new(9, quiet());
        let lines = covered(&steps);
        assert_eq!(lines.len(), 512 + DRAWN_MIN as usize);
        let sample = lines[257];
        for (lba, sectors) in [(0, 8), (9, 2), (24, 8), (sample * LINE_SECTORS + 3, 4)] {
            steps.write_as(lba, sectors, 1, Durability::Durable);
        }
        steps.send(Io::Discard { extent: Extent::new(Lba(40), 12) });
        let extent = Extent::new(Lba(61), 2);
        steps.send(Io::WriteZeroes { extent, unmap: false, durability: Durability::Volatile });
        steps.flush();
        // Ranges, writes and the flush of the batch, one of which is still on its way.
        let mut left = held;
        steps.hold = Box::new(move |port, io| port == DATA && !matches!(io, Io::Read { .. }));
        steps.control(Control::Drain);
        while left > 0 && !steps.held.is_empty() {
            left -= 1;
            (0..steps.held.len()).for_each(|_| steps.carry_out(0));
        }
        let superblock = stop(&mut steps);
        let unknown = superblock.fingerprint.lines.iter().filter(|sum| sum.sum.is_none()).count();
        assert_eq!(unknown, 0, "{held}");
        Steps::start(steps.disks.clone(), quiet()).expect("it is as it was left");
        for line in [0, 1, 2, 3, 5, 7, sample, 1023] {
            assert!(changed_after(&steps, line), "line {line}, {held}");
        }
    }
}

/// A batch that failed may have left either content, of which the log forgets one when it is written over: no start may be
/// refused for it.
#[test]
fn rule_11_what_a_failed_write_may_have_left_is_not_held_against_the_disk() {
    for (failing, is_done) in [
        (EntryKind::Data, true),
        (EntryKind::Data, false),
        (EntryKind::Zeroes, false),
        (EntryKind::Invalidate, true),
    ] {
        let mut steps = Steps::new(5, quiet());
        let extent = Extent::new(Lba(8), 8);
        match failing {
            EntryKind::Zeroes => {
                steps.send(Io::WriteZeroes { extent, unmap: false, durability: Durability::Durable })
            }
            _ => steps.write_as(8, 8, 1, Durability::Durable),
        };
        steps.hold = Box::new(move |port, io| match (failing, io) {
            (EntryKind::Invalidate, Io::Flush) => port == DATA,
            (EntryKind::Data, Io::Write { .. }) | (EntryKind::Zeroes, Io::WriteZeroes { .. }) => port == DATA,
            _ => false,
        });
        steps.control(Control::Drain);
        if is_done {
            // It reached the medium all the same.
            (8..16).for_each(|lba| put(steps.data(), lba, 1));
        }
        steps.fail(0, IoError::new(ErrorKind::Medium));
        steps.control(Control::DrainCancel);
        // The log goes round, and forgets what it had there.
        for round in 0..40 {
            steps.write_as(8, 8, 2 + round, Durability::Durable);
        }
        let started = Steps::start(steps.disks.clone(), quiet()).map(|_| ());
        assert!(started.is_ok(), "{failing:?}, {is_done}: {started:?}");
    }
}

/// The middle of the disk is covered, too: what is written there goes into the log, whatever its size.
#[test]
fn rule_11_no_write_bypasses_the_log_over_a_covered_line() {
    let mut steps = Steps::new(17, quiet());
    let sample = covered(&steps)[257] * LINE_SECTORS;
    for (start, bypasses) in [(sample - 120, false), (sample + 8, true)] {
        steps.sent.clear();
        let id = steps.write(start, 128, 1);
        assert!(steps.is_ok(id));
        let bypass = steps.sent.iter().any(|(port, ..)| *port == DATA);
        assert_eq!(bypass, bypasses, "{start}");
    }
    steps.flush();
    assert!(Steps::start(steps.disks.clone(), quiet()).is_ok());
    assert!(changed_after(&steps, sample / LINE_SECTORS));
}

/// The chance that one contiguous change of this many bytes, anywhere on the disk, touches a covered line. `lines` ascend.
fn chance(lines: &[u64], data_sectors: u64, bytes: u64) -> f64 {
    let total = data_sectors / LINE_SECTORS;
    let length = bytes.div_ceil(LINE_BYTES).clamp(1, total.max(1));
    let starts = total - length + 1;
    // A change of `length` lines touches a covered line if it starts in the `length` lines up to it.
    let (mut hit, mut next) = (0, 0);
    for &line in lines {
        let (from, to) = ((line + 1).saturating_sub(length).max(next), (line + 1).min(starts));
        if from < to {
            hit += to - from;
            next = to;
        }
    }
    hit as f64 / starts as f64
}

/// Checks the statement of docs/safety.md about arbitrary changes; a count of all places where they may lie gives the same.
#[test]
fn the_chance_that_a_change_is_noticed_is_as_documented() {
    for (gib, expected) in [(1, [1.66, 98.0]), (16, [0.232, 22.5]), (1024, [0.0036, 0.344])] {
        let sectors = gib << 21;
        let lines = choose(sectors, &[9; 16], &[]);
        for (mib, expected) in [1_u64, 100].into_iter().zip(expected) {
            let chance = 100.0 * chance(&lines, sectors, mib << 20);
            println!("a disk of {gib} GiB, a change of {mib} MiB: {chance:.4} %");
            assert!((chance - expected).abs() <= expected * 0.12, "{gib} GiB, {mib} MiB: {chance}");
        }
    }
    let (sectors, length) = (40_000 * LINE_SECTORS, 77);
    let lines = choose(sectors, &[3; 16], &[30_000, 12_345]);
    assert!(lines.is_sorted() && lines.contains(&12_345) && lines.len() == 512 + 2 + 4);
    let starts = 0..40_000 - length + 1;
    let hits =
        starts.clone().filter(|start| lines.iter().any(|line| (*start..start + length).contains(line)));
    let counted = hits.count() as f64 / starts.count() as f64;
    assert!((chance(&lines, sectors, length * LINE_BYTES) - counted).abs() < 1e-9);
}

/// Disks of any size have their lines, each once.
#[test]
fn small_disks_are_covered_as_far_as_they_reach() {
    for lines in [1, 255, 256, 300, 511, 512, 513, 515, 520, 5000] {
        let chosen = choose(lines * LINE_SECTORS + 3, &[1; 16], &[0, 600, 1 << 40]);
        assert!(
            chosen.windows(2).all(|pair| pair[0] < pair[1]) && chosen.last() == Some(&(lines - 1)),
            "{lines}"
        );
        assert!(chosen.len() as u64 >= lines.min(513), "{lines}");
    }
}
