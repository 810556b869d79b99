//! A small writer of SVG: histograms of times on a logarithmic axis, side by side for several disks.

use std::fmt::Write;

/// The counts of one disk: the upper end of each bucket in milliseconds, and how many times fell into it.
pub struct Series<'a> {
    pub name: &'a str,
    pub buckets: &'a [(f64, u64)],
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 240.0;
const LEFT: f64 = 46.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 26.0;
/// The axis: from 2^-7 ms (8 microseconds) to 2^11 ms (2 seconds), a bar for each doubling.
const FIRST_POWER: i32 = -7;
const LAST_POWER: i32 = 11;
const BARS: usize = (LAST_POWER - FIRST_POWER + 1) as usize;
pub const COLOURS: [&str; 4] = ["#b4452c", "#2c6fb4", "#4b9a4b", "#8a5aa8"];

/// The share of all times in each doubling, in percent; times off the axis are in the first or last.
fn shares(series: &Series<'_>) -> [f64; BARS] {
    let mut shares = [0.0; BARS];
    let total: u64 = series.buckets.iter().map(|(_, count)| count).sum();
    for (upper_ms, count) in series.buckets {
        let power = upper_ms.max(1e-9).log2().ceil() as i32;
        let bar = (power.clamp(FIRST_POWER, LAST_POWER) - FIRST_POWER) as usize;
        shares[bar] += 100.0 * *count as f64 / total.max(1) as f64;
    }
    shares
}

/// One picture: for each doubling of the response time, the share of requests that took that long, on each disk.
pub fn histogram(title: &str, series: &[Series<'_>]) -> String {
    let all: Vec<[f64; BARS]> = series.iter().map(shares).collect();
    let highest = all.iter().flatten().copied().fold(10.0, f64::max);
    let top = (highest / 10.0).ceil() * 10.0;
    let (plot_width, plot_height) = (WIDTH - LEFT - 10.0, HEIGHT - TOP - BOTTOM);
    let step = plot_width / BARS as f64;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\">\n<text x=\"{LEFT}\" y=\"14\" \
         class=\"title\">{0}</text>\n",
        escape(title)
    );
    for percent in (0..=4).map(|i| top * f64::from(i) / 4.0) {
        let y = TOP + plot_height * (1.0 - percent / top);
        let _ = writeln!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" class=\"axis\" text-anchor=\"end\">{percent:.0} %</text>",
            LEFT + plot_width,
            LEFT - 6.0,
            y + 4.0
        );
    }
    for (index, power) in (FIRST_POWER..=LAST_POWER).enumerate() {
        let x = LEFT + step * index as f64;
        if power % 2 != 0 {
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" class=\"axis\" text-anchor=\"middle\">{}</text>",
                x + step,
                HEIGHT - BOTTOM + 16.0,
                label(power)
            );
        }
        for (place, shares) in all.iter().enumerate() {
            let height = plot_height * shares[index] / top;
            if height > 0.0 {
                let width = step * 0.86 / all.len() as f64;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{}\">\
                     <title>{}: {:.1} % up to {}</title></rect>",
                    x + step * 0.07 + width * place as f64,
                    TOP + plot_height - height,
                    COLOURS[place % COLOURS.len()],
                    escape(series[place].name),
                    shares[index],
                    label(power)
                );
            }
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// A power of two of a millisecond, in words.
fn label(power: i32) -> String {
    let ms = f64::from(power).exp2();
    if ms < 1.0 {
        format!("{:.0} us", ms * 1000.0)
    } else if ms < 1000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.0} s", ms / 1000.0)
    }
}

/// Text as it may stand in HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_is_counted_once() {
        let buckets = [(0.000_001, 1), (0.9, 5), (1.0, 5), (1.1, 4), (1e9, 5)];
        let shares = shares(&Series { name: "x", buckets: &buckets });
        assert!((shares.iter().sum::<f64>() - 100.0).abs() < 1e-9);
        let at = |power: i32| shares[(power - FIRST_POWER) as usize];
        assert_eq!((at(FIRST_POWER), at(0), at(1), at(LAST_POWER)), (5.0, 50.0, 20.0, 25.0));
    }

    #[test]
    fn a_picture_is_well_formed_and_has_a_bar_for_each_share() {
        let svg = histogram("a < b", &[Series { name: "p&q", buckets: &[(1.0, 1), (8.0, 3)] }]);
        assert_eq!(svg.matches("<rect").count(), 2);
        assert!(svg.contains("a &lt; b") && svg.contains("p&amp;q: 75.0 % up to 8 ms"), "{svg}");
        assert!(svg.trim_end().ends_with("</svg>"));
        let empty = histogram("none", &[Series { name: "x", buckets: &[] }]);
        assert_eq!(empty.matches("<rect").count(), 0);
    }
}
