//! The papers' experiments, each a named run that anybody can repeat: the paper's figure beside ours, a plot in the
//! paper's axes, and a verdict on every claim that the paper makes in words.
//!
//! An [`Experiment`] is one file under `experiments/` and one row of the registry there. It has parameters with defaults
//! ([`Settings`]), makes a grid of independent points ([`Point`]), each with its own seed, and draws its conclusions from
//! what they measured ([`Findings`]). The points run on several threads ([`run()`]); as no point knows of another, the
//! number of threads changes nothing but the time. Everything happens in virtual time.
//!
//! | module | what |
//! |---|---|
//! | `params` | parameters, and what the user set |
//! | `experiment`, `sheet`, `run` | the shape of an experiment; the file with its parameters; carrying one out |
//! | `stated` | the paper's claims, as the experiment's file has them |
//! | `cells` | how many cells are near the figure of the paper beside them |
//! | `findings`, `plot` | tables, claims with verdicts, plots |
//! | `text`, `html`, `markdown`, `store` | the results for the terminal, a report, the documentation, a directory |
//! | `rig`, `configurations` | a disk with and without a cache, in virtual time; the paper's cache and ours |
//! | `nuser` | the N-user benchmark, as several experiments use it |
//! | `profile` | a layer that counts what passes |
//! | `prototype` | the paper's driver as it was |
//! | `builtin` | a file system on a disk with some built-in cache |
//! | `nv` | a write cache in NVRAM before the disks of 1993, under a trace |
//! | `strides` | the stride benchmark on a modelled drive |
//! | `array` | a modelled RAID-5 behind the three caches of its paper |
//! | `elevator` | the host's I/O scheduler above a modelled disk |
//! | `clients` | generated requests, for experiments without a file system |
//! | `experiments` | the registry |

#[cfg(test)]
extern crate self as dcd_studies;
mod array;
mod builtin;
mod cells;
mod clients;
mod configurations;
mod elevator;
mod experiment;
pub mod experiments;
mod findings;
mod html;
pub mod jobs;
mod markdown;
mod nuser;
mod nv;
pub mod page;
mod params;
mod plot;
mod profile;
mod prototype;
mod rig;
mod run;
mod serial;
mod sheet;
mod stated;
mod store;
mod strides;
#[cfg(test)]
mod study_tests;
mod text;

pub use cells::{Cells, WITHIN};
pub use experiment::{Experiment, Group, Job, Point, Sample, Samples};
pub use findings::{Claim, Count, Findings, Table, Verdict};
pub use html::report as html_report;
pub use markdown::document;
pub use params::{Overrides, Param, Settings};
pub use plot::{Axis, COLOURS_MAX, Plot, Scale, Series, Style};
pub use run::{Outcome, RunOptions, judge_again, run, run_each};
pub use store::{load, save, save_report};
pub use strides::stride_times;
pub use text::{listing, print as text_report};

/// Why an experiment could not be run, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    #[error("there is no experiment \"{name}\"; known are: {known}, and the groups all, A, B, C, D")]
    UnknownExperiment { name: String, known: String },
    #[error("\"{0}\" is not of the form KEY=VALUE")]
    NotAnAssignment(String),
    #[error("{experiment} has no parameter \"{key}\"; known are: {known}")]
    UnknownParam { experiment: String, key: String, known: String },
    #[error("parameter {key}: {problem}")]
    BadValue { key: String, problem: String },
    #[error("{what}: {source}")]
    Io { what: String, source: std::io::Error },
    #[error(transparent)]
    Output(#[from] dcd_trace::OutputError),
    #[error("{what} is not a result of this program: {source}; run the experiment again")]
    Malformed { what: String, source: serde_json::Error },
    /// A stack or a workload could not be set up with these parameters.
    #[error("{0}")]
    Setup(String),
}

impl LabError {
    pub(crate) fn setup(error: impl std::fmt::Display) -> LabError {
        LabError::Setup(error.to_string())
    }
}
