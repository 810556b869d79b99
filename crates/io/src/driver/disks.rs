//! Devices under the driver: a stack's operations become entries of the ring, or are done at once.

use std::os::fd::AsRawFd;

use dcd_engine::{BlockDevice, DeviceIndex, ErrorKind, Io, IoError, IoResult, Tag};
use io_uring::{opcode, types};

use super::Driver;
use crate::device::sync::run_to_end;
use crate::device::transfer::{Call, Transfer};
use crate::device::{Backing, check};
use crate::ring::{Kind, Token};

/// Up to this many bytes an operation on a file in memory is done at once: copying them costs less than handing them
/// to a thread of the kernel, as the ring does for such files. From here on a second processor pays.
const AT_ONCE_BYTES_MAX: usize = 128 << 10;

/// An operation that the kernel is carrying out.
pub(super) struct DeviceOp {
    tag: Tag,
    device: usize,
    transfer: Transfer,
}

impl Driver {
    /// Begins an operation; its end comes through `finished`.
    pub(super) fn start(&mut self, device: DeviceIndex, tag: Tag, io: Io) {
        let target = &mut self.devices[device.0];
        self.statistics.device_operations += 1;
        if let Err(error) = check(&target.geometry, &io) {
            self.finished.push_back((tag, IoResult::err(io.take_buf(), error)));
            return;
        }
        match &mut target.backing {
            Backing::Memory(memory) => self.finished.push_back((tag, memory.run(io))),
            Backing::Closed => {
                let error = IoError::new(ErrorKind::Shutdown);
                self.finished.push_back((tag, IoResult::err(io.take_buf(), error)));
            }
            Backing::File(file) => {
                let transfer = Transfer::new(file.traits, io);
                if file.traits.answers_at_once && transfer.bytes() <= AT_ONCE_BYTES_MAX {
                    let result = run_to_end(file.file.as_raw_fd(), transfer);
                    self.finished.push_back((tag, result));
                } else {
                    let op = self.ops.insert(DeviceOp { tag, device: device.0, transfer });
                    self.push_call(op);
                }
            }
        }
    }

    /// Closes a device for good, and gives up its lock. False where operations on it are under way: then it stays open.
    pub(super) fn close_device(&mut self, device: DeviceIndex) -> bool {
        let idle = self.ops.iter().all(|(_, op)| op.device != device.0);
        if idle {
            self.devices[device.0].backing = Backing::Closed;
        }
        idle
    }

    fn push_call(&mut self, index: usize) {
        let op = self.ops.get_mut(index).expect("an operation in flight has its place");
        let Backing::File(file) = &self.devices[op.device].backing else {
            unreachable!("memory answers at once, and nothing is closed while the kernel works on it");
        };
        let fd = types::Fd(file.file.as_raw_fd());
        let entry = match op.transfer.call() {
            Call::Read { offset, memory } => {
                opcode::Read::new(fd, memory.pointer, memory.len).offset(offset).build()
            }
            Call::Write { offset, memory, durable } => opcode::Write::new(fd, memory.pointer, memory.len)
                .offset(offset)
                .rw_flags(if durable { libc::RWF_DSYNC } else { 0 })
                .build(),
            Call::Allocate { offset, len, mode } => {
                opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
            }
            Call::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        // SAFETY: the memory belongs to the transfer. It lies on the heap and stays there while the transfer is in
        // `ops`, from where it is removed only after its completion (or never: see the driver's `Drop`).
        unsafe { self.ring.push(entry, Token::new(Kind::Device, index)) };
    }

    /// The kernel has ended a call.
    pub(super) fn device_completed(&mut self, index: usize, result: i32) {
        let op = self.ops.get_mut(index).expect("an operation completes once");
        match op.transfer.advance(result) {
            None => self.push_call(index),
            Some(status) => {
                let op = self.ops.remove(index);
                self.finished.push_back((op.tag, op.transfer.finish(status)));
            }
        }
    }
}
