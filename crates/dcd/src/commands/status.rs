//! `dcd status`: the state of a served stack, in one line or as JSON.

use std::fmt::Write;
use std::ops::ControlFlow;

use dcd_engine::raid::{ArrayStatus, PassName};
use dcd_engine::write_cache::WriteCacheStatus;
use dcd_engine::{LayerStatus, LogCacheState, LogCacheStatus, LogHead};
use dcd_stack::{HumanBytes, RECORD};
use serde_json::json;

use crate::cli::Status;
use crate::commands::array::{judge, without};
use crate::control;
use crate::failure::{Failure, Health};
use crate::session::serving::host::RAM_LOST;
use crate::session::serving::status::{
    FLUSH_ADVICE, ServerStatus, accepted_damage, destage_trouble, flush_trouble, lost_text, state_word,
};

pub fn run(args: &Status) -> Result<(), Failure> {
    let mut client = control::connect(&args.file)?;
    let status = ServerStatus::ask(&mut client)?;
    if args.reset {
        client.call("reset-statistics", json!({}), |_| ControlFlow::Continue(()))?;
    }
    let json = || serde_json::to_string(&status).expect("a status is plain data");
    println!("{}", if args.json { json() } else { line(&status) });
    health(&status).verdict()
}

/// What is wrong, by the status of all caches and arrays.
fn health(status: &ServerStatus) -> Health {
    let mut health = Health::default();
    for (name, layer) in &status.layers {
        match layer {
            LayerStatus::LogCache(cache) => judge_log_cache(name, cache, &mut health),
            LayerStatus::Raid(array) => judge(name, array, &mut health),
            _ => {}
        }
    }
    health
}

fn judge_log_cache(name: &str, cache: &LogCacheStatus, health: &mut Health) {
    let mut damaged = |what: String| health.damaged(format!("log cache \"{name}\": {what}"));
    lost_text(cache.lost_blocks).into_iter().chain(accepted_damage(cache)).for_each(&mut damaged);
    let mut degraded = |what: String| health.degraded(format!("log cache \"{name}\": {what}"));
    if cache.state == LogCacheState::LogFailed {
        degraded("the log device failed".to_owned());
    }
    destage_trouble(cache).into_iter().for_each(&mut degraded);
    flush_trouble(cache).into_iter().for_each(|trouble| degraded(format!("{trouble}: {FLUSH_ADVICE}")));
}

/// One line: the caches first, with the words that administrators of such caches know, then what passed.
fn line(status: &ServerStatus) -> String {
    let words = |of: fn(&str, &LayerStatus) -> Option<String>| {
        status.layers.iter().filter_map(move |(name, layer)| of(name, layer))
    };
    let mut parts: Vec<String> = words(|name, layer| Some(log_cache_words(name, layer.log_cache()?)))
        .chain(words(|name, layer| match layer {
            LayerStatus::WriteCache(cache) => Some(write_cache_words(name, cache)),
            _ => None,
        }))
        .chain(words(|name, layer| Some(array_words(name, layer.array()?))))
        .collect();
    if parts.is_empty() {
        parts.push("no cache".to_owned());
    }
    if let Some(LayerStatus::Trace(trace)) = status.layers.get(RECORD)
        && let Some(file) = &trace.file
    {
        let dropped = Some(file.dropped).filter(|dropped| *dropped > 0);
        let dropped = dropped.map(|dropped| format!(" ({dropped} left out)")).unwrap_or_default();
        let word = if file.error.is_some() { "recording has stopped" } else { "recording" };
        parts.push(format!("{word}, {} requests{dropped}", file.recorded));
    }
    for device in &status.devices_not_answering {
        let name = device.device.as_ref().unwrap_or(&device.path);
        parts.push(format!("device {name} has not answered for {:.0} s", device.seconds));
    }
    if status.stopping {
        parts.push("stopping".to_owned());
    }
    if status.flushing {
        parts.push("flushing".to_owned());
    }
    let requests = &status.requests;
    for (kind, plural, times) in [
        ("read", "reads", &requests.read),
        ("write", "writes", &requests.write),
        ("flush", "flushes", &requests.flush),
    ] {
        if times.count > 0 {
            let word = if times.count == 1 { kind } else { plural };
            parts.push(format!("{} {word} {:.2} ms", times.count, times.mean_ms));
        }
    }
    parts.join(", ")
}

/// The name and the state of a cache, and what of it is dirty.
fn begun(name: &str, state: &str, dirty_bytes: u64) -> String {
    match dirty_bytes {
        0 => format!("{name}: {state}"),
        bytes => format!("{name}: {state} {}", HumanBytes(bytes)),
    }
}

fn log_cache_words(name: &str, cache: &LogCacheStatus) -> String {
    let mut words = begun(name, cache.state.word(), cache.dirty_bytes);
    let _ = write!(words, ", log {} of {}", HumanBytes(cache.used_bytes), HumanBytes(cache.size_bytes));
    match cache.log_head {
        LogHead::NotRotational => {}
        LogHead::Followed => words.push_str(", the log follows its disk's head"),
        LogHead::NotMeasured => words.push_str(", the log follows no head: it was not measured"),
        LogHead::NotShown => words.push_str(", the log follows no head: its disk shows none"),
        LogHead::DoesNotPay => words.push_str(", the log follows no head: it does not pay"),
    }
    if let Some(trouble) = destage_trouble(cache) {
        let _ = write!(words, ", {trouble}");
    }
    if flush_trouble(cache).is_some() {
        words.push_str(", flushes fail");
    }
    if let Some(lost) = lost_text(cache.lost_blocks) {
        let _ = write!(words, ", {lost}");
    }
    words
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
mod tests {
    use dcd_engine::layers::trace::{SinkStatus, TraceStatus};
    use dcd_engine::raid::{ArrayState, PassStatus};
    use dcd_engine::{ErrorKind, Extent, IoError, Lba, MeterStatus, ResponseTimes};

    use super::*;
    use crate::session::serving::status::SilentDevice;

    fn log_cache(state: LogCacheState) -> LogCacheStatus {
        LogCacheStatus { state, used_bytes: 4 << 20, size_bytes: 64 << 20, ..LogCacheStatus::default() }
    }

    fn server(cache: LogCacheStatus) -> ServerStatus {
        let times = |count| ResponseTimes { count, mean_ms: 0.256, ..ResponseTimes::default() };
        let requests = MeterStatus { write: times(7), flush: times(2), ..MeterStatus::default() };
        let layers = [("cache".to_owned(), LayerStatus::LogCache(Box::new(cache)))];
        ServerStatus { requests, layers: layers.into(), ..ServerStatus::default() }
    }

    fn with_array(array: ArrayStatus) -> ServerStatus {
        let mut status = server(log_cache(LogCacheState::Clean));
        status.layers.insert("disks".to_owned(), LayerStatus::Raid(Box::new(array)));
        status
    }

    #[test]
    fn one_line_says_it_all() {
        let dirty = LogCacheStatus { dirty_bytes: 3 << 20, ..log_cache(LogCacheState::Dirty) };
        let mut status = server(dirty);
        assert_eq!(
            line(&status),
            "cache: dirty 3 MiB, log 4 MiB of 64 MiB, 7 writes 0.26 ms, 2 flushes 0.26 ms"
        );
        assert!(health(&status).verdict().is_ok());
        let spins = LogCacheStatus { log_head: LogHead::DoesNotPay, ..log_cache(LogCacheState::Clean) };
        assert!(line(&server(spins)).contains("of 64 MiB, the log follows no head: it does not pay, "));
        assert!(line(&ServerStatus::default()).starts_with("no cache"));
        let file = SinkStatus { path: String::new(), recorded: 9, dropped: 2, error: None };
        let trace =
            TraceStatus { operations: 0, failed: 0, in_flight: 0, file: Some(file), newest: Vec::new() };
        status.layers.insert(RECORD.to_owned(), LayerStatus::Trace(Box::new(trace)));
        status.flushing = true;
        status.devices_not_answering = vec![SilentDevice {
            device: Some("data".to_owned()),
            path: "/dev/sdb".to_owned(),
            operations: 1,
            seconds: 12.4,
        }];
        assert!(line(&status).contains(
            "of 64 MiB, recording, 9 requests (2 left out), device data has not answered for 12 s, flushing, "
        ));
        let json = serde_json::to_value(&status).unwrap();
        let back: ServerStatus = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(back).unwrap(), json, "clients read it back");
    }

    #[test]
    fn what_is_wrong_with_a_log_cache_is_told_and_decides_the_exit_code() {
        let error = |kind| Some(IoError { kind, extent: None });
        let mut failing = LogCacheStatus { destage_failing: true, ..log_cache(LogCacheState::Dirty) };
        failing.statistics.last_error = error(ErrorKind::NoSpace);
        let status = server(failing);
        assert!(line(&status).contains(", not all dirty data can be written back (no-space), "));
        assert!(matches!(health(&status).verdict(), Err(Failure::Degraded(_))));
        let status = server(LogCacheStatus {
            flush_error: error(ErrorKind::Medium),
            flush_at_risk_bytes: 65536,
            flush_at_risk: vec![Extent::new(Lba(2048), 128)],
            ..log_cache(LogCacheState::Clean)
        });
        assert!(line(&status).contains(", flushes fail, "));
        let Err(Failure::Degraded(why)) = health(&status).verdict() else { panic!("degraded") };
        let told = "64 KiB that went around the log may be lost (byte ranges 1048576+65536)";
        assert!(why.contains(told), "{why}");
        let accepted_damage = vec!["records 2..3 were durable".to_owned()];
        let status = server(LogCacheStatus { accepted_damage, ..log_cache(LogCacheState::Clean) });
        let Err(Failure::Damage(why)) = health(&status).verdict() else { panic!("damaged") };
        assert!(why.contains("damage of the log was accepted: records 2..3 were durable"), "{why}");
        let lost =
            LogCacheStatus { dirty_bytes: 4096, lost_blocks: 1, ..log_cache(LogCacheState::LogFailed) };
        let status = server(lost);
        assert!(line(&status).starts_with("cache: log-failed 4 KiB, "));
        assert!(line(&status).contains(", 1 block of 4 KiB lost, "));
        assert!(matches!(health(&status).verdict(), Err(Failure::Damage(_))));
    }

    #[test]
    fn what_is_wrong_with_an_array_is_told_and_decides_the_exit_code() {
        let degraded = ArrayStatus {
            state: ArrayState::Degraded,
            dirty_bytes: 4096,
            failed_members: vec![2],
            ..ArrayStatus::default()
        };
        let status = with_array(degraded.clone());
        assert!(line(&status).contains(", disks: degraded 4 KiB, without member 2, 7 writes"));
        assert!(matches!(health(&status).verdict(), Err(Failure::Degraded(_))));
        let status = with_array(ArrayStatus { lost_blocks: 2, ..ArrayStatus::default() });
        assert!(line(&status).contains("disks: damaged, 2 blocks of 4 KiB lost, "), "{}", line(&status));
        assert!(matches!(health(&status).verdict(), Err(Failure::Damage(_))));
        let pass = PassStatus {
            kind: PassName::Rebuild,
            role: Some(2),
            member_bytes: 0,
            paused: false,
            percent: 41.04,
            member_bytes_left: 0,
            member_bytes_per_second: None,
            findings: dcd_engine::raid::Findings::default(),
        };
        let rebuilding = ArrayStatus {
            state: ArrayState::Rebuilding,
            dirty_bytes: 0,
            pass: Some(pass),
            journal_failed: true,
            ..degraded
        };
        assert!(
            line(&with_array(rebuilding))
                .contains("disks: rebuilding, rebuild 41.0 %, without member 2, its journal has failed, ")
        );
    }

    /// The names of all fields, but for counters.
    fn fields(value: &serde_json::Value, into: &mut std::collections::BTreeSet<String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (name, value) in map {
                    into.insert(name.clone());
                    if !["statistics", "counts", "counts_per_disk", "newest", "layers"]
                        .contains(&name.as_str())
                    {
                        fields(value, into);
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| fields(value, into)),
            _ => {}
        }
    }

    #[test]
    fn every_field_is_described_and_no_other() {
        let pass = PassStatus {
            kind: PassName::Scrub,
            role: None,
            member_bytes: 0,
            paused: false,
            percent: 0.0,
            member_bytes_left: 0,
            member_bytes_per_second: None,
            findings: dcd_engine::raid::Findings::default(),
        };
        let last_return = dcd_engine::raid::Return { role: 0, filled_bytes: 0, member_bytes: 0 };
        let strides = dcd_engine::raid::StridesStatus { read_max: 0, write_max: 0 };
        let array = ArrayStatus {
            pass: Some(pass),
            last_return: Some(last_return),
            strides: Some(strides),
            ..ArrayStatus::default()
        };
        let file = SinkStatus { path: String::new(), recorded: 0, dropped: 0, error: None };
        let trace =
            TraceStatus { operations: 0, failed: 0, in_flight: 0, file: Some(file), newest: Vec::new() };
        let read_ahead = dcd_engine::layers::read_ahead::ReadAheadStatus::default();
        let fault = dcd_engine::layers::fault::FaultStatus { seen: 0, failed: 0, ignore_flush: false };
        let device = SilentDevice { device: None, path: String::new(), operations: 0, seconds: 0.0 };
        let server = ServerStatus { devices_not_answering: vec![device], ..ServerStatus::default() };
        let mut known = std::collections::BTreeSet::new();
        fields(&serde_json::to_value(server).unwrap(), &mut known);
        for layer in [
            LayerStatus::LogCache(Box::default()),
            LayerStatus::Raid(Box::new(array)),
            LayerStatus::WriteCache(Box::default()),
            LayerStatus::ReadAhead(read_ahead),
            LayerStatus::Fault(fault),
            LayerStatus::Trace(Box::new(trace)),
        ] {
            fields(&layer.to_json(), &mut known);
        }
        let described: std::collections::BTreeSet<String> = crate::cli::STATUS_FIELDS
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .flat_map(|line| line.split("  ").next().unwrap_or("").split([',', ' ']))
            .filter(|word| known.contains(*word) || word.contains('_'))
            .map(str::to_owned)
            .collect();
        assert_eq!(known.difference(&described).collect::<Vec<_>>(), Vec::<&String>::new(), "not described");
        // Counters are described where their names do not say enough.
        fields(&LayerStatus::LogCache(Box::default()).to_json()["statistics"], &mut known);
        assert_eq!(described.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "do not exist");
    }
}
