//! The two copies of the superblock: finds the live one, and writes the other.

use zerocopy::IntoBytes;

use super::{LogError, uuid};
use crate::destage::contiguity::Contiguity;
use crate::log_cache::format::{
    LogState, LogSuperblock, LogSuperblockError, SUPERBLOCK_AREA_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SECTORS,
};
use crate::machine::{Worth, newest, place_of};
use crate::mirror::{Label, LabelError};
use crate::{BlockDevice, Buf, ErrorKind, Geometry};

/// Both copies as they are on the device.
pub type Copies = [Result<LogSuperblock, LogSuperblockError>; 2];

/// Reads both copies. A copy that cannot be read counts as one with a bad checksum: the other may be good. On a mirrored log, returns the
/// newest of all legs for each place.
pub fn read_copies(log: &mut dyn BlockDevice) -> Result<Copies, LogError> {
    let mut copies = [Err(LogSuperblockError::NoMagic), Err(LogSuperblockError::NoMagic)];
    for (index, copy) in copies.iter_mut().enumerate() {
        let mut of_legs = Vec::new();
        for leg in 0..log.geometry().copies {
            of_legs.push(read_copy(log, index, leg)?);
        }
        *copy = newest_of(of_legs);
    }
    let is_leg = |log: &mut dyn BlockDevice| {
        matches!(Label::read(log), Ok(_) | Err(LabelError::Damaged | LabelError::Version(_)))
    };
    if copies.iter().all(Result::is_err) && is_leg(log) {
        return Err(LogError::Leg);
    }
    Ok(copies)
}

/// Reads one of the two copies on one leg of the log.
fn read_copy(
    log: &mut dyn BlockDevice,
    index: usize,
    leg: u8,
) -> Result<Result<LogSuperblock, LogSuperblockError>, LogError> {
    let mut block = log.read_copy(SUPERBLOCK_SECTORS[index], SUPERBLOCK_AREA_BYTES, leg);
    if block.as_ref().is_err_and(|error| matches!(error.kind, ErrorKind::Medium | ErrorKind::Lost)) {
        // The superblock is valid without the block after it.
        block = log.read_copy(SUPERBLOCK_SECTORS[index], SUPERBLOCK_BYTES, leg);
    }
    match block {
        Ok(block) => Ok(LogSuperblock::decode(block.bytes()).and_then(|superblock| {
            let here = place_of(superblock.generation) == index;
            if here { Ok(superblock) } else { Err(LogSuperblockError::Field("generation")) }
        })),
        Err(error) if error.kind == ErrorKind::OutOfRange => Ok(Err(LogSuperblockError::NoMagic)),
        Err(error) if matches!(error.kind, ErrorKind::Medium | ErrorKind::Lost) => {
            Ok(Err(LogSuperblockError::Checksum))
        }
        Err(source) => Err(LogError::Io { what: "reading the superblock", source }),
    }
}

/// Returns the newest superblock of all legs. A superblock of another version wins: this program must not touch it. A leg that lost
/// superblocks reported as durable may have an older one, whose generation a later activation has used again. The later activation
/// counts.
fn newest_of(
    of_legs: impl IntoIterator<Item = Result<LogSuperblock, LogSuperblockError>>,
) -> Result<LogSuperblock, LogSuperblockError> {
    newest(of_legs, |copy| match copy {
        Ok(superblock) => Worth::Valid((superblock.generation, superblock.epoch)),
        Err(LogSuperblockError::Version(_)) => Worth::OtherVersion,
        Err(LogSuperblockError::NoMagic) => Worth::None,
        Err(_) => Worth::Damaged,
    })
}

/// Copies a superblock to the legs that lack it: a crash can leave one leg with a superblock that no other has. It counts already, so the
/// others get it before the next superblock overwrites the one in its place. The leg that has it is not written.
fn level(log: &mut dyn BlockDevice, generation: u64) -> Result<(), LogError> {
    let index = place_of(generation);
    let mut good = None;
    let mut lacking = Vec::new();
    for leg in 0..log.geometry().copies {
        let is_it = |block: &Buf| {
            LogSuperblock::decode(block.bytes()).is_ok_and(|superblock| superblock.generation == generation)
        };
        match log.read_copy(SUPERBLOCK_SECTORS[index], SUPERBLOCK_AREA_BYTES, leg).ok().filter(is_it) {
            Some(block) => good = good.or(Some(block)),
            None => lacking.push(leg),
        }
    }
    let Some(block) = good else { return Ok(()) };
    lacking.into_iter().try_for_each(|leg| {
        let block = Buf::copy_of(block.bytes());
        log.write_copy(SUPERBLOCK_SECTORS[index], block, leg).map_err(LogError::io("writing the superblock"))
    })
}

/// The generation of the newest superblock on one leg; none if one of its two places has none, as the newest may have rotted there.
pub fn newest_generation(log: &mut dyn BlockDevice, leg: u8) -> Result<Option<u64>, LogError> {
    let generation =
        |found: Result<LogSuperblock, LogSuperblockError>| found.ok().map(|found| found.generation);
    let [a, b] = [generation(read_copy(log, 0, leg)?), generation(read_copy(log, 1, leg)?)];
    Ok(a.zip(b).map(|(a, b)| a.max(b)))
}

/// The live copy: the valid one with the higher generation. A copy of another version wins over everything: this program
/// must not touch it.
pub fn live_superblock(copies: &Copies) -> Result<LogSuperblock, LogError> {
    match (newest_of(copies.clone()), copies) {
        (_, [Ok(a), Ok(b)]) if a.cache_uuid != b.cache_uuid => {
            Err(LogError::TwoCaches(uuid(&a.cache_uuid), uuid(&b.cache_uuid)))
        }
        (Ok(live), _) => Ok(live),
        (Err(LogSuperblockError::NoMagic), _) => Err(LogError::NotFormatted),
        (Err(LogSuperblockError::Checksum | LogSuperblockError::Field(_)), [Err(a), Err(b)]) => {
            Err(LogError::NoSuperblock(a.clone(), b.clone()))
        }
        (Err(other), _) => Err(LogError::Version(other)),
    }
}

/// Reads the live superblock.
pub fn read_superblock(log: &mut dyn BlockDevice) -> Result<LogSuperblock, LogError> {
    live_superblock(&read_copies(log)?)
}

/// Writes the next generation of the superblock over the copy that is not live, and flushes. After an error the generation is unchanged,
/// so that a retry cannot touch the live copy. The log is flushed before: a killed server may have left the live copy in the device's
/// cache, and it is the only good one while the other is written.
pub fn write_superblock(log: &mut dyn BlockDevice, superblock: &mut LogSuperblock) -> Result<(), LogError> {
    let mut next = superblock.clone();
    next.generation += 1;
    let copy = SUPERBLOCK_SECTORS[place_of(next.generation)];
    if log.geometry().copies > 1 {
        level(log, superblock.generation)?;
    }
    log.flush().map_err(LogError::io("flushing the log device"))?;
    log.write(copy, Buf::copy_of(next.encode().as_bytes()))
        .map_err(LogError::io("writing the superblock"))?;
    log.flush().map_err(LogError::io("flushing the log device"))?;
    *superblock = next;
    Ok(())
}

/// Stores the result of the stride benchmark of the data disk; nothing else changes. The log may be dirty, and may have been left by a
/// crash, but must not be served meanwhile.
pub fn store_calibration(
    log: &mut dyn BlockDevice,
    calibration: &Contiguity,
) -> Result<LogSuperblock, LogError> {
    if !calibration.is_storable() {
        return Err(LogError::TooManyRanges);
    }
    if log.geometry().read_only {
        return Err(LogError::ReadOnly("log device"));
    }
    let mut superblock = read_superblock(log)?;
    check_sizes(&superblock, log.geometry(), None)?;
    refuse_out_of_use(&superblock)?;
    superblock.calibration = Some(calibration.clone());
    write_superblock(log, &mut superblock)?;
    Ok(superblock)
}

/// Refuses a log with which no cache may be served again.
pub const fn refuse_out_of_use(superblock: &LogSuperblock) -> Result<(), LogError> {
    match superblock.state {
        LogState::Stopped | LogState::Active => Ok(()),
        LogState::Detached => Err(LogError::Detached),
        LogState::GivenUp => Err(LogError::GivenUp),
    }
}

/// Refuses devices that are too small for the format, or whose blocks are too large.
pub fn check_sizes(
    superblock: &LogSuperblock,
    log: Geometry,
    data: Option<Geometry>,
) -> Result<(), LogError> {
    let at_least = |which, found: u64, recorded: u64| {
        if found < recorded { Err(LogError::Smaller { which, found, recorded }) } else { Ok(()) }
    };
    at_least("log device", log.sectors, superblock.log_sectors)?;
    if log.logical_block_bytes > superblock.log_block_bytes {
        let (found, recorded) = (log.logical_block_bytes, superblock.log_block_bytes);
        return Err(LogError::BlockSize { which: "log device", found, recorded });
    }
    data.map_or(Ok(()), |data| at_least("data disk", data.sectors, superblock.data_sectors))
}
