//! Real files and block devices, and the driver that serves them.

mod block_devices;
mod conformance;
mod driver;
mod protect;
