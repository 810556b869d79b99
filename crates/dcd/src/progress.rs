//! Progress of bringing dirty data home: bytes left, speed, and how long it will take.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use dcd_stack::HumanBytes;

/// On a terminal the line is rewritten; in a log a new line is enough now and then.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(200);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

pub struct Progress {
    quiet: bool,
    terminal: bool,
    started: Instant,
    shown: Option<Instant>,
    first_bytes: Option<u64>,
}

impl Progress {
    pub fn new(quiet: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal();
        Progress { quiet, terminal, started: Instant::now(), shown: None, first_bytes: None }
    }

    /// There are this many dirty bytes left.
    pub fn left(&mut self, bytes: u64) {
        let first = *self.first_bytes.get_or_insert(bytes);
        let interval = if self.terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        if self.quiet || self.shown.is_some_and(|shown| shown.elapsed() < interval) {
            return;
        }
        self.shown = Some(Instant::now());
        let line = describe(first, bytes, self.started.elapsed());
        let mut stderr = std::io::stderr();
        // Nobody to tell it to is no failure.
        let _ = if self.terminal { write!(stderr, "\r\x1b[K{line}") } else { writeln!(stderr, "{line}") };
    }

    /// Ends the line on a terminal.
    pub fn end(&mut self) {
        if self.terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn describe(first: u64, left: u64, elapsed: Duration) -> String {
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
            describe(1 << 20, 2 << 20, Duration::from_secs(5)),
            "2 MiB left",
            "writes go on meanwhile"
        );
    }
}
