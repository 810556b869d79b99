//! Where the record of a data disk is kept.
//!
//! A file has it beside itself: `disk.img` has `disk.img.dcd`, so that both are moved or forgotten together. A block
//! device has it in the state directory, under the best of its names, or else its device number. That is a name for people: the record
//! says which disk it belongs to (`identity.rs`), as disks are numbered anew and links come and go. Only where neither the record nor the
//! disk has anything to tell them apart, as with a blank disk without a serial number, the device number decides. A loop device can
//! have any number: its record is that of its file (`disk.img@4096.dcd`, where it begins at an offset).
//!
//! The export of an NBD server has its record in the state directory, too, under the names of the server and the export: it is reached
//! by the same URI each time.
//!
//! The record of an array is called by the array's UUID, and kept where its members have theirs: beside each that is a file, and
//! in the state directory. Members come and go, so every such directory has a copy. Where members lie on caches, it is their data disks
//! that count.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use dcd_nbd::{Server, Uri};

use super::identity::{Identity, System, numbers};
use super::udev;

/// Where records of block devices are kept; `DCD_STATE_DIR` names another directory.
const STATE_DIR: &str = "/var/lib/dcd";
/// What a record's name ends with.
const SUFFIX: &str = ".dcd";
/// What the name of an array's record begins with.
const ARRAY: &str = "array-";

/// How much of an export's name is in the name of its record.
const EXPORT_SIGNS_MAX: usize = 100;

/// Where the record of a disk may be.
#[derive(Debug)]
pub enum Place {
    /// Beside a file; of an export, in the state directory.
    Beside(PathBuf),
    InStateDir(Block),
}

/// A block device.
#[derive(Debug)]
pub struct Block {
    device: PathBuf,
    number: u64,
    state_dir: PathBuf,
    system: System,
    identity: Identity,
}

pub fn place(device: &Path) -> std::io::Result<Place> {
    if let Some(uri) = device.to_str().and_then(|text| Uri::parse(text).ok()) {
        return Ok(Place::Beside(state_dir().join(of_export(&uri))));
    }
    let device = fs::canonicalize(device)?;
    let metadata = fs::metadata(&device)?;
    if !metadata.file_type().is_block_device() {
        return Ok(Place::Beside(beside(&device, 0)));
    }
    let system = System::default();
    if let Some((file, offset)) = file_of_loop(&system.sysfs, metadata.rdev()) {
        return Ok(Place::Beside(beside(&fs::canonicalize(file)?, offset)));
    }
    Ok(Place::InStateDir(Block::new(device, metadata.rdev(), state_dir(), system)))
}

pub fn state_dir() -> PathBuf {
    std::env::var_os("DCD_STATE_DIR").map_or(PathBuf::from(STATE_DIR), PathBuf::from)
}

/// The record of an export: where its server is and what it is called there, in signs that a file name may have. What those leave out is
/// in a checksum.
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

impl Block {
    pub fn new(device: PathBuf, number: u64, state_dir: PathBuf, system: System) -> Block {
        let identity = Identity::of(&device, number, &system);
        Block { device, number, state_dir, system, identity }
    }

    /// A device that udev is about to make links to.
    pub fn linked(
        device: PathBuf,
        number: u64,
        state_dir: PathBuf,
        system: System,
        links: &[PathBuf],
    ) -> Block {
        let block = Block::new(device, number, state_dir, system);
        let identity = block.identity.with_links(links, &block.system);
        Block { identity, ..block }
    }

    /// Has udev look at the disk again: a record has come, or has gone.
    pub fn announce(&self) {
        udev::announce(&self.system, self.number);
    }

    /// Where a record is looked for first: under each name, and under the number.
    pub fn own_paths(&self) -> Vec<PathBuf> {
        let number = number_name(self.number);
        let names = self.identity.names.iter().chain(std::iter::once(&number));
        names.map(|name| self.state_dir.join(format!("{name}{SUFFIX}"))).collect()
    }

    /// The records of all disks, in a fixed order.
    pub fn all_paths(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.state_dir).into_iter().flatten().flatten();
        let is_of_disk = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.ends_with(SUFFIX) && !name.starts_with(ARRAY)
        };
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_of_disk).collect();
        all.sort();
        all
    }

    /// Where a new record goes: under the best name that another disk's record does not have.
    pub fn new_path(&self) -> PathBuf {
        let best = self.own_paths().swap_remove(0);
        let stem = best.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        let others = (2..).map(|count| best.with_file_name(format!("{stem}-{count}{SUFFIX}")));
        let mut paths = std::iter::once(best.clone()).chain(others);
        paths.find(|path| !path.exists()).unwrap_or(best)
    }

    /// True where a record says that it is this disk's.
    pub fn is(&self, recorded: &Identity) -> bool {
        recorded.is(&self.identity) == Some(true)
    }

    /// True where a record under this disk's name or number may be its own: one from before records said so, and one of a disk on which
    /// something else was put since, as long as that disk is not there under another number.
    pub fn may_be(&self, recorded: Option<&Identity>) -> bool {
        let Some(recorded) = recorded else { return true };
        let by_name = !recorded.names.is_empty() && !self.identity.names.is_empty();
        match recorded.is(&self.identity) {
            Some(true) => true,
            Some(false) if by_name => false,
            _ => !recorded.is_elsewhere(&self.device, &self.system),
        }
    }

    /// What a record that is written now says of the disk: there may be another file system on it than when it was opened.
    pub fn identity(&self) -> Identity {
        let now = Identity::of(&self.device, self.number, &self.system);
        match now.names == self.identity.names {
            true => Identity { content: now.content.or(self.identity.content.clone()), ..now },
            false => self.identity.clone(),
        }
    }
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

/// The paths of all copies of an array's record, of which these are members.
pub fn array_places(uuid: &str, members: &[&Path]) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for member in members {
        let name = format!("{ARRAY}{uuid}{SUFFIX}");
        let copy = match place(member)? {
            Place::Beside(path) => path.with_file_name(name),
            Place::InStateDir(block) => block.state_dir.join(name),
        };
        if !all.contains(&copy) {
            all.push(copy);
        }
    }
    Ok(all)
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
            let Place::Beside(path) = place(&dir.join(name)).unwrap() else { panic!("it is a file") };
            assert_eq!(path, dir.join("disk.img.dcd"));
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
        assert_eq!(beside(&file, offset), dir.path().join("disk.img@4096.dcd"));
        assert_eq!(beside(&image, 0), dir.path().join("disk.img.dcd"));
    }
}
