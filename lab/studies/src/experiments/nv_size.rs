//! The size of the write cache.

use dcd_engine::write_cache::{RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{self, Site};

const SMALL: u64 = 128 << 10;
const MEDIUM: u64 = 1 << 20;
const LARGE: u64 = 2 << 20;
/// Section 4.2, Sci-Off: W_wc by size.
const PAPER_SCI_OFF: [(u64, f64); 3] = [(SMALL, 40.6), (MEDIUM, 21.1), (LARGE, 15.2)];
/// Points of percent either way, for the three figures that the text gives.
const SLACK: f64 = 5.0;
/// "Diminishing returns" beyond 1 MB: what 1 MB to 2 MB saves for each point that 128 KB to 1 MB does. For Sci-Off it is
/// 5.9 of 19.5, and the others are said to be flatter.
const FLAT: f64 = 0.35;
/// "Does not decrease noticeably": Table A3 has 8 and 3.5 points for these two disks, from 125 KB to 1 MB.
const READS_POINTS: f64 = 10.0;

fn key(site: &Site, bytes: u64) -> String {
    format!("{}, {} KiB", site.name, bytes >> 10)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let config = WriteCacheConfig { read_bytes: settings.ram("read-cache")?, ..nv::PAPERS };
    let mut points = Vec::new();
    for site in nv::chosen(settings)? {
        let trace = site.trace(settings)?;
        for bytes in settings.rams("sizes")? {
            let config = WriteCacheConfig { write_bytes: bytes, ..config };
            points.push(nv::point(key(site, bytes), site, config, RegionUnit::Track, &trace));
        }
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let sizes = settings.rams("sizes")?;
    let sites = nv::chosen(settings)?;
    let mut findings = Findings::default();
    let columns = "disk | write cache (KiB) | W_wc | W_wc, paper | R_wc | stalls";
    let mut table = Table::new("By the size of the write cache (%)", columns);
    for site in &sites {
        let get = |bytes: u64, what: &str| samples.get(&key(site, bytes), what);
        for &bytes in &sizes {
            let known =
                PAPER_SCI_OFF.iter().find(|(size, _)| *size == bytes && site.index == nv::SCI_OFF.index);
            table.row([
                site.name.to_owned(),
                (bytes >> 10).to_string(),
                figure(get(bytes, "wwc")),
                known.map_or("–".to_owned(), |(_, paper)| figure(*paper)),
                figure(get(bytes, "rwc")),
                figure(get(bytes, "stalls")),
            ]);
        }
        let curve = |what: &str| sizes.iter().map(|&s| (s as f64 / (1 << 20) as f64, get(s, what))).collect();
        findings.plots.push(Plot::lines(
            format!("{}: reads and writes with caching (Fig. 4.{})", site.name, site.index + 3),
            Axis::linear("write cache (MiB)"),
            Axis::linear("%"),
            [Series::new("R_wc", curve("rwc")), Series::new("W_wc", curve("wwc"))],
        ));
    }
    findings.tables.push(table);
    if [SMALL, MEDIUM, LARGE].iter().all(|size| sizes.contains(size)) {
        claims(&sites, samples, &mut findings.claims);
    }
    Ok(findings)
}

/// Why sizes other than that of the other experiments may be off.
fn shape(site: &Site, samples: &Samples) -> String {
    let overwritten = |size: u64| figure(samples.get(&key(site, size), "overwritten"));
    format!(
        "of the dirty blocks {} % are overwritten with 128 KB, {} % with 1 MB and {} % with 2 MB; of the paper's trace only the \
         second is known (Table 4.4), and Table 4.5 has a median and a mean of the intervals, and no shape",
        overwritten(SMALL),
        overwritten(MEDIUM),
        overwritten(LARGE)
    )
}

fn claims(sites: &[&Site], samples: &Samples, claims: &mut Vec<Claim>) {
    let drop = |site: &Site, what: &str, from: u64, to: u64| {
        samples.get(&key(site, from), what) - samples.get(&key(site, to), what)
    };
    for site in sites {
        let (to_one, to_two) = (drop(site, "wwc", SMALL, MEDIUM), drop(site, "wwc", MEDIUM, LARGE));
        let claim = format!(
            "{}: W_wc falls fast to 1 MB and little after; the second fall over the first",
            site.name
        );
        let claim = Claim::range(claim, "diminishing returns", to_two / to_one, (0.0, FLAT), "");
        claims.push(claim.because(shape(site, samples)));
    }
    let reads: Vec<f64> = sites.iter().map(|site| drop(site, "rwc", SMALL, LARGE)).collect();
    for (site, &fall) in sites.iter().zip(&reads) {
        let claim = format!("{}: R_wc falls from 128 KB to 2 MB by", site.name);
        if site.index == nv::OFF_DAY.index {
            if sites.len() == 1 {
                continue;
            }
            let others = sites.iter().zip(&reads).filter(|(other, _)| other.index != site.index);
            let most = most(others.map(|(_, fall)| *fall));
            let ours = format!("{} points, elsewhere at most {}", figure(fall), figure(most));
            claims.push(Claim::fact(claim, "some improvement, as on no other disk", ours, fall > most));
        } else {
            claims.push(Claim::range(
                claim,
                "not noticeably",
                fall,
                (f64::NEG_INFINITY, READS_POINTS),
                " points",
            ));
        }
    }
    for site in sites.iter().filter(|site| site.index == nv::SCI_OFF.index) {
        for (size, paper) in PAPER_SCI_OFF {
            let claim = format!("{}: W_wc with {} KiB", site.name, size >> 10);
            let ours = samples.get(&key(site, size), "wwc");
            let accepted = (paper - SLACK, paper + SLACK);
            let claim = Claim::range(claim, format!("{paper} %"), ours, accepted, " %");
            claims.push(claim.because(shape(site, samples)));
        }
    }
}
