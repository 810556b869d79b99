//! The registry of experiments. To add one: a file here that ends in `pub const EXPERIMENT`, and a row below; then
//! `dcd lab run all --doc docs/experiments.md` writes its section.

mod bic_analytic;
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
mod nv_traces;
mod nv_two_thresholds;

use crate::{Experiment, LabError};

/// Every experiment, in the order of the papers.
pub const REGISTRY: &[&Experiment] = &[
    &dcd_nuser::EXPERIMENT,
    &dcd_rawwrite::EXPERIMENT,
    &dcd_bound::EXPERIMENT,
    &dcd_latency::EXPERIMENT,
    &dcd_requests::EXPERIMENT,
    &dcd_memory::EXPERIMENT,
    &dcd_physical::EXPERIMENT,
    &dcd_futurework::EXPERIMENT,
    &nv_one_threshold::EXPERIMENT,
    &nv_two_thresholds::EXPERIMENT,
    &nv_size::EXPERIMENT,
    &nv_piggyback::EXPERIMENT,
    &nv_queueing::EXPERIMENT,
    &nv_allocate::EXPERIMENT,
    &nv_shared::EXPERIMENT,
    &nv_single::EXPERIMENT,
    &nv_traces::EXPERIMENT,
    &bic_size::EXPERIMENT,
    &bic_readahead::EXPERIMENT,
    &bic_segments::EXPERIMENT,
    &bic_writecache::EXPERIMENT,
    &bic_analytic::EXPERIMENT,
    &ct_fragmented::EXPERIMENT,
    &ct_stride::EXPERIMENT,
    &ct_random::EXPERIMENT,
    &ct_concurrent::EXPERIMENT,
    &ct_aged::EXPERIMENT,
    &ct_bulk::EXPERIMENT,
];

/// The experiment of a name.
pub fn find(name: &str) -> Result<&'static Experiment, LabError> {
    REGISTRY.iter().copied().find(|experiment| experiment.name == name).ok_or_else(|| {
        let known: Vec<&str> = REGISTRY.iter().map(|experiment| experiment.name).collect();
        LabError::UnknownExperiment { name: name.to_owned(), known: known.join(", ") }
    })
}
