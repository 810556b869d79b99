//! Space for a regular file. A sparse file fails when its file system becomes full, long after it was made.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::DeviceError;

/// Reserves space in the file system for these bytes of a file, without changing its content. Returns the number of bytes that still
/// lack space: not 0 if the file system cannot reserve any. A block device always has its space.
///
/// # Errors
/// [`DeviceError::NoSpace`] where the file system has too little, and what the system says.
pub fn reserve_space(path: &Path, bytes: Range<u64>) -> Result<u64, DeviceError> {
    let failed = |doing| move |source| DeviceError::system(path, doing, source);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(failed("open"))?;
    let found = file.metadata().map_err(failed("fstat"))?;
    if !found.is_file() || found.size() <= found.blocks() * 512 {
        return Ok(0);
    }
    let before = holes(&file, &bytes).map_err(failed("looking for holes"))?;
    let free = free_space(&file).map_err(failed("asking for free space"))?;
    let no_space = || DeviceError::NoSpace { path: path.to_owned(), lacking: before, free };
    // A failed attempt would keep the space that it got.
    if bytes == (0..found.size()) && before > free {
        return Err(no_space());
    }
    match allocate(&file, &bytes) {
        Ok(()) => Ok(0),
        Err(e) => match e.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => Ok(before),
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => Err(no_space()),
            _ => Err(failed("reserving space")(e)),
        },
    }
}

/// Counts the bytes of a part of a file that have no space.
fn holes(file: &std::fs::File, bytes: &Range<u64>) -> io::Result<u64> {
    let (mut at, mut found) = (bytes.start, 0);
    while at < bytes.end {
        let data = seek(file, at, libc::SEEK_DATA)?.min(bytes.end);
        found += data - at;
        at = if data < bytes.end { seek(file, data, libc::SEEK_HOLE)? } else { data };
    }
    Ok(found)
}

/// Returns the first data or hole from here on; if there is none, a position past the end of all files.
fn seek(file: &std::fs::File, from: u64, what: libc::c_int) -> io::Result<u64> {
    // SAFETY: a plain system call on an open descriptor, whose position nobody uses.
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset(from)?, what) };
    match u64::try_from(found) {
        Ok(found) => Ok(found),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(u64::MAX),
            error => Err(error),
        },
    }
}

fn offset(at: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
}

/// Returns how much this process may still write on the file's file system.
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
    let (first, length) = (offset(bytes.start)?, offset(bytes.end - bytes.start)?);
    // SAFETY: a plain system call on an open descriptor.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, first, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn only_the_part_that_gets_space_counts() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(8 * MIB).unwrap();
        file.as_file().write_all_at(&[1; MIB as usize], 2 * MIB).unwrap();
        assert_eq!(holes(file.as_file(), &(MIB..4 * MIB)).unwrap(), 2 * MIB);
        assert_eq!(holes(file.as_file(), &(0..8 * MIB)).unwrap(), 7 * MIB);
        match reserve_space(file.path(), MIB..4 * MIB).unwrap() {
            0 => assert_eq!(
                file.as_file().metadata().unwrap().blocks() * 512,
                3 * MIB,
                "the rest of the file stays sparse"
            ),
            lacking => assert_eq!(lacking, 2 * MIB, "this file system sets no space aside"),
        }
    }
}
