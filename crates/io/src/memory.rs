//! Memory that outlives the process: a mapped file in a file system that is only RAM.
//!
//! A kill ends a process between two of its instructions, and the kernel keeps what they have stored. So only the compiler could change the
//! order of stores, and a mark is a fence to it.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};
use std::time::{Duration, Instant};

use dcd_engine::log_cache::{MemoryInUse, MemoryPlace, SharedMemory};

/// Maximum size of memory that is read: more than any server makes.
const BYTES_MAX: u64 = 1 << 30;

/// Maximum time to wait for a process that is ending.
const PATIENCE: Duration = if cfg!(test) { Duration::from_millis(50) } else { Duration::from_secs(30) };

/// Directory of the memory of caches.
pub struct MemoryDirectory {
    path: PathBuf,
    boot: [u8; 16],
    is_in_ram: bool,
    makes: bool,
    patience: Duration,
    random: File,
}

impl MemoryDirectory {
    /// Uses a directory; nothing is found or made there unless it lies in RAM. `makes`: memory may be made and removed there, not only found.
    pub fn open(path: &Path, makes: bool) -> io::Result<MemoryDirectory> {
        let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&hex, 16).map_err(io::Error::other)?.to_be_bytes();
        let is_in_ram = is_in_ram(path).unwrap_or(false);
        let patience = if makes { PATIENCE } else { Duration::ZERO };
        let (path, makes, random) = (path.to_owned(), makes && is_in_ram, File::open("/dev/urandom")?);
        Ok(MemoryDirectory { path, boot, is_in_ram, makes, patience, random })
    }

    /// Returns the path of memory of a cache.
    pub fn path_of(&self, cache: &[u8; 16], number: u32) -> PathBuf {
        let cache = format!("dcd-{:032x}", u128::from_be_bytes(*cache));
        self.path.join(if number == 0 { cache } else { format!("{cache}-{number:08x}") })
    }

    fn opened(&self, cache: &[u8; 16], number: u32) -> Option<File> {
        self.is_in_ram.then(|| opened(&self.path_of(cache, number))).flatten()
    }
}

/// True if the file system of a directory has no disk below it.
fn is_in_ram(path: &Path) -> io::Result<bool> {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the path ends with a zero byte, and the structure lives for the call.
    if unsafe { libc::statfs(path.as_ptr(), found.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled it.
    let kind = unsafe { found.assume_init() }.f_type as u32;
    Ok(matches!(kind, TMPFS | RAMFS))
}

impl MemoryPlace for MemoryDirectory {
    fn boot(&self) -> [u8; 16] {
        self.boot
    }

    fn draw(&mut self, cache: &[u8; 16], max: u32) -> Option<u32> {
        loop {
            let mut bytes = [0; 4];
            self.random.read_exact(&mut bytes).ok()?;
            let number = u32::from_ne_bytes(bytes) % max + 1;
            if fs::symlink_metadata(self.path_of(cache, number)).is_err() {
                return Some(number);
            }
        }
    }

    fn find(&mut self, cache: &[u8; 16], number: u32) -> Result<Option<Vec<u8>>, MemoryInUse> {
        let Some(file) = self.opened(cache, number) else { return Ok(None) };
        wait_for(&file, self.patience)?;
        let mut bytes = Vec::new();
        let read = file.take(BYTES_MAX).read_to_end(&mut bytes);
        Ok(read.is_ok().then_some(bytes))
    }

    fn make(&mut self, cache: &[u8; 16], number: u32, bytes: usize) -> Option<Box<dyn SharedMemory>> {
        let made = self.makes.then(|| Mapping::make(&self.path_of(cache, number), bytes))?;
        Some(Box::new(made.ok()?))
    }

    fn forget(&mut self, cache: &[u8; 16], number: u32) {
        let left = self.opened(cache, number).filter(|_| self.makes);
        if left.is_some_and(|file| lock(&file, libc::LOCK_EX).is_ok()) {
            let _ = fs::remove_file(self.path_of(cache, number));
        }
    }
}

/// Opens memory that an earlier process has left; none if that was not a process of this user.
fn opened(path: &Path) -> Option<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path).ok()?;
    let about = file.metadata().ok()?;
    // SAFETY: a plain system call.
    let us = unsafe { libc::geteuid() };
    // Any user may make files there: only a file that no other user could write is believed.
    let is_ours = about.is_file() && about.uid() == us && about.permissions().mode() & 0o077 == 0;
    (is_ours && about.len() <= BYTES_MAX).then_some(file)
}

fn lock(file: &File, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: a plain system call on an open descriptor.
    match unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits until no other process has the lock of a file: the kernel may still be closing the files of a killed server.
fn wait_for(file: &File, patience: Duration) -> Result<(), MemoryInUse> {
    let began = Instant::now();
    while lock(file, libc::LOCK_SH).is_err() {
        if began.elapsed() > patience {
            return Err(MemoryInUse);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A mapped file.
struct Mapping {
    at: NonNull<u8>,
    bytes: usize,
    path: PathBuf,
    /// Locked while the memory is in use.
    _file: File,
}

impl Mapping {
    /// Makes a new file, and maps it.
    fn make(path: &Path, bytes: usize) -> io::Result<Mapping> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let mapped = Mapping::new(options.open(path)?, bytes, path);
        if mapped.is_err() {
            let _ = fs::remove_file(path);
        }
        mapped
    }

    /// Gives an empty file its size, and maps it. All its pages are allocated first: later a lack of memory would kill the process.
    fn new(file: File, bytes: usize, path: &Path) -> io::Result<Mapping> {
        lock(&file, libc::LOCK_EX)?;
        let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: a plain system call on an open descriptor.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => {}
            error => return Err(io::Error::from_raw_os_error(error)),
        }
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file that has so many bytes.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, file.as_raw_fd(), 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Without the right to lock it, the memory works, but may be swapped out.
        // SAFETY: the range was just mapped.
        let _ = unsafe { libc::mlock(at, bytes) };
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Mapping { at, bytes, path: path.to_owned(), _file: file })
    }

    fn check(&self, at: usize, bytes: usize) {
        assert!(at <= self.bytes && bytes <= self.bytes - at, "a store stays inside the memory");
    }
}

impl SharedMemory for Mapping {
    fn len(&self) -> usize {
        self.bytes
    }

    fn store(&mut self, at: usize, bytes: &[u8]) {
        self.check(at, bytes.len());
        // SAFETY: the range is inside the mapping, and nothing else in this process refers to it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at.as_ptr().add(at), bytes.len()) };
    }

    fn mark(&mut self, at: usize, number: u64) {
        self.check(at, size_of::<u64>());
        assert!(at.is_multiple_of(size_of::<u64>()), "a mark is stored at once");
        // SAFETY: the place is inside the mapping, which begins at a page, and aligned.
        let mark = unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(at).cast()) };
        mark.store(number.to_le(), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    fn remove(self: Box<Self>) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by this value, and nothing refers to it any more.
        let _ = unsafe { libc::munmap(self.at.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE: [u8; 16] = [7; 16];

    fn in_ram() -> Option<tempfile::TempDir> {
        let directory =
            tempfile::tempdir_in("/dev/shm").ok().filter(|it| is_in_ram(it.path()).unwrap_or(false));
        if directory.is_none() {
            eprintln!("SKIPPED: /dev/shm is no file system in RAM that can be written");
        }
        directory
    }

    #[test]
    fn what_was_stored_is_found_until_it_is_replaced_or_removed() {
        let Some(directory) = in_ram() else { return };
        let mut place = MemoryDirectory::open(directory.path(), true).unwrap();
        assert_eq!(place.find(&CACHE, 5), Ok(None));
        let mut memory = place.make(&CACHE, 5, 10_000).unwrap();
        memory.store(100, b"answered");
        memory.mark(8, 77);
        assert_eq!(place.find(&CACHE, 5), Err(MemoryInUse), "its process may still answer");
        assert!(place.make(&CACHE, 5, 4096).is_none(), "nothing takes it away");
        place.forget(&CACHE, 5);
        drop(memory);
        let mut looks = MemoryDirectory::open(directory.path(), false).unwrap();
        looks.forget(&CACHE, 5);
        place.make(&CACHE, 6, 5000).unwrap().remove();
        place.forget(&CACHE, 0);
        let found = looks.find(&CACHE, 5).unwrap().expect("a look removes nothing");
        assert_eq!((found.len(), &found[100..108], found[8]), (10_000, &b"answered"[..], 77));
        assert_eq!((place.find(&CACHE, 6), place.find(&CACHE, 0)), (Ok(None), Ok(None)));
        assert_eq!((1..100).find(|_| place.draw(&CACHE, 6) == Some(5)), None, "the number is in use");
        place.forget(&CACHE, 5);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left behind");
    }

    #[test]
    fn only_private_files_in_ram_are_believed() {
        let Some(directory) = in_ram() else { return };
        let mut place = MemoryDirectory::open(directory.path(), true).unwrap();
        drop(place.make(&CACHE, 5, 4096).unwrap());
        let path = place.path_of(&CACHE, 5);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        assert_eq!(place.find(&CACHE, 5), Ok(None), "another user could have written it");
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(place.find(&CACHE, 5), Ok(None), "links are not followed");
        let mut on_disk = MemoryDirectory::open(Path::new("/proc"), true).unwrap();
        assert!(
            on_disk.make(&CACHE, 5, 4096).is_none() && on_disk.find(&CACHE, 5) == Ok(None),
            "/proc keeps nothing"
        );
        let no_room = MemoryDirectory::open(directory.path(), true).unwrap().make(&CACHE, 6, 1 << 46);
        assert!(no_room.is_none(), "without room the old way remains");
    }
}
