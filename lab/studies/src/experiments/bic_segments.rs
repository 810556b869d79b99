//! The number of segments of the built-in cache.

use dcd_engine::Nanos;
use dcd_sim::workloads::{Streams, Workload};

use super::prelude::*;
use crate::builtin::{Case, gain_percent, measure, workload};

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
/// Percentage points either way: it is the fall with the size that the paper shows.
const SLACK: f64 = 15.0;
/// "Virtually no difference" from 10 to 40 segments, and a loss at 80 that the paper puts at 2.5 %.
const FLAT: f64 = 2.0;
const LOSS: (f64, f64) = (0.0, 6.0);
/// "Little positive effect if there are more concurrent sequential workloads than cache segments", in percent.
const LITTLE: f64 = 10.0;
const FIVE_SEGMENTS: &str = "whose turn it is, is drawn at random, so that a stream is often still in one of the five segments: with \
                             requests of 1 to 16 KB the drive misses 50 to 84 %, without readahead 86 to 87 %";

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
        let (case, trace) = (Case { segments, ..Case::new(buffer) }, trace.clone());
        points.push(Point::new(trace_key(segments), move || measure(&case, &trace, runs, seed)));
    }
    for request_bytes in settings.sizes("requests")? {
        for segments in [FEW, ENOUGH] {
            let streams = Streams {
                streams: STREAMS,
                bytes: STREAM_BYTES,
                request_bytes,
                apart: GROUP_BYTES,
                think: hit_time(request_bytes),
            };
            let case = Case { segments, ..Case::new(buffer) };
            let without = (segments == FEW).then_some(Case { read_ahead: false, ..case });
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
        by_count.row([segments.to_string(), figure(trace(segments)), figure(misses)]);
    }
    let saved =
        |request: u64| gain_percent(stream(FEW, request, "fsrt_ms"), stream(ENOUGH, request, "fsrt_ms"));
    let paper = |request: u64| PAPER.iter().find(|(kib, _)| kib << 10 == request).map(|(_, saved)| *saved);
    let mut by_request = Table::new(
        "Nine streams",
        "request (KiB) | 5 segments (ms) | 9 segments (ms) | saved, paper (%) | \
            saved, ours (%) | misses, 5 (%) | misses, 9 (%)",
    );
    let mut claims = trace_claims(&counts, &trace);
    for &request in &requests {
        let misses = |segments| figure(100.0 * stream(segments, request, "p_disk_miss"));
        by_request.row([
            figure(request as f64 / 1024.0),
            figure(stream(FEW, request, "fsrt_ms")),
            figure(stream(ENOUGH, request, "fsrt_ms")),
            paper(request).map_or("–".to_owned(), figure),
            figure(saved(request)),
            misses(FEW),
            misses(ENOUGH),
        ]);
        if let Some(paper) = paper(request) {
            let claim = format!("nine streams, requests of {} KB: 9 segments save", request >> 10);
            let accepted = (paper - SLACK, paper + SLACK);
            claims.push(Claim::range(claim, format!("{paper} %"), saved(request), accepted, " %"));
        }
    }
    claims.extend(stream_claims(&requests, &saved, &stream));
    let by_read_ahead = |request: &u64| {
        gain_percent(samples.get(&off_key(*request), "fsrt_ms"), stream(FEW, *request, "fsrt_ms"))
    };
    let gains: Vec<f64> = requests.iter().map(by_read_ahead).collect();
    let claim = "nine streams on 5 segments: readahead improves the response time by";
    claims.push(Claim::spread(claim, "little", &gains, (-LITTLE, LITTLE), " %").because(FIVE_SEGMENTS));
    let points = counts.iter().map(|&segments| (segments as f64, trace(segments))).collect();
    let trace_plot = Plot::lines(
        "Response time by the number of segments (Fig. 2b)",
        Axis::log("segments"),
        Axis::linear("response time (ms)"),
        [Series::new(TRACE, points)],
    );
    let stream_plot = Plot::bars(
        "Nine streams on 5 and on 9 segments (Fig. 3a)",
        Axis::names("request (KiB)", requests.iter().map(|r| figure(*r as f64 / 1024.0)).collect()),
        Axis::linear("response time (ms)"),
        [FEW, ENOUGH].map(|segments| {
            let bar = |(x, request): (usize, &u64)| (x as f64, stream(segments, *request, "fsrt_ms"));
            Series::new(format!("{segments} segments"), requests.iter().enumerate().map(bar).collect())
        }),
    );
    Ok(Findings { tables: vec![by_count, by_request], plots: vec![trace_plot, stream_plot], claims })
}

/// What the paper says of all sizes of requests.
fn stream_claims(
    requests: &[u64],
    saved: &dyn Fn(u64) -> f64,
    stream: &dyn Fn(usize, u64, &str) -> f64,
) -> Vec<Claim> {
    let falls = requests.windows(2).all(|pair| saved(pair[1]) < saved(pair[0]));
    let fewer: Vec<f64> = requests
        .iter()
        .map(|&request| stream(FEW, request, "p_disk_miss") / stream(ENOUGH, request, "p_disk_miss"))
        .collect();
    let smallest = least(fewer.iter().copied());
    let ours = format!("at least {}x the misses", figure(smallest));
    vec![
        Claim::fact(
            "nine streams: the larger the request, the less is saved",
            "so",
            "so at each size",
            falls,
        ),
        Claim::fact(
            "nine streams: the drive misses more with 5 segments than with 9",
            "at each size",
            ours,
            smallest > 1.0,
        ),
    ]
}

const FEW_STREAMS: &str = "INS has few streams at a time: the drive misses 91.2 % of the requests with one segment, 90.7 % with two, and \
                           90.5 % with ten. What segments do where there are streams is seen with nine of them";

fn trace_claims(counts: &[usize], trace: &dyn Fn(usize) -> f64) -> Vec<Claim> {
    let mut claims = Vec::new();
    if !counts.contains(&10) {
        return claims;
    }
    let from_10 = |segments: usize| 100.0 * (trace(segments) - trace(10)) / trace(10);
    if counts.contains(&1) {
        let claim = "one segment is useless: response time over that of 10 segments";
        claims.push(Claim::range(claim, "clearly more", from_10(1), (FLAT, f64::INFINITY), " %"));
    }
    let few: Vec<f64> =
        counts.iter().filter(|count| (2..=8).contains(*count)).map(|&count| from_10(count)).collect();
    if !few.is_empty() {
        let claim = "2 to 8 segments are useless: response time over that of 10 segments";
        claims.push(
            Claim::spread(claim, "clearly more", &few, (FLAT, f64::INFINITY), " %").because(FEW_STREAMS),
        );
    }
    let flat: Vec<f64> =
        counts.iter().filter(|count| (10..=40).contains(*count)).map(|&count| from_10(count)).collect();
    let claim = "10 to 40 segments: response time over that of 10";
    claims.push(Claim::spread(claim, "virtually none", &flat, (-FLAT, FLAT), " %"));
    if counts.contains(&80) {
        let why = "a segment of 26 KB ends before the files that INS reads in a row: more of its reads miss (first table)";
        let claim = "80 segments are slightly worse than 10, by";
        claims.push(Claim::range(claim, "about 2.5 %", from_10(80), LOSS, " %").because(why));
    }
    claims
}
