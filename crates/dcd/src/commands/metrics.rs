//! `dcd metrics`: prints the metrics once.

use crate::cli::Metrics;
use crate::control;
use crate::failure::Failure;
use crate::session::serving::metrics::openmetrics;
use crate::session::serving::status::ServerStatus;

/// Prints the metrics of the servers that answer, and reports those that do not.
pub fn run(args: &Metrics) -> Result<(), Failure> {
    let (stacks, failed) = control::told_apart(control::ask_all(&args.files, ServerStatus::ask));
    print!("{}", openmetrics(&stacks));
    failed
}
