//! The flags of `dcd log`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Look after the legs of a mirrored log: log = ["ssd-a", "ssd-b"]
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd log status disk.toml
  dcd log remove disk.toml ssd-b
  dcd log add disk.toml ssd-c
      beside clients, after ssd-c was named in \"log\" of the stack file")]
pub struct Log {
    #[command(subcommand)]
    pub command: LogCommand,
}

#[derive(Debug, Subcommand)]
pub enum LogCommand {
    Status(LogStatus),
    Add(LogAdd),
    Remove(LogRemove),
}

/// The log that a command is about.
#[derive(Debug, Args)]
pub struct LegsArgs {
    /// Stack file
    #[arg(value_name = "STACK")]
    pub file: PathBuf,
    /// Log-cache layer (default: the only one)
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
}

/// Show which legs a log has, and which of them have everything
///
/// Nothing is changed. The exit status is 5 where a leg is missing, has failed, or is being filled.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd log status disk.toml
  dcd log status --json disk.toml")]
pub struct LogStatus {
    #[command(flatten)]
    pub legs: LegsArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Give a log that is served another leg, and fill it beside clients
///
/// The device is named in the stack file first, in the list of the log. What is on it is overwritten, which is refused without --force
/// when anything is recognised there. It counts once it is full; an interrupt only ends the watching.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd log add disk.toml ssd-c
      after log = [\"ssd-a\", \"ssd-b\", \"ssd-c\"] and [device.ssd-c] were written into the stack file
  dcd log add disk.toml ssd-b
      a leg that failed, or was away, and is connected again")]
pub struct LogAdd {
    #[command(flatten)]
    pub legs: LegsArgs,
    /// The device, as the stack file calls it
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Overwrite what is on it
    #[arg(long)]
    pub force: bool,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Take a leg out of a log that is served, and close its device
///
/// It is no leg any more afterwards, wherever it is connected. One leg that has everything stays. Take it out of the stack file, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd log remove disk.toml ssd-b")]
pub struct LogRemove {
    #[command(flatten)]
    pub legs: LegsArgs,
    /// The device, as the stack file calls it
    #[arg(value_name = "NAME")]
    pub name: String,
}
