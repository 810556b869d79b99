//! Finds the place of a data disk's record.
//!
//! The record of a file lies beside it: `disk.img` has `disk.img.dcd`, so that both are moved or deleted together. The file's mark
//! (`mark.rs`) leads there from every other name of the file. The record of a block device is in the state directory, under the best of its
//! names, or else its number. That name is for people: the record itself says which disk it belongs to (`identity.rs`), as the numbers and
//! links of disks change. The device number decides only if nothing else identifies the disk, such as a blank disk without a serial
//! number. A loop device can have any number: its record is that of its file (`disk.img@4096.dcd`, if it begins at an offset).
//!
//! The export of an NBD server has its record in the state directory, too, under the names of the server and the export, as these are in
//! the URI each time.
//!
//! The record of an array is named by the array's UUID, and kept where its members have theirs: beside each that is a file, and
//! in the state directory. Members come and go, so every such directory has a copy. For a member on a cache, the cache's data disk
//! counts.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use dcd_io::{LoopFile, loop_file};
use dcd_nbd::{Server, Uri};

use super::identity::{DiskIdentity, Match, System, number_text, numbers};
use super::mark::MarkedFile;

/// Directory of the records of block devices; `DCD_STATE_DIR` names another one.
const STATE_DIR: &str = "/var/lib/dcd";
/// Suffix of a record's name.
const SUFFIX: &str = ".dcd";
/// Prefix of the name of an array's record.
const ARRAY: &str = "array-";

/// Maximum number of characters of an export's server and name in the name of its record.
const EXPORT_SIGNS_MAX: usize = 100;

/// Place of a disk's record.
#[derive(Debug)]
pub enum RecordLocation {
    /// Path of an export's record: in the state directory, under the names of the server and the export.
    Export(PathBuf),
    File(FileDisk),
    InStateDir(BlockDisk),
}

/// A file, or what begins in it at an offset.
#[derive(Debug)]
pub struct FileDisk {
    pub file: PathBuf,
    pub offset: u64,
    /// Path of the record by the name under which the file was found.
    pub beside: PathBuf,
    pub marked: MarkedFile,
}

/// A block device.
#[derive(Debug)]
pub struct BlockDisk {
    pub device: PathBuf,
    pub number: u64,
    pub state_dir: PathBuf,
    pub system: System,
    identity: DiskIdentity,
    /// Path of a loop device's file, where that path leads to another file here, or to none.
    pub hidden_file: Option<PathBuf>,
}

pub fn place(device: &Path) -> std::io::Result<RecordLocation> {
    if let Some(uri) = device.to_str().and_then(|text| Uri::parse(text).ok()) {
        return Ok(RecordLocation::Export(state_dir().join(of_export(&uri))));
    }
    let device = fs::canonicalize(device)?;
    let metadata = fs::metadata(&device)?;
    if !metadata.file_type().is_block_device() {
        return Ok(RecordLocation::File(FileDisk::new(device, 0)));
    }
    let system = System::default();
    let block = |hidden_file| BlockDisk {
        hidden_file,
        ..BlockDisk::new(device.clone(), metadata.rdev(), state_dir(), System::default())
    };
    Ok(match file_of_loop(&system.sysfs, &device, metadata.rdev())? {
        None => RecordLocation::InStateDir(block(None)),
        Some(Behind { path, offset, is_it: true }) => {
            RecordLocation::File(FileDisk::new(fs::canonicalize(path)?, offset))
        }
        Some(Behind { path, .. }) => RecordLocation::InStateDir(block(Some(path))),
    })
}

/// Names that a block device keeps when its number changes, and that no other device has, the best first; none for a file, which has a
/// path.
pub fn names_of(device: &Path) -> Vec<String> {
    match place(device) {
        Ok(RecordLocation::InStateDir(block)) => block.identity.own_names().cloned().collect(),
        _ => Vec::new(),
    }
}

pub fn state_dir() -> PathBuf {
    // Unit tests leave nothing on the machine.
    let default = if cfg!(test) { std::env::temp_dir().join("dcd-unit-tests") } else { STATE_DIR.into() };
    std::env::var_os("DCD_STATE_DIR").map_or(default, PathBuf::from)
}

/// File name of an export's record: the names of the server and the export, in characters that a file name may have. A checksum covers
/// what these leave out.
fn of_export(uri: &Uri) -> String {
    let server = match &uri.server {
        Server::Tcp { host, port } => format!("{host}-{port}"),
        Server::Unix(path) => path.display().to_string(),
    };
    let whole = format!("{server}/{}", uri.export);
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = whole.chars().map(plain).take(EXPORT_SIGNS_MAX).collect();
    format!("nbd-{name}-{:08x}{SUFFIX}", dcd_nbd::checksum(whole.as_bytes()))
}

impl FileDisk {
    pub fn new(file: PathBuf, offset: u64) -> FileDisk {
        let marked = MarkedFile::new(file.clone(), offset);
        FileDisk { beside: beside(&file, offset), marked, file, offset }
    }
}

impl BlockDisk {
    pub fn new(device: PathBuf, number: u64, state_dir: PathBuf, system: System) -> BlockDisk {
        let identity = DiskIdentity::of(&device, number, &system);
        BlockDisk { device, number, state_dir, system, identity, hidden_file: None }
    }

    /// A device that udev is about to make links to.
    pub fn linked(
        device: PathBuf,
        number: u64,
        state_dir: PathBuf,
        system: System,
        links: &[PathBuf],
    ) -> BlockDisk {
        let block = BlockDisk::new(device, number, state_dir, system);
        let identity = block.identity.with_links(links, &block.system);
        BlockDisk { identity, ..block }
    }

    /// Makes udev look at the disk and its partitions again, after a record was made or removed. That fails in a container, which has no
    /// udev; the record counts all the same.
    pub fn announce(&self) {
        let folder = self.system.sysfs.join(number_text(self.number));
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let partitions = entries.filter(|path| path.join("partition").exists());
        for device in std::iter::once(folder.clone()).chain(partitions) {
            let uevent = fs::OpenOptions::new().write(true).open(device.join("uevent"));
            let _ = uevent.and_then(|mut uevent| uevent.write_all(b"change"));
        }
    }

    /// Returns the paths where a record is looked for first: under each name, and under the number.
    pub fn own_paths(&self) -> Vec<PathBuf> {
        let number = number_name(self.number);
        let names = self.identity.names.iter().chain(std::iter::once(&number));
        names.map(|name| self.state_dir.join(format!("{name}{SUFFIX}"))).collect()
    }

    /// The records of all disks, in a fixed order.
    pub fn all_paths(&self) -> Vec<PathBuf> {
        records_in(&self.state_dir)
    }

    /// Returns the path of a new record: under the best name that another disk's record does not have.
    pub fn new_path(&self) -> PathBuf {
        let best = self.own_paths().swap_remove(0);
        let stem = best.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let others = (2..).map(|count| best.with_file_name(format!("{stem}-{count}{SUFFIX}")));
        let mut paths = std::iter::once(best.clone()).chain(others);
        paths.find(|path| !path.exists()).unwrap_or(best)
    }

    /// Decides whether a record that lies under a name or the number of this disk is its own. A record that names no disk may be. So may
    /// one that names other content, unless a disk with that content is found under another number.
    pub fn matches(&self, recorded: Option<&DiskIdentity>) -> Match {
        match recorded.map(|recorded| (self.identity.matches(recorded), recorded)) {
            Some((Match::Unclear, recorded))
                if recorded.is_elsewhere(&self.device, self.number, &self.system) =>
            {
                Match::Other
            }
            Some((verdict, _)) => verdict,
            None => Match::Unclear,
        }
    }

    /// True if another device of the system has a name of this disk.
    pub fn has_other(&self, recorded: &DiskIdentity) -> bool {
        recorded.is_named_elsewhere(self.number, &self.system)
    }

    /// Returns the disk's identity at the last look, for the record. A record is written without looking, as the disk may not answer.
    pub fn identity(&self) -> DiskIdentity {
        self.identity.clone()
    }

    /// Looks at the disk again, as it may have another file system than when it was opened. True if that changes what a record says.
    pub fn look_again(&mut self) -> bool {
        let now = DiskIdentity::of(&self.device, self.number, &self.system);
        let has_changed = now.names == self.identity.names && now.content.is_some() && now != self.identity;
        if has_changed {
            self.identity = now;
        }
        has_changed
    }
}

/// The records of disks in a state directory, in a fixed order.
pub fn records_in(state_dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state_dir).into_iter().flatten().flatten();
    let is_of_disk = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.ends_with(SUFFIX) && !name.starts_with(ARRAY)
    };
    let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_of_disk).collect();
    all.sort();
    all
}

/// The record of a file, or of what begins at an offset in it.
fn beside(file: &Path, offset: u64) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    if offset > 0 {
        name.push(format!("@{offset}"));
    }
    name.push(SUFFIX);
    file.with_file_name(name)
}

/// The byte of a file at which the disk begins whose record has this name beside the file; none for another name.
pub fn offset_beside(file: &Path, name: &OsStr) -> Option<u64> {
    let rest = name.as_encoded_bytes().strip_prefix(file.file_name()?.as_encoded_bytes())?;
    match std::str::from_utf8(rest).ok()?.strip_suffix(SUFFIX)? {
        "" => Some(0),
        offset => offset.strip_prefix('@')?.parse().ok(),
    }
}

/// The file that this record lies beside; none for another name.
pub fn file_of(record: &Path) -> Option<PathBuf> {
    let name = record.file_name()?.to_str()?.strip_suffix(SUFFIX)?;
    let (file, offset) = name.rsplit_once('@').unwrap_or((name, ""));
    let is_offset = offset.bytes().all(|digit| digit.is_ascii_digit());
    Some(record.with_file_name(if is_offset { file } else { name }))
}

/// The paths of all copies of an array's record, of which these are members.
pub fn array_places(uuid: &str, members: &[&Path]) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for member in members {
        let name = format!("{ARRAY}{uuid}{SUFFIX}");
        let copy = match place(member)? {
            RecordLocation::Export(path) | RecordLocation::File(FileDisk { beside: path, .. }) => {
                path.with_file_name(name)
            }
            RecordLocation::InStateDir(block) => block.state_dir.join(name),
        };
        if !all.contains(&copy) {
            all.push(copy);
        }
    }
    Ok(all)
}

/// The file behind a loop device.
struct Behind {
    path: PathBuf,
    offset: u64,
    /// True if the path leads to the file that the kernel has open.
    is_it: bool,
}

/// Finds the file behind a loop device; none for other devices. The kernel's path is that in the mount namespace in which the loop device
/// was made, and here it may lead to another file. So the file's device and inode decide.
fn file_of_loop(sysfs: &Path, device: &Path, number: u64) -> std::io::Result<Option<Behind>> {
    let (major, minor) = numbers(number);
    let Ok(path) = fs::read_to_string(sysfs.join(format!("{major}:{minor}/loop/backing_file"))) else {
        return Ok(None);
    };
    let path = PathBuf::from(path.trim_end_matches('\n'));
    let Some(LoopFile { device, inode, offset }) = loop_file(&fs::File::open(device)?)? else {
        return Ok(None);
    };
    let is_it = fs::metadata(&path).is_ok_and(|found| {
        found.is_file() && (found.ino(), numbers(found.dev())) == (inode, numbers(device))
    });
    Ok(Some(Behind { path, offset, is_it }))
}

/// `block-MAJOR-MINOR`.
fn number_name(device: u64) -> String {
    let (major, minor) = numbers(device);
    format!("block-{major}-{minor}")
}

#[cfg(test)]
mod tests {
    use super::super::identity::tests::Fake;
    use super::*;

    #[test]
    fn a_file_has_its_record_beside_itself_also_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let dir = fs::canonicalize(dir.path()).unwrap();
        fs::write(dir.join("disk.img"), b"").unwrap();
        std::os::unix::fs::symlink(dir.join("disk.img"), dir.join("link")).unwrap();
        for name in ["disk.img", "link"] {
            let RecordLocation::File(file) = place(&dir.join(name)).unwrap() else { panic!("it is a file") };
            assert_eq!(file.beside, dir.join("disk.img.dcd"));
        }
        assert!(place(&dir.join("missing")).is_err());
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
    fn what_begins_at_an_offset_of_a_file_has_a_record_of_its_own() {
        let file = Path::new("/disks/disk.img");
        assert_eq!(beside(file, 4096), Path::new("/disks/disk.img@4096.dcd"));
        assert_eq!(beside(file, 0), Path::new("/disks/disk.img.dcd"));
    }

    #[test]
    fn udev_looks_again_at_a_disk_and_its_partitions() {
        let fake = Fake::new();
        let disk = 8 << 8;
        fake.numbered(disk, "sda");
        for name in ["uevent", "sda1/uevent", "sda1/partition", "queue/uevent"] {
            fake.attribute(disk, name, "");
        }
        let block = |number| {
            BlockDisk::new(fake.device("sda"), number, fake.dir.path().join("state"), fake.system.clone())
        };
        block(disk).announce();
        let read = |name: &str| fs::read_to_string(fake.system.sysfs.join("8:0").join(name)).unwrap();
        assert!(read("uevent").starts_with("change") && read("sda1/uevent").starts_with("change"));
        assert_eq!(read("queue/uevent"), "\n", "that is no device");
        block(9 << 8).announce();
    }
}
