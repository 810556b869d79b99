//! The layers, one module each.

pub mod fault;
pub mod filter;
pub mod read_ahead;
pub mod slice;
pub mod trace;
