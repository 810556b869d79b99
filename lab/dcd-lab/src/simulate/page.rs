//! The stacks beside each other as plots, with the table, in one HTML file that needs nothing else. A stack has the same colour in
//! all of them.

use dcd_studies::{Axis, Plot, Series};

use super::report::Report;
use super::run::{Ran, SimulatedTimes};
use super::series::Row;
use dcd_studies::page::{escaped, figure};

/// A logarithmic axis has no zero, and RAM takes no time.
const MS_MIN: f64 = 1e-3;
const MIB: f64 = (1 << 20) as f64;
/// Units of time, the largest first, and how many seconds they have; one is taken that a run has some of.
const UNITS: [(&str, f64); 4] = [("days", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0)];
const UNITS_MIN: f64 = 3.0;

pub fn page(report: &Report<'_>) -> String {
    let plots = plots(report);
    let (headline, others) = plots.split_first().expect("there are requests of some kind");
    let mut body = format!("<p class=\"first\">{}</p>\n{}", escaped(&report.heading()), figure(headline));
    body += "<p>Response times are in ms. Per cent of the requests took at most so long: p50, p90, p99, p99.9.</p>\n";
    body += &report.html_table();
    for plot in others {
        body += &figure(plot);
    }
    body += "<ul>\n";
    for line in report.lines().into_iter().chain(report.load.notes().iter().cloned()) {
        body += &format!("<li>{}</li>\n", escaped(&line));
    }
    body += "</ul>\n";
    for ran in report.ran {
        body += &format!("<h2>{}</h2>\n<pre>{}</pre>\n", escaped(&ran.name), escaped(&ran.text));
    }
    dcd_studies::page::page("dcd simulate", &body)
}

fn plots(report: &Report<'_>) -> Vec<Plot> {
    let coloured = |points: Vec<Vec<(f64, f64)>>| {
        let series = report.ran.iter().zip(points).enumerate();
        series
            .filter(|(_, (_, points))| !points.is_empty())
            .map(|(colour, (ran, points))| Series::new(ran.name.clone(), points).coloured(colour))
            .collect::<Vec<_>>()
    };
    let shares = |times: &&SimulatedTimes| {
        let all = [times.mean_ms, times.p50_ms, times.p90_ms, times.p99_ms, times.p999_ms, times.max_ms];
        all.iter().enumerate().map(|(place, ms)| (place as f64, ms.max(MS_MIN))).collect::<Vec<_>>()
    };
    let mut plots = Vec::new();
    for (kind, times) in report.kinds() {
        let x = Axis::names("", ["mean", "p50", "p90", "p99", "p99.9", "max"]);
        let series = coloured(times.iter().map(shares).collect());
        plots.push(Plot::lines(format!("Response times of {kind} (ms)"), x, Axis::log("ms"), series));
    }
    let longest = report.ran.iter().map(|ran| ran.seconds).fold(0.0, f64::max);
    let (unit, unit_s) =
        UNITS.into_iter().find(|(_, seconds)| longest >= UNITS_MIN * seconds).unwrap_or(UNITS[3]);
    let over_time = |title: &str, y: Axis, of: fn(&Row) -> Option<f64>| {
        let points = |ran: &Ran| {
            let point = |row: &Row| Some((row.end.as_secs_f64() / unit_s, of(row)?));
            ran.rows.iter().filter_map(point).collect::<Vec<_>>()
        };
        let series = coloured(report.ran.iter().map(points).collect());
        let x = Axis::linear(&format!("time ({unit})"));
        (!series.is_empty()).then(|| Plot::lines(title, x, y, series))
    };
    let all = [
        over_time("Mean response time of writes (ms)", Axis::log("ms"), |row| {
            row.writes.mean_ms().map(|ms| ms.max(MS_MIN))
        }),
        over_time("Mean response time of reads (ms)", Axis::log("ms"), |row| {
            row.reads.mean_ms().map(|ms| ms.max(MS_MIN))
        }),
        over_time("Requests that wait, at most", Axis::linear("requests"), |row| {
            Some(row.waiting_max as f64)
        }),
        over_time("Dirty data in the caches, at most (MiB)", Axis::linear("MiB"), |row| {
            Some(row.dirty_bytes_max? as f64 / MIB)
        }),
        over_time("Log in use, at most (MiB)", Axis::linear("MiB"), |row| {
            Some(row.log_used_bytes_max? as f64 / MIB)
        }),
    ];
    plots.extend(all.into_iter().flatten());
    plots
}
