//! Lock files: the kernel releases each lock with the process that holds it, and the file names that process.
//!
//! A lock that is waited for lies in a directory that other users cannot write. Any other lock is taken, or refused, without waiting.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Attempts to get a lock file that its last owner is just removing.
const ATTEMPTS_MAX: usize = 10;

/// A lock that this process holds. Dropping it removes the file.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    _file: File,
}

/// Error: the lock was not taken.
#[derive(Debug)]
pub(crate) enum NotLocked {
    /// A process holds it; its id, if the file names it.
    Held(Option<u32>),
    Failed(io::Error),
}

impl LockFile {
    /// Takes a lock, or returns its holder, without waiting.
    pub fn take(path: &Path) -> Result<LockFile, NotLocked> {
        for _ in 0..ATTEMPTS_MAX {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).mode(0o600);
            let mut file = options.custom_flags(libc::O_NOFOLLOW).open(path).map_err(NotLocked::Failed)?;
            // SAFETY: a plain system call on an open descriptor.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
                return Err(match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => NotLocked::Held(owner(&mut file)),
                    error => NotLocked::Failed(error),
                });
            }
            let ours = file.metadata().map_err(NotLocked::Failed)?;
            let same = |there: fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
            if fs::symlink_metadata(path).is_ok_and(same) {
                // The id serves only messages.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(LockFile { path: path.to_owned(), _file: file });
            }
        }
        Err(NotLocked::Held(None))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // Removed while locked: a process that has opened it meanwhile notices the removal, and makes a new file.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens a file of notes that commands change one after the other, and waits for its lock, which lasts until the file is closed. A missing
/// file or directory is made for its owner alone, so no other user can hold the lock.
///
/// # Errors
/// Where they cannot be made, or a link is in the place of the file.
pub fn lock_notes(path: &Path) -> io::Result<File> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
    // SAFETY: a plain system call on an open descriptor.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}

fn owner(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_lock_has_one_owner_who_is_named_and_goes_with_him() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = LockFile::take(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        match LockFile::take(&path) {
            Err(NotLocked::Held(Some(owner))) => assert_eq!(owner, std::process::id()),
            other => panic!("{other:?}"),
        }
        drop(lock);
        assert!(!path.exists());
        // What a killed process leaves is no lock.
        fs::write(&path, "1\n").unwrap();
        drop(LockFile::take(&path).unwrap());
    }

    #[test]
    fn one_command_after_the_other_has_the_notes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("made/notes");
        let first = lock_notes(&path).unwrap();
        let (got, waits) = std::sync::mpsc::channel();
        let other = std::thread::spawn({
            let path = path.clone();
            move || {
                let _held = lock_notes(&path).unwrap();
                got.send(()).unwrap();
            }
        });
        assert!(waits.recv_timeout(std::time::Duration::from_millis(50)).is_err());
        drop(first);
        waits.recv().unwrap();
        other.join().unwrap();
        std::os::unix::fs::symlink("notes", dir.path().join("made/link")).unwrap();
        assert!(lock_notes(&dir.path().join("made/link")).is_err());
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("lock"), dir.path().join("precious"));
        fs::write(&precious, "data").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        assert!(matches!(LockFile::take(&path), Err(NotLocked::Failed(_))));
        assert_eq!(fs::read(&precious).unwrap(), b"data");
    }
}
