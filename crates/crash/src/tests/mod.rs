//! Makes subjects for testing the explorer and the sweep, beside the layers that have rigs of their own.

mod reference;
pub(crate) mod rigs;
pub(crate) mod simple;
