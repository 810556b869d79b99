//! The largest possible speed-up of a remove, and how much of it is reached.
//!
//! Two bounds stand side by side. The paper's is an estimate: each write could be as much faster as the disk's bandwidth
//! is larger with writes of 128 KB, and nothing else changes. Ours is measured: the same cache with a log that takes no time.

use dcd_sim::workloads::NUser;

use super::dcd_rawwrite;
use super::prelude::*;
use crate::nuser::{self, PHASES};

const SHOWN: [&str; 5] = ["plain", "paper", "ours ordered", "ours flush", "instant log"];
/// Size in KiB and the paper's share of the requests, in percent.
const MIX: [(u64, f64); 3] = [(8, 50.0), (2, 15.0), (1, 35.0)];
const LARGE_KIB: u64 = 128;
const RAW_BYTES: u64 = 20_000_000;
const PAPER_READS_AND_CPU: f64 = 7.0;
const PAPER_WRITES: f64 = 25.4;
const PAPER_BOUND: f64 = 9.4;

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let (users, pause) = (settings.users()?, settings.span("pause")?);
    let mut points = Vec::new();
    for disk in SHOWN {
        for run in 0..settings.count::<u64>("runs")? {
            let setup = nuser::setup(settings, disk)?;
            let ffs = nuser::file_system(settings, &setup)?;
            let benchmark = NUser { users, pause, ..NUser::default() };
            let seed = mix(settings.seed, run);
            points.push(Point::new(key(disk, run), move || nuser::measure(&setup, &ffs, benchmark, seed)));
        }
    }
    let seed = mix(settings.seed, 0);
    for kib in MIX.iter().map(|(kib, _)| *kib).chain([LARGE_KIB]) {
        let drive = settings.drive("drive")?.to_owned();
        points.push(Point::new(raw(kib), move || dcd_rawwrite::measure(drive, kib << 10, RAW_BYTES, seed)));
    }
    Ok(points)
}

fn key(disk: &str, run: u64) -> String {
    format!("{disk}, run {run}")
}

fn raw(kib: u64) -> String {
    format!("raw writes of {kib} KiB")
}

/// The share of the plain disk's writes in the removes that have a size, in percent.
fn share(samples: &Samples, runs: u64, kib: u64) -> f64 {
    let (mut all, mut of_size) = (0.0, 0.0);
    for run in 0..runs {
        let list = |name: &str| samples.list(&key("plain", run), &format!("remove/write_{name}"));
        for (size, count) in list("sizes").iter().zip(list("counts")) {
            all += count;
            of_size += if *size == (kib << 10) as f64 { *count } else { 0.0 };
        }
    }
    100.0 * of_size / all
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let runs: u64 = settings.count("runs")?;
    let bandwidth = |kib: u64| samples.get(&raw(kib), "bytes_per_second");
    let ratio = |kib: u64| bandwidth(LARGE_KIB) / bandwidth(kib);
    let shares = MIX.map(|(kib, _)| share(samples, runs, kib) / 100.0);
    let known: f64 = shares.iter().sum();
    let writes: f64 = MIX.iter().zip(shares).map(|((kib, _), share)| share / known * ratio(*kib)).sum();
    let mean = |disk: &str, name: &str| -> f64 {
        (0..runs).map(|run| samples.get(&key(disk, run), name)).sum::<f64>() / runs as f64
    };
    let seconds = |disk: &str, phase: &str| mean(disk, &format!("{phase}/seconds"));
    let gain = |disk: &str, phase: &str| seconds("plain", phase) / seconds(disk, phase);
    // What is left when writes take no time is what reads and the processor need.
    let rest = seconds("instant log", "remove") / seconds("plain", "remove");
    let bound = 1.0 / (rest + (1.0 - rest) / writes);
    let mut mix_table =
        Table::new("Writes of the remove", "size (KiB) | paper (%) | ours (%) | 128 KiB over it");
    for (kib, paper) in MIX {
        let ratio = format!("{}x", figure(ratio(kib)));
        mix_table.row(cells![kib, paper, share(samples, runs, kib), ratio]);
    }
    let mut table = Table::new("Speed-up over the plain disk", "disk | untar | copy | remove");
    for disk in SHOWN {
        let mut row = vec![disk.to_owned()];
        row.extend(PHASES.map(|phase| format!("{}x", figure(gain(disk, phase)))));
        table.row(row);
    }
    let mut claims = Vec::new();
    for (kib, paper) in MIX {
        let claim = settings.claim("mix").with("kib", kib).of_paper(Rule::Share(paper));
        claims.push(claim.range(share(samples, runs, kib)));
    }
    let about = |id: &str, paper: f64| settings.claim(id).of_paper(Rule::Figure(paper));
    let busy_ms = |run| samples.find(&key("paper", run), "remove/destage_busy_ms");
    let busy_ms = (0..runs).map(busy_ms).sum::<Option<f64>>().map(|sum| sum / runs as f64);
    let lost = seconds("paper", "remove") - seconds("plain", "remove") / bound;
    claims.extend([
        about("writes", PAPER_WRITES).range(writes),
        about("reads-and-cpu", PAPER_READS_AND_CPU).range(100.0 * rest),
        about("bound", PAPER_BOUND).range(bound),
        settings.claim("reached").range(100.0 * gain("paper", "remove") / bound),
        match mean("paper", "remove/destage_writes") {
            0.0 => settings.claim("destaging").nothing("nothing was destaged in the remove"),
            _ => match busy_ms {
                Some(busy) => settings.claim("destaging").range(busy / 10.0 / lost),
                None => settings.claim("destaging").not_run(),
            },
        },
    ]);
    let series = SHOWN[1..].iter().map(|disk| Series::bars(*disk, PHASES.map(|phase| gain(disk, phase))));
    let plot = Plot::bars(
        "Speed-up over the plain disk, and its bound",
        Axis::names("", PHASES),
        Axis::linear("times the plain disk"),
        series,
    );
    Ok(Findings { tables: vec![mix_table, table], plots: vec![plot], claims })
}
