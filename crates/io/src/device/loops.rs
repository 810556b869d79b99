//! Finds the loop device over a file: a write to such a file would change a mounted file system without its knowledge.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::identity::loop_file;

/// Returns the loop device over `file` ("/dev/loop0"), if the kernel tells of one.
pub(crate) fn device_over(file: &File) -> Option<String> {
    let wanted = file.metadata().ok()?;
    device_over_inode(wanted.dev(), wanted.ino())
}

/// Returns the loop device over the file with this number in the file system `device`.
pub(crate) fn device_over_inode(device: u64, inode: u64) -> Option<String> {
    for entry in std::fs::read_dir("/sys/block").ok()?.flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        if name.starts_with("loop") && file_of(&entry.path(), &name) == Some((device, inode)) {
            return Some(format!("/dev/{name}"));
        }
    }
    None
}

/// Device and inode of the file behind a loop device. The kernel is asked first: the path leads to another file if the loop
/// device was made in another mount namespace. A process that may not open loop devices has only the path.
fn file_of(folder: &Path, name: &str) -> Option<(u64, u64)> {
    let backing = std::fs::read_to_string(folder.join("loop/backing_file")).ok()?;
    let told = File::open(Path::new("/dev").join(name)).and_then(|device| loop_file(&device));
    match told {
        Ok(told) => told.map(|file| (file.device, file.inode)),
        Err(_) => {
            let found = std::fs::metadata(backing.trim_end_matches('\n')).ok()?;
            Some((found.dev(), found.ino()))
        }
    }
}
