//! The device that shall have the log: where it is, what kind of medium it is, and how large.

use std::fs::{File, Metadata};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::candidates::Medium;
use dcd_cli::device_numbers;

const SYSFS_BLOCK: &str = "/sys/dev/block";

/// Properties of the place of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogPlace {
    pub medium: Medium,
    /// Why it is taken for that.
    pub why: &'static str,
    /// Size of the log; none if it is missing.
    pub bytes: Option<u64>,
}

/// A drive as the kernel shows it.
struct Drive {
    /// Directory of the drive in sysfs, the same for all of its partitions.
    sysfs: PathBuf,
    rotates: bool,
}

impl LogPlace {
    /// Looks at the paths of a log and of its data disk; neither has to be there.
    pub fn find(log: &Path, disk: &Path) -> LogPlace {
        let seen = std::fs::metadata(log);
        let bytes = File::open(log).and_then(|mut file| file.seek(SeekFrom::End(0))).ok();
        let drive = |seen: &Metadata| Drive::of(Path::new(SYSFS_BLOCK), device_number(seen));
        let log = seen.as_ref().ok().and_then(drive);
        let disk = std::fs::metadata(disk).ok().as_ref().and_then(drive);
        let (medium, why) = medium(log.as_ref(), disk.as_ref(), seen.is_ok());
        LogPlace { medium, why, bytes }
    }
}

fn medium(log: Option<&Drive>, disk: Option<&Drive>, is_there: bool) -> (Medium, &'static str) {
    match (log, disk) {
        (Some(log), Some(disk)) if log.sysfs == disk.sysfs => (Medium::SameDisk, "it is on the same drive"),
        (Some(log), _) if log.rotates => (Medium::OtherDisk, "it rotates"),
        (Some(_), _) => (Medium::Ssd, "it does not rotate"),
        (None, _) if is_there => (Medium::Ssd, "the kernel does not say what it is on"),
        (None, _) => (Medium::Ssd, "it is missing"),
    }
}

/// Returns the number of a block device, or of the device below a file's file system.
fn device_number(seen: &Metadata) -> u64 {
    if seen.file_type().is_block_device() { seen.rdev() } else { seen.dev() }
}

impl Drive {
    fn of(sysfs: &Path, device: u64) -> Option<Drive> {
        let (major, minor) = device_numbers(device);
        let own = sysfs.join(format!("{major}:{minor}")).canonicalize().ok()?;
        // A partition lies in the directory of its drive, which has the queue.
        let drive = [own.as_path(), own.parent()?].into_iter().find(|path| path.join("queue").is_dir())?;
        let rotates = std::fs::read_to_string(drive.join("queue/rotational")).ok()?;
        Some(Drive { sysfs: drive.to_owned(), rotates: rotates.trim() == "1" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory as the kernel's, with a disk sda of two partitions, a disk sdb, and an SSD of one.
    fn sysfs() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (number, place, rotates) in [
            ("8:1", "sda/sda1", None),
            ("8:2", "sda/sda2", None),
            ("8:16", "sdb", Some("1")),
            ("8:0", "sda", Some("1")),
            ("259:0", "nvme0n1", Some("0")),
            ("259:3", "nvme0n1/nvme0n1p3", None),
        ] {
            let place = dir.path().join(place);
            std::fs::create_dir_all(&place).unwrap();
            if let Some(rotates) = rotates {
                std::fs::create_dir(place.join("queue")).unwrap();
                std::fs::write(place.join("queue/rotational"), format!("{rotates}\n")).unwrap();
            }
            std::os::unix::fs::symlink(&place, dir.path().join(number)).unwrap();
        }
        dir
    }

    #[test]
    fn the_kind_of_a_log_follows_from_its_drive_and_from_that_of_the_data() {
        let dir = sysfs();
        let of = |major: u64, minor: u64| Drive::of(dir.path(), major << 8 | minor);
        let kind = |log: (u64, u64), disk: (u64, u64)| {
            medium(of(log.0, log.1).as_ref(), of(disk.0, disk.1).as_ref(), true).0
        };
        assert_eq!(kind((259, 3), (8, 2)), Medium::Ssd, "a partition of an SSD");
        assert_eq!(kind((8, 1), (8, 2)), Medium::SameDisk, "two partitions of one disk");
        assert_eq!(kind((8, 16), (8, 2)), Medium::OtherDisk, "two disks");
        assert_eq!(kind((8, 1), (8, 0)), Medium::SameDisk, "a partition of the disk");
        assert_eq!(kind((8, 16), (8, 99)), Medium::OtherDisk, "the data disk is not known");
        assert_eq!(kind((0, 40), (8, 2)), Medium::Ssd, "nothing says what it is");
    }

    #[test]
    fn the_size_of_a_log_is_known_where_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log.img");
        assert_eq!(LogPlace::find(&log, &log).bytes, None);
        std::fs::write(&log, [0; 12288]).unwrap();
        assert_eq!(LogPlace::find(&log, Path::new("disk.img")).bytes, Some(12288));
    }
}
