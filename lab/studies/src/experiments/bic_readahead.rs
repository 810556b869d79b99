//! Reading ahead in the drive: on against off.

use super::prelude::*;
use crate::builtin::{BuiltinCase, POSTMARK, WORKLOADS, gain_percent, points};

/// The paper's gains with 16 MB of buffer cache, in percent.
const PAPER: [(&str, f64); 5] = [("RES", 13.5), ("INS", 42.1), ("WEB", 6.0), ("HARP", 9.0), ("SITAR", 10.5)];
const SIZED: &str = "INS";
/// The other traces; with larger buffer caches their gains are "small": less than the least of INS.
const OTHER_TRACES: [&str; 4] = ["RES", "WEB", "HARP", "SITAR"];
const BUILT_IN: [u64; 3] = [512 << 10, 2 << 20, 16 << 20];
const SMALL_BUFFER: u64 = 16 << 20;

fn sized_key(name: &str, buffer: u64, built_in: u64, on: bool) -> String {
    format!("{name}, buffer {buffer}, built-in {built_in}, readahead {}", if on { "on" } else { "off" })
}

fn key(name: &str, buffer: u64, on: bool) -> String {
    format!("{name}, buffer {buffer}, readahead {}", if on { "on" } else { "off" })
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    points(settings, |name, buffer| {
        let is_sized = name == SIZED || (OTHER_TRACES.contains(&name) && buffer == SMALL_BUFFER);
        let sizes: &[u64] = if is_sized { &BUILT_IN } else { &[] };
        let both = |on| {
            let case = BuiltinCase { read_ahead: on, ..BuiltinCase::new(buffer) };
            let sized = sizes.iter().map(move |&built_in_bytes| {
                (sized_key(name, buffer, built_in_bytes, on), BuiltinCase { built_in_bytes, ..case })
            });
            std::iter::once((key(name, buffer, on), case)).chain(sized)
        };
        [true, false].into_iter().flat_map(both).collect()
    })
}

fn sized_gain(samples: &Samples, name: &str, buffer: u64, built_in: u64) -> f64 {
    let [off, on] = [false, true].map(|on| samples.get(&sized_key(name, buffer, built_in, on), "fsrt_ms"));
    gain_percent(off, on)
}

/// "We observed similar results for other four real-world traces" (section 5.2.1), here with the smallest buffer cache.
fn other_sizes(settings: &Settings, names: &[&str], buffers: &[u64], samples: &Samples) -> Option<Claim> {
    let others: Vec<&&str> = names.iter().filter(|name| OTHER_TRACES.contains(name)).collect();
    if others.is_empty() || !buffers.contains(&SMALL_BUFFER) {
        return None;
    }
    let of_best = |name: &&&str| {
        let gains = BUILT_IN.map(|size| sized_gain(samples, name, SMALL_BUFFER, size));
        100.0 * gains[0] / most(gains)
    };
    let shares: Vec<f64> = others.iter().map(of_best).collect();
    Some(settings.claim("other-sizes").spread(&shares))
}

/// Claims of section 5.2 about larger buffer caches.
fn larger_buffers(
    settings: &Settings,
    names: &[&str],
    buffers: &[u64],
    gain: &dyn Fn(&str, u64) -> f64,
) -> Vec<Claim> {
    let mut claims = Vec::new();
    if names.contains(&SIZED) {
        let gains: Vec<f64> = buffers.iter().map(|&buffer| gain(SIZED, buffer)).collect();
        claims.push(settings.claim("every-buffer").sizes(&gains));
    }
    let larger: Vec<u64> = buffers.iter().copied().filter(|buffer| *buffer > SMALL_BUFFER).collect();
    for name in names.iter().filter(|name| OTHER_TRACES.contains(name) && !larger.is_empty()) {
        let gains: Vec<f64> = larger.iter().map(|&buffer| gain(name, buffer)).collect();
        claims.push(settings.claim("larger-buffers").with("trace", *name).sizes(&gains));
    }
    claims
}

/// The gain by the size of the built-in cache (Fig. 2a).
fn by_size(settings: &Settings, buffers: &[u64], samples: &Samples) -> (Table, Vec<Claim>) {
    let gain = |buffer: u64, built_in: u64| sized_gain(samples, SIZED, buffer, built_in);
    let mut columns = vec!["buffer cache".to_owned()];
    columns.extend(BUILT_IN.map(|size| format!("{} (%)", dcd_stack::HumanBytes(size))));
    let mut table = Table::new(
        format!("Gain of readahead for {SIZED}, by the size of the built-in cache"),
        &columns.join(" | "),
    );
    let mut of_best = Vec::new();
    for &buffer in buffers {
        let gains = BUILT_IN.map(|size| gain(buffer, size));
        let best = most(gains.iter().copied());
        of_best.push(100.0 * gains[0] / best);
        let mut row = vec![dcd_stack::HumanBytes(buffer).to_string()];
        row.extend(gains.map(figure));
        table.row(row);
    }
    let mut claims = Vec::new();
    if buffers.contains(&SMALL_BUFFER) {
        let gains = BUILT_IN.map(|size| gain(SMALL_BUFFER, size));
        claims.push(settings.claim("all-sizes").sizes(&gains));
    }
    claims.push(settings.claim("nearly-all").sizes(&of_best));
    (table, claims)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let names = settings.choices("workloads", &WORKLOADS)?;
    let buffers = settings.sizes("buffers")?;
    let fsrt = |name: &str, buffer: u64, on: bool| samples.get(&key(name, buffer, on), "fsrt_ms");
    let gain = |name: &str, buffer: u64| gain_percent(fsrt(name, buffer, false), fsrt(name, buffer, true));
    let paper =
        |name: &str| PAPER.iter().find(|(known, _)| *known == name).map_or(f64::NAN, |(_, gain)| *gain);
    let mut table = Table::new(
        "Gain of readahead",
        "workload | buffer cache | off (ms) | on (ms) | gain, paper (%) | gain, ours (%) | \
            hits in the drive (%)",
    );
    for name in &names {
        for &buffer in &buffers {
            let hits = 100.0 * (1.0 - samples.get(&key(name, buffer, true), "p_disk_miss"));
            let [off, on] = [false, true].map(|on| fsrt(name, buffer, on));
            let paper = (buffer == SMALL_BUFFER).then(|| paper(name));
            let human = dcd_stack::HumanBytes(buffer).to_string();
            table.row(cells![*name, human, off, on, paper, gain(name, buffer), hits]);
        }
    }
    let mut claims = Vec::new();
    if buffers.contains(&SMALL_BUFFER) {
        for name in names.iter().filter(|name| **name != POSTMARK) {
            let of_reads = |what| 100.0 * samples.get(&key(name, SMALL_BUFFER, true), what);
            let claim = settings.claim("gain").with("trace", *name).of_paper(Rule::Share(paper(name)));
            let claim = claim.with("hits", format!("{:.1}", 100.0 - of_reads("p_disk_read_miss")));
            let claim = claim.with("waits", format!("{:.0}", of_reads("reads_of_waits")));
            claims.push(claim.range(gain(name, SMALL_BUFFER)));
        }
        let largest = buffers.iter().copied().max().unwrap_or(SMALL_BUFFER);
        for name in names.iter().filter(|name| OTHER_TRACES.contains(name) && largest > SMALL_BUFFER) {
            let (small, large) = (gain(name, SMALL_BUFFER), gain(name, largest));
            let buffer = dcd_stack::HumanBytes(largest).to_string();
            let claim = settings.claim("falls").with("trace", *name).with("buffer", buffer);
            claims.push(claim.range(large / small));
        }
        if largest > SMALL_BUFFER && names.contains(&"INS") {
            let buffer = dcd_stack::HumanBytes(largest).to_string();
            claims.push(settings.claim("largest-buffer").with("buffer", buffer).range(gain("INS", largest)));
        }
    }
    if names.contains(&POSTMARK) {
        let gains: Vec<f64> = buffers.iter().map(|&buffer| gain(POSTMARK, buffer)).collect();
        claims.push(settings.claim("gain-postmark").sizes(&gains));
    }
    let (sizes, size_claims) = by_size(settings, &buffers, samples);
    claims.extend(size_claims);
    claims.extend(larger_buffers(settings, &names, &buffers, &gain));
    claims.extend(other_sizes(settings, &names, &buffers, samples));
    let series = names.iter().map(|name| {
        let point = |buffer: &u64| (*buffer as f64 / f64::from(1 << 20), gain(name, *buffer));
        Series::new(*name, buffers.iter().map(point).collect())
    });
    let plot = Plot::lines(
        "Gain of readahead (Fig. 2a)",
        Axis::log("buffer cache (MiB)"),
        Axis::linear("gain (%)"),
        series,
    );
    Ok(Findings { tables: vec![table, sizes], plots: vec![plot], claims })
}
