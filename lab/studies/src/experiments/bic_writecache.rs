//! Write caching in the drive: off, on, and for user data only.

use super::prelude::*;
use crate::builtin::{Case, WORKLOADS, gain_percent, measure, workload};
use dcd_model::WriteCache;

const KINDS: [(&str, WriteCache); 3] =
    [("off", WriteCache::Off), ("on", WriteCache::On), ("selective", WriteCache::Selective)];
/// On, with a second segment for writes.
const TWO: &str = "on, two segments";
/// The paper's gains over the buffer caches, in percent.
const PAPER: [(&str, (f64, f64)); 6] = [
    ("RES", (3.0, 5.8)),
    ("INS", (2.0, 3.4)),
    ("WEB", (0.0, 0.0)),
    ("HARP", (4.1, 6.0)),
    ("SITAR", (5.0, 7.0)),
    ("PostMark", (35.6, 37.8)),
];
/// Half the paper's smallest to twice its largest; and a percent is "almost none".
const FACTOR: f64 = 2.0;
const NONE: f64 = 1.0;
/// "Little positive impact", in percent.
const LITTLE: f64 = 2.0;
/// "Much more" in workloads that write much.
const MUCH_MORE: f64 = 2.0;
const WRITES_MUCH: &str = "PostMark";

fn key(name: &str, buffer: u64, kind: &str) -> String {
    format!("{name}, buffer {buffer}, {kind}")
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let runs = settings.count("runs")?;
    let mut points = Vec::new();
    for name in settings.choices("workloads", &WORKLOADS)? {
        let workload = workload(settings, name)?;
        for buffer in settings.sizes("buffers")? {
            for (kind, write_cache) in KINDS {
                let case = Case { write_cache, ..Case::new(buffer) };
                let (workload, seed) = (workload.clone(), settings.seed);
                points
                    .push(Point::new(key(name, buffer, kind), move || measure(&case, &workload, runs, seed)));
            }
        }
        let smallest = settings.sizes("buffers")?[0];
        let case = Case { write_cache: WriteCache::On, write_segments: 2, ..Case::new(smallest) };
        let seed = settings.seed;
        points.push(Point::new(key(name, smallest, TWO), move || measure(&case, &workload, runs, seed)));
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let names = settings.choices("workloads", &WORKLOADS)?;
    let buffers = settings.sizes("buffers")?;
    let fsrt = |name: &str, buffer: u64, kind: &str| samples.get(&key(name, buffer, kind), "fsrt_ms");
    let gain = |name: &str, buffer: u64, kind: &str| {
        gain_percent(fsrt(name, buffer, "off"), fsrt(name, buffer, kind))
    };
    let paper =
        |name: &str| PAPER.iter().find(|(known, _)| *known == name).map_or((0.0, 0.0), |(_, range)| *range);
    let mut table = Table::new(
        "Gain of write caching",
        "workload | buffer cache | off (ms) | on (%) | selective (%) | on, paper (%)",
    );
    let mut claims = Vec::new();
    for name in &names {
        let (low, high) = paper(name);
        let range = if high == 0.0 { "none".to_owned() } else { format!("{low} to {high}") };
        for &buffer in &buffers {
            table.row([
                (*name).to_owned(),
                dcd_stack::HumanBytes(buffer).to_string(),
                figure(fsrt(name, buffer, "off")),
                figure(gain(name, buffer, "on")),
                figure(gain(name, buffer, "selective")),
                range.clone(),
            ]);
        }
        let gains: Vec<f64> = buffers.iter().map(|&buffer| gain(name, buffer, "on")).collect();
        let accepted = if high == 0.0 { (-NONE, NONE) } else { (low / FACTOR, high * FACTOR) };
        let calls = samples.get(&key(name, buffers[0], "off"), "calls");
        let why = format!(
            "a call waits for a write only where it is metadata or the buffer cache is full of dirty blocks; the run has \
             {} disk writes for {} calls",
            samples.get(&key(name, buffers[0], "off"), "disk_writes"),
            calls
        );
        let claim = format!("write caching improves the response time of {name} by");
        let judged = Claim::spread(claim, format!("{range} %"), &gains, accepted, " %");
        // What makes it slower has not been found; then none is given.
        let slower = gains.iter().any(|gain| *gain < -NONE);
        claims.push(if slower { judged } else { judged.because(why) });
    }
    // From the smallest buffer cache to the largest. The paper says so of "workloads like RES and INS".
    let grows = |name: &&str| {
        let ends = buffers.first().zip(buffers.last());
        ends.is_some_and(|(small, large)| gain(name, *large, "on") > gain(name, *small, "on"))
    };
    if buffers.len() > 1 {
        let growing = names.iter().filter(|name| grows(name)).count();
        let claim = "the gain of write caching grows with the buffer cache";
        let ours = format!("for {growing} of {} workloads", names.len());
        claims.push(Claim::fact(claim, "it grows", ours, growing + 1 >= names.len()));
    }
    let between = |name: &&str| {
        buffers.iter().all(|&buffer| {
            let (on, selective) = (gain(name, buffer, "on"), gain(name, buffer, "selective"));
            selective >= on.min(0.0) - NONE && selective <= on.max(0.0) + NONE
        })
    };
    let fitting = names.iter().filter(|name| between(name)).count();
    let claim = "selective write caching lies between none and full write caching (to a percent)";
    let ours = format!("for {fitting} of {} workloads", names.len());
    claims.push(Claim::fact(claim, "except for WEB", ours, fitting + 1 >= names.len()));
    claims.extend(more_claims(&names, &buffers, samples, &gain));
    let series = KINDS[1..].iter().map(|(kind, _)| {
        let bars = names.iter().enumerate().map(|(x, name)| (x as f64, gain(name, buffers[0], kind)));
        Series::new(*kind, bars.collect())
    });
    let plot = Plot::bars(
        "Gain of write caching",
        Axis::names("", names.iter().map(|name| (*name).to_owned()).collect()),
        Axis::linear("gain (%)"),
        series,
    );
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}

/// What section 5.3 says beside the gains.
fn more_claims(
    names: &[&str],
    buffers: &[u64],
    samples: &Samples,
    gain: &dyn Fn(&str, u64, &str) -> f64,
) -> Vec<Claim> {
    let small = buffers[0];
    let all = |kind: &str, chosen: &dyn Fn(&str) -> bool| -> Vec<f64> {
        let of = |name: &&str| buffers.iter().map(|&buffer| gain(name, buffer, kind)).collect::<Vec<_>>();
        names.iter().filter(|name| chosen(name)).flat_map(of).collect()
    };
    let mut claims = Vec::new();
    let selective = all("selective", &|name| name != "WEB");
    if !selective.is_empty() {
        let claim = "selective write caching is better than none, for all but WEB, by";
        claims.push(Claim::spread(claim, "better", &selective, (0.0, f64::INFINITY), " %"));
    }
    let two = |name: &&str| {
        let response = |kind: &str| samples.get(&key(name, small, kind), "fsrt_ms");
        gain_percent(response("on"), response(TWO))
    };
    let gains: Vec<f64> = names.iter().map(two).collect();
    let claim = "a second segment for writes improves the response time by";
    claims.push(Claim::spread(claim, "little", &gains, (-LITTLE, LITTLE), " %"));
    let others = all("on", &|name| name != WRITES_MUCH);
    if names.contains(&WRITES_MUCH) && !others.is_empty() {
        let least = least(all("on", &|name| name == WRITES_MUCH));
        let most = most(others);
        let claim = "a workload that writes much (PostMark) gains more from write caching than any other, by";
        claims.push(Claim::range(claim, "much more", least / most, (MUCH_MORE, f64::INFINITY), "x"));
    }
    if let Some((&smallest, &largest)) = buffers.first().zip(buffers.last()).filter(|_| buffers.len() > 1) {
        let writes = |name: &str, buffer: u64| samples.get(&key(name, buffer, "off"), "write_share");
        let growing = names.iter().filter(|name| writes(name, largest) > writes(name, smallest)).count();
        let ours = format!("for {growing} of {} workloads", names.len());
        let claim = "writes have the larger share of the disk's requests the larger the buffer cache is";
        claims.push(Claim::fact(claim, "so", ours, growing == names.len()));
    }
    claims
}
