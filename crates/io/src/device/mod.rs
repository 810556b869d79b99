//! Devices of the real driver: files, block devices and memory, opened, locked and measured in one place.
//!
//! Every device checks requests against its geometry in the same way ([`check`]), so that a malformed request ends in
//! the same error wherever it lands. A file's requests become system calls by one state machine ([`transfer`]), which
//! the ring and the synchronous [`FileDevice`] share.

pub(crate) mod holes;
mod identity;
mod loops;
mod memory;
mod open;
mod overlay;
mod place;
mod probe;
mod space;
pub(crate) mod sync;
pub(crate) mod transfer;
mod usage;
mod wear;

use std::fs::File;
use std::path::PathBuf;

use dcd_engine::{ErrorKind, Geometry, Io, IoError};

pub use holes::MappedRun;
pub use identity::{LoopFile, loop_file, mark_names, read_mark, write_mark};
pub use memory::MemoryDevice;
pub use open::DeviceError;
pub use overlay::Overlay;
pub use place::{OpenedPlace, is_in_memory};
pub use space::reserve_space;
pub use sync::FileDevice;
pub(crate) use transfer::{CallsBy, FileTraits};
pub(crate) use usage::BegunOp;
pub use usage::{DeviceUsage, OpCounts, OpKind};
pub use wear::DiskWear;

use crate::remote::{self, LinkStatus, Remote, RemoteSpec};
use crate::workers::Workers;

/// Choice between direct I/O and the kernel's page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// O_DIRECT where the file system takes it, else buffered; [`Device::is_direct`] tells which.
    #[default]
    Auto,
    /// Buffered: for the backing of a modelled disk.
    Never,
    /// O_DIRECT, or an error.
    Always,
}

/// A file or block device to open.
#[derive(Clone, Debug)]
pub struct FileSpec {
    pub path: PathBuf,
    pub read_only: bool,
    pub direct: Direct,
    /// Size of the regular file to make if it is missing or empty. Any other existing file must have this size.
    pub create: Option<u64>,
}

impl FileSpec {
    /// An existing file for reading and writing, with O_DIRECT where possible.
    pub fn new(path: impl Into<PathBuf>) -> FileSpec {
        FileSpec { path: path.into(), read_only: false, direct: Direct::Auto, create: None }
    }
}

/// A device to open.
#[derive(Clone, Debug)]
pub enum DeviceSpec {
    File(FileSpec),
    /// An export of an NBD server.
    Remote(RemoteSpec),
    /// RAM that answers synchronously and takes space as it is written; its content is lost when the process ends.
    Memory {
        bytes: u64,
    },
    /// Stands for a device that is missing: every operation fails.
    Missing {
        sectors: u64,
    },
}

/// An open file with an exclusive lock, held until it is dropped.
pub(crate) struct OpenFile {
    pub file: File,
    pub traits: FileTraits,
    /// Threads for calls that the ring does not know; none before the first such call.
    pub workers: Option<Workers>,
}

pub(crate) enum Backing {
    File(OpenFile),
    /// A file in the driver whose calls may wait.
    Worked {
        workers: Workers,
        traits: FileTraits,
    },
    Memory(MemoryDevice),
    Remote(Remote),
    /// Permanently closed: operations fail.
    Closed,
    /// Stands for a device that is missing: operations fail.
    Missing,
}

/// Counts of a device's failed operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    pub reads: u64,
    /// Discards and zeroes too.
    pub writes: u64,
    pub flushes: u64,
    /// Failed operations for lack of space: the storage below the device is full.
    pub no_space: u64,
    /// True from such a failure until a write succeeds.
    pub is_full: bool,
    /// The last failure: what was tried, and the error.
    pub last: Option<(&'static str, IoError)>,
}

/// An open device.
pub struct Device {
    pub(crate) name: String,
    pub(crate) geometry: Geometry,
    pub(crate) backing: Backing,
    pub(crate) failures: Failures,
    pub(crate) usage: DeviceUsage,
    /// None for RAM and exports.
    pub(crate) place: Option<Box<OpenedPlace>>,
}

impl Device {
    /// Opens, locks and measures a device. A second opening, here or in another process, is refused.
    pub fn open(spec: &DeviceSpec) -> Result<Device, DeviceError> {
        match spec {
            DeviceSpec::File(spec) => open::open_file(spec),
            DeviceSpec::Remote(spec) => remote::open(spec),
            DeviceSpec::Missing { sectors } => {
                Ok(Device::new("missing".to_owned(), Geometry::plain(*sectors), Backing::Missing, None))
            }
            DeviceSpec::Memory { bytes } => {
                let memory = MemoryDevice::new(*bytes);
                let geometry = dcd_engine::BlockDevice::geometry(&memory);
                Ok(Device::new("memory".to_owned(), geometry, Backing::Memory(memory), None))
            }
        }
    }

    pub(crate) fn new(
        name: String,
        geometry: Geometry,
        backing: Backing,
        place: Option<Box<OpenedPlace>>,
    ) -> Device {
        Device {
            name,
            geometry,
            backing,
            failures: Failures::default(),
            usage: DeviceUsage::default(),
            place,
        }
    }

    /// The path, the URI of an export, or "memory".
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The file or block device that was opened; none for RAM and exports.
    pub fn place(&self) -> Option<&OpenedPlace> {
        self.place.as_deref()
    }

    /// False once the device is closed permanently, and for one that stands for a missing device.
    pub fn is_open(&self) -> bool {
        !matches!(self.backing, Backing::Closed | Backing::Missing)
    }

    /// Failed operations since the device was opened, or since the counts were reset.
    pub fn failures(&self) -> Failures {
        self.failures
    }

    /// Operations that have ended since then.
    pub const fn usage(&self) -> &DeviceUsage {
        &self.usage
    }

    /// True if requests bypass the page cache.
    pub fn is_direct(&self) -> bool {
        match &self.backing {
            Backing::File(OpenFile { traits, .. }) | Backing::Worked { traits, .. } => traits.direct,
            Backing::Remote(_) => true,
            Backing::Memory(_) | Backing::Closed | Backing::Missing => false,
        }
    }

    /// The state of its connection; none for a device of this machine.
    pub fn link(&self) -> Option<LinkStatus> {
        match &self.backing {
            Backing::Remote(remote) => Some(remote.link()),
            _ => None,
        }
    }
}

/// Refuses what a device of this geometry cannot do: empty, unaligned, past the end, writing to read-only, or bytes
/// asked of a buffer that has none.
pub(crate) fn check(geometry: &Geometry, io: &Io) -> Result<(), IoError> {
    geometry.validate(io)?;
    match io {
        Io::Read { buf, .. } | Io::Write { buf, .. } if buf.is_blank() => {
            Err(IoError { kind: ErrorKind::Invalid, extent: io.extent() })
        }
        _ => Ok(()),
    }
}
