//! Writes changed settings to a stack file, in two steps: the new text is on the medium before the server changes anything, and takes the
//! place of the old one after that. The file is locked between them.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use dcd_stack::StackFile;

use crate::failure::Failure;
use crate::session::record::durable::{NewContent, replace};

/// Attempts to lock a file that others replace.
const ATTEMPTS_MAX: usize = 100;

/// A stack file that is about to change. See the module's documentation.
pub struct ChangedText<'a> {
    path: &'a Path,
    before: String,
    content: NewContent<'a>,
    _lock: File,
}

/// Locks a file, and makes sure that the lock is on the file that has this name now.
fn lock(path: &Path) -> Result<File, Failure> {
    let failed = |error| {
        Failure::io(format!("{}: it cannot be written, so nothing was changed", path.display()), error)
    };
    for _ in 0..ATTEMPTS_MAX {
        let named = fs::symlink_metadata(path).map_err(failed)?;
        if named.is_symlink() {
            let target = fs::canonicalize(path).map_err(failed)?;
            return Err(Failure::Failed(format!(
                "{}: it is a link, which would be replaced by a file, so nothing was changed: name the file itself, {}",
                path.display(),
                target.display()
            )));
        }
        let file = dcd_io::lock_notes(path).map_err(failed)?;
        let ours = file.metadata().map_err(failed)?;
        let is_named = |there: fs::Metadata| (there.dev(), there.ino()) == (ours.dev(), ours.ino());
        if fs::symlink_metadata(path).is_ok_and(is_named) {
            return Ok(file);
        }
    }
    Err(Failure::Failed(format!(
        "{}: other programs replace it again and again; nothing was changed",
        path.display()
    )))
}

/// Refuses a file that [`edit`] could not replace.
pub fn may_edit(path: &Path) -> Result<(), Failure> {
    lock(path).map(drop)
}

/// Replaces the text of a file, which others may have changed since it was read last. `again`: what to do if it cannot be replaced.
pub fn edit(
    path: &Path,
    again: &str,
    edit: impl FnOnce(&StackFile) -> Result<String, String>,
) -> Result<(), Failure> {
    let _lock = lock(path)?;
    let failed = |why: String| Failure::Failed(format!("{}: {why}. {again}", path.display()));
    let text = edit(&StackFile::load(path)?).map_err(failed)?;
    replace(path, text.as_bytes()).map_err(|error| failed(error.to_string()))
}

impl<'a> ChangedText<'a> {
    /// Writes the file's text with these changes beside it.
    ///
    /// # Errors
    /// If the file cannot be replaced, or would not be a stack file with the changes. The file is as it was.
    pub fn prepare(path: &'a Path, changes: &[String]) -> Result<ChangedText<'a>, Failure> {
        let lock = lock(path)?;
        let file = StackFile::load(path)?;
        let refused = |why| Failure::Failed(format!("{}: {why}; nothing was changed", path.display()));
        let changed = file.changed(changes).map_err(refused)?;
        let failed = |error| {
            Failure::io(
                format!("{}: a new text cannot be written beside it, so nothing was changed", path.display()),
                error,
            )
        };
        let content = NewContent::write(path, changed.text().as_bytes()).map_err(failed)?;
        let before = lock.metadata().map_err(failed)?;
        fchown(&content.file, Some(before.uid()), Some(before.gid())).map_err(failed)?;
        content.file.set_permissions(fs::Permissions::from_mode(before.mode() & 0o7777)).map_err(failed)?;
        content.file.sync_all().map_err(failed)?;
        Ok(ChangedText { path, before: file.text().to_owned(), content, _lock: lock })
    }

    /// Replaces the file. The server has the new settings by now.
    pub fn put(self) -> Result<(), Failure> {
        let path = self.path.display();
        let in_force = "the settings are in force until the server stops, but they are not saved";
        // An editor does not ask for the lock.
        if fs::read_to_string(self.path).ok().as_ref() != Some(&self.before) {
            return Err(Failure::Failed(format!(
                "{path}: it was changed meanwhile: {in_force}. Run the command again to save them"
            )));
        }
        self.content
            .put()
            .map_err(|error| Failure::io(format!("{path}: {in_force}. Replacing the file failed"), error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "export = \"x\"\n[device.a]\nmemory = \"1MiB\"\n[device.b]\nmemory = \"1MiB\"\n\
                        [layer.x]\nkind = \"log-cache\"\nlog = \"a\"\ndata = \"b\"\n";

    fn stack() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("srv.toml");
        fs::write(&path, TEXT).unwrap();
        (dir, path)
    }

    #[test]
    fn a_file_that_an_editor_changes_meanwhile_keeps_that_change() {
        let (dir, path) = stack();
        let changes = ["high-mark=80".to_owned()];
        let prepared = ChangedText::prepare(&path, &changes).unwrap();
        fs::write(&path, TEXT.to_owned() + "# by hand\n").unwrap();
        let error = prepared.put().unwrap_err().to_string();
        assert!(error.contains("it was changed meanwhile: the settings are in force"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), TEXT.to_owned() + "# by hand\n");
        ChangedText::prepare(&path, &changes).unwrap().put().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), TEXT.to_owned() + "high-mark = 80\n# by hand\n");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    /// The second of two commands at a time waits, and changes what the first one has left.
    #[test]
    fn two_commands_at_a_time_lose_no_change() {
        let (_dir, path) = stack();
        let first = ["high-mark=80".to_owned()];
        let prepared = ChangedText::prepare(&path, &first).unwrap();
        let second = {
            let path = path.clone();
            std::thread::spawn(move || {
                ChangedText::prepare(&path, &["low-mark=20".to_owned()]).unwrap().put().unwrap()
            })
        };
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert!(!second.is_finished(), "it waits for the lock");
        prepared.put().unwrap();
        second.join().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), TEXT.to_owned() + "high-mark = 80\nlow-mark = 20\n");
    }
}
