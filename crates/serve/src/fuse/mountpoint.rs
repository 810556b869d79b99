//! Directories that are mounted on: what is there already, what a killed server has left, and how it is taken away.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::FuseError;

/// The type of our mounts in the kernel's list.
const MOUNT_TYPE: &str = "fuse.dcd";
/// Mounts on one directory that are taken away before giving up: servers that were killed one after the other.
const STALE_MOUNTS_MAX: usize = 16;

/// Makes a directory ready to be mounted on, and returns its full path: a stale mount of ours is taken away, anything
/// else that is mounted there is left alone and refused.
pub fn prepare(directory: &Path) -> Result<PathBuf, FuseError> {
    let path = full_path(directory)?;
    for _ in 0..STALE_MOUNTS_MAX {
        let Some(mounted) = topmost_mount_type(&path)? else { break };
        let stale = matches!(rustix::fs::stat(&path), Err(Errno::NOTCONN | Errno::CONNABORTED));
        if !stale || mounted != MOUNT_TYPE {
            return Err(FuseError::Occupied { path, kind: mounted });
        }
        tracing::warn!(path = %path.display(), "taking away a mount whose server is gone");
        unmount(&path, UnmountFlags::DETACH).map_err(|source| FuseError::mount(&path, source))?;
    }
    match std::fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(path),
        Ok(_) => Err(FuseError::NotADirectory { path }),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Err(FuseError::NotADirectory { path }),
        Err(source) => Err(FuseError::mount(&path, source)),
    }
}

/// Takes our mount away. Where it is in use (a loop device on the image), it vanishes from the tree of files now, and
/// for its users when they let go or the server ends.
pub fn release(path: &Path) -> io::Result<()> {
    match unmount(path, UnmountFlags::NOFOLLOW) {
        Err(error) if error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
            tracing::warn!(path = %path.display(), "the image is still in use; detaching it");
            unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        }
        result => result,
    }
}

/// The path without links, although the last part may be a mount that nobody answers for.
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

/// The type of what is mounted last on exactly this path.
fn topmost_mount_type(path: &Path) -> Result<Option<String>, FuseError> {
    let list = std::fs::read("/proc/self/mountinfo").map_err(|source| FuseError::mount(path, source))?;
    let list = String::from_utf8_lossy(&list).into_owned();
    let wanted = escape(&path.to_string_lossy());
    Ok(list.lines().filter_map(|line| mount_type(line, &wanted)).next_back().map(str::to_owned))
}

/// The type in one line of mountinfo, where its mount point is `path`: fields, a hyphen, then type and source.
fn mount_type<'a>(line: &'a str, path: &str) -> Option<&'a str> {
    let (fields, rest) = line.split_once(" - ")?;
    (fields.split(' ').nth(4)? == path).then(|| rest.split(' ').next())?
}

/// As the kernel writes paths in its list.
fn escape(path: &str) -> String {
    path.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

fn unmount(path: &Path, flags: UnmountFlags) -> io::Result<()> {
    match rustix::mount::unmount(path, flags) {
        // Users other than root have their mounts taken away by the helper that made them.
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
        assert_eq!(mount_type(line, &escape("/mnt/a b")), Some("fuse.dcd"));
        assert_eq!(mount_type(line, "/mnt/a"), None);
        assert_eq!(mount_type("no such line", "/mnt/a"), None);
    }
}
