//! The kernel's devices through which the disks of a stack are reached. Other programs may have made them, and the server does not know them
//! all: so they are looked for where the kernel lists them.

use std::fs;
use std::path::{Path, PathBuf};

use dcd_serve::nbd::kernel::{Backend, NbdDevice, devices_of};
use dcd_serve::ublk::UblkStatus;
use dcd_stack::StackFile;

use crate::nbd_device::after_first;

/// Finds the devices of a disk: that of ublk, those of the kernel's NBD client that "dcd attach" has made, and loop devices over its image.
pub fn block_devices(
    stack: &Path,
    ublk: Option<&UblkStatus>,
    backend: Option<&str>,
    image: Option<&Path>,
) -> Vec<String> {
    let mut found: Vec<String> = ublk.map(|ublk| ublk.device.clone()).into_iter().collect();
    if let Some(backend) = backend.and_then(Backend::read) {
        let own = devices_of(stack).into_iter().filter(|device| device.backend.has_mark_of(&backend));
        found.extend(own.map(|device| device.node()));
    }
    if let Some(image) = image {
        found.extend(loops_over(&real(image)).into_iter().map(|name| format!("/dev/{name}")));
    }
    found
}

/// Finds the devices of the kernel's NBD client that wait for the server of a disk, or have it.
pub fn waiting_devices(file: &StackFile, disk: usize, name: &str) -> Vec<String> {
    let own = |device: &NbdDevice| device.backend.is_of_disk(after_first(disk, name));
    devices_of(&file.path).into_iter().filter(own).map(|device| device.node()).collect()
}

/// Returns the path of an image as the kernel has it. If its server is gone, the directory itself cannot be read, but its parent can.
pub fn real(image: &Path) -> PathBuf {
    let full = || {
        let directory = image.parent()?;
        let parent = fs::canonicalize(directory.parent()?).ok()?;
        Some(parent.join(directory.file_name()?).join(image.file_name()?))
    };
    full().unwrap_or_else(|| image.to_owned())
}

/// Finds the loop devices over an image, even if its server is gone.
pub fn loops_over(image: &Path) -> Vec<String> {
    let names = fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|entry| entry.file_name());
    let over = |name: &String| {
        let backing = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        backing.is_ok_and(|path| Path::new(path.trim_end_matches('\n')) == image)
    };
    let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).filter(over).collect();
    names.sort();
    names
}
