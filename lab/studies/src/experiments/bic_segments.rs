//! The number of segments of the built-in cache.

use dcd_engine::Nanos;
use dcd_sim::workloads::{Streams, Workload};

use super::prelude::*;
use crate::builtin::{BuiltinCase, gain_percent, measure, workload};

const TRACE: &str = "INS";
const STREAMS: u64 = 9;
const STREAM_BYTES: u64 = 64 << 10;
/// Table 1: a group of cylinders. The file system puts files of different directories into different ones.
const GROUP_BYTES: u64 = 16 << 20;
/// A run of nine streams is short, and depends on whose turn it is: so many of them for each run that was asked for.
const STREAM_RUNS: u64 = 10;
const FEW: usize = 5;
const ENOUGH: usize = 9;
/// The paper: KiB of a request, and how much less time 9 segments take than 5, in percent.
const PAPER: [(u64, f64); 5] = [(1, 65.1), (2, 56.6), (4, 43.2), (8, 27.5), (16, 7.9)];

/// The trace on a drive that does not read ahead.
const OFF: &str = "INS, no readahead";

fn stream_key(segments: usize, request: u64) -> String {
    format!("streams, {segments} segments, requests of {request}")
}

/// Without readahead, on the few segments.
fn off_key(request: u64) -> String {
    format!("streams, no readahead, requests of {request}")
}

fn trace_key(segments: usize) -> String {
    format!("{TRACE}, {segments} segments")
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let (buffer, seed) = (settings.bytes("buffer")?, settings.seed);
    let (runs, trace) = (settings.count("runs")?, workload(settings, TRACE)?);
    let mut points = Vec::new();
    for segments in settings.counts::<usize>("segments")? {
        let (case, trace) = (BuiltinCase { segments, ..BuiltinCase::new(buffer) }, trace.clone());
        points.push(Point::new(trace_key(segments), move || measure(&case, &trace, runs, seed)));
    }
    let case = BuiltinCase { read_ahead: false, ..BuiltinCase::new(buffer) };
    points.push(Point::new(OFF, move || measure(&case, &trace, runs, seed)));
    for request_bytes in settings.sizes("requests")? {
        for segments in [FEW, ENOUGH] {
            let streams = Streams {
                streams: STREAMS,
                bytes: STREAM_BYTES,
                request_bytes,
                apart: GROUP_BYTES,
                think: hit_time(request_bytes),
            };
            let case = BuiltinCase { segments, ..BuiltinCase::new(buffer) };
            let without = (segments == FEW).then_some(BuiltinCase { read_ahead: false, ..case });
            for (key, case) in
                [(stream_key(segments, request_bytes), Some(case)), (off_key(request_bytes), without)]
            {
                let Some(case) = case else { continue };
                points.push(Point::new(key, move || {
                    let workload = Workload::Streams(streams);
                    let mut sample = measure(&case, &workload, runs * STREAM_RUNS, seed)?;
                    let response = sample.numbers["request_ms"] + hit_time(request_bytes).as_millis_f64();
                    sample.set("fsrt_ms", response);
                    Ok(sample)
                }));
            }
        }
    }
    Ok(points)
}

/// Section 4.4 and Table 1: what a read costs that is in the buffer cache.
fn hit_time(bytes: u64) -> Nanos {
    Nanos::from_micros(10 + 10 * bytes.div_ceil(1024))
}

pub fn conclude(settings: &Settings, samples: &Samples) -> Result<Findings, LabError> {
    let counts = settings.counts::<usize>("segments")?;
    let requests = settings.sizes("requests")?;
    let trace = |segments: usize| samples.get(&trace_key(segments), "fsrt_ms");
    let stream =
        |segments: usize, request: u64, what: &str| samples.get(&stream_key(segments, request), what);
    let mut by_count = Table::new(TRACE, "segments | response time (ms) | misses in the drive (%)");
    for &segments in &counts {
        let misses = 100.0 * samples.get(&trace_key(segments), "p_disk_miss");
        by_count.row(cells![segments, trace(segments), misses]);
    }
    let saved =
        |request: u64| gain_percent(stream(FEW, request, "fsrt_ms"), stream(ENOUGH, request, "fsrt_ms"));
    let paper = |request: u64| PAPER.iter().find(|(kib, _)| kib << 10 == request).map(|(_, saved)| *saved);
    let mut by_request = Table::new(
        "Nine streams",
        "request (KiB) | 5 segments (ms) | 9 segments (ms) | saved, paper (%) | \
            saved, ours (%) | misses, 5 (%) | misses, 9 (%)",
    );
    let mut claims = trace_claims(settings, &counts, &trace, samples.get(OFF, "fsrt_ms"));
    for &request in &requests {
        let [few, enough] = [FEW, ENOUGH].map(|segments| stream(segments, request, "fsrt_ms"));
        let [misses_few, misses_enough] =
            [FEW, ENOUGH].map(|segments| 100.0 * stream(segments, request, "p_disk_miss"));
        let (kib, gain) = (request as f64 / 1024.0, saved(request));
        by_request.row(cells![kib, few, enough, paper(request), gain, misses_few, misses_enough]);
        if let Some(paper) = paper(request) {
            let claim = settings.claim("streams").with("kib", request >> 10).of_paper(Rule::Share(paper));
            claims.push(claim.range(saved(request)));
        }
    }
    claims.extend(stream_claims(settings, &requests, &saved, &stream));
    let by_read_ahead = |request: &u64| {
        gain_percent(samples.get(&off_key(*request), "fsrt_ms"), stream(FEW, *request, "fsrt_ms"))
    };
    let gains: Vec<f64> = requests.iter().map(by_read_ahead).collect();
    claims.push(settings.claim("streams-read-ahead").spread(&gains));
    let points = counts.iter().map(|&segments| (segments as f64, trace(segments))).collect();
    let trace_plot = Plot::lines(
        "Response time by the number of segments (Fig. 2b)",
        Axis::log("segments"),
        Axis::linear("response time (ms)"),
        [Series::new(TRACE, points)],
    );
    let stream_plot = Plot::bars(
        "Nine streams on 5 and on 9 segments (Fig. 3a)",
        Axis::names("request (KiB)", requests.iter().map(|r| figure(*r as f64 / 1024.0))),
        Axis::linear("response time (ms)"),
        [FEW, ENOUGH].map(|segments| {
            let bars = requests.iter().map(|request| stream(segments, *request, "fsrt_ms"));
            Series::bars(format!("{segments} segments"), bars)
        }),
    );
    Ok(Findings { tables: vec![by_count, by_request], plots: vec![trace_plot, stream_plot], claims })
}

/// Claims of the paper about all sizes of requests.
fn stream_claims(
    settings: &Settings,
    requests: &[u64],
    saved: &dyn Fn(u64) -> f64,
    stream: &dyn Fn(usize, u64, &str) -> f64,
) -> [Claim; 2] {
    let falls = requests.windows(2).map(|pair| (saved(pair[0]), saved(pair[1])));
    let misses = |segments, request| stream(segments, request, "p_disk_miss");
    let smallest = least(requests.iter().map(|&request| misses(FEW, request) / misses(ENOUGH, request)));
    [settings.claim("streams-fall").more(falls), settings.claim("streams-miss").range(smallest)]
}

fn trace_claims(settings: &Settings, counts: &[usize], trace: &dyn Fn(usize) -> f64, off: f64) -> Vec<Claim> {
    let claim = |id| settings.claim(id);
    let mut claims = Vec::new();
    if !counts.contains(&10) {
        return claims;
    }
    let from_10 = |segments: usize| 100.0 * (trace(segments) - trace(10)) / trace(10);
    let between = |from: usize, to: usize| -> Vec<f64> {
        counts.iter().filter(|count| (from..=to).contains(*count)).map(|&count| from_10(count)).collect()
    };
    let kept = |segments: usize| 100.0 * (off - trace(segments)) / (off - trace(10));
    if counts.contains(&1) {
        claims.push(claim("one").range(kept(1)));
    }
    let few: Vec<f64> =
        counts.iter().filter(|count| (2..=8).contains(*count)).map(|&count| kept(count)).collect();
    if !few.is_empty() {
        claims.push(claim("few").spread(&few));
    }
    claims.push(claim("flat").spread(&between(10, 40)));
    if counts.contains(&80) {
        claims.push(claim("many").range(from_10(80)));
    }
    claims
}
