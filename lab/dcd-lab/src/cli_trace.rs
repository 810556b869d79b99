//! The flags of `dcd trace`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use dcd_cli::cli::time;
use dcd_engine::Nanos;

/// Convert, measure, make, cut, scale and merge block traces
///
/// The format of a trace is recognised by its content, and it may be compressed (gzip, zstd, xz, bzip2, lz4, zip). "-" is
/// standard input or output. A name DEVICE with a DEVICE.blktrace.0 beside it is a recording of blktrace, all CPUs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd trace convert hm_0.csv.gz hm_0.dcd
  dcd trace characterise hm_0.dcd --plots hm_0.html
  blktrace -d /dev/sdb -o sdb -w 60; dcd trace convert sdb sdb.dcd")]
pub struct Trace {
    #[command(subcommand)]
    pub part: TracePart,
}

#[derive(Debug, Subcommand)]
pub enum TracePart {
    Convert(Convert),
    Summarise(Summarise),
    Characterise(Characterise),
    Synthesise(Synthesise),
    Cut(CutArgs),
    Scale(ScaleArgs),
    Merge(MergeArgs),
    /// List the formats
    #[command(after_help = "Examples:\n  dcd trace formats")]
    Formats,
}

/// Options for reading a trace.
#[derive(Debug, Args)]
pub struct InputArgs {
    /// The format of the input, when its content does not tell (dcd trace formats)
    #[arg(long, value_name = "FORMAT")]
    pub from: Option<String>,
    /// The columns of text in another format, in their order, with units: time:s, end:us, latency:ms, offset:bytes,
    /// size:sectors, op, op:0=read, device, host, program, and - for any other
    #[arg(long, value_name = "COLUMNS", conflicts_with = "from")]
    pub columns: Option<dcd_trace::Columns>,
    /// Leave all malformed records out and count them, and use the good part of a compressed file that was cut off
    #[arg(long)]
    pub skip_bad: bool,
    /// No progress, only errors
    #[arg(long, short)]
    pub quiet: bool,
}

/// Options for writing a trace.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// The format of the output; else the ending of its name tells (.csv, .fio, ...), or it is our compact one (dcd trace formats)
    #[arg(long, value_name = "FORMAT")]
    pub to: Option<String>,
}

/// A trace, and the one that is made of it.
#[derive(Debug, Args)]
pub struct Files {
    /// The trace; "-" is standard input
    #[arg(value_name = "TRACE")]
    pub input: PathBuf,
    /// Path of the result; "-" is standard output
    #[arg(value_name = "OUTPUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub reading: InputArgs,
    #[command(flatten)]
    pub writing: OutputArgs,
}

/// Write a trace in another format
///
/// What the other format cannot say (a discard in MSR CSV) is an error; what it cannot hold (response times in SPC,
/// nanoseconds in Alibaba CSV) is cut off, and told.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd trace convert Financial1.spc.bz2 financial.dcd
  dcd trace convert sdb.dcd sdb.fio --to fio3
  dcd trace convert hm_0.csv hm_0.trace --to disksim --from-zero
  dcd trace convert mine.csv mine.dcd \\
    --columns time:s,device,op,offset:bytes,size:bytes,latency:us
  dcd trace convert broken.csv good.dcd --skip-bad --only read,write
  blktrace -d /dev/sdb -o - | dcd trace convert --from blktrace - sdb.dcd")]
pub struct Convert {
    #[command(flatten)]
    pub files: Files,
    /// Only these operations: read, write, discard, flush
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    pub only: Vec<Operation>,
    /// Let the times begin at zero
    #[arg(long)]
    pub from_zero: bool,
    /// Put records in order that are late by so many records at most
    #[arg(long, value_name = "RECORDS")]
    pub sort: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    Read,
    Write,
    Discard,
    Flush,
}

/// Count a trace: requests, sizes, rates, response times
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd trace summarise hm_0.csv.gz
  dcd trace summarise sdb --json")]
pub struct Summarise {
    /// The trace; "-" is standard input
    #[arg(value_name = "TRACE")]
    pub input: PathBuf,
    #[command(flatten)]
    pub reading: InputArgs,
    /// The result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Measure what decides how well a cache can do
///
/// The figures of Tables 3.1 and 4.5 of Biswas, Ramakrishnan and Towsley (1993): requests and sizes, how busy the disk is,
/// how much is overwritten and how soon; and reads after writes, idle periods, working set, sequentiality, the hottest
/// blocks. A trace that touches many blocks is sampled by address; the report says so.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd trace characterise hm_0.csv.gz
  dcd trace characterise off-day.dcd --service 26ms --plots off-day.html")]
pub struct Characterise {
    /// The trace; "-" is standard input
    #[arg(value_name = "TRACE")]
    pub input: PathBuf,
    #[command(flatten)]
    pub reading: InputArgs,
    /// The result as JSON
    #[arg(long)]
    pub json: bool,
    /// Write the plots as one HTML file
    #[arg(long, value_name = "FILE")]
    pub plots: Option<PathBuf>,
    /// Time that a request takes if the trace does not have its response time, for the busy and idle time
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    pub service: Nanos,
    /// Runs of blocks with the same history to follow at most, some 90 bytes each; with more, they are sampled
    #[arg(long, value_name = "N", value_parser = blocks, default_value_t = dcd_trace::Options::BLOCKS_MAX)]
    pub blocks_max: usize,
}

/// Make a trace with given characteristics
///
/// Counts, sizes, overwrites and how soon they come, reads after writes, sequential runs, bursts: from a preset, from a
/// description in TOML, or like another trace. The generator is turned until what is measured is what was wanted, and
/// both are reported.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd trace synthesise --preset off-day off-day.dcd
  dcd trace synthesise --like hm_0.csv.gz --seed 7 like-hm_0.dcd
  dcd trace synthesise --preset sci-off --describe > mine.toml
  dcd trace synthesise --description mine.toml mine.dcd")]
pub struct Synthesise {
    #[command(flatten)]
    pub of: SynthesiseOf,
    /// Path of the result; "-" is standard output
    #[arg(value_name = "OUTPUT", required_unless_present = "describe")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub reading: InputArgs,
    #[command(flatten)]
    pub writing: OutputArgs,
    /// Seed of the trace; the same seed makes the same trace
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Time that a request takes if the trace does not have its response time (with --like)
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0ms")]
    pub service: Nanos,
    /// Print the description in TOML and make nothing
    #[arg(long, conflicts_with = "output")]
    pub describe: bool,
    /// The fit as JSON
    #[arg(long)]
    pub json: bool,
}

/// Source of a synthetic trace.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SynthesiseOf {
    /// A calibrated description: off-day, air-rsv, sci-off (Biswas, Ramakrishnan and Towsley, 1993)
    #[arg(long, value_name = "NAME")]
    pub preset: Option<String>,
    /// Measure this trace, each of its devices, and make one like it
    #[arg(long, value_name = "TRACE")]
    pub like: Option<PathBuf>,
    /// A description in TOML; --describe prints one to begin with
    #[arg(long, value_name = "FILE")]
    pub description: Option<PathBuf>,
}

/// Keep a part of a trace: by time, device, operation, count
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd trace cut week.dcd day.dcd --start 24h --end 48h
  dcd trace cut all.dcd one.dcd --device 8388624 --count 1000000")]
pub struct CutArgs {
    #[command(flatten)]
    pub files: Files,
    /// From so long after the first record
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "0s")]
    pub start: Nanos,
    /// Up to so long after the first record
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub end: Option<Nanos>,
    /// Only this device; can be repeated
    #[arg(long, value_name = "NUMBER")]
    pub device: Vec<u32>,
    /// Only these operations: read, write, discard, flush
    #[arg(long, value_name = "OP", value_delimiter = ',')]
    pub only: Vec<Operation>,
    /// Only requests of at most so many sectors
    #[arg(long, value_name = "SECTORS")]
    pub sectors_max: Option<u64>,
    /// At most so many records
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
}

/// Stretch or shrink a trace in time and in space
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd trace scale old.dcd twice-as-fast.dcd --time 0.5
  dcd trace scale small.dcd larger-disk.dcd --space 4")]
pub struct ScaleArgs {
    #[command(flatten)]
    pub files: Files,
    /// Multiply the times since the first record; response times stay
    #[arg(long, value_name = "FACTOR", value_parser = factor, default_value = "1")]
    pub time: f64,
    /// Multiply the addresses; sizes stay
    #[arg(long, value_name = "FACTOR", value_parser = factor, default_value = "1")]
    pub space: f64,
}

/// Join traces into one, in the order of time
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd trace merge hm_0.csv hm_1.csv --output hm.dcd
  dcd trace merge monday.dcd tuesday.dcd --output both.dcd --window 100000")]
pub struct MergeArgs {
    /// The traces; "-" is standard input
    #[arg(value_name = "TRACE", required = true)]
    pub inputs: Vec<PathBuf>,
    #[arg(long, short, value_name = "OUTPUT")]
    pub output: PathBuf,
    #[command(flatten)]
    pub reading: InputArgs,
    #[command(flatten)]
    pub writing: OutputArgs,
    /// A trace may be out of order by so many records
    #[arg(long, value_name = "RECORDS", default_value_t = 1024)]
    pub window: usize,
}

/// Fewer say nothing.
const BLOCKS_MIN: usize = 1000;

fn blocks(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(blocks) if blocks >= BLOCKS_MIN => Ok(blocks),
        _ => Err(format!("it is a number of {BLOCKS_MIN} or more")),
    }
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor > 0.0 && factor.is_finite() => Ok(factor),
        _ => Err("a factor is a number above zero".to_owned()),
    }
}
