//! The subcommands, one file each.

mod completions;
mod man;
mod stack_file;

use crate::cli::Command;
use crate::failure::Failure;

pub fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::StackFile(_) => stack_file::run(),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        _ => Err(Failure::Failed("not in this build".to_owned())),
    }
}
