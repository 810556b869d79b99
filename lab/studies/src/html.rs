//! Writes one self-contained page with everything that was run: first which claims hold, at a glance, and a small plot of each
//! experiment; then plots, claims and tables.

use std::fmt::Write;

use crate::page::{escaped, figure, page};
use crate::{Claim, Count, Outcome, Table, Verdict};

const STYLE: &str = "<style>.matrix td{padding:.15em .6em .15em 0;vertical-align:top}.matrix td:first-child{white-space:nowrap}.matrix td:last-child{line-height:0}\
    .claim{display:inline-block;width:1.25em;height:1.25em;margin:0 2px 2px 0;line-height:1.25em;text-align:center;color:#fff;border-radius:3px}\
    .holds{background:#2a7a2a}.differs{background:#b4452c}.chosen{background:#999}\
    .plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(350px,1fr));gap:1em 0;margin:1.5em 0}\
    .plots a{color:inherit;text-decoration:none}.plots figure{margin:0}.plots figcaption{font-size:.8em}\
    .about{color:#555}h2{margin-top:2.5em;border-top:1px solid #ccc;padding-top:1em}\
    td,th{vertical-align:top}th.number{white-space:normal}caption{text-align:left;font-weight:bold;padding:.3em 0}@media(max-width:600px){.matrix td:nth-child(2){display:none}}</style>\n";

/// The page.
pub fn report(outcomes: &[Outcome]) -> String {
    let count: Count = outcomes.iter().map(Outcome::count).sum();
    let mut body = format!("{STYLE}<p class=\"first\">{count}.</p>\n");
    matrix(&mut body, outcomes);
    small_plots(&mut body, outcomes);
    for outcome in outcomes {
        section(&mut body, outcome);
    }
    page("dcd study", &body)
}

/// A row for each experiment, and in it a square for each claim.
fn matrix(body: &mut String, outcomes: &[Outcome]) {
    body.push_str("<div class=\"table\"><table class=\"matrix\">\n");
    for outcome in outcomes {
        let Count { holding, sentences, .. } = outcome.count();
        let _ = write!(
            body,
            "<tr><td><a href=\"#{0}\">{0}</a><td>{1}<td class=\"number\">{holding} of {sentences}<td>",
            outcome.experiment,
            escaped(&outcome.title)
        );
        outcome.findings.claims.iter().for_each(|claim| body.push_str(&square(claim)));
        body.push('\n');
    }
    let legend =
        [("holds", "+", "holds"), ("differs", "&#8722;", "differs"), ("chosen", "&#183;", "is not counted")];
    body.push_str("</table></div>\n<p class=\"about\">The figures count the papers' sentences, and each square is a case of one: ");
    for (class, sign, meaning) in legend {
        let _ = write!(body, "<span class=\"claim {class}\">{sign}</span> {meaning} ");
    }
    body.push_str("</p>\n");
}

/// A claim as a sign in a colour, with its text where the pointer rests.
fn square(claim: &Claim) -> String {
    let (class, sign) = match (&claim.verdict, claim.uncounted()) {
        (Verdict::NotRun, _) | (Verdict::Holds, Some(_)) => ("chosen", "&#183;"),
        (Verdict::Holds, None) => ("holds", "+"),
        (Verdict::Differs(_), _) => ("differs", "&#8722;"),
    };
    let text = format!("{}: {}, in the paper {}", claim.claim, claim.ours, claim.paper);
    format!("<span class=\"claim {class}\" title=\"{}\">{sign}</span>", escaped(&text))
}

/// The first plot of each experiment that has one.
fn small_plots(body: &mut String, outcomes: &[Outcome]) {
    body.push_str("<div class=\"plots\">\n");
    for outcome in outcomes {
        if let Some(plot) = outcome.findings.plots.first() {
            let _ = writeln!(
                body,
                "<a href=\"#{}\"><figure>{}<figcaption>{}</figcaption></figure></a>",
                outcome.experiment,
                plot.svg_narrow(),
                escaped(&plot.title)
            );
        }
    }
    body.push_str("</div>\n");
}

fn section(body: &mut String, outcome: &Outcome) {
    let _ = writeln!(body, "<h2 id=\"{0}\">{0}: {1}</h2>", outcome.experiment, escaped(&outcome.title));
    outcome.findings.plots.iter().for_each(|plot| body.push_str(&figure(plot)));
    let _ = writeln!(
        body,
        "<p class=\"about\">{}; {}. {} Seed {}.</p>",
        escaped(outcome.group.title()),
        escaped(&outcome.source),
        escaped(&outcome.about),
        outcome.seed
    );
    if let Some(set) = outcome.set() {
        let _ = writeln!(body, "<p>With {}.</p>", escaped(&set));
    }
    claims(body, outcome);
    outcome.findings.tables.iter().for_each(|table| body.push_str(&table.html()));
}

fn claims(body: &mut String, outcome: &Outcome) {
    body.push_str("<div class=\"table\"><table><tr><th>claim<th>paper<th>ours<th>accepted<th>verdict</tr>\n");
    for claim in &outcome.findings.claims {
        let verdict = match (&claim.verdict, claim.uncounted()) {
            (Verdict::NotRun, _) => "not run".to_owned(),
            (Verdict::Holds, Some(why)) => format!("not counted: {}", escaped(&why)),
            (Verdict::Differs(how), Some(why)) => {
                format!("differs, {}; as a case not counted: {}", escaped(how), escaped(&why))
            }
            (Verdict::Holds, None) => "holds".to_owned(),
            (Verdict::Differs(how), None) => {
                let reason = claim.reason.as_deref().map(|reason| format!(": {}", escaped(reason)));
                format!("differs, {}{}", escaped(how), reason.unwrap_or_default())
            }
        };
        let _ = writeln!(
            body,
            "<tr><td>{}<td>{}<td class=\"number\">{}<td class=\"number\">{}<td>{} {verdict}</tr>",
            escaped(&claim.claim),
            unbroken(&claim.paper),
            escaped(&claim.ours),
            escaped(&claim.accepted),
            square(claim)
        );
    }
    body.push_str("</table></div>\n");
}

/// A short text stays on one line, as a number does; a sentence may wrap.
fn unbroken(text: &str) -> String {
    const SHORT: usize = 24;
    match text.chars().count() <= SHORT {
        true => format!("<span class=\"number\">{}</span>", escaped(text)),
        false => escaped(text),
    }
}

impl Table {
    /// For a page. Numbers stay on one line; on a narrow screen the table is scrolled.
    pub fn html(&self) -> String {
        let mut html = String::from("<div class=\"table\"><table>");
        if !self.title.is_empty() {
            let _ = write!(html, "<caption>{}</caption>", escaped(&self.title));
        }
        let row = |html: &mut String, tag: &str, cells: &[String]| {
            html.push_str("\n<tr>");
            for (column, cell) in cells.iter().enumerate() {
                let class = if self.has_words(column) { "" } else { " class=\"number\"" };
                let _ = write!(html, "<{tag}{class}>{}", escaped(cell));
            }
            html.push_str("</tr>");
        };
        row(&mut html, "th", &self.columns);
        self.rows.iter().for_each(|cells| row(&mut html, "td", cells));
        html + "\n</table></div>\n"
    }
}
