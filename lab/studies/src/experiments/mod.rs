//! The registry of experiments. To add one: a file with `plan` and `conclude`, a TOML file of the same name with what it
//! says of itself, and a row in the registry; then `dcd-lab study run all --doc docs/experiments.md` writes its section.

mod bic_readahead;
mod bic_segments;
mod bic_size;
mod bic_writecache;
mod ct_aged;
mod ct_bulk;
mod ct_concurrent;
mod ct_fragmented;
mod ct_random;
mod ct_stride;
mod dcd_bound;
mod dcd_futurework;
mod dcd_latency;
mod dcd_memory;
mod dcd_nuser;
mod dcd_physical;
mod dcd_rawwrite;
mod dcd_requests;
mod nv_allocate;
mod nv_one_threshold;
mod nv_piggyback;
mod nv_queueing;
mod nv_shared;
mod nv_single;
mod nv_size;
mod nv_two_thresholds;

use std::sync::LazyLock;

use crate::{Experiment, LabError};

mod prelude {
    pub use dcd_crash::mix;

    pub(super) use crate::findings::{figure, least, most};
    pub(super) use crate::stated::{Rule, cells, more};
    pub use crate::{Axis, Claim, Findings, LabError, Plot, Point, Sample, Samples, Series, Settings, Table};
}

macro_rules! registry {
    ($($module:ident)*) => {
        vec![$(crate::sheet::load(
            include_str!(concat!(stringify!($module), ".toml")),
            $module::plan,
            $module::conclude,
        )),*]
    };
}

/// Every experiment, in the order of the papers.
pub static REGISTRY: LazyLock<Vec<&'static Experiment>> = LazyLock::new(|| {
    registry! {
        dcd_nuser
        dcd_rawwrite
        dcd_bound
        dcd_latency
        dcd_requests
        dcd_memory
        dcd_physical
        dcd_futurework
        nv_one_threshold
        nv_two_thresholds
        nv_size
        nv_piggyback
        nv_queueing
        nv_allocate
        nv_shared
        nv_single
        bic_size
        bic_readahead
        bic_segments
        bic_writecache
        ct_fragmented
        ct_stride
        ct_random
        ct_concurrent
        ct_aged
        ct_bulk
    }
});

/// The experiment of a name.
pub fn find(name: &str) -> Result<&'static Experiment, LabError> {
    REGISTRY.iter().copied().find(|experiment| experiment.name == name).ok_or_else(|| {
        let known: Vec<&str> = REGISTRY.iter().map(|experiment| experiment.name).collect();
        LabError::UnknownExperiment { name: name.to_owned(), known: known.join(", ") }
    })
}
