//! `dcd simulate`: stacks in virtual time, each against the same requests.
//!
//! | module | what |
//! |---|---|
//! | `experiment` | a file with all of it, and claims |
//! | `load` | what the stacks are run against |
//! | `sweep` | the stacks: files, with other values in their fields |
//! | `run` | one stack: how long requests took |
//! | `samples` | a line for each request |
//! | `series` | the same over time, and what the caches hold |
//! | `report`, `page` | what is told: text, JSON, CSV, plots |

mod experiment;
mod load;
mod page;
mod report;
mod run;
mod samples;
mod series;
mod sweep;

pub use experiment::Experiment;
pub use load::{Load, Replay};
pub use page::page;
pub use report::Report;
pub use run::{Ran, run};
pub use samples::Samples;
pub use sweep::{Sweep, variants};
