//! Write caching in the drive: off, on, and for user data only.

use super::prelude::*;
use crate::builtin::{BuiltinCase, WORKLOADS, gain_percent, points};
use dcd_model::WriteCache;

const KINDS: [(&str, WriteCache); 3] =
    [("off", WriteCache::Off), ("on", WriteCache::IgnoresFua), ("selective", WriteCache::On)];
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
/// Traces that were made by hand with the paper's gains in view.
const MADE: [&str; 4] = ["RES", "INS", "HARP", "SITAR"];
const MADE_CHOSE: &str = "the traces, which were made with the gains in view";
const WRITES_MUCH: &str = "PostMark";

fn key(name: &str, buffer: u64, kind: &str) -> String {
    format!("{name}, buffer {buffer}, {kind}")
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let smallest = settings.sizes("buffers")?[0];
    points(settings, |name, buffer| {
        let case = |write_cache| BuiltinCase { write_cache, ..BuiltinCase::new(buffer) };
        let mut cases: Vec<_> = KINDS.map(|(kind, cache)| (key(name, buffer, kind), case(cache))).into();
        if buffer == smallest {
            let two = BuiltinCase { write_segments: 2, ..case(WriteCache::IgnoresFua) };
            cases.push((key(name, buffer, TWO), two));
        }
        cases
    })
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
        let range = if high == 0.0 { "almost none".to_owned() } else { format!("{low} to {high} %") };
        for &buffer in &buffers {
            let [on, selective] = ["on", "selective"].map(|kind| gain(name, buffer, kind));
            let human = dcd_stack::HumanBytes(buffer).to_string();
            table.row(cells![*name, human, fsrt(name, buffer, "off"), on, selective, range]);
        }
        let gains: Vec<f64> = buffers.iter().map(|&buffer| gain(name, buffer, "on")).collect();
        let claim = |id| settings.claim(id).with("trace", *name);
        let claim = match high == 0.0 {
            true => claim("web"),
            false => claim("gain").of_paper(Rule::ShareRange(low, high)).with("paper", range),
        };
        let claim = claim.sizes(&gains);
        claims.push(if MADE.contains(name) { claim.choosing(MADE_CHOSE) } else { claim });
    }
    // From the smallest buffer cache to the largest. The sentence follows the gains of the five, among which WEB is not.
    if let [small, .., large] = buffers[..] {
        let of = |name: &&str| (gain(name, large, "on"), gain(name, small, "on"));
        let ends: Vec<(f64, f64)> = names.iter().filter(|name| paper(name).1 > 0.0).map(of).collect();
        let growing = ends.iter().filter(|(large, small)| large > small).count();
        claims.push(settings.claim("grows").with("growing", growing).with("all", ends.len()).more(ends));
    }
    claims.extend(more_claims(settings, &names, &buffers, samples, &gain));
    let series = KINDS[1..]
        .iter()
        .map(|(kind, _)| Series::bars(*kind, names.iter().map(|name| gain(name, buffers[0], kind))));
    let plot = Plot::bars("Gain of write caching", Axis::names("", &names), Axis::linear("gain (%)"), series);
    Ok(Findings { tables: vec![table], plots: vec![plot], claims })
}

/// Claims of section 5.3 beside the gains.
fn more_claims(
    settings: &Settings,
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
        claims.push(settings.claim("selective").sizes(&selective));
    }
    let two = |name: &&str| {
        let response = |kind: &str| samples.get(&key(name, small, kind), "fsrt_ms");
        gain_percent(response("on"), response(TWO))
    };
    let gains: Vec<f64> = names.iter().map(two).collect();
    claims.push(settings.claim("second-segment").spread(&gains));
    let others = all("on", &|name| name != WRITES_MUCH);
    if names.contains(&WRITES_MUCH) && !others.is_empty() {
        let least = least(all("on", &|name| name == WRITES_MUCH));
        let most = most(others);
        claims.push(settings.claim("writes-much").range(least / most));
    }
    claims
}
