//! Status of a server: the answer to "status" on its control socket, which clients read back into the same types.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use dcd_engine::log_cache::DataDiskStatus;
use dcd_engine::mirror::{LegState, LegStatus, MirrorStatus};
use dcd_engine::raid::{ArrayState, ArrayStatus, Findings, members_named};
use dcd_engine::{LogCacheStatus, Nanos, SECTOR_BYTES};
use dcd_io::{Device, OpCounts, OpKind};
use dcd_serve::control::ControlClient;
use dcd_serve::ublk::UblkStatus;
use dcd_stack::{HumanBytes, LayerStatus, MeterStatus, StackFile};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::block_devices::block_devices;
use crate::cli::VERSION;
use crate::control::stack_argument;
use crate::failure::{Failure, Health};
use crate::output::path_text;
use crate::session::serving::trend::Trend;
use crate::session::serving::wear::SsdStatus;

/// The state of a server and of all its layers. A server that is older than the client may not know all of it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// The stack file.
    #[serde(serialize_with = "path_text")]
    pub stack: PathBuf,
    /// Version of the server's program, as its "--version" says it; none of a server that is too old to say it.
    pub version: Option<String>,
    /// The device or layer that is served.
    pub export: String,
    pub uptime_seconds: f64,
    pub stopping: bool,
    /// True while a "dcd flush" runs.
    pub flushing: bool,
    /// Dirty bytes of all caches and arrays.
    pub dirty_bytes: u64,
    /// Requests of clients.
    pub requests: MeterStatus,
    pub layers: BTreeMap<String, LayerStatus>,
    pub devices_not_answering: Vec<SilentDevice>,
    /// The server's ublk device, of the first disk; none without one.
    pub ublk: Option<UblkStatus>,
    /// The disks that are served; empty where it is a single one.
    pub disks: Vec<ServedDisk>,
    /// Identifier of this server in a device of the kernel's NBD client, of the first disk.
    pub nbd_backend: Option<String>,
    /// Image of the first disk that FUSE shows; none without FUSE.
    pub image: Option<PathBuf>,
    /// The kernel's devices by which the first disk is reached, as the client finds them.
    pub block_devices: Vec<String>,
    pub devices: Vec<DeviceStatus>,
    /// Trend of each cache and array, by name.
    pub trends: BTreeMap<String, Trend>,
    /// Write-back of each log cache, by name.
    pub writeback: BTreeMap<String, WritebackStatus>,
    /// Log caches whose setting is `writes = "through"`, whether their logs are empty yet or not.
    pub writes_to_go_through: Vec<String>,
}

/// A disk that is served.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServedDisk {
    /// Name in the stack file.
    pub name: String,
    /// The ublk device of the disk; none without one.
    pub ublk: Option<UblkStatus>,
    /// As in [`ServerStatus`], of this disk.
    pub nbd_backend: Option<String>,
    pub image: Option<PathBuf>,
    pub block_devices: Vec<String>,
}

/// Limits of write-back that an administrator has set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WritebackStatus {
    /// Limit that holds dirty data back now; none without one.
    pub held_by: Option<HeldBy>,
    /// Local time at which its window opens; none if it is not known when the limit ends.
    pub until: Option<String>,
    pub until_seconds: Option<f64>,
    /// True if dirty data is written back all the same: the log is over its high mark or has failed, or a flush was asked for.
    pub overridden: bool,
}

/// A limit of write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeldBy {
    /// "dcd writeback pause".
    Pause,
    /// Field "destage-window".
    Window,
    /// Field "destage-rate".
    Rate,
}

/// Operations of one kind that a device has ended since the start or the last reset, failed ones too.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceOps {
    pub count: u64,
    pub bytes: u64,
    /// The upper end of each bucket in milliseconds, and how many fell into it.
    pub buckets: Vec<(f64, u64)>,
}

impl DeviceOps {
    fn of(counts: &OpCounts) -> DeviceOps {
        let buckets = counts.times.iter_recorded();
        let bucket = |bucket: hdrhistogram::iterators::IterationValue<u64>| {
            (Nanos(bucket.value_iterated_to()).as_millis_f64(), bucket.count_at_value())
        };
        DeviceOps { count: counts.times.len(), bytes: counts.bytes, buckets: buckets.map(bucket).collect() }
    }

    /// Those that have ended since an earlier look.
    pub fn since(&self, earlier: &DeviceOps) -> DeviceOps {
        let before = |upper: f64| earlier.buckets.iter().find(|bucket| bucket.0 == upper).map_or(0, |b| b.1);
        let buckets = self.buckets.iter().map(|&(upper, count)| (upper, count.saturating_sub(before(upper))));
        DeviceOps {
            count: self.count.saturating_sub(earlier.count),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            buckets: buckets.filter(|(_, count)| *count > 0).collect(),
        }
    }

    /// The time that this share of the operations does not exceed.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        let wanted = (quantile * self.count as f64).ceil() as u64;
        let mut sum = 0;
        let reached = self.buckets.iter().find(|(_, count)| {
            sum += count;
            sum >= wanted
        });
        reached.map_or(0.0, |(upper, _)| *upper)
    }
}

/// The health of a device, and what it has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceStatus {
    /// Name in the stack file.
    pub device: Option<String>,
    pub path: String,
    pub state: DeviceState,
    pub failed_reads: u64,
    /// Discards and zeroes too.
    pub failed_writes: u64,
    pub failed_flushes: u64,
    /// Number of these failures that found no space below the device.
    pub failed_no_space: u64,
    /// True from such a failure until a write succeeds.
    pub is_full: bool,
    /// The last of these failures, in words.
    pub last_error: Option<String>,
    /// State of an export's connection, in words; none for other devices.
    pub connection: Option<String>,
    /// Reason why the next start would not find it; none where it would.
    pub removed: Option<String>,
    /// A loop device over its file, by which other programs can change it; none without one.
    pub loop_device: Option<String>,
    /// True if it holds a log, or a leg of one, and no data of the disks.
    pub holds_log: bool,
    /// The SSDs below a device that holds a log, as they count their wear; empty where none does.
    pub ssds: Vec<SsdStatus>,
    /// Operations that it owes.
    pub in_flight: usize,
    /// By "read", "write" (zeroes too), "flush" and "discard".
    pub operations: BTreeMap<String, DeviceOps>,
}

impl DeviceStatus {
    /// The operations of an open device.
    pub fn operations_of(device: &Device) -> BTreeMap<String, DeviceOps> {
        OpKind::ALL
            .map(|kind| (kind.word().to_owned(), DeviceOps::of(device.usage().of(kind))))
            .into_iter()
            .collect()
    }

    pub fn name(&self) -> &str {
        self.device.as_ref().unwrap_or(&self.path)
    }

    /// True while writes need more space than there is below the device. A write over old data may succeed meanwhile.
    pub fn lacks_space(&self, status: &ServerStatus) -> bool {
        let is_failing = |cache: &LogCacheStatus| cache.destage_failing;
        let mut caches = status.layers.values().filter_map(LayerStatus::log_cache);
        self.failed_no_space > 0 && (self.is_full || caches.any(is_failing))
    }
}

/// The health of a device in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    #[default]
    Ok,
    /// Operations have failed.
    Errors,
    /// An answer has been due for long.
    NotAnswering,
    /// The open device works, but the next start would not find it.
    Removed,
    /// The cache or array that it belongs to runs without it.
    Failed,
}

impl DeviceState {
    pub const fn word(self) -> &'static str {
        match self {
            DeviceState::Ok => "ok",
            DeviceState::Errors => "errors",
            DeviceState::NotAnswering => "not-answering",
            DeviceState::Removed => "removed",
            DeviceState::Failed => "failed",
        }
    }
}

/// A device that owes an answer for long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SilentDevice {
    /// Name in the stack file.
    pub device: Option<String>,
    pub path: String,
    pub operations: u64,
    pub seconds: f64,
}

const HOUR_SECONDS: f64 = 3600.0;
const DAY_SECONDS: f64 = 24.0 * HOUR_SECONDS;
/// Minimum time over which a rate of writes means anything.
const DAY_SPAN_MIN: f64 = 60.0;

impl ServerStatus {
    /// Bytes that a log cache writes to its log's device in a day, at the rate of the last 24 hours or since the start; none in the first
    /// minute.
    pub fn day_rate(&self, cache: &LogCacheStatus) -> Option<f64> {
        // The cache counts the hour that is not over, and 23 before it.
        let counted = DAY_SECONDS - HOUR_SECONDS + self.uptime_seconds % HOUR_SECONDS;
        let seconds = if self.uptime_seconds < DAY_SECONDS { self.uptime_seconds } else { counted };
        (seconds >= DAY_SPAN_MIN).then(|| cache.day_written_bytes as f64 * DAY_SECONDS / seconds)
    }

    /// The stack file's name, by which administrators know the stack.
    pub fn name(&self) -> String {
        let stem = self.stack.file_stem().map(|stem| stem.to_string_lossy().into_owned());
        stem.unwrap_or_else(|| self.export.clone())
    }

    /// Returns the stack as commands take it.
    pub fn argument(&self) -> String {
        stack_argument(&self.stack)
    }

    /// Describes the program of a server, where that is not the program that asks; none where it is.
    pub fn other_program(&self) -> Option<String> {
        match self.version.as_deref() {
            Some(VERSION) => None,
            Some(version) => Some(format!("runs another dcd: {version}")),
            None => Some("runs an older dcd".to_owned()),
        }
    }

    /// Asks a server.
    pub fn ask(client: &mut ControlClient) -> Result<ServerStatus, Failure> {
        let answer = client.call("status", json!({}), |_| ControlFlow::Continue(()))?;
        let mut status: ServerStatus = serde_json::from_value(answer).map_err(|error| {
            Failure::Failed(format!(
                "the server is of another dcd version ({error}): use the \"dcd\" of that version"
            ))
        })?;
        let found = |ublk: &Option<UblkStatus>, backend: &Option<String>, image: &Option<PathBuf>| {
            block_devices(&status.stack, ublk.as_ref(), backend.as_deref(), image.as_deref())
        };
        let first = found(&status.ublk, &status.nbd_backend, &status.image);
        let others: Vec<_> =
            status.disks.iter().map(|disk| found(&disk.ublk, &disk.nbd_backend, &disk.image)).collect();
        status.block_devices = first;
        for (disk, found) in status.disks.iter_mut().zip(others) {
            disk.block_devices = found;
        }
        status.name_missing_legs();
        Ok(status)
    }

    /// Gives the only missing leg of a log the only name that the stack file has for no other leg.
    fn name_missing_legs(&mut self) {
        let missing = |mirror: &MirrorStatus| mirror.legs.iter().filter(|leg| leg.name.is_none()).count();
        if !self.layers.values().filter_map(LayerStatus::mirror).any(|mirror| missing(mirror) == 1) {
            return;
        }
        let Ok(file) = StackFile::load(&self.stack) else { return };
        for (layer, _) in file.mirrors() {
            let Some(LayerStatus::Mirror(mirror)) = self.layers.get_mut(&layer.name) else { continue };
            let mirror: &mut MirrorStatus = mirror;
            let is_other = |name: &&str| mirror.legs.iter().all(|leg| leg.name.as_deref() != Some(*name));
            let names: Vec<&str> = layer.kind.below_names().into_iter().filter(is_other).collect();
            if let ([only], 1) = (names.as_slice(), missing(mirror)) {
                let leg = mirror.legs.iter_mut().find(|leg| leg.name.is_none());
                leg.into_iter().for_each(|leg| leg.name = Some((*only).to_owned()));
            }
        }
    }

    /// The state of one mirrored log.
    pub fn mirror(&self, layer: &str) -> Result<&MirrorStatus, Failure> {
        let mirror = self.layers.get(layer).and_then(LayerStatus::mirror);
        mirror.ok_or_else(|| Failure::Failed(format!("the server has no mirrored log \"{layer}\"")))
    }

    /// The disks of a log with several that were missing at the start.
    pub fn missing_disks(&self) -> Vec<&str> {
        let disks = self.layers.values().filter_map(LayerStatus::log_cache).flat_map(|cache| &cache.disks);
        disks.filter(|disk| disk.missing).filter_map(|disk| disk.name.as_deref()).collect()
    }
}

/// The state of one mirrored log of a server.
pub fn mirror_of_server(client: &mut ControlClient, layer: &str) -> Result<MirrorStatus, Failure> {
    ServerStatus::ask(client)?.mirror(layer).cloned()
}

/// The state of one array of a server.
pub fn array_of_server(client: &mut ControlClient, layer: &str) -> Result<ArrayStatus, Failure> {
    let status = ServerStatus::ask(client)?;
    let array = status.layers.get(layer).and_then(LayerStatus::array);
    array.cloned().ok_or_else(|| Failure::Failed(format!("the server has no array \"{layer}\"")))
}

/// Describes a data disk that failed the last attempt to write back; none if it did not.
pub fn destage_trouble(cache: &LogCacheStatus) -> Option<String> {
    cache.destage_failing.then(|| {
        let kind = cache.statistics.last_error.map_or("error", |error| error.kind.name());
        format!("not all dirty data can be written back ({kind})")
    })
}

/// Says why a data disk of several does not become clean; none if it does, or is.
pub fn disk_trouble(disk: &DataDiskStatus) -> Option<&'static str> {
    match disk {
        DataDiskStatus { dirty_bytes: 0, .. } => None,
        DataDiskStatus { missing: true, .. } => Some("is missing"),
        DataDiskStatus { destage_failing: true, .. } => Some("cannot be written"),
        DataDiskStatus { stuck: true, .. } => Some("does not answer"),
        _ => None,
    }
}

/// Describes why flushes fail: a flush of the data disk failed that should have covered writes that bypassed the log. None otherwise.
pub fn flush_trouble(cache: &LogCacheStatus) -> Option<String> {
    let error = cache.flush_error?;
    let bytes = |sectors: u64| sectors * SECTOR_BYTES;
    let parts = cache.flush_at_risk.iter();
    let parts: Vec<String> =
        parts.map(|part| format!("{}+{}", bytes(part.start.0), bytes(part.sectors))).collect();
    Some(format!(
        "a flush of the data disk failed ({}): {} that bypassed the log may be lost (byte ranges {}), and flushes fail \
         until all of it has been written again",
        error.kind.name(),
        HumanBytes(cache.flush_at_risk_bytes),
        parts.join(", ")
    ))
}

/// Advice that ends the error of [`flush_trouble`].
pub const FLUSH_ADVICE: &str = "write these ranges again, or stop what uses the device, restart the server, and check the file system on it";

/// Describes the damage of the log that this start was told to accept: that data is lost.
pub fn accepted_damage(cache: &LogCacheStatus) -> Option<String> {
    let damage = &cache.accepted_damage;
    (!damage.is_empty()).then(|| format!("damage of the log was accepted: {}", damage.join("; ")))
}

/// Text about the blocks that are lost; none if there are none.
pub fn lost_text(blocks: usize) -> Option<String> {
    (blocks > 0).then(|| format!("{blocks} block{} of 4 KiB lost", if blocks == 1 { "" } else { "s" }))
}

/// Name of a failed leg that the stack file names no more.
pub const MISSING_LEG: &str = "missing";

/// A leg as messages call it.
pub fn leg_name(leg: &LegStatus) -> String {
    leg.name.as_ref().map_or_else(|| "a leg that is missing".to_owned(), |name| format!("\"{name}\""))
}

/// The legs of a mirrored log, in words.
pub fn legs_text(mirror: &MirrorStatus) -> String {
    let legs = mirror.legs.iter().map(|leg| {
        let name = leg_name(leg);
        match leg.standing {
            Some(LegState::Whole) => format!("{name} whole"),
            Some(LegState::Filling) if leg.filled_bytes == 0 => format!("{name} is being filled"),
            Some(LegState::Filling) => {
                let percent = leg.filled_bytes as f64 * 100.0 / mirror.size_bytes.max(1) as f64;
                format!("{name} filled to {percent:.0} %")
            }
            Some(LegState::Failed) if leg.missing => {
                let name = leg.name.as_ref().map_or("a leg", |_| name.as_str());
                format!("{name} missing, though no label calls it failed")
            }
            Some(LegState::Failed) => match leg.error {
                Some(error) => format!("{name} failed ({error})"),
                None => format!("{name} failed"),
            },
            None => format!("{name} no leg"),
        }
    });
    let legs = legs.collect::<Vec<_>>().join(", ");
    let failed = if mirror.failed { ", and none can be written" } else { "" };
    format!("{} of {} legs whole: {legs}{failed}", mirror.whole(), mirror.listed())
}

/// The state in a word: nothing is good while blocks are lost.
pub fn state_word(array: &ArrayStatus) -> String {
    match array.state {
        ArrayState::Good if array.blocks_lost() > 0 => ArrayState::Damaged.word(),
        state => state.word(),
    }
}

/// Adds to `health` the faults of an array, by its status.
pub fn judge_array(name: &str, array: &ArrayStatus, health: &mut Health) {
    let lost = array.blocks_lost();
    if lost > 0 {
        let blocks = if lost == 1 { "block" } else { "blocks" };
        health.damaged(format!("array \"{name}\": {lost} {blocks} of 4 KiB lost"));
    }
    if array.last_scrub.as_ref().is_some_and(Findings::are_left) {
        health.damaged(format!("array \"{name}\": the last scrub found damage that was not repaired"));
    }
    if array.journal_failed {
        health.degraded(format!("array \"{name}\": its journal has failed"));
    }
    let described = format!("array \"{name}\": {}{}", array.state.word(), without(array));
    match array.state {
        ArrayState::Good | ArrayState::Damaged => {}
        ArrayState::Broken | ArrayState::Apart | ArrayState::Refused => health.damaged(described),
        ArrayState::Resyncing
        | ArrayState::Rebuilding
        | ArrayState::Degraded
        | ArrayState::InDoubt
        | ArrayState::Growing => health.degraded(described),
    }
}

/// Returns ", without member 2" if member 2 has failed; empty if none has.
pub fn without(array: &ArrayStatus) -> String {
    match array.failed_members.as_slice() {
        [] => String::new(),
        failed => format!(", without {}", members_named(failed)),
    }
}
