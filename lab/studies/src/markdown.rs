//! The documentation of all experiments, generated from their results.

use std::fmt::Write;

use crate::{Count, Outcome, Table, Verdict};

/// docs/experiments.md.
pub fn document(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "# Experiments\n\n\
         Written by `dcd study run all --doc docs/experiments.md`; do not edit. Everything is in virtual time, and the\n\
         same for the same seed. A claim holds when our figure lies in the range printed beside it; one by which a parameter\n\
         was chosen is not counted, as it shows nothing. `dcd study list` shows the parameters of each experiment, and\n\
         `--set key=value` asks your own question.\n\n",
    );
    let count: Count = outcomes.iter().map(Outcome::count).sum();
    let _ = writeln!(text, "**{count}.**\n\n| experiment | paper | claims that hold |\n|---|---|---|");
    for outcome in outcomes {
        let name = &outcome.experiment;
        let Count { holding, claims, .. } = outcome.count();
        let _ = writeln!(text, "| [{name}](#{name}) | {} | {holding} of {claims} |", outcome.source);
    }
    let mut group = None;
    for outcome in outcomes {
        if group != Some(outcome.group) {
            group = Some(outcome.group);
            let of_group = outcomes.iter().filter(|other| other.group == outcome.group);
            let count: Count = of_group.map(Outcome::count).sum();
            let _ = writeln!(text, "\n# {:?}. {}\n\n{count}.", outcome.group, outcome.group.title());
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
    let mut claims = Table::new("", "claim | paper | ours | accepted | verdict");
    for claim in &outcome.findings.claims {
        let verdict = match (&claim.verdict, &claim.chose, &claim.reason) {
            (_, Some(parameter), _) => format!("not counted: it chose {parameter}"),
            (Verdict::Holds, None, _) => "holds".to_owned(),
            (Verdict::Differs(how), None, Some(reason)) => format!("**differs**, {how}: {reason}"),
            (Verdict::Differs(how), None, None) => format!("**differs**, {how}; no reason found"),
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
