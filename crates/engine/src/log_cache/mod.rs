//! The log cache: a write cache that is a log (Disk Caching Disk; Nightingale, Hu, Yang, USENIX ATC 1999).

mod config;
pub mod format;
pub mod offline;
pub mod recover;
pub mod table;
#[cfg(test)]
mod testing;

pub use config::*;
