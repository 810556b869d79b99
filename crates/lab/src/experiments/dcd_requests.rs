//! How many requests reach the disk in all, destaging included.

use dcd_sim::mix;
use dcd_sim::workloads::NUser;

use crate::configurations::with_caches;
use crate::findings::figure;
use crate::nuser::{self, CLUSTER, DRIVE, PAUSE, QUEUE, SEGMENTS};
use crate::{
    Axis, Claim, Experiment, Findings, Group, LabError, Param, Plot, Point, Samples, Series, Settings, Style,
    Table,
};

pub const EXPERIMENT: Experiment = Experiment {
    name: "dcd-requests",
    group: Group::A,
    source: "section 4.2.4",
    title: "Disk requests in all",
    about: "Untar, copy and remove one after the other, and then everything is brought home. Every request that the disk \
            gets is counted: the file system's, those of the log, and those of destaging.",
    params: &PARAMS,
    plan,
    conclude,
};

const PARAMS: [Param; 15] = with_caches([
    DRIVE,
    QUEUE,
    SEGMENTS,
    CLUSTER,
    PAUSE,
    Param { key: "users", default: "1,4,16", about: "users at once" },
]);

const SHOWN: [&str; 4] = ["plain", "paper", "ours ordered", "ours flush"];

fn key(disk: &str, users: u32) -> String {
    format!("{disk}, {users} users")
}

fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let pause = settings.span("pause")?;
    let ffs = nuser::file_system(settings)?;
    let mut points = Vec::new();
    for users in settings.numbers::<u32>("users")? {
        let seed = mix(settings.seed, u64::from(users));
        for disk in SHOWN {
            let setup = nuser::setup(settings, disk)?;
            let benchmark = NUser { users, pause, ..NUser::default() };
            points.push(Point::new(key(disk, users), move || nuser::measure(&setup, &ffs, benchmark, seed)));
        }
    }
    Ok(points)
}

fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let users = settings.numbers::<u32>("users")?;
    let get = |disk: &str, users: u32, name: &str| samples.get(&key(disk, users), name);
    let all = |disk: &str, users: u32| get(disk, users, "disk_reads") + get(disk, users, "disk_writes");
    let mut table = Table::new(
        "Requests to the disk",
        &["users", "disk", "reads", "writes", "in all", "of the plain disk's"],
    );
    for &users in &users {
        for disk in SHOWN {
            table.row([
                users.to_string(),
                disk.to_owned(),
                format!("{}", get(disk, users, "disk_reads")),
                format!("{}", get(disk, users, "disk_writes")),
                format!("{}", all(disk, users)),
                format!("{} %", figure(100.0 * all(disk, users) / all("plain", users))),
            ]);
        }
    }
    let claims = ["paper", "ours ordered"].map(|disk| {
        let shares: Vec<f64> =
            users.iter().map(|&users| 100.0 * all(disk, users) / all("plain", users)).collect();
        let claim = format!("requests in all, of the plain disk's ({disk})");
        Claim::spread(claim, "fewer", &shares, (0.0, 100.0), " %")
    });
    let series = SHOWN.iter().map(|disk| {
        Series::new(*disk, users.iter().enumerate().map(|(x, &users)| (x as f64, all(disk, users))).collect())
    });
    let plot = Plot {
        title: "Requests to the disk, destaging included".to_owned(),
        x: Axis::names("users", users.iter().map(u32::to_string).collect()),
        y: Axis::linear("requests"),
        style: Style::Bars,
        series: series.collect(),
    };
    Ok(Findings { tables: vec![table], plots: vec![plot], claims: claims.to_vec() })
}
