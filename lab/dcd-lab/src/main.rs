//! The laboratory's program: sizes a cache from a trace, simulates stacks, repeats the papers' experiments, and has the
//! commands of `dcd` for stacks with modelled disks.

// In the place of those that panic when nobody reads.
#[macro_use(eprintln, print, println)]
extern crate dcd_cli;

mod cli;
mod cli_drive;
mod cli_simulate;
mod cli_trace;
mod cli_tune;
mod commands;
mod demo;
#[cfg(test)]
mod documented_tests;
mod failure;
mod generated;
mod load;
mod simulate;
mod tune;
mod virtual_run;

use std::process::ExitCode;

use dcd_studies::jobs;

use crate::cli::Cli;
use crate::failure::Failure;

const DRIVES: dcd_cli::Offered = ("DRIVE", || dcd_model::drive::names().map(String::from).collect());
const EXPERIMENTS: dcd_cli::Offered = ("EXPERIMENT", || {
    dcd_studies::experiments::REGISTRY.iter().map(|experiment| experiment.name.to_owned()).collect()
});

fn main() -> ExitCode {
    dcd_io::ignore_file_size_signal();
    dcd_model::register_kinds();
    dcd_cli::complete(Cli::command_line, &[dcd_cli::STACK_NAMES, DRIVES, EXPERIMENTS]);
    dcd_cli::end(commands::run(Cli::read().command), Failure::exit_code)
}
