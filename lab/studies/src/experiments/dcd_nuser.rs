//! N users untar, copy and remove a tree of sources: how much faster with a cache.

use dcd_engine::Nanos;
use dcd_model::ffs::CpuCosts;
use dcd_sim::workloads::NUser;

use super::prelude::*;
use crate::configurations::DISKS;
use crate::nuser::{self, MANY_USERS, PHASES};

fn key(disk: &str, users: u32, cold: bool, run: u64) -> String {
    format!("{disk}, {users} users, {}, run {run}", if cold { "cold" } else { "warm" })
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let mut points = Vec::new();
    for disk in settings.choices("disks", &DISKS)? {
        for users in settings.numbers_of_users()? {
            for cold in [true, false] {
                for run in 0..settings.count::<u64>("runs")? {
                    let setup = nuser::setup(settings, disk)?;
                    let ffs = nuser::file_system(settings, &setup)?;
                    // All disks get the same trees.
                    let seed = mix(mix(settings.seed, u64::from(users)), run);
                    let benchmark = NUser { users, cold, pause: settings.span("pause")? };
                    points.push(Point::new(key(disk, users, cold, run), move || {
                        nuser::measure(&setup, &ffs, benchmark, seed)
                    }));
                }
            }
        }
    }
    if compares_delays(settings)? {
        for (delay, users) in delays(settings)? {
            let mut setup = nuser::setup(settings, "paper")?;
            if let Some(cache) = &mut setup.cache {
                cache.config.delay_max = Nanos::from_millis(delay);
            }
            let ffs = nuser::file_system(settings, &setup)?;
            let seed = mix(mix(settings.seed, u64::from(users)), 0);
            let benchmark = NUser { users, cold: true, pause: settings.span("pause")? };
            points.push(Point::new(delay_key(delay, users), move || {
                nuser::measure(&setup, &ffs, benchmark, seed)
            }));
        }
    }
    Ok(points)
}

/// Delays in ms with numbers of users.
fn delays(settings: &Settings) -> Result<Vec<(u64, u32)>, LabError> {
    let users = settings.numbers_of_users()?.into_iter().filter(|users| *users < MANY_USERS);
    let delays: Vec<u64> = settings.counts("delays")?;
    Ok(users.flat_map(|users| delays.iter().map(move |delay| (*delay, users))).collect())
}

fn compares_delays(settings: &Settings) -> Result<bool, LabError> {
    let disks = settings.choices("disks", &DISKS)?;
    Ok(["plain", "paper"].iter().all(|disk| disks.contains(disk)))
}

fn delay_key(delay: u64, users: u32) -> String {
    format!("paper, {delay} ms, {users} users")
}

/// The paper's driver writes a buffer as soon as the log write before it has ended (section 3.6), ours after half of the delay.
fn by_delay(settings: &Settings, samples: &Samples) -> Result<Table, LabError> {
    let title = "The paper's cache by the delay, of whose half a log write waits for more (cold, one run, times the plain disk)";
    let mut table = Table::new(title, "users | delay (ms) | untar | copy | remove");
    for (delay, users) in delays(settings)? {
        let gains = PHASES.map(|phase| {
            let seconds = |key: &str| samples.get(key, &format!("{phase}/seconds"));
            let gain = seconds(&key("plain", users, true, 0)) / seconds(&delay_key(delay, users));
            format!("{}x", figure(gain))
        });
        let [untar, copy, remove] = gains;
        table.row(cells![users, delay, untar, copy, remove]);
    }
    Ok(table)
}

/// Means over the runs.
struct Means<'a> {
    samples: &'a Samples,
    runs: u64,
}

impl Means<'_> {
    fn of(&self, disk: &str, users: u32, cold: bool, phase: &str, name: &str) -> f64 {
        let value = |run| self.samples.get(&key(disk, users, cold, run), &format!("{phase}/{name}"));
        (0..self.runs).map(value).sum::<f64>() / self.runs as f64
    }

    fn gain(&self, disk: &str, users: u32, cold: bool, phase: &str) -> f64 {
        let seconds = |disk| self.of(disk, users, cold, phase, "seconds");
        seconds("plain") / seconds(disk)
    }

    /// The processor's time in a cold phase with the paper's cache, over that on the plain disk: with the requests that the
    /// cache makes itself.
    fn cpu_with_cache(&self, users: u32, phase: &str) -> f64 {
        let of = |disk: &str, name: &str| self.of(disk, users, true, phase, name);
        let seconds = |disk: &str| of(disk, "cpu_share") * of(disk, "seconds");
        let forwarded = of("paper", "reads");
        let requests = (of("paper", "disk_reads") + of("paper", "disk_writes") - forwarded).max(0.0);
        let own = CpuCosts::ULTRA_1.block_request.as_secs_f64() * requests;
        (seconds("paper") + own) / seconds("plain")
    }
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let runs: u64 = settings.count("runs")?;
    let users = settings.numbers_of_users()?;
    let disks = settings.choices("disks", &DISKS)?;
    let means = Means { samples, runs };
    let mut findings = Findings::default();
    for cold in [true, false] {
        findings.tables.push(table(&means, &disks, &users, cold));
    }
    if compares_delays(settings)? {
        findings.tables.push(by_delay(settings, samples)?);
    }
    findings.plots = users.iter().map(|&users| plot(&means, &disks, users)).collect();
    if disks.contains(&"plain") && disks.contains(&"paper") {
        findings.claims.extend(users.iter().flat_map(|&users| paper_claims(settings, &means, users)));
    }
    Ok(findings)
}

fn table(means: &Means<'_>, disks: &[&str], users: &[u32], cold: bool) -> Table {
    let title = if cold { "Cold: mounted anew before each phase" } else { "Warm: not mounted anew" };
    let columns = "users | phase | disk | seconds | times the plain disk | CPU (%) | mean write (ms) | \
            mean read (ms)";
    let mut table = Table::new(title, columns);
    for &users in users {
        for phase in PHASES {
            for disk in disks {
                let mean = |name: &str| means.of(disk, users, cold, phase, name);
                let reads = mean("reads") > 0.0;
                let gain = if disks.contains(&"plain") {
                    format!("{}x", figure(means.gain(disk, users, cold, phase)))
                } else {
                    "–".to_owned()
                };
                let read_ms = reads.then(|| mean("read_ms"));
                let (seconds, cpu) = (mean("seconds"), mean("cpu_share") * 100.0);
                table.row(cells![users, phase, *disk, seconds, gain, cpu, mean("write_ms"), read_ms]);
            }
        }
    }
    table
}

fn plot(means: &Means<'_>, disks: &[&str], users: u32) -> Plot {
    let series = disks
        .iter()
        .map(|disk| Series::bars(*disk, PHASES.map(|phase| means.of(disk, users, true, phase, "seconds"))));
    Plot::bars(
        format!("Execution times with {users} users (Fig. 7 to 9)"),
        Axis::names("", PHASES),
        Axis::linear("seconds"),
        series,
    )
}

/// The paper shows a figure for each number of users, so each is judged on its own.
fn paper_claims(settings: &Settings, means: &Means<'_>, users: u32) -> Vec<Claim> {
    let claim = |id: &str| settings.claim(id).with("users", users_in_words(users));
    let gains = |phases: &[&str], cold: bool| -> Vec<f64> {
        phases.iter().map(|phase| means.gain("paper", users, cold, phase)).collect()
    };
    let cpu = |disk: &str| PHASES.map(|phase| 100.0 * means.of(disk, users, true, phase, "cpu_share"));
    let warmer = |phase: &str| {
        let [cold, warm] = [true, false].map(|cold| means.gain("paper", users, cold, phase));
        claim(&format!("{phase}-warmer")).range(100.0 * (warm / cold - 1.0))
    };
    let [waited, seconds] =
        ["waited_for_reads", "seconds"].map(|name| means.of("plain", users, true, "copy", name));
    let [untar, copy, remove] = PHASES.map(|phase| means.gain("paper", users, true, phase));
    let trees = claim("trees-over-copy").with("untar", untar).with("copy", copy).with("remove", remove);
    let mut claims = vec![
        claim("all").spread(&gains(&PHASES, true)),
        claim("trees").spread(&gains(&["untar", "remove"], true)),
        claim("copy").spread(&gains(&["copy"], true)),
        claim("copy-warm").spread(&gains(&["copy"], false)),
        claim("cpu-plain").spread(&cpu("plain")),
        claim("cpu-paper").spread(&cpu("paper")),
        claim("cpu-time").spread(&PHASES.map(|phase| 100.0 * means.cpu_with_cache(users, phase))),
        warmer("copy"),
        warmer("remove"),
        claim("copy-waits").range(100.0 * waited / seconds / f64::from(users)),
        trees.more([(untar.min(remove), copy)]),
    ];
    if users == 4 {
        claims.push(claim("remove-4").range(remove));
    }
    claims
}

fn users_in_words(users: u32) -> String {
    format!("{users} user{}", if users == 1 { "" } else { "s" })
}
