//! The flags of `dcd array`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Make, look after and change RAID-5 and RAID-6 arrays
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
    /// The stack file
    #[arg(value_name = "STACK")]
    pub file: PathBuf,
    /// The raid layer, when the stack file has several
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
}

/// Make the array that a stack file describes: superblocks on its members and spares
///
/// What was on them is lost, which is refused without --force when that is a file system, a partition table, a member of another
/// array, or anything else that is recognised. The parity is computed in the background when the array is first served; until
/// then no member may fail.
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
/// The devices may be named in any order, the device of the array's journal among them. Nothing on them is changed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array assemble /dev/sd[b-g] --out disks.toml
  dcd array assemble disks.toml
      would it start, and if not, why")]
pub struct ArrayAssemble {
    /// Block devices and files; or one stack file (*.toml)
    #[arg(value_name = "DEVICE", required = true)]
    pub devices: Vec<PathBuf>,
    /// Where the stack file goes; to standard output if not given
    #[arg(long, short, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Write a stack file without the journal that the array has, and that is not among the devices
    #[arg(long)]
    pub without_journal: bool,
    /// Which array, when the devices are of several: the beginning of its uuid
    #[arg(long, value_name = "UUID")]
    pub array: Option<String>,
}

/// Show an array and each of its members, served or not
///
/// The exit code is 0 where the array is good; 5 where nothing is lost, but one more failure may lose data: it is degraded, in doubt,
/// rebuilding, resyncing or growing, or its journal has failed; and 4 where blocks are lost or damaged, or it cannot be used as it is.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array status disks.toml
  dcd array status disks.toml --json | jq .devices")]
pub struct ArrayStatus {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Everything, as JSON
    #[arg(long)]
    pub json: bool,
}

/// Use a member no more, as if it had failed; refused where data would be lost
///
/// Where a spare is there, the array rebuilds the member on it at once, if it is served.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array fail disks.toml disk2
  dcd array fail disks.toml 2")]
pub struct ArrayFail {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Its name in the stack file, or its role, from 0 on
    #[arg(value_name = "MEMBER")]
    pub member: String,
}

/// Make a device a spare, or the new member in the place where the stack file has it
///
/// A device in "spares" becomes a spare, of a served array too: put it behind the spares that the server knows. Where a member is
/// missing it takes its place at once. A device in "of", in the place of a member that has failed, becomes that member: a served array
/// fills it at once, if dcd array remove has made room, and one that is not served when it is served next, or by dcd array rebuild.
/// If it is the very device that failed or was missing, and the array knows what has been written since, only those regions are
/// filled; dcd array status says which members that holds for, and afterwards how much it was.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array add disks.toml disk5
  dcd array fail disks.toml disk2; dcd array remove disks.toml disk2; dcd array add disks.toml disk2
      out and in again: what was written meanwhile is filled")]
pub struct ArrayAdd {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Its name in the stack file
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Overwrite what is on it
    #[arg(long)]
    pub force: bool,
}

/// Take a failed member or a spare out of the array
///
/// The server of the array closes the device, so that it can be unplugged. Nothing on it is changed, and dcd array add takes it back, or
/// another one under the same name. Where the array is not served the superblock of the device is wiped; afterwards take
/// the device out of the stack file, or put "missing" in its place.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array fail disks.toml disk2
  dcd array remove disks.toml disk2")]
pub struct ArrayRemove {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Its name in the stack file, for a served array the one that it had when it was opened; or the number of a member
    #[arg(value_name = "NAME")]
    pub name: String,
}

/// Fill the new members of an array, with progress
///
/// A served array does so by itself; then this only shows how far it is. One that is not served is worked on until it is done;
/// Ctrl-C stops that, and the next time goes on where it was.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array rebuild disks.toml")]
pub struct ArrayRebuild {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Start an array that is not served although its parity is in doubt: what the missing members held there may come out wrong
    #[arg(long)]
    pub accept_damage: bool,
    /// No progress, only errors and the result
    #[arg(long, short)]
    pub quiet: bool,
}

/// Compare all parity with the data, with progress
///
/// The exit code is 4 where something does not match and is not repaired. With RAID-6 a repair finds out which block is wrong;
/// with RAID-5 it takes the data for right. A served array goes on when this is interrupted: --stop ends that.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd array scrub disks.toml
  dcd array scrub disks.toml --repair")]
pub struct ArrayScrub {
    #[command(flatten)]
    pub array: ArrayArgs,
    /// Write what does not match anew
    #[arg(long, conflicts_with = "stop")]
    pub repair: bool,
    /// Stop the scrub of a served array; the next one goes on where it was
    #[arg(long)]
    pub stop: bool,
    /// No progress, only errors and the result
    #[arg(long, short)]
    pub quiet: bool,
}

/// Give an array one more member, or the space of larger members
///
/// For one more, name it last in "of" and run this: all data moves, which takes hours on large disks. It may be interrupted, and
/// the power may go: the next run goes on where it was, and until it is done the array is not served. Without a new member
/// the array takes the size of its smallest member.
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
    /// No progress, only errors and the result
    #[arg(long, short)]
    pub quiet: bool,
}
