//! The size of the write cache.

use dcd_model::write_cache::{RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{self, Site};

const SMALL: u64 = 128 << 10;
const MEDIUM: u64 = 1 << 20;
const LARGE: u64 = 2 << 20;
/// Section 4.2, Sci-Off: W_wc by size.
const PAPER_SCI_OFF: [(u64, f64); 3] = [(SMALL, 40.6), (MEDIUM, 21.1), (LARGE, 15.2)];

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
    let columns = "disk | write cache (KiB) | W_wc, paper | ours | R_wc | stalls";
    let mut table = Table::new("By the size of the write cache (%)", columns);
    for site in &sites {
        let get = |bytes: u64, what: &str| samples.get(&key(site, bytes), what);
        for &bytes in &sizes {
            let known =
                PAPER_SCI_OFF.iter().find(|(size, _)| *size == bytes && site.index == nv::SCI_OFF.index);
            let [wwc, rwc, stalls] = ["wwc", "rwc", "stalls"].map(|what| get(bytes, what));
            table.row(cells![site.name, bytes >> 10, known.map(|(_, paper)| *paper), wwc, rwc, stalls]);
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
        claims(settings, &sites, samples, &mut findings.claims);
    }
    Ok(findings)
}

fn claims(settings: &Settings, sites: &[&Site], samples: &Samples, claims: &mut Vec<Claim>) {
    let get = |site: &Site, size: u64, what: &str| samples.get(&key(site, size), what);
    let fall = |site: &Site, what: &str, from: u64, to: u64| get(site, from, what) - get(site, to, what);
    let claim = |id, site: &Site| settings.claim(id).with("disk", site.name);
    let flat = |site: &Site| fall(site, "wwc", MEDIUM, LARGE) / fall(site, "wwc", SMALL, MEDIUM);
    let points = |site: &Site| fall(site, "wwc", MEDIUM, LARGE);
    if let Some(sci_off) = sites.iter().find(|site| site.index == nv::SCI_OFF.index) {
        for site in sites.iter().filter(|site| site.index != nv::SCI_OFF.index) {
            let claim = claim("flat", site).with("flat", flat(site)).with("sci-off", flat(sci_off));
            let claim = claim.with("points", points(site)).with("sci-off-points", points(sci_off));
            claims.push(claim.more([(points(sci_off), points(site)), (flat(sci_off), flat(site))]));
        }
    }
    let reads = |site: &Site| fall(site, "rwc", SMALL, LARGE);
    for site in sites {
        if site.index != nv::OFF_DAY.index {
            claims.push(claim("reads", site).range(get(site, LARGE, "rwc") / get(site, SMALL, "rwc")));
        } else if sites.len() > 1 {
            let others = most(sites.iter().filter(|other| other.index != site.index).map(|site| reads(site)));
            let claim = claim("reads-off-day", site).with("fall", reads(site)).with("others", others);
            claims.push(claim.more([(reads(site), others)]));
        }
    }
    for site in sites.iter().filter(|site| site.index == nv::SCI_OFF.index) {
        for (size, paper) in PAPER_SCI_OFF.into_iter().filter(|(size, _)| *size < LARGE) {
            let claim = claim("sci-off", site).with("kib", size >> 10).of_paper(Rule::Share(paper));
            claims.push(claim.range(get(site, size, "wwc")));
        }
        claims.push(claim("sci-off-large", site).range(points(site)));
    }
}
