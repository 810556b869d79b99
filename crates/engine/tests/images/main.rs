//! Logs as they are on a medium: of older programs, and damaged.

mod golden;
#[path = "../../examples/rig/mod.rs"]
mod rig;
mod rotten_log;
