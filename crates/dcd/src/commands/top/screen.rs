//! The screen of `dcd top`: a table of all stacks, and actions, graphs, response times and devices of the chosen one. It fits 80 by 24. A
//! narrower terminal has fewer columns, and a higher one higher graphs.

use dcd_stack::{HumanBytes, LayerStatus, ResponseTimes, wrapped};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Row, Sparkline, Table, TableState};

use super::history::{Point, log_used};
use super::{ShownStack, TopView};
use crate::commands::status::text::{
    budget_words, end_of, full_in, response_time, span, ssd_words, throttled, worn_words,
};
use crate::session::serving::status::{DeviceState, ServerStatus};
use crate::session::serving::verdict::Verdict;

/// Rows of stacks that any screen has, and share of a higher screen; the stacks are scrolled if there are more.
const STACKS_ROWS: u16 = 6;
const STACKS_SHARE: u16 = 4;
const ACTIONS_MAX: usize = 3;
/// Minimum height of a graph: the name and the value beside it take two rows.
const GRAPH_ROWS: u16 = 2;
const GRAPHS: u16 = 3;
const TIMES_ROWS: u16 = 4;
/// Minimum width of a column without a width of its own, for which those on the right are left out.
const FREE_WIDTH: u16 = 12;

pub fn draw(frame: &mut Frame<'_>, view: &TopView) {
    let rows = (view.stacks.len() as u16).clamp(1, STACKS_ROWS.max(frame.area().height / STACKS_SHARE));
    let areas = Layout::vertical([Constraint::Length(1), Constraint::Length(rows + 1), Constraint::Min(0)]);
    let [title, stacks, below] = areas.areas(frame.area());
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Line::styled("dcd top    q: quit   up, down: choose a stack", bold), title);
    table(frame, stacks, view);
    if let Some(stack) = view.stacks.get(view.chosen) {
        chosen(frame, below, stack);
    }
}

fn color(state: &str) -> Color {
    match state {
        "clean" | "dirty" | "serving" | "ok" => Color::Green,
        "damaged" | "failed" | "?" => Color::Red,
        _ => Color::Yellow,
    }
}

/// Returns the widths of the columns that fit beside one of at least `FREE_WIDTH`: those on the right are left out.
fn fitting(widths: &[u16], width: u16) -> Vec<u16> {
    let mut left = width.saturating_sub(FREE_WIDTH);
    let fits = |own: &&u16| left.checked_sub(*own + 1).inspect(|rest| left = *rest).is_some();
    widths.iter().take_while(fits).copied().collect()
}

fn rate(bytes: f64) -> String {
    format!("{}/s", HumanBytes(bytes as u64))
}

fn table(frame: &mut Frame<'_>, area: Rect, view: &TopView) {
    let rows = view.stacks.iter().map(|stack| {
        let newest = stack.history.newest();
        let status = stack.history.status();
        let state = match (&stack.error, status) {
            (None, Some(status)) => Verdict::of(status).state,
            _ => "?",
        };
        let used = status.and_then(log_used).map_or("-".to_owned(), |used| format!("{:.0} %", used * 100.0));
        let row = Row::new([
            stack.name.clone(),
            state.to_owned(),
            HumanBytes(newest.dirty_bytes).to_string(),
            used,
            format!("{:.0}", newest.requests_per_second),
            rate(newest.read_bytes_per_second),
            rate(newest.write_bytes_per_second),
        ]);
        row.style(Style::new().fg(color(state)))
    });
    let fitting = fitting(&[13, 10, 5, 8, 12, 12], area.width);
    let widths = std::iter::once(Constraint::Fill(1)).chain(fitting.into_iter().map(Constraint::Length));
    let head = Row::new(["STACK", "STATE", "DIRTY", "LOG", "REQ/S", "READ", "WRITTEN"]);
    let table = Table::new(rows, widths)
        .header(head.style(Style::new().add_modifier(Modifier::BOLD)))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(view.chosen));
}

fn chosen(frame: &mut Frame<'_>, area: Rect, stack: &ShownStack) {
    let width = usize::from(area.width.max(1));
    let broken = |line: Line<'_>| {
        let style = line.style;
        wrapped(&line.to_string(), width).into_iter().map(move |part| Line::styled(part, style))
    };
    let actions: Vec<Line> = actions(stack).into_iter().flat_map(broken).collect();
    let devices = stack.history.status().map_or(0, |status| status.devices.len()) as u16 + 1;
    // Actions and many devices leave each other the same room.
    let room = area.height.saturating_sub(1 + TIMES_ROWS + GRAPHS * GRAPH_ROWS);
    let lines = (actions.len() as u16).max(2).min(room.saturating_sub(devices).max(room / 2));
    let devices = devices.min(room.saturating_sub(lines));
    let graph_rows = Constraint::Length(GRAPH_ROWS + (room - lines - devices) / GRAPHS);
    let areas = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(lines),
        graph_rows,
        graph_rows,
        graph_rows,
        Constraint::Length(TIMES_ROWS),
        Constraint::Length(devices),
    ]);
    let [_, top, read, written, dirty, times, below] = areas.areas(area);
    frame.render_widget(Paragraph::new(actions), top);
    let newest = stack.history.newest();
    let bytes = |point: &Point| point.dirty_bytes as f64;
    for (area, name, now, value) in [
        (
            read,
            "read",
            rate(newest.read_bytes_per_second),
            (|p| p.read_bytes_per_second) as fn(&Point) -> f64,
        ),
        (written, "written", rate(newest.write_bytes_per_second), |p| p.write_bytes_per_second),
        (dirty, "dirty", HumanBytes(newest.dirty_bytes).to_string(), bytes),
    ] {
        graph(frame, area, stack, name, &now, value);
    }
    if let Some(status) = stack.history.status() {
        response_times(frame, times, status);
        device_table(frame, below, status);
    }
}

/// Lists what to do, and the trend of the chosen stack.
fn actions(stack: &ShownStack) -> Vec<Line<'static>> {
    let bad = Style::new().fg(Color::Red);
    if let Some(error) = &stack.error {
        return vec![Line::styled(error.clone(), bad)];
    }
    let Some(status) = stack.history.status() else { return vec![Line::raw("asking ...")] };
    let verdict = Verdict::of(status);
    let mut lines: Vec<Line> = verdict
        .actions
        .iter()
        .take(ACTIONS_MAX)
        .map(|action| Line::styled(format!("action: {action}"), bad))
        .collect();
    if lines.is_empty() {
        lines.push(Line::raw("action: none"));
    }
    let trends = status.trends.iter().filter_map(|(name, trend)| {
        let is_dirty = status.layers.get(name)?.dirty_bytes()? > 0;
        let clean = trend.clean_in_seconds.map(|seconds| format!("clean in {}", span(seconds)));
        let clean = clean.unwrap_or_else(|| "not getting clean".to_owned());
        let is_near = status.layers.get(name)?.log_cache().is_some_and(|cache| cache.over_high_mark);
        let full = throttled(trend).filter(|_| is_near).or(trend.full_in_seconds.map(full_in));
        let full = full.map(|full| format!(", {full}")).unwrap_or_default();
        is_dirty.then(|| format!("{name}: {clean}{full}"))
    });
    let trends: Vec<String> = trends.collect();
    if !trends.is_empty() {
        lines.push(Line::raw(trends.join("; ")));
    }
    let caches = || status.layers.values().filter_map(LayerStatus::log_cache);
    let worn = caches().filter_map(|cache| worn_words(status, cache));
    let worn = worn.chain(caches().filter_map(budget_words));
    let ssds = status.devices.iter().flat_map(|device| &device.ssds).map(ssd_words);
    let worn: Vec<String> = worn.chain(ssds).collect();
    if !worn.is_empty() {
        lines.push(Line::raw(worn.join("; ")));
    }
    lines
}

fn graph(
    frame: &mut Frame<'_>,
    area: Rect,
    stack: &ShownStack,
    name: &str,
    now: &str,
    value: fn(&Point) -> f64,
) {
    let [label, bars] = Layout::horizontal([Constraint::Length(14), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(vec![Line::raw(name.to_owned()), Line::raw(now.to_owned())]), label);
    let points = stack.history.graph(usize::from(bars.width), value);
    frame.render_widget(Sparkline::default().data(&points).style(Style::new().fg(Color::Cyan)), bars);
}

fn response_times(frame: &mut Frame<'_>, area: Rect, status: &ServerStatus) {
    let requests = &status.requests;
    let row = |name: &'static str, times: &ResponseTimes| {
        let recent = &times.recent;
        let time = |ms: f64| if recent.count == 0 { "-".to_owned() } else { response_time(ms) };
        let per_second = recent.count as f64 / requests.recent_seconds.max(1.0);
        let times = [time(recent.p50_ms), time(recent.p99_ms)];
        let [p50, p99] = times;
        Row::new([name.to_owned(), format!("{per_second:.1}"), p50, p99])
    };
    let head = Row::new(["last minute", "per second", "p50", "p99"]);
    let widths = [14, 12, 12, 12].map(Constraint::Length);
    let rows =
        [row("reads", &requests.read), row("writes", &requests.write), row("flushes", &requests.flush)];
    let table = Table::new(rows, widths).header(head.style(Style::new().add_modifier(Modifier::BOLD)));
    frame.render_widget(table, area);
}

/// Widths of the columns before the path, and after it.
const DEVICE_WIDTHS: [u16; 3] = [14, 14, 12];

fn device_table(frame: &mut Frame<'_>, area: Rect, status: &ServerStatus) {
    let room = usize::from(area.height.saturating_sub(1));
    // If not all fit, the devices with a problem come first.
    let mut devices: Vec<_> = status.devices.iter().collect();
    devices.sort_by_key(|device| device.state == DeviceState::Ok);
    let fitting = fitting(&DEVICE_WIDTHS, area.width);
    let width = area.width.saturating_sub(fitting.iter().map(|width| width + 1).sum()).into();
    let rows = devices.into_iter().take(room).map(|device| {
        let failed =
            [device.failed_reads, device.failed_writes, device.failed_flushes].map(|n| n.to_string());
        let state = device.state.word();
        let row = Row::new([
            device.name().to_owned(),
            end_of(&device.path, width),
            state.to_owned(),
            failed.join("/"),
        ]);
        row.style(Style::new().fg(color(state)))
    });
    let mut widths: Vec<Constraint> = fitting.into_iter().map(Constraint::Length).collect();
    widths.insert(widths.len().min(1), Constraint::Fill(1));
    let head = Row::new(["DEVICE", "PATH", "STATE", "FAILED R/W/F"]);
    frame.render_widget(
        Table::new(rows, widths).header(head.style(Style::new().add_modifier(Modifier::BOLD))),
        area,
    );
}
