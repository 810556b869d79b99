//! Which loop device stands on a file: writing to such a file would change a mounted file system behind its back.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// The loop device over `file` ("/dev/loop0"), if the kernel tells of one.
pub(crate) fn device_over(file: &File) -> Option<String> {
    let wanted = file.metadata().ok()?;
    for entry in std::fs::read_dir("/sys/block").ok()?.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        if !name.starts_with("loop") {
            continue;
        }
        let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let Ok(found) = std::fs::metadata(backing.trim_end_matches('\n')) else { continue };
        if (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()) {
            return Some(format!("/dev/{name}"));
        }
    }
    None
}
