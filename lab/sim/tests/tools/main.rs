//! Whole stacks in virtual time, and the tools that measure them.

mod away_cost;
mod conformance;
mod documented_tests;
mod full_stripes;
mod gives_way;
mod grow;
mod log_bytes;
mod spindle;
mod store_calibration;
