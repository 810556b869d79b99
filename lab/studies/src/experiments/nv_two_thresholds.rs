//! Purging between two thresholds: hysteresis.

use dcd_engine::destage::when::WhenPolicy;
use dcd_model::write_cache::{RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{self, Site};

const HIGH: u8 = 95;
const LOW: u8 = 40;
/// Table 4.2: WC-HILIM; W_wc and I/O stalls in percent for off-day, air-rsv and sci-off.
const PAPER: [(u8, [(f64, f64); 3]); 5] = [
    (80, [(19.43, 1.09), (20.39, 10.88), (22.54, 2.94)]),
    (90, [(17.18, 0.89), (19.24, 10.88), (21.47, 3.08)]),
    (95, [(15.96, 1.00), (18.44, 10.66), (21.09, 2.97)]),
    (99, [(15.72, 0.95), (18.30, 10.65), (20.55, 2.77)]),
    (100, [(59.48, 38.37), (42.47, 22.29), (68.06, 13.46)]),
];
/// Table 4.4: percent of dirty blocks overwritten and of purges with several writes, with one and with two thresholds.
const PAPER_OVERWRITTEN: [[(f64, f64); 2]; 3] =
    [[(30.0, 35.9), (71.2, 45.4)], [(19.2, 17.6), (61.2, 28.4)], [(21.1, 17.8), (68.9, 23.4)]];
/// WC-LOLIM "below 70%", without the "very low setting (close to 0%)" that the paper's next sentence excepts.
const BELOW_70: std::ops::Range<u8> = 10..70;

fn key(site: &Site, low: u8, high: u8) -> String {
    format!("{}, {low} to {high} %", site.name)
}

fn one_key(site: &Site) -> String {
    format!("{}, one threshold", site.name)
}

/// The pairs of thresholds to measure, each once.
fn pairs(settings: &Settings) -> Result<Vec<(u8, u8)>, LabError> {
    let mut pairs: Vec<(u8, u8)> =
        settings.numbers::<u8>("low")?.into_iter().map(|low| (low, HIGH)).collect();
    pairs.extend(settings.numbers::<u8>("high")?.into_iter().map(|high| (LOW, high)));
    pairs.push((LOW, HIGH));
    pairs.sort_unstable();
    pairs.dedup();
    Ok(pairs)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let config = nv::config(settings)?;
    let mut points = Vec::new();
    for site in nv::chosen(settings)? {
        let trace = site.trace(settings)?;
        let one = WriteCacheConfig { when: WhenPolicy::OneThreshold, high_mark: HIGH, ..config };
        points.push(nv::point(one_key(site), site, one, RegionUnit::Track, &trace));
        for (low, high) in pairs(settings)? {
            let two = WriteCacheConfig { low_mark: low, high_mark: high, ..config };
            points.push(nv::point(key(site, low, high), site, two, RegionUnit::Track, &trace));
        }
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let (lows, highs) = (settings.numbers::<u8>("low")?, settings.numbers::<u8>("high")?);
    let sites = nv::chosen(settings)?;
    let mut findings = Findings::default();
    findings.tables.push(by_policy(&sites, samples));
    let mut by_high = Table::new(
        format!("WC-LOLIM {LOW} % (%; Table 4.2)"),
        "disk | WC-HILIM | W_wc, paper | W_wc, ours | stalls, paper | stalls, ours",
    );
    let mut by_low =
        Table::new(format!("W_wc at WC-HILIM {HIGH} % (%; Fig. 4.2)"), "disk | WC-LOLIM | W_wc | stalls");
    let mut series = Vec::new();
    for site in &sites {
        let get = |low: u8, high: u8, what: &str| samples.get(&key(site, low, high), what);
        for &high in &highs {
            let paper =
                PAPER.iter().find(|(percent, _)| *percent == high).map(|(_, sites)| sites[site.index]);
            let [wwc, stalls] = ["wwc", "stalls"].map(|what| get(LOW, high, what));
            let (paper_wwc, paper_stalls) = (paper.map(|paper| paper.0), paper.map(|paper| paper.1));
            by_high.row(cells![site.name, high, paper_wwc, wwc, paper_stalls, stalls]);
        }
        for &low in &lows {
            by_low.row(cells![site.name, low, get(low, HIGH, "wwc"), get(low, HIGH, "stalls")]);
        }
        let curve = lows.iter().map(|&low| (f64::from(low), get(low, HIGH, "wwc"))).collect();
        series.push(Series::new(site.name, curve));
        claims(settings, site, samples, &lows, &highs, &mut findings.claims);
    }
    findings.tables.extend([by_high, by_low]);
    findings.plots.push(Plot::lines(
        "Writes with caching by the low threshold (Fig. 4.2)",
        Axis::linear("WC-LOLIM (%)"),
        Axis::linear("W_wc (%)"),
        series,
    ));
    findings.plots.push(one_against_two(&sites, samples));
    Ok(findings)
}

fn by_policy(sites: &[&Site], samples: &Samples) -> Table {
    let columns = "disk | thresholds | W_wc | overwritten, paper | overwritten, ours | \
            purges of several writes, paper | ours";
    let mut table = Table::new(
        "One threshold and two (%; Table 4.4; it says 0.5 MB of write cache, and has the W_wc of 1 MB)",
        columns,
    );
    for site in sites {
        for (index, key) in [one_key(site), key(site, LOW, HIGH)].into_iter().enumerate() {
            let (overwritten, several) = PAPER_OVERWRITTEN[site.index][index];
            let ours = ["wwc", "overwritten", "several"].map(|what| samples.get(&key, what));
            table.row(cells![site.name, index + 1, ours[0], overwritten, ours[1], several, ours[2]]);
        }
    }
    table
}

fn one_against_two(sites: &[&Site], samples: &Samples) -> Plot {
    let wwc = |key: String| samples.get(&key, "wwc");
    Plot::bars(
        "One threshold and two (Fig. 4.1)",
        Axis::names("disk", sites.iter().map(|site| site.name)),
        Axis::linear("W_wc (%)"),
        [
            Series::bars("one threshold", sites.iter().map(|site| wwc(one_key(site)))),
            Series::bars("two thresholds", sites.iter().map(|site| wwc(key(site, LOW, HIGH)))),
        ],
    )
}

fn claims(
    settings: &Settings,
    site: &Site,
    samples: &Samples,
    lows: &[u8],
    highs: &[u8],
    claims: &mut Vec<Claim>,
) {
    let claim = |id| settings.claim(id).with("disk", site.name);
    let get = |low: u8, high: u8, what: &str| samples.get(&key(site, low, high), what);
    let [one, two] = [one_key(site), key(site, LOW, HIGH)]
        .map(|key| ["wwc", "overwritten", "several"].map(|what| samples.get(&key, what)));
    claims.extend([
        claim("share").of_paper(Rule::Share(PAPER[2].1[site.index].0)).range(two[0]),
        claim("two-over-one").range(two[0] / one[0]),
        claim("overwritten").range(two[1] / one[1]),
        claim("several").with("two", two[2]).with("one", one[2]).more([(two[2], one[2])]),
    ]);
    let middle: Vec<f64> =
        lows.iter().filter(|low| (20..=60).contains(*low)).map(|&low| get(low, HIGH, "wwc")).collect();
    let highest = most(middle.iter().copied());
    if middle.len() > 1 {
        claims.push(claim("stable").range(highest / least(middle.iter().copied())));
    }
    if lows.contains(&90) && !middle.is_empty() {
        claims.push(claim("close").range(get(90, HIGH, "wwc") / highest));
    }
    let below = lows.iter().filter(|low| BELOW_70.contains(low));
    let below: Vec<f64> = below.map(|&low| get(low, HIGH, "wwc")).collect();
    if below.len() > 1 {
        claims.push(claim("below-70").range(most(below.iter().copied()) / least(below)));
    }
    let [immediate, writes] = ["immediate", "disk_writes"].map(|what| get(LOW, HIGH, what));
    claims.push(claim("immediate").range(100.0 * immediate / writes));
    if lows.contains(&0) {
        let none = get(0, HIGH, "wwc");
        claims.push(claim("zero").with("none", none).with("usual", two[0]).more([(none, two[0])]));
    }
    if PAPER.iter().all(|(high, _)| highs.contains(high)) {
        let wwc = |high| get(LOW, high, "wwc");
        let [at_95, at_99] = [2, 3].map(|row: usize| PAPER[row].1[site.index]);
        let own = [at_99.0 / at_95.0, at_99.1 / at_95.1];
        let late = claim("late").with("writes", own[0]).with("stalls", own[1]);
        let (writes, stalls) = PAPER[4].1[site.index];
        let full = claim("full-stalls").of_paper(Rule::Share(stalls)).range(get(LOW, 100, "stalls"));
        let full = match site.index == nv::AIR_RSV.index {
            true => full.choosing("the bursts of the trace"),
            false => full,
        };
        claims.extend([
            late.reaching(&own)
                .spread(&["wwc", "stalls"].map(|what| get(LOW, 99, what) / get(LOW, 95, what))),
            claim("early").with("early", wwc(80)).with("usual", wwc(95)).more([(wwc(80), wwc(95))]),
            claim("full-writes").of_paper(Rule::Share(writes)).range(wwc(100)),
            full,
        ]);
    }
}
