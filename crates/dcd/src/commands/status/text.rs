//! The status of a stack as an administrator reads it, on one screen.

use std::fmt::Write;

use dcd_engine::log_cache::{FreedDiscards, Promise, WearBudget, WritesState};
use dcd_engine::raid::{ArrayStatus, PassName};
use dcd_engine::{DataDiskStatus, LogCacheState, LogCacheStatus, LogHead};
use dcd_stack::{HumanBytes, LayerStatus, MeterStatus, RECORD, ResponseTimes, WriteCacheStatus, wrapped};

use dcd_serve::ublk::UblkStatus;

use crate::session::serving::host::RAM_LOST;
use crate::session::serving::status::{
    DeviceState, DeviceStatus, HeldBy, ServerStatus, WritebackStatus, destage_trouble, flush_trouble,
    legs_text, lost_text, state_word, without,
};
use crate::session::serving::trend::Trend;
use crate::session::serving::verdict::Verdict;
use crate::session::serving::wear::SsdStatus;

/// Width of the words before the colons.
const INDENT: usize = 10;
/// Width of a terminal: longer lists go on in the next line, and longer paths lose their beginning.
pub const WIDTH: usize = 80;

/// Lines of a terminal: the command and the next prompt have one each.
pub const LINES: usize = 24 - 2;
/// Share of an SSD's life, in percent, from which on its wear is shown on any screen.
const WORN_PERCENT: u8 = 90;

/// Formats the status of a stack as one screen of a terminal. Lines about what is well are left out if there are more than `lines`.
pub fn screen(status: &ServerStatus, verdict: &Verdict, lines: usize) -> String {
    let whole = formatted(status, verdict, false);
    if whole.lines().count() > lines { formatted(status, verdict, true) } else { whole }
}

/// `is_brief`: lines about what is well are left out.
fn formatted(status: &ServerStatus, verdict: &Verdict, is_brief: bool) -> String {
    let mut text = String::new();
    let stack = status.stack.display();
    line(&mut text, "stack", &format!("{stack}, up for {}", span(status.uptime_seconds)));
    list(&mut text, "state", &state(status, verdict));
    let mut actions: Vec<&str> = verdict.actions.iter().map(String::as_str).collect();
    if actions.is_empty() {
        actions.push("none");
    }
    for action in actions {
        let mut lines = wrapped(action, WIDTH - INDENT - 2).into_iter();
        lines.next().iter().for_each(|first| line(&mut text, "action", first));
        lines.for_each(|rest| more(&mut text, &rest));
    }
    caches(status, &mut text, is_brief);
    let own = status.ublk.iter().filter(|_| status.disks.is_empty()).map(|ublk| (String::new(), ublk));
    let of_disks =
        status.disks.iter().filter_map(|disk| Some((format!("{}: ", disk.name), disk.ublk.as_ref()?)));
    for (whose, ublk) in own.chain(of_disks).filter(|_| !is_brief) {
        let queues = format!("{} queues of {}", ublk.queues, ublk.depth);
        line(&mut text, "ublk", &format!("{whose}{}, {queues}, {}", ublk.device, ublk.flags.join(", ")));
    }
    attached(status, &mut text);
    if !is_brief || errors(&status.requests) > 0 {
        list(&mut text, "answered", &answered(&status.requests));
    }
    recent(&status.requests, &mut text);
    devices(&status.devices, &mut text, is_brief);
    text
}

/// Writes the block devices of the disks. Those of ublk have their own lines.
fn attached(status: &ServerStatus, text: &mut String) {
    let other = |devices: &[String], ublk: Option<&str>| {
        let others: Vec<&str> =
            devices.iter().map(String::as_str).filter(|device| Some(*device) != ublk).collect();
        others.join(", ")
    };
    let node = |ublk: &Option<UblkStatus>| ublk.as_ref().map(|ublk| ublk.device.clone());
    let mut all: Vec<(String, String)> = status
        .disks
        .iter()
        .map(|disk| (format!("{}: ", disk.name), other(&disk.block_devices, node(&disk.ublk).as_deref())))
        .collect();
    if all.is_empty() {
        all.push((String::new(), other(&status.block_devices, node(&status.ublk).as_deref())));
    }
    for (whose, devices) in all.into_iter().filter(|(_, devices)| !devices.is_empty()) {
        line(text, "attached", &format!("{whose}{devices}"));
    }
}

fn line(text: &mut String, word: &str, rest: &str) {
    let _ = writeln!(text, "{word:>INDENT$}: {rest}");
}

fn more(text: &mut String, rest: &str) {
    let _ = writeln!(text, "{:INDENT$}  {rest}", "");
}

/// Writes a list on as many lines as it needs, broken after commas that are not in parentheses.
fn list(text: &mut String, word: &str, rest: &str) {
    let colon = if word.is_empty() { ' ' } else { ':' };
    let (mut columns, mut depth, mut part) = (INDENT + 2, 0, String::new());
    let mut parts = Vec::new();
    for c in rest.chars() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        part.push(c);
        if depth == 0 && part.ends_with(", ") {
            parts.push(std::mem::take(&mut part));
        }
    }
    parts.push(part);
    let mut written = format!("{word:>INDENT$}{colon} ");
    for part in parts {
        let width = part.chars().count();
        if columns + part.trim_end().chars().count() > WIDTH && columns > INDENT + 2 {
            let _ = write!(written, "\n{:INDENT$}  ", "");
            columns = INDENT + 2;
        }
        columns += width;
        written += &part;
    }
    written.lines().for_each(|line| {
        let _ = writeln!(text, "{}", line.trim_end());
    });
}

/// Formats the state, and what else is going on.
fn state(status: &ServerStatus, verdict: &Verdict) -> String {
    let mut parts = vec![verdict.state.to_owned()];
    if status.stopping && verdict.state != "stopping" {
        parts.push("stopping".to_owned());
    }
    if status.flushing {
        parts.push("flushing".to_owned());
    }
    parts.extend(status.other_program());
    for device in &status.devices_not_answering {
        let name = device.device.as_ref().unwrap_or(&device.path);
        parts.push(format!("device {name} has not answered for {:.0} s", device.seconds));
    }
    if let Some(LayerStatus::Trace(trace)) = status.layers.get(RECORD)
        && let Some(file) = &trace.file
    {
        let dropped = Some(file.dropped).filter(|dropped| *dropped > 0);
        let dropped = dropped.map(|dropped| format!(" ({dropped} left out)")).unwrap_or_default();
        let word = if file.error.is_some() { "recording has stopped" } else { "recording" };
        parts.push(format!("{word}, {} requests{dropped}", file.recorded));
    }
    parts.join(", ")
}

/// Describes the caches, then the arrays, in the words that administrators of such caches know.
fn caches(status: &ServerStatus, text: &mut String, is_brief: bool) {
    let mut none = true;
    let rank = |layer: &LayerStatus| match layer {
        LayerStatus::LogCache(_) => 0,
        LayerStatus::WriteCache(_) => 1,
        _ => 2,
    };
    for wanted in 0..3 {
        for (name, layer) in status.layers.iter().filter(|(_, layer)| rank(layer) == wanted) {
            let words = match layer {
                LayerStatus::LogCache(cache) => log_cache_words(name, cache),
                LayerStatus::WriteCache(cache) => write_cache_words(name, cache),
                LayerStatus::Raid(array) => array_words(name, array),
                LayerStatus::Mirror(mirror) => format!("{name}: {}", legs_text(mirror)),
                _ => continue,
            };
            none = false;
            let (name, words) = words.split_once(": ").expect("the words begin with the name");
            list(text, name, words);
            if let Some(held) =
                status.writeback.get(name).and_then(|held| held_words(held, layer, &status.argument()))
            {
                wrapped(&held, WIDTH - INDENT - 2).iter().for_each(|line| more(text, line));
            }
            if let Some(cache) = layer.log_cache().filter(|cache| cache.disks.len() > 1) {
                let disks = cache.disks.iter().filter(|disk| disk.size_bytes > 0);
                disks.for_each(|disk| more(text, &disk_words(disk)));
            }
            if let Some(trend) = status.trends.get(name) {
                let is_silent = !status.devices_not_answering.is_empty();
                let outlook = outlook(trend, layer, is_silent);
                if !outlook.is_empty() {
                    list(text, "", &outlook.join(", "));
                }
            }
            let counted = layer.log_cache().filter(|_| !is_brief);
            if let Some(hits) = counted.and_then(hits) {
                more(text, &hits);
            }
            if let Some(worn) = counted.and_then(|cache| worn_words(status, cache)) {
                more(text, &worn);
            }
            if let Some(budget) = layer.log_cache().and_then(budget_words) {
                more(text, &budget);
            }
        }
    }
    if none {
        line(text, "cache", "no cache");
    }
}

/// Describes a data disk of a log with several.
fn disk_words(disk: &DataDiskStatus) -> String {
    let mut words = vec![match disk.dirty_bytes {
        0 => "clean".to_owned(),
        _ => format!("dirty {}", dirty_on(disk)),
    }];
    words.extend(disk.missing.then(|| "missing, and not served".to_owned()));
    words.extend(disk.destaging.then(|| "writing back".to_owned()));
    words.extend(disk.destage_failing.then(|| "cannot be written".to_owned()));
    words
        .extend((disk.stuck && !disk.destage_failing && !disk.missing).then(|| "does not answer".to_owned()));
    words.extend(disk.waits_for_share.then(|| "has its share of the log, and writes wait".to_owned()));
    words.extend(disk.flush_error.map(|_| "a flush failed".to_owned()));
    words.extend(lost_text(disk.lost_blocks));
    let name = disk.name.as_deref().unwrap_or("a data disk");
    format!("{name}, {}: {}", HumanBytes(disk.size_bytes), words.join(", "))
}

/// Predicts when the layer will be clean, and its log full, if all goes on as in the last minute.
/// `is_silent`: a device does not answer, so nothing says when it will.
fn outlook(trend: &Trend, layer: &LayerStatus, is_silent: bool) -> Vec<String> {
    let mut parts = Vec::new();
    let log = layer.log_cache();
    let has_failed = log.is_some_and(|cache| cache.state == LogCacheState::LogFailed);
    // Lost blocks stay dirty.
    let is_known = !is_silent && log.is_none_or(|cache| cache.lost_blocks == 0);
    let data = layer.log_cache().map(|cache| cache.dirty_data_bytes).filter(|bytes| *bytes > 0);
    if data.or(layer.dirty_bytes()).is_some_and(|bytes| bytes > 0) {
        match trend.clean_in_seconds.filter(|_| is_known) {
            Some(seconds) => parts.push(format!("clean in {} at the rate of the last minute", span(seconds))),
            None => {
                parts.push("not getting clean".to_owned());
                parts.extend(trend.drain_seconds.filter(|_| is_known).map(without_clients));
            }
        }
    }
    if let Some(cache) = log {
        parts.extend(match throttled(trend).filter(|_| cache.over_high_mark) {
            // It takes no more writes.
            _ if has_failed => None,
            Some(throttled) => Some(throttled),
            None => Some(trend.full_in_seconds.map_or_else(|| "log not filling".to_owned(), full_in)),
        });
        let rate = HumanBytes(trend.destaged_bytes_per_second as u64);
        if rate.0 > 0 {
            parts.push(format!("writing back {rate}/s"));
        }
    }
    parts
}

/// Describes a log that is so full that clients are slowed down; none if it is not.
pub fn throttled(trend: &Trend) -> Option<String> {
    let rate = trend.throttled_per_second;
    (rate >= 1.0)
        .then(|| format!("log nearly full: writes wait for the data disk ({rate:.0} a second were delayed)"))
}

/// Describes the time until a cache is clean, if its clients pause.
fn without_clients(seconds: f64) -> String {
    let time = if seconds < 1.0 { "at once".to_owned() } else { format!("in about {}", span(seconds)) };
    format!("clean {time} if clients pause")
}

/// Describes the time until a log is full.
pub fn full_in(seconds: f64) -> String {
    if seconds > 0.0 { format!("log full in {}", span(seconds)) } else { "log full".to_owned() }
}

/// Describes the sources of the bytes that were read.
fn hits(cache: &LogCacheStatus) -> Option<String> {
    let counts = &cache.statistics;
    let (ram, dirty, clean) = (counts.read_ram_bytes, counts.read_dirty_bytes, counts.read_clean_bytes);
    let all = ram + dirty + clean + counts.read_miss_bytes;
    let percent = |bytes: u64| bytes as f64 * 100.0 / all as f64;
    (all > 0).then(|| {
        format!(
            "hits {:.1} %: RAM {:.1} %, dirty {:.1} %, clean {:.1} %; misses {:.1} %",
            percent(ram + dirty + clean),
            percent(ram),
            percent(dirty),
            percent(clean),
            percent(counts.read_miss_bytes)
        )
    })
}

/// Describes what is written to a log on an SSD in a day.
pub fn worn_words(status: &ServerStatus, cache: &LogCacheStatus) -> Option<String> {
    if cache.log_head != LogHead::NotRotational || cache.day_written_bytes == 0 {
        return None;
    }
    let written = HumanBytes(cache.day_written_bytes);
    let rate = status.day_rate(cache).map(|rate| format!(", {} a day at this rate", HumanBytes(rate as u64)));
    Some(format!("{written} written to the log today{}", rate.unwrap_or_default()))
}

/// Describes a budget of writes to the log that is nearly or wholly used up.
pub fn budget_words(cache: &LogCacheStatus) -> Option<String> {
    let what = match cache.wear_budget {
        WearBudget::None | WearBudget::Within => return None,
        WearBudget::Low => "nearly used up: reads are no longer copied to the log",
        WearBudget::UsedUp if cache.promise == Promise::Ordered => {
            "used up: reads are not copied to the log; all writes still go to it, as the promise is \"ordered\""
        }
        WearBudget::UsedUp => "used up: reads are not copied to the log, and writes from 16 KiB on bypass it",
    };
    Some(format!("wear-budget of {} a day is {what}", HumanBytes(cache.wear_budget_bytes)))
}

/// Describes the wear of an SSD below a log, and how long the SSD lasts.
pub fn ssd_words(ssd: &SsdStatus) -> String {
    let years = match ssd.years_left {
        Some(years) if years <= 0.0 => "all of its rated life is used".to_owned(),
        Some(years) if years < 2.0 => format!("{:.0} months left at today's rate", years * 12.0),
        Some(years) if years < 100.0 => format!("{years:.0} years left at today's rate"),
        Some(_) => "more than 100 years left".to_owned(),
        None => "years left: not known".to_owned(),
    };
    format!("{}: {} % worn by its own count, {years}", ssd.disk, ssd.used_percent)
}

fn kinds(requests: &MeterStatus) -> [(&'static str, &'static str, &ResponseTimes); 4] {
    [
        ("read", "reads", &requests.read),
        ("write", "writes", &requests.write),
        ("flush", "flushes", &requests.flush),
        ("discard", "discards", &requests.other),
    ]
}

fn errors(requests: &MeterStatus) -> u64 {
    kinds(requests).iter().map(|(.., times)| times.errors).sum()
}

/// Counts the requests since the start or the last reset.
fn answered(requests: &MeterStatus) -> String {
    let mut parts = Vec::new();
    for (kind, plural, times) in kinds(requests) {
        if times.count > 0 {
            let word = if times.count == 1 { kind } else { plural };
            parts.push(format!("{} {word} {}", times.count, response_time(times.mean_ms)));
        }
    }
    parts.push(match errors(requests) {
        0 => "no errors".to_owned(),
        1 => "1 error".to_owned(),
        errors => format!("{errors} errors"),
    });
    parts.join(", ")
}

/// Formats the last minute as a table.
fn recent(requests: &MeterStatus, text: &mut String) {
    let seconds = requests.recent_seconds;
    if seconds <= 0.0 {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:>INDENT$}  {:>10}  {:>12}  {:>11}  {:>11}",
        format!("last {seconds:.0} s"),
        "per second",
        "throughput",
        "p50",
        "p99"
    );
    for (_, plural, times) in kinds(requests).into_iter().take(3) {
        let recent = &times.recent;
        let _ = write!(text, "{plural:>INDENT$}  {:>10.1}", recent.count as f64 / seconds);
        let rate = HumanBytes((recent.bytes as f64 / seconds) as u64);
        let rate = if plural == "flushes" { String::new() } else { format!("{rate}/s") };
        let time = |ms: f64| if recent.count == 0 { "-".to_owned() } else { response_time(ms) };
        let _ = writeln!(text, "  {rate:>12}  {:>11}  {:>11}", time(recent.p50_ms), time(recent.p99_ms));
    }
}

fn devices(devices: &[DeviceStatus], text: &mut String, is_brief: bool) {
    if devices.is_empty() {
        return;
    }
    let width = devices.iter().map(|device| device_words(device).len()).max().unwrap_or(0).max(5);
    let _ = writeln!(text, "\n{:>INDENT$}  {:<width$}  path", "device", "state");
    for device in devices {
        let begun = format!("{:>INDENT$}  {:<width$}  ", device.name(), device_words(device));
        let room = WIDTH.saturating_sub(begun.chars().count());
        let is_wide = device.path.chars().count() > room;
        let short = device.path.strip_prefix("/dev/disk/").filter(|_| is_wide);
        let _ = writeln!(text, "{begun}{}", end_of(short.unwrap_or(&device.path), room));
        if let Some(connection) = &device.connection {
            let _ = writeln!(text, "{:INDENT$}  {connection}", "");
        }
        // Of a device that is used no more, its cache or array says the error.
        if let Some(error) = device.last_error.as_ref().filter(|_| device.state != DeviceState::Failed) {
            more(text, &format!("last error: {error}"));
        }
        let ssds = device.ssds.iter().filter(|ssd| !is_brief || ssd.used_percent >= WORN_PERCENT);
        ssds.for_each(|ssd| more(text, &ssd_words(ssd)));
    }
}

/// Shortens a path to its end, which tells more than its beginning.
pub fn end_of(path: &str, width: usize) -> String {
    let cut = path.chars().count().saturating_sub(width);
    match cut {
        0 => path.to_owned(),
        cut => std::iter::once('…').chain(path.chars().skip(cut + 1)).collect(),
    }
}

/// Formats the state of a device, and its errors.
fn device_words(device: &DeviceStatus) -> String {
    let counts =
        [("read", device.failed_reads), ("write", device.failed_writes), ("flush", device.failed_flushes)];
    let failed = counts.into_iter().filter(|(_, count)| *count > 0);
    let failed: Vec<String> = failed.map(|(kind, count)| format!("{count} {kind}")).collect();
    match (failed.is_empty(), device.state) {
        (true, state) => state.word().to_owned(),
        (false, DeviceState::Ok | DeviceState::Errors) => format!("errors: {}", failed.join(", ")),
        (false, state) => format!("{}, errors: {}", state.word(), failed.join(", ")),
    }
}

/// Formats milliseconds in a unit that fits.
pub fn response_time(ms: f64) -> String {
    match ms {
        ms if ms < 1e-3 => "< 1 us".to_owned(),
        ms if ms < 0.1 => format!("{:.0} us", ms * 1e3),
        ms if ms < 1e3 => format!("{ms:.2} ms"),
        ms => format!("{:.1} s", ms / 1e3),
    }
}

/// Formats seconds in a unit that fits.
pub fn span(seconds: f64) -> String {
    let (minute, hour, day) = (60.0, 3600.0, 86400.0);
    match seconds {
        s if s < 2.0 * minute => format!("{s:.0} s"),
        s if s < 2.0 * hour => format!("{:.0} min", s / minute),
        s if s < 2.0 * day => format!("{:.0} h", s / hour),
        s => format!("{:.0} days", s / day),
    }
}

/// Formats all dirty data of a stack, and separately what is to be discarded or zeroed: a new file system discards all of its device.
pub fn dirty_of(status: &ServerStatus) -> String {
    let mut all = LogCacheStatus::default();
    for cache in status.layers.values().filter_map(LayerStatus::log_cache) {
        all.dirty_data_bytes += cache.dirty_data_bytes;
        all.dirty_discard_bytes += cache.dirty_discard_bytes;
        all.dirty_zeroes_bytes += cache.dirty_zeroes_bytes;
    }
    // Of arrays, and of a server that does not report the parts.
    let parts = all.dirty_data_bytes + all.dirty_discard_bytes + all.dirty_zeroes_bytes;
    all.dirty_data_bytes += status.dirty_bytes.saturating_sub(parts);
    match dirty_parts(&all) {
        parts if parts.is_empty() => HumanBytes(0).to_string(),
        parts => parts,
    }
}

/// Formats the dirty data of one data disk of several, as [`dirty_of`] does that of a stack.
pub fn dirty_on(disk: &DataDiskStatus) -> String {
    let parts = parts_of(disk.dirty_data_bytes, disk.dirty_discard_bytes, disk.dirty_zeroes_bytes);
    // A server that does not report the parts.
    if parts.is_empty() { HumanBytes(disk.dirty_bytes).to_string() } else { parts }
}

/// Formats a log cache's dirty data, and separately what is to be discarded or zeroed, which takes almost no time.
fn dirty_parts(cache: &LogCacheStatus) -> String {
    parts_of(cache.dirty_data_bytes, cache.dirty_discard_bytes, cache.dirty_zeroes_bytes)
}

fn parts_of(data: u64, discards: u64, zeroes: u64) -> String {
    let parts = [(data, ""), (discards, " to discard"), (zeroes, " to zero")];
    let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
    parts.map(|(bytes, what)| format!("{}{what}", HumanBytes(bytes))).collect::<Vec<_>>().join(" and ")
}

/// Formats the name, the state and the dirty bytes of a cache.
fn begun(name: &str, state: &str, dirty_bytes: u64) -> String {
    match dirty_bytes {
        0 => format!("{name}: {state}"),
        bytes => format!("{name}: {state} {}", HumanBytes(bytes)),
    }
}

fn log_cache_words(name: &str, cache: &LogCacheStatus) -> String {
    let mut words = match dirty_parts(cache) {
        // An older server does not report the parts.
        parts if parts.is_empty() => begun(name, cache.state.word(), cache.dirty_bytes),
        parts => format!("{name}: {} {parts}", cache.state.word()),
    };
    match cache.writes {
        WritesState::Back => {}
        WritesState::Turning => words.push_str(", is emptied before writes go through"),
        WritesState::Through => words.push_str(", writes go through"),
    }
    let _ = write!(words, ", log {} of {}", HumanBytes(cache.used_bytes), HumanBytes(cache.size_bytes));
    match cache.log_head {
        LogHead::NotRotational => {}
        LogHead::Followed => words.push_str(", rotational, head tracking on"),
        LogHead::NotMeasured => {
            words.push_str(", rotational, head tracking off (too noisy to tell; measured again when idle)");
        }
        LogHead::NotShown => {
            words.push_str(", rotational, head tracking off (flash, a virtual disk, or a write cache)");
        }
        LogHead::DoesNotPay => words.push_str(", rotational, head tracking off (no gain)"),
    }
    // A log whose head is followed leaves places out, and they count as space. On an SSD only what is written counts: it wears the SSD out.
    let amplification = match cache.log_head {
        LogHead::Followed => cache.statistics.log_space(),
        _ => cache.statistics.log_writes_per_byte(),
    };
    if let Some(amplification) = amplification {
        let _ = write!(words, ", write amplification {amplification:.1}");
    }
    if let Some(trouble) = destage_trouble(cache) {
        let _ = write!(words, ", {trouble}");
    }
    match cache.freed_discards {
        FreedDiscards::Off | FreedDiscards::On | FreedDiscards::None => {}
        FreedDiscards::Slow => words.push_str(", free segments are not discarded (its device is slow at it)"),
        FreedDiscards::Failed => words.push_str(", free segments are not discarded (its device failed to)"),
    }
    if flush_trouble(cache).is_some() {
        words.push_str(", flushes fail");
    }
    if let Some(lost) = lost_text(cache.lost_blocks) {
        let _ = write!(words, ", {lost}");
    }
    words
}

/// Describes what holds back write-back, and until when; none if nothing does.
fn held_words(held: &WritebackStatus, layer: &LayerStatus, stack: &str) -> Option<String> {
    let words = match held.held_by? {
        HeldBy::Pause => {
            format!("write-back is paused until \"dcd writeback {stack} resume\", or until the server stops")
        }
        HeldBy::Window => match (&held.until, held.until_seconds) {
            (Some(until), Some(seconds)) => format!(
                "write-back waits for its window, which opens {} (in {})",
                until.get(..16).unwrap_or(until).replace('T', " "),
                span(seconds)
            ),
            _ => "write-back waits for its window".to_owned(),
        },
        HeldBy::Rate => {
            let rate = layer.log_cache().map_or(0, |cache| cache.destage_rate);
            format!("write-back keeps to {}/s (destage-rate) while clients are active", HumanBytes(rate))
        }
    };
    if !held.overridden {
        return Some(words);
    }
    let why = match layer.log_cache() {
        Some(cache) if cache.state == LogCacheState::LogFailed => "the log has failed",
        Some(cache) if cache.over_high_mark => "the log is over its high mark",
        _ => "a flush was asked for",
    };
    Some(format!("{words}; it goes on now, as {why}"))
}

fn write_cache_words(name: &str, cache: &WriteCacheStatus) -> String {
    let words = begun(name, cache.state.word(), cache.dirty_bytes);
    if cache.non_volatile { format!("{words}, {RAM_LOST}") } else { words }
}

fn array_words(name: &str, array: &ArrayStatus) -> String {
    let mut words = begun(name, &state_word(array), array.dirty_bytes);
    if array.non_volatile {
        let _ = write!(words, ", {RAM_LOST}");
    }
    if let Some(lost) = lost_text(array.blocks_lost()) {
        let _ = write!(words, ", {lost}");
    }
    if let Some(percent) = array.resynced_percent {
        let _ = write!(words, ", {percent:.1} % of the parity computed");
    }
    if let Some(pass) = array.pass.as_ref().filter(|pass| pass.kind != PassName::Resync) {
        let _ = write!(words, ", {} {:.1} %", pass.kind.word(), pass.percent);
    }
    words += &without(array);
    if array.journal_failed {
        words.push_str(", its journal has failed");
    }
    let errors: u64 = array.devices.read_errors.iter().sum();
    if errors > 0 {
        let _ = write!(words, ", {errors} reads of members failed");
    }
    words
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
