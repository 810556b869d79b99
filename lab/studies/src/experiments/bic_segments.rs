//! The number of segments of the built-in cache.

use dcd_engine::Nanos;
use dcd_sim::workloads::{Streams, Workload};

use super::prelude::*;
use crate::builtin::{BuiltinCase, SEGMENTS, gain_percent, measure, workload};

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

/// The trace on a drive that does not read ahead, and on one with as many segments as files are being read.
const OFF: &str = "INS, no readahead";
const ADAPTIVE: &str = "INS, adaptive";

/// Ways to run the nine streams: on so many segments, on an adaptive number, and on few without readahead.
const KINDS: [&str; 4] = ["5", "9", "adaptive", "off"];

fn stream_key(kind: &str, request: u64, in_files: bool) -> String {
    format!("streams, {kind}, requests of {request}, {}", if in_files { "files" } else { "disk" })
}

fn trace_key(segments: usize) -> String {
    format!("{TRACE}, {segments} segments")
}

pub fn plan(settings: &Settings) -> Result<Vec<Point>, LabError> {
    let (seed, base) = (settings.seed, BuiltinCase::new(settings.bytes("buffer")?));
    let (runs, trace) = (settings.count("runs")?, workload(settings, TRACE)?);
    let counts = settings.counts::<usize>("segments")?.into_iter();
    let mut cases: Vec<(String, BuiltinCase)> =
        counts.map(|segments| (trace_key(segments), BuiltinCase { segments, ..base })).collect();
    cases.push((OFF.to_owned(), BuiltinCase { read_ahead: false, ..base }));
    cases.push((ADAPTIVE.to_owned(), BuiltinCase { adaptive: true, ..base }));
    let of_trace = |(key, case): (String, BuiltinCase)| {
        let trace = trace.clone();
        Point::new(key, move || measure(&case, &trace, runs, seed))
    };
    let mut points: Vec<Point> = cases.into_iter().map(of_trace).collect();
    for request_bytes in settings.sizes("requests")? {
        for (kind, in_files) in KINDS.into_iter().flat_map(|kind| [(kind, true), (kind, false)]) {
            let case = match kind {
                "9" => BuiltinCase { segments: ENOUGH, ..base },
                "adaptive" => BuiltinCase { adaptive: true, ..base },
                kind => BuiltinCase { segments: FEW, read_ahead: kind != "off", ..base },
            };
            let think = hit_time(request_bytes);
            let (streams, bytes, apart) = (STREAMS, STREAM_BYTES, GROUP_BYTES);
            let load = Workload::Streams(Streams { streams, bytes, request_bytes, apart, think, in_files });
            points.push(Point::new(stream_key(kind, request_bytes, in_files), move || {
                let mut sample = measure(&case, &load, runs * STREAM_RUNS, seed)?;
                if !in_files {
                    sample.set("fsrt_ms", sample.numbers["request_ms"] + think.as_millis_f64());
                }
                Ok(sample)
            }));
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
    let stream = |kind: &str, request: u64, what: &str| samples.get(&stream_key(kind, request, true), what);
    let mut by_count = Table::new(TRACE, "segments | response time (ms) | misses in the drive (%)");
    let named = counts.iter().map(|&segments| (segments.to_string(), trace_key(segments)));
    for (name, key) in named.chain([("adaptive".to_owned(), ADAPTIVE.to_owned())]) {
        let misses = 100.0 * samples.get(&key, "p_disk_miss");
        by_count.row(cells![name, samples.get(&key, "fsrt_ms"), misses]);
    }
    let saved = |request: u64, in_files: bool| {
        let [few, enough] =
            ["5", "9"].map(|kind| samples.get(&stream_key(kind, request, in_files), "fsrt_ms"));
        gain_percent(few, enough)
    };
    let paper = |request: u64| PAPER.iter().find(|(kib, _)| kib << 10 == request).map(|(_, saved)| *saved);
    let mut by_request = Table::new(
        "Nine streams",
        "request (KiB) | 5 segments (ms) | 9 segments (ms) | adaptive (ms) | saved by 9, paper (%) | \
            saved by 9, ours (%) | misses, 5 (%) | misses, 9 (%) | saved if requests go to the disk as they are (%)",
    );
    let mut claims = trace_claims(settings, &counts, &trace, samples.get(OFF, "fsrt_ms"));
    for &request in &requests {
        let [few, enough, adaptive] = ["5", "9", "adaptive"].map(|kind| stream(kind, request, "fsrt_ms"));
        let [misses_few, misses_enough] = ["5", "9"].map(|kind| 100.0 * stream(kind, request, "p_disk_miss"));
        let (kib, gain, raw) = (request as f64 / 1024.0, saved(request, true), saved(request, false));
        let paper = paper(request);
        by_request.row(cells![kib, few, enough, adaptive, paper, gain, misses_few, misses_enough, raw]);
        if let Some(paper) = paper {
            let claim = settings.claim("streams").with("kib", request >> 10).of_paper(Rule::Share(paper));
            claims.push(claim.range(gain));
        }
    }
    claims.extend(stream_claims(settings, &requests, &|request| saved(request, true), &stream));
    let by_read_ahead =
        |request: &u64| gain_percent(stream("off", *request, "fsrt_ms"), stream("5", *request, "fsrt_ms"));
    let gains: Vec<f64> = requests.iter().map(by_read_ahead).collect();
    claims.push(settings.claim("streams-read-ahead").spread(&gains));
    let mut adaptive: Vec<(f64, f64)> = requests
        .iter()
        .map(|&request| (stream("5", request, "fsrt_ms"), stream("adaptive", request, "fsrt_ms")))
        .collect();
    if counts.contains(&SEGMENTS) {
        adaptive.push((trace(SEGMENTS), samples.get(ADAPTIVE, "fsrt_ms")));
    }
    let better = adaptive.iter().filter(|(fixed, adaptive)| adaptive < fixed).count();
    let claim = settings.claim("adaptive").with("better", better).with("all", adaptive.len());
    claims.push(claim.more(adaptive));
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
        ["5", "9"].map(|kind| {
            let bars = requests.iter().map(|request| stream(kind, *request, "fsrt_ms"));
            Series::bars(format!("{kind} segments"), bars)
        }),
    );
    Ok(Findings { tables: vec![by_count, by_request], plots: vec![trace_plot, stream_plot], claims })
}

/// Claims of the paper about all sizes of requests.
fn stream_claims(
    settings: &Settings,
    requests: &[u64],
    saved: &dyn Fn(u64) -> f64,
    stream: &dyn Fn(&str, u64, &str) -> f64,
) -> [Claim; 2] {
    let falls = requests.windows(2).map(|pair| (saved(pair[0]), saved(pair[1])));
    let misses = |kind, request| stream(kind, request, "p_disk_miss");
    let smallest = least(requests.iter().map(|&request| misses("5", request) / misses("9", request)));
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
