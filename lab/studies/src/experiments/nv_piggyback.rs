//! Dirty blocks that go to the disk with a read.

use dcd_model::write_cache::{Piggyback, RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{
    self, AIR_RSV, AIR_RSV_OTHERS, Like, OFF_DAY, OFF_DAY_OTHERS, SCI_OFF, SCI_OFF_OTHERS, Site,
};

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
/// The disks of Tables A1 and A2.
const OTHERS: [(&Site, [Like; 2]); 3] =
    [(&OFF_DAY, OFF_DAY_OTHERS), (&AIR_RSV, AIR_RSV_OTHERS), (&SCI_OFF, SCI_OFF_OTHERS)];
const OTHERS_COLUMNS: [&str; 5] = ["rwc", "wwc", "stalls", "piggyback", "piggyback_kb"];

fn key(site: &Site, unit: &str, way: &str) -> String {
    format!("{}, {unit}, {way}", site.name)
}

fn other_key(site: &Site, other: &Like, unit: &str) -> String {
    format!("{} {}, {unit}", site.name, other.name)
}

/// The other disks of the sites that the user asks for, and their numbers in the paper's tables.
fn others(settings: &Settings) -> Result<impl Iterator<Item = (usize, &'static Site, Like)>, LabError> {
    let chosen: Vec<usize> = nv::chosen(settings)?.iter().map(|site| site.index).collect();
    let all = OTHERS.into_iter().flat_map(|(site, others)| others.map(|other| (site, other)));
    let numbered = all.enumerate().map(|(number, (site, other))| (number, site, other));
    Ok(numbered.filter(move |(_, site, _)| chosen.contains(&site.index)))
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
    for (_, site, other) in others(settings)? {
        let trace = site.trace_like(other, settings)?;
        for (unit, unit_name) in UNITS {
            let config = WriteCacheConfig { piggyback: Piggyback::Full, ..config };
            points.push(nv::point(other_key(site, &other, unit_name), site, config, unit, &trace));
        }
    }
    points.extend(nv::real::points(settings, config)?);
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
        claims(settings, site, samples, &mut findings.claims);
    }
    let (table, claim) = other_disks(settings, samples)?;
    findings.tables.extend(std::iter::once(table).chain(nv::real::table(samples)));
    findings.claims.push(claim);
    Ok(findings)
}

/// The reads that reach these disks are what their traces are made by, so they are not beside the paper's.
fn other_disks(settings: &Settings, samples: &Samples) -> Result<(Table, Claim), LabError> {
    let paper: [[[f64; 5]; 6]; 2] = settings.paper("others");
    let columns = "disk | by | R_wc of the paper* | ours | W_wc, paper | ours | stalls, paper | ours | \
            success, paper | ours | KB a piggyback, paper | ours";
    let title =
        "Six other disks, full piggybacking (%; Tables A1 and A2; *chose how often the same is read again)";
    let mut table = Table::new(title, columns);
    let mut cells = Vec::new();
    for (number, site, other) in others(settings)? {
        for ((_, unit), paper) in UNITS.iter().zip(&paper) {
            let mut row = vec![format!("{} {}", site.name, other.name), (*unit).to_owned()];
            for (paper, what) in paper[number].iter().zip(OTHERS_COLUMNS) {
                row.extend([figure(*paper), figure(samples.get(&other_key(site, &other, unit), what))]);
            }
            table.row(row);
            cells.push((paper[number][1], samples.get(&other_key(site, &other, unit), "wwc")));
        }
    }
    Ok((table, settings.claim("others").each(Rule::Share, &cells)))
}

fn plot(sites: &[&Site], samples: &Samples, unit: &str, index: usize) -> Plot {
    let bars = |way: &'static str| sites.iter().map(move |site| samples.get(&key(site, unit, way), "wwc"));
    Plot::bars(
        format!("Writes with caching, by {unit}s (Fig. 4.{})", index + 6),
        Axis::names("disk", sites.iter().map(|site| site.name)),
        Axis::linear("W_wc (%)"),
        [("none", "two thresholds"), ("free", "free"), ("full", "full")]
            .map(|(way, name)| Series::bars(name, bars(way))),
    )
}

fn claims(settings: &Settings, site: &Site, samples: &Samples, claims: &mut Vec<Claim>) {
    let claim = |id| settings.claim(id).with("disk", site.name);
    let get = |unit: &str, way: &str, what: &str| samples.get(&key(site, unit, way), what);
    let paper_wwc = |unit: usize, way: usize| PAPER_WWC[unit][site.index][way];
    let saved = |id, (unit, way): (usize, usize)| {
        let paper = 100.0 * (1.0 - paper_wwc(unit, way) / paper_wwc(unit, 0));
        let [with, without] = [WAYS[way].1, WAYS[0].1].map(|way| get(UNITS[unit].1, way, "wwc"));
        claim(id).of_paper(Rule::Share((10.0 * paper).round() / 10.0)).range(100.0 * (1.0 - with / without))
    };
    let left = |id, (unit, way): (usize, usize)| {
        claim(id).of_paper(Rule::Share(paper_wwc(unit, way))).range(get(UNITS[unit].1, WAYS[way].1, "wwc"))
    };
    // Of full piggybacking, cylinder over track.
    let over = |id, index: usize, what: &str| {
        let [track, cylinder] = [0, 1].map(|unit| PAPER_FULL[unit][site.index][index]);
        let paper = (100.0 * cylinder / track).round() / 100.0;
        claim(id)
            .of_paper(Rule::Figure(paper))
            .range(get("cylinder", "full", what) / get("track", "full", what))
    };
    let [track, cylinder] = ["track", "cylinder"].map(|unit| get(unit, "full", "stalls"));
    let [by_track, by_cylinder] = ["track", "cylinder"].map(|unit| get(unit, "full", "read_service_ms"));
    let stalls = |id| claim(id).with("by-track", by_track).with("by-cylinder", by_cylinder);
    let own = [0, 1].map(|unit| PAPER_FULL[unit][site.index][0]);
    let stalls = match own[1] < own[0] {
        true => stalls("stalls").with("track", track).with("cylinder", cylinder).more([(track, cylinder)]),
        false => stalls("stalls-equal").range(cylinder / track),
    };
    claims.extend([
        saved("full-track", (0, 2)),
        saved("free-track", (0, 1)),
        saved("full-cylinder", (1, 2)),
        left("full-track-wwc", (0, 2)),
        left("full-cylinder-wwc", (1, 2)),
        left("free-cylinder-wwc", (1, 1)),
        over("success", 1, "piggyback"),
        stalls,
        over("purge-kb", 2, "purge_kb"),
    ]);
    if site.index == SCI_OFF.index {
        let own = paper_wwc(1, 0) / paper_wwc(1, 2);
        let ours = get("cylinder", "none", "wwc") / get("cylinder", "full", "wwc");
        claims.push(claim("magnitude").with("own", own).reaching(&[own]).range(ours));
    }
}
