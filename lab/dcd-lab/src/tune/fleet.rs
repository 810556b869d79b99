//! Many traces beside each other: which of them gain most from which cache, for how much.
//!
//! Each trace is known by the JSON of its own report, so results of several jobs and machines are joined as those of one are. What
//! makes traces comparable is how long requests wait, all together, in an hour: it counts how many there are.

use std::collections::BTreeMap;
use std::fmt::Write;

use dcd_stack::HumanBytes;
use dcd_studies::{Axis, Plot, Series};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::candidates::Medium;
use super::search::Objective;
use dcd_studies::page::{escaped, figure};

/// A candidate, of what its report has of it.
#[derive(Clone, Debug, Deserialize)]
struct Choice {
    medium: Medium,
    bytes: u64,
    price: f64,
    policy: String,
    value: f64,
    in_full: InFull,
}

#[derive(Clone, Debug, Deserialize)]
struct InFull {
    mean_ms: f64,
}

/// A report on one trace.
#[derive(Clone, Debug, Deserialize)]
struct Tuned {
    trace: String,
    drive: String,
    objective: Objective,
    requests: u64,
    seconds: f64,
    plain: Choice,
    recommended: Choice,
}

impl Choice {
    fn words(&self) -> String {
        match self.medium {
            Medium::None => self.medium.words().to_owned(),
            _ => format!("{}, {}", self.medium.words(), HumanBytes(self.bytes)),
        }
    }
}

impl Tuned {
    /// Seconds that all requests of an hour wait less.
    fn saved(&self) -> f64 {
        let saved_ms = self.plain.in_full.mean_ms - self.recommended.in_full.mean_ms;
        let hours = (self.seconds / 3600.0).max(f64::MIN_POSITIVE);
        saved_ms / 1e3 * self.requests as f64 / hours
    }
}

/// All caches of one kind and size.
#[derive(Default)]
struct Cache {
    words: String,
    traces: usize,
    bytes: u64,
    price: f64,
    saved: f64,
}

fn counted(traces: usize) -> String {
    if traces == 1 { "1 trace".to_owned() } else { format!("{traces} traces") }
}

/// A trace that could not be tuned, and why.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LeftOut {
    pub trace: String,
    pub why: String,
}

impl LeftOut {
    pub fn words(&self) -> String {
        format!("{}: {}", self.trace, self.why)
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Fleet {
    traces: Vec<Tuned>,
    /// The reports themselves.
    reports: Vec<Value>,
    pub left_out: Vec<LeftOut>,
}

/// The columns of the table, and how wide they are.
const COLUMNS: [(&str, usize); 7] = [
    ("requests", 10),
    ("without", 14),
    ("with", 14),
    ("times", 7),
    ("waits less s/h", 14),
    ("cost", 9),
    ("s/h for 1", 10),
];
const NAME_WIDTH: usize = 16;

impl Fleet {
    /// Adds the report on a trace, or one on many; `from` is the file that it is in. The error says what is wrong with it.
    pub fn add(&mut self, from: &str, report: Value) -> Result<(), String> {
        #[derive(Deserialize)]
        struct Many {
            reports: Vec<Value>,
            left_out: Vec<LeftOut>,
        }
        if report.get("reports").is_some() {
            let many: Many = serde_json::from_value(report).map_err(|e| e.to_string())?;
            self.left_out.extend(many.left_out);
            return many.reports.into_iter().try_for_each(|one| self.add_one(from, one));
        }
        self.add_one(from, report)
    }

    fn add_one(&mut self, from: &str, mut report: Value) -> Result<(), String> {
        let mut tuned: Tuned = serde_json::from_value(report.clone()).map_err(|e| e.to_string())?;
        if let Some(first) = self.traces.first()
            && first.objective != tuned.objective
        {
            return Err(format!(
                "{} was tuned by {}, and {} by {}: they cannot be compared",
                first.trace,
                first.objective.words(),
                tuned.trace,
                tuned.objective.words()
            ));
        }
        // Machines may have traces of the same name.
        if self.traces.iter().any(|other| other.trace == tuned.trace) {
            tuned.trace = format!("{from}: {}", tuned.trace);
            report["trace"] = tuned.trace.clone().into();
        }
        let place = self.traces.partition_point(|other| other.saved() >= tuned.saved());
        self.traces.insert(place, tuned);
        self.reports.insert(place, report);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.traces.is_empty()
    }

    fn priced(&self) -> bool {
        self.traces.iter().any(|tuned| tuned.recommended.price > 0.0)
    }

    fn columns(&self) -> &'static [(&'static str, usize)] {
        if self.priced() { &COLUMNS } else { &COLUMNS[..COLUMNS.len() - 2] }
    }

    fn numbers(tuned: &Tuned) -> [String; COLUMNS.len()] {
        let Tuned { objective, plain, recommended, .. } = tuned;
        let for_one = match recommended.price > 0.0 {
            true => format!("{:.1}", tuned.saved() / recommended.price),
            false => "-".to_owned(),
        };
        [
            tuned.requests.to_string(),
            objective.text(plain.value),
            objective.text(recommended.value),
            format!("{:.1}", plain.value / recommended.value),
            format!("{:.1}", tuned.saved()),
            format!("{:.4}", recommended.price),
            for_one,
        ]
    }

    fn heading(&self) -> String {
        let mut drives: Vec<&str> = self.traces.iter().map(|tuned| tuned.drive.as_str()).collect();
        drives.sort_unstable();
        drives.dedup();
        format!(
            "{} by {}, on the drive {}",
            counted(self.traces.len()),
            self.traces[0].objective.words(),
            drives.join(", ")
        )
    }

    fn legend(&self) -> String {
        let mut text = "The traces whose requests wait less with the recommended cache come first: in seconds of all requests together, in an \
                        hour of the trace."
            .to_owned();
        if self.priced() {
            text += " The cost is in the currency of the prices; s/h for 1 is what one unit of it saves.";
        }
        text
    }

    /// Counts how often each cache is recommended, and sums what it saves: the largest saving first.
    fn caches(&self) -> Vec<Cache> {
        let mut caches: BTreeMap<(Medium, u64), Cache> = BTreeMap::new();
        for tuned in &self.traces {
            let cache = caches.entry((tuned.recommended.medium, tuned.recommended.bytes)).or_default();
            cache.words = tuned.recommended.words();
            cache.traces += 1;
            cache.bytes += tuned.recommended.bytes;
            cache.price += tuned.recommended.price;
            cache.saved += tuned.saved();
        }
        let mut caches: Vec<Cache> = caches.into_values().collect();
        caches.sort_by(|a, b| b.saved.total_cmp(&a.saved));
        caches
    }

    fn cache_lines(&self) -> Vec<String> {
        let line = |cache: Cache| {
            let Cache { words, traces, bytes, price, saved } = cache;
            let all = if bytes > 0 { format!(", {} in all", HumanBytes(bytes)) } else { String::new() };
            let cost = if price > 0.0 { format!(", for {price:.4}") } else { String::new() };
            format!("{words}: {}{all}{cost}, saves {saved:.1} s/h", counted(traces))
        };
        self.caches().into_iter().map(line).collect()
    }

    pub fn text(&self) -> String {
        let width = self.traces.iter().map(|tuned| tuned.trace.chars().count()).fold(NAME_WIDTH, usize::max);
        let mut text = format!("{}.\n\n{:width$}", self.heading(), "trace");
        for (name, width) in self.columns() {
            let _ = write!(text, " {name:>width$}");
        }
        text += "  recommended\n";
        for tuned in &self.traces {
            let _ = write!(text, "{:width$}", tuned.trace);
            for (number, (_, width)) in Fleet::numbers(tuned).iter().zip(self.columns()) {
                let _ = write!(text, " {number:>width$}");
            }
            let _ = writeln!(text, "  {}, {}", tuned.recommended.words(), tuned.recommended.policy);
        }
        let _ = write!(text, "{}\n\n", self.legend());
        for line in self.cache_lines() {
            let _ = writeln!(text, "{line}");
        }
        for left_out in &self.left_out {
            let _ = writeln!(text, "Left out: {}", left_out.words());
        }
        text
    }

    /// All reports and what was left out, to be read again.
    pub fn json(&self) -> Value {
        json!({ "reports": self.reports, "left_out": self.left_out })
    }

    /// Plots the savings of the first few traces, and of more; over their cost if the prices are known.
    fn headline(&self) -> Plot {
        let by_cost = self.priced();
        let mut traces: Vec<&Tuned> = self.traces.iter().collect();
        let for_one = |tuned: &Tuned| tuned.saved() / tuned.recommended.price.max(f64::MIN_POSITIVE);
        if by_cost {
            traces.sort_by(|a, b| for_one(b).total_cmp(&for_one(a)));
        }
        let (mut cost, mut saved) = (0.0, 0.0);
        let mut points = vec![(0.0, 0.0)];
        for tuned in traces {
            cost += if by_cost { tuned.recommended.price } else { 1.0 };
            saved += tuned.saved();
            points.push((cost, saved));
        }
        let x = if by_cost {
            "cost, of the traces that save most for it"
        } else {
            "traces, those that gain most first"
        };
        let series = Series::new("with the recommended caches", points);
        Plot::lines("What all requests wait less (s/h)", Axis::linear(x), Axis::linear("s/h"), [series])
    }

    pub fn page(&self) -> String {
        let mut body = format!("<p class=\"first\">{}</p>\n<ul>\n", escaped(&self.heading()));
        for line in self.cache_lines() {
            let _ = writeln!(body, "<li>{}</li>", escaped(&line));
        }
        let _ =
            write!(body, "</ul>\n{}<div class=\"table\"><table>\n<tr><th>trace", figure(&self.headline()));
        for (name, _) in self.columns() {
            let _ = write!(body, "<th class=\"number\">{name}");
        }
        body += "<th>recommended</tr>\n";
        for tuned in &self.traces {
            let _ = write!(body, "<tr><td>{}", escaped(&tuned.trace));
            for (number, _) in Fleet::numbers(tuned).iter().zip(self.columns()) {
                let _ = write!(body, "<td class=\"number\">{number}");
            }
            let words = format!("{}, {}", tuned.recommended.words(), tuned.recommended.policy);
            let _ = writeln!(body, "<td>{}</tr>", escaped(&words));
        }
        let _ = write!(body, "</table></div>\n<p>{}</p>\n", self.legend());
        if !self.left_out.is_empty() {
            body += "<h2>Left out</h2>\n<ul>\n";
            for left_out in &self.left_out {
                let _ = writeln!(body, "<li>{}</li>", escaped(&left_out.words()));
            }
            body += "</ul>\n";
        }
        dcd_studies::page::page("dcd tune: traces compared", &body)
    }
}
