//! The kinds of layers that a stack file can name: one table of words, one reader for each.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dcd_engine::Nanos;
use dcd_engine::layers::fault::FaultPlan;
use dcd_engine::layers::read_ahead::ReadAheadConfig;
use dcd_engine::log_cache::{LogCacheConfig, Promise, WriteRoute};
use dcd_engine::mirror::LEGS_MAX;
use dcd_engine::raid::RaidConfig;

use crate::error::{StackFileError, suggestion};
use crate::fields::{Fields, Located};
use crate::raid::FILL;
use crate::registry::{self, RegisteredLayer, Role};
use crate::window::{DestageWindow, WINDOWS_MAX};

#[derive(Clone, Debug)]
pub struct LayerSpec {
    pub name: String,
    pub kind: LayerKind,
    pub(crate) span: Range<usize>,
}

impl LayerSpec {
    /// Place of the layer in the text of its file.
    pub const fn place(&self) -> usize {
        self.span.start
    }
}

/// A range of the part below.
#[derive(Clone, Debug)]
pub struct SliceSpec {
    pub(crate) of: Located,
    pub first_bytes: u64,
    /// Size; none: to the end of the part below.
    pub size_bytes: Option<u64>,
    /// True if the file does not name the slice: an array's journal, or the log beside that journal.
    pub implied: bool,
}

/// A trace layer: records the operations that pass through it.
#[derive(Clone, Debug)]
pub struct TraceSpec {
    pub(crate) of: Located,
    /// Number of newest operations that the status shows.
    pub kept_max: usize,
    /// File in which every operation is recorded.
    pub file: Option<(Located, PathBuf)>,
}

/// An array over members, with spares and a journal where it has them.
#[derive(Clone, Debug)]
pub struct RaidSpec {
    /// The present members, in the order of their roles.
    pub(crate) of: Vec<Located>,
    pub(crate) spares: Vec<Located>,
    pub(crate) journal: Option<Located>,
    /// True if the file says `journal = "none"`: the user accepts the write hole.
    pub(crate) hole_accepted: bool,
    pub config: RaidConfig,
}

/// The legs of a log. The file names them in place of the log.
#[derive(Clone, Debug)]
pub struct MirrorSpec {
    pub(crate) of: Vec<Located>,
}

/// Kind of a layer, with its settings.
#[derive(Clone, Debug)]
pub enum LayerKind {
    LogCache {
        log: Located,
        data: Located,
        /// The data disks after the first.
        others: Vec<Located>,
        config: Box<LogCacheConfig>,
        /// Times at which dirty data is written back; empty: at all times. The host opens and closes them.
        windows: Vec<DestageWindow>,
    },
    Registered {
        of: Vec<Located>,
        layer: Arc<dyn RegisteredLayer>,
    },
    Slice(SliceSpec),
    Fault {
        of: Located,
        plan: FaultPlan,
    },
    ReadAhead {
        of: Located,
        config: ReadAheadConfig,
    },
    Trace(TraceSpec),
    Raid(RaidSpec),
    Mirror(MirrorSpec),
}

impl LayerKind {
    /// Returns the parts below the layer, in the order of its ports.
    pub(crate) fn below(&self) -> Vec<&Located> {
        match self {
            LayerKind::LogCache { log, data, others, .. } => [log, data].into_iter().chain(others).collect(),
            LayerKind::Slice(slice) => vec![&slice.of],
            LayerKind::Fault { of, .. } | LayerKind::ReadAhead { of, .. } => vec![of],
            LayerKind::Trace(trace) => vec![&trace.of],
            LayerKind::Registered { of, .. } => of.iter().collect(),
            LayerKind::Mirror(mirror) => mirror.of.iter().collect(),
            LayerKind::Raid(raid) => raid.of.iter().chain(&raid.spares).chain(&raid.journal).collect(),
        }
    }

    pub(crate) fn below_mut(&mut self) -> Vec<&mut Located> {
        match self {
            LayerKind::LogCache { log, data, others, .. } => [log, data].into_iter().chain(others).collect(),
            LayerKind::Slice(slice) => vec![&mut slice.of],
            LayerKind::Fault { of, .. } | LayerKind::ReadAhead { of, .. } => vec![of],
            LayerKind::Trace(trace) => vec![&mut trace.of],
            LayerKind::Registered { of, .. } => of.iter_mut().collect(),
            LayerKind::Mirror(mirror) => mirror.of.iter_mut().collect(),
            LayerKind::Raid(RaidSpec { of, spares, journal, .. }) => {
                of.iter_mut().chain(spares).chain(journal).collect()
            }
        }
    }

    /// The names of the parts below the layer, in the order of its ports.
    pub fn below_names(&self) -> Vec<&str> {
        self.below().into_iter().map(|located| located.text.as_str()).collect()
    }

    /// The role of a registered layer.
    pub fn role(&self) -> Option<Role> {
        match self {
            LayerKind::Registered { layer, .. } => Some(layer.role()),
            _ => None,
        }
    }

    /// True for a registered layer that is a cache.
    pub fn is_registered_cache(&self) -> bool {
        matches!(self.role(), Some(Role::Cache { .. }))
    }
}

type Reader = fn(&mut Fields<'_>, &Path) -> Result<LayerKind, StackFileError>;

/// Every kind: a new one is one line here, one reader below, and one arm in the builder.
const KINDS: [(&str, Reader); 6] = [
    ("log-cache", read_log_cache),
    ("raid", crate::raid::read),
    ("read-ahead", read_read_ahead),
    ("slice", read_slice),
    ("fault", read_fault),
    ("trace", read_trace),
];

/// Largest read-ahead: about as much as a disk reads in a tenth of a second.
const READ_AHEAD_MAX: u64 = 16 << 20;
/// Default number of operations that the status of a trace shows.
const TRACE_KEPT: u64 = 100;
/// A status is one answer on a socket: this many records are some 10 MB of it.
const TRACE_KEPT_MAX: u64 = 100_000;

pub(crate) fn read_layer(
    name: Located,
    mut fields: Fields<'_>,
    dir: &Path,
) -> Result<Vec<LayerSpec>, StackFileError> {
    let kind = fields.required_text("kind", "log-cache")?;
    let mut kind = if let Some((_, read)) = KINDS.iter().find(|(word, _)| *word == kind.text) {
        read(&mut fields, dir)?
    } else if let Some(registered) = registry::find(&kind.text) {
        let of = match registered.on_several {
            true => fields.texts("of")?,
            false => vec![fields.required_text("of", "data")?],
        };
        if of.is_empty() {
            return Err(fields.error_here("\"of\" is missing: add of = \"disk\", or a list of disks"));
        }
        LayerKind::Registered { of, layer: (registered.read)(&mut fields, dir)? }
    } else {
        let words: Vec<&str> = KINDS.iter().map(|(word, _)| *word).chain(registry::words()).collect();
        let advice = match suggestion(&kind.text, words.iter().copied()) {
            _ if kind.text == "disk" => {
                "a modelled disk is a part of the laboratory: use dcd-lab in place of dcd".to_owned()
            }
            _ if kind.text == "write-cache" => {
                "a write cache in RAM is a part of the laboratory, as the RAM of a server ends with its \
                 process: use dcd-lab in place of dcd, or kind = \"log-cache\""
                    .to_owned()
            }
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("known are: {}", words.join(", ")),
        };
        return Err(fields.error(kind.span, format!("there is no kind \"{}\"; {advice}", kind.text)));
    };
    let mut specs = Vec::new();
    if let LayerKind::LogCache { log, .. } = &mut kind
        && fields.is_list("log")
    {
        let mirror = MirrorSpec { of: read_legs(&mut fields)? };
        log.text = legs_of(&name.text);
        let (name, span) = (log.text.clone(), log.span.clone());
        specs.push(LayerSpec { name, kind: LayerKind::Mirror(mirror), span });
    }
    fields.finish()?;
    specs.push(LayerSpec { name: name.text, kind, span: name.span });
    Ok(specs)
}

/// The name of the layer that a list of legs becomes.
fn legs_of(cache: &str) -> String {
    format!("{cache}.legs")
}

fn read_legs(fields: &mut Fields<'_>) -> Result<Vec<Located>, StackFileError> {
    let legs = fields.texts("log")?;
    let span = fields.value_span("log");
    if !(1..=LEGS_MAX).contains(&legs.len()) {
        return Err(fields.error(span, format!("\"log\": a log has from 1 to {LEGS_MAX} legs")));
    }
    let twice = legs
        .iter()
        .enumerate()
        .find(|(index, leg)| legs[..*index].iter().any(|other| other.text == leg.text));
    match twice {
        Some((_, leg)) => {
            Err(fields.error(leg.span.clone(), format!("\"log\": \"{}\" is named twice", leg.text)))
        }
        None => Ok(legs),
    }
}

/// Advice for removed fields: a log of an earlier version has no measured rotation, and works without it.
const MEASURED: &str = "leave it out; \"dcd format\" measures how the log's disk turns";
/// Fields of earlier versions of a log cache.
const REMOVED: [(&str, &str); 11] = [
    ("segment-buffers", "leave it out; eight segments are kept in RAM"),
    (
        "full-stripes-first",
        "leave it out; over an array, stripes that are dirty as a whole are destaged first",
    ),
    ("how", "leave it out; blocks are destaged sorted by LBA"),
    ("fill", FILL),
    ("fill-reads", FILL),
    ("fill-writes", FILL),
    ("idle-full", "leave it out; it is a thousandth of \"idle-empty\""),
    ("log-revolution", MEASURED),
    ("log-track", MEASURED),
    ("spindle", MEASURED),
    ("compact", "leave it out; a block that is written again takes new space in the log"),
];

fn read_log_cache(fields: &mut Fields<'_>, _dir: &Path) -> Result<LayerKind, StackFileError> {
    fields.refuse_removed(&REMOVED)?;
    // A list of legs becomes a layer of its own.
    let log = match fields.is_list("log") {
        true => Located { text: String::new(), span: fields.value_span("log") },
        false => fields.required_text("log", "log")?,
    };
    let (data, others) = crate::several::read(fields)?;
    let d = LogCacheConfig::default();
    let idle_empty = fields.duration("idle-empty")?.unwrap_or(d.idle_empty);
    let config = LogCacheConfig {
        promise: fields.word("promise")?.unwrap_or(d.promise),
        delay_max: fields.duration("delay-max")?.unwrap_or(d.delay_max),
        bypass_bytes: fields.size("bypass")?.unwrap_or(d.bypass_bytes),
        reads: fields.word("reads")?.unwrap_or(d.reads),
        writes: fields.word("writes")?.unwrap_or(d.writes),
        when: fields.word("when")?.unwrap_or(d.when),
        what: fields.word("what")?.unwrap_or(d.what),
        high_mark: fields.number_in("high-mark", 1..=100)?.map_or(d.high_mark, |n| n as u8),
        low_mark: fields.number_in("low-mark", 0..=99)?.map_or(d.low_mark, |n| n as u8),
        share: fields.number_in("share", 1..=100)?.map_or(d.share, |n| n as u8),
        idle_empty,
        idle_full: Nanos(idle_empty.0 / 1000),
        destage_memory: fields.size("destage-memory")?.map_or(d.destage_memory, |n| n as usize),
        destage_depth: fields.number_in("destage-depth", 1..=1024)?.map_or(d.destage_depth, |n| n as usize),
        destage_rate: fields.rate("destage-rate")?.unwrap_or(d.destage_rate),
        discard_freed: fields.flag("discard-freed")?.unwrap_or(d.discard_freed),
        wear_budget: fields.daily("wear-budget")?.unwrap_or(d.wear_budget),
        ordered_destage: fields.flag("ordered-destage")?.unwrap_or(d.ordered_destage),
        ..d
    };
    if config.low_mark >= config.high_mark {
        let span = fields.value_span("low-mark");
        return Err(fields.error(
            span,
            format!("\"low-mark\" ({}) must be below \"high-mark\" ({})", config.low_mark, config.high_mark),
        ));
    }
    refuse_through(fields, &config)?;
    let of_one =
        [("ordered-destage", config.ordered_destage), ("writes", config.writes == WriteRoute::Through)];
    if let Some((field, _)) = of_one.iter().find(|(_, is_set)| *is_set && !others.is_empty()) {
        let span = fields.value_span(field);
        return Err(fields
            .error(span, format!("the value of \"{field}\" is for a log with one data disk: leave it out")));
    }
    let windows = read_windows(fields)?;
    Ok(LayerKind::LogCache { log, data, others, config: Box::new(config), windows })
}

/// Refuses writes through the log where the order of writes to the data disk is promised.
fn refuse_through(fields: &Fields<'_>, config: &LogCacheConfig) -> Result<(), StackFileError> {
    let other = match (config.promise, config.ordered_destage) {
        (Promise::Ordered, _) => "promise = \"ordered\"",
        (_, true) => "\"ordered-destage\"",
        _ => return Ok(()),
    };
    if config.writes == WriteRoute::Back {
        return Ok(());
    }
    let span = fields.value_span("writes");
    Err(fields.error(span, format!("writes = \"through\" and {other} exclude each other: leave one out")))
}

fn read_windows(fields: &mut Fields<'_>) -> Result<Vec<DestageWindow>, StackFileError> {
    let texts = fields.texts("destage-window")?;
    if texts.len() > WINDOWS_MAX {
        let span = fields.value_span("destage-window");
        return Err(fields.error(span, format!("\"destage-window\" has at most {WINDOWS_MAX} windows")));
    }
    let read = |Located { text, span }: &Located| {
        text.parse().map_err(|error| fields.error(span.clone(), format!("\"destage-window\": {error}")))
    };
    texts.iter().map(read).collect()
}

fn read_slice(fields: &mut Fields<'_>, _dir: &Path) -> Result<LayerKind, StackFileError> {
    let of = fields.required_text("of", "disk")?;
    let first_bytes = fields.size("first")?.unwrap_or(0);
    let size_bytes = fields.size("size")?;
    for (field, bytes) in [("first", Some(first_bytes)), ("size", size_bytes)] {
        if bytes.is_some_and(|bytes| bytes % 4096 != 0) {
            let span = fields.value_span(field);
            return Err(fields.error(span, format!("\"{field}\" must be a multiple of 4096 bytes")));
        }
    }
    if size_bytes == Some(0) {
        let span = fields.value_span("size");
        return Err(fields.error(span, "\"size\" is 0: leave it out for all that follows"));
    }
    if first_bytes.checked_add(size_bytes.unwrap_or(0)).is_none() {
        return Err(fields.error_here("\"first\" and \"size\" together are past every device's end"));
    }
    Ok(LayerKind::Slice(SliceSpec { of, first_bytes, size_bytes, implied: false }))
}

fn read_fault(fields: &mut Fields<'_>, _dir: &Path) -> Result<LayerKind, StackFileError> {
    let of = fields.required_text("of", "disk")?;
    let d = FaultPlan::default();
    let plan = FaultPlan {
        ignore_flush: fields.flag("ignore-flush")?.unwrap_or(d.ignore_flush),
        hits: fields.word("hits")?.unwrap_or(d.hits),
        fail_after: fields.number("fail-after")?.unwrap_or(d.fail_after),
        fail_count: fields.number("fail-count")?.unwrap_or(d.fail_count),
        no_space: fields.flag("no-space")?.unwrap_or(d.no_space),
    };
    Ok(LayerKind::Fault { of, plan })
}

fn read_read_ahead(fields: &mut Fields<'_>, _dir: &Path) -> Result<LayerKind, StackFileError> {
    let of = fields.required_text("of", "disk")?;
    let d = ReadAheadConfig::default();
    let config = ReadAheadConfig {
        streams: fields.number_in("streams", 1..=4096)?.map_or(d.streams, |n| n as usize),
        bytes: fields.size("size")?.unwrap_or(d.bytes),
    };
    let unit = ReadAheadConfig::UNIT_BYTES;
    if !config.is_valid() || config.bytes > READ_AHEAD_MAX {
        let span = fields.value_span("size");
        let (unit, most) = (crate::HumanBytes(unit), crate::HumanBytes(READ_AHEAD_MAX));
        return Err(fields.error(span, format!("\"size\" must be a multiple of {unit}, up to {most}")));
    }
    Ok(LayerKind::ReadAhead { of, config })
}

fn read_trace(fields: &mut Fields<'_>, dir: &Path) -> Result<LayerKind, StackFileError> {
    let of = fields.required_text("of", "cache")?;
    let kept_max = fields.number_in("keep", 0..=TRACE_KEPT_MAX)?.unwrap_or(TRACE_KEPT) as usize;
    let file = fields.text("file")?.map(|file| {
        let path = dir.join(&file.text);
        (file, path)
    });
    Ok(LayerKind::Trace(TraceSpec { of, kept_max, file }))
}

#[cfg(test)]
mod tests;
