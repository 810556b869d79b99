//! Every reader of on-disk formats under forged bytes: nothing panics, and what is accepted holds together.
//!
//! As tests each takes a second, or `BOLERO_RANDOM_TEST_TIME_MS`. For hours, guided by the code that is reached, with a nightly compiler
//! and cargo-bolero: `cargo bolero test -p dcd-engine log_record::a_forged_record_lies_within_its_segment_or_is_refused`.

mod array;
mod array_journal;
mod array_superblock;
mod forged;
mod leg_labels;
mod log_record;
mod log_summary;
mod log_superblock;
mod shape;
