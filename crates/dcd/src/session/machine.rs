//! Identifies this machine, and finds its programs that write to a device.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Environment variable that names a machine without an id, such as a container.
const NAME: &str = "DCD_MACHINE";
const ID: &str = "/etc/machine-id";

/// A number for this machine, from its name or its id; 0 if it has neither. The id itself is confidential (machine-id(5)).
pub fn this() -> u64 {
    let id = || fs::read_to_string(ID).ok().filter(|id| id.trim() != "uninitialized");
    let name = std::env::var(NAME).ok().or_else(id).unwrap_or_default();
    match name.trim() {
        "" => 0,
        name => number(name),
    }
}

/// Warns that this machine has no id: then nothing refuses a log that another machine serves.
pub fn without_id() -> Option<String> {
    (this() == 0).then(|| {
        format!(
            "this machine has no id, so a log that another machine serves at the same time is not refused: make {ID}, or set {NAME} to a name \
             that no other machine has"
        )
    })
}

/// FNV-1a.
fn number(name: &str) -> u64 {
    let hash = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, hash).max(1)
}

/// Programs, except this one, that have a file or a block device open for writing.
pub fn writers(proc: &Path, path: &Path) -> Vec<String> {
    let Ok(wanted) = fs::metadata(path) else { return Vec::new() };
    let is_same = |found: &fs::Metadata| match wanted.file_type().is_block_device() {
        true => found.file_type().is_block_device() && found.rdev() == wanted.rdev(),
        false => (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()),
    };
    let has_it = |process: &Path| {
        let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        open.filter(|fd| fs::metadata(fd.path()).is_ok_and(|found| is_same(&found)))
            .any(|fd| is_for_writing(&process.join("fdinfo").join(fd.file_name())))
    };
    let own = std::process::id().to_string();
    let processes = fs::read_dir(proc).into_iter().flatten().flatten().map(|entry| entry.path());
    let others = processes.filter(|process| {
        let name = process.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.parse::<u32>().is_ok() && name != own
    });
    others.filter(|process| has_it(process)).map(|process| called(&process)).collect()
}

fn is_for_writing(fdinfo: &Path) -> bool {
    let text = fs::read_to_string(fdinfo).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or_default();
    // The access mode; 0 is for reading alone.
    flags & 0o3 != 0
}

fn called(process: &Path) -> String {
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    format!("{} (process {})", name.trim(), process.file_name().unwrap_or_default().display())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn names_of_machines_become_different_numbers() {
        assert_ne!(number("one"), number("other"));
        assert_eq!(number("one"), number("one"));
        assert!(number("") > 0);
    }

    #[test]
    fn a_program_that_has_a_file_open_for_writing_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let (written, read) = (dir.path().join("written"), dir.path().join("read"));
        for path in [&written, &read] {
            fs::write(path, "").unwrap();
        }
        let script = format!("exec 5>>'{}' 6<'{}'; echo; read line", written.display(), read.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut ready = [0];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
        let found = writers(Path::new("/proc"), &written);
        assert_eq!(found, [format!("sh (process {})", child.id())]);
        assert!(writers(Path::new("/proc"), &read).is_empty());
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(writers(Path::new("/proc"), &written).is_empty());
    }
}
