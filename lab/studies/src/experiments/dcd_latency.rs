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
/// What was chosen by some of these.
const QUEUE_ORDER: &str = "the order of the drive's queue";
const BUFFER_SEGMENTS: &str = "the segments of the drive's buffer";
/// Queueing times depend on how many writes the file system has out at once; half to twice is the same order.
const FACTOR: f64 = 2.0;

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
    Ok(points)
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
    Ok(Findings { tables: vec![table, buffer], plots: plots.collect(), claims: claims(samples, inside) })
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

const BUMPS: &str = "what is written takes one segment of the drive's buffer at most, and what the others lack was never read ahead, \
                     as the next request in the queue takes the arm away: the cache without the lock, whose small writes do not \
                     reach the disk, leaves the buffer as useless (it has hardly any read), and with the lock, which keeps each user's reads \
                     together, it is not";

/// Why hardly a write takes long that has the lock.
const LOG_WAIT: &str = "none takes longer than 31 ms: a write that has the lock waits only while both segment buffers are full, for \
                        the end of a log write, which takes 46 ms at most (dcd-requests), as with the lock hardly anything is \
                        before it in the disk's queue; and the buffers are seldom full, as the host writes most data when a file is \
                        closed and not in bursts. Without the lock 11 % take 25 to 148 ms, and the mean is 9.9 ms";

fn claims(samples: &Samples, inside: &str) -> Vec<Claim> {
    let plain = |name: &str| samples.get("plain", &format!("{PHASE}/{name}"));
    let cache = |name: &str| samples.get("paper", &format!("{PHASE}/{inside}{name}"));
    let about = |claim: &str, paper: f64, ours: f64| {
        let accepted = (paper / FACTOR, paper * FACTOR);
        Claim::range(claim, format!("{paper:.2} ms"), ours, accepted, " ms")
    };
    let faster = |claim: &str, (before, after): (f64, f64), name: &str| {
        let times = before / after;
        let accepted = (times / FACTOR, f64::INFINITY);
        Claim::range(claim, format!("{times:.0}x"), plain(name) / cache(name), accepted, "x")
    };
    let share = |claim: &str, paper: &str, ours: f64, accepted| {
        Claim::range(claim, paper, 100.0 * ours, accepted, " %")
    };
    let between = |disk: &str, from: &str, (low, high): (usize, usize)| {
        let shares = samples.list(disk, &format!("{PHASE}/{from}write_histogram"));
        shares[low.min(shares.len())..high.min(shares.len())].iter().sum::<f64>()
    };
    let mut claims = vec![
        about("mean write on the plain disk", WRITE_MS.0, plain("write_ms")).choosing(QUEUE_ORDER),
        about("mean read on the plain disk", READ_MS.0, plain("read_ms")),
        share(
            "writes with the paper's cache that take less than 1 ms",
            "95 %",
            cache("write_under_1ms"),
            (90.0, 100.0),
        ),
        share(
            "writes on the plain disk that take 25 to 150 ms",
            "the majority",
            between("plain", "", PLAIN_WRITES_MS),
            (50.0, 100.0),
        )
        .choosing(QUEUE_ORDER),
        share(
            "writes with the paper's cache that take less than 25 ms",
            "98 %",
            between("paper", inside, (0, CACHE_WRITES_MS)),
            (95.0, 100.0),
        ),
        about("mean write with the paper's cache", WRITE_MS.1, cache("write_ms")).because(LOG_WAIT),
        share(
            "writes with the paper's cache that take 1 to 25 ms",
            "another 3 %",
            between("paper", inside, (1, CACHE_WRITES_MS)),
            (3.0 / FACTOR, 3.0 * FACTOR),
        )
        .because(LOG_WAIT),
        share(
            "writes with the paper's cache that take 25 to 1500 ms",
            "the remaining 2 %",
            1.0 - between("paper", inside, (0, CACHE_WRITES_MS)),
            (2.0 / FACTOR, 2.0 * FACTOR),
        )
        .because(LOG_WAIT),
        faster("writes become faster by", WRITE_MS, "write_ms"),
        about("mean read with the paper's cache", READ_MS.1, cache("read_ms")).choosing(BUFFER_SEGMENTS),
        faster("reads become faster by", READ_MS, "read_ms"),
        share(
            "reads with the cache that take less than 1 ms, from the read-ahead of the drive",
            "about 40 %",
            cache("read_under_1ms"),
            (30.0, 100.0),
        )
        .choosing(BUFFER_SEGMENTS),
        share(
            "reads on the plain disk that take less than 1 ms",
            "very few",
            plain("read_under_1ms"),
            (0.0, 5.0),
        ),
    ];
    claims.push(hits(samples));
    let found = |disk: &str| from_buffer(samples, disk)[0];
    let claim = "small writes push out what the plain disk's buffer has: without that it has this many times the reads";
    let useless = (FACTOR, f64::INFINITY);
    let times = found(NO_BUMPS) / found("plain");
    claims.push(Claim::range(claim, "the buffer is virtually useless", times, useless, "x").because(BUMPS));
    claims.extend(queues(samples));
    claims
}

/// The times in the drive's queue, and what is synchronous.
fn queues(samples: &Samples) -> [Claim; 3] {
    let get = |disk: &str, name: &str| samples.get(disk, &format!("{PHASE}/{name}"));
    let mean = |disk: &str, kind: &str| {
        get(disk, &format!("disk_{kind}_queued_ms")) / get(disk, &format!("disk_{kind}s"))
    };
    [
        Claim::range(
            "the long response time of the plain disk's writes is queueing, of it",
            "mainly",
            100.0 * mean("plain", "write") / get("plain", "write_ms"),
            (50.0, 100.0),
            " %",
        ),
        Claim::range(
            "reads wait in the drive's queue with the cache, of what they wait on the plain disk",
            "eliminated",
            100.0 * mean("paper", "read") / mean("plain", "read"),
            (0.0, 10.0),
            " %",
        ),
        Claim::range(
            "writes that are synchronous, on the plain disk",
            "virtually all",
            100.0 * get("plain", "sync metadata") / get("plain", "writes"),
            (90.0, 100.0),
            " %",
        )
        .because(
            "each file is made with two synchronous writes, of its inode and its directory, and its data is written when it \
             is closed or by the update daemon, which no call waits for; the rest are maps and inodes written later",
        ),
    ]
}

/// Parts of the file system's reads that the drive's buffer had, and that went on where it was still reading ahead.
fn from_buffer(samples: &Samples, disk: &str) -> [f64; 2] {
    let count = |name: &str| samples.get(disk, &format!("{PHASE}/{name}"));
    ["data_hits", "data_read_ahead_hits"].map(|name| count(name) / count("reads"))
}

fn hits(samples: &Samples) -> Claim {
    let [(plain, plain_all), (cache, cache_all)] = ["plain", "paper"].map(|disk| {
        let [whole, part] = from_buffer(samples, disk);
        (100.0 * whole, 100.0 * (whole + part))
    });
    let ours = format!(
        "{} % and {} %; with those that go on where it is still reading ahead {} % and {} %",
        figure(plain),
        figure(cache),
        figure(plain_all),
        figure(cache_all)
    );
    Claim::fact(
        "reads of the file system that the drive's buffer has, plain disk and cache",
        "significantly higher with the cache",
        ours,
        cache >= FACTOR * plain && cache_all >= FACTOR * plain_all,
    )
}
