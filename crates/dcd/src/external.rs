//! Commands that the laboratory's program has: `dcd tune` runs `dcd-lab tune` where that is installed.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use dcd_cli::{Failure, LABORATORY};

const PROGRAM: &str = "dcd-lab";

/// The arguments, where they are for the laboratory's program.
pub fn command() -> Option<Vec<OsString>> {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    let first = arguments.iter().find(|argument| *argument != "help")?.to_str()?;
    let models = first == "calibrate"
        && arguments.iter().any(|argument| argument.to_str().is_some_and(|a| a.starts_with("--drive")));
    (LABORATORY.contains(&first) || models).then_some(arguments)
}

/// Returns the arguments without "help" before an unknown command: the parser has tips for that alone.
pub fn with_tips(program: clap::Command) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == "help") {
        let known = |program: clap::Command, name| program.find_subcommand(name).cloned();
        let asked = arguments[2..].iter().filter(|name| *name != "help").try_fold(program, known);
        if asked.is_none() {
            arguments.remove(1);
        }
    }
    arguments
}

/// Becomes the laboratory's program; returns only where that fails.
pub fn run(arguments: Vec<OsString>) -> Failure {
    let first = arguments.iter().find(|argument| *argument != "help").unwrap_or(&arguments[0]);
    let first = first.to_string_lossy().into_owned();
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    let program = beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM));
    let error = Command::new(&program).args(arguments).exec();
    if error.kind() == ErrorKind::NotFound {
        return Failure::Failed(format!(
            "\"{first}\" is a command of dcd-lab, which is not installed: install the package dcd-lab, or run \"make install\" in \
             the sources of dcd"
        ));
    }
    Failure::io(program.display(), error)
}
