//! `dcd study`: the papers' experiments.

use std::path::Path;

use dcd_studies::experiments::{REGISTRY, find};
use dcd_studies::{Count, Outcome, Overrides, RunOptions};
use dcd_trace::Inputs;

use crate::cli::{Study, StudyPart, StudyRun, StudyShow};
use crate::failure::Failure;

pub fn run(args: &Study) -> Result<(), Failure> {
    match &args.part {
        StudyPart::List => {
            print!("{}", dcd_studies::listing());
            Ok(())
        }
        StudyPart::Run(args) => measure(args),
        StudyPart::Show(args) => show(args),
    }
}

fn measure(args: &StudyRun) -> Result<(), Failure> {
    let options = RunOptions {
        seed: args.seed,
        jobs: args.jobs.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
        overrides: Overrides::parse(args.set.iter().map(String::as_str))?,
        progress: true,
    };
    // A place that cannot be written is told now, and not after hours of work.
    std::fs::create_dir_all(&args.out).map_err(|e| Failure::io(args.out.display(), e))?;
    // A drive file may be named as the value of a parameter.
    let inputs =
        Inputs::new(args.set.iter().filter_map(|set| set.split_once('=')).map(|(_, value)| value.trim()));
    args.doc.iter().try_for_each(|path| inputs.check(path))?;
    let outcomes = dcd_studies::run(&args.name, &options)?;
    for outcome in &outcomes {
        println!("{}", dcd_studies::text_report(outcome));
        dcd_studies::save(&args.out, outcome, &inputs)?;
    }
    dcd_studies::save_report(&args.out, &outcomes, &inputs)?;
    if let Some(path) = &args.doc {
        inputs.write(path, dcd_studies::document(&outcomes))?;
    }
    let count: Count = outcomes.iter().map(Outcome::count).sum();
    println!("{count}; {}", args.out.join("report.html").display());
    Ok(())
}

fn show(args: &StudyShow) -> Result<(), Failure> {
    let names: Vec<&str> = match &args.name {
        Some(name) => vec![find(name)?.name],
        None => REGISTRY.iter().map(|experiment| experiment.name).collect(),
    };
    let mut shown = 0;
    for name in names {
        if let Some(outcome) = dcd_studies::load(&args.out, name)? {
            println!("{}", dcd_studies::text_report(&outcome));
            shown += 1;
        }
    }
    if shown == 0 {
        return Err(nothing_there(&args.out, args.name.as_deref()));
    }
    Ok(())
}

fn nothing_there(out: &Path, name: Option<&str>) -> Failure {
    let name = name.unwrap_or("all");
    let out = out.display();
    Failure::Failed(format!("{out} has no results of {name}: run `dcd study run {name} --out {out}` first"))
}
