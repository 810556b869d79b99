//! A file system on the Atlas 10K with some built-in cache: what the experiments on built-in caches measure.

use dcd_engine::{Geometry, StackBuilder};
use dcd_model::ffs::{FfsConfig, RequestClass};
use dcd_model::{Disk, DiskConfig, ReadAhead, WriteCache};
use dcd_sim::workloads::{self, Measured, PROFILES, PostMark, Synthetic, Workload};
use dcd_sim::{BlankDisk, Latency, VirtualDriver};

use crate::{LabError, Param, Sample, Settings};

/// The five traces and PostMark.
pub(crate) const WORKLOADS: [&str; 6] = ["RES", "INS", "WEB", "HARP", "SITAR", "PostMark"];
pub(crate) const POSTMARK: &str = "PostMark";

/// Section 3.1 and 5.2.2: 2 MB in 10 segments.
pub(crate) const BUILT_IN_BYTES: u64 = 2 << 20;
pub(crate) const SEGMENTS: usize = 10;
/// Section 4.2: BusTR.
const BUS_BYTES_PER_SECOND: u64 = 18_000_000;
pub(crate) const DRIVE: &str = "atlas-10k";

pub(crate) const WORKLOADS_PARAM: Param =
    Param { key: "workloads", default: "RES,INS,WEB,HARP,SITAR,PostMark", about: "what is run" };
pub(crate) const SCALE: Param = Param {
    key: "scale",
    default: "1",
    about: "runs shortened by this factor, on top of each workload's own",
};
pub(crate) const BUFFER: Param =
    Param { key: "buffer", default: "16MiB", about: "the buffer cache of the file system" };
pub(crate) const BUFFERS: Param =
    Param { key: "buffers", default: "16MiB,32MiB,128MiB", about: "sizes of the file system's buffer cache" };

/// One disk under one file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub buffer_bytes: u64,
    pub built_in_bytes: u64,
    pub segments: usize,
    pub read_ahead: bool,
    pub write_cache: WriteCache,
}

impl Case {
    pub fn new(buffer_bytes: u64) -> Case {
        Case {
            buffer_bytes,
            built_in_bytes: BUILT_IN_BYTES,
            segments: SEGMENTS,
            read_ahead: true,
            write_cache: WriteCache::Off,
        }
    }
}

/// A workload by its name, shortened.
pub(crate) fn workload(settings: &Settings, name: &str) -> Result<Workload, LabError> {
    let scale: u32 = settings.number("scale")?;
    if scale == 0 {
        let problem = "it must be at least 1".to_owned();
        return Err(LabError::BadValue { key: "scale".to_owned(), problem });
    }
    if name == POSTMARK {
        // The files stay as many as they are: they are what does not fit the caches.
        let full = PostMark::default();
        return Ok(Workload::PostMark(PostMark { transactions: full.transactions / (4 * scale), ..full }));
    }
    let profile = PROFILES.iter().find(|profile| profile.name == name).expect("a name of WORKLOADS");
    let profile = dcd_sim::workloads::Profile { scale: profile.scale * f64::from(scale), ..*profile };
    Ok(Workload::Synthetic(Synthetic { profile }))
}

fn run(case: &Case, workload: &Workload, seed: u64) -> Result<Measured, LabError> {
    let setup_error = |e: &dyn std::fmt::Display| LabError::Setup(e.to_string());
    let config = DiskConfig {
        drive: DRIVE.to_owned(),
        segments: Some(case.segments),
        segment_bytes: Some(case.built_in_bytes / case.segments as u64 / 512 * 512),
        read_ahead: (!case.read_ahead).then_some(ReadAhead::None),
        write_cache: case.write_cache,
        bus: Some(BUS_BYTES_PER_SECOND),
        ..DiskConfig::default()
    };
    let disk = Disk::new(&config).map_err(|e| setup_error(&e))?;
    let geometry = Geometry { volatile_cache: false, ..Geometry::plain(disk.drive().sectors()) };
    let mut builder = StackBuilder::new();
    let device = builder.device(geometry);
    let root = builder.layer("disk", Box::new(disk), &[device]);
    let mut stack = builder.finish(root);
    let mut driver = VirtualDriver::new(vec![BlankDisk::new(geometry, Latency::INSTANT, seed)]);
    stack.activate(&mut driver).map_err(|e| setup_error(&e))?;
    let ffs = FfsConfig { buffer_cache_bytes: case.buffer_bytes, ..FfsConfig::default() };
    workloads::run(&mut stack, &mut driver, &ffs, workload, seed).map_err(|e| setup_error(&e))
}

/// Runs a workload; the phase that counts is the longest.
pub(crate) fn measure(case: &Case, workload: &Workload, seed: u64) -> Result<Sample, LabError> {
    let measured = run(case, workload, seed)?;
    let phase = match workload {
        Workload::PostMark(_) => measured.phase("transactions"),
        _ => measured.phases.last().expect("every workload has a phase"),
    };
    let files = phase.files.as_ref().expect("it runs in a file system");
    let mut sample = Sample::default();
    sample.set("fsrt_ms", files.read_write_response().as_millis_f64());
    sample.set("p_miss", files.data.miss_rate());
    let calls =
        files.op(dcd_model::ffs::OpKind::Read).count() + files.op(dcd_model::ffs::OpKind::Write).count();
    sample.set("calls", calls as f64);
    // What a call waits for: reads of data and of metadata, and metadata that is written at once.
    let waited = [RequestClass::DataRead, RequestClass::MetadataRead];
    let times = waited.map(|class| (files.class(class).response.count(), files.class(class).response.mean()));
    let count: u64 = times.iter().map(|(count, _)| count).sum();
    let sum: f64 = times.iter().map(|(count, mean)| *count as f64 * mean.as_millis_f64()).sum();
    sample.set("waited_reads", count as f64);
    sample.set("read_response_ms", sum / (count as f64).max(1.0));
    let bytes: u64 = waited.iter().map(|class| files.class(*class).bytes).sum();
    sample.set("request_kib", bytes as f64 / 1024.0 / (count as f64).max(1.0));
    let status = &phase.layers[0].1;
    let of = |pointer: &str| status.pointer(pointer).and_then(serde_json::Value::as_f64).unwrap_or(f64::NAN);
    let hits = of("/cache/hits") + of("/cache/read_ahead_hits");
    sample.set("p_disk_miss", 1.0 - hits / of("/requests/read").max(1.0));
    sample.set("disk_reads", of("/requests/read"));
    sample.set("disk_writes", of("/requests/write"));
    Ok(sample)
}

/// How much less time the second takes, in percent of the first.
pub(crate) fn gain_percent(before: f64, after: f64) -> f64 {
    100.0 * (before - after) / before
}
