//! Searches for the candidate to recommend. Every figure is measured with the whole trace; nothing is guessed.
//!
//! The candidates of a medium are a table of sizes and settings. First all sizes are measured with the default settings. Then, from the
//! best of each medium and from the recommended one, the search goes to its neighbours: the other settings at its size, and other sizes
//! with its settings, half and double of it among them. It ends when all of these are measured. Sizes go on above the largest one as long
//! as the best is at that end, or a larger cache was worse than a smaller one, so that more may still come (a log that is never full
//! destages less than one that is).

use std::collections::BTreeSet;

use clap::ValueEnum;
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use super::candidates::{Candidate, Grid, Setting};
use super::measure::{Measured, measure};
use crate::failure::Failure;
use crate::jobs::in_parallel;
use crate::load::Workload;

/// Worse than the best by this share at most: another week, or half of this one, may put them in the other order.
pub const ALIKE: f64 = 0.06;
/// Worse by more is told apart even where the parts of the trace differ by as much: somebody would wait for it.
const ALIKE_MAX: f64 = 0.25;
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
    pub jobs: usize,
    /// The whole table is measured, too.
    pub verify: bool,
}

/// A candidate that was measured.
#[derive(Clone, Debug)]
pub struct Tried {
    pub candidate: Candidate,
    pub measured: Measured,
    /// The objective.
    pub value: f64,
}

/// Result of a search.
#[derive(Clone, Debug)]
pub struct Found {
    /// The cheapest first; the first is no cache.
    pub tried: Vec<Tried>,
    /// No cache, and the drive's own write cache on: what a power cut takes is another question, so it is never recommended.
    pub as_sold: Option<Tried>,
    pub recommended: usize,
    pub best: usize,
    /// Not to be told from the best: within 6 % of it, or within what parts of the trace differ by. The cheaper and simpler ones first.
    pub either: Vec<usize>,
    pub verified: Option<Verified>,
}

/// The whole table, measured.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    /// By how much the recommendation is worse than the best of the table.
    pub worse_percent: f64,
    pub best: String,
    pub candidates: usize,
}

struct Search<'a> {
    setting: &'a Setting,
    workload: &'a Workload,
    options: SearchOptions,
    grid: Grid,
    tried: Vec<Tried>,
    bar: &'a ProgressBar,
}

/// Searches the candidates.
pub fn search(
    setting: &Setting,
    workload: &Workload,
    grid: Grid,
    options: SearchOptions,
    bar: &ProgressBar,
) -> Result<Found, Failure> {
    let mut search = Search { setting, workload, options, grid, tried: Vec::new(), bar };
    bar.set_length(0);
    let as_sold =
        setting.drive.rotating().filter(|drive| drive.write_buffer_sectors() > 0).map(|_| Candidate::AS_SOLD);
    let as_sold = search.measure(&Vec::from_iter(as_sold))?.pop();
    search.run(search.grid.first())?;
    loop {
        let open = search.open();
        if open.is_empty() {
            break;
        }
        search.run(open)?;
    }
    let (recommended, _) = search.decide();
    let recommended = search.tried[recommended].clone();
    let mut verified = None;
    if options.verify {
        search.run(search.grid.all())?;
        verified = Some(search.verify(&recommended));
    }
    let (_, best) = search.decide();
    let place = |tried: &Tried| tried.candidate == recommended.candidate;
    Ok(Found {
        recommended: search.tried.iter().position(place).expect("it was measured"),
        best,
        either: search.either(best),
        tried: search.tried,
        as_sold,
        verified,
    })
}

impl Search<'_> {
    fn measure(&self, candidates: &[Candidate]) -> Result<Vec<Tried>, Failure> {
        self.bar.inc_length(candidates.len() as u64);
        in_parallel(self.options.jobs, candidates.len(), |index| {
            let candidate = candidates[index];
            self.bar.set_message(candidate.words());
            let measured = measure(self.setting, &candidate, &self.workload.requests)?;
            self.bar.inc(1);
            Ok(Tried { candidate, value: self.options.objective.of(&measured), measured })
        })
    }

    /// Measures those that were not yet.
    fn run(&mut self, mut candidates: Vec<Candidate>) -> Result<(), Failure> {
        candidates.retain(|candidate| self.find(candidate).is_none());
        let measured = self.measure(&candidates)?;
        self.tried.extend(measured);
        self.tried.sort_by_key(|tried| tried.candidate.order());
        Ok(())
    }

    fn find(&self, candidate: &Candidate) -> Option<&Tried> {
        self.tried.iter().find(|tried| tried.candidate == *candidate)
    }

    /// Neighbours, that were not measured, of the best of each medium and of the recommended one.
    fn open(&mut self) -> Vec<Candidate> {
        let mut from: Vec<Candidate> =
            self.grid.media().filter_map(|medium| self.best_where(|one| one.medium == medium)).collect();
        from.push(self.tried[self.decide().0].candidate);
        let mut open = BTreeSet::new();
        for candidate in from {
            let values = |bytes: u64| Some(self.find(&Candidate { bytes, ..candidate })?.value);
            let sizes = self.grid.sizes(candidate.medium);
            let sized: Vec<(u64, f64)> =
                sizes.iter().filter_map(|&bytes| Some((bytes, values(bytes)?))).collect();
            if sized.len() == sizes.len() && self.goes_on(&sized) {
                self.grid.go_on(candidate.medium);
            }
            let near = self.grid.neighbours(&candidate);
            open.extend(
                near.into_iter().filter(|near| self.find(near).is_none()).map(|near| (near.order(), near)),
            );
        }
        open.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// True if sizes above the largest one, by the values of all so far, may be better by more than what counts as the same.
    fn goes_on(&self, sized: &[(u64, f64)]) -> bool {
        let within = 1.0 + self.options.within;
        let Some((&(_, last), smaller)) = sized.split_last() else { return false };
        let best = smaller.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
        last * within < best || sized.windows(2).any(|pair| pair[1].1 > pair[0].1 * within)
    }

    fn best_where(&self, is_meant: impl Fn(&Candidate) -> bool) -> Option<Candidate> {
        let meant = self.tried.iter().filter(|tried| is_meant(&tried.candidate));
        meant.min_by(|a, b| a.value.total_cmp(&b.value)).map(|tried| tried.candidate)
    }

    /// Chooses the cheapest of those that are as good as the best, and the best.
    fn decide(&self) -> (usize, usize) {
        let all = || self.tried.iter().enumerate().map(|(index, tried)| (tried.value, index));
        let (value, best) =
            all().min_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))).expect("no cache was measured");
        let mut good = all().filter(|one| one.0 <= value * (1.0 + self.options.within));
        // The cheaper ones come first, and of one cost the simpler ones.
        (good.next().expect("the best is one of them").1, best)
    }

    /// Returns the candidates that cannot be told from the best.
    fn either(&self, best: usize) -> Vec<usize> {
        let best = &self.tried[best];
        let alike = |tried: &Tried| {
            tried.value <= best.value * (1.0 + ALIKE)
                || (tried.value <= best.value * (1.0 + ALIKE_MAX) && self.differs_by_chance(tried, best))
        };
        (0..self.tried.len()).filter(|&index| alike(&self.tried[index])).collect()
    }

    /// True if the difference of two mean response times, over the parts of the trace, is within its interval of 95 %.
    fn differs_by_chance(&self, one: &Tried, other: &Tried) -> bool {
        if self.options.objective != Objective::Mean {
            return false;
        }
        let parts = one.measured.parts_ms.iter().zip(other.measured.parts_ms);
        let differences: Vec<f64> = parts.map(|(one, other)| one - other).collect();
        let (mean, half) = dcd_sim::interval(&differences);
        mean.abs() <= half
    }

    fn verify(&self, recommended: &Tried) -> Verified {
        let best = &self.tried[self.decide().1];
        Verified {
            worse_percent: 100.0 * (recommended.value / best.value - 1.0),
            best: best.candidate.words(),
            candidates: self.tried.len(),
        }
    }
}

/// By how much parts of the trace are faster with a cache than without: the least and the most.
pub fn speedups(parts: &[f64], plain: &[f64]) -> (f64, f64) {
    let each = parts.iter().zip(plain).map(|(part, plain)| plain / part.max(TIME_FLOOR_MS));
    each.fold((f64::INFINITY, 0.0), |(low, high), times| (f64::min(low, times), f64::max(high, times)))
}
