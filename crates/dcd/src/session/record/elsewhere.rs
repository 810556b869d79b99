//! Finds the caches of the same medium that were attached under another offset: to a partition or its disk, or to a loop device that begins
//! elsewhere in the same file. Each has a record of its own, and two caches of one sector overwrite each other's data.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::path::Path;

use dcd_engine::SECTOR_BYTES;

use super::identity::number_text;
use super::mark::offset_of;
use super::place::{BlockDisk, FileDisk, RecordLocation, offset_beside, place};
use super::store::{RecordError, RecordFile};
use super::udev::Partition;
use super::{Attachment, AttachmentState};

/// Returns the attachments of the medium of `device` from other records than its own, at the sectors that they have on `device`.
///
/// # Errors
/// If one of those records cannot be understood: the device may have its cache.
pub fn attachments_elsewhere(device: &Path) -> Result<Vec<Attachment>, RecordError> {
    let place = place(device).map_err(|source| RecordError::Io {
        path: device.to_owned(),
        action: "finding",
        source,
    })?;
    let mut all = Vec::new();
    match place {
        RecordLocation::Export(_) => {}
        RecordLocation::File(own) => {
            for offset in offsets(&own).into_iter().filter(|offset| *offset != own.offset) {
                let record = RecordFile::of_file(FileDisk::new(own.file.clone(), offset))?;
                all.extend(shifted(&record, sectors(offset) - sectors(own.offset))?);
            }
        }
        RecordLocation::InStateDir(own) if own.all_paths().is_empty() => {}
        RecordLocation::InStateDir(own) => {
            if let Some(Partition { disk, number, extent }) = Partition::of(&own.system, own.number) {
                let disk = BlockDisk::new(disk, number, own.state_dir.clone(), own.system.clone());
                all.extend(shifted(&RecordFile::of_block(disk)?, -(extent.start.0 as i64))?);
            }
            for part in partitions(&own) {
                let Some(Partition { extent, .. }) = Partition::of(&own.system, part.number) else {
                    continue;
                };
                all.extend(shifted(&RecordFile::of_block(part)?, extent.start.0 as i64)?);
            }
        }
    }
    Ok(all)
}

/// The partitions of a whole disk.
fn partitions(disk: &BlockDisk) -> Vec<BlockDisk> {
    let folder = disk.system.sysfs.join(number_text(disk.number));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.filter(|entry| entry.path().join("partition").exists()).filter_map(|entry| {
        let device = Path::new("/dev").join(entry.file_name());
        let number = std::os::unix::fs::MetadataExt::rdev(&fs::metadata(&device).ok()?);
        Some(BlockDisk::new(device, number, disk.state_dir.clone(), disk.system.clone()))
    });
    found.collect()
}

/// The bytes of a file at which disks with a record begin: by the records beside it, and by its marks.
fn offsets(own: &FileDisk) -> BTreeSet<u64> {
    let beside = fs::read_dir(own.file.parent().unwrap_or(Path::new("/"))).into_iter().flatten().flatten();
    let mut all: BTreeSet<u64> =
        beside.filter_map(|entry| offset_beside(&own.file, &entry.file_name())).collect();
    let names = File::open(&own.file).and_then(|file| dcd_io::mark_names(&file)).unwrap_or_default();
    all.extend(names.iter().map(CString::as_c_str).filter_map(offset_of));
    all
}

const fn sectors(bytes: u64) -> i64 {
    (bytes / SECTOR_BYTES) as i64
}

/// The attachments in use of another record, whose disk begins so many sectors behind the device. What lies before the device is left out.
fn shifted(record: &RecordFile, by: i64) -> Result<Vec<Attachment>, RecordError> {
    let in_use = record.load()?.0.into_iter().filter(|other| other.state != AttachmentState::Abandoned);
    let here = in_use.filter_map(|other| {
        let first = other.first_sector as i64 + by;
        let end = u64::try_from(first + other.sectors as i64).ok().filter(|end| *end > 0)?;
        let first_sector = first.max(0) as u64;
        Some(Attachment { first_sector, sectors: end - first_sector, elsewhere: true, ..other })
    });
    Ok(here.collect())
}
