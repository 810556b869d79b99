//! Plots as data, and their drawing as SVG in the paper's axes.
//!
//! A logarithmic axis is a linear one over the exponents with other labels, and names on the x axis are its whole
//! numbers with other labels; so there is one way to draw.

use std::fmt::Write;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use serde::{Deserialize, Serialize};

use crate::findings::figure;
use crate::page::escaped;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    #[default]
    Linear,
    Log,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    pub title: String,
    pub scale: Scale,
    /// Names for the positions 0, 1, 2…; then the axis has no numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Axis {
    pub fn linear(title: &str) -> Axis {
        Axis { title: title.to_owned(), ..Axis::default() }
    }

    pub fn log(title: &str) -> Axis {
        Axis { title: title.to_owned(), scale: Scale::Log, names: Vec::new() }
    }

    pub fn names(title: &str, names: impl IntoIterator<Item: ToString>) -> Axis {
        let names = names.into_iter().map(|name| name.to_string()).collect();
        Axis { title: title.to_owned(), scale: Scale::Linear, names }
    }

    fn place(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => value,
            Scale::Log => value.max(f64::MIN_POSITIVE).log10(),
        }
    }

    fn label(&self, place: f64) -> String {
        match self.scale {
            _ if !self.names.is_empty() => {
                self.names.get(place.round() as usize).cloned().unwrap_or_default()
            }
            Scale::Linear => short(place),
            Scale::Log => short(10f64.powf(place)),
        }
    }

    /// The places with a label, at most `most` of them in `low..high`: round numbers, or names at equal distances.
    fn ticks(&self, (low, high): (f64, f64), most: usize) -> Vec<f64> {
        let multiples = |step: f64| -> Vec<f64> {
            ((low / step).ceil() as i64..=(high / step).floor() as i64).map(|n| n as f64 * step).collect()
        };
        let powers =
            |from: i32| (from..).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)));
        let fits = |ticks: &Vec<f64>| ticks.len() <= most.max(1);
        if !self.names.is_empty() {
            return (1..).map(|every| multiples(f64::from(every))).find(fits).unwrap_or_default();
        }
        if self.scale == Scale::Log {
            for digits in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0]] {
                let decades = low.floor() as i32..=high.ceil() as i32;
                let all = decades
                    .flat_map(|power| digits.iter().map(move |digit: &f64| f64::from(power) + digit.log10()));
                let ticks: Vec<f64> = all.filter(|tick| (low..=high).contains(tick)).collect();
                if (2..=most).contains(&ticks.len()) {
                    return ticks;
                }
            }
            let whole = (1..).map(|every| multiples(f64::from(every))).find(fits).unwrap_or_default();
            if whole.len() > 1 {
                return whole;
            }
            let within = (10f64.powf(low), 10f64.powf(high));
            return Axis::default().ticks(within, most).into_iter().map(f64::log10).collect();
        }
        let least = (high - low) / most.max(1) as f64;
        powers(least.log10().floor() as i32)
            .filter(|step| *step >= least)
            .map(multiples)
            .find(fits)
            .unwrap_or_default()
    }
}

/// The figure without zeros at its end.
fn short(value: f64) -> String {
    let text = figure(value);
    match text.contains('.') && !text.contains('e') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Places on an axis, of which some have a label.
struct Ticked {
    range: (f64, f64),
    ticks: Vec<f64>,
}

impl Ranged for Ticked {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        RangedCoordf64::from(self.range()).map(value, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        if hint.weight().allow_light_points() { Vec::new() } else { self.ticks.clone() }
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    #[default]
    Line,
    /// Bars side by side.
    Bars,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub name: String,
    pub points: Vec<(f64, f64)>,
    /// Colour, the same in all plots of a page; by its place among the series if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub colour: Option<usize>,
}

impl Series {
    pub fn new(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, colour: None }
    }

    pub fn coloured(self, colour: usize) -> Series {
        Series { colour: Some(colour), ..self }
    }

    fn colour(&self, place: usize) -> RGBColor {
        COLOURS[self.colour.unwrap_or(place) % COLOURS.len()]
    }

    /// Bars at the places 0, 1, 2…
    pub fn bars(name: impl Into<String>, heights: impl IntoIterator<Item = f64>) -> Series {
        let points = heights.into_iter().enumerate().map(|(place, height)| (place as f64, height));
        Series::new(name, points.collect())
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plot {
    pub title: String,
    pub x: Axis,
    pub y: Axis,
    pub style: Style,
    pub series: Vec<Series>,
}

const SIZE: (u32, u32) = (760, 400);
/// On a telephone, with the same size of letters.
const NARROW: (u32, u32) = (350, 310);
/// Width of a number on the x axis, with room beside it.
const LABEL_WIDTH: u32 = 66;
/// Width of a character of a name there, and of what is beside the axis.
const NAME_CHARACTER_WIDTH: usize = 7;
const AXIS_WIDTH: u32 = 84;
/// The height of a line of the legend.
const LEGEND_LINE: i32 = 16;
const Y_LABELS_MAX: usize = 9;
/// A line of more points has no marks.
const MARKED_MAX: usize = 64;
/// Gives the series of one name one colour in all plots, but in those where two would get the same: there are only so many colours.
pub fn one_colour_each(plots: &mut [Plot]) {
    let mut names: Vec<String> = Vec::new();
    for series in plots.iter().flat_map(|plot| &plot.series) {
        if !names.contains(&series.name) {
            names.push(series.name.clone());
        }
    }
    for plot in plots {
        let place = |series: &Series| names.iter().position(|name| *name == series.name);
        let mut colours: Vec<usize> =
            plot.series.iter().filter_map(place).map(|at| at % COLOURS_MAX).collect();
        colours.sort_unstable();
        colours.dedup();
        if colours.len() == plot.series.len() {
            for series in &mut plot.series {
                series.colour = series.colour.or(names.iter().position(|name| *name == series.name));
            }
        }
    }
}

/// Colours of their own, so many.
pub const COLOURS_MAX: usize = COLOURS.len();
const COLOURS: [RGBColor; 10] = [
    RGBColor(180, 69, 44),
    RGBColor(44, 111, 180),
    RGBColor(120, 120, 120),
    RGBColor(138, 90, 168),
    RGBColor(190, 140, 30),
    RGBColor(75, 154, 75),
    RGBColor(23, 150, 160),
    RGBColor(214, 110, 160),
    RGBColor(110, 75, 40),
    RGBColor(150, 165, 60),
];

impl Plot {
    /// Lines with their points.
    pub fn lines(
        title: impl Into<String>,
        x: Axis,
        y: Axis,
        series: impl IntoIterator<Item = Series>,
    ) -> Plot {
        let series = series.into_iter().collect();
        Plot { title: title.into(), x, y, style: Style::Line, series }
    }

    /// Bars side by side.
    pub fn bars(
        title: impl Into<String>,
        x: Axis,
        y: Axis,
        series: impl IntoIterator<Item = Series>,
    ) -> Plot {
        Plot { style: Style::Bars, ..Plot::lines(title, x, y, series) }
    }

    /// The picture.
    pub fn svg(&self) -> String {
        self.svg_of(SIZE, Some(&self.title))
    }

    /// The picture for a narrow screen. The title is not in it: text wraps, and a picture does not.
    pub fn svg_narrow(&self) -> String {
        self.svg_of(NARROW, None)
    }

    fn svg_of(&self, size: (u32, u32), title: Option<&str>) -> String {
        let mut text = String::new();
        let values = {
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            self.draw(&area, title).expect("drawing into a string cannot fail")
        };
        text.insert_str(text.rfind("</svg>").unwrap_or(text.len()), &values);
        text
    }

    fn places(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let all = self.series.iter().flat_map(|series| series.points.iter().copied());
        all.map(|(x, y)| (self.x.place(x), self.y.place(y))).filter(|(x, y)| x.is_finite() && y.is_finite())
    }

    fn ranges(&self) -> ((f64, f64), (f64, f64)) {
        let around = |values: Vec<f64>, from_zero: bool| {
            let low = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if !low.is_finite() {
                return (0.0, 1.0);
            }
            let low = if from_zero { low.min(0.0) } else { low };
            let gap = (high - low).max(high.abs() * 0.02).max(1e-9);
            (if from_zero && low == 0.0 { 0.0 } else { low - gap * 0.06 }, high + gap * 0.08)
        };
        let (xs, ys): (Vec<f64>, Vec<f64>) = self.places().unzip();
        let mut x = around(xs, false);
        if !self.x.names.is_empty() {
            x = (-0.5, self.x.names.len() as f64 - 0.5);
        } else if self.style == Style::Bars {
            x = (x.0 - self.bar_step() / 2.0, x.1 + self.bar_step() / 2.0);
        }
        (x, around(ys, self.y.scale == Scale::Linear))
    }

    /// The distance between two groups of bars.
    fn bar_step(&self) -> f64 {
        let mut xs: Vec<f64> = self.places().map(|(x, _)| x).collect();
        xs.sort_unstable_by(f64::total_cmp);
        let gaps = xs.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 1e-9);
        let least = gaps.fold(f64::INFINITY, f64::min);
        if least.is_finite() { least } else { 1.0 }
    }

    /// Draws it. Returns what lies over the points, unseen, and says their values where the pointer rests.
    fn draw<B: DrawingBackend>(
        &self,
        area: &DrawingArea<B, Shift>,
        title: Option<&str>,
    ) -> Result<String, DrawingAreaErrorKind<B::ErrorType>> {
        area.fill(&WHITE)?;
        let (x, y) = self.ranges();
        let width = area.dim_in_pixel().0;
        let legend = self.legend(width as i32);
        let lines = legend.last().map_or(0, |(_, line)| line + 1);
        let mut builder = ChartBuilder::on(area);
        builder.margin(10).x_label_area_size(46).y_label_area_size(64);
        let legend_top = match title {
            Some(title) => {
                builder.caption(title, ("sans-serif", 17));
                36
            }
            None => {
                builder.margin_top(10 + LEGEND_LINE * lines).margin_left(0);
                4
            }
        };
        // Names need room beside each other.
        let longest = self.x.names.iter().map(|name| name.chars().count() + 1).max().unwrap_or(0);
        let label = (longest * NAME_CHARACTER_WIDTH).max(if longest == 0 { LABEL_WIDTH as usize } else { 1 });
        let across = self.x.ticks(x, ((width - AXIS_WIDTH) as usize / label).max(2));
        let up = self.y.ticks(y, Y_LABELS_MAX);
        let mut chart =
            builder.build_cartesian_2d(Ticked { range: x, ticks: across }, Ticked { range: y, ticks: up })?;
        chart
            .configure_mesh()
            .x_desc(&self.x.title)
            .y_desc(&self.y.title)
            .x_label_formatter(&|place| self.x.label(*place))
            .y_label_formatter(&|place| self.y.label(*place))
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(226, 226, 226))
            .label_style(("sans-serif", 13))
            .draw()?;
        let mut values = String::new();
        let step = self.bar_step();
        let width = step * 0.8 / self.series.len().max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            let colour = series.colour(index);
            let places: Vec<(f64, f64)> =
                series.points.iter().map(|&(x, y)| (self.x.place(x), self.y.place(y))).collect();
            let shift = match self.style {
                Style::Line => 0.0,
                Style::Bars => width * (index as f64 + 0.5) - step * 0.4,
            };
            let mut last = None;
            for &(x, y) in &places {
                let (across, down) = chart.backend_coord(&(x + shift, y));
                if last.replace(across) != Some(across) {
                    let text = format!("{}: {}, {}", series.name, self.x.label(x), self.y.label(y));
                    let text = escaped(&text);
                    let _ = writeln!(
                        values,
                        "<circle cx=\"{across}\" cy=\"{down}\" r=\"8\" opacity=\"0\"><title>{text}</title></circle>"
                    );
                }
            }
            match self.style {
                Style::Line => {
                    chart.draw_series(LineSeries::new(places.clone(), colour.stroke_width(2)))?;
                    // Many points hide each other, and the line shows them.
                    let marked = if places.len() <= MARKED_MAX { places } else { Vec::new() };
                    chart.draw_series(
                        marked.into_iter().map(|place| Circle::new(place, 3, colour.filled())),
                    )?;
                }
                Style::Bars => {
                    let left = |x: f64| x - step * 0.4 + width * index as f64;
                    chart.draw_series(places.into_iter().map(|(x, top)| {
                        Rectangle::new([(left(x), y.0), (left(x) + width, top)], colour.filled())
                    }))?;
                }
            }
        }
        for ((index, series), (x, line)) in self.series.iter().enumerate().zip(legend) {
            let y = legend_top + LEGEND_LINE * line;
            area.draw(&Rectangle::new([(x, y), (x + 10, y + 10)], series.colour(index).filled()))?;
            area.draw(&Text::new(series.name.clone(), (x + 14, y - 2), ("sans-serif", 13)))?;
        }
        area.present()?;
        Ok(values)
    }

    /// Places the names of the series: from the left, and in which line. They cover no data.
    fn legend(&self, width: i32) -> Vec<(i32, i32)> {
        const CHARACTER_WIDTH: i32 = 7;
        const LEFT: i32 = 78;
        let (mut x, mut line) = (LEFT, 0);
        let mut places = Vec::new();
        for series in &self.series {
            let wide = 30 + CHARACTER_WIDTH * series.name.chars().count() as i32;
            if x > LEFT && x + wide > width {
                (x, line) = (LEFT, line + 1);
            }
            places.push((x, line));
            x += wide;
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(x: Axis, style: Style) -> Plot {
        let series = vec![Series::new("ours & theirs", vec![(1.0, 2.0), (10.0, 4.0), (100.0, 8.0)])];
        Plot { title: "a < b".to_owned(), x, y: Axis::linear("seconds"), style, series }
    }

    #[test]
    fn a_picture_has_every_point_and_is_the_same_each_time() {
        let line = plot(Axis::log("units"), Style::Line);
        let svg = line.svg();
        assert_eq!(svg.matches("r=\"3\"").count(), 3);
        assert_eq!(svg.matches("<title>ours &amp; theirs: 10, 4</title>").count(), 1, "{svg}");
        assert!(svg.contains("ours &amp; theirs") && svg.contains("a &lt; b"), "{svg}");
        assert_eq!(svg, line.svg());
        let bars = plot(Axis::names("kind", ["a", "b"]), Style::Bars).svg();
        assert_eq!(bars.matches("#B4452C").count(), 4, "a bar for each point, and the legend");
    }

    #[test]
    fn a_name_has_one_colour_in_all_plots_unless_two_would_look_alike() {
        let plot = |names: &[usize]| {
            let series = names.iter().map(|name| Series::bars(name.to_string(), [1.0]));
            Plot::bars("", Axis::linear(""), Axis::linear(""), series)
        };
        let all: Vec<usize> = (0..=COLOURS_MAX).collect();
        let mut plots = [plot(&[7, 8]), plot(&[8]), plot(&all)];
        one_colour_each(&mut plots);
        let colours = |plot: &Plot| plot.series.iter().map(|series| series.colour).collect::<Vec<_>>();
        assert_eq!(colours(&plots[0]), [Some(0), Some(1)]);
        assert_eq!(colours(&plots[1]), [Some(1)]);
        assert!(colours(&plots[2]).iter().all(Option::is_none));
    }

    #[test]
    fn a_series_keeps_its_colour() {
        let mut line = plot(Axis::log("units"), Style::Line);
        line.series[0] = line.series[0].clone().coloured(1);
        let svg = line.svg();
        assert!(!svg.contains("#B4452C") && svg.contains("#2C6FB4"), "{svg}");
    }

    #[test]
    fn names_that_have_no_room_in_a_line_go_on_in_the_next() {
        let series = ["a name of twenty-two c", "another of twenty-four c", "b"];
        let plot = Plot::lines(
            "a < b",
            Axis::linear("x"),
            Axis::linear("y"),
            series.map(|n| Series::new(n, vec![(0.0, 1.0)])),
        );
        assert_eq!(plot.legend(760).iter().map(|place| place.1).collect::<Vec<_>>(), [0, 0, 0]);
        assert_eq!(plot.legend(350).iter().map(|place| place.1).collect::<Vec<_>>(), [0, 1, 1]);
        let narrow = plot.svg_narrow();
        assert!(narrow.contains("width=\"350\"") && !narrow.contains("a &lt; b"), "{narrow}");
    }

    #[test]
    fn ticks_are_round_numbers_that_have_room() {
        let labels = |axis: &Axis, range, most| {
            axis.ticks(range, most).into_iter().map(|tick| axis.label(tick)).collect::<Vec<_>>()
        };
        let log = |low: f64, high: f64| (low.log10(), high.log10());
        assert_eq!(labels(&Axis::linear(""), (0.0, 1.08), 5), ["0", "0.5", "1"]);
        assert_eq!(labels(&Axis::log(""), log(0.9, 130.0), 9), ["1", "2", "5", "10", "20", "50", "100"]);
        assert_eq!(labels(&Axis::log(""), log(0.9, 130.0), 3), ["1", "10", "100"]);
        assert_eq!(labels(&Axis::log(""), log(11.5, 18.5), 9).len(), 7);
        assert_eq!(labels(&Axis::names("", ["a", "b", "c"]), (-0.5, 2.5), 2), ["a", "c"]);
        for range in [(0.0, 1e-9), (-3.0, 7e12), (5.0, 5.000001)] {
            let ticks = Axis::linear("").ticks(range, 6);
            assert!((2..=6).contains(&ticks.len()), "{range:?}: {ticks:?}");
        }
    }

    #[test]
    fn a_plot_of_nothing_is_drawn_all_the_same() {
        let empty = Plot { series: Vec::new(), ..plot(Axis::linear("x"), Style::Line) };
        assert!(empty.svg().contains("</svg>"));
    }
}
