//! Where the record of a data disk is kept.
//!
//! A file has it beside itself: `disk.img` has `disk.img.dcd`, so that both are moved or forgotten together. A block
//! device has it in the state directory, under a name that stays when devices are numbered anew: its name in
//! `/dev/disk/by-id`, or else its device number. A loop device can have any number: its record is that of its file
//! (`disk.img@4096.dcd`, where it begins at an offset).
//!
//! The record of an array is called by the array's UUID, and kept where its members have theirs: beside each that is a file, and
//! in the state directory. Members come and go, so every such directory has a copy. Where members lie on caches, it is their data disks
//! that count.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where records of block devices are kept; `DCD_STATE_DIR` names another directory.
const STATE_DIR: &str = "/var/lib/dcd";
const BY_ID: &str = "/dev/disk/by-id";
const SYSFS_BLOCK: &str = "/sys/dev/block";
/// What a record's name ends with.
const SUFFIX: &str = ".dcd";

/// The path for a new record, and all paths under which an older one may be.
#[derive(Debug, PartialEq, Eq)]
pub struct Places {
    pub preferred: PathBuf,
    pub all: Vec<PathBuf>,
}

pub fn places(device: &Path) -> std::io::Result<Places> {
    let device = fs::canonicalize(device)?;
    let metadata = fs::metadata(&device)?;
    if !metadata.file_type().is_block_device() {
        return Ok(beside(&device, 0));
    }
    if let Some((file, offset)) = file_of_loop(Path::new(SYSFS_BLOCK), metadata.rdev()) {
        return Ok(beside(&fs::canonicalize(file)?, offset));
    }
    let state_dir = std::env::var_os("DCD_STATE_DIR").map_or(PathBuf::from(STATE_DIR), PathBuf::from);
    let names = stable_names(&device, Path::new(BY_ID));
    Ok(block_places(&state_dir, names, metadata.rdev()))
}

/// The record of a file, or of what begins at an offset in it.
fn beside(file: &Path, offset: u64) -> Places {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    if offset > 0 {
        name.push(format!("@{offset}"));
    }
    name.push(SUFFIX);
    let beside = file.with_file_name(name);
    Places { preferred: beside.clone(), all: vec![beside] }
}

/// The paths of all copies of an array's record, of which these are members.
pub fn array_places(uuid: &str, members: &[&Path]) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for member in members {
        let copy = places(member)?.preferred.with_file_name(format!("array-{uuid}{SUFFIX}"));
        if !all.contains(&copy) {
            all.push(copy);
        }
    }
    Ok(all)
}

fn block_places(state_dir: &Path, mut names: Vec<String>, device_number: u64) -> Places {
    names.sort_by_key(|name| (rank(name), name.clone()));
    names.push(number_name(device_number));
    let all: Vec<PathBuf> = names.iter().map(|name| state_dir.join(format!("{name}{SUFFIX}"))).collect();
    Places { preferred: all[0].clone(), all }
}

/// Names made from what is burnt into the drive come before names made from how it is connected.
fn rank(name: &str) -> usize {
    let order = ["wwn-", "nvme-eui.", "nvme-", "ata-", "scsi-", "dm-uuid-", "md-uuid-"];
    order.iter().position(|prefix| name.starts_with(prefix)).unwrap_or(order.len())
}

fn stable_names(device: &Path, by_id: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(by_id) else { return Vec::new() };
    let leads_here =
        |entry: &fs::DirEntry| fs::canonicalize(entry.path()).is_ok_and(|target| target == device);
    entries.flatten().filter(leads_here).filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The file that a loop device is, and where in it that begins; none for other devices, and where it is gone.
fn file_of_loop(sysfs: &Path, device: u64) -> Option<(PathBuf, u64)> {
    let (major, minor) = numbers(device);
    let of_loop = sysfs.join(format!("{major}:{minor}/loop"));
    let attribute = |name: &str| fs::read_to_string(of_loop.join(name)).ok();
    let file = PathBuf::from(attribute("backing_file")?.trim_end_matches('\n'));
    let offset = attribute("offset")?.trim().parse().ok()?;
    file.is_file().then_some((file, offset))
}

/// Major and minor, as the kernel packs them.
const fn numbers(device: u64) -> (u64, u64) {
    ((device >> 8) & 0xfff | (device >> 32) & !0xfff, device & 0xff | (device >> 12) & 0xffff_ff00)
}

/// `block-MAJOR-MINOR`.
fn number_name(device: u64) -> String {
    let (major, minor) = numbers(device);
    format!("block-{major}-{minor}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_record_beside_itself_also_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        fs::write(dir.join("disk.img"), b"").unwrap();
        std::os::unix::fs::symlink(dir.join("disk.img"), dir.join("link")).unwrap();
        for name in ["disk.img", "link"] {
            assert_eq!(places(&dir.join(name)).unwrap().preferred, dir.join("disk.img.dcd"));
        }
        assert!(places(&dir.join("missing")).is_err());
    }

    #[test]
    fn an_array_has_one_record_in_each_directory_of_its_members() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        fs::create_dir(dir.join("other")).unwrap();
        let members = ["a", "b", "other/c"].map(|name| dir.join(name));
        members.iter().for_each(|member| fs::write(member, b"").unwrap());
        let members: Vec<&Path> = members.iter().map(PathBuf::as_path).collect();
        let copies = ["array-u.dcd", "other/array-u.dcd"].map(|name| dir.join(name));
        assert_eq!(array_places("u", &members).unwrap(), copies);
    }

    #[test]
    fn a_block_device_has_a_stable_name() {
        let names = vec!["ata-Disk_123".to_owned(), "usb-x".to_owned(), "wwn-0x5000".to_owned()];
        let places = block_places(Path::new("/s"), names, 0x811);
        let expected: Vec<PathBuf> = ["wwn-0x5000", "ata-Disk_123", "usb-x", "block-8-17"]
            .map(|n| format!("/s/{n}.dcd").into())
            .into();
        assert_eq!((places.preferred, places.all), (expected[0].clone(), expected));
    }

    #[test]
    fn a_loop_device_has_the_record_of_its_file_and_of_where_it_begins_there() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("disk.img");
        let of_loop = dir.path().join("7:300/loop");
        fs::create_dir_all(&of_loop).unwrap();
        let set = |name: &str, text: &str| fs::write(of_loop.join(name), format!("{text}\n")).unwrap();
        set("backing_file", image.to_str().unwrap());
        set("offset", "0");
        let device = 7 << 8 | 300 & 0xff | (300 & !0xff) << 12;
        assert_eq!(file_of_loop(dir.path(), device), None, "it was removed");
        fs::write(&image, b"").unwrap();
        assert_eq!(file_of_loop(dir.path(), device), Some((image.clone(), 0)));
        assert_eq!(file_of_loop(dir.path(), 8 << 8), None, "no loop device");
        set("offset", "4096");
        let (file, offset) = file_of_loop(dir.path(), device).unwrap();
        assert_eq!(beside(&file, offset).preferred, dir.path().join("disk.img@4096.dcd"));
        assert_eq!(beside(&image, 0), places(&image).unwrap());
    }

    #[test]
    fn links_by_id_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        let by_id = dir.join("by-id");
        fs::create_dir(&by_id).unwrap();
        for device in ["sda", "sdb"] {
            fs::write(dir.join(device), b"").unwrap();
            std::os::unix::fs::symlink(format!("../{device}"), by_id.join(format!("wwn-{device}"))).unwrap();
        }
        assert_eq!(stable_names(&dir.join("sdb"), &by_id), ["wwn-sdb"]);
    }
}
