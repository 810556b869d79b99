//! Profiles the requests, where they go, and how many reach the disk in all, destaging included.

use dcd_sim::workloads::NUser;

use super::prelude::*;
use crate::nuser::{self, MANY_USERS, PHASES};
use crate::rig::Setup;

const SHOWN: [&str; 4] = ["plain", "paper", "ours ordered", "ours flush"];

fn key(disk: &str, users: u32) -> String {
    format!("{disk}, {users} users")
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let pause = settings.span("pause")?;
    let mut points = Vec::new();
    for users in settings.numbers_of_users()? {
        let seed = mix(settings.seed, u64::from(users));
        for disk in SHOWN {
            let setup = Setup { profile: true, ..nuser::setup(settings, disk)? };
            let ffs = nuser::file_system(settings, &setup)?;
            let benchmark = NUser { users, pause, ..NUser::default() };
            points.push(Point::new(key(disk, users), move || nuser::measure(&setup, &ffs, benchmark, seed)));
        }
    }
    Ok(points)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let users = settings.numbers_of_users()?;
    let get = |disk: &str, users: u32, name: &str| samples.get(&key(disk, users), name);
    let reads = |disk: &str, users: u32| get(disk, users, "log_reads") + get(disk, users, "data_reads");
    let writes = |disk: &str, users: u32| get(disk, users, "log_writes") + get(disk, users, "data_writes");
    let all = |disk: &str, users: u32| reads(disk, users) + writes(disk, users);
    let mut table =
        Table::new("Requests to the disk", "users | disk | reads | writes | in all | of the plain disk's");
    for &users in &users {
        for disk in SHOWN {
            let [reads, writes, all_of_it] =
                [reads(disk, users), writes(disk, users), all(disk, users)].map(|count| count.to_string());
            let share = format!("{} %", figure(100.0 * all(disk, users) / all("plain", users)));
            table.row(cells![users, disk, reads, writes, all_of_it, share]);
        }
    }
    let of_plain = |users: &u32| 100.0 * all(PAPER, *users) / all("plain", *users);
    let mut claims = vec![settings.claim("fewer").spread(&users.iter().map(of_plain).collect::<Vec<_>>())];
    let profile = Profiles { samples, users: &users };
    claims.extend(profile.claims(settings));
    let series = SHOWN.iter().map(|disk| Series::bars(*disk, users.iter().map(|&users| all(disk, users))));
    let plot = Plot::bars(
        "Requests to the disk, destaging included",
        Axis::names("users", &users),
        Axis::linear("requests"),
        series,
    );
    Ok(Findings { tables: vec![table, profile.table(), profile.overwritten()], plots: vec![plot], claims })
}

const PAPER: &str = "paper";

struct Profiles<'a> {
    samples: &'a Samples,
    users: &'a [u32],
}

impl Profiles<'_> {
    fn get(&self, users: u32, phase: &str, name: &str) -> f64 {
        self.samples.get(&key(PAPER, users), &format!("{phase}/{name}"))
    }

    /// A figure of every phase.
    fn each(&self, figure_of: impl Fn(u32, &str) -> f64) -> Vec<f64> {
        self.users.iter().flat_map(|&users| PHASES.map(|phase| figure_of(users, phase))).collect()
    }

    /// A part of the file system's requests, in percent.
    fn share(&self, users: u32, phase: &str, name: &str) -> f64 {
        let all = self.get(users, phase, "reads") + self.get(users, phase, "writes");
        100.0 * self.get(users, phase, name) / all
    }

    /// Reads that had something from the log or its buffers, in percent.
    fn log_share(&self, users: u32, phase: &str) -> f64 {
        100.0 * self.get(users, phase, "log_read_hits") / self.get(users, phase, "reads")
    }

    /// The claim that what is in the cache is hardly ever read. Where metadata is more than the host keeps in memory, no time
    /// between the phases can make it so.
    fn to_data(&self, settings: &Settings) -> Vec<Claim> {
        let (many, few): (Vec<u32>, Vec<u32>) = self.users.iter().partition(|users| **users >= MANY_USERS);
        let claim = |(id, users): (&str, Vec<u32>)| {
            let named: Vec<String> = users.iter().map(u32::to_string).collect();
            let of = |users| PHASES.map(|phase| 100.0 - self.log_share(users, phase));
            let shares: Vec<f64> = users.into_iter().flat_map(of).collect();
            settings.claim(id).with("users", named.join(" and ")).spread(&shares)
        };
        let both = [("few-to-data", few), ("many-to-data", many)];
        both.into_iter().filter(|(_, users)| !users.is_empty()).map(claim).collect()
    }

    /// Mean number of requests for each write of the log.
    fn carried(&self, users: u32, phase: &str) -> f64 {
        self.get(users, phase, "writes") / self.get(users, phase, "log_writes")
    }

    /// Returns the most requests that one write of the log carries; none in results that have only means.
    fn most_carried(&self) -> Option<f64> {
        let of = |users, phase: &&str| {
            self.samples.find(&key(PAPER, users), &format!("{phase}/log_write_requests_max"))
        };
        let each = self.users.iter().flat_map(|&users| PHASES.iter().map(move |phase| of(users, phase)));
        each.collect::<Option<Vec<f64>>>().map(most)
    }

    fn table(&self) -> Table {
        let columns = "users | phase | requests | start and length aligned to 4 KB (%) | overlapping (%) | \
            one or two whole lines (%) | reads not from the data disk alone (%) | \
            requests a log write | longest log write (ms)";
        let mut table = Table::new("The file system's requests, with the paper's cache", columns);
        for &users in self.users {
            for phase in PHASES {
                let all = self.get(users, phase, "reads") + self.get(users, phase, "writes");
                let share = |name: &str| figure(self.share(users, phase, name));
                table.row([
                    users.to_string(),
                    phase.to_owned(),
                    format!("{all}"),
                    share("requests_aligned"),
                    share("requests_overlapping"),
                    share("requests_of_few_lines"),
                    figure(self.log_share(users, phase)),
                    figure(self.carried(users, phase)),
                    figure(self.get(users, phase, "longest_log_write_ms")),
                ]);
            }
        }
        table
    }

    /// The paper cites its figures from others, who measured other programs.
    fn overwritten(&self) -> Table {
        let columns = "users | within 30 s, others (%) | in the benchmark | within 1000 s, others (%) | in the benchmark";
        let mut table = Table::new("Written bytes that are overwritten (section 4.2.4)", columns);
        for &users in self.users {
            let sum = |name| PHASES.map(|phase| self.get(users, phase, name)).iter().sum::<f64>();
            let share = |name| 100.0 * sum(name) / sum("slots_written");
            let [soon, late] = ["overwritten_30s", "overwritten_1000s"].map(share);
            table.row(cells![users, "36–63", soon, "60–95", late]);
        }
        table
    }

    fn claims(&self, settings: &Settings) -> Vec<Claim> {
        let claim = |id| settings.claim(id);
        let shares = |name: &str| self.each(|users, phase| self.share(users, phase, name));
        let mut claims = self.to_data(settings);
        claims.extend([
            claim("aligned-alone").spread(&shares("requests_aligned_alone")),
            claim("few-lines").spread(&shares("requests_of_few_lines")),
            self.most_carried()
                .map_or_else(|| claim("carried").not_run(), |most| claim("carried").range(most)),
            claim("bytes").spread(&self.bytes()),
            claim("destaged").spread(&self.destaged()),
        ]);
        claims
    }

    /// All bytes that the disk reads and writes, of the plain disk's, in percent.
    fn bytes(&self) -> Vec<f64> {
        let all = |disk: &str, users: u32| -> f64 {
            let parts = ["log_bytes_read", "log_bytes_written", "data_bytes_read", "data_bytes_written"];
            parts.iter().map(|part| self.samples.get(&key(disk, users), part)).sum()
        };
        self.users.iter().map(|&users| 100.0 * all(PAPER, users) / all("plain", users)).collect()
    }

    /// Bytes that the file system writes: a log write has empty slots and headers beside them.
    fn written(&self, users: u32) -> f64 {
        let list =
            |phase: &str, name: &str| self.samples.list(&key(PAPER, users), &format!("{phase}/write_{name}"));
        let of = |phase| {
            list(phase, "sizes").iter().zip(list(phase, "counts")).map(|(bytes, count)| bytes * count)
        };
        PHASES.into_iter().flat_map(of).sum()
    }

    /// Returns the bytes written to the data disk in percent of those that the file system writes.
    fn destaged(&self) -> Vec<f64> {
        let get = |users: u32, name: &str| self.samples.get(&key(PAPER, users), name);
        self.users
            .iter()
            .map(|&users| 100.0 * get(users, "data_bytes_written") / self.written(users))
            .collect()
    }
}
