//! Searches for the candidate to recommend: runs all of them under a sample of the workload, and those that could be the best in full.
//!
//! The best few of each medium are run in full first. The objective of another in full is guessed from its objective under the
//! sample, times the ratio of the two in runs on the same medium. The ratios differ from run to run: a guess is an interval,
//! from the least to the largest ratio, and as much wider as they differ. A candidate is run in full as long as it could be
//! better than the best by more than the tolerance, or is cheaper than the one to recommend and as good by its guess. Where the
//! sample saturated a candidate there is no guess: how long its queue is says nothing of a longer trace. Nor is there any where the
//! sample misled about one that was run in full: bursts that are smaller wait less, by a factor that each candidate has for itself.

use std::collections::{BTreeMap, BTreeSet};

use clap::ValueEnum;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::candidates::{Candidate, Medium, Setting};
use super::measure::{Measured, PARTS, measure};
use super::sample::sample;
use crate::failure::Failure;
use crate::jobs::in_parallel;
use crate::load::Workload;

/// A sample is one part in 2^4 at most: of a smaller one too few requests meet.
const SAMPLING_BITS_MAX: u32 = 4;
/// The blocks that the smallest cache keeps under a sample.
const CACHE_BLOCKS_MIN: u64 = 32;
/// Number of candidates that run at once before the next choice; the same on every machine, so that the result is the same.
const ROUND: usize = 4;
/// Number of candidates of each medium that are run in full, independently of the sample.
const FEW: usize = 2;
/// Assumed error of a guess before there are two runs to compare, and its minimum.
const DOUBT_FIRST: f64 = 0.25;
const DOUBT_MIN: f64 = 0.05;
/// Over the square root of the requests in the sample, the least doubt. It was fitted to one synthetic trace of bursts (the test of
/// intervals), where with 5 % alone 25 of 33 guesses were within theirs: no proof for other traces.
const DOUBT_OF_CHANCE: f64 = 6.0;
/// A sample that is off by more than this factor for one candidate, either way, says nothing of others.
const MISLEADS: f64 = 1.5;
/// Worse than the best by this share at most: another week, or half of this one, may put them in the other order.
pub const ALIKE: f64 = 0.06;
/// Worse by more is told apart even where the parts of the trace differ by as much: somebody would wait for it.
const ALIKE_MAX: f64 = 0.25;
/// Student's t for 95 %, with one degree of freedom less than there are parts.
const STUDENT: f64 = 2.131;
const _: () = assert!(PARTS == 16);
/// Times below a microsecond are all the same.
const TIME_FLOOR_MS: f64 = 1e-3;

/// Figure to minimise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// Mean response time of all requests
    Mean,
    /// The response time that 95 % of the requests do not exceed
    P95,
    /// Writes at the disk
    Writes,
    /// The time that the disk is busy
    Busy,
}

impl Objective {
    pub fn of(self, measured: &Measured) -> f64 {
        match self {
            Objective::Mean => measured.mean_ms.max(TIME_FLOOR_MS),
            Objective::P95 => measured.p95_ms.max(TIME_FLOOR_MS),
            Objective::Writes => measured.disk_writes.max(1) as f64,
            Objective::Busy => measured.disk_busy_s.max(TIME_FLOOR_MS),
        }
    }

    pub const fn words(self) -> &'static str {
        match self {
            Objective::Mean => "mean response time",
            Objective::P95 => "95 % response time",
            Objective::Writes => "writes at the disk",
            Objective::Busy => "busy time of the disk",
        }
    }

    /// A value with its unit.
    pub fn text(self, value: f64) -> String {
        match self {
            Objective::Mean | Objective::P95 => format!("{value:.3} ms"),
            Objective::Writes => format!("{value:.0}"),
            Objective::Busy => format!("{value:.1} s"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct SearchOptions {
    pub objective: Objective,
    /// A candidate is as good as the best if it is worse by this share at most.
    pub within: f64,
    /// Maximum number of candidates that are run in full; the grid is, if it is to be verified.
    pub full_max: usize,
    pub jobs: usize,
    pub verify: bool,
    pub sampling: Sampling,
}

/// Thresholds of sampling.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Maximum number of requests over all candidates without sampling.
    pub exact_requests: usize,
    /// A sample keeps so many requests.
    pub requests_min: usize,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { exact_requests: 6_000_000, requests_min: 30_000 }
    }
}

/// A candidate and what is known of it.
#[derive(Clone, Debug)]
pub struct Tried {
    pub candidate: Candidate,
    /// Under the sample; none where there is no sample.
    pub sampled: Option<Measured>,
    pub full: Option<Measured>,
    /// The objective: as measured in full, or as guessed; not a number where the sample saturated it.
    pub value: f64,
    /// Between which values a guess is believed to be.
    pub interval: Option<(f64, f64)>,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// The cheapest first.
    pub tried: Vec<Tried>,
    pub recommended: usize,
    pub best: usize,
    /// Run in full, and not to be told from the best: within 6 % of it, or within what parts of the trace differ by. The cheaper
    /// and simpler ones first.
    pub either: Vec<usize>,
    /// Guesses whose interval overlaps with what is as good as the best.
    pub either_guessed: usize,
    /// Requests in the sample; none where all was run in full.
    pub sample: Option<usize>,
    /// Ratio of sampling: one unit in so many was sampled.
    pub sampled_one_in: u32,
    /// Number of candidates that were run in full to find the result.
    pub runs: usize,
    /// Candidates that could be better, but were not run in full as the limit was reached.
    pub left_open: usize,
    /// The largest relative differences of the sample's guesses that were seen, for each medium.
    pub doubts: BTreeMap<Medium, f64>,
    /// The factor by which the sample misled, if it did.
    pub misled_by: Option<f64>,
    pub verified: Option<Verified>,
}

/// The whole grid in full.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// By how much the recommendation is worse than the best of the grid.
    pub worse_percent: f64,
    pub best: String,
    /// By how much the worst guess of those that the search did not run in full was off.
    pub guess_off_percent_max: f64,
    /// Guesses, and how many of them had what came out within their interval.
    pub guesses: usize,
    pub intervals_held: usize,
}

/// Returns the power of two by which a sample divides the number of requests; 0 without sampling.
fn sampling_bits(workload: &Workload, candidates: &[Candidate], sampling: Sampling) -> u32 {
    let requests = workload.requests.len();
    if requests * candidates.len() <= sampling.exact_requests {
        return 0;
    }
    let in_ram = candidates.iter().filter(|candidate| candidate.medium.in_ram());
    let smallest = in_ram.map(|candidate| candidate.bytes).min();
    let fits = |bits: &u32| {
        requests >> bits >= sampling.requests_min
            && smallest
                .is_none_or(|bytes| bytes >> bits >= CACHE_BLOCKS_MIN * u64::from(workload.block_bytes))
    };
    (1..=SAMPLING_BITS_MAX).rev().find(fits).unwrap_or(0)
}

/// Everything that is measured.
fn measure_all(
    jobs: usize,
    count: usize,
    bar: &ProgressBar,
    run: impl Fn(usize) -> Result<Measured, Failure> + Sync,
) -> Result<Vec<Measured>, Failure> {
    in_parallel(jobs, count, |index| run(index).inspect(|_| bar.inc(1)))
}

struct Search<'a> {
    setting: &'a Setting,
    workload: &'a Workload,
    options: SearchOptions,
    tried: Vec<Tried>,
    bar: &'a ProgressBar,
}

/// Searches the candidates, the cheapest of which comes first.
pub fn search(
    setting: &Setting,
    workload: &Workload,
    candidates: Vec<Candidate>,
    options: SearchOptions,
    bar: &ProgressBar,
) -> Result<Found, Failure> {
    let bits = sampling_bits(workload, &candidates, options.sampling);
    let tried = candidates.into_iter().map(|candidate| Tried {
        candidate,
        sampled: None,
        full: None,
        value: f64::NAN,
        interval: None,
    });
    let mut search = Search { setting, workload, options, tried: tried.collect(), bar };
    let mut sample_requests = None;
    let all: Vec<usize> = (0..search.tried.len()).collect();
    let mut left_open = 0;
    if bits == 0 {
        bar.set_length(all.len() as u64);
        search.run_in_full(&all)?;
    } else {
        sample_requests = Some(search.screen(bits)?);
        left_open = search.race()?;
    }
    let (recommended, best) = search.decide();
    let (either, either_guessed) = search.either(best);
    let (doubts, runs) = (search.doubts(), search.tried.iter().filter(|tried| tried.full.is_some()).count());
    let misled_by = search.misled_by();
    let guesses: Vec<(usize, Guess)> =
        all.iter().filter_map(|&index| Some((index, search.guess(index)?))).collect();
    let mut verified = None;
    if options.verify {
        let rest: Vec<usize> = all.into_iter().filter(|&index| search.tried[index].full.is_none()).collect();
        bar.inc_length(rest.len() as u64);
        search.run_in_full(&rest)?;
        verified = Some(search.verify(recommended, &guesses));
    }
    for index in 0..search.tried.len() {
        let guess = search.guess(index);
        search.tried[index].value = search.full(index).or(guess.map(|guess| guess.value)).unwrap_or(f64::NAN);
        search.tried[index].interval = guess.map(|guess| (guess.low, guess.high));
    }
    Ok(Found {
        doubts,
        misled_by,
        runs,
        tried: search.tried,
        recommended,
        best,
        either,
        either_guessed,
        sample: sample_requests,
        sampled_one_in: 1 << bits,
        left_open,
        verified,
    })
}

impl Search<'_> {
    /// Every candidate under the sample; how many requests that has.
    fn screen(&mut self, bits: u32) -> Result<usize, Failure> {
        let requests = sample(&self.workload.requests, bits);
        self.bar.set_length((self.tried.len() + ROUND) as u64);
        self.bar.set_message("sample");
        let run = |index: usize| measure(self.setting, &self.tried[index].candidate, &requests, bits);
        let measured = measure_all(self.options.jobs, self.tried.len(), self.bar, run)?;
        for (tried, measured) in self.tried.iter_mut().zip(measured) {
            tried.sampled = Some(measured);
        }
        Ok(requests.len())
    }

    fn run_in_full(&mut self, which: &[usize]) -> Result<(), Failure> {
        self.bar.set_message("in full");
        let run = |index: usize| {
            let candidate = &self.tried[which[index]].candidate;
            measure(self.setting, candidate, &self.workload.requests, 0)
        };
        let measured = measure_all(self.options.jobs, which.len(), self.bar, run)?;
        for (&index, measured) in which.iter().zip(measured) {
            self.tried[index].full = Some(measured);
        }
        Ok(())
    }

    /// Runs in full what could be the best; returns how many are left that could.
    fn race(&mut self) -> Result<usize, Failure> {
        let mut round = self.best_of_each_medium();
        let mut runs = 0;
        loop {
            // The first round is run whatever it takes.
            let room = if runs == 0 { round.len() } else { self.options.full_max.saturating_sub(runs) };
            if round.is_empty() || room == 0 {
                return Ok(round.len());
            }
            round.truncate(if runs == 0 { room } else { ROUND.min(room) });
            runs += round.len();
            self.bar.set_length(self.bar.position() + round.len() as u64);
            self.run_in_full(&round)?;
            round = self.open();
        }
    }

    fn sampled(&self, index: usize) -> f64 {
        let sampled = self.tried[index].sampled.as_ref().expect("every candidate was sampled");
        self.options.objective.of(sampled)
    }

    fn full(&self, index: usize) -> Option<f64> {
        self.tried[index].full.as_ref().map(|measured| self.options.objective.of(measured))
    }

    fn medium(&self, index: usize) -> Medium {
        self.tried[index].candidate.medium
    }

    /// The best few of each medium by the sample; of those, no cache, and what the sample saturated only where there is no other.
    fn best_of_each_medium(&self) -> Vec<usize> {
        let mut of_medium: BTreeMap<Medium, Vec<usize>> = BTreeMap::new();
        (0..self.tried.len()).for_each(|index| of_medium.entry(self.medium(index)).or_default().push(index));
        let by_sample = |&a: &usize, &b: &usize| {
            let key = |index| (self.saturated(index), self.sampled(index));
            key(a).0.cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1)).then(a.cmp(&b))
        };
        let best = of_medium.into_values().flat_map(|mut all| {
            all.sort_by(by_sample);
            all.truncate(FEW);
            all
        });
        best.collect()
    }

    fn saturated(&self, index: usize) -> bool {
        self.tried[index].sampled.as_ref().is_some_and(|sampled| sampled.saturated)
    }

    /// Full to sample, of one that ran in both.
    fn ratio(&self, index: usize) -> Option<f64> {
        let known = !self.saturated(index) && self.tried[index].sampled.is_some();
        known.then(|| Some(self.full(index)? / self.sampled(index))).flatten()
    }

    /// The factor by which the sample was wrong about one that was run in full, if it is more than a sample may be.
    fn misled_by(&self) -> Option<f64> {
        let requests = self.tried.first()?.sampled.as_ref()?.requests;
        // There are more writes, and more to do, with more requests, and the same response times.
        let expected = match self.options.objective {
            Objective::Mean | Objective::P95 => 1.0,
            Objective::Writes | Objective::Busy => {
                self.workload.requests.len() as f64 / requests.max(1) as f64
            }
        };
        let ratios = (0..self.tried.len()).filter_map(|index| self.ratio(index));
        let factors = ratios.map(|ratio| (ratio / expected).max(expected / ratio));
        factors.max_by(f64::total_cmp).filter(|factor| *factor > MISLEADS)
    }

    /// The smallest and the largest ratio of full to sample on a medium.
    fn ratios(&self, medium: Medium) -> Option<(f64, f64)> {
        let of_medium = (0..self.tried.len()).filter(|&index| self.medium(index) == medium);
        of_medium.filter_map(|index| self.ratio(index)).fold(None, |range, ratio| {
            let (low, high) = range.unwrap_or((ratio, ratio));
            Some((f64::min(low, ratio), f64::max(high, ratio)))
        })
    }

    fn doubt_min(&self) -> f64 {
        let requests = self.tried[0].sampled.as_ref().map_or(u64::MAX, |sampled| sampled.requests);
        DOUBT_MIN.max(DOUBT_OF_CHANCE / (requests.max(1) as f64).sqrt())
    }

    fn doubts(&self) -> BTreeMap<Medium, f64> {
        let media: BTreeSet<Medium> = self.tried.iter().map(|tried| tried.candidate.medium).collect();
        let runs = |medium: Medium| {
            let run = |&index: &usize| self.medium(index) == medium && self.full(index).is_some();
            (0..self.tried.len()).filter(run).filter(|&index| !self.saturated(index)).count()
        };
        let doubt = |medium| match (self.ratios(medium)?, runs(medium)) {
            (_, 1) => Some((medium, DOUBT_FIRST.max(self.doubt_min()))),
            ((low, high), _) => Some((medium, (high / low - 1.0).max(self.doubt_min()))),
        };
        media.into_iter().filter_map(doubt).collect()
    }

    /// The candidates that are still to be run in full, the most promising first.
    fn open(&self) -> Vec<usize> {
        let (recommended, best) = self.decide();
        let best = self.full(best).expect("the best was run");
        let within = 1.0 + self.options.within;
        let mut open: Vec<(bool, f64, usize)> = Vec::new();
        for index in (0..self.tried.len()).filter(|&index| self.full(index).is_none()) {
            let cheaper = self.tried[index].candidate.cost() < self.tried[recommended].candidate.cost();
            match self.guess(index) {
                Some(Guess { low, value, .. }) => {
                    if low * within < best || (cheaper && value <= best * within) {
                        open.push((false, value, index));
                    }
                }
                // Nothing is known of it but that it looks bad.
                None => open.push((true, self.sampled(index), index)),
            }
        }
        open.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        open.into_iter().map(|(_, _, index)| index).collect()
    }

    /// Chooses among the candidates that were run in full: the cheapest of those that are as good as the best, and the best.
    fn decide(&self) -> (usize, usize) {
        let run = || (0..self.tried.len()).filter_map(|index| Some((self.full(index)?, index)));
        let (best, best_index) =
            run().min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).expect("something was run");
        let good = run().filter(|(value, _)| *value <= best * (1.0 + self.options.within));
        // The grid has the cheaper ones first, and of one cost the simpler ones.
        let recommended = good.map(|(_, index)| index).min().expect("the best is one of them");
        (recommended, best_index)
    }

    /// Returns the candidates that cannot be told from the best, and the number of guesses that could be as good.
    fn either(&self, best: usize) -> (Vec<usize>, usize) {
        let value = self.full(best).expect("the best was run");
        let alike = |&index: &usize| {
            self.full(index).is_some_and(|full| {
                full <= value * (1.0 + ALIKE)
                    || (full <= value * (1.0 + ALIKE_MAX) && self.differs_by_chance(index, best))
            })
        };
        let guessed =
            |&index: &usize| self.guess(index).is_some_and(|guess| guess.low <= value * (1.0 + ALIKE));
        let all = 0..self.tried.len();
        (all.clone().filter(alike).collect(), all.filter(guessed).count())
    }

    /// True if the difference of two mean response times, over the parts of the trace, is within its interval of 95 %.
    fn differs_by_chance(&self, one: usize, other: usize) -> bool {
        let parts = |index: usize| self.tried[index].full.as_ref().map(|measured| measured.parts_ms);
        let (Objective::Mean, Some(one), Some(other)) = (self.options.objective, parts(one), parts(other))
        else {
            return false;
        };
        let differences: Vec<f64> = one.iter().zip(other).map(|(one, other)| one - other).collect();
        let count = PARTS as f64;
        let mean = differences.iter().sum::<f64>() / count;
        let variance = differences.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / (count - 1.0);
        mean.abs() <= STUDENT * (variance / count).sqrt()
    }

    /// The objective in full, guessed; none where it is known, or the sample says nothing.
    fn guess(&self, index: usize) -> Option<Guess> {
        if self.full(index).is_some() || self.saturated(index) || self.misled_by().is_some() {
            return None;
        }
        let medium = self.medium(index);
        let (low, high) = self.ratios(medium)?;
        let (sampled, wider) = (self.sampled(index), 1.0 + self.doubts()[&medium]);
        Some(Guess {
            low: sampled * low / wider,
            value: sampled * (low * high).sqrt(),
            high: sampled * high * wider,
        })
    }

    fn verify(&self, recommended: usize, guesses: &[(usize, Guess)]) -> Verified {
        let (_, best) = self.decide();
        let in_full = |index| self.full(index).expect("all of the grid was run");
        let off = |(index, guess): &(usize, Guess)| (guess.value / in_full(*index) - 1.0).abs();
        let holds = |(index, guess): &&(usize, Guess)| (guess.low..=guess.high).contains(&in_full(*index));
        Verified {
            worse_percent: 100.0 * (in_full(recommended) / in_full(best) - 1.0),
            best: self.tried[best].candidate.words(),
            guess_off_percent_max: 100.0 * guesses.iter().map(off).fold(0.0, f64::max),
            guesses: guesses.len(),
            intervals_held: guesses.iter().filter(holds).count(),
        }
    }
}

/// A guess at an objective, and the interval in which it is believed to be.
#[derive(Clone, Copy, Debug)]
struct Guess {
    low: f64,
    value: f64,
    high: f64,
}
