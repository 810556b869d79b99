//! The modelled disks beside what was measured of real ones, and the RAM of the layers here.

mod common;
mod components;
#[path = "../../../../crates/engine/src/log_tests/counting/mod.rs"]
mod counting;
mod layer;
mod phases;
mod physics;
mod solid;
mod stack_kind;
mod validation;
mod write_back;
mod write_cache_memory;
