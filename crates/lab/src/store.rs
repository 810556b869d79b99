//! Results in a directory: for each experiment one JSON file with everything, and its plots as SVG; and one report.

use std::fs;
use std::path::Path;

use crate::{LabError, Outcome};

fn io(what: impl std::fmt::Display, source: std::io::Error) -> LabError {
    LabError::Io { what: what.to_string(), source }
}

/// Writes what one experiment gave.
pub fn save(directory: &Path, outcome: &Outcome) -> Result<(), LabError> {
    fs::create_dir_all(directory).map_err(|e| io(directory.display(), e))?;
    let mut text = serde_json::to_string_pretty(outcome).expect("results are plain data");
    text.push('\n');
    write(&directory.join(format!("{}.json", outcome.experiment)), &text)?;
    for (index, plot) in outcome.findings.plots.iter().enumerate() {
        write(&directory.join(format!("{}-{}.svg", outcome.experiment, index + 1)), &plot.svg())?;
    }
    Ok(())
}

/// Writes the report of everything that was run.
pub fn save_report(directory: &Path, outcomes: &[Outcome]) -> Result<(), LabError> {
    fs::create_dir_all(directory).map_err(|e| io(directory.display(), e))?;
    write(&directory.join("report.html"), &crate::html_report(outcomes))
}

fn write(path: &Path, text: &str) -> Result<(), LabError> {
    fs::write(path, text).map_err(|e| io(path.display(), e))
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
