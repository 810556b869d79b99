//! Several disks: a common cache or a part for each.

use dcd_model::write_cache::{Piggyback, RegionUnit, WriteCacheConfig};

use super::prelude::*;
use crate::nv::{
    self, AIR_RSV, AIR_RSV_OTHERS, Like, OFF_DAY, OFF_DAY_OTHERS, PRIVATE, ReplayCase, Site, Trace, replay,
    sample, synthesised,
};

/// Some disks behind one controller.
struct Set {
    name: &'static str,
    first: &'static Site,
    others: &'static [Like],
    /// KiB for reads; a quarter of it is for writes.
    sizes: [u64; 4],
    /// The paper's table has writes at the disk as a share of all requests, not of the writes.
    of_all: bool,
    /// W_wc, stalls, piggyback success (%): common and partitioned, by size.
    paper: [[[f64; 3]; 2]; 4],
    /// W_wc of each disk at the first size (%): common, partitioned; the first disk, then the others.
    paper_disks: &'static [(f64, f64)],
    /// Range and difference square at the first and the last size: common, partitioned.
    paper_fair: [[(f64, f64); 2]; 2],
}

/// Off-Day, four disks: the system disk, the application disk and two private ones, of which the paper describes one.
const FOUR: Set = Set {
    name: "4 disks",
    first: &OFF_DAY,
    others: &[OFF_DAY_OTHERS[0], OFF_DAY_OTHERS[1], PRIVATE],
    sizes: [2048, 4096, 6144, 8192],
    of_all: true,
    paper: [
        [[2.13, 2.91, 6.40], [3.20, 4.42, 5.15]],
        [[1.17, 1.55, 8.51], [2.06, 2.55, 6.40]],
        [[0.74, 1.00, 9.77], [1.52, 1.72, 7.40]],
        [[0.53, 0.74, 10.87], [1.07, 1.25, 8.13]],
    ],
    paper_disks: &[(18.58, 29.49), (3.60, 2.79), (6.24, 8.27), (1.84, 1.19)],
    paper_fair: [[(0.167, 0.023), (0.283, 0.068)], [(0.040, 0.001), (0.101, 0.009)]],
};

/// Air-Rsv, three disks. Only with Air-Rsv first, then the database and the system disk, does Table 4.11 give the mean of its
/// partitioned column.
const THREE: Set = Set {
    name: "3 disks",
    first: &AIR_RSV,
    others: &AIR_RSV_OTHERS,
    sizes: [3072, 4608, 6144, 12_288],
    of_all: false,
    paper: [
        [[11.82, 8.39, 11.02], [12.54, 10.21, 10.31]],
        [[8.12, 6.51, 13.55], [8.76, 8.17, 12.22]],
        [[5.99, 5.38, 15.44], [6.91, 6.97, 13.76]],
        [[2.07, 3.24, 20.79], [3.85, 4.54, 17.53]],
    ],
    paper_disks: &[(3.92, 2.23), (9.38, 10.58), (23.11, 25.75)],
    paper_fair: [[(0.192, 0.020), (0.235, 0.029)], [(0.056, 0.002), (0.120, 0.010)]],
};

const SETS: [&Set; 2] = [&FOUR, &THREE];
const WAYS: [(bool, &str); 2] = [(false, "common"), (true, "partitioned")];

impl Set {
    fn disks(&self) -> usize {
        1 + self.others.len()
    }

    fn key(&self, kib: u64, way: &str) -> String {
        format!("{}, {kib} KiB for reads, {way}", self.name)
    }

    fn disk_names(&self) -> Vec<String> {
        let first = self.first.name.to_owned();
        std::iter::once(first).chain(self.others.iter().map(|other| other.name.to_owned())).collect()
    }

    /// The traces of all the disks, merged by time.
    fn trace(&'static self, settings: &Settings) -> Result<Trace, LabError> {
        let requests: usize = settings.number("requests")?;
        let first = self.first.describe()?;
        let seed = mix(settings.seed, 10 + self.first.index as u64);
        Ok(Trace::new(&format!("{} {requests}", self.name), seed, move || {
            let mut records = synthesised(&first, seed)?;
            for (index, other) in self.others.iter().enumerate() {
                let device = index as u32 + 1;
                records.extend(synthesised(&other.describe(&first, device), mix(seed, u64::from(device)))?);
            }
            records.sort_by_key(|record| record.at);
            if requests > 0 {
                records.truncate(requests);
            }
            Ok(records)
        }))
    }
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let config = WriteCacheConfig { piggyback: Piggyback::Full, ..nv::PAPERS };
    let mut points = Vec::new();
    for set in SETS {
        let trace = set.trace(settings)?;
        for kib in set.sizes {
            for (partitioned, way) in WAYS {
                let (read_bytes, write_bytes) = (kib << 10, (kib << 10) / 4);
                let config = WriteCacheConfig { partitioned, read_bytes, write_bytes, ..config };
                let drives = vec![set.first.drive; set.disks()];
                let case = ReplayCase { config, unit: RegionUnit::Cylinder, drives };
                let trace = trace.clone();
                points.push(Point::new(set.key(kib, way), move || measure(&case, &trace)));
            }
        }
    }
    Ok(points)
}

fn measure(case: &ReplayCase, trace: &Trace) -> Result<Sample, LabError> {
    let counted = replay(case, trace.records()?)?;
    let mut sample = sample(&counted.all, case.config.block_bytes);
    let requests = counted.all.reads + counted.all.writes;
    sample.set("writes_of_all", 100.0 * counted.all.disk_writes as f64 / requests as f64);
    sample.set_list("disks", counted.disks.iter().map(|disk| disk.writes_with_caching()).collect());
    Ok(sample)
}

/// The fairness of section 4.8, in fractions: the range of W_wc, and the sum of the squares from the mean of all disks.
fn fairness(samples: &Samples, key: &str) -> (f64, f64) {
    let disks: Vec<f64> = samples.list(key, "disks").iter().map(|percent| percent / 100.0).collect();
    let mean = samples.get(key, "wwc") / 100.0;
    let most = most(disks.iter().copied());
    let least = least(disks.iter().copied());
    (most - least, disks.iter().map(|disk| (disk - mean).powi(2)).sum())
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let mut findings = Findings::default();
    for (set, number) in SETS.into_iter().zip([9, 10]) {
        let writes = if set.of_all { "writes of all requests" } else { "W_wc" };
        let columns = format!(
            "read cache (KiB) | cache | {writes}, paper | ours | stalls, paper | ours | \
            success, paper | ours | I/Os"
        );
        let mut table = Table::new(format!("{} (%; Table 4.{number})", set.name), &columns);
        for (kib, paper) in set.sizes.into_iter().zip(set.paper) {
            for ((_, way), paper) in WAYS.into_iter().zip(paper) {
                let key = set.key(kib, way);
                let mut row = vec![kib.to_string(), way.to_owned()];
                let writes = if set.of_all { "writes_of_all" } else { "wwc" };
                for (paper, what) in paper.into_iter().zip([writes, "stalls", "piggyback"]) {
                    row.extend([figure(paper), figure(samples.get(&key, what))]);
                }
                row.push(format!("{:.0}", samples.get(&key, "ios")));
                table.row(row);
            }
        }
        findings.tables.extend([table, by_disk(set, samples), fair(set, samples)]);
        let curve = |way: &str| {
            let point = |kib: &u64| (*kib as f64 / 1024.0, samples.get(&set.key(*kib, way), "ios"));
            set.sizes.iter().map(point).collect()
        };
        findings.plots.push(Plot::lines(
            format!("{}: I/Os by the size of the read cache (Fig. 4.{number})", set.name),
            Axis::linear("read cache (MiB); a quarter of it for writes"),
            Axis::linear("I/Os at the disks"),
            WAYS.map(|(_, way)| Series::new(way, curve(way))),
        ));
        claims(settings, set, samples, &mut findings.claims);
    }
    Ok(findings)
}

fn by_disk(set: &Set, samples: &Samples) -> Table {
    let columns = "disk | common, paper* | ours | partitioned, paper* | ours";
    let mut table = Table::new(
        format!(
            "{}: W_wc of each disk, the smallest cache (%; Table 4.11; *which disk is which follows from its means)",
            set.name
        ),
        columns,
    );
    for (index, name) in set.disk_names().into_iter().enumerate() {
        let ours = |way: &str| samples.list(&set.key(set.sizes[0], way), "disks")[index];
        let (common, partitioned) = set.paper_disks[index];
        table.row(cells![name, common, ours("common"), partitioned, ours("partitioned")]);
    }
    table
}

fn fair(set: &Set, samples: &Samples) -> Table {
    let columns = "read cache (KiB) | cache | range, paper | ours | difference square, paper | ours";
    let mut table = Table::new(format!("{}: fairness (Table 4.12)", set.name), columns);
    for (kib, paper) in [set.sizes[0], set.sizes[3]].into_iter().zip(set.paper_fair) {
        for ((_, way), paper) in WAYS.into_iter().zip(paper) {
            let ours = fairness(samples, &set.key(kib, way));
            table.row(cells![kib, way, paper.0, ours.0, paper.1, ours.1]);
        }
    }
    table
}

fn claims(settings: &Settings, set: &Set, samples: &Samples, claims: &mut Vec<Claim>) {
    let claim = |id| settings.claim(id).with("set", set.name);
    let get = |kib: u64, way: &str, what: &str| samples.get(&set.key(kib, way), what);
    let is_first = set.first.index == OFF_DAY.index;
    let mut fewer = Vec::new();
    for kib in set.sizes {
        let (common, parted) = ("common", "partitioned");
        fewer.push(100.0 * (1.0 - get(kib, common, "ios") / get(kib, parted, "ios")));
        let pairs = [("wwc", false), ("stalls", false), ("piggyback", true)].map(|(what, is_more)| {
            let (common, parted) = (get(kib, common, what), get(kib, parted, what));
            if is_more { (common, parted) } else { (parted, common) }
        });
        let better = pairs.iter().filter(|(one, other)| one > other).count();
        let id = if is_first { "better" } else { "better-again" };
        claims.push(claim(id).with("kib", kib).with("better", better).more(pairs));
    }
    claims.push(claim(if is_first { "fewer" } else { "fewer-again" }).spread(&fewer));
    for kib in [set.sizes[0], set.sizes[3]] {
        let [common, parted] = ["common", "partitioned"].map(|way| fairness(samples, &set.key(kib, way)));
        let claim = claim("fairer")
            .with("kib", kib)
            .with("range", common.0)
            .with("parted-range", parted.0)
            .with("squares", common.1)
            .with("parted-squares", parted.1);
        claims.push(claim.more([(parted.0, common.0), (parted.1, common.1)]));
    }
}
