//! What the explorer and the sweep are tried on, beside the layers that have rigs of their own.

mod reference;
pub(crate) mod rigs;
pub(crate) mod simple;
