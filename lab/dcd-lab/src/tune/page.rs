//! The trade-off as plots, with the report, in one HTML file that needs nothing else.

use dcd_studies::{Axis, Plot, Series};

use super::candidates::{MEDIA, Medium, RAM_POLICIES};
use super::report::Report;
use super::search::{Objective, Tried};
use dcd_studies::page::{escaped, figure};

/// Colour of results without a cache, after those of the media.
const COLOUR_PLAIN: usize = 5;
const MIB: f64 = (1 << 20) as f64;

/// The page; `stack` is the stack file to serve.
pub fn page(report: &Report<'_>, stack: &str) -> String {
    let plots = plots(report);
    let mut body = format!(
        "<p class=\"first\">Recommended: {}</p>\n<p>{}</p>\n{}<p>{}</p>\n",
        escaped(&report.recommended_words()),
        escaped(&report.heading()),
        report.either().map_or(String::new(), |either| format!("<p>{}</p>\n", escaped(&either))),
        escaped(&report.reasons())
    );
    let (headline, others) = plots.split_first().expect("the first plot is always there");
    body += &figure(headline);
    body += &format!("{}<p>{}</p>\n", report.table().html(), escaped(&report.legend()));
    body += &format!("<p>{}</p>\n", escaped(&report.certainty()));
    for plot in others {
        body += &figure(plot);
    }
    body += "<h2>Assumed</h2>\n<ul>\n";
    for assumption in report.assumptions() {
        body += &format!("<li>{}</li>\n", escaped(&assumption));
    }
    body += "</ul>\n";
    body += &format!("<h2>Stack file</h2>\n<pre>{}</pre>\n", escaped(stack));
    dcd_studies::page::page(&format!("dcd tune {}", report.trace), &body)
}

fn mib(tried: &Tried) -> f64 {
    tried.candidate.bytes as f64 / MIB
}

fn plots(report: &Report<'_>) -> Vec<Plot> {
    let tried = &report.found.tried;
    let sizes = || tried.iter().filter(|tried| tried.candidate.medium != Medium::None).map(mib);
    let (least, most) =
        sizes().fold((f64::INFINITY, 0.0), |(a, b), size| (f64::min(a, size), f64::max(b, size)));
    let unit = match report.objective {
        Objective::Mean | Objective::P95 => "ms",
        Objective::Writes => "writes",
        Objective::Busy => "s",
    };
    let title = |of: &str| format!("{of}: {} ({unit})", report.objective.words());
    let plain =
        |value: f64| Series::new("no cache", vec![(least, value), (most, value)]).coloured(COLOUR_PLAIN);
    let mut trade_off = vec![plain(tried[0].value)];
    let (mut saved, mut stalled) = (Vec::new(), Vec::new());
    for (colour, medium) in MEDIA.into_iter().enumerate() {
        let best = best_of_each_size(tried, medium);
        if best.is_empty() {
            continue;
        }
        let series = |points| Series::new(medium.words(), points).coloured(colour);
        let points = best.iter().map(|tried| (mib(tried), tried.value)).collect();
        trade_off.push(series(points));
        let plain = tried[0].measured.disk_writes;
        let writes =
            |tried: &&Tried| (mib(tried), 100.0 * (1.0 - tried.measured.disk_writes as f64 / plain as f64));
        saved.push(series(best.iter().map(writes).collect()));
        let stalls = |tried: &&Tried| {
            let measured = &tried.measured;
            (mib(tried), 100.0 * measured.stalls as f64 / measured.requests.max(1) as f64)
        };
        stalled.push(series(best.iter().map(stalls).collect()));
    }
    let absorbed = report.overwrites.iter().filter(|point| point.0 <= most * MIB);
    saved.push(
        Series::new("LRU, one pass", absorbed.map(|&(bytes, share)| (bytes / MIB, 100.0 * share)).collect())
            .coloured(COLOUR_PLAIN),
    );
    let plot = |title: String, y, series: Vec<Series>| Plot::lines(title, Axis::log("size (MiB)"), y, series);
    let mut plots = vec![
        plot(title("Best policy of each size"), Axis::log(unit), trade_off),
        plot(
            "Writes saved at the disk, and overwrites that LRU absorbs (%)".to_owned(),
            Axis::linear("%"),
            saved,
        ),
        plot(
            "Requests that stall: for the disk or for room in RAM, or for room in a log (%)".to_owned(),
            Axis::linear("%"),
            stalled,
        ),
    ];
    let of_policy = |medium: Medium, name: &'static str| {
        let of = tried
            .iter()
            .filter(|tried| tried.candidate.medium == medium && tried.candidate.policy.name == name);
        Series::new(name.replace("two thresholds, ", ""), of.map(|tried| (mib(tried), tried.value)).collect())
    };
    for medium in MEDIA.into_iter().filter(|medium| medium.in_ram()) {
        if tried.iter().any(|tried| tried.candidate.medium == medium) {
            let series = RAM_POLICIES.iter().map(|policy| of_policy(medium, policy.name)).collect();
            plots.push(plot(title(&format!("{}, each policy", medium.words())), Axis::log(unit), series));
        }
    }
    plots
}

fn best_of_each_size(tried: &[Tried], medium: Medium) -> Vec<&Tried> {
    let mut best: Vec<&Tried> = Vec::new();
    for tried in tried.iter().filter(|tried| tried.candidate.medium == medium) {
        match best.last_mut().filter(|last| last.candidate.bytes == tried.candidate.bytes) {
            Some(last) if tried.value < last.value => *last = tried,
            Some(_) => {}
            None => best.push(tried),
        }
    }
    best
}
