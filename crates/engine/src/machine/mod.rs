//! The kit that all layers with a state use.

mod copies;
mod lifecycle;

pub use copies::{Worth, newest, place_of};
pub use lifecycle::Lifecycle;
