//! Block traces: one record, many formats, and what can be learnt from them.
//!
//! Everything streams: a reader gives one [`Record`] after another, a writer takes one after another, and a trace may be
//! larger than memory. A format is one file under `formats` and one row of [`FORMATS`]. Nothing here reads a clock.
//!
//! | module | what |
//! |---|---|
//! | `dcd_stack::record` | the record, and what writes our own format |
//! | `format`, `formats` | the table of formats, how one is recognised; each format |
//! | `text`, `records` | what the text formats share, and the binary ones |
//! | `error` | what can be wrong, where, and what to do |
//! | `stage` | cut, scale, merge: readers over readers |
//! | `characterise`, `history`, `figures` | what a trace is like |
//! | `distance` | what an LRU cache of each size would absorb |
//! | `synthesise` | traces that have given characteristics |
//! | `open` | files, compressed files, standard input and output; what is wrong is left out or refused |

#[cfg(test)]
extern crate self as dcd_trace;
mod characterise;
mod distance;
mod error;
mod figures;
mod format;
mod formats;
#[cfg(test)]
mod fuzz_tests;
mod history;
mod open;
#[cfg(test)]
mod real_traces;
mod records;
mod stage;
pub mod synthesise;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod text;
mod zip;

pub use characterise::{Characteriser, Options};
pub use dcd_stack::{DeviceId, Inputs, LBA_END_MAX, OutputError, Record, RecordOp};
pub use distance::OverwriteDistances;
pub use error::{TraceError, Unit};
pub use figures::{Blocks, Characteristics, Distribution, Figures, Requests};
pub use format::{FORMATS, Format, Input, ReadTrace, WriteTrace, by_name, names, recognise, writer};
pub use formats::table::Columns;
pub use open::{OpenTrace, Reading, create, inputs_of_trace, open, open_as, open_input};
pub use stage::{Cut, Cutter, Merge, Scale, Scaler};
