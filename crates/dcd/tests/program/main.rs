//! The program as a user runs it.

mod array;
mod array_absent;
mod array_cache;
mod array_life;
mod array_mistakes;
mod array_over_dcd;
mod attach;
mod behind;
mod calibrate;
mod common;
mod create;
mod doctor;
mod identity;
mod kill;
mod legs;
mod lifecycle;
mod messages;
mod metrics;
mod non_volatile;
mod offline;
mod refusals;
mod remote;
mod serve;
mod service;
mod top;
mod ublk;
