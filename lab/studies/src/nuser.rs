//! The N-user benchmark on a disk, as several experiments use it: one run of untar, copy and remove, and all that is
//! measured in it.

use dcd_engine::{Nanos, Pump};
use dcd_model::Histogram;
use dcd_model::Scheduler;
use dcd_model::ffs::{CpuCosts, FfsConfig, RequestClass};
use dcd_sim::workloads::{self, LoadPhase, NUser, Workload};
use serde::{Deserialize, Serialize};

use crate::configurations;
use crate::rig::{LOCK, LOG_PROFILE, LogPlace, PROFILE, Setup, Traffic};
use crate::{LabError, Sample, Settings};

/// From so many users on a phase writes more than the paper's log holds, and more metadata than its host keeps in memory.
pub(crate) const MANY_USERS: u32 = 8;

/// The phases of a run, in order.
pub(crate) const PHASES: [&str; 3] = ["untar", "copy", "remove"];

/// Response times are counted in buckets of a millisecond up to here (Fig. 11 and 12 end there).
pub(crate) const HISTOGRAM_MS: usize = 500;

fn queue(settings: &Settings) -> Result<Scheduler, LabError> {
    let queues = [("c-look", Scheduler::CLook), ("sptf", Scheduler::Sptf), ("fcfs", Scheduler::Fcfs)];
    settings.choice("queue", &queues)
}

/// The paper's host, with clusters as the user wants them, and what writes to this disk cost it.
pub(crate) fn file_system(settings: &Settings, disk: &Setup) -> Result<FfsConfig, LabError> {
    let cluster_bytes = settings.bytes32("cluster")?;
    // The instant log is a measure of what is left of the plain disk's time.
    let is_cached = disk.cache.as_ref().is_some_and(|cache| cache.place != LogPlace::Instant);
    let cpu = if is_cached { CpuCosts::ULTRA_1_WITH_CACHE } else { CpuCosts::ULTRA_1 };
    Ok(FfsConfig { cluster_bytes, cpu, ..FfsConfig::ultra_1() })
}

fn segments(settings: &Settings) -> Result<Option<usize>, LabError> {
    if settings.text("segments") == "own" {
        return Ok(None);
    }
    settings.count("segments").map(Some)
}

/// The disk alone, as the user wants it.
pub(crate) fn disk(settings: &Settings) -> Result<Setup, LabError> {
    let drive = settings.drive("drive")?.to_owned();
    Ok(Setup { queue: queue(settings)?, segments: segments(settings)?, ..Setup::plain(drive) })
}

/// A disk with one of the caches of [`configurations`], or none.
pub(crate) fn setup(settings: &Settings, disk: &str) -> Result<Setup, LabError> {
    let (data_first, cache) = (settings.bytes("cache")?, configurations::chosen(settings, disk)?);
    Ok(Setup { data_first, cache, ..self::disk(settings)? })
}

/// Measures a run; the numbers of a phase begin with its name.
pub(crate) fn measure(
    setup: &Setup,
    ffs: &FfsConfig,
    benchmark: NUser,
    seed: u64,
) -> Result<Sample, LabError> {
    let mut rig = setup.build(seed)?;
    let workload = Workload::NUser(benchmark);
    let begin = rig.traffic();
    let measured =
        workloads::run(&mut rig.stack, &mut rig.driver, ffs, &workload, seed).map_err(LabError::setup)?;
    let mut sample = Sample::default();
    for phase in &measured.phases {
        add_phase(&mut sample, phase);
    }
    let destaging = rig.drain();
    sample.set("destage_seconds", destaging.as_secs_f64());
    let end = rig.traffic();
    let mut set = |name: &str, what: fn(&Traffic) -> u64| {
        let parts = [("log", &begin.0, &end.0), ("data", &begin.1, &end.1)];
        for (part, begin, end) in parts {
            sample.set(format!("{part}_{name}"), (what(end) - what(begin)) as f64);
        }
    };
    set("reads", |traffic| traffic.reads);
    set("writes", |traffic| traffic.writes);
    set("bytes_read", |traffic| traffic.bytes_read);
    set("bytes_written", |traffic| traffic.bytes_written);
    debug_assert!(rig.driver.now() >= measured.ended);
    Ok(sample)
}

/// Response times of requests of one kind.
#[derive(Serialize, Deserialize)]
pub(crate) struct NuserTimes {
    count: u64,
    mean_ms: f64,
    /// Parts of all: of those up to a millisecond, and of each millisecond up to [`HISTOGRAM_MS`].
    under_1ms: f64,
    histogram: Vec<f64>,
}

impl NuserTimes {
    pub fn of(times: &Histogram) -> NuserTimes {
        let up_to = |ms: usize| share_up_to(times, Nanos::from_millis(ms as u64));
        let each = (0..HISTOGRAM_MS).map(|ms| up_to(ms + 1) - if ms == 0 { 0.0 } else { up_to(ms) });
        NuserTimes {
            count: times.count(),
            mean_ms: times.mean().as_millis_f64(),
            under_1ms: up_to(1),
            histogram: each.collect(),
        }
    }

    fn add_to(self, sample: &mut Sample, prefix: &str) {
        sample.set(format!("{prefix}s"), self.count as f64);
        if self.count > 0 {
            sample.set(format!("{prefix}_ms"), self.mean_ms);
            sample.set(format!("{prefix}_under_1ms"), self.under_1ms);
            sample.set_list(format!("{prefix}_histogram"), self.histogram);
        }
    }
}

fn add_phase(sample: &mut Sample, phase: &LoadPhase) {
    let mut set = |name: &str, value: f64| sample.set(format!("{}/{name}", phase.name), value);
    set("seconds", phase.elapsed.as_secs_f64());
    set("cpu_share", phase.cpu_share());
    for (kind, times) in [("read", &phase.requests.reads), ("write", &phase.requests.writes)] {
        NuserTimes::of(times).add_to(sample, &format!("{}/{kind}", phase.name));
    }
    add_layers(sample, phase);
    let Some(files) = &phase.files else { return };
    for class in RequestClass::ALL {
        let mut set = |name: &str, value: f64| sample.set(format!("{}/{name}", phase.name), value);
        set(class.name(), files.class(class).response.count() as f64);
    }
    sample.set(format!("{}/waited_for_reads", phase.name), files.waited_for_reads.as_secs_f64());
    for (kind, wanted) in [("write", false), ("read", true)] {
        let mut sizes = std::collections::BTreeMap::new();
        for class in
            RequestClass::ALL.into_iter().filter(|c| *c != RequestClass::Flush && c.is_read() == wanted)
        {
            for (bytes, count) in &files.class(class).sizes {
                *sizes.entry(*bytes).or_insert(0) += count;
            }
        }
        let name = |what: &str| format!("{}/{kind}_{what}", phase.name);
        sample.set_list(name("sizes"), sizes.keys().map(|bytes| *bytes as f64).collect());
        sample.set_list(name("counts"), sizes.values().map(|count| *count as f64).collect());
    }
}

/// Adds what the disk and the cache did in a phase.
fn add_layers(sample: &mut Sample, phase: &LoadPhase) {
    const WANTED: [(&str, &str, &str); 22] = [
        ("disk", "/busy_ms", "disk_busy_ms"),
        ("disk", "/requests/read", "disk_reads"),
        ("disk", "/requests/write", "disk_writes"),
        ("disk", "/data/hits", "data_hits"),
        ("disk", "/data/read_ahead_hits", "data_read_ahead_hits"),
        ("disk", "/queued_ms/read", "disk_read_queued_ms"),
        ("disk", "/queued_ms/write", "disk_write_queued_ms"),
        ("cache", "/statistics/read_hits", "log_read_hits"),
        ("cache", "/statistics/log_writes", "log_writes"),
        ("cache", "/statistics/log_bytes", "log_bytes"),
        ("cache", "/statistics/log_write_requests_max", "log_write_requests_max"),
        ("cache", "/statistics/destage_writes", "destage_writes"),
        ("cache", "/statistics/destage_busy_ms", "destage_busy_ms"),
        (PROFILE, "/by_slots", "requests_by_slots"),
        (PROFILE, "/aligned", "requests_aligned"),
        (PROFILE, "/overlapping", "requests_overlapping"),
        (PROFILE, "/aligned_alone", "requests_aligned_alone"),
        (PROFILE, "/few_lines", "requests_of_few_lines"),
        (PROFILE, "/slots_written", "slots_written"),
        (PROFILE, "/overwritten_30s", "overwritten_30s"),
        (PROFILE, "/overwritten_1000s", "overwritten_1000s"),
        (LOG_PROFILE, "/longest_write_ms", "longest_log_write_ms"),
    ];
    for (layer, status) in &phase.layers {
        for kind in ["read", "write"].into_iter().filter(|_| layer == LOCK) {
            if let Ok(times) = serde_json::from_value::<NuserTimes>(status[kind].clone()) {
                times.add_to(sample, &format!("{}/inside_{kind}", phase.name));
            }
        }
        for (_, pointer, name) in WANTED.iter().filter(|(wanted, _, _)| wanted == layer) {
            if let Some(value) = status.pointer(pointer).and_then(serde_json::Value::as_f64) {
                sample.set(format!("{}/{name}", phase.name), value);
            }
        }
    }
}

/// The part of the times up to a time, to a bucket of the histogram.
fn share_up_to(times: &Histogram, limit: Nanos) -> f64 {
    let within: u64 = times.buckets().take_while(|(end, _)| *end <= limit).map(|(_, count)| count).sum();
    within as f64 / times.count().max(1) as f64
}
