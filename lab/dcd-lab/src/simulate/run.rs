//! Runs a stack under a load: measures response times of reads and of writes, and the series.

use dcd_engine::Nanos;
use dcd_stack::{LayerKind, Role, StackFile};
use hdrhistogram::Histogram;
use indicatif::ProgressBar;
use serde::Serialize;
use serde_json::Value;

use super::load::Load;
use super::samples::Samples;
use super::series::{Row, Series};
use super::sweep::Variant;
use crate::failure::Failure;
use crate::virtual_run::{Asked, Kind, RunOptions, RunState, UNMODELLED, VirtualRun, Watch};

/// Longer times count as this one.
const TIME_MAX: Nanos = Nanos::from_secs(24 * 3600);
/// The bar moves once in so many requests.
const REQUESTS_A_TICK: u64 = 1 << 10;
/// The caches are looked at once in so many requests, too: what they hold is mostly gone when a row ends.
const REQUESTS_A_LOOK: u64 = 8;

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulatedTimes {
    pub count: u64,
    pub bytes: u64,
    pub per_second: f64,
    pub bytes_per_second: f64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub max_ms: f64,
}

/// Results of a run.
pub struct Ran {
    /// The stack file as it was named, and its text.
    pub name: String,
    pub text: String,
    /// Advice for a stack without a modelled disk.
    pub advice: Option<String>,
    /// From the first request to the last answer.
    pub seconds: f64,
    pub reads: SimulatedTimes,
    pub writes: SimulatedTimes,
    pub flushes: SimulatedTimes,
    pub rows: Vec<Row>,
    /// At the end.
    pub state: RunState,
    /// The state of every layer, and what makes two runs comparable.
    pub report: Value,
}

struct Counted {
    times: Histogram<u64>,
    /// The histogram rounds.
    nanos: u128,
    max: Nanos,
    bytes: u64,
}

impl Counted {
    fn new() -> Counted {
        let times = Histogram::new_with_bounds(100, TIME_MAX.0, 3).expect("the bounds are sound");
        Counted { times, nanos: 0, max: Nanos::ZERO, bytes: 0 }
    }

    fn add(&mut self, bytes: u64, time: Nanos) {
        self.times.saturating_record(time.0);
        self.nanos += u128::from(time.0);
        self.max = self.max.max(time);
        self.bytes += bytes;
    }

    fn times(&self, seconds: f64) -> SimulatedTimes {
        let count = self.times.len();
        let quantile = |share: f64| self.times.value_at_quantile(share).min(self.max.0) as f64 / 1e6;
        let rate = |of: u64| if seconds > 0.0 { of as f64 / seconds } else { 0.0 };
        SimulatedTimes {
            count,
            bytes: self.bytes,
            per_second: rate(count),
            bytes_per_second: rate(self.bytes),
            mean_ms: self.nanos as f64 / count.max(1) as f64 / 1e6,
            p50_ms: quantile(0.5),
            p90_ms: quantile(0.9),
            p99_ms: quantile(0.99),
            p999_ms: quantile(0.999),
            max_ms: self.max.as_millis_f64(),
        }
    }
}

/// Measurements of a run so far.
pub struct Watched<'a> {
    reads: Counted,
    writes: Counted,
    flushes: Counted,
    series: Series,
    samples: Option<Samples>,
    bar: &'a ProgressBar,
    asked: u64,
    answered: u64,
}

impl Watch for Watched<'_> {
    fn asked(&mut self, waiting: usize, state: impl FnOnce() -> RunState) {
        self.series.asked(waiting + 1);
        if self.asked.is_multiple_of(REQUESTS_A_LOOK) {
            self.series.see(state());
        }
        self.asked += 1;
    }

    fn answered(&mut self, asked: &Asked, now: Nanos, time: Nanos) {
        if let Some(samples) = &mut self.samples {
            samples.answered(asked, now, time);
        }
        let counted = match asked.kind {
            Kind::Read => &mut self.reads,
            Kind::Write => &mut self.writes,
            Kind::Flush => &mut self.flushes,
        };
        counted.add(asked.bytes, time);
        self.series.answered(asked.kind, time);
        self.answered += 1;
        if self.answered.is_multiple_of(REQUESTS_A_TICK) {
            self.bar.inc(REQUESTS_A_TICK);
        }
    }

    fn next_look(&self) -> Option<Nanos> {
        Some(self.series.next_look())
    }

    fn look(&mut self, state: RunState) {
        self.series.look(state);
    }
}

/// Runs a stack file. The same file, load and seed give the same run.
pub fn run(
    Variant { name, file }: &Variant,
    load: &Load,
    seed: u64,
    interval: Option<Nanos>,
    mut samples: Option<Samples>,
    bar: &ProgressBar,
) -> Result<Ran, Failure> {
    let mut run = VirtualRun::start(file, RunOptions::new(seed))?;
    let begin = run.now();
    samples.iter_mut().for_each(|samples| samples.begin(begin));
    let mut watched = Watched {
        reads: Counted::new(),
        writes: Counted::new(),
        flushes: Counted::new(),
        series: Series::new(begin, interval),
        samples,
        bar,
        asked: 0,
        answered: 0,
    };
    load.run(name, seed, &mut run, &mut watched)?;
    watched.samples.take().map_or(Ok(()), Samples::end)?;
    bar.inc(watched.answered % REQUESTS_A_TICK);
    let seconds = run.now().since(begin).as_secs_f64();
    let state = run.state(0);
    Ok(Ran {
        name: name.clone(),
        text: file.text().to_owned(),
        advice: unmodelled(file),
        seconds,
        reads: watched.reads.times(seconds),
        writes: watched.writes.times(seconds),
        flushes: watched.flushes.times(seconds),
        rows: watched.series.end(state),
        state,
        report: run.report(),
    })
}

/// Advises on a stack without a modelled disk: its times are those of no disk.
fn unmodelled(file: &StackFile) -> Option<String> {
    if file.layers.iter().any(|layer| layer.kind.role() == Some(Role::ModelledDisk)) {
        return None;
    }
    let mut data = file.export.as_str();
    while let Some(layer) = file.layer(data) {
        data = match &layer.kind {
            LayerKind::LogCache { data, .. } => &data.text,
            other => other.below_names().first()?,
        };
    }
    let above = file.layers.iter().find(|layer| layer.kind.below_names().contains(&data));
    let user = above.map_or("export = ".to_owned(), |layer| format!("[layer.{}]", layer.name));
    Some(format!(
        "{}: no disk is modelled: each device takes {} ms for an operation, and RAM no time. To model the disk \"{data}\", name \
         \"modelled\" in its place in {user}, and add:\n\n[layer.modelled]\nkind = \"disk\"\nof = \"{data}\"\ndrive = \"nearline-2018\"\n",
        file.path.display(),
        UNMODELLED.0 as f64 / 1e6
    ))
}
