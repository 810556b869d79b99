//! Data disks that are added and removed while the server serves the others. One disk changes at a time.
//!
//! | an addition | a crash behind it leaves |
//! |---|---|
//! | opening: the device is opened, on a thread | nothing |
//! | recording: its attachment record is made, of a complete disk | a record of a disk that the log does not have: the command is repeated |
//! | adding: the log takes the disk | a log with a disk that the stack file does not have: a start is refused, the command is repeated |
//! | starting: its record calls the disk incomplete | the same |
//! | making: its front-ends are made, on a thread | the same, until the command has changed the stack file |
//!
//! | a removal | a crash behind it leaves |
//! |---|---|
//! | looking: tables of the system tell who has the disk; new clients do not find it | the disk |
//! | ending: its front-ends end | the disk |
//! | removing: its data is written back, and the log forgets the disk | at last a log without a disk that the stack file has: as above |
//! | forgetting: its attachment record is removed | the same, until the command has changed the stack file |

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use dcd_engine::log_cache::DISKS_MAX;
use dcd_engine::{
    Control, DeviceIndex, DiskChangeError, DiskCommand, Extent, Geometry, LayerIndex, Lba, LogCacheStatus,
    Nanos, Port, Stack, Target,
};
use dcd_io::{CallId, Context, Device, DeviceError, DeviceSpec, FileSpec, FrontEndNews, OpenId, UnknownPeer};
use dcd_stack::{DeviceSource, LayerKind, LayerStatus, RECORD, StackFile};
use serde_json::{Value, json};

use crate::session::devices::remote_spec;
use crate::session::random::random_uuid;
use crate::session::running::{DiskToRecord, Note};
use crate::session::serving::front_ends::{DiskToServe, FrontEndSettings, MadeFrontEnds};
use crate::session::serving::records::NoteKind;
use crate::session::serving::server::Served;

/// Interval of the progress reports of a removal.
const PROGRESS_INTERVAL: Nanos = Nanos::from_millis(250);

/// Port of a log cache that leads to a data disk.
const fn data_port(disk: usize) -> Port {
    Port(1 + disk)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum DiskStep {
    Opening(OpenId),
    Recording,
    Adding,
    Starting,
    Making,
    Looking,
    Ending,
    Removing,
    Forgetting,
}

/// A disk that comes or goes.
struct DiskTask {
    call: CallId,
    step: DiskStep,
    layer: LayerIndex,
    cache: String,
    /// True for a removal.
    leaves: bool,
    name: String,
    path: PathBuf,
    disk: usize,
    data_uuid: [u8; 16],
    device: Option<DeviceIndex>,
    /// Places of its front-ends, and the number of those that are not ready.
    places: Vec<String>,
    slow: usize,
    /// Reason why a removal has failed: the front-ends are made again.
    failed: Option<String>,
    told: Nanos,
}

/// Result of work on a thread.
enum DiskNews {
    Peers(Vec<String>),
    Made(Result<MadeFrontEnds, String>),
}

/// See the module's documentation.
pub struct DiskChanges {
    pub settings: FrontEndSettings,
    task: Option<Box<DiskTask>>,
    news: (mpsc::Sender<DiskNews>, mpsc::Receiver<DiskNews>),
}

impl Default for DiskChanges {
    fn default() -> DiskChanges {
        DiskChanges { settings: FrontEndSettings::default(), task: None, news: mpsc::channel() }
    }
}

impl DiskChanges {
    /// Returns when the progress of a removal is to be told.
    pub fn next_deadline(&self) -> Option<Nanos> {
        let removes = |task: &&DiskTask| task.step == DiskStep::Removing;
        self.task.as_deref().filter(removes).map(|task| task.told + PROGRESS_INTERVAL)
    }
}

impl Served {
    /// Takes a call about the disks: `{"command": "look"}`, `"add"` with `"name"` and `"path"`, or `"remove"` with `"name"`.
    pub fn disk_call(&mut self, call: CallId, args: &Value, context: &mut Context<'_>) {
        let begun = match args["command"].as_str().unwrap_or("") {
            "look" => self.look_at_disks(call, context),
            "add" => self.add_disk(call, args, context),
            "remove" => self.remove_disk(call, args, context),
            other => Err(format!("\"{other}\" is no command for disks: it has look, add and remove")),
        };
        if let Err(why) = begun {
            self.host.refuse(call, why);
        }
    }

    fn look_at_disks(&mut self, call: CallId, context: &mut Context<'_>) -> Result<(), String> {
        let (_, _, file) = self.cache_of_disks()?;
        let names: Vec<&str> = file.served_disks();
        let paths: Vec<Option<&Path>> = names.iter().map(|name| file.path_below(name)).collect();
        let cache = self.disk_changes.settings.caches.first();
        context.answer(call, json!({ "cache": cache, "disks": names, "paths": paths }), true);
        Ok(())
    }

    /// The cache of the stack, its layer, and the stack file.
    fn cache_of_disks(&self) -> Result<(String, LayerIndex, &StackFile), String> {
        if self.is_stopping() {
            return Err("the server is stopping".to_owned());
        }
        if self.disk_changes.task.is_some() {
            return Err("another disk is being added or removed: repeat this when that has ended".to_owned());
        }
        let file = self.host.file.as_ref().ok_or("the stack is in no file")?;
        let of_disks = |kind: &LayerKind| matches!(kind, LayerKind::LogCache { .. });
        let cache = file.layer(&file.export).filter(|layer| of_disks(&layer.kind));
        let cache = cache.ok_or_else(|| format!("the export \"{}\" is no log cache", file.export))?;
        let layer = self.host.parts.layers.get(&cache.name).ok_or("the cache is not served")?;
        Ok((cache.name.clone(), *layer, file))
    }

    fn add_disk(&mut self, call: CallId, args: &Value, context: &mut Context<'_>) -> Result<(), String> {
        let text = |field: &str| args[field].as_str().ok_or_else(|| format!("\"{field}\" is missing"));
        let (name, path) = (text("name")?.to_owned(), PathBuf::from(text("path")?));
        let (cache, layer, file) = self.cache_of_disks()?;
        if self.host.parts.layers.contains_key(RECORD) {
            return Err("the server records its requests (--record), which is for a single disk".to_owned());
        }
        let disk = file.next_disk();
        if disk == DISKS_MAX {
            return Err(format!("a log has at most {DISKS_MAX} data disks"));
        }
        let after = StackFile::parse(&file.with_disk(disk, &name, &path)?, &file.path);
        after.map_err(|error| error.to_string())?;
        let data_uuid = random_uuid().map_err(|error| error.to_string())?;
        let spec = match DeviceSource::of(&path).map_err(|e| e.to_string())? {
            DeviceSource::Remote(remote) => remote_spec(&remote, false),
            _ => DeviceSpec::File(FileSpec::new(&path)),
        };
        let open = context.open_device(spec).map_err(|e| e.to_string())?;
        let task = DiskTask {
            step: DiskStep::Opening(open),
            leaves: false,
            path,
            data_uuid,
            ..DiskTask::removal(call, (layer, cache), (name, disk))
        };
        self.begin_disk(task, context);
        Ok(())
    }

    /// Begins a change. It may take long: the first answer says that it has begun.
    fn begin_disk(&mut self, task: DiskTask, context: &mut Context<'_>) {
        context.answer(task.call, json!({}), false);
        self.disk_changes.task = Some(Box::new(task));
    }

    /// Takes a device that was opened; false if it is not for a disk.
    pub fn disk_opened(
        &mut self,
        open: OpenId,
        device: Result<Device, DeviceError>,
        context: &mut Context<'_>,
    ) -> Option<Result<Device, DeviceError>> {
        let is_it = |task: &DiskTask| task.step == DiskStep::Opening(open);
        if !self.disk_changes.task.as_deref().is_some_and(is_it) {
            return Some(device);
        }
        let added = device.and_then(|device| context.add_device(device));
        match added {
            Ok(device) => {
                let Some(task) = &mut self.disk_changes.task else { return None };
                (task.device, task.step) = (Some(device), DiskStep::Recording);
                let sectors = context.stack().geometry(Target::Device(device)).sectors;
                let new = DiskToRecord {
                    disk: task.disk,
                    path: task.path.clone(),
                    extent: Extent::new(Lba(0), sectors),
                    data_uuid: task.data_uuid,
                };
                self.host.parts.devices.insert(task.name.clone(), device);
                self.host.records.note(&task.cache, Note::Joining(Box::new(new)));
                self.take_disk_notes(context);
            }
            Err(error) => self.end_disk(Err(error.to_string()), context),
        }
        None
    }

    fn remove_disk(&mut self, call: CallId, args: &Value, context: &mut Context<'_>) -> Result<(), String> {
        let name = args["name"].as_str().ok_or("\"name\" is missing")?.to_owned();
        let (cache, layer, file) = self.cache_of_disks()?;
        let place = file.served_disks().iter().position(|known| *known == name);
        let disk = place.filter(|disk| *disk > 0 && !file.is_free_place(&name));
        let disk = disk
            .ok_or_else(|| format!("\"{name}\" is no data disk of the log after the first, which stays"))?;
        file.without_disk(disk)?;
        let device = self.host.parts.devices.get(&name).copied();
        let task = DiskTask { device, ..DiskTask::removal(call, (layer, cache), (name, disk)) };
        self.begin_disk(task, context);
        // The log has forgotten it, if its record could not be removed.
        if own_status(context.stack(), layer, disk).is_none_or(|own| own == 0) {
            self.forget_disk(context);
            return Ok(());
        }
        self.disk_changes.settings.exports.remove_disk(disk);
        let peers: Vec<UnknownPeer> = context.peers().into_iter().filter(|peer| peer.disk == disk).collect();
        let look_up = move || {
            let peers = peers.into_iter().filter_map(UnknownPeer::look_up);
            DiskNews::Peers(peers.map(|peer| peer.who).collect())
        };
        if !self.on_thread(look_up, context) {
            self.fail_removal("no thread can be started".to_owned(), context);
        }
        Ok(())
    }

    /// Does work on a thread; false if there is none.
    fn on_thread(&self, work: impl FnOnce() -> DiskNews + Send + 'static, context: &Context<'_>) -> bool {
        let (tell, waker) = (self.disk_changes.news.0.clone(), context.waker());
        let works = move || {
            // Nobody waits any more where this fails.
            let _ = tell.send(work());
            waker.wake();
        };
        thread::Builder::new().name("dcd-disk".to_owned()).spawn(works).is_ok()
    }

    /// Takes the results of threads, and tells the progress.
    pub fn wake_disks(&mut self, context: &mut Context<'_>) {
        while let Ok(news) = self.disk_changes.news.1.try_recv() {
            match news {
                DiskNews::Peers(peers) => self.peers_of_disk(&peers, context),
                DiskNews::Made(made) => self.front_ends_made(made, context),
            }
        }
        self.take_disk_notes(context);
        let now = context.now();
        if let Some(task) = self.disk_changes.task.as_deref_mut()
            && task.step == DiskStep::Removing
            && now >= task.told + PROGRESS_INTERVAL
        {
            task.told = now;
            let status = LayerStatus::of(context.stack(), task.layer, now);
            let dirty =
                status.log_cache().and_then(|cache| cache.disks.get(task.disk)).map(|own| own.dirty_bytes);
            context.answer(task.call, json!({ "dirty_bytes": dirty }), false);
        }
    }

    fn peers_of_disk(&mut self, peers: &[String], context: &mut Context<'_>) {
        let Some(task) = self.disk_changes.task.as_deref_mut() else { return };
        if task.step != DiskStep::Looking {
            return;
        }
        if !peers.is_empty() {
            let why = format!("\"{}\" is in use: {}", task.name, peers.join("; "));
            self.offer(context);
            return self.end_disk(Err(why), context);
        }
        task.step = DiskStep::Ending;
        if !context.end_front_ends_of(task.disk) {
            self.begin_removing(context);
        }
    }

    /// Takes the end of a disk's front-ends.
    pub fn disk_front_ends_ended(
        &mut self,
        disk: usize,
        result: Result<(), String>,
        context: &mut Context<'_>,
    ) {
        let Some(task) = self.disk_changes.task.as_deref() else { return };
        if task.step != DiskStep::Ending || task.disk != disk {
            return;
        }
        match result {
            Ok(()) => self.begin_removing(context),
            Err(why) => {
                let why = format!("\"{}\": {why}", task.name);
                self.offer(context);
                self.end_disk(Err(why), context);
            }
        }
    }

    fn begin_removing(&mut self, context: &mut Context<'_>) {
        let Some(task) = self.disk_changes.task.as_deref_mut() else { return };
        task.step = DiskStep::Removing;
        let (layer, command) = (task.layer, DiskCommand::Remove { disk: task.disk });
        context.control(layer, Control::Disk(command));
    }

    /// Lets new clients of NBD find the disk.
    fn offer(&self, context: &Context<'_>) {
        let Some(task) = self.disk_changes.task.as_deref() else { return };
        let geometry = geometry(context.stack(), task.layer, task.disk);
        self.disk_changes.settings.exports.add_disk(task.disk, &task.name, geometry);
    }

    /// Takes the answer of the log.
    pub fn disk_answered(&mut self, answer: Result<(), DiskChangeError>, context: &mut Context<'_>) {
        let Some(task) = self.disk_changes.task.as_deref_mut() else { return };
        match (task.step, answer) {
            (DiskStep::Adding, Ok(())) => {
                let (layer, disk) = (task.layer, task.disk);
                task.step = DiskStep::Starting;
                context.stack_mut().disk_changed(layer, disk);
                let now = context.now();
                let status = LayerStatus::of(context.stack(), layer, now).into_log_cache();
                let epoch = status.map_or(0, |status| status.epoch);
                let cache = task.cache.clone();
                let (name, path) = (task.name.clone(), task.path.clone());
                self.change_file(|file| file.with_disk(disk, &name, &path));
                self.host.records.note(&cache, Note::Joined { disk, epoch });
                self.take_disk_notes(context);
            }
            (DiskStep::Adding, Err(why)) => {
                // The log may have it where it has failed, or the server stops: then the record stays, and the command is repeated.
                let has_it = matches!(why, DiskChangeError::Stopping | DiskChangeError::LogFailed);
                let (cache, disk) = (task.cache.clone(), task.disk);
                if !has_it {
                    self.host.records.note(&cache, Note::Left { disk });
                }
                self.end_disk(Err(why.to_string()), context);
            }
            (DiskStep::Removing, Ok(())) => {
                let (layer, disk) = (task.layer, task.disk);
                context.stack_mut().disk_changed(layer, disk);
                self.forget_disk(context);
            }
            (DiskStep::Removing, Err(why)) => self.fail_removal(why.to_string(), context),
            _ => {}
        }
        self.after(context);
    }

    fn forget_disk(&mut self, context: &mut Context<'_>) {
        let Some(task) = self.disk_changes.task.as_deref_mut() else { return };
        task.step = DiskStep::Forgetting;
        let (cache, disk) = (task.cache.clone(), task.disk);
        self.host.records.note(&cache, Note::Left { disk });
        self.take_disk_notes(context);
    }

    /// Makes the front-ends of a disk that stays.
    fn fail_removal(&mut self, why: String, context: &mut Context<'_>) {
        self.offer(context);
        if let Some(task) = self.disk_changes.task.as_deref_mut() {
            task.failed = Some(why);
        }
        if self.is_stopping() {
            return self.end_disk(Ok(()), context);
        }
        self.make_front_ends(context);
    }

    /// Takes the results of notes in the records.
    fn take_disk_notes(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        self.host.take_noted(now, context.stack_mut());
        while let Some((kind, result)) = self.host.disk_notes.pop_front() {
            let Some(task) = self.disk_changes.task.as_deref_mut() else { continue };
            match (kind, task.step, result) {
                (NoteKind::Joining, DiskStep::Recording, Ok(_)) => {
                    let Some(device) = task.device else { continue };
                    task.step = DiskStep::Adding;
                    let (disk, data_uuid, layer) = (task.disk, task.data_uuid, task.layer);
                    let geometry = context.stack().geometry(Target::Device(device));
                    context.stack_mut().connect(layer, data_port(disk), device);
                    let command = DiskCommand::Add { disk, data_uuid, geometry };
                    context.control(layer, Control::Disk(command));
                }
                (NoteKind::Joined, DiskStep::Starting, Ok(_)) => {
                    self.offer(context);
                    self.make_front_ends(context);
                }
                // The record calls the disk complete, so nothing may be written to its cache.
                (NoteKind::Joined, DiskStep::Starting, Err(why)) => {
                    task.failed = Some(why);
                    self.end_disk(Ok(()), context);
                }
                (NoteKind::Left, DiskStep::Forgetting, result) => {
                    let ended = result.map(drop).map_err(|why| format!("{why}; repeat the command"));
                    let disk = task.disk;
                    if ended.is_ok() {
                        self.marks.iter_mut().for_each(|keeper| keeper.leave(disk));
                        self.change_file(|file| file.without_disk(disk));
                    }
                    self.end_disk(ended, context);
                }
                (NoteKind::Joining, DiskStep::Recording, Err(why)) => self.end_disk(Err(why), context),
                _ => {}
            }
        }
    }

    /// Changes the stack file as the server knows it. Settings may have changed since the task began.
    fn change_file(&mut self, edit: impl FnOnce(&StackFile) -> Result<String, String>) {
        let Some(file) = &self.host.file else { return };
        let edited =
            edit(file).and_then(|text| StackFile::parse(&text, &file.path).map_err(|e| e.to_string()));
        match edited {
            Ok(edited) => self.host.file = Some(edited),
            Err(why) => warnln!("dcd: this server does not know its disks any more: {why}"),
        }
    }

    /// Begins to make the front-ends of the disk.
    fn make_front_ends(&mut self, context: &mut Context<'_>) {
        let Some(task) = self.disk_changes.task.as_deref_mut() else { return };
        task.step = DiskStep::Making;
        let geometry = geometry(context.stack(), task.layer, task.disk);
        let to_serve = DiskToServe { disk: task.disk, name: task.name.clone(), geometry };
        let Some(file) = &self.host.file else { return };
        let (text, path) = (file.text().to_owned(), file.path.clone());
        for address in &file.serve.nbd {
            task.places.push(format!("export \"{}\" of nbd {address}", task.name));
        }
        let settings = self.disk_changes.settings.clone();
        let make = move || {
            let file = StackFile::parse(&text, &path).map_err(|error| error.to_string());
            DiskNews::Made(file.and_then(|file| settings.make(&file, &to_serve)))
        };
        if !self.on_thread(make, context) {
            self.front_ends_made(Err("no thread can be started".to_owned()), context);
        }
    }

    fn front_ends_made(&mut self, made: Result<MadeFrontEnds, String>, context: &mut Context<'_>) {
        let Some(task) = self.disk_changes.task.as_deref_mut() else { return };
        match made {
            Ok(MadeFrontEnds { front_ends, places, nbd_backend, slow }) => {
                task.places.extend(places);
                self.host.nbd_backends.extend(nbd_backend.map(|backend| (task.disk, backend)));
                task.slow = slow;
                for front_end in front_ends {
                    if let Err(error) = context.add_front_end(front_end) {
                        task.failed.get_or_insert(error.to_string());
                        task.slow = 0;
                    }
                }
            }
            Err(why) => task.failed = Some(why),
        }
        self.end_making(context);
    }

    /// Takes news of a front-end; none if it is of the disk that is being added.
    pub fn news_of_disk(
        &mut self,
        disk: usize,
        news: FrontEndNews,
        context: &mut Context<'_>,
    ) -> Option<FrontEndNews> {
        let is_it = |task: &&mut DiskTask| task.step == DiskStep::Making && task.disk == disk;
        let Some(task) = self.disk_changes.task.as_deref_mut().filter(is_it) else {
            return Some(news);
        };
        match news {
            FrontEndNews::Ready { place, but } => {
                but.iter().for_each(|what| warnln!("dcd: {what}"));
                task.places.push(place);
            }
            FrontEndNews::Failed(why) => task.failed = Some(why),
            FrontEndNews::Warning(what) => {
                warnln!("dcd: {what}");
                return None;
            }
        }
        task.slow = task.slow.saturating_sub(1);
        self.end_making(context);
        None
    }

    /// Ends an addition, or a removal that has failed, once the front-ends are ready.
    fn end_making(&mut self, context: &mut Context<'_>) {
        let is_ready = self.disk_changes.task.as_ref().is_some_and(|task| task.slow == 0);
        if is_ready {
            self.end_disk(Ok(()), context);
        }
    }

    /// Answers the call, and closes a device that is not used.
    fn end_disk(&mut self, result: Result<(), String>, context: &mut Context<'_>) {
        let Some(task) = self.disk_changes.task.take() else { return };
        let DiskTask { call, step, leaves, name, disk, device, places, failed, .. } = *task;
        let is_gone = step == DiskStep::Forgetting && result.is_ok()
            || matches!(step, DiskStep::Recording | DiskStep::Adding);
        if let Some(device) = device.filter(|_| is_gone) {
            self.host.parts.devices.remove(&name);
            self.host.close(name.clone(), device);
        }
        match (result, failed) {
            (Ok(()), None) => {
                let done = if leaves { "removed" } else { "added" };
                self.host.tell(format!("data disk \"{name}\" was {done}"));
                self.host.answer(call, json!({ "disk": disk, "places": places }));
            }
            // The log has the disk.
            (Ok(()), Some(why)) if !leaves => {
                self.host.answer(call, json!({ "disk": disk, "places": places, "trouble": why }));
            }
            (Ok(()), Some(why)) | (Err(why), _) => self.host.refuse(call, why),
        }
        self.after(context);
    }
}

impl DiskTask {
    fn removal(
        call: CallId,
        (layer, cache): (LayerIndex, String),
        (name, disk): (String, usize),
    ) -> DiskTask {
        DiskTask {
            call,
            step: DiskStep::Looking,
            layer,
            cache,
            leaves: true,
            name,
            path: PathBuf::new(),
            disk,
            data_uuid: [0; 16],
            device: None,
            places: Vec::new(),
            slow: 0,
            failed: None,
            told: Nanos::ZERO,
        }
    }
}

/// Geometry of a data disk, as its clients see it.
fn geometry(stack: &Stack, layer: LayerIndex, disk: usize) -> Geometry {
    stack.geometry(Target::Disk(layer, disk))
}

/// Size of a data disk of a log in bytes; none if it has none such.
fn own_status(stack: &Stack, layer: LayerIndex, disk: usize) -> Option<u64> {
    let status = LayerStatus::of(stack, layer, Nanos::ZERO);
    let cache: &LogCacheStatus = status.log_cache()?;
    cache.disks.get(disk).map(|own| own.size_bytes)
}
