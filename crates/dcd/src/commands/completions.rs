//! `dcd completions`: a completion script, generated from the definition of the commands.

use std::io;

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::failure::Failure;

pub fn run(args: &Completions) -> Result<(), Failure> {
    clap_complete::generate(args.shell, &mut Cli::command(), "dcd", &mut io::stdout());
    Ok(())
}
