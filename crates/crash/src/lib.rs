//! Virtual time: a driver without clocks, devices that fail and forget, and the explorer that looks for lost data.
//!
//! The seed alone determines a run. A layer behaves here as on real devices: its code is the same, and only the driver and the
//! devices differ.
//!
//! With the feature `planted-bugs`, which is on by default, there are also the layers to explore (`cache`, `mirror`, `raid`), into which
//! bugs can be planted, and the program `dcd-crash`. Crates that need only the driver and the devices disable it.

#[cfg(test)]
extern crate self as dcd_crash;
mod device;
mod driver;
mod fault;
mod image;
mod memdisk;
mod memory;
mod oracle;
mod rng;
mod sweep;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tool_tests;
mod workload;

#[cfg(feature = "planted-bugs")]
pub mod cache;
pub mod dealt;
pub mod explore;
#[cfg(feature = "planted-bugs")]
pub mod mirror;
#[cfg(feature = "planted-bugs")]
pub mod raid;
pub mod stamp;

pub use device::{BlankDisk, Flights, Latency, SimDevice, Ticket};
pub use driver::{DriverProgress, Moment, Observer, VirtualDriver, describe};
pub use explore::{
    BuildWithout, ExplorationCounts, ExploreConfig, Explored, HotAdd, LossRule, Rig, Violation, disk,
    explore, prefill, replay,
};
pub use fault::{DiskFaults, FaultOn, FaultRule};
pub use image::Image;
pub(crate) use memdisk::MemDriver;
pub use memdisk::{CutStyle, MemDisk};
pub use memory::{LeftMemory, SimMemory};
pub use oracle::{FlushMark, Oracle, ReadMark};
pub use rng::{SimRng, mix};
pub use stamp::{SeenContent, Value};
pub use sweep::{SweepCase, SweepConfig, Swept, sweep_errors};
pub use workload::{Character, SimClient};
