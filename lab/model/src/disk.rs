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
//! With its write cache off, a write that was answered is as durable as the device below makes it, which is why the
//! geometry says "volatile cache" exactly where that device does. A flush takes its turn after the writes that came
//! before it, and is then passed down, as completed writes may be in a cache there.
//!
//! With the write cache on, a write is answered when its data has come over the bus. The disk keeps it (see `behind.rs`)
//! and hands it down when the model says that it is on the medium; until then a power cut loses it. `on` delays
//! only writes that may be lost ([`Durability::Volatile`]); `ignores-fua` delays the others too, as some drives did. A
//! flush is answered when everything that was delayed is on the medium and the device below is flushed.

use dcd_engine::{
    ActivateError, AnyStatus, Control, Cx, Durability, Event, Geometry, Io, IoError, IoResult, Layer, Lba,
    Nanos, OpId, Port, Ports, Request, RequestId, SECTOR_BYTES,
};
use serde::{Deserialize, Serialize};

use crate::behind::Behind;
use crate::cache::ReadAhead;
use crate::controller::{Access, Controller, Served, Service};
use crate::drive::{self, Drive, DriveError};
use crate::queue::{DiskQueue, DiskWork, Pending, Scheduler};
use crate::statistics::Statistics;
use crate::write_back::WriteBackKind;

const BELOW: Port = Port(0);

/// Writes that are answered before they are on the medium.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteCache {
    /// None.
    #[default]
    Off,
    /// Those that need not be durable when they are answered.
    On,
    /// All, also those that should be durable when they are answered.
    IgnoresFua,
}

/// Options of a disk. An absent one is as in the drive file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct DiskConfig {
    /// The name of a drive that is always there; see [`drive::names`].
    pub drive: String,
    /// Size of the drive that is used, in bytes; if absent, all that the device below has.
    pub size: Option<u64>,
    pub queue: Scheduler,
    /// Maximum number of commands among which that order chooses.
    pub queue_depth: Option<usize>,
    pub write_cache: WriteCache,
    /// Time at which data in the write cache goes to the medium.
    pub write_back: Option<WriteBackKind>,
    /// Segments of the built-in cache.
    pub segments: Option<usize>,
    /// The size of each, in bytes.
    pub segment_bytes: Option<u64>,
    pub read_ahead: Option<ReadAhead>,
    /// The rate of the bus, in bytes a second.
    pub bus: Option<u64>,
}

impl Default for DiskConfig {
    fn default() -> Self {
        DiskConfig {
            drive: "barracuda-1996".to_owned(),
            size: None,
            queue: Scheduler::default(),
            queue_depth: None,
            write_cache: WriteCache::default(),
            write_back: None,
            segments: None,
            segment_bytes: None,
            read_ahead: None,
            bus: None,
        }
    }
}

struct InService {
    pending: Pending,
    end: Nanos,
    /// A write that is answered at the end, and goes below later.
    delayed: bool,
}

/// See the module's documentation.
pub struct Disk {
    controller: Controller,
    queue: DiskQueue,
    in_service: Option<InService>,
    /// Time at which the last service ended.
    free_at: Nanos,
    /// Until when the drive takes in commands.
    receiving: Nanos,
    size: Option<u64>,
    geometry: Option<Geometry>,
    write_cache: WriteCache,
    behind: Behind,
    /// Flushes that are below.
    flushing: Vec<RequestId>,
    statistics: Statistics,
}

impl Disk {
    /// A disk of one of the drives that are always there.
    pub fn new(config: &DiskConfig) -> Result<Disk, DriveError> {
        Ok(Disk::with_drive(config.change(drive::builtin(&config.drive)?)?, config))
    }

    /// A disk of any drive; `config.drive` is not looked at.
    ///
    /// # Panics
    /// Where the drive cannot be changed as the configuration says: ask [`DiskConfig::change`] first if that came from
    /// outside.
    pub fn with_drive(drive: Drive, config: &DiskConfig) -> Disk {
        let drive = config.change(drive).expect("a drive can be changed as the configuration says");
        let queue = DiskQueue::new(config.queue, drive.queue_depth());
        Disk {
            write_cache: config.write_cache,
            behind: Behind::default(),
            flushing: Vec::new(),
            controller: Controller::new(drive),
            queue,
            in_service: None,
            free_at: Nanos::ZERO,
            receiving: Nanos::ZERO,
            size: config.size,
            geometry: None,
            statistics: Statistics::default(),
        }
    }

    /// The status counts reads from `first` on apart, too: a disk may have a log before its data.
    #[must_use]
    pub fn counting_from(mut self, first: Lba) -> Disk {
        self.statistics.count_from(first);
        self
    }

    pub fn drive(&self) -> &Drive {
        self.controller.drive()
    }

    /// Ends everything whose time is over by `now`, one after the other, and starts what waits. `nothing_else` happens at
    /// `now`: a disk that rests may begin to destage.
    fn advance(&mut self, nothing_else: bool, cx: &mut Cx) {
        loop {
            if self.in_service.is_none() {
                self.controller.rest(self.free_at, cx.now, nothing_else);
            }
            let service_end = self.in_service.as_ref().map(|service| service.end);
            let destaged = self.controller.next_destaged().filter(|at| *at <= cx.now);
            if let Some(at) = destaged.filter(|at| service_end.is_none_or(|end| *at <= end)) {
                while let Some(extent) = self.controller.take_destaged(at) {
                    self.behind.destaged(extent, cx);
                }
            } else if let Some(service) = self.in_service.take_if(|service| service.end <= cx.now) {
                self.statistics.late(cx.now.since(service.end));
                self.end_service(service, cx);
                self.start_next();
            } else {
                return;
            }
        }
    }

    fn end_service(&mut self, service: InService, cx: &mut Cx) {
        let InService { pending, end, delayed } = service;
        self.free_at = end;
        let id = pending.request.id;
        if let (true, Io::Write { at, buf, .. }) = (delayed, &pending.request.io) {
            self.behind.hold(*at, buf);
            return cx.reply(id, IoResult::ok(pending.request.io.take_buf()));
        }
        self.statistics.below_changes(cx.now, true);
        match self.write_cache {
            WriteCache::Off => cx.submit(BELOW, OpId(id.0), pending.request.io),
            WriteCache::IgnoresFua | WriteCache::On => {
                self.flushing.extend(matches!(pending.work, DiskWork::Flush).then_some(id));
                self.behind.hand_down(OpId(id.0), pending.request.io, cx);
            }
        }
    }

    fn completed(&mut self, op: OpId, result: IoResult, cx: &mut Cx) {
        if self.write_cache == WriteCache::Off {
            self.statistics.below_changes(cx.now, false);
            return cx.reply(RequestId(op.0), result);
        }
        let flush = self.flushing.iter().position(|id| id.0 == op.0);
        if let Some(index) = flush {
            self.flushing.swap_remove(index);
        }
        if let Some(result) = self.behind.completed(op, flush.is_some(), result, cx) {
            self.statistics.below_changes(cx.now, false);
            cx.reply(RequestId(op.0), result);
        }
    }

    fn start_next(&mut self) {
        let free_at = self.free_at.max(self.receiving);
        let enters = !self.queue.has_place();
        let Some((start, pending)) = self.queue.take(free_at, &mut self.controller) else { return };
        if enters {
            self.receive(start);
        }
        let service = match pending.work {
            DiskWork::Transfer { access, extent, .. } => {
                self.controller.serve(start, pending.known, access, extent)
            }
            DiskWork::Flush => Service::without_data(self.controller.flush(start, pending.known)),
        };
        self.statistics.served(start, &service, &pending);
        let delayed = service.served == Served::Cache
            && matches!(pending.work, DiskWork::Transfer { access: Access::WriteBehind, .. });
        self.in_service = Some(InService { pending, end: service.end, delayed });
    }

    /// A command is taken in.
    fn receive(&mut self, at: Nanos) {
        let receive = self.controller.drive().receive;
        if receive > Nanos::ZERO {
            self.receiving = self.receiving.max(at) + receive;
        }
    }

    fn accept(&mut self, request: Request, cx: &mut Cx) {
        match self.work(&request.io) {
            Ok(work) => {
                if self.queue.has_place() {
                    self.receive(cx.now);
                }
                self.queue.push(request, work, cx.now);
                self.statistics.queued(self.queue.len() + usize::from(self.in_service.is_some()));
                if self.in_service.is_none() {
                    self.start_next();
                }
            }
            Err(error) => cx.reply(request.id, IoResult::err(request.io.take_buf(), error)),
        }
    }

    fn write_access(&self, durability: Durability) -> Access {
        match (self.write_cache, durability) {
            (WriteCache::IgnoresFua, _) | (WriteCache::On, Durability::Volatile) => Access::WriteBehind,
            (WriteCache::Off, _) | (WriteCache::On, Durability::Durable) => Access::Write,
        }
    }

    /// Returns what a request asks of the drive, or the reason why it cannot be served.
    fn work(&self, io: &Io) -> Result<DiskWork, IoError> {
        self.geometry().validate(io)?;
        let access = match io {
            Io::Flush => return Ok(DiskWork::Flush),
            Io::Discard { .. } => unreachable!("a drive offers none"),
            Io::Read { .. } | Io::ReadCopy { .. } => Access::Read,
            Io::Write { durability, .. } | Io::WriteCopy { durability, .. } => self.write_access(*durability),
            Io::WriteZeroes { .. } => Access::WriteZeroes,
        };
        let extent = io.extent().expect("all but flushes have an extent");
        // Only this order looks at where a request lies before its turn comes.
        let looks = self.queue.scheduler() == Scheduler::Sptf;
        let spot = looks.then(|| self.drive().locate(extent.start));
        Ok(DiskWork::Transfer { access, extent, spot })
    }
}

impl DiskConfig {
    /// The drive with what is set here.
    ///
    /// # Errors
    /// Where a value is outside of what a drive file may say.
    pub fn change(&self, mut drive: Drive) -> Result<Drive, DriveError> {
        if self.segments.is_some() || self.segment_bytes.is_some() {
            let (segments, sectors) = drive.segments();
            let sectors = self.segment_bytes.map_or(sectors, |bytes| bytes / SECTOR_BYTES);
            drive = drive.with_segments(self.segments.unwrap_or(segments), sectors)?;
        }
        if let Some(depth) = self.queue_depth {
            drive = drive.with_queue_depth(depth)?;
        }
        if let Some(read_ahead) = self.read_ahead {
            drive = drive.with_read_ahead(read_ahead);
        }
        if let Some(kind) = self.write_back {
            drive = drive.with_write_back(kind);
        }
        match self.bus {
            Some(bytes_per_second) => drive.with_bus(bytes_per_second),
            None => Ok(drive),
        }
    }
}

impl Layer for Disk {
    fn handle(&mut self, event: Event, cx: &mut Cx) {
        // What ended before this event must be over before the event can change anything.
        self.advance(matches!(event, Event::Wake), cx);
        match event {
            Event::Request(request) => self.accept(request, cx),
            Event::Completed { op, result } => self.completed(op, result, cx),
            Event::Control(Control::ResetStatistics) => self.statistics.reset(cx.now),
            Event::Wake | Event::Control(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let destaged = self.controller.next_destaged();
        match &self.in_service {
            Some(service) => Some(destaged.map_or(service.end, |at| at.min(service.end))),
            None => destaged.or_else(|| self.controller.next_destage(self.free_at)),
        }
    }

    fn has_work(&self, _now: Nanos) -> bool {
        self.in_service.is_some() || self.queue.len() > 0 || self.controller.has_unwritten()
    }

    fn check(&self) {
        self.controller.check();
        assert!(
            self.controller.has_unwritten() || self.behind.held_sectors() == 0,
            "data is held that nobody is going to write"
        );
        assert!(self.in_service.as_ref().is_none_or(|service| service.end >= self.free_at));
    }

    fn geometry(&self) -> Geometry {
        self.geometry.expect("geometry is asked for after activation")
    }

    fn activate(&mut self, below: &mut dyn Ports) -> Result<(), ActivateError> {
        let drive = self.drive();
        let blocks = (drive.logical_block_bytes(), drive.physical_block_bytes());
        let geometry =
            used_geometry((drive.name(), drive.sectors()), blocks, self.size, below.geometry(BELOW))?;
        let volatile_cache = geometry.volatile_cache || self.write_cache != WriteCache::Off;
        self.geometry = Some(Geometry { volatile_cache, rotational: true, ..geometry });
        Ok(())
    }

    fn status(&self, _now: Nanos) -> Box<dyn AnyStatus> {
        let mut status = self.statistics.to_json();
        status["drive"] = self.drive().name().into();
        status["unwritten_sectors"] = self.behind.held_sectors().into();
        status["cleaned_bands"] = self.controller.cleaned_bands().into();
        status["scheduler"] = serde_json::json!(self.queue.scheduler());
        status["queued"] = (self.queue.len() + usize::from(self.in_service.is_some())).into();
        Box::new(status)
    }
}

/// The geometry of the part of a drive that is used: of `size` bytes; if absent, of all that is below.
pub(crate) fn used_geometry(
    (name, sectors): (&str, u64),
    (logical, physical): (u32, u32),
    size: Option<u64>,
    below: Geometry,
) -> Result<Geometry, ActivateError> {
    let logical_block_bytes = logical.max(below.logical_block_bytes);
    let block = u64::from(logical_block_bytes);
    let bytes = size.unwrap_or(below.sectors * SECTOR_BYTES);
    let complain = |text: String| Err(text.into());
    if bytes == 0 || !bytes.is_multiple_of(block) {
        return complain(format!(
            "a size of {bytes} bytes is not a multiple of the block of {block} bytes: set `size` to one"
        ));
    }
    let capacity = sectors * SECTOR_BYTES;
    if bytes > capacity {
        return complain(format!(
            "{bytes} bytes are more than the drive \"{name}\" has ({capacity} bytes): set `size` to that or less, make \
             what is below smaller, or choose a larger drive"
        ));
    }
    if bytes > below.sectors * SECTOR_BYTES {
        return complain(format!(
            "`size` is {bytes} bytes, and the device below has only {}: make it larger, or `size` smaller",
            below.sectors * SECTOR_BYTES
        ));
    }
    Ok(Geometry {
        logical_block_bytes,
        physical_block_bytes: physical.max(logical_block_bytes),
        volatile_cache: below.volatile_cache,
        read_only: below.read_only,
        ..Geometry::plain(bytes / SECTOR_BYTES)
    })
}
