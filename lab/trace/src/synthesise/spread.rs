//! Distributes a quantity of a description, and draws from it.
//!
//! A description has a mean, or a median and a mean, and the shape of the distribution by points. Where there is a mean alone,
//! the quantity is memoryless; where there are a median and a mean, it is log-uniform on each side of the median,
//! since intervals between accesses spread over orders of magnitude. Points give the shape; a median and a mean beside
//! them are met by stretching it.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::figures::Distribution;

/// Below the median, values reach down to this part of it.
const LOW_PART: f64 = 1e-3;

/// The highest power to which values above a median are raised, to move their mean.
const POWER_MAX: f64 = 40.0;

/// The highest power by which measured sizes are weighed anew, to move their mean a little.
const TILT_MAX: f64 = 2.0;

/// Distribution of a quantity, as a description has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spread {
    pub mean: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median: Option<f64>,
    /// (value, share of the quantity that is at most that value), ascending; the last share is 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<(f64, f64)>,
}

impl Spread {
    /// A distribution that was measured.
    pub fn like(measured: &Distribution) -> Spread {
        Spread {
            mean: measured.mean,
            median: Some(measured.median as f64),
            points: measured.cumulative.clone(),
        }
    }

    pub(super) fn check(&self, what: &str) -> Result<(), String> {
        let fine = self.mean.is_finite()
            && self.mean >= 0.0
            && self.median.is_none_or(|m| m.is_finite() && m >= 0.0);
        if !fine {
            return Err(format!("{what}: mean and median are numbers of zero or more"));
        }
        let ascends = self.points.windows(2).all(|two| two[0].0 <= two[1].0 && two[0].1 <= two[1].1);
        let whole = self.points.last().is_none_or(|last| (last.1 - 1.0).abs() < 1e-6);
        if !ascends || !whole {
            return Err(format!("{what}: points ascend in value and in share, up to a share of 1"));
        }
        Ok(())
    }
}

/// Draws values.
#[derive(Clone, Debug)]
pub enum Sampler {
    /// Memoryless: exponential.
    Memoryless { mean: f64 },
    /// Log-linear between points of (value, cumulative share).
    Smooth(Vec<(f64, f64)>),
    /// Only the values of the points.
    Steps(Vec<(f64, f64)>),
}

impl Sampler {
    /// For a quantity that is continuous, or nearly so.
    pub fn smooth(spread: &Spread) -> Sampler {
        let median = spread.median.filter(|&median| median > 0.0);
        match (median, spread.points.is_empty()) {
            (None, true) => Sampler::Memoryless { mean: spread.mean },
            (None, false) => Sampler::Smooth(scaled(&spread.points, spread.mean)),
            (Some(median), true) => {
                let low = (median * LOW_PART).max(median.min(1.0));
                let shape = [(low, 0.0), (median, 0.5), (median * std::f64::consts::E, 1.0)];
                Sampler::Smooth(stretched(&shape, median, spread.mean))
            }
            (Some(median), false) => Sampler::Smooth(stretched(&spread.points, median, spread.mean)),
        }
    }

    /// For sizes: those that were measured, and no others between them.
    pub fn steps(spread: &Spread) -> Sampler {
        if spread.points.is_empty() { Sampler::smooth(spread) } else { Sampler::Steps(tilted(spread)) }
    }

    pub fn draw(&self, rng: &mut ChaCha8Rng) -> f64 {
        let u: f64 = rng.random();
        match self {
            Sampler::Memoryless { mean } => -(1.0 - u).ln() * mean,
            Sampler::Steps(points) => points[at(points, u)].0,
            Sampler::Smooth(points) => between(points, u),
        }
    }
}

/// The points of a spread, with their weights multiplied by a power of their values such that the mean is the spread's.
fn tilted(spread: &Spread) -> Vec<(f64, f64)> {
    let with = |power: f64| {
        let (mut before, mut sum, mut product) = (0.0, 0.0, 0.0);
        let weigh = |&(value, share): &(f64, f64)| {
            let weight = (share - before).max(0.0) * value.max(1.0).powf(power);
            (before, sum, product) = (share, sum + weight, product + weight * value);
            (value, sum)
        };
        let mut points: Vec<(f64, f64)> = spread.points.iter().map(weigh).collect();
        points.iter_mut().for_each(|point| point.1 /= sum);
        (product / sum, points)
    };
    let (mut under, mut over) = (-TILT_MAX, TILT_MAX);
    for _ in 0..40 {
        let middle = (under + over) / 2.0;
        if with(middle).0 < spread.mean { under = middle } else { over = middle }
    }
    with((under + over) / 2.0).1
}

/// The first point whose share is above `u`.
fn at(points: &[(f64, f64)], u: f64) -> usize {
    points.partition_point(|point| point.1 <= u).min(points.len() - 1)
}

/// The mean of a log-uniform quantity.
fn log_mean(from: f64, to: f64) -> f64 {
    if from <= 0.0 || to <= from * (1.0 + 1e-9) { (from + to) / 2.0 } else { (to - from) / (to / from).ln() }
}

fn mean_of_smooth(points: &[(f64, f64)]) -> f64 {
    let first = points.first().map_or(0.0, |&(value, share)| value * share);
    let between = |two: &[(f64, f64)]| log_mean(two[0].0, two[1].0) * (two[1].1 - two[0].1);
    first + points.windows(2).map(between).sum::<f64>()
}

/// The points with their values multiplied such that they have the mean.
fn scaled(points: &[(f64, f64)], mean: f64) -> Vec<(f64, f64)> {
    let factor = mean / mean_of_smooth(points).max(f64::MIN_POSITIVE);
    points.iter().map(|&(value, share)| (value * factor, share)).collect()
}

/// The points with another median and mean: below the median values are multiplied, above it their distance from it, as
/// a ratio, is raised to a power.
fn stretched(points: &[(f64, f64)], median: f64, mean: f64) -> Vec<(f64, f64)> {
    let middle = between(points, 0.5);
    if middle <= 0.0 {
        return scaled(points, mean);
    }
    let with = |power: f64| {
        let below = points.iter().filter(|point| point.1 < 0.5);
        let below = below.map(|&(value, share)| (value * median / middle, share));
        let above = points.iter().filter(|point| point.1 > 0.5);
        let above = above.map(|&(value, share)| (median * (value / middle).max(1.0).powf(power), share));
        below.chain([(median, 0.5)]).chain(above).collect::<Vec<_>>()
    };
    let (mut under, mut over) = (0.0, POWER_MAX);
    for _ in 0..60 {
        let power = (under + over) / 2.0;
        if mean_of_smooth(&with(power)) < mean { under = power } else { over = power }
    }
    with((under + over) / 2.0)
}

/// The value that so large a share is at most.
fn between(points: &[(f64, f64)], share: f64) -> f64 {
    let right = at(points, share);
    let (to, until) = points[right];
    let (from, since) = if right == 0 { (to, 0.0) } else { points[right - 1] };
    let part = if until > since { (share - since) / (until - since) } else { 1.0 };
    if from > 0.0 { from * (to / from).powf(part) } else { to * part }
}

#[cfg(test)]
mod tests {
    use rand_chacha::rand_core::SeedableRng;

    use super::*;

    fn drawn(sampler: &Sampler) -> (f64, f64) {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        let mut values: Vec<f64> = (0..40_000).map(|_| sampler.draw(&mut rng)).collect();
        values.sort_unstable_by(f64::total_cmp);
        (values[values.len() / 2], values.iter().sum::<f64>() / values.len() as f64)
    }

    #[test]
    fn a_median_and_a_mean_are_met() {
        for (median, mean) in [(100.0, 3249.3), (12.0, 1365.7), (26.0, 17155.0), (5.0, 5.5)] {
            let got = drawn(&Sampler::smooth(&Spread { mean, median: Some(median), points: Vec::new() }));
            assert!((got.0 / median - 1.0).abs() < 0.05, "median {median}: {got:?}");
            assert!((got.1 / mean - 1.0).abs() < 0.05, "mean {mean}: {got:?}");
        }
    }

    #[test]
    fn a_shape_is_stretched_to_a_median_and_a_mean() {
        let points = vec![(1.0, 0.0), (50.0, 0.5), (800.0, 0.9), (20_000.0, 1.0)];
        let sampler = Sampler::smooth(&Spread { mean: 3249.3, median: Some(100.0), points });
        let got = drawn(&sampler);
        assert!((got.0 / 100.0 - 1.0).abs() < 0.05 && (got.1 / 3249.3 - 1.0).abs() < 0.05, "{got:?}");
        let Sampler::Smooth(points) = sampler else { panic!("a quantity with a median is smooth") };
        assert_eq!(points[0], (2.0, 0.0), "what is below the median keeps its ratios");
        assert_eq!(points[2].1, 0.9, "and what is above it its share");
    }

    #[test]
    fn points_are_followed() {
        let points = vec![(512.0, 0.25), (4096.0, 0.75), (65536.0, 1.0)];
        let mean = 0.25 * 512.0 + 0.5 * 4096.0 + 0.25 * 65536.0;
        let spread = Spread { mean, median: Some(4096.0), points };
        let got = drawn(&Sampler::steps(&spread));
        assert_eq!(got.0, 4096.0);
        assert!((got.1 / mean - 1.0).abs() < 0.02, "{got:?} for {mean}");
        assert!((drawn(&Sampler::smooth(&spread)).1 / mean - 1.0).abs() < 0.03);
    }
}
