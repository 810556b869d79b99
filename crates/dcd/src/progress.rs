//! Progress of writing dirty data back: bytes left, speed, and how long it will take.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dcd_stack::HumanBytes;

use crate::commands::status::text::span;

/// Minimum time between two displays: a terminal rewrites one line, a log gets a new line each time.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
const LOG_INTERVAL: Duration = Duration::from_secs(2);
/// The speed is that of this time, or of less after the start: a disk that takes nothing more soon has none.
const SPEED_SPAN: Duration = Duration::from_secs(10);
/// Minimum time over which a speed means anything.
const SPEED_SPAN_MIN: Duration = Duration::from_millis(100);
/// Minimum time between two lines of a log that say the same.
const SAME_INTERVAL: Duration = Duration::from_secs(60);

/// Makes an interrupt print that nothing is lost, and end the process: the log is only read until all is durable on the data disk.
/// `besides`: what else holds then.
pub fn say_so_when_interrupted(besides: &'static str) {
    static IS_BEGUN: AtomicBool = AtomicBool::new(false);
    if IS_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    let told = dcd_io::on_interrupt(move || {
        eprintln!(
            "\ndcd: interrupted: nothing is lost. Data that is not written back yet is still in the log; the same command continues{besides}"
        );
        std::process::exit(1);
    });
    if let Err(error) = told {
        eprintln!("dcd: an interrupt ends this without a message ({error}), and loses nothing");
    }
}

pub struct Progress {
    quiet: bool,
    terminal: bool,
    started: Instant,
    shown: Option<Instant>,
    shown_bytes: u64,
    first_bytes: Option<u64>,
    /// Bytes left at earlier times, the oldest first; the first one alone may be older than [`SPEED_SPAN`].
    recent: VecDeque<(Duration, u64)>,
    /// True when the display has shown that nothing is left to write.
    told_end: bool,
}

impl Progress {
    pub fn new(quiet: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress {
            quiet,
            terminal,
            started: Instant::now(),
            shown: None,
            shown_bytes: 0,
            first_bytes: None,
            recent: VecDeque::new(),
            told_end: false,
        }
    }

    /// Shows how many dirty bytes are left to be written, if it is time.
    pub fn left(&mut self, bytes: u64) {
        let first = *self.first_bytes.get_or_insert(bytes);
        let speed = speed(&mut self.recent, self.started.elapsed(), bytes);
        let interval = match self.terminal {
            true => TERMINAL_INTERVAL,
            false if bytes == self.shown_bytes => SAME_INTERVAL,
            false => LOG_INTERVAL,
        };
        let is_early =
            self.shown.is_some_and(|shown| shown.elapsed() < interval) && (bytes > 0 || self.told_end);
        if self.quiet || is_early {
            return;
        }
        self.told_end = bytes == 0;
        (self.shown, self.shown_bytes) = (Some(Instant::now()), bytes);
        let line = describe(first, bytes, speed);
        let mut stderr = std::io::stderr();
        // A closed standard error is no failure.
        let _ = if self.terminal { write!(stderr, "\r\x1b[K{line}") } else { writeln!(stderr, "{line}") };
    }

    /// Shows the end in a log that has another display before it, where a terminal erases its line.
    pub fn done(&mut self) {
        let first = self.first_bytes.filter(|first| *first > 0 && self.shown.is_some());
        if let Some(first) = first.filter(|_| !self.terminal && !self.quiet) {
            let _ = writeln!(std::io::stderr(), "done: {} written back", HumanBytes(first));
        }
        self.end();
    }

    /// Ends the line on a terminal.
    pub fn end(&mut self) {
        if self.terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// Notes what is left now, and returns the bytes of a second by which it has become less in the last time; none if it has not.
fn speed(recent: &mut VecDeque<(Duration, u64)>, now: Duration, left: u64) -> Option<f64> {
    while recent.get(1).is_some_and(|(at, _)| *at + SPEED_SPAN <= now) {
        recent.pop_front();
    }
    recent.push_back((now, left));
    let (at, was) = recent.front()?;
    let (span, done) = (now.saturating_sub(*at), was.saturating_sub(left));
    (done > 0 && span >= SPEED_SPAN_MIN).then(|| done as f64 / span.as_secs_f64())
}

fn describe(first: u64, left: u64, speed: Option<f64>) -> String {
    if left == 0 && first > 0 {
        return format!("{} written; the data disk makes it durable", HumanBytes(first));
    }
    let Some(speed) = speed else { return format!("{} left", HumanBytes(left)) };
    let remaining = span((left as f64 / speed).ceil());
    format!("{} left, {}/s, about {remaining}", HumanBytes(left), HumanBytes(speed as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_present_speed() {
        let mut recent = VecDeque::new();
        let mut told = |seconds: f64, left_mib: u64| {
            let left = left_mib << 20;
            describe(10 << 20, left, speed(&mut recent, Duration::from_secs_f64(seconds), left))
        };
        assert_eq!(told(0.0, 10), "10 MiB left");
        assert_eq!(told(0.05, 9), "9 MiB left");
        assert_eq!(told(1.0, 9), "9 MiB left, 1 MiB/s, about 9 s");
        assert_eq!(told(5.0, 5), "5 MiB left, 1 MiB/s, about 5 s");
        assert_eq!(told(8.0, 6), "6 MiB left, 512 KiB/s, about 12 s", "writes go on meanwhile");
        // The data disk is full: what it took before says nothing.
        assert_eq!(told(18.0, 6), "6 MiB left");
        assert_eq!(told(4000.0, 6), "6 MiB left");
        assert_eq!(told(4010.0, 0), "10 MiB written; the data disk makes it durable");
        assert_eq!(describe(1 << 30, 1 << 30, Some(1e5)), "1 GiB left, 97.7 KiB/s, about 3 h");
    }
}
