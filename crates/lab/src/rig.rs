//! A modelled disk in virtual time, bare or behind a log cache: what the experiments measure on.

use dcd_engine::layers::slice::Slice;
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::log_cache::{LogCache, LogCacheConfig};
use dcd_engine::{
    BlockDevice, Control, Extent, Geometry, Io, IoResult, LayerIndex, Lba, Nanos, Pump, RequestId,
    SECTOR_BYTES, Stack, StackBuilder, StackDevice, Target,
};
use dcd_model::{Disk, DiskConfig, Drive, Scheduler, drive};
use dcd_sim::{Latency, MemDisk, Progress, VirtualDriver};
use serde_json::Value;

use crate::LabError;
use crate::serial::Serial;

/// A log cache before the disk.
#[derive(Clone, Debug)]
pub(crate) struct CacheSetup {
    pub config: LogCacheConfig,
    pub log_bytes: u64,
    pub segment_bytes: u32,
    /// The log on a disk of its own: a physical DCD. Otherwise it is the first part of the data disk.
    pub own_disk: bool,
    /// The paper's lock on the whole cache.
    pub lock: bool,
    /// The cache knows the spindle under its log.
    pub spindle: bool,
}

/// A disk, and what is before it.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub drive: String,
    pub queue: Scheduler,
    /// Where the data begins on the disk: the log's size, with a log there or without, so that the same data lies on the
    /// same tracks.
    pub data_first: u64,
    pub cache: Option<CacheSetup>,
}

/// See the module's documentation.
pub(crate) struct Rig {
    pub stack: Stack,
    pub driver: VirtualDriver<MemDisk>,
    pub cache: Option<LayerIndex>,
    /// The data disk, and the log's disk where that is another.
    pub disks: Vec<LayerIndex>,
    next_id: u64,
}

fn setup_error(error: impl std::fmt::Display) -> LabError {
    LabError::Setup(error.to_string())
}

/// Where the parts of a stack are.
struct Parts {
    disks: Vec<LayerIndex>,
    log: Option<Target>,
    data: Target,
}

fn index(target: Target) -> LayerIndex {
    match target {
        Target::Layer(index) => index,
        Target::Device(_) => unreachable!("a layer was added"),
    }
}

impl Setup {
    fn drive(&self) -> Result<Drive, LabError> {
        drive::builtin(&self.drive).map_err(setup_error)
    }

    fn memory(&self, drive: &Drive, seed: u64) -> MemDisk {
        // The drives of that time are shipped with their write cache off: what is written is on the medium.
        let geometry = Geometry { volatile_cache: false, ..Geometry::plain(drive.sectors()) };
        MemDisk::new(geometry, Latency::INSTANT, seed)
    }

    fn disk(&self, builder: &mut StackBuilder, drive: Drive, geometry: Geometry, name: &str) -> Target {
        let device = builder.device(geometry);
        let config = DiskConfig { queue: self.queue, ..DiskConfig::default() };
        builder.layer(name, Box::new(Disk::with_drive(drive, &config)), &[device])
    }

    /// Disks and slices; what stands on them comes afterwards.
    fn lower(&self, builder: &mut StackBuilder, geometries: &[Geometry]) -> Result<Parts, LabError> {
        let drive = self.drive()?;
        let sectors = drive.sectors();
        let data_disk = self.disk(builder, drive.clone(), geometries[0], "disk");
        let mut disks = vec![index(data_disk)];
        let first = self.data_first / SECTOR_BYTES;
        let slice = |first: u64, sectors: u64| Box::new(Slice::new(Extent::new(Lba(first), sectors)));
        let data = builder.layer("data", slice(first, sectors - first), &[data_disk]);
        let log = match &self.cache {
            None => None,
            Some(cache) => {
                let below = if cache.own_disk {
                    let log_disk = self.disk(builder, drive, geometries[1], "log-disk");
                    disks.push(index(log_disk));
                    log_disk
                } else {
                    data_disk
                };
                Some(builder.layer("log", slice(0, cache.log_bytes / SECTOR_BYTES), &[below]))
            }
        };
        Ok(Parts { disks, log, data })
    }

    /// A formatted and running stack.
    pub fn build(&self, seed: u64) -> Result<Rig, LabError> {
        let drive = self.drive()?;
        let mut devices = vec![self.memory(&drive, seed)];
        if self.cache.as_ref().is_some_and(|cache| cache.own_disk) {
            devices.push(self.memory(&drive, seed + 1));
        }
        let mut driver = VirtualDriver::new(devices);
        let geometries = driver.geometries();
        if let Some(cache) = &self.cache {
            driver = self.format(cache, driver)?;
        }
        let mut builder = StackBuilder::new();
        let parts = self.lower(&mut builder, &geometries)?;
        let mut root = parts.data;
        let mut cache_index = None;
        if let (Some(cache), Some(log)) = (&self.cache, parts.log) {
            let mut config = cache.config;
            if cache.spindle {
                config.log_revolution = drive.revolution();
                config.log_track_bytes = u64::from(drive.track_at(Lba(0)).sectors) * SECTOR_BYTES;
            }
            root = builder.layer("cache", Box::new(LogCache::new(config)), &[log, parts.data]);
            cache_index = Some(index(root));
            if cache.lock {
                root = builder.layer("lock", Box::new(Serial::default()), &[root]);
            }
        }
        let mut stack = builder.finish(root);
        stack.activate(&mut driver).map_err(setup_error)?;
        let mut rig = Rig { stack, driver, cache: cache_index, disks: parts.disks, next_id: 0 };
        rig.reset_statistics();
        Ok(rig)
    }

    /// Formats the log, and gives the devices back with what is on them.
    fn format(
        &self,
        cache: &CacheSetup,
        mut driver: VirtualDriver<MemDisk>,
    ) -> Result<VirtualDriver<MemDisk>, LabError> {
        let mut builder = StackBuilder::new();
        let parts = self.lower(&mut builder, &driver.geometries())?;
        let mut stack = builder.finish(parts.data);
        stack.activate(&mut driver).map_err(setup_error)?;
        let options = FormatOptions {
            segment_bytes: cache.segment_bytes,
            log_block_bytes: Some(512),
            ..FormatOptions::new(*b"the lab's  cache", *b"the lab's   disk")
        };
        let log = parts.log.expect("a cache has a log");
        let mut ends = Ends { stack, driver };
        format_over(&mut ends, log, parts.data, &options)?;
        Ok(VirtualDriver::new(ends.driver.into_devices()))
    }
}

/// A stack with its driver, while a log is formatted.
struct Ends {
    stack: Stack,
    driver: VirtualDriver<MemDisk>,
}

/// One target of a stack that somebody else may use as well, one operation at a time.
struct Part<'a> {
    ends: &'a std::cell::RefCell<&'a mut Ends>,
    target: Target,
}

impl BlockDevice for Part<'_> {
    fn geometry(&self) -> Geometry {
        self.ends.borrow().stack.geometry(self.target)
    }

    fn run(&mut self, io: Io) -> IoResult {
        let mut ends = self.ends.borrow_mut();
        let Ends { stack, driver } = &mut **ends;
        StackDevice { stack, pump: driver, target: self.target }.run(io)
    }
}

fn format_over(ends: &mut Ends, log: Target, data: Target, options: &FormatOptions) -> Result<(), LabError> {
    let ends = std::cell::RefCell::new(ends);
    let part = |target| Part { ends: &ends, target };
    format(&mut part(log), &mut part(data), options).map(drop).map_err(setup_error)
}

impl Rig {
    pub fn sectors(&self) -> u64 {
        self.stack.geometry(self.stack.root()).sectors
    }

    pub fn now(&self) -> Nanos {
        self.driver.now()
    }

    pub fn control(&mut self, control: Control) {
        for layer in 0..self.stack.layer_count() {
            self.driver.control(&mut self.stack, LayerIndex(layer), control);
        }
    }

    pub fn reset_statistics(&mut self) {
        self.control(Control::ResetStatistics);
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
                return result.status.map(|()| id).map_err(setup_error);
            }
            if self.driver.step(&mut self.stack) == Progress::Idle {
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

    /// Brings everything home, now; how long it took.
    pub fn drain(&mut self) -> Nanos {
        let begin = self.now();
        self.control(Control::Drain);
        while self.cache.is_some() && self.driver.take_report().is_none() {
            if self.driver.step(&mut self.stack) == Progress::Idle {
                break;
            }
        }
        self.now().since(begin)
    }

    pub fn cache_status(&self) -> Value {
        self.cache.map_or(Value::Null, |cache| self.stack.layer(cache).status(self.now()))
    }

    pub fn disk_status(&self, disk: usize) -> Value {
        self.stack.layer(self.disks[disk]).status(self.now())
    }

    /// Requests that the disks were sent, all together: reads and writes.
    pub fn disk_requests(&self) -> (f64, f64) {
        let of = |disk: usize, kind: &str| self.disk_status(disk)["requests"][kind].as_f64().unwrap_or(0.0);
        let disks = 0..self.disks.len();
        (disks.clone().map(|disk| of(disk, "read")).sum(), disks.map(|disk| of(disk, "write")).sum())
    }
}
