//! A log with several copies: on the legs of a mirror. Its checksums say which copy is right.
//!
//! - A start reads from another copy what one copy lacks, and takes every record that any of them has.
//! - The records that it believes are then made the same in all copies before anything new is written: one copy may be lost next.
//! - A block that fails its check is read from another copy, and repaired in its own.
//! - A repair writes only the copy that is wrong: a power cut may leave the place that is being written unreadable, in every copy
//!   written.
//! - A copy that lacks durable data has lost it: nothing in that copy is believed any more, and it is refilled.

use std::ops::Range;

use super::env::{Env, LOG, Op};
use super::format::{EntryKind, Header, LogSuperblock, decode_header, is_like_a_header};
use super::offline::newest_generation;
use super::recover::Believed;
use super::table::Piece;
use super::{LogCanary, LogError};
use crate::layer::{BlockDevice, Durability, Io};
use crate::{Buf, Extent, Lba, Planted, SECTOR_BYTES};

/// Has copies refilled that lack a durable superblock: one two generations behind another copy's, as the next superblock is written only
/// once each copy has the one before. Such copies may have old records, so this comes before the walk.
pub fn distrust_older(log: &mut dyn BlockDevice, superblock: &LogSuperblock) -> Result<(), LogError> {
    for copy in copies_of(log) {
        let generation = newest_generation(log, copy)?;
        if generation.is_some_and(|generation| generation + 1 < superblock.generation) {
            log.distrust_copy(copy);
        }
    }
    Ok(())
}

/// Has copies refilled that lack both of the newest durable records, and have something else there. True if there was one: other records
/// of it may have been believed. A rotten header is no sign: the records beside it are as good as before.
pub fn distrust_shorter(log: &mut dyn BlockDevice, superblock: &LogSuperblock, durable: &[Believed]) -> bool {
    let [.., before, newest] = durable else { return false };
    let mut found = false;
    for copy in copies_of(log) {
        if [before, newest].into_iter().all(|record| is_lost(log, superblock, *record, copy)) {
            log.distrust_copy(copy);
            found = true;
        }
    }
    found
}

/// True if a copy has neither the header of a durable record nor a rotten one there: the write never arrived, or was lost.
fn is_lost(log: &mut dyn BlockDevice, superblock: &LogSuperblock, record: Believed, copy: u8) -> bool {
    let block = superblock.log_block_bytes as usize;
    let Ok(bytes) = log.read_copy(Lba(record.sector), block, copy) else { return false };
    match decode_header(bytes.bytes(), superblock, record.sector) {
        Some(header) => (header.seq, header.epoch) != (record.seq, record.epoch),
        None => !is_like_a_header(bytes.bytes(), superblock, record.sector),
    }
}

/// Writes records to the copies that lack a part of them. A record with data that is intact in no copy stays as it is. So does an intact
/// copy: it may be the only one.
pub fn level(
    log: &mut dyn BlockDevice,
    superblock: &LogSuperblock,
    records: &[Believed],
    canary: Planted<LogCanary>,
) -> Result<(), LogError> {
    let writing = || LogError::io("writing to the log device");
    for believed in records {
        let Some(record) = whole_record(log, superblock, *believed)? else { continue };
        if canary.is(LogCanary::OverwriteCopies) {
            log.write(Lba(believed.sector), record.buf).map_err(writing())?;
            continue;
        }
        for copy in record.lacking {
            let buf = Buf::copy_of(record.buf.bytes());
            log.write_copy(Lba(believed.sector), buf, copy).map_err(writing())?;
        }
    }
    match records.is_empty() {
        true => Ok(()),
        false => log.flush().map_err(LogError::io("flushing the log device")),
    }
}

/// A record, combined from all copies, and the copies that differ from it.
struct Whole {
    buf: Buf,
    lacking: Vec<u8>,
}

fn whole_record(
    log: &mut dyn BlockDevice,
    superblock: &LogSuperblock,
    Believed { seq, epoch, sector }: Believed,
) -> Result<Option<Whole>, LogError> {
    let block = superblock.log_block_bytes as usize;
    let copies = log.geometry().copies;
    let header_of = |bytes: &Buf| {
        decode_header(&bytes.bytes()[..block], superblock, sector)
            .filter(|header| header.seq == seq && header.epoch == epoch)
    };
    let mut found: Option<(Header, u8)> = None;
    for copy in 0..copies {
        if let Ok(bytes) = log.read_copy(Lba(sector), block, copy)
            && let Some(header) = header_of(&bytes)
        {
            found = Some((header, copy));
            break;
        }
    }
    let Some((header, first)) = found else { return Ok(None) };
    let bytes = header.sectors as usize * SECTOR_BYTES as usize;
    // A part of a copy may be unreadable: the blocks that can be read still count.
    let read: Vec<Partly> =
        (0..copies).map(|copy| read_what_can_be(log, sector, bytes, block, copy)).collect();
    // If no copy is intact, the first copy's bytes are kept: the block is clean, so losing it loses nothing.
    let mut buf = Buf::copy_of(read[usize::from(first)].buf.bytes());
    let mut at = block;
    for entry in &header.entries {
        let len = (entry.payload_sectors() * SECTOR_BYTES) as usize;
        if matches!(entry.kind, EntryKind::Data | EntryKind::Clean) {
            let is_whole = |one: &&Partly| crc32c::crc32c(&one.buf.bytes()[at..at + len]) == entry.crc;
            match read[usize::from(first)..].iter().chain(&read).find(is_whole) {
                Some(one) => buf.copy_from(at, &one.buf, at, len),
                None if entry.kind == EntryKind::Data => return Ok(None),
                None => {}
            }
        }
        at += len;
    }
    let lacks = |one: &Partly| !one.whole || one.buf.bytes() != buf.bytes();
    let lacking = (0..copies).filter(|copy| lacks(&read[usize::from(*copy)])).collect();
    Ok(Some(Whole { buf, lacking }))
}

/// Readable part of a record; zeroes for the rest.
struct Partly {
    buf: Buf,
    whole: bool,
}

fn read_what_can_be(log: &mut dyn BlockDevice, sector: u64, bytes: usize, block: usize, copy: u8) -> Partly {
    if let Ok(buf) = log.read_copy(Lba(sector), bytes, copy) {
        return Partly { buf, whole: true };
    }
    let mut buf = Buf::zeroed(bytes);
    for at in (0..bytes).step_by(block) {
        if let Ok(one) = log.read_copy(Lba(sector + at as u64 / SECTOR_BYTES), block, copy) {
            buf.copy_from(at, &one, 0, block);
        }
    }
    Partly { buf, whole: false }
}

/// The numbers of the copies, if the log has several.
fn copies_of(log: &dyn BlockDevice) -> Range<u8> {
    match log.geometry().copies {
        1 => 0..0,
        copies => 0..copies,
    }
}

/// Repairs copies that failed their check from copy `good`, if the piece is whole blocks: the bytes beside it have not been checked.
/// The good copy is not written, as a power cut may leave the place that is being written unreadable. The next copy is not written
/// before this one is durable.
pub fn repair(piece: &Piece, segment: u32, buf: Buf, good: u8, env: &mut Env) {
    env.statistics.log_other_copy += 1;
    let extent = Extent::new(Lba(piece.place.0), u64::from(piece.count));
    if env.log.geometry().whole_blocks(extent) != extent || env.log.has_failed() || buf.is_blank() {
        return;
    }
    let (at, durability) = (extent.start, Durability::Durable);
    if env.config.canary.is(LogCanary::OverwriteCopies) {
        env.log.pin(segment);
        let io = Io::Write { at, buf, durability: Durability::Volatile };
        return env.submit(LOG, Op::Repair(segment), io);
    }
    // Copies before it were tried and are bad; if copy 0 is good, the number of the one that failed is not known.
    let bad = if good == 0 { 1..env.log.geometry().copies } else { 0..good };
    for copy in bad {
        env.log.pin(segment);
        let io = Io::WriteCopy { at, buf: Buf::copy_of(buf.bytes()), durability, copy };
        env.submit(LOG, Op::Repair(segment), io);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::{Geometry, IoResult};
    use crate::log_cache::format::SUPERBLOCK_SECTORS;
    use crate::log_cache::offline::read_superblock;
    use crate::log_cache::recover::{WalkOptions, walk};
    use crate::log_cache::testing::{Log, Part, Ram, sector_of};
    use crate::log_cache::testing_steps::{Steps, quiet};

    /// A log on two legs, with a record of which the first leg has a sector wrong, and where that is.
    fn rotten() -> (Steps, Extent) {
        let mut steps = Steps::new(4, quiet());
        steps.log().copies = 2;
        let mut steps = steps.restart(quiet());
        let id = steps.write_as(0, 8, 1, Durability::Durable);
        assert!(steps.is_ok(id));
        let place =
            steps.log().bytes.chunks(512).position(|sector| sector == sector_of(0, 1)).unwrap() as u64;
        steps.log().rotten.insert(place + 3);
        (steps, Extent::new(Lba(place), 8))
    }

    #[test]
    fn a_block_that_is_wrong_on_one_leg_is_read_from_another_and_written_again() {
        let (mut steps, _) = rotten();
        assert_eq!((steps.read(3), steps.core.statistics.log_other_copy), (Some(1), 1));
        assert!(steps.log().rotten.is_empty());
        assert_eq!((steps.read(3), steps.core.statistics.log_other_copy), (Some(1), 1));
        // Where no leg has it, it is an error.
        let (mut steps, place) = rotten();
        steps.log().bytes[(place.start.0 + 3) as usize * 512] ^= 2;
        assert_eq!(steps.read(3), None);
    }

    #[test]
    fn what_is_wrong_on_one_leg_is_destaged_from_another() {
        let (mut steps, _) = rotten();
        steps.drain();
        assert_eq!((steps.on_data_disk(3), steps.core.statistics.log_other_copy), (1, 1));
    }

    #[test]
    fn a_copy_that_is_good_is_never_written_over_with_what_another_lacks() {
        let (mut steps, place) = rotten();
        steps.hold = Box::new(move |port, io| port == LOG && io.modifies() && io.extent() == Some(place));
        assert_eq!(steps.read(3), Some(1));
        let held: Vec<&Io> = steps.held.iter().map(|held| &held.io).collect();
        assert!(
            matches!(held[..], [Io::WriteCopy { copy: 0, durability: Durability::Durable, .. }]),
            "{held:?}"
        );
    }

    /// Two legs of a log, and those that are not believed any more.
    struct Legs {
        legs: [Ram; 2],
        distrusted: Vec<u8>,
    }

    impl BlockDevice for Legs {
        fn geometry(&self) -> Geometry {
            Geometry { copies: 2, ..self.legs[0].geometry() }
        }

        fn run(&mut self, io: Io) -> IoResult {
            match io {
                Io::ReadCopy { at, buf, copy } => self.legs[usize::from(copy)].run(Io::Read { at, buf }),
                Io::WriteCopy { at, buf, durability, copy } => {
                    self.legs[usize::from(copy)].run(Io::Write { at, buf, durability })
                }
                Io::Write { at, buf, durability } => {
                    let other = Buf::copy_of(buf.bytes());
                    let _ = self.legs[1].run(Io::Write { at, buf: other, durability });
                    self.legs[0].run(Io::Write { at, buf, durability })
                }
                io => self.legs[0].run(io),
            }
        }

        fn distrust_copy(&mut self, copy: u8) {
            self.distrusted.push(copy);
        }
    }

    /// A log of some records, of which the second leg lacks the last few.
    fn short(records: u64, lacking: u64) -> (Legs, LogSuperblock, Vec<Believed>) {
        let mut log = Log::new(4, 512);
        let mut believed = Vec::new();
        let mut behind = log.device.clone();
        for number in 0..records {
            if number == records - lacking {
                behind = log.device.clone();
            }
            let Header { seq, epoch, sector, .. } = log.append(&[Part::Data(number * 8, 8, 7)]);
            believed.push(Believed { seq, epoch, sector });
        }
        if lacking == 0 {
            behind = log.device.clone();
        }
        (Legs { legs: [log.device, behind], distrusted: Vec::new() }, log.superblock, believed)
    }

    #[test]
    fn a_start_writes_what_one_copy_lacks_to_that_copy_alone() {
        for unreadable in [false, true] {
            let (mut legs, superblock, believed) = short(4, 2);
            if unreadable {
                legs.legs[1].unreadable.insert(believed[3].sector + 2);
                legs.legs[1].unreadable.insert(believed[1].sector + 4);
            }
            let whole = legs.legs[0].bytes.clone();
            legs.legs[0].operations = 0;
            level(&mut legs, &superblock, &believed, Planted::default()).unwrap();
            assert!(legs.legs[1].bytes == whole && legs.legs[0].bytes == whole);
            assert_eq!(legs.legs[0].operations, 1, "it is flushed, and not written");
        }
    }

    #[test]
    fn a_copy_without_the_newest_durable_records_is_filled_and_one_that_rots_is_not() {
        for (lacking, is_short) in [(0, false), (1, false), (2, true), (3, true)] {
            let (mut legs, superblock, believed) = short(4, lacking);
            assert_eq!(distrust_shorter(&mut legs, &superblock, &believed), is_short, "{lacking}");
            assert_eq!(legs.distrusted, if is_short { vec![1] } else { vec![] });
        }
        let (mut legs, superblock, believed) = short(4, 0);
        for record in &believed {
            legs.legs[1].bytes[(record.sector * SECTOR_BYTES) as usize + 40] ^= 1;
        }
        assert!(!distrust_shorter(&mut legs, &superblock, &believed));
        legs.legs[1].unreadable.extend(0..1000);
        assert!(!distrust_shorter(&mut legs, &superblock, &believed));
    }

    /// The crash explorer found it: a start did not find record 2, as no leg that it believed had it, and began its own record 2 in its place. One
    /// leg lost that, and had the older one again, which the next start took: a write came back that clients had seen to be gone.
    #[test]
    fn a_leg_that_lost_the_first_record_of_an_activation_does_not_bring_back_an_earlier_one() {
        let mut log = Log::new(4, 512);
        log.append(&[Part::Data(0, 8, 1)]);
        let (sector, seq) = (log.sector, log.seq);
        log.append(&[Part::Data(8, 8, 1)]);
        let range = (sector * SECTOR_BYTES) as usize..(log.sector * SECTOR_BYTES) as usize;
        let dropped = log.device.bytes[range.clone()].to_vec();
        (log.sector, log.seq) = (sector, seq);
        log.activate();
        log.append(&[Part::Data(8, 8, 2)]);
        log.append(&[Part::Data(16, 8, 2)]);
        log.activate();
        for liar in [0, 1] {
            let mut legs = [log.device.clone(), log.device.clone()];
            legs[liar].bytes[range.clone()].copy_from_slice(&dropped);
            let mut legs = Legs { legs, distrusted: Vec::new() };
            let mut epochs = Vec::new();
            let walked = walk(
                &mut legs,
                &log.superblock,
                WalkOptions::default(),
                &mut |header: &Header, _: &[usize]| {
                    epochs.push(header.epoch);
                },
            );
            assert_eq!(epochs, [1, 2, 2], "{liar}");
            level(&mut legs, &log.superblock, &walked.unwrap().to_level, Planted::default()).unwrap();
            assert!(liar == 1 || legs.legs[0].bytes == log.device.bytes);
        }
    }

    #[test]
    fn of_two_superblocks_with_one_number_that_of_the_later_activation_counts() {
        for liar in [0, 1] {
            let mut log = Log::new(4, 512);
            let mut older = log.device.clone();
            older
                .write(SUPERBLOCK_SECTORS[0], {
                    let older = LogSuperblock { generation: 2, ..log.superblock.clone() };
                    Buf::copy_of(zerocopy::IntoBytes::as_bytes(&older.encode()))
                })
                .unwrap();
            log.activate();
            let mut legs = [log.device, older];
            legs.swap(1, 1 - liar);
            let found = read_superblock(&mut Legs { legs, distrusted: Vec::new() }).unwrap();
            assert_eq!((found.generation, found.epoch), (2, log.epoch), "{liar}");
        }
    }

    #[test]
    fn a_copy_without_a_superblock_that_was_durable_is_filled() {
        for (newer, is_old) in [(0, false), (1, false), (2, true), (3, true)] {
            let mut log = Log::new(4, 512);
            log.activate();
            let behind = log.device.clone();
            (0..newer).for_each(|_| log.activate());
            let mut legs = Legs { legs: [log.device, behind], distrusted: Vec::new() };
            distrust_older(&mut legs, &log.superblock).unwrap();
            assert_eq!(legs.distrusted, if is_old { vec![1] } else { vec![] }, "{newer}");
            // A leg whose newest superblock has rotted has the one before, and that is no sign.
            legs.distrusted.clear();
            legs.legs[1].bytes[(SUPERBLOCK_SECTORS[0].0 * SECTOR_BYTES) as usize + 100] ^= 1;
            distrust_older(&mut legs, &log.superblock).unwrap();
            assert!(legs.distrusted.is_empty(), "{newer}");
        }
    }

    #[test]
    fn a_write_that_waits_for_the_segment_of_a_block_that_is_written_again_goes_on_after_that() {
        let (mut steps, place) = rotten();
        steps.hold = Box::new(move |port, io| port == LOG && io.modifies() && io.extent() == Some(place));
        assert_eq!(steps.read(3), Some(1));
        let mut waits = None;
        for number in 8..100 {
            let id = steps.write_as(number * 8, 8, 2, Durability::Durable);
            if !steps.is_ok(id) {
                waits = Some(id);
                break;
            }
        }
        let waits = waits.expect("the segment is not written over");
        steps.wait(10);
        assert_eq!(steps.status(waits), None);
        steps.let_go();
        assert!(steps.is_ok(waits));
    }
}
