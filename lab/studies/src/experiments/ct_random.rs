//! Random writes to an array: by the size of the workspace, and by how many there are.

use std::collections::{BTreeMap, BTreeSet};

use dcd_crash::SimRng;
use dcd_engine::raid::Level;
use dcd_engine::{Buf, Durability, Io, LINE_BYTES, LINE_SECTORS, Lba, Nanos, RequestId};

use super::prelude::*;
use crate::array::{ArraySetup, SECONDS_PER_MB, Scheme, rate_of_runs};

/// Requests that the host has in flight: a block device's queue.
const QUEUE: usize = 128;
/// The longest request that the host joins from neighbours, in pages.
const JOINED_MAX: u64 = 32;
const GIB_PAGES: u64 = (1 << 30) / LINE_BYTES;
/// The workspace where the number of writes varies.
const COUNTS_PAGES: u64 = GIB_PAGES / 2 * 3;
/// Writes of the paper's figures ("2560k").
const COUNT_PAPER: u64 = 2_560_000;

/// Other arrays with as many disks of data.
const ARRAYS: [(&str, Level, bool); 2] =
    [("RAID-5, one disk failed", Level::Raid5, true), (RAID_6, Level::Raid6, false)];
const RAID_6: &str = "RAID-6, one disk more";

fn workspaces(settings: &Settings) -> Result<Vec<u64>, LabError> {
    settings.counts("workspaces")
}

fn key(scheme: Scheme, pages: u64, writes: u64) -> String {
    format!("{} {pages} {writes}", scheme.name())
}

fn queue_key(scheme: Scheme, pages: u64, writes: u64, queue_depth: usize) -> String {
    format!("{} with {queue_depth} commands at a time", key(scheme, pages, writes))
}

fn rows_key(pages: u64, writes: u64, rows: u32) -> String {
    format!("{}, {rows} rows at a time", key(Scheme::Pbgc, pages, writes))
}

fn array_key(scheme: Scheme, pages: u64, writes: u64, array: &str) -> String {
    format!("{}, {array}", key(scheme, pages, writes))
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let setup = ArraySetup::read(settings)?;
    let dirty_max = (settings.bytes("page-cache")? / LINE_BYTES).max(1);
    let writes: u64 = settings.count("writes")?;
    let workspaces = workspaces(settings)?;
    let sizes = workspaces.iter().map(|gib| (gib * GIB_PAGES, writes));
    let counts = settings.counts::<u64>("counts")?.into_iter().map(|writes| (COUNTS_PAGES, writes));
    let mut cases = BTreeMap::new();
    for (pages, writes) in sizes.chain(counts) {
        for scheme in Scheme::ALL {
            cases.insert(key(scheme, pages, writes), (setup.clone(), scheme, pages, writes));
        }
    }
    let pages = workspaces[0] * GIB_PAGES;
    for queue_depth in settings.counts("queue-depths")? {
        for scheme in Scheme::ALL {
            let setup = ArraySetup { queue_depth, ..setup.clone() };
            cases.insert(queue_key(scheme, pages, writes, queue_depth), (setup, scheme, pages, writes));
        }
    }
    for (array, level, degraded) in ARRAYS {
        let members = setup.members - 1 + level.parity();
        for scheme in Scheme::ALL {
            let setup = ArraySetup { level, degraded, members, ..setup.clone() };
            cases.insert(array_key(scheme, pages, writes, array), (setup, scheme, pages, writes));
        }
    }
    for rows in settings.counts("rows-tried")? {
        let (setup, scheme) = (ArraySetup { rows, ..setup.clone() }, Scheme::Pbgc);
        cases.insert(rows_key(pages, writes, rows), (setup, scheme, pages, writes));
    }
    let (runs, seed) = (settings.count("runs")?, settings.seed);
    let point = |(key, (setup, scheme, pages, writes)): (String, (ArraySetup, Scheme, u64, u64))| {
        let seed = mix(seed, pages ^ writes << 32);
        Point::new(key, move || {
            rate_of_runs(runs, seed, |seed| measure(&setup, scheme, pages, writes, dirty_max, seed))
        })
    };
    Ok(cases.into_iter().map(point).collect())
}

/// The host's page cache: dirty pages, and where its write-back is.
struct PageCache {
    dirty: BTreeSet<u64>,
    hand: u64,
}

impl PageCache {
    /// Takes out the next dirty pages behind the hand that one request can write.
    fn next_run(&mut self) -> Option<(u64, u64)> {
        let first = self.dirty.range(self.hand..).next().or_else(|| self.dirty.first()).copied()?;
        let mut length = 0;
        while length < JOINED_MAX && self.dirty.remove(&(first + length)) {
            length += 1;
        }
        self.hand = first + length;
        Some((first, length))
    }
}

fn measure(
    setup: &ArraySetup,
    scheme: Scheme,
    pages: u64,
    writes: u64,
    dirty_max: u64,
    seed: u64,
) -> Result<Sample, LabError> {
    let mut rig = setup.build(scheme)?;
    if pages * LINE_SECTORS > rig.sectors() {
        return Err(LabError::Setup("the workspace is larger than the array".to_owned()));
    }
    let mut random = SimRng::new(seed);
    let mut cache = PageCache { dirty: BTreeSet::new(), hand: 0 };
    let mut in_flight: BTreeMap<RequestId, Nanos> = BTreeMap::new();
    let (mut left, mut sum, mut most) = (writes, 0.0, Nanos::ZERO);
    let (mut requests, begin) = (0u64, rig.now());
    loop {
        while left > 0 && (cache.dirty.len() as u64) < dirty_max {
            cache.dirty.insert(random.below(pages));
            left -= 1;
        }
        while in_flight.len() < QUEUE
            && (left == 0 || cache.dirty.len() as u64 >= dirty_max.saturating_sub(JOINED_MAX * QUEUE as u64))
            && let Some((first, length)) = cache.next_run()
        {
            let buf = Buf::blank((length * LINE_BYTES) as usize);
            let now = rig.now();
            let io = Io::Write { at: Lba(first * LINE_SECTORS), buf, durability: Durability::Volatile };
            in_flight.insert(rig.submit(io), now);
            requests += 1;
        }
        if in_flight.is_empty() {
            break;
        }
        let id = rig.wait_reply()?;
        let sent = in_flight.remove(&id).expect("it was sent");
        let took = rig.now().since(sent);
        sum += took.as_millis_f64();
        most = most.max(took);
    }
    rig.drain();
    let seconds = rig.now().since(begin).as_secs_f64();
    let status = rig.cache_status();
    let count = |name: &str| status["statistics"][name].as_u64().unwrap_or(0) as f64;
    let mut sample = Sample::default();
    sample.set(SECONDS_PER_MB, seconds / ((writes * LINE_BYTES) as f64 / 1e6));
    sample.set("mean_ms", sum / requests as f64);
    sample.set("max_ms", most.as_millis_f64());
    sample.set("commands", (count("destage_reads") + count("destage_writes")) / writes as f64);
    sample.set("blocks", (count("destage_read_blocks") + count("destage_written_blocks")) / writes as f64);
    Ok(sample)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let workspaces = workspaces(settings)?;
    let writes: u64 = settings.count("writes")?;
    let counts: Vec<u64> = settings.counts("counts")?;
    let get = |scheme, pages, writes, name: &str| samples.get(&key(scheme, pages, writes), name);
    let columns = " | PBGC (MB/s) | SC | MSC-CT | over SC | over PBGC | commands a write, PBGC | SC | \
            MSC-CT | blocks, SC | MSC-CT";
    let times = |ratio: f64| format!("{ratio:.2}x");
    let row = |table: &mut Table, name: String, pages: u64, writes: u64| {
        let of = |name: &str| Scheme::ALL.map(|scheme| get(scheme, pages, writes, name));
        let ([pbgc, sc, ct], [c0, c1, c2], [_, b1, b2]) = (of("mb_per_s"), of("commands"), of("blocks"));
        let (over_sc, over_pbgc) = (times(ct / sc), times(ct / pbgc));
        table.row(cells![name, pbgc, sc, ct, over_sc, over_pbgc, c0, c1, c2, b1, b2]);
    };
    let mut sizes = Table::new(format!("{writes} writes, by the workspace"), columns);
    for gib in &workspaces {
        row(&mut sizes, format!("{gib} GB"), gib * GIB_PAGES, writes);
    }
    let first = workspaces[0] * GIB_PAGES;
    let mut queues = Table::new(
        format!("{} GB, by the commands that a member gets at a time (MB/s)", workspaces[0]),
        "commands | PBGC | SC | MSC-CT | over SC | over PBGC",
    );
    for depth in settings.counts::<usize>("queue-depths")? {
        let rate = |scheme| samples.get(&queue_key(scheme, first, writes, depth), "mb_per_s");
        let [pbgc, sc, ct] = Scheme::ALL.map(rate);
        queues.row(cells![depth, pbgc, sc, ct, times(ct / sc), times(ct / pbgc)]);
    }
    let mut arrays = Table::new(
        format!("{} GB, other arrays (MB/s)", workspaces[0]),
        "array | PBGC | SC | MSC-CT | over SC | over PBGC",
    );
    let array_rate = |array: &str, scheme| samples.get(&array_key(scheme, first, writes, array), "mb_per_s");
    for (array, ..) in ARRAYS {
        let [pbgc, sc, ct] = Scheme::ALL.map(|scheme| array_rate(array, scheme));
        arrays.row(cells![array, pbgc, sc, ct, times(ct / sc), times(ct / pbgc)]);
    }
    let mut by_rows = Table::new(
        format!("{} GB, by the parity block groups that PBGC destages at a time", workspaces[0]),
        "groups | PBGC (MB/s) | longest response (ms) | SC over PBGC | MSC-CT over PBGC",
    );
    for rows in settings.counts::<u32>("rows-tried")? {
        let of = |what| samples.get(&rows_key(first, writes, rows), what);
        let over = |scheme| times(get(scheme, first, writes, "mb_per_s") / of("mb_per_s"));
        by_rows.row(cells![rows, of("mb_per_s"), of("max_ms"), over(Scheme::Sc), over(Scheme::MscCt)]);
    }
    let mut by_count = Table::new("1.5 GB, by the number of writes", columns);
    let mut latency = Table::new(
        "Response times of the array's writes in 1.5 GB (ms)",
        "writes | PBGC mean | SC | MSC-CT | PBGC max | SC | MSC-CT",
    );
    for &count in &counts {
        row(&mut by_count, count.to_string(), COUNTS_PAGES, count);
        let of = |name: &str| Scheme::ALL.map(|scheme| get(scheme, COUNTS_PAGES, count, name));
        let ([a, b, c], [d, e, f]) = (of("mean_ms"), of("max_ms"));
        latency.row(cells![count, a, b, c, d, e, f]);
    }
    let tables = vec![sizes, queues, arrays, by_rows, by_count, latency];

    let rate = |scheme, gib: u64| get(scheme, gib * GIB_PAGES, writes, "mb_per_s");
    let counted = |scheme, count: u64| get(scheme, COUNTS_PAGES, count, "mb_per_s");
    let (pbgc, sc, ct) = (Scheme::Pbgc, Scheme::Sc, Scheme::MscCt);
    let over = |one, other, gib| rate(one, gib) / rate(other, gib);
    let claim = |id| settings.claim(id);
    let mut claims = Vec::new();
    if workspaces.contains(&1) {
        claims.extend([
            claim("small-over-sc").range(over(ct, sc, 1)),
            claim("small-over-pbgc").range(over(ct, pbgc, 1)),
        ]);
    }
    if workspaces.contains(&8) {
        claims.extend([
            claim("large-over-sc").range(over(ct, sc, 8)),
            claim("large-sc-over-pbgc").range(over(sc, pbgc, 8)),
        ]);
    }
    let gains: Vec<f64> = workspaces.iter().map(|gib| over(ct, sc, *gib)).collect();
    claims.push(claim("never-slower").spread(&gains));
    if let [first, .., last] = gains[..] {
        claims
            .push(claim("falls").with("first", times(first)).with("last", times(last)).more([(first, last)]));
    }
    claims.push(claim("raid-6").range(array_rate(RAID_6, ct) / array_rate(RAID_6, sc)));
    claims.push(claim("hierarchical").not_run());
    claims.push(claim("sc-slower").not_run());
    if let [few, .., many] = counts[..] {
        let gain = |count| counted(ct, count) / counted(sc, count);
        let grows = claim("grows").with("few", times(gain(few))).with("many", times(gain(many)));
        let of_paper = |id, (one, other): (Scheme, Scheme), what: &str| {
            let claim = claim(id).with("writes", COUNT_PAPER);
            if !counts.contains(&COUNT_PAPER) {
                return claim.not_run();
            }
            let of = |scheme| get(scheme, COUNTS_PAGES, COUNT_PAPER, what);
            claim.range(of(one) / of(other))
        };
        claims.extend([
            claim("few").with("writes", few).range(gain(few)),
            of_paper("many", (ct, sc), "mb_per_s"),
            grows.more([(gain(many), gain(few))]),
            of_paper("mean", (sc, ct), "mean_ms"),
            of_paper("longest", (sc, ct), "max_ms"),
            of_paper("longest-pbgc", (pbgc, sc), "max_ms"),
        ]);
    }
    let series = |scheme: Scheme| {
        let points = workspaces.iter().map(|gib| (*gib as f64, rate(scheme, *gib))).collect();
        Series::new(scheme.name(), points)
    };
    let by_size = Plot::lines(
        "Random writes by the workspace (Fig. 11)",
        Axis::linear("workspace (GB)"),
        Axis::linear("MB/s"),
        Scheme::ALL.map(series),
    );
    let series = |scheme: Scheme| {
        let points = counts.iter().map(|count| (*count as f64 / 1e3, counted(scheme, *count))).collect();
        Series::new(scheme.name(), points)
    };
    let by_count = Plot::lines(
        "Random writes by their number (Fig. 12a)",
        Axis::log("thousands of writes"),
        Axis::linear("MB/s"),
        Scheme::ALL.map(series),
    );
    Ok(Findings { tables, plots: vec![by_size, by_count], claims })
}
