//! Workloads: programs in a file system, or raw requests, on any stack in virtual time, from start to end.
//!
//! [`run`] drives one [`Workload`] and returns what was [`Measured`], phase by phase. The same stack, devices, file system
//! and seed give the same result to the last bit. What cannot be had of the papers' traces and machines is made to the
//! numbers that they state; each module says from where.
//!
//! | workload             | after                                                                                  |
//! |----------------------|----------------------------------------------------------------------------------------|
//! | [`nuser::NUser`]     | N users untar, copy and remove a tree (Nightingale et al. 1999, section 4.1)           |
//! | [`PostMark`]         | Katcher (1997), as Zhu and Hu (2003) used it                                           |
//! | [`Synthetic`]        | the five traces of Zhu and Hu, made to their Table 2                                   |
//! | [`Streams`]          | N streams that read in order (Zhu and Hu, Fig. 3)                                      |
//! | [`DBench`]           | clients of a file server (Baek and Park, section IV-C)                                 |
//! | [`Aging`]            | writing files into a file system that has aged (Baek and Park, section IV-D)           |
//! | [`SelfCopy`]         | copying files within a file system (Baek and Park, section IV-E)                       |
//! | [`LargeFile`]        | one large file, in order and at random (Baek and Park, section IV-E)                 |

pub mod aging;
pub mod copy;
pub mod dbench;
mod host;
pub mod measured;
pub mod nuser;
pub mod postmark;
mod steps;
pub mod streams;
pub mod synthetic;
pub mod tree;

use dcd_engine::{IoError, Stack};
use dcd_model::ffs::{Ffs, FfsConfig, FfsConfigError, FsError};

use dcd_crash::{SimDevice, VirtualDriver};

pub use aging::{Aged, Aging};
pub use copy::{LargeFile, SelfCopy};
pub use dbench::DBench;
use host::Host;
pub use measured::{LoadPhase, Measured, Requests};
pub use nuser::NUser;
pub use postmark::{PostMark, PostMarkCounters};
pub use streams::Streams;
pub use synthetic::{Fit, PROFILES, Profile, Synthetic};

#[derive(Clone, Debug)]
pub enum Workload {
    NUser(NUser),
    PostMark(PostMark),
    Synthetic(Synthetic),
    Streams(Streams),
    DBench(DBench),
    SelfCopy(SelfCopy),
    LargeFile(LargeFile),
}

/// Why a run ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] FfsConfigError),
    #[error("the device failed: {0}")]
    Device(IoError),
    #[error("the streams do not fit on the device; give it a larger one")]
    NoRoom,
    #[error("a program's call failed: {call}: {error}; give it a larger device")]
    Call { call: String, error: FsError },
}

/// Runs a workload on a stack that is active, to its end. The file system is new and empty; the programs are seeded.
pub fn run<D: SimDevice>(
    stack: &mut Stack,
    driver: &mut VirtualDriver<D>,
    ffs: &FfsConfig,
    workload: &Workload,
    seed: u64,
) -> Result<Measured, RunError> {
    let sectors = stack.geometry(stack.root()).sectors;
    let mut host = Host::new(stack, driver, Ffs::new(*ffs, sectors)?);
    match workload {
        Workload::NUser(nuser) => nuser.run(&mut host, seed),
        Workload::PostMark(postmark) => postmark.run(&mut host, seed),
        Workload::Synthetic(synthetic) => synthetic.run(&mut host, seed),
        Workload::Streams(streams) => streams.run(&mut host, seed),
        Workload::DBench(clients) => clients.run(&mut host, seed),
        Workload::SelfCopy(copy) => copy.run(&mut host, seed),
        Workload::LargeFile(file) => file.run(&mut host, seed),
    }
}

#[cfg(test)]
mod tests;
