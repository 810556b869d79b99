//! Larger built-in caches: how much the file system gains.

use super::prelude::*;
use crate::builtin::{BuiltinCase, WORKLOADS, gain_percent, measure, workload};

const SMALL: u64 = 512 << 10;
const LARGE: u64 = 16 << 20;
fn key(name: &str, buffer: u64, size: u64) -> String {
    format!("{name}, buffer {buffer}, built-in {size}")
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let runs = settings.count("runs")?;
    let mut points = Vec::new();
    for name in settings.choices("workloads", &WORKLOADS)? {
        let workload = workload(settings, name)?;
        for buffer in settings.sizes("buffers")? {
            for size in settings.sizes("sizes")? {
                let case = BuiltinCase { built_in_bytes: size, ..BuiltinCase::new(buffer) };
                let (workload, seed) = (workload.clone(), settings.seed);
                points
                    .push(Point::new(key(name, buffer, size), move || measure(&case, &workload, runs, seed)));
            }
        }
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let names = settings.choices("workloads", &WORKLOADS)?;
    let (buffers, sizes) = (settings.sizes("buffers")?, settings.sizes("sizes")?);
    let fsrt = |name: &str, buffer: u64, size: u64| samples.get(&key(name, buffer, size), "fsrt_ms");
    let human = |bytes: u64| dcd_stack::HumanBytes(bytes).to_string();
    let ends = (sizes.iter().copied().min().unwrap_or(0), sizes.iter().copied().max().unwrap_or(0));
    let mut columns = vec!["workload".to_owned(), "buffer cache".to_owned()];
    columns.extend(sizes.iter().map(|size| format!("{} (ms)", human(*size))));
    columns.push("gain from the smallest to the largest".to_owned());
    let mut table = Table::new("File system response time", &columns.join(" | "));
    for name in &names {
        for &buffer in &buffers {
            let mut row = vec![(*name).to_owned(), human(buffer)];
            row.extend(sizes.iter().map(|size| figure(fsrt(name, buffer, *size))));
            let gain = gain_percent(fsrt(name, buffer, ends.0), fsrt(name, buffer, ends.1));
            row.push(format!("{} %", figure(gain)));
            table.row(row);
        }
    }
    let mut claims = Vec::new();
    if ends == (SMALL, LARGE) {
        for mib in [16, 128].into_iter().filter(|mib| buffers.contains(&(mib << 20))) {
            let gain = |name: &&str| gain_percent(fsrt(name, mib << 20, SMALL), fsrt(name, mib << 20, LARGE));
            let gains: Vec<f64> = names.iter().map(gain).collect();
            claims.push(settings.claim(&format!("buffer-{mib}")).spread(&gains));
        }
    }
    let plots = buffers.iter().map(|&buffer| {
        Plot::lines(
            format!("Response time by built-in cache, {} of buffer cache (Fig. 1)", human(buffer)),
            Axis::log("built-in cache (KiB)"),
            Axis::log("file system response time (ms)"),
            names.iter().map(|name| {
                let point = |size: &u64| (*size as f64 / 1024.0, fsrt(name, buffer, *size));
                Series::new(*name, sizes.iter().map(point).collect())
            }),
        )
    });
    Ok(Findings { tables: vec![table], plots: plots.collect(), claims })
}
