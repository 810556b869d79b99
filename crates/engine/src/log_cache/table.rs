//! The data lookup table.
