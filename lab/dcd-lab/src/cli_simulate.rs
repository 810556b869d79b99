//! The flags of `dcd simulate`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dcd_cli::cli::time;
use dcd_engine::Nanos;

use crate::cli_trace::InputArgs;
use crate::simulate::Sweep;

/// Run stacks in virtual time, each against the same trace or the same generated workload
///
/// Every stack is measured by itself: how many reads and writes it answered, and how long they took, for which share of
/// them. Disks that are layers of kind "disk" are modelled; times on others say little. Several stacks stand beside each
/// other in the table, the time series and the page.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd simulate plain.toml cached.toml --trace week.dcd
  dcd simulate plain.toml cached.toml --trace hm_0.csv.gz \\
    --csv hm_0.series.csv --html hm_0.html
  dcd simulate disk.toml --workload random-writes --requests 20000
  dcd simulate disk.toml --workload fsync-writes --seed 7 --json
  dcd simulate cached.toml --load mine.toml --seeds 5 \\
    --set cache.destage-depth=1,8,32
  dcd simulate disk.toml --trace week.dcd --closed --samples week.csv")]
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
    /// Send each request of the trace its recorded time after the last answer before it, not at its time
    #[arg(long, requires = "trace")]
    pub closed: bool,
    /// With --closed: keep so many requests in flight, without the recorded pauses
    #[arg(long, value_name = "N", requires = "closed", value_parser = clap::value_parser!(u32).range(1..))]
    pub depth: Option<u32>,
    /// Multiply the times of the trace: 0.5 is twice as fast
    #[arg(long, value_name = "FACTOR", requires = "trace", value_parser = factor, default_value = "1")]
    pub time_scale: f64,
    /// Number of generated requests; as in the load file, or 10000
    #[arg(long, conflicts_with = "trace")]
    pub requests: Option<u64>,
    /// Seed of the run, which is the same again with the same seed; as in the load file, or 1
    #[arg(long)]
    pub seed: Option<u64>,
    /// Run each stack with so many seeds, from the first on, and print the intervals of the mean (95 %)
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub seeds: u32,
    /// Run each stack with each of these values of a field; with several --set, with all combinations
    #[arg(long, value_name = "LAYER.FIELD=VALUE,...")]
    pub set: Vec<Sweep>,
    /// Write a line for each request of a single stack, in the columns of a trace
    #[arg(long, value_name = "FILE")]
    pub samples: Option<PathBuf>,
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
    /// Generate the load of this file: TOML, or a job file of fio whose name ends in .fio (docs/traces.md)
    #[arg(long, value_name = "FILE")]
    pub load: Option<PathBuf>,
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

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1e-6..=1e6).contains(&factor) => Ok(factor),
        _ => Err("write a number from 0.000001 to 1000000".to_owned()),
    }
}

fn interval(text: &str) -> Result<Nanos, String> {
    match time(text)? {
        Nanos::ZERO => Err("it is longer than nothing".to_owned()),
        interval => Ok(interval),
    }
}
