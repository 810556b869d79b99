//! The tools on logs that were made by hand, and on devices that fail.

use super::*;
use crate::destage::contiguity::{Contiguity, Strides};
use crate::log_cache::fingerprint::Fingerprint;
use crate::log_cache::format::{
    EntryKind, FIRST_SEGMENT_SECTOR, FORMAT_VERSION, LogState, LogSuperblock, SEGMENTS_MAX,
    SUPERBLOCK_SECTORS,
};
use crate::log_cache::recover::DamageKind;
use crate::log_cache::testing::{Log, Part, Ram, sector_of};
use crate::log_cache::testing_steps as steps_of;
use crate::{BlockDevice, Buf, Extent, Lba, SECTOR_BYTES};
use Part::{Clean, Data, Range};

const DATA_SECTORS: u64 = 1 << 12;

fn quiet(_: ToolProgress) {}

fn options() -> FormatOptions {
    FormatOptions { segment_bytes: Some(16 << 10), ..FormatOptions::new([7; 16], [8; 16]) }
}

fn devices() -> (Ram, Ram) {
    (Ram::new(FIRST_SEGMENT_SECTOR + 4 * 32 + 5), Ram::new(DATA_SECTORS))
}

/// A log with overwrites, ranges, an invalidation and an unfinished request, and what the data disk must look like when it
/// is destaged: `None` where the log has no word.
fn busy_log() -> (Log, Vec<Option<Vec<u8>>>) {
    let mut log = Log::new(6, 512);
    let mut expected: Vec<Option<Vec<u8>>> = vec![None; DATA_SECTORS as usize];
    let steps: Vec<Vec<Part>> = vec![
        vec![Data(0, 8, 1), Data(11, 3, 1)],
        vec![Data(4, 4, 2), Range(EntryKind::Zeroes, 2, 3)],
        vec![Data(800, 8, 3), Data(808, 8, 3), Data(816, 5, 3)],
        vec![Range(EntryKind::Discard, 804, 20), Data(806, 2, 4)],
        vec![Data(4000, 8, 5)],
        vec![Range(EntryKind::Invalidate, 4002, 4), Range(EntryKind::ZeroesUnmap, 2000, 1500)],
    ];
    for parts in steps {
        for part in &parts {
            let (lba, sectors) = match part {
                Data(lba, sectors, _) | Clean(lba, sectors, _) | Range(_, lba, sectors) => (*lba, *sectors),
            };
            for lba in lba..lba + sectors {
                expected[lba as usize] = match part {
                    Data(_, _, tag) => Some(sector_of(lba, *tag)),
                    Clean(..) | Range(EntryKind::Invalidate, ..) => None,
                    Range(..) => Some(vec![0; 512]),
                };
            }
        }
        log.append(&parts);
    }
    log.append_with(&[Data(0, 8, 9)], true);
    (log, expected)
}

fn old_disk() -> Ram {
    let mut data = Ram::new(DATA_SECTORS);
    data.bytes.fill(0xdd);
    data
}

fn assert_data(data: &Ram, expected: &[Option<Vec<u8>>], except: &[Extent]) {
    for (lba, expected) in expected.iter().enumerate() {
        let kept = except.iter().any(|extent| extent.contains(Lba(lba as u64)));
        let expected = expected.as_ref().filter(|_| !kept).cloned().unwrap_or(vec![0xdd; 512]);
        assert_eq!(data.bytes[lba * 512..(lba + 1) * 512], expected, "LBA {lba}");
    }
}

#[test]
fn a_formatted_log_is_empty_and_clean() {
    let (mut log, mut data) = devices();
    data.bytes.fill(3);
    let superblock = format(&mut log, &mut data, &options()).unwrap();
    assert_eq!(read_superblock(&mut log).unwrap(), superblock);
    assert!(read_copies(&mut log).unwrap().iter().all(Result::is_ok), "both copies are good");
    assert_eq!((superblock.segments, superblock.log_block_bytes), (4, 4096));
    let report = check(&mut log, Some(&mut data), &mut quiet).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    assert_eq!(report.fingerprint.unwrap().compared, 512);
    data.bytes[5000] = 4;
    let report = check(&mut log, Some(&mut data), &mut quiet).unwrap();
    assert_eq!(report.fingerprint.unwrap().differing_lbas, [8]);
}

#[test]
fn what_cannot_be_formatted_is_refused() {
    let (mut log, mut data) = devices();
    let with = |change: fn(&mut FormatOptions)| {
        let mut options = options();
        change(&mut options);
        options
    };
    let small = format(&mut Ram::new(100), &mut data, &options());
    assert!(matches!(small, Err(LogError::TooSmall { .. })));
    // Small segments: what one event looks at must not grow with the log.
    let sectors = FIRST_SEGMENT_SECTOR + u64::from(SEGMENTS_MAX) * 32;
    for (sectors, fits) in [(sectors, true), (sectors + 32, false)] {
        let formatted = format(&mut Ram::new(sectors), &mut Ram::new(4096), &options());
        assert_eq!(matches!(formatted, Err(LogError::TooManySegments { .. })), !fits);
        assert_eq!(formatted.is_ok(), fits);
    }
    for bad in [with(|o| o.segment_bytes = Some(3 << 14)), with(|o| o.log_block_bytes = Some(1024))] {
        assert!(matches!(format(&mut log, &mut data, &bad), Err(LogError::Options(_))));
    }
    assert_eq!(log.operations, 0, "nothing was written");
}

#[test]
fn a_log_in_use_is_not_formatted_without_force() {
    let (mut log, _) = busy_log();
    let mut data = old_disk();
    let refused = format(&mut log.device, &mut data, &options()).unwrap_err();
    assert!(refused.to_string().contains("not on its data disk yet"), "{refused}");
    let force = FormatOptions { force: true, ..options() };
    format(&mut log.device, &mut data, &force).unwrap();
    assert_eq!(check(&mut log.device, None, &mut quiet).unwrap().records, 0);

    let (mut damaged, _) = busy_log();
    damaged.corrupt(SUPERBLOCK_SECTORS[1].0, 200, 1);
    assert!(matches!(format(&mut damaged.device, &mut data, &options()), Err(LogError::Occupied { .. })));
}

#[test]
fn formatting_may_be_cut_anywhere() {
    for operations in 0..20 {
        let (mut log, _) = busy_log();
        let uuid = log.superblock.cache_uuid;
        log.device.operations_left = operations;
        let done =
            format(&mut log.device, &mut old_disk(), &FormatOptions { force: true, ..options() }).is_ok();
        log.device.operations_left = u64::MAX;
        match read_superblock(&mut log.device) {
            Ok(superblock) if superblock.cache_uuid == uuid => {
                assert!(!done);
                assert_eq!(superblock, log.superblock, "the old cache is whole");
            }
            Ok(superblock) => assert_eq!((superblock.cache_uuid, superblock.tail_seq), ([7; 16], 1)),
            Err(error) => assert!(matches!(error, LogError::NotFormatted), "{error}"),
        }
    }
}

#[test]
fn the_live_copy_is_the_newer_valid_one() {
    let (mut log, mut data) = devices();
    let mut superblock = format(&mut log, &mut data, &options()).unwrap();
    let older = superblock.clone();
    superblock.epoch = 1;
    write_superblock(&mut log, &mut superblock).unwrap();
    assert_eq!(superblock.generation, older.generation + 1);
    let copy_of = |superblock: &LogSuperblock| {
        SUPERBLOCK_SECTORS[(superblock.generation % 2) as usize].bytes() as usize
    };
    // Each copy good, torn or erased, in every combination.
    for newer_state in 0..3 {
        for older_state in 0..3 {
            let mut device = log.clone();
            for (state, superblock) in [(newer_state, &superblock), (older_state, &older)] {
                let at = copy_of(superblock);
                match state {
                    0 => {}
                    1 => device.bytes[at + 300] ^= 1,
                    _ => device.bytes[at..at + 4096].fill(0),
                }
            }
            let found = read_superblock(&mut device);
            match (newer_state, older_state) {
                (0, _) => assert_eq!(found.unwrap(), superblock),
                (_, 0) => assert_eq!(found.unwrap(), older),
                (2, 2) => assert!(matches!(found, Err(LogError::NotFormatted))),
                _ => assert!(matches!(found, Err(LogError::NoSuperblock(..)))),
            }
        }
    }
}

fn calibration() -> Contiguity {
    Contiguity { read: Strides { max: 7, except: vec![(3, 4)] }, write: Strides::up_to(12) }
}

#[test]
fn a_calibration_is_stored_and_nothing_else_changes() {
    for state in [LogState::Active, LogState::Stopped] {
        let (mut log, expected) = busy_log();
        log.superblock.state = state;
        if state == LogState::Stopped {
            log.superblock.durable_seq = log.seq;
        }
        log.store_superblock();
        let before = log.superblock.clone();
        let stored = store_calibration(&mut log.device, &calibration()).unwrap();
        let generation = before.generation + 1;
        assert_eq!(stored, LogSuperblock { calibration: Some(calibration()), generation, ..before });
        assert_eq!(read_superblock(&mut log.device).unwrap(), stored);
        assert_eq!(check(&mut log.device, None, &mut quiet).unwrap().calibration, Some(calibration()));
        let mut data = old_disk();
        rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap();
        assert_data(&data, &expected, &[]);
        let rescued = read_superblock(&mut log.device).unwrap();
        assert_eq!(rescued.calibration, Some(calibration()), "a rescue keeps it");
    }
}

#[test]
fn storing_a_calibration_may_be_cut_anywhere() {
    for operations in 0..4 {
        let (mut log, expected) = busy_log();
        log.device.operations_left = operations;
        let done = store_calibration(&mut log.device, &calibration()).is_ok();
        assert_eq!(done, operations == 3, "a flush, a write, a flush");
        log.device.operations_left = u64::MAX;
        let found = read_superblock(&mut log.device).unwrap();
        assert!(!done || found.calibration.is_some());
        assert_eq!(LogSuperblock { calibration: None, generation: 1, ..found }, log.superblock);
        let mut data = old_disk();
        rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap();
        assert_data(&data, &expected, &[]);
    }
}

#[test]
fn a_calibration_that_cannot_be_stored_is_refused() {
    let (mut log, _) = busy_log();
    let except = (0..65).map(|n| (10 * n, 10 * n)).collect();
    let long = Contiguity { write: Strides { max: 900, except }, ..calibration() };
    let refused = store_calibration(&mut log.device, &long).unwrap_err();
    assert!(refused.to_string().contains("more than 64 ranges"), "{refused}");
    let refused = store_calibration(&mut Ram::new(1000), &calibration()).unwrap_err();
    assert!(matches!(refused, LogError::NotFormatted));
    log.superblock.state = LogState::Detached;
    log.store_superblock();
    let before = log.device.operations;
    let refused = store_calibration(&mut log.device, &calibration()).unwrap_err();
    assert!(matches!(refused, LogError::Detached), "{refused}");
    assert_eq!(log.device.operations, before, "nothing was written");
    log.superblock.state = LogState::GivenUp;
    log.store_superblock();
    let refused = store_calibration(&mut log.device, &calibration()).unwrap_err();
    assert!(matches!(refused, LogError::GivenUp), "{refused}");
}

#[test]
fn rule_05_a_torn_superblock_leaves_the_one_before() {
    let (mut log, mut data) = devices();
    let before = format(&mut log, &mut data, &options()).unwrap();
    let mut after = before.clone();
    after.epoch = 1;
    let mut written = log.clone();
    write_superblock(&mut written, &mut after).unwrap();
    // Every subset of the eight sectors made it.
    for kept in 0..=255u32 {
        let mut torn = log.clone();
        for sector in (0..8).filter(|sector| kept & (1 << sector) != 0) {
            let at = SUPERBLOCK_SECTORS[(after.generation % 2) as usize].bytes() as usize + sector * 512;
            torn.bytes[at..at + 512].copy_from_slice(&written.bytes[at..at + 512]);
        }
        let found = read_superblock(&mut torn).unwrap();
        assert!(found == before || found == after, "sectors {kept:b}");
    }
}

#[test]
fn rule_05_a_failed_superblock_write_never_touches_the_live_copy() {
    let (mut log, mut data) = devices();
    let mut superblock = format(&mut log, &mut data, &options()).unwrap();
    let before = superblock.clone();
    log.unwritable.insert(SUPERBLOCK_SECTORS[((superblock.generation + 1) % 2) as usize].0);
    for _ in 0..3 {
        assert!(write_superblock(&mut log, &mut superblock).is_err());
    }
    assert_eq!(superblock, before);
    assert_eq!(read_superblock(&mut log).unwrap(), before);
}

#[test]
fn another_version_or_two_caches_are_refused_untouched() {
    let (mut log, mut data) = devices();
    let superblock = format(&mut log, &mut data, &options()).unwrap();
    let at = SUPERBLOCK_SECTORS[((superblock.generation + 1) % 2) as usize];
    let sign = |bytes: &mut [u8]| {
        bytes[12..16].fill(0);
        let crc = crc32c::crc32c(bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    };
    let mut newer = log.read(at, 4096).unwrap().bytes().to_vec();
    newer[8] = FORMAT_VERSION as u8 + 1;
    sign(&mut newer);
    let mut device = log.clone();
    device.write(at, Buf::copy_of(&newer)).unwrap();
    device.operations = 0;
    assert!(read_superblock(&mut device).unwrap_err().to_string().contains("format version 6"));
    assert!(matches!(format(&mut device, &mut data, &options()), Err(LogError::Version(_))));
    assert_eq!(device.operations, 0, "nothing was written");

    let mut other = log.read(at, 4096).unwrap().bytes().to_vec();
    other[24] ^= 1;
    sign(&mut other);
    log.write(at, Buf::copy_of(&other)).unwrap();
    assert!(matches!(read_superblock(&mut log), Err(LogError::TwoCaches(..))));
}

#[test]
fn smaller_devices_are_refused() {
    let (log, _) = busy_log();
    let geometry = |sectors| crate::Geometry::plain(sectors);
    let (log_sectors, data_sectors) = (log.superblock.log_sectors, log.superblock.data_sectors);
    let sizes = |log_sectors, data_sectors| {
        check_sizes(&log.superblock, geometry(log_sectors), Some(geometry(data_sectors)))
    };
    assert!(sizes(log_sectors + 9, data_sectors + 9).is_ok(), "larger ones are not");
    assert!(matches!(
        sizes(log_sectors - 1, data_sectors),
        Err(LogError::Smaller { which: "log device", .. })
    ));
    assert!(matches!(
        sizes(log_sectors, data_sectors - 1),
        Err(LogError::Smaller { which: "data disk", .. })
    ));
}

#[test]
fn a_rescue_writes_everything_back_and_may_be_repeated() {
    let (mut log, expected) = busy_log();
    let mut data = old_disk();
    let listed =
        rescue(&mut log.device, &mut data, RescueOptions { list: true, ..Default::default() }, &mut quiet)
            .unwrap();
    assert!(listed.dirty.data_bytes > 0 && !listed.marked_clean);
    assert!(data.bytes.iter().all(|&byte| byte == 0xdd), "listing writes nothing");
    let report = rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap();
    assert!(report.is_complete(), "{report:?}");
    assert_eq!(report.written_bytes, report.dirty.data_bytes);
    assert_eq!(report.zeroed_bytes, report.dirty.zeroes_bytes);
    assert_data(&data, &expected, &[]);
    let checked = check(&mut log.device, Some(&mut data), &mut quiet).unwrap();
    assert_eq!(checked.problems, Vec::<String>::new());
    assert_eq!((checked.state, checked.dirty), ("stopped", Totals::default()));
    // The disk is used plainly from now on: a second rescue leaves it alone.
    data.bytes[0] = 1;
    let again =
        rescue(&mut log.device, &mut data, RescueOptions { force: true, ..Default::default() }, &mut quiet)
            .unwrap();
    assert_eq!(again.written_bytes, 0);
    assert_eq!(data.bytes[0], 1);
}

#[test]
fn a_rescue_respects_the_blocks_of_the_data_disk() {
    for fast_zeroes in [false, true] {
        let (mut log, expected) = busy_log();
        let mut data = old_disk();
        data.logical_block_bytes = 4096;
        data.fast_zeroes = fast_zeroes;
        let report = rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap();
        assert!(report.is_complete(), "{report:?}");
        assert_eq!(report.zeroed_bytes, report.dirty.zeroes_bytes);
        assert_data(&data, &expected, &[]);
    }
}

#[test]
fn rule_12_a_rescue_may_be_cut_at_every_operation_and_run_again() {
    for on_log in [false, true] {
        for operations in 0..40 {
            let (mut log, expected) = busy_log();
            let mut data = old_disk();
            log.device.operations_left = if on_log { operations } else { u64::MAX };
            data.operations_left = if on_log { u64::MAX } else { operations };
            let cut = rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet);
            (log.device.operations_left, data.operations_left) = (u64::MAX, u64::MAX);
            let report = rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap();
            assert!(report.is_complete(), "{operations}: {report:?}");
            assert_data(&data, &expected, &[]);
            if cut.is_ok() {
                break;
            }
            assert!(operations < 39, "every operation was cut");
        }
    }
}

#[test]
fn a_rescue_lists_exactly_what_the_log_cannot_read() {
    let (mut log, expected) = busy_log();
    let mut data = old_disk();
    // The first sector of the payload of record 3: LBA 800..808, of which 800..804 are newest there.
    let place = find(&mut log, 3) + 1;
    log.device.unreadable.insert(place);
    log.superblock.durable_seq = log.seq - 1;
    log.superblock.generation += 1;
    log.store_superblock();
    let report = rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap();
    assert_eq!(
        report.unsaved.iter().map(|unsaved| unsaved.extent).collect::<Vec<_>>(),
        [Extent::new(Lba(800), 4)]
    );
    assert!(!report.marked_clean && !report.refused);
    assert_data(&data, &expected, &[Extent::new(Lba(800), 4)]);
    let forced = RescueOptions { force: true, ..Default::default() };
    assert!(rescue(&mut log.device, &mut data, forced, &mut quiet).unwrap().marked_clean);
    assert_data(&data, &expected, &[Extent::new(Lba(800), 4)]);
    assert!(check(&mut log.device, Some(&mut data), &mut quiet).unwrap().is_ok());
}

/// The sector of a record.
fn find(log: &mut Log, wanted: u64) -> u64 {
    let mut found = None;
    dump(&mut log.device, &DumpFilter::default(), &mut |row| {
        if let Row::Record { seq, sector, .. } = row
            && *seq == wanted
        {
            found = Some(*sector);
        }
    })
    .unwrap();
    found.unwrap()
}

#[test]
fn a_rescue_writes_nothing_where_it_is_not_known_what_is_lost() {
    let (mut log, _) = busy_log();
    let mut data = old_disk();
    let at = find(&mut log, 3);
    log.superblock.durable_seq = log.seq - 1;
    log.superblock.generation += 1;
    log.store_superblock();
    log.corrupt(at, 20, 1);
    let report = rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap();
    assert!(report.refused && !report.marked_clean);
    assert_eq!(report.damage[0].kind, DamageKind::Missing);
    assert!(data.bytes.iter().all(|&byte| byte == 0xdd));
    let forced = RescueOptions { force: true, ..Default::default() };
    let report = rescue(&mut log.device, &mut data, forced, &mut quiet).unwrap();
    assert!(report.marked_clean && !report.is_complete());
    assert_eq!(data.bytes[800 * 512], 0xdd, "what was in the lost record keeps its old content");
    assert_eq!(data.bytes[806 * 512..807 * 512], sector_of(806, 4));
}

#[test]
fn a_data_disk_that_fails_keeps_the_log_dirty() {
    let (mut log, expected) = busy_log();
    let mut data = old_disk();
    data.unwritable.insert(802);
    let report = rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap();
    assert_eq!(
        report.unsaved.iter().map(|unsaved| unsaved.extent).collect::<Vec<_>>(),
        [Extent::new(Lba(800), 4)]
    );
    assert!(!report.marked_clean);
    data.unwritable.clear();
    assert!(rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap().is_complete());
    assert_data(&data, &expected, &[]);
}

#[test]
fn rule_11_a_rescue_does_not_write_to_another_disk() {
    let (mut log, _) = busy_log();
    let mut right = old_disk();
    log.superblock.fingerprint = Fingerprint::read(&mut right, DATA_SECTORS, &[0; 16]).unwrap();
    log.superblock.generation += 1;
    log.store_superblock();
    let mut wrong = Ram::new(DATA_SECTORS);
    let refused = rescue(&mut log.device, &mut wrong, RescueOptions::default(), &mut quiet).unwrap_err();
    assert!(matches!(refused, LogError::OtherData { .. }), "{refused}");
    assert!(wrong.bytes.iter().all(|&byte| byte == 0));
    // A log that holds nothing takes the disk as it is.
    let mut empty = log.device.clone();
    let mut other = old_disk();
    rescue(&mut empty, &mut right.clone(), RescueOptions::default(), &mut quiet).unwrap();
    other.bytes[..512].copy_from_slice(&sector_of(0, 7));
    assert!(rescue(&mut empty, &mut other, RescueOptions::default(), &mut quiet).unwrap().marked_clean);
    assert_eq!(other.bytes[..512], sector_of(0, 7));
    // The cache had begun to destage when it crashed: lines in the log may differ.
    right.bytes[..512].copy_from_slice(&sector_of(0, 1));
    assert!(rescue(&mut log.device, &mut right, RescueOptions::default(), &mut quiet).unwrap().is_complete());
}

/// A rescue after a clean stop, cut at any point: what it has written so far is what a crash may leave, and no other disk.
#[test]
fn rule_11_a_disk_is_no_other_one_for_a_rescue_that_was_cut() {
    let (mut log, expected) = busy_log();
    let mut before = old_disk();
    log.superblock.state = LogState::Stopped;
    log.superblock.fingerprint = Fingerprint::read(&mut before, DATA_SECTORS, &[0; 16]).unwrap();
    log.superblock.generation += 1;
    log.store_superblock();
    let mut cuts = 0;
    for left in 0.. {
        let (mut device, mut data) = (log.device.clone(), before.clone());
        data.operations_left = left;
        let is_cut = rescue(&mut device, &mut data, RescueOptions::default(), &mut quiet).is_err();
        cuts += u64::from(is_cut && data.bytes != before.bytes);
        data.operations_left = u64::MAX;
        assert!(rescue(&mut device, &mut data, RescueOptions::default(), &mut quiet).unwrap().is_complete());
        assert_data(&data, &expected, &[]);
        if !is_cut {
            break;
        }
    }
    assert!(cuts > 2, "{cuts}");
}

#[test]
fn a_detached_log_is_never_written_back() {
    let (mut log, _) = busy_log();
    log.superblock.state = LogState::Detached;
    log.superblock.generation += 1;
    log.store_superblock();
    let mut data = old_disk();
    rescue(&mut log.device, &mut data, RescueOptions { force: true, ..Default::default() }, &mut quiet)
        .unwrap();
    assert!(data.bytes.iter().all(|&byte| byte == 0xdd));
}

#[test]
fn a_log_that_was_given_up_is_written_back_on_purpose_only_and_stays_so() {
    let (mut log, expected) = busy_log();
    log.superblock.state = LogState::GivenUp;
    log.superblock.generation += 1;
    log.store_superblock();
    let mut data = old_disk();
    let refused = rescue(&mut log.device, &mut data, RescueOptions::default(), &mut quiet).unwrap_err();
    assert!(matches!(refused, LogError::GivenUp), "{refused}");
    assert!(data.bytes.iter().all(|&byte| byte == 0xdd));
    let found = check(&mut log.device, None, &mut quiet).unwrap();
    assert!(found.is_ok() && found.state == "given up", "{found:?}");
    let listed =
        rescue(&mut log.device, &mut data, RescueOptions { list: true, ..Default::default() }, &mut quiet)
            .unwrap();
    assert!(listed.dirty.data_bytes > 0);
    let forced = RescueOptions { force: true, ..Default::default() };
    let refused = rescue(&mut log.device, &mut data, forced, &mut quiet).unwrap_err();
    assert!(matches!(refused, LogError::GivenUp), "{refused}");
    let over_newer = RescueOptions { over_newer: true, ..Default::default() };
    rescue(&mut log.device, &mut data, over_newer, &mut quiet).unwrap();
    assert_data(&data, &expected, &[]);
    assert_eq!(read_superblock(&mut log.device).unwrap().state, LogState::GivenUp);
}

#[test]
fn a_dump_shows_records_and_entries_and_filters_them() {
    let (mut log, _) = busy_log();
    let mut all = Vec::new();
    dump(&mut log.device, &DumpFilter::default(), &mut |row| all.push(row.clone())).unwrap();
    let records = |rows: &[Row]| rows.iter().filter(|row| matches!(row, Row::Record { .. })).count();
    assert_eq!(records(&all), 6);
    let Some(Row::End { records_dropped: 1, next_seq: 7, .. }) = all.last() else {
        panic!("{:?}", all.last())
    };
    assert!(all.iter().all(|row| !row.to_string().is_empty() && serde_json::to_string(row).is_ok()));
    let mut some = Vec::new();
    let filter = DumpFilter { extent: Some(Extent::new(Lba(806), 1)), ..Default::default() };
    dump(&mut log.device, &filter, &mut |row| some.push(row.clone())).unwrap();
    assert_eq!(records(&some), 2);
    assert_eq!(some.iter().filter(|row| matches!(row, Row::Entry { .. })).count(), 3);
}

/// Whatever one bit of a log says, the data disk ends up right or the tools say that something is wrong: never neither.
#[test]
fn no_flipped_bit_gives_wrong_data_silently() {
    let (mut log, expected) = busy_log();
    log.superblock.durable_seq = log.seq - 1;
    log.superblock.generation += 1;
    log.store_superblock();
    let used = (log.sector * SECTOR_BYTES) as usize;
    for byte in (0..used).filter(|byte| byte % 83 == 0 || byte % 512 < 104 && byte % 7 == 0) {
        let mut corrupted = log.device.clone();
        corrupted.bytes[byte] ^= 1 << (byte % 8);
        let mut data = old_disk();
        match rescue(&mut corrupted, &mut data, RescueOptions::default(), &mut quiet) {
            Ok(report) if report.is_complete() => assert_data(&data, &expected, &[]),
            Ok(report) => assert!(report.refused || report.unsaved_bytes > 0, "byte {byte}: {report:?}"),
            Err(_) => assert!(data.bytes.iter().all(|&byte| byte == 0xdd), "byte {byte}"),
        }
    }
}

/// A cut at any operation leaves the log with the new disk or without, and all its data.
#[test]
fn a_disk_is_added_or_not_wherever_the_power_fails() {
    let (log, mut first) = logged_for_disks();
    let mut second = Ram::new(8192);
    let mut added = 0;
    for operations in 0.. {
        let mut log = Ram { operations_left: operations, ..log.clone() };
        let result = add_disk(&mut log, &mut second, [7; 16]);
        log.operations_left = u64::MAX;
        let superblock = read_superblock(&mut log).expect("the log is there");
        let disks = superblock.space().count();
        assert_eq!(superblock.tail_seq, 1);
        added += u32::from(disks == 2 && result.is_err());
        let mut all = vec![log, first.clone(), second.clone()];
        all.truncate(1 + disks);
        let mut steps = steps_of::Steps::start(steps_of::Disks(all), steps_of::quiet()).expect("it starts");
        assert_eq!(steps.read(0), Some(1));
        if result.is_ok() {
            assert_eq!((disks, added), (2, 4), "each operation from the first superblock on was cut");
            let read = steps.on(1).read(8);
            assert_eq!(read, Some(steps_of::ZEROES));
            break;
        }
    }
    let mut log = log.clone();
    add_disk(&mut log, &mut second, [7; 16]).expect("added");
    let again = add_disk(&mut log, &mut second, [7; 16]);
    assert!(matches!(again, Err(LogError::HasDisk(_))));
    for disk in 0..62 {
        add_disk(&mut log, &mut second, [100 + disk; 16]).expect("added");
    }
    assert!(matches!(add_disk(&mut log, &mut second, [8; 16]), Err(LogError::Options(_))), "64 at most");
    let refused = rescue(&mut log, &mut first, RescueOptions::default(), &mut |_| {});
    assert!(matches!(refused, Err(LogError::Disks { found: 1, recorded: 64 })));
}

/// A log with a record for its data disk.
fn logged_for_disks() -> (Ram, Ram) {
    let mut steps = steps_of::Steps::new(8, steps_of::quiet());
    steps.write(0, 8, 1);
    steps.flush();
    let [log, data] = steps.disks.two();
    (log, data)
}
