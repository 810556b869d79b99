//! A modelled disk in virtual time, bare or behind a log cache: what the experiments measure on.

use dcd_crash::{DriverProgress, Latency, MemDisk, SimDevice, Ticket, VirtualDriver};
use dcd_engine::layers::read_ahead::{ReadAhead, ReadAheadConfig};
use dcd_engine::layers::slice::Slice;
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig};
use dcd_engine::{
    Buf, Control, Durability, Extent, Geometry, Io, IoResult, Layer, LayerIndex, Lba, Nanos, Pump, RequestId,
    SECTOR_BYTES, Stack, StackBuilder, Target,
};
use dcd_model::{Disk, DiskConfig, Drive, Scheduler};
use dcd_sim::Offline;
use dcd_stack::HumanBytes;
use serde_json::Value;

use crate::LabError;
use crate::params::drive_of;
use crate::profile::Profile;
use crate::prototype::Prototype;
use crate::serial::Serial;

/// The name of the layer that is the paper's lock.
pub(crate) const LOCK: &str = "lock";
/// The names of the layers that profile what the file system sends, and what the cache sends to its log.
pub(crate) const PROFILE: &str = "profile";
pub(crate) const LOG_PROFILE: &str = "log-profile";

/// Less is no log: it has a few segments, and a superblock.
const LOG_BYTES_MIN: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogPlace {
    /// The first part of the data disk: a logical DCD.
    SameDisk,
    /// A disk of its own, of the same kind: a physical DCD.
    OwnDisk,
    /// A device that takes no time, for bounds.
    Instant,
}

/// Driver of a log cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CacheDriver {
    Ours,
    /// See [`Prototype::new`].
    Paper {
        sync_to_data: bool,
    },
}

/// A log cache before the disk.
#[derive(Clone, Debug)]
pub(crate) struct CacheSetup {
    pub driver: CacheDriver,
    pub config: LogCacheConfig,
    pub log_bytes: u64,
    pub segment_bytes: u32,
    pub log_block_bytes: u32,
    pub place: LogPlace,
    /// The paper's lock on the whole cache.
    pub lock: bool,
    /// Records follow the head of the log's disk.
    pub follow_head: bool,
    /// Reads of the data disk are read ahead.
    pub read_ahead: Option<ReadAheadConfig>,
}

/// A disk, and what is before it.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub drive: String,
    pub queue: Scheduler,
    /// Segments of the drive's buffer; as in its file, if absent.
    pub segments: Option<usize>,
    /// True if written data is in the drive's buffer afterwards, where it pushes something out.
    pub writes_in_buffer: bool,
    /// Start of the data on the disk: the log's size, with a log there or without, so that the same data lies on the
    /// same tracks.
    pub data_first: u64,
    pub cache: Option<CacheSetup>,
    /// Requests are profiled.
    pub profile: bool,
}

/// Memory for the bytes of a modelled disk. It counts what reaches it, for ever: the layers' statistics begin anew with
/// each phase of a workload.
pub(crate) struct Medium {
    memory: MemDisk,
    data_first: Lba,
    log: Traffic,
    data: Traffic,
}

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub reads: u64,
    pub writes: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

impl Traffic {
    fn sum(all: impl Iterator<Item = Traffic>) -> Traffic {
        all.fold(Traffic::default(), |sum, more| Traffic {
            reads: sum.reads + more.reads,
            writes: sum.writes + more.writes,
            bytes_read: sum.bytes_read + more.bytes_read,
            bytes_written: sum.bytes_written + more.bytes_written,
        })
    }
}

impl Medium {
    /// The medium of a drive. The drives of that time are shipped with their write cache off: what is written is there.
    pub fn of(drive: &Drive, seed: u64) -> Medium {
        let geometry = Geometry { volatile_cache: false, ..Geometry::plain(drive.sectors()) };
        let memory = MemDisk::new(geometry, Latency::INSTANT, seed);
        Medium { memory, data_first: Lba(0), log: Traffic::default(), data: Traffic::default() }
    }

    /// For work before time begins.
    pub fn device(&mut self) -> &mut MemDisk {
        &mut self.memory
    }
}

impl SimDevice for Medium {
    fn geometry(&self) -> Geometry {
        SimDevice::geometry(&self.memory)
    }

    fn submit(&mut self, now: Nanos, io: Io) -> Ticket {
        if let Some(extent) = io.extent() {
            let traffic = if extent.start < self.data_first { &mut self.log } else { &mut self.data };
            let bytes = extent.sectors * SECTOR_BYTES;
            if io.modifies() {
                traffic.writes += 1;
                traffic.bytes_written += bytes;
            } else {
                traffic.reads += 1;
                traffic.bytes_read += bytes;
            }
        }
        self.memory.submit(now, io)
    }

    fn finish(&mut self, now: Nanos, token: u32) -> IoResult {
        self.memory.finish(now, token)
    }
}

/// See the module's documentation.
pub(crate) struct Rig {
    pub stack: Stack,
    pub driver: VirtualDriver<Medium>,
    pub cache: Option<LayerIndex>,
    next_id: u64,
}

/// Log and data of a stack.
struct Parts {
    log: Option<Target>,
    data: Target,
}

fn index(target: Target) -> LayerIndex {
    match target {
        Target::Layer(index) => index,
        Target::Disk(..) | Target::Device(_) => unreachable!("a layer was added"),
    }
}

impl Setup {
    /// A whole disk without a cache.
    pub fn plain(drive: String) -> Setup {
        Setup {
            drive,
            queue: Scheduler::Fcfs,
            segments: None,
            writes_in_buffer: true,
            data_first: 0,
            cache: None,
            profile: false,
        }
    }

    fn drive(&self) -> Result<Drive, LabError> {
        let mut drive = drive_of(&self.drive)?;
        if let Some(segments) = self.segments {
            let (own, sectors) = drive.segments();
            let each = own as u64 * sectors / segments.max(1) as u64;
            drive = drive.with_segments(segments, each).map_err(LabError::setup)?;
        }
        if self.writes_in_buffer { Ok(drive) } else { drive.with_write_segments(0).map_err(LabError::setup) }
    }

    fn disk(&self, builder: &mut StackBuilder, drive: Drive, geometry: Geometry, name: &str) -> Target {
        let device = builder.device(geometry);
        let config = DiskConfig { queue: self.queue, ..DiskConfig::default() };
        let disk = Disk::with_drive(drive, &config).counting_from(Lba(self.data_first / SECTOR_BYTES));
        builder.layer(name, Box::new(disk), &[device])
    }

    /// Disks and slices; what stands on them comes afterwards.
    fn lower(&self, builder: &mut StackBuilder, geometries: &[Geometry]) -> Result<Parts, LabError> {
        let drive = self.drive()?;
        let sectors = drive.sectors();
        let data_disk = self.disk(builder, drive.clone(), geometries[0], "disk");
        let first = self.data_first / SECTOR_BYTES;
        let slice = |first: u64, sectors: u64| Box::new(Slice::new(Extent::new(Lba(first), sectors)));
        let data = builder.layer("data", slice(first, sectors - first), &[data_disk]);
        let log = match &self.cache {
            None => None,
            Some(cache) => {
                let below = match cache.place {
                    LogPlace::SameDisk => data_disk,
                    LogPlace::OwnDisk => self.disk(builder, drive, geometries[1], "log-disk"),
                    LogPlace::Instant => builder.device(geometries[1]),
                };
                Some(builder.layer("log", slice(0, cache.log_bytes / SECTOR_BYTES), &[below]))
            }
        };
        Ok(Parts { log, data })
    }

    /// Refuses a log for which there is no room.
    fn admit_log(&self, drive: &Drive) -> Result<(), LabError> {
        let has = drive.sectors() * SECTOR_BYTES;
        let log = self.cache.as_ref().map_or(self.data_first, |cache| cache.log_bytes);
        let text = format!("a log of {} does not fit here", HumanBytes(log));
        if log.max(self.data_first) >= has {
            let problem = format!("{text}: the drive {} has {}", self.drive, HumanBytes(has));
            return Err(LabError::Setup(problem));
        }
        if log < LOG_BYTES_MIN {
            return Err(LabError::Setup(format!("{text}: it has at least {}", HumanBytes(LOG_BYTES_MIN))));
        }
        Ok(())
    }

    /// A formatted and running stack.
    pub fn build(&self, seed: u64) -> Result<Rig, LabError> {
        let drive = self.drive()?;
        if self.cache.is_some() || self.data_first > 0 {
            self.admit_log(&drive)?;
        }
        let data_first = Lba(self.data_first / SECTOR_BYTES);
        let mut devices = vec![Medium { data_first, ..Medium::of(&drive, seed) }];
        if self.cache.as_ref().is_some_and(|cache| cache.place != LogPlace::SameDisk) {
            let log_only = Lba(u64::MAX);
            devices.push(Medium { data_first: log_only, ..Medium::of(&drive, seed + 1) });
        }
        let mut driver = VirtualDriver::new(devices);
        let geometries = driver.geometries();
        if let Some(cache) = self.cache.as_ref().filter(|cache| cache.driver == CacheDriver::Ours) {
            driver = self.format(cache, driver)?;
        }
        let mut rig = self.start(driver, &geometries)?;
        rig.activate()?;
        Ok(rig)
    }

    /// Cuts the power, and starts again with what is on the disks; how long that took.
    pub fn restart(&self, rig: Rig) -> Result<(Rig, Nanos), LabError> {
        let driver = VirtualDriver::new(rig.driver.into_devices());
        let geometries = driver.geometries();
        let mut rig = self.start(driver, &geometries)?;
        rig.activate()?;
        let took = rig.now();
        Ok((rig, took))
    }

    /// A stack that is not active yet.
    fn start(&self, driver: VirtualDriver<Medium>, geometries: &[Geometry]) -> Result<Rig, LabError> {
        let mut builder = StackBuilder::new();
        let parts = self.lower(&mut builder, geometries)?;
        let mut root = parts.data;
        let mut cache_index = None;
        if let (Some(cache), Some(log)) = (&self.cache, parts.log) {
            let mut config = cache.config.clone();
            config.follow_head = cache.follow_head;
            if let Some(read_ahead) = cache.read_ahead {
                root = builder.layer("read-ahead", Box::new(ReadAhead::new(read_ahead)), &[root]);
            }
            let log = self.profiled(&mut builder, LOG_PROFILE, log);
            let layer: Box<dyn Layer> = match cache.driver {
                CacheDriver::Ours => Box::new(LogCache::new(config)),
                CacheDriver::Paper { sync_to_data } => Box::new(Prototype::new(config, sync_to_data)),
            };
            root = builder.layer("cache", layer, &[log, root]);
            cache_index = Some(index(root));
            if cache.lock {
                root = builder.layer(LOCK, Box::new(Serial::default()), &[root]);
            }
        }
        root = self.profiled(&mut builder, PROFILE, root);
        let stack = builder.finish(root);
        Ok(Rig::new(stack, driver, cache_index))
    }

    fn profiled(&self, builder: &mut StackBuilder, name: &str, below: Target) -> Target {
        match self.profile {
            true => builder.layer(name, Box::new(Profile::default()), &[below]),
            false => below,
        }
    }

    /// Formats the log, and gives the devices back with what is on them.
    fn format(
        &self,
        cache: &CacheSetup,
        driver: VirtualDriver<Medium>,
    ) -> Result<VirtualDriver<Medium>, LabError> {
        let mut builder = StackBuilder::new();
        let parts = self.lower(&mut builder, &driver.geometries())?;
        let offline = Offline::start(builder.finish(parts.data), driver).map_err(LabError::setup)?;
        let options = FormatOptions {
            segment_bytes: Some(cache.segment_bytes),
            log_block_bytes: Some(cache.log_block_bytes),
            ..FormatOptions::new(*b"the lab's  cache", *b"the lab's   disk")
        };
        let log = parts.log.expect("a cache has a log");
        format(&mut offline.part(log), &mut offline.part(parts.data), &options).map_err(LabError::setup)?;
        Ok(VirtualDriver::new(offline.into_pump().into_devices()))
    }
}

impl Rig {
    /// Takes over a stack that is active. `cache`: the layer that holds what has to be destaged.
    pub fn new(stack: Stack, driver: VirtualDriver<Medium>, cache: Option<LayerIndex>) -> Rig {
        Rig { stack, driver, cache, next_id: 0 }
    }

    fn activate(&mut self) -> Result<(), LabError> {
        self.stack.activate(&mut self.driver).map_err(LabError::setup)
    }

    /// Writes blocks of a size far from each other, and waits until all of them are on the log.
    pub fn fill(&mut self, bytes: u64, count: u64) -> Result<(), LabError> {
        let sectors = bytes / SECTOR_BYTES;
        let stride = self.sectors() / count / sectors * sectors;
        for index in 0..count {
            let buf = Buf::blank(bytes as usize);
            self.request(Io::Write { at: Lba(index * stride), buf, durability: Durability::Volatile })?;
        }
        self.pause(Nanos::from_millis(900));
        Ok(())
    }

    pub fn sectors(&self) -> u64 {
        self.stack.geometry(self.stack.root()).sectors
    }

    pub fn now(&self) -> Nanos {
        self.driver.now()
    }

    fn control(&mut self, control: Control) {
        for layer in 0..self.stack.layer_count() {
            self.driver.control(&mut self.stack, LayerIndex(layer), control.clone());
        }
    }

    /// Sends a request without waiting for its end.
    pub fn submit(&mut self, io: Io) -> RequestId {
        let id = RequestId(self.next_id);
        self.next_id += 1;
        self.driver.request(&mut self.stack, id, io);
        id
    }

    /// Waits for the next answer.
    pub fn wait_reply(&mut self) -> Result<RequestId, LabError> {
        loop {
            if let Some((id, result)) = self.driver.take_reply() {
                return result.status.map(|()| id).map_err(LabError::setup);
            }
            if self.driver.step(&mut self.stack) == DriverProgress::Idle {
                return Err(LabError::Setup("a request was never answered".to_owned()));
            }
        }
    }

    /// Sends a request, and waits for its end; how long it took.
    pub fn request(&mut self, io: Io) -> Result<Nanos, LabError> {
        let begin = self.now();
        self.submit(io);
        self.wait_reply()?;
        Ok(self.now().since(begin))
    }

    /// Lets time pass.
    pub fn pause(&mut self, span: Nanos) {
        const ALARM: u64 = u64::MAX;
        let until = self.now() + span;
        self.driver.set_alarm(until, ALARM);
        while self.driver.step(&mut self.stack) != DriverProgress::Alarm(ALARM) {}
    }

    /// Destages everything now; how long it took.
    pub fn drain(&mut self) -> Nanos {
        let begin = self.now();
        self.control(Control::Drain);
        while self.cache.is_some() && self.driver.take_report().is_none() {
            if self.driver.step(&mut self.stack) == DriverProgress::Idle {
                break;
            }
        }
        self.now().since(begin)
    }

    pub fn cache_status(&self) -> Value {
        self.cache.map_or(Value::Null, |cache| self.stack.layer(cache).status(self.now()).to_json())
    }

    /// Requests that reached the disks since they were new, all together: reads and writes.
    pub fn disk_requests(&self) -> (u64, u64) {
        let (log, data) = self.traffic();
        (log.reads + data.reads, log.writes + data.writes)
    }

    /// Returns what reached the disks since they were new, all together: of the log, and of the data.
    pub fn traffic(&self) -> (Traffic, Traffic) {
        let disks = self.driver.devices();
        (Traffic::sum(disks.iter().map(|disk| disk.log)), Traffic::sum(disks.iter().map(|disk| disk.data)))
    }
}
