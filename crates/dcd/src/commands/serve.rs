//! `dcd serve`: a stack over real devices, and its front-ends.
//!
//! The order is what keeps data safe: look without changing anything, take the devices, recover, note in the records that
//! the data disks are incomplete alone, and only then let clients in.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use dcd_engine::{LayerIndex, Nanos, Report, Stack};
use dcd_io::{
    CallId, ClientId, Context, Device, DeviceSpec, Driver, FileSpec, ListenError, Outcome, SessionFactory,
    Signal, protect_process,
};
use dcd_serve::control::ControlFactory;
use dcd_serve::fuse::{FuseImage, FuseOptions};
use dcd_serve::nbd::{NbdExports, NbdFactory};
use dcd_stack::{ForClients, LayerKind, LayerSpec, NbdAddress, Overrun, Recording, StackFile};
use serde_json::Value;

use crate::absent;
use crate::admission::{
    Admitted, admit, admit_bare, admit_bare_array, admit_no_log, admit_non_volatile, choices, without_caches,
};
use crate::attachment::Refusal;
use crate::cli::Serve;
use crate::commands::array::random_id;
use crate::failure::Failure;
use crate::host::{Cache, CacheKind, Given, Host};
use crate::memory::enough_memory;
use crate::opening::reserve_space;
use crate::real::{Opener, Purpose, patiently};
use crate::running::RunningCaches;

/// How long a clean stop may take. What is not done then is left as after a crash: in the log.
const STOP_MAX: Nanos = Nanos::from_secs(120);
/// A stop that takes longer than this says so.
const STOP_LONG: Nanos = Nanos::from_secs(5);
/// Signals closer together are one wish: a terminal and a supervisor may both send theirs.
const SAME_WISH: Nanos = Nanos::from_secs(1);

pub fn run(args: &Serve) -> Result<(), Failure> {
    let mut file = StackFile::load(&args.file)?;
    if file.serve.nbd.is_empty() && file.serve.fuse.is_none() {
        return Err(Failure::Failed(format!(
            "{}: there is no front-end: add nbd = \"unix:PATH\" or fuse = \"DIR\" to [serve]",
            args.file.display()
        )));
    }
    for what in leave_out(&mut file, args.degraded)? {
        eprintln!("dcd: {what}");
    }
    if args.without_cache {
        file = without_caches(&file, args.force)?;
    }
    if args.accept_damage {
        file.accept_damage();
    }
    admit_non_volatile(&file, args.i_have_nvram)?;
    enough_memory(&file, file.memory_bytes())?;
    admit_bare_array(&file, &file.export)?;
    admit_no_log(&file, &file.export)?;
    let admitted = admit(&file)?;
    let mut driver = Driver::new().map_err(failed)?;
    // Before any thread is started, so that signals come here and not there.
    driver.take_signals().map_err(failed)?;
    protect(args.quiet);
    let (mut stack, mut served, recording) = build(&file, args.record.as_deref(), admitted, &mut driver)?;
    served.host.records.note_start()?;
    if let Err(error) = stack.activate(&mut driver) {
        served.host.records.note_end(dcd_engine::Pump::now(&driver), &stack)?;
        return Err(Failure::Refused(Refusal::new(
            error.to_string(),
            "see above; \"dcd check\" for a log and \"dcd array status\" for an array look without changing anything",
        )));
    }
    served.host.records.note_started(dcd_engine::Pump::now(&driver), &stack)?;
    let places = listen(&file, &stack, &mut driver)?;
    announce(&file, &places, args.quiet);
    let outcome = driver.run(&mut stack, &mut served).map_err(failed)?;
    served.tell();
    // With the stack goes the layer that records, and that ends the file.
    drop(stack);
    if let Some(recording) = recording {
        tell_recording(&recording, args.quiet);
    }
    let left = served.host.records.failed_logs()?.unwrap_or_else(|| served.left.to_owned());
    ended(&outcome, &left)
}

/// Takes out of the file what its arrays can start without.
fn leave_out(file: &mut StackFile, degraded: Option<Nanos>) -> Result<Vec<String>, Failure> {
    let export = file.export.clone();
    match degraded {
        Some(wait) => absent::leave_out_after(file, Duration::from_nanos(wait.0)),
        None => absent::leave_out(file, &[&export], false),
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

fn protect(quiet: bool) {
    let protection = protect_process();
    if quiet {
        return;
    }
    for (what, needs, done) in [
        ("PR_SET_IO_FLUSHER", "CAP_SYS_RESOURCE", protection.io_flusher),
        ("locked memory", "CAP_IPC_LOCK", protection.locked_memory),
    ] {
        if let Err(error) = done {
            eprintln!(
                "dcd: without {what} ({error}): a machine that is short of memory may hang; it needs {needs}, which \
                 root has, unless a container takes it away"
            );
        }
    }
}

/// What was recorded. That something is missing is told in any case.
fn tell_recording(recording: &Recording, quiet: bool) {
    let path = recording.path.display();
    let (recorded, dropped) = (recording.recorded(), recording.dropped());
    match recording.error() {
        Some(error) => eprintln!("dcd: the recording ended early: {error}; {dropped} requests are not in it"),
        None if dropped > 0 => {
            eprintln!(
                "dcd: {path}: {dropped} requests are not in it, as it could not be written fast enough"
            );
        }
        None => {}
    }
    if !quiet {
        eprintln!("dcd: {path}: {recorded} requests recorded");
    }
}

fn build(
    file: &StackFile,
    record: Option<&Path>,
    admitted: Vec<Admitted>,
    driver: &mut Driver,
) -> Result<(Stack, Served, Option<Recording>), Failure> {
    // Logs are made by `format`, and members by `array create`: only plain disks are made here.
    let is_plain = admitted.is_empty() && file.arrays().next().is_none();
    let mut opener = Opener::new(file, if is_plain { Purpose::Create } else { Purpose::Change });
    let clients = ForClients { record, overrun: Overrun::Drop };
    let built = match file.build_metered(clients, &mut opener) {
        Ok(built) => built,
        Err(error) if opener.busy => return Err(Failure::Busy(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    for device in opener.into_devices() {
        driver.add_device(device);
    }
    admit_bare(file, &built.parts, &file.export)?;
    for choice in choices(file)? {
        // It may be good for long: that it has no room to end up in is told before it is too late.
        if let Err(failure) = reserve_space(file, &built.parts, &choice.log) {
            eprintln!("dcd: {failure}; the log fails when its file system is full");
        }
    }
    let cache = |layer: &LayerSpec| {
        let kind = match &layer.kind {
            LayerKind::LogCache { .. } => CacheKind::LogCache,
            LayerKind::Raid(_) => CacheKind::Array,
            LayerKind::WriteCache(_) => CacheKind::WriteCache,
            _ => return None,
        };
        Some(Cache { layer: built.parts.layers[&layer.name], name: layer.name.clone(), kind })
    };
    let mut caches: Vec<Cache> = file.layers.iter().filter_map(cache).collect();
    // The upper ones first, as the host wants them.
    caches.sort_by_key(|cache| std::cmp::Reverse(cache.layer));
    let host = Host::new(&file.export, built.parts.clone(), caches, RunningCaches::of(admitted));
    let served = Served { host, stopping: false, asked: None, told_long: false, left: left_by(file) };
    Ok((built.stack, served, built.recording))
}

/// Lets clients in; returns where.
fn listen(file: &StackFile, stack: &Stack, driver: &mut Driver) -> Result<Vec<String>, Failure> {
    let geometry = stack.geometry(stack.root());
    let mut places = Vec::new();
    if let Some(path) = &file.serve.control {
        listen_unix(driver, path, || Box::new(ControlFactory))?;
    }
    for address in &file.serve.nbd {
        let exports = NbdExports::single(&file.serve.nbd_name, geometry, false);
        let factory = || Box::new(NbdFactory::new(exports.clone())) as Box<dyn SessionFactory>;
        match address {
            NbdAddress::Unix(path) => {
                listen_unix(driver, path, factory)?;
                places.push(format!("nbd {address}"));
            }
            NbdAddress::Tcp(wanted) => {
                let (_, bound) = driver.listen_tcp(*wanted, factory()).map_err(failed)?;
                places.push(format!("nbd tcp:{bound}"));
            }
        }
    }
    if let Some(directory) = &file.serve.fuse {
        let image = FuseImage::mount(directory, geometry, &FuseOptions::default()).map_err(failed)?;
        places.push(format!("fuse {}", image.image().display()));
        driver.add_source(Box::new(image));
    }
    Ok(places)
}

fn listen_unix(
    driver: &mut Driver,
    path: &Path,
    factory: impl Fn() -> Box<dyn SessionFactory>,
) -> Result<(), Failure> {
    let listening =
        patiently(|| driver.listen_unix(path, factory()), |error| matches!(error, ListenError::InUse { .. }));
    listening.map(|_| ()).map_err(failed)
}

/// One line on standard output: whoever started the server may wait for it.
fn announce(file: &StackFile, places: &[String], quiet: bool) {
    let mut out = std::io::stdout();
    let line = if quiet { "ready".to_owned() } else { format!("{}: {}", file.export, places.join(", ")) };
    // Nobody may be there to read it.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn ended(outcome: &Outcome, left: &str) -> Result<(), Failure> {
    if outcome.is_clean() {
        return Ok(());
    }
    let mut why = outcome.failures.clone();
    if outcome.timed_out || outcome.abandoned {
        why.push("it was not given the time".to_owned());
    }
    let why = why.join("; ");
    Err(Failure::Failed(format!("not stopped cleanly: {why}. {left}")))
}

/// What a stop that is not a clean one leaves.
fn left_by(file: &StackFile) -> &'static str {
    if !file.non_volatile_layers().is_empty() {
        return "What is in RAM and not on the disks is lost, although clients have flushed it";
    }
    match file.log_caches().next() {
        Some(_) => "What clients have flushed is in the log, and the next start recovers it",
        None => "What was written since the last flush that succeeded may be lost",
    }
}

/// The host, as the driver calls it.
struct Served {
    host: Host,
    /// The layers are being stopped.
    stopping: bool,
    /// When the first signal came.
    asked: Option<Nanos>,
    /// It has been said that the stop takes long.
    told_long: bool,
    /// What a stop that is not a clean one leaves.
    left: &'static str,
}

impl Served {
    /// When it is to be said that the stop takes long.
    fn long_at(&self) -> Option<Nanos> {
        self.asked.filter(|_| !self.told_long).map(|asked| asked + STOP_LONG)
    }

    /// Delivers what the host has to say.
    fn after(&mut self, context: &mut Context<'_>) {
        for (name, device) in self.host.take_closing() {
            if !context.close_device(device) {
                eprintln!(
                    "dcd: \"{name}\" stays open until the server stops: commands to it have not returned"
                );
            }
        }
        while let Some(answer) = self.host.take_answer() {
            context.answer(answer.to, answer.body, answer.done);
        }
        if self.stopping && self.host.is_stopped() {
            self.stopping = false;
            context.layers_stopped(self.host.take_troubles());
        } else if !self.stopping {
            self.tell();
        }
    }

    /// Opens a device that is to be a spare, and gives it to the array.
    fn add_spare(&mut self, call: CallId, args: &Value, context: &mut Context<'_>) -> Result<(), String> {
        let newcomer = self.host.newcomer(args)?;
        let id = random_id().map_err(|e| e.to_string())?;
        let spec = DeviceSpec::File(FileSpec::new(&newcomer.path));
        let opened = Device::open(&spec).map_err(|e| e.to_string())?;
        let device = context.add_device(opened);
        let port = context.stack_mut().add_port(newcomer.layer, device);
        let now = context.now();
        self.host.give(now, context.stack_mut(), call, Given { newcomer, device, port, id });
        Ok(())
    }

    /// Troubles, and what happens to arrays, go to standard error, where the administrator or the journal sees them.
    fn tell(&mut self) {
        for what in self.host.take_news().into_iter().chain(self.host.take_troubles()) {
            eprintln!("dcd: {what}");
        }
    }
}

impl dcd_io::Host for Served {
    fn call(&mut self, call: CallId, body: Value, context: &mut Context<'_>) {
        let now = context.now();
        if body["verb"] == "array" && body["args"]["command"] == "add" {
            if let Err(why) = self.add_spare(call, &body["args"], context) {
                self.host.refuse(call, why);
            }
        } else {
            self.host.call(now, context.stack_mut(), call, &body);
        }
        self.after(context);
    }

    fn client_gone(&mut self, client: ClientId, context: &mut Context<'_>) {
        let now = context.now();
        self.host.client_gone(now, context.stack_mut(), client);
        self.after(context);
    }

    fn report(&mut self, layer: LayerIndex, report: &Report, context: &mut Context<'_>) {
        let now = context.now();
        self.host.report(now, context.stack_mut(), layer, report.clone());
        self.after(context);
    }

    fn signal(&mut self, _signal: Signal, context: &mut Context<'_>) {
        let now = context.now();
        match self.asked {
            None => {
                self.asked = Some(now);
                context.stop(STOP_MAX);
            }
            Some(asked) if now >= asked + SAME_WISH => context.stop(Nanos::ZERO),
            Some(_) => {}
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        self.host.next_deadline().into_iter().chain(self.long_at()).min()
    }

    fn wake(&mut self, context: &mut Context<'_>) {
        if self.long_at().is_some_and(|at| context.now() >= at) {
            self.told_long = true;
            eprintln!(
                "dcd: still stopping: the disks have not done yet what they were given; another SIGTERM or SIGINT ends this now. {}",
                self.left
            );
        }
        let now = context.now();
        self.host.tick(now, context.stack_mut());
        self.after(context);
    }

    fn quiesced(&mut self, context: &mut Context<'_>) {
        self.stopping = true;
        let now = context.now();
        self.host.stop(now, context.stack_mut());
        self.after(context);
    }
}
