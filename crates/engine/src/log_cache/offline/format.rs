//! Makes an empty log.
//!
//! The old superblocks are erased first, the live one last, each with a flush. Then a rotational log is measured by writing in its area.
//! Then the new superblock is written and flushed, twice, so that both copies are good. A crash in between leaves the old cache or no
//! cache, never half of one: a mark in place of the superblocks says that the content is of no use. Segments need no preparation: old
//! records in them carry another cache's UUID.

use super::measure::{FORMAT_TIME_MAX, measure};
use super::superblock::{read_copies, read_superblock, write_superblock};
use super::{LogError, Newest, human, uuid};
use crate::log_cache::fingerprint::Fingerprint;
use crate::log_cache::format::*;
use crate::log_cache::recover::{RecoverError, WalkOptions, walk};
use crate::log_cache::spindle::{Spin, Spindle};
use crate::{BlockDevice, Buf, IoError, SECTOR_BYTES};

const SEGMENTS_WANTED: u64 = 8192;
/// Minimum number of segments that hold a track: with fewer, little of the log could be reused at a time.
const TRACK_SEGMENTS_MIN: u64 = 16;

/// Mark in place of a superblock that a format has erased.
const FORMAT_BEGUN: [u8; 8] = *b"DCDBEGUN";

/// True for a log whose format was cut off: what is on it is of no use.
///
/// # Errors
/// Errors of the device.
pub fn is_format_begun(log: &mut dyn BlockDevice) -> Result<bool, IoError> {
    for at in SUPERBLOCK_SECTORS {
        if log.read(at, FORMAT_BLOCK_BYTES)?.bytes().starts_with(&FORMAT_BEGUN) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Bytes that are read to see the mark: a block of any device.
const FORMAT_BLOCK_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// Segment size. Default: the smallest from 512 KiB to 16 MiB with at most 8192 segments, as a start looks into each. Where the head of
    /// the log's disk is found, a segment holds a track, so that free places remain at every angle. The maximum is [`SEGMENTS_MAX`] segments.
    pub segment_bytes: Option<u32>,
    /// Block size of the log. Default: 4096. 512 saves log space if small writes are flushed one by one, on devices with such blocks.
    pub log_block_bytes: Option<u32>,
    pub cache_uuid: [u8; 16],
    pub data_uuid: [u8; 16],
    /// Formats over a cache that is in use.
    pub force: bool,
}

impl FormatOptions {
    pub fn new(cache_uuid: [u8; 16], data_uuid: [u8; 16]) -> FormatOptions {
        FormatOptions { segment_bytes: None, log_block_bytes: None, cache_uuid, data_uuid, force: false }
    }
}

/// Formats an empty log on `log` for the disk `data`, and returns its superblock. Refuses a log with anything in it, unless forced.
pub fn format(
    log: &mut dyn BlockDevice,
    data: &mut dyn BlockDevice,
    options: &FormatOptions,
) -> Result<LogSuperblock, LogError> {
    let mut superblock = plan(log, data, options)?;
    if !options.force {
        admit_format(log)?;
    }
    // Data that the fingerprint covers must not be lost with the disk's cache.
    data.flush().map_err(LogError::io("flushing the data disk"))?;
    superblock.fingerprint = Fingerprint::read(data, superblock.data_sectors, &superblock.cache_uuid)
        .map_err(LogError::io("reading the data disk"))?;
    let live = read_copies(log).ok().and_then(|copies| match copies {
        [Ok(a), Ok(b)] => Some(usize::from(b.generation > a.generation)),
        [Ok(_), Err(_)] => Some(0),
        _ => None,
    });
    let order = if live == Some(0) { [1, 0] } else { [0, 1] };
    for index in order {
        let mut erased = Buf::zeroed(SUPERBLOCK_AREA_BYTES);
        erased.bytes_mut()[..FORMAT_BEGUN.len()].copy_from_slice(&FORMAT_BEGUN);
        log.write(SUPERBLOCK_SECTORS[index], erased).map_err(LogError::io("erasing the old superblock"))?;
        log.flush().map_err(LogError::io("flushing the log device"))?;
    }
    // Measured only now: a crash while the area is written must leave no superblock that believes in the old records.
    superblock.spindle = measure(log, &superblock, FORMAT_TIME_MAX)?;
    if let (Spindle::Spins(spin), None) = (superblock.spindle, options.segment_bytes) {
        hold_a_track(&spin, &mut superblock);
    }
    write_superblock(log, &mut superblock)?;
    write_superblock(log, &mut superblock)?;
    Ok(superblock)
}

fn plan(
    log: &mut dyn BlockDevice,
    data: &mut dyn BlockDevice,
    options: &FormatOptions,
) -> Result<LogSuperblock, LogError> {
    let (log, data) = (log.geometry(), data.geometry());
    let segment_bytes = options.segment_bytes.unwrap_or_else(|| segment_bytes_for(log.sectors));
    if data.read_only {
        return Err(LogError::ReadOnly("data disk"));
    }
    if log.read_only {
        return Err(LogError::ReadOnly("log device"));
    }
    if !(SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX).contains(&segment_bytes) || !segment_bytes.is_power_of_two() {
        return Err(LogError::Options("the segment size must be a power of two from 16 KiB to 16 MiB"));
    }
    let log_block_bytes = options.log_block_bytes.unwrap_or(4096);
    if !matches!(log_block_bytes, 512 | 4096) {
        return Err(LogError::Options("the log block must be 512 or 4096 bytes"));
    }
    if log.logical_block_bytes > log_block_bytes {
        let (found, recorded) = (log.logical_block_bytes, log_block_bytes);
        return Err(LogError::BlockSize { which: "log device", found, recorded });
    }
    if data.sectors == 0 || data.sectors >= 1 << 43 {
        return Err(LogError::Options("the data disk must have at least one sector and less than 4 PiB"));
    }
    let segment_sectors = u64::from(segment_bytes) / SECTOR_BYTES;
    let log_sectors = log.sectors.min(LOG_SECTORS_MAX - 1);
    let segments = log_sectors.saturating_sub(FIRST_SEGMENT_SECTOR) / segment_sectors;
    if segments > u64::from(SEGMENTS_MAX) && segment_bytes < SEGMENT_BYTES_MAX {
        return Err(LogError::TooManySegments { found: log.sectors * SECTOR_BYTES, segment_bytes });
    }
    if segments < u64::from(SEGMENTS_MIN) {
        let needed = (FIRST_SEGMENT_SECTOR + u64::from(SEGMENTS_MIN) * segment_sectors) * SECTOR_BYTES;
        return Err(LogError::TooSmall { found: log.sectors * SECTOR_BYTES, needed, segment_bytes });
    }
    Ok(LogSuperblock {
        state: LogState::Stopped,
        generation: 0,
        cache_uuid: options.cache_uuid,
        data_uuid: options.data_uuid,
        log_sectors,
        data_sectors: data.sectors,
        other_disks: Vec::new(),
        segment_bytes,
        segments: segments.min(u64::from(SEGMENTS_MAX)) as u32,
        log_block_bytes,
        epoch: 0,
        epoch_start_seq: 1,
        tail_seq: 1,
        tail_sector: FIRST_SEGMENT_SECTOR,
        durable_seq: 1,
        flush_epoch: 0,
        live_seq: 1,
        summaries_epoch: 0,
        machine: 0,
        memory: None,
        fingerprint: Fingerprint::default(),
        calibration: None,
        spindle: Spindle::NotMeasured,
        kept_seq: 0,
        live_sector: 0,
    })
}

/// Makes the segments as long as a track, about, if the log has enough of them then.
fn hold_a_track(spin: &Spin, superblock: &mut LogSuperblock) {
    let track = spin.tracks.into_iter().max().map_or(0, u64::from);
    let log = superblock.end_sector() - FIRST_SEGMENT_SECTOR;
    let sectors = |bytes: u32| u64::from(bytes) / SECTOR_BYTES;
    let mut bytes = superblock.segment_bytes;
    while bytes < SEGMENT_BYTES_MAX
        && sectors(bytes) * 16 < track * 15
        && sectors(bytes) * 2 * TRACK_SEGMENTS_MIN <= log
    {
        bytes *= 2;
    }
    superblock.segments = (log / sectors(bytes)) as u32;
    superblock.segment_bytes = bytes;
}

/// See [`FormatOptions::segment_bytes`].
fn segment_bytes_for(log_sectors: u64) -> u32 {
    let sizes = (19..24).map(|shift| 1u32 << shift);
    let fits = |bytes: &u32| log_sectors / (u64::from(*bytes) / SECTOR_BYTES) <= SEGMENTS_WANTED;
    sizes.into_iter().find(fits).unwrap_or(SEGMENT_BYTES_MAX)
}

/// True for the log of a cache that was detached, if it has no data for a disk that was gone then: nothing needs it any more.
pub fn is_out_of_use(log: &mut dyn BlockDevice) -> bool {
    read_superblock(log).is_ok_and(|found| found.state == LogState::Detached) && admit_format(log).is_ok()
}

/// Refuses to format a log that may have data that its disk lacks. Reads only.
pub fn admit_format(log: &mut dyn BlockDevice) -> Result<(), LogError> {
    let occupied = |uuid: String, state: String| Err(LogError::Occupied { uuid, state });
    let superblock = match read_superblock(log) {
        Ok(superblock) => superblock,
        Err(LogError::NotFormatted) => return Ok(()),
        Err(LogError::NoSuperblock(..)) => {
            return occupied("of unknown UUID".into(), "its superblock is damaged".into());
        }
        Err(error) => return Err(error),
    };
    let name = uuid(&superblock.cache_uuid);
    let mut newest = Newest::new(superblock.log_block_sectors());
    let walked = match walk(log, &superblock, WalkOptions::default(), &mut newest) {
        Ok(walked) => walked,
        Err(RecoverError::Damage(damage)) => return occupied(name, format!("it is damaged, {damage}")),
        Err(error) => return Err(error.into()),
    };
    newest.purge_before(walked.tail_seq);
    let totals = newest.totals();
    let dirty = totals.data_bytes + totals.zeroes_bytes;
    let bytes = human(dirty);
    if superblock.state == LogState::Detached {
        match dirty {
            0 => Ok(()),
            _ => {
                occupied(name, format!("it was detached, and {bytes} in it are of a data disk that was gone"))
            }
        }
    } else if walked.tail_seq < walked.next_seq {
        occupied(name, format!("{bytes} in it are not on its data disk yet"))
    } else if superblock.state == LogState::Active {
        occupied(name, "it is being served, or was when its host crashed; it has no dirty data".into())
    } else {
        Ok(())
    }
}
