//! Provides the load of a stack: the requests of a trace at their times, or a client that waits for each answer.

use dcd_engine::SECTOR_BYTES;
use dcd_stack::HumanBytes;

use super::run::Watched;
use crate::cli_simulate::Workload as Generated;
use crate::failure::Failure;
use crate::load::Workload;
use crate::virtual_run::VirtualRun;
use crate::workload::{DEVICE_BYTES_MIN, Stream};

pub enum Load {
    Trace { name: String, workload: Workload },
    Generated { workload: Generated, requests: u64, seed: u64 },
}

impl Load {
    pub fn requests(&self) -> u64 {
        match self {
            Load::Trace { workload, .. } => workload.requests.len() as u64,
            Load::Generated { requests, .. } => *requests,
        }
    }

    pub fn notes(&self) -> &[String] {
        match self {
            Load::Trace { workload, .. } => &workload.notes,
            Load::Generated { .. } => &[],
        }
    }

    pub fn words(&self) -> String {
        match self {
            Load::Trace { name, workload } => format!(
                "{name}: {} requests in {:.0} s, {:.0} % of them writes",
                workload.requests.len(),
                workload.span().as_secs_f64(),
                100.0 * workload.writes as f64 / workload.requests.len() as f64
            ),
            Load::Generated { workload, requests, seed } => {
                use clap::ValueEnum;
                let name = workload.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned());
                format!("{name}: {requests} requests of one client, seed {seed}")
            }
        }
    }

    /// Lets a stack answer all of it.
    pub fn run(&self, stack: &str, run: &mut VirtualRun, watched: &mut Watched<'_>) -> Result<(), Failure> {
        let bytes = run.geometry().sectors.saturating_mul(SECTOR_BYTES);
        match self {
            Load::Trace { workload, .. } => {
                let end = workload.end * SECTOR_BYTES;
                if end > bytes {
                    return Err(Failure::Failed(format!(
                        "{stack}: the export has {}, and the trace reaches to {}: name a larger device, or shrink the trace (dcd \
                         trace scale --space)",
                        HumanBytes(bytes),
                        HumanBytes(end)
                    )));
                }
                let block = u64::from(run.geometry().logical_block_bytes) / SECTOR_BYTES;
                let ios = workload.requests.iter().map(|request| (request.at, request.in_blocks(block).io()));
                run.replay(ios, watched)
            }
            Load::Generated { workload, requests, seed } => {
                if bytes < DEVICE_BYTES_MIN {
                    let least = HumanBytes(DEVICE_BYTES_MIN);
                    return Err(Failure::Failed(format!("{stack}: the export is too small: {least} at least")));
                }
                let sectors = run.geometry().sectors;
                run.run(&mut Stream::new(*workload, sectors, *seed), *requests, watched)
            }
        }
        .map_err(|error| Failure::Failed(format!("{stack}: {error}")))
    }
}
