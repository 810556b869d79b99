//! Opens the real devices of a stack file, for a server or for offline work, and drives an offline stack: one operation
//! after the other.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use dcd_engine::log_cache::{MemoryPlace, PART_SECTORS};
use dcd_engine::{
    BlockDevice, DeviceIndex, Geometry, Io, IoResult, LayerIndex, Nanos, Output, Pump, Report, SECTOR_BYTES,
    Stack,
};
use dcd_io::{Device, DeviceError, Direct, FileDevice, FileSpec, MemoryDirectory, Overlay, RemoteSpec};
use dcd_serve::disk_user;
use dcd_stack::{
    Asked, DeclaredDevice, DeviceOpener, DeviceSource, LayerKind, OpenError, RemoteSource, Role, StackFile,
    StackFileError,
};

use crate::control::{server_of, server_with};
use crate::failure::Failure;
use crate::session::machine;
use crate::session::site::Site;
use crate::session::system::{carried_by, is_by_content};
use crate::session::waiting;

/// Message about a stack whose server has its devices open; none if there is no server.
fn served(file: &StackFile) -> Option<String> {
    // The server of another stack may listen there.
    let server = server_of(file).ok()??;
    let process = server.server_process().filter(|process| *process != std::process::id() as i32)?;
    let stack = file.path.display();
    Some(format!("{stack} is in use: process {process} serves it. Stop that first: dcd stop {stack}"))
}

/// Message about a device that the server of another stack has open; none if no server says so.
fn served_elsewhere(path: &Path) -> Option<String> {
    let (stack, process) = server_with(path)?;
    let (path, stack) = (path.display(), stack.display());
    let process = process.map(|process| format!(", by process {process}")).unwrap_or_default();
    Some(format!(
        "{path} is in use: it is a device of {stack}, which is served{process}. Stop that first: dcd stop {stack}"
    ))
}

/// Maximum time that [`patiently`] tries. A second server must be refused within a second.
const PATIENCE: Duration = Duration::from_millis(600);

/// Polling interval of [`wait_while_in_use`].
const IN_USE_INTERVAL: Duration = Duration::from_millis(500);

/// Use that a command makes of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Changes nothing: what the start of a layer writes stays in RAM.
    Look,
    Change,
    /// Changes devices, and also makes missing files that have a size.
    Create,
}

/// Opens and locks the devices of a stack file.
pub struct Opener<'a> {
    site: &'a Site,
    purpose: Purpose,
    held: Rc<HeldDevices>,
    /// With their names in messages.
    devices: Vec<(String, OpenedDevice)>,
    /// Path of a device that is open elsewhere.
    busy: Option<PathBuf>,
}

enum OpenedDevice {
    Taken(Box<FileDevice>),
    /// For looks: what is written to it stays in RAM.
    Shared(Box<dyn BlockDevice>),
}

/// Devices that stay open and locked: looks share them, and a start that changes them takes them. So what a start finds is what was looked at.
pub struct HeldDevices {
    for_changes: bool,
    devices: RefCell<BTreeMap<String, SharedDevice>>,
}

/// A device that several looks read.
#[derive(Clone)]
struct SharedDevice(Rc<RefCell<FileDevice>>);

impl BlockDevice for SharedDevice {
    fn geometry(&self) -> Geometry {
        self.0.borrow().geometry()
    }

    fn run(&mut self, io: Io) -> IoResult {
        self.0.borrow_mut().run(io)
    }
}

impl HeldDevices {
    /// Holds nothing yet. `purpose`: of the start for which the devices are held.
    pub fn new(purpose: Purpose) -> HeldDevices {
        HeldDevices { for_changes: purpose != Purpose::Look, devices: RefCell::default() }
    }

    /// Returns a device for a look. A device that cannot be opened for changes is opened for reading only: the start reports the reason.
    fn share(
        &self,
        device: &DeclaredDevice,
        open: impl Fn(bool) -> Result<Device, DeviceError>,
    ) -> Result<SharedDevice, DeviceError> {
        let mut devices = self.devices.borrow_mut();
        if let Some(shared) = devices.get(&device.name) {
            return Ok(shared.clone());
        }
        let opened = match open(device.read_only || !self.for_changes) {
            Err(error)
                if self.for_changes
                    && !matches!(error, DeviceError::NotFound { .. })
                    && !error.is_in_use() =>
            {
                open(true).map_err(|_| error)
            }
            opened => opened,
        }?;
        let shared = SharedDevice(Rc::new(RefCell::new(opened.into())));
        devices.insert(device.name.clone(), shared.clone());
        Ok(shared)
    }

    /// Returns a held device to a start that changes it, unless it is to be made, or could only be opened for reading.
    fn take(&self, device: &DeclaredDevice, makes: bool) -> Option<FileDevice> {
        let shared = self.devices.borrow_mut().remove(&device.name)?;
        let is_wanted = !makes && (device.read_only || !shared.geometry().read_only);
        Rc::try_unwrap(shared.0).ok().map(RefCell::into_inner).filter(|_| is_wanted)
    }
}

impl<'a> Opener<'a> {
    pub fn new(site: &'a Site, purpose: Purpose) -> Opener<'a> {
        Opener { site, purpose, held: site.held(purpose), devices: Vec::new(), busy: None }
    }

    /// The devices, in the order of their [`DeviceIndex`].
    ///
    /// # Panics
    /// If they were opened for [`Purpose::Look`].
    pub fn into_devices(self) -> Vec<Device> {
        let device = |(_, opened)| match opened {
            OpenedDevice::Taken(device) => device.into_device(),
            OpenedDevice::Shared(_) => unreachable!("a driver changes its devices"),
        };
        self.devices.into_iter().map(device).collect()
    }

    /// Returns the failure to build a stack over these devices.
    pub fn failure(&self, error: StackFileError) -> Failure {
        match &self.busy {
            Some(path) => {
                let text = served(self.site).or_else(|| served_elsewhere(path));
                Failure::Busy(text.unwrap_or_else(|| error.to_string()))
            }
            None => error.into(),
        }
    }

    /// The driver of offline commands.
    pub fn into_pump(self) -> FilePump {
        let devices = self.devices.into_iter().map(|(named, opened)| match opened {
            OpenedDevice::Taken(device) => (named, device as Box<dyn BlockDevice>),
            OpenedDevice::Shared(device) => (named, device),
        });
        let devices = devices.collect();
        FilePump { devices, started: Instant::now(), outputs: Vec::new(), reports: Vec::new() }
    }

    /// True for a device that holds a log, and not its data disk.
    fn is_log(&self, device: &str) -> bool {
        let is_below = |part: &str| self.site.bottom_device(part).is_some_and(|below| below.name == device);
        self.site.log_caches().any(|cache| match &cache.kind {
            LayerKind::LogCache { log, .. } => {
                is_below(&log.text) && !cache.kind.data_names().into_iter().any(is_below)
            }
            _ => false,
        })
    }

    /// True for the data disk of a log with one.
    fn is_only_disk(&self, device: &str) -> bool {
        let is_below = |part: &str| self.site.bottom_device(part).is_some_and(|below| below.name == device);
        self.site
            .log_caches()
            .any(|cache| matches!(cache.kind.data_names().as_slice(), [only] if is_below(only)))
    }

    /// Returns further advice about a missing device.
    fn advice(&self, device: &DeclaredDevice) -> &'static str {
        let exists = |name: &&str| self.site.path_below(name).is_some_and(Path::exists);
        for (layer, raid) in self.site.arrays() {
            let below = layer.kind.below_names();
            let members = raid.config.present.iter().filter(|present| **present).count();
            let lies_on =
                |name: &&str| self.site.bottom_device(name).is_some_and(|below| below.name == device.name);
            match below.iter().position(lies_on) {
                None => {}
                // The start of the log reports its problems.
                Some(_) if self.is_log(&device.name) => return "",
                // No member exists yet.
                Some(_) if !below[..members].iter().any(exists) => {
                    return "; \"dcd array create\" makes a new array, and files that have a size";
                }
                Some(place) if place < members => {
                    return "; \"missing\" in its place starts the array without it, if the parity makes up for it";
                }
                Some(place) if place < raid.config.journal_port().0 => {
                    return "; take it out of \"spares\" if it is gone for good";
                }
                Some(_) => {
                    return "; if it is gone for good, write journal = \"none\" in the stack file: if no member is missing, the array then \
                            starts as after a crash without a journal";
                }
            }
        }
        match &device.source {
            DeviceSource::Path { path, .. } if is_by_content(path) => {
                "; links by UUID or label lead to the device of the cache, not to its data disk: name the disk by /dev/disk/by-id"
            }
            _ if self.is_only_disk(&device.name) && self.site.path.exists() => {
                ". If the disk is gone for good, \"dcd remove STACK --force\" gives up the stack"
            }
            _ if self.purpose != Purpose::Create || self.site.arrays().next().is_some() => "",
            // No command makes a disk for data.
            _ if !self.is_log(&device.name) && self.site.log_caches().next().is_some() => "",
            DeviceSource::Path { size: Some(_), .. } => "; \"dcd format\" makes it with its size",
            _ => ", or let \"dcd format\" make it: --log-size, or \"size\" in its table of the stack file",
        }
    }

    fn spec(&self, device: &DeclaredDevice, read_only: bool) -> dcd_io::DeviceSpec {
        let (path, size) = match &device.source {
            DeviceSource::Memory { size } => return dcd_io::DeviceSpec::Memory { bytes: *size },
            DeviceSource::Missing => return dcd_io::DeviceSpec::Missing { sectors: PART_SECTORS },
            DeviceSource::Remote(remote) => return remote_spec(remote, device.read_only),
            DeviceSource::Path { path, size } => (path, *size),
        };
        let is_modelled = self.site.layers.iter().any(|layer| {
            layer.kind.role() == Some(Role::ModelledDisk)
                && layer.kind.below_names().contains(&device.name.as_str())
        });
        let spec = FileSpec::new(path);
        dcd_io::DeviceSpec::File(FileSpec {
            read_only,
            // A modelled disk decides how long operations take: the file below should take no time.
            direct: if is_modelled { Direct::Never } else { spec.direct },
            create: size.filter(|_| self.purpose == Purpose::Create),
            ..spec
        })
    }
}

/// Describes an export as it is opened. A command that only looks at it writes nothing there in either case ([`Overlay`]).
pub fn remote_spec(remote: &RemoteSource, read_only: bool) -> dcd_io::DeviceSpec {
    dcd_io::DeviceSpec::Remote(RemoteSpec {
        uri: remote.uri.clone(),
        text: remote.text.display().to_string(),
        read_only,
        timeout: remote.timeout,
    })
}

/// Refuses a device that this machine is started from.
fn of_the_system(path: &Path, mount: &str) -> String {
    format!(
        "{} has {mount} of this machine on it. dcd is started from there, so it cannot serve it at the next boot: name a disk or a \
         partition that has only data on it. Nothing was changed",
        path.display()
    )
}

/// Returns the user of a block device that is in use, in words; none if the system does not tell.
fn user_of(path: &Path) -> Option<String> {
    let node = std::fs::canonicalize(path).ok()?;
    let is_block = std::fs::metadata(&node).is_ok_and(|node| node.file_type().is_block_device());
    disk_user(node.file_name()?.to_str().filter(|_| is_block)?)
}

/// Reports a file whose end is not a whole block.
fn tell_rest(device: &DeclaredDevice, geometry: Geometry) {
    let DeviceSource::Path { path, .. } = &device.source else { return };
    let file = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file);
    let rest = file.map_or(0, |file| file.len().saturating_sub(geometry.sectors * SECTOR_BYTES));
    if rest > 0 {
        eprintln!(
            "dcd: device \"{}\": the last {rest} bytes of {} are no whole block of {} bytes: they are not used, and stay as they are",
            device.name,
            path.display(),
            geometry.logical_block_bytes
        );
    }
}

impl DeviceOpener for Opener<'_> {
    fn asked(&self) -> Asked {
        let machine = (self.purpose != Purpose::Look).then(machine::this);
        Asked { machine, ..self.site.asked.clone() }
    }

    fn memory(&self) -> Option<Box<dyn MemoryPlace>> {
        let memory = memory_place(self.purpose)?;
        Some(Box::new(memory))
    }

    fn open(&mut self, _index: DeviceIndex, device: &DeclaredDevice) -> Result<Geometry, OpenError> {
        let named = match device.source.place() {
            Some(path) => format!("device \"{}\" ({})", device.name, path.display()),
            None => format!("device \"{}\"", device.name),
        };
        let open = |read_only| {
            waiting::on(&named, || {
                patiently(|| Device::open(&self.spec(device, read_only)), DeviceError::is_in_use)
            })
        };
        let opened = match self.purpose {
            Purpose::Look => self.held.share(device, open).map(|shared| match device.read_only {
                true => OpenedDevice::Shared(Box::new(shared)),
                false => OpenedDevice::Shared(Box::new(Overlay::new(shared))),
            }),
            _ => {
                let makes = self.purpose == Purpose::Create && device.is_made();
                let held = self.held.take(device, makes).map(Ok);
                held.unwrap_or_else(|| open(device.read_only).map(FileDevice::from))
                    .map(|device| OpenedDevice::Taken(Box::new(device)))
            }
        };
        let opened = opened.map_err(|error| {
            if let DeviceError::Busy { path, .. } = &error
                && let Some(mount) = carried_by(path)
            {
                return OpenError::from(of_the_system(path, mount));
            }
            match &error {
                DeviceError::Busy { path, .. } => self.busy = Some(path.clone()),
                // An export has no path.
                error if error.is_in_use() => self.busy = Some(PathBuf::new()),
                _ => {}
            }
            match error {
                DeviceError::Busy { path, what } => {
                    let what = user_of(&path).unwrap_or(what);
                    OpenError::from(DeviceError::Busy { path, what })
                }
                DeviceError::NotFound { .. } => format!("{error}{}", self.advice(device)).into(),
                _ => OpenError::from(error),
            }
        })?;
        let geometry = match &opened {
            OpenedDevice::Taken(taken) => taken.geometry(),
            OpenedDevice::Shared(shared) => shared.geometry(),
        };
        if self.purpose != Purpose::Look {
            tell_rest(device, geometry);
        }
        self.devices.push((named, opened));
        Ok(geometry)
    }
}

/// Directory of memory that outlives servers; `DCD_MEMORY_DIR` names another one.
const MEMORY_DIR: &str = "/dev/shm";

/// Returns the place of memory that outlives servers.
pub fn memory_place(purpose: Purpose) -> Option<MemoryDirectory> {
    // Unit tests leave nothing on the machine.
    let default = if cfg!(test) { PathBuf::new() } else { MEMORY_DIR.into() };
    let directory = std::env::var_os("DCD_MEMORY_DIR").map_or(default, PathBuf::from);
    MemoryDirectory::open(&directory, purpose != Purpose::Look).ok()
}

/// Tries again for a moment while something is in use: the kernel takes some milliseconds to close what a killed server
/// held, and a restart must not fail because of that.
pub fn patiently<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<T, E> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(error) if in_use(&error) && began.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 20),
            ended => return ended,
        }
    }
}

/// Waits up to `wait` until no other process has the devices of a stack: a killed server keeps them until the kernel has completed its
/// operations, which may take minutes on a disk with errors. Exports of other machines are not checked.
pub fn wait_while_in_use(site: &Site, wait: Duration) {
    let until = Instant::now() + wait;
    let opener = Opener::new(site, Purpose::Look);
    let in_use = || {
        let local = site.devices.iter().filter(|device| matches!(device.source, DeviceSource::Path { .. }));
        local
            .map(|device| Device::open(&opener.spec(device, true)))
            .find_map(|opened| opened.err().filter(DeviceError::is_in_use))
    };
    let mut told = false;
    // The start itself reports a device that is in use after that.
    while let Some(why) = in_use().filter(|_| Instant::now() < until) {
        if !std::mem::replace(&mut told, true) {
            eprintln!("dcd: {why}; waiting for that, {} s at most", wait.as_secs());
        }
        std::thread::sleep(IN_USE_INTERVAL);
    }
}

/// Carries a stack's commands out one after the other.
pub struct FilePump {
    /// With their names in messages.
    devices: Vec<(String, Box<dyn BlockDevice>)>,
    started: Instant,
    outputs: Vec<Output>,
    reports: Vec<(LayerIndex, Report)>,
}

impl FilePump {
    /// Takes the reports of layers since the last call.
    pub fn take_reports(&mut self) -> Vec<(LayerIndex, Report)> {
        std::mem::take(&mut self.reports)
    }
}

impl Pump for FilePump {
    fn now(&self) -> Nanos {
        Nanos(self.started.elapsed().as_nanos() as u64)
    }

    fn pump(&mut self, stack: &mut Stack) {
        if !stack.has_outputs() {
            let deadline = stack.next_deadline().expect("somebody waits, so something is to come");
            std::thread::sleep(Duration::from_nanos(deadline.since(self.now()).0));
            stack.wake(self.now());
            return;
        }
        let mut outputs = std::mem::take(&mut self.outputs);
        stack.take_outputs(&mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Device { device, tag, io } => {
                    let (named, device) = &mut self.devices[device.0];
                    let result = waiting::on(named, || device.run(io));
                    stack.complete(self.now(), tag, result);
                }
                Output::Report { layer, report } => self.reports.push((layer, report)),
                Output::Reply { .. } => unreachable!("nobody sends requests to an offline stack"),
            }
        }
        self.outputs = outputs;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_device_stays_locked_from_the_first_look_to_the_end_of_the_start_that_takes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        let mut site = Site::of_device(&path, false).unwrap();
        let is_free = || Device::open(&dcd_io::DeviceSpec::File(FileSpec::new(&path))).is_ok();
        let open = |site: &Site, purpose| {
            let mut opener = Opener::new(site, purpose);
            opener.open(DeviceIndex(0), &site.devices[0]).unwrap();
            opener.into_pump()
        };
        drop(open(&site, Purpose::Look));
        assert!(is_free(), "nothing is held");
        site.hold(Purpose::Change);
        drop((open(&site, Purpose::Look), open(&site, Purpose::Look)));
        assert!(!is_free(), "a look leaves it open");
        let taken = open(&site, Purpose::Change);
        assert!(!is_free());
        drop(taken);
        assert!(is_free(), "the start that took it has ended");
        drop(open(&site, Purpose::Look));
        site.release();
        assert!(is_free());
    }
}
