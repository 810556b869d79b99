//! `dcd drive validate`: a drive beside what was measured of a real one.

use std::fmt::Write;
use std::path::Path;

use dcd_engine::Nanos;
use dcd_model::measured::{self, Measured, Replay};
use dcd_model::{Drive, WriteCache, drive};
use dcd_studies::{Axis, Plot, Series};
use dcd_trace::{Inputs, by_name, inputs_of_trace, open};
use serde::Serialize;

use super::wrong;
use crate::cli_drive::Validate;
use crate::failure::Failure;

/// Points of each distribution in the plot.
const PLOTTED: usize = 400;
/// Two times are close that differ by less than this part of a revolution.
const CLOSE_PART: u64 = 20;
const PERCENTILES: [f64; 5] = [10.0, 50.0, 90.0, 99.0, 100.0];

pub fn run(args: &Validate) -> Result<(), Failure> {
    let mut inputs = inputs_of_trace(&args.trace);
    inputs.push(args.drive.clone().into());
    let inputs = Inputs::new(inputs);
    args.plots.iter().try_for_each(|path| inputs.check(path))?;
    let opened = drive::open(&args.drive, Path::new(&args.drive));
    let mut drive = opened.map_err(|e| wrong(&args.drive, &e))?;
    if let Some(bus) = args.bus {
        drive = drive.with_bus(bus).map_err(|e| Failure::Failed(format!("--bus: {e}")))?;
    }
    if let Some(read_ahead) = args.read_ahead {
        drive = drive.with_read_ahead(read_ahead);
    }
    let trace = read(args)?;
    let failed = |e: measured::NotMeasured| Failure::Failed(format!("{}: {e}", args.trace.display()));
    // A trace has no word for a write that must be durable, so "ignores-fua" is "on".
    let delays = args.write_cache != WriteCache::Off;
    let replay = measured::replay(&drive, &trace, delays).map_err(failed)?;
    let comparison = Comparison::new(&drive, &trace, &replay);
    if let Some(path) = &args.plots {
        inputs.write(path, page(drive.description(), &trace, &replay, &comparison))?;
    }
    if args.json {
        println!("{}", serde_json::to_value(&comparison).expect("numbers and names are JSON"));
    } else {
        print!("{}", comparison.text());
    }
    Ok(())
}

fn read(args: &Validate) -> Result<Vec<Measured>, Failure> {
    let mut opened = open(&args.trace, args.from.as_deref().map(by_name).transpose()?)?;
    let mut records = Vec::new();
    while let Some(record) = opened.reader.next_record()? {
        records.push(record);
    }
    measured::closed_loop(&records).map_err(|e| Failure::Failed(format!("{}: {e}", args.trace.display())))
}

/// The times of the real drive or of the model.
#[derive(Debug, Serialize)]
struct ValidatedTimes {
    mean_ms: f64,
    mean_read_ms: f64,
    mean_write_ms: f64,
    /// Percent of the requests, and the time that so many take at most.
    percentiles_ms: Vec<(f64, f64)>,
}

impl ValidatedTimes {
    fn new(trace: &[Measured], responses: &[Nanos]) -> ValidatedTimes {
        let of = |writes: bool| {
            let requests = trace.iter().zip(responses).filter(|(request, _)| request.write == writes);
            measured::mean_ms(&requests.map(|(_, &time)| time).collect::<Vec<_>>())
        };
        let sorted = measured::sorted_ms(responses);
        let percentile = |percent: f64| (percent, measured::quantile(&sorted, percent / 100.0));
        ValidatedTimes {
            mean_ms: measured::mean_ms(responses),
            mean_read_ms: of(false),
            mean_write_ms: of(true),
            percentiles_ms: PERCENTILES.map(percentile).to_vec(),
        }
    }
}

#[derive(Debug, Serialize)]
struct Comparison {
    drive: String,
    requests: usize,
    reads: usize,
    demerit_ms: f64,
    /// Demerit figures of reads and of writes alone, if there are any. Errors of the two can cancel out in `demerit_ms`.
    demerit_read_ms: Option<f64>,
    demerit_write_ms: Option<f64>,
    /// A twentieth of a revolution, and the requests whose two times differ by less.
    close_ms: f64,
    close: usize,
    measured: ValidatedTimes,
    model: ValidatedTimes,
    model_read_hits: usize,
    model_mean_seek_ms: f64,
    model_mean_rotation_ms: f64,
    model_mean_transfer_ms: f64,
}

impl Comparison {
    fn new(drive: &Drive, trace: &[Measured], replay: &Replay) -> Comparison {
        let real: Vec<Nanos> = trace.iter().map(|request| request.response).collect();
        let mean = |total: Nanos| total.as_millis_f64() / trace.len() as f64;
        let close = Nanos(drive.revolution().0 / CLOSE_PART);
        let pairs = real.iter().zip(&replay.responses);
        let demerit_of = |writes: bool| {
            let requests = trace.iter().zip(&replay.responses).filter(|(request, _)| request.write == writes);
            let (real, model): (Vec<Nanos>, Vec<Nanos>) =
                requests.map(|(r, &time)| (r.response, time)).unzip();
            (!real.is_empty()).then(|| measured::demerit_ms(&real, &model))
        };
        Comparison {
            drive: drive.name().to_owned(),
            requests: trace.len(),
            reads: replay.reads,
            demerit_ms: measured::demerit_ms(&real, &replay.responses),
            demerit_read_ms: demerit_of(false),
            demerit_write_ms: demerit_of(true),
            close_ms: close.as_millis_f64(),
            close: pairs.filter(|(real, model)| real.0.abs_diff(model.0) < close.0).count(),
            measured: ValidatedTimes::new(trace, &real),
            model: ValidatedTimes::new(trace, &replay.responses),
            model_read_hits: replay.read_hits,
            model_mean_seek_ms: mean(replay.seek),
            model_mean_rotation_ms: mean(replay.rotation),
            model_mean_transfer_ms: mean(replay.transfer),
        }
    }

    fn share(&self) -> f64 {
        100.0 * self.demerit_ms / self.measured.mean_ms
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{}, {} requests, {} of them reads\n{:<14} {:>13} {:>13}\n",
            self.drive, self.requests, self.reads, "", "measured", "model"
        );
        let mut row = |what: &str, real: f64, model: f64| {
            writeln!(text, "{what:<14} {real:>10.3} ms {model:>10.3} ms").expect("a string takes everything");
        };
        row("mean", self.measured.mean_ms, self.model.mean_ms);
        row("mean, reads", self.measured.mean_read_ms, self.model.mean_read_ms);
        row("mean, writes", self.measured.mean_write_ms, self.model.mean_write_ms);
        for (real, model) in self.measured.percentiles_ms.iter().zip(&self.model.percentiles_ms) {
            let what = if real.0 < 100.0 { format!("{:.0} % within", real.0) } else { "longest".to_owned() };
            row(&what, real.1, model.1);
        }
        let alone = |demerit: Option<f64>| demerit.map_or("-".to_owned(), |ms| format!("{ms:.3} ms"));
        writeln!(
            text,
            "demerit figure {:.3} ms, {:.1} % of the measured mean; of reads alone {}, of writes {}\n{:.1} % of the requests took as long as measured to {:.3} ms, a \
             twentieth of a revolution\nthe model: {:.1} % of the reads from its buffer; mean seek \
             {:.3} ms, rotation {:.3} ms, transfer {:.3} ms",
            self.demerit_ms,
            self.share(),
            alone(self.demerit_read_ms),
            alone(self.demerit_write_ms),
            100.0 * self.close as f64 / self.requests as f64,
            self.close_ms,
            100.0 * self.model_read_hits as f64 / self.reads.max(1) as f64,
            self.model_mean_seek_ms,
            self.model_mean_rotation_ms,
            self.model_mean_transfer_ms
        )
        .expect("a string takes everything");
        text
    }
}

fn page(title: &str, trace: &[Measured], replay: &Replay, comparison: &Comparison) -> String {
    let real: Vec<Nanos> = trace.iter().map(|request| request.response).collect();
    let distribution = |responses: &[Nanos]| {
        let sorted = measured::sorted_ms(responses);
        let point = |step: usize| {
            let part = step as f64 / PLOTTED as f64;
            (measured::quantile(&sorted, part), 100.0 * part)
        };
        (0..=PLOTTED).map(point).collect()
    };
    let plot = Plot::lines(
        "Response times",
        Axis::linear("ms"),
        Axis::linear("% of the requests at most so long"),
        [
            Series::new("measured", distribution(&real)),
            Series::new(comparison.drive.clone(), distribution(&replay.responses)),
        ],
    );
    let body = format!(
        "{}<pre>{}</pre>",
        dcd_studies::page::figure(&plot),
        dcd_studies::page::escaped(&comparison.text())
    );
    dcd_studies::page::page(title, &body)
}
