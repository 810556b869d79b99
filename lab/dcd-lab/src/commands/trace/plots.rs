//! The plots of a trace, in one HTML file that needs nothing else.

use dcd_studies::{Axis, Plot, Series};
use dcd_trace::{Characteristics, Distribution};

pub fn page(title: &str, figures: &Characteristics) -> String {
    let pictures: String = plots(figures).iter().map(dcd_studies::page::figure).collect();
    dcd_studies::page::page(title, &pictures)
}

fn plots(figures: &Characteristics) -> Vec<Plot> {
    let all = &figures.all;
    let activity = |of: fn(&(f64, f64, f64)) -> f64| figures.activity.iter().map(|p| (p.0, of(p))).collect();
    let mut plots = vec![
        Plot::lines(
            "Activity",
            Axis::linear("time (s)"),
            Axis::linear("requests a second"),
            [Series::new("reads", activity(|p| p.1)), Series::new("writes", activity(|p| p.2))],
        ),
        shares(
            "Sizes",
            "KiB",
            1024.0,
            &[("reads", &all.reads.size_bytes), ("writes", &all.writes.size_bytes)],
        ),
        shares(
            "Idle periods",
            "ms",
            1e6,
            &[("idle periods", &all.idle_ns), ("interarrival", &all.interarrival_ns)],
        ),
    ];
    if let Some(blocks) = &all.blocks {
        let intervals = [
            ("overwrites", &blocks.overwrite_interval_ios),
            ("reads after writes", &blocks.read_after_write_interval_ios),
        ];
        plots.push(shares("Intervals since the write", "I/Os of the device", 1.0, &intervals));
    }
    plots
}

/// Cumulative shares over a logarithmic axis; zero has no place there.
fn shares(title: &str, unit: &str, divisor: f64, of: &[(&str, &Distribution)]) -> Plot {
    let points = |d: &Distribution| {
        let shown = d.cumulative.iter().filter(|point| point.0 > 0.0);
        shown.map(|&(value, share)| (value / divisor, 100.0 * share)).collect::<Vec<_>>()
    };
    let series = of.iter().map(|(name, d)| Series::new(*name, points(d)));
    Plot::lines(title, Axis::log(unit), Axis::linear("% at most so much"), series)
}
