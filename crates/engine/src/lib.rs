//! The engine: layers without clocks, and the stack that joins them.
//!
//! Everything here is a synchronous state machine ([`Layer`]): one event in, commands out. Nothing in this crate can
//! reach the operating system; the drivers (`dcd-io` for real devices, `dcd-crash` for virtual time) carry the commands out.

#[cfg(test)]
extern crate self as dcd_engine;
mod buf;
mod layer;
#[cfg(test)]
mod log_tests;
mod planted;
mod slab;
mod stack;
mod units;

pub mod destage;
pub mod layers;
pub mod log_cache;
pub mod machine;
pub mod mirror;
pub mod raid;
#[cfg(feature = "testing")]
pub mod testing;

pub use buf::{Buf, PAGE_BYTES};
pub use layer::*;
pub use log_cache::{DataDiskStatus, LogCacheState, LogCacheStatus, LogHead};
pub use planted::{PLANTS_BUGS, Planted};
pub use slab::Slab;
pub use stack::{
    DeviceIndex, LayerIndex, Output, Pump, Stack, StackBuilder, StackDevice, StackMap, StartError, Tag,
    Target,
};
pub use units::*;
