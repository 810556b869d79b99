//! The paper's policies under real traces, where there are some.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dcd_engine::Nanos;
use dcd_engine::destage::when::WhenPolicy;
use dcd_model::drive;
use dcd_model::write_cache::{Piggyback, RegionUnit, WriteCacheConfig};
use dcd_trace::{Characteriser, DeviceId, Options, Record, open};

use super::prelude::*;
use crate::nv::{self, ReplayCase, replay};

/// A trace's file, what it is, and which of the paper's words can be held against it.
struct Known {
    file: &'static str,
    name: &'static str,
}

const KNOWN: [Known; 2] = [
    Known { file: "ajw.1week.srt.gz", name: "workstation of 1992" },
    Known { file: "ascii.trace.gz", name: "14 disks" },
];

/// Two thresholds, and what they are compared with.
const POLICIES: [&str; 7] = [
    "no write cache",
    "one threshold",
    "two thresholds",
    "free track",
    "full track",
    "free cylinder",
    "full cylinder",
];
/// From the smallest to the largest.
const DRIVES: [&str; 3] = ["ra81", "ra82", "ra90"];

fn directory(settings: &Settings) -> Option<PathBuf> {
    match settings.text("traces") {
        "" => std::env::var_os("DCD_TRACES").map(PathBuf::from),
        named => Some(PathBuf::from(named)),
    }
}

/// A disk of a trace.
struct Traced {
    records: Vec<Record>,
    drive: &'static str,
    bound: f64,
    writes: u64,
}

fn load(path: &Path) -> Result<Vec<Traced>, LabError> {
    let mut trace = open(path, None).map_err(LabError::setup)?;
    let mut all: Vec<Record> = Vec::new();
    while let Some(record) = trace.reader.next_record().map_err(LabError::setup)? {
        all.push(record);
    }
    all.sort_by_key(|record| record.at);
    let mut names: Vec<DeviceId> = all.iter().map(|record| record.device).collect();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(|name| disk(all.iter().filter(|record| record.device == name))).collect()
}

fn disk<'a>(records: impl Iterator<Item = &'a Record>) -> Result<Traced, LabError> {
    let records: Vec<Record> = records.map(|record| Record { device: DeviceId(0), ..*record }).collect();
    let options = Options { blocks_max: Some(Options::BLOCKS_MAX), service: Nanos::ZERO };
    let mut characteriser = Characteriser::new(options);
    records.iter().for_each(|record| characteriser.add(record));
    let figures = characteriser.finish().all;
    let mut fitting = DRIVES[DRIVES.len() - 1];
    for name in DRIVES.iter().rev() {
        if drive::builtin(name).map_err(LabError::setup)?.sectors() >= figures.lba_end {
            fitting = name;
        }
    }
    let bound = figures.blocks.map_or(0.0, |blocks| 100.0 * blocks.overwrite_share);
    Ok(Traced { records, drive: fitting, bound, writes: figures.writes.count })
}

fn variants(config: WriteCacheConfig) -> [(WriteCacheConfig, RegionUnit); 7] {
    let piggyback = |piggyback, unit| (WriteCacheConfig { piggyback, ..config }, unit);
    [
        (WriteCacheConfig { write_bytes: 0, ..config }, RegionUnit::Track),
        (WriteCacheConfig { when: WhenPolicy::OneThreshold, ..config }, RegionUnit::Track),
        (config, RegionUnit::Track),
        piggyback(Piggyback::Free, RegionUnit::Track),
        piggyback(Piggyback::Full, RegionUnit::Track),
        piggyback(Piggyback::Free, RegionUnit::Cylinder),
        piggyback(Piggyback::Full, RegionUnit::Cylinder),
    ]
}

fn key(known: &Known, policy: &str) -> String {
    format!("{}, {policy}", known.name)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let Some(directory) = directory(settings) else { return Ok(Vec::new()) };
    let config = nv::config(settings)?;
    let mut points = Vec::new();
    for known in &KNOWN {
        let path = directory.join(known.file);
        if !path.exists() {
            continue;
        }
        let disks = Arc::new(load(&path)?);
        for (policy, (config, unit)) in POLICIES.iter().zip(variants(config)) {
            let disks = Arc::clone(&disks);
            points.push(Point::new(key(known, policy), move || measure(&disks, config, unit)));
        }
    }
    Ok(points)
}

/// Over all disks of a trace, and W_wc of each.
fn measure(disks: &[Traced], config: WriteCacheConfig, unit: RegionUnit) -> Result<Sample, LabError> {
    let mut sums = [0u64; 5];
    let mut lists = [Vec::new(), Vec::new(), Vec::new()];
    for disk in disks {
        let case = ReplayCase { config, unit, drives: vec![disk.drive] };
        let all = replay(&case, &disk.records)?.all;
        let counts = [all.disk_writes, all.writes, all.disk_reads, all.reads, all.stalls];
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        let figures = [all.writes_with_caching(), all.reads_with_caching(), disk.bound];
        lists.iter_mut().zip(figures).for_each(|(list, figure)| list.push(figure));
    }
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let [disk_writes, writes, disk_reads, reads, stalls] = sums;
    let mut sample = Sample::default();
    sample.set("wwc", percent(disk_writes, writes));
    sample.set("rwc", percent(disk_reads, reads));
    sample.set("stalls", percent(stalls, reads + writes));
    let bound = disks.iter().map(|disk| disk.bound * disk.writes as f64).sum::<f64>();
    sample.set("bound", bound / writes.max(1) as f64);
    for (name, list) in ["disks_wwc", "disks_rwc", "disks_bound"].into_iter().zip(lists) {
        sample.set_list(name, list);
    }
    Ok(sample)
}

pub fn conclude(_: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let mut findings = Findings::default();
    let there: Vec<&Known> = KNOWN.iter().filter(|known| samples.has(&key(known, POLICIES[0]))).collect();
    if there.is_empty() {
        let mut table = Table::new("Skipped", "why | what to do");
        let files = KNOWN.map(|known| known.file).join(" and ");
        table.row([
            "no directory of real traces was named, or it has none of them".to_owned(),
            format!("set DCD_TRACES, or the parameter traces, to a directory with {files}"),
        ]);
        findings.tables.push(table);
        return Ok(findings);
    }
    let mut table =
        Table::new("All disks of a trace (%)", "trace | policy | overwrite bound | W_wc | R_wc | stalls");
    for known in &there {
        for policy in POLICIES {
            let get = |what: &str| samples.get(&key(known, policy), what);
            let [bound, wwc, rwc, stalls] = ["bound", "wwc", "rwc", "stalls"].map(get);
            table.row(cells![known.name, policy, bound, wwc, rwc, stalls]);
        }
    }
    findings.tables.push(table);
    findings.tables.push(by_disk(&there, samples));
    let bars = |known: &Known| POLICIES.map(|policy| samples.get(&key(known, policy), "wwc"));
    findings.plots.push(Plot::bars(
        "Writes with caching on real traces",
        Axis::names("policy", POLICIES),
        Axis::linear("W_wc (%)"),
        there.iter().map(|known| Series::bars(known.name, bars(known))),
    ));
    Ok(findings)
}

fn by_disk(there: &[&Known], samples: &Samples) -> Table {
    let columns = "trace | disk | overwrite bound | one threshold | two thresholds | full track | \
            full cylinder";
    let mut table = Table::new("W_wc of each disk (%)", columns);
    for known in there {
        let of = |policy: &str, what: &str| samples.list(&key(known, policy), what);
        for (disk, bound) in of(POLICIES[0], "disks_bound").iter().enumerate() {
            let wwc = ["one threshold", "two thresholds", "full track", "full cylinder"];
            let figures = wwc.map(|policy| figure(of(policy, "disks_wwc")[disk]));
            table.row([known.name.to_owned(), disk.to_string(), figure(*bound)].into_iter().chain(figures));
        }
    }
    table
}
