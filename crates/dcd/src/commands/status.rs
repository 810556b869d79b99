//! `dcd status`: the state of a served stack, in one line or as JSON.

use std::fmt::Write;
use std::ops::ControlFlow;

use dcd_stack::{HumanBytes, RECORD};
use serde_json::{Value, json};

use crate::cli::Status;
use crate::commands::array::judge;
use crate::control;
use crate::failure::{Failure, Health};
use crate::session::members::members_listed;
use crate::session::serving::host::{
    FLUSH_ADVICE, accepted_damage, destage_trouble, flush_trouble, lost_text, state_word,
};

pub fn run(args: &Status) -> Result<(), Failure> {
    let mut client = control::connect(&args.file)?;
    let mut call = |verb: &str| client.call(verb, json!({}), |_| ControlFlow::Continue(()));
    let status = call("status")?;
    if args.reset {
        call("reset-statistics")?;
    }
    println!("{}", if args.json { status.to_string() } else { line(&status) });
    health(&status).verdict()
}

/// What is wrong, by the status of all caches and arrays.
fn health(status: &Value) -> Health {
    let mut health = Health::default();
    let names = |kind: &str| status[kind].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in names("log_caches") {
        judge_log_cache(name, &status["layers"][name], &mut health);
    }
    for name in names("arrays") {
        judge(name, &status["layers"][name], &mut health);
    }
    health
}

fn judge_log_cache(name: &str, layer: &Value, health: &mut Health) {
    if let Some(lost) = lost_text(layer) {
        health.damaged(format!("log cache \"{name}\": {lost}"));
    }
    if let Some(damage) = accepted_damage(layer) {
        health.damaged(format!("log cache \"{name}\": {damage}"));
    }
    if layer["state"] == "log-failed" {
        health.degraded(format!("log cache \"{name}\": the log device failed"));
    }
    if let Some(trouble) = destage_trouble(layer) {
        health.degraded(format!("log cache \"{name}\": {trouble}"));
    }
    if let Some(trouble) = flush_trouble(layer) {
        health.degraded(format!("log cache \"{name}\": {trouble}: {FLUSH_ADVICE}"));
    }
}

/// One line: the caches first, with the words that administrators of such caches know, then what passed.
fn line(status: &Value) -> String {
    let mut parts = Vec::new();
    for kind in ["log_caches", "write_caches", "arrays"] {
        for name in status[kind].as_array().into_iter().flatten().filter_map(Value::as_str) {
            parts.push(cache_words(name, &status["layers"][name]));
        }
    }
    if parts.is_empty() {
        parts.push("no cache".to_owned());
    }
    let recording = &status["layers"][RECORD]["file"];
    if let Some(recorded) = recording["recorded"].as_u64() {
        let dropped = recording["dropped"].as_u64().filter(|dropped| *dropped > 0);
        let dropped = dropped.map(|dropped| format!(" ({dropped} left out)")).unwrap_or_default();
        let word = if recording["error"].is_string() { "recording has stopped" } else { "recording" };
        parts.push(format!("{word}, {recorded} requests{dropped}"));
    }
    for device in status["devices_not_answering"].as_array().into_iter().flatten() {
        let name = device["device"].as_str().or(device["path"].as_str()).unwrap_or_default();
        let seconds = device["seconds"].as_f64().unwrap_or(0.0);
        parts.push(format!("device {name} has not answered for {seconds:.0} s"));
    }
    if status["stopping"] == true {
        parts.push("stopping".to_owned());
    }
    if status["flushing"] == true {
        parts.push("flushing".to_owned());
    }
    for kind in ["read", "write", "flush"] {
        let times = &status["requests"][kind];
        if let Some(count) = times["count"].as_u64().filter(|count| *count > 0) {
            let mean = times["mean_ms"].as_f64().unwrap_or(0.0);
            let plural = match (kind, count) {
                (_, 1) => "",
                ("flush", _) => "es",
                _ => "s",
            };
            parts.push(format!("{count} {kind}{plural} {mean:.2} ms"));
        }
    }
    parts.join(", ")
}

fn cache_words(name: &str, layer: &Value) -> String {
    let mut words = format!("{name}: {}", state_word(layer));
    let dirty = layer["dirty_bytes"].as_u64().unwrap_or(0);
    if dirty > 0 {
        let _ = write!(words, " {}", HumanBytes(dirty));
    }
    if let Some(place) = layer["kept_in"].as_str() {
        let _ = write!(words, ", {place}");
    }
    if let (Some(used), Some(size)) = (layer["used_bytes"].as_u64(), layer["size_bytes"].as_u64()) {
        let _ = write!(words, ", log {} of {}", HumanBytes(used), HumanBytes(size));
    }
    if let Some(trouble) = destage_trouble(layer) {
        let _ = write!(words, ", {trouble}");
    }
    if flush_trouble(layer).is_some() {
        words.push_str(", flushes fail");
    }
    if let Some(lost) = lost_text(layer) {
        let _ = write!(words, ", {lost}");
    }
    if let Some(percent) = layer["resynced_percent"].as_f64() {
        let _ = write!(words, ", {percent:.1} % of the parity computed");
    }
    let pass = &layer["pass"];
    if let (Some(kind), Some(percent)) =
        (pass["kind"].as_str().filter(|kind| *kind != "resync"), pass["percent"].as_f64())
    {
        let _ = write!(words, ", {kind} {percent:.1} %");
    }
    if let Some(members) = members_listed(&layer["failed_members"]) {
        let _ = write!(words, ", without {members}");
    }
    if layer["journal_failed"] == true {
        words.push_str(", its journal has failed");
    }
    let errors: u64 = layer["read_errors"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
    if errors > 0 {
        let _ = write!(words, ", {errors} reads of members failed");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_says_it_all() {
        let times = |count: u64| json!({ "count": count, "mean_ms": 0.256 });
        let mut status = json!({
            "log_caches": ["cache"],
            "layers": { "cache": { "state": "dirty", "dirty_bytes": 3 << 20, "used_bytes": 4 << 20, "size_bytes": 64 << 20 } },
            "requests": { "read": times(0), "write": times(7), "flush": times(2) },
        });
        assert_eq!(
            line(&status),
            "cache: dirty 3 MiB, log 4 MiB of 64 MiB, 7 writes 0.26 ms, 2 flushes 0.26 ms"
        );
        status["layers"]["cache"] = json!({ "state": "clean", "dirty_bytes": 0 });
        status["flushing"] = true.into();
        status["layers"][RECORD]["file"] = json!({ "recorded": 9, "dropped": 2 });
        assert!(line(&status).starts_with("cache: clean, recording, 9 requests (2 left out), flushing, "));
        assert!(line(&json!({ "log_caches": [] })).starts_with("no cache"));
        assert!(health(&status).verdict().is_ok());
        status["devices_not_answering"] = json!([{ "device": "data", "path": "/dev/sdb", "seconds": 12.4 }]);
        assert!(line(&status).contains(" left out), device data has not answered for 12 s, flushing, "));
        status["devices_not_answering"] = json!([]);
        let error = json!({ "kind": "no-space", "extent": null });
        status["layers"]["cache"] =
            json!({ "state": "dirty", "destage_failing": true, "statistics": { "last_error": error } });
        assert!(
            line(&status).starts_with("cache: dirty, not all dirty data can be written back (no-space), ")
        );
        assert!(matches!(health(&status).verdict(), Err(Failure::Degraded(_))));
        status["layers"]["cache"] = json!({
            "state": "clean", "flush_error": { "kind": "medium" }, "flush_at_risk_bytes": 65536,
            "flush_at_risk": [{ "start": 2048, "sectors": 128 }],
        });
        assert!(line(&status).starts_with("cache: clean, flushes fail, "));
        let Err(Failure::Degraded(why)) = health(&status).verdict() else { panic!("degraded") };
        assert!(
            why.contains("64 KiB that went around the log may be lost (byte ranges 1048576+65536)"),
            "{why}"
        );
        status["layers"]["cache"] =
            json!({ "state": "clean", "accepted_damage": ["records 2..3 were durable"] });
        let Err(Failure::Damage(why)) = health(&status).verdict() else { panic!("damaged") };
        assert!(why.contains("damage of the log was accepted: records 2..3 were durable"), "{why}");
        status["layers"]["cache"] = json!({ "state": "log-failed", "dirty_bytes": 4096, "lost_blocks": 1 });
        assert!(line(&status).starts_with("cache: log-failed 4 KiB, 1 block of 4 KiB lost, "));
        assert!(matches!(health(&status).verdict(), Err(Failure::Damage(_))));
        status["layers"]["cache"] = json!({ "state": "clean", "dirty_bytes": 0 });
        status["arrays"] = json!(["disks"]);
        status["layers"]["disks"] =
            json!({ "state": "degraded", "dirty_bytes": 4096, "failed_members": [2] });
        assert!(
            line(&status).starts_with("cache: clean, disks: degraded 4 KiB, without member 2, recording, ")
        );
        assert!(matches!(health(&status).verdict(), Err(Failure::Degraded(_))));
        status["layers"]["disks"] = json!({ "state": "good", "lost_blocks": 2 });
        assert!(line(&status).contains("disks: damaged, 2 blocks of 4 KiB lost, "), "{}", line(&status));
        assert!(matches!(health(&status).verdict(), Err(Failure::Damage(_))));
        let pass = json!({ "kind": "rebuild", "percent": 41.04 });
        status["layers"]["disks"] =
            json!({ "state": "rebuilding", "failed_members": [2], "pass": pass, "journal_failed": true });
        assert!(
            line(&status)
                .contains("disks: rebuilding, rebuild 41.0 %, without member 2, its journal has failed, ")
        );
    }
}
