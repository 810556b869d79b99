//! A file or block device that answers synchronously: for format, check, dump and rescue, which run alone.

use std::os::fd::AsRawFd;

use dcd_engine::{BlockDevice, ErrorKind, Geometry, Io, IoError, IoResult};

use super::transfer::{self, Transfer};
use super::{Backing, Device, DeviceError, DeviceSpec, FileSpec, check};

/// A [`Device`] as a [`BlockDevice`]: each request is carried out by plain system calls.
pub struct FileDevice {
    device: Device,
}

impl FileDevice {
    /// Opens and locks a device as the server does: a served device cannot be opened here, and this one cannot be served.
    pub fn open(spec: &FileSpec) -> Result<FileDevice, DeviceError> {
        Device::open(&DeviceSpec::File(spec.clone())).map(FileDevice::from)
    }

    pub fn name(&self) -> &str {
        self.device.name()
    }

    pub fn is_direct(&self) -> bool {
        self.device.is_direct()
    }

    /// Returns the open device, for a driver, without releasing its lock.
    pub fn into_device(self) -> Device {
        self.device
    }
}

impl From<Device> for FileDevice {
    fn from(device: Device) -> FileDevice {
        FileDevice { device }
    }
}

impl BlockDevice for FileDevice {
    fn geometry(&self) -> Geometry {
        self.device.geometry
    }

    fn run(&mut self, io: Io) -> IoResult {
        if let Err(error) = check(&self.device.geometry, &io) {
            return IoResult::err(io.take_buf(), error);
        }
        match &mut self.device.backing {
            Backing::Memory(memory) => memory.run(io),
            Backing::Closed => IoResult::err(io.take_buf(), IoError::new(ErrorKind::Shutdown)),
            Backing::Missing => IoResult::err(io.take_buf(), IoError::new(ErrorKind::Medium)),
            Backing::Remote(remote) => remote.run(io),
            Backing::Worked { .. } => unreachable!("only a driver has workers"),
            Backing::File(file) => {
                let fd = file.file.as_raw_fd();
                run_to_end(fd, Transfer::new(file.traits, io))
            }
        }
    }
}

/// Makes all calls of a transfer, one after the other.
pub(crate) fn run_to_end(fd: std::os::fd::RawFd, mut transfer: Transfer) -> IoResult {
    loop {
        let call = transfer.call();
        if let Some(status) = transfer.advance(transfer::make_call(fd, call)) {
            return transfer.finish(status);
        }
    }
}
