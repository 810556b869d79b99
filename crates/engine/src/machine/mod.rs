//! The kit that all layers with a state use.

mod copies;

pub use copies::{Worth, newest, place_of};
