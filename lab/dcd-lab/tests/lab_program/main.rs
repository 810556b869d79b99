//! The program of the laboratory as a user runs it.

#[path = "../../../../crates/dcd/tests/program/common/mod.rs"]
mod common;
mod documents;
mod drive;
mod fleet;
mod modelled;
#[path = "../../../../crates/dcd/tests/program/notices.rs"]
mod notices;
mod simulate;
mod study;
mod trace;
mod tune;
mod write_cache;
