//! A file system on the Atlas 10K with some built-in cache: what the experiments on built-in caches measure.
//!
//! What the paper leaves open is settled here, once for all its experiments:
//!
//! - *File system response time* is "measured after a file read or write request is issued". A read or write waits for all
//!   that the file system does to serve it, so opening, making and closing the file count with its reads and writes; removing
//!   one is neither. (The gains of write caching in the paper cannot come from writes alone: the buffer cache takes those.)
//! - The file system reads what the program asks for, and nothing ahead: Table 1 has no such parameter, the paper's
//!   readahead is the drive's.
//! - *P_DiskMiss* is the share of all requests to the disk; a write is a miss (section 4.3).
//! - PostMark's trace was recorded somewhere, and is played with the pauses in it.

use dcd_crash::{BlankDisk, Latency, VirtualDriver, mix};
use dcd_engine::{Geometry, Nanos, StackBuilder};
use dcd_model::ffs::{FfsConfig, OpKind, RequestClass};
use dcd_model::{Disk, DiskConfig, ReadAhead, WriteBackKind, WriteCache, drive};
use dcd_sim::workloads::{self, LoadPhase, Measured, PROFILES, PostMark, Synthetic, Workload};

use crate::{LabError, Point, Sample, Settings};

/// The five traces and PostMark.
pub(crate) const WORKLOADS: [&str; 6] = ["RES", "INS", "WEB", "HARP", "SITAR", "PostMark"];
pub(crate) const POSTMARK: &str = "PostMark";

/// Section 3.1 and 5.2.2: 2 MB in 10 segments.
pub(crate) const BUILT_IN_BYTES: u64 = 2 << 20;
pub(crate) const SEGMENTS: usize = 10;
/// Section 4.2: BusTR.
const BUS_BYTES_PER_SECOND: u64 = 18_000_000;
pub(crate) const DRIVE: &str = "atlas-10k";
/// Number of transactions for which one of PostMark stands.
const POSTMARK_SCALE: u32 = 10;

/// Pauses of PostMark's trace: some twenty transactions a second, as mail servers of the time had.
const POSTMARK_THINK: Nanos = Nanos::from_millis(50);

/// A disk under a file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuiltinCase {
    pub buffer_bytes: u64,
    pub built_in_bytes: u64,
    pub segments: usize,
    /// As many segments as files are being read.
    pub adaptive: bool,
    pub read_ahead: bool,
    pub write_cache: WriteCache,
    /// As the drive does it, if absent.
    pub write_back: Option<WriteBackKind>,
    /// Segments that may hold delayed writes.
    pub write_segments: usize,
}

impl BuiltinCase {
    pub fn new(buffer_bytes: u64) -> BuiltinCase {
        BuiltinCase {
            buffer_bytes,
            built_in_bytes: BUILT_IN_BYTES,
            segments: SEGMENTS,
            adaptive: false,
            read_ahead: true,
            write_cache: WriteCache::Off,
            write_back: None,
            write_segments: 1,
        }
    }
}

/// A workload by its name, shortened.
pub(crate) fn workload(settings: &Settings, name: &str) -> Result<Workload, LabError> {
    let scale: u32 = settings.count("scale")?;
    if name == POSTMARK {
        // The files stay as many as they are: they are what does not fit the caches.
        let full = PostMark { think: POSTMARK_THINK, ..PostMark::default() };
        let transactions = full.transactions / (POSTMARK_SCALE * scale);
        return Ok(Workload::PostMark(PostMark { transactions, ..full }));
    }
    let profile = PROFILES.iter().find(|profile| profile.name == name).expect("a name of WORKLOADS");
    let profile = dcd_sim::workloads::Profile { scale: profile.scale * f64::from(scale), ..*profile };
    Ok(Workload::Synthetic(Synthetic { profile }))
}

/// Every workload and buffer cache that the settings want, each in some cases.
pub(crate) fn points(
    settings: &Settings,
    cases: impl Fn(&str, u64) -> Vec<(String, BuiltinCase)>,
) -> Result<Vec<Point>, LabError> {
    let (runs, seed) = (settings.count("runs")?, settings.seed);
    let mut points = Vec::new();
    for name in settings.choices("workloads", &WORKLOADS)? {
        let workload = workload(settings, name)?;
        for buffer in settings.sizes("buffers")? {
            for (key, case) in cases(name, buffer) {
                let workload = workload.clone();
                points.push(Point::new(key, move || measure(&case, &workload, runs, seed)));
            }
        }
    }
    Ok(points)
}

fn run(case: &BuiltinCase, workload: &Workload, seed: u64) -> Result<Measured, LabError> {
    let config = DiskConfig {
        drive: DRIVE.to_owned(),
        segments: Some(case.segments),
        segment_bytes: Some(case.built_in_bytes / case.segments as u64 / 512 * 512),
        read_ahead: (!case.read_ahead).then_some(ReadAhead::None),
        write_cache: case.write_cache,
        write_back: case.write_back,
        bus: Some(BUS_BYTES_PER_SECOND),
        ..DiskConfig::default()
    };
    let drive = drive::builtin(DRIVE).and_then(|drive| config.change(drive)).map_err(LabError::setup)?;
    let drive = drive.with_write_segments(case.write_segments).map_err(LabError::setup)?;
    let drive = if case.adaptive { drive.with_adaptive_segments() } else { drive };
    let disk = Disk::with_drive(drive, &config);
    let geometry = Geometry { volatile_cache: false, ..Geometry::plain(disk.drive().sectors()) };
    let mut builder = StackBuilder::new();
    let device = builder.device(geometry);
    let root = builder.layer("disk", Box::new(disk), &[device]);
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(vec![BlankDisk::new(geometry, Latency::INSTANT, seed)]);
    stack.activate(&mut driver).map_err(LabError::setup)?;
    let ffs = FfsConfig { buffer_cache_bytes: case.buffer_bytes, read_ahead: false, ..FfsConfig::default() };
    workloads::run(&mut stack, &mut driver, &ffs, workload, seed).map_err(LabError::setup)
}

/// Runs a workload several times, and gives the means.
pub(crate) fn measure(
    case: &BuiltinCase,
    workload: &Workload,
    runs: u64,
    settings_seed: u64,
) -> Result<Sample, LabError> {
    Sample::mean(runs, |index| {
        let measured = run(case, workload, mix(settings_seed, index))?;
        // The phase that counts is the longest.
        let phase = match workload {
            Workload::PostMark(_) => measured.phase("transactions"),
            _ => measured.phases.last().expect("every workload has a phase"),
        };
        Ok(sample(phase))
    })
}

fn sample(phase: &LoadPhase) -> Sample {
    let mut sample = Sample::default();
    let status = &phase.layers[0].1;
    let of = |pointer: &str| status.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    let (reads, writes) = (of("/requests/read"), of("/requests/write"));
    let hits = of("/cache/hits") + of("/cache/read_ahead_hits");
    sample.set("disk_reads", reads);
    sample.set("disk_writes", writes);
    sample.set("p_disk_miss", 1.0 - hits / (reads + writes).max(1.0));
    sample.set("p_disk_read_miss", 1.0 - hits / reads.max(1.0));
    sample.set("write_share", writes / (reads + writes).max(1.0));
    sample.set("access_ms", of("/busy_ms") / (reads + writes).max(1.0));
    sample.set("request_ms", phase.requests.reads.mean().as_millis_f64());
    let Some(files) = &phase.files else { return sample };
    sample.set("fsrt_ms", files.file_response().as_millis_f64());
    let calls = (files.op(OpKind::Read).count() + files.op(OpKind::Write).count()) as f64;
    sample.set("call_kib", files.bytes_called as f64 / 1024.0 / calls.max(1.0));
    let disk_bytes = (phase.requests.bytes_read + phase.requests.bytes_written) as f64;
    sample.set("disk_kib", disk_bytes / 1024.0 / (reads + writes).max(1.0));
    // What a read or a write waits for in the disk.
    let waited = [RequestClass::DataRead, RequestClass::MetadataRead, RequestClass::SyncMetadata];
    let class = |class| files.class(class);
    let count = |kinds: &[RequestClass]| -> f64 {
        kinds.iter().map(|kind| class(*kind).response.count() as f64).sum()
    };
    sample.set("reads_of_waits", count(&waited[..2]) / count(&waited).max(1.0));
    sample.set("block_miss", files.data.miss_rate());
    sample
}

/// Returns how much less `after` is than `before`, in percent of `before`.
pub(crate) fn gain_percent(before: f64, after: f64) -> f64 {
    100.0 * (before - after) / before
}
