//! `dcd completions`: a completion script, generated from the definition of the commands.

use clap::CommandFactory;

use crate::cli::{Cli, Completions};
use crate::failure::Failure;

pub fn run(args: &Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "dcd", &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(())
}
