//! Space for a regular file: a sparse one runs out of it at the first full file system, long after it was made.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::DeviceError;

/// Has the file system set space aside for these bytes of a file, and changes nothing of what it holds. Returns how many bytes of the
/// file have no space yet: more than none where the file system cannot do this. A block device has its space.
///
/// # Errors
/// [`DeviceError::NoSpace`] where the file system has too little, and what the system says.
pub fn reserve_space(path: &Path, bytes: Range<u64>) -> Result<u64, DeviceError> {
    let failed = |doing| move |source| DeviceError::system(path, doing, source);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed("open"))?;
    let lacking = || file.metadata().map(|found| found.size().saturating_sub(found.blocks() * 512));
    let found = file.metadata().map_err(failed("fstat"))?;
    let before = lacking().map_err(failed("fstat"))?;
    if !found.is_file() || before == 0 {
        return Ok(0);
    }
    let free = free_space(&file).map_err(failed("asking for free space"))?;
    let no_space = || DeviceError::NoSpace { path: path.to_owned(), lacking: before, free };
    // A failed attempt would keep what it got.
    if bytes == (0..found.size()) && before > free {
        return Err(no_space());
    }
    match allocate(&file, &bytes) {
        Ok(()) => lacking().map_err(failed("fstat")),
        Err(e) => match e.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(before),
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Err(no_space()),
            _ => Err(failed("reserving space")(e)),
        },
    }
}

/// What this process may still write on the file's file system.
fn free_space(file: &std::fs::File) -> io::Result<u64> {
    // SAFETY: plain data, which the kernel fills; it lives for the call.
    let (done, found) = unsafe {
        let mut found: libc::statvfs = std::mem::zeroed();
        (libc::fstatvfs(file.as_raw_fd(), &raw mut found), found)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a plain system call.
    let is_root = unsafe { libc::geteuid() } == 0;
    let blocks = if is_root { found.f_bfree } else { found.f_bavail };
    Ok(blocks.saturating_mul(found.f_frsize))
}

fn allocate(file: &std::fs::File, bytes: &Range<u64>) -> io::Result<()> {
    let offset =
        |at: u64| libc::off_t::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge));
    let (first, length) = (offset(bytes.start)?, offset(bytes.end - bytes.start)?);
    // SAFETY: a plain system call on an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, first, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
