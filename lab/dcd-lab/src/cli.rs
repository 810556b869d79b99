//! Every command and flag that the laboratory's program has besides those of `dcd`.

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cli_drive::Drive;
use crate::cli_simulate::Simulate;
use crate::cli_trace::Trace;
use crate::cli_tune::Tune;

const EXAMPLES: &str = "\
Examples:
  dcd tune week.dcd
  dcd simulate plain.toml cached.toml --trace week.dcd
  dcd-lab serve modelled.toml

Every command of dcd works here as well, on stacks that have modelled disks";

/// The laboratory of dcd: sizes a cache from a trace, simulates stacks, repeats the papers' experiments
#[derive(Debug, Parser)]
#[command(name = "dcd-lab", version = dcd_cli::cli::VERSION, after_help = format!("{EXAMPLES}\n\n{}", dcd_cli::EXIT_CODES), max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Tune(Box<Tune>),
    Trace(Trace),
    Simulate(Box<Simulate>),
    Experiment(ExperimentArgs),
    Drive(Drive),
    #[command(alias = "lab")]
    Study(Study),
    #[command(hide = true)]
    Demo(Demo),
    #[command(flatten)]
    Program(dcd_cli::cli::Command),
}

/// The commands of `dcd` that the help of this program shows: the others are described by `dcd --help`.
const SHOWN: [&str; 4] = ["serve", "calibrate", "completions", "man"];

impl Cli {
    pub fn read() -> Cli {
        let matches = Cli::command_line().get_matches();
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }

    pub fn command_line() -> clap::Command {
        let of_dcd = dcd_cli::cli::Cli::command();
        let hidden =
            of_dcd.get_subcommands().map(clap::Command::get_name).filter(|name| !SHOWN.contains(name));
        hidden.fold(Cli::command(), |command, name| command.mut_subcommand(name, |part| part.hide(true)))
    }
}

/// Run an experiment of your own: a file with stacks, options of `dcd simulate`, and claims
///
/// Prints the report of `dcd simulate` and whether each claim holds; the exit code is 1 if one does not. docs/drives.md
/// describes the file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd experiment sync-writes.toml
  dcd experiment sync-writes.toml --seeds 9 --html sync-writes.html")]
pub struct ExperimentArgs {
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// More options of `dcd simulate`
    #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub options: Vec<String>,
}

/// Repeat the papers' experiments, and judge each of their claims
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd study list
  dcd study run all
  dcd study run dcd-rawwrite --set drive=nearline-2018 --set sizes=4k,1m
  dcd study show dcd-rawwrite")]
pub struct Study {
    #[command(subcommand)]
    pub part: StudyPart,
}

#[derive(Debug, Subcommand)]
pub enum StudyPart {
    /// List the experiments with their parameters
    #[command(after_help = "Examples:\n  dcd study list")]
    List,
    Run(StudyRun),
    Show(StudyShow),
    /// Count the table cells near the paper's figures
    ///
    /// Prints for each experiment how many cells stand beside a figure of its paper, and the share of them within 10,
    /// 25 and 50 % of it.
    #[command(after_help = "Examples:\n  dcd study cells\n  dcd study cells --out lab-results")]
    Cells(StudyCells),
}

/// Run experiments in virtual time; the same seed gives the same results
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd study run A --jobs 2 --out results
  dcd study run dcd-rawwrite --set drive=nearline-2018")]
pub struct StudyRun {
    /// An experiment, a group (A: the DCD device driver, B: the write cache in NVRAM, C: disk built-in
    /// caches, D: RAID-5), or all
    #[arg(value_name = "EXPERIMENT")]
    pub name: String,
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seeds from --seed on, by which "more" and "less" are judged; as each experiment says if not given
    #[arg(long, value_name = "N")]
    pub seeds: Option<usize>,
    /// Threads; as many as there are cores if not given
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// Directory for the results, each written as it ends: a JSON file and plots for each experiment, and report.html
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
    /// Change a parameter of the experiment (see `dcd study list`); can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Write the results as Markdown, too
    #[arg(long, value_name = "FILE")]
    pub doc: Option<PathBuf>,
}

/// Print results again
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  dcd study show --out results
  dcd study show --out results --doc experiments.md")]
pub struct StudyShow {
    /// An experiment; all that were run if not given
    #[arg(value_name = "EXPERIMENT")]
    pub name: Option<String>,
    /// Directory of the results
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
    /// Judge the results again by the rules of this program, and write them as Markdown, too
    #[arg(long, value_name = "FILE")]
    pub doc: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct StudyCells {
    /// Directory of the results
    #[arg(long, value_name = "DIR", default_value = "lab-results")]
    pub out: PathBuf,
}

/// Parts of the demonstration, for `make demo`
#[derive(Debug, Args)]
pub struct Demo {
    #[command(subcommand)]
    pub part: DemoPart,
}

#[derive(Debug, Subcommand)]
pub enum DemoPart {
    /// Write the tree of files
    Tree { directory: PathBuf },
    /// Print the table of results, and write the report
    Report {
        /// File with a line of JSON for each disk and phase
        results: PathBuf,
        #[arg(long)]
        report: PathBuf,
        #[arg(long, default_value_t = 1)]
        users: u32,
        /// The drive that was modelled
        #[arg(long)]
        drive: String,
        /// The way to the kernel: ublk, nbd or fuse
        #[arg(long)]
        front_end: String,
    },
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_definitions_agree_with_each_other() {
        Cli::command_line().debug_assert();
    }

    fn has_examples(command: &clap::Command) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Examples:\n  dcd "), "{} has no examples", command.get_name());
        command.get_subcommands().filter(|part| !part.is_hide_set()).for_each(has_examples);
    }

    #[test]
    fn every_command_has_examples() {
        has_examples(&Cli::command_line());
    }

    #[test]
    fn dcd_knows_each_command_of_the_laboratory_and_its_help_names_those_that_are_shown() {
        let of_dcd = dcd_cli::cli::Cli::command();
        let shared: BTreeSet<&str> = of_dcd.get_subcommands().map(clap::Command::get_name).collect();
        let all = Cli::command();
        let own: Vec<&clap::Command> =
            all.get_subcommands().filter(|command| !shared.contains(command.get_name())).collect();
        let names =
            own.iter().flat_map(|command| [command.get_name()].into_iter().chain(command.get_all_aliases()));
        assert_eq!(names.collect::<BTreeSet<_>>(), BTreeSet::from(dcd_cli::LABORATORY));
        let help = of_dcd.get_after_help().unwrap().to_string();
        for shown in own.iter().filter(|command| !command.is_hide_set()) {
            assert!(help.contains(&format!("dcd {}", shown.get_name())), "{}", shown.get_name());
        }
    }
}
