//! Completion in shells: the script of a shell asks the program, which knows its commands and what this machine has.

use std::ffi::OsStr;

use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use clap_complete::env::{CompleteEnv, Shells};

use crate::cli::Completions;
use crate::failure::Failure;

/// The variable by which a script asks for completions.
pub const COMPLETION_VARIABLE: &str = "DCD_COMPLETE";

/// Words that may stand for an argument whose value has this name in the help. Paths may stand there, too.
pub type Offered = (&'static str, fn() -> Vec<String>);

pub fn run(args: &Completions, command: &clap::Command) -> Result<(), Failure> {
    let (shell, name) = (args.shell.to_string(), command.get_name());
    let mut script = Vec::new();
    Shells::builtins()
        .completer(&shell)
        .ok_or_else(|| Failure::Failed(format!("{shell}: there is no completion for this shell")))?
        .write_registration(COMPLETION_VARIABLE, name, name, name, &mut script)
        .map_err(|e| Failure::io("the completion script", e))?;
    print!("{}", String::from_utf8_lossy(&script));
    Ok(())
}

/// Answers the script of a shell, and ends the program; returns if no script asks.
pub fn complete(command: fn() -> clap::Command, offered: &[Offered]) {
    CompleteEnv::with_factory(|| with_words(command(), offered)).var(COMPLETION_VARIABLE).complete();
}

fn with_words(command: clap::Command, offered: &[Offered]) -> clap::Command {
    let command = command.mut_args(|arg| {
        let value = arg.get_value_names().and_then(|names| Some(names.first()?.to_string()));
        match offered.iter().find(|(name, _)| value.as_deref() == Some(name)) {
            Some((_, words)) => {
                let words = *words;
                arg.add(ArgValueCompleter::new(move |current: &OsStr| candidates(words(), current)))
            }
            None => arg,
        }
    });
    command.mut_subcommands(|part| with_words(part, offered))
}

fn candidates(words: Vec<String>, current: &OsStr) -> Vec<CompletionCandidate> {
    let start = current.to_string_lossy();
    let words = words.into_iter().filter(|word| word.starts_with(&*start)).map(CompletionCandidate::new);
    words.chain(PathCompleter::any().complete(current)).collect()
}
