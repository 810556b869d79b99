//! The command line: one file a subcommand under `commands`, one definition of each flag for parser, help, completions
//! and manual pages.

mod admission;
mod attachment;
mod choice;
mod cli;
mod cli_array;
mod cli_trace;
mod cli_tune;
mod commands;
mod control;
mod demo;
mod failure;
mod host;
mod opening;
mod page;
mod probe;
mod progress;
mod real;
mod tune;
mod virtual_run;
mod workload;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("dcd: {failure}");
            failure.exit_code()
        }
    }
}
