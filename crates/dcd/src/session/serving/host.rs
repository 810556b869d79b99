//! The host of a served stack: answers control calls, destages dirty data on demand, stops cleanly, and keeps the
//! attachment records. It knows nothing of sockets; the driver tells it what happened and asks it what to do.
//!
//! Draining and stopping go through the caches and arrays one after the other, the upper ones first, as what they write back may
//! land in a lower one.
//!
//! | the host is | until                                                            |
//! |-------------|------------------------------------------------------------------|
//! | serving     | it is told to stop: stopping; where a log is lost by the stop, draining |
//! | draining    | each layer has written back what it could: stopping              |
//! | stopping    | each layer has reported that it stopped, or could not: stopped   |

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;

use dcd_engine::layers::trace::TraceStatus;
use dcd_engine::log_cache::{WriteRoute, WritesState};
use dcd_engine::mirror::{LegState, LegStatus, MirrorStatus};
use dcd_engine::raid::{ArrayState, ArrayStatus, members_named};
use dcd_engine::{
    ArrayCommand, CommandError, Control, DeviceIndex, LayerIndex, LayerSettings, LogCacheState,
    LogCacheStatus, Nanos, Port, Report, Seat, Stack, Target, Unfinished,
};
use dcd_io::{CallId, ClientId};
use dcd_serve::fuse::IMAGE_NAME;
use dcd_serve::ublk::UblkStatus;
use dcd_stack::{DestageWindow, HumanBytes, LayerKind, LayerSpec, LayerStatus, METER, Parts, StackFile};
use jiff::ZonedDateTime;
use serde_json::{Value, json};

use crate::advice::{Advised, advise};
use crate::cli::VERSION;
use crate::messages::Priority;
use crate::session::record::RecordError;
use crate::session::running::{Note, RunningCaches, has_read_out, is_complete, log_failed_text};
use crate::session::serving::front_ends::own_path;
use crate::session::serving::metrics::openmetrics;
use crate::session::serving::records::{NoteKind, Records};
use crate::session::serving::status::{
    DeviceState, DeviceStatus, FLUSH_ADVICE, HeldBy, ServedDisk, ServerStatus, SilentDevice, WritebackStatus,
    accepted_damage, destage_trouble, disk_trouble, flush_trouble, leg_name, legs_text, lost_text,
    state_word,
};
use crate::session::serving::trend::{Amounts, Trends};
use crate::session::serving::windows::{LocalClock, is_open, next_change};

/// Port of a log cache that leads to its log.
const LOG_PORT: usize = 0;
/// Interval of the progress reports of a flush.
const PROGRESS_INTERVAL: Nanos = Nanos::from_millis(250);
/// Polling interval for changes of arrays and caches.
const WATCH_INTERVAL: Nanos = Nanos::from_secs(2);
/// Time after which a drain before a stop is tried again.
const DRAINS_AGAIN: Nanos = Nanos::from_secs(1);

/// An answer to a control call; the last has `done`.
#[derive(Debug, PartialEq)]
pub struct ControlAnswer {
    pub to: CallId,
    pub body: Value,
    pub done: bool,
}

/// A layer that may hold dirty data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    LogCache,
    /// The stripe cache of an array.
    Array,
    /// A mirrored log. The mirror has no cache, but legs that come and go.
    Mirror,
    WriteCache,
}

impl CacheKind {
    const fn words(self) -> &'static str {
        match self {
            CacheKind::LogCache => "log cache",
            CacheKind::Array => "array",
            CacheKind::Mirror => "log",
            CacheKind::WriteCache => "write cache",
        }
    }
}

/// A layer that is served, and drained and stopped by the host.
pub struct Cache {
    pub name: String,
    pub layer: LayerIndex,
    pub kind: CacheKind,
}

/// Text for messages: the RAM of a layer that answers flushes from it.
pub const RAM_LOST: &str = "RAM, lost with the process";

/// A device that an array is to have as a spare, and that the server has not opened.
pub struct Newcomer {
    pub layer: LayerIndex,
    pub name: String,
    pub path: PathBuf,
    pub seat: Seat,
}

/// A newcomer whose device is open, with the array's port that leads to it. `id`: a random number.
pub struct GivenDevice {
    pub newcomer: Newcomer,
    pub device: DeviceIndex,
    pub port: Port,
    pub id: u64,
}

/// A control call that waits for the answer of an array.
struct ArrayCall {
    layer: LayerIndex,
    caller: CallId,
    /// The device to close then, and the answer (success or not) that closes it.
    closes: Option<(String, bool)>,
    /// Text for the administrator about a success.
    news: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum HostPhase {
    Serving,
    /// Waiting for the cache at this place to write everything back, before a stop that loses its log.
    Draining(usize),
    /// Waiting for the log cache at this place to stop.
    Stopping(usize),
    Stopped,
}

/// A flush: the calls that wait for it, and the cache that is being drained.
struct Flushing {
    callers: Vec<CallId>,
    cache: usize,
    reported: Nanos,
    /// Number of bytes that were destaged before the flush.
    destaged_bytes: u64,
    /// True if it goes on without a caller.
    in_background: bool,
}

/// See the module's documentation.
pub struct StackHost {
    export: String,
    pub parts: Parts,
    /// The upper ones first.
    caches: Vec<Cache>,
    pub records: Records,
    phase: HostPhase,
    flushing: Option<Flushing>,
    /// Time when a drain before a stop is tried again, as it has left something for a disk.
    drains_again: Option<Nanos>,
    /// See [`StackHost::left_at_stop`].
    left: Vec<String>,
    /// Calls that wait for the answer of an array, in order of arrival.
    array_calls: VecDeque<ArrayCall>,
    /// Results of notes about disks that come and go.
    pub disk_notes: VecDeque<(NoteKind, Result<String, String>)>,
    /// Devices that no layer uses any more.
    closing: Vec<(String, DeviceIndex)>,
    answers: VecDeque<ControlAnswer>,
    /// Failures to report to the administrator; a stop with any of them is not clean.
    troubles: Vec<String>,
    /// Conditions of `caches` at the last look, and the time of that look.
    conditions: Vec<LayerCondition>,
    watched: Option<Nanos>,
    /// Caches whose log has failed, while their record cannot be written.
    unrecorded: Vec<usize>,
    /// Caches that are to write back again, at their places, with their settings. These apply once the records call the data disks incomplete.
    leaving: BTreeMap<usize, LayerSettings>,
    /// Time of the last look that a layer's report has caused.
    noticed: Option<Nanos>,
    /// Recordings that have ended early.
    ended_recordings: BTreeSet<String>,
    /// Changes to report to the administrator.
    news: Vec<(Priority, String)>,
    /// Devices that do not answer, and all that are open, as the driver knows them.
    pub silent: Vec<SilentDevice>,
    pub devices: Vec<DeviceStatus>,
    /// Devices that a flush may wait for, described.
    pub owing: Vec<String>,
    trends: Trends,
    /// An administrator holds write-back.
    paused: bool,
    /// Log caches that were told to hold destaging back.
    held: BTreeSet<LayerIndex>,
    pub clock: LocalClock,
    /// The stack file.
    pub stack_file: PathBuf,
    /// Content of the stack file at the start, with the settings that were changed since; none for a stack that is in no file.
    pub file: Option<StackFile>,
    /// The devices of the kernel, as the driver knows them, by the number of the disk.
    pub ublk: BTreeMap<usize, UblkStatus>,
    /// Identifiers of this server in devices of the kernel's NBD client, by the number of the disk.
    pub nbd_backends: BTreeMap<usize, String>,
}

/// State of a cache or array without trouble.
const GOOD: &str = "good";

/// State of an array or a log cache that is reported to the administrator unasked.
struct LayerCondition {
    /// State, missing members, and losses; of a log cache, also what prevents destaging.
    state: String,
    /// Data is lost, or one more failure may lose data: the alert rules call that critical.
    is_failure: bool,
    advice: Vec<String>,
}

impl Default for LayerCondition {
    fn default() -> LayerCondition {
        LayerCondition { state: GOOD.to_owned(), is_failure: false, advice: Vec::new() }
    }
}

impl LayerCondition {
    /// Judges a log cache. A data disk that fails destaging is reported, as clients notice that only when the log is full.
    fn of_log_cache(cache: &LogCacheStatus) -> LayerCondition {
        let trouble = destage_trouble(cache)
            .map(|trouble| format!("{trouble}; it stays in the log, and writing it back is tried again"));
        let flush = flush_trouble(cache);
        let advice = flush.iter().map(|_| FLUSH_ADVICE.to_owned()).collect();
        let dead = (cache.state == LogCacheState::LogFailed)
            .then(|| "the log device failed, and writes go to the data disk".to_owned());
        let lost = dead.into_iter().chain(lost_text(cache.lost_blocks)).chain(accepted_damage(cache));
        let wrong: Vec<String> = lost.chain(trouble).chain(flush).collect();
        let state = if wrong.is_empty() { GOOD.to_owned() } else { wrong.join(", and ") };
        LayerCondition { is_failure: !wrong.is_empty(), state, advice }
    }

    fn of_mirror(mut mirror: MirrorStatus) -> LayerCondition {
        // Progress is no change to report.
        mirror.legs.iter_mut().for_each(|leg| leg.filled_bytes = 0);
        let state = if mirror.is_good() { GOOD.to_owned() } else { legs_text(&mirror) };
        let lost = mirror.legs.iter().filter(|leg| leg.lost_writes).map(|leg| {
            format!(
                "leg {} had lost writes that its device had reported as durable, and is filled again: do not trust that device, or its \
                 write cache, until you know why",
                leg_name(leg)
            )
        });
        let has_failed = mirror.legs.iter().any(|leg| leg.standing == Some(LegState::Failed));
        LayerCondition { state, is_failure: mirror.failed || has_failed, advice: lost.collect() }
    }

    fn of_array(array: &ArrayStatus) -> LayerCondition {
        let without = match array.failed_members.as_slice() {
            [] => String::new(),
            failed => format!(", without {}", members_named(failed)),
        };
        let lost = lost_text(array.blocks_lost()).map(|lost| format!(", {lost}")).unwrap_or_default();
        let advice = array.notes.iter().map(Advised::told).collect();
        let state = format!("{}{without}{lost}", state_word(array));
        let is_without = array.failed_members.iter().any(|role| array.rebuilding_member != Some(*role));
        LayerCondition { state, is_failure: is_without || array.blocks_lost() > 0, advice }
    }
}

impl StackHost {
    /// `caches`: the upper ones first.
    pub fn new(export: &str, parts: Parts, caches: Vec<Cache>, records: RunningCaches) -> StackHost {
        StackHost {
            export: export.to_owned(),
            parts,
            caches,
            records: Records::new(records),
            phase: HostPhase::Serving,
            flushing: None,
            drains_again: None,
            left: Vec::new(),
            array_calls: VecDeque::new(),
            disk_notes: VecDeque::new(),
            closing: Vec::new(),
            answers: VecDeque::new(),
            troubles: Vec::new(),
            conditions: Vec::new(),
            watched: None,
            unrecorded: Vec::new(),
            leaving: BTreeMap::new(),
            noticed: None,
            ended_recordings: BTreeSet::new(),
            news: Vec::new(),
            silent: Vec::new(),
            owing: Vec::new(),
            devices: Vec::new(),
            trends: Trends::default(),
            paused: false,
            held: BTreeSet::new(),
            clock: LocalClock::default(),
            stack_file: PathBuf::new(),
            file: None,
            ublk: BTreeMap::new(),
            nbd_backends: BTreeMap::new(),
        }
    }

    pub fn is_stopped(&self) -> bool {
        self.phase == HostPhase::Stopped
    }

    /// Takes the failures so far.
    pub fn take_troubles(&mut self) -> Vec<String> {
        std::mem::take(&mut self.troubles)
    }

    /// Takes the changes so far.
    pub fn take_news(&mut self) -> Vec<(Priority, String)> {
        std::mem::take(&mut self.news)
    }

    /// Takes the devices that are to be closed, with their names.
    pub fn take_closing(&mut self) -> Vec<(String, DeviceIndex)> {
        std::mem::take(&mut self.closing)
    }

    /// A device as the stack file calls it.
    pub fn device_name(&self, device: DeviceIndex) -> Option<&str> {
        let mut named = self.parts.devices.iter().filter(|(_, known)| **known == device);
        named.next().map(|(name, _)| name.as_str())
    }

    pub fn take_answer(&mut self) -> Option<ControlAnswer> {
        self.answers.pop_front()
    }

    /// Returns the time of the next [`StackHost::tick`].
    pub fn next_deadline(&self) -> Option<Nanos> {
        let flushing = self.flushing.as_ref().map(|flushing| flushing.reported + PROGRESS_INTERVAL);
        let watch = (self.phase == HostPhase::Serving)
            .then(|| self.watched.map_or(Nanos::ZERO, |watched| watched + WATCH_INTERVAL));
        flushing.into_iter().chain(watch).chain(self.drains_again).min()
    }

    pub fn call(&mut self, now: Nanos, stack: &mut Stack, caller: CallId, body: &Value) {
        let result = match body["verb"].as_str().unwrap_or("") {
            "status" => serde_json::to_value(self.status(now, stack))
                .unwrap_or_else(|error| dcd_serve::control::error(format!("the status is no JSON: {error}"))),
            "metrics" => json!(openmetrics(&[self.status(now, stack)])),
            "reset-statistics" => {
                let layers: Vec<LayerIndex> = stack.layers().map(|(index, _)| index).collect();
                for layer in layers {
                    stack.control(now, layer, Control::ResetStatistics);
                }
                json!({})
            }
            "flush" => return self.begin_flush(now, stack, Some(caller)),
            "settings" => self.settings(),
            "set" => match self.set(now, stack, &body["args"]) {
                Ok(()) => json!({}),
                Err(why) => dcd_serve::control::error(why),
            },
            "writeback" => match self.write_back(now, stack, &body["args"]) {
                Ok(()) => json!({ "dirty_bytes": self.dirty_data_bytes(now, stack) }),
                Err(why) => dcd_serve::control::error(why),
            },
            "array" => match self.array_command(&body["args"], stack) {
                Ok((layer, command)) => {
                    let name = body["args"]["name"].as_str().unwrap_or("").to_owned();
                    let closes = matches!(command, ArrayCommand::Remove { .. } | ArrayCommand::Close { .. })
                        .then(|| (name.clone(), true));
                    let news = match command {
                        ArrayCommand::Remove { .. } => Some(format!("\"{name}\" was removed")),
                        ArrayCommand::Forget => {
                            Some("the failed legs that are missing were removed".to_owned())
                        }
                        _ => None,
                    };
                    self.array_calls.push_back(ArrayCall { layer, caller, closes, news });
                    return stack.control(now, layer, Control::Array(command));
                }
                Err(why) => dcd_serve::control::error(why),
            },
            verb => dcd_serve::control::error(format!(
                "\"{verb}\" is no call of this server; it knows status, metrics, flush, settings, set, writeback, stop, array, disk, mark \
                 and reset-statistics"
            )),
        };
        self.answers.push_back(ControlAnswer { to: caller, body: result, done: true });
    }

    /// The settings in force.
    fn settings(&self) -> Value {
        let settings = self.file.as_ref().map(StackFile::settings).unwrap_or_default();
        let values = settings.into_iter().map(|setting| {
            json!({ "key": setting.key, "in_force": setting.value, "change": setting.change.word() })
        });
        let values: Vec<Value> = values.collect();
        json!({ "stack": self.stack_file.to_string_lossy(), "settings": values })
    }

    /// Changes settings, all or none: `{"changes": ["high-mark=80", ..]}`.
    fn set(&mut self, now: Nanos, stack: &mut Stack, args: &Value) -> Result<(), String> {
        if self.phase != HostPhase::Serving {
            return Err("the server is stopping".to_owned());
        }
        let changes: Vec<String> = serde_json::from_value(args["changes"].clone())
            .map_err(|_| "\"changes\" must be a list of texts like \"high-mark=80\"".to_owned())?;
        let file = self.file.as_ref().ok_or("this stack was not read from a file, so it has no settings")?;
        let changed = file.changed(&changes)?;
        let mut told = Vec::new();
        for (layer, before) in
            changed.layers.iter().filter_map(|layer| Some((layer, file.layer(&layer.name)?)))
        {
            let settings = match (&before.kind, &layer.kind) {
                (LayerKind::LogCache { config: before, .. }, LayerKind::LogCache { config, .. })
                    if before != config =>
                {
                    LayerSettings::LogCache((**config).clone())
                }
                (LayerKind::Raid(before), LayerKind::Raid(raid)) if before.config != raid.config => {
                    LayerSettings::Raid(raid.config.clone())
                }
                _ => continue,
            };
            let index = self.parts.layers.get(&layer.name);
            let index = index.ok_or_else(|| format!("layer \"{}\" is not served", layer.name))?;
            told.push((*index, settings));
        }
        for (index, settings) in told {
            self.tell_settings(now, stack, index, settings);
        }
        self.file = Some(changed);
        self.hold(now, stack);
        self.tell(format!("settings were changed: {}", changes.join(" ")));
        Ok(())
    }

    /// Gives settings to a layer. Before writes go to the log alone again, the record calls the data disk incomplete.
    fn tell_settings(&mut self, now: Nanos, stack: &mut Stack, layer: LayerIndex, settings: LayerSettings) {
        let place = self.caches.iter().position(|cache| cache.layer == layer);
        let is_back =
            matches!(&settings, LayerSettings::LogCache(config) if config.writes == WriteRoute::Back);
        let status = LayerStatus::of(stack, layer, now);
        let is_through = status.log_cache().is_some_and(|status| status.writes == WritesState::Through);
        if let Some(place) = place {
            self.leaving.remove(&place);
            if is_back && is_through {
                self.leaving.insert(place, settings);
                self.records.note(&self.caches[place].name, Note::Incomplete);
                return self.take_noted(now, stack);
            }
        }
        stack.control(now, layer, Control::Settings(Box::new(settings)));
    }

    /// Pauses write-back, resumes it, or begins it: `{"command": "pause"}`.
    fn write_back(&mut self, now: Nanos, stack: &mut Stack, args: &Value) -> Result<(), String> {
        if self.phase != HostPhase::Serving {
            return Err("the server is stopping".to_owned());
        }
        if self.caches.iter().all(|cache| cache.kind != CacheKind::LogCache) {
            return Err("the served stack has no log cache".to_owned());
        }
        match args["command"].as_str().unwrap_or("") {
            "pause" => {
                self.paused = true;
                if let Some(flushing) = &mut self.flushing {
                    flushing.in_background = false;
                }
                self.end_flush_without_callers(now, stack);
            }
            "resume" => self.paused = false,
            "now" => self.begin_flush(now, stack, None),
            other => {
                return Err(format!(
                    "\"{other}\" is no command for write-back: it has pause, resume and now"
                ));
            }
        }
        self.hold(now, stack);
        Ok(())
    }

    /// Has each log cache hold destaging back while write-back is paused or no window is open.
    fn hold(&mut self, now: Nanos, stack: &mut Stack) {
        let local = self.clock.now();
        for cache in self.caches.iter().filter(|cache| cache.kind == CacheKind::LogCache) {
            let held = self.paused || !is_open(self.windows(&cache.name), &local);
            let has_changed = match held {
                true => self.held.insert(cache.layer),
                false => self.held.remove(&cache.layer),
            };
            if has_changed {
                stack.control(now, cache.layer, Control::HoldDestage(held));
            }
        }
    }

    fn windows(&self, layer: &str) -> &[DestageWindow] {
        match self.file.as_ref().and_then(|file| file.layer(layer)).map(|layer| &layer.kind) {
            Some(LayerKind::LogCache { windows, .. }) => windows,
            _ => &[],
        }
    }

    /// Log caches whose setting is that writes go through.
    fn through_layers(&self) -> Vec<String> {
        let goes = |layer: &&LayerSpec| matches!(&layer.kind, LayerKind::LogCache { config, .. } if config.writes == WriteRoute::Through);
        let layers = self.file.iter().flat_map(|file| &file.layers);
        layers.filter(goes).map(|layer| layer.name.clone()).collect()
    }

    /// The limits of write-back of a log cache.
    fn writeback_status(&self, name: &str, cache: &LogCacheStatus, local: &ZonedDateTime) -> WritebackStatus {
        let windows = self.windows(name);
        let held_by = if self.paused {
            HeldBy::Pause
        } else if !is_open(windows, local) {
            HeldBy::Window
        } else if cache.destage_limited {
            HeldBy::Rate
        } else {
            return WritebackStatus::default();
        };
        let opens = next_change(windows, local).filter(|_| held_by == HeldBy::Window);
        let seconds = |at: &ZonedDateTime| local.duration_until(at).as_secs_f64();
        WritebackStatus {
            held_by: Some(held_by),
            until_seconds: opens.as_ref().map(seconds),
            until: opens.map(|at| at.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()),
            overridden: held_by != HeldBy::Rate
                && (cache.over_high_mark || cache.draining || cache.state == LogCacheState::LogFailed),
        }
    }

    /// The array that a call is about, and a device that it is to be given: `{"layer": .., "name": .., "path": .., "place": ..}`, the
    /// place among the spares, or `"role": ..` for that of a member.
    pub fn newcomer(&self, args: &Value) -> Result<Newcomer, String> {
        let text = |field: &str| {
            let missing = || format!("\"{field}\" is missing: {{\"name\": .., \"path\": .., \"place\": ..}}");
            args[field].as_str().map(str::to_owned).ok_or_else(missing)
        };
        let name = text("name")?;
        if self.parts.devices.contains_key(&name) {
            return Err(format!(
                "\"{name}\" is open here already: \"dcd array remove\" closes one that has failed"
            ));
        }
        let seat = match (args["place"].as_u64(), args["role"].as_u64()) {
            (Some(place), None) => Seat::Spare(place as usize),
            (None, Some(role)) => Seat::Member(role as usize),
            _ => return Err("\"place\" (the number of the spare) or \"role\" is missing".to_owned()),
        };
        Ok(Newcomer { layer: self.array(args)?, name, path: text("path")?.into(), seat })
    }

    /// Gives an array a device for which it has a port now.
    pub fn give(&mut self, now: Nanos, stack: &mut Stack, caller: CallId, given: GivenDevice) {
        let GivenDevice { newcomer, device, port, id } = given;
        self.parts.devices.insert(newcomer.name.clone(), device);
        let geometry = stack.geometry(Target::Device(device));
        let command = ArrayCommand::Add { port, geometry, seat: newcomer.seat, id };
        let news = Some(format!("\"{}\" was added", newcomer.name));
        let closes = Some((newcomer.name, false));
        self.array_calls.push_back(ArrayCall { layer: newcomer.layer, caller, closes, news });
        stack.control(now, newcomer.layer, Control::Array(command));
    }

    /// Answers a call, which is done with it.
    pub fn answer(&mut self, to: CallId, body: Value) {
        self.answers.push_back(ControlAnswer { to, body, done: true });
    }

    /// Tells the administrator of a change.
    pub fn tell(&mut self, news: String) {
        self.news.push((Priority::Notice, news));
    }

    fn warn(&mut self, news: String) {
        self.news.push((Priority::Warning, news));
    }

    /// Closes a device that no layer uses any more.
    pub fn close(&mut self, name: String, device: DeviceIndex) {
        self.closing.push((name, device));
    }

    /// Answers a call that cannot be carried out.
    pub fn refuse(&mut self, caller: CallId, why: impl Into<String>) {
        let body = dcd_serve::control::error(why.into());
        self.answers.push_back(ControlAnswer { to: caller, body, done: true });
    }

    /// Finds the array that a call is about, or the mirrored log that it names.
    fn array(&self, args: &Value) -> Result<LayerIndex, String> {
        if self.phase != HostPhase::Serving {
            return Err("the server is stopping".to_owned());
        }
        let wanted = args["layer"].as_str();
        // Legs of a log come and go as members of an array do; a call about a log names it.
        let of_log = |cache: &&Cache| cache.kind == CacheKind::Mirror && wanted == Some(cache.name.as_str());
        let arrays = || {
            let is_array = |cache: &&Cache| cache.kind == CacheKind::Array || of_log(cache);
            self.caches.iter().filter(is_array)
        };
        let names = || arrays().map(|cache| cache.name.as_str()).collect::<Vec<_>>().join(", ");
        let mut found = arrays().filter(|cache| wanted.is_none_or(|wanted| cache.name == wanted));
        match (found.next(), found.next(), wanted) {
            (Some(array), None, _) => Ok(array.layer),
            (Some(_), Some(_), _) => Err(format!("there are several arrays; name one: {}", names())),
            (None, _, Some(wanted)) => {
                Err(format!("no array is called \"{wanted}\"; there are: {}", names()))
            }
            (None, _, None) => Err("the served stack has no array".to_owned()),
        }
    }

    /// Reads a command for an array: `{"layer": .., "command": .., ..}`.
    fn array_command(&self, args: &Value, stack: &Stack) -> Result<(LayerIndex, ArrayCommand), String> {
        let layer = self.array(args)?;
        let command = match args["command"].as_str().unwrap_or("") {
            "fail" => ArrayCommand::Fail {
                role: args["role"].as_u64().ok_or("\"role\" is missing: the number of a member")? as usize,
            },
            "scrub" => ArrayCommand::Scrub { repair: args["repair"] == true },
            "scrub-stop" => ArrayCommand::ScrubStop,
            "rebuild" => ArrayCommand::Rebuild,
            "remove" => ArrayCommand::Remove { port: self.port_of(layer, args, stack)? },
            "close" => ArrayCommand::Close { port: self.port_of(layer, args, stack)? },
            "forget" => ArrayCommand::Forget,
            other => {
                return Err(format!(
                    "an array has no command \"{other}\"; it has fail, add, remove, close, forget, scrub, scrub-stop and rebuild"
                ));
            }
        };
        Ok((layer, command))
    }

    /// Finds the array's port for the device in `{"name": ..}`, which no other layer may use.
    fn port_of(&self, layer: LayerIndex, args: &Value, stack: &Stack) -> Result<Port, String> {
        let name = args["name"].as_str().ok_or("\"name\" of the device is missing")?;
        let Some(device) = self.parts.devices.get(name) else {
            return Err(match self.parts.layers.contains_key(name) {
                true => format!("\"{name}\" is a layer: a server closes only devices. Stop it first"),
                false => format!("\"{name}\" is not open here"),
            });
        };
        match stack.only_user(*device) {
            Some((user, port)) if user == layer => Ok(port),
            _ => Err(format!("\"{name}\" is not used by this array alone")),
        }
    }

    /// Returns the name that the device or layer at an array's port had when it was opened.
    fn name_below(&self, array: LayerIndex, port: Option<usize>, stack: &Stack) -> Option<String> {
        let target = stack.below(array, Port(port?));
        let devices = self.parts.devices.iter().map(|(name, device)| (name, Target::Device(*device)));
        let layers = self.parts.layers.iter().map(|(name, layer)| (name, Target::Layer(*layer)));
        let mut named = devices.chain(layers).filter(|(_, other)| *other == target);
        named.next().map(|(name, _)| name.clone())
    }

    fn array_answered(&mut self, layer: LayerIndex, answer: Result<(), CommandError>) {
        let Some(place) = self.array_calls.iter().position(|call| call.layer == layer) else { return };
        let Some(ArrayCall { caller: to, closes, news, .. }) = self.array_calls.remove(place) else { return };
        let cache = self.caches.iter().find(|cache| cache.layer == layer);
        if let (Some(news), Some(Cache { name, kind, .. }), Ok(())) = (news, cache, &answer) {
            self.tell(format!("{} \"{name}\": {news}", kind.words()));
        }
        if let Some((name, _)) = closes.filter(|(_, when)| *when == answer.is_ok())
            && let Some(device) = self.parts.devices.remove(&name)
        {
            self.closing.push((name, device));
        }
        let body = answer.map_or_else(|error| dcd_serve::control::error(error.told()), |()| json!({}));
        self.answers.push_back(ControlAnswer { to, body, done: true });
    }

    /// Cancels a flush that only a control connection waited for that has ended.
    pub fn client_gone(&mut self, now: Nanos, stack: &mut Stack, client: ClientId) {
        let Some(flushing) = &mut self.flushing else { return };
        flushing.callers.retain(|caller| caller.client != client);
        self.end_flush_without_callers(now, stack);
    }

    pub const fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    fn end_flush_without_callers(&mut self, now: Nanos, stack: &mut Stack) {
        let Some(flushing) = &self.flushing else { return };
        if flushing.callers.is_empty() && !flushing.in_background {
            let layer = self.caches[flushing.cache].layer;
            self.flushing = None;
            stack.control(now, layer, Control::DrainCancel);
        }
    }

    /// Reports the progress of a flush, and looks at arrays and caches, when it is time.
    pub fn tick(&mut self, now: Nanos, stack: &mut Stack) {
        if let (HostPhase::Draining(place), Some(_)) =
            (&self.phase, self.drains_again.take_if(|at| *at <= now))
        {
            stack.control(now, self.caches[*place].layer, Control::Drain);
        }
        if self.watched.is_none_or(|watched| now >= watched + WATCH_INTERVAL) {
            self.watched = Some(now);
            self.hold(now, stack);
            self.record_failures(now, stack);
            self.watch(now, stack);
            self.take_noted(now, stack);
            let amounts = |cache: &Cache| Amounts::of(&LayerStatus::of(stack, cache.layer, now));
            self.trends.note(now, self.caches.iter().map(amounts).collect());
        }
        let (dirty_bytes, destaged_bytes) =
            (self.dirty_data_bytes(now, stack), self.destaged_bytes(now, stack));
        let Some(flushing) = &mut self.flushing else { return };
        if now < flushing.reported + PROGRESS_INTERVAL {
            return;
        }
        flushing.reported = now;
        let status = LayerStatus::of(stack, self.caches[flushing.cache].layer, now);
        let trouble = status.log_cache().and_then(destage_trouble);
        for caller in &flushing.callers {
            let written_bytes = destaged_bytes.saturating_sub(flushing.destaged_bytes);
            let mut body = json!({ "dirty_bytes": dirty_bytes, "written_bytes": written_bytes });
            if let Some(trouble) = &trouble {
                body["trouble"] = json!(trouble);
            } else if !self.owing.is_empty() {
                body["waits"] = json!(self.owing.join("; "));
            }
            self.answers.push_back(ControlAnswer { to: *caller, body, done: false });
        }
    }

    fn watch(&mut self, now: Nanos, stack: &Stack) {
        let mut conditions = std::mem::take(&mut self.conditions);
        conditions.resize_with(self.caches.len(), LayerCondition::default);
        for (cache, before) in self.caches.iter().zip(&mut conditions) {
            let condition = match LayerStatus::of(stack, cache.layer, now) {
                LayerStatus::LogCache(status) => LayerCondition::of_log_cache(&status),
                LayerStatus::Raid(status) => LayerCondition::of_array(&status),
                LayerStatus::Mirror(status) => {
                    LayerCondition::of_mirror(self.named(cache.layer, *status, stack))
                }
                _ => continue,
            };
            let kind = cache.kind.words();
            if condition.state != before.state {
                let priority = match (condition.is_failure, condition.state == GOOD) {
                    (true, _) => Priority::Error,
                    (false, true) => Priority::Notice,
                    (false, false) => Priority::Warning,
                };
                self.news.push((priority, format!("{kind} \"{}\": {}", cache.name, condition.state)));
            }
            for advice in condition.advice.iter().filter(|advice| !before.advice.contains(advice)) {
                self.news.push((Priority::Warning, format!("{kind} \"{}\": {advice}", cache.name)));
            }
            *before = condition;
        }
        self.conditions = conditions;
        self.look_at_recordings(now, stack);
        self.note_written_back(now, stack);
    }

    /// Reports each recording that has ended early, once.
    fn look_at_recordings(&mut self, now: Nanos, stack: &Stack) {
        for (name, layer) in &self.parts.layers {
            if let LayerStatus::Trace(status) = LayerStatus::of(stack, *layer, now)
                && let TraceStatus { file: Some(sink), .. } = *status
                && let Some(why) = sink.error
                && self.ended_recordings.insert(name.clone())
            {
                let recorded = sink.recorded;
                self.news.push((Priority::Warning, format!(
                    "{why}: the recording ends here, with {recorded} requests; the server continues without it"
                )));
            }
        }
    }

    fn note_written_back(&mut self, now: Nanos, stack: &Stack) {
        for (place, cache) in self.caches.iter().enumerate() {
            if let LayerStatus::LogCache(status) = LayerStatus::of(stack, cache.layer, now) {
                match is_complete(&status) {
                    true if self.leaving.contains_key(&place) => {
                        self.records.note(&cache.name, Note::Incomplete)
                    }
                    true => self.records.note(&cache.name, Note::WrittenBack(status)),
                    false => {
                        self.records.is_dirty(&cache.name);
                        // A missing disk keeps the cache from being complete, but not the others.
                        let is_there = |disk| is_complete(&status.of_disk(disk));
                        if (0..status.disks.len()).any(is_there) || has_read_out(&status) {
                            self.records.note(&cache.name, Note::WrittenBack(status));
                        }
                    }
                }
            }
        }
    }

    /// Takes the results of notes in the caches' records, and continues what has waited for them.
    pub fn take_noted(&mut self, now: Nanos, stack: &mut Stack) {
        while let Some(noted) = self.records.take() {
            let Some(place) = self.caches.iter().position(|cache| cache.name == noted.layer) else {
                continue;
            };
            match noted.kind {
                NoteKind::Legs => {
                    if let Err(error) = noted.result {
                        self.warn(format!(
                            "the state of the legs of \"{}\" cannot be recorded: keep the leg that is whole. {error}",
                            noted.layer
                        ));
                    }
                }
                NoteKind::Marks => {
                    if let Err(error) = noted.result {
                        self.warn(format!(
                            "after a crash nothing will tell which backup marks are lost: {error}"
                        ));
                    }
                }
                NoteKind::LogFailed => self.log_failure_noted(now, stack, place, noted.result),
                NoteKind::WrittenBack => {
                    if let Err(error) = noted.result {
                        self.warn(format!(
                            "the data disk has everything without the log, but that cannot be recorded: {error}"
                        ));
                    }
                }
                NoteKind::Joining | NoteKind::Joined | NoteKind::Left => {
                    self.disk_notes.push_back((noted.kind, noted.result.map_err(|error| error.to_string())));
                }
                NoteKind::Incomplete => self.incompleteness_noted(now, stack, place, noted.result),
                NoteKind::Stopped => {
                    self.troubles.extend(noted.result.err().map(|error| error.to_string()));
                    if self.phase == HostPhase::Stopping(place) {
                        self.stop_from(now, stack, place + 1);
                    }
                }
            }
        }
    }

    pub fn report(&mut self, now: Nanos, stack: &mut Stack, layer: LayerIndex, report: Report) {
        let Some(place) = self.caches.iter().position(|cache| cache.layer == layer) else { return };
        match report {
            Report::Drained => self.drained(now, stack, place),
            Report::Stopped => self.stopped(now, stack, place),
            Report::Failed(why) => self.failed(now, stack, place, why),
            Report::LogFailed => self.log_failed(now, stack, place),
            Report::WritesThrough => {
                self.note_written_back(now, stack);
                self.take_noted(now, stack);
            }
            Report::Array(answer) => self.array_answered(layer, answer),
            // The server takes it: it has the disk's front-ends.
            Report::Disk(_) => {}
            Report::Notice => {
                self.note_legs(now, stack, layer);
                self.noticed(now, stack);
            }
        }
    }

    /// Records legs that lack something, where the layer is a mirrored log.
    fn note_legs(&mut self, now: Nanos, stack: &mut Stack, layer: LayerIndex) {
        if let LayerStatus::Mirror(legs) = LayerStatus::of(stack, layer, now) {
            self.records.note(stack.layer_name(layer), Note::Legs(legs));
            self.take_noted(now, stack);
        }
    }

    /// Looks at the layers immediately for the first of several notices, and once for the next ones together.
    fn noticed(&mut self, now: Nanos, stack: &Stack) {
        if self.noticed.is_none_or(|noticed| now >= noticed + WATCH_INTERVAL) {
            (self.noticed, self.watched) = (Some(now), Some(now));
            self.watch(now, stack);
        }
    }

    /// True for devices that hold only logs.
    pub fn holds_log(&self, device: &str) -> bool {
        self.file.as_ref().is_some_and(|file| file.log_devices().iter().any(|log| log.name == device))
    }

    /// True for a device that is lost when the server ends, and that nothing needs: a leg of a log beside a whole one that stays, or a member
    /// without which a sound array runs. `lost`: the names of all that are lost.
    pub fn is_spared(&self, device: &str, lost: &[&str], now: Nanos, stack: &Stack) -> bool {
        self.caches.iter().any(|cache| match LayerStatus::of(stack, cache.layer, now) {
            LayerStatus::Mirror(mirror) => {
                let legs = self.named(cache.layer, *mirror, stack).legs;
                let stays = |leg: &LegStatus| {
                    leg.standing == Some(LegState::Whole)
                        && leg.name.as_ref().is_some_and(|name| !lost.contains(&name.as_str()))
                };
                legs.iter().any(|leg| leg.name.as_deref() == Some(device)) && legs.iter().any(stays)
            }
            LayerStatus::Raid(array) => {
                use ArrayState::{Broken, Damaged, InDoubt};
                let ports = &array.devices.member_ports;
                let name = |role: &usize| self.name_below(cache.layer, *ports.get(*role)?, stack);
                !matches!(array.state, Broken | Damaged | InDoubt)
                    && array.failed_members.iter().filter_map(name).any(|name| name == device)
            }
            _ => false,
        })
    }

    /// Writes everything back before the layers are stopped: a log is lost when the server ends.
    fn drain_before_stop(&mut self, now: Nanos, stack: &mut Stack, place: usize) {
        let Some(cache) = self.caches.get(place) else { return self.stop_from(now, stack, 0) };
        let status = LayerStatus::of(stack, cache.layer, now);
        let layer = cache.layer;
        if status.log_cache().is_some_and(|cache| cache.state == LogCacheState::LogFailed) {
            // Nothing in memory waits for such a log, and a drain of it may have no end.
            return self.drain_before_stop(now, stack, place + 1);
        }
        self.phase = HostPhase::Draining(place);
        stack.control(now, layer, Control::Drain);
    }

    /// Every request is answered and no more will come: the log caches may stop. `loses_log`: a log is lost when the server ends.
    pub fn stop(&mut self, now: Nanos, stack: &mut Stack, loses_log: bool) {
        self.look_at_recordings(now, stack);
        if let Some(flushing) = self.flushing.take() {
            for caller in flushing.callers {
                let body = dcd_serve::control::error("the server is stopping; dirty data stays in the log");
                self.answers.push_back(ControlAnswer { to: caller, body, done: true });
            }
            stack.control(now, self.caches[flushing.cache].layer, Control::DrainCancel);
        }
        match loses_log {
            true => self.drain_before_stop(now, stack, 0),
            false => self.stop_from(now, stack, 0),
        }
    }

    fn stop_from(&mut self, now: Nanos, stack: &mut Stack, place: usize) {
        match self.caches.get(place) {
            Some(cache) => {
                let layer = cache.layer;
                self.phase = HostPhase::Stopping(place);
                stack.control(now, layer, Control::Stop);
            }
            None => {
                self.phase = HostPhase::Stopped;
                self.left = self.disks_left(now, stack);
                let left = self.left.iter().map(|left| (Priority::Warning, format!("stopped: {left}")));
                self.news.extend(left);
            }
        }
    }

    /// Data disks of several for which the log has data after the stop, as they do not become clean.
    pub fn left_at_stop(&self) -> &[String] {
        &self.left
    }

    /// Begins to write everything back, for a caller, or in the background.
    fn begin_flush(&mut self, now: Nanos, stack: &mut Stack, caller: Option<CallId>) {
        if self.phase != HostPhase::Serving {
            let body = dcd_serve::control::error("the server is stopping");
            return self.answers.extend(caller.map(|to| ControlAnswer { to, body, done: true }));
        }
        if let Some(flushing) = &mut self.flushing {
            flushing.in_background |= caller.is_none();
            return flushing.callers.extend(caller);
        }
        let destaged_bytes = self.destaged_bytes(now, stack);
        // Time zero, so that the first progress comes at once.
        self.flushing = Some(Flushing {
            in_background: caller.is_none(),
            callers: caller.into_iter().collect(),
            cache: 0,
            reported: Nanos::ZERO,
            destaged_bytes,
        });
        self.drain_from(now, stack, 0);
    }

    fn drain_from(&mut self, now: Nanos, stack: &mut Stack, place: usize) {
        match self.caches.get(place) {
            Some(cache) => {
                let layer = cache.layer;
                if let Some(flushing) = &mut self.flushing {
                    flushing.cache = place;
                }
                stack.control(now, layer, Control::Drain);
            }
            None => {
                let dirty_bytes = self.dirty_bytes(now, stack);
                let left = self.disks_left(now, stack);
                if self.flushing.as_ref().is_some_and(|flushing| flushing.in_background) && !left.is_empty() {
                    self.warn(format!("not written back: {}", left.join("; ")));
                }
                self.end_flush(&json!({ "dirty_bytes": dirty_bytes, "left": left }));
            }
        }
    }

    /// Describes the data disks of several that a drain has left dirty.
    fn disks_left(&self, now: Nanos, stack: &Stack) -> Vec<String> {
        let mut left = Vec::new();
        for cache in &self.caches {
            let status = LayerStatus::of(stack, cache.layer, now);
            for (disk, own) in status.log_cache().map_or(&[][..], |cache| &cache.disks).iter().enumerate() {
                let name = self.name_below(cache.layer, Some(LOG_PORT + 1 + disk), stack);
                left.extend(disk_trouble(own).map(|trouble| {
                    let name = name.unwrap_or_else(|| format!("disk {}", disk + 1));
                    format!(
                        "\"{name}\" {trouble}, and {} for it stay in the log",
                        HumanBytes(own.dirty_bytes)
                    )
                }));
            }
        }
        left
    }

    fn end_flush(&mut self, body: &Value) {
        for caller in self.flushing.take().into_iter().flat_map(|flushing| flushing.callers) {
            self.answers.push_back(ControlAnswer { to: caller, body: body.clone(), done: true });
        }
    }

    fn drained(&mut self, now: Nanos, stack: &mut Stack, place: usize) {
        self.note_written_back(now, stack);
        self.take_noted(now, stack);
        if self.phase == HostPhase::Draining(place) {
            // A log that is lost when the server ends must have nothing left for a disk.
            let status = LayerStatus::of(stack, self.caches[place].layer, now);
            let disks = status.log_cache().map_or(&[][..], |cache| &cache.disks);
            if disks.iter().all(|disk| disk.dirty_bytes == 0) {
                return self.drain_before_stop(now, stack, place + 1);
            }
            self.drains_again = Some(now + DRAINS_AGAIN);
            let left = self.disks_left(now, stack);
            if !left.is_empty() && self.left != left {
                self.warn(format!(
                    "the log is lost when this server ends, so it waits, for a day at most: {}. Reconnect or repair the disk, or move the log's \
                     file back",
                    left.join("; ")
                ));
                self.left = left;
            }
        } else if self.flushing.as_ref().is_some_and(|flushing| flushing.cache == place) {
            self.drain_from(now, stack, place + 1);
        }
    }

    fn stopped(&mut self, now: Nanos, stack: &mut Stack, place: usize) {
        if self.phase != HostPhase::Stopping(place) {
            return;
        }
        let cache = &self.caches[place];
        match LayerStatus::of(stack, cache.layer, now) {
            LayerStatus::LogCache(status) => self.records.note(&cache.name, Note::Stopped(status)),
            _ => return self.stop_from(now, stack, place + 1),
        }
        self.take_noted(now, stack);
    }

    fn failed(&mut self, now: Nanos, stack: &mut Stack, place: usize, why: Unfinished) {
        let cache = &self.caches[place];
        let has_log_failed = matches!(why, Unfinished::LogFailedWithout(_) | Unfinished::LogFailed(_));
        let why = format!("{} \"{}\": {why}", cache.kind.words(), cache.name);
        if self.phase == HostPhase::Stopping(place) {
            self.troubles.push(why);
            if has_log_failed && let LayerStatus::LogCache(status) = LayerStatus::of(stack, cache.layer, now)
            {
                // The disks that are there have everything that could be read.
                self.records.note(&cache.name, Note::Stopped(status));
                return self.take_noted(now, stack);
            }
            self.stop_from(now, stack, place + 1);
        } else if self.phase == HostPhase::Draining(place) {
            self.troubles.push(why);
            self.drain_before_stop(now, stack, place + 1);
        } else if self.flushing.as_ref().is_some_and(|flushing| flushing.cache == place) {
            if self.flushing.as_ref().is_some_and(|flushing| flushing.in_background) {
                self.warn(why.clone());
            }
            self.end_flush(&dcd_serve::control::error(format!("{why}. \"dcd status\" says what to do")));
        } else {
            self.troubles.push(why);
        }
    }

    /// Notes that the log must not be replayed any more, before anything more is acknowledged. If the record cannot be
    /// written, the layer waits, nothing is acknowledged, and the write is tried again.
    fn log_failed(&mut self, now: Nanos, stack: &mut Stack, place: usize) {
        let cache = &self.caches[place];
        let status = LayerStatus::of(stack, cache.layer, now).into_log_cache();
        self.records.note(&cache.name, Note::LogFailed(status));
        self.take_noted(now, stack);
    }

    fn log_failure_noted(
        &mut self,
        now: Nanos,
        stack: &mut Stack,
        place: usize,
        noted: Result<String, RecordError>,
    ) {
        let Cache { name, layer, .. } = &self.caches[place];
        match noted {
            Ok(held) => {
                self.unrecorded.retain(|other| *other != place);
                self.troubles.push(log_failed_text(name, &held));
                stack.control(now, *layer, Control::LogFailureRecorded);
            }
            Err(_) if self.unrecorded.contains(&place) => {}
            Err(error) => {
                self.unrecorded.push(place);
                self.troubles.push(format!(
                    "log cache \"{name}\": the log device failed, and that cannot be recorded, so nothing more is acknowledged until it can: \
                     {error}"
                ));
            }
        }
    }

    /// Lets a cache write back again, once its record says so.
    fn incompleteness_noted(
        &mut self,
        now: Nanos,
        stack: &mut Stack,
        place: usize,
        noted: Result<String, RecordError>,
    ) {
        let Cache { name, layer, .. } = &self.caches[place];
        match noted {
            Ok(_) => {
                self.records.is_dirty(name);
                if let Some(settings) = self.leaving.remove(&place) {
                    stack.control(now, *layer, Control::Settings(Box::new(settings)));
                }
            }
            Err(error) => self.warn(format!(
                "log cache \"{name}\": writes go through until its record can be written: {error}"
            )),
        }
    }

    /// Tries again to record that logs have failed.
    fn record_failures(&mut self, now: Nanos, stack: &mut Stack) {
        for place in self.unrecorded.clone() {
            self.log_failed(now, stack, place);
        }
    }

    pub fn dirty_bytes(&self, now: Nanos, stack: &Stack) -> u64 {
        let of = |cache: &Cache| LayerStatus::of(stack, cache.layer, now).dirty_bytes().unwrap_or(0);
        self.caches.iter().map(of).sum()
    }

    /// Dirty bytes that have to be written: not those of discards and zeroes.
    pub fn dirty_data_bytes(&self, now: Nanos, stack: &Stack) -> u64 {
        let of = |cache: &Cache| LayerStatus::of(stack, cache.layer, now).dirty_data_bytes().unwrap_or(0);
        self.caches.iter().map(of).sum()
    }

    /// Counts the bytes of data that log caches have destaged so far, durable or not.
    fn destaged_bytes(&self, now: Nanos, stack: &Stack) -> u64 {
        let of = |cache: &Cache| {
            let status = LayerStatus::of(stack, cache.layer, now);
            Some(status.log_cache()?.statistics.destaged_sectors)
        };
        self.caches.iter().filter_map(of).sum::<u64>() * dcd_engine::SECTOR_BYTES
    }

    /// The disks that are served, with their devices of the kernel; none where it is a single one.
    fn served_disks(&self) -> Vec<ServedDisk> {
        let several = self.file.as_ref().filter(|file| file.serves_several());
        let served = |(disk, name): (usize, &str)| ServedDisk {
            name: name.to_owned(),
            ublk: self.ublk.get(&disk).cloned(),
            nbd_backend: self.nbd_backends.get(&disk).cloned(),
            image: self.image(disk, name),
            block_devices: Vec::new(),
        };
        several.map_or(Vec::new(), StackFile::disks).into_iter().map(served).collect()
    }

    /// Path of the image that FUSE shows of a disk; none without FUSE.
    fn image(&self, disk: usize, name: &str) -> Option<PathBuf> {
        let directory = self.file.as_ref()?.serve.fuse.as_ref()?;
        let image = own_path(directory, disk, name).join(IMAGE_NAME);
        Some(std::path::absolute(&image).unwrap_or(image))
    }

    fn status(&self, now: Nanos, stack: &Stack) -> ServerStatus {
        let mut status = ServerStatus {
            stack: self.stack_file.clone(),
            version: Some(VERSION.to_owned()),
            export: self.export.clone(),
            uptime_seconds: now.as_secs_f64(),
            stopping: self.phase != HostPhase::Serving,
            flushing: self.flushing.is_some(),
            dirty_bytes: self.dirty_bytes(now, stack),
            devices_not_answering: self.silent.clone(),
            devices: self.devices.clone(),
            ublk: self.ublk.get(&0).cloned(),
            disks: self.served_disks(),
            nbd_backend: self.nbd_backends.get(&0).cloned(),
            image: self.image(0, ""),
            writes_to_go_through: self.through_layers(),
            ..ServerStatus::default()
        };
        for (name, layer) in &self.parts.layers {
            match LayerStatus::of(stack, *layer, now) {
                LayerStatus::Meter(requests) if name == METER => status.requests = *requests,
                LayerStatus::Raid(mut array) => {
                    let names = |ports: &[Option<usize>]| {
                        ports.iter().map(|port| self.name_below(*layer, *port, stack)).collect()
                    };
                    advise(&mut array);
                    let devices = &mut array.devices;
                    devices.member_names = names(&devices.member_ports);
                    devices.spare_names = names(&devices.spare_ports);
                    status.layers.insert(name.clone(), LayerStatus::Raid(array));
                }
                LayerStatus::Mirror(mirror) => {
                    let mirror = self.named(*layer, *mirror, stack);
                    status.layers.insert(name.clone(), LayerStatus::Mirror(Box::new(mirror)));
                }
                LayerStatus::LogCache(mut cache) => {
                    for (disk, own) in cache.disks.iter_mut().enumerate() {
                        own.name = self.name_below(*layer, Some(LOG_PORT + 1 + disk), stack);
                    }
                    status.layers.insert(name.clone(), LayerStatus::LogCache(cache));
                }
                other => {
                    status.layers.insert(name.clone(), other);
                }
            }
        }
        let local = self.clock.now();
        for (place, cache) in self.caches.iter().enumerate() {
            let Some(layer) = status.layers.get(&cache.name) else { continue };
            if let Some(log) = layer.log_cache() {
                status.writeback.insert(cache.name.clone(), self.writeback_status(&cache.name, log, &local));
            }
            let amounts = Amounts::of(layer);
            status.trends.insert(cache.name.clone(), self.trends.of(place, now, amounts));
        }
        self.note_failed(&mut status, stack);
        status
    }

    /// Gives the legs of a log their names in the stack file.
    fn named(&self, layer: LayerIndex, mut mirror: MirrorStatus, stack: &Stack) -> MirrorStatus {
        for leg in &mut mirror.legs {
            leg.name = self.name_below(layer, leg.port, stack);
        }
        mirror
    }

    /// Marks the devices without which a cache or array runs as failed.
    fn note_failed(&self, status: &mut ServerStatus, stack: &Stack) {
        let mut failed = Vec::new();
        for cache in &self.caches {
            match status.layers.get(&cache.name) {
                Some(LayerStatus::LogCache(log)) if log.state == LogCacheState::LogFailed => {
                    failed.extend(self.name_below(cache.layer, Some(LOG_PORT), stack));
                }
                Some(LayerStatus::Raid(array)) => failed.extend(array.failed_devices().cloned()),
                Some(LayerStatus::Mirror(mirror)) => {
                    let is_failed = |leg: &&LegStatus| leg.standing == Some(LegState::Failed);
                    failed.extend(mirror.legs.iter().filter(is_failed).filter_map(|leg| leg.name.clone()));
                }
                _ => {}
            }
        }
        let is_failed = |device: &&mut DeviceStatus| failed.iter().any(|name| name == device.name());
        status.devices.iter_mut().filter(is_failed).for_each(|device| device.state = DeviceState::Failed);
        for device in &mut status.devices {
            device.holds_log = device.device.as_ref().is_some_and(|name| self.holds_log(name));
        }
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
