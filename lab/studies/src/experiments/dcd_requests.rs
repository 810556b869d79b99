//! What the requests are like, where they go, and how many reach the disk in all, destaging included.

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
            table.row([
                users.to_string(),
                disk.to_owned(),
                format!("{}", reads(disk, users)),
                format!("{}", writes(disk, users)),
                format!("{}", all(disk, users)),
                format!("{} %", figure(100.0 * all(disk, users) / all("plain", users))),
            ]);
        }
    }
    let mut claims = Vec::new();
    for disk in ["paper", "ours ordered"] {
        let of_plain = |users: &u32| 100.0 * all(disk, *users) / all("plain", *users);
        let shares: Vec<f64> = users.iter().map(of_plain).collect();
        let claim = format!("requests in all, of the plain disk's ({disk})");
        claims.push(Claim::spread(claim, "fewer", &shares, (0.0, 100.0), " %"));
    }
    let profile = Profiles { samples, users: &users };
    claims.extend(profile.claims());
    let series = SHOWN.iter().map(|disk| {
        Series::new(*disk, users.iter().enumerate().map(|(x, &users)| (x as f64, all(disk, users))).collect())
    });
    let plot = Plot::bars(
        "Requests to the disk, destaging included",
        Axis::names("users", users.iter().map(u32::to_string).collect()),
        Axis::linear("requests"),
        series,
    );
    Ok(Findings { tables: vec![table, profile.table()], plots: vec![plot], claims })
}

/// "Most requests (50-90 %) are contained in only one or two complete cache lines", a fifth either way.
const FEW_LINES: (f64, f64) = (40.0, 100.0);
/// "Typically up to 32 requests" in a log write, a fifth more.
const CARRIED: f64 = 32.0 * 1.2;
/// "99 % of all read must be sent to the data disk".
const TO_DATA: (f64, f64) = (98.0, 100.0);
/// "Several hundreds of milliseconds".
const LOG_WRITE_MS: f64 = 1000.0;
const PAPER: &str = "paper";

/// What was profiled in the phases.
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
    fn to_data(&self) -> Vec<Claim> {
        let of = |many: bool| -> Vec<u32> {
            self.users.iter().copied().filter(|users| (*users >= MANY_USERS) == many).collect()
        };
        let claim = |users: &[u32]| {
            let named: Vec<String> = users.iter().map(u32::to_string).collect();
            let shares: Vec<f64> = users
                .iter()
                .flat_map(|&users| PHASES.map(|phase| 100.0 - self.log_share(users, phase)))
                .collect();
            let name = format!("reads that go to the data disk alone, {} users", named.join(" and "));
            Claim::spread(name, "99 %", &shares, TO_DATA, " %")
        };
        let (few, many) = (of(false), of(true));
        let mut claims = Vec::new();
        if !few.is_empty() {
            claims.push(claim(&few).because(FROM_LOG).choosing("the time between the phases"));
        }
        if !many.is_empty() {
            claims.push(claim(&many).because(METADATA_FROM_LOG));
        }
        claims
    }

    /// Requests for each write of the log.
    fn carried(&self, users: u32, phase: &str) -> f64 {
        self.get(users, phase, "writes") / self.get(users, phase, "log_writes")
    }

    fn table(&self) -> Table {
        let columns = "users | phase | requests | aligned to 4 KB (%) | overlapping (%) | \
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

    fn claims(&self) -> Vec<Claim> {
        let shares = |name: &str| self.each(|users, phase| self.share(users, phase, name));
        let carried = self.each(|users, phase| self.carried(users, phase));
        let longest = self.each(|users, phase| self.get(users, phase, "longest_log_write_ms"));
        let bytes = self.bytes();
        let mut claims = self.to_data();
        claims.extend([
            Claim::spread(
                "requests that are aligned to 4 KB or 8 KB and do not overlap",
                "the majority",
                &shares("requests_aligned_alone"),
                (50.0, 100.0),
                " %",
            ),
            Claim::spread(
                "requests that are aligned to 1 KB",
                "all",
                &shares("requests_by_slots"),
                (100.0, 100.0),
                " %",
            ),
            Claim::spread(
                "requests that are one or two whole lines of the lookup table",
                "50 to 90 %",
                &shares("requests_of_few_lines"),
                FEW_LINES,
                " %",
            ),
            Claim::spread(
                "requests that a write of the log carries",
                "up to 32",
                &carried,
                (1.0, CARRIED),
                "",
            ),
            Claim::spread(
                "the longest log write, as what is in RAM waits for it",
                "several hundreds of ms at most",
                &longest,
                (0.0, LOG_WRITE_MS),
                " ms",
            ),
            Claim::spread(
                "bytes to and from the disk, of the plain disk's",
                "no extra traffic",
                &bytes,
                (0.0, 100.0),
                " %",
            )
            .because(TRAFFIC),
            Claim::spread(
                "bytes that are destaged, of those that are logged",
                "most need no destaging",
                &self.destaged(),
                (0.0, 50.0),
                " %",
            ),
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

    /// What the data disk gets, of what the log got, in percent.
    fn destaged(&self) -> Vec<f64> {
        let get = |users: u32, name: &str| self.samples.get(&key(PAPER, users), name);
        self.users
            .iter()
            .map(|&users| 100.0 * get(users, "data_bytes_written") / get(users, "log_bytes_written"))
            .collect()
    }
}

const FROM_LOG: &str = "in the copy 20 reads find blocks in the log that are destaged already, in the newest segment, which the ring \
                        keeps; with one user they are 2.1 % of the reads. Nothing dirty is read from the log";
const METADATA_FROM_LOG: &str = "what 16 users change of inodes and maps is more than the 2.6 MB of it that Solaris keeps in \
                                 memory: what had to leave is read again while the log has it";
const TRAFFIC: &str = "in requests it is less than half, in bytes it is not: the log gets what the plain disk gets (with 4 users \
                       116 MB), half of that and more is read again, garbage with it, and two fifths are destaged";
