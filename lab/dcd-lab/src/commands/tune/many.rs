//! Many traces: which they are, all of them tuned on the cores of this machine, and what is told of them together.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{inputs, tune};
use crate::cli_tune::{Shard, Tune};
use crate::failure::Failure;
use crate::jobs::{in_parallel, jobs, progress};
use crate::tune::{Fleet, LeftOut};

/// A trace, and the name of its directory.
struct Named {
    path: PathBuf,
    name: String,
}

pub fn run(args: &Tune) -> Result<(), Failure> {
    let traces = traces(&args.inputs, args.shard)?;
    if traces.is_empty() {
        return Err(Failure::Failed(match args.shard {
            Some(Shard { part, of }) => format!("part {part} of {of} has no trace: there are fewer of them"),
            None => "there is no file in the directory".to_owned(),
        }));
    }
    let (page, report) = results(args.shard);
    let inputs = inputs(args, traces.iter().map(|trace| trace.path.as_path()));
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory).map_err(|e| Failure::io(directory.display(), e))?;
        if args.inputs.iter().any(|input| is_same(input, directory)) {
            let out = directory.display();
            return Err(Failure::Failed(format!(
                "--out {out}: the traces are there: name another directory"
            )));
        }
        [&page, &report].into_iter().try_for_each(|name| inputs.check(&directory.join(name)))?;
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
        // One that is no trace, or has no writes, is no reason to leave the others.
        Ok::<_, Failure>(tuned.map_err(|error| {
            let (trace, why) = (trace.path.display().to_string(), error.to_string());
            let why = why.strip_prefix(&format!("{trace}: ")).unwrap_or(&why).to_owned();
            LeftOut { trace, why }
        }))
    })?;
    bar.finish_and_clear();
    let mut fleet = Fleet::default();
    for result in tuned {
        match result {
            Ok(tuned) => fleet.add("", tuned.json).map_err(Failure::Failed)?,
            Err(left_out) => fleet.left_out.push(left_out),
        }
    }
    if fleet.is_empty() {
        let whys: Vec<String> = fleet.left_out.iter().map(LeftOut::words).collect();
        return Err(Failure::Failed(format!("none of the traces could be tuned: {}", whys.join("; "))));
    }
    match args.json {
        true => println!("{}", fleet.json()),
        false => print!("{}", fleet.text()),
    }
    if let Some(directory) = &args.out {
        inputs.write(&directory.join(&report), format!("{}\n", fleet.json()))?;
        inputs.write(&directory.join(&page), fleet.page())?;
        eprintln!("dcd: the report is {}", directory.join(&page).display());
    }
    Ok(())
}

/// The page and the report of all traces, or of a part of them.
fn results(shard: Option<Shard>) -> (String, String) {
    let part = shard.map_or(String::new(), |Shard { part, of }| format!("-{part}-of-{of}"));
    (format!("report{part}.html"), format!("report{part}.json"))
}

/// The traces to tune, those of a directory by their names; of several jobs, those of this one.
fn traces(inputs: &[PathBuf], shard: Option<Shard>) -> Result<Vec<Named>, Failure> {
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
    let named: Vec<Named> = named.collect();
    Ok(match shard {
        None => named,
        Some(Shard { part, of }) => named.into_iter().skip(part - 1).step_by(of).collect(),
    })
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
