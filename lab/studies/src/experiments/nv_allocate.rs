//! Compares the ways in which a write changes the read cache.

use dcd_model::write_cache::{OnWrite, Piggyback, RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{self, Site};

const WAYS: [(OnWrite, &str); 3] =
    [(OnWrite::WriteAllocate, "allocate"), (OnWrite::WriteUpdate, "update"), (OnWrite::WritePurge, "purge")];
/// Table 4.8: R_wc, W_wc, stalls, piggyback success (%) with allocate and with purge.
const PAPER: [[[f64; 4]; 2]; 3] = [
    [[38.32, 14.34, 1.00, 15.46], [37.51, 14.38, 1.09, 18.52]],
    [[51.30, 13.55, 12.23, 4.61], [49.89, 13.62, 11.27, 4.93]],
    [[26.89, 16.59, 3.33, 5.07], [25.80, 16.67, 3.02, 5.39]],
];
const COLUMNS: [&str; 4] = ["rwc", "wwc", "stalls", "piggyback"];
fn key(site: &Site, way: &str) -> String {
    format!("{}, {way}", site.name)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let config = WriteCacheConfig { piggyback: Piggyback::Full, ..nv::config(settings)? };
    let mut points = Vec::new();
    for site in nv::chosen(settings)? {
        let trace = site.trace(settings)?;
        for (on_write, way) in WAYS {
            let config = WriteCacheConfig { on_write, ..config };
            points.push(nv::point(key(site, way), site, config, RegionUnit::Track, &trace));
        }
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let sites = nv::chosen(settings)?;
    let mut findings = Findings::default();
    let columns = "disk | on a write | R_wc, paper | ours | W_wc, paper | ours | stalls, paper | ours | \
            success, paper | ours";
    let mut table = Table::new("What a write does to the read cache (%)", columns);
    for site in &sites {
        for (_, way) in WAYS {
            let paper = match way {
                "allocate" => Some(PAPER[site.index][0]),
                "purge" => Some(PAPER[site.index][1]),
                _ => None,
            };
            let mut row = vec![site.name.to_owned(), way.to_owned()];
            for (index, name) in COLUMNS.into_iter().enumerate() {
                row.push(paper.map_or("–".to_owned(), |paper| figure(paper[index])));
                row.push(figure(samples.get(&key(site, way), name)));
            }
            table.row(row);
        }
        claims(settings, site, samples, &mut findings.claims);
    }
    findings.tables.push(table);
    let bars = |way: &str| sites.iter().map(|site| samples.get(&key(site, way), "rwc")).collect::<Vec<_>>();
    findings.plots.push(Plot::bars(
        "Reads with caching (Table 4.8)",
        Axis::names("disk", sites.iter().map(|site| site.name)),
        Axis::linear("R_wc (%)"),
        WAYS.map(|(_, way)| Series::bars(way, bars(way))),
    ));
    Ok(findings)
}

fn claims(settings: &Settings, site: &Site, samples: &Samples, claims: &mut Vec<Claim>) {
    let claim = |id| settings.claim(id).with("disk", site.name);
    let get = |way: &str, what: &str| samples.get(&key(site, way), what);
    let over = |what: &str| get("allocate", what) / get("purge", what);
    claims.extend(["rwc", "wwc"].map(|what| claim(what).range(over(what))));
    let [allocate, purge] = PAPER[site.index];
    let own = purge[0] / allocate[0];
    // Off-Day reads much of what it has written.
    claims.push(match site.index == nv::OFF_DAY.index {
        true => claim("exception").with("own", own).reaching(&[own]).range(1.0 / over("rwc")),
        false => claim("best").range(over("rwc")),
    });
}
