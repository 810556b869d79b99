//! `dcd serve`: a stack over real devices, and its front-ends.
//!
//! This order keeps data safe: look without changing anything, take the devices, recover, record that the data disks alone
//! are incomplete, and only then let clients in.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dcd_engine::log_cache::Promise;
use dcd_engine::{Geometry, Nanos, SECTOR_BYTES, Stack, Target};
use dcd_io::backup_marks::BackupMarks;
use dcd_io::tls::{self, ServerConfig, TlsClients, TlsServer};
use dcd_io::{
    Driver, ListenError, SessionFactory, Signals, SocketRights, group_number, protect_process, run_promptly,
};
use dcd_serve::Outlives;
use dcd_serve::control::ControlFactory;
use dcd_serve::fuse::FuseError;
use dcd_serve::metrics::MetricsFactory;
use dcd_serve::nbd::{NbdExports, NbdFactory};
use dcd_serve::ublk;
use dcd_serve::vhost::VhostUserOptions;
use dcd_stack::{
    Address, ForClients, HumanBytes, LayerKind, LayerSpec, LayerStatus, Overrun, Parts, Recording,
    SocketAccess, StackFile,
};

use crate::cli::Serve;
use crate::events::EventFile;
use crate::failure::Failure;
use crate::memory::enough_memory;
use crate::messages::{self, Priority};
use crate::nbd_device;
use crate::session::devices::{Opener, Purpose, patiently, wait_while_in_use};
use crate::session::open::reserve_space;
use crate::session::running::RunningCaches;
use crate::session::serving::backup_marks::{MarkKeeper, marked_cache};
use crate::session::serving::checks::{admit, admit_bare, admit_non_volatile, choices};
use crate::session::serving::discard::without_caches;
use crate::session::serving::front_ends::{DiskToServe, FrontEndSettings};
use crate::session::serving::host::{Cache, CacheKind, StackHost};
use crate::session::serving::notify::tell_ready;
use crate::session::serving::records::Records;
use crate::session::serving::server::{Announce, Served};
use crate::session::serving::watch::StartWatch;
use crate::session::site::Site;
use crate::session::start;
use crate::session::system::{DEVICES_ARE_HIDDEN, hides_devices};
use crate::session::take_over;

pub fn run(args: &Serve) -> Result<(), Failure> {
    messages::begin().map_err(|error| Failure::io("a thread for messages", error))?;
    if args.file.exists() {
        let events = EventFile::of(&args.file);
        messages::keep(events).map_err(|error| Failure::io("a thread for events", error))?;
    }
    messages::note(Priority::Notice, &format!("a server starts, version {}", crate::cli::VERSION));
    let mut site = Site::load(&args.file)?;
    site.asked.accept_damage = args.accept_damage;
    site.asked.accept_doubt = args.accept_doubt;
    if !site.serve.has_front_end() {
        return Err(Failure::Failed(format!(
            "{}: there is no front-end: add nbd = \"unix:PATH\", fuse = \"DIR\", vhost-user = \"unix:PATH\" or ublk = true to [serve]",
            args.file.display()
        )));
    }
    if args.record.is_some() && site.serves_several() {
        return Err(Failure::Failed(format!(
            "{}: --record is for a single disk, and this stack serves several: leave it out",
            args.file.display()
        )));
    }
    admit_local_users(&site)?;
    let tls = certificates(&site)?;
    for warning in tls.iter().flat_map(|tls| &tls.warnings) {
        eprintln!("dcd: {warning}");
    }
    // A machine connects again by itself.
    site.asked.outlive_server = site.serve.nbd_recovery
        || site.serve.vhost_user.is_some()
        || (site.serve.ublk.is_some() && site.serve.ublk_recovery);
    if let Some(wait) = args.wait_busy {
        wait_while_in_use(&site, Duration::from_nanos(wait.0));
    }
    for device in &site.unused_devices {
        eprintln!("dcd: {}: no layer uses device \"{device}\"", site.path.display());
    }
    check_front_ends(&site)?;
    let other = take_over::take_over(&mut site, &args.take_over)?;
    let left_out = leave_out(&mut site, args.degraded)?;
    left_out.iter().for_each(|what| warnln!("dcd: {what}"));
    let loses_marks = match () {
        () if other.is_some() => Some("another machine had the disk"),
        () if !left_out.is_empty() => Some("the server was started without one of its devices"),
        () if args.accept_damage || args.accept_doubt => Some("damage may have been accepted"),
        () if site.arrays().next().is_some() => Some("commands for the array may have changed blocks"),
        () => None,
    };
    // The disk may lack data that a virtual machine knows from before. One that boots anew is let in.
    let changed = match () {
        () if other.is_some() => Some("another machine had the disk"),
        () if args.accept_damage || args.accept_doubt => Some("damage may have been accepted"),
        () if args.without_cache => Some("the disk is served without its cache"),
        () => None,
    };
    if args.without_cache {
        site = without_caches(&site, args.force)?;
    }
    admit_non_volatile(&site, args.i_have_nvram)?;
    admit_recovery(&site)?;
    enough_memory(&site, site.memory_bytes())?;
    let mut driver = Driver::new()?;
    // Done before any thread but that of messages is started, so that the signals come to this thread.
    let signals = Signals::of_server().map_err(|error| Failure::io("signals", error))?;
    let watch = StartWatch::begin(driver.take_signals(signals)).map_err(failed)?;
    // Not before: an export of another machine has threads, too, and the command of a take-over ends other uses of the devices.
    site.hold(Purpose::Change);
    let admitted = admit(&mut site)?;
    let mut caches: Vec<String> = admitted.iter().filter_map(|cache| cache.cache.clone()).collect();
    caches.dedup();
    // Logs are made by `format`, and members by `array create`: only plain disks are made here.
    let is_plain = admitted.is_empty() && site.arrays().next().is_none();
    protect(args.quiet);
    watch.doing(format!("opening the devices of {}", args.file.display()));
    let mut running = RunningCaches::of(admitted);
    let (mut stack, mut served, recording) = build(&site, args.record.as_deref(), is_plain, &mut driver)?;
    // Devices that were left out are free for others.
    site.release();
    if !site.serve.nbd.is_empty() {
        let backend = |disk: (usize, &str)| nbd_device::backend(&site, disk, &caches).text().to_owned();
        served.host.nbd_backends = site.disks().into_iter().map(|disk| (disk.0, backend(disk))).collect();
    }
    running.note_start()?;
    watch.doing("recovering: a log is read, or the members of an array");
    if let Err(error) = stack.activate(&mut driver) {
        running.note_end(dcd_engine::Pump::now(&driver), &stack)?;
        // The refusal looks at the devices.
        drop((stack, driver));
        return Err(Failure::Refused(take_over::refusal(&site, other, &error)));
    }
    running.note_started(dcd_engine::Pump::now(&driver), &stack)?;
    let marks = BackupMarks::default();
    let now = dcd_engine::Pump::now(&driver);
    served.marks = marked_cache(&site).map(|cache| {
        let disks = running.take_over_marks((now, &stack), &cache, loses_marks);
        MarkKeeper::start(marks.clone(), disks, cache)
    });
    driver.keep_marks(marks.clone());
    served.host.records = Records::with_thread(running, driver.waker()).map_err(failed)?;
    tell_larger(&site, &stack, &served.host.parts);
    tell_memory(&site, &stack, &served.host.parts, args.quiet);
    let spins = mostly_waits(&site, &stack, &served.host.parts);
    if spins {
        promptly(args.quiet);
    }
    let tls = tls.map(|tls| Arc::new(tls.config));
    let (places, settings) = listen(&site, (&caches, marks), &stack, &mut driver, tls, (spins, changed))?;
    served.disk_changes.settings = settings;
    let is_here = |(_, name): &(usize, &str)| !site.is_missing(name);
    let bytes = |disk| stack.geometry(stack.disk(disk)).sectors * SECTOR_BYTES;
    let here = site.disks().into_iter().filter(is_here).map(|(disk, name)| (disk, name, bytes(disk)));
    nbd_device::go_on(&site, &caches, &here.collect::<Vec<_>>());
    served.stop_at_once = watch.end();
    served.announce(announcement(&site, places, args.quiet), &driver);
    let outcome = driver.run(&mut stack, &mut served).map_err(failed)?;
    let ended = driver.end_front_ends();
    served.tell_end(&driver);
    let trouble = served.not_clean(&outcome).or(ended.as_ref().err().cloned());
    if let (None, Ok(marks)) = (&trouble, &served.marks) {
        marks.store(dcd_engine::Pump::now(&driver), &stack);
    }
    // Dropping the stack drops the recording layer, which then ends the file.
    drop(stack);
    if let Some(recording) = recording {
        tell_recording(&recording, args.quiet);
    }
    if let Ok(Some(stays)) = &ended {
        warnln!("dcd: {stays}");
    }
    match trouble {
        Some(why) => Err(Failure::Failed(why)),
        None => {
            messages::note(Priority::Notice, "the server has stopped");
            Ok(())
        }
    }
}

/// True if every write waits for a disk that spins, or for memory: the server is never busy for long.
fn mostly_waits(file: &StackFile, stack: &Stack, parts: &Parts) -> bool {
    let spins = |name: &str| parts.target(name).is_some_and(|target| stack.geometry(target).rotational);
    let logs = file.log_caches().filter_map(|layer| match &layer.kind {
        LayerKind::LogCache { log, .. } => Some(log.text.as_str()),
        _ => None,
    });
    stack.geometry(stack.root()).rotational && logs.into_iter().all(spins)
}

/// A thread that runs late misses the place where the disk's head was.
fn promptly(quiet: bool) {
    if let Err(error) = run_promptly()
        && !quiet
    {
        warnln!(
            "dcd: without real-time priority ({error}): on a busy machine requests take longer. Run dcd with CAP_SYS_NICE, which root has"
        );
    }
}

/// Warns that a cache serves the old size of a data disk that has grown.
fn tell_larger(file: &StackFile, stack: &Stack, parts: &Parts) {
    for layer in file.log_caches() {
        let names = layer.kind.data_names();
        for (place, name) in names.iter().enumerate() {
            let cache = stack.geometry(Target::Disk(parts.layers[&layer.name], place)).sectors;
            let disk = parts.target(name).map_or(0, |target| stack.geometry(target).sectors);
            if disk <= cache {
                continue;
            }
            if file.is_free_place(name) || file.is_missing(name) {
                continue;
            }
            let which = if names.len() > 1 { format!(" \"{name}\"") } else { String::new() };
            eprintln!(
                "dcd: the data disk{which} of \"{}\" has grown by {}, and is served with its old size: to serve all of it, stop the server, \
                 run \"dcd grow {}\", and start the server again",
                layer.name,
                HumanBytes((disk - cache) * SECTOR_BYTES),
                file.path.display()
            );
        }
    }
}

/// Tells what was found in the memory of the last server, and where a device with recovery has none.
fn tell_memory(site: &Site, stack: &Stack, parts: &Parts, quiet: bool) {
    for layer in site.log_caches() {
        let LayerKind::LogCache { config, .. } = &layer.kind else { continue };
        let status = LayerStatus::of(stack, parts.layers[&layer.name], Nanos::ZERO);
        let Some(cache) = status.log_cache() else { continue };
        if let Some(why) = &cache.memory_ignored {
            warnln!(
                "dcd: \"{}\": writes that the last server answered and that the log lacks may be lost: its memory is not used, as {why}",
                layer.name
            );
        }
        if cache.memory_taken > 0 && !quiet {
            let taken = match cache.memory_taken {
                1 => "1 record that the last server had answered was".to_owned(),
                many => format!("{many} records that the last server had answered were"),
            };
            eprintln!("dcd: \"{}\": {taken} taken from its memory into the log", layer.name);
        }
        if site.asked.outlive_server && config.promise != Promise::Always && cache.memory_bytes == 0 && !quiet
        {
            eprintln!(
                "dcd: \"{}\": there is no memory that outlives the server (a tmpfs on /dev/shm with room for twice the segment buffers), so \
                 each write waits for the log, and small writes are slow",
                layer.name
            );
        }
    }
}

/// Takes missing devices out of the file, if its arrays and mirrored logs can start without them.
fn leave_out(site: &mut Site, degraded: Option<Option<Nanos>>) -> Result<Vec<String>, Failure> {
    if let Some(Some(wait)) = degraded {
        return start::leave_out_after(site, Duration::from_nanos(wait.0));
    }
    site.asked.degraded_members |= degraded.is_some();
    site.asked.degraded_legs |= degraded.is_some();
    site.asked.degraded_disks |= degraded.is_some();
    let export = site.export.clone();
    start::leave_out(site, &[&export])
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

fn protect(quiet: bool) {
    let protection = protect_process();
    if quiet {
        return;
    }
    if hides_devices(Path::new("/")) {
        warnln!("dcd: /sys/dev/block is empty: {DEVICES_ARE_HIDDEN}");
    }
    for (what, needs, done) in [
        ("PR_SET_IO_FLUSHER", "CAP_SYS_RESOURCE", protection.io_flusher),
        ("locked memory", "CAP_IPC_LOCK", protection.locked_memory),
    ] {
        if let Err(error) = done {
            warnln!(
                "dcd: without {what} ({error}): a machine that is short of memory may hang. Run dcd with {needs}, which \
                 root has, unless a container takes it away"
            );
        }
    }
}

/// Tells what was recorded. Missing requests are reported even if `quiet` is set.
fn tell_recording(recording: &Recording, quiet: bool) {
    let path = recording.path.display();
    let (recorded, dropped) = (recording.recorded(), recording.dropped());
    match recording.error() {
        Some(error) => errorln!(
            "dcd: {error}: the recording ends here, with {recorded} requests; {dropped} requests are not in it"
        ),
        None if dropped > 0 => {
            warnln!("dcd: {path}: {dropped} requests are not in it, as it could not be written fast enough");
        }
        None => {}
    }
    if !quiet {
        eprintln!("dcd: {path}: {recorded} requests recorded");
    }
}

fn build(
    site: &Site,
    record: Option<&Path>,
    is_plain: bool,
    driver: &mut Driver,
) -> Result<(Stack, Served, Option<Recording>), Failure> {
    let mut opener = Opener::new(site, if is_plain { Purpose::Create } else { Purpose::Change });
    let clients = ForClients { record, overrun: Overrun::Drop };
    let built = site.build_metered(clients, &mut opener).map_err(|error| opener.failure(error))?;
    for device in opener.into_devices() {
        driver.add_device(device).map_err(failed)?;
    }
    admit_bare(site, &built.parts, &site.export)?;
    for choice in choices(site)? {
        // A sparse log may work for long: its lack of space is reported before its file system is full.
        if let Err(failure) = reserve_space(site, &built.parts, &choice.log) {
            warnln!("dcd: {failure}; the log fails when its file system is full");
        }
    }
    let cache = |layer: &LayerSpec| {
        let kind = match &layer.kind {
            LayerKind::LogCache { .. } => CacheKind::LogCache,
            LayerKind::Raid(_) => CacheKind::Array,
            LayerKind::Mirror(_) => CacheKind::Mirror,
            kind if kind.is_registered_cache() => CacheKind::WriteCache,
            _ => return None,
        };
        // Without its cache, a log of several legs is in the file alone.
        let layer_index = *built.parts.layers.get(&layer.name)?;
        Some(Cache { layer: layer_index, name: layer.name.clone(), kind })
    };
    let mut caches: Vec<Cache> = site.layers.iter().filter_map(cache).collect();
    // The host wants the upper layers first.
    caches.sort_by_key(|cache| std::cmp::Reverse(cache.layer));
    let mut host = StackHost::new(&site.export, built.parts.clone(), caches, RunningCaches::default());
    host.stack_file = std::path::absolute(&site.path).unwrap_or_else(|_| site.path.clone());
    // As it was read: a start may have left parts of it out.
    host.file = StackFile::parse(site.text(), &site.path).ok();
    let served = Served::new(host, left_by(site));
    Ok((built.stack, served, built.recording))
}

/// Refuses what clients could not reach before anything is changed: a start without a device records that. The directory of the image has
/// to exist; those of sockets are made.
pub fn check_front_ends(site: &Site) -> Result<(), Failure> {
    if site.serve.ublk.is_some() {
        ublk::available().map_err(failed)?;
    }
    let sockets = site.serve.nbd.iter().filter_map(|address| match address {
        Address::Unix(path) => Some(path),
        Address::Tcp(_) => None,
    });
    let of_machines = site.serve.vhost_user.iter();
    let checked = sockets.map(|it| (it, "nbd")).chain(of_machines.map(|it| (it, "vhost-user")));
    for (socket, of) in checked {
        if !socket_rights(site, of)?.has_others() {
            continue;
        }
        let is_private = |path: &&Path| fs::metadata(path).is_ok_and(|about| about.mode() & 0o011 == 0);
        if let Some(directory) = socket.ancestors().skip(1).find(is_private) {
            return Err(Failure::Failed(format!(
                "{}: \"{of}-socket-group\" and \"{of}-socket-mode\" let other users in, but {} is for its owner alone: name another directory \
                 in {of}, like unix:/run/dcd-{of}/{}, which is made so that they reach the socket",
                socket.display(),
                directory.display(),
                Path::new(socket.file_name().unwrap_or_default()).display()
            )));
        }
    }
    let Some(directory) = &site.serve.fuse else { return Ok(()) };
    match fs::symlink_metadata(directory) {
        Ok(about) if about.is_file() => Err(failed(FuseError::NotADirectory { path: directory.clone() })),
        _ => Ok(()),
    }
}

/// Returns the users who may connect to the sockets of `nbd` or `vhost-user`.
fn socket_rights(site: &Site, of: &str) -> Result<SocketRights, Failure> {
    let SocketAccess { mode, group } =
        if of == "nbd" { &site.serve.nbd_socket } else { &site.serve.vhost_user_socket };
    let number = |name: &String| match group_number(name) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(Failure::Failed(format!(
            "{}: \"{of}-socket-group\": this machine has no group \"{name}\": name one of \"getent group\"",
            site.path.display()
        ))),
        Err(error) => Err(Failure::io(format!("looking for the group \"{name}\""), error)),
    };
    Ok(SocketRights { mode: *mode, group: group.as_ref().map(number).transpose()? })
}

/// Lets clients in; returns the addresses.
fn listen(
    site: &Site,
    (caches, marks): (&[String], BackupMarks),
    stack: &Stack,
    driver: &mut Driver,
    tls: Option<Arc<ServerConfig>>,
    (promptly, changed): (bool, Option<&'static str>),
) -> Result<(Vec<String>, FrontEndSettings), Failure> {
    let disks: Vec<(usize, &str, Geometry)> = site
        .disks()
        .into_iter()
        .filter(|(_, name)| !site.is_missing(name))
        .map(|(disk, name)| (disk, name, stack.geometry(stack.disk(disk))))
        .collect();
    let mut places = Vec::new();
    if let Some(path) = &site.serve.control {
        listen_unix(driver, path, SocketRights::OWNER, || Box::new(ControlFactory))?;
    }
    if let Some(address) = &site.serve.metrics {
        let place = listen_at(driver, address, SocketRights::OWNER, || Box::new(MetricsFactory))?;
        places.push(format!("metrics {place}"));
    }
    // The sockets of all addresses share the memory of these exports for requests.
    let export = |(disk, name, geometry): &(usize, &str, Geometry)| match disk {
        0 => (0, site.serve.nbd_name.clone(), *geometry),
        _ => (*disk, (*name).to_owned(), *geometry),
    };
    let exports = NbdExports::of_disks(disks.iter().map(export));
    let exports = exports.outliving(outlives(site, site.serve.nbd_recovery)).with_marks(marks);
    let rights = socket_rights(site, "nbd")?;
    for address in &site.serve.nbd {
        let place = listen_at(driver, address, rights, || match (address, &tls) {
            (Address::Tcp(_), Some(tls)) => Box::new(NbdFactory::over_tls(exports.clone(), Arc::clone(tls))),
            _ => Box::new(NbdFactory::new(exports.clone())),
        })?;
        places.push(format!("nbd {place}"));
    }
    let off = (!site.serve.ublk_recovery).then(|| "ublk-recovery = false".to_owned());
    let lost = off.or_else(|| lost_with_server(site));
    let ublk_outlives = outlives(site, lost.is_none());
    let vhost_user = VhostUserOptions {
        rights: socket_rights(site, "vhost-user")?,
        outlives: outlives(site, true),
        promptly,
        changed,
        ..VhostUserOptions::default()
    };
    let caches = caches.to_vec();
    let settings = FrontEndSettings { caches, exports, promptly, ublk_outlives, vhost_user, lost };
    for (disk, name, geometry) in disks {
        let to_serve = DiskToServe { disk, name: name.to_owned(), geometry };
        let made = settings.make(site, &to_serve).map_err(Failure::Failed)?;
        places.extend(made.places);
        for front_end in made.front_ends {
            driver.add_front_end(front_end).map_err(failed)?;
        }
    }
    Ok((places, settings))
}

/// Reads the keys and certificates for TLS, if the stack has it. An expired certificate is only a warning: clients refuse it.
pub fn certificates(file: &StackFile) -> Result<Option<TlsServer>, Failure> {
    let Some(directory) = &file.serve.nbd_tls else { return Ok(None) };
    let clients = if file.serve.nbd_tls_anyone { TlsClients::Anyone } else { TlsClients::Signed };
    let tls = tls::server(directory, clients);
    tls.map(Some).map_err(|e| Failure::Failed(format!("\"nbd-tls\": {e}")))
}

/// Listens at an address, and returns it: the kernel may choose the port.
fn listen_at(
    driver: &mut Driver,
    address: &Address,
    rights: SocketRights,
    factory: impl Fn() -> Box<dyn SessionFactory>,
) -> Result<Address, Failure> {
    match address {
        Address::Unix(path) => listen_unix(driver, path, rights, factory).map(|()| address.clone()),
        Address::Tcp(wanted) => driver.listen_tcp(*wanted, factory()).map(Address::Tcp).map_err(failed),
    }
}

fn listen_unix(
    driver: &mut Driver,
    path: &Path,
    rights: SocketRights,
    factory: impl Fn() -> Box<dyn SessionFactory>,
) -> Result<(), Failure> {
    let listening = patiently(
        || driver.listen_unix(path, rights, factory()),
        |error| matches!(error, ListenError::InUse { .. }),
    );
    listening.map_err(failed)
}

/// Announces that the server is ready, for those who wait for it: a line on standard output, and a message to systemd.
fn announcement(file: &StackFile, mut places: Vec<String>, quiet: bool) -> Announce {
    let export = file.export.clone();
    Box::new(move |last: Vec<String>| {
        places.extend(last);
        let places = places.join(", ");
        tell_ready(&places);
        match quiet {
            true => messages::say(format_args!("ready\n")),
            false => messages::say(format_args!("{export}: {places}\n")),
        }
    })
}

/// Tells which answered requests survive a killed server, for clients that may go on.
fn outlives(site: &Site, may_go_on: bool) -> Outlives {
    match may_go_on {
        false => Outlives::No,
        true if site.keeps_answered(&site.asked) => Outlives::Answered,
        true => Outlives::Durable,
    }
}

/// Refuses to serve the disk to every user of the machine, unless the stack file allows that.
pub fn admit_local_users(file: &StackFile) -> Result<(), Failure> {
    let Some(address) = file.serve.open_to_local_users() else { return Ok(()) };
    Err(Failure::refused(
        format!(
            "{}: nbd = \"tcp:{address}\" lets each user of this machine, and each container on its network, read and write the disk",
            file.path.display()
        ),
        "use a unix socket (nbd = \"unix:PATH\"), which its owner alone can open, or TLS (nbd-tls = \"DIR\"); or accept that with \
         nbd-allow-local-users = true",
    ))
}

/// Refuses clients that go on after a kill of the server, if that loses what it has answered.
fn admit_recovery(file: &StackFile) -> Result<(), Failure> {
    let Some(why) = lost_with_server(file) else { return Ok(()) };
    let (clients, instead) = match (file.serve.nbd_recovery, &file.serve.vhost_user) {
        (true, _) => ("with nbd-recovery = true clients", "set nbd-recovery = false"),
        (false, Some(_)) => ("machines on vhost-user", "take vhost-user out, and let machines use nbd"),
        (false, None) => return Ok(()),
    };
    Err(Failure::Failed(format!(
        "{}: {why}, so answered writes are lost when the server is killed, but {clients} would go on regardless: {instead}, or change \
         that layer",
        file.path.display()
    )))
}

/// Returns the reason if a killed server may lose answered writes: its device must then not outlive it.
fn lost_with_server(file: &StackFile) -> Option<String> {
    let layers = file.non_volatile_layers();
    Some(format!("layer \"{}\" answers from RAM", layers.first()?))
}

/// Describes what an unclean stop means for the data.
fn left_by(file: &StackFile) -> &'static str {
    if !file.non_volatile_layers().is_empty() {
        return "Data that is only in RAM is lost, although clients have flushed it";
    }
    match file.log_caches().next() {
        Some(_) => "Flushed data is in the log, and the next start recovers it",
        None => "Data written since the last successful flush may be lost",
    }
}
