//! The command line: one file a subcommand under `commands`, one definition of each flag for parser, help, completions
//! and manual pages.

/// In the place of the one that panics when nobody reads; see `output`.
macro_rules! print {
    ($($arg:tt)*) => { $crate::output::print(format_args!($($arg)*)) };
}

/// The same for a line.
macro_rules! println {
    ($($arg:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Nobody may read what a server has to say, and it goes on all the same.
macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::output::tell(format_args!("{}\n", format_args!($($arg)*))) };
}

mod absent;
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
mod memory;
mod offline;
mod on_array;
mod opening;
mod output;
mod page;
mod probe;
mod progress;
mod real;
mod running;
mod served;
mod tune;
mod virtual_run;
mod watching;
mod workload;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    dcd_io::ignore_file_size_signal();
    let cli = cli::Cli::parse();
    let done = commands::run(cli.command);
    let printed = output::finish().map_err(|e| failure::Failure::io("standard output", e));
    match done.and(printed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("dcd: {failure}");
            failure.exit_code()
        }
    }
}
