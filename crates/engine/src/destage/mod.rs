//! Destaging policies answer three questions: *when* to run (a function of a view), *what* to destage first (a key of each part), *how* to
//! order the writes (a function of the blocks). Policies hold no state.
//!
//! A policy is a variant of the enum of its module.

pub mod contiguity;
pub mod how;
pub mod what;
pub mod when;
