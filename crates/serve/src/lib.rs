//! Front-ends, between clients and the root of a stack.
//!
//! - [`nbd`]: sessions of the NBD protocol on any byte stream;
//! - [`fuse`]: an image file in a mounted directory;
//! - [`ublk`]: a block device of the kernel;
//! - [`vhost`]: a disk of virtual machines, by vhost-user;
//! - [`control`]: the control socket of a running server, and its client;
//! - [`metrics`]: metrics over HTTP.

#[cfg(test)]
extern crate self as dcd_serve;
pub mod control;
#[cfg(test)]
mod front_end_tests;
pub mod fuse;
pub mod metrics;
pub mod nbd;
mod outlives;
pub mod ublk;
pub mod vhost;

pub use outlives::Outlives;
pub use ublk::disk_user;
