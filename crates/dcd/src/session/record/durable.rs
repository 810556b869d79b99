//! Replaces and removes small files, and returns when that is on the medium.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file by a new one, whole or not at all; makes its directory, too.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let directory = directory(path);
    fs::create_dir_all(directory)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // A file that was left by a crash. Only the owner of the disk's lock gets here, so nobody is writing it.
    remove(&new)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    let written = file.write_all(text).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&new, path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written?;
    sync(directory)
}

/// Removes a file, if there is one.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync(directory(path)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
