//! The flags of `dcd array`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Make, check and change RAID-5 and RAID-6 arrays
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array create disks.toml
  dcd array status disks.toml
  dcd array fail disks.toml disk2
  dcd array rebuild disks.toml")]
pub struct Array {
    #[command(subcommand)]
    pub command: ArrayCommand,
}

#[derive(Debug, Subcommand)]
pub enum ArrayCommand {
    Create(ArrayCreate),
    Assemble(ArrayAssemble),
    Status(ArrayStatus),
    Fail(ArrayFail),
    Add(ArrayAdd),
    Remove(ArrayRemove),
    Rebuild(ArrayRebuild),
    Scrub(ArrayScrub),
    Grow(ArrayGrow),
}

/// The array that a command is about.
#[derive(Debug, Args)]
pub struct ArrayArgs {
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = crate::cli::stack())]
    pub file: PathBuf,
    /// Raid layer (default: the only one)
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
}

/// Make the array that a stack file describes: superblocks on its members and spares
///
/// This overwrites the members. It is refused without --force if one of them is not blank (zeroes). The first start computes the
/// parity in the background; until then no member may fail.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array create disks.toml
  dcd serve disks.toml")]
pub struct ArrayCreate {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Overwrite what is on the members
    #[arg(long)]
    pub force: bool,
}

/// Find the members of an array among devices, and write a stack file that serves it; or check a stack file
///
/// Name the devices in any order, and the device of the array's journal with them. Nothing on them is changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array assemble /dev/sd[b-g] --out disks.toml
  dcd array assemble disks.toml
      would it start, and if not, why")]
pub struct ArrayAssemble {
    /// Block devices and files, or one stack file (*.toml)
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<PathBuf>,
    /// Write the stack file here (default: standard output)
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write a stack file without the array's journal, which is not among the devices
    #[arg(long)]
    pub without_journal: bool,
    /// Choose the array by the beginning of its UUID (default: the only one)
    #[arg(long, value_name = "UUID")]
    pub array: Option<String>,
}

/// Show an array and each of its members, served or not
///
/// Exit codes: 0 if the array is good; 5 if one more failure may lose data, as the array is degraded, in doubt, rebuilding, resyncing
/// or growing, or its journal has failed; 4 if blocks are lost or damaged, or the array cannot be used.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array status disks.toml
  dcd array status disks.toml --json | jq .devices")]
pub struct ArrayStatus {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Print everything as JSON
    #[arg(long)]
    pub json: bool,
}

/// Mark a member as failed; refused if data would be lost
///
/// A served array with a spare immediately begins to rebuild the member on the spare.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array fail disks.toml disk2
  dcd array fail disks.toml 2")]
pub struct ArrayFail {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Member: its name in the stack file, or its role, from 0 on
    #[arg(value_name = "MEMBER")]
    pub member: String,
}

/// Make a device a spare, or the new member in whose place the stack file names it
///
/// A device in "spares" becomes a spare, also of a served array: name it after the spares that the server knows. If a member is
/// missing, the spare takes its place immediately. A device in "of", in the place of a failed member, becomes that member. A served array
/// fills it immediately, if dcd array remove has closed the old device. Otherwise the next start fills it, or dcd array rebuild.
/// A member that returns is filled only in the regions that were written since, if the array knows them. dcd array status lists
/// these members, and afterwards how much was filled.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array add disks.toml disk5
  dcd array fail disks.toml disk2; dcd array remove disks.toml disk2
  dcd array add disks.toml disk2
      out and in again: only regions that were written meanwhile are filled")]
pub struct ArrayAdd {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Device: its name in the stack file
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Overwrite what is on the device
    #[arg(long)]
    pub force: bool,
}

/// Take a failed member or a spare out of the array
///
/// A server closes the device, so that it can be unplugged. Nothing on the device is changed, and dcd array add takes it back, or
/// another device under the same name. If the array is not served, the superblock of the device is wiped. Afterwards take the device
/// out of the stack file, or put "missing" in its place.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array fail disks.toml disk2
  dcd array remove disks.toml disk2")]
pub struct ArrayRemove {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Device: its name in the stack file (when the server opened it), or the number of a member
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Fill the new members of an array, with progress
///
/// A served array fills them by itself, and this command shows the progress. An array that is not served is filled by this command.
/// Ctrl-C stops it, and the next run continues.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array rebuild disks.toml")]
pub struct ArrayRebuild {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Rebuild an array that is not served even from parity that is in doubt: blocks of the missing members may be wrong
    #[arg(long)]
    pub accept_doubt: bool,
    /// Print only errors and the result, no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Compare all parity with the data, with progress
///
/// The exit code is 4 if a mismatch is not repaired. A repair with RAID-6 finds the wrong block; with RAID-5 it trusts the data and
/// writes the parity. Ctrl-C does not end the scrub of a served array: --stop does.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array scrub disks.toml
  dcd array scrub disks.toml --repair")]
pub struct ArrayScrub {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Repair what does not match
    #[arg(long, conflicts_with = "stop")]
    pub repair: bool,
    /// Stop the scrub of a served array; the next scrub continues
    #[arg(long)]
    pub stop: bool,
    /// Print only errors and the result, no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Give an array one more member, or the space of larger members
///
/// To add a member, name it last in "of". All data moves, which takes hours on large disks. After an interrupt or a power failure the
/// next run continues; the array cannot be served before it is done. Without a new member the array takes the size of its smallest
/// member.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array grow disks.toml")]
pub struct ArrayGrow {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Overwrite what is on the new member
    #[arg(long)]
    pub force: bool,
    /// Print only errors and the result, no progress
    #[arg(long, short)]
    pub quiet: bool,
}
