//! N users untar, copy and remove a tree of sources: how much faster with a cache.

use dcd_engine::Nanos;
use dcd_engine::log_cache::WhatPolicy;
use dcd_model::ffs::CpuCosts;
use dcd_sim::workloads::NUser;

use super::prelude::*;
use crate::Verdict;
use crate::configurations::{DISKS, like_paper};
use crate::nuser::{self, PHASES};
use crate::rig::{CacheDriver, CacheSetup, Setup};
use crate::stated::Stated;

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
    for (choice, change) in compared(settings)? {
        for users in settings.numbers_of_users()? {
            let mut setup = nuser::setup(settings, "paper")?;
            let mut benchmark = NUser { users, cold: true, pause: settings.span("pause")? };
            change(&mut setup, &mut benchmark);
            let ffs = nuser::file_system(settings, &setup)?;
            let seed = mix(mix(settings.seed, u64::from(users)), 0);
            points.push(Point::new(choice_key(choice, users), move || {
                nuser::measure(&setup, &ffs, benchmark, seed)
            }));
        }
    }
    Ok(points)
}

/// Changes the paper's driver, or the benchmark.
type Change = fn(&mut Setup, &mut NUser);

/// The paper's own figures of the copy have more than its "up to 50 %": 4 to 5x warm (section 4.2.1) over 2 to 3x cold.
const COPY_WARMER: f64 = 100.0 * (5.0 / 2.0 - 1.0);

/// Other readings of what the paper says, or leaves open, and more room than it had: each alone.
const CHOICES: [(&str, Change); 12] = [
    ("a buffer that is not full waits 1 ms for more", |setup, _| wait(setup, 1)),
    ("it waits 50 ms", |setup, _| wait(setup, 50)),
    ("it waits 250 ms", |setup, _| wait(setup, 250)),
    ("it waits 500 ms", |setup, _| wait(setup, 500)),
    ("4 segment buffers instead of 2", |setup, _| cache(setup).config.segment_buffers = 4),
    ("synchronous metadata goes to the data disk", |setup, _| {
        cache(setup).driver = CacheDriver::Paper { sync_to_data: true };
    }),
    ("the segment with the least valid data first", |setup, _| {
        cache(setup).config.what = WhatPolicy::LeastValidFirst;
    }),
    ("no lock", |setup, _| cache(setup).lock = false),
    ("a log of 512 MiB", |setup, _| large_log(setup)),
    ("a log of 512 MiB, and it waits 250 ms", |setup, _| {
        large_log(setup);
        wait(setup, 250);
    }),
    ("300 s between the phases", |_, benchmark| benchmark.pause = Nanos::from_secs(300)),
    ("our log with the paper's policies: a ring, records of any length, 250 ms", |setup, _| {
        *cache(setup) = like_paper();
    }),
];

fn cache(setup: &mut Setup) -> &mut CacheSetup {
    setup.cache.as_mut().expect("the paper's disk has a cache")
}

fn wait(setup: &mut Setup, millis: u64) {
    cache(setup).config.delay_max = Nanos::from_millis(millis);
}

fn large_log(setup: &mut Setup) {
    const BYTES: u64 = 512 << 20;
    cache(setup).log_bytes = BYTES;
    setup.data_first = BYTES;
}

/// The choices to compare: with the paper's driver and the plain disk.
fn compared(settings: &Settings) -> Result<&'static [(&'static str, Change)], LabError> {
    let disks = settings.choices("disks", &DISKS)?;
    let are_there = ["plain", "paper"].iter().all(|disk| disks.contains(disk));
    Ok(if are_there { &CHOICES } else { &[] })
}

fn choice_key(choice: &str, users: u32) -> String {
    format!("paper, {choice}, {users} users")
}

fn by_choice(settings: &Settings, samples: &Samples) -> Result<Table, LabError> {
    let title = "The paper's cache by choices that decide its gains (cold, one run, times the plain disk)";
    let mut table = Table::new(title, "users | driver | untar | copy | remove");
    for users in settings.numbers_of_users()? {
        let judged = ("as it is judged", key("paper", users, true, 0));
        let others = compared(settings)?.iter().map(|(choice, _)| (*choice, choice_key(choice, users)));
        for (choice, measured) in std::iter::once(judged).chain(others) {
            let [untar, copy, remove] = PHASES.map(|phase| {
                let seconds = |key: &str| samples.get(key, &format!("{phase}/seconds"));
                format!("{}x", figure(seconds(&key("plain", users, true, 0)) / seconds(&measured)))
            });
            table.row(cells![users, choice, untar, copy, remove]);
        }
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
    if !compared(settings)?.is_empty() {
        findings.tables.push(by_choice(settings, samples)?);
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
        let claim = claim(&format!("{phase}-warmer"));
        let claim = if phase == "copy" { claim.reaching(&[COPY_WARMER]) } else { claim };
        higher_gain(claim, cold, warm)
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
        if untar.min(remove) <= 1.0 {
            trees.nothing("untar or remove does not gain")
        } else {
            trees.more([(untar.min(remove), copy)])
        },
    ];
    if users == 4 {
        claims.push(claim("remove-4").range(remove));
    }
    claims
}

/// Judges by how much a gain is higher warm than cold. A smaller loss is no higher gain.
fn higher_gain(claim: Stated, cold: f64, warm: f64) -> Claim {
    let claim = claim.range(100.0 * (warm / cold - 1.0));
    match claim.holds() && cold.min(warm) <= 1.0 {
        true => Claim { verdict: Verdict::Differs("the cache does not gain".to_owned()), ..claim },
        false => claim,
    }
}

fn users_in_words(users: u32) -> String {
    format!("{users} user{}", if users == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_warm_is_judged_and_a_smaller_loss_is_no_gain() {
        let experiment = crate::experiments::find("dcd-nuser").unwrap();
        let settings = Settings::new(experiment.params, &Default::default(), 1).of(experiment.paper);
        let judged = |cold, warm| {
            let claim = higher_gain(settings.claim("copy-warmer").with("users", "1 user"), cold, warm);
            (claim.holds(), claim.ours)
        };
        assert_eq!(judged(2.0, 2.8), (true, "40.0 %".to_owned()));
        assert_eq!(judged(0.5, 2.0), (false, "300 %".to_owned()));
        assert_eq!(judged(0.5, 0.7), (false, "40.0 %".to_owned()));
    }
}
