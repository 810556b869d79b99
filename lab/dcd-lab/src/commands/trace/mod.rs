//! `dcd trace`: what is common to its parts: opening, copying with progress, telling what was left out.

mod characterise;
mod plots;
mod report;
mod synthesise;

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use dcd_trace::{
    Cut, Cutter, DeviceId, FORMATS, Format, Inputs, Merge, ReadTrace, Reading, Record, RecordOp, Scale,
    Scaler, TraceError, by_name, create, inputs_of_trace, names, open_as,
};

use crate::cli_trace::{
    Convert, CutArgs, Files, InputArgs, MergeArgs, Operation, OutputArgs, ScaleArgs, Trace, TracePart,
};
use crate::failure::Failure;

/// The clock is looked at once in so many records.
const RECORDS_A_LOOK: u64 = 1 << 14;
const INTERVAL: Duration = Duration::from_millis(500);

pub fn run(args: &Trace) -> Result<(), Failure> {
    match &args.part {
        TracePart::Convert(args) => convert(args),
        TracePart::Summarise(args) => characterise::summarise(args),
        TracePart::Characterise(args) => characterise::characterise(args),
        TracePart::Synthesise(args) => synthesise::synthesise(args),
        TracePart::Cut(args) => cut(args),
        TracePart::Scale(args) => scale(args),
        TracePart::Merge(args) => merge(args),
        TracePart::Formats => {
            list();
            Ok(())
        }
    }
}

fn list() {
    println!("{:<14} {:<8} {:<10} {:<16} about", "name", "writes", "responses", "discard, flush");
    let yes = |it_does: bool| if it_does { "yes" } else { "-" };
    for f in FORMATS {
        let (writes, all) = (yes(f.write.is_some()), yes(f.has_discards_and_flushes));
        println!("{:<14} {writes:<8} {:<10} {all:<16} {}", f.name, yes(f.has_responses), f.about);
    }
}

/// A trace that is open as the user asked.
pub(super) struct Opened {
    format: &'static Format,
    pub(super) reader: Box<dyn ReadTrace>,
}

pub(super) fn opened(path: &Path, args: &InputArgs) -> Result<Opened, Failure> {
    let format = args.from.as_deref().map(by_name).transpose()?;
    let reading = Reading { format, columns: args.columns.clone(), skip_bad: args.skip_bad };
    let opened = open_as(path, &reading)?;
    Ok(Opened { format: opened.format, reader: opened.reader })
}

/// Endings that say what a file is, and of no format of ours, or of several.
const OTHER_ENDINGS: [&str; 10] =
    ["txt", "tsv", "json", "jsonl", "xml", "html", "log", "parquet", "xz", "bz2"];

/// The format to write: what was asked for, else what the name ends in, else our own.
fn output_format(path: &Path, args: &OutputArgs) -> Result<&'static Format, Failure> {
    if let Some(name) = &args.to {
        return Ok(by_name(name)?);
    }
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_ascii_lowercase();
    let mut parts = name.rsplit('.').skip_while(|&part| part == "gz" || part == "zst");
    let ending = parts.next().filter(|_| parts.next().is_some()).unwrap_or("");
    match by_name(ending) {
        Ok(format) => Ok(format),
        Err(_) if OTHER_ENDINGS.contains(&ending) => Err(Failure::Failed(format!(
            "{}: no trace is written as .{ending}; say which format is to be in it with --to: {}",
            path.display(),
            names(true)
        ))),
        Err(_) => Ok(by_name("dcd")?),
    }
}

fn operations(only: &[Operation]) -> Vec<RecordOp> {
    let op = |operation: &Operation| match operation {
        Operation::Read => RecordOp::Read,
        Operation::Write => RecordOp::Write,
        Operation::Discard => RecordOp::Discard,
        Operation::Flush => RecordOp::Flush,
    };
    only.iter().map(op).collect()
}

/// Records so far, on a terminal.
struct Ticker {
    shown: bool,
    started: Instant,
    last: Instant,
    count: u64,
}

impl Ticker {
    fn new(quiet: bool) -> Ticker {
        let now = Instant::now();
        Ticker { shown: !quiet && std::io::stderr().is_terminal(), started: now, last: now, count: 0 }
    }

    fn tick(&mut self) {
        self.count += 1;
        if !self.shown || !self.count.is_multiple_of(RECORDS_A_LOOK) || self.last.elapsed() < INTERVAL {
            return;
        }
        self.last = Instant::now();
        let rate = self.count as f64 / self.started.elapsed().as_secs_f64();
        // Nobody to tell it to is no failure.
        let _ = write!(std::io::stderr(), "\r\x1b[K{} records, {rate:.0} a second", self.count);
    }

    fn end(&self) {
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Says what was left out of a trace, or taken for granted.
pub(super) fn tell_note(reader: &dyn ReadTrace) {
    if let Some(note) = reader.note() {
        eprintln!("dcd: {note}");
    }
}

/// Every record of a trace, with progress. Returns how many.
fn each(
    reader: &mut dyn ReadTrace,
    quiet: bool,
    mut take: impl FnMut(&Record) -> Result<(), TraceError>,
) -> Result<u64, Failure> {
    let mut ticker = Ticker::new(quiet);
    let mut copy = || {
        while let Some(record) = reader.next_record()? {
            take(&record)?;
            ticker.tick();
        }
        Ok(())
    };
    let result: Result<(), TraceError> = copy();
    ticker.end();
    // Also when it failed: what was left out may be the reason.
    tell_note(reader);
    result?;
    Ok(ticker.count)
}

/// A reader whose first record has been read already.
struct Begun {
    first: Option<Record>,
    rest: Box<dyn ReadTrace>,
}

impl ReadTrace for Begun {
    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        match self.first.take() {
            Some(record) => Ok(Some(record)),
            None => self.rest.next_record(),
        }
    }

    fn note(&self) -> Option<String> {
        self.rest.note()
    }
}

/// Writes what a reader gives. What is no trace at all leaves an older result alone.
fn write_all(
    mut reader: Box<dyn ReadTrace>,
    inputs: &Inputs,
    output: &Path,
    format: &'static Format,
    quiet: bool,
) -> Result<(), Failure> {
    inputs.check(output)?;
    let first = match reader.next_record() {
        Ok(record) => record,
        Err(error) => {
            tell_note(&*reader);
            return Err(error.into());
        }
    };
    let mut writer = create(output, format, inputs)?;
    let mut reader = Box::new(Begun { first, rest: reader });
    let (mut responses_lost, mut fua_lost) = (0u64, 0u64);
    let count = each(&mut *reader, quiet, |record| {
        responses_lost += u64::from(record.response.is_some() && !format.has_responses);
        fua_lost += u64::from(record.fua && !format.has_fua);
        writer.write(record)
    })?;
    writer.finish()?;
    if !quiet {
        eprintln!("dcd: {count} records written to {} ({})", output.display(), format.name);
        for (lost, what) in [(responses_lost, "response times"), (fua_lost, "FUA")] {
            if lost > 0 {
                eprintln!("dcd: the format {} has no {what}: {lost} are not in it", format.name);
            }
        }
    }
    Ok(())
}

/// Writes a trace as a stage changes it.
fn copy(files: &Files, change: impl FnOnce(Box<dyn ReadTrace>) -> Box<dyn ReadTrace>) -> Result<(), Failure> {
    let format = output_format(&files.output, &files.writing)?;
    let reader = change(opened(&files.input, &files.reading)?.reader);
    let inputs = Inputs::new(inputs_of_trace(&files.input));
    write_all(reader, &inputs, &files.output, format, files.reading.quiet)
}

fn convert(args: &Convert) -> Result<(), Failure> {
    copy(&args.files, |mut reader| {
        if let Some(window) = args.sort {
            reader = Box::new(Merge::new(vec![reader], window));
        }
        if !args.only.is_empty() {
            reader = Box::new(Cutter::new(reader, Cut { ops: operations(&args.only), ..Cut::default() }));
        }
        if args.from_zero {
            reader = Box::new(Scaler::new(reader, Scale { time: 1.0, space: 1.0, from_zero: true }));
        }
        reader
    })
}

fn cut(args: &CutArgs) -> Result<(), Failure> {
    let cut = Cut {
        from: args.start,
        to: args.end,
        devices: args.device.iter().map(|&id| DeviceId(id)).collect::<BTreeSet<_>>(),
        ops: operations(&args.only),
        sectors_max: args.sectors_max,
        count: args.count,
    };
    copy(&args.files, |reader| Box::new(Cutter::new(reader, cut)))
}

fn scale(args: &ScaleArgs) -> Result<(), Failure> {
    let scale = Scale { time: args.time, space: args.space, from_zero: false };
    copy(&args.files, |reader| Box::new(Scaler::new(reader, scale)))
}

fn merge(args: &MergeArgs) -> Result<(), Failure> {
    let format = output_format(&args.output, &args.writing)?;
    let sources: Result<Vec<_>, Failure> =
        args.inputs.iter().map(|input| Ok(opened(input, &args.reading)?.reader)).collect();
    let inputs = Inputs::new(args.inputs.iter().flat_map(|path| inputs_of_trace(path)));
    let merged = Merge::new(sources?, args.window);
    write_all(Box::new(merged), &inputs, &args.output, format, args.reading.quiet)
}
