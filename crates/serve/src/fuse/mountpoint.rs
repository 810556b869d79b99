//! Mount points: finds existing mounts, and removes those that a killed server has left.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::FuseError;

/// The source of our mounts in the kernel's list. Their type is "fuse.dcd" where fusermount3 has made them, and plain
/// "fuse" where root has.
pub const MOUNT_SOURCE: &str = "dcd";
/// Maximum number of stale mounts to remove from a directory: servers may have been killed one after the other.
const STALE_MOUNTS_MAX: usize = 16;

/// Maximum time for a server to answer whether it runs.
const PATIENCE: Duration = Duration::from_secs(5);

/// Prepares a directory as a mount point, and returns its full path. A stale mount of ours is removed; any other mount on
/// the directory is left alone and refused.
///
/// The second value is true if a stale mount was removed.
pub fn prepare(directory: &Path) -> Result<(PathBuf, bool), FuseError> {
    let path = full_path(directory)?;
    let mut was_stale = false;
    for _ in 0..STALE_MOUNTS_MAX {
        let Some(mounted) = topmost_mount(&path)? else { break };
        if !mounted.is_ours() || !is_stale(&path)? {
            return Err(FuseError::Occupied { path, kind: mounted.kind });
        }
        was_stale = true;
        unmount(&path, UnmountFlags::DETACH).map_err(|source| FuseError::mount(&path, source))?;
    }
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok((path, was_stale)),
        Ok(_) => Err(FuseError::NotADirectory { path }),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Err(FuseError::NotADirectory { path }),
        Err(source) => Err(FuseError::mount(&path, source)),
    }
}

/// True if the server of a mount is gone. A server whose process is stopped does not answer.
fn is_stale(path: &Path) -> Result<bool, FuseError> {
    let (found, find) = mpsc::sync_channel(1);
    let mounted = path.to_owned();
    let finds = move || {
        // Not stat: the kernel answers that from its cache, even for a dead server. Sending fails only if the caller no longer waits.
        let _ = found.send(matches!(rustix::fs::statfs(&mounted), Err(Errno::NOTCONN | Errno::CONNABORTED)));
    };
    let thread = thread::Builder::new().name("dcd-mount".to_owned()).spawn(finds);
    thread.map_err(|source| FuseError::mount(path, source))?;
    find.recv_timeout(PATIENCE).map_err(|_| FuseError::Silent { path: path.to_owned() })
}

/// Unmounts our mount. If it is in use (a loop device on the image), its path disappears now, and its users lose it when they
/// close it or the server ends.
pub fn release(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::NOFOLLOW) {
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
            unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        }
        result => result,
    }
}

/// Returns the path without links, even if its last part is a mount whose server does not answer.
fn full_path(directory: &Path) -> Result<PathBuf, FuseError> {
    let wrong = |source| FuseError::mount(directory, source);
    match directory.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(FuseError::NotADirectory { path: directory.to_owned() })
        }
        Err(_) => {
            let absolute = std::path::absolute(directory).map_err(wrong)?;
            let parent = absolute.parent().unwrap_or(Path::new("/")).canonicalize().map_err(wrong)?;
            Ok(absolute.file_name().map_or(parent.clone(), |name| parent.join(name)))
        }
    }
}

/// A line of the kernel's list of mounts.
#[derive(Debug, PartialEq, Eq)]
struct Mounted {
    kind: String,
    source: String,
}

impl Mounted {
    fn is_ours(&self) -> bool {
        self.kind.starts_with("fuse") && self.source == MOUNT_SOURCE
    }
}

/// Returns the last mount on exactly this path.
fn topmost_mount(path: &Path) -> Result<Option<Mounted>, FuseError> {
    let list = std::fs::read("/proc/self/mountinfo").map_err(|source| FuseError::mount(path, source))?;
    let list = String::from_utf8_lossy(&list).into_owned();
    let wanted = escape(&path.to_string_lossy());
    Ok(list.lines().filter_map(|line| mount_on(line, &wanted)).next_back())
}

/// Reads one line of mountinfo, where its mount point is `path`: fields, a hyphen, then type and source.
fn mount_on(line: &str, path: &str) -> Option<Mounted> {
    let (fields, rest) = line.split_once(" - ")?;
    let mut rest = rest.split(' ');
    let (kind, source) = (rest.next()?.to_owned(), rest.next()?.to_owned());
    (fields.split(' ').nth(4)? == path).then_some(Mounted { kind, source })
}

/// Escapes a path as the kernel does in its list of mounts.
fn escape(path: &str) -> String {
    path.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

fn unmount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(path, flags) {
        // A user other than root unmounts by the helper that made the mount.
        Err(Errno::PERM) => {
            let how = if flags.contains(UnmountFlags::DETACH) { "-uz" } else { "-u" };
            let mut helper = Command::new("fusermount3");
            let status = helper.arg(how).arg("--").arg(path).stderr(Stdio::null()).status()?;
            if status.success() { Ok(()) } else { Err(Errno::BUSY.into()) }
        }
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_kernels_list() {
        let line = "36 35 98:0 /mnt1 /mnt/a\\040b rw,noatime master:1 - fuse.dcd dcd rw,errors=continue";
        assert!(mount_on(line, &escape("/mnt/a b")).unwrap().is_ours());
        assert_eq!(mount_on(line, "/mnt/a"), None);
        assert_eq!(mount_on("no such line", "/mnt/a"), None);
        assert!(!mount_on("43 27 0:40 / /m rw - fuse sshfs rw", "/m").unwrap().is_ours());
        assert!(!mount_on("43 27 0:40 / /m rw - ext4 dcd rw", "/m").unwrap().is_ours());
    }
}
