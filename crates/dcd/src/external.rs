//! Commands that the laboratory's program has: `dcd tune` runs `dcd-lab tune` where that is installed.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use dcd_cli::{COMPLETION_VARIABLE, Failure, LABORATORY};

const PROGRAM: &str = "dcd-lab";

/// The arguments, where they are for the laboratory's program.
pub fn command() -> Option<Vec<OsString>> {
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    is_for_laboratory(&arguments).then_some(arguments)
}

fn is_for_laboratory(arguments: &[OsString]) -> bool {
    let words = || arguments.iter().filter_map(|argument| argument.to_str());
    let first = words().find(|argument| *argument != "help");
    let models = first == Some("calibrate") && words().any(|argument| argument.starts_with("--drive"));
    first.is_some_and(|first| LABORATORY.contains(&first)) || models
}

/// Hands a question of a shell's script on to the laboratory's program where the words are for that. Returns false where they are not, and
/// true where that program is not installed: then nothing is offered.
pub fn complete() -> bool {
    if env::var_os(COMPLETION_VARIABLE).is_none() {
        return false;
    }
    let arguments: Vec<OsString> = env::args_os().skip(1).collect();
    // The words follow "--", and begin with the name of the program.
    let typed = arguments.iter().position(|argument| argument == "--").map_or(arguments.len(), |at| at + 2);
    let is_for_it = is_for_laboratory(arguments.get(typed..).unwrap_or_default());
    if is_for_it {
        let _ = Command::new(program()).args(arguments).exec();
    }
    is_for_it
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

/// The laboratory's program: the one beside this program, else that of the search path.
fn program() -> PathBuf {
    let beside = env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from(PROGRAM))
}

/// Becomes the laboratory's program; returns only where that fails.
pub fn run(arguments: Vec<OsString>) -> Failure {
    let first = arguments.iter().find(|argument| *argument != "help").unwrap_or(&arguments[0]);
    let first = first.to_string_lossy().into_owned();
    let program = program();
    let error = Command::new(&program).args(arguments).exec();
    if error.kind() == ErrorKind::NotFound {
        return Failure::Failed(format!(
            "\"{first}\" is a command of dcd-lab, which is not installed: install the package dcd-lab, or run \"make install\" in \
             the sources of dcd"
        ));
    }
    Failure::io(program.display(), error)
}
