//! Logs on a medium, of older programs and damaged, and the RAM that the engine takes, counted by the allocator.

mod counting;
mod golden;
mod log_memory;
#[path = "../../examples/rig/mod.rs"]
mod rig;
mod rotten_log;
mod table_memory;
mod write_back_memory;
