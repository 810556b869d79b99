//! The paper's policies on real traces, where there are some: each disk of a trace behind a cache of its own, on the smallest of
//! the paper's three drives that holds it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dcd_engine::destage::when::WhenPolicy;
use dcd_model::drive;
use dcd_model::write_cache::{Piggyback, RegionUnit, WriteCacheConfig};
use dcd_trace::{DeviceId, Record, open};

use super::{ReplayCase, replay};
use crate::stated::cells;
use crate::{LabError, Point, Sample, Samples, Settings, Table};

/// Files, and what they are.
const KNOWN: [(&str, &str); 2] =
    [("ajw.1week.srt.gz", "workstation of 1992"), ("ascii.trace.gz", "14 disks")];
const NONE: &str = "no write cache";
/// From the smallest to the largest.
const DRIVES: [&str; 3] = ["ra81", "ra82", "ra90"];

type Traced = (Vec<Record>, &'static str);

fn load(path: &Path) -> Result<Vec<Traced>, LabError> {
    let mut trace = open(path, None).map_err(LabError::setup)?;
    let mut disks: BTreeMap<DeviceId, Vec<Record>> = BTreeMap::new();
    while let Some(record) = trace.reader.next_record().map_err(LabError::setup)? {
        disks.entry(record.device).or_default().push(Record { device: DeviceId(0), ..record });
    }
    let on_drive = |mut records: Vec<Record>| -> Result<Traced, LabError> {
        records.sort_by_key(|record| record.at);
        let end = records.iter().map(|record| record.extent.end().0).max().unwrap_or(0);
        for name in DRIVES {
            if drive::builtin(name).map_err(LabError::setup)?.sectors() >= end {
                return Ok((records, name));
            }
        }
        Ok((records, DRIVES[DRIVES.len() - 1]))
    };
    disks.into_values().map(on_drive).collect()
}

fn policies(config: WriteCacheConfig) -> [(&'static str, WriteCacheConfig, RegionUnit); 7] {
    let piggyback = |piggyback| WriteCacheConfig { piggyback, ..config };
    [
        (NONE, WriteCacheConfig { write_bytes: 0, ..config }, RegionUnit::Track),
        ("one threshold", WriteCacheConfig { when: WhenPolicy::OneThreshold, ..config }, RegionUnit::Track),
        ("two thresholds", config, RegionUnit::Track),
        ("free track", piggyback(Piggyback::Free), RegionUnit::Track),
        ("full track", piggyback(Piggyback::Full), RegionUnit::Track),
        ("free cylinder", piggyback(Piggyback::Free), RegionUnit::Cylinder),
        ("full cylinder", piggyback(Piggyback::Full), RegionUnit::Cylinder),
    ]
}

fn key(name: &str, policy: &str) -> String {
    format!("{name}, {policy}")
}

pub(crate) fn points(settings: &Settings, config: WriteCacheConfig) -> Result<Vec<Point>, LabError> {
    let directory = match settings.text("traces") {
        "" => std::env::var_os("DCD_TRACES").map(PathBuf::from),
        named => Some(PathBuf::from(named)),
    };
    let mut points = Vec::new();
    for (file, name) in KNOWN {
        let Some(path) = directory.as_ref().map(|path| path.join(file)).filter(|path| path.exists()) else {
            continue;
        };
        let disks = Arc::new(load(&path)?);
        for (policy, config, unit) in policies(config) {
            let disks = Arc::clone(&disks);
            points.push(Point::new(key(name, policy), move || measure(&disks, config, unit)));
        }
    }
    Ok(points)
}

/// Over all disks of a trace.
fn measure(disks: &[Traced], config: WriteCacheConfig, unit: RegionUnit) -> Result<Sample, LabError> {
    let mut sums = [0u64; 5];
    for (records, drive) in disks {
        let all = replay(&ReplayCase { config, unit, drives: vec![*drive] }, records)?.all;
        let counts = [all.disk_writes, all.writes, all.disk_reads, all.reads, all.stalls];
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [disk_writes, writes, disk_reads, reads, stalls] = sums;
    let parts =
        [("wwc", disk_writes, writes), ("rwc", disk_reads, reads), ("stalls", stalls, reads + writes)];
    let mut sample = Sample::default();
    for (name, part, whole) in parts {
        sample.set(name, 100.0 * part as f64 / whole.max(1) as f64);
    }
    Ok(sample)
}

/// A table, where there are real traces.
pub(crate) fn table(samples: &Samples) -> Option<Table> {
    let mut table = Table::new("Real traces, all disks (%)", "trace | policy | W_wc | R_wc | stalls");
    let there = KNOWN.into_iter().map(|(_, name)| name).filter(|name| samples.has(&key(name, NONE)));
    for (name, policy) in there.flat_map(|name| policies(super::PAPERS).map(|(policy, ..)| (name, policy))) {
        let [wwc, rwc, stalls] = ["wwc", "rwc", "stalls"].map(|what| samples.get(&key(name, policy), what));
        table.row(cells![name, policy, wwc, rwc, stalls]);
    }
    (!table.rows.is_empty()).then_some(table)
}
