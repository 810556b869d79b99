//! Runs a candidate under the workload.

use dcd_engine::Nanos;
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::Value;

use super::candidates::{Candidate, Medium, Setting};
use crate::failure::Failure;
use crate::load::Request;
use crate::virtual_run::{Asked, Kind, RunOptions, VirtualRun, Watch, made};

/// Bytes in a segment of a log, as `dcd format` makes it; and the most segments that are of use.
const SEGMENT_BYTES: u64 = 512 << 10;
const SEGMENTS_MAX: u64 = 1 << 14;
/// A modelled disk draws nothing, and an SSD always takes the same time: the seed changes nothing.
const SEED: u64 = 1;
/// Longer times count as this one.
const TIME_MAX: Nanos = Nanos::from_secs(24 * 3600);

/// A disk that is busy for this share of the time cannot keep up.
pub const SATURATED: f64 = 0.95;
/// A log before which this share of the requests wait for room is too small for the load.
const STALLED: f64 = 0.01;

/// The trace is cut into so many parts of as many requests: how they differ from each other shows what is chance.
pub const PARTS: usize = 16;

/// Results of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub requests: u64,
    /// Response times of all requests, flushes too.
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    /// None where there are none.
    pub read_mean_ms: Option<f64>,
    pub write_mean_ms: Option<f64>,
    /// Requests at the disk, with what was left in the cache at the end destaged.
    pub disk_reads: u64,
    pub disk_writes: u64,
    pub disk_busy_s: f64,
    /// Bytes that were written to a log.
    pub log_bytes: u64,
    /// Requests that had to wait: reads for the disk and writes for room in RAM; or writes for room in a log.
    pub stalls: u64,
    /// The disk had no rest, or clients waited for room again and again: the times say how long the trace is, and a longer one
    /// would have longer times.
    pub saturated: bool,
    /// Mean response times of the parts of the trace.
    #[serde(skip)]
    pub parts_ms: [f64; PARTS],
}

/// Runs a candidate.
pub fn measure(setting: &Setting, candidate: &Candidate, requests: &[Request]) -> Result<Measured, Failure> {
    let file = made(&setting.simulated(candidate))?;
    let segment_bytes = (candidate.bytes / SEGMENTS_MAX).next_power_of_two().max(SEGMENT_BYTES) as u32;
    let mut run =
        VirtualRun::start(&file, RunOptions { segment_bytes: Some(segment_bytes), ..RunOptions::new(SEED) })?;
    let mut times = MeasuredTimes::of(requests.len());
    run.replay(requests.iter().copied(), &mut times)?;
    run.drain()?;
    let span = requests.last().map_or(Nanos::ZERO, |last| last.at);
    Ok(times.measured(candidate, &run.report()["layers"], span))
}

/// Response times so far.
struct MeasuredTimes {
    all: Histogram<u64>,
    /// Sum and count of reads, and of writes.
    reads: (u128, u64),
    writes: (u128, u64),
    sum: u128,
    /// Number of requests, and the sum and count of each part of them.
    requests: usize,
    parts: [(u128, u64); PARTS],
}

impl MeasuredTimes {
    fn of(requests: usize) -> MeasuredTimes {
        let all = Histogram::new_with_bounds(100, TIME_MAX.0, 3).expect("the bounds are sound");
        MeasuredTimes { all, reads: (0, 0), writes: (0, 0), sum: 0, requests, parts: [(0, 0); PARTS] }
    }

    fn measured(&self, candidate: &Candidate, layers: &Value, span: Nanos) -> Measured {
        let mean = |(sum, count): (u128, u64)| (count > 0).then(|| sum as f64 / count as f64 / 1e6);
        let quantile = |share: f64| self.all.value_at_quantile(share) as f64 / 1e6;
        let (disk, cache) = (&layers["disk"], &layers["cache"]);
        let stalls = match candidate.medium {
            Medium::None => Some(0),
            Medium::SameDisk | Medium::OtherDisk | Medium::Ssd => cache["statistics"]["throttled"].as_u64(),
            Medium::Ram | Medium::Nvram => cache["counts"]["stalls"].as_u64(),
        };
        let count = |field: &str| disk["requests"][field].as_u64().expect("a disk counts its requests");
        let stalls = stalls.expect("a cache counts its stalls");
        let log_bytes = match candidate.medium.has_log() {
            true => cache["statistics"]["log_bytes"].as_u64().expect("a log counts what is written to it"),
            false => 0,
        };
        let disk_busy_s = disk["busy_ms"].as_f64().expect("a disk counts its time") / 1e3;
        // A write cache in RAM counts reads that wait for the disk, too.
        let waited = candidate.medium.has_log() && stalls as f64 > STALLED * self.all.len() as f64;
        Measured {
            saturated: waited || disk_busy_s > SATURATED * span.as_secs_f64(),
            requests: self.all.len(),
            mean_ms: mean((self.sum, self.all.len())).unwrap_or(0.0),
            p50_ms: quantile(0.5),
            p95_ms: quantile(0.95),
            p99_ms: quantile(0.99),
            read_mean_ms: mean(self.reads),
            write_mean_ms: mean(self.writes),
            disk_reads: count("read"),
            disk_writes: count("write") + count("write_zeroes"),
            disk_busy_s,
            log_bytes,
            stalls,
            parts_ms: self.parts.map(|part| mean(part).unwrap_or(0.0)),
        }
    }
}

impl Watch for MeasuredTimes {
    fn answered(&mut self, asked: &Asked, _now: Nanos, time: Nanos) {
        let add = |sum: &mut (u128, u64)| *sum = (sum.0 + u128::from(time.0), sum.1 + 1);
        add(&mut self.parts[asked.number * PARTS / self.requests]);
        self.all.saturating_record(time.0);
        self.sum += u128::from(time.0);
        match asked.kind {
            Kind::Read => add(&mut self.reads),
            Kind::Write => add(&mut self.writes),
            Kind::Flush => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use dcd_engine::log_cache::Promise;

    use super::*;
    use crate::tune::{Grid, MEDIA, Sizes};

    /// Watches nothing.
    struct Unwatched;

    impl Watch for Unwatched {
        fn answered(&mut self, _asked: &Asked, _now: Nanos, _time: Nanos) {}
    }

    const GIB: u64 = 1 << 30;

    /// Small writes, and then zeroes over them.
    fn requests(zeroed_bytes: u64) -> Vec<Request> {
        let write = |number: u64, bytes: u64| Request {
            at: Nanos::from_millis(number),
            start: if bytes == 4096 { number * 8 } else { 0 },
            sectors: (bytes / 512) as u32,
            writes: true,
            fua: false,
            took: 0,
        };
        (0..100).map(|number| write(number, 4096)).chain([write(100, zeroed_bytes)]).collect()
    }

    #[test]
    fn what_a_run_costs_follows_from_its_requests_and_not_from_their_bytes() {
        let drive = dcd_model::AnyDrive::open("nearline-2018", std::path::Path::new("")).unwrap();
        let setting = Setting {
            drive_name: drive.name().to_owned(),
            drive,
            ssd: None,
            data_bytes: 4 * GIB,
            promise: Promise::Flush,
            block_bytes: 4096,
            endurance_bytes: None,
        };
        let sizes = Sizes { log: vec![64 << 20], ram: vec![16 << 20] };
        for candidate in Grid::new(&MEDIA.map(|medium| (medium, 0.0)), &sizes, |_| 1 << 40, |_| 1 << 40).all()
        {
            let text = setting.simulated(&candidate);
            let file = made(&text).unwrap();
            let events = |zeroed_bytes: u64| {
                let mut run = VirtualRun::start(&file, RunOptions::new(SEED)).unwrap();
                let requests = requests(zeroed_bytes);
                run.replay(requests.into_iter(), &mut Unwatched).unwrap();
                run.drain().unwrap();
                run.report()["events"].as_u64().unwrap()
            };
            let (few, many) = (events(GIB / 16), events(2 * GIB));
            // The engine zeroes a MiB at a time, and each is sent and ends. Data would go through a log, too, in pieces of half of that.
            let most = few + 2 * (2 * GIB / (1 << 20));
            assert!(many < most, "{}: {few} and {many} events", candidate.words());
        }
    }
}
