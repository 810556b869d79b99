//! `dcd metrics`: what a monitoring system fetches, once.

use crate::cli::Metrics;
use crate::control;
use crate::failure::Failure;
use crate::session::serving::metrics::openmetrics;
use crate::session::serving::status::ServerStatus;

pub fn run(args: &Metrics) -> Result<(), Failure> {
    let mut stacks = Vec::new();
    for client in control::named_or_running(&args.files) {
        stacks.push(ServerStatus::ask(&mut client?)?);
    }
    print!("{}", openmetrics(&stacks));
    Ok(())
}
