//! Progress of writing dirty data back: bytes left, speed, and how long it will take.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dcd_stack::HumanBytes;

/// Minimum time between two displays: a terminal rewrites one line, a log gets a new line each time.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
const LOG_INTERVAL: Duration = Duration::from_secs(2);

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
    first_bytes: Option<u64>,
    /// True when the display has shown that nothing is left to write.
    told_end: bool,
}

impl Progress {
    pub fn new(quiet: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { quiet, terminal, started: Instant::now(), shown: None, first_bytes: None, told_end: false }
    }

    /// Shows how many dirty bytes are left to be written, if it is time.
    pub fn left(&mut self, bytes: u64) {
        let first = *self.first_bytes.get_or_insert(bytes);
        let interval = if self.terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        let is_early =
            self.shown.is_some_and(|shown| shown.elapsed() < interval) && (bytes > 0 || self.told_end);
        if self.quiet || is_early {
            return;
        }
        self.told_end = bytes == 0;
        self.shown = Some(Instant::now());
        let line = describe(first, bytes, self.started.elapsed());
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

fn describe(first: u64, left: u64, elapsed: Duration) -> String {
    if left == 0 && first > 0 {
        return format!("{} written; the data disk makes it durable", HumanBytes(first));
    }
    let done = first.saturating_sub(left);
    let seconds = elapsed.as_secs_f64();
    if done == 0 || seconds < 0.1 {
        return format!("{} left", HumanBytes(left));
    }
    let speed = done as f64 / seconds;
    let remaining = (left as f64 / speed).ceil() as u64;
    format!("{} left, {}/s, about {remaining} s", HumanBytes(left), HumanBytes(speed as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_the_speed_so_far() {
        assert_eq!(describe(10 << 20, 10 << 20, Duration::from_secs(1)), "10 MiB left");
        assert_eq!(describe(10 << 20, 5 << 20, Duration::from_secs(5)), "5 MiB left, 1 MiB/s, about 5 s");
        assert_eq!(
            describe(10 << 20, 0, Duration::from_secs(5)),
            "10 MiB written; the data disk makes it durable"
        );
        assert_eq!(
            describe(1 << 20, 2 << 20, Duration::from_secs(5)),
            "2 MiB left",
            "writes go on meanwhile"
        );
    }
}
