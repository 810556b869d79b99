//! Compares ways to share memory between reads and writes: two caches, or one that keeps both.

use dcd_model::write_cache::{Piggyback, RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{self, Site};

/// The low threshold as a percentage of the high one, for the single cache ("0.4 in our simulations").
const LOW_PERCENT: u32 = 40;
/// The interval of the paper's table.
const INTERVAL: u64 = 10_000;
/// Total I/Os by Table 4.14: the single cache with the best fixed and with dynamic thresholds; separate caches.
const PAPER: [[f64; 3]; 3] =
    [[24556.0, 24539.0, 27272.0], [162_555.0, 163_330.0, 167_084.0], [116_627.0, 117_583.0, 118_994.0]];
fn split_key(site: &Site, writes: u64) -> String {
    format!("{}, {} KiB for writes", site.name, writes >> 10)
}

fn fixed_key(site: &Site, high: u8) -> String {
    format!("{}, single, {high} %", site.name)
}

fn dynamic_key(site: &Site, interval: u64) -> String {
    format!("{}, single, every {interval}", site.name)
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let total = settings.ram("total")?;
    let config = WriteCacheConfig { piggyback: Piggyback::Full, ..nv::PAPERS };
    let single = WriteCacheConfig { single: true, write_bytes: total, read_bytes: 0, ..config };
    let mut points = Vec::new();
    for site in nv::chosen(settings)? {
        let trace = site.trace(settings)?;
        let mut add = |key: String, config: WriteCacheConfig| {
            points.push(nv::point(key, site, config, RegionUnit::Cylinder, &trace));
        };
        for writes in settings.sizes("writes")? {
            let read_bytes = total.checked_sub(writes).ok_or_else(|| LabError::BadValue {
                key: "writes".to_owned(),
                problem: format!("{writes} bytes are more than the total"),
            })?;
            add(split_key(site, writes), WriteCacheConfig { write_bytes: writes, read_bytes, ..config });
        }
        for high in settings.numbers::<u8>("fixed")? {
            let low_mark = (u32::from(high) * LOW_PERCENT / 100) as u8;
            add(fixed_key(site, high), WriteCacheConfig { high_mark: high, low_mark, ..single });
        }
        for interval in intervals(settings)? {
            add(dynamic_key(site, interval), WriteCacheConfig { dynamic_interval: interval, ..single });
        }
    }
    Ok(points)
}

fn intervals(settings: &Settings) -> Result<Vec<u64>, LabError> {
    let mut intervals = settings.numbers::<u64>("intervals")?;
    intervals.push(INTERVAL);
    intervals.sort_unstable();
    intervals.dedup();
    Ok(intervals)
}

/// Results of a disk.
struct Results {
    /// Write cache in KiB, total I/Os.
    splits: Vec<(f64, f64)>,
    best_split: (f64, f64),
    /// WC-HILIM, total I/Os.
    best_fixed: (u8, f64),
    worst_fixed: f64,
    /// I/Os at the highest WC-HILIM.
    highest_fixed: f64,
    dynamic: f64,
    dynamics: Vec<f64>,
}

fn results(settings: &Settings, site: &Site, samples: &Samples) -> Result<Results, LabError> {
    let total = |key: String| samples.get(&key, "ios");
    let writes = settings.sizes("writes")?;
    let splits: Vec<(f64, f64)> =
        writes.iter().map(|&w| (w as f64 / 1024.0, total(split_key(site, w)))).collect();
    let fixed = settings.numbers::<u8>("fixed")?;
    let fixed = fixed.into_iter().map(|high| (high, total(fixed_key(site, high))));
    Ok(Results {
        worst_fixed: most(fixed.clone().map(|(_, total)| total)),
        highest_fixed: fixed.clone().max_by_key(|(high, _)| *high).map_or(f64::NAN, |(_, total)| total),
        best_split: splits.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default(),
        best_fixed: fixed.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default(),
        dynamic: total(dynamic_key(site, INTERVAL)),
        dynamics: intervals(settings)?.into_iter().map(|i| total(dynamic_key(site, i))).collect(),
        splits,
    })
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let writes = settings.sizes("writes")?;
    let mut findings = Findings::default();
    let columns = "disk | write cache (KiB) | W_wc (%) | R_wc (%) | hit in read cache | \
            hit in write cache | I/Os";
    let mut splits = Table::new("Separate caches", columns);
    let columns = "disk | cache | W_wc (%) | R_wc (%) | stalls (%) | I/Os, paper | I/Os, ours";
    let mut caches = Table::new("Single and separate (Table 4.14)", columns);
    for site in nv::chosen(settings)? {
        let results = results(settings, site, samples)?;
        for &bytes in &writes {
            let get = |what: &str| samples.get(&split_key(site, bytes), what);
            let kib = (bytes >> 10).to_string();
            let counts =
                ["hit_in_read_cache", "hit_in_write_cache", "ios"].map(|what| format!("{:.0}", get(what)));
            let start = [site.name.to_owned(), kib, figure(get("wwc")), figure(get("rwc"))];
            splits.row(start.into_iter().chain(counts));
        }
        let best = (results.best_split.0 * 1024.0) as u64;
        let rows = [
            (format!("single, fixed at {} %", results.best_fixed.0), fixed_key(site, results.best_fixed.0)),
            ("single, dynamic".to_owned(), dynamic_key(site, INTERVAL)),
            (format!("separate, {} KiB for writes", best >> 10), split_key(site, best)),
        ];
        for ((name, key), paper) in rows.into_iter().zip(PAPER[site.index]) {
            let get = |what: &str| samples.get(&key, what);
            let percents = ["wwc", "rwc", "stalls"].map(|what| figure(get(what)));
            let ends = [format!("{paper:.0}"), format!("{:.0}", get("ios"))];
            caches.row([site.name.to_owned(), name].into_iter().chain(percents).chain(ends));
        }
        findings.plots.push(plot(site, samples, &writes));
        claims(settings, site, &results, &mut findings.claims);
        if site.index == nv::OFF_DAY.index {
            hits(settings, site, samples, &writes, &mut findings.claims);
        }
    }
    findings.tables.extend([splits, caches]);
    Ok(findings)
}

fn plot(site: &Site, samples: &Samples, writes: &[u64]) -> Plot {
    let curve = |what: &str| {
        writes.iter().map(|&w| (w as f64 / 1024.0, samples.get(&split_key(site, w), what))).collect()
    };
    let figure = ["4.13", "4.11", "4.12"][site.index];
    Plot::lines(
        format!("{}: I/Os by the write cache's part of 2.5 MB (Fig. {figure})", site.name),
        Axis::linear("write cache (KiB)"),
        Axis::linear("I/Os at the disk"),
        [("disk_reads", "reads"), ("disk_writes", "writes"), ("ios", "all")]
            .map(|(what, name)| Series::new(name, curve(what))),
    )
}

fn claims(settings: &Settings, site: &Site, results: &Results, claims: &mut Vec<Claim>) {
    let claim = |id| settings.claim(id).with("disk", site.name);
    let best = results.best_split;
    if site.index == nv::OFF_DAY.index {
        let large: Vec<f64> =
            results.splits.iter().filter(|split| split.0 >= 1024.0).map(|split| split.1).collect();
        let (most, least) = (most(large.iter().copied()), least(large.iter().copied()));
        claims.push(claim("level").range(most / least));
    } else if let (Some(first), Some(last)) = (results.splits.first(), results.splits.last()) {
        let ends = claim("u-shape").with("first", format!("{:.0}", first.1));
        let shape = ends.with("best", format!("{:.0}", best.1)).with("last", format!("{:.0}", last.1));
        let both =
            [shape.more([first.1, last.1].map(|end| (end, 1.05 * best.1))), claim("best-part").range(best.0)];
        let chose = |claim: Claim| match site.index == nv::AIR_RSV.index {
            true => claim.choosing("how often the trace reads again (Fig. 4.11)"),
            false => claim,
        };
        claims.extend(both.map(chose));
    }
    let (most, least) = (most(results.dynamics.iter().copied()), least(results.dynamics.iter().copied()));
    let (best_fixed, dynamic) = (results.best_fixed.1, results.dynamic);
    let single = best_fixed.min(dynamic);
    let judge = |id, idle: Option<String>, ours: f64| match idle {
        Some(why) => claim(id).nothing(&why),
        None => claim(id).range(ours),
    };
    let never = never_reached(results);
    claims.extend([
        judge("dynamic", no_matter(results), dynamic / best_fixed),
        judge("intervals", never.or_else(|| no_matter(results)), most / least),
    ]);
    if site.index == nv::OFF_DAY.index {
        claims.push(claim("single").range(100.0 * (1.0 - single / best.1)));
        let over = best.1 / single;
        claims
            .push(claim("not-close").with("over", over).fact("not 0.950x to 1.05x", !CLOSE.contains(&over)));
    } else {
        claims.push(claim("close").range(best.1 / single));
    }
}

/// Tells that the fixed thresholds differ too little to show anything, if they do. To be as good as the best of them is to
/// have the same I/Os.
fn no_matter(results: &Results) -> Option<String> {
    let (best, worst) = (results.best_fixed.1, results.worst_fixed);
    let differ = figure(100.0 * (worst / best - 1.0));
    (!more(worst, best)).then(|| format!("the fixed thresholds differ by {differ} % only"))
}

/// Tells that no interval changed thresholds that are ever reached, if that is so.
fn never_reached(results: &Results) -> Option<String> {
    const WHY: &str =
        "dynamic thresholds give the I/Os of the highest fixed one to the last, so they are never reached";
    results.dynamics.iter().all(|ios| *ios == results.highest_fixed).then(|| WHY.to_owned())
}

/// Range of what is close: a twentieth to each side.
const CLOSE: std::ops::RangeInclusive<f64> = 0.95..=1.05;

/// Table 4.13: as the read cache grows, the read cache serves more blocks and the write cache fewer.
fn hits(settings: &Settings, site: &Site, samples: &Samples, writes: &[u64], claims: &mut Vec<Claim>) {
    let mut wanted = writes.iter().filter(|bytes| **bytes >= 512 << 10);
    let (Some(first), Some(last)) = (wanted.next(), wanted.next_back()) else { return };
    let get = |bytes: &u64, what: &str| samples.get(&split_key(site, *bytes), what);
    let mut claim = settings.claim("hits").with("disk", site.name);
    for (name, bytes, what) in [
        ("read-first", first, "hit_in_read_cache"),
        ("read-last", last, "hit_in_read_cache"),
        ("write-first", first, "hit_in_write_cache"),
        ("write-last", last, "hit_in_write_cache"),
    ] {
        claim = claim.with(name, format!("{:.0}", get(bytes, what)));
    }
    let both = |what| (get(first, what), get(last, what));
    let ((read_first, read_last), write) = (both("hit_in_read_cache"), both("hit_in_write_cache"));
    claims.push(claim.more([(read_first, read_last), (write.1, write.0)]));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dynamic_thresholds_with_the_ios_of_the_best_fixed_one_are_as_good() {
        let (best_fixed, dynamics) = ((95, 100.0), vec![100.0; 3]);
        let results = |worst_fixed| Results {
            splits: Vec::new(),
            best_split: (512.0, 100.0),
            best_fixed,
            worst_fixed,
            highest_fixed: best_fixed.1,
            dynamic: best_fixed.1,
            dynamics: dynamics.clone(),
        };
        let experiment = crate::experiments::find("nv-single").unwrap();
        let settings = Settings::new(experiment.params, &Default::default(), 1).of(experiment.paper);
        let holds = |worst_fixed: f64| {
            let mut judged = Vec::new();
            claims(&settings, &nv::OFF_DAY, &results(worst_fixed), &mut judged);
            let held =
                |quoted: &str| judged.iter().any(|claim| claim.quote.contains(quoted) && claim.holds());
            ["almost always as good", "did not vary significantly"].map(held)
        };
        assert_eq!(holds(140.0), [true, false], "no interval changed anything");
        assert_eq!(holds(104.0), [false, false], "no threshold matters");
    }
}
