//! Draws the arrivals of requests: alone or in bursts, and idle periods between them.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::description::Arrivals;
use super::spread::{Sampler, Spread};

/// Draws the times between requests, in nanoseconds.
pub struct Gaps {
    /// Chance that what comes after an idle period is a burst and not a request alone.
    bursts: f64,
    /// Chance that a request is the last of its burst.
    ends: f64,
    in_burst: bool,
    within: Sampler,
    idle: Sampler,
}

impl Gaps {
    pub fn new(arrivals: &Arrivals, requests: u64) -> Gaps {
        let gaps = requests.saturating_sub(1).max(1) as f64;
        let mean = arrivals.seconds * 1e9 / gaps;
        if let Some(spread) = &arrivals.gaps_ns {
            let all = Sampler::smooth(&Spread { mean, ..spread.clone() });
            return Gaps { bursts: 0.0, ends: 1.0, in_burst: false, within: all.clone(), idle: all };
        }
        let ends = 1.0 / arrivals.burst_requests;
        let (starts, alone) = (arrivals.burst_share * ends, 1.0 - arrivals.burst_share);
        // Of all gaps, so many are idle periods; the others are within bursts.
        let idle_gaps = starts + alone;
        let within = (arrivals.within_ms * 1e6).min(mean);
        let idle = (mean - within * (1.0 - idle_gaps)) / idle_gaps;
        Gaps {
            bursts: starts / idle_gaps,
            ends,
            in_burst: false,
            within: Sampler::Memoryless { mean: within },
            idle: Sampler::Memoryless { mean: idle },
        }
    }

    pub fn next(&mut self, rng: &mut ChaCha8Rng) -> f64 {
        if self.in_burst && rng.random::<f64>() >= self.ends {
            return self.within.draw(rng);
        }
        self.in_burst = rng.random::<f64>() < self.bursts;
        self.idle.draw(rng)
    }
}
