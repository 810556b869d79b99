//! `dcd udev`: answers the rules in `packaging/63-z-dcd.rules` for each block device.
//!
//! For the data disk of a cache, the answer is a few properties: it is hidden, and which links stay. Links that name the content are
//! removed, as the cache's device has the same content.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dcd_stack::{LayerKind, StackFile};

use crate::cli::Udev;
use crate::control;
use crate::failure::Failure;
use crate::session::record::attachments_of;
use crate::session::system::is_by_content;

/// Maximum time to read a device: udev finds no file system on one that takes longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum bytes of links in one rule: udev takes less than 1024.
const LINKS_MAX: usize = 900;

pub fn run(args: &Udev) -> Result<(), Failure> {
    // udev gives the properties of the device in the environment.
    let links = std::env::var("DEVLINKS").unwrap_or_default();
    let links: Vec<PathBuf> = links.split_whitespace().map(PathBuf::from).collect();
    let (told, answer) = mpsc::sync_channel(1);
    let (device, of) = (args.device.clone(), links.clone());
    thread::spawn(move || told.send(is_hidden(&device, &of)));
    if answer.recv_timeout(PATIENCE).unwrap_or(false) {
        print!("{}", hidden(&links));
    }
    Ok(())
}

fn is_hidden(device: &Path, links: &[PathBuf]) -> bool {
    match attachments_of(device, links) {
        Ok(Some(all)) => !all.0.is_empty(),
        Ok(None) => is_named(device, links, &control::stack_files()),
        // A record that cannot be read is a record all the same.
        Err(_) => true,
    }
}

/// True where a stack file has the device as a data disk.
fn is_named(device: &Path, links: &[PathBuf], files: &[PathBuf]) -> bool {
    let names = |path: &Path| path == device || links.iter().any(|link| link == path);
    files.iter().filter_map(|file| StackFile::load(file).ok()).any(|file| {
        file.log_caches().any(|layer| match &layer.kind {
            LayerKind::LogCache { .. } => {
                layer.kind.data_names().iter().any(|data| file.path_below(data).is_some_and(names))
            }
            _ => false,
        })
    })
}

/// Formats the answer for a device that is hidden.
fn hidden(links: &[PathBuf]) -> String {
    let stay = links.iter().filter(|link| !is_by_content(link));
    let mut lines = [String::new(), String::new()];
    for link in stay.filter_map(|link| link.strip_prefix("/dev").ok()?.to_str()) {
        if let Some(line) = lines.iter_mut().find(|line| line.len() + link.len() < LINKS_MAX) {
            *line += link;
            line.push(' ');
        }
    }
    format!("DCD_HIDDEN=1\nDCD_LINKS={}\nDCD_MORE_LINKS={}\n", lines[0].trim_end(), lines[1].trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_by_content_are_left_to_the_cache() {
        let links = ["by-id/virtio-a", "by-uuid/1234", "by-path/pci-1", "by-label/srv", "by-partuuid/9-01"]
            .map(|link| Path::new("/dev/disk").join(link));
        assert_eq!(
            hidden(&links),
            "DCD_HIDDEN=1\nDCD_LINKS=disk/by-id/virtio-a disk/by-path/pci-1 disk/by-partuuid/9-01\nDCD_MORE_LINKS=\n"
        );
        assert_eq!(hidden(&[]), "DCD_HIDDEN=1\nDCD_LINKS=\nDCD_MORE_LINKS=\n");
        let many: Vec<PathBuf> = (0..24).map(|n| format!("/dev/disk/by-id/{n:050}").into()).collect();
        let answer = hidden(&many);
        assert!(answer.lines().all(|line| line.len() < 1024), "{answer}");
        assert_eq!(answer.matches("by-id").count(), 24);
    }

    #[test]
    fn before_records_can_be_read_the_stack_files_say_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.toml");
        let text = "export = \"cache\"\n[device.log]\npath = \"/dev/disk/by-id/l\"\n[device.data]\npath = \"/dev/disk/by-id/d\"\n\
            [layer.cache]\nkind = \"log-cache\"\nlog = \"log\"\ndata = \"data\"\npromise = \"flush\"\n";
        std::fs::write(&file, text).unwrap();
        let named = |device: &str, link: &str| {
            is_named(Path::new(device), &[PathBuf::from(link)], std::slice::from_ref(&file))
        };
        assert!(named("/dev/sdb", "/dev/disk/by-id/d"));
        assert!(!named("/dev/sdb", "/dev/disk/by-id/l"));
        assert!(!named("/dev/sdb", "/dev/disk/by-id/x"));
    }
}
