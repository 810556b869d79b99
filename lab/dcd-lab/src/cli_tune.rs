//! The flags of `dcd tune`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use dcd_engine::log_cache;

use crate::tune::{Medium, Objective};
use dcd_cli::cli::size;

/// Find the cache for a workload: replay a trace against caches of several kinds, sizes and policies
///
/// Every candidate is simulated before a modelled disk: no cache, a log on a slice of the same disk, on another disk, or on an
/// SSD, a write cache in RAM. With --log they are logs on that device, as large as fit it. The cheapest that is as good as the
/// best is recommended, with the reasons, how sure it is, and what was assumed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd tune week.dcd
  dcd tune hm_0.csv.gz --drive barracuda-1996 --same-disk --ssd --out hm_0
      a page with plots, and stack files to serve and to simulate, in the directory hm_0
  dcd tune disk.dcd --objective p95 --disk /dev/sdb --log /dev/sdc1 --out disk
  dcd tune week.dcd --same-disk 0.02 --ssd 0.10
      with what a gigabyte of each costs: what the cheapest good one costs, and what the money saves
  dcd tune short.dcd --verify --json
  dcd tune traces --ssd 0.10 --out result
      every trace in the directory, several at a time, those that gain most first")]
pub struct Tune {
    /// The trace; "-" is standard input. Several, or a directory, are tuned each by itself and compared
    #[arg(value_name = "TRACE", required = true)]
    pub inputs: Vec<PathBuf>,
    #[command(flatten)]
    pub reading: crate::cli_trace::InputArgs,
    /// Device of the trace; the one with the most requests if not given
    #[arg(long, value_name = "NUMBER")]
    pub device: Option<u32>,
    /// The disk: a drive that comes with the program, or the path of a drive file
    #[arg(long, value_name = "DRIVE", default_value = "nearline-2018")]
    pub drive: String,
    #[command(flatten)]
    pub media: MediaArgs,
    /// The SSD of a log, named likewise; 80 us for an operation if not given, however many there are
    #[arg(long, value_name = "DRIVE")]
    pub ssd_drive: Option<String>,
    /// Sizes of logs to begin with, as far as there is room
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size, default_value = "64MiB,256MiB,1GiB")]
    pub log_sizes: Vec<u64>,
    /// Sizes of write caches in RAM to begin with; the first that holds all that is written ends the list
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = size, default_value = "1MiB,4MiB,16MiB,64MiB")]
    pub ram_sizes: Vec<u64>,
    /// The largest cache to try, where larger ones are better
    #[arg(long, value_name = "SIZE", value_parser = size, default_value = "64GiB")]
    pub size_max: u64,
    /// Bytes that may be written to the SSD in its life, as its data sheet says (TBW): for how many years that is enough; that
    /// of --ssd-drive if not given
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub endurance: Option<u64>,
    /// Figure to minimise
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = Objective::Mean)]
    pub objective: Objective,
    /// The cheapest candidate that is worse than the best by at most so many percent is recommended
    #[arg(long, value_name = "PERCENT", value_parser = percent, default_value = "2")]
    pub within: f64,
    /// Promise of a log, which says when a write is safe; flush if the trace has flushes, else always
    #[arg(long, value_name = "PROMISE", value_enum)]
    pub promise: Option<Promise>,
    /// Measure every size with all settings, too, and say how far the recommendation is from the best
    #[arg(long)]
    pub verify: bool,
    /// Threads; as many as there are cores if not given
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Write tune.html, serve.toml, simulate.toml and tune.json into this directory; of several traces, each into one of its own
    /// there
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// The disk in serve.toml; what is not there yet is relative to DIR
    #[arg(long, value_name = "PATH", default_value = "disk.img")]
    pub disk: PathBuf,
    /// The device that is to have the log: candidates are logs on it, and it is in serve.toml
    #[arg(long, value_name = "PATH")]
    pub log: Option<PathBuf>,
    /// The result as JSON, a line for each trace
    #[arg(long)]
    pub json: bool,
}

/// Media for a cache, each with an optional price.
#[derive(Debug, Args)]
#[command(
    next_help_heading = "Media, each with the price of a gigabyte if given; what --log is, or --same-disk and --ssd without any"
)]
pub struct MediaArgs {
    /// A log on a slice of the disk itself
    #[arg(long, value_name = "PRICE", num_args = 0..=1, default_missing_value = "0", value_parser = price)]
    pub same_disk: Option<f64>,
    /// A log on another disk of the same model
    #[arg(long, value_name = "PRICE", num_args = 0..=1, default_missing_value = "0", value_parser = price)]
    pub other_disk: Option<f64>,
    /// A log on an SSD
    #[arg(long, value_name = "PRICE", num_args = 0..=1, default_missing_value = "0", value_parser = price)]
    pub ssd: Option<f64>,
    /// A write cache in the server's RAM: a flush destages it
    #[arg(long, value_name = "PRICE", num_args = 0..=1, default_missing_value = "0", value_parser = price)]
    pub ram: Option<f64>,
    /// A write cache in RAM that survives a power cut
    #[arg(long, value_name = "PRICE", num_args = 0..=1, default_missing_value = "0", value_parser = price)]
    pub nvram: Option<f64>,
}

impl Tune {
    /// The price of a gigabyte where a cache may be; none where it may not.
    pub fn price(&self, medium: Medium) -> Option<f64> {
        let media = &self.media;
        match medium {
            Medium::None => None,
            Medium::Ram => media.ram,
            Medium::SameDisk => media.same_disk,
            Medium::OtherDisk => media.other_disk,
            Medium::Ssd => media.ssd,
            Medium::Nvram => media.nvram,
        }
    }
}

/// The flag that names a medium.
pub const fn flag(medium: Medium) -> &'static str {
    match medium {
        Medium::None => "",
        Medium::Ram => "--ram",
        Medium::SameDisk => "--same-disk",
        Medium::OtherDisk => "--other-disk",
        Medium::Ssd => "--ssd",
        Medium::Nvram => "--nvram",
    }
}

fn price(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(price) if (0.0..1e9).contains(&price) => Ok(price),
        _ => Err("the price of a gigabyte is a number, as 0.10; the trace comes before such a flag, or after another one".to_owned()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Promise {
    /// Writes are safe once FLUSH or FUA returns
    Flush,
    /// Each write is safe once it returns
    Always,
}

impl From<Promise> for log_cache::Promise {
    fn from(promise: Promise) -> log_cache::Promise {
        match promise {
            Promise::Flush => log_cache::Promise::Flush,
            Promise::Always => log_cache::Promise::Always,
        }
    }
}

fn percent(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent),
        _ => Err("it is a number of percent, 0 or more".to_owned()),
    }
}
