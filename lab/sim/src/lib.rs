//! The papers' workloads in virtual time, and a disk for long runs. The driver and the other devices are those of `dcd_crash`.

mod sparse;

pub mod workloads;

pub use sparse::SparseDisk;
