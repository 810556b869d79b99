//! `dcd simulate` and `dcd experiment`: stacks in virtual time, several at a time, and what came out.

use clap::{FromArgMatches, ValueEnum};
use dcd_studies::COLOURS_MAX;
use dcd_trace::{Inputs, inputs_of_trace};

use super::trace::{opened, tell_note};
use crate::cli::{Cli, Command, ExperimentArgs};
use crate::cli_simulate::Simulate;
use crate::failure::Failure;
use crate::generated::LoadFile;
use crate::jobs::{in_parallel, jobs, progress};
use crate::load::{Purpose, Workload};
use crate::simulate::{Experiment, Load, Ran, Replay, Report, Samples, page, run as run_stack, variants};

/// Size of a sector: a stack with larger blocks gets whole ones.
const BLOCK_BYTES: u32 = 512;
/// Generated requests, where neither the command nor the load file says how many.
const REQUESTS: u64 = 10_000;

pub fn run_experiment(args: &ExperimentArgs) -> Result<(), Failure> {
    let experiment = Experiment::read(&args.file)?;
    let named = |e: clap::Error| {
        let text = e.to_string();
        let why = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Failure::Failed(format!("{}: {why}", args.file.display()))
    };
    let words = ["dcd-lab", "simulate"].map(String::from).into_iter();
    let words = words.chain(experiment.arguments(&args.file)).chain(args.options.iter().cloned());
    let matches = Cli::command_line().try_get_matches_from(words).map_err(named)?;
    match Cli::from_arg_matches(&matches).map_err(named)?.command {
        Command::Simulate(simulate) => run(&simulate, &experiment),
        _ => unreachable!("the second word is simulate"),
    }
}

pub fn run_stacks(args: &Simulate) -> Result<(), Failure> {
    run(args, &Experiment::default())
}

fn run(args: &Simulate, experiment: &Experiment) -> Result<(), Failure> {
    let named = args.files.iter().cloned().chain(args.load.load.clone());
    let inputs = Inputs::new(named.chain(args.load.trace.iter().flat_map(|trace| inputs_of_trace(trace))));
    let (load, seed) = load(args)?;
    // Before the work is done.
    [&args.csv, &args.html, &args.samples]
        .into_iter()
        .flatten()
        .try_for_each(|output| inputs.check(output))?;
    let stacks = variants(&args.files, &args.set)?;
    if stacks.len() > COLOURS_MAX && (args.set.is_empty() || args.html.is_some()) {
        return Err(Failure::Failed(format!(
            "{} stacks are more than can be told apart: name {COLOURS_MAX} at most",
            stacks.len()
        )));
    }
    let seeds = args.seeds as usize;
    if args.samples.is_some() && stacks.len() * seeds > 1 {
        return Err(Failure::Failed("--samples is for one run: name one stack, with one seed".to_owned()));
    }
    let bar = progress(args.reading.quiet, "requests");
    bar.set_length(load.requests() * (stacks.len() * seeds) as u64);
    let ran = in_parallel(jobs(args.jobs), stacks.len() * seeds, |index| {
        let samples = args.samples.as_deref().map(Samples::create).transpose()?;
        run_stack(&stacks[index / seeds], &load, seed + (index % seeds) as u64, args.interval, samples, &bar)
    })?;
    bar.finish_and_clear();
    let (mut first, mut others): (Vec<Ran>, Vec<Vec<Ran>>) = (Vec::new(), Vec::new());
    for (ran, index) in ran.into_iter().zip(0..) {
        match (index % seeds, others.last_mut()) {
            (0, _) => {
                first.push(ran);
                others.extend((seeds > 1).then(Vec::new));
            }
            (_, Some(last)) => last.push(ran),
            (_, None) => unreachable!("the first seed comes first"),
        }
    }
    for advice in first.iter().filter_map(|ran| ran.advice.as_ref()) {
        eprintln!("dcd: {advice}");
    }
    let mut report = Report { load: &load, seed, ran: &first, others: &others, claims: Vec::new() };
    report.claims = experiment.claims.iter().map(|claim| claim.judge(&report)).collect::<Result<_, _>>()?;
    if args.json {
        println!("{}", report.json());
    } else {
        print!("{}", report.text());
    }
    if let Some(path) = &args.csv {
        inputs.write(path, report.csv())?;
    }
    if let Some(path) = &args.html {
        inputs.write(path, page(&report))?;
    }
    match report.claims.iter().filter(|claim| !claim.holds).count() {
        0 => Ok(()),
        failed => Err(Failure::Failed(format!("{failed} of {} claims do not hold", report.claims.len()))),
    }
}

/// The load, and the seed of the first run.
fn load(args: &Simulate) -> Result<(Load, u64), Failure> {
    let seed = args.seed.unwrap_or(1);
    let generated = |name: String, file: LoadFile| {
        let requests = args.requests.or(file.requests).unwrap_or(REQUESTS);
        let seed = args.seed.or(file.seed).unwrap_or(seed);
        (Load::Generated { name, file, requests }, seed)
    };
    if let Some(path) = &args.load.load {
        return Ok(generated(path.display().to_string(), LoadFile::read(path).map_err(Failure::Failed)?));
    }
    let Some(path) = &args.load.trace else {
        let workload = args.load.workload.expect("one of the three is required");
        let name = workload.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
        return Ok(generated(name, LoadFile::builtin(workload)));
    };
    let mut trace = opened(path, &args.reading)?;
    let workload = Workload::read(&mut *trace.reader, args.device, BLOCK_BYTES, Purpose::Replay);
    tell_note(&*trace.reader);
    let replay = match (args.closed, args.depth) {
        (false, _) => Replay::Open,
        (true, None) => Replay::Thinking,
        (true, Some(depth)) => Replay::Depth(depth as usize),
    };
    let name = path.display().to_string();
    Ok((Load::Trace { name, workload: workload?, replay, time_scale: args.time_scale }, seed))
}
