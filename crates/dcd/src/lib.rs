//! The program `dcd`: one file a subcommand under `commands`, one definition of each flag for parser, help, completions
//! and manual pages. It is a library so that the laboratory's program, `dcd-lab`, has all of it as well.

/// Prints text. Unlike the standard macro, it does not panic when nobody reads; see `output`.
#[macro_export]
macro_rules! print {
    ($($arg:tt)*) => { $crate::output::print(format_args!($($arg)*)) };
}

/// Prints a line, as `print` prints text.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($arg)*))) };
}

/// Writes a line to standard error, at the priority of a notice. A server does not wait for a reader; see `messages`.
#[macro_export]
macro_rules! eprintln {
    ($($arg:tt)*) => {
        $crate::messages::tell($crate::messages::Priority::Notice, format_args!("{}\n", format_args!($($arg)*)))
    };
}

/// Writes a line about something that an administrator should look at.
#[macro_export]
macro_rules! warnln {
    ($($arg:tt)*) => {
        $crate::messages::tell($crate::messages::Priority::Warning, format_args!("{}\n", format_args!($($arg)*)))
    };
}

/// Writes a line about something that has failed.
#[macro_export]
macro_rules! errorln {
    ($($arg:tt)*) => {
        $crate::messages::tell($crate::messages::Priority::Error, format_args!("{}\n", format_args!($($arg)*)))
    };
}

// Tests may be built together with the crash explorer; programs that people use may not.
#[cfg(not(debug_assertions))]
const _: () = assert!(
    !dcd_engine::PLANTS_BUGS,
    "the crash explorer is built together with this, and plants bugs in it: build the programs with `cargo build --release`"
);

mod advice;
mod block_devices;
pub mod cli;
mod cli_array;
mod cli_log;
mod commands;
mod control;
mod events;
mod failure;
mod loops;
pub mod memory;
pub mod messages;
mod nbd_device;
pub mod output;
mod progress;
mod session;

pub use advice::Advised;
pub use commands::{COMPLETION_VARIABLE, GUIDES, Guide, Modelled, Offered, Program, complete, run};
pub use control::STACK_NAMES;
pub use failure::{EXIT_CODES, Failure};
pub use session::record::device_numbers;

use std::process::ExitCode;

/// Commands that `dcd` passes on to `dcd-lab`. "study" was called "lab" before; both names work.
pub const LABORATORY: [&str; 8] =
    ["tune", "trace", "simulate", "experiment", "drive", "study", "lab", "demo"];

/// Ends a program: flushes its output, reports a failure, and returns the exit code.
pub fn end<E>(done: Result<(), E>, exit_code: impl Fn(&E) -> ExitCode) -> ExitCode
where
    E: std::fmt::Display + From<Failure>,
{
    let printed = output::finish().map_err(|e| E::from(Failure::io("standard output", e)));
    let code = match done.and(printed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            errorln!("dcd: {failure}");
            exit_code(&failure)
        }
    };
    messages::finish();
    code
}
