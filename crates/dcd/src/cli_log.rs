//! The flags of `dcd log`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Show, add and remove legs of a mirrored log: log = ["ssd-a", "ssd-b"]
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd log status disk.toml
  dcd log remove disk.toml ssd-b
  dcd log add disk.toml ssd-c
      while clients use the log, after ssd-c was named in \"log\" of the stack file")]
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
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = crate::cli::stack())]
    pub file: PathBuf,
    /// Log-cache layer (default: the only one)
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
}

/// Show the legs of a log, and which of them have all acknowledged writes
///
/// Nothing is changed. Exit code 5: a leg is missing, has failed, or is being filled.
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

/// Add a leg to a log that is served, and fill it while clients use the log
///
/// First name the device in the stack file, in the list of the log; it replaces a leg that failed, if that one is named there no more.
/// The device is overwritten. That needs --force, unless it is blank (zeroes) or a leg that was removed. The leg counts once it is filled.
/// Ctrl-C ends only the display.
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
    /// Device: its name in the stack file
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Overwrite what is on the device
    #[arg(long)]
    pub force: bool,
    /// Show no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Take a leg out of a log that is served, and close its device
///
/// Afterwards the device is no leg any more, on any machine. The last leg with all acknowledged writes cannot be removed. Take the device
/// out of the stack file, too. A leg that failed and is gone can be removed, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd log remove disk.toml ssd-b
  dcd log remove disk.toml missing
      a leg that failed, and that the stack file names no more")]
pub struct LogRemove {
    #[command(flatten)]
    pub legs: LegsArgs,
    /// Device: its name in the stack file
    #[arg(value_name = "NAME")]
    pub name: String,
}
