//! The program `dcd`: one file a subcommand under `commands`, one definition of each flag for parser, help, completions
//! and manual pages. It is a library so that the laboratory's program, `dcd-lab`, has all of it as well.

/// In the place of the one that panics when nobody reads; see `output`.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::output::print(format_args!($($arg)*)) };
}

/// The same for a line.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Nobody may read what a server has to say, and it goes on all the same.
#[macro_export]
macro_rules! eprintln {
    ($($arg:tt)*) => { $crate::output::tell(format_args!("{}\n", format_args!($($arg)*))) };
}

mod advice;
pub mod cli;
mod cli_array;
mod cli_log;
mod commands;
mod control;
mod failure;
mod loops;
pub mod memory;
mod nbd_device;
pub mod output;
mod progress;
mod session;

pub use advice::Advised;
pub use commands::{Modelled, Program, run};
pub use failure::{EXIT_CODES, Failure};
pub use session::record::device_numbers;

use std::process::ExitCode;

/// Ends a program: what is printed has to arrive, and a failure is told.
pub fn end<E>(done: Result<(), E>, exit_code: impl Fn(&E) -> ExitCode) -> ExitCode
where
    E: std::fmt::Display + From<Failure>,
{
    let printed = output::finish().map_err(|e| E::from(Failure::io("standard output", e)));
    match done.and(printed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("dcd: {failure}");
            exit_code(&failure)
        }
    }
}
