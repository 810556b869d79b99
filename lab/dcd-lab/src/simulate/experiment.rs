//! A file that holds a whole experiment: the stacks, the options of `dcd simulate`, and claims about the figures.

use std::path::Path;

use dcd_sim::interval;
use serde::Deserialize;
use serde_json::Value;
use toml::Value as Setting;

use super::report::Report;
use crate::failure::Failure;

/// Options that name a file. It is looked for beside the experiment's.
const FILES: [&str; 2] = ["load", "trace"];

#[derive(Debug, Default, Deserialize)]
pub struct Experiment {
    /// Paths of stack files, from the experiment's directory.
    stacks: Vec<String>,
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
    /// Options of `dcd simulate` by their long names.
    #[serde(flatten)]
    options: toml::Table,
}

impl Experiment {
    pub fn read(path: &Path) -> Result<Experiment, Failure> {
        let named = |e: String| Failure::Failed(format!("{}: {}", path.display(), e.trim_end()));
        let text = std::fs::read_to_string(path).map_err(|e| named(e.to_string()))?;
        let experiment: Experiment = toml::from_str(&text).map_err(|e| named(e.to_string()))?;
        match experiment.claims.iter().find(|claim| claim.at_least.is_none() && claim.at_most.is_none()) {
            Some(claim) => Err(named(format!("claim \"{}\": write at-least, at-most or both", claim.says))),
            None => Ok(experiment),
        }
    }

    /// The words of the command line that it stands for, after the command.
    pub fn arguments(&self, place: &Path) -> Vec<String> {
        let beside = |name: &str| place.with_file_name(name).display().to_string();
        let mut words: Vec<String> = self.stacks.iter().map(|stack| beside(stack)).collect();
        for (option, value) in &self.options {
            let values = match value {
                Setting::Array(values) => values.as_slice(),
                Setting::Boolean(false) => &[],
                value => std::slice::from_ref(value),
            };
            words.extend(values.iter().map(|value| match value {
                Setting::Boolean(_) => format!("--{option}"),
                Setting::String(name) if FILES.contains(&option.as_str()) => {
                    format!("--{option}={}", beside(name))
                }
                Setting::String(text) => format!("--{option}={text}"),
                value => format!("--{option}={value}"),
            }));
        }
        words
    }
}

/// A sentence about a figure of one stack, or about how many times that of another it is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Claim {
    says: String,
    /// The path of a number in the stack's part of `--json`.
    figure: String,
    /// The stack as the report names it; the experiment's directory may be left out.
    of: String,
    over: Option<String>,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

/// Verdict on a claim.
pub struct Judged<'a> {
    pub says: &'a str,
    pub holds: bool,
    /// The mean over the seeds, and how far the true mean is from it at most, in 95 of 100 cases; 0 with one seed.
    pub value: f64,
    pub half: f64,
    pub accepted: String,
}

impl Claim {
    /// Judges it: with several seeds, the whole interval has to lie in the range.
    pub fn judge(&self, report: &Report<'_>) -> Result<Judged<'_>, Failure> {
        let wrong = |why: String| Failure::Failed(format!("claim \"{}\": {why}", self.says));
        let values = |name: &str| -> Result<Vec<f64>, Failure> {
            let is_named = |ran: &str| ran == name || ran.ends_with(&format!("/{name}"));
            let names: Vec<&str> = report.ran.iter().map(|ran| ran.name.as_str()).collect();
            let Some(stack) = names.iter().position(|ran| is_named(ran)) else {
                return Err(wrong(format!("there is no stack \"{name}\", but {}", names.join(", "))));
            };
            let number = |run: Value| {
                let found = self.figure.split('.').try_fold(&run, |value, key| value.get(key));
                found.and_then(Value::as_f64).ok_or_else(|| {
                    wrong(format!(
                        "\"{}\" is no number of the stack \"{name}\"; --json shows them",
                        self.figure
                    ))
                })
            };
            report.runs(stack).map(|ran| number(ran.json())).collect()
        };
        let mut all = values(&self.of)?;
        if let Some(other) = &self.over {
            all.iter_mut().zip(values(other)?).for_each(|(value, base)| *value /= base);
        }
        let (value, half) = if all.len() > 1 { interval(&all) } else { (all[0], 0.0) };
        let above = self.at_least.is_none_or(|least| value - half >= least);
        let below = self.at_most.is_none_or(|most| value + half <= most);
        let accepted = match (self.at_least, self.at_most) {
            (Some(least), Some(most)) => format!("{least} to {most}"),
            (Some(least), None) => format!("at least {least}"),
            (None, most) => format!("at most {}", most.unwrap_or(f64::INFINITY)),
        };
        // No number is in no range.
        Ok(Judged { says: &self.says, holds: above && below && value.is_finite(), value, half, accepted })
    }
}

impl Judged<'_> {
    pub fn line(&self) -> String {
        let verdict = if self.holds { "holds" } else { "does not hold" };
        let half = if self.half > 0.0 { format!(" ± {:.3}", self.half) } else { String::new() };
        format!("{verdict}: {}: {:.3}{half}, accepted {}", self.says, self.value, self.accepted)
    }
}
