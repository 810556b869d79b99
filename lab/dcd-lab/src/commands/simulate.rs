//! `dcd simulate`: stacks in virtual time, several at a time, and what came out.

use dcd_studies::COLOURS_MAX;
use dcd_trace::{Inputs, inputs_of_trace};
use indicatif::ProgressBar;

use super::trace::{opened, tell_note};
use crate::cli_simulate::Simulate;
use crate::failure::Failure;
use crate::jobs::{in_parallel, jobs, progress};
use crate::load::{Purpose, Workload};
use crate::simulate::{Load, Ran, Report, page, run};

/// Size of a sector: a stack with larger blocks gets whole ones.
const BLOCK_BYTES: u32 = 512;

pub fn run_stacks(args: &Simulate) -> Result<(), Failure> {
    if args.files.len() > COLOURS_MAX {
        return Err(Failure::Failed(format!(
            "{} stacks are more than can be told apart: name {COLOURS_MAX} at most",
            args.files.len()
        )));
    }
    let inputs = Inputs::new(
        args.files.iter().cloned().chain(args.load.trace.iter().flat_map(|trace| inputs_of_trace(trace))),
    );
    let load = load(args)?;
    // Before the work is done.
    [&args.csv, &args.html].into_iter().flatten().try_for_each(|output| inputs.check(output))?;
    let bar = progress(args.reading.quiet, "requests");
    bar.set_length(load.requests() * args.files.len() as u64);
    let ran = run_all(args, &load, &bar)?;
    bar.finish_and_clear();
    for advice in ran.iter().filter_map(|ran| ran.advice.as_ref()) {
        eprintln!("dcd: {advice}");
    }
    let report = Report { load: &load, seed: args.seed, ran: &ran };
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
    Ok(())
}

fn load(args: &Simulate) -> Result<Load, Failure> {
    let Some(path) = &args.load.trace else {
        let workload = args.load.workload.expect("one of the two is required");
        return Ok(Load::Generated { workload, requests: args.requests, seed: args.seed });
    };
    let mut trace = opened(path, &args.reading)?;
    let workload = Workload::read(&mut *trace.reader, args.device, BLOCK_BYTES, Purpose::Replay);
    tell_note(&*trace.reader);
    Ok(Load::Trace { name: path.display().to_string(), workload: workload? })
}

fn run_all(args: &Simulate, load: &Load, bar: &ProgressBar) -> Result<Vec<Ran>, Failure> {
    in_parallel(jobs(args.jobs), args.files.len(), |index| {
        run(&args.files[index], load, args.seed, args.interval, bar)
    })
}
