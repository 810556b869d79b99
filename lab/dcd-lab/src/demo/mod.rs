//! The parts of the demonstration that a shell cannot do: the tree of files, the table and the report.

pub mod report;
pub mod tree;
