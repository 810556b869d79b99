//! The study of write caches in NVRAM (Biswas, Ramakrishnan, Towsley 1993): its disks, a run, and its metrics.
//!
//! The paper's traces cannot be had. In their place are traces that `dcd-trace` makes from what the paper states of them
//! (its Tables 3.1 and 4.5). What that leaves free was fitted once, to the baselines of Table 4.6 and to what Tables 4.3 and
//! 4.4 say of two thresholds by tracks (for Sci-Off also to section 4.2's sizes, for Air-Rsv to the stalls of Table 4.2); the presets say which number comes from
//! where. So the claims on those few points are no test of the traces; those on all other policies, units and sizes are.

pub(crate) mod real;
mod replay;
mod sites;

use dcd_engine::Nanos;
use dcd_model::write_cache::{Metrics, RegionUnit, WriteCacheConfig};

use crate::{LabError, Point, Sample, Settings};

pub(crate) use replay::{ReplayCase, replay};
pub(crate) use sites::{
    AIR_RSV, AIR_RSV_OTHERS, Like, OFF_DAY, OFF_DAY_OTHERS, PRIVATE, SCI_OFF, SCI_OFF_OTHERS, SITES, Site,
    Trace, synthesised,
};

/// The disks that the user asks for.
pub(crate) fn chosen(settings: &Settings) -> Result<Vec<&'static Site>, LabError> {
    let names: Vec<&str> = SITES.iter().map(|site| site.name).collect();
    let chosen = settings.choices("disks", &names)?;
    Ok(SITES.into_iter().filter(|site| chosen.contains(&site.name)).collect())
}

/// The paper's cache: 512-byte blocks, safe without power, one operation at the disk at a time, two thresholds.
pub(crate) const PAPERS: WriteCacheConfig =
    WriteCacheConfig { non_volatile: true, ..WriteCacheConfig::DEFAULT };

/// The paper's cache with the sizes that the user asks for.
pub(crate) fn config(settings: &Settings) -> Result<WriteCacheConfig, LabError> {
    let (read_bytes, write_bytes) = (settings.ram("read-cache")?, settings.ram("write-cache")?);
    Ok(WriteCacheConfig { read_bytes, write_bytes, ..PAPERS })
}

/// The metrics of section 3.3, and the others of the tables of section 4, by name.
pub(crate) fn sample(metrics: &Metrics, block_bytes: u32) -> Sample {
    let mut sample = Sample::default();
    let read_work = metrics.read_service.as_secs_f64();
    let write_work = metrics.write_service.as_secs_f64();
    let milliseconds = |span: Nanos| span.as_secs_f64() * 1e3;
    for (name, value) in [
        ("wwc", metrics.writes_with_caching()),
        ("rwc", metrics.reads_with_caching()),
        ("stalls", metrics.io_stall()),
        ("piggyback", metrics.piggyback_success()),
        ("overwritten", metrics.dirty_overwritten()),
        ("several", metrics.purges_of_several()),
        ("purge_kb", metrics.kilobytes_per_purge(block_bytes)),
        ("piggyback_kb", metrics.kilobytes_per_piggyback(block_bytes)),
        ("read_service_ms", milliseconds(metrics.read_service_mean())),
        ("write_service_ms", milliseconds(metrics.write_service_mean())),
        ("read_queue_ms", milliseconds(metrics.read_queueing_mean())),
        ("read_queue_behind_writes_ms", milliseconds(metrics.read_queueing_behind_writes_mean())),
        ("read_work_s", read_work),
        ("write_work_s", write_work),
        ("total_work_s", read_work + write_work),
        ("ios", (metrics.disk_reads + metrics.disk_writes) as f64),
        ("disk_reads", metrics.disk_reads as f64),
        ("disk_writes", metrics.disk_writes as f64),
        ("hit_in_read_cache", metrics.blocks_hit_in_read_cache as f64),
        ("hit_in_write_cache", metrics.blocks_hit_in_write_cache as f64),
        ("immediate", metrics.immediate_purges as f64),
    ] {
        sample.set(name, value);
    }
    sample
}

/// A point: one disk under its trace.
pub(crate) fn point(
    key: String,
    site: &Site,
    config: WriteCacheConfig,
    unit: RegionUnit,
    trace: &Trace,
) -> Point {
    let case = ReplayCase { config, unit, drives: vec![site.drive] };
    let trace = trace.clone();
    Point::new(key, move || Ok(sample(&replay(&case, trace.records()?)?.all, case.config.block_bytes)))
}
