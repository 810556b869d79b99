//! A log that is there more than once: on the legs of a mirror. Its checksums say which copy is right.
//!
//! - A start reads what one copy lacks from another, and takes every record that one of them has.
//! - What it believes is then made the same in all copies, before anything new is written: one of them may be lost next.
//! - A block that is not what was written is read from another copy, and written again where it was.

use super::LogError;
use super::core::{Core, LOG, Mode, Op};
use super::format::{Header, Kind, Superblock, decode_header};
use super::recover::Believed;
use super::table::Piece;
use crate::layer::{BlockDevice, Durability, Io, Outbox};
use crate::{Buf, Extent, Lba, SECTOR_BYTES};

/// Writes records again that a copy may lack. One of which data is whole in no copy stays as it is.
pub fn level(
    log: &mut dyn BlockDevice,
    superblock: &Superblock,
    records: &[Believed],
) -> Result<(), LogError> {
    for believed in records {
        if let Some(record) = whole_record(log, superblock, *believed)? {
            log.write(Lba(believed.sector), record).map_err(LogError::io("writing to the log device"))?;
        }
    }
    match records.is_empty() {
        true => Ok(()),
        false => log.flush().map_err(LogError::io("flushing the log device")),
    }
}

/// A record, put together from all copies.
fn whole_record(
    log: &mut dyn BlockDevice,
    superblock: &Superblock,
    Believed { seq, epoch, sector }: Believed,
) -> Result<Option<Buf>, LogError> {
    let block = superblock.log_block_bytes as usize;
    let copies = log.geometry().copies;
    let header_of = |bytes: &Buf| {
        decode_header(&bytes.bytes()[..block], superblock, sector)
            .filter(|header| header.seq == seq && header.epoch == epoch)
    };
    let mut found: Option<(Header, Buf)> = None;
    for copy in 0..copies {
        if let Ok(bytes) = log.read_copy(Lba(sector), block, copy)
            && let Some(header) = header_of(&bytes)
        {
            found = Some((header, bytes));
            break;
        }
    }
    let Some((header, first)) = found else { return Ok(None) };
    let bytes = header.sectors as usize * SECTOR_BYTES as usize;
    let mut record = Buf::zeroed(bytes);
    record.copy_from(0, &first, 0, block);
    let mut missing: Vec<(Kind, usize, usize, u32)> = Vec::new();
    let mut at = block;
    for entry in &header.entries {
        let len = (entry.payload_sectors() * SECTOR_BYTES) as usize;
        if matches!(entry.kind, Kind::Data | Kind::Clean) {
            missing.push((entry.kind, at, len, entry.crc));
        }
        at += len;
    }
    for copy in 0..copies {
        if missing.is_empty() {
            break;
        }
        // A part of it may be unreadable: the blocks that can be read are as good.
        let one = read_what_can_be(log, sector, bytes, block, copy);
        missing.retain(|&(_, at, len, crc)| {
            let is_whole = crc32c::crc32c(&one.bytes()[at..at + len]) == crc;
            if is_whole {
                record.copy_from(at, &one, at, len);
            }
            !is_whole
        });
    }
    // Without a clean copy nothing is lost: it may be bad everywhere.
    let has_all = missing.iter().all(|(kind, ..)| *kind == Kind::Clean);
    Ok(has_all.then_some(record))
}

fn read_what_can_be(log: &mut dyn BlockDevice, sector: u64, bytes: usize, block: usize, copy: u8) -> Buf {
    if let Ok(all) = log.read_copy(Lba(sector), bytes, copy) {
        return all;
    }
    let mut all = Buf::zeroed(bytes);
    for at in (0..bytes).step_by(block) {
        if let Ok(one) = log.read_copy(Lba(sector + at as u64 / SECTOR_BYTES), block, copy) {
            all.copy_from(at, &one, 0, block);
        }
    }
    all
}

impl Core {
    /// The copy to be tried after one, or after a read that did not say which; none where there is no other.
    pub fn next_copy(&self, tried: Option<u8>) -> Option<u8> {
        let copies = self.log.geometry().copies;
        let next = tried.map_or(0, |tried| tried + 1);
        (copies > 1 && next < copies).then_some(next)
    }

    pub const fn log_read(at: Lba, buf: Buf, copy: Option<u8>) -> Io {
        match copy {
            Some(copy) => Io::ReadCopy { at, buf, copy },
            None => Io::Read { at, buf },
        }
    }

    /// Another copy had what was written, and one had not. It is written again where it lies, if that is whole blocks: what is beside it has not been
    /// looked at.
    pub fn repair(&mut self, piece: &Piece, segment: u32, buf: Buf, out: &mut Outbox) {
        self.statistics.log_other_copy += 1;
        let extent = Extent::new(Lba(piece.place.0), u64::from(piece.count));
        if self.log_blocks(extent) != extent || self.mode != Mode::Serving || buf.is_blank() {
            return;
        }
        self.log.pin(segment);
        let io = Io::Write { at: extent.start, buf, durability: Durability::Volatile };
        self.submit(LOG, Op::Repair(segment), io, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_cache::steps::{Steps, quiet};
    use crate::log_cache::testing::sector_of;

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
