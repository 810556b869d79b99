//! One self-contained page with everything that was run: tables, plots, verdicts.

use std::fmt::Write;

use crate::{Count, Outcome, Table, Verdict};

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0;font-size:14px}caption{text-align:left;font-weight:bold;padding:.3em 0}\
    th,td{border-bottom:1px solid #ddd;padding:.25em .7em;text-align:right;vertical-align:top}\
    th:first-child,td:first-child{text-align:left}.claims td{text-align:left}\
    .holds{color:#2a7a2a}.differs{color:#b4452c;font-weight:bold}svg{max-width:100%;height:auto}\
    .about{color:#555}h2{margin-top:2.5em;border-top:1px solid #ccc;padding-top:1em}";

/// The page.
pub fn report(outcomes: &[Outcome]) -> String {
    let count: Count = outcomes.iter().map(Outcome::count).sum();
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>dcd study</title>\
         <style>{STYLE}</style></head><body>\n<h1>dcd study</h1>\n<p>{count}.</p>\n<ul>\n"
    );
    for outcome in outcomes {
        let Count { holding, claims: all, .. } = outcome.count();
        let _ = writeln!(
            page,
            "<li><a href=\"#{0}\">{0}</a>: {1} ({holding} of {all})</li>",
            outcome.experiment,
            escape(&outcome.title)
        );
    }
    page.push_str("</ul>\n");
    for outcome in outcomes {
        section(&mut page, outcome);
    }
    page.push_str("</body></html>\n");
    page
}

fn section(page: &mut String, outcome: &Outcome) {
    let _ = writeln!(
        page,
        "<h2 id=\"{0}\">{0}: {1}</h2>\n<p class=\"about\">{2}; {3}. {4} Seed {5}.</p>",
        outcome.experiment,
        escape(&outcome.title),
        escape(outcome.group.title()),
        escape(&outcome.source),
        escape(&outcome.about),
        outcome.seed
    );
    if !outcome.changed.is_empty() {
        let changed: Vec<String> = outcome.changed.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let _ = writeln!(page, "<p>With {}.</p>", escape(&changed.join(", ")));
    }
    claims(page, outcome);
    for plot in &outcome.findings.plots {
        page.push_str(&plot.svg());
        page.push('\n');
    }
    for table in &outcome.findings.tables {
        rows(page, table);
    }
}

fn claims(page: &mut String, outcome: &Outcome) {
    page.push_str("<table class=\"claims\"><tr><th>claim<th>paper<th>ours<th>accepted<th>verdict</tr>\n");
    for claim in &outcome.findings.claims {
        let verdict = match (&claim.verdict, &claim.chose) {
            (_, Some(parameter)) => format!("not counted: it chose {}", escape(parameter)),
            (Verdict::Holds, None) => "<span class=\"holds\">holds</span>".to_owned(),
            (Verdict::Differs(how), None) => {
                let reason = claim.reason.as_deref().unwrap_or("no reason found");
                format!("<span class=\"differs\">differs</span>, {}: {}", escape(how), escape(reason))
            }
        };
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{verdict}</tr>",
            escape(&claim.claim),
            escape(&claim.paper),
            escape(&claim.ours),
            escape(&claim.accepted)
        );
    }
    page.push_str("</table>\n");
}

fn rows(page: &mut String, table: &Table) {
    let _ = write!(page, "<table><caption>{}</caption>\n<tr>", escape(&table.title));
    for column in &table.columns {
        let _ = write!(page, "<th>{}", escape(column));
    }
    page.push_str("</tr>\n");
    for row in &table.rows {
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<td>{}", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
