//! Locks that are files: the kernel lets go of them with the process that has them, and each names that process.
//!
//! They lie in directories that other users cannot write, or a name there is taken with an answer at once: nobody is waited for.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Attempts to get a lock file that its last owner was just taking away.
const ATTEMPTS_MAX: usize = 10;

/// A lock that this process has. Its file goes away with it.
#[derive(Debug)]
pub(crate) struct LockFile {
    path: PathBuf,
    _file: File,
}

/// A lock that was not got.
#[derive(Debug)]
pub(crate) enum NotLocked {
    /// A process has it: this one, as far as it has said so.
    Held(Option<u32>),
    Failed(io::Error),
}

impl LockFile {
    /// Takes a lock, or says at once who has it.
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
                // For messages alone.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(LockFile { path: path.to_owned(), _file: file });
            }
        }
        Err(NotLocked::Held(None))
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // While it is locked: whoever has opened it meanwhile finds that it is not there any more, and makes another one.
        let _ = fs::remove_file(&self.path);
    }
}

/// Opens a file of notes that one command after the other works on, and waits for its lock, which lasts until the file is closed. File and
/// directory are made where they are missing, for their owner alone: so nobody else can hold the lock.
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
