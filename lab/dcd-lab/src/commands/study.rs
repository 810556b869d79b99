//! `dcd study`: the papers' experiments.

use std::path::Path;

use dcd_studies::experiments::{REGISTRY, find};
use dcd_studies::{Cells, Count, Outcome, Overrides, RunOptions, Table, WITHIN};
use dcd_trace::Inputs;

use crate::cli::{Study, StudyCells, StudyPart, StudyRun, StudyShow};
use crate::failure::Failure;

pub fn run(args: &Study) -> Result<(), Failure> {
    match &args.part {
        StudyPart::List => {
            print!("{}", dcd_studies::listing());
            Ok(())
        }
        StudyPart::Run(args) => measure(args),
        StudyPart::Show(args) => show(args),
        StudyPart::Cells(args) => cells(args),
    }
}

fn measure(args: &StudyRun) -> Result<(), Failure> {
    let options = RunOptions {
        seed: args.seed,
        jobs: crate::jobs::jobs(args.jobs),
        overrides: Overrides::parse(args.set.iter().map(String::as_str))?,
        progress: true,
        seeds: args.seeds,
        build: format!("dcd-lab {}", dcd_cli::cli::VERSION),
    };
    // A place that cannot be written is told now, and not after hours of work.
    std::fs::create_dir_all(&args.out).map_err(|e| Failure::io(args.out.display(), e))?;
    // A drive file may be named as the value of a parameter.
    let inputs =
        Inputs::new(args.set.iter().filter_map(|set| set.split_once('=')).map(|(_, value)| value.trim()));
    args.doc.iter().try_for_each(|path| inputs.check(path))?;
    let outcomes = dcd_studies::run_each(&args.name, &options, &|outcome| {
        dcd_studies::save(&args.out, outcome, &inputs)
    })?;
    outcomes.iter().for_each(|outcome| println!("{}", dcd_studies::text_report(outcome)));
    dcd_studies::save_report(&args.out, &outcomes, &inputs)?;
    if let Some(path) = &args.doc {
        inputs.write(path, dcd_studies::document(&outcomes))?;
    }
    let count: Count = outcomes.iter().map(Outcome::count).sum();
    println!("{count}; {}", args.out.join("report.html").display());
    Ok(())
}

fn show(args: &StudyShow) -> Result<(), Failure> {
    let mut outcomes = saved(&args.out, args.name.as_deref())?;
    if let Some(path) = &args.doc {
        outcomes = outcomes.into_iter().map(dcd_studies::judge_again).collect::<Result<_, _>>()?;
        Inputs::default().write(path, dcd_studies::document(&outcomes))?;
    }
    outcomes.iter().for_each(|outcome| println!("{}", dcd_studies::text_report(outcome)));
    Ok(())
}

/// The results in a directory: of one experiment, or of all that were run.
fn saved(out: &Path, name: Option<&str>) -> Result<Vec<Outcome>, Failure> {
    let names: Vec<&str> = match name {
        Some(name) => vec![find(name)?.name],
        None => REGISTRY.iter().map(|experiment| experiment.name).collect(),
    };
    let loaded = names.into_iter().map(|name| dcd_studies::load(out, name));
    let outcomes: Vec<Outcome> = loaded.filter_map(Result::transpose).collect::<Result<_, _>>()?;
    if outcomes.is_empty() { Err(nothing_there(out, name)) } else { Ok(outcomes) }
}

/// Prints the shares of cells near the paper's figures.
fn cells(args: &StudyCells) -> Result<(), Failure> {
    let heads = WITHIN.map(|part| format!("{:.0} %", 100.0 * part)).join(" | ");
    let mut table = Table::new("", &format!("cells within | all | {heads}"));
    let mut row = |name: &str, cells: Cells| {
        table.row(std::iter::once(name.to_owned()).chain(cells.columns()));
    };
    let of = |outcome: &Outcome| Cells::of(&outcome.findings.tables);
    let outcomes = saved(&args.out, None)?;
    for outcome in outcomes.iter().filter(|outcome| of(outcome).all > 0) {
        row(&outcome.experiment, of(outcome));
    }
    row("all", outcomes.iter().map(of).sum());
    print!("{}", table.text());
    Ok(())
}

fn nothing_there(out: &Path, name: Option<&str>) -> Failure {
    let name = name.unwrap_or("all");
    let out = out.display();
    Failure::Failed(format!("{out} has no results of {name}: run `dcd study run {name} --out {out}` first"))
}
