//! Finds what the machine itself is started from, and the block devices below a file or a device.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use dcd_engine::log_cache::WriteRoute;
use dcd_io::is_in_memory;
use dcd_stack::{DeclaredDevice, DeviceSource, LayerKind, StackFile};

/// Advice where `hides_devices`.
pub const DEVICES_ARE_HIDDEN: &str = "a container hides the disks' names, so a disk is recognised by its content alone; run it with \
     --security-opt unmask=/sys/dev/block (Podman)";

/// True if the directory by which block devices are identified is there, and shows none of them.
pub fn hides_devices(root: &Path) -> bool {
    fs::read_dir(root.join("sys/dev/block")).is_ok_and(|mut devices| devices.next().is_none())
}

/// Mount points from which the machine, and dcd on it, is started. They cannot be on a stack: it is not served yet at that time.
pub const SYSTEM: [&str; 8] = ["/", "/usr", "/etc", "/boot", "/boot/efi", "/var", "/var/lib", "/var/lib/dcd"];

/// Directories of the links that udev makes by a disk's content. For a data disk they lead to the device of the cache, which has the same
/// content.
const BY_CONTENT: [&str; 2] = ["/dev/disk/by-uuid", "/dev/disk/by-label"];

pub fn is_by_content(path: &Path) -> bool {
    BY_CONTENT.iter().any(|by| path.starts_with(by))
}

/// Maximum depth of devices that stand on each other; more is a cycle.
const DEPTH_MAX: usize = 8;

/// Returns the number of a block device, or of the device of a file's file system.
pub fn number(path: &Path) -> Option<u64> {
    let metadata = fs::metadata(path).ok()?;
    Some(if metadata.file_type().is_block_device() { metadata.rdev() } else { metadata.dev() })
}

/// Returns a device and all that it stands on, as folders of sysfs: a partition stands on its disk, a mapped device or an array on the
/// devices below. A file system that is not on one device (btrfs, tmpfs) has none. `root`: that of the system, or of a test.
pub fn standing(root: &Path, number: u64) -> Vec<PathBuf> {
    let mut all = Vec::new();
    if let Some(folder) = folder(root, number) {
        gather(&folder, 0, &mut all);
    }
    all.sort();
    all.dedup();
    all
}

fn folder(root: &Path, number: u64) -> Option<PathBuf> {
    fs::canonicalize(root.join(format!("sys/dev/block/{}:{}", major_of(number), minor_of(number)))).ok()
}

fn gather(folder: &Path, depth: usize, all: &mut Vec<PathBuf>) {
    if depth == DEPTH_MAX {
        return;
    }
    all.push(folder.to_owned());
    if is_partition(folder) {
        if let Some(disk) = folder.parent() {
            gather(disk, depth + 1, all);
        }
        return;
    }
    for below in slaves(folder) {
        gather(&below, depth + 1, all);
    }
}

fn is_partition(folder: &Path) -> bool {
    folder.join("partition").exists()
}

fn slaves(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
    entries.filter_map(|slave| fs::canonicalize(slave.path()).ok()).collect()
}

/// Returns the disks that a device is or stands on.
pub fn disks(root: &Path, number: u64) -> Vec<PathBuf> {
    let is_disk = |folder: &PathBuf| !is_partition(folder) && slaves(folder).is_empty();
    standing(root, number).into_iter().filter(is_disk).collect()
}

// As makedev(3) of Linux packs them.
const fn major_of(device: u64) -> u64 {
    (device >> 8) & 0xfff | (device >> 32) & !0xfff
}

const fn minor_of(device: u64) -> u64 {
    device & 0xff | (device >> 12) & !0xff
}

/// Returns the first of [`SYSTEM`] that a block device carries in the running system.
pub fn carried_by(device: &Path) -> Option<&'static str> {
    let metadata = fs::metadata(device).ok().filter(|metadata| metadata.file_type().is_block_device())?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    carried(Path::new("/"), metadata.rdev(), |mount| {
        number(&mounted_from(&mounts, mount).unwrap_or_else(|| mount.into()))
    })
}

fn carried(root: &Path, device: u64, number_of: impl Fn(&str) -> Option<u64>) -> Option<&'static str> {
    let device = folder(root, device)?;
    let is_on =
        |mount: &&str| number_of(mount).is_some_and(|number| standing(root, number).contains(&device));
    SYSTEM.into_iter().find(is_on)
}

/// Returns the device that was mounted last at a place, by the kernel's table. stat(2) names no block device for files of a file system
/// with several devices.
fn mounted_from(mounts: &str, mount: &str) -> Option<PathBuf> {
    mounts.lines().rev().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        let source = rest.split(' ').nth(1)?;
        (fields.split(' ').nth(4) == Some(mount) && source.starts_with("/dev/")).then(|| source.into())
    })
}

/// Describes the devices of logs that are in RAM, and hold writes that a data disk does not have.
pub fn logs_in_memory(file: &StackFile) -> Vec<String> {
    let has_writes = |device: &&DeclaredDevice| {
        file.layers.iter().any(|layer| match &layer.kind {
            LayerKind::LogCache { config, log, .. } => {
                config.writes == WriteRoute::Back && file.needed_by(&[&log.text]).contains(&device.name)
            }
            _ => false,
        })
    };
    let in_memory = |device: &DeclaredDevice| match &device.source {
        DeviceSource::Path { path, .. } if is_in_memory(path) => Some(format!(
            "the log \"{}\" ({}) is in RAM: it is lost at each restart of the machine, with all writes that the data disk does not have",
            device.name,
            path.display()
        )),
        _ => None,
    };
    file.log_devices().into_iter().filter(has_writes).filter_map(in_memory).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_on_it_what_is_on_its_partitions_and_on_what_is_made_of_them() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("sys/devices/pci0/block/sda");
        for part in ["sda2", "sda3"] {
            fs::create_dir_all(disk.join(part)).unwrap();
            fs::write(disk.join(part).join("partition"), "").unwrap();
        }
        let mapped = root.path().join("sys/devices/virtual/block/dm-0");
        fs::create_dir_all(mapped.join("slaves")).unwrap();
        std::os::unix::fs::symlink(disk.join("sda2"), mapped.join("slaves/sda2")).unwrap();
        let by_number = root.path().join("sys/dev/block");
        fs::create_dir_all(&by_number).unwrap();
        for (number, folder) in
            [("8:0", disk.clone()), ("8:2", disk.join("sda2")), ("8:3", disk.join("sda3")), ("253:0", mapped)]
        {
            std::os::unix::fs::symlink(folder, by_number.join(number)).unwrap();
        }
        let carried_by = |number| {
            carried(root.path(), number, |mount| match mount {
                "/usr" => Some(253 << 8),
                "/boot" => Some(8 << 8 | 3),
                _ => Some(9),
            })
        };
        assert_eq!(carried_by(8 << 8), Some("/usr"), "the disk");
        assert_eq!(carried_by(8 << 8 | 2), Some("/usr"), "a partition below the mapped device");
        assert_eq!(carried_by(253 << 8), Some("/usr"));
        assert_eq!(carried_by(8 << 8 | 3), Some("/boot"), "another partition has only its own");
        assert_eq!(carried_by(8 << 8 | 4), None);
    }

    #[test]
    fn the_kernel_tells_where_a_mount_comes_from() {
        let mounts = "22 1 0:30 / / rw - btrfs /dev/sda2 rw\n23 22 0:5 / /boot rw,x shared:1 - ext4 /dev/old rw\n\
                      24 23 8:1 / /boot rw,x shared:1 - ext4 /dev/sdb1 rw\n25 22 0:6 / /var rw - tmpfs none rw\n";
        for (mount, from) in
            [("/", Some("/dev/sda2")), ("/boot", Some("/dev/sdb1")), ("/var", None), ("/usr", None)]
        {
            assert_eq!(mounted_from(mounts, mount), from.map(PathBuf::from), "{mount}");
        }
    }
}
