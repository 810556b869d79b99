//! The results of a demonstration: a table for the terminal, and a page of HTML with histograms of response times.
//!
//! Everything is computed from what was measured: one [`DemoPhase`] for each disk and each thing that was done on it.

use std::fmt::Write;

use dcd_studies::{Axis, Plot, Series, Table};
use serde::Deserialize;
use serde_json::Value;

use dcd_studies::page::{escaped, figure, page};

/// Measurements of a phase on a disk.
#[derive(Clone, Debug)]
pub struct DemoPhase {
    pub disk: String,
    pub phase: String,
    pub seconds: f64,
    pub read: DemoTimes,
    pub write: DemoTimes,
    pub flush: DemoTimes,
    /// Requests that reached the disk below, destaging included.
    pub disk_requests: u64,
    pub late: Late,
    /// Head tracking of the log: a word of the status. None on a disk without a log.
    pub head: Option<String>,
}

/// Delay of this machine: the time from the completion at the modelled disk until this machine took note of it.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Late {
    pub count: u64,
    pub mean_ms: f64,
}

/// A disk that is later than this on average is not paced in real time any more: a 7200 rpm disk turns by a sixteenth meanwhile, and
/// so far ahead a record of the log is placed.
const LATE_MEAN_MAX_MS: f64 = 0.5;

/// Response times of one kind of request, as the users of the block device saw them.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct DemoTimes {
    pub count: u64,
    pub mean_ms: f64,
    /// The upper end of each bucket in milliseconds, and how many fell into it.
    pub buckets: Vec<(f64, u64)>,
}

impl DemoPhase {
    /// From the state of a stack (`dcd status --json`) whose statistics were reset before the phase.
    pub fn from_status(
        disk: &str,
        phase: &str,
        seconds: f64,
        status: &Value,
    ) -> Result<DemoPhase, serde_json::Error> {
        let times = |kind: &str| DemoTimes::deserialize(&status["requests"][kind]);
        let disk_requests = status["layers"]["disk"]["requests"].as_object().into_iter().flatten();
        Ok(DemoPhase {
            disk: disk.to_owned(),
            phase: phase.to_owned(),
            seconds,
            read: times("read")?,
            write: times("write")?,
            flush: times("flush")?,
            disk_requests: disk_requests
                .filter(|(kind, _)| *kind != "flush")
                .filter_map(|(_, n)| n.as_u64())
                .sum(),
            // Virtual time is never late, and says nothing of it.
            late: Late::deserialize(&status["layers"]["disk"]["late"]).unwrap_or_default(),
            head: status["layers"]["cache"]["log_head"].as_str().map(str::to_owned),
        })
    }
}

/// A line of the file of results.
#[derive(Deserialize)]
struct Line {
    disk: String,
    phase: String,
    seconds: f64,
    status: Value,
}

impl DemoTimes {
    fn merge<'a>(all: impl Iterator<Item = &'a DemoTimes>) -> DemoTimes {
        let mut merged = DemoTimes::default();
        let mut sum = 0.0;
        for times in all {
            merged.count += times.count;
            sum += times.mean_ms * times.count as f64;
            merged.buckets.extend(&times.buckets);
        }
        merged.mean_ms = if merged.count == 0 { 0.0 } else { sum / merged.count as f64 };
        merged
    }
}

/// A kind of request of a phase.
type Pick = fn(&DemoPhase) -> &DemoTimes;

/// All results. The first disk is what the others are compared with.
pub struct Results {
    phases: Vec<DemoPhase>,
    disks: Vec<String>,
    names: Vec<String>,
}

impl Results {
    /// Reads the results: a JSON object a line.
    pub fn parse(lines: &str) -> Result<Results, serde_json::Error> {
        let phase = |line: &str| {
            let line: Line = serde_json::from_str(line)?;
            DemoPhase::from_status(&line.disk, &line.phase, line.seconds, &line.status)
        };
        Ok(Results::new(lines.lines().map(phase).collect::<Result<_, _>>()?))
    }

    pub fn new(phases: Vec<DemoPhase>) -> Results {
        let mut results = Results { phases: Vec::new(), disks: Vec::new(), names: Vec::new() };
        for phase in phases {
            if !results.disks.contains(&phase.disk) {
                results.disks.push(phase.disk.clone());
            }
            if !results.names.contains(&phase.phase) {
                results.names.push(phase.phase.clone());
            }
            results.phases.push(phase);
        }
        results
    }

    fn get(&self, disk: &str, name: &str) -> Option<&DemoPhase> {
        self.phases.iter().find(|phase| phase.disk == disk && phase.phase == name)
    }

    fn of_disk<'a>(&'a self, disk: &'a str) -> impl Iterator<Item = &'a DemoPhase> {
        self.phases.iter().filter(move |phase| phase.disk == disk)
    }

    /// Returns the mean delay of a disk, in milliseconds.
    fn late_ms(&self, disk: &str) -> f64 {
        let late = || self.of_disk(disk).map(|phase| phase.late);
        let count: u64 = late().map(|late| late.count).sum();
        late().map(|late| late.mean_ms * late.count as f64).sum::<f64>() / count.max(1) as f64
    }

    /// Returns a warning if the machine was too busy for these figures.
    pub fn warning(&self) -> Option<String> {
        let late = self.disks.iter().map(|disk| self.late_ms(disk)).fold(0.0, f64::max);
        if late > LATE_MEAN_MAX_MS {
            return Some(format!(
                "This machine was busy: it took note of what the modelled disk had done {late:.1} ms late on average, so these \
                 figures are not those of such a disk. Run it again when nothing else runs."
            ));
        }
        let unseen = |phase: &&DemoPhase| matches!(phase.head.as_deref(), Some("not-measured" | "not-shown"));
        let disk = &self.phases.iter().find(unseen)?.disk;
        Some(format!(
            "This machine was busy when the log of \"{disk}\" was measured, so its records do not follow the head of the modelled disk, and \
             these figures are too low. Run it again when nothing else runs."
        ))
    }

    /// Returns how many times faster a phase is than on the first disk; none for the first disk itself.
    pub fn ratio(&self, disk: &str, name: &str) -> Option<f64> {
        let base = self.disks.first().filter(|base| *base != disk)?;
        let (base, other) = (self.get(base, name)?, self.get(disk, name)?);
        Some(base.seconds / other.seconds)
    }

    /// A row for each phase, and the sums over all phases.
    pub fn table(&self) -> Table {
        let columns = std::iter::once(String::new()).chain(self.disks.iter().cloned()).collect();
        let mut table = Table { title: String::new(), columns, rows: Vec::new() };
        let mut row = |name: &str, cell: &dyn Fn(&String) -> String| {
            table.row(std::iter::once(name.to_owned()).chain(self.disks.iter().map(cell)));
        };
        for name in &self.names {
            row(name, &|disk| match (self.get(disk, name), self.ratio(disk, name)) {
                (Some(phase), Some(ratio)) => format!("{:.2} s, {ratio:.1}x", phase.seconds),
                (Some(phase), None) => format!("{:.2} s", phase.seconds),
                (None, _) => "-".to_owned(),
            });
        }
        let kinds: [(&str, Pick); 3] = [
            ("writes", |phase| &phase.write),
            ("reads", |phase| &phase.read),
            ("flushes", |phase| &phase.flush),
        ];
        for (kind, pick) in kinds {
            let times = |disk: &String| DemoTimes::merge(self.of_disk(disk).map(pick));
            row(kind, &|disk| times(disk).count.to_string());
            row(&format!("  mean response of {kind}"), &|disk| match times(disk) {
                times if times.count == 0 => "-".to_owned(),
                times => format!("{:.2} ms", times.mean_ms),
            });
        }
        row("requests to the disk", &|disk| {
            self.of_disk(disk).map(|phase| phase.disk_requests).sum::<u64>().to_string()
        });
        if self.disks.iter().any(|disk| self.late_ms(disk) > 0.0) {
            row("late, mean", &|disk| format!("{:.2} ms", self.late_ms(disk)));
        }
        table
    }

    /// Tells how many times as fast each disk is as the first one: the least and the most of all phases.
    pub fn headline(&self) -> String {
        let told = |disk: &String| {
            let ratios: Vec<f64> = self.names.iter().filter_map(|name| self.ratio(disk, name)).collect();
            let least = ratios.iter().copied().reduce(f64::min)?;
            let most = ratios.iter().copied().reduce(f64::max)?;
            Some(format!(
                "with the promise \"{disk}\" {least:.1} to {most:.1} times as fast as the plain disk"
            ))
        };
        let told: Vec<String> = self.disks.iter().filter_map(told).collect();
        if told.is_empty() { String::new() } else { format!("With dcd in front of it: {}.", told.join(", ")) }
    }

    /// The page: the headline, the table and the promises; then the histograms, of which only those of all phases are open.
    pub fn html(&self, title: &str, setting: &str) -> String {
        let mut body = format!(
            "<p class=\"first\">{}</p>\n{}<p>{}</p>\n{}",
            escaped(&self.headline()),
            self.seconds(),
            escaped(setting),
            self.table().html()
        );
        if let Some(warning) = self.warning() {
            let _ = writeln!(body, "<p><b>{}</b></p>", escaped(&warning));
        }
        let _ = writeln!(body, "<p>{}</p>", escaped(PROMISES).replace('\n', "<br>\n"));
        let mut folded = String::new();
        let kinds: [(&str, Pick); 2] = [("writes", |p| &p.write), ("reads", |p| &p.read)];
        for (kind, pick) in kinds {
            let of_all = |disk: &String| DemoTimes::merge(self.of_disk(disk).map(pick));
            body += &self.picture(&format!("Response times of {kind}, all phases"), &of_all);
            for name in &self.names {
                let of = |disk: &String| DemoTimes::merge(self.get(disk, name).map(pick).into_iter());
                folded += &self.picture(&format!("Response times of {kind}, {name}"), &of);
            }
        }
        let _ =
            writeln!(body, "<details><summary>Response times of each phase</summary>\n{folded}</details>");
        page(title, &body)
    }

    /// Plots the time of each phase on each disk.
    fn seconds(&self) -> String {
        let seconds = |disk: &String| {
            let of = |name: &String| self.get(disk, name).map_or(0.0, |phase| phase.seconds);
            self.names.iter().map(of).collect::<Vec<f64>>()
        };
        let series = self.disks.iter().map(|disk| Series::bars(disk, seconds(disk)));
        let x = Axis::names("", &self.names);
        figure(&Plot::bars("Seconds that each phase takes", x, Axis::linear("s"), series))
    }

    /// For each doubling of the response time, the share of requests that took that long, on each disk; empty without requests.
    fn picture(&self, title: &str, times: &dyn Fn(&String) -> DemoTimes) -> String {
        let all: Vec<DemoTimes> = self.disks.iter().map(times).collect();
        if all.iter().all(|times| times.count == 0) {
            return String::new();
        }
        let series =
            self.disks.iter().zip(&all).map(|(disk, times)| Series::bars(disk, shares(&times.buckets)));
        let x = Axis::names("response time, up to", (FIRST_POWER..=LAST_POWER).map(label));
        figure(&Plot::bars(title, x, Axis::linear("% of requests"), series))
    }
}

/// The axis: from 2^-7 ms (8 microseconds) to 2^11 ms (2 seconds), a bar for each doubling.
const FIRST_POWER: i32 = -7;
const LAST_POWER: i32 = 11;
const BARS: usize = (LAST_POWER - FIRST_POWER + 1) as usize;

/// The share of all times in each doubling, in percent; times off the axis are in the first or last.
fn shares(buckets: &[(f64, u64)]) -> [f64; BARS] {
    let mut shares = [0.0; BARS];
    let total: u64 = buckets.iter().map(|(_, count)| count).sum();
    for (upper_ms, count) in buckets {
        let power = upper_ms.max(1e-9).log2().ceil() as i32;
        let bar = (power.clamp(FIRST_POWER, LAST_POWER) - FIRST_POWER) as usize;
        shares[bar] += 100.0 * *count as f64 / total.max(1) as f64;
    }
    shares
}

/// A power of two of a millisecond; every second one is named.
fn label(power: i32) -> String {
    let ms = f64::from(power).exp2();
    match ms {
        _ if power % 2 == 0 => String::new(),
        ms if ms < 1.0 => format!("{:.0} us", ms * 1000.0),
        ms if ms < 1000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.0} s", ms / 1000.0),
    }
}

/// Explains what each column means after a power cut; printed beside every table of results.
pub const PROMISES: &str = "\
What survives a power cut: on the plain disk and with the promise \"flush\", everything written before the last flush \
that returned, as on any disk.
With the promise \"always\", every write that returned, so its clients need no flush.
untar, copy and remove: a tree of files, on ext2. sqlite: 100 commits, on ext4. late: how much later than the model the disk answered.";

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(disk: &str, name: &str, seconds: f64, mean_ms: f64) -> DemoPhase {
        let times = DemoTimes { count: 10, mean_ms, buckets: vec![(mean_ms, 10)] };
        DemoPhase {
            disk: disk.to_owned(),
            phase: name.to_owned(),
            seconds,
            read: DemoTimes::default(),
            write: times,
            flush: DemoTimes::default(),
            disk_requests: 30,
            late: Late::default(),
            head: None,
        }
    }

    fn results() -> Results {
        Results::new(vec![
            phase("plain", "untar", 8.0, 4.0),
            phase("plain", "copy", 2.0, 8.0),
            phase("dcd", "untar", 1.0, 0.5),
        ])
    }

    #[test]
    fn a_line_of_results_is_read() {
        let times = r#"{"count":2,"mean_ms":1.5,"buckets":[[1.0,1],[2.0,1]],"p50_ms":1.0}"#;
        let line = format!(
            r#"{{"disk":"d","phase":"p","seconds":2.5,"status":{{"requests":{{"read":{times},"write":{times},
            "flush":{times}}},"layers":{{"disk":{{"requests":{{"read":3,"write":4,"flush":5}}}}}}}}}}"#
        );
        let results = Results::parse(&line.replace('\n', " ")).unwrap();
        let phase = &results.phases[0];
        assert_eq!((phase.disk_requests, phase.seconds, phase.read.count), (7, 2.5, 2));
        assert!(Results::parse("{\"disk\":\"d\"}").is_err());
    }

    #[test]
    fn ratios_are_against_the_first_disk() {
        let results = results();
        assert_eq!(results.ratio("dcd", "untar"), Some(8.0));
        assert_eq!(results.ratio("plain", "untar"), None);
        assert_eq!(results.ratio("dcd", "copy"), None, "not measured");
    }

    #[test]
    fn the_table_has_every_disk_and_phase() {
        let table = results().table().text();
        assert!(table.contains("1.00 s, 8.0x"), "{table}");
        assert!(table.contains("6.00 ms"), "means are weighted by counts: {table}");
        assert_eq!(
            results().headline(),
            "With dcd in front of it: with the promise \"dcd\" 8.0 to 8.0 times as fast as the plain disk."
        );
        assert!(table.lines().any(|line| line.starts_with("  copy") && line.ends_with('-')), "{table}");
        assert!(table.lines().any(|line| line.starts_with("  requests to the disk") && line.contains("60")));
    }

    #[test]
    fn a_busy_machine_is_told_of() {
        let late = |mean_ms| {
            let phase = DemoPhase { late: Late { count: 5, mean_ms }, ..phase("plain", "untar", 8.0, 4.0) };
            Results::new(vec![phase])
        };
        assert_eq!(results().warning(), None);
        assert_eq!(late(0.1).warning(), None);
        assert!(late(0.1).table().text().contains("0.10 ms"));
        assert!(late(3.0).warning().unwrap().contains("3.0 ms late"));
        let head = |word: &str| {
            let phase = DemoPhase { head: Some(word.to_owned()), ..phase("always", "untar", 8.0, 4.0) };
            Results::new(vec![phase]).warning()
        };
        assert!(head("not-measured").unwrap().contains("the log of \"always\" was measured"));
        assert_eq!(head("followed"), None);
        assert!(late(3.0).html("T", "S").contains("3.0 ms late"));
    }

    #[test]
    fn every_time_is_counted_once() {
        let shares = shares(&[(0.000_001, 1), (0.9, 5), (1.0, 5), (1.1, 4), (1e9, 5)]);
        assert!((shares.iter().sum::<f64>() - 100.0).abs() < 1e-9);
        let at = |power: i32| shares[(power - FIRST_POWER) as usize];
        assert_eq!((at(FIRST_POWER), at(0), at(1), at(LAST_POWER)), (5.0, 50.0, 20.0, 25.0));
    }

    #[test]
    fn the_page_stands_alone() {
        let html = results().html("T", "S");
        assert_eq!(
            html.matches("<svg").count(),
            2 * 4,
            "seconds, writes in all, untar, copy, each wide and narrow; there were no reads"
        );
        assert!(html.find("<svg") < html.find("<table"), "the picture comes first");
        assert_eq!(
            html.split("<details>").next().unwrap().matches("<svg").count(),
            2 * 2,
            "the rest is folded"
        );
        let html = html.replace("http://www.w3.org/2000/svg", "");
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}
