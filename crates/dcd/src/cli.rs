//! Every command and flag. The parser, `--help`, the completions and the manual pages all come from here.
// Doc comments are help texts, where [serve] is a table of a stack file.
#![allow(rustdoc::broken_intra_doc_links)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, PossibleValue, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand};
use dcd_engine::Nanos;
use dcd_stack::{Change, HumanBytes, field_names};

use crate::control;
use crate::failure::EXIT_CODES;

const EXAMPLES: &str = "\
Examples:
  dcd create srv --data /dev/sdb --log /dev/nvme0n1p3
  dcd status srv
  dcd list
  dcd remove srv

With dcd-lab installed: dcd tune, dcd trace, dcd simulate, dcd experiment, dcd drive, dcd study";

/// Version of the programs, with the commit where that was known to the build.
pub const VERSION: &str = env!("DCD_VERSION");

/// The fields that `dcd status --json` prints.
pub const STATUS_FIELDS: &str = include_str!("status_fields.txt");

/// A write cache for block devices: a small fast log before a slow disk.
#[derive(Debug, Parser)]
#[command(name = "dcd", version = VERSION, after_help = format!("{EXAMPLES}\n\n{STACKS}\n\n{EXIT_CODES}"), max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Create(Create),
    Remove(Remove),
    List(List),
    Format(Format),
    Array(crate::cli_array::Array),
    Log(crate::cli_log::Log),
    Serve(Serve),
    Attach(Attach),
    Stop(Stop),
    Status(Status),
    Top(Top),
    Metrics(Metrics),
    Doctor(Doctor),
    Events(Events),
    Flush(Flush),
    Set(Set),
    Get(Get),
    Writeback(Writeback),
    Mark(Mark),
    Ublk(Ublk),
    Grow(Grow),
    Detach(Detach),
    Check(Check),
    Dump(Dump),
    Rescue(Rescue),
    Calibrate(Calibrate),
    StackFile(StackFileHelp),
    Completions(Completions),
    Man(Man),
    Udev(Udev),
}

/// Make a cache for a disk, serve it now and at each boot, and print how to mount it
///
/// Checks the devices, makes the log (dcd format), writes /etc/dcd/NAME.toml, starts and enables the server (dcd@NAME.service) and waits
/// for the block device. The data disk keeps its layout and its data. Without systemd, a server is started in the background. A command
/// that was interrupted is simply run again; "dcd remove" is the way back.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd create srv --data /dev/disk/by-id/ata-SLOW \\
    --log /dev/disk/by-id/nvme-FAST-part3
  dcd create srv --data /dev/disk/by-id/ata-EMPTY --same-disk 256MiB
      a disk without data: its log is at its end
  dcd create srv --data /dev/sdb --log /dev/nvme0n1p3 --log /dev/nvme1n1p3
      each of the two has a copy of the log")]
#[command(group = ArgGroup::new("place").required(true))]
pub struct Create {
    /// Name of the stack, and of its device /dev/dcd/NAME: letters, digits, "_" and "."
    #[arg(value_name = "NAME", value_parser = stack_name)]
    pub name: String,
    /// Data disk, not mounted: a block device or a file
    #[arg(long, value_name = "PATH")]
    pub data: PathBuf,
    /// Log, which is overwritten: a block device or a file; given twice, each has a copy. Or a stack, NAME or file, whose log gets one more data disk
    #[arg(long, value_name = "PATH", group = "place")]
    pub log: Vec<PathBuf>,
    /// Create the log as a file of this size (bytes, or with KiB, MiB, GiB; default: the file exists)
    #[arg(long, value_name = "SIZE", value_parser = log_size, requires = "log")]
    pub log_size: Option<u64>,
    /// Put a log of this size at the end of the data disk, which must be without data
    #[arg(long, value_name = "SIZE", value_parser = log_size, group = "place")]
    pub same_disk: Option<u64>,
    /// Overwrite what is on the log's device, and discard the cache that the data disk has
    #[arg(long)]
    pub force: bool,
}

/// Write everything back, detach the cache, and leave the disk as if there had never been a cache
///
/// Refused while the device is in use: unmount it first. Stops and disables the server, detaches the cache (dcd detach) and removes
/// /etc/dcd/NAME.toml. A command that was interrupted is simply run again.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd remove srv
      after umount /srv
  dcd remove srv --disk mail
      one data disk of a log with several, which the stack keeps; a server goes on with the others")]
pub struct Remove {
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Only this data disk of a log with several: all is written back, and the others stay
    #[arg(long, value_name = "NAME")]
    pub disk: Option<String>,
    /// Give up a stack whose data disk is gone for good: nothing is written back, and the log stays as it is
    #[arg(long, conflicts_with = "disk")]
    pub force: bool,
}

/// Make the log of a cache, and attach it to a data disk
///
/// The data disk is not written: it keeps its layout and its data. What is on the log device is overwritten, which is
/// refused without --force unless the device is blank, or has the log of a cache that is out of use.
#[derive(Debug, Default, Args)]
#[command(override_usage = "dcd format [OPTIONS] STACK\n       dcd format [OPTIONS] --log PATH --data PATH")]
#[command(after_help = "\
Examples:
  dcd format disk.toml
      the log and data disk of the log-cache layer in a stack file
  dcd format --log /dev/nvme0n1p3 --data /dev/sdb --stack disk.toml
      a partition as the log of a disk; writes a stack file to serve it
  dcd format --log fast.img --log-size 256MiB --data slow.img
      files; the log is created")]
pub struct Format {
    /// Stack that names the log and the data disk: NAME or file
    #[arg(value_name = "STACK", value_parser = stack(),
          conflicts_with_all = ["log", "data", "stack", "log_size"], required_unless_present_any = ["log", "data"])]
    pub file: Option<PathBuf>,
    /// Log-cache layer to format (default: the only one)
    #[arg(long, value_name = "LAYER", requires = "file")]
    pub layer: Option<String>,
    /// Log: a block device or a file; given twice, each has a copy of the log
    #[arg(long, value_name = "PATH", requires = "data")]
    pub log: Vec<PathBuf>,
    /// Create the log as a file of this size (bytes, or with KiB, MiB, GiB; default: the file exists)
    #[arg(long, value_name = "SIZE", value_parser = log_size, requires = "log")]
    pub log_size: Option<u64>,
    /// Data disk: a block device or a file
    #[arg(long, value_name = "PATH", requires = "log")]
    pub data: Option<PathBuf>,
    /// Write a stack file that serves the cache (default: none is written)
    #[arg(long, value_name = "STACK", value_parser = new_stack(), requires = "log")]
    pub stack: Option<PathBuf>,
    /// Size of a segment of the log: a power of two, 16KiB to 16MiB (default: 512KiB, more for a log over 4GiB, and about a track of a rotational disk)
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub segment_size: Option<u64>,
    /// First write the log of the stack file OLD back to the same data disk, and take that log out of use
    #[arg(long, value_name = "OLD", value_parser = stack(), requires = "file")]
    pub replace: Option<PathBuf>,
    /// Overwrite what is on the log device, and discard the cache that the data disk has
    #[arg(long)]
    pub force: bool,
}

/// Serve a stack until it is told to stop ("dcd stop", SIGTERM, SIGINT)
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd serve disk.toml
  dcd serve disk.toml --record /var/tmp/week.dcd
      dcd tune /var/tmp/week.dcd then says which cache suits
  dcd attach disk.toml
      makes a block device of it, and prints its name
  dcd serve disk.toml --take-over \\
    --fence 'fence_ipmilan -a 10.0.0.7 -l admin -S /root/fence-password -o off'
      takes over from a machine that has died. /root/fence-password is a script that prints the password: all users of the
      machine can read the command line")]
pub struct Serve {
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Serve the plain data disk without its cache, and discard the cache
    #[arg(long)]
    pub without_cache: bool,
    /// Discard acknowledged writes that only the log has (with --without-cache)
    #[arg(long, requires = "without_cache")]
    pub force: bool,
    /// Start although writes in the log are damaged: they read as errors or as older data
    #[arg(long, conflicts_with = "without_cache")]
    pub accept_damage: bool,
    /// Start an array although its journal is lost, or although it lacks members and its parity is in doubt: blocks of it may then be wrong
    #[arg(long)]
    pub accept_doubt: bool,
    /// For tests: answer flushes from RAM that the stack declares non-volatile. What is not destaged is lost when this process is killed
    #[arg(long, hide = true)]
    pub i_have_nvram: bool,
    /// Start without members of arrays, legs of logs, and data disks of a log with several that are missing and not known to have failed:
    /// writes that only a missing leg has are lost. With TIME, wait up to TIME for all devices, then leave out members and data disks,
    /// but never a leg
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, value_parser = time)]
    pub degraded: Option<Option<Nanos>>,
    /// Wait up to TIME for local devices that another process has open, such as a server that is still ending (default: 0s)
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub wait_busy: Option<Nanos>,
    #[command(flatten)]
    pub take_over: TakeOver,
    /// Record the clients' requests in this file, on another disk, for dcd trace and dcd tune (default: none)
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Print only a line when clients can connect
    #[arg(long, short)]
    pub quiet: bool,
}

/// The stack was served by another machine.
#[derive(Debug, Args)]
pub struct TakeOver {
    /// Take over a stack that another machine has served and not stopped, with the legs of its logs that are here. Make sure that the
    /// other machine is off first: one of --other-is-off or --fence is required
    #[arg(long, conflicts_with = "without_cache")]
    pub take_over: bool,
    /// Confirm that the other machine is off, and stays off
    #[arg(long, requires = "take_over", conflicts_with = "fence")]
    pub other_is_off: bool,
    /// Shell command that switches the other machine off, or cuts it off from the data disk, before anything is written, and fails if
    /// it cannot. All users can read it while the server runs: keep secrets in files that it reads
    #[arg(long, value_name = "COMMAND", requires = "take_over", value_parser = fence)]
    pub fence: Option<String>,
}

/// Rejects a command that is empty or only a comment, as an unset variable leaves it: it would not stop the other machine.
fn fence(command: &str) -> Result<String, String> {
    let is_command = |line: &str| !line.trim().is_empty() && !line.trim().starts_with('#');
    match command.lines().any(is_command) {
        true => Ok(command.to_owned()),
        false => Err("there is no command in it, so it stops no machine: is a variable not set?".to_owned()),
    }
}

/// Make a block device of each disk of a served stack, and print its name
///
/// Prints the block device, making one if needed: the server's ublk device, if it has one; else a device of the kernel's NBD client;
/// without that a loop device over the image that fuse shows. Several disks have a line each, in their order. A disk that is attached
/// keeps its device. With nbd-recovery = true in [serve], an NBD device outlives its server: requests wait for the next "dcd serve" of
/// the stack, which answers them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd attach disk.toml
  mount $(dcd attach disk.toml) /srv
  umount /srv && dcd attach --release disk.toml
  mount $(dcd attach pool.toml --disk mail) /mail")]
pub struct Attach {
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Only this data disk of a log with several (default: all)
    #[arg(long, value_name = "NAME")]
    pub disk: Option<String>,
    /// Print the commands of other programs that make such a device, and do nothing
    #[arg(long, conflicts_with = "release")]
    pub print: bool,
    /// Remove the devices that this command has made; refused while one is in use
    #[arg(long)]
    pub release: bool,
    /// Release it although it is in use: its requests fail, and a file system on it loses what it has not written
    #[arg(long, requires = "release")]
    pub force: bool,
}

/// Stop the server of a stack, unless a client has its device
///
/// Dirty data stays in the log, and the next start finds it there. To write it back to the data disk first, run "dcd flush".
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd stop disk.toml
  dcd stop --for-restart disk.toml && dcd serve disk.toml")]
pub struct Stop {
    /// Stack: NAME or file; or the path of the control socket
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Stop although clients have the device, if all of them wait for the next server, as devices of ublk and dcd attach with recovery do
    #[arg(long)]
    pub for_restart: bool,
    /// Stop although clients have the device. Devices without recovery fail, and lose what was not flushed
    #[arg(long, conflicts_with = "for_restart")]
    pub force: bool,
}

/// List the stacks of /etc/dcd, served or not, with their dirty data and their devices
///
/// A stack file elsewhere is not listed: "dcd status FILE" shows it, and "dcd status" all that are served. Dirty data of a stopped stack is
/// that at its stop, with discards and zeroes; "?" stands for what no record tells, as after the kill of a server.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd list
  dcd list --json | jq -r '.[] | select(.is_served | not).name'")]
pub struct List {
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,
}

/// Show the state of a served stack, and what to do; without STACK, a line for each stack that is served
///
/// Servers are found by the stack files in /etc/dcd and the control sockets in /run/dcd; name others.
///
/// Exit codes: 0 if all is well; 5 if nothing is lost, but an array is degraded, a log has failed, or dirty data cannot be written
/// back; 4 if blocks are lost or damaged.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd status
  dcd status disk.toml
  dcd status disk.toml --every 5s
  dcd status disk.toml --json | jq .layers")]
pub struct Status {
    /// Stack: NAME or file; or the path of the control socket; several print a line each
    #[arg(value_name = "STACK", value_parser = stack())]
    pub files: Vec<PathBuf>,
    /// Print everything as JSON: an object for one STACK, else a list of them
    #[arg(long)]
    pub json: bool,
    /// Print what each device does, again and again: operations, bytes, response times and queue in each interval, "5s" for example
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with_all = ["json", "reset"])]
    pub every: Option<Nanos>,
    /// Reset the counters and response times
    #[arg(long, requires = "files")]
    pub reset: bool,
    /// Print what the fields of --json mean
    #[arg(long, exclusive = true)]
    pub fields: bool,
}

/// Watch served stacks live; without STACK, every stack that is served
///
/// A table lists all stacks. Below, it shows for the chosen stack what to do, graphs of the last minutes, response times and devices. Up
/// and down choose a stack, q quits.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd top
  dcd top disk.toml")]
pub struct Top {
    /// Stack: NAME or file; or the path of the control socket
    #[arg(value_name = "STACK", value_parser = stack())]
    pub files: Vec<PathBuf>,
}

/// Print the metrics of served stacks as OpenMetrics text; without STACK, of every stack that is served
///
/// A monitoring system fetches the same from the address that [serve] metrics names in the stack file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd metrics disk.toml
  dcd metrics | grep dirty_data")]
pub struct Metrics {
    /// Stack: NAME or file; or the path of the control socket
    #[arg(value_name = "STACK", value_parser = stack())]
    pub files: Vec<PathBuf>,
}

/// Look for problems of this machine and its stacks, and change nothing
///
/// Reports the features and known bugs of the kernel, disks that are not what they say, and stacks that would not start, with the reason.
/// Without STACK it looks at the stack files in /etc/dcd. A stack that is not served is started over its devices, and its writes stay in
/// RAM. Exit code 1: something needs to be done.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd doctor
  dcd doctor disk.toml --json")]
pub struct Doctor {
    /// Stack: NAME or file (default: those in /etc/dcd)
    #[arg(value_name = "STACK", value_parser = stack())]
    pub files: Vec<PathBuf>,
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

/// Print what the servers of a stack have told: starts, stops, failures, refusals, with the time
///
/// The last 256 to 512 KiB are kept, in the directory of the records. A server under systemd tells the journal the same.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd events srv
  dcd events disk.toml --lines 20")]
pub struct Events {
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Print only so many of the newest
    #[arg(long, short = 'n', value_name = "COUNT")]
    pub lines: Option<usize>,
}

/// Write all dirty data back to the data disk, with progress; Ctrl-C stops it and loses nothing
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd flush disk.toml")]
pub struct Flush {
    /// Stack: NAME or file; or the path of the control socket
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Print only errors, no progress
    #[arg(long, short)]
    pub quiet: bool,
}

/// Change settings of a served stack, at once
///
/// The settings are those of the stack file, checked as there: all are changed, or none. "dcd stack-file" marks those that can change
/// while the stack is served. Without --save they last until the server stops.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd set srv high-mark=80 low-mark=40
  dcd set srv bypass=128KiB --save
      and write it to the stack file, which keeps its comments
  dcd set big array.pass-rate=50MiB
      the setting of one layer, where several have it")]
pub struct Set {
    /// Stack: NAME or file; or the path of the control socket
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Settings, as in the stack file; quotes around text may be left out
    #[arg(value_name = "[LAYER.]SETTING=VALUE", required = true, value_parser = changes(), hide_possible_values = true)]
    pub changes: Vec<String>,
    /// Write them to the stack file, too
    #[arg(long)]
    pub save: bool,
}

/// Show the settings of a stack, and which of them can be changed while it is served
///
/// VALUE is the value in force; if the stack is not served, that of the file. FILE shows the value in the stack file where that differs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd get srv
  dcd get srv high-mark low-mark
  dcd get srv --json | jq -r '.[] | select(.file != .in_force).key'")]
pub struct Get {
    /// Stack: NAME or file; or the path of the control socket
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Settings (default: all)
    #[arg(value_name = "[LAYER.]SETTING", value_parser = Offered(field_names(|_| true)), hide_possible_values = true)]
    pub keys: Vec<String>,
    /// Print the settings as JSON
    #[arg(long)]
    pub json: bool,
}

/// Tell udev, which runs this for each block device, whether to hide the content of the device
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Udev {
    /// Node of the device
    #[arg(value_name = "DEVICE")]
    pub device: PathBuf,
}

/// List and remove ublk devices, also those whose server is gone
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd ublk list
  dcd ublk remove 0")]
pub struct Ublk {
    #[command(subcommand)]
    pub command: UblkCommand,
}

#[derive(Debug, Subcommand)]
pub enum UblkCommand {
    List(UblkList),
    Remove(UblkRemove),
}

/// List ublk devices: their servers, their stacks, and who uses them
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd ublk list
  dcd ublk list --json | jq '.[].device'")]
pub struct UblkList {
    /// Print the list as JSON
    #[arg(long)]
    pub json: bool,
}

/// Remove a ublk device that has no server
///
/// A device that is in use outlives its server: its requests wait until "dcd serve" of the same stack answers them. This removes a
/// device whose server will not come back.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd ublk remove 0
  dcd ublk remove --force 0
      although it is in use: a file system on it fails")]
pub struct UblkRemove {
    /// Number of the device: N of /dev/ublkbN
    #[arg(value_name = "N")]
    pub number: u32,
    /// Remove it although it is in use, has a server, or is not dcd's
    #[arg(long)]
    pub force: bool,
}

/// Serve all of a data disk that has grown
///
/// The stack must not be served: stop its server first. Clients of a device that outlives the server wait meanwhile.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd grow disk.toml
  dcd stop --for-restart disk.toml && dcd grow disk.toml && dcd serve disk.toml
      beneath a mounted file system")]
pub struct Grow {
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
}

/// Write all dirty data back to the data disk and detach the cache: the data disk is plain again
///
/// The stack must not be served: stop its server first. Afterwards use the data disk directly; the log holds nothing of value.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd detach disk.toml")]
pub struct Detach {
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Log-cache layer to detach (default: the only one)
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
    /// Refused: one disk of a log with several is taken out with "dcd remove STACK --disk NAME"
    #[arg(long, value_name = "NAME", hide = true)]
    pub disk: Option<String>,
    /// Data disk of several that is gone for good: the others are written back and detached. Can be repeated
    #[arg(long, value_name = "NAME")]
    pub gone: Vec<String>,
    /// Discard acknowledged writes that only the log has for a disk that is gone (with --gone), or was at an earlier detach
    #[arg(long)]
    pub force: bool,
    /// Go on without legs of the log that are missing and not known to have failed: writes that only they have are lost
    #[arg(long)]
    pub degraded: bool,
    /// Print only errors, no progress
    #[arg(long, short)]
    pub quiet: bool,
}

impl Detach {
    /// Detaches the only cache of a stack, and says how far it is.
    pub fn of(file: &Path) -> Detach {
        Detach {
            file: file.to_owned(),
            layer: None,
            disk: None,
            gone: Vec::new(),
            force: false,
            degraded: false,
            quiet: false,
        }
    }
}

/// The log that an offline command looks at.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// Stack: NAME or file; or the path of the log device
    #[arg(value_name = "STACK|LOG", value_parser = stack())]
    pub file: PathBuf,
    /// Log-cache layer (default: the only one)
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
}

/// Verify a log without changing anything: superblocks, every record, every checksum
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd check disk.toml
  dcd check /dev/nvme0n1p3 --json")]
pub struct Check {
    #[command(flatten)]
    pub log: LogArgs,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Print what is in a log, record by record, without changing anything
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd dump disk.toml | less")]
pub struct Dump {
    #[command(flatten)]
    pub log: LogArgs,
    /// Print one JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Write the dirty data of a log back to the data disk, offline, and list what cannot be read
///
/// Use it for a log that a server refuses: one that is damaged, or partly unreadable. Readable data is written back. Unreadable data
/// is listed, and the exit code is 4. After the failure of a log that had been written back, nothing is lost: "dcd format" makes a new one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd rescue disk.toml --list
      what would be written, and what cannot be read
  dcd rescue pool.toml --disk mail
      one data disk of several has all its data then, whatever is missing; the log keeps what it has for the others
  dcd rescue disk.toml --force
      go on past damage: the blocks listed keep their old content")]
pub struct Rescue {
    /// Stack: NAME or file
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Log-cache layer (default: the only one)
    #[arg(long, value_name = "LAYER")]
    pub layer: Option<String>,
    /// Write back only what the log has for this data disk of several: the others may be missing, and stay as they are
    #[arg(long, value_name = "NAME")]
    pub disk: Option<String>,
    /// List only, and write nothing
    #[arg(long)]
    pub list: bool,
    /// Write what can be read, even if other data is lost
    #[arg(long)]
    pub force: bool,
    /// Overwrite newer data of the data disk with the older data of this log. Copy the data disk first
    #[arg(long)]
    pub over_newer_data: bool,
    /// Go on without legs of the log that are missing and not known to have failed: writes that only they have are lost
    #[arg(long)]
    pub degraded: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Measure fragmented reads and writes of a disk, and find the gaps that are faster to fill than to skip
///
/// The stride benchmark of Baek and Park: one block of 4 KiB, some that are left out, and so on, compared with all blocks
/// of the same span. Smax is the smallest stride from which on leaving blocks out takes less than 1.2 times as long; shorter gaps are
/// faster to fill, except for those named by Sexcept. A disk is only read, unless a range to write is named.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd calibrate /dev/sdb
  dcd calibrate /dev/sdb --write-range 100GiB+256MiB
      writes, too: what is in these 256 MiB is overwritten
  dcd calibrate --drive cheetah-15k4 --json
      a modelled drive, in virtual time
  dcd calibrate /dev/sdb --store disks.toml
      an array of such disks fills these gaps from its next start on
  dcd calibrate /dev/sdb --write-range 100GiB+256MiB --json > sdb.json
  dcd calibrate --from sdb.json --store disk.toml
      a log cache over this disk fills them; measure the disk before dcd format")]
pub struct Calibrate {
    /// Disk to measure: a block device or a file
    #[arg(value_name = "DEVICE", required_unless_present_any = ["drive", "from"],
          conflicts_with_all = ["drive", "from"])]
    pub device: Option<PathBuf>,
    /// Modelled drive in place of a device: its name, or the path of a drive file
    #[arg(long, value_name = "DRIVE")]
    pub drive: Option<String>,
    /// Read the result that an earlier run printed with --json, and measure nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["drive", "span", "strides"])]
    pub from: Option<PathBuf>,
    /// Measure writes too, which overwrites this range of the device (bytes, or with units; default: reads only)
    #[arg(long, value_name = "OFFSET+LENGTH", value_parser = range, requires = "device")]
    pub write_range: Option<(u64, u64)>,
    /// Write even if the device is not blank
    #[arg(long, requires = "write_range")]
    pub force: bool,
    /// Range that each stride is measured over
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64MiB")]
    pub span: u64,
    /// Strides to measure, in blocks of 4 KiB
    #[arg(long, value_name = "N,N,...", value_delimiter = ',',
          default_values_t = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 24, 28, 32, 40, 48, 64])]
    pub strides: Vec<u64>,
    /// Store the result in the array of this stack file, or else in the log of its log cache; the stack must not be served
    #[arg(long, value_name = "STACK", value_parser = stack())]
    pub store: Option<PathBuf>,
    /// Layer that --store writes to: raid or log-cache (default: the only one)
    #[arg(long, value_name = "LAYER", requires = "store")]
    pub layer: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Print the reference of stack files
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd stack-file | less")]
pub struct StackFileHelp {}

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd completions bash > /usr/share/bash-completion/completions/dcd")]
pub struct Completions {
    pub shell: clap_complete::Shell,
}

/// Write the manual pages into a directory
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd man target/man
      writes pages of sections 1, 5 and 7: move each to share/man/man1, man5 or man7")]
pub struct Man {
    pub directory: PathBuf,
}

/// Text about the names of stacks, below the help of the program.
const STACKS: &str = "\
A STACK is a NAME, for the stack file /etc/dcd/NAME.toml, or the path of a stack file: it has a slash, or ends in .toml";

/// Parses a stack that exists: its name, or the path of its file.
pub fn stack() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(control::stack_path)
}

/// Parses a stack that may not exist yet.
fn new_stack() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().try_map(control::new_stack_path)
}

/// Rejects a name that no stack can have.
fn stack_name(text: &str) -> Result<String, String> {
    control::new_stack_path(text.into()).and_then(|file| {
        match file.parent() == Some(&control::stacks_dir()) {
            true => Ok(text.to_owned()),
            false => Err("it is a path: name the stack, and its file is in /etc/dcd".to_owned()),
        }
    })
}

/// Hold write-back of a served stack, or start it now
///
/// pause: dirty data stays in the log until resume, or until the server stops. The log caches fill meanwhile: over its high mark a log
/// is written back all the same, so that clients never wait for a person. resume: destage-window and the policies decide again. now:
/// writes all dirty data back in the background, whatever the window, the rate and a pause say; a pause ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd writeback srv pause
  dcd writeback srv resume
  dcd writeback srv now
      dcd flush srv does the same, and waits for the end")]
pub struct Writeback {
    /// Stack: NAME or file; or the path of the control socket
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    #[arg(value_enum)]
    pub command: WritebackCommand,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WritebackCommand {
    /// Hold dirty data in the log
    Pause,
    /// End a pause
    Resume,
    /// Write all dirty data back in the background
    Now,
}

/// Mark the content of a served disk, for backups of what changes from then on
///
/// Prints the number N of the new mark. Clients of NBD then ask for the metadata context dcd:changed-since=N, which tells what was written,
/// zeroed or discarded since, in units of 64 KiB. Marks survive clean stops alone; a mark that may lack a change is lost, as --list and
/// "dcd events" say, and the next backup is a full one. A disk has 8 marks at most. dcd-clients(7) has the steps of a backup.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd mark srv
      before a full backup, and before each incremental one
  dcd mark srv --list
  dcd mark srv --drop 4210752250
  nbdinfo --map=dcd:changed-since=4210752250 \\
    'nbd+unix:///?socket=/run/dcd/srv.sock'
      what has changed since this mark")]
pub struct Mark {
    /// Stack: NAME or file; or the path of the control socket
    #[arg(value_name = "STACK", value_parser = stack())]
    pub file: PathBuf,
    /// Data disk of a log with several: each has its own marks
    #[arg(long, value_name = "NAME")]
    pub disk: Option<String>,
    /// List the marks, and what has changed since each
    #[arg(long, conflicts_with = "drop")]
    pub list: bool,
    /// Drop mark N: older marks stay good
    #[arg(long, value_name = "N")]
    pub drop: Option<u64>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Takes any text; shells complete these words.
#[derive(Clone)]
struct Offered(Vec<&'static str>);

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        clap::builder::StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}

/// Parses changed settings; shells complete those that can change.
fn changes() -> Offered {
    Offered(field_names(|change| change == Change::Served))
}

pub fn size(text: &str) -> Result<u64, String> {
    dcd_stack::parse_size(text).map_err(|e| e.to_string())
}

/// Minimum size of a log that may be meant: its superblocks alone take this.
const LOG_BYTES_MIN: u64 = 1 << 20;

/// Parses the size of a log. A small number is one whose unit was left out.
fn log_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if bytes >= LOG_BYTES_MIN => Ok(bytes),
        _ if text.trim().bytes().all(|byte| byte.is_ascii_digit()) => Err(format!(
            "a number without a unit is in bytes, and {} bytes are too few for a log: write {}MiB, for example",
            text.trim(),
            text.trim()
        )),
        bytes => Err(format!("{} are too few for a log: it has 64MiB or more", HumanBytes(bytes))),
    }
}

pub fn time(text: &str) -> Result<Nanos, String> {
    dcd_stack::parse_duration(text).map_err(|e| e.to_string())
}

/// `OFFSET+LENGTH`, in bytes.
fn range(text: &str) -> Result<(u64, u64), String> {
    let (offset, length) = text.split_once('+').ok_or("write it like 100GiB+256MiB")?;
    Ok((size(offset)?, size(length)?))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_definitions_agree_with_each_other() {
        super::Cli::command().debug_assert();
    }

    fn has_examples(command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Examples:\n  dcd "), "{} has no examples", command.get_name());
        command.get_subcommands().filter(|part| !part.is_hide_set()).for_each(has_examples);
    }

    #[test]
    fn every_command_has_examples() {
        has_examples(&super::Cli::command());
    }
}
