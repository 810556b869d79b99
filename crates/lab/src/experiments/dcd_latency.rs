//! Response times of reads and writes in the 4-user copy.

use dcd_sim::mix;
use dcd_sim::workloads::NUser;

use crate::configurations::{DISKS, with_caches};
use crate::findings::figure;
use crate::nuser::{self, DRIVE, HISTOGRAM_MS, PAUSE, QUEUE};
use crate::{
    Axis, Claim, Experiment, Findings, Group, LabError, Param, Plot, Point, Samples, Series, Settings, Style,
    Table,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "dcd-latency",
    group: Group::A,
    source: "Fig. 11 and 12, section 4.2.3",
    title: "Response times of reads and writes",
    about: "The requests that the file system sends in the N-user copy, from when it sends them to their answer. The \
            paper's cache is shown with its lock as the paper describes it, and without: under a lock that is held until a \
            request is complete, a write waits for a read.",
    params: &PARAMS,
    plan,
    conclude,
};

const PARAMS: [Param; 12] =
    with_caches([DRIVE, QUEUE, PAUSE, Param { key: "users", default: "4", about: "users at once" }]);

const SHOWN: [&str; 5] = ["plain", "paper", "paper without lock", "ours ordered", "ours flush"];
const PHASE: &str = "copy";
/// The paper's means in ms, of the plain disk and of its cache.
const WRITE_MS: (f64, f64) = (135.30, 9.59);
const READ_MS: (f64, f64) = (42.28, 6.69);
/// Queueing times depend on how many writes the file system has out at once; half to twice is the same order.
const FACTOR: f64 = 2.0;

fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    debug_assert!(SHOWN.iter().all(|disk| DISKS.contains(disk)));
    let users = settings.number("users")?;
    let pause = settings.span("pause")?;
    let seed = mix(settings.seed, 0);
    let points = SHOWN.iter().map(|&disk| {
        let setup = nuser::setup(settings, disk)?;
        let benchmark = NUser { users, pause, ..NUser::default() };
        Ok(Point::new(disk, move || nuser::measure(&setup, benchmark, seed)))
    });
    points.collect()
}

fn conclude(_settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let get = |disk: &str, name: &str| samples.get(disk, &format!("{PHASE}/{name}"));
    let mut table = Table::new(
        "Response times in the copy",
        &["disk", "writes", "mean (ms)", "under 1 ms (%)", "reads", "mean (ms)", "under 1 ms (%)"],
    );
    table.row(["plain, paper", "", "135.30", "", "", "42.28", "very few"].map(str::to_owned));
    table.row(["cache, paper", "", "9.59", "95", "", "6.69", "40"].map(str::to_owned));
    for disk in SHOWN {
        let mut row = vec![format!("{disk}, ours measured")];
        for kind in ["write", "read"] {
            row.push(format!("{}", get(disk, &format!("{kind}s"))));
            row.push(figure(get(disk, &format!("{kind}_ms"))));
            row.push(figure(100.0 * get(disk, &format!("{kind}_under_1ms"))));
        }
        table.row(row);
    }
    let plots = [("write", "Fig. 11"), ("read", "Fig. 12")].into_iter().flat_map(|(kind, source)| {
        [("plain", HISTOGRAM_MS), ("paper without lock", 25), ("ours ordered", 25)]
            .map(|(disk, up_to_ms)| histogram(samples, disk, kind, source, up_to_ms))
    });
    Ok(Findings { tables: vec![table], plots: plots.collect(), claims: claims(samples) })
}

fn histogram(samples: &Samples, disk: &str, kind: &str, source: &str, up_to_ms: usize) -> Plot {
    let shares = samples.list(disk, &format!("{PHASE}/{kind}_histogram"));
    // As many bars as can be told apart.
    let step = (up_to_ms / 50).max(1);
    let bars = shares.chunks(step).take(up_to_ms / step).enumerate();
    let points = bars
        .map(|(bar, shares)| ((bar * step) as f64 + step as f64 / 2.0, 100.0 * shares.iter().sum::<f64>()));
    Plot {
        title: format!("Response times of {kind}s, {disk} ({source})"),
        x: Axis::linear("response time (ms)"),
        y: Axis::linear("requests (%)"),
        style: Style::Bars,
        series: vec![Series::new(disk, points.collect())],
    }
}

fn claims(samples: &Samples) -> Vec<Claim> {
    let get = |disk: &str, name: &str| samples.get(disk, &format!("{PHASE}/{name}"));
    let about = |claim: &str, paper: f64, ours: f64| {
        let accepted = (paper / FACTOR, paper * FACTOR);
        Claim::range(claim, format!("{paper:.2} ms"), ours, accepted, " ms")
    };
    let (plain, locked, free) = ("plain", "paper", "paper without lock");
    let write_gain = get(plain, "write_ms") / get(free, "write_ms");
    let read_gain = get(plain, "read_ms") / get(free, "read_ms");
    let percent = |disk: &str, name: &str| 100.0 * get(disk, name);
    let queued = "the file system pushes each cluster of a file as soon as it is written and the update daemon sends what \
                  is left at once, so there are more writes in the queue than four; the \
                  requests that calls wait for are one for each user";
    let read_ahead = format!(
        "the drive has fewer read segments (2 of 3) than there are users, so one user's read-ahead is gone before it comes \
         back, and the file system sends its own read-ahead together with the read, so that its answer comes later than \
         the first one's; still {:.0} % of the reads came from the drive's cache or read-ahead",
        100.0 * (get(free, "disk_hits") + get(free, "disk_read_ahead_hits")) / get(free, "disk_reads")
    );
    vec![
        about("mean write on the plain disk", WRITE_MS.0, get(plain, "write_ms")).because(queued),
        about("mean read on the plain disk", READ_MS.0, get(plain, "read_ms")),
        Claim::range(
            "writes with the paper's cache that take less than 1 ms",
            "95 %",
            percent(free, "write_under_1ms"),
            (90.0, 100.0),
            " %",
        )
        .because("the update daemon sends some megabytes at once, and two buffers of 128 KB fill faster than the log is written \
                  between reads"),
        Claim::fact(
            "the same with the lock as it is described: a write waits for the reads before it",
            "95 %",
            format!("{} %", figure(percent(locked, "write_under_1ms"))),
            percent(locked, "write_under_1ms") >= 90.0,
        )
        .because(
            "under a lock that is held until a request is complete no write can be faster than the read before it; the \
             prototype must have given it up while it waited for the disk",
        ),
        Claim::range("writes become faster by", "14x", write_gain, (14.0 / FACTOR, f64::INFINITY), "x")
            .because("the mean is that of the few writes that wait for a free buffer behind the daemon's burst, as in the paper \
                  (its footnote 4), only that here a burst is larger: the buffer cache has 96 MB"),
        Claim::range("reads become faster by", "7x", read_gain, (7.0 / FACTOR, f64::INFINITY), "x")
            .because(read_ahead.clone()),
        about("mean read with the paper's cache", READ_MS.1, get(free, "read_ms")).because(read_ahead.clone()),
        Claim::range(
            "reads with the cache that take less than 1 ms, from the read-ahead of the drive",
            "about 40 %",
            percent(free, "read_under_1ms"),
            (30.0, 100.0),
            " %",
        )
        .because(read_ahead),
        Claim::range(
            "reads on the plain disk that take less than 1 ms",
            "very few",
            percent(plain, "read_under_1ms"),
            (0.0, 5.0),
            " %",
        ),
    ]
}
