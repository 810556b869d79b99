//! Synthetic traces: a description of a workload in, a trace with its figures out.
//!
//! | module | what |
//! |---|---|
//! | `description` | what can be asked for, in TOML; the presets; a description like a given trace |
//! | `spread` | distributions, by mean, by median and mean, by points |
//! | `arrivals`, `place` | when requests come; where new data goes |
//! | `generate` | the generator |
//! | `fit` | what was wanted beside what came out, and turning the knobs until they agree |

mod arrivals;
mod description;
mod fit;
mod generate;
mod place;
mod spread;
#[cfg(test)]
mod tests;

pub use description::{Arrivals, Description, Kind, PRESETS, Reuse, Space};
pub use fit::{Fitted, compare, fitted};
pub use generate::Synthesiser;
pub use spread::Spread;
