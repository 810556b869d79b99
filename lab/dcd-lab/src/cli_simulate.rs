//! The flags of `dcd simulate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dcd_cli::cli::time;
use dcd_engine::Nanos;

use crate::cli_trace::InputArgs;

/// Run stacks in virtual time, each against the same trace or the same generated workload
///
/// Every stack is measured by itself: how many reads and writes it answered, and how long they took, for which share of
/// them. Disks that are layers of kind "disk" are modelled; times on others say little. Several stacks stand beside each
/// other in the table, the time series and the page.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd simulate plain.toml cached.toml --trace week.dcd
  dcd simulate plain.toml cached.toml --trace hm_0.csv.gz --csv hm_0.series.csv --html hm_0.html
  dcd simulate disk.toml --workload random-writes --requests 20000
  dcd simulate disk.toml --workload fsync-writes --seed 7 --json")]
pub struct Simulate {
    /// The stack files
    #[arg(value_name = "STACK", required = true)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub reading: InputArgs,
    /// Device of the trace; the one with the most requests if not given
    #[arg(long, value_name = "NUMBER", requires = "trace")]
    pub device: Option<u32>,
    /// Number of requests of the workload
    #[arg(long, default_value_t = 10_000, conflicts_with = "trace")]
    pub requests: u64,
    /// Seed of the workload; the same seed gives the same run
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a time series of each stack: response times, dirty bytes, use of the log, requests that wait
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Time between two rows of the series, as 10s; if not given, so that there are 512 at most
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub interval: Option<Nanos>,
    /// Write the table with plots as one HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Threads; as many as there are cores if not given. A stack is run by one
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// The result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Load of the stacks.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct LoadArgs {
    /// Replay this trace: each request comes at its time, however long earlier ones take; "-" is standard input
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Generate a workload of one client that waits for each answer
    #[arg(long, value_name = "NAME")]
    pub workload: Option<Workload>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// 4 KiB writes anywhere, a flush after every 16
    RandomWrites,
    /// 4 KiB writes anywhere, a flush after each
    FsyncWrites,
    /// Half reads, half writes, 4 KiB, in bursts with pauses
    Mixed,
    /// 256 KiB writes from the start to the end
    Sequential,
}

fn interval(text: &str) -> Result<Nanos, String> {
    match time(text)? {
        Nanos::ZERO => Err("it is longer than nothing".to_owned()),
        interval => Ok(interval),
    }
}
