//! `dcd metrics`: what a monitoring system fetches, once.

use crate::cli::Metrics;
use crate::control;
use crate::failure::Failure;
use crate::session::serving::metrics::openmetrics;
use crate::session::serving::status::ServerStatus;

/// Prints the metrics of the servers that answer. Those that do not are told of, and hide nobody's.
pub fn run(args: &Metrics) -> Result<(), Failure> {
    let (stacks, failed) = control::told_apart(control::ask_all(&args.files, ServerStatus::ask));
    print!("{}", openmetrics(&stacks));
    failed
}
