//! Workloads: programs in a file system, or raw requests, on any stack in virtual time, from start to end.
//!
//! [`run`] drives one [`Workload`] and returns what was [`Measured`], phase by phase. The same stack, devices, file system
//! and seed give the same result to the last bit. What cannot be had of the papers' traces and machines is made to the
//! numbers that they state; each module says from where.
//!
//! | workload             | after                                                                                  |
//! |----------------------|----------------------------------------------------------------------------------------|
//! | [`nuser::NUser`]     | N users untar, copy and remove a tree (Nightingale et al. 1999, section 4.1)           |

mod host;
pub mod measured;
pub mod nuser;
pub mod tree;

use dcd_engine::{IoError, Stack};
use dcd_model::ffs::{FfsConfig, FfsConfigError, FsError};

use crate::{SimDevice, VirtualDriver};

use host::Host;
pub use measured::{Measured, Phase};
pub use nuser::NUser;

/// What is to run.
#[derive(Clone, Debug)]
pub enum Workload {
    NUser(NUser),
}

/// Why a run ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] FfsConfigError),
    #[error("the device failed: {0}")]
    Device(IoError),
    #[error("a program's call failed: {call}: {error}; give it a larger device")]
    Call { call: String, error: FsError },
    #[error("a layer could not be activated: {0}")]
    Activate(#[from] dcd_engine::ActivateError),
}

/// Runs a workload on a stack that is active, to its end. The file system is new and empty; the programs are seeded.
pub fn run<D: SimDevice>(
    stack: &mut Stack,
    driver: &mut VirtualDriver<D>,
    ffs: &FfsConfig,
    workload: &Workload,
    seed: u64,
) -> Result<Measured, RunError> {
    match workload {
        Workload::NUser(nuser) => nuser.run(&mut Host::new(stack, driver, ffs)?, seed),
    }
}

#[cfg(test)]
mod tests;
