//! The documentation of all experiments, generated from their results.

use std::fmt::Write;

use crate::{Outcome, Table, Verdict};

/// docs/experiments.md.
pub fn document(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "# Experiments\n\n\
         Written by `dcd lab run all --doc docs/experiments.md`; do not edit. Everything is in virtual time, and the\n\
         same for the same seed. A claim holds when our figure lies in the range printed beside it. `dcd lab list` shows\n\
         the parameters of each experiment, and `--set key=value` asks your own question.\n\n",
    );
    let claims: usize = outcomes.iter().map(|outcome| outcome.findings.claims.len()).sum();
    let holding: usize = outcomes.iter().map(Outcome::holding).sum();
    let _ = writeln!(
        text,
        "**{holding} of {claims} claims hold.**\n\n| experiment | paper | claims that hold |\n|---|---|---|"
    );
    for outcome in outcomes {
        let name = &outcome.experiment;
        let (holding, claims) = (outcome.holding(), outcome.findings.claims.len());
        let _ = writeln!(text, "| [{name}](#{name}) | {} | {holding} of {claims} |", outcome.source);
    }
    let mut group = None;
    for outcome in outcomes {
        if group != Some(outcome.group) {
            group = Some(outcome.group);
            let _ = writeln!(text, "\n# {:?}. {}", outcome.group, outcome.group.title());
        }
        section(&mut text, outcome);
    }
    text
}

fn section(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(
        text,
        "\n## {}\n\n{} ({}). {}",
        outcome.experiment, outcome.title, outcome.source, outcome.about
    );
    for table in &outcome.findings.tables {
        let _ = writeln!(text, "\n{}:\n", table.title);
        rows(text, table);
    }
    if outcome.findings.claims.is_empty() {
        return;
    }
    let mut claims = Table::new("", &["claim", "paper", "ours", "accepted", "verdict"]);
    for claim in &outcome.findings.claims {
        let verdict = match (&claim.verdict, &claim.reason) {
            (Verdict::Holds, _) => "holds".to_owned(),
            (Verdict::Differs(how), Some(reason)) => format!("**differs**, {how}: {reason}"),
            (Verdict::Differs(how), None) => format!("**differs**, {how}; no reason found"),
        };
        let cells = [&claim.claim, &claim.paper, &claim.ours, &claim.accepted, &verdict];
        claims.row(cells.into_iter().cloned());
    }
    text.push('\n');
    rows(text, &claims);
}

fn rows(text: &mut String, table: &Table) {
    let _ = writeln!(text, "| {} |\n|{}", table.columns.join(" | "), "---|".repeat(table.columns.len()));
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
}
