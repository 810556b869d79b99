//! The layers, one module each.

pub mod fault;
pub mod slice;
pub mod trace;
