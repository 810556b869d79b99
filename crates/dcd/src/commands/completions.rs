//! `dcd completions`: a completion script, generated from the definition of the commands.

use crate::cli::Completions;
use crate::failure::Failure;

pub fn run(args: &Completions, mut command: clap::Command) -> Result<(), Failure> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    print!("{}", String::from_utf8_lossy(&script));
    Ok(())
}
