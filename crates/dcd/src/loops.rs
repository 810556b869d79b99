//! Loop devices that `dcd attach` made, and the lock that lets only one command at a time look for them and make them.
//!
//! A loop device outlives a killed server, and then its path leads nowhere. So the devices that were made for a stack are noted in a file
//! of the stack in /run; the lock is on that file. A reboot removes both the devices and the notes.

use std::fs::{self, File};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dcd_serve::fuse::IMAGE_NAME;
use serde::{Deserialize, Serialize};

const NOTES: &str = "/run/dcd-attach";
const DISKS: &str = "/sys/block";

/// The loop devices of one stack, for as long as this command works on them.
pub struct StackLoops {
    /// None for an ordinary user, who can make no device.
    file: Option<File>,
    noted: NotedLoops,
}

#[derive(Default, Serialize, Deserialize)]
struct NotedLoops {
    stack: PathBuf,
    loops: Vec<Loop>,
}

/// A loop device as it was made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Loop {
    /// Name in /sys/block.
    name: String,
    image: PathBuf,
    device: u64,
    inode: u64,
}

impl Loop {
    fn new(name: &str, image: &Path) -> Option<Loop> {
        let found = fs::metadata(image).ok()?;
        Some(Loop { name: name.to_owned(), image: image.to_owned(), device: found.dev(), inode: found.ino() })
    }

    /// True while the kernel has it. After a server was killed, the image is at the root of a file system that is mounted nowhere and does
    /// not answer.
    fn is_there(&self) -> bool {
        let path = Path::new(DISKS).join(&self.name).join("loop/backing_file");
        let Ok(backing) = fs::read_to_string(path) else { return false };
        let backing = Path::new(backing.trim_end_matches('\n'));
        let told = File::open(Path::new("/dev").join(&self.name)).and_then(|node| dcd_io::loop_file(&node));
        let is_same = match told {
            Ok(Some(file)) => (file.device, file.inode) == (self.device, self.inode),
            Ok(None) => false,
            Err(_) => true,
        };
        is_same && (backing == self.image || backing == Path::new("/").join(IMAGE_NAME))
    }

    /// True where the server that showed its image has ended.
    fn is_stale(&self) -> bool {
        let shown = fs::metadata(&self.image).map(|found| (found.dev(), found.ino()));
        !shown.is_ok_and(|shown| shown == (self.device, self.inode))
    }
}

impl StackLoops {
    /// Waits until no other command works on the loop devices of this stack.
    ///
    /// # Errors
    /// Where /run cannot be written.
    pub fn lock(stack: &Path) -> io::Result<StackLoops> {
        StackLoops::lock_in(Path::new(NOTES), stack)
    }

    fn lock_in(notes: &Path, stack: &Path) -> io::Result<StackLoops> {
        let stack = fs::canonicalize(stack)?;
        let name = format!("{:08x}", dcd_nbd::checksum(stack.as_os_str().as_encoded_bytes()));
        let mut file = match dcd_io::lock_notes(&notes.join(name)) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
            Err(error) => return Err(error),
        };
        let loops = file.as_mut().map_or_else(Vec::new, |file| read(file).loops);
        Ok(StackLoops { file, noted: NotedLoops { loops, stack } })
    }

    /// Devices that were made for this stack, over an image that is meant, and still exist.
    pub fn names(&self, is_meant: impl Fn(&Path) -> bool) -> Vec<String> {
        let meant = self.noted.loops.iter().filter(|made| is_meant(&made.image) && made.is_there());
        meant.map(|made| made.name.clone()).collect()
    }

    /// Devices whose servers have ended.
    pub fn stale(&self) -> Vec<String> {
        stale(&self.noted)
    }

    /// Notes a device that was made.
    ///
    /// # Errors
    /// Where /run cannot be written.
    pub fn add(&mut self, name: &str, image: &Path) -> io::Result<()> {
        self.noted.loops.retain(|made| made.name != name && made.is_there());
        self.noted.loops.extend(Loop::new(name, image));
        self.write()
    }

    /// Forgets a device that was taken away.
    ///
    /// # Errors
    /// Where /run cannot be written.
    pub fn remove(&mut self, name: &str) -> io::Result<()> {
        self.noted.loops.retain(|made| made.name != name);
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(&serde_json::to_vec(&self.noted).map_err(io::Error::other)?)
    }
}

fn read(file: &mut File) -> NotedLoops {
    let mut text = String::new();
    // A file that a crash has cut short counts as empty: its devices are found by their images.
    let _ = file.read_to_string(&mut text);
    serde_json::from_str(&text).unwrap_or_default()
}

fn stale(noted: &NotedLoops) -> Vec<String> {
    let stale = noted.loops.iter().filter(|made| made.is_stale() && made.is_there());
    stale.map(|made| made.name.clone()).collect()
}

/// The way to take away a device whose server has ended, and no other: its stack may have a new device, which works.
pub fn way_out(name: &str) -> String {
    format!(
        "unmount what is on it by its own name, and detach it alone, as a newer device of the stack stays: umount /dev/{name}; losetup --detach \
         /dev/{name}"
    )
}

/// Loop devices of all stacks whose servers have ended, each with its stack file.
pub fn all_stale() -> Vec<(PathBuf, String)> {
    let notes = fs::read_dir(NOTES).into_iter().flatten().flatten();
    let noted = notes.filter_map(|entry| Some(read(&mut File::open(entry.path()).ok()?)));
    noted.flat_map(|noted| stale(&noted).into_iter().map(move |name| (noted.stack.clone(), name))).collect()
}

/// Loop devices over images of servers that have ended, which other programs have made: no stack has noted them.
pub fn stale_by_hand() -> Vec<String> {
    let noted: Vec<String> = all_stale().into_iter().map(|(_, name)| name).collect();
    let names = fs::read_dir(DISKS).into_iter().flatten().flatten();
    let names = names.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !noted.contains(name) && is_over_dead_image(name)).collect()
}

/// True for a loop device over an image at the root of a file system that is mounted nowhere and does not answer.
fn is_over_dead_image(name: &str) -> bool {
    let path = Path::new(DISKS).join(name).join("loop/backing_file");
    let root = Path::new("/").join(IMAGE_NAME);
    let is_at_root =
        fs::read_to_string(path).is_ok_and(|file| Path::new(file.trim_end_matches('\n')) == root);
    let told = || File::open(Path::new("/dev").join(name)).and_then(|node| dcd_io::loop_file(&node));
    let shown = || fs::metadata(&root).map(|found| (found.dev(), found.ino())).ok();
    is_at_root && !told().is_ok_and(|file| file.map(|file| (file.device, file.inode)) == shown())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_the_kernel_does_not_have_is_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let [stack, image] = ["a.toml", IMAGE_NAME].map(|name| dir.path().join(name));
        for path in [&stack, &image] {
            fs::write(path, "x").unwrap();
        }
        let lock = || StackLoops::lock_in(&dir.path().join("notes"), &stack).unwrap();
        lock().add("loop-of-nobody", &image).unwrap();
        let again = lock();
        assert_eq!(again.noted.loops.len(), 1);
        assert!(again.names(|_| true).is_empty() && again.stale().is_empty());
        drop(again);
        lock().remove("loop-of-nobody").unwrap();
        assert!(lock().noted.loops.is_empty());
    }
}
