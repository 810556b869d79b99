//! The subcommands, one file each.

mod demo;
mod drive;
mod simulate;
mod study;
mod trace;
mod tune;

use dcd_cli::Program;

use crate::cli::{Cli, Command};
use crate::failure::Failure;

/// The guides of the laboratory, as manual pages of `dcd-lab`.
const GUIDES: &[dcd_cli::Guide] = &[
    ("drives", include_str!("../../../../docs/drives.md")),
    ("traces", include_str!("../../../../docs/traces.md")),
];

pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Tune(args) => tune::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Simulate(args) => simulate::run_stacks(&args),
        Command::Experiment(args) => simulate::run_experiment(&args),
        Command::Drive(args) => drive::run(&args),
        Command::Study(args) => study::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Program(command) => {
            let modelled = Some(drive::stride_times as dcd_cli::Modelled);
            let program = Program { command: Cli::command_line, modelled, guides: GUIDES };
            Ok(dcd_cli::run(command, &program)?)
        }
    }
}
