//! When requests come: bursts, and idle periods between them.

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::description::Arrivals;
use super::spread::{Sampler, Spread};

/// The longest idle period over the shortest. Idle periods of disks spread over orders of magnitude; log-uniform over
/// three of them is an assumption.
const IDLE_RATIO: f64 = 1000.0;

/// Draws the times between requests, in nanoseconds.
pub struct Gaps {
    /// Chance that a request is the last of its burst.
    ends: f64,
    within: Sampler,
    idle: Sampler,
}

impl Gaps {
    pub fn new(arrivals: &Arrivals, requests: u64) -> Gaps {
        let gaps = requests.saturating_sub(1).max(1) as f64;
        let mean = arrivals.seconds * 1e9 / gaps;
        if let Some(spread) = &arrivals.gaps_ns {
            let all = Sampler::smooth(&Spread { mean, ..spread.clone() });
            return Gaps { ends: 0.0, within: all.clone(), idle: all };
        }
        let ends = 1.0 / arrivals.burst_requests;
        let within = (arrivals.within_ms * 1e6).min(mean);
        let idle = (mean - within * (1.0 - ends)) / ends;
        let low = idle * IDLE_RATIO.ln() / (IDLE_RATIO - 1.0);
        Gaps {
            ends,
            within: Sampler::Memoryless { mean: within },
            idle: Sampler::Smooth(vec![(low, 0.0), (low * IDLE_RATIO, 1.0)]),
        }
    }

    pub fn next(&self, rng: &mut ChaCha8Rng) -> f64 {
        let ends = rng.random::<f64>() < self.ends;
        if ends { self.idle.draw(rng) } else { self.within.draw(rng) }
    }
}
