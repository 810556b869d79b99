//! Measures how much faster a disk writes in large units: the bandwidth that the log has over the small writes it replaces.

use dcd_crash::SimRng;
use dcd_engine::{Buf, Durability, Io, Lba, SECTOR_BYTES};

use super::prelude::*;
use crate::rig::Setup;

/// The paper's ratios: the bandwidth at 128 KB over that at the size.
const PAPER: [(u64, f64); 4] = [(1, 55.0), (2, 28.0), (4, 14.3), (8, 7.4)];
const LARGE_KIB: u64 = 128;

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let total = settings.bytes("total")?;
    let sizes = settings.sizes("sizes")?;
    if let Some(size) = sizes.iter().find(|size| **size == 0 || **size % SECTOR_BYTES != 0 || **size > total)
    {
        let problem = format!("{size} bytes is not a multiple of 512 between 512 and the total");
        return Err(LabError::BadValue { key: "sizes".to_owned(), problem });
    }
    let drive = settings.drive("drive")?.to_owned();
    let seed = settings.seed;
    let points = sizes.into_iter().map(|size| {
        let drive = drive.clone();
        Point::new(size.to_string(), move || measure(drive, size, total, mix(seed, size)))
    });
    Ok(points.collect())
}

pub(super) fn measure(drive: String, size: u64, total: u64, seed: u64) -> Result<Sample, LabError> {
    let mut rig = Setup::plain(drive).build(seed)?;
    let mut random = SimRng::new(seed);
    let sectors = size / SECTOR_BYTES;
    let places = rig.sectors() / sectors;
    let begin = rig.now();
    let count = total / size;
    for _ in 0..count {
        let at = Lba(random.below(places) * sectors);
        rig.request(Io::Write { at, buf: Buf::blank(size as usize), durability: Durability::Volatile })?;
    }
    let seconds = rig.now().since(begin).as_secs_f64();
    let mut sample = Sample::default();
    sample.set("bytes_per_second", (count * size) as f64 / seconds);
    sample.set("mean_ms", seconds * 1e3 / count as f64);
    Ok(sample)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let sizes = settings.sizes("sizes")?;
    let bandwidth = |size: u64| samples.get(&size.to_string(), "bytes_per_second");
    let large = LARGE_KIB << 10;
    let ratio = |size: u64| sizes.contains(&large).then(|| bandwidth(large) / bandwidth(size));
    let paper = |size: u64| PAPER.iter().find(|(kib, _)| kib << 10 == size).map(|(_, ratio)| *ratio);
    let mut table = Table::new(
        "Random writes",
        "size (KiB) | MB/s | mean (ms) | 128 KiB over it, paper | 128 KiB over it, ours",
    );
    for &size in &sizes {
        let show = |ratio: Option<f64>| ratio.map_or("–".to_owned(), |ratio| format!("{}x", figure(ratio)));
        let mean_ms = samples.get(&size.to_string(), "mean_ms");
        let (kib, mb) = (size as f64 / 1024.0, bandwidth(size) / 1e6);
        table.row(cells![kib, mb, mean_ms, show(paper(size)), show(ratio(size))]);
    }
    let mut claims = Vec::new();
    for (kib, paper) in PAPER.iter().filter(|(kib, _)| sizes.contains(&(kib << 10))) {
        let Some(ours) = ratio(kib << 10) else { continue };
        claims.push(settings.claim("ratio").with("kib", *kib).of_paper(Rule::Figure(*paper)).range(ours));
    }
    let points = sizes.iter().map(|&size| (size as f64 / 1024.0, bandwidth(size) / 1e6)).collect();
    let plot = Plot::lines(
        "Raw write bandwidth (Fig. 10)",
        Axis::log("size of a request (KiB)"),
        Axis::linear("MB/s"),
        [Series::new("ours", points)],
    );
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}
