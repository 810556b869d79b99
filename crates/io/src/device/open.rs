//! Opening a file or block device: its kind, its lock, its space, O_DIRECT, and what the kernel knows of it.
//!
//! A device that is served belongs to one process. Block devices are claimed with O_EXCL, which also refuses disks that
//! are mounted or belong to an array. Files carry an open-file-description lock over their whole length, which other
//! users of such locks (QEMU) respect as well; readers share it with readers.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dcd_engine::{Discards, Geometry, SECTOR_BYTES};

use super::{Backing, CallsBy, Device, Direct, FileSpec, FileTraits, OpenFile, OpenedPlace, loops, probe};

/// Why a device cannot be opened: which one, what is wrong, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "{}: in use: {what}. Stop its user first (`lsblk`, `findmnt`, `lslocks` and `fuser -v` name it)",
        path.display()
    )]
    Busy { path: PathBuf, what: String },
    #[error("{}: in use by another dcd of this machine{}: stop that one first", path.display(), pid.map_or_else(String::new, |pid| format!(" (process {pid})")))]
    Claimed { path: PathBuf, pid: Option<u32> },
    #[error("{}: there is no such file or device: check the path", path.display())]
    NotFound { path: PathBuf },
    #[error(
        "{}: permission denied: run as root, or as a user who may open it. Root in a container may lack the right: pass the device in", path.display()
    )]
    Permission { path: PathBuf },
    #[error("{}: {what}", path.display())]
    Unsuitable { path: PathBuf, what: String },
    #[error(
        "{}: {lacking} bytes of the file have no space yet, and its file system has {free} bytes free: free the rest there, make the \
         file smaller, or put it elsewhere",
        path.display()
    )]
    NoSpace { path: PathBuf, lacking: u64, free: u64 },
    #[error("{}: {doing} failed: {source}", path.display())]
    System { path: PathBuf, doing: &'static str, source: io::Error },
}

impl DeviceError {
    pub(crate) fn system(path: &Path, doing: &'static str, source: io::Error) -> DeviceError {
        DeviceError::System { path: path.to_owned(), doing, source }
    }

    /// True if another user has the device and may release it.
    pub fn is_in_use(&self) -> bool {
        matches!(self, DeviceError::Busy { .. } | DeviceError::Claimed { .. })
    }

    fn unsuitable(path: &Path, what: impl Into<String>) -> DeviceError {
        DeviceError::Unsuitable { path: path.to_owned(), what: what.into() }
    }
}

const HOST_MANAGED: &str = "a host-managed zoned disk (shingled) takes writes only in order within each zone, and dcd writes anywhere. \
                            Use a conventional or a drive-managed disk, or put dm-zoned below";

/// Opens as [`Device::open`] promises.
pub(crate) fn open_file(spec: &FileSpec) -> Result<Device, DeviceError> {
    let (file, is_block) = open_claimed(spec)?;
    if is_block && probe::is_host_managed(&file) {
        return Err(DeviceError::unsuitable(&spec.path, HOST_MANAGED));
    }
    if !is_block {
        lock(&file, spec)?;
        if !spec.read_only {
            refuse_loop_backing(&file, &spec.path)?;
        }
        if let Some(bytes) = spec.create {
            make_space(&file, spec, bytes)?;
        }
    }
    let in_memory = !is_block && probe::is_memory_file_system(&file);
    let direct = set_direct(&file, spec, in_memory)?;
    let (geometry, traits) = measure(&file, spec, is_block, in_memory, direct)?;
    if geometry.sectors == 0 {
        let what = match is_block {
            true => "it has no size: there is no medium in it, or no file attached to it",
            false => "it is smaller than one block: make it larger, or give it a size",
        };
        return Err(DeviceError::unsuitable(&spec.path, what));
    }
    let metadata = file.metadata().map_err(|e| DeviceError::system(&spec.path, "fstat", e))?;
    let place = Some(Box::new(OpenedPlace::of(&spec.path, &metadata)));
    let name = spec.path.display().to_string();
    let backing = Backing::File(OpenFile { file, traits, workers: None });
    Ok(Device::new(name, geometry, backing, place))
}

/// Opens the path, a block device with its exclusive claim.
fn open_claimed(spec: &FileSpec) -> Result<(File, bool), DeviceError> {
    let path = &spec.path;
    let kind = match std::fs::metadata(path) {
        Ok(metadata) => Some(metadata.file_type()),
        Err(e) if e.kind() == io::ErrorKind::NotFound && spec.create.is_some() && !spec.read_only => None,
        Err(e) => return Err(open_error(path, e)),
    };
    let is_block = kind.is_some_and(|kind| kind.is_block_device());
    if kind.is_some_and(|kind| !kind.is_file() && !is_block) {
        return Err(DeviceError::unsuitable(path, "it is neither a regular file nor a block device"));
    }
    let mut options = OpenOptions::new();
    options.read(true).write(!spec.read_only);
    if is_block {
        options.custom_flags(libc::O_EXCL);
    } else if kind.is_none() {
        // Private from the start: it will hold somebody's data.
        options.create_new(true).mode(0o600);
    }
    let file = options.open(path).map_err(|e| open_error(path, e))?;
    let opened = file.metadata().map_err(|e| DeviceError::system(path, "fstat", e))?.file_type();
    if opened.is_block_device() != is_block || (!is_block && !opened.is_file()) {
        return Err(DeviceError::unsuitable(path, "it was replaced while it was opened: try again"));
    }
    if is_block && !spec.read_only && probe::is_read_only(&file) {
        return Err(open_error(path, io::Error::from_raw_os_error(libc::EROFS)));
    }
    Ok((file, is_block))
}

fn open_error(path: &Path, error: io::Error) -> DeviceError {
    let path = path.to_owned();
    match error.raw_os_error() {
        Some(libc::EBUSY) => DeviceError::Busy {
            path,
            what: "it is mounted, used as swap, part of an array, or served by another process".to_owned(),
        },
        Some(libc::ENOENT) => DeviceError::NotFound { path },
        Some(libc::EACCES | libc::EPERM) => DeviceError::Permission { path },
        Some(libc::EROFS) => DeviceError::Unsuitable {
            path,
            what: "it is read only: open it for reading only, or make it writable".to_owned(),
        },
        _ => DeviceError::System { path, doing: "open", source: error },
    }
}

/// Takes the lock of the whole file: exclusive to write, shared to read.
fn lock(file: &File, spec: &FileSpec) -> Result<(), DeviceError> {
    let kind = if spec.read_only { libc::F_RDLCK } else { libc::F_WRLCK };
    // SAFETY: `flock` is plain data, for which all zeroes is a valid value: from the start, no end, no process.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as libc::c_short;
    range.l_whence = libc::SEEK_SET as libc::c_short;
    // SAFETY: the descriptor is open, and `range` lives for the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &range) };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Err(DeviceError::Busy {
            path: spec.path.clone(),
            what: "another process, or another part of this one, has locked it".to_owned(),
        }),
        _ => {
            Err(DeviceError::system(&spec.path, "taking the lock (does the file system have locks?)", error))
        }
    }
}

fn refuse_loop_backing(file: &File, path: &Path) -> Result<(), DeviceError> {
    match loops::device_over(file) {
        Some(device) => Err(DeviceError::Busy {
            path: path.to_owned(),
            what: format!("the loop device {device} stands on it (`losetup -d {device}` detaches it)"),
        }),
        None => Ok(()),
    }
}

/// Gives a file that was made, or is empty, its size.
fn make_space(file: &File, spec: &FileSpec, bytes: u64) -> Result<(), DeviceError> {
    let path = &spec.path;
    let now = file.metadata().map_err(|e| DeviceError::system(path, "fstat", e))?.size();
    if now == bytes {
        return Ok(());
    }
    if now != 0 {
        return Err(DeviceError::unsuitable(
            path,
            format!(
                "it exists with {now} bytes, not the {bytes} asked for: is it the right file? Correct its name or \
                 \"size\"; a file that was cut short can be made as large as it was (truncate --size={bytes})"
            ),
        ));
    }
    let made = file.set_len(bytes).and_then(|()| file.sync_all());
    made.map_err(|e| DeviceError::system(path, "making the file", e))
}

/// Turns O_DIRECT on where it is wanted and works; true where it is on.
fn set_direct(file: &File, spec: &FileSpec, in_memory: bool) -> Result<bool, DeviceError> {
    // A file in memory has no page cache to bypass.
    if spec.direct == Direct::Never || (spec.direct == Direct::Auto && in_memory) {
        return Ok(false);
    }
    // SAFETY: plain system calls on an open descriptor.
    let done = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags | libc::O_DIRECT)
    };
    match (done, spec.direct) {
        (0, _) => Ok(true),
        (_, Direct::Always) => Err(DeviceError::unsuitable(
            &spec.path,
            "its file system has no O_DIRECT: allow buffered access, or move it",
        )),
        _ => Ok(false),
    }
}

fn measure(
    file: &File,
    spec: &FileSpec,
    is_block: bool,
    in_memory: bool,
    direct: bool,
) -> Result<(Geometry, FileTraits), DeviceError> {
    let failed = |e| DeviceError::system(&spec.path, "asking for the size", e);
    let found = if is_block {
        probe::block_device(file, direct).map_err(failed)?
    } else {
        probe::regular_file(file, direct, spec.read_only).map_err(failed)?
    };
    let block = u64::from(found.logical_block_bytes);
    let geometry = Geometry {
        sectors: found.bytes / block * (block / SECTOR_BYTES),
        logical_block_bytes: found.logical_block_bytes,
        physical_block_bytes: found.physical_block_bytes,
        volatile_cache: found.volatile_cache,
        discards: if spec.read_only { Discards::No } else { found.discards },
        fast_zeroes: found.fast_zeroes && !spec.read_only,
        rotational: found.rotational,
        read_only: spec.read_only,
        stripes: None,
        copies: 1,
        holes: !is_block,
        ssd: found.ssd,
        disk: Some(found.disk),
    };
    let calls_by = match () {
        () if in_memory => CallsBy::Itself,
        () if probe::never_waits(file) => CallsBy::Ring,
        () => CallsBy::Workers,
    };
    let traits =
        FileTraits { block: block as usize, memory_align: found.memory_align, direct, is_block, calls_by };
    Ok((geometry, traits))
}
