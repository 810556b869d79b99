//! Purging at one threshold.

use dcd_engine::destage::when::WhenPolicy;
use dcd_model::write_cache::{RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{self, Site};

/// Table 4.1: WC-HILIM; W_wc and I/O stalls in percent for off-day, air-rsv and sci-off.
const PAPER: [(u8, [(f64, f64); 3]); 4] = [
    (80, [(41.15, 1.82), (43.29, 13.44), (53.14, 3.63)]),
    (90, [(39.25, 1.78), (41.52, 13.30), (50.82, 3.68)]),
    (95, [(39.25, 1.77), (41.19, 13.36), (49.48, 3.65)]),
    (99, [(43.12, 2.96), (41.19, 14.23), (49.44, 3.81)]),
];
fn key(site: &Site, high: u8) -> String {
    format!("{}, {high} %", site.name)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let config = nv::config(settings)?;
    let mut points = Vec::new();
    for site in nv::chosen(settings)? {
        let trace = site.trace(settings)?;
        for high in settings.numbers::<u8>("high")? {
            let config = WriteCacheConfig { when: WhenPolicy::OneThreshold, high_mark: high, ..config };
            points.push(nv::point(key(site, high), site, config, RegionUnit::Track, &trace));
        }
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let highs = settings.numbers::<u8>("high")?;
    let mut findings = Findings::default();
    let columns = "disk | WC-HILIM (%) | W_wc, paper | W_wc, ours | stalls, paper | stalls, ours | \
            overwritten";
    let mut table = Table::new("Writes with caching and stalled requests (%)", columns);
    let mut series = Vec::new();
    for site in nv::chosen(settings)? {
        let get = |high: u8, what: &str| samples.get(&key(site, high), what);
        for &high in &highs {
            let paper =
                PAPER.iter().find(|(percent, _)| *percent == high).map(|(_, sites)| sites[site.index]);
            let [wwc, stalls, overwritten] = ["wwc", "stalls", "overwritten"].map(|what| get(high, what));
            let (paper_wwc, paper_stalls) = (paper.map(|paper| paper.0), paper.map(|paper| paper.1));
            table.row(cells![site.name, high, paper_wwc, wwc, paper_stalls, stalls, overwritten]);
        }
        series.push(Series::new(site.name, highs.iter().map(|&h| (f64::from(h), get(h, "wwc"))).collect()));
        if PAPER.iter().all(|(high, _)| highs.contains(high)) {
            claims(settings, site, &get, &mut findings.claims);
        }
    }
    findings.tables.push(table);
    findings.plots.push(Plot::lines(
        "Writes with caching by the threshold (Table 4.1)",
        Axis::linear("WC-HILIM (%)"),
        Axis::linear("W_wc (%)"),
        series,
    ));
    Ok(findings)
}

fn claims(settings: &Settings, site: &Site, get: &dyn Fn(u8, &str) -> f64, claims: &mut Vec<Claim>) {
    let claim = |id| settings.claim(id).with("disk", site.name);
    let cells = PAPER.map(|(high, sites)| (sites[site.index].0, get(high, "wwc")));
    let (early, late) = (get(80, "wwc"), get(90, "wwc").max(get(95, "wwc")));
    let (high, higher) = (get(95, "stalls"), get(99, "stalls"));
    let best =
        claim("best").with("early", early).with("late", late).with("higher", higher).with("high", high);
    let stalls = claim("stalls").with("higher", higher).with("high", high);
    claims.extend([
        claim("share").each(Rule::Share, &cells),
        best.more([(early, late), (higher, high)]),
        stalls.more([(higher, high)]),
    ]);
}
