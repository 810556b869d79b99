//! Devices under the driver: a stack's operations become entries of the ring or jobs of a thread, or are done synchronously.

use std::collections::BTreeMap;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use dcd_engine::{BlockDevice, DeviceIndex, ErrorKind, Io, IoError, IoResult, Nanos, Tag};
use io_uring::{opcode, types};

use super::{Driver, OpenId};
use crate::device::sync::run_to_end;
use crate::device::transfer::{SystemCall, Transfer};
use crate::device::{
    Backing, BegunOp, CallsBy, Device, DeviceError, DeviceSpec, DeviceUsage, Failures, OpKind, OpenFile,
    check,
};
use crate::ring::{RingPurpose, Token};
use crate::workers::{self, Finished, FinishedQueue, Workers};

/// Largest operation on a file in memory that is done synchronously: copying costs less than passing it to a kernel thread, as
/// the ring does for such files. For larger ones a second processor pays.
const AT_ONCE_BYTES_MAX: usize = 128 << 10;

/// An operation that the kernel or a thread is carrying out.
pub(super) struct DeviceOp {
    tag: Tag,
    device: usize,
    begun: BegunOp,
    /// None while a thread has it.
    transfer: Option<Transfer>,
}

/// Operations that a device has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredOps {
    pub device: DeviceIndex,
    pub operations: usize,
    /// Start of the oldest of them.
    pub since: Nanos,
}

impl Driver {
    /// Adds the next device; the stack must know it by the index that comes back.
    ///
    /// # Errors
    /// Where the system has no thread for a device that needs one.
    pub fn add_device(&mut self, mut device: Device) -> Result<DeviceIndex, DeviceError> {
        device.backing = match device.backing {
            Backing::File(OpenFile { file, traits, .. }) if traits.calls_by == CallsBy::Workers => {
                let workers = Workers::new(file, Arc::clone(&self.finished_by_workers));
                let failed = |error| DeviceError::system(device.name.as_ref(), "making a thread", error);
                Backing::Worked { workers: workers.map_err(failed)?, traits }
            }
            backing => backing,
        };
        self.devices.push(device);
        Ok(DeviceIndex(self.devices.len() - 1))
    }

    /// Opens a device on a thread of its own; the host is told the result.
    pub(super) fn open_device(&mut self, spec: DeviceSpec) -> std::io::Result<OpenId> {
        self.opens += 1;
        workers::open(&self.finished_by_workers, self.opens, move || Device::open(&spec))?;
        Ok(OpenId(self.opens))
    }

    /// Begins an operation; its end comes through `finished`.
    pub(super) fn start(&mut self, device: DeviceIndex, tag: Tag, io: Io) {
        let target = &mut self.devices[device.0];
        self.statistics.device_operations += 1;
        if let Err(error) = check(&target.geometry, &io) {
            self.finished.push_back((tag, IoResult::err(io.take_buf(), error)));
            return;
        }
        let begun = BegunOp::new(&io, self.now);
        let op = DeviceOp { tag, device: device.0, begun, transfer: None };
        match &mut target.backing {
            Backing::Memory(memory) => {
                let result = memory.run(io);
                self.ended(device.0, &begun, self.now, (tag, result));
            }
            Backing::Closed => {
                let error = IoError::new(ErrorKind::Shutdown);
                self.finished.push_back((tag, IoResult::err(io.take_buf(), error)));
            }
            Backing::Missing => {
                let error = IoError::new(ErrorKind::Medium);
                self.finished.push_back((tag, IoResult::err(io.take_buf(), error)));
            }
            Backing::Remote(remote) => {
                let op = self.ops.insert(op);
                let finished = Arc::clone(&self.finished_by_workers);
                remote.submit(io, Box::new(move |result| finished.ended(op, result)));
            }
            Backing::Worked { workers, traits } => {
                let op = self.ops.insert(op);
                workers.submit(op, Transfer::new(*traits, io));
            }
            Backing::File(file) => {
                let transfer = Transfer::new(file.traits, io);
                if transfer.is_for_thread() {
                    match workers_of_file(file, &self.finished_by_workers) {
                        Some(workers) => workers.submit(self.ops.insert(op), transfer),
                        // Advice need not be taken.
                        None => self.finished.push_back((tag, transfer.finish(Ok(())))),
                    }
                } else if file.traits.calls_by == CallsBy::Itself && transfer.bytes() <= AT_ONCE_BYTES_MAX {
                    // The time of those before it in the turn is not its own.
                    let before = self.started.elapsed();
                    let result = run_to_end(file.file.as_raw_fd(), transfer);
                    let took = self.started.elapsed().saturating_sub(before);
                    let ended = begun.at.saturating_add(Nanos(took.as_nanos() as u64));
                    self.ended(device.0, &begun, ended, (tag, result));
                } else {
                    let op = self.ops.insert(DeviceOp { transfer: Some(transfer), ..op });
                    self.push_call(op);
                }
            }
        }
    }

    /// The threads of a device, if it is a file and they can be had.
    pub(super) fn workers_of(&mut self, device: usize) -> Option<&mut Workers> {
        match &mut self.devices[device].backing {
            Backing::File(file) => workers_of_file(file, &self.finished_by_workers),
            Backing::Worked { workers, .. } => Some(workers),
            Backing::Memory(_) | Backing::Remote(_) | Backing::Closed | Backing::Missing => None,
        }
    }

    fn ended(&mut self, device: usize, op: &BegunOp, now: Nanos, (tag, result): (Tag, IoResult)) {
        self.devices[device].usage.ended(op, now);
        // An unsupported operation is not a failure, nor is a discard that fails: it is advice.
        if let Err(error) = result.status
            && error.kind != ErrorKind::Unsupported
            && op.kind != OpKind::Discard
        {
            let failures = &mut self.devices[device].failures;
            failures.no_space += u64::from(error.kind == ErrorKind::NoSpace);
            failures.is_full |= error.kind == ErrorKind::NoSpace;
            let count = match op.kind {
                OpKind::Read => &mut failures.reads,
                OpKind::Write | OpKind::Discard => &mut failures.writes,
                OpKind::Flush => &mut failures.flushes,
            };
            *count += 1;
            failures.last = Some((op.kind.word(), error));
        } else if result.status.is_ok() && op.kind == OpKind::Write {
            self.devices[device].failures.is_full = false;
        }
        self.finished.push_back((tag, result));
    }

    pub(super) fn forget_counts(&mut self) {
        for device in &mut self.devices {
            (device.failures, device.usage) = (Failures::default(), DeviceUsage::default());
        }
    }

    /// Closes a device permanently, and releases its lock. Returns false while operations on it are under way: then it stays open.
    pub(super) fn close_device(&mut self, device: DeviceIndex) -> bool {
        let idle = self.ops.iter().all(|(_, op)| op.device != device.0);
        if idle {
            let backing = std::mem::replace(&mut self.devices[device.0].backing, Backing::Closed);
            self.closing += 1;
            workers::close(&self.finished_by_workers, backing);
        }
        idle
    }

    /// The devices whose oldest operation is older than `age`.
    pub fn unanswered(&self, age: Nanos) -> Vec<UnansweredOps> {
        let mut devices: BTreeMap<usize, UnansweredOps> = BTreeMap::new();
        for (_, op) in &self.ops {
            let device = DeviceIndex(op.device);
            let new = || UnansweredOps { device, operations: 0, since: op.begun.at };
            let owed = devices.entry(op.device).or_insert_with(new);
            owed.operations += 1;
            owed.since = owed.since.min(op.begun.at);
        }
        let now = self.elapsed();
        devices.into_values().filter(|owed| now.since(owed.since) >= age).collect()
    }

    fn push_call(&mut self, index: usize) {
        let op = self.ops.get_mut(index).expect("an operation in flight has its place");
        let Backing::File(file) = &self.devices[op.device].backing else {
            unreachable!("memory answers at once, and nothing is closed while the kernel works on it");
        };
        let fd = types::Fd(file.file.as_raw_fd());
        let transfer = op.transfer.as_mut().expect("no thread has it");
        let entry = match transfer.call() {
            SystemCall::Read { offset, memory } => {
                opcode::Read::new(fd, memory.pointer, memory.len).offset(offset).build()
            }
            SystemCall::Write { offset, memory, durable } => {
                opcode::Write::new(fd, memory.pointer, memory.len)
                    .offset(offset)
                    .rw_flags(if durable { libc::RWF_DSYNC } else { 0 })
                    .build()
            }
            SystemCall::Allocate { offset, len, mode } => {
                opcode::Fallocate::new(fd, len).offset(offset).mode(mode).build()
            }
            SystemCall::Discard { .. } => unreachable!("threads make it"),
            SystemCall::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        // SAFETY: the memory belongs to the transfer. It lies on the heap and stays there while the transfer is in
        // `ops`, from where it is removed only after its completion (or never: see the driver's `Drop`).
        unsafe { self.ring.push(entry, Token::new(RingPurpose::Device, index)) };
    }

    /// The kernel has ended a call.
    pub(super) fn device_completed(&mut self, index: usize, result: i32) {
        let op = self.ops.get_mut(index).expect("an operation completes once");
        let transfer = op.transfer.as_mut().expect("no thread has it");
        match transfer.advance(result) {
            None => self.push_call(index),
            Some(status) => {
                let op = self.ops.remove(index);
                let transfer = op.transfer.expect("looked at above");
                self.ended(op.device, &op.begun, self.now, (op.tag, transfer.finish(status)));
            }
        }
    }

    /// Threads have ended operations, and opened what is given back.
    pub(super) fn collect_from_workers(&mut self, more: bool) -> FinishedQueue {
        let mut queue = self.finished_by_workers.take();
        self.closing -= queue.closed;
        for (index, result) in queue.ended.drain(..) {
            let op = self.ops.remove(index);
            self.ended(op.device, &op.begun, self.now, (op.tag, result));
        }
        if !more {
            self.watch_workers();
        }
        queue
    }

    /// Makes the ring report when a thread has finished work.
    pub(super) fn watch_workers(&mut self) {
        let fd = types::Fd(self.finished_by_workers.bell());
        let entry = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        // SAFETY: the entry names no memory.
        unsafe { self.ring.push(entry, Token::new(RingPurpose::Workers, 0)) };
    }
}

/// Returns the threads of a file that otherwise uses the ring. None if no descriptor or thread is left.
fn workers_of_file<'a>(file: &'a mut OpenFile, finished: &Arc<Finished>) -> Option<&'a mut Workers> {
    if file.workers.is_none() {
        file.workers = Workers::new(file.file.try_clone().ok()?, Arc::clone(finished)).ok();
    }
    file.workers.as_mut()
}
