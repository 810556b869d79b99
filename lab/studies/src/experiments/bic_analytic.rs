//! The paper's analytic model beside the simulation.

use super::prelude::*;
use crate::builtin::{BuiltinCase, DRIVE, WORKLOADS, gain_percent, measure, workload};
use dcd_model::drive;

/// Table 1.
const SYSTEM_CALL_MS: f64 = 0.01;
const COPY_MS_PER_KIB: f64 = 0.01;
/// Section 4.2, in KiB a ms.
const BUS_KIB_PER_MS: f64 = 18_000.0 / 1024.0;
const DISK_KIB_PER_MS: f64 = 18_000.0 / 1024.0;
const MISS_BUFFER: u64 = 32 << 20;
const SMALL: u64 = 512 << 10;
const LARGE: u64 = 16 << 20;

fn key(name: &str, buffer: u64, built_in: u64) -> String {
    format!("{name}, buffer {buffer}, built-in {built_in}")
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let runs = settings.count("runs")?;
    let mut points = Vec::new();
    for name in settings.choices("workloads", &WORKLOADS)? {
        let workload = workload(settings, name)?;
        for buffer in settings.sizes("buffers")? {
            for built_in_bytes in [SMALL, LARGE] {
                let case = BuiltinCase { built_in_bytes, ..BuiltinCase::new(buffer) };
                let (workload, seed) = (workload.clone(), settings.seed);
                points.push(Point::new(key(name, buffer, built_in_bytes), move || {
                    let mut sample = measure(&case, &workload, runs, seed)?;
                    let model = fsrt_ms(&sample)?;
                    sample.set("model_ms", model);
                    Ok(sample)
                }));
            }
        }
    }
    Ok(points)
}

/// Equations 1 to 4.
fn fsrt_ms(sample: &Sample) -> Result<f64, LabError> {
    let drive = drive::builtin(DRIVE).map_err(LabError::setup)?;
    let get = |name: &str| sample.numbers[name];
    let size = get("wait_kib");
    let positioning = drive.mean_seek().as_millis_f64() + drive.revolution().as_millis_f64() / 2.0;
    let mechanism = positioning + size / DISK_KIB_PER_MS;
    let overhead = drive.hit_overhead().as_millis_f64();
    let disk = overhead + size / BUS_KIB_PER_MS + get("wait_misses") * mechanism;
    let waits = get("waits") / get("calls").max(1.0);
    Ok(SYSTEM_CALL_MS + size * COPY_MS_PER_KIB + waits * disk)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let names = settings.choices("workloads", &WORKLOADS)?;
    let buffers = settings.sizes("buffers")?;
    let get = |name: &str, buffer: u64, size: u64, what: &str| samples.get(&key(name, buffer, size), what);
    let percent = |name: &str, buffer: u64, size: u64, what: &str| 100.0 * get(name, buffer, size, what);
    let mut table = Table::new(
        "Model and simulation, 512 KB of built-in cache",
        "workload | buffer cache | P_miss (%) | blocks missed (%) | P_DiskMiss (%) | \
            the same at 16 MB (%) | FSRT, model (ms) | FSRT, simulated (ms)",
    );
    let (mut disk_misses, mut falls) = (Vec::new(), Vec::new());
    for name in &names {
        for &buffer in &buffers {
            let (model, simulated) =
                (get(name, buffer, SMALL, "model_ms"), get(name, buffer, SMALL, "with_removals_ms"));
            disk_misses.push(percent(name, buffer, SMALL, "p_disk_miss"));
            falls.push(
                percent(name, buffer, SMALL, "p_disk_miss") - percent(name, buffer, LARGE, "p_disk_miss"),
            );
            let [miss, block, disk] =
                ["p_miss", "block_miss", "p_disk_miss"].map(|what| percent(name, buffer, SMALL, what));
            let large = percent(name, buffer, LARGE, "p_disk_miss");
            let human = dcd_stack::HumanBytes(buffer).to_string();
            table.row(cells![*name, human, miss, block, disk, large, model, simulated]);
        }
    }
    let claim = |id| settings.claim(id);
    let mut claims =
        vec![claim("disk-misses").spread(&disk_misses), claim("disk-misses-fall").spread(&falls)];
    if buffers.contains(&MISS_BUFFER) {
        let miss = |name: &str| percent(name, MISS_BUFFER, SMALL, "block_miss");
        let desktop = names.iter().filter(|name| !["WEB", "PostMark"].contains(name));
        let misses: Vec<f64> = desktop.map(|name| miss(name)).collect();
        if !misses.is_empty() {
            claims.push(claim("misses").spread(&misses));
        }
        for (name, id) in [("WEB", "misses-web"), ("PostMark", "misses-postmark")] {
            if names.contains(&name) {
                claims.push(claim(id).range(miss(name)));
            }
        }
    }
    if let [first, .., last] = buffers[..] {
        let at = |name: &str, buffer| percent(name, buffer, SMALL, "p_disk_miss");
        let ends: Vec<(f64, f64)> = names.iter().map(|name| (at(name, last), at(name, first))).collect();
        let rising = ends.iter().filter(|(large, small)| large > small).count();
        claims.push(claim("disk-misses-rise").with("rising", rising).with("all", names.len()).more(ends));
    }
    claims.extend(by_buffer(settings, &names, &buffers, &get));
    let buffer = buffers[0];
    let series = [("model", "model_ms"), ("simulated", "with_removals_ms")]
        .map(|(title, what)| Series::bars(title, names.iter().map(|name| get(name, buffer, SMALL, what))));
    let plot = Plot::bars(
        "Response time, model and simulation",
        Axis::names("", &names),
        Axis::linear("response time (ms)"),
        series,
    );
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}

/// Claims of section 5.1.1 about other buffer caches, and about the difference that the built-in cache makes.
fn by_buffer(
    settings: &Settings,
    names: &[&str],
    buffers: &[u64],
    get: &dyn Fn(&str, u64, u64, &str) -> f64,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    let delta = |name: &&str| {
        let of = |&buffer: &u64| {
            gain_percent(get(name, buffer, SMALL, "model_ms"), get(name, buffer, LARGE, "model_ms"))
        };
        buffers.iter().map(of).collect::<Vec<_>>()
    };
    let deltas: Vec<f64> = names.iter().flat_map(delta).collect();
    claims.push(settings.claim("delta").spread(&deltas));
    if buffers.len() > 1 {
        let ratio = |name: &&str| {
            let times: Vec<f64> =
                buffers.iter().map(|&buffer| get(name, buffer, SMALL, "access_ms")).collect();
            let most = most(times.iter().copied());
            most / least(times.iter().copied())
        };
        let ratios: Vec<f64> = names.iter().map(ratio).collect();
        claims.push(settings.claim("access").spread(&ratios));
    }
    claims
}
