//! Destaging policies answer three questions, each as a pure function of a view: *when* to run, *what* to destage first, *how* to order
//! the writes. Policies hold no state: all that they need is in the view.
//!
//! A policy is a variant of the enum of its module.

pub mod contiguity;
pub mod how;
pub mod what;
pub mod when;
