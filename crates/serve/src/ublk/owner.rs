//! Recognises the stack of a device, and finds the users of a device.
//!
//! The kernel stores a word for the server of a device, and returns it with GET_DEV_INFO. The word is the stack's mark, a hash of its
//! stack file, its export and a key of the disk below that. A disk's path or cache may change between starts, so a disk has several
//! keys: names of the hardware, the UUID of its cache, its path. A new device gets the mark of the first key. The device's note in /run
//! has the marks of all keys, and one common mark is enough. It also has the stack's name, for people. The kernel protects the word as
//! its own memory, and drops it with the device.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};

/// Directory of the notes. The systemd unit's own directory would be removed when the unit stops.
const RUN_DIR: &str = "/run/dcd-ublk";
/// The upper 16 bits of every mark.
const OURS: u64 = 0xdcd1 << 48;
/// Maximum time of an open that tests whether a device is in use.
const OPEN_PATIENCE: Duration = Duration::from_secs(5);

/// A stack that owns a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    stack: PathBuf,
    /// Marks of the stack, from each key of the disk at the bottom.
    marks: Vec<u64>,
    name: Option<String>,
}

impl Owner {
    /// `keys`: identify the disk at the bottom, the best first. With another disk, the same stack file is not the device's owner.
    pub fn new(stack: &Path, export: &str, keys: &[String]) -> Owner {
        let stack = fs::canonicalize(stack).unwrap_or_else(|_| stack.to_owned());
        let mark = |key: &str| {
            let text = format!("{}\0{export}\0{key}", stack.display());
            OURS | (hash(text.as_bytes()) >> 16)
        };
        let marks = if keys.is_empty() { vec![mark("")] } else { keys.iter().map(|key| mark(key)).collect() };
        Owner { stack, marks, name: None }
    }

    /// Returns the owner with the name of the device in /dev/dcd.
    pub fn named(self, name: Option<String>) -> Owner {
        Owner { name, ..self }
    }

    /// The mark for a new device.
    pub fn mark(&self) -> u64 {
        self.marks[0]
    }

    /// All marks, the best first.
    pub fn marks(&self) -> &[u64] {
        &self.marks
    }

    /// True if one of these marks is this stack's, whichever name its disk had when they were made.
    pub fn has(&self, marks: &[u64]) -> bool {
        marks.iter().any(|mark| self.marks.contains(mark))
    }

    /// True for the device with this mark, if this stack has made it.
    pub fn has_device(&self, number: u32, mark: u64) -> bool {
        let note = fs::read_to_string(note_path(number)).unwrap_or_default();
        self.has(&[mark]) || self.has(&marks_in(&note, mark))
    }

    /// Returns the owner for continuing with a device that has this mark.
    pub fn with_mark(&self, mark: u64) -> Owner {
        let others = self.marks.iter().copied().filter(|other| *other != mark);
        Owner { marks: std::iter::once(mark).chain(others).collect(), ..self.clone() }
    }

    /// The stack file.
    pub fn stack(&self) -> &Path {
        &self.stack
    }

    /// Writes the name of the stack and this process to the device's note, before the device exists. `stack_of` reads the note, and so do
    /// the udev rules, which link /dev/dcd/NAME and open no device without its server.
    pub fn note(&self, number: u32) -> io::Result<()> {
        fs::create_dir_all(RUN_DIR)?;
        self.forget_others(number);
        fs::write(note_path(number), self.noted())
    }

    fn noted(&self) -> String {
        let name = self.name.as_ref().map_or(String::new(), |name| format!("DCD_NAME={name}\n"));
        let server = std::process::id();
        let marks: Vec<String> = self.marks.iter().map(|mark| format!("{mark:x}")).collect();
        format!(
            "{:x}\n{}\n{name}DCD_SERVER={server}\nDCD_MARKS={}\n",
            self.mark(),
            self.stack.display(),
            marks.join(" ")
        )
    }

    /// Removes older notes of this stack, which has a single device. Another program may have removed a device without its note, and
    /// its number may get a new owner.
    fn forget_others(&self, number: u32) {
        for other in fs::read_dir(RUN_DIR).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let note = fs::read_to_string(&other).unwrap_or_default();
            if other != note_path(number) && note.starts_with(&format!("{:x}\n", self.mark())) {
                let _ = fs::remove_file(other);
            }
        }
    }
}

/// Hashes bytes by FNV-1a, which must not change between versions of the program.
fn hash(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

fn note_path(number: u32) -> PathBuf {
    Path::new(RUN_DIR).join(format!("ublk{number}"))
}

pub fn forget(number: u32) {
    // The note may be missing.
    let _ = fs::remove_file(note_path(number));
}

/// True if a mark is one of dcd's.
pub fn is_ours(mark: u64) -> bool {
    mark & (0xffff << 48) == OURS
}

/// Returns the stack of a device with this mark, if a note names it.
pub fn stack_of(number: u32, mark: u64) -> Option<PathBuf> {
    stack_in(&fs::read_to_string(note_path(number)).ok()?, mark)
}

fn stack_in(note: &str, mark: u64) -> Option<PathBuf> {
    let mut lines = note.lines();
    let noted = lines.next().and_then(|noted| u64::from_str_radix(noted, 16).ok());
    lines.next().filter(|_| noted == Some(mark)).map(PathBuf::from)
}

/// The marks in the note of a device with this mark.
fn marks_in(note: &str, mark: u64) -> Vec<u64> {
    if stack_in(note, mark).is_none() {
        return Vec::new();
    }
    let marks = note.lines().find_map(|line| line.strip_prefix("DCD_MARKS=")).unwrap_or_default();
    marks.split(' ').filter_map(|mark| u64::from_str_radix(mark, 16).ok()).collect()
}

/// Returns the user of the device with this name, from tables of the system. It opens nothing, so it does not wait for the device.
pub fn user(name: &str) -> Option<String> {
    let holders = |of: &Path| {
        let holder = fs::read_dir(of.join("holders")).ok()?.flatten().next()?;
        Some(format!("/dev/{name}, part of {}", holder.file_name().to_string_lossy()))
    };
    let disk = Path::new("/sys/block").join(name);
    if let Some(user) = holders(&disk) {
        return Some(user);
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if let Some(line) = swaps.lines().find(|line| is_of(line.split_whitespace().next().unwrap_or(""), name)) {
        return Some(format!("{}, used for swapping", line.split_whitespace().next().unwrap_or(name)));
    }
    let mut seen = BTreeSet::new();
    let processes = || {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .map(|entry| entry.path())
            .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0].is_ascii_digit()))
    };
    let mounted = processes().find_map(|process| {
        // Each mount namespace once.
        let namespace = fs::read_link(process.join("ns/mnt")).ok()?;
        seen.insert(namespace).then(|| mount_of(&process, name)).flatten()
    });
    let own = PathBuf::from(format!("/proc/{}", std::process::id()));
    mounted
        .or_else(|| processes().filter(|process| *process != own).find_map(|process| opener(&process, name)))
}

/// True if a path is the node of the disk, or of one of its partitions.
fn is_of(path: &str, name: &str) -> bool {
    path.strip_prefix("/dev/").and_then(|path| path.strip_prefix(name)).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix('p').is_some_and(|part| part.parse::<u32>().is_ok())
    })
}

fn mount_of(process: &Path, name: &str) -> Option<String> {
    let mounts = fs::read_to_string(process.join("mountinfo")).ok()?;
    mounts.lines().find_map(|line| {
        let (fields, rest) = line.split_once(" - ")?;
        let source = rest.split(' ').nth(1)?;
        is_of(source, name)
            .then(|| format!("{source}, mounted on {}", fields.split(' ').nth(4).unwrap_or("?")))
    })
}

fn opener(process: &Path, name: &str) -> Option<String> {
    let entries = fs::read_dir(process.join("fd")).ok()?;
    let path = entries.flatten().find_map(|entry| {
        let path = fs::read_link(entry.path()).ok()?;
        is_of(path.to_str()?, name).then_some(path)
    })?;
    let program = fs::read_to_string(process.join("comm")).unwrap_or_default();
    let number = process.file_name()?.to_string_lossy().into_owned();
    Some(format!("{}, open in process {number} ({})", path.display(), program.trim()))
}

/// Opens a device so that it cannot be mounted. None where it has no node.
///
/// # Errors
/// ResourceBusy if the device is in use, or does not answer.
pub fn hold(name: &str) -> io::Result<Option<rustix::fd::OwnedFd>> {
    let (opened, open) = mpsc::sync_channel(1);
    let node = format!("/dev/{name}");
    let opens = move || {
        // The open of a device may wait for its requests. Sending fails only if the caller no longer waits.
        let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        let _ = opened.send(rustix::fs::open(node, flags, Mode::empty()));
    };
    thread::Builder::new().name("dcd-open".to_owned()).spawn(opens)?;
    match open.recv_timeout(OPEN_PATIENCE) {
        Ok(Ok(held)) => Ok(Some(held)),
        Ok(Err(rustix::io::Errno::NOENT | rustix::io::Errno::NXIO)) => Ok(None),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(io::ErrorKind::ResourceBusy.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_are_of_their_disk_and_other_numbers_are_not() {
        for (path, is) in [
            ("/dev/ublkb1", true),
            ("/dev/ublkb1p2", true),
            ("/dev/ublkb10", false),
            ("/dev/ublkb1p", false),
            ("/mnt/ublkb1", false),
        ] {
            assert_eq!(is_of(path, "ublkb1"), is, "{path}");
        }
    }

    fn owner(stack: &str, export: &str, keys: &[&str]) -> Owner {
        let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        Owner::new(Path::new(stack), export, &keys)
    }

    #[test]
    fn a_mark_changes_with_the_stack_what_it_exports_and_the_disk_below() {
        let made = owner("/nowhere/a.toml", "cache", &["/dev/a"]);
        assert!(is_ours(made.mark()) && !is_ours(0));
        assert_eq!(made, owner("/nowhere/a.toml", "cache", &["/dev/a"]));
        for other in [
            owner("/nowhere/b.toml", "cache", &["/dev/a"]),
            owner("/nowhere/a.toml", "disk", &["/dev/a"]),
            owner("/nowhere/a.toml", "cache", &["/dev/b"]),
            owner("/nowhere/a.toml", "cache", &[]),
        ] {
            assert!(!other.has(made.marks()), "{other:?}");
        }
    }

    #[test]
    fn a_device_is_known_when_its_disk_has_another_path() {
        let stack = "/nowhere/a.toml";
        let made = owner(stack, "cache", &["wwn-5", "uuid-1", "/dev/sdb"]);
        assert!(owner(stack, "cache", &["wwn-5", "uuid-1", "/dev/sdc"]).has(&[made.mark()]));
        assert!(owner(stack, "cache", &["ata-1", "wwn-5", "/dev/sdc"]).has(&[made.mark()]), "one more name");
        let nameless = owner(stack, "cache", &["uuid-1", "/dev/dm-3"]);
        assert!(owner(stack, "cache", &["uuid-1", "/dev/dm-4"]).has(&[nameless.mark()]));
        // Its log was replaced: the note says more than the mark.
        let replaced = owner(stack, "cache", &["uuid-2", "/dev/dm-3"]);
        assert!(!replaced.has(&[nameless.mark()]));
        assert!(replaced.has(&marks_in(&nameless.noted(), nameless.mark())));
        assert!(marks_in(&nameless.noted(), made.mark()).is_empty(), "the note of another device");
        let goes_on = replaced.with_mark(nameless.mark());
        assert_eq!((goes_on.mark(), goes_on.marks().len()), (nameless.mark(), 3));
        // A device of an earlier version has a mark by the path.
        let earlier = owner(stack, "cache", &["/dev/sdb"]);
        assert!(made.has(&[earlier.mark()]));
    }

    #[test]
    fn a_note_has_the_stack_for_people_and_the_name_for_udev() {
        let owner = owner("/nowhere/a.toml", "cache", &[]);
        let noted = |name: Option<&str>| owner.clone().named(name.map(str::to_owned)).noted();
        let more = format!("DCD_SERVER={}\nDCD_MARKS={:x}\n", std::process::id(), owner.mark());
        assert!(noted(Some("big")).ends_with(&format!("\n/nowhere/a.toml\nDCD_NAME=big\n{more}")));
        assert!(noted(None).ends_with(&format!("\n/nowhere/a.toml\n{more}")));
        assert_eq!(stack_in(&noted(Some("a")), owner.mark()), Some(PathBuf::from("/nowhere/a.toml")));
        assert_eq!(stack_in(&noted(Some("a")), owner.mark() + 1), None);
    }

    #[test]
    fn mounts_are_found_by_their_source() {
        let process = tempfile::tempdir().unwrap();
        let line = "36 35 259:0 / /mnt/data rw,noatime master:1 - ext4 /dev/ublkb3p1 rw\n";
        fs::write(process.path().join("mountinfo"), line).unwrap();
        assert_eq!(mount_of(process.path(), "ublkb3").unwrap(), "/dev/ublkb3p1, mounted on /mnt/data");
        assert_eq!(mount_of(process.path(), "ublkb30"), None);
    }
}
