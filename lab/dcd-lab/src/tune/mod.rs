//! `dcd tune`: which cache suits a workload.
//!
//! | module | what |
//! |---|---|
//! | `candidates` | what is compared; each is a stack file |
//! | `place` | what the device of the log is |
//! | `measure` | one candidate under a workload, in virtual time |
//! | `search` | which are measured, and which of them is recommended |
//! | `report`, `page` | what is told: text, JSON, plots |

mod candidates;
mod measure;
mod page;
mod place;
mod report;
mod search;

pub use candidates::{
    ALIGN_BYTES, Grid, LOG_BYTES_MIN, MEDIA, Medium, Places, Priced, RAM_BYTES_MIN, Setting, Sizes,
};
pub use page::page;
pub use place::LogPlace;
pub use report::Report;
pub use search::{Objective, SearchOptions, search};

#[cfg(test)]
mod tests;
