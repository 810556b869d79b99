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
        let _ = write!(text, "\n{}", table.text());
    }
    text.push('\n');
    for claim in &outcome.findings.claims {
        let verdict = match (&claim.verdict, claim.uncounted()) {
            (Verdict::NotRun, _) => "not run".to_owned(),
            (Verdict::Holds, Some(why)) => format!("not counted ({why})"),
            (Verdict::Differs(how), Some(why)) => format!("DIFFERS ({how}; as a case not counted: {why})"),
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

impl Table {
    /// For a terminal: numbers end below each other, words begin so.
    pub fn text(&self) -> String {
        let rows = || std::iter::once(&self.columns).chain(&self.rows);
        let width = |column: usize| rows().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let columns: Vec<(usize, bool)> =
            (0..self.columns.len()).map(|column| (width(column), self.has_words(column))).collect();
        let mut text = String::new();
        if !self.title.is_empty() {
            let _ = writeln!(text, "{}", self.title);
        }
        for row in rows() {
            let mut line = String::new();
            for (cell, &(width, has_words)) in row.iter().zip(&columns) {
                let _ = if has_words {
                    write!(line, "  {cell:<width$}")
                } else {
                    write!(line, "  {cell:>width$}")
                };
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text
    }

    /// True for the first column, and for those with words and no numbers.
    pub(crate) fn has_words(&self, column: usize) -> bool {
        let begins = |with: fn(char) -> bool| self.rows.iter().any(|row| row[column].starts_with(with));
        column == 0 || (begins(char::is_alphabetic) && !begins(char::is_numeric))
    }
}
