//! Asks the kernel about a file or block device: size, blocks, caches, and whether holes can be punched.
//!
//! The module changes no device. If the kernel does not tell, it assumes the safe value: a volatile cache, no discards, blocks
//! that are large enough.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::PathBuf;

use dcd_engine::{Buf, Discards, PAGE_BYTES};

use super::wear::is_plain_ssd;

/// Properties of a file or block device.
pub(crate) struct Probed {
    pub bytes: u64,
    pub logical_block_bytes: u32,
    pub physical_block_bytes: u32,
    pub memory_align: usize,
    pub volatile_cache: bool,
    /// Space can be given back, and reads as zeroes afterwards.
    pub discards: Discards,
    pub fast_zeroes: bool,
    pub rotational: bool,
    pub ssd: bool,
    pub disk: u64,
}

const SECTOR: u32 = 512;
/// The largest logical block that requests can be aligned to here.
const LOGICAL_BLOCK_MAX: u32 = 4096;
const PHYSICAL_BLOCK_MAX: u32 = 64 << 10;

/// True on tmpfs and ramfs: reading and writing there is a copy, and never waits for a device.
pub(crate) fn is_memory_file_system(file: &File) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    // SAFETY: plain data, for which all zeroes is a valid value.
    let mut about: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, and `about` lives for the call.
    let done = unsafe { libc::fstatfs(file.as_raw_fd(), &mut about) };
    let kind = about.f_type as i64 & 0xffff_ffff;
    done == 0 && (kind == TMPFS || kind == RAMFS)
}

/// True where the kernel promises not to wait in a call that is told not to: the ring can submit such calls. FUSE does not promise it,
/// nor do network file systems.
pub(crate) fn never_waits(file: &File) -> bool {
    const NBD_MAJOR: libc::c_uint = 43;
    let is_nbd = |m: std::fs::Metadata| m.file_type().is_block_device() && libc::major(m.rdev()) == NBD_MAJOR;
    // NBD claims not to wait, but waits for space in its socket.
    if file.metadata().is_ok_and(is_nbd) {
        return false;
    }
    let mut page = Buf::zeroed(PAGE_BYTES);
    let bytes = page.bytes_mut();
    let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the page is writable and lives for the call.
    let count = unsafe { libc::preadv2(file.as_raw_fd(), &vector, 1, 0, libc::RWF_NOWAIT) };
    // Other errors say nothing about waiting: the page may not be in memory.
    count >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP)
}

/// A regular file.
pub(crate) fn regular_file(file: &File, direct: bool, read_only: bool) -> io::Result<Probed> {
    let metadata = file.metadata()?;
    let (memory_align, logical) = if direct { direct_alignment(file)? } else { (1, SECTOR) };
    let block = u32::try_from(metadata.blksize()).unwrap_or(LOGICAL_BLOCK_MAX);
    let physical = if block.is_power_of_two() { block.clamp(logical, PHYSICAL_BLOCK_MAX) } else { logical };
    let punches = !read_only && punches_holes(file, metadata.size());
    Ok(Probed {
        bytes: metadata.size(),
        logical_block_bytes: logical,
        physical_block_bytes: physical,
        memory_align,
        volatile_cache: true,
        discards: if punches { Discards::Zero } else { Discards::No },
        fast_zeroes: punches,
        rotational: sys_of_file(metadata.dev()).is_some_and(|sys| flag(&sys, "rotational")),
        ssd: false,
        disk: disk_of(sys_of_file(metadata.dev()).as_deref()).unwrap_or(metadata.dev()),
    })
}

/// Tries to punch a hole after the end of the file, where it changes nothing.
fn punches_holes(file: &File, size: u64) -> bool {
    let Ok(at) = libc::off_t::try_from(size.next_multiple_of(1 << 20)) else { return false };
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: a plain system call on an open descriptor.
    unsafe { libc::fallocate(file.as_raw_fd(), mode, at, 1 << 20) == 0 }
}

/// Returns the alignment of memory and of offsets that O_DIRECT requires.
fn direct_alignment(file: &File) -> io::Result<(usize, u32)> {
    const STATX_DIOALIGN: libc::c_uint = 0x2000;
    // SAFETY: plain data, for which all zeroes is a valid value.
    let mut about: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is open, the path is an empty C string, and `about` lives for the call.
    let done = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, STATX_DIOALIGN, &mut about)
    };
    let (memory, offset) = (about.stx_dio_mem_align, about.stx_dio_offset_align);
    if done == 0 && about.stx_mask & STATX_DIOALIGN != 0 && memory != 0 && offset != 0 {
        return Ok((direct_memory(memory)?, direct_block(offset)?));
    }
    // Kernels before 6.1 do not say: try the smaller block.
    let mut page = Buf::zeroed(PAGE_BYTES);
    match file.read_at(&mut page.bytes_mut()[..SECTOR as usize], 0) {
        Ok(_) => Ok((SECTOR as usize, SECTOR)),
        Err(_) => Ok((PAGE_BYTES, LOGICAL_BLOCK_MAX)),
    }
}

/// Returns the alignment of memory, which buffers have to reach.
fn direct_memory(align: u32) -> io::Result<usize> {
    if align as usize > PAGE_BYTES {
        let what = format!(
            "O_DIRECT wants memory aligned to {align} bytes there, and dcd aligns it to {PAGE_BYTES}: use another device"
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    Ok(align as usize)
}

/// Returns the logical block for this alignment of offsets.
fn direct_block(offset_align: u32) -> io::Result<u32> {
    if offset_align > LOGICAL_BLOCK_MAX {
        let what = format!(
            "O_DIRECT wants offsets aligned to {offset_align} bytes on its file system, and blocks of at most {LOGICAL_BLOCK_MAX} bytes can be \
             used: put the file on another one"
        );
        return Err(io::Error::new(io::ErrorKind::Unsupported, what));
    }
    Ok(offset_align.max(SECTOR))
}

/// A block device.
pub(crate) fn block_device(file: &File, direct: bool) -> io::Result<Probed> {
    let mut file_for_seek = file;
    let bytes = file_for_seek.seek(SeekFrom::End(0))?;
    let logical = ioctl_int(file, libc::BLKSSZGET)?.max(SECTOR);
    if logical > LOGICAL_BLOCK_MAX {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("blocks of {logical} bytes; at most {LOGICAL_BLOCK_MAX} can be used"),
        ));
    }
    let physical = ioctl_int(file, libc::BLKPBSZGET).unwrap_or(logical).clamp(logical, PHYSICAL_BLOCK_MAX);
    let device = file.metadata()?.rdev();
    let sys = sys_of_device(device);
    let value = |name: &str| sys.as_ref().and_then(|sys| number(sys, name)).unwrap_or(0);
    let cache = sys.as_ref().and_then(|sys| std::fs::read_to_string(sys.join("write_cache")).ok());
    let write_through = cache.is_some_and(|cache| cache.trim() == "write through");
    Ok(Probed {
        bytes,
        logical_block_bytes: logical,
        physical_block_bytes: physical,
        memory_align: if direct { SECTOR as usize } else { 1 },
        // Buffered writes wait in the page cache, whatever the disk does.
        volatile_cache: !(write_through && direct),
        // No kernel says what a discarded sector reads as.
        discards: if value("discard_max_bytes") > 0 { Discards::Advisory } else { Discards::No },
        // The kernel's holes on block devices are zeroes written without data: both abilities are needed.
        fast_zeroes: value("discard_max_bytes") > 0 && value("write_zeroes_max_bytes") > 0,
        rotational: value("rotational") == 1,
        ssd: is_plain_ssd(device),
        disk: disk_of(sys.as_deref()).unwrap_or(device),
    })
}

/// True for a zoned disk that takes writes only in order within each zone.
pub(crate) fn is_host_managed(file: &File) -> bool {
    /// From linux/blkzoned.h.
    const BLKGETZONESZ: libc::Ioctl = 0x8004_1284_u32 as libc::Ioctl;
    let sys = file.metadata().ok().and_then(|found| sys_of_device(found.rdev()));
    let zoned = sys.and_then(|sys| std::fs::read_to_string(sys.join("zoned")).ok());
    is_zoned_in_order(zoned.as_deref(), || ioctl_int(file, BLKGETZONESZ).unwrap_or(0))
}

/// `zoned`: the kernel's word in sysfs. Without sysfs, a disk with zones is assumed to require writes in order.
fn is_zoned_in_order(zoned: Option<&str>, zone_sectors: impl FnOnce() -> u32) -> bool {
    zoned.map_or_else(|| zone_sectors() > 0, |zoned| zoned.trim() == "host-managed")
}

/// True for a block device that rejects writes, although opening it for writing succeeds.
pub fn is_read_only(file: &File) -> bool {
    /// From linux/fs.h.
    const BLKROGET: libc::Ioctl = 0x125e;
    ioctl_int(file, BLKROGET).is_ok_and(|value| value != 0)
}

fn ioctl_int(file: &File, request: libc::Ioctl) -> io::Result<u32> {
    let mut value: libc::c_int = 0;
    // SAFETY: all requests that are made here write one `int`, which lives for the call.
    match unsafe { libc::ioctl(file.as_raw_fd(), request, &mut value) } {
        0 => u32::try_from(value).map_err(|_| io::Error::from(io::ErrorKind::InvalidData)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The queue directory of a block device; for a partition, that of its disk.
fn sys_of_device(device: u64) -> Option<PathBuf> {
    let (major, minor) = (libc::major(device), libc::minor(device));
    let base = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let own = base.join("queue");
    if own.is_dir() {
        return Some(own);
    }
    let parent = base.parent()?.join("queue");
    parent.is_dir().then_some(parent)
}

/// The number of the disk with this queue directory: the same for all of its partitions.
fn disk_of(queue: Option<&std::path::Path>) -> Option<u64> {
    let numbers = std::fs::read_to_string(queue?.parent()?.join("dev")).ok()?;
    let (major, minor) = numbers.trim().split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The queue directory of the device that a file's file system lies on, where there is one.
fn sys_of_file(device: u64) -> Option<PathBuf> {
    if libc::major(device) == 0 { None } else { sys_of_device(device) }
}

fn number(sys: &std::path::Path, name: &str) -> Option<u64> {
    std::fs::read_to_string(sys.join(name)).ok()?.trim().parse().ok()
}

fn flag(sys: &std::path::Path, name: &str) -> bool {
    number(sys, name) == Some(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_wants_writes_in_order_is_known_by_the_kernels_word_or_its_zones() {
        for (zoned, sectors, refused) in [
            (Some("host-managed\n"), 0, true),
            (Some("host-aware\n"), 524_288, false),
            (Some("none\n"), 524_288, false),
            (None, 524_288, true),
            (None, 0, false),
        ] {
            assert_eq!(is_zoned_in_order(zoned, || sectors), refused, "{zoned:?} {sectors}");
        }
    }

    #[test]
    fn blocks_that_are_too_large_for_requests_are_refused_at_the_start() {
        assert_eq!([1, 512, 4096].map(|align| direct_block(align).unwrap()), [512, 512, 4096]);
        assert!(direct_block(16384).unwrap_err().to_string().contains("aligned to 16384 bytes"));
        assert_eq!([4, 4096].map(|align| direct_memory(align).unwrap()), [4, 4096]);
        assert!(direct_memory(65536).unwrap_err().to_string().contains("memory aligned to 65536 bytes"));
    }
}
