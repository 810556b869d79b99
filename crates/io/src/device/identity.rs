//! Identity of files as the kernel has it: the file behind a loop device, and a mark stored in an extended attribute.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The file behind a loop device, as the kernel identifies it. A path is no proof: it may lead to another file by now, or in this
/// process's mount namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopFile {
    /// The device number of its file system, as `st_dev`.
    pub device: u64,
    pub inode: u64,
    /// The byte of the file at which the loop device begins.
    pub offset: u64,
}

/// Returns the file behind a whole loop device; none where the loop device has none.
///
/// # Errors
/// Where the kernel does not tell.
pub fn loop_file(device: &File) -> io::Result<Option<LoopFile>> {
    /// From linux/loop.h, as is the layout: device, inode, rdevice, offset, and more that is not needed.
    const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
    const STATUS_WORDS: usize = 232 / 8;
    let mut status = [0_u64; STATUS_WORDS];
    // SAFETY: the request writes a `loop_info64` of 232 bytes, which `status` has room for, and lives for the call.
    match unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, status.as_mut_ptr()) } {
        0 => Ok(Some(LoopFile { device: status[0], inode: status[1], offset: status[3] })),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

/// The longest mark.
const MARK_BYTES_MAX: usize = 4096;
/// The kernel has no longer lists.
const MARK_NAMES_BYTES_MAX: usize = 64 << 10;

/// Reads an extended attribute of a file; none where the file has none of this name, or its file system has no attributes.
///
/// # Errors
/// Where the attribute cannot be read, or is too long.
pub fn read_mark(file: &File, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut mark = vec![0_u8; MARK_BYTES_MAX];
    // SAFETY: name and buffer live for the call, and the length is the buffer's.
    let length =
        unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), mark.as_mut_ptr().cast(), MARK_BYTES_MAX) };
    match usize::try_from(length) {
        Ok(length) => {
            mark.truncate(length);
            Ok(Some(mark))
        }
        Err(_) => match io::Error::last_os_error() {
            error if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => Ok(None),
            error => Err(error),
        },
    }
}

/// Returns the names of a file's extended attributes; none where the file system has no attributes.
pub fn mark_names(file: &File) -> io::Result<Vec<CString>> {
    let mut names = vec![0_u8; MARK_NAMES_BYTES_MAX];
    // SAFETY: the buffer lives for the call, and the length is the buffer's.
    let length =
        unsafe { libc::flistxattr(file.as_raw_fd(), names.as_mut_ptr().cast(), MARK_NAMES_BYTES_MAX) };
    let Ok(length) = usize::try_from(length) else {
        return match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
            error => Err(error),
        };
    };
    let names = names[..length].split_inclusive(|byte| *byte == 0);
    Ok(names.filter_map(|name| Some(CStr::from_bytes_with_nul(name).ok()?.to_owned())).collect())
}

/// Sets an extended attribute of a file, and returns when that is on the medium.
///
/// # Errors
/// Where the file system has no attributes, or no room.
pub fn write_mark(file: &File, name: &CStr, mark: &[u8]) -> io::Result<()> {
    // SAFETY: name and mark live for the call, and the length is the mark's.
    let done =
        unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), mark.as_ptr().cast(), mark.len(), 0) };
    match done {
        0 => file.sync_all(),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_under_each_name_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        std::fs::write(&one, "x").unwrap();
        let open = |path| File::open(path).unwrap();
        assert_eq!(read_mark(&open(&one), c"user.dcd-test").unwrap(), None);
        if let Err(error) = write_mark(&open(&one), c"user.dcd-test", b"mark") {
            use std::io::Write;
            let _ = writeln!(io::stderr(), "SKIPPED: extended attributes here: {error}");
            return;
        }
        std::fs::hard_link(&one, &other).unwrap();
        assert_eq!(read_mark(&open(&other), c"user.dcd-test").unwrap(), Some(b"mark".to_vec()));
    }

    #[test]
    fn a_file_is_behind_no_loop_device() {
        let file = tempfile::tempfile().unwrap();
        assert!(loop_file(&file).is_err());
    }
}
