//! RAM of the layers here, counted by the allocator.

#[path = "../../../../crates/engine/tests/memory/counting/mod.rs"]
mod counting;
mod write_cache_memory;
