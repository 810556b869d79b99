//! A disk as a layer: it delays what passes through it by the time that a drive would need.
//!
//! Below is one device that keeps the bytes and answers at once (memory, a file). A request waits in the drive's queue,
//! is served for its service time, and is handed down when that time is over, never before: after a power cut the device
//! below holds what was served and nothing else. The answer from below goes up as it is, errors too.
//!
//! | a request is | until                                                       |
//! |--------------|-------------------------------------------------------------|
//! | queued       | the scheduler takes it: in service                          |
//! | in service   | its service time is over: below (then the next one starts)  |
//! | below        | the device has answered: the client gets the answer         |
//!
//! The disk has its own timeline. Under a real driver it is woken a little after its deadlines; the next service starts
//! when the last one ended and not when the driver came to it, so that the modelled throughput stays right. How late the
//! driver was is counted and shown in the status.
//!
//! There is no write cache: a write that was answered is as durable as the device below makes it, which is why the
//! geometry says "volatile cache" exactly where that device does. A flush takes its turn after the writes that came
//! before it, and is then passed down, as completed writes may be in a cache there.

use dcd_engine::{
    ActivateError, Control, ErrorKind, Event, Extent, Geometry, Io, IoError, IoResult, Layer, Nanos, OpId,
    Outbox, Port, Ports, Request, RequestId, SECTOR_BYTES,
};
use serde::{Deserialize, Serialize};

use crate::controller::{Access, Controller, Served, Service};
use crate::drive::{self, Drive, DriveError};
use crate::queue::{Pending, Queue, Scheduler, Work};
use crate::statistics::Statistics;

const BELOW: Port = Port(0);

/// How a disk is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct DiskConfig {
    /// The name of a drive that is always there; see [`drive::names`].
    pub drive: String,
    /// How much of the drive is used, in bytes; all that the device below has, if absent.
    pub size: Option<u64>,
    pub queue: Scheduler,
}

impl Default for DiskConfig {
    fn default() -> Self {
        DiskConfig { drive: "barracuda-1996".to_owned(), size: None, queue: Scheduler::default() }
    }
}

struct InService {
    pending: Pending,
    end: Nanos,
}

/// See the module's documentation.
pub struct Disk {
    controller: Controller,
    queue: Queue,
    in_service: Option<InService>,
    /// When the last service ended.
    free_at: Nanos,
    size: Option<u64>,
    geometry: Option<Geometry>,
    statistics: Statistics,
}

impl Disk {
    /// A disk of one of the drives that are always there.
    pub fn new(config: &DiskConfig) -> Result<Disk, DriveError> {
        Ok(Disk::with_drive(drive::builtin(&config.drive)?, config))
    }

    /// A disk of any drive; `config.drive` is not looked at.
    pub fn with_drive(drive: Drive, config: &DiskConfig) -> Disk {
        let queue = Queue::new(config.queue, drive.queue_depth());
        Disk {
            controller: Controller::new(drive),
            queue,
            in_service: None,
            free_at: Nanos::ZERO,
            size: config.size,
            geometry: None,
            statistics: Statistics::default(),
        }
    }

    pub fn drive(&self) -> &Drive {
        self.controller.drive()
    }

    /// Ends every service whose time is over by `now`, one after the other, and starts what waits.
    fn advance(&mut self, now: Nanos, out: &mut Outbox) {
        while let Some(InService { pending, end }) = self.in_service.take_if(|service| service.end <= now) {
            self.free_at = end;
            self.statistics.late(now.since(end));
            self.statistics.below_changes(now, true);
            out.submit(BELOW, OpId(pending.request.id.0), pending.request.io);
            self.start_next();
        }
    }

    fn start_next(&mut self) {
        let Some((start, pending)) = self.queue.take(self.free_at, &mut self.controller) else { return };
        let service = match pending.work {
            Work::Transfer { access, extent, .. } => {
                self.controller.serve(start, pending.known, access, extent)
            }
            Work::Flush => Service {
                end: self.controller.serve_empty(start, pending.known),
                served: Served::Cache,
                seek: Nanos::ZERO,
                rotation: Nanos::ZERO,
                transfer: Nanos::ZERO,
            },
        };
        self.statistics.served(start, &service, &pending);
        self.in_service = Some(InService { pending, end: service.end });
    }

    fn accept(&mut self, now: Nanos, request: Request, out: &mut Outbox) {
        match self.work(&request.io) {
            Ok(work) => {
                self.queue.push(request, work, now);
                self.statistics.queued(self.queue.len() + usize::from(self.in_service.is_some()));
                if self.in_service.is_none() {
                    self.start_next();
                }
            }
            Err(error) => out.reply(request.id, IoResult::err(request.io.take_buf(), error)),
        }
    }

    /// What a request asks of the drive, or why it cannot be served.
    fn work(&self, io: &Io) -> Result<Work, IoError> {
        let geometry = self.geometry();
        let access = match io {
            Io::Flush => return Ok(Work::Flush),
            Io::Discard { extent } => return Err(IoError::at(ErrorKind::Unsupported, *extent)),
            Io::Read { .. } => Access::Read,
            Io::Write { .. } => Access::Write,
            Io::WriteZeroes { .. } => Access::WriteZeroes,
        };
        let extent = io.extent().expect("all but flushes have an extent");
        let error = |kind| Err(IoError::at(kind, extent));
        if geometry.read_only && access != Access::Read {
            return error(ErrorKind::ReadOnly);
        }
        if extent.sectors == 0 || !is_aligned(io, extent, geometry.logical_block_bytes) {
            return error(ErrorKind::Invalid);
        }
        if extent.start.0.checked_add(extent.sectors).is_none_or(|end| end > geometry.sectors) {
            return error(ErrorKind::OutOfRange);
        }
        Ok(Work::Transfer { access, extent, spot: self.drive().locate(extent.start) })
    }
}

fn is_aligned(io: &Io, extent: Extent, block_bytes: u32) -> bool {
    let block = u64::from(block_bytes) / SECTOR_BYTES;
    let whole_sectors = match io {
        Io::Read { buf, .. } | Io::Write { buf, .. } => (buf.len() as u64).is_multiple_of(SECTOR_BYTES),
        _ => true,
    };
    whole_sectors && extent.start.0.is_multiple_of(block) && extent.sectors.is_multiple_of(block)
}

impl Layer for Disk {
    fn handle(&mut self, now: Nanos, event: Event, out: &mut Outbox) {
        // What ended before this event must be over before the event can change anything.
        self.advance(now, out);
        match event {
            Event::Request(request) => self.accept(now, request, out),
            Event::Completed { op, result } => {
                self.statistics.below_changes(now, false);
                out.reply(RequestId(op.0), result);
            }
            Event::Control(Control::ResetStatistics) => self.statistics.reset(now),
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.in_service.as_ref().map(|service| service.end)
    }

    fn check(&self) {
        self.controller.check();
        assert!(self.in_service.is_some() || self.queue.len() == 0, "the disk rests while requests wait");
        assert!(self.in_service.as_ref().is_none_or(|service| service.end >= self.free_at));
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let below = below.geometry(BELOW);
        let drive = self.drive();
        let logical_block_bytes = drive.logical_block_bytes().max(below.logical_block_bytes);
        let block = u64::from(logical_block_bytes);
        let bytes = self.size.unwrap_or(below.sectors * SECTOR_BYTES);
        let complain = |text: String| Err(ActivateError(text));
        if bytes == 0 || !bytes.is_multiple_of(block) {
            return complain(format!(
                "a size of {bytes} bytes is not a multiple of the block of {block} bytes: set `size` to one"
            ));
        }
        let capacity = drive.sectors() * SECTOR_BYTES;
        if bytes > capacity {
            return complain(format!(
                "{bytes} bytes are more than the drive \"{}\" has ({capacity} bytes): set `size` to that or less, make \
                 what is below smaller, or choose a larger drive",
                drive.name()
            ));
        }
        if bytes > below.sectors * SECTOR_BYTES {
            return complain(format!(
                "`size` is {bytes} bytes, and the device below has only {}: make it larger, or `size` smaller",
                below.sectors * SECTOR_BYTES
            ));
        }
        self.geometry = Some(Geometry {
            sectors: bytes / SECTOR_BYTES,
            logical_block_bytes,
            physical_block_bytes: drive.physical_block_bytes().max(logical_block_bytes),
            volatile_cache: below.volatile_cache,
            discards: false,
            fast_zeroes: false,
            rotational: true,
            read_only: below.read_only,
        });
        Ok(())
    }

    fn status(&self, _now: Nanos) -> serde_json::Value {
        let mut status = self.statistics.to_json();
        status["drive"] = self.drive().name().into();
        status["scheduler"] = serde_json::json!(self.queue.scheduler());
        status["queued"] = (self.queue.len() + usize::from(self.in_service.is_some())).into();
        status
    }
}
