//! The place of a device on this machine: whether an open one is still at its path, and whether it is in RAM.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::loops;
use super::probe::is_memory_file_system;
use super::wear::{DiskWear, disks_wear};

/// A file or block device as it was opened: it works on when its path is gone, and is gone itself when it is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedPlace {
    path: PathBuf,
    is_block: bool,
    /// Number of the block device, or of the file system that the file is on.
    device: u64,
    inode: u64,
}

impl OpenedPlace {
    pub(super) fn of(path: &Path, metadata: &Metadata) -> OpenedPlace {
        let is_block = metadata.file_type().is_block_device();
        let device = if is_block { metadata.rdev() } else { metadata.dev() };
        OpenedPlace { path: path.to_owned(), is_block, device, inode: metadata.ino() }
    }

    /// Describes why the next opening would not find the device; none where it would, or where that is not known. May wait for the file
    /// system.
    pub fn loss(&self) -> Option<&'static str> {
        if self.is_block {
            return block_loss(Path::new("/sys/dev/block"), self.device);
        }
        match std::fs::metadata(&self.path) {
            Ok(now) if (now.dev(), now.ino()) == (self.device, self.inode) => None,
            Ok(_) => Some("another file has its path now: it was deleted or moved"),
            Err(error) if is_missing(&error) => Some("its file was deleted or moved"),
            Err(_) => None,
        }
    }
}

impl OpenedPlace {
    /// Returns a loop device over the file, which was made since the file was opened; none for a block device, which no other program can
    /// open beside this one. May wait for the loop devices.
    pub fn loop_device(&self) -> Option<String> {
        if self.is_block { None } else { loops::device_over_inode(self.device, self.inode) }
    }

    /// Reads the wear of the SSDs below a block device; empty for a file, and for disks that do not tell. May wait for the disks.
    pub fn wear(&self) -> Vec<DiskWear> {
        if self.is_block { disks_wear(self.device) } else { Vec::new() }
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Looks for the file behind a loop device. A device that was pulled out fails by itself: nothing keeps it open.
fn block_loss(all: &Path, device: u64) -> Option<&'static str> {
    let entry = all.join(number(device));
    let behind = std::fs::read_to_string(entry.join("loop/backing_file")).unwrap_or_default();
    let behind = behind.trim_end_matches('\n');
    (behind.ends_with(" (deleted)") && !Path::new(behind).exists())
        .then_some("the file behind the loop device was deleted")
}

fn number(device: u64) -> String {
    format!("{}:{}", libc::major(device), libc::minor(device))
}

/// Tells a file in RAM (tmpfs, ramfs) or a block device of RAM, whose content is lost at each restart of the machine. The directory of a
/// missing file is looked at.
pub fn is_in_memory(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else {
        // A name in /dev is that of a device that is not connected.
        let is_device = path.starts_with("/dev") && !path.starts_with("/dev/shm");
        let directory = path.parent().filter(|parent| parent.is_dir() && !is_device);
        return directory
            .is_some_and(|parent| File::open(parent).is_ok_and(|file| is_memory_file_system(&file)));
    };
    if !metadata.file_type().is_block_device() {
        return File::open(path).is_ok_and(|file| is_memory_file_system(&file));
    }
    let entry = Path::new("/sys/dev/block").join(number(metadata.rdev()));
    let name =
        std::fs::canonicalize(&entry).ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let is_ram = name.is_some_and(|name| name.starts_with("ram") || name.starts_with("zram"));
    let behind = std::fs::read_to_string(entry.join("loop/backing_file")).unwrap_or_default();
    let behind = Path::new(behind.trim_end_matches('\n'));
    is_ram || (behind.is_file() && is_in_memory(behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_deleted_moved_or_replaced_is_lost_and_one_that_is_back_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("log"), dir.path().join("other"));
        std::fs::write(&path, "x").unwrap();
        let file = File::open(&path).unwrap();
        let place = OpenedPlace::of(&path, &file.metadata().unwrap());
        assert_eq!(place.loss(), None);
        std::fs::rename(&path, &other).unwrap();
        assert_eq!(place.loss(), Some("its file was deleted or moved"));
        std::fs::write(&path, "x").unwrap();
        assert!(place.loss().unwrap().starts_with("another file has its path now"));
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(place.loss(), None);
    }

    #[test]
    fn a_block_device_is_lost_with_the_file_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        let device = libc::makedev(7, 3);
        assert_eq!(block_loss(dir.path(), device), None, "it was pulled out");
        let entry = dir.path().join("7:3/loop");
        std::fs::create_dir_all(&entry).unwrap();
        assert_eq!(block_loss(dir.path(), device), None);
        std::fs::write(entry.join("backing_file"), "/none/log.img (deleted)\n").unwrap();
        assert_eq!(block_loss(dir.path(), device), Some("the file behind the loop device was deleted"));
        std::fs::write(entry.join("backing_file"), "/none/log.img\n").unwrap();
        assert_eq!(block_loss(dir.path(), device), None);
    }

    #[test]
    fn files_in_ram_are_known_before_and_after_they_are_made() {
        let Ok(ram) = tempfile::tempdir_in("/dev/shm") else { return };
        assert!(is_in_memory(&ram.path().join("log")));
        std::fs::write(ram.path().join("log"), "x").unwrap();
        assert!(is_in_memory(&ram.path().join("log")));
        assert!(!is_in_memory(Path::new("/proc/self/none")));
    }
}
