//! Adds a data disk to a log that is not served.
//!
//! A single superblock adds the disk: a crash before it leaves the log as it was. The superblock is written twice, so that both copies
//! know the disk.

use super::superblock::{check_sizes, read_superblock, refuse_out_of_use, write_superblock};
use super::{LogError, uuid};
use crate::BlockDevice;
use crate::log_cache::disks::{DISKS_MAX, PART_SECTORS};
use crate::log_cache::fingerprint::{CoveredLines, LineContent};
use crate::log_cache::format::{LogSuperblock, OtherDisk};

/// Adds a data disk, and returns the superblock. The log may be dirty.
pub fn add_disk(
    log: &mut dyn BlockDevice,
    data: &mut dyn BlockDevice,
    data_uuid: [u8; 16],
) -> Result<LogSuperblock, LogError> {
    for (geometry, which) in [(log.geometry(), "log device"), (data.geometry(), "data disk")] {
        if geometry.read_only {
            return Err(LogError::ReadOnly(which));
        }
    }
    let mut superblock = read_superblock(log)?;
    check_sizes(&superblock, log.geometry(), None)?;
    refuse_out_of_use(&superblock)?;
    let sectors = data.geometry().sectors;
    if superblock.space().count() == DISKS_MAX {
        return Err(LogError::Options("a log has at most 64 data disks"));
    }
    if sectors == 0 || sectors.max(superblock.data_sectors) > PART_SECTORS {
        return Err(LogError::Options(
            "each data disk of a log with several must have at least one sector and at most 64 TiB",
        ));
    }
    let others = superblock.other_disks.iter().map(|disk| disk.data_uuid);
    if std::iter::once(superblock.data_uuid).chain(others).any(|known| known == data_uuid) {
        return Err(LogError::HasDisk(uuid(&data_uuid)));
    }
    let lines_max = OtherDisk::lines_max(superblock.other_disks.len() + 1);
    // Data that the fingerprint covers must not be lost with the disk's cache.
    data.flush().map_err(LogError::io("flushing the data disk"))?;
    let lines = CoveredLines::few(LineContent::default(), data, sectors, &superblock.cache_uuid, lines_max);
    let fingerprint = lines.map_err(LogError::io("reading the data disk"))?.fingerprint();
    superblock.other_disks.push(OtherDisk { data_uuid, sectors, fingerprint });
    // The others have room for fewer lines now.
    superblock.other_disks.iter_mut().for_each(|disk| disk.fingerprint.lines.truncate(lines_max));
    write_superblock(log, &mut superblock)?;
    write_superblock(log, &mut superblock)?;
    Ok(superblock)
}
