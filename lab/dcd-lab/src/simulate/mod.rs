//! `dcd simulate`: stacks in virtual time, each against the same requests.
//!
//! | module | what |
//! |---|---|
//! | `load` | what the stacks are run against |
//! | `run` | one stack: how long requests took |
//! | `series` | the same over time, and what the caches hold |
//! | `report`, `page` | what is told: text, JSON, CSV, plots |

mod load;
mod page;
mod report;
mod run;
mod series;

pub use load::Load;
pub use page::page;
pub use report::Report;
pub use run::{Ran, run};
