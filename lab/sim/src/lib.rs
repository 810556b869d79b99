//! The papers' workloads in virtual time, and a disk for long runs. The driver and the other devices are those of `dcd_crash`.

#[cfg(test)]
extern crate self as dcd_sim;
mod interval;
mod offline;
mod sparse;
#[cfg(test)]
mod tool_tests;

pub mod workloads;

pub use interval::interval;
pub use offline::{Offline, OfflinePart};
pub use sparse::SparseDisk;
