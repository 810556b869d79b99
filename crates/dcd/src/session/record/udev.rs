//! Finds the caches of a block device for udev, which hides the content of data disks.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use dcd_engine::{Extent, Lba};

use super::Attachments;
use super::identity::{System, number_text};
use super::place::{BlockDisk, state_dir};
use super::store::{RecordError, RecordFile};

/// Reads the attachments of a block device from the records in the state directory; none if the file system of that directory is not
/// mounted yet. `links`: the links that udev is about to make to the device.
///
/// # Errors
/// If a record that is or may be the device's cannot be understood.
pub fn attachments_of(device: &Path, links: &[PathBuf]) -> Result<Option<Attachments>, RecordError> {
    let state_dir = state_dir();
    if !state_dir.parent().is_some_and(Path::exists) {
        return Ok(None);
    }
    let number = fs::metadata(device).ok().filter(|found| found.file_type().is_block_device());
    let Some(number) = number.map(|found| found.rdev()) else { return Ok(Some(Attachments::default())) };
    let of = |device: &Path, number, links: &[PathBuf]| {
        let block = BlockDisk::linked(device.to_owned(), number, state_dir.clone(), System::default(), links);
        // Most machines have no record: then nothing is read of any device.
        match block.all_paths().is_empty() {
            true => Ok(Attachments::default()),
            false => RecordFile::of_block(block)?.load(),
        }
    };
    let mut all = of(device, number, links)?;
    if let Some(partition) = Partition::of(&System::default(), number) {
        // A cache may be attached to the partition's disk.
        all.0.extend(
            of(&partition.disk, partition.number, &[])?.0.into_iter().filter_map(|attachment| {
                partition.extent.overlaps(attachment.extent()).then_some(attachment)
            }),
        );
    }
    Ok(Some(all))
}

/// A partition: its disk with the number of that, and its place there.
pub struct Partition {
    pub disk: PathBuf,
    pub number: u64,
    pub extent: Extent,
}

impl Partition {
    pub fn of(system: &System, number: u64) -> Option<Partition> {
        let folder = fs::canonicalize(system.sysfs.join(number_text(number))).ok()?;
        let text = |path: &Path| fs::read_to_string(path).ok();
        let value = |name: &str| text(&folder.join(name))?.trim().parse::<u64>().ok();
        value("partition")?;
        let (start, sectors) = (value("start")?, value("size")?);
        let (disk, number) = system.node(folder.parent()?)?;
        Some(Partition { disk, number, extent: Extent::new(Lba(start), sectors) })
    }
}
