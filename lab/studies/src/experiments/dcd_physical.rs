//! A cache-disk of its own against a partition of the data disk.

use dcd_engine::log_cache::Promise;

use super::prelude::*;
use crate::clients::{Load, mean_ms, work};
use crate::configurations::{LOG_BYTES, ours, paper};
use crate::nuser;
use crate::rig::{CacheSetup, LogPlace, Setup};

const KINDS: [&str; 5] = ["plain", "paper, logical", "paper, physical", "ours, logical", "ours, physical"];

fn cache_of(kind: &str) -> Option<CacheSetup> {
    let setup = match kind.split_once(", ")?.0 {
        "paper" => paper(),
        _ => ours(Promise::Ordered),
    };
    let place = if kind.ends_with("physical") { LogPlace::OwnDisk } else { LogPlace::SameDisk };
    Some(CacheSetup { place, ..setup })
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let load = Load {
        users: settings.users()?.into(),
        requests: settings.count("requests")?,
        reads_percent: settings.percent("reads")?,
        overwrites_percent: settings.percent("overwrites")?,
    };
    let seed = mix(settings.seed, 0);
    let points = KINDS.iter().map(|&kind| {
        let setup = Setup { data_first: LOG_BYTES, cache: cache_of(kind), ..nuser::disk(settings)? };
        Ok(Point::new(kind, move || measure(&setup, &load, seed)))
    });
    points.collect()
}

fn measure(setup: &Setup, load: &Load, seed: u64) -> Result<Sample, LabError> {
    let mut rig = setup.build(seed)?;
    let before = rig.disk_requests();
    let times = work(&mut rig, load, seed)?;
    let destaging = rig.drain();
    let mut sample = Sample::default();
    sample.set("seconds", times.total.as_secs_f64());
    sample.set("write_ms", mean_ms(&times.writes));
    sample.set("read_ms", mean_ms(&times.reads));
    sample.set("destage_seconds", destaging.as_secs_f64());
    let after = rig.disk_requests();
    sample.set("disk_requests", (after.0 + after.1 - before.0 - before.1) as f64);
    Ok(sample)
}

pub fn conclude(_: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let get = |kind: &str, name: &str| samples.get(kind, name);
    let mut table = Table::new(
        "The same requests",
        "disk | seconds | times the plain disk | mean write (ms) | mean read (ms) | \
            then destaging (s) | disk requests in all",
    );
    for kind in KINDS {
        let names = ["seconds", "write_ms", "read_ms", "destage_seconds", "disk_requests"];
        let [seconds, writes, reads, destaging, requests] = names.map(|name| get(kind, name));
        let times = format!("{}x", figure(get("plain", "seconds") / seconds));
        table.row(cells![kind, seconds, times, writes, reads, destaging, requests]);
    }
    let plot = Plot::bars(
        "The same requests on each disk",
        Axis::names("", KINDS),
        Axis::linear("seconds"),
        [Series::bars("seconds", KINDS.map(|kind| get(kind, "seconds")))],
    );
    Ok(Findings { tables: vec![table], plots: vec![plot], claims: Vec::new() })
}
