//! The documentation of all experiments, generated from their results.

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::experiments::find;
use crate::stated::{ONE_SEED, RULES};
use crate::{Cells, Count, Outcome, Table, Verdict};

const CELLS: &str = "\
Beside the claims stand the cells of all tables that have a figure of the paper next to ours, and the share of them within 10, 25 and
50 % of it (`dcd-lab study cells`). Some are baselines to which the traces are fitted, so these shares flatter a little.";

/// docs/experiments.md.
pub fn document(outcomes: &[Outcome]) -> String {
    let mut text = String::from(
        "# Experiments\n\n\
         Written by `dcd study run all --doc docs/experiments.md`; do not edit. Everything is in virtual time, and the\n\
         same for the same seed. `dcd study list` shows the parameters of each experiment, and `--set key=value` asks your own\n\
         question.\n\n",
    );
    let builds: BTreeSet<&str> = outcomes.iter().map(|outcome| outcome.build.as_str()).collect();
    let builds = builds.into_iter().collect::<Vec<_>>().join(", ");
    let _ = writeln!(text, "Measured by: {builds}\n\n# Rules\n\n{RULES}\n");
    let is_long = |name: &&str| find(name).is_ok_and(|experiment| experiment.seeds == Some(1));
    let names = outcomes.iter().map(|outcome| outcome.experiment.as_str());
    let long: Vec<&str> = names.filter(is_long).collect();
    if !long.is_empty() {
        let _ = writeln!(text, "{ONE_SEED}{}.\n", long.join(", "));
    }
    text.push_str("# Results\n\n");
    let count: Count = outcomes.iter().map(Outcome::count).sum();
    let _ = writeln!(
        text,
        "**{count}.**\n\n{CELLS}\n\n| experiment | paper | sentences that hold | case by case | cells | within 10 % | 25 % | 50 % |\n|---|---|---|---|---|---|---|---|"
    );
    for outcome in outcomes {
        let name = &outcome.experiment;
        let held = held(outcome.count());
        let cells = Cells::of(&outcome.findings.tables).columns().join(" | ");
        let _ = writeln!(text, "| [{name}](#{name}) | {} | {held} | {cells} |", outcome.source);
    }
    let cells: Cells = outcomes.iter().map(|outcome| Cells::of(&outcome.findings.tables)).sum();
    let _ = writeln!(text, "| all | | {} | {} |", held(count), cells.columns().join(" | "));
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

/// Returns the sentences that hold, and the cases, as two columns.
fn held(count: Count) -> String {
    format!("{} of {} | {} of {}", count.holding, count.sentences, count.cases_holding, count.cases)
}

fn section(text: &mut String, outcome: &Outcome) {
    let _ = writeln!(
        text,
        "\n## {}\n\n{} ({}). {}",
        outcome.experiment, outcome.title, outcome.source, outcome.about
    );
    if let Some(set) = outcome.set() {
        let _ = writeln!(text, "\nMeasured with `{set}`.");
    }
    for table in &outcome.findings.tables {
        let _ = writeln!(text, "\n{}:\n", table.title);
        rows(text, table);
    }
    if outcome.findings.claims.is_empty() {
        return;
    }
    let mut claims = Table::new("", "claim | the paper's words | paper | ours | accepted | verdict");
    for claim in &outcome.findings.claims {
        let verdict = match (&claim.verdict, claim.uncounted(), &claim.reason) {
            (Verdict::NotRun, _, None) => "not run".to_owned(),
            (Verdict::NotRun, _, Some(reason)) => format!("not run: {reason}"),
            (Verdict::Holds, Some(why), _) => format!("not counted, inside: {why}"),
            (Verdict::Differs(how), Some(why), _) => {
                format!("**does not hold**, {how}; as a case not counted: {why}")
            }
            (Verdict::Holds, None, _) => "holds".to_owned(),
            (Verdict::Differs(how), None, Some(reason)) => format!("**does not hold**, {how}: {reason}"),
            (Verdict::Differs(how), None, None) => format!("**does not hold**, {how}"),
        };
        let cells = [&claim.claim, &claim.quote, &claim.paper, &claim.ours, &claim.accepted, &verdict];
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
