//! Carries experiments out: all their points on some threads, then each experiment's conclusion.
//!
//! The threads take points from one list, so that a long experiment does not wait for another's last point. A point knows
//! its seed and nothing of the others, so the results do not depend on which thread took it, or when.

use std::collections::BTreeMap;
use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::experiments::{REGISTRY, find};
use crate::jobs::each_in_parallel;
use crate::plot::one_colour_each;
use crate::{
    Claim, Count, Experiment, Findings, Group, LabError, Overrides, Point, Sample, Samples, Settings,
};

#[derive(Clone, Debug)]
pub struct RunOptions {
    pub seed: u64,
    /// Seeds from the first on, by which "more" and "less" are judged; as the experiment says, if absent.
    pub seeds: Option<usize>,
    /// Threads.
    pub jobs: usize,
    pub overrides: Overrides,
    /// Shows a bar on standard error.
    pub progress: bool,
    /// Name of the program that runs them.
    pub build: String,
}

/// The result of an experiment, as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub experiment: String,
    pub group: Group,
    pub source: String,
    pub title: String,
    pub about: String,
    /// Program that measured.
    #[serde(default)]
    pub build: String,
    pub seed: u64,
    /// The parameters that the user set.
    pub changed: BTreeMap<String, String>,
    pub findings: Findings,
    pub samples: Samples,
    /// Samples of the seeds after the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_samples: Vec<Samples>,
}

impl Outcome {
    /// The parameters that the user set, as on the command line; none where there are none.
    pub fn set(&self) -> Option<String> {
        let set: Vec<String> = self.changed.iter().map(|(key, value)| format!("{key}={value}")).collect();
        (!set.is_empty()).then(|| set.join(" "))
    }

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

/// Work on an experiment: the samples of each seed, and how many are left to measure.
struct Running {
    experiment: &'static Experiment,
    settings: Settings,
    samples: Vec<Samples>,
    left: usize,
    outcome: Option<Outcome>,
}

impl Running {
    /// Takes a sample; true if it was the last one.
    fn take(&mut self, seed: usize, key: String, sample: Sample) -> bool {
        let name = self.experiment.name;
        let former = self.samples[seed].0.insert(key.clone(), sample);
        assert!(former.is_none(), "{name}: two points are called {key}");
        self.left -= 1;
        self.left == 0
    }

    fn conclude(&mut self, build: &str) -> Result<&Outcome, LabError> {
        let outcome = conclude(self.experiment, &self.settings, std::mem::take(&mut self.samples), build)?;
        Ok(self.outcome.insert(outcome))
    }
}

/// Runs what a name means; see `select`.
pub fn run(name: &str, options: &RunOptions) -> Result<Vec<Outcome>, LabError> {
    run_each(name, options, &|_| Ok(()))
}

/// Runs what a name means, and hands over each result as soon as it is there.
pub fn run_each(
    name: &str,
    options: &RunOptions,
    ended: &(dyn Fn(&Outcome) -> Result<(), LabError> + Sync),
) -> Result<Vec<Outcome>, LabError> {
    let chosen = select(name)?;
    check_keys(&chosen, &options.overrides)?;
    let (mut running, mut work) = (Vec::new(), Vec::new());
    for (index, experiment) in chosen.into_iter().enumerate() {
        let given = Settings::new(experiment.params, &options.overrides, options.seed);
        let settings = given.of(experiment.paper);
        let seeds = options.seeds.or(experiment.seeds).unwrap_or(1).max(1);
        let before = work.len();
        for seed in 0..seeds {
            let points = (experiment.plan)(&settings.with_seed(seed))?;
            work.extend(points.into_iter().map(|point| (index, seed, point)));
        }
        let (samples, left) = (vec![Samples::default(); seeds], work.len() - before);
        running.push(Running { experiment, settings, samples, left, outcome: None });
    }
    for running in running.iter_mut().filter(|running| running.left == 0) {
        ended(running.conclude(&options.build)?)?;
    }
    let bar = bar(work.len(), options.progress);
    let (one_at_a_time, running) = ("no thread panics with the lock", Mutex::new(running));
    // An error of one point is told at once, not after the hours that the other points take.
    let measure = |(index, seed, point): (usize, usize, Point)| -> Result<(), LabError> {
        bar.set_message(point.key.clone());
        let sample = (point.job)()?;
        let running = &mut running.lock().expect(one_at_a_time)[index];
        if running.take(seed, point.key, sample) {
            ended(running.conclude(&options.build)?)?;
        }
        bar.inc(1);
        Ok(())
    };
    let measured = each_in_parallel(options.jobs, work, measure);
    bar.finish_and_clear();
    measured?;
    let running = running.into_inner().expect(one_at_a_time);
    Ok(running.into_iter().filter_map(|running| running.outcome).collect())
}

/// Draws the conclusions again from what was measured, by the claims and rules of this program.
pub fn judge_again(outcome: Outcome) -> Result<Outcome, LabError> {
    let experiment = find(&outcome.experiment)?;
    let changed: Vec<String> = outcome.changed.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let overrides = Overrides::parse(changed.iter().map(String::as_str))?;
    let settings = Settings::new(experiment.params, &overrides, outcome.seed).of(experiment.paper);
    let samples: Vec<Samples> = std::iter::once(outcome.samples).chain(outcome.more_samples).collect();
    let planned = (experiment.plan)(&settings)?;
    let is_there = |point: &Point| samples.iter().all(|samples| samples.has(&point.key));
    if let Some(point) = planned.iter().find(|point| !is_there(point)) {
        let name = experiment.name;
        return Err(LabError::setup(format!(
            "the results of {name} have no \"{}\": run {name} again",
            point.key
        )));
    }
    conclude(experiment, &settings, samples, &outcome.build)
}

fn conclude(
    experiment: &Experiment,
    settings: &Settings,
    samples: Vec<Samples>,
    build: &str,
) -> Result<Outcome, LabError> {
    let each = samples.iter().enumerate();
    let each = each.map(|(seed, samples)| (experiment.conclude)(&settings.with_seed(seed), samples));
    let mut others = each.collect::<Result<Vec<Findings>, LabError>>()?;
    let mut findings = others.remove(0);
    for (index, claim) in findings.claims.iter_mut().enumerate() {
        let says_more = claim.says_more();
        assert!(
            !says_more || experiment.seeds.is_some(),
            "{}: its file says no number of seeds",
            experiment.name
        );
        let same: Vec<Option<&Claim>> = others.iter().map(|other| other.claims.get(index)).collect();
        match same.is_empty() {
            true => {}
            false if says_more => claim.judge_over_seeds(&same),
            false => claim.judge_noise(&same),
        }
        // It is not stored: results are the same when they are read again.
        claim.excess.clear();
    }
    one_colour_each(&mut findings.plots);
    let changed = settings.changed();
    if !changed.is_empty() {
        // Reasons were found with the experiment's own parameters.
        let reasons = findings.claims.iter_mut().filter_map(|claim| claim.reason.as_mut());
        reasons.for_each(|reason| reason.insert_str(0, "(with no parameter set) "));
    }
    let mut samples = samples.into_iter();
    Ok(Outcome {
        experiment: experiment.name.to_owned(),
        group: experiment.group,
        source: experiment.source.to_owned(),
        title: experiment.title.to_owned(),
        about: experiment.about.to_owned(),
        build: build.to_owned(),
        seed: settings.seed,
        changed,
        findings,
        samples: samples.next().unwrap_or_default(),
        more_samples: samples.collect(),
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
