//! Dirty blocks that go to the disk with a read.

use dcd_engine::write_cache::{Piggyback, RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{self, Site};

const UNITS: [(RegionUnit, &str); 2] = [(RegionUnit::Track, "track"), (RegionUnit::Cylinder, "cylinder")];
const WAYS: [(Piggyback, &str); 3] =
    [(Piggyback::None, "none"), (Piggyback::Free, "free"), (Piggyback::Full, "full")];
/// W_wc: Table A3 by tracks, Table 4.6 by cylinders; without, free, full.
const PAPER_WWC: [[[f64; 3]; 3]; 2] = [
    [[15.96, 15.15, 14.34], [18.44, 14.97, 13.62], [21.09, 18.24, 16.67]],
    [[8.05, 5.58, 4.41], [10.71, 0.61, 0.10], [10.65, 3.42, 1.59]],
];
/// Table 4.3, with full piggybacking: stalls (%), piggyback success (%), KB a purge; by tracks and by cylinders.
const PAPER_FULL: [[[f64; 3]; 3]; 2] = [
    [[1.00, 18.52, 4.38], [11.27, 4.93, 6.58], [3.02, 5.39, 2.58]],
    [[0.92, 34.08, 10.14], [11.27, 10.52, 14.58], [2.79, 14.03, 7.74]],
];
/// "About 10–25 %" and "5–20 %" fewer writes by tracks; the tables have 10 to 26 and 5 to 19.
const TRACK_FULL: (f64, f64) = (8.0, 28.0);
const TRACK_FREE: (f64, f64) = (4.0, 22.0);
/// "About 45–99 %" fewer by cylinders.
const CYLINDER_FULL: (f64, f64) = (40.0, 100.0);
/// W_wc by cylinders: "0.1–4.4 %" and "0.6–5.6 %".
const CYLINDER_FULL_WWC: (f64, f64) = (0.0, 5.0);
const CYLINDER_FREE_WWC: (f64, f64) = (0.0, 6.5);
/// "To 14–17 %".
const TRACK_FULL_WWC: (f64, f64) = (12.0, 19.0);
/// "About 2–3 times"; the table has 1.84 to 2.60.
const SUCCESS: (f64, f64) = (1.8, 3.2);

fn key(site: &Site, unit: &str, way: &str) -> String {
    format!("{}, {unit}, {way}", site.name)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let config = nv::config(settings)?;
    let mut points = Vec::new();
    for site in nv::chosen(settings)? {
        let trace = site.trace(settings)?;
        for (unit, unit_name) in UNITS {
            for (piggyback, way) in WAYS {
                let config = WriteCacheConfig { piggyback, ..config };
                points.push(nv::point(key(site, unit_name, way), site, config, unit, &trace));
            }
        }
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let sites = nv::chosen(settings)?;
    let mut findings = Findings::default();
    let columns = "disk | piggybacking | W_wc, paper | W_wc, ours | stalls, paper | ours | \
            success, paper | ours | KB a purge, paper | ours";
    let mut table = Table::new("Writes with caching, stalls, and reads that took blocks along (%)", columns);
    for (unit_index, (_, unit)) in UNITS.iter().enumerate() {
        for site in &sites {
            for (way_index, (_, way)) in WAYS.iter().enumerate() {
                let key = key(site, unit, way);
                let mut row = vec![
                    site.name.to_owned(),
                    format!("{unit}, {way}"),
                    figure(PAPER_WWC[unit_index][site.index][way_index]),
                    figure(samples.get(&key, "wwc")),
                ];
                for (index, what) in ["stalls", "piggyback", "purge_kb"].into_iter().enumerate() {
                    let paper = PAPER_FULL[unit_index][site.index][index];
                    row.push(if *way == "full" { figure(paper) } else { "–".to_owned() });
                    row.push(figure(samples.get(&key, what)));
                }
                table.row(row);
            }
        }
        findings.plots.push(plot(&sites, samples, unit, unit_index));
    }
    findings.tables.push(table);
    for site in &sites {
        claims(site, samples, &mut findings.claims);
    }
    Ok(findings)
}

fn plot(sites: &[&Site], samples: &Samples, unit: &str, index: usize) -> Plot {
    let bars = |way: &str| {
        sites
            .iter()
            .enumerate()
            .map(|(x, site)| (x as f64, samples.get(&key(site, unit, way), "wwc")))
            .collect()
    };
    Plot::bars(
        format!("Writes with caching, by {unit}s (Fig. 4.{})", index + 6),
        Axis::names("disk", sites.iter().map(|site| site.name.to_owned()).collect()),
        Axis::linear("W_wc (%)"),
        [("none", "two thresholds"), ("free", "free"), ("full", "full")]
            .map(|(way, name)| Series::new(name, bars(way))),
    )
}

/// Purges that full track piggybacking spares for each read that takes blocks along: the difference of the W_wc of Table A3, over
/// the reads of R_wc and piggyback success in Table 4.3.
const PAPER_SPARED: [f64; 3] = [0.37, 0.48, 0.52];

/// W_wc with two thresholds alone, by cylinders (%; Table 4.6).
const PAPER_CYLINDER: [f64; 3] = [8.05, 10.71, 10.65];

fn claims(site: &Site, samples: &Samples, claims: &mut Vec<Claim>) {
    let name = site.name;
    let get = |unit: &str, way: &str, what: &str| samples.get(&key(site, unit, way), what);
    let saved = |unit: &str, way: &str| 100.0 * (1.0 - get(unit, way, "wwc") / get(unit, "none", "wwc"));
    let below = "piggybacking writes less than two thresholds alone, by";
    let claim = format!("{name}: full track {below}");
    let full = Claim::range(claim, "about 10–25 %", saved("track", "full"), TRACK_FULL, " %");
    // Each read that takes blocks along makes this much of a purge unnecessary.
    let took = get("track", "full", "disk_reads") * get("track", "full", "piggyback") / 100.0;
    let spared = (get("track", "none", "disk_writes") - get("track", "full", "disk_writes")) / took;
    claims.push(full.because(format!(
        "a read that takes blocks along spares {} purges, in the paper {} (Tables 4.3, A3): there reads meet more tracks that \
         are written again at once, and the paper has no figure of that",
        figure(spared),
        figure(PAPER_SPARED[site.index]),
    )));
    let claim = format!("{name}: full cylinder {below}");
    let full = Claim::range(claim, "about 45–99 %", saved("cylinder", "full"), CYLINDER_FULL, " %");
    claims.push(full.because(format!(
        "two thresholds alone leave {} % of the writes, in the paper {} %: there is less to save",
        figure(get("cylinder", "none", "wwc")),
        figure(PAPER_CYLINDER[site.index]),
    )));
    let mut range = |what: &str, paper: &str, ours: f64, accepted: (f64, f64), unit: &str| {
        claims.push(Claim::range(format!("{name}: {what}"), paper, ours, accepted, unit));
    };
    range(&format!("free track {below}"), "about 5–20 %", saved("track", "free"), TRACK_FREE, " %");
    range("W_wc with full track piggybacking", "14–17 %", get("track", "full", "wwc"), TRACK_FULL_WWC, " %");
    let (full, free) = (get("cylinder", "full", "wwc"), get("cylinder", "free", "wwc"));
    range("W_wc with full cylinder piggybacking", "0.1–4.4 %", full, CYLINDER_FULL_WWC, " %");
    range("W_wc with free cylinder piggybacking", "0.6–5.6 %", free, CYLINDER_FREE_WWC, " %");
    let success = get("cylinder", "full", "piggyback") / get("track", "full", "piggyback");
    range("reads that take blocks along, cylinder over track", "about 2–3 times", success, SUCCESS, "x");
    for (what, words) in [("stalls", "requests stalled (%)"), ("purge_kb", "KB a purge")] {
        let (track, cylinder) = (get("track", "full", what), get("cylinder", "full", what));
        let (paper, holds) = match what {
            "stalls" => ("always less", cylinder <= track),
            _ => ("higher", cylinder > track),
        };
        let ours = format!("{} against {}", figure(cylinder), figure(track));
        let claim = Claim::fact(format!("{name}: {words}, cylinder against track"), paper, ours, holds);
        let service = |unit: &str| figure(get(unit, "full", "read_service_ms"));
        claims.push(claim.because(format!(
            "reads take {} ms with a cylinder's blocks along and {} ms with a track's, and more wait for them than no longer \
             wait for purges; in the paper reads hardly take longer (Tables 4.6, A3)",
            service("cylinder"),
            service("track")
        )));
    }
}
