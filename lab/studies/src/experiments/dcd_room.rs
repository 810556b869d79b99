//! Measures the room that the paper's cache needs for its gains with many users: in the log, and in the time between the phases.

use dcd_engine::Nanos;
use dcd_sim::workloads::NUser;

use super::prelude::*;
use crate::nuser::{self, PHASES};
use dcd_stack::HumanBytes;

/// The paper's ranges with 16 users, a fifth either way: of a phase and a mount (cold, or not).
const RANGES: [(&str, bool, [f64; 2]); 4] = [
    ("untar", true, [2.4, 7.2]),
    ("copy", true, [1.6, 3.6]),
    ("copy", false, [3.2, 6.0]),
    ("remove", true, [2.4, 7.2]),
];

/// A log and a pause.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Room {
    log: u64,
    pause: Nanos,
}

impl Room {
    fn key(self, cold: bool) -> String {
        format!("{} and {} s, {}", HumanBytes(self.log), self.pause.as_secs_f64(), mounted(cold))
    }
}

fn mounted(cold: bool) -> &'static str {
    if cold { "cold" } else { "warm" }
}

fn plain(cold: bool) -> String {
    format!("plain, {}", mounted(cold))
}

/// As the log gets larger, and as the pauses get longer.
fn rooms(settings: &Settings) -> Result<[Vec<Room>; 2], LabError> {
    let (log, pause) = (settings.bytes("cache")?, settings.span("pause")?);
    let logs = settings.sizes("logs")?.into_iter().map(|log| Room { log, pause }).collect();
    let pauses = settings.counts::<u64>("pauses")?.into_iter();
    Ok([logs, pauses.map(|seconds| Room { log, pause: Nanos::from_secs(seconds) }).collect()])
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let users = settings.users()?;
    let mut points: Vec<Point> = Vec::new();
    let mut add = |key: String, disk: &str, room: Room, cold: bool| -> Result<(), LabError> {
        let mut setup = nuser::setup(settings, disk)?;
        setup.data_first = room.log;
        if let Some(cache) = &mut setup.cache {
            cache.log_bytes = room.log;
        }
        let ffs = nuser::file_system(settings, &setup)?;
        let benchmark = NUser { users, cold, pause: room.pause };
        let seed = mix(mix(settings.seed, u64::from(users)), 0);
        points.push(Point::new(key, move || nuser::measure(&setup, &ffs, benchmark, seed)));
        Ok(())
    };
    let [logs, pauses] = rooms(settings)?;
    let mut done: Vec<Room> = Vec::new();
    for cold in [true, false] {
        let here = Room { log: settings.bytes("cache")?, pause: settings.span("pause")? };
        add(plain(cold), "plain", here, cold)?;
    }
    for room in logs.into_iter().chain(pauses) {
        if !done.contains(&room) {
            done.push(room);
            for cold in [true, false] {
                add(room.key(cold), "paper", room, cold)?;
            }
        }
    }
    Ok(points)
}

fn gain(samples: &Samples, room: Room, phase: &str, cold: bool) -> f64 {
    let name = format!("{phase}/seconds");
    samples.get(&plain(cold), &name) / samples.get(&room.key(cold), &name)
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let [logs, pauses] = rooms(settings)?;
    let mut findings = Findings::default();
    let by_log =
        format!("By the size of the log, {} s between the phases", settings.span("pause")?.as_secs_f64());
    let by_pause =
        format!("By the time between the phases, a log of {}", HumanBytes(settings.bytes("cache")?));
    findings.tables = vec![table(&by_log, &logs, samples), table(&by_pause, &pauses, samples)];
    let mib = |room: &Room| (room.log >> 20) as f64;
    let seconds = |room: &Room| room.pause.as_secs_f64();
    findings.plots = vec![
        plot(&by_log, "log (MiB)", &logs, samples, &mib),
        plot(&by_pause, "between the phases (s)", &pauses, samples, &seconds),
    ];
    Ok(findings)
}

fn table(title: &str, rooms: &[Room], samples: &Samples) -> Table {
    let columns =
        "log | between the phases (s) | mounted anew | untar | copy | remove | in the paper's range";
    let mut table = Table::new(title, columns);
    for &room in rooms {
        for cold in [true, false] {
            let gains = PHASES.map(|phase| format!("{}x", figure(gain(samples, room, phase, cold))));
            let judged = RANGES.iter().filter(|(_, of_cold, _)| *of_cold == cold);
            let within = judged
                .filter(|(phase, _, [low, high])| (*low..=*high).contains(&gain(samples, room, phase, cold)));
            let within = within.map(|(phase, ..)| *phase).collect::<Vec<_>>().join(", ");
            let within = if within.is_empty() { "none" } else { &within };
            let anew = if cold { "yes" } else { "no" };
            let [untar, copy, remove] = gains;
            table.row(cells![
                HumanBytes(room.log).to_string(),
                room.pause.as_secs_f64(),
                anew,
                untar,
                copy,
                remove,
                within
            ]);
        }
    }
    table
}

fn plot(title: &str, x: &str, rooms: &[Room], samples: &Samples, place: &dyn Fn(&Room) -> f64) -> Plot {
    let series = PHASES.map(|phase| {
        let points = rooms.iter().map(|room| (place(room), gain(samples, *room, phase, true)));
        Series::new(phase, points.collect())
    });
    Plot::lines(title, Axis::log(x), Axis::linear("times the plain disk, cold"), series)
}
