//! Real files, and the driver that serves them.

mod conformance;
mod driver;
mod protect;
