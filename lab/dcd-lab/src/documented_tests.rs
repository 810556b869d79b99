//! The documents name only commands, options, settings, scripts and alerts that exist.

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

/// Splits a line as a shell does, into commands of words.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
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
    commands
}

/// The commands of dcd and dcd-lab in a line, also those that another program runs, as in a container.
fn commands_of(line: &str, is_complete: bool) -> Vec<Named> {
    let ours = |words: Vec<String>| {
        let at = words.windows(2).enumerate().rposition(|(at, pair)| {
            let begins = if at == 0 {
                is_command(&pair[1])
            } else {
                pair[1].starts_with(|c: char| c.is_ascii_lowercase())
            };
            ["dcd", "dcd-lab"].contains(&pair[0].as_str()) && begins
        });
        at.map(|at| Named { words: words[at..].to_vec(), is_complete })
    };
    simple_commands(line).into_iter().filter_map(ours).collect()
}

/// True for what can be a command or an option: not "..." or "[OPTIONS]".
fn is_command(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase() || c == '-')
}

/// The lines of the blocks of code in a document, and its spans of code; true for lines, which are complete.
fn code_of(text: &str) -> Vec<(String, bool)> {
    let mut lines = Vec::new();
    for (i, part) in text.split("```").enumerate() {
        if i % 2 == 1 {
            // The first line names the language.
            let code = part.strip_prefix("console\n").unwrap_or_default().replace("\\\n", " ");
            lines.extend(code.lines().map(|line| (line.to_owned(), true)));
        } else {
            lines.extend(part.split('`').skip(1).step_by(2).map(|span| (span.replace('\n', " "), false)));
        }
    }
    lines
}

/// The commands that a document names, in blocks and spans of code.
fn in_markdown(text: &str) -> Vec<Named> {
    code_of(text).iter().flat_map(|(line, is_complete)| commands_of(line, *is_complete)).collect()
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

/// True for NAME, N, FILE or "...", in the place of a value.
fn is_placeholder(word: &str) -> bool {
    word.contains("...")
        || word.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| {
            part.starts_with(|c: char| c.is_ascii_uppercase())
                && !part.contains(|c: char| c.is_ascii_lowercase())
        })
}

/// The command line with values of any text, for commands with placeholders.
fn lenient_parser() -> clap::Command {
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
    let strict = Cli::command_line().try_get_matches_from(words.clone());
    let parsed = match strict {
        // This machine has no stack of that name.
        Err(error) if error.to_string().contains("there is no /etc/dcd/") => {
            lenient_parser().try_get_matches_from(words)
        }
        Err(_) if named.words.iter().any(|word| is_placeholder(word)) => {
            lenient_parser().try_get_matches_from(words)
        }
        strict => strict,
    };
    let Err(error) = parsed else { return unknown_setting(named) };
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

/// Why "dcd set" would refuse the name of a setting.
fn unknown_setting(named: &Named) -> Option<String> {
    let settings = named.words.iter().skip(2).filter(|_| named.words[1] == "set");
    let mut names = settings.filter_map(|word| word.split_once('=')?.0.rsplit('.').next());
    let unknown =
        names.find(|name| !is_placeholder(name) && !dcd_stack::field_names(|_| true).contains(name))?;
    Some(format!("{}: there is no setting {unknown}", named.words.join(" ")))
}

/// Why a command that develops dcd does not exist: a target of make, a script, a test or an example of cargo.
fn development_fault(words: &[String]) -> Option<String> {
    let is_variable = |word: &&String| word.split_once('=').is_some_and(|(name, _)| is_placeholder(name));
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap_or_default();
    let program = words.iter().find(|word| !is_variable(word))?.as_str();
    let rest = || words.iter().skip_while(|word| *word != program).skip(1);
    let option = |name: &str| rest().skip_while(|word| *word != name).nth(1);
    let fault = match program {
        "make" => {
            let makefile = read("Makefile");
            let mut all = Vec::new();
            files(&root().join("scripts"), &["sh", "py"], &mut all);
            files(&root().join("demo"), &["sh"], &mut all);
            let scripts: String = all.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
            let is_target = |word: &str| {
                let heads = makefile.lines().filter_map(|line| line.split_once(':')).map(|(head, _)| head);
                heads
                    .filter(|head| !head.starts_with(['\t', '.']))
                    .any(|head| head.split(' ').any(|name| name == word))
            };
            words.iter().filter(|word| *word != "make" && !word.starts_with('-')).find(|word| {
                match word.split_once('=') {
                    Some((name, _)) => !(makefile.contains(name) || scripts.contains(name)),
                    None => !is_target(word),
                }
            })
        }
        "cargo" => {
            let exists = |name: &str, folder: &str| {
                let crates = ["crates", "lab"].map(|of| fs::read_dir(root().join(of)).unwrap());
                crates.into_iter().flatten().any(|of| {
                    let path = of.unwrap().path().join(folder).join(name);
                    path.exists() || path.with_extension("rs").exists()
                })
            };
            let package = |name: &&String| {
                let short = name.strip_prefix("dcd-").unwrap_or(name);
                !["crates", "lab"]
                    .iter()
                    .any(|of| [short, name.as_str()].iter().any(|name| root().join(of).join(name).exists()))
            };
            option("-p")
                .filter(package)
                .or(option("--example").filter(|name| !exists(name, "examples")))
                .or(option("--test").filter(|name| *name != "*" && !exists(name, "tests")))
        }
        path if ["scripts/", "examples/", "demo/"]
            .iter()
            .any(|of| path.trim_start_matches("./").starts_with(of)) =>
        {
            words.iter().find(|word| *word == path && !root().join(word).exists())
        }
        _ => None,
    };
    fault.map(|word| format!("{}: there is no {word}", words.join(" ")))
}

/// README.md and all other documents.
fn documents() -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md"]
            .map(|name| root().join(name))
            .into();
    files(&root().join("docs"), &["md"], &mut all);
    files(&root().join("examples"), &["md"], &mut all);
    all
}

/// A part of a stack file with the devices and the layer that it lacks.
fn completed(part: &str) -> String {
    if part.contains("export = ") {
        return part.to_owned();
    }
    let mut text = part.to_owned();
    if !text.contains("[layer.") {
        text += "\n[layer.cache]\nkind = \"log-cache\"\n";
        let names: Vec<&str> =
            part.split("[device.").skip(1).filter_map(|rest| Some(rest.split_once(']')?.0)).collect();
        let (log, data) = (names.first().unwrap_or(&"log"), names.get(1).unwrap_or(&"data"));
        text += &format!("log = \"{log}\"\ndata = \"{data}\"\n");
    }
    let below = |line: &&str| {
        ["log = ", "data = ", "of = ", "journal = ", "spares = "].iter().any(|key| line.starts_with(key))
    };
    let lines: Vec<String> = text.lines().filter(below).map(str::to_owned).collect();
    for name in lines.iter().flat_map(|line| line.split('"').skip(1).step_by(2)) {
        if !["device", "layer"].iter().any(|table| text.contains(&format!("[{table}.{name}]"))) {
            text += &format!("[device.{name}]\npath = \"{name}.img\"\n");
        }
    }
    let top = text.rsplit("[layer.").next().and_then(|rest| rest.split_once(']')).unwrap().0;
    format!("export = \"{top}\"\n{text}")
}

#[test]
fn stack_files_in_documents_are_read() {
    let mut count = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for block in text.split("```").skip(1).step_by(2) {
            let (language, code) = block.split_once('\n').unwrap();
            assert!(!language.is_empty(), "{}: the language of a block is missing: {code}", path.display());
            if language == "toml" {
                let part: String = code.lines().map(|line| format!("{}\n", line.trim_start())).collect();
                // A load has sizes, and an experiment has stacks: a stack file has neither.
                let read = match part.split(' ').next() {
                    Some("size") => crate::generated::LoadFile::parse(&part).map(|_| ()),
                    Some("stacks") => toml::from_str::<crate::simulate::Experiment>(&part)
                        .map(|_| ())
                        .map_err(|e| e.to_string()),
                    _ => dcd_stack::StackFile::parse(&completed(&part), Path::new(""))
                        .map(|_| ())
                        .map_err(|e| e.to_string()),
                };
                assert!(read.is_ok(), "{}: {}\n{code}", path.display(), read.err().unwrap());
                count += 1;
            }
        }
    }
    assert!(count > 8, "only {count} stack files are found");
    let wrong = |part: &str| dcd_stack::StackFile::parse(&completed(part), Path::new("")).is_err();
    assert!(
        !wrong("[serve]\nublk = true\n")
            && wrong("[serve]\nublck = true\n")
            && wrong("[layer.c]\nkind = \"cache\"\n")
    );
}

#[test]
fn settings_and_commands_of_developers_in_documents_exist() {
    let reference = dcd_stack::reference();
    let (mut faults, mut count) = (Vec::new(), 0);
    let mut judge = |path: &Path, line: &str| {
        let commands = simple_commands(line);
        let fault = commands.iter().find_map(|words| development_fault(words));
        let setting = line.split_once(" = ").map(|(name, _)| name).filter(|name| {
            name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-')
                && !reference.contains(&format!("\n{name} = "))
        });
        count += 1;
        fault
            .or(setting.map(|name| format!("there is no field {name}")))
            .map(|fault| format!("{}: {fault}", path.display()))
    };
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        // Drive files and experiments have fields of their own.
        let is_guide = !["drives.md", "drive-file.md", "experiments.md", "format.md"]
            .iter()
            .any(|name| path.ends_with(name));
        faults.extend(code_of(&text).iter().filter(|_| is_guide).filter_map(|(line, _)| judge(&path, line)));
    }
    for (wrong, is_wrong) in [
        ("make nothing", true),
        ("HOURS=8 make -j soak && make sock", true),
        ("make soak HOURS=8", false),
        ("make soak OURS_=8", true),
        ("scripts/nothing.sh", true),
        ("cargo test -p dcd-sam", true),
        ("cargo run -p dcd-sim --example none", true),
        ("cargo test -p dcd --test program", false),
        ("premise = \"flush\"", true),
    ] {
        assert_eq!(judge(Path::new(""), wrong).is_some(), is_wrong, "{wrong}");
    }
    assert!(count > 1000 && faults.is_empty(), "{} of {count}:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn wrong_commands_are_noticed() {
    let wrong = "`dcd set srv premise=flush` `dcd serve --degraded=30x a` `docker exec -t dcd dcd flash a`\n\
                 `dcd stop STACK OTHER` `dcd nothing` `dcd serve --forced`\n```console\n# dcd stop\n$ dcd flush a b && dcd detach x\n```\n";
    let found = in_markdown(wrong);
    let faults: Vec<bool> = found.iter().map(|named| fault(named).is_some()).collect();
    assert_eq!(faults, [true, true, true, true, true, true, true, true, false], "{found:?}");
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
    let mut all = documents();
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
            rules.contains(&format!("runbook: \"man dcd-runbook, section {alert}\"")),
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
    for section in runbook.split("\n## ").skip(1) {
        let heading = section.lines().next();
        let parts: Vec<&str> = section.split("\n- **").skip(1).collect();
        let words: Vec<&str> = parts.iter().filter_map(|part| Some(part.split_once("**")?.0)).collect();
        assert_eq!(words, ["Clients", "Never", "Run", "Call"], "{heading:?}");
        let commands =
            parts[2].split('`').skip(1).step_by(2).filter(|code| code.contains(char::is_whitespace));
        assert!(commands.count() >= 3, "{heading:?}: Run needs three commands");
    }
}
