//! Destaging answers three questions, and each answer is a pure function of a view: *when* to run, *what* to take first,
//! *how* to order the writes. Policies hold no state: what they need to know is in the view.
//!
//! A policy is a variant of the enum of its module.

pub mod contiguity;
pub mod how;
pub mod what;
pub mod when;
