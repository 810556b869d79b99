//! The time of a revolution: one block is read again and again from the medium, and the times between the ends are whole
//! revolutions.

use dcd_engine::Nanos;

use super::{MeasureError, Probe};

/// Periods that are looked for, in ns: 17,000 to 2,900 revolutions a minute.
const SHORTEST: f64 = 3.5e6;
const LONGEST: f64 = 21e6;
const SAMPLES: usize = 24;
/// Minimum agreement of the ends, 0 to 1. Times without a period agree so well in one case of millions.
const AGREEMENT_MIN: f64 = 0.85;
/// Step of the search as a part of the spread of the samples; smaller steps find no more.
const STEP: f64 = 0.1;
const STEPS_MAX: f64 = 4e6;
const BREAK_MAX: Nanos = Nanos::from_millis(40);
/// Longer and longer breaks make it exact.
const PAUSES: [Nanos; 3] = [Nanos::from_millis(300), Nanos::from_secs(2), Nanos::from_secs(15)];

pub(super) fn measure(probe: &mut Probe<'_>) -> Result<(), MeasureError> {
    let block = probe.sectors / 3 / probe.unit * probe.unit;
    let mut ends = Vec::with_capacity(SAMPLES);
    let mut total = 0.0;
    for sample in 0..SAMPLES {
        probe.progress("rotation", sample as f64 / (SAMPLES + PAUSES.len()) as f64);
        let timed = probe.one(block)?;
        ends.push(timed.end.0 as f64);
        total += timed.took().as_millis_f64();
        // Neither the reads nor the breaks between them have a period.
        let (others, pause) = (probe.evict + probe.random(4), probe.random(BREAK_MAX.0));
        probe.forget(others)?;
        probe.reads.pause(Nanos(pause));
    }
    let first = ends[0];
    ends.iter_mut().for_each(|end| *end -= first);
    let period = period(&ends).ok_or(MeasureError::NoRotation(total / SAMPLES as f64))?;
    probe.revolution = period;
    for pause in PAUSES {
        probe.reads.pause(pause);
        let end = probe.one(block)?.end.0 as f64 - first;
        let turns = (end / probe.revolution).round();
        probe.revolution = end / turns;
        probe.forget(probe.evict)?;
    }
    Ok(())
}

/// Agreement of times with a frequency: 1 where all are whole periods.
fn agreement(times: &[f64], frequency: f64) -> f64 {
    let (mut x, mut y) = (0.0, 0.0);
    for time in times {
        let (sin, cos) = (std::f64::consts::TAU * (time * frequency).fract()).sin_cos();
        x += cos;
        y += sin;
    }
    f64::hypot(x, y) / times.len() as f64
}

/// The longest period of which all times are multiples, if there is one. (Half of it and so on would do as well.)
fn period(times: &[f64]) -> Option<f64> {
    let spread = times.last()?.max(LONGEST);
    let (low, high) = (1.0 / LONGEST, 1.0 / SHORTEST);
    let step = (STEP / spread).max((high - low) / STEPS_MAX);
    let steps = ((high - low) / step) as usize;
    let frequencies = (0..=steps).map(|n| low + n as f64 * step);
    let near = frequencies.max_by(|a, b| agreement(times, *a).total_cmp(&agreement(times, *b)))?;
    let best = top(times, near, step);
    let agrees = agreement(times, best);
    if agrees < AGREEMENT_MIN {
        return None;
    }
    let parts = (1..=(high / low) as u32).rev().map(|part| best / f64::from(part));
    let longest = parts.filter(|part| *part >= low).find(|part| agreement(times, *part) > agrees - 0.05);
    longest.map(|frequency| 1.0 / frequency)
}

/// The top of the hill on which a frequency is.
fn top(times: &[f64], mut frequency: f64, mut step: f64) -> f64 {
    let spread = times.last().copied().unwrap_or(0.0);
    while step * spread > 1e-9 {
        let around = [frequency, frequency - step, frequency + step];
        let best = around
            .into_iter()
            .fold(frequency, |best, f| if agreement(times, f) > agreement(times, best) { f } else { best });
        if best == frequency {
            step /= 2.0;
        }
        frequency = best;
    }
    frequency
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_period_is_the_longest_that_fits_and_jitter_hides_none() {
        let turns = [0.0, 3.0, 8.0, 14.0, 17.0, 29.0, 31.0, 44.0, 57.0, 58.0];
        for rpm in [3600.0, 5400.0, 7200.0, 10_025.0, 15_000.0] {
            let exact = 60e9 / rpm;
            let times: Vec<f64> =
                turns.iter().zip(0..).map(|(n, i)| n * exact + f64::from(i * 37 % 11) * 1e4).collect();
            let found = period(&times).expect("there is one");
            assert!((found / exact - 1.0).abs() < 1e-3, "{rpm}: {found}");
        }
        let without: Vec<f64> = (0..16u32).map(|n| f64::from(n * n * n % 97) * 1.37e6).collect();
        assert_eq!(period(&without), None);
    }
}
