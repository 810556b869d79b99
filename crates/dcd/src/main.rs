//! See the library.

mod external;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use dcd_cli::{Failure, GUIDES, Program, STACK_NAMES, cli::Cli};

fn main() -> ExitCode {
    dcd_io::ignore_file_size_signal();
    dcd_cli::messages::abort_on_panic();
    if external::complete() {
        return ExitCode::SUCCESS;
    }
    dcd_cli::complete(Cli::command, &[STACK_NAMES]);
    let done = match external::command() {
        Some(command) => Err(external::run(command)),
        None => {
            let program = Program { command: Cli::command, modelled: None, guides: GUIDES };
            dcd_cli::run(Cli::parse_from(external::with_tips(Cli::command())).command, &program)
        }
    };
    dcd_cli::end(done, Failure::exit_code)
}
