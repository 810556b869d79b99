//! Many traces: which they are, all of them tuned on the cores of this machine, and which gain most.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dcd_stack::HumanBytes;
use serde::Deserialize;

use super::tune;
use crate::cli_tune::Tune;
use crate::failure::Failure;
use crate::jobs::{in_parallel, jobs, progress};
use crate::tune::Medium;

/// A trace, and the name of its directory.
struct Named {
    path: PathBuf,
    name: String,
}

/// A candidate, as the report of a trace has it.
#[derive(Deserialize)]
struct Choice {
    medium: Medium,
    bytes: u64,
    policy: String,
    value: f64,
    measured: MeanOf,
}

#[derive(Deserialize)]
struct MeanOf {
    mean_ms: f64,
}

/// The report of a trace.
#[derive(Deserialize)]
struct Told {
    trace: String,
    requests: u64,
    seconds: f64,
    plain: Choice,
    recommended: Choice,
}

impl Told {
    /// Seconds that all requests of an hour wait less. This counts how many there are, so traces can be compared by it.
    fn saved(&self) -> f64 {
        let saved_ms = self.plain.measured.mean_ms - self.recommended.measured.mean_ms;
        let hours = (self.seconds / 3600.0).max(f64::MIN_POSITIVE);
        saved_ms / 1e3 * self.requests as f64 / hours
    }

    fn line(&self) -> String {
        let Choice { medium, bytes, policy, value, .. } = &self.recommended;
        let words = match medium {
            Medium::None => medium.words().to_owned(),
            _ => format!("{}, {}", medium.words(), HumanBytes(*bytes)),
        };
        let times = self.plain.value / value;
        format!("{:>14.1} {times:>7.1}  {}: {words}, {policy}", self.saved(), self.trace)
    }
}

pub fn run(args: &Tune) -> Result<(), Failure> {
    let traces = traces(&args.inputs)?;
    if traces.is_empty() {
        return Err(Failure::Failed("there is no file in the directory".to_owned()));
    }
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory).map_err(|e| Failure::io(directory.display(), e))?;
        if args.inputs.iter().any(|input| is_same(input, directory)) {
            let out = directory.display();
            return Err(Failure::Failed(format!(
                "--out {out}: the traces are there: name another directory"
            )));
        }
    }
    let bar = progress(args.reading.quiet, "traces");
    bar.set_length(traces.len() as u64);
    let cores = jobs(args.jobs);
    // Cores that no trace is left for work on those that there are.
    let each = cores.div_ceil(traces.len());
    let tuned = in_parallel(cores, traces.len(), |index| {
        let trace = &traces[index];
        let out = args.out.as_ref().map(|out| out.join(&trace.name));
        let tuned = tune(args, &trace.path, out.as_deref(), each, &progress(true, "runs"));
        bar.inc(1);
        bar.set_message(trace.name.clone());
        Ok::<_, Failure>(tuned)
    })?;
    bar.finish_and_clear();
    let (mut reports, mut left_out) = (Vec::new(), Vec::new());
    for (trace, tuned) in traces.iter().zip(tuned) {
        match tuned {
            Ok(tuned) => {
                let told = Told::deserialize(&tuned.json).expect("it is a report of this program");
                reports.push((told, tuned.json));
            }
            // One that is no trace, or has no writes, is no reason to leave the others.
            Err(error) => {
                let (trace, why) = (trace.path.display().to_string(), error.to_string());
                let why = why.strip_prefix(&format!("{trace}: ")).unwrap_or(&why);
                left_out.push(format!("{trace}: {why}"));
            }
        }
    }
    if reports.is_empty() {
        return Err(Failure::Failed(format!("none of the traces could be tuned: {}", left_out.join("; "))));
    }
    reports.sort_by(|(one, _), (other, _)| other.saved().total_cmp(&one.saved()));
    if !args.json {
        println!("waits less s/h   times  trace, and what is recommended");
    }
    for (told, json) in &reports {
        match args.json {
            true => println!("{json}"),
            false => println!("{}", told.line()),
        }
    }
    left_out.iter().for_each(|trace| eprintln!("dcd-lab: left out: {trace}"));
    Ok(())
}

/// The traces to tune, those of a directory by their names.
fn traces(inputs: &[PathBuf]) -> Result<Vec<Named>, Failure> {
    let mut all: Vec<PathBuf> = Vec::new();
    for input in inputs {
        match input.is_dir() {
            true => all.extend(files(input).map_err(|e| Failure::io(input.display(), e))?),
            false => all.push(input.clone()),
        }
    }
    let mut taken = BTreeSet::new();
    let named = all.into_iter().map(|path| {
        let name = path.file_name().map_or("trace".to_owned(), |name| name.to_string_lossy().into_owned());
        // The same name in another directory.
        let mut names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
        let name = names.find(|name| taken.insert(name.clone())).expect("there is always another number");
        Named { path, name }
    });
    Ok(named.collect())
}

fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize().ok().is_some_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// The traces in a directory: its files but hidden ones, and of a recording of blktrace, which has a file for each CPU, the name.
fn files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let entries: Vec<PathBuf> =
        std::fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    let is_hidden =
        |path: &Path| path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let mut files: Vec<PathBuf> =
        entries.into_iter().filter(|path| path.is_file() && !is_hidden(path)).collect();
    for file in &mut files {
        let name = file.to_string_lossy().into_owned();
        let recording = name.rsplit_once(".blktrace.").filter(|(_, cpu)| cpu.parse::<u32>().is_ok());
        if let Some((recording, _)) = recording {
            *file = PathBuf::from(recording);
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}
