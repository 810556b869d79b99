//! The flags of `dcd drive`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use dcd_model::{ReadAhead, WriteCache};
use serde::Deserialize;

/// Show and validate drives
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd drive show
  dcd drive validate atlas-10k atlas10k.trace.gz --bus 5171717")]
pub struct Drive {
    #[command(subcommand)]
    pub part: DrivePart,
}

#[derive(Debug, Subcommand)]
pub enum DrivePart {
    Show(Show),
    Validate(Validate),
}

/// Print what a drive is like, or list the drives that are always there
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd drive show
  dcd drive show atlas-10k
  dcd drive show atlas-10k --file > mine.toml
  dcd drive show --fields")]
pub struct Show {
    /// A drive, or a drive file; all that are always there if not given
    #[arg(value_name = "DRIVE")]
    pub drive: Option<String>,
    /// Print the drive file itself, to be changed
    #[arg(long, requires = "drive")]
    pub file: bool,
    /// Print what the fields of a drive file mean, in Markdown
    #[arg(long, conflicts_with_all = ["drive", "file"])]
    pub fields: bool,
}

/// Compare a drive with the response times that were measured of a real one
///
/// The requests of the trace are sent to the modelled drive, each the measured time after the answer to the one before it.
/// The demerit figure is the root mean square of the distance between the two distributions of response times. The trace
/// needs response times, and must have been taken with one request in flight.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd drive validate atlas-10k atlas10k.trace.gz --bus 5171717
  dcd drive validate mine.toml mine.trace --plots mine.html
  dcd drive validate mine.toml mine.trace --read-ahead none --json")]
pub struct Validate {
    /// A drive, or a drive file
    #[arg(value_name = "DRIVE")]
    pub drive: String,
    /// The measured trace
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,
    /// The trace's format; by its content if not given
    #[arg(long, value_name = "FORMAT")]
    pub from: Option<String>,
    /// Bytes a second of the bus on which the trace was taken, where the drive file has another
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub bus: Option<u64>,
    /// Answer writes from the drive's buffer: on or off
    #[arg(long, value_name = "WORD", value_parser = word::<WriteCache>, default_value = "on")]
    pub write_cache: WriteCache,
    /// Read-ahead of the drive: none, track, next-track or segment; as in the drive file if not given
    #[arg(long, value_name = "WORD", value_parser = word::<ReadAhead>)]
    pub read_ahead: Option<ReadAhead>,
    /// Write the plot of both distributions as an HTML file
    #[arg(long, value_name = "FILE")]
    pub plots: Option<PathBuf>,
    /// The result as JSON
    #[arg(long)]
    pub json: bool,
}

fn bytes(text: &str) -> Result<u64, String> {
    // A plain number is bytes, as everywhere.
    text.parse::<u64>().or_else(|_| dcd_stack::parse_size(text)).map_err(|e| e.to_string())
}

/// A word as stack files and drive files have it.
fn word<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::from(text)).map_err(|e| e.to_string())
}
