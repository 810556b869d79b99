//! Results of a run.

use dcd_engine::{Nanos, Pump};
use dcd_model::Histogram;
use dcd_model::ffs::{FfsMeasured, RequestClass};
use serde_json::Value;

use super::{Fit, PostMarkCounters};
use dcd_crash::{SimDevice, VirtualDriver};

/// Block requests at the top of the stack.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    pub reads: Histogram,
    pub writes: Histogram,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// A part of a run, like "untar".
#[derive(Clone, Debug)]
pub struct LoadPhase {
    pub name: &'static str,
    /// From the start of the first program to the end of the last.
    pub elapsed: Nanos,
    pub requests: Requests,
    /// Measurements of the file system, if there was one.
    pub files: Option<FfsMeasured>,
    /// The status of each layer at the end of the phase, counted from its start; the lowest first.
    pub layers: Vec<(String, Value)>,
}

impl LoadPhase {
    /// The part of the time that the processor was busy.
    pub fn cpu_share(&self) -> f64 {
        let busy = self.files.as_ref().map_or(Nanos::ZERO, |files| files.cpu);
        busy.0 as f64 / self.elapsed.0.max(1) as f64
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Measured {
    pub phases: Vec<LoadPhase>,
    /// Counters of PostMark, if PostMark ran.
    pub postmark: Option<PostMarkCounters>,
    /// Fit of a synthetic trace to its table; empty for other workloads.
    pub fit: Vec<Fit>,
    /// End of the last phase, from the start of the driver.
    pub ended: Nanos,
    /// Hash of the trace: equal for two runs exactly if everything in them was the same.
    pub trace_hash: u64,
}

impl Measured {
    pub(super) fn of<D: SimDevice>(phases: Vec<LoadPhase>, driver: &VirtualDriver<D>) -> Measured {
        Measured {
            phases,
            postmark: None,
            fit: Vec::new(),
            ended: driver.now(),
            trace_hash: driver.trace_hash(),
        }
    }

    /// # Panics
    /// Where there is no such phase.
    pub fn phase(&self, name: &str) -> &LoadPhase {
        self.phases.iter().find(|phase| phase.name == name).expect("the workload has this phase")
    }
}

impl Requests {
    pub(super) fn add(&mut self, is_read: bool, bytes: u64, response: Nanos) {
        if is_read {
            self.reads.add(response);
            self.bytes_read += bytes;
        } else {
            self.writes.add(response);
            self.bytes_written += bytes;
        }
    }

    pub(super) fn of(files: &FfsMeasured) -> Requests {
        let mut requests = Requests::default();
        for class in RequestClass::ALL {
            let measured = files.class(class);
            if class.is_read() {
                requests.reads.merge(&measured.response);
                requests.bytes_read += measured.bytes;
            } else if class.is_write() {
                requests.writes.merge(&measured.response);
                requests.bytes_written += measured.bytes;
            }
        }
        requests
    }
}
