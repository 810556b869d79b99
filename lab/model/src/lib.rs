//! Models of disks: mechanics, queue, built-in cache, and the drive files.
//!
//! A [`Disk`] is a layer over a device that only keeps the bytes: it decides *when* an operation ends, and the device
//! below it decides *what* is read. A [`Drive`] is the data sheet, one TOML file each; [`Controller`] is the machine
//! that follows from it, and can be used without the layer by code that only wants service times.
//!
//! Like every layer it has no clock, and nothing in it is random: the same requests at the same times get the same
//! answers at the same times.

#[cfg(test)]
extern crate self as dcd_model;
mod arm;
mod behind;
mod cache;
mod controller;
mod describe;
mod disk;
#[cfg(test)]
mod disk_tests;
pub mod drive;
mod drive_file;
mod drive_reference;
pub mod ffs;
mod geometry;
mod held;
mod histogram;
pub mod measured;
mod mechanics;
mod phases;
mod queue;
mod seek;
mod shingles;
mod solid;
mod solid_file;
mod stack_kind;
mod statistics;
mod write_back;
pub mod write_cache;

pub use arm::disk_map;
pub use cache::ReadAhead;
pub use controller::{Access, Controller, Served, Service};
pub use describe::describe;
pub use disk::{Disk, DiskConfig, WriteCache};
pub use drive::{AnyDrive, Drive, DriveError};
pub use drive_reference::fields;
pub use geometry::{Spot, Track, Zone};
pub use histogram::Histogram;
pub use queue::Scheduler;
pub use solid::{Solid, SolidDisk};
pub use stack_kind::register_kinds;
pub use write_back::{DestageOrder, WriteBackKind};
