//! Carries experiments out: all their points on some threads, then each experiment's conclusion.
//!
//! The threads take points from one list, so that a long experiment does not wait for another's last point. A point knows
//! its seed and nothing of the others, so the results do not depend on which thread took it, or when.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::experiments::{REGISTRY, find};
use crate::plot::one_colour_each;
use crate::{Count, Experiment, Findings, Group, LabError, Overrides, Point, Sample, Samples, Settings};

/// A point that was measured: the place of its experiment among the chosen ones, its key, and what it gave.
type Measured = (usize, String, Result<Sample, LabError>);

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub seed: u64,
    /// Threads.
    pub jobs: usize,
    pub overrides: Overrides,
    /// Shows a bar on standard error.
    pub progress: bool,
}

/// The result of an experiment, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub experiment: String,
    pub group: Group,
    pub source: String,
    pub title: String,
    pub about: String,
    pub seed: u64,
    /// The parameters that the user set.
    pub changed: BTreeMap<String, String>,
    pub findings: Findings,
    pub samples: Samples,
}

impl Outcome {
    pub fn count(&self) -> Count {
        Count::of(&self.findings.claims)
    }
}

/// The experiments that a name on the command line means: one of them, a group, or all.
pub fn select(name: &str) -> Result<Vec<&'static Experiment>, LabError> {
    let of_group = |group| REGISTRY.iter().copied().filter(|e| e.group == group).collect();
    match name {
        "all" => Ok(REGISTRY.clone()),
        "A" => Ok(of_group(Group::A)),
        "B" => Ok(of_group(Group::B)),
        "C" => Ok(of_group(Group::C)),
        "D" => Ok(of_group(Group::D)),
        _ => find(name).map(|experiment| vec![experiment]),
    }
}

/// Runs what a name means; see [`select`].
pub fn run(name: &str, options: &RunOptions) -> Result<Vec<Outcome>, LabError> {
    let chosen = select(name)?;
    check_keys(&chosen, &options.overrides)?;
    let mut settings = Vec::new();
    let mut work = Vec::new();
    for (index, experiment) in chosen.iter().enumerate() {
        let given = Settings::new(experiment.params, &options.overrides, options.seed);
        settings.push(given.of(experiment.paper));
        work.extend((experiment.plan)(&settings[index])?.into_iter().map(|point| (index, point)));
    }
    let bar = bar(work.len(), options.progress);
    let measured = measure(work, options.jobs.max(1), &chosen, &bar)?;
    bar.finish_and_clear();
    let mut outcomes = Vec::new();
    for ((experiment, settings), samples) in chosen.iter().zip(&settings).zip(measured) {
        outcomes.push(conclude(experiment, settings, samples)?);
    }
    Ok(outcomes)
}

/// Draws the conclusions again from what was measured, by the claims and rules of this program.
pub fn judge_again(outcome: Outcome) -> Result<Outcome, LabError> {
    let experiment = crate::experiments::find(&outcome.experiment)?;
    let changed: Vec<String> = outcome.changed.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let overrides = Overrides::parse(changed.iter().map(String::as_str))?;
    let settings = Settings::new(experiment.params, &overrides, outcome.seed).of(experiment.paper);
    let planned = (experiment.plan)(&settings)?;
    if let Some(point) = planned.iter().find(|point| !outcome.samples.has(&point.key)) {
        let name = experiment.name;
        return Err(LabError::setup(format!(
            "the results of {name} have no \"{}\": run {name} again",
            point.key
        )));
    }
    conclude(experiment, &settings, outcome.samples)
}

fn conclude(experiment: &Experiment, settings: &Settings, samples: Samples) -> Result<Outcome, LabError> {
    let mut findings = (experiment.conclude)(settings, &samples)?;
    one_colour_each(&mut findings.plots);
    let changed = settings.changed();
    if !changed.is_empty() {
        // Reasons were found with the experiment's own parameters.
        let reasons = findings.claims.iter_mut().filter_map(|claim| claim.reason.as_mut());
        reasons.for_each(|reason| reason.insert_str(0, "(with no parameter set) "));
    }
    Ok(Outcome {
        experiment: experiment.name.to_owned(),
        group: experiment.group,
        source: experiment.source.to_owned(),
        title: experiment.title.to_owned(),
        about: experiment.about.to_owned(),
        seed: settings.seed,
        changed,
        findings,
        samples,
    })
}

/// A key that nothing of what is run knows is a mistake, and is refused before any work.
fn check_keys(chosen: &[&Experiment], overrides: &Overrides) -> Result<(), LabError> {
    for key in overrides.keys() {
        let mut known: Vec<&str> = chosen.iter().flat_map(|e| e.params.iter().map(|p| p.key)).collect();
        if known.contains(&key) {
            continue;
        }
        known.sort_unstable();
        known.dedup();
        let names: Vec<&str> = chosen.iter().map(|e| e.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(LabError::UnknownParam { experiment: names.join(", "), key: key.to_owned(), known });
    }
    Ok(())
}

fn bar(points: usize, visible: bool) -> ProgressBar {
    let target = if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(points as u64), target);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}, {eta} left  {msg}");
    bar.set_style(style.expect("the template is well-formed"));
    bar
}

/// Measures all points on some threads; the samples of each experiment, in the order of `chosen`.
fn measure(
    work: Vec<(usize, Point)>,
    jobs: usize,
    chosen: &[&Experiment],
    bar: &ProgressBar,
) -> Result<Vec<Samples>, LabError> {
    let mut results = vec![Samples::default(); chosen.len()];
    let queue = Mutex::new(work.into_iter());
    let done: Mutex<Vec<Measured>> = Mutex::new(Vec::new());
    // What is wrong with one point is told at once, and not after the hours that the others take.
    let has_failed = AtomicBool::new(false);
    let take = || {
        let next = queue.lock().expect("no point panics with the lock").next();
        next.filter(|_| !has_failed.load(Ordering::Relaxed))
    };
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let Some((index, point)) = take() {
                    bar.set_message(format!("{} {}", chosen[index].name, point.key));
                    let sample = (point.job)();
                    bar.inc(1);
                    has_failed.fetch_or(sample.is_err(), Ordering::Relaxed);
                    done.lock().expect("no point panics with the lock").push((index, point.key, sample));
                }
            });
        }
    });
    for (index, key, sample) in done.into_inner().expect("no thread is left") {
        let former = results[index].0.insert(key.clone(), sample?);
        assert!(former.is_none(), "{}: two points are called {key}", chosen[index].name);
    }
    Ok(results)
}
