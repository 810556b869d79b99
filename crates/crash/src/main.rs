//! Looks for lost data: cuts the power of simulated disks in as many ways as it is given time for.

use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};
use dcd_crash::cache::{
    disks_rig, filling_rig, guest_rig, log_cache_rig, memory_rig, ordered_destage_rig, rotting_rig,
    through_rig,
};
use dcd_crash::mirror::{MirrorCanary, mirrored_memory_rig, mirrored_rig, take_over_rig};
use dcd_crash::raid::{LogPlace, RaidSubject, raid_rig};
use dcd_crash::{
    DiskFaults, ExplorationCounts, ExploreConfig, Rig, SweepConfig, explore, replay, sweep_errors,
};
use dcd_engine::log_cache::{LogCanary, Promise};
use dcd_engine::mirror;
use dcd_engine::raid::{self, Level};
use indicatif::{ProgressBar, ProgressStyle};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PromiseName {
    Flush,
    Ordered,
    Always,
}

impl From<PromiseName> for Promise {
    fn from(name: PromiseName) -> Promise {
        match name {
            PromiseName::Flush => Promise::Flush,
            PromiseName::Ordered => Promise::Ordered,
            PromiseName::Always => Promise::Always,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CanaryName {
    /// Disks that acknowledge flushes and FUA and do nothing.
    LyingDisk,
    /// Segments are freed as soon as nothing in them is dirty, in any order.
    ReclaimOutOfOrder,
    /// Recovery takes records of any epoch.
    IgnoreEpochs,
    /// Large writes bypass the log without looking into it.
    BlindBypass,
    /// Clean copies are read from the log although a large write has bypassed it.
    StaleClean,
    /// Blocks that were read are copied to the log although a write has overlapped them meanwhile.
    StaleKeep,
    /// A start trusts entries of segment summaries that were not durable when the summary was written.
    StaleSummary,
    /// A start looks for a record after the last one only, not at free places before it.
    OnwardOnly,
    /// Large writes bypass the log over gaps that are being destaged.
    StaleGap,
    /// Writes are answered from RAM although their client outlives the server.
    EarlyAnswer,
    /// The mark in memory that outlives the process is stored after the answer (with --process-deaths).
    LateMark,
    /// Memory of another boot and another activation is taken in (with --process-deaths).
    ForeignAnswers,
    /// A start does not miss memory that was lost while the machine ran on (with --process-deaths).
    UnmissedAnswers,
    /// All records in memory are written to the log, even over newer ones (with --process-deaths).
    OldAnswers,
    /// Segments are freed while a record in them is still being written.
    ReuseInFlight,
    /// The head may enter a segment while a write of a survey is on its way there.
    UnpinnedProbe,
    /// Segments of the log are discarded that the durable superblock still needs.
    DiscardNeeded,
    /// The head may enter a segment while a discard is on its way there.
    UnpinnedDiscard,
    /// No mark says how far the log is durable when it comes to rest (with --rot).
    NoRestMark,
    /// As no-rest-mark, and a start looks only nearby for proof that a record is missing (with --rot).
    NearProof,
    /// A start takes records of one data disk for those of another (with --disks).
    OtherDisk,
    /// A data disk is served before the superblocks that have it are durable (with --disks and --guest).
    EarlyDisk,
    /// A data disk leaves the log before its data is durable on it (with --disks and --guest).
    EarlyLeave,
    /// A start takes records of a disk that has left for those of the next one in its place (with --disks and --guest).
    OldPlace,
    /// The tail of the log passes segments that are clean for the first data disk (with --disks).
    TailOfOne,
    /// Destaged blocks are called clean after a flush of another data disk (with --disks).
    FlushOther,
    /// The tail passes dirty blocks of a disk that hangs or fails, and they are not carried (with --disks).
    PassMissing,
    /// Blocks of such a disk are carried although newer copies are in the log (with --disks).
    CarryBlindly,
    /// A start counts the blocks of a missing disk as clean (with --disks).
    FreeMissing,
    /// A start passes over the records of a missing disk (with --disks).
    SkipMissing,
    /// A start trusts the fingerprint of a missing disk as after a clean stop (with --disks).
    ExactMissing,
    /// Writes pass the log before its superblock says that nothing in it counts.
    EarlyThrough,
    /// A cache says that its log may be lost while data is only there.
    EarlyReport,
    /// Copies in the log are not called older than a write that passed it.
    UnnotedPass,
    /// A start believes copies in the log of a cache that wrote through when it crashed.
    BelieveCopies,
    /// Destage is not ordered, and the data disk alone is judged as if it were.
    PlainDestage,
    /// A rescue marks the log clean before the data disk is flushed.
    EarlyRescue,
    /// A leg of a log that missed a write is trusted (with --legs).
    StaleLeg,
    /// A write is acknowledged when one leg of the log has it (with --legs).
    OneLeg,
    /// Writes are acknowledged before the labels name a leg that missed one (with --legs).
    LateLabel,
    /// A start does not repair records that only one leg of the log may have (with --legs).
    UnevenCopies,
    /// Data that one leg of the log lacks is written to all of them, over the only good copy, and sectors that are being written in a
    /// power cut cannot be read (with --legs).
    OverwriteCopies,
    /// A start does not ask which machine has served the log last (with --take-over).
    AnyMachine,
    /// An array has no journal, and crashes destroy members (with --raid).
    WriteHole,
    /// An array writes to a region before its bit is durable (with --raid).
    LateIntent,
    /// An array writes back blocks that its journal lacks, and crashes destroy members (with --raid).
    SkipJournal,
    /// An array treats data written during a destage as clean (with --raid).
    LateWrite,
    /// An array does not mark the regions that a returning member has missed (with --raid).
    ForgetMissed,
}

impl CanaryName {
    fn fits(self, array: bool) -> bool {
        self == CanaryName::LyingDisk || array == self.is_for_arrays()
    }

    fn is_for_arrays(self) -> bool {
        self == CanaryName::WriteHole || self.of_array().is_some()
    }

    /// The bug that a log on legs gets.
    const fn of_legs(self) -> Option<MirrorCanary> {
        match self {
            CanaryName::StaleLeg => Some(MirrorCanary::Mirror(mirror::LegCanary::StaleLeg)),
            CanaryName::OneLeg => Some(MirrorCanary::Mirror(mirror::LegCanary::OneLeg)),
            CanaryName::LateLabel => Some(MirrorCanary::Mirror(mirror::LegCanary::LateLabel)),
            CanaryName::UnevenCopies => Some(MirrorCanary::UnevenCopies),
            CanaryName::AnyMachine => Some(MirrorCanary::AnyMachine),
            CanaryName::OverwriteCopies => Some(MirrorCanary::OverwriteCopies),
            _ => None,
        }
    }

    /// The bug that an array gets.
    const fn of_array(self) -> Option<raid::ArrayCanary> {
        match self {
            CanaryName::LateIntent => Some(raid::ArrayCanary::LateIntent),
            CanaryName::SkipJournal => Some(raid::ArrayCanary::SkipJournal),
            CanaryName::LateWrite => Some(raid::ArrayCanary::LateWrite),
            CanaryName::ForgetMissed => Some(raid::ArrayCanary::ForgetMissed),
            _ => None,
        }
    }

    fn subject(self) -> &'static str {
        if self.is_for_arrays() { "an array: add --raid" } else { "a log cache: leave --raid out" }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LevelName {
    Raid5,
    Raid6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogPlaceName {
    Device,
    Slice,
}

/// Runs random clients on a cache in virtual time, cuts the power at every write and every flush, recovers, and compares
/// with what the promise allows. Cuts also hit recovery and destaging, nested three deep.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Exit status: 0 nothing was lost (or the canary was caught); 1 data was lost (or the canary was not \
                  caught); 2 wrong usage.\n\nExamples:\n  dcd-crash --states 1000000 --seed 7 --progress\n  \
                  dcd-crash --promise ordered\n  dcd-crash --canary lying-disk --states 1000\n  dcd-crash --errors --seed 3\n  \
                  dcd-crash --raid raid6 --journal --lose-members --states 100000 --progress"
)]
struct Arguments {
    /// Number of crash states to try (default: 10,000). With --errors: of cases; the next seeds follow (default: one seed).
    #[arg(long)]
    states: Option<u64>,
    /// First seed of the random numbers; the same seed tries the same states.
    #[arg(long, default_value = "1", value_parser = parse_seed)]
    seed: u64,
    /// Point at which a write must be safe.
    #[arg(long, value_enum, default_value = "flush")]
    promise: PromiseName,
    /// A bug to plant, to see that it is caught.
    #[arg(long, value_enum)]
    canary: Option<CanaryName>,
    /// Destages in order in every run, and judges the data disk alone too: without the cache, it must be what a plain disk
    /// could be after a crash. (Otherwise this is done in one run of seven.)
    #[arg(long)]
    ordered_destage: bool,
    /// Fills gaps between blocks that are destaged, by rules drawn from the seed.
    #[arg(long)]
    fill: bool,
    /// Explores an array in place of a cache, with members and settings drawn from the seed.
    #[arg(long, value_enum, conflicts_with_all = ["promise", "ordered_destage", "fill"])]
    raid: Option<LevelName>,
    /// The array has a journal.
    #[arg(long, requires = "raid", conflicts_with = "canary")]
    journal: bool,
    /// Crashes destroy as many members as the parity can replace. Only with a journal nothing may be lost then.
    #[arg(long, requires_all = ["raid", "journal"])]
    lose_members: bool,
    /// Number of the array's spares: they are rebuilt in place of lost members, and may then be lost themselves.
    #[arg(long, requires = "raid", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=4))]
    spares: u8,
    /// Members of the array fail, are removed, and are added again while it runs, or are missing at a start and come back; some of
    /// them as new devices.
    #[arg(long, requires_all = ["raid", "journal"])]
    hot_add: bool,
    /// A log cache stands on the array, with its log on a device of its own, or on the array itself.
    #[arg(long, requires = "raid", value_enum, num_args = 0..=1, require_equals = true, default_missing_value = "device")]
    log_cache: Option<LogPlaceName>,
    /// The log is on two or three legs, which fail, come back, rot, and are lost permanently.
    #[arg(long, conflicts_with_all = ["raid", "fill", "ordered_destage", "rot"])]
    legs: bool,
    /// The log has a leg on each of two machines, which take it over from each other, while the first one may go on alone; diverged
    /// legs come back.
    #[arg(long, conflicts_with_all = ["raid", "fill", "ordered_destage", "rot", "legs"])]
    take_over: bool,
    /// The log is that of one to so many data disks.
    #[arg(
        long,
        value_parser = clap::value_parser!(u8).range(2..=64),
        conflicts_with_all = ["raid", "fill", "ordered_destage", "rot", "legs", "take_over", "process_deaths"]
    )]
    disks: Option<u8>,
    /// A data disk more comes and goes while the log runs.
    #[arg(long, requires = "disks")]
    guest: bool,
    /// Most crashes kill the process alone, also between two stores to memory that outlives it: nothing that was answered may be lost.
    #[arg(long, conflicts_with_all = ["raid", "fill", "ordered_destage", "rot", "take_over"])]
    process_deaths: bool,
    /// Writes go through to the data disk, and an administrator changes that: as long as they do, crashes throw the log away.
    #[arg(long, conflicts_with_all = ["raid", "fill", "ordered_destage", "rot", "legs", "take_over", "process_deaths", "disks"])]
    through: bool,
    /// Cuts no power at writes and flushes, but damages a block of the log at rest after a crash: a flipped bit, two blocks in each
    /// other's places, a write that was lost. A start must refuse it, or fail exactly what lay there.
    #[arg(long, conflicts_with_all = ["raid", "fill", "ordered_destage"])]
    rot: bool,
    /// Cuts no power, but fails every operation of the log and of the data disk, one after the other, once and permanently,
    /// in the run of the seed. Each case must end in right data, an error, or a refusal. The parity of an array without a journal may
    /// be out of sync at first.
    #[arg(long, conflicts_with_all = ["run", "canary"])]
    errors: bool,
    /// Replays one run, and tells its story.
    #[arg(long, value_name = "SEED", value_parser = parse_seed)]
    run: Option<u64>,
    /// Shows the progress.
    #[arg(long)]
    progress: bool,
}

fn parse_seed(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|error| format!("a seed is a number of 64 bits, decimal or with 0x: {error}"))
}

fn rig(arguments: &Arguments, seed: u64) -> Rig {
    if let Some(level) = arguments.raid {
        let level = if level == LevelName::Raid5 { Level::Raid5 } else { Level::Raid6 };
        let mut rig = raid_rig(
            seed,
            RaidSubject {
                journal: arguments.journal
                    || matches!(arguments.canary, Some(CanaryName::SkipJournal | CanaryName::ForgetMissed)),
                spares: usize::from(arguments.spares),
                loses_members: arguments.lose_members
                    || matches!(arguments.canary, Some(CanaryName::WriteHole | CanaryName::SkipJournal)),
                canary: arguments.canary.and_then(CanaryName::of_array),
                hot_add: arguments.hot_add || arguments.canary == Some(CanaryName::ForgetMissed),
                log_cache: arguments.log_cache.map(|place| match place {
                    LogPlaceName::Device => LogPlace::Device,
                    LogPlaceName::Slice => LogPlace::Slice,
                }),
                in_doubt: arguments.errors && !arguments.journal,
                ..RaidSubject::new(level)
            },
        );
        lie(arguments, &mut rig);
        return rig;
    }
    let of_legs = arguments.canary.and_then(CanaryName::of_legs);
    let take_over = arguments.take_over || of_legs == Some(MirrorCanary::AnyMachine);
    if arguments.legs || take_over || of_legs.is_some() {
        let promise = arguments.promise.into();
        let mut rig = match take_over {
            true => take_over_rig(seed, promise, of_legs),
            false if arguments.process_deaths => mirrored_memory_rig(seed, promise),
            false => mirrored_rig(seed, promise, of_legs),
        };
        lie(arguments, &mut rig);
        return rig;
    }
    let plain = arguments.canary == Some(CanaryName::PlainDestage);
    let stale = (arguments.canary == Some(CanaryName::StaleGap)).then_some(LogCanary::StaleGap);
    if arguments.fill || stale.is_some() {
        let ordered = arguments.ordered_destage;
        let mut rig = filling_rig(seed, arguments.promise.into(), ordered, stale);
        lie(arguments, &mut rig);
        return rig;
    }
    if plain || arguments.ordered_destage {
        return ordered_destage_rig(seed, arguments.promise.into(), plain);
    }
    let bug = match arguments.canary {
        Some(CanaryName::ReclaimOutOfOrder) => Some(LogCanary::ReclaimOutOfOrder),
        Some(CanaryName::IgnoreEpochs) => Some(LogCanary::IgnoreEpochs),
        Some(CanaryName::BlindBypass) => Some(LogCanary::BlindBypass),
        Some(CanaryName::StaleClean) => Some(LogCanary::StaleClean),
        Some(CanaryName::StaleKeep) => Some(LogCanary::StaleKeep),
        Some(CanaryName::StaleSummary) => Some(LogCanary::StaleSummary),
        Some(CanaryName::EarlyAnswer) => Some(LogCanary::EarlyAnswer),
        Some(CanaryName::ReuseInFlight) => Some(LogCanary::ReuseInFlight),
        Some(CanaryName::UnpinnedProbe) => Some(LogCanary::UnpinnedProbe),
        Some(CanaryName::DiscardNeeded) => Some(LogCanary::DiscardNeeded),
        Some(CanaryName::UnpinnedDiscard) => Some(LogCanary::UnpinnedDiscard),
        Some(CanaryName::LateMark) => Some(LogCanary::LateMark),
        Some(CanaryName::ForeignAnswers) => Some(LogCanary::ForeignAnswers),
        Some(CanaryName::UnmissedAnswers) => Some(LogCanary::UnmissedAnswers),
        Some(CanaryName::OldAnswers) => Some(LogCanary::OldAnswers),
        Some(CanaryName::OnwardOnly) => Some(LogCanary::OnwardOnly),
        Some(CanaryName::NearProof) => Some(LogCanary::NearProof),
        Some(CanaryName::NoRestMark) => Some(LogCanary::NoRestMark),
        Some(CanaryName::OtherDisk) => Some(LogCanary::OtherDisk),
        Some(CanaryName::EarlyDisk) => Some(LogCanary::EarlyDisk),
        Some(CanaryName::EarlyLeave) => Some(LogCanary::EarlyLeave),
        Some(CanaryName::OldPlace) => Some(LogCanary::OldPlace),
        Some(CanaryName::TailOfOne) => Some(LogCanary::TailOfOne),
        Some(CanaryName::FlushOther) => Some(LogCanary::FlushOther),
        Some(CanaryName::PassMissing) => Some(LogCanary::PassMissing),
        Some(CanaryName::CarryBlindly) => Some(LogCanary::CarryBlindly),
        Some(CanaryName::FreeMissing) => Some(LogCanary::FreeMissing),
        Some(CanaryName::SkipMissing) => Some(LogCanary::SkipMissing),
        Some(CanaryName::ExactMissing) => Some(LogCanary::ExactMissing),
        Some(CanaryName::EarlyThrough) => Some(LogCanary::EarlyThrough),
        Some(CanaryName::EarlyReport) => Some(LogCanary::EarlyReport),
        Some(CanaryName::UnnotedPass) => Some(LogCanary::UnnotedPass),
        Some(CanaryName::BelieveCopies) => Some(LogCanary::BelieveCopies),
        // The remaining canaries are bugs of disks or arrays.
        _ => None,
    };
    if let Some(disks) = arguments.disks {
        let make = if arguments.guest { guest_rig } else { disks_rig };
        let mut rig = make(seed, arguments.promise.into(), bug, disks.into());
        lie(arguments, &mut rig);
        return rig;
    }
    let make = match arguments {
        _ if arguments.rot || bug.is_some_and(LogCanary::is_of_rot) => rotting_rig,
        _ if arguments.through || bug.is_some_and(LogCanary::is_of_through) => through_rig,
        _ if arguments.process_deaths || bug.is_some_and(LogCanary::is_of_memory) => memory_rig,
        _ => log_cache_rig,
    };
    let mut rig = make(seed, arguments.promise.into(), bug);
    if arguments.canary == Some(CanaryName::EarlyRescue) {
        rig.rescued.iter_mut().for_each(|rescued| rescued.data_is_never_flushed = true);
    }
    lie(arguments, &mut rig);
    rig
}

/// Makes the disks lie, if that is the bug to plant.
fn lie(arguments: &Arguments, rig: &mut Rig) {
    if arguments.canary == Some(CanaryName::LyingDisk) {
        rig.disks.iter_mut().for_each(|disk| disk.set_faults(DiskFaults::liar()));
    }
}

fn name<T: ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// The command that replays a run.
fn replay_command(arguments: &Arguments, run: u64) -> String {
    let canary = arguments.canary.map(|canary| format!(" --canary {}", name(&canary))).unwrap_or_default();
    let ordered = if arguments.ordered_destage { " --ordered-destage" } else { "" };
    let fill = if arguments.fill { " --fill" } else { "" };
    let rot = if arguments.rot { " --rot" } else { "" };
    let legs = if arguments.legs { " --legs" } else { "" };
    let take_over = if arguments.take_over { " --take-over" } else { "" };
    let disks = arguments.disks.map(|disks| format!(" --disks {disks}")).unwrap_or_default();
    let disks = if arguments.guest { disks + " --guest" } else { disks };
    let deaths = if arguments.process_deaths { " --process-deaths" } else { "" };
    let through = if arguments.through { " --through" } else { "" };
    let Some(level) = arguments.raid else {
        return format!(
            "dcd-crash --promise {}{canary}{ordered}{fill}{rot}{legs}{take_over}{disks}{deaths}{through} --run {run:#x}",
            name(&arguments.promise)
        );
    };
    let flags = [
        (arguments.journal, " --journal"),
        (arguments.lose_members, " --lose-members"),
        (arguments.hot_add, " --hot-add"),
        (arguments.log_cache == Some(LogPlaceName::Device), " --log-cache"),
        (arguments.log_cache == Some(LogPlaceName::Slice), " --log-cache=slice"),
    ];
    let spares = match arguments.spares {
        0 => String::new(),
        spares => format!(" --spares {spares}"),
    };
    let flags: String = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).collect();
    format!("dcd-crash --raid {}{flags}{spares}{canary} --run {run:#x}", name(&level))
}

fn print_counts(arguments: &Arguments, counts: &ExplorationCounts, seconds: f64) {
    println!(
        "{} states in {} runs, seed {:#x}, promise {}, {seconds:.1} s, trace {:#018x}",
        counts.states,
        counts.runs,
        arguments.seed,
        name(&arguments.promise),
        counts.trace
    );
    for (kind, count) in &counts.kinds {
        println!("{count:>9}  {kind}");
    }
    println!("in all lives together:");
    for (path, count) in &counts.paths {
        println!("{count:>9}  {path}");
    }
}

fn run_again(arguments: &Arguments, config: &ExploreConfig, run: u64) -> ExitCode {
    match replay(config, run, &|seed| rig(arguments, seed)) {
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
        None => {
            println!("run {run:#x} loses nothing");
            ExitCode::SUCCESS
        }
    }
}

/// Requests of the client in each case of an error sweep: each operation that they cause is a few more cases.
const SWEEP_REQUESTS: u64 = 40;
/// Number of a device's first operations that each fail in a case; of later ones, fewer and fewer: a resync has thousands.
const SWEEP_DOUBLES_AFTER: u64 = 64;

fn sweep(arguments: &Arguments) -> ExitCode {
    if matches!(arguments.promise, PromiseName::Ordered) {
        eprintln!(
            "dcd-crash: --errors judges the promises flush and always: where the log is dead nothing keeps the order of \
             `ordered` (docs/safety.md)"
        );
        return ExitCode::from(2);
    }
    let in_doubt = arguments.raid.is_some() && !arguments.journal;
    let (mut cases, mut seed) = (0, arguments.seed);
    loop {
        let config = SweepConfig {
            in_doubt,
            doubles_after: SWEEP_DOUBLES_AFTER,
            ..SweepConfig::new(seed, SWEEP_REQUESTS)
        };
        let swept = sweep_errors(&config, &|seed| rig(arguments, seed));
        println!(
            "{} cases, seed {seed:#x}, promise {}: the client was told of an error in {}, a start was refused in {}, the log \
             failed in {}, requests waited to the end in {}",
            swept.cases,
            name(&arguments.promise),
            swept.told,
            swept.refused,
            swept.log_failures,
            swept.blocked
        );
        if let Some(violation) = swept.violation {
            println!("{violation}");
            return ExitCode::FAILURE;
        }
        (cases, seed) = (cases + swept.cases, seed.wrapping_add(1));
        if cases >= arguments.states.unwrap_or(0) {
            println!("no error took data");
            return ExitCode::SUCCESS;
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(canary) = arguments.canary.filter(|canary| !canary.fits(arguments.raid.is_some())) {
        eprintln!("dcd-crash: the canary {} is for {}", name(&canary), canary.subject());
        return ExitCode::from(2);
    }
    // A panic of a layer is a finding like any other, and is reported with its story.
    std::panic::set_hook(Box::new(|_| {}));
    if arguments.rot && matches!(arguments.promise, PromiseName::Ordered) {
        eprintln!(
            "dcd-crash: --rot judges the promises flush and always: an unreadable sector is no instant of a past"
        );
        return ExitCode::from(2);
    }
    let states = arguments.states.unwrap_or(10_000);
    let config = ExploreConfig::new(arguments.seed, states);
    if arguments.errors {
        return sweep(&arguments);
    }
    if let Some(run) = arguments.run {
        return run_again(&arguments, &config, run);
    }
    let bar = if arguments.progress { ProgressBar::new(states) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} states, {per_sec}, {eta} left");
    bar.set_style(style.expect("a good template"));
    let started = Instant::now();
    let explored =
        explore(&config, &|seed| rig(&arguments, seed), &mut |counts| bar.set_position(counts.states));
    bar.finish_and_clear();
    print_counts(&arguments, &explored.counts, started.elapsed().as_secs_f64());
    match (&explored.violation, arguments.canary) {
        (None, None) => {
            println!("nothing was lost");
            ExitCode::SUCCESS
        }
        (None, Some(canary)) => {
            println!("the canary {} was NOT caught", name(&canary));
            ExitCode::FAILURE
        }
        (Some(violation), Some(canary)) => {
            println!(
                "the canary {} was caught after {} states: {}",
                name(&canary),
                violation.states,
                violation.what
            );
            println!("its story: {}", replay_command(&arguments, violation.run_seed));
            ExitCode::SUCCESS
        }
        (Some(violation), None) => {
            println!("{violation}\nreplay: {}", replay_command(&arguments, violation.run_seed));
            ExitCode::FAILURE
        }
    }
}
