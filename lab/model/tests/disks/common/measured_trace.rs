//! Checks a drive file against a real drive: the same requests, and how far apart the response times are.
//!
//! A measured trace has one line for each request: `R` or `W`, a word that is not used, the first sector, the number of
//! sectors, the response time in microseconds, and the time in microseconds that the host waited before it sent the next
//! request. One request is in flight at a time.
//!
//! The *demerit figure* (Ruemmler and Wilkes, "An introduction to disk drive modeling", IEEE Computer 27(3), 1994) is the
//! root mean square of the horizontal distance between the two distributions of response times. It is taken here at steps
//! of 0.0001 of the distribution.

use dcd_engine::{Extent, Lba, Nanos};

use dcd_model::{Access, Controller, Drive, Served};

/// Steps in which the two distributions are compared.
const STEPS: u32 = 10_000;

/// One request to a real drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    pub write: bool,
    pub extent: Extent,
    pub response: Nanos,
    /// From the answer to the next request.
    pub think: Nanos,
}

/// What is wrong with a measured trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the measured trace: {problem}: write `R|W Hit|Miss LBN BLOCKS RESPONSE_US THINK_US`")]
pub struct MeasuredError {
    pub line: usize,
    pub problem: String,
}

/// Reads a measured trace.
///
/// # Errors
/// At the first line that cannot be understood.
pub fn parse(text: &str) -> Result<Vec<Measured>, MeasuredError> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(index, line)| {
            let complain = |problem: &str| MeasuredError { line: index + 1, problem: problem.to_owned() };
            let words: Vec<&str> = line.split_whitespace().collect();
            let [kind, _, lbn, blocks, response, think] = words[..] else {
                return Err(complain("not six words"));
            };
            let write = match kind {
                "R" => false,
                "W" => true,
                _ => return Err(complain("neither R nor W")),
            };
            let number = |word: &str| word.parse::<u64>().map_err(|_| complain("not a number of sectors"));
            let micros = |word: &str| match word.parse::<f64>() {
                Ok(micros) if (0.0..1e12).contains(&micros) => Ok(Nanos((micros * 1e3).round() as u64)),
                _ => Err(complain("not a time in microseconds")),
            };
            let extent = Extent::new(Lba(number(lbn)?), number(blocks)?);
            if extent.sectors == 0 {
                return Err(complain("no sectors"));
            }
            Ok(Measured { write, extent, response: micros(response)?, think: micros(think)? })
        })
        .collect()
}

/// How a drive serves a measured trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    pub responses: Vec<Nanos>,
    pub seek: Nanos,
    pub rotation: Nanos,
    pub transfer: Nanos,
    pub reads: usize,
    /// Reads that needed nothing from the medium.
    pub read_hits: usize,
}

impl Replay {
    /// The mean response time in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        mean_ms(&self.responses)
    }
}

/// The mean of some times in milliseconds.
pub fn mean_ms(times: &[Nanos]) -> f64 {
    times.iter().map(|time| time.as_millis_f64()).sum::<f64>() / times.len() as f64
}

/// Serves the requests of a measured trace, each sent the measured think time after the answer to the one before it.
/// With `write_cache`, writes may be answered before they are on the medium.
///
/// # Panics
/// Where a request is past the end of the drive.
pub fn replay(drive: &Drive, trace: &[Measured], write_cache: bool) -> Replay {
    let mut controller = Controller::new(drive.clone());
    let none = Nanos::ZERO;
    let mut replay = Replay {
        responses: Vec::with_capacity(trace.len()),
        seek: none,
        rotation: none,
        transfer: none,
        reads: 0,
        read_hits: 0,
    };
    let (mut now, mut idle_since) = (none, none);
    for request in trace {
        controller.rest(idle_since, now, false);
        while controller.take_destaged(now).is_some() {}
        let access = match (request.write, write_cache) {
            (false, _) => Access::Read,
            (true, true) => Access::WriteBehind,
            (true, false) => Access::Write,
        };
        let service = controller.serve(now, now, access, request.extent);
        replay.responses.push(service.end.since(now));
        replay.seek += service.seek;
        replay.rotation += service.rotation;
        replay.transfer += service.transfer;
        replay.reads += usize::from(!request.write);
        replay.read_hits += usize::from(!request.write && service.served == Served::Cache);
        idle_since = service.end;
        now = service.end + request.think;
    }
    replay
}

/// The demerit figure in milliseconds.
pub fn demerit_ms(one: &[Nanos], other: &[Nanos]) -> f64 {
    let sorted = |times: &[Nanos]| {
        let mut times: Vec<f64> = times.iter().map(|time| time.as_millis_f64()).collect();
        times.sort_by(f64::total_cmp);
        times
    };
    let (one, other) = (sorted(one), sorted(other));
    let squares = (0..=STEPS).map(|step| {
        let part = f64::from(step) / f64::from(STEPS);
        (quantile(&one, part) - quantile(&other, part)).powi(2)
    });
    (squares.sum::<f64>() / f64::from(STEPS + 1)).sqrt()
}

/// Straight lines between the sorted values.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * (sorted.len() - 1) as f64;
    let below = place.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (place - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demerit_of_a_shifted_distribution_is_the_shift() {
        let times: Vec<Nanos> = (0..1000).map(|n| Nanos(n * n * 1000)).collect();
        let later: Vec<Nanos> = times.iter().rev().map(|time| *time + Nanos::from_millis(2)).collect();
        assert!(demerit_ms(&times, &times) < 1e-12);
        assert!((demerit_ms(&times, &later) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn a_measured_trace_is_read_and_a_wrong_line_is_told() {
        let text = "W Hit    4583176   4    663.00000  45422.00000\n\nR Miss 10 8 5 0.5\n";
        let read = parse(text).expect("both lines are right");
        assert_eq!(read.len(), 2);
        assert_eq!(read[0].extent, Extent::new(Lba(4_583_176), 4));
        assert_eq!((read[0].write, read[0].response), (true, Nanos::from_micros(663)));
        assert_eq!((read[1].write, read[1].think), (false, Nanos(500)));
        for (text, problem) in [
            ("R Hit 1 2 3\n", "not six words"),
            ("X Hit 1 2 3 4\n", "neither"),
            ("R Hit 1 0 3 4\n", "no sectors"),
            ("R Hit 1 1 -3 4\n", "not a time"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains("line 1") && error.contains(problem), "{error}");
        }
    }
}
