//! Reports to the administrator, unasked, devices that do not answer, and a start that takes long.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use dcd_engine::{DeviceIndex, Nanos, Pump};
use dcd_io::{Device, Driver, Failures, LinkStatus, OpenedPlace, Signals, UnansweredOps};

use crate::messages;
use crate::session::serving::notify::tell_doing;
use crate::session::serving::status::{DeviceState, DeviceStatus, SilentDevice};
use crate::session::serving::wear::WearWatch;

/// A device that owes an answer for this long is reported. A disk that was asleep needs less.
pub const SILENCE: Nanos = Nanos::from_secs(10);
/// Polling interval for devices.
const INTERVAL: Nanos = Nanos::from_secs(2);
/// Delay of a look that shows a stall of this process itself.
const STALL: Nanos = Nanos::from_secs(1);
/// Duration of a start after which a message says that it is still starting.
const START_LONG: Duration = Duration::from_secs(10);
/// Maximum duration of a start after it was told to stop.
const START_STOP_MAX: Duration = Duration::from_secs(120);
/// Polling interval for a start.
const START_INTERVAL: Duration = Duration::from_millis(100);

/// Watches the devices of a server.
#[derive(Default)]
pub struct DeviceWatch {
    looked: Nanos,
    /// Time since which this process has run without a stall.
    awake: Nanos,
    /// The devices that were reported, and since when they owe an answer.
    silent: BTreeMap<DeviceIndex, Nanos>,
    /// Number of losses of each connection, and whether it was up, as last reported.
    links: BTreeMap<DeviceIndex, (u64, bool)>,
    places: PlaceWatch,
    wear: WearWatch,
}

impl DeviceWatch {
    pub fn next_deadline(&self) -> Nanos {
        self.looked + INTERVAL
    }

    /// Returns the changes of the devices, for the administrator. `name`: a device as the stack file calls it.
    pub fn look<'a>(
        &mut self,
        now: Nanos,
        driver: &Driver,
        name: impl Fn(DeviceIndex) -> Option<&'a str>,
    ) -> Vec<String> {
        if now < self.next_deadline() {
            return Vec::new();
        }
        self.notice_own_stall(now);
        self.looked = now;
        let devices = self.owed(driver, SILENCE);
        let mut news = self.look_at_links(driver, &name);
        for (device, before, now) in self.places.look(driver) {
            let named = named(driver, device, &name);
            news.push(match (before, now) {
                (_, Some(PlaceTrouble::Removed(loss))) => format!(
                    "{named}: {loss}, while it is in use. It works until this server ends, and is lost then: \"dcd status\" says what to do"
                ),
                (_, Some(PlaceTrouble::Shared(node))) => format!("{named}: {}", shared_text(&node)),
                (Some(PlaceTrouble::Shared(node)), None) => format!("{named}: {node} is detached from its file again"),
                (_, None) => format!("{named} has its place again"),
            });
        }
        for owed in &devices {
            if self.silent.insert(owed.device, owed.since).is_none() {
                let text = describe(now, driver, owed, &name);
                news.push(format!(
                    "{text}; requests that need it wait. Check the device and the kernel's messages (dmesg)"
                ));
            }
        }
        self.silent.retain(|device, since| {
            let still = devices.iter().any(|owed| owed.device == *device);
            if !still {
                let named = named(driver, *device, &name);
                news.push(format!("{named} answers again, after {:.0} s", now.since(*since).as_secs_f64()));
            }
            still
        });
        news
    }
}

impl DeviceWatch {
    /// Returns news about connections that were lost or made again.
    fn look_at_links<'a>(
        &mut self,
        driver: &Driver,
        name: &impl Fn(DeviceIndex) -> Option<&'a str>,
    ) -> Vec<String> {
        let mut news = Vec::new();
        for (index, device) in driver.devices().iter().enumerate() {
            let Some(link) = device.link() else { continue };
            let index = DeviceIndex(index);
            let named = named(driver, index, name);
            let told = self.links.entry(index).or_insert((0, true));
            let now = (link.losses, link.connections > 0);
            match (*told, now) {
                ((before, _), (losses, true)) if losses > before => news.push(format!(
                    "{named} is connected again; writes that were not flushed were sent again. The connection was lost: {}",
                    link.why.unwrap_or_default()
                )),
                ((_, false), (_, true)) => news.push(format!("{named} is connected again")),
                ((_, true), (_, false)) => news.push(format!(
                    "{named} has lost its connection: {}; requests that need it wait, and connecting is tried again",
                    link.why.unwrap_or_default()
                )),
                _ => {}
            }
            *told = now;
        }
        news
    }
}

impl DeviceWatch {
    /// Notices that this process itself stood still (SIGSTOP, a freezer, a machine that slept): no device owes an answer for that time.
    pub fn notice_own_stall(&mut self, now: Nanos) {
        if now > self.next_deadline() + STALL {
            self.awake = now;
        }
    }

    /// The devices that owe an answer for longer than `age`, not counting the time in which this process stood still.
    fn owed(&self, driver: &Driver, age: Nanos) -> Vec<UnansweredOps> {
        let now = Pump::now(driver);
        let awake = |owed: UnansweredOps| UnansweredOps { since: owed.since.max(self.awake), ..owed };
        let owed = driver.unanswered(age).into_iter().map(awake);
        owed.filter(|owed| now.since(owed.since) >= age).collect()
    }

    /// Describes the devices that owe an answer for longer than `age`, in the words of [`DeviceWatch::look`].
    pub fn owing<'a>(
        &self,
        driver: &Driver,
        age: Nanos,
        name: impl Fn(DeviceIndex) -> Option<&'a str>,
    ) -> Vec<String> {
        let now = Pump::now(driver);
        self.owed(driver, age).iter().map(|owed| describe(now, driver, owed, &name)).collect()
    }

    /// Devices that do not answer, for programs.
    pub fn silent_devices<'a>(
        &self,
        now: Nanos,
        driver: &Driver,
        name: impl Fn(DeviceIndex) -> Option<&'a str>,
    ) -> Vec<SilentDevice> {
        let device = |owed: UnansweredOps| SilentDevice {
            device: name(owed.device).map(str::to_owned),
            path: driver.devices()[owed.device.0].name().to_owned(),
            operations: owed.operations as u64,
            seconds: now.since(owed.since).as_secs_f64(),
        };
        self.owed(driver, SILENCE).into_iter().map(device).collect()
    }

    /// Asks for the wear of the SSDs below the logs, when it is time. `holds_log`: tells whether a device holds only a log.
    pub fn look_at_wear(&mut self, now: Nanos, driver: &Driver, holds_log: impl Fn(DeviceIndex) -> bool) {
        self.wear.look(now, || {
            let OpenPlaces(mut places) = OpenPlaces::of(driver);
            places.retain(|(device, _)| holds_log(*device));
            places
        });
    }

    /// Takes what a look elsewhere has found.
    pub fn found(&mut self, lost: TroubledDevices) {
        self.places.lost = lost;
    }

    /// The devices that the next start would not find.
    pub fn removed(&self) -> impl Iterator<Item = DeviceIndex> {
        let is_removed = |trouble: &PlaceTrouble| matches!(trouble, PlaceTrouble::Removed(_));
        self.places.lost.iter().filter(move |(_, trouble)| is_removed(trouble)).map(|(device, _)| *device)
    }

    /// Returns the status of all open devices. The driver does not know if a cache or array runs without one.
    pub fn devices<'a>(
        &self,
        driver: &Driver,
        name: impl Fn(DeviceIndex) -> Option<&'a str>,
    ) -> Vec<DeviceStatus> {
        let silent = self.owed(driver, SILENCE);
        let owed = driver.unanswered(Nanos::ZERO);
        let status = |(index, device): (usize, &Device)| {
            let index = DeviceIndex(index);
            let Failures { reads, writes, flushes, no_space, is_full, last } = device.failures();
            let link = device.link();
            let is_cut = link.as_ref().is_some_and(|link| link.connections == 0);
            let (removed, loop_device) = match self.places.lost.get(&index) {
                Some(PlaceTrouble::Removed(why)) => (Some(*why), None),
                Some(PlaceTrouble::Shared(node)) => (None, Some(node.clone())),
                None => (None, None),
            };
            let state = if removed.is_some() {
                DeviceState::Removed
            } else if is_cut || silent.iter().any(|owed| owed.device == index) {
                DeviceState::NotAnswering
            } else if device.failures() == Failures::default() {
                DeviceState::Ok
            } else {
                DeviceState::Errors
            };
            DeviceStatus {
                device: name(index).map(str::to_owned),
                path: device.name().to_owned(),
                state,
                failed_reads: reads,
                failed_writes: writes,
                failed_flushes: flushes,
                failed_no_space: no_space,
                is_full,
                last_error: last.map(|(kind, error)| format!("{kind}: {error}")),
                connection: link.map(|link| connection(&link)),
                removed: removed.map(str::to_owned),
                loop_device,
                holds_log: false,
                ssds: self.wear.of(index),
                in_flight: owed.iter().find(|owed| owed.device == index).map_or(0, |owed| owed.operations),
                operations: DeviceStatus::operations_of(device),
            }
        };
        driver.devices().iter().enumerate().filter(|(_, device)| device.is_open()).map(status).collect()
    }
}

fn describe<'a>(
    now: Nanos,
    driver: &Driver,
    owed: &UnansweredOps,
    name: &impl Fn(DeviceIndex) -> Option<&'a str>,
) -> String {
    let seconds = now.since(owed.since).as_secs_f64();
    let plural = if owed.operations == 1 { "" } else { "s" };
    let named = named(driver, owed.device, name);
    let link = driver.devices()[owed.device.0].link().filter(|link| link.connections == 0);
    let link = link.map(|link| format!(" ({})", connection(&link))).unwrap_or_default();
    format!("{named} has not answered {} operation{plural} for {seconds:.0} s{link}", owed.operations)
}

/// Describes a loop device over a file that this server has open, and the way out.
pub fn shared_text(node: &str) -> String {
    format!(
        "the loop device {node} is over the same file: programs read old data there, and what they write damages the data here. Unmount it, and \
         detach it: umount {node}; losetup --detach {node}. If something was written there, check the file system on the served device"
    )
}

/// The connection to a server, in words.
fn connection(link: &LinkStatus) -> String {
    let since = link.since.elapsed().as_secs();
    let why = link.why.as_deref().unwrap_or_default();
    match (link.connections, link.losses) {
        (0, _) => format!("not connected for {since} s: {why}"),
        (1, 0) => format!("connected for {since} s"),
        (count, 0) => format!("{count} connections for {since} s"),
        (_, losses) => {
            let times = if losses == 1 { "once".to_owned() } else { format!("{losses} times") };
            format!("connected for {since} s; lost {times}, most recently because {why}")
        }
    }
}

fn named<'a>(driver: &Driver, device: DeviceIndex, name: &impl Fn(DeviceIndex) -> Option<&'a str>) -> String {
    let path = driver.devices()[device.0].name();
    match name(device) {
        Some(name) => format!("device \"{name}\" ({path})"),
        None => format!("device {path}"),
    }
}

/// Looks for the places of open devices, on a thread of its own: a look may wait for a file system.
#[derive(Default)]
struct PlaceWatch {
    /// The thread, once there is one; none where it cannot be started.
    thread: Option<(mpsc::Sender<OpenPlaces>, mpsc::Receiver<TroubledDevices>)>,
    /// True while the thread looks.
    looks: bool,
    /// Devices in trouble; those of them that the administrator knows of.
    lost: TroubledDevices,
    told: TroubledDevices,
}

/// The places of open devices.
pub struct OpenPlaces(Vec<(DeviceIndex, OpenedPlace)>);

/// Trouble with the place of an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceTrouble {
    /// The next start would not find it, for this reason.
    Removed(&'static str),
    /// This loop device is over its file, too.
    Shared(String),
}

/// Devices in trouble.
pub type TroubledDevices = BTreeMap<DeviceIndex, PlaceTrouble>;

impl OpenPlaces {
    pub fn of(driver: &Driver) -> OpenPlaces {
        let open = driver.devices().iter().enumerate().filter(|(_, device)| device.is_open());
        OpenPlaces(
            open.filter_map(|(index, device)| Some((DeviceIndex(index), device.place()?.clone()))).collect(),
        )
    }

    /// Looks for them, which may wait for a file system.
    pub fn look(&self) -> TroubledDevices {
        let trouble = |place: &OpenedPlace| {
            let shared = || place.loop_device().map(PlaceTrouble::Shared);
            place.loss().map(PlaceTrouble::Removed).or_else(shared)
        };
        self.0.iter().filter_map(|(device, place)| Some((*device, trouble(place)?))).collect()
    }
}

impl PlaceWatch {
    /// Begins a look, and returns the changes since the last call: the trouble of a device before, and now.
    fn look(&mut self, driver: &Driver) -> Vec<(DeviceIndex, Option<PlaceTrouble>, Option<PlaceTrouble>)> {
        let (ask, found) = self.thread.get_or_insert_with(start_looking);
        if let Ok(lost) = found.try_recv() {
            (self.looks, self.lost) = (false, lost);
        }
        if !self.looks {
            self.looks = ask.send(OpenPlaces::of(driver)).is_ok();
        }
        let before = std::mem::replace(&mut self.told, self.lost.clone());
        let all: BTreeSet<&DeviceIndex> = before.keys().chain(self.lost.keys()).collect();
        let is_open = |device: &DeviceIndex| driver.devices().get(device.0).is_some_and(Device::is_open);
        let changed = |device: &DeviceIndex| self.lost.get(device) != before.get(device) && is_open(device);
        let changes = all.into_iter().filter(|device| changed(device));
        changes.map(|device| (*device, before.get(device).cloned(), self.lost.get(device).cloned())).collect()
    }
}

fn start_looking() -> (mpsc::Sender<OpenPlaces>, mpsc::Receiver<TroubledDevices>) {
    let (ask, asked) = mpsc::channel::<OpenPlaces>();
    let (tell, found) = mpsc::channel();
    let look = move || {
        for places in asked {
            if tell.send(places.look()).is_err() {
                return;
            }
        }
    };
    // Without the thread, a loss is only noticed at a stop.
    let _ = thread::Builder::new().name("dcd-places".to_owned()).spawn(look);
    (ask, found)
}

/// Watches a start, on a thread of its own: the thread that starts may wait for a device indefinitely.
pub struct StartWatch(Arc<Mutex<WatchedStart>>);

struct WatchedStart {
    doing: String,
    over: bool,
    asked: Option<Instant>,
}

impl StartWatch {
    /// `signals`: the process's, taken before any thread was started.
    pub fn begin(signals: Arc<Signals>) -> std::io::Result<StartWatch> {
        let start = WatchedStart { doing: "looking at its devices".to_owned(), over: false, asked: None };
        let start = Arc::new(Mutex::new(start));
        let watched = Arc::clone(&start);
        thread::Builder::new().name("dcd-start".to_owned()).spawn(move || watch_start(&watched, &signals))?;
        Ok(StartWatch(start))
    }

    /// Notes the step that the start has reached, for those who ask why it takes so long.
    pub fn doing(&self, what: impl Into<String>) {
        let what = what.into();
        tell_doing(&format!("starting: {what}"));
        lock(&self.0).doing = what;
    }

    /// Ends the watch; true if a stop was requested meanwhile.
    pub fn end(self) -> bool {
        let mut start = lock(&self.0);
        start.over = true;
        start.asked.is_some()
    }
}

fn watch_start(start: &Mutex<WatchedStart>, signals: &Signals) {
    let began = Instant::now();
    let mut told = false;
    loop {
        thread::sleep(START_INTERVAL);
        // Signals are taken under the lock: later ones are for the driver.
        let mut start = lock(start);
        if start.over {
            return;
        }
        let mut end = start.asked.is_some_and(|asked| asked.elapsed() >= START_STOP_MAX);
        while signals.take().is_some() {
            end |= start.asked.is_some();
            if start.asked.is_none() {
                start.asked = Some(Instant::now());
                eprintln!(
                    "dcd: still starting: {}; it stops as soon as it has started. Another SIGTERM or SIGINT ends it now",
                    start.doing
                );
            }
        }
        if end {
            errorln!("dcd: ended while {}. Nothing is lost: the next start begins again", start.doing);
            messages::finish();
            std::process::exit(1);
        }
        if began.elapsed() >= START_LONG && !std::mem::replace(&mut told, true) {
            eprintln!("dcd: still starting: {}", start.doing);
        }
    }
}

fn lock(start: &Mutex<WatchedStart>) -> MutexGuard<'_, WatchedStart> {
    start.lock().expect("nobody panics while holding it")
}
