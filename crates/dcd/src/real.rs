//! Real devices: what a stack file's devices become when it is served or looked at offline, and a driver for the latter
//! that carries out one operation after the other.

use std::time::{Duration, Instant};

use dcd_engine::{BlockDevice, DeviceIndex, Geometry, LayerIndex, Nanos, Output, Pump, Report, Stack};
use dcd_io::{Device, DeviceError, Direct, FileDevice, FileSpec};
use dcd_stack::{DeviceOpener, DeviceSource, DeviceSpec, LayerKind, StackFile};

/// How long [`patiently`] tries. A second server must be refused within a second.
const PATIENCE: Duration = Duration::from_millis(600);

/// Opens and locks the devices of a stack file.
pub struct Opener<'a> {
    file: &'a StackFile,
    /// Makes the files that are missing and have a size.
    create: bool,
    devices: Vec<Device>,
    /// Set when a device is open elsewhere.
    pub busy: bool,
}

impl<'a> Opener<'a> {
    pub fn new(file: &'a StackFile, create: bool) -> Opener<'a> {
        Opener { file, create, devices: Vec::new(), busy: false }
    }

    /// The devices, in the order of their [`DeviceIndex`].
    pub fn into_devices(self) -> Vec<Device> {
        self.devices
    }

    /// The driver of offline commands.
    pub fn into_pump(self) -> FilePump {
        let devices = self.devices.into_iter().map(FileDevice::from).collect();
        FilePump { devices, started: Instant::now(), outputs: Vec::new(), reports: Vec::new() }
    }

    /// True where a log lies, and not its data: it is written all over, and must not run out of space on the way.
    fn is_log(&self, device: &str) -> bool {
        let is_below = |part: &str| self.file.bottom_device(part).is_some_and(|below| below.name == device);
        self.file.log_caches().any(|cache| match &cache.kind {
            LayerKind::LogCache { log, data, .. } => is_below(&log.text) && !is_below(&data.text),
            _ => false,
        })
    }

    fn spec(&self, device: &DeviceSpec) -> dcd_io::DeviceSpec {
        let (path, size) = match &device.source {
            DeviceSource::Memory { size } => return dcd_io::DeviceSpec::Memory { bytes: *size },
            DeviceSource::Path { path, size } => (path, *size),
        };
        let is_modelled = self.file.layers.iter().any(|layer| {
            matches!(layer.kind, LayerKind::Disk(_))
                && layer.kind.below_names().contains(&device.name.as_str())
        });
        let spec = FileSpec::new(path);
        dcd_io::DeviceSpec::File(FileSpec {
            read_only: device.read_only,
            // A modelled disk decides how long things take: what is below should take no time.
            direct: if is_modelled { Direct::Never } else { spec.direct },
            create: size.filter(|_| self.create),
            preallocate: self.is_log(&device.name),
            ..spec
        })
    }
}

impl DeviceOpener for Opener<'_> {
    fn open(&mut self, _index: DeviceIndex, device: &DeviceSpec) -> Result<Geometry, String> {
        let spec = self.spec(device);
        let opened = patiently(|| Device::open(&spec), |error| matches!(error, DeviceError::Busy { .. }));
        let opened = opened.map_err(|error| {
            self.busy |= matches!(error, DeviceError::Busy { .. });
            error.to_string()
        })?;
        let geometry = opened.geometry();
        self.devices.push(opened);
        Ok(geometry)
    }
}

/// Tries again for a moment where something is still in use: the kernel takes some milliseconds to let go of what a killed
/// server held, and a restart must not fail over that.
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

/// Carries a stack's commands out one after the other.
pub struct FilePump {
    devices: Vec<FileDevice>,
    started: Instant,
    outputs: Vec<Output>,
    reports: Vec<(LayerIndex, Report)>,
}

impl FilePump {
    /// What layers said since the last time.
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
                    let result = self.devices[device.0].run(io);
                    stack.complete(self.now(), tag, result);
                }
                Output::Report { layer, report } => self.reports.push((layer, report)),
                Output::Reply { .. } => unreachable!("nobody sends requests to an offline stack"),
            }
        }
        self.outputs = outputs;
    }
}
