//! Response times of reads and writes in the 4-user copy.

use dcd_sim::workloads::NUser;

use super::prelude::*;
use crate::configurations::DISKS;
use crate::nuser::{self, HISTOGRAM_MS};
use crate::rig::Setup;

const SHOWN: [&str; 5] = ["plain", "paper", "paper without lock", "ours ordered", "ours flush"];
const PHASE: &str = "copy";
/// The plain disk, if writes pushed nothing out of its buffer.
const NO_BUMPS: &str = "plain, writes not in the buffer";
/// The paper's means in ms, of the plain disk and of its cache.
const WRITE_MS: (f64, f64) = (135.30, 9.59);
const READ_MS: (f64, f64) = (42.28, 6.69);

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    debug_assert!(SHOWN.iter().all(|disk| DISKS.contains(disk)));
    let users = settings.users()?;
    let pause = settings.span("pause")?;
    let seed = mix(settings.seed, 0);
    let benchmark = NUser { users, pause, ..NUser::default() };
    let mut points = Vec::new();
    for disk in SHOWN {
        let setup = nuser::setup(settings, disk)?;
        let ffs = nuser::file_system(settings, &setup)?;
        points.push(Point::new(disk, move || nuser::measure(&setup, &ffs, benchmark, seed)));
    }
    let setup = Setup { writes_in_buffer: false, ..nuser::setup(settings, "plain")? };
    let ffs = nuser::file_system(settings, &setup)?;
    points.push(Point::new(NO_BUMPS, move || nuser::measure(&setup, &ffs, benchmark, seed)));
    for (case, setup) in tried(settings)? {
        let ffs = nuser::file_system(settings, &setup)?;
        points.push(Point::new(case, move || nuser::measure(&setup, &ffs, benchmark, seed)));
    }
    Ok(points)
}

fn tried_key(disk: &str, key: &str, value: &str) -> String {
    format!("{disk}, {key} {value}")
}

/// The plain disk and the paper's cache with other segments and other orders of the drive's queue.
fn tried(settings: &Settings) -> Result<Vec<(String, Setup)>, LabError> {
    let mut cases = Vec::new();
    for key in ["segments", "queue"] {
        for value in settings.texts(&format!("{key}-tried")) {
            for disk in ["plain", "paper"] {
                let setup = nuser::setup(&settings.with_value(key, value), disk)?;
                cases.push((tried_key(disk, key, value), setup));
            }
        }
    }
    Ok(cases)
}

fn by_choices(settings: &Settings, samples: &Samples, inside: &str) -> Table {
    let columns = "choice | plain: mean write (ms) | 25 to 150 ms (%) | mean read (ms) | \
            paper: mean read (ms) | under 1 ms (%) | in the buffer (%)";
    let mut table = Table::new("By the segments of the drive's buffer and the order of its queue", columns);
    for key in ["segments", "queue"] {
        for value in settings.texts(&format!("{key}-tried")) {
            let [plain, paper] = ["plain", "paper"].map(|disk| tried_key(disk, key, value));
            let get = |disk: &str, name: &str| samples.get(disk, &format!("{PHASE}/{name}"));
            let within = writes_between(samples, &plain, "", PLAIN_WRITES_MS);
            let cached = |name: &str| get(&paper, &format!("{inside}{name}"));
            table.row(cells![
                format!("{key} {value}"),
                get(&plain, "write_ms"),
                within,
                get(&plain, "read_ms"),
                cached("read_ms"),
                100.0 * cached("read_under_1ms"),
                100.0 * from_buffer(samples, &paper)[0],
            ]);
        }
    }
    table
}

/// Names the times that begin when a request has the lock.
const INSIDE: &str = "inside_";

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    // Without the lock there is nothing to wait for before a request begins.
    let inside = if settings.flag("lock")? { INSIDE } else { "" };
    let get = |disk: &str, name: &str| samples.get(disk, &format!("{PHASE}/{name}"));
    let mut table = Table::new(
        "Response times in the copy",
        "disk | writes | mean (ms) | under 1 ms (%) | reads | mean (ms) | under 1 ms (%)",
    );
    table.row(["the paper's plain disk", "", "135.30", "", "", "42.28", "very few"].map(str::to_owned));
    table.row(["the paper's cache", "", "9.59", "95", "", "6.69", "40"].map(str::to_owned));
    let mut rows = SHOWN.map(|disk| (disk, disk, "")).to_vec();
    rows.insert(2, ("paper, from when the request has the lock", "paper", inside));
    for (label, disk, from) in rows {
        let mut row = vec![format!("{label}, measured")];
        for kind in ["write", "read"] {
            row.push(format!("{}", get(disk, &format!("{from}{kind}s"))));
            row.push(figure(get(disk, &format!("{from}{kind}_ms"))));
            row.push(figure(100.0 * get(disk, &format!("{from}{kind}_under_1ms"))));
        }
        table.row(row);
    }
    let mut buffer = Table::new(
        "Reads and the drive's buffer",
        "disk | reads | in the buffer (%) | where it is still reading ahead (%)",
    );
    for disk in ["plain", NO_BUMPS, "paper", "paper without lock"] {
        let shares = from_buffer(samples, disk).map(|share| figure(100.0 * share));
        buffer.row([disk.to_owned(), format!("{}", get(disk, "reads"))].into_iter().chain(shares));
    }
    let plots = [("write", "Fig. 11"), ("read", "Fig. 12")].into_iter().flat_map(|(kind, source)| {
        [("plain", "", HISTOGRAM_MS), ("paper", inside, 25), ("ours ordered", "", 25)]
            .map(|(disk, from, up_to_ms)| histogram(samples, disk, (from, kind), source, up_to_ms))
    });
    Ok(Findings {
        tables: vec![table, buffer, by_choices(settings, samples, inside)],
        plots: plots.collect(),
        claims: claims(settings, samples, inside),
    })
}

fn histogram(
    samples: &Samples,
    disk: &str,
    (from, kind): (&str, &str),
    source: &str,
    up_to_ms: usize,
) -> Plot {
    let shares = samples.list(disk, &format!("{PHASE}/{from}{kind}_histogram"));
    // As many bars as can be told apart.
    let step = (up_to_ms / 50).max(1);
    let bars = shares.chunks(step).take(up_to_ms / step).enumerate();
    let points = bars
        .map(|(bar, shares)| ((bar * step) as f64 + step as f64 / 2.0, 100.0 * shares.iter().sum::<f64>()));
    Plot::bars(
        format!("Response times of {kind}s, {disk} ({source})"),
        Axis::linear("response time (ms)"),
        Axis::linear("requests (%)"),
        [Series::new(disk, points.collect())],
    )
}

/// "The majority of writes fall within the range of 25-150 ms" on the plain disk; with the cache 95 % take less than 1 ms,
/// and "another 3 %" less than 25 ms.
const PLAIN_WRITES_MS: (usize, usize) = (25, 150);
const CACHE_WRITES_MS: usize = 25;

/// The share of the writes whose milliseconds lie in a range, in percent.
fn writes_between(samples: &Samples, disk: &str, from: &str, (low, high): (usize, usize)) -> f64 {
    let shares = samples.list(disk, &format!("{PHASE}/{from}write_histogram"));
    100.0 * shares[low.min(shares.len())..high.min(shares.len())].iter().sum::<f64>()
}

fn claims(settings: &Settings, samples: &Samples, inside: &str) -> Vec<Claim> {
    let claim = |id| settings.claim(id);
    let plain = |name: &str| samples.get("plain", &format!("{PHASE}/{name}"));
    let cache = |name: &str| samples.get("paper", &format!("{PHASE}/{inside}{name}"));
    let about = |id, paper: f64| claim(id).of_paper(Rule::Figure(paper));
    // From when the file system sends a request, so with the wait for the lock.
    let faster =
        |id, name: &str| claim(id).range(plain(name) / samples.get("paper", &format!("{PHASE}/{name}")));
    let between = |disk: &str, from: &str, range| writes_between(samples, disk, from, range);
    let found = |disk: &str| from_buffer(samples, disk)[0];
    let mut claims = vec![
        about("plain-write", WRITE_MS.0).range(plain("write_ms")),
        about("plain-read", READ_MS.0).range(plain("read_ms")),
        claim("cache-writes-1").range(100.0 * cache("write_under_1ms")),
        claim("plain-writes-150").range(between("plain", "", PLAIN_WRITES_MS)),
        about("cache-write", WRITE_MS.1).range(cache("write_ms")),
        claim("cache-writes-1-25").range(between("paper", inside, (1, CACHE_WRITES_MS))),
        claim("cache-writes-1500").range(100.0 - between("paper", inside, (0, CACHE_WRITES_MS))),
        faster("writes-faster", "write_ms"),
        faster("writes-reduced", "write_ms"),
        about("cache-read", READ_MS.1).range(cache("read_ms")),
        faster("reads-faster", "read_ms"),
        claim("cache-reads-1").range(100.0 * cache("read_under_1ms")),
        claim("plain-reads-1").range(100.0 * plain("read_under_1ms")),
        hits(settings, samples),
        claim("bumps").ratios(&[found(NO_BUMPS) / found("plain")]),
    ];
    claims.extend(queues(settings, samples, inside));
    claims
}

/// The times in the drive's queue, and what is synchronous.
fn queues(settings: &Settings, samples: &Samples, inside: &str) -> [Claim; 3] {
    let get = |disk: &str, name: &str| samples.get(disk, &format!("{PHASE}/{name}"));
    let mean = |disk: &str, kind: &str| {
        get(disk, &format!("disk_{kind}_queued_ms")) / get(disk, &format!("disk_{kind}s"))
    };
    let range = |id, ours: f64| settings.claim(id).range(100.0 * ours);
    let locked = get("paper", "read_ms") - get("paper", &format!("{inside}read_ms"));
    [
        range("queueing", mean("plain", "write") / get("plain", "write_ms")),
        range("read-queueing", (mean("paper", "read") + locked) / mean("plain", "read")),
        range("synchronous", get("plain", "sync metadata") / get("plain", "writes")),
    ]
}

/// Parts of the file system's reads that the drive's buffer had, and that went on where it was still reading ahead.
fn from_buffer(samples: &Samples, disk: &str) -> [f64; 2] {
    let count = |name: &str| samples.get(disk, &format!("{PHASE}/{name}"));
    ["data_hits", "data_read_ahead_hits"].map(|name| count(name) / count("reads"))
}

fn hits(settings: &Settings, samples: &Samples) -> Claim {
    let [(plain, plain_all), (cache, cache_all)] = ["plain", "paper"].map(|disk| {
        let [whole, part] = from_buffer(samples, disk);
        (100.0 * whole, 100.0 * (whole + part))
    });
    let claim = settings.claim("hits").with("plain", plain).with("cache", cache);
    let claim = claim.with("plain-all", plain_all).with("cache-all", cache_all);
    claim.fact("a quarter more, both", cache >= 1.25 * plain && cache_all >= 1.25 * plain_all)
}
