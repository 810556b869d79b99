//! Tests the RAM of the engine, counted by the allocator.

mod counting;
mod log_memory;
#[path = "../../examples/rig/mod.rs"]
mod rig;
mod table_memory;
mod write_back_memory;
