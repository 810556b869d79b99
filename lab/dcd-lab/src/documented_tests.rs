//! The documents name only commands, options and alerts that exist.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Arg;
use clap::builder::OsStringValueParser;
use clap::error::{ContextKind, ErrorKind};

use crate::cli::Cli;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// README.md and the other documents, and sources whose messages name commands.
fn files(folder: &Path, extensions: &[&str], found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, extensions, found);
        } else if extensions.iter().any(|wanted| path.extension().is_some_and(|is| is == *wanted)) {
            found.push(path);
        }
    }
}

/// A command in a text. One in a block of code is complete; one within a sentence may only name an option.
#[derive(Debug, PartialEq)]
struct Named {
    words: Vec<String>,
    is_complete: bool,
}

/// Splits a line as a shell does, and returns its commands of dcd and dcd-lab.
fn commands_of(line: &str, is_complete: bool) -> Vec<Named> {
    let (mut commands, mut words, mut word, mut quote) = (Vec::new(), Vec::new(), None::<String>, None);
    let end_word = |word: &mut Option<String>, words: &mut Vec<String>| words.extend(word.take());
    let mut chars = line.chars().chain("\n".chars()).peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '\\') if chars.peek() == Some(&'\n') => {
                chars.next();
            }
            (None, '#') if word.is_none() => {
                // A comment, or the prompt of root before the first word.
                end_word(&mut word, &mut words);
                if !words.is_empty() {
                    while chars.next_if(|c| *c != '\n').is_some() {}
                }
            }
            (None, '$') if word.is_none() && chars.peek() == Some(&' ') => {}
            (None, '\n' | ';' | '|' | '&' | '>' | '<' | '(' | ')') => {
                end_word(&mut word, &mut words);
                commands.push(std::mem::take(&mut words));
            }
            (None, c) if c.is_whitespace() => end_word(&mut word, &mut words),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    let is_ours = |words: &Vec<String>| {
        words.len() > 1 && ["dcd", "dcd-lab"].contains(&words[0].as_str()) && is_command(&words[1])
    };
    commands.into_iter().filter(is_ours).map(|words| Named { words, is_complete }).collect()
}

/// True for what can be a command or an option: not "..." or "[OPTIONS]".
fn is_command(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase() || c == '-')
}

/// The commands that a document names, in blocks and spans of code.
fn in_markdown(text: &str) -> Vec<Named> {
    let mut commands = Vec::new();
    for (i, part) in text.split("```").enumerate() {
        if i % 2 == 1 {
            // The first line names the language.
            let code = part.split_once('\n').map_or("", |(_, code)| code).replace("\\\n", " ");
            commands.extend(code.lines().flat_map(|line| commands_of(line, true)));
        } else {
            let spans = part.split('`').skip(1).step_by(2);
            commands.extend(spans.flat_map(|span| commands_of(&span.replace('\n', " "), false)));
        }
    }
    commands
}

/// The commands in quotes within the messages of a source.
fn in_messages(text: &str) -> Vec<Named> {
    let mut joined = String::new();
    for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
        match line.strip_suffix('\\') {
            Some(line) => joined.push_str(line),
            None => joined.extend([line, "\n"]),
        }
    }
    let quoted = joined.split("\\\"dcd ").skip(1).filter_map(|rest| rest.split_once("\\\""));
    let quoted = quoted.filter(|(command, _)| !command.contains(['{', '\n', '"']));
    quoted.flat_map(|(command, _)| commands_of(&format!("dcd {command}"), false)).collect()
}

/// The command line with values of any text: documents have placeholders.
fn parser() -> clap::Command {
    fn any(argument: Arg) -> Arg {
        match argument.get_action().takes_values() {
            true => argument.value_parser(OsStringValueParser::new()),
            false => argument,
        }
    }
    fn lenient(command: clap::Command) -> clap::Command {
        command.mut_args(any).mut_subcommands(lenient)
    }
    lenient(Cli::command_line())
}

/// Why a command does not exist.
fn fault(named: &Named) -> Option<String> {
    let words = named.words.iter().map(|word| if word == "COMMAND" { "serve" } else { word });
    let error = parser().try_get_matches_from(words).err()?;
    let lacks_value =
        || error.get(ContextKind::InvalidValue).is_none_or(|value| value.to_string().is_empty());
    let is_incomplete = match error.kind() {
        ErrorKind::MissingRequiredArgument
        | ErrorKind::MissingSubcommand
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        | ErrorKind::WrongNumberOfValues
        | ErrorKind::TooFewValues => true,
        ErrorKind::InvalidValue => lacks_value(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => return None,
        _ => false,
    };
    (named.is_complete || !is_incomplete).then(|| format!("{}: {error}", named.words.join(" ")))
}

#[test]
fn wrong_commands_are_noticed() {
    let wrong = "`dcd stop STACK OTHER` `dcd nothing` `dcd serve --forced`\n```\n# dcd stop\n$ dcd flush a b && dcd detach x\n```\n";
    let found = in_markdown(wrong);
    let faults: Vec<bool> = found.iter().map(|named| fault(named).is_some()).collect();
    assert_eq!(faults, [true, true, true, true, true, false], "{found:?}");
    let right = "`dcd serve --without-cache`, `dcd array`, `dcd format --replace`, `dcd serve --degraded=30s raid.toml`, `dcd help\nstop`\n\
                 ```console\ndcd array assemble /dev/sd[b-g] --out disks.toml  # finds it\n\
                 dcd serve --take-over disk.toml --fence \\\n    'fence -o off'\nmount $(dcd attach disk.toml) /srv\n```\n";
    let found = in_markdown(right);
    assert_eq!(found.len(), 8, "{found:?}");
    assert_eq!(found.iter().filter_map(fault).collect::<Vec<_>>(), Vec::<String>::new());
    let messages = in_messages("f(\"run \\\"dcd rescue \\\n   --lost\\\" or \\\"dcd check\\\"\");");
    assert_eq!(messages.iter().filter_map(fault).count(), 1, "{messages:?}");
}

#[test]
fn every_command_in_documents_and_messages_exists() {
    let mut all = Vec::new();
    for name in ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"] {
        all.push(root().join(name));
    }
    files(&root().join("docs"), &["md"], &mut all);
    for folder in ["crates", "lab"] {
        files(&root().join(folder), &["rs"], &mut all);
    }
    let (mut faults, mut count) = (Vec::new(), 0);
    for path in all.iter().filter(|path| !path.ends_with("documented_tests.rs")) {
        let text = fs::read_to_string(path).unwrap();
        let commands = match path.extension().is_some_and(|extension| extension == "md") {
            true => in_markdown(&text),
            false => in_messages(&text),
        };
        count += commands.len();
        faults.extend(commands.iter().filter_map(fault).map(|fault| format!("{}: {fault}", path.display())));
    }
    assert!(count > 250, "only {count} commands are found");
    assert!(faults.is_empty(), "{} of {count} commands do not exist:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_runbook_has_a_section_for_each_alert_and_exit_code() {
    let runbook = fs::read_to_string(root().join("docs/runbook.md")).unwrap();
    let headings: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let has =
        |name: &str| headings.iter().any(|heading| heading.split([',', ':']).any(|part| part.trim() == name));
    let rules = fs::read_to_string(root().join("packaging/prometheus/dcd.rules.yml")).unwrap();
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in &alerts {
        assert!(has(alert), "docs/runbook.md has no section {alert}");
        assert!(
            rules.contains(&format!("runbook: \"docs/runbook.md, section {alert}\"")),
            "{alert} names no section"
        );
    }
    let of_alerts =
        headings.iter().flat_map(|heading| heading.split(", ")).filter(|name| name.starts_with("Dcd"));
    of_alerts.for_each(|name| assert!(alerts.contains(&name), "there is no alert {name}"));
    let codes =
        dcd_cli::EXIT_CODES.lines().filter_map(|line| line.trim().split_once("  ")?.0.parse::<u8>().ok());
    for code in codes.filter(|code| *code > 0) {
        assert!(has(&format!("Exit code {code}")), "docs/runbook.md has no section for exit code {code}");
    }
}
