//! Stack files that the tests of several modules read, and devices for them.

use std::path::Path;

use dcd_engine::{DeviceIndex, Geometry, SECTOR_BYTES};

use crate::{DeclaredDevice, DeviceOpener, DeviceSource, OpenError, StackFile, StackFileError};

/// A log and a data disk that are slices of one disk.
pub(crate) const LOGICAL: &str = r#"
export = "cache"

[serve]
nbd = "unix:disk.sock"
control = "/run/disk.control"

[device.file]
path = "disk.img"
size = "1GiB"

[layer.log]
kind = "slice"
of = "file"
size = "64MiB"

[layer.data]
kind = "slice"
of = "file"
first = "64MiB"

[layer.cache]
kind = "log-cache"
log = "log"
data = "data"
promise = "ordered"
delay-max = "250ms"
bypass = 0
"#;

/// An array with a missing member and a journal, below a log cache.
pub(crate) const RAID: &str = r#"
export = "cache"
[device.a]
memory = "2MiB"
[device.b]
memory = "2MiB"
[device.d]
memory = "3MiB"
[device.ssd]
memory = "8MiB"
[layer.journal]
kind = "slice"
of = "ssd"
size = "4MiB"
[layer.log]
kind = "slice"
of = "ssd"
first = "4MiB"
[layer.array]
kind = "raid"
level = "raid6"
of = ["a", "b", "missing", "d"]
strip = "64KiB"
journal = "journal"
low-mark = 9
[layer.cache]
kind = "log-cache"
log = "log"
data = "array"
"#;

pub(crate) fn parse(text: &str) -> Result<StackFile, StackFileError> {
    StackFile::parse(text, Path::new("/stacks/disk.toml"))
}

/// Devices of the sizes that their file states.
pub(crate) struct AsStated;

impl DeviceOpener for AsStated {
    fn open(&mut self, _index: DeviceIndex, device: &DeclaredDevice) -> Result<Geometry, OpenError> {
        match device.source {
            DeviceSource::Memory { size } | DeviceSource::Path { size: Some(size), .. } => {
                Ok(Geometry::plain(size / SECTOR_BYTES))
            }
            _ => panic!("the file states no size of {}", device.name),
        }
    }
}
