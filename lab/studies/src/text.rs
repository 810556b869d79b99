//! Results for the terminal.

use std::fmt::Write;

use crate::experiments::REGISTRY;
use crate::{Experiment, Outcome, Table, Verdict};

/// Every experiment with its parameters.
pub fn listing() -> String {
    let mut text = String::new();
    let mut group = None;
    for experiment in REGISTRY.iter().copied() {
        if group != Some(experiment.group) {
            group = Some(experiment.group);
            let _ = writeln!(text, "{:?}: {}", experiment.group, experiment.group.title());
        }
        list_one(&mut text, experiment);
    }
    text
}

fn list_one(text: &mut String, experiment: &Experiment) {
    let _ = writeln!(text, "  {:<16} {} ({})", experiment.name, experiment.title, experiment.source);
    for param in experiment.params {
        let assignment = format!("{}={}", param.key, param.default);
        let _ = writeln!(text, "      {assignment:<34} {}", param.about);
    }
}

/// Returns the results of an experiment as text.
pub fn print(outcome: &Outcome) -> String {
    let mut text = format!("{}: {} ({})\n", outcome.experiment, outcome.title, outcome.source);
    if let Some(set) = outcome.set() {
        let _ = writeln!(text, "with {set}");
    }
    for table in &outcome.findings.tables {
        let _ = write!(text, "\n{}", aligned(table));
    }
    text.push('\n');
    for claim in &outcome.findings.claims {
        let verdict = match (&claim.verdict, claim.uncounted()) {
            (Verdict::NotRun, _) => "not run".to_owned(),
            (_, Some(why)) => format!("not counted ({why})"),
            (Verdict::Holds, None) => "holds  ".to_owned(),
            (Verdict::Differs(how), None) => format!("DIFFERS ({how})"),
        };
        let _ = writeln!(
            text,
            "{verdict} {}: paper {}; ours {} (accepted: {})",
            claim.claim, claim.paper, claim.ours, claim.accepted
        );
        if let Some(reason) = &claim.reason {
            let _ = writeln!(text, "        because {reason}");
        }
    }
    let _ = writeln!(text, "{}", outcome.count());
    text
}

fn aligned(table: &Table) -> String {
    let width = |column: usize| {
        let cells = table.rows.iter().map(|row| row[column].chars().count());
        cells.chain([table.columns[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.columns.len()).map(width).collect();
    let mut text = format!("{}\n", table.title);
    for row in std::iter::once(&table.columns).chain(&table.rows) {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ =
                if column == 0 { write!(line, "  {cell:<width$}") } else { write!(line, "  {cell:>width$}") };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
