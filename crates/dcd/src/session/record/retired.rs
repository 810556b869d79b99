//! Retired caches: they were taken off their data disks, or discarded.
//!
//! A record is removed with its cache. So a log that was disconnected then would look like that of a disk that was moved here. The file
//! `retired-caches` in the state directory keeps the UUIDs of the newest of these caches, one a line, whatever their disks are called.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::durable::replace;

const NAME: &str = "retired-caches";
/// A list of 150 KiB, which is read where a disk has no record.
const CACHES_MAX: usize = 4096;

fn place(state_dir: &Path) -> PathBuf {
    state_dir.join(NAME)
}

fn read(state_dir: &Path) -> io::Result<Vec<String>> {
    match fs::read_to_string(place(state_dir)) {
        Ok(text) => Ok(text.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// True for a cache that was retired on this machine.
///
/// # Errors
/// Where the list cannot be read.
pub fn is_retired(state_dir: &Path, cache: &str) -> io::Result<bool> {
    Ok(read(state_dir)?.iter().any(|retired| retired == cache))
}

/// Notes caches, and returns when that is on the medium. Several processes may do this at once: each adds lines of its own.
///
/// # Errors
/// Where the list cannot be read or written.
pub fn retire(state_dir: &Path, caches: &[String]) -> io::Result<()> {
    if caches.is_empty() {
        return Ok(());
    }
    let known = read(state_dir)?;
    let new: Vec<&String> = caches.iter().filter(|cache| !known.contains(cache)).collect();
    if new.is_empty() {
        return Ok(());
    }
    if known.len() + new.len() > CACHES_MAX {
        let newest = known.iter().skip(CACHES_MAX / 2).chain(new);
        let text: String = newest.map(|cache| format!("{cache}\n")).collect();
        return replace(&place(state_dir), text.as_bytes());
    }
    fs::create_dir_all(state_dir)?;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(place(state_dir))?;
    // The first newline ends a line that a crash has cut short.
    let text: String = new.iter().map(|cache| format!("\n{cache}\n")).collect();
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::File::open(state_dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retired_cache_is_known_until_thousands_have_come_after_it() {
        let dir = tempfile::tempdir().unwrap();
        let name = |number: usize| format!("cache-{number}");
        assert!(!is_retired(dir.path(), &name(0)).unwrap());
        retire(dir.path(), &[name(0)]).unwrap();
        retire(dir.path(), &[name(1), name(0)]).unwrap();
        assert_eq!(read(dir.path()).unwrap(), [name(0), name(1)]);
        retire(dir.path(), &(2..CACHES_MAX).map(name).collect::<Vec<_>>()).unwrap();
        assert!(is_retired(dir.path(), &name(0)).unwrap());
        retire(dir.path(), &[name(CACHES_MAX)]).unwrap();
        assert!(!is_retired(dir.path(), &name(0)).unwrap());
        assert!(is_retired(dir.path(), &name(CACHES_MAX - 1)).unwrap());
        assert!(is_retired(dir.path(), &name(CACHES_MAX)).unwrap());
    }
}
