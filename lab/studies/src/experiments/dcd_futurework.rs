//! Measures what the paper left undone, each alone over the paper's configuration.

use dcd_engine::Nanos;
use dcd_engine::log_cache::{HowPolicy, WhatPolicy};
use dcd_sim::workloads::NUser;

use super::prelude::*;
use crate::clients::{Load, work};
use crate::configurations::{LOG_BYTES, like_paper, paper};
use crate::nuser::{self, PHASES};
use crate::rig::{CacheSetup, Setup};

const BASE: &str = "paper";
const DESTAGES: [&str; 4] = [BASE, "least valid first", "sorted by LBA", "both"];
const CACHES: [&str; 5] = ["plain", BASE, "compaction", "finer concurrency", "both"];
/// Caches that are compared with one user, too: the lock.
const LOCKS: [&str; 2] = [BASE, "finer concurrency"];
const SEVERAL_USERS: &str = "benchmark";
const ONE_USER: &str = "one user";

/// Names the runs where a buffer that is not full waits.
fn waiting(kind: &str) -> String {
    format!("{kind}, waiting")
}

fn destager(name: &str) -> CacheSetup {
    let mut cache = paper();
    if name == "least valid first" || name == "both" {
        cache.config.what = WhatPolicy::LeastValidFirst;
    }
    if name == "sorted by LBA" || name == "both" {
        cache.config.how = HowPolicy::Sorted;
    }
    cache
}

fn benchmarked(name: &str) -> Option<CacheSetup> {
    let mut cache = paper();
    if name == "compaction" || name == "both" {
        cache.config.compact = true;
    }
    cache.lock = name != "finer concurrency" && name != "both";
    (name != "plain").then_some(cache)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let seed = mix(settings.seed, 0);
    let setup = |cache: Option<CacheSetup>| -> Result<Setup, LabError> {
        let data_first = cache.as_ref().map_or(LOG_BYTES, |cache| cache.log_bytes);
        Ok(Setup { data_first, cache, ..nuser::disk(settings)? })
    };
    let bursts = Bursts {
        count: settings.count("bursts")?,
        between: settings.span("between")?,
        load: Load {
            users: settings.users()?.into(),
            requests: settings.count("burst")?,
            reads_percent: 5,
            overwrites_percent: settings.percent("overwrites")?,
        },
    };
    let (users, pause) = (settings.users()?, settings.span("pause")?);
    let mut points = Vec::new();
    for name in DESTAGES {
        let setup = setup(Some(destager(name)))?;
        points.push(Point::new(format!("destage: {name}"), move || destage(&setup, bursts, seed)));
    }
    let alone = LOCKS.map(|name| (name, 1, ONE_USER));
    let measured = CACHES.map(|name| (name, users, SEVERAL_USERS)).into_iter().chain(alone);
    let measured = measured.map(|(name, users, kind)| (name, users, kind.to_owned(), Nanos::ZERO));
    let locks = LOCKS.map(|name| (name, users, SEVERAL_USERS)).into_iter().chain(alone);
    let wait = settings.span("wait")?;
    let waits = locks.map(|(name, users, kind)| (name, users, waiting(kind), wait));
    for (name, users, kind, delay_max) in measured.chain(waits) {
        let cache = benchmarked(name).map(|mut cache| {
            cache.config.delay_max = delay_max;
            cache
        });
        let setup = setup(cache)?;
        let ffs = nuser::file_system(settings, &setup)?;
        let benchmark = NUser { users, pause, ..NUser::default() };
        points.push(Point::new(format!("{kind}: {name}"), move || {
            nuser::measure(&setup, &ffs, benchmark, seed)
        }));
    }
    for log_bytes in settings.sizes("logs")? {
        let setup = setup(Some(CacheSetup { log_bytes, ..like_paper() }))?;
        points.push(Point::new(recovery(log_bytes), move || recover(setup, log_bytes, seed)));
    }
    Ok(points)
}

fn recovery(log_bytes: u64) -> String {
    format!("recovery: {}", dcd_stack::HumanBytes(log_bytes))
}

#[derive(Clone, Copy)]
struct Bursts {
    count: u64,
    between: Nanos,
    load: Load,
}

fn destage(setup: &Setup, bursts: Bursts, seed: u64) -> Result<Sample, LabError> {
    let mut rig = setup.build(seed)?;
    let mut seconds = 0.0;
    for burst in 0..bursts.count {
        // The same neighbourhoods each time, so that bursts overwrite what earlier ones wrote.
        let times = work(&mut rig, &bursts.load, mix(seed, burst / 4))?;
        seconds += times.total.as_secs_f64();
        rig.pause(bursts.between);
    }
    let destaging = rig.drain();
    let status = rig.cache_status();
    let count = |name: &str| status["statistics"][name].as_f64().unwrap_or(f64::NAN);
    let mut sample = Sample::default();
    sample.set("seconds", seconds);
    sample.set("destage_seconds", destaging.as_secs_f64());
    sample.set("destage_writes", count("destage_writes"));
    sample.set("destaged_mb", count("destaged_sectors") * 512.0 / 1e6);
    Ok(sample)
}

/// Fills the log, cuts the power, and starts again on what is on the disk.
fn recover(setup: Setup, log_bytes: u64, seed: u64) -> Result<Sample, LabError> {
    let mut rig = setup.build(seed)?;
    const REQUEST_BYTES: u64 = 32 << 10;
    let blocks = log_bytes / REQUEST_BYTES * 9 / 10;
    rig.fill(REQUEST_BYTES, blocks)?;
    let (reads, _) = rig.disk_requests();
    let (rig, took) = setup.restart(rig)?;
    let mut sample = Sample::default();
    sample.set("seconds", took.as_secs_f64());
    sample.set("disk_reads", (rig.disk_requests().0 - reads) as f64);
    sample.set("dirty_mb", rig.cache_status()["dirty_bytes"].as_f64().unwrap_or(f64::NAN) / 1e6);
    Ok(sample)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let at = |kind: &str, name: &str, what: &str| samples.get(&format!("{kind}: {name}"), what);
    let columns = "destaging | bursts (s) | writes | MB | the rest at the end (s)";
    let mut destaging = Table::new("Destaging", columns);
    for name in DESTAGES {
        let figure_of = |what: &str| figure(at("destage", name, what));
        let figures = ["seconds", "destage_writes", "destaged_mb", "destage_seconds"].map(figure_of);
        destaging.row(std::iter::once(name.to_owned()).chain(figures));
    }
    let benchmark = |name: &str, phase: &str, what: &str| at("benchmark", name, &format!("{phase}/{what}"));
    let gain =
        |name: &str, phase: &str| benchmark("plain", phase, "seconds") / benchmark(name, phase, "seconds");
    let log_mb =
        |name: &str| PHASES.iter().map(|phase| benchmark(name, phase, "log_bytes")).sum::<f64>() / 1e6;
    let mut caches =
        Table::new("The benchmark, times the plain disk", "cache | untar | copy | remove | log written (MB)");
    for name in &CACHES[1..] {
        let gains = PHASES.map(|phase| format!("{}x", figure(gain(name, phase))));
        caches.row(std::iter::once((*name).to_owned()).chain(gains).chain([figure(log_mb(name))]));
    }
    let logs = settings.sizes("logs")?;
    let mut recovering = Table::new("Recovery", "log | dirty (MB) | reads | seconds");
    for &bytes in &logs {
        let get = |what: &str| samples.get(&recovery(bytes), what);
        let reads = format!("{}", get("disk_reads"));
        let log = dcd_stack::HumanBytes(bytes).to_string();
        recovering.row([log, figure(get("dirty_mb")), reads, figure(get("seconds"))]);
    }
    let compaction = 100.0 * log_mb("compaction") / log_mb(BASE);
    let mut claims = vec![settings.claim("compaction").range(compaction)];
    let mut locks =
        Table::new("The lock", "a buffer that is not full | users | cache | seconds | log written (MB)");
    let wait = format!("waits {}", settings.text("wait"));
    let written_at_once = [SEVERAL_USERS, ONE_USER].map(str::to_owned);
    for (reading, kinds) in
        [("waits for nothing", written_at_once), (wait.as_str(), [SEVERAL_USERS, ONE_USER].map(waiting))]
    {
        let sum = |kind: &str, name: &str, what: &str| -> f64 {
            PHASES.iter().map(|phase| at(kind, name, &format!("{phase}/{what}"))).sum()
        };
        for (kind, users) in kinds.iter().zip([settings.users()?, 1]) {
            for name in LOCKS {
                let (seconds, log_bytes) = (sum(kind, name, "seconds"), sum(kind, name, "log_bytes"));
                locks.row(cells![reading, users, name, seconds, log_bytes / 1e6]);
            }
        }
        let [several, alone] = kinds
            .each_ref()
            .map(|kind| LOCKS.map(|name| sum(kind, name, "seconds")))
            .map(|[one, other]| one / other);
        let claim = |id| settings.claim(id).with("reading", reading);
        claims.extend([
            claim("finer-lock").range(several),
            claim("lock").with("several", several).with("alone", alone).more([(several, alone)]),
        ]);
    }
    let series = CACHES[1..].iter().map(|name| Series::bars(*name, PHASES.map(|phase| gain(name, phase))));
    let plot = Plot::bars(
        "Each improvement alone",
        Axis::names("", PHASES),
        Axis::linear("times the plain disk"),
        series,
    );
    Ok(Findings { tables: vec![destaging, caches, locks, recovering], plots: vec![plot], claims })
}
