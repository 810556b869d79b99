//! Real devices under a stack whose commands are carried out one after the other: what offline commands need.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::time::Instant;

use dcd_engine::{
    DeviceIndex, ErrorKind, Geometry, Io, IoError, IoResult, Nanos, Output, Pump, SECTOR_BYTES, Stack,
};
use dcd_stack::{DeviceOpener, DeviceSource, DeviceSpec};
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};

use crate::failure::Failure;

/// Opens and locks files and block devices.
#[derive(Default)]
pub struct Opener {
    files: Vec<File>,
    /// Set when a device is open elsewhere.
    pub busy: bool,
}

impl Opener {
    pub fn into_pump(self) -> Result<Box<dyn Pump>, Failure> {
        Ok(Box::new(FilePump { files: self.files, started: Instant::now(), outputs: Vec::new() }))
    }
}

impl DeviceOpener for Opener {
    fn open(&mut self, _index: DeviceIndex, device: &DeviceSpec) -> Result<Geometry, String> {
        let DeviceSource::Path { path, size } = &device.source else {
            return Err("RAM has nothing to look at offline".to_owned());
        };
        let block = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
        let mut options = OpenOptions::new();
        options.read(true).write(!device.read_only);
        if block {
            options.custom_flags(OFlags::EXCL.bits() as i32);
        } else if size.is_some() {
            options.create(true);
        }
        let mut file = options.open(path).map_err(|e| {
            self.busy = e.kind() == std::io::ErrorKind::ResourceBusy;
            format!("{}: {e}", path.display())
        })?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            self.busy = true;
            return Err(format!("{}: in use by another process", path.display()));
        }
        let mut bytes = file.seek(SeekFrom::End(0)).map_err(|e| format!("{}: {e}", path.display()))?;
        if let (0, Some(size)) = (bytes, size) {
            file.set_len(*size).map_err(|e| format!("{}: {e}", path.display()))?;
            bytes = *size;
        }
        self.files.push(file);
        Ok(Geometry {
            read_only: device.read_only,
            discards: true,
            fast_zeroes: true,
            ..Geometry::plain(bytes / SECTOR_BYTES)
        })
    }
}

struct FilePump {
    files: Vec<File>,
    started: Instant,
    outputs: Vec<Output>,
}

impl Pump for FilePump {
    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    fn pump(&mut self, stack: &mut Stack) {
        let mut outputs = std::mem::take(&mut self.outputs);
        stack.take_outputs(&mut outputs);
        if outputs.is_empty() {
            if let Some(deadline) = stack.next_deadline() {
                std::thread::sleep(std::time::Duration::from_nanos(deadline.since(self.now()).0));
            }
            stack.wake(self.now());
        }
        for output in outputs.drain(..) {
            if let Output::Device { device, tag, io } = output {
                let result = carry_out(&self.files[device.0], io);
                stack.complete(self.now(), tag, result);
            }
        }
        self.outputs = outputs;
    }
}

fn carry_out(file: &File, mut io: Io) -> IoResult {
    let extent = io.extent();
    let done = match &mut io {
        Io::Read { at, buf } => file.read_exact_at(buf.bytes_mut(), at.bytes()),
        Io::Write { at, buf, .. } => file.write_all_at(buf.bytes(), at.bytes()),
        Io::Flush => file.sync_data(),
        Io::Discard { extent } | Io::WriteZeroes { extent, .. } => fallocate(
            file,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            extent.start.bytes(),
            extent.sectors * SECTOR_BYTES,
        )
        .map_err(Into::into),
    };
    IoResult { buf: io.take_buf(), status: done.map_err(|_| IoError { kind: ErrorKind::Medium, extent }) }
}
