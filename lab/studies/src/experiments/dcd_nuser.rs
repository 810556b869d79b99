//! N users untar, copy and remove a tree of sources: how much faster with a cache.

use dcd_model::ffs::CpuCosts;
use dcd_sim::workloads::NUser;

use super::prelude::*;
use crate::configurations::DISKS;
use crate::nuser::{self, MANY_USERS, PHASES};

/// Minimum of ours at 4 users: the paper's bound for remove, and more than its range elsewhere.
const OURS_AT_LEAST: [(&str, f64); 3] = [("untar", 6.0), ("copy", 3.0), ("remove", 9.4)];

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
    Ok(points)
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
    findings.plots = users.iter().map(|&users| plot(&means, &disks, users)).collect();
    if disks.contains(&"plain") {
        if disks.contains(&"paper") {
            findings.claims.extend(users.iter().flat_map(|&users| paper_claims(settings, &means, users)));
        }
        findings.claims.extend(our_claims(settings, &means, &disks, &users));
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

/// The processor's costs are fitted to the paper's shares with so many users.
const FITTED_USERS: u32 = 4;

/// The paper shows a figure for each number of users, so each is judged on its own.
fn paper_claims(settings: &Settings, means: &Means<'_>, users: u32) -> Vec<Claim> {
    let claim = |id: &str| settings.claim(id).with("users", users_in_words(users));
    let filling = |id: &str| claim(id).reason_if(users >= MANY_USERS);
    let gains = |phases: &[&str], cold: bool| -> Vec<f64> {
        phases.iter().map(|phase| means.gain("paper", users, cold, phase)).collect()
    };
    let cpu = |disk: &str| PHASES.map(|phase| 100.0 * means.of(disk, users, true, phase, "cpu_share"));
    let cpu_share = |id: &str, disk: &str| {
        let claim = filling(id).spread(&cpu(disk));
        if users == FITTED_USERS {
            claim.choosing("what the processor needs, by one end of it")
        } else {
            claim
        }
    };
    let warmer = |phase: &str| {
        let [cold, warm] = [true, false].map(|cold| means.gain("paper", users, cold, phase));
        claim(&format!("{phase}-warmer")).range(100.0 * (warm / cold - 1.0))
    };
    let [waited, seconds] =
        ["waited_for_reads", "seconds"].map(|name| means.of("plain", users, true, "copy", name));
    let [untar, copy, remove] = PHASES.map(|phase| means.gain("paper", users, true, phase));
    let trees = claim("trees-over-copy").with("untar", untar).with("copy", copy).with("remove", remove);
    let mut claims = vec![
        filling("all").spread(&gains(&PHASES, true)),
        filling("trees").spread(&gains(&["untar", "remove"], true)),
        filling("copy").spread(&gains(&["copy"], true)),
        filling("copy-warm").spread(&gains(&["copy"], false)),
        cpu_share("cpu-plain", "plain"),
        cpu_share("cpu-paper", "paper"),
        claim("cpu-time").spread(&PHASES.map(|phase| 100.0 * means.cpu_with_cache(users, phase))),
        warmer("copy"),
        warmer("remove"),
        claim("copy-waits").range(100.0 * waited / seconds / f64::from(users)),
        trees.fact(untar.min(remove) > copy),
    ];
    if users == 4 {
        claims.push(claim("remove-4").range(remove));
    }
    claims
}

fn users_in_words(users: u32) -> String {
    format!("{users} user{}", if users == 1 { "" } else { "s" })
}

fn our_claims(settings: &Settings, means: &Means<'_>, disks: &[&str], users: &[u32]) -> Vec<Claim> {
    if !users.contains(&4) || !disks.contains(&"ours ordered") {
        return Vec::new();
    }
    let claim = |(phase, least): (&str, f64)| {
        let claim = settings.claim("ours").with("phase", phase).accepting(least, f64::INFINITY);
        claim.range(means.gain("ours ordered", 4, true, phase))
    };
    OURS_AT_LEAST.map(claim).into()
}
