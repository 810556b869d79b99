//! `dcd tune`: which cache suits a workload.
//!
//! | module | what |
//! |---|---|
//! | `candidates` | what is compared; each is a stack file |
//! | `place` | what the device of the log is |
//! | `sample` | a part of the workload that behaves like all of it under a smaller cache |
//! | `measure` | one candidate under a workload, in virtual time |
//! | `search` | which are measured, and which of them is recommended |
//! | `report`, `page` | what is told: text, JSON, plots |

mod candidates;
mod measure;
mod page;
mod place;
mod report;
mod sample;
mod search;

pub use candidates::{MEDIA, Medium, Places, Priced, Setting, Sizes, grid};
pub use page::page;
pub use place::LogPlace;
pub use report::Report;
pub use search::{Objective, Sampling, SearchOptions, search};

#[cfg(test)]
mod tests;
