//! Results in a directory: for each experiment one JSON file with everything, and its plots as SVG; and one report.

use std::fs;
use std::path::Path;

use dcd_trace::Inputs;

use crate::{LabError, Outcome};

fn io(what: impl std::fmt::Display, source: std::io::Error) -> LabError {
    LabError::Io { what: what.to_string(), source }
}

/// Writes what one experiment gave. `inputs`: what the experiments read.
pub fn save(directory: &Path, outcome: &Outcome, inputs: &Inputs) -> Result<(), LabError> {
    fs::create_dir_all(directory).map_err(|e| io(directory.display(), e))?;
    let mut text = serde_json::to_string_pretty(outcome).expect("results are plain data");
    text.push('\n');
    inputs.write(&directory.join(format!("{}.json", outcome.experiment)), &text)?;
    for (index, plot) in outcome.findings.plots.iter().enumerate() {
        inputs.write(&directory.join(format!("{}-{}.svg", outcome.experiment, index + 1)), plot.svg())?;
    }
    Ok(())
}

/// Writes the report of everything that was run.
pub fn save_report(directory: &Path, outcomes: &[Outcome], inputs: &Inputs) -> Result<(), LabError> {
    fs::create_dir_all(directory).map_err(|e| io(directory.display(), e))?;
    Ok(inputs.write(&directory.join("report.html"), crate::html_report(outcomes))?)
}

/// Reads the results of an experiment again; none where it was not run.
pub fn load(directory: &Path, experiment: &str) -> Result<Option<Outcome>, LabError> {
    let path = directory.join(format!("{experiment}.json"));
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(path.display(), e)),
    };
    let outcome = serde_json::from_str(&text);
    outcome.map(Some).map_err(|source| LabError::Malformed { what: path.display().to_string(), source })
}
