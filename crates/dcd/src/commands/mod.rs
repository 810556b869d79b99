//! The subcommands, one file each.

pub mod array;
mod calibrate;
mod check;
mod completions;
mod demo;
mod detach;
mod dump;
mod flush;
mod format;
mod lab;
mod man;
mod rescue;
mod serve;
mod simulate;
mod stack_file;
mod status;
mod stop;
mod trace;
mod tune;

use crate::cli::Command;
use crate::failure::Failure;

pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Array(args) => array::run(&args),
        Command::Format(args) => format::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Rescue(args) => rescue::run(&args),
        Command::Flush(args) => flush::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Stop(args) => stop::run(&args),
        Command::StackFile(_) => stack_file::run(),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Demo(args) => demo::run(&args),
    }
}
