//! Measures the rotation of the disk below an empty log, by writing in the log's area ([`RotationSurvey`]).

use super::LogError;
use crate::layer::Io;
use crate::log_cache::format::{FIRST_SEGMENT_SECTOR, LogSuperblock};
use crate::log_cache::spindle::{Spindle, TRACK_POINTS};
use crate::log_cache::survey::{Probe, RotationSurvey};
use crate::{BlockDevice, Buf, Lba, Nanos, SECTOR_BYTES};

/// Maximum time of the measurement. An attempt takes 1 to 4 s on a quiet host, and 20 s on the slowest disk
/// below a busy one.
pub const FORMAT_TIME_MAX: Nanos = Nanos::from_secs(45);
/// Attempts: a busy host may disturb the measurement of a disk that shows its head well.
const ATTEMPTS: usize = 3;

/// Measures the disk below a log whose superblock is erased; only the area of its segments is written. A device is not measured if it is
/// not rotational or has no clock, or if a busy host disturbs too much.
pub fn measure(
    log: &mut dyn BlockDevice,
    superblock: &LogSuperblock,
    time_max: Nanos,
) -> Result<Spindle, LogError> {
    let geometry = log.geometry();
    let Some(now) = log.now().filter(|_| geometry.rotational) else { return Ok(Spindle::NotMeasured) };
    let physical = geometry.logical_block_bytes.max(geometry.physical_block_bytes);
    let block = u64::from(superblock.log_block_bytes.max(physical)) / SECTOR_BYTES;
    let until = now + time_max;
    // It stays so only if every attempt ends so.
    let mut found = Spindle::NotShown;
    for _ in 0..ATTEMPTS {
        let area = FIRST_SEGMENT_SECTOR..superblock.end_sector();
        match attempt(log, RotationSurvey::new(area, block, TRACK_POINTS, geometry.volatile_cache), until)? {
            Spindle::NotShown => {}
            other => found = other,
        }
        if matches!(found, Spindle::Spins(_)) {
            break;
        }
    }
    log.flush().map_err(LogError::io("flushing the log device"))?;
    Ok(found)
}

/// Makes the writes of a survey; returns what it has found.
fn attempt(log: &mut dyn BlockDevice, mut survey: RotationSurvey, until: Nanos) -> Result<Spindle, LogError> {
    loop {
        let Probe { at, sectors, durability } = match survey.next() {
            Ok(probe) => probe,
            Err(found) => return Ok(found),
        };
        let begun = log.now().filter(|now| *now < until);
        let buf = Buf::zeroed((sectors * SECTOR_BYTES) as usize);
        let result = log.run(Io::Write { at: Lba(at), buf, durability });
        result.status.map_err(LogError::io("measuring the log device"))?;
        let (Some(begun), Some(ended)) = (begun, log.now()) else { return Ok(Spindle::NotMeasured) };
        survey.done(begun, ended);
    }
}
