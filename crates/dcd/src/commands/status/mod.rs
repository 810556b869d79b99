//! `dcd status`: the state of served stacks, on a screen or as JSON; without a name, a line for each stack that is served.

mod every;
pub mod stopped;
pub mod text;

use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use dcd_stack::{StackFile, wrapped};
use serde::Serialize;
use serde_json::json;

use crate::cli::{STATUS_FIELDS, Status};
use crate::control;
use crate::failure::{Failure, Health};
use crate::output::print_json;
use crate::session::serving::status::ServerStatus;
use crate::session::serving::verdict::Verdict;
use stopped::Stopped;

/// Minimum width of the actions in a table.
const ACTION_MIN: usize = 30;

/// Output as JSON.
#[derive(Serialize)]
struct StatusReport<'a> {
    state: &'static str,
    action: &'a [String],
    #[serde(flatten)]
    status: &'a ServerStatus,
}

impl<'a> StatusReport<'a> {
    fn new(status: &'a ServerStatus, verdict: &'a Verdict) -> StatusReport<'a> {
        StatusReport { state: verdict.state, action: &verdict.actions, status }
    }
}

pub fn run(args: &Status) -> Result<(), Failure> {
    if args.fields {
        print!("{STATUS_FIELDS}");
        return Ok(());
    }
    if let Some(interval) = args.every {
        return every::run(&args.files, interval);
    }
    match args.files.as_slice() {
        [one] => one_stack(one, args),
        files => several(control::ask_all(files, |client| ask(client, args.reset)), args),
    }
}

fn one_stack(file: &Path, args: &Status) -> Result<(), Failure> {
    let Some(mut client) = control::connect_if_served(file)? else {
        return Err(Failure::Failed(Stopped::look(file).told()));
    };
    let (status, verdict) = ask(&mut client, args.reset)?;
    if args.json {
        print_json(&StatusReport::new(&status, &verdict))?;
    } else {
        print!("{}", text::screen(&status, &verdict, lines()));
    }
    verdict.health.verdict()
}

/// Returns the lines for a screen: those of the terminal, and any number elsewhere.
fn lines() -> usize {
    if !std::io::stdout().is_terminal() {
        return usize::MAX;
    }
    let rows = ratatui::crossterm::terminal::size().map_or(0, |(_, rows)| usize::from(rows));
    text::LINES.max(rows.saturating_sub(2))
}

fn ask(client: &mut control::ControlClient, reset: bool) -> Result<(ServerStatus, Verdict), Failure> {
    let status = ServerStatus::ask(client)?;
    if reset {
        client.call("reset-statistics", json!({}), |_| ControlFlow::Continue(()))?;
    }
    let verdict = Verdict::of(&status);
    Ok((status, verdict))
}

/// Prints a line for each stack. A server that does not answer is reported, and the others are shown all the same.
fn several(answers: Vec<Result<(ServerStatus, Verdict), Failure>>, args: &Status) -> Result<(), Failure> {
    let (found, failed) = control::told_apart(answers);
    if args.json {
        let reports: Vec<StatusReport> =
            found.iter().map(|(status, verdict)| StatusReport::new(status, verdict)).collect();
        print_json(&reports)?;
    } else {
        let stopped = stopped(&found, &args.files);
        // A user who may not ask does not learn that none is served.
        if failed.is_ok() || !found.is_empty() || !stopped.is_empty() {
            let width = std::io::stdout().is_terminal().then_some(text::WIDTH);
            print!("{}", table(&found, &stopped, width));
        }
    }
    let mut health = Health::default();
    for (status, verdict) in found {
        health.add(&status.name(), verdict.health);
    }
    failed.and(health.verdict())
}

/// Lists the stopped stacks of /etc/dcd; empty if stacks were named.
fn stopped(found: &[(ServerStatus, Verdict)], named: &[PathBuf]) -> Vec<[String; 4]> {
    let files = if named.is_empty() { control::stack_files() } else { Vec::new() };
    let is_served = |file: &Path| found.iter().any(|(status, _)| status.stack == file);
    let has_no_socket = |file: &Path| StackFile::load(file).is_ok_and(|file| file.serve.control.is_none());
    // A stack whose server does not answer is an error above, and not stopped.
    let is_stopped = |file: &&PathBuf| {
        !is_served(file)
            && (has_no_socket(file)
                || matches!(control::connect_if_served(file), Ok(None) | Err(Failure::Refused(_))))
    };
    files.iter().filter(is_stopped).map(|file| Stopped::look(file).row()).collect()
}

/// Formats a line for each stack. `width`: of a terminal, in which actions are broken into lines.
fn table(found: &[(ServerStatus, Verdict)], stopped: &[[String; 4]], width: Option<usize>) -> String {
    if found.is_empty() && stopped.is_empty() {
        return "no stack is served (looked for in /etc/dcd and /run/dcd; name others)\n".to_owned();
    }
    let mut rows: Vec<[String; 4]> = found
        .iter()
        .map(|(status, verdict)| {
            let action = match verdict.actions.as_slice() {
                [] => "none".to_owned(),
                [one] => one.clone(),
                [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
            };
            [status.name(), verdict.state.to_owned(), text::dirty_of(status), action]
        })
        .collect();
    rows.extend_from_slice(stopped);
    let head = ["STACK", "STATE", "DIRTY", "ACTION"];
    let Some(width) = width else { return columns(head, &rows) };
    let before = |row: &[String; 4]| row[..3].iter().map(|cell| cell.chars().count()).collect::<Vec<_>>();
    let widths = rows.iter().map(before).fold(vec![5, 5, 5], |widest, row| {
        widest.into_iter().zip(row).map(|(widest, cell)| widest.max(cell)).collect()
    });
    let room = width.saturating_sub(widths.iter().sum::<usize>() + 6).max(ACTION_MIN);
    let broken = rows.into_iter().flat_map(|[stack, state, dirty, action]| {
        let mut lines = wrapped(&action, room).into_iter();
        let first = [stack, state, dirty, lines.next().unwrap_or_default()];
        std::iter::once(first).chain(lines.map(|rest| [String::new(), String::new(), String::new(), rest]))
    });
    columns(head, &broken.collect::<Vec<_>>())
}

/// Formats a table of stacks. The third column is a number.
pub fn columns<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let head = head.map(str::to_owned);
    let chars = |column: usize| rows.iter().chain([&head]).map(move |row| row[column].chars().count());
    let widths: Vec<usize> = (0..N).map(|column| chars(column).max().unwrap_or(0)).collect();
    let cell = |(column, text): (usize, &String)| match (column, widths[column]) {
        (2, width) => format!("{text:>width$}"),
        (_, width) => format!("{text:<width$}"),
    };
    let line = |row: &[String; N]| {
        let cells: Vec<String> = row.iter().enumerate().map(cell).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    [&head].into_iter().chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use dcd_engine::layers::trace::{SinkStatus, TraceStatus};
    use dcd_engine::raid::{ArrayStatus, PassName, PassStatus};
    use dcd_stack::LayerStatus;

    use super::*;
    use crate::session::serving::status::{DeviceStatus, SilentDevice, WritebackStatus};
    use crate::session::serving::trend::Trend;
    use dcd_engine::LogCacheStatus;
    use dcd_engine::mirror::{LegStatus, MirrorStatus};

    #[test]
    fn several_stacks_are_a_line_each() {
        assert!(table(&[], &[], None).starts_with("no stack is served"));
        let status = |name: &str, dirty_bytes| ServerStatus {
            stack: format!("/etc/dcd/{name}.toml").into(),
            dirty_bytes,
            ..ServerStatus::default()
        };
        let fresh = LogCacheStatus {
            dirty_bytes: 300 << 20,
            dirty_data_bytes: 1 << 20,
            dirty_discard_bytes: 299 << 20,
            ..LogCacheStatus::default()
        };
        let layers = [("cache".to_owned(), LayerStatus::LogCache(Box::new(fresh)))].into();
        let discards = ServerStatus { layers, ..status("b", 300 << 20) };
        let verdict = |state, actions: &[&str]| Verdict {
            state,
            actions: actions.iter().map(|&action| action.to_owned()).collect(),
            ..Verdict::default()
        };
        let found = [
            (status("a", 0), verdict("clean", &[])),
            (discards, verdict("dirty", &[])),
            (status("longer", 152 << 10), verdict("degraded", &["do this", "and that", "and more"])),
        ];
        let old = [["old", "stopped", "8 KiB", "systemctl start dcd@old"].map(str::to_owned)];
        assert_eq!(
            table(&found, &old, None),
            "STACK   STATE                            DIRTY  ACTION\n\
             a       clean                              0 B  none\n\
             b       dirty     1 MiB and 299 MiB to discard  none\n\
             longer  degraded                       152 KiB  do this (and 2 more)\n\
             old     stopped                          8 KiB  systemctl start dcd@old\n"
        );
        assert_eq!(table(&found, &old, Some(80)), table(&found, &old, None), "all fits a terminal");
        let long = [(status("a", 0), verdict("clean", &["a word ".repeat(30).trim_end()]))];
        let broken = table(&long, &[], Some(80));
        assert!(broken.lines().count() > 3 && broken.lines().all(|line| line.len() <= 80), "{broken}");
        assert!(broken.lines().nth(2).unwrap().starts_with(&" ".repeat(21)), "{broken}");
    }

    /// Collects the names of all fields, except those of counters.
    fn fields(value: &serde_json::Value, into: &mut std::collections::BTreeSet<String>) {
        match value {
            serde_json::Value::Object(map) => {
                for (name, value) in map {
                    into.insert(name.clone());
                    if !["statistics", "counts", "counts_per_disk", "newest", "layers", "trends"]
                        .contains(&name.as_str())
                    {
                        fields(value, into);
                    }
                }
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| fields(value, into)),
            _ => {}
        }
    }

    #[test]
    fn every_field_is_described_and_no_other() {
        let pass = PassStatus {
            kind: PassName::Scrub,
            role: None,
            member_bytes: 0,
            paused: false,
            percent: 0.0,
            member_bytes_left: 0,
            member_bytes_per_second: None,
            findings: dcd_engine::raid::Findings::default(),
        };
        let last_return = dcd_engine::raid::Return { role: 0, filled_bytes: 0, member_bytes: 0 };
        let strides = dcd_engine::raid::StridesStatus { read_max: 0, write_max: 0 };
        let array = ArrayStatus {
            pass: Some(pass),
            last_return: Some(last_return),
            strides: Some(strides),
            ..ArrayStatus::default()
        };
        let file = SinkStatus { path: String::new(), recorded: 0, dropped: 0, error: None };
        let trace =
            TraceStatus { operations: 0, failed: 0, in_flight: 0, file: Some(file), newest: Vec::new() };
        let read_ahead = dcd_engine::layers::read_ahead::ReadAheadStatus::default();
        let fault = dcd_engine::layers::fault::FaultStatus { seen: 0, failed: 0, ignore_flush: false };
        let device = SilentDevice { device: None, path: String::new(), operations: 0, seconds: 0.0 };
        let server = ServerStatus {
            devices_not_answering: vec![device],
            devices: vec![DeviceStatus::default()],
            ublk: Some(dcd_serve::ublk::UblkStatus::default()),
            ..ServerStatus::default()
        };
        let mut known = std::collections::BTreeSet::new();
        let report = serde_json::to_value(StatusReport::new(&server, &Verdict::default())).unwrap();
        fields(&report, &mut known);
        fields(&serde_json::to_value(Trend::default()).unwrap(), &mut known);
        fields(&serde_json::to_value(WritebackStatus::default()).unwrap(), &mut known);
        for layer in [
            LayerStatus::LogCache(Box::default()),
            LayerStatus::Raid(Box::new(array)),
            LayerStatus::WriteCache(Box::default()),
            LayerStatus::Mirror(Box::new(MirrorStatus {
                legs: vec![LegStatus::default()],
                ..MirrorStatus::default()
            })),
            LayerStatus::ReadAhead(Box::new(read_ahead)),
            LayerStatus::Fault(Box::new(fault)),
            LayerStatus::Trace(Box::new(trace)),
        ] {
            fields(&layer.to_json(), &mut known);
        }
        let described: std::collections::BTreeSet<String> = STATUS_FIELDS
            .lines()
            .filter_map(|line| line.strip_prefix("  "))
            .flat_map(|line| line.split("  ").next().unwrap_or("").split([',', ' ']))
            .filter(|word| known.contains(*word) || word.contains('_'))
            .map(str::to_owned)
            .collect();
        assert_eq!(known.difference(&described).collect::<Vec<_>>(), Vec::<&String>::new(), "not described");
        // Counters are described where their names do not say enough.
        fields(&LayerStatus::LogCache(Box::default()).to_json()["statistics"], &mut known);
        assert_eq!(described.difference(&known).collect::<Vec<_>>(), Vec::<&String>::new(), "do not exist");
    }
}
