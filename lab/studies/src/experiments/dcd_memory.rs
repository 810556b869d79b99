//! Measures the RAM that a cache of 64 MB takes.

use super::prelude::*;
use crate::clients::{Load, work};
use crate::configurations::like_paper;
use crate::rig::Setup;

const PARTS: [(&str, &str); 4] = [
    ("buffers_bytes", "RAM buffer"),
    ("table_bytes", "lookup table"),
    ("ring_bytes", "segments"),
    ("destage_bytes", "destage buffer"),
];

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let requests = settings.count("requests")?;
    let drive = settings.drive("drive")?.to_owned();
    let seed = settings.seed;
    let points = settings.sizes("cache")?.into_iter().map(|bytes| {
        let drive = drive.clone();
        Point::new(bytes.to_string(), move || measure(drive, bytes, requests, mix(seed, bytes)))
    });
    Ok(points.collect())
}

fn measure(drive: String, log_bytes: u64, requests: u64, seed: u64) -> Result<Sample, LabError> {
    let mut cache = like_paper();
    cache.log_bytes = log_bytes;
    let destage = cache.config.destage_memory;
    let setup = Setup { data_first: log_bytes, cache: Some(cache), ..Setup::plain(drive) };
    let mut rig = setup.build(seed)?;
    work(&mut rig, &Load { users: 4, requests, reads_percent: 0, overwrites_percent: 20 }, seed)?;
    let status = rig.cache_status();
    let mut sample = Sample::default();
    for (field, _) in PARTS.iter().take(3) {
        sample.set(*field, status[*field].as_f64().unwrap_or(f64::NAN));
    }
    sample.set("destage_bytes", destage as f64);
    Ok(sample)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let sizes = settings.sizes("cache")?;
    let kib = |bytes: u64, field: &str| samples.get(&bytes.to_string(), field) / 1024.0;
    let total = |bytes: u64| PARTS.iter().map(|(field, _)| kib(bytes, field)).sum::<f64>();
    let mut columns = vec!["cache-disk (MiB)"];
    columns.extend(PARTS.iter().map(|(_, name)| *name));
    columns.push("in all");
    let mut table = Table::new("RAM (KiB)", &columns.join(" | "));
    for &bytes in &sizes {
        let mut row = vec![figure(bytes as f64 / f64::from(1 << 20))];
        row.extend(PARTS.iter().map(|(field, _)| figure(kib(bytes, field))));
        row.push(figure(total(bytes)));
        table.row(row);
    }
    let points = sizes.iter().map(|&bytes| (bytes as f64 / f64::from(1 << 20), total(bytes))).collect();
    let plot = Plot::lines(
        "RAM by the size of the cache",
        Axis::log("cache-disk (MiB)"),
        Axis::linear("RAM (KiB)"),
        [Series::new("ours", points)],
    );
    Ok(Findings { tables: vec![table], plots: vec![plot], ..Findings::default() })
}
