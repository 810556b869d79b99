//! Replaces and removes small files, and returns when that is on the medium.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A new content of a file: on the medium under another name, until [`NewContent::put`] gives it the name of the file. Dropping it removes
/// it.
pub struct NewContent<'a> {
    path: &'a Path,
    new: PathBuf,
    pub file: File,
}

impl<'a> NewContent<'a> {
    /// Writes a new content beside the file.
    pub fn write(path: &'a Path, text: &[u8]) -> io::Result<NewContent<'a>> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = path.with_file_name(name);
        // A file that was left by a crash. Only the owner of the file's lock gets here, so nobody is writing it.
        remove(&new)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        let mut content = NewContent { path, new, file };
        content.file.write_all(text)?;
        content.file.sync_all()?;
        Ok(content)
    }

    /// Replaces the file.
    pub fn put(self) -> io::Result<()> {
        fs::rename(&self.new, self.path)?;
        sync(directory(self.path))
    }
}

impl Drop for NewContent<'_> {
    fn drop(&mut self) {
        // After a rename there is none.
        let _ = fs::remove_file(&self.new);
    }
}

/// Replaces a file by a new one, whole or not at all; makes its directory, too.
pub fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(directory(path))?;
    NewContent::write(path, text)?.put()
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
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        parent => parent.unwrap_or(Path::new("/")),
    }
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_before_the_rename_leaves_the_old_file_and_nothing_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("srv.toml");
        fs::write(&path, "old").unwrap();
        // The process ends here: nobody removes what it has written.
        std::mem::forget(NewContent::write(&path, b"half").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(fs::read_to_string(dir.path().join("srv.toml.new")).unwrap(), "half");
        drop(NewContent::write(&path, b"given up").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        NewContent::write(&path, b"new").unwrap().put().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
