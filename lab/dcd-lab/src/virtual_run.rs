//! Runs a stack file in virtual time: simulated devices in place of the real ones. Requests come from clients that wait for
//! answers, or each at its time.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use dcd_crash::{DriverProgress, Latency, SimDevice, VirtualDriver};
use dcd_engine::log_cache::offline::{FormatOptions, format};
use dcd_engine::raid::create;
use dcd_engine::raid::offline::make_spare;
use dcd_engine::{
    BlockDevice, Control, DeviceIndex, Durability, Geometry, Io, LayerIndex, Nanos, Pump, Report, RequestId,
    SECTOR_BYTES, Stack,
};
use dcd_sim::{Offline, SparseDisk};
use dcd_stack::{
    DeclaredDevice, DeviceOpener, DeviceSource, ForClients, HumanBytes, LayerKind, LayerSpec, LayerStatus,
    METER, OpenError, Overrun, RaidSpec, Role, StackFile, StackFileError,
};
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::generated::{Clients, Step};
use crate::load::Request;
use dcd_cli::Advised;
use dcd_cli::memory::enough_memory;

/// Time of an operation on a device that is no modelled disk: about what a flash drive needs.
pub const UNMODELLED: Nanos = Nanos::from_micros(80);
/// The id of an array's first spare: the same in every run.
const SPARE_ID: u64 = 0x5ba4e;
/// A simulated device takes 2 GiB of RAM for this much, before anything is written.
const DEVICE_BYTES_MAX: u64 = 64 << 40;
/// No request may take longer than this, in virtual time: the stack is stuck.
const REQUEST_MAX: Nanos = Nanos::from_secs(3600);

/// The alarm of a look at the stack; no request has this number.
const LOOK: u64 = u64::MAX;

/// A request as those see it who measure.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Place in the order of arrival.
    pub number: usize,
    pub kind: Kind,
    pub lba: u64,
    pub bytes: u64,
    /// A write that must be durable when it is answered.
    pub durable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    /// Zeroes too.
    Write,
    Flush,
}

impl Asked {
    fn of(io: &Io) -> Asked {
        let kind = match io {
            Io::Read { .. } | Io::ReadCopy { .. } => Kind::Read,
            Io::Write { .. } | Io::WriteCopy { .. } | Io::WriteZeroes { .. } | Io::Discard { .. } => {
                Kind::Write
            }
            Io::Flush => Kind::Flush,
        };
        let (lba, sectors) = io.extent().map_or((0, 0), |extent| (extent.start.0, extent.sectors));
        let durable = matches!(io, Io::Write { durability: Durability::Durable, .. });
        Asked { number: 0, kind, lba, bytes: sectors * SECTOR_BYTES, durable }
    }
}

/// A stack at one time. None where it has no cache, or no log.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunState {
    pub now: Nanos,
    /// Requests that are not answered.
    pub waiting: usize,
    pub dirty_bytes: Option<u64>,
    pub log_used_bytes: Option<u64>,
    /// Bytes of the log for each byte written.
    pub log_space: Option<f64>,
}

/// Sees what happens in a run.
pub trait Watch {
    /// Sees a request arrive at a stack in this state, where so many wait already.
    fn asked(&mut self, _waiting: usize, _state: impl FnOnce() -> RunState) {}

    /// A request was answered at `now`, and took `time`.
    fn answered(&mut self, asked: &Asked, now: Nanos, time: Nanos);

    /// Returns the time to look at the stack next, if ever.
    fn next_look(&self) -> Option<Nanos> {
        None
    }

    fn look(&mut self, _state: RunState) {}
}

/// Reads a stack that this program has made, which has modelled disks.
pub fn made(text: &str) -> Result<StackFile, StackFileError> {
    dcd_model::register_kinds();
    StackFile::parse(text, Path::new("simulated.toml"))
}

#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    pub seed: u64,
    /// Bytes in a segment of every log; where not given, as `dcd format` has them.
    pub segment_bytes: Option<u32>,
}

impl RunOptions {
    pub fn new(seed: u64) -> RunOptions {
        RunOptions { seed, segment_bytes: None }
    }
}

/// Makes simulated devices; a device that was there before comes again with what is on it.
struct VirtualOpener<'a> {
    file: &'a StackFile,
    seed: u64,
    kept: BTreeMap<String, SparseDisk>,
    opened: Vec<(String, SparseDisk)>,
}

impl VirtualOpener<'_> {
    fn make(&self, index: DeviceIndex, device: &DeclaredDevice) -> Result<SparseDisk, String> {
        let is_modelled = self.file.layers.iter().any(|layer| {
            layer.kind.role() == Some(Role::ModelledDisk)
                && layer.kind.below_names().contains(&device.name.as_str())
        });
        let bytes = size_of(device)?;
        if bytes > DEVICE_BYTES_MAX {
            let most = HumanBytes(DEVICE_BYTES_MAX);
            return Err(format!("{} is more than can be simulated: {most} at most", HumanBytes(bytes)));
        }
        let geometry = Geometry::plain(bytes / SECTOR_BYTES);
        if is_modelled {
            // The model has the time.
            return Ok(SparseDisk::new(geometry, Latency::INSTANT, 0));
        }
        Ok(SparseDisk::new(geometry, Latency::Fixed(UNMODELLED), self.seed + index.0 as u64))
    }
}

impl VirtualOpener<'_> {
    /// A driver over what was opened, the names of that, and the devices that were not.
    fn into_driver(self) -> (VirtualDriver<SparseDisk>, Vec<String>, BTreeMap<String, SparseDisk>) {
        let (names, disks) = self.opened.into_iter().unzip();
        (VirtualDriver::new(disks), names, self.kept)
    }
}

impl DeviceOpener for VirtualOpener<'_> {
    fn open(&mut self, index: DeviceIndex, device: &DeclaredDevice) -> Result<Geometry, OpenError> {
        let disk = match self.kept.remove(&device.name) {
            Some(disk) => disk,
            None => self.make(index, device)?,
        };
        let geometry = SimDevice::geometry(&disk);
        self.opened.push((device.name.clone(), disk));
        Ok(geometry)
    }
}

/// The size that a device has, or would be created with. Its content plays no part.
fn size_of(device: &DeclaredDevice) -> Result<u64, String> {
    match &device.source {
        DeviceSource::Memory { size } | DeviceSource::Path { size: Some(size), .. } => Ok(*size),
        DeviceSource::Remote(remote) => Err(format!(
            "{}: an export has no size of its own in a simulation: write memory = \"SIZE\" instead of its \"path\"",
            remote.text.display()
        )),
        DeviceSource::Missing => unreachable!("no stack file names it"),
        DeviceSource::Path { path, size: None } => {
            let size = File::open(path).and_then(|mut file| file.seek(SeekFrom::End(0)));
            size.map_err(|e| {
                format!("{}: {e}; give a size to simulate it without the device", path.display())
            })
        }
    }
}

/// Formats the log of one cache, and gives all devices back.
fn format_log(
    file: &StackFile,
    cache: &LayerSpec,
    run: RunOptions,
    kept: BTreeMap<String, SparseDisk>,
) -> Result<BTreeMap<String, SparseDisk>, Failure> {
    let [log, data] = cache.kind.below_names()[..] else { unreachable!("a log cache stands on two things") };
    let mut opener = VirtualOpener { file, seed: run.seed, kept, opened: Vec::new() };
    let built = file.build_parts(&[log, data], &mut opener)?;
    let (driver, names, mut kept) = opener.into_driver();
    let offline = Offline::start(built.stack, driver).map_err(|e| Failure::Failed(e.told()))?;
    let part = |name: &str| offline.part(built.parts.target(name).expect("it was built"));
    // The same in every run: a run is repeated from its file and its seed.
    let options = FormatOptions {
        segment_bytes: run.segment_bytes,
        ..FormatOptions::new(*b"simulated  cache", *b"simulated   disk")
    };
    format(&mut part(log), &mut part(data), &options).map_err(dcd_cli::Failure::from)?;
    kept.extend(names.into_iter().zip(offline.into_pump().into_devices()));
    Ok(kept)
}

/// Makes one array of new members, which are all zeroes, and gives all devices back.
fn make_array(
    file: &StackFile,
    (layer, raid): (&LayerSpec, &RaidSpec),
    seed: u64,
    kept: BTreeMap<String, SparseDisk>,
) -> Result<BTreeMap<String, SparseDisk>, Failure> {
    let names = layer.kind.below_names();
    let mut opener = VirtualOpener { file, seed, kept, opened: Vec::new() };
    let built = file.build_parts(&names, &mut opener)?;
    let (driver, opened, mut kept) = opener.into_driver();
    let offline = Offline::start(built.stack, driver).map_err(|e| Failure::Failed(e.told()))?;
    let mut names = names.iter();
    let part = |name: &&str| offline.part(built.parts.target(name).expect("it was built"));
    let mut parts: Vec<_> = raid
        .config
        .present
        .iter()
        .map(|present| if *present { names.next().map(part) } else { None })
        .collect();
    let mut members: Vec<Option<&mut dyn BlockDevice>> =
        parts.iter_mut().map(|part| part.as_mut().map(|part| part as &mut dyn BlockDevice)).collect();
    let failed = |e: &dyn std::fmt::Display| Failure::Failed(format!("array \"{}\": {e}", layer.name));
    let made =
        create(&mut members, &raid.config, *b"simulated  array", true).map_err(|error| failed(&error))?;
    drop(parts);
    for (number, mut spare) in names.by_ref().take(raid.config.spares.len()).map(part).enumerate() {
        make_spare(&mut spare, &made, SPARE_ID + number as u64).map_err(|error| failed(&error))?;
    }
    kept.extend(opened.into_iter().zip(offline.into_pump().into_devices()));
    Ok(kept)
}

/// Requests that are not answered, with their arrivals.
#[derive(Default)]
struct Running(BTreeMap<u64, (Nanos, Asked)>);

/// A stack in virtual time.
pub struct VirtualRun {
    stack: Stack,
    driver: VirtualDriver<SparseDisk>,
    layers: BTreeMap<String, LayerIndex>,
    /// The upper ones first.
    caches: Vec<LayerIndex>,
    next_id: u64,
}

impl VirtualRun {
    /// Builds a stack over new devices, with its arrays made and its logs formatted.
    pub fn start(file: &StackFile, options: RunOptions) -> Result<VirtualRun, Failure> {
        // Devices take RAM only for what is written to them.
        enough_memory(file, file.layers_memory_bytes())?;
        let mut kept = BTreeMap::new();
        // Bottom first: a log may lie on an array, and an array on caches.
        for layer in &file.layers {
            kept = match &layer.kind {
                LayerKind::LogCache { .. } => format_log(file, layer, options, kept)?,
                LayerKind::Raid(raid) => make_array(file, (layer, raid), options.seed, kept)?,
                _ => kept,
            };
        }
        let mut opener = VirtualOpener { file, seed: options.seed, kept, opened: Vec::new() };
        let clients = ForClients { record: None, overrun: Overrun::Wait };
        let built = file.build_metered(clients, &mut opener)?;
        let driver = opener.into_driver().0;
        let layers = built.parts.layers;
        let is_cache = |layer: &&LayerSpec| {
            matches!(layer.kind, LayerKind::LogCache { .. } | LayerKind::Raid(_))
                || layer.kind.is_registered_cache()
        };
        let caches = file.layers.iter().rev().filter(is_cache).map(|layer| layers[&layer.name]).collect();
        let mut run = VirtualRun { stack: built.stack, driver, layers, caches, next_id: 0 };
        run.stack.activate(&mut run.driver).map_err(|e| Failure::Failed(e.told()))?;
        Ok(run)
    }

    pub fn geometry(&self) -> Geometry {
        self.stack.geometry(self.stack.root())
    }

    pub fn now(&self) -> Nanos {
        self.driver.now()
    }

    /// Lets clients send their requests, each after an answer, until they send no more.
    pub fn run(&mut self, clients: &mut dyn Clients, watch: &mut impl Watch) -> Result<(), Failure> {
        let mut running = Running::default();
        let mut thinking: BTreeMap<u64, Step> = BTreeMap::new();
        let mut tags = BTreeMap::new();
        let mut next = VecDeque::new();
        let mut count = 0;
        self.driver.hash_no_payloads();
        self.begin_to_look(watch);
        clients.after(None, &mut next);
        loop {
            while let Some(step) = next.pop_front() {
                let id = self.next_id;
                if step.pause > Nanos::ZERO {
                    self.next_id += 1;
                    self.driver.set_alarm(self.driver.now() + step.pause, id);
                    thinking.insert(id, Step { pause: Nanos::ZERO, ..step });
                } else {
                    tags.insert(id, step.tag);
                    self.ask(count, self.whole_blocks(step.request), &mut running, watch);
                    count += 1;
                }
            }
            for id in self.take_replies(&mut running, watch)? {
                clients.after(tags.remove(&id), &mut next);
            }
            if !next.is_empty() {
                continue;
            }
            if running.0.is_empty() && thinking.is_empty() {
                return Ok(());
            }
            match self.step(watch, running.0.len()) {
                DriverProgress::Alarm(id) => next.extend(thinking.remove(&id)),
                progress => {
                    let oldest = running.0.values().next().map(|(asked_at, _)| *asked_at);
                    let waited = oldest.map_or(Nanos::ZERO, |at| self.driver.now().since(at));
                    assert!(
                        progress != DriverProgress::Idle && waited < REQUEST_MAX,
                        "the request is never answered"
                    );
                }
            }
        }
    }

    /// Lets each request come at its time after now, whether those before it have been answered or not, and waits until all
    /// are.
    pub fn replay(
        &mut self,
        requests: impl Iterator<Item = Request>,
        watch: &mut impl Watch,
    ) -> Result<(), Failure> {
        let begin = self.driver.now();
        let mut running = Running::default();
        // They have none.
        self.driver.hash_no_payloads();
        self.begin_to_look(watch);
        for (request, number) in requests.zip(0..) {
            // The request will have this one.
            let id = self.next_id;
            self.driver.set_alarm(begin + request.at, id);
            while self.step(watch, running.0.len()) != DriverProgress::Alarm(id) {
                self.take_replies(&mut running, watch)?;
            }
            self.ask(number, self.whole_blocks(request), &mut running, watch);
        }
        while !running.0.is_empty() {
            let progress = self.step(watch, running.0.len());
            let left = running.0.len();
            assert!(progress != DriverProgress::Idle, "{left} requests are never answered");
            self.take_replies(&mut running, watch)?;
        }
        Ok(())
    }

    /// The request in whole blocks of the stack.
    fn whole_blocks(&self, request: Request) -> Io {
        request.in_blocks(u64::from(self.geometry().logical_block_bytes) / SECTOR_BYTES).io()
    }

    fn ask(&mut self, number: usize, io: Io, running: &mut Running, watch: &mut impl Watch) {
        let id = self.next_id;
        self.next_id += 1;
        let asked = Asked { number, ..Asked::of(&io) };
        let waiting = running.0.len();
        watch.asked(waiting, || self.state(waiting));
        running.0.insert(id, (self.driver.now(), asked));
        self.driver.request(&mut self.stack, RequestId(id), io);
    }

    /// Returns the numbers of the requests that were answered.
    fn take_replies(&mut self, running: &mut Running, watch: &mut impl Watch) -> Result<Vec<u64>, Failure> {
        let mut answered = Vec::new();
        while let Some((RequestId(id), result)) = self.driver.take_reply() {
            let (arrived, asked) = running.0.remove(&id).expect("what is answered was asked");
            result.status.map_err(|e| Failure::Failed(format!("request {}: {e}", asked.number + 1)))?;
            watch.answered(&asked, self.driver.now(), self.driver.now().since(arrived));
            answered.push(id);
        }
        Ok(answered)
    }

    fn begin_to_look(&mut self, watch: &impl Watch) {
        if let Some(at) = watch.next_look() {
            self.driver.set_alarm(at, LOOK);
        }
    }

    /// A step of the driver, or a look at the stack.
    fn step(&mut self, watch: &mut impl Watch, waiting: usize) -> DriverProgress {
        let progress = self.driver.step(&mut self.stack);
        if progress == DriverProgress::Alarm(LOOK) {
            watch.look(self.state(waiting));
            // Where nothing else is to come, looking on would only hide that.
            if let Some(at) = watch.next_look().filter(|_| !self.driver.is_idle(&self.stack)) {
                self.driver.set_alarm(at, LOOK);
            }
            return DriverProgress::Moved;
        }
        progress
    }

    /// Returns the state of the caches.
    pub fn state(&self, waiting: usize) -> RunState {
        let now = self.driver.now();
        let mut state = RunState { now, waiting, ..RunState::default() };
        for cache in &self.caches {
            let status = LayerStatus::of(&self.stack, *cache, now);
            let add = |sum: &mut Option<u64>, bytes: Option<u64>| {
                *sum = bytes.map_or(*sum, |bytes| Some(sum.unwrap_or(0) + bytes));
            };
            add(&mut state.dirty_bytes, status.dirty_bytes());
            add(&mut state.log_used_bytes, status.log_cache().map(|cache| cache.used_bytes));
            let space = status.log_cache().and_then(|cache| cache.statistics.log_space());
            state.log_space = space.or(state.log_space);
        }
        state
    }

    /// Destages all that is dirty in every cache.
    pub fn drain(&mut self) -> Result<(), Failure> {
        let caches = self.caches.clone();
        for cache in caches {
            self.driver.control(&mut self.stack, cache, Control::Drain);
            loop {
                match self.driver.take_report() {
                    Some((_, Report::Drained)) => break,
                    Some((_, Report::Failed(why))) => return Err(Failure::Failed(why.to_string())),
                    Some((
                        _,
                        Report::Stopped
                        | Report::LogFailed
                        | Report::WritesThrough
                        | Report::Array(_)
                        | Report::Disk(_)
                        | Report::Notice,
                    )) => {}
                    None => {
                        let progress = self.driver.step(&mut self.stack);
                        assert!(progress != DriverProgress::Idle, "a drain that never ends");
                    }
                }
            }
        }
        Ok(())
    }

    /// The state of every layer, the response times, and what makes two runs comparable.
    pub fn report(&self) -> Value {
        let now = self.driver.now();
        let status = |name: &str| LayerStatus::of(&self.stack, self.layers[name], now).to_json();
        let layers: serde_json::Map<String, Value> = self
            .layers
            .keys()
            .filter(|name| *name != METER)
            .map(|name| (name.clone(), status(name)))
            .collect();
        json!({
            "seconds": now.as_secs_f64(),
            "requests": status(METER),
            "layers": layers,
            "events": self.driver.events(),
            "trace_hash": format!("{:016x}", self.driver.trace_hash()),
        })
    }
}
