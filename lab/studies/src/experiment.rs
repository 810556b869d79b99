//! The shape of an experiment: what it is called, what can be set, which points it measures, what follows from them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::stated::Paper;
use crate::{Findings, LabError, Param, Settings};

/// The paper that an experiment belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Group {
    /// Nightingale, Hu, Yang: The Design and Implementation of a DCD Device Driver for UNIX (USENIX ATC 1999).
    A,
    /// Biswas, Ramakrishnan, Towsley: Exploiting Non-Volatile Memory in Disks for Write Caching (1993).
    B,
    /// Zhu, Hu: Disk Built-in Caches: Evaluation on System Performance (2003).
    C,
    /// Baek, Park: Matrix stripe cache-based contiguity transform for fragmented writes in RAID-5.
    D,
}

impl Group {
    pub const fn title(self) -> &'static str {
        match self {
            Group::A => "The DCD device driver (Nightingale, Hu, Yang; USENIX ATC 1999)",
            Group::B => "The write cache in NVRAM (Biswas, Ramakrishnan, Towsley; 1993)",
            Group::C => "Disk built-in caches (Zhu, Hu; 2003)",
            Group::D => "RAID-5 with the contiguity transform (Baek, Park)",
        }
    }
}

/// Makes the points to measure.
pub type Plan = fn(&Settings) -> Result<Vec<Point>, LabError>;

/// Tells what follows from them.
pub type Conclude = fn(&Settings, &Samples) -> Result<Findings, LabError>;

/// An experiment. See the module's documentation.
pub struct Experiment {
    pub name: &'static str,
    pub group: Group,
    /// The figure, table or section of the paper.
    pub source: &'static str,
    pub title: &'static str,
    /// Set-up, for readers of the results: what is the paper's, what is calibrated, what is ours.
    pub about: &'static str,
    pub params: &'static [Param],
    /// Seeds by which claims of "more" and "less" are judged; none where there are no such claims.
    pub(crate) seeds: Option<usize>,
    pub(crate) paper: &'static Paper,
    pub plan: Plan,
    pub conclude: Conclude,
}

/// Measures one point.
pub type Job = Box<dyn FnOnce() -> Result<Sample, LabError> + Send>;

/// A point of the grid: a name by which the conclusion finds it, and the work.
pub struct Point {
    pub key: String,
    pub job: Job,
}

impl Point {
    pub fn new(
        key: impl Into<String>,
        job: impl FnOnce() -> Result<Sample, LabError> + Send + 'static,
    ) -> Point {
        Point { key: key.into(), job: Box::new(job) }
    }
}

/// Measurements of a point: numbers and lists of numbers by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub numbers: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub lists: BTreeMap<String, Vec<f64>>,
}

impl Sample {
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.numbers.insert(name.into(), value);
    }

    pub fn set_list(&mut self, name: impl Into<String>, values: Vec<f64>) {
        self.lists.insert(name.into(), values);
    }

    /// The means of several runs.
    pub(crate) fn mean(
        runs: u64,
        mut run: impl FnMut(u64) -> Result<Sample, LabError>,
    ) -> Result<Sample, LabError> {
        let mut mean = Sample::default();
        for index in 0..runs {
            let sample = run(index)?;
            for (name, value) in sample.numbers {
                *mean.numbers.entry(name).or_default() += value / runs as f64;
            }
            for (name, values) in sample.lists {
                let means = mean.lists.entry(name).or_insert_with(|| vec![0.0; values.len()]);
                means.iter_mut().zip(values).for_each(|(mean, value)| *mean += value / runs as f64);
            }
        }
        Ok(mean)
    }
}

/// Measurements of all points, by their keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Samples(pub BTreeMap<String, Sample>);

impl Samples {
    /// A number of a point.
    ///
    /// # Panics
    /// Where the experiment did not plan the point or measure the number: a mistake in the experiment.
    pub fn get(&self, key: &str, name: &str) -> f64 {
        let sample = self.0.get(key).unwrap_or_else(|| panic!("no point {key} was planned"));
        *sample.numbers.get(name).unwrap_or_else(|| panic!("point {key} has no {name}"))
    }

    /// A number of a point, where it was measured: results of an older program may not have it.
    pub fn find(&self, key: &str, name: &str) -> Option<f64> {
        self.0.get(key)?.numbers.get(name).copied()
    }

    /// A list of a point; empty where there is none.
    pub fn list(&self, key: &str, name: &str) -> &[f64] {
        self.0.get(key).and_then(|sample| sample.lists.get(name)).map_or(&[], Vec::as_slice)
    }

    pub fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }
}
