//! Service times, queueing times and work at the disk.

use dcd_engine::destage::when::WhenPolicy;
use dcd_model::write_cache::{Piggyback, RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{self, Site};

const UNITS: [(RegionUnit, &str); 2] = [(RegionUnit::Cylinder, "cylinder"), (RegionUnit::Track, "track")];
const POLICIES: [&str; 5] = ["no write cache", "125 KB, asap", "two thresholds", "full", "free"];
const NONE: &str = POLICIES[0];
const ASAP: &str = POLICIES[1];
const TWO: &str = POLICIES[2];
const FULL: &str = POLICIES[3];
const FREE: &str = POLICIES[4];
const BUFFER_BYTES: u64 = 125 << 10;

/// A row of a table: R_wc, W_wc, read and write service (ms), read queueing (ms), and that behind writes (ms).
type Row = [f64; 6];
/// By unit, disk and policy.
type PaperTables = [[[Row; 5]; 3]; 2];
const NAMES: [&str; 6] =
    ["rwc", "wwc", "read_service_ms", "write_service_ms", "read_queue_ms", "read_queue_behind_writes_ms"];
const TITLES: [&str; 6] = [
    "R_wc (%)",
    "W_wc (%)",
    "read service (ms)",
    "write service (ms)",
    "read queueing (ms)",
    "behind writes (ms)",
];

/// Slips of the paper, by unit.
const NOTES: [&str; 2] = [
    " (Table 4.6; off-day, 125 KB: its service times, 20.29 and 23.44, are those of sci-off; Table A3 has 26.53 and 25.22)",
    " (Table A3)",
];

fn key(site: &Site, unit: &str, policy: &str) -> String {
    format!("{}, {unit}, {policy}", site.name)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let config = nv::config(settings)?;
    let variants = [
        WriteCacheConfig { write_bytes: 0, ..config },
        WriteCacheConfig { write_bytes: BUFFER_BYTES, when: WhenPolicy::Asap, ..config },
        config,
        WriteCacheConfig { piggyback: Piggyback::Full, ..config },
        WriteCacheConfig { piggyback: Piggyback::Free, ..config },
    ];
    let mut points = Vec::new();
    for site in nv::chosen(settings)? {
        let trace = site.trace(settings)?;
        for (unit, unit_name) in UNITS {
            for (policy, config) in POLICIES.iter().zip(variants) {
                points.push(nv::point(key(site, unit_name, policy), site, config, unit, &trace));
            }
        }
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let sites = nv::chosen(settings)?;
    let paper: PaperTables = settings.paper("table");
    let mut findings = Findings::default();
    for (unit_index, (_, unit)) in UNITS.iter().enumerate() {
        let mut columns = vec!["disk".to_owned(), "policy".to_owned()];
        columns.extend(TITLES.iter().flat_map(|title| [format!("{title}, paper"), "ours".to_owned()]));
        let mut table = Table::new(format!("By {unit}s{}", NOTES[unit_index]), &columns.join(" | "));
        for site in &sites {
            for (index, policy) in POLICIES.iter().enumerate() {
                let mut row = vec![site.name.to_owned(), (*policy).to_owned()];
                for (paper, name) in paper[unit_index][site.index][index].iter().zip(NAMES) {
                    row.extend([figure(*paper), figure(samples.get(&key(site, unit, policy), name))]);
                }
                table.row(row);
            }
        }
        findings.tables.push(table);
    }
    findings.tables.push(work(&sites, samples));
    findings.plots.push(plot(&sites, samples));
    for site in &sites {
        claims(settings, site, samples, &mut findings.claims);
    }
    Ok(findings)
}

/// Table 4.7: the paper's work is the product of two columns of Table 4.6 with the counts of Table 3.1.
fn work(sites: &[&Site], samples: &Samples) -> Table {
    let columns = "disk | policy | reads (s) | writes (s) | all (s) | of no write cache (%)";
    let mut table = Table::new("Work at the disk, by cylinders (Table 4.7)", columns);
    for site in sites {
        let get = |policy: &str, what: &str| samples.get(&key(site, UNITS[0].1, policy), what);
        for policy in POLICIES {
            let [reads, writes, all] =
                ["read_work_s", "write_work_s", "total_work_s"].map(|what| get(policy, what));
            let share = 100.0 * all / get(NONE, "total_work_s");
            table.row(cells![site.name, policy, reads, writes, all, share]);
        }
    }
    table
}

fn plot(sites: &[&Site], samples: &Samples) -> Plot {
    let bars = |policy: &'static str| {
        let bar =
            move |site: &&Site| samples.get(&key(site, UNITS[0].1, policy), "read_queue_behind_writes_ms");
        sites.iter().map(bar)
    };
    Plot::bars(
        "How long reads wait for writes, by cylinders (Table 4.6)",
        Axis::names("disk", sites.iter().map(|site| site.name)),
        Axis::linear("ms"),
        POLICIES.map(|policy| Series::bars(policy, bars(policy))),
    )
}

/// The paper's read service times by cylinders over that without a write cache. Where Table 4.6 has a slip, that of Table A3.
fn own_read_service(settings: &Settings, site: &Site) -> [f64; 4] {
    const READ_SERVICE: usize = 2;
    let [by_cylinder, by_track]: PaperTables = settings.paper("table");
    let of = |policy: usize| {
        let slip = policy == 1 && site.index == nv::OFF_DAY.index;
        let rows = if slip { &by_track } else { &by_cylinder };
        rows[site.index][policy][READ_SERVICE]
    };
    [1, 2, 3, 4].map(|policy| of(policy) / of(0))
}

fn claims(settings: &Settings, site: &Site, samples: &Samples, claims: &mut Vec<Claim>) {
    let claim = |id| settings.claim(id).with("disk", site.name);
    let get = |policy: &str, what: &str| samples.get(&key(site, UNITS[0].1, policy), what);
    let proposed = |what: &str| [TWO, FULL, FREE].map(|policy| get(policy, what));
    let baselines = |what: &str| [NONE, ASAP].map(|policy| get(policy, what));
    let over = |what: &str| {
        let (ours, of) = (proposed(what), baselines(what));
        of.into_iter().flat_map(|baseline| ours.map(|ours| ours / baseline)).collect::<Vec<f64>>()
    };
    let read_service =
        [ASAP, TWO, FULL, FREE].map(|policy| get(policy, "read_service_ms") / get(NONE, "read_service_ms"));
    let own = own_read_service(settings, site);
    let varies = claim("read-service").with("least", least(own)).with("most", most(own));
    let (full, free) = (get(FULL, "read_service_ms"), get(FREE, "read_service_ms"));
    let work: [[f64; 4]; 3] = settings.paper("work");
    let [without, theirs @ ..] = work[site.index];
    let saved = |with: f64, without: f64| 100.0 * (1.0 - with / without);
    let ours = proposed("total_work_s").map(|ours| saved(ours, get(NONE, "total_work_s")));
    let work: Vec<(f64, f64)> = theirs.map(|theirs| saved(theirs, without)).into_iter().zip(ours).collect();
    let baseline = least(baselines("read_queue_ms"));
    let queueing = get(TWO, "read_queue_ms").max(get(FREE, "read_queue_ms"));
    let (written, before) = (least(proposed("write_service_ms")), most(baselines("write_service_ms")));
    let (with, without) = (get(TWO, "rwc"), get(NONE, "rwc"));
    claims.extend([
        claim("behind-writes").spread(&over("read_queue_behind_writes_ms")),
        claim("queueing").with("ours", queueing).with("baseline", baseline).more([(baseline, queueing)]),
        varies.reaching(&own).spread(&read_service),
        claim("full-slower").range(full / free),
        claim("work").each(Rule::Share, &work),
        claim("write-service").with("ours", written).with("baseline", before).more([(written, before)]),
        claim("reads").with("with", with).with("without", without).more([(without, with)]),
    ]);
}
