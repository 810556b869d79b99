//! The layers, one module each.

pub mod slice;
