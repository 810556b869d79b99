//! Writes the report of `dcd simulate`: a table with the stacks beside each other, JSON, and the series as CSV.

use std::fmt::Write;

use dcd_stack::HumanBytes;
use serde_json::{Value, json};

use super::experiment::Judged;
use super::load::Load;
use super::run::{Ran, SimulatedTimes};
use dcd_sim::interval;

/// Minimum width of the stacks' names in the table.
const NAME_WIDTH: usize = 12;
/// The columns of numbers, and how wide they are.
const COLUMNS: [(&str, usize); 9] = [
    ("count", 10),
    ("per s", 9),
    ("MB/s", 8),
    ("mean", 9),
    ("p50", 9),
    ("p90", 9),
    ("p99", 9),
    ("p99.9", 10),
    ("max", 10),
];

/// The times of one kind of request.
type TimesOf = fn(&Ran) -> &SimulatedTimes;

/// Kinds of requests.
const KINDS: [(&str, TimesOf); 3] =
    [("writes", |ran| &ran.writes), ("reads", |ran| &ran.reads), ("flushes", |ran| &ran.flushes)];

pub struct Report<'a> {
    pub load: &'a Load,
    pub seed: u64,
    pub ran: &'a [Ran],
    /// Runs of each stack with the seeds after the first; `ran` has that one.
    pub others: &'a [Vec<Ran>],
    /// Claims of an experiment.
    pub claims: Vec<Judged<'a>>,
}

/// A trace of a week has few requests a second.
fn rate(value: f64) -> String {
    let decimals = if value < 10.0 { 3 } else { 1 };
    format!("{value:.decimals$}")
}

fn numbers(times: &SimulatedTimes) -> [String; 9] {
    let ms = |value: f64| format!("{value:.3}");
    [
        times.count.to_string(),
        rate(times.per_second),
        rate(times.bytes_per_second / 1e6),
        ms(times.mean_ms),
        ms(times.p50_ms),
        ms(times.p90_ms),
        ms(times.p99_ms),
        ms(times.p999_ms),
        ms(times.max_ms),
    ]
}

impl Ran {
    /// The figures of one run.
    pub fn json(&self) -> Value {
        json!({
            "stack": self.name,
            "disk_is_modelled": self.advice.is_none(),
            "seconds": self.seconds,
            "requests": { "read": self.reads, "write": self.writes, "flush": self.flushes },
            "dirty_bytes": self.state.dirty_bytes,
            "log_bytes_for_each_written": self.state.log_space,
            "layers": self.report["layers"],
            "events": self.report["events"],
            "trace_hash": self.report["trace_hash"],
        })
    }
}

impl Report<'_> {
    /// The kinds of requests that there are, and their times in each stack.
    pub fn kinds(&self) -> Vec<(&'static str, Vec<&SimulatedTimes>)> {
        let all = KINDS.map(|(kind, of)| (kind, self.ran.iter().map(of).collect::<Vec<_>>()));
        all.into_iter().filter(|(_, times)| times.iter().any(|times| times.count > 0)).collect()
    }

    pub fn heading(&self) -> String {
        let seeds = match self.others.first() {
            Some(others) => format!("; intervals of 95 % from {} seeds", others.len() + 1),
            None => String::new(),
        };
        self.load.words(self.seed) + &seeds
    }

    /// The runs of a stack, by seeds.
    pub fn runs(&self, stack: usize) -> impl Iterator<Item = &Ran> {
        std::iter::once(&self.ran[stack]).chain(self.others.get(stack).into_iter().flatten())
    }

    /// The mean of a figure over the seeds, and how far the true mean is from it at most, in 95 of 100 cases. None with one seed.
    fn interval(&self, stack: usize, of: impl Fn(&Ran) -> f64) -> Option<(f64, f64)> {
        self.others.get(stack)?;
        Some(interval(&self.runs(stack).map(of).collect::<Vec<_>>()))
    }

    /// A line for each kind of request of a stack.
    fn intervals(&self, stack: usize) -> Vec<String> {
        let line = |(kind, of): (&str, TimesOf)| {
            let (mean, half) = self.interval(stack, |ran| of(ran).mean_ms)?;
            let (p99, p99_half) = self.interval(stack, |ran| of(ran).p99_ms)?;
            let name = &self.ran[stack].name;
            Some(format!(
                "{name}: {kind} {mean:.3} ± {half:.3} ms on average, {p99:.3} ± {p99_half:.3} ms for 99 %"
            ))
        };
        KINDS.into_iter().filter(|(_, of)| of(&self.ran[stack]).count > 0).filter_map(line).collect()
    }

    pub fn text(&self) -> String {
        let name_width = self.ran.iter().map(|ran| ran.name.chars().count()).fold(NAME_WIDTH, usize::max);
        let mut text =
            format!("{}. Response times are in ms.\n\n{:8} {:name_width$}", self.heading(), "", "stack");
        for (name, width) in COLUMNS {
            let _ = write!(text, " {name:>width$}");
        }
        text.push('\n');
        for (kind, times) in self.kinds() {
            for (ran, times) in self.ran.iter().zip(times) {
                let _ = write!(text, "{kind:8} {:name_width$}", ran.name);
                for (number, (_, width)) in numbers(times).iter().zip(COLUMNS) {
                    let _ = write!(text, " {number:>width$}");
                }
                text.push('\n');
            }
        }
        text.push('\n');
        for line in self.lines() {
            let _ = writeln!(text, "{line}");
        }
        for note in self.load.notes() {
            let _ = writeln!(text, "Note: {note}");
        }
        text
    }

    /// The lines below the table.
    pub fn lines(&self) -> Vec<String> {
        let of = |(stack, ran)| {
            let volatile = self.is_volatile(ran).then(|| {
                format!(
                    "{}: the trace has no flushes and no FUA, so this cache makes nothing durable: promise = \"always\" compares it with a \
                     disk whose write cache is off",
                    ran.name
                )
            });
            [vec![self.end(ran)], volatile.into_iter().collect(), self.intervals(stack)].concat()
        };
        let claims = self.claims.iter().map(Judged::line);
        self.ran.iter().enumerate().flat_map(of).chain(claims).collect()
    }

    /// True for a cache whose writes wait in RAM for a flush that never comes.
    fn is_volatile(&self, ran: &Ran) -> bool {
        let layers = ran.report["layers"].as_object().into_iter().flatten();
        let mut promises = layers.filter_map(|(_, layer)| layer["promise"].as_str());
        self.load.makes_nothing_durable() && promises.any(|promise| promise != "always")
    }

    /// Describes how a stack ended.
    fn end(&self, ran: &Ran) -> String {
        let dirty = match ran.state.dirty_bytes {
            Some(bytes) => format!(", {} dirty at the end", HumanBytes(bytes)),
            None => String::new(),
        };
        let space = match ran.state.log_space {
            Some(space) => format!(", a byte written took {space:.1} of the log"),
            None => String::new(),
        };
        let hash = ran.report["trace_hash"].as_str().unwrap_or("");
        format!("{}: {:.3} s of virtual time{dirty}{space}, trace hash {hash}", ran.name, ran.seconds)
    }

    /// The table as HTML. Numbers stay on one line; on a narrow screen the table is scrolled.
    pub fn html_table(&self) -> String {
        let mut html = String::from("<div class=\"table\"><table>\n<tr><th><th>stack");
        for (name, _) in COLUMNS {
            let _ = write!(html, "<th class=\"number\">{name}");
        }
        html += "</tr>\n";
        for (kind, times) in self.kinds() {
            for (ran, times) in self.ran.iter().zip(times) {
                let _ = write!(html, "<tr><td>{kind}<td>{}", dcd_studies::page::escaped(&ran.name));
                for number in numbers(times) {
                    let _ = write!(html, "<td class=\"number\">{number}");
                }
                html += "</tr>\n";
            }
        }
        html + "</table></div>\n"
    }

    /// Everything but the series, for programs.
    pub fn json(&self) -> Value {
        let of = |(stack, ran): (usize, &Ran)| {
            let intervals = |of: TimesOf| {
                json!({
                    "mean_ms": self.interval(stack, |ran| of(ran).mean_ms),
                    "p99_ms": self.interval(stack, |ran| of(ran).p99_ms),
                    "per_second": self.interval(stack, |ran| of(ran).per_second),
                })
            };
            let kinds = KINDS.map(|(kind, of)| (kind, intervals(of)));
            let mut stack = ran.json();
            stack["intervals_95"] = match self.others.is_empty() {
                true => Value::Null,
                false => {
                    Value::Object(kinds.map(|(kind, value)| (kind.to_owned(), value)).into_iter().collect())
                }
            };
            stack
        };
        let claim = |claim: &Judged<'_>| json!({ "says": claim.says, "holds": claim.holds, "value": claim.value, "half": claim.half, "accepted": claim.accepted });
        json!({
            "load": self.load.words(self.seed),
            "notes": self.load.notes(),
            "seed": self.seed,
            "stacks": self.ran.iter().enumerate().map(of).collect::<Vec<_>>(),
            "claims": self.claims.iter().map(claim).collect::<Vec<_>>(),
        })
    }

    /// A line for each stack and interval. Where there is no cache, no log or no answer, the field is empty.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "stack,time_s,reads,writes,read_mean_ms,write_mean_ms,dirty_bytes_max,log_used_bytes_max,waiting_max\n",
        );
        let ms = |value: Option<f64>| value.map_or(String::new(), |ms| format!("{ms:.6}"));
        let bytes = |value: Option<u64>| value.map_or(String::new(), |bytes| bytes.to_string());
        for ran in self.ran {
            let name = quoted(&ran.name);
            for row in &ran.rows {
                let _ = writeln!(
                    text,
                    "{name},{:.6},{},{},{},{},{},{},{}",
                    row.end.as_secs_f64(),
                    row.reads.count,
                    row.writes.count,
                    ms(row.reads.mean_ms()),
                    ms(row.writes.mean_ms()),
                    bytes(row.dirty_bytes_max),
                    bytes(row.log_used_bytes_max),
                    row.waiting_max
                );
            }
        }
        text
    }
}

/// A name as CSV wants it.
fn quoted(name: &str) -> String {
    match name.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", name.replace('"', "\"\"")),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_name_with_a_comma_is_one_field() {
        assert_eq!(quoted("a.toml"), "a.toml");
        assert_eq!(quoted("a, \"b\".toml"), "\"a, \"\"b\"\".toml\"");
    }
}
