//! The crash explorer: runs random clients on a stack, cuts the power at every write and every flush, recovers, and asks
//! the oracle.
//!
//! A run is made by its seed: the disks, the stack's settings, the client. After each step of the driver in which a write
//! or a flush went to a device, and now and then after other steps, the disks are cut (what was volatile is lost, kept or
//! torn, in a style drawn for each disk) or the process is killed (the disks keep their caches). Each such *state* is
//! recovered by a new stack, read in full and judged. Some states go on from there: they are drained, stopped, written to
//! again, or cut at once, with cuts in all of it, recovery included, nested up to three deep. Some are also rescued
//! offline, and the data disk is judged alone. Disks are copied by reference and oracles by value, so nothing is run twice.

mod administrator;
mod guest;
mod legs;
mod rigs;
mod run;
mod sampler;
mod trouble;
mod tuner;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use dcd_engine::log_cache::{LogCacheConfig, Promise};
use dcd_engine::{Geometry, Lba, Nanos, Stack};

pub use administrator::{BuildWithout, HotAdd};
pub use guest::{GUEST_SECTORS, GuestContent, GuestPlace};
pub use rigs::{ORDERED_SLACK, disk, prefill};
pub use run::rescue::Rescued;
#[cfg(feature = "planted-bugs")]
pub(crate) use run::rescue::add_mirror;
pub use run::rot::LogArea;
pub(crate) use run::rot::look_at_all;
pub use run::take_over::{Machines, Who};

use crate::{MemDisk, SimMemory, SimRng, Value, mix};

/// Nested cuts beyond this depth show nothing new: a recovery of a recovery of a recovery.
pub const DEPTH_MAX: u32 = 3;

/// Makes a stack over devices of these geometries.
pub type Build = Box<dyn Fn(&[Geometry]) -> Stack>;

/// Everything of one run that the seed decides, apart from the client.
pub struct Rig {
    /// Fresh disks, formatted, in the order of the stack's devices.
    pub disks: Vec<MemDisk>,
    /// Initial content of the device at the top.
    pub base: Vec<Value>,
    /// Makes the stack over such disks, as a server does at each start.
    pub build: Build,
    /// Makes the stack without the log, after the log has failed and this was recorded.
    pub build_after_log_failure: Option<Build>,
    /// The data disk's device and first sector, where the data disk alone must always be what a plain disk could be after a
    /// crash (ordered destage).
    pub data_alone: Option<(usize, Lba)>,
    pub promise: Promise,
    /// True when an acknowledged write survives the kill of the process.
    pub outlives_server: bool,
    /// For `ordered`: the age from which on a write must survive a crash: the promised delay, and the time of the devices.
    pub delay_max: Nanos,
    /// True if the stack keeps the order of overlapping requests in flight.
    pub overlaps: bool,
    /// No request crosses a multiple of this many sectors.
    pub chunk: u64,
    /// True when clients should mostly read the same blocks again.
    pub reads_again: bool,
    /// True if the layers are drained and stopped one after the other, from the top down, as a server does: each destages into the
    /// layer below it. Otherwise all are told together.
    pub upper_first: bool,
    /// Rule for disks that may be lost permanently.
    pub losses: Option<LossRule>,
    /// Two machines that take over from each other a log with two legs.
    pub machines: Option<Machines>,
    /// Number of the log's legs, which come and go while it runs.
    pub legs: Option<usize>,
    /// Disk whose bits flip in crashes, and the number of its sectors in which they do.
    pub spoils: Option<(usize, u64)>,
    /// Sectors of the log that were being written at a power cut may be unreadable: true if every disk with all acknowledged data has some.
    pub are_torn: Option<AreTorn>,
    /// Makes the stack with damage accepted.
    pub build_accepting: Option<Build>,
    /// True to cut at every write and flush of short runs, and to continue from no state: for bugs that show at a single instant.
    pub eager: bool,
    /// Array whose members come and go while it runs.
    pub hot_add: Option<HotAdd>,
    /// Area of the log of a log cache.
    pub log: Option<LogArea>,
    /// The log from which some crashed states are rescued offline.
    pub rescued: Option<Rescued>,
    /// Memory for the stack that is built next, if it outlives the process.
    pub memory: Option<Rc<RefCell<SimMemory>>>,
    /// Makes the stack without one of the data disks to which the chunks of the device are dealt: it comes back later.
    pub build_missing: Option<BuildMissing>,
    /// True if blocks of the log are damaged at rest, in place of the crashes.
    pub rots: bool,
    /// Settings of a log cache that an administrator changes while it runs; none: nobody does.
    pub tuned: Option<LogCacheConfig>,
    /// The data disk's device and first sector, where an administrator has writes go through, or to the log: as long as they go through, the
    /// log may be lost.
    pub through: Option<(usize, Lba)>,
    /// Number of data disks, of which one hangs or fails now and then; they follow the first disk, the log. The chunks of the device are
    /// dealt to them.
    pub troubled: Option<usize>,
    /// A data disk that comes and goes while the log cache runs.
    pub guest: Option<GuestPlace>,
    /// Disks to which the chunks of the device are dealt.
    pub dealt: usize,
    /// The stack's settings in words, for the story.
    pub about: String,
}

/// Makes a stack over such disks, in which this data disk is missing.
pub type BuildMissing = Box<dyn Fn(&[Geometry], usize) -> Stack>;

/// Returns the disks that may be lost for good without losing data.
pub type MayLose = Box<dyn Fn(&[MemDisk]) -> Vec<usize>>;

/// Rule for losing disks of a rig.
pub struct LossRule {
    pub may_lose: MayLose,
    /// True: in crashes. False: only at rest, when a layer says that its state is good and that it is clean.
    pub in_crashes: bool,
}

/// True if every disk with all acknowledged data has unreadable sectors.
pub type AreTorn = Box<dyn Fn(&[MemDisk]) -> bool>;

/// Subject of the exploration: makes the rig for a seed.
pub type Subject<'a> = dyn Fn(u64) -> Rig + 'a;

/// Limits of an exploration.
#[derive(Clone, Copy, Debug)]
pub struct ExploreConfig {
    pub seed: u64,
    /// Stop after this many states.
    pub states: u64,
    /// Run the layers' own checks after every event, in one run of so many; 0: never.
    pub check_every: u64,
}

impl ExploreConfig {
    pub const fn new(seed: u64, states: u64) -> ExploreConfig {
        ExploreConfig { seed, states, check_every: 4 }
    }
}

/// Counters of an exploration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExplorationCounts {
    pub runs: u64,
    pub states: u64,
    /// States by how and where they were cut, such as "while destaging" or "torn by sector".
    pub kinds: BTreeMap<String, u64>,
    /// Counters of the layers in all activations: which paths were taken, and how often.
    pub paths: BTreeMap<String, u64>,
    /// A hash over the traces of all runs.
    pub trace: u64,
}

impl ExplorationCounts {
    fn add(&mut self, other: ExplorationCounts) {
        self.runs += other.runs;
        self.states += other.states;
        for (kind, count) in other.kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
        for (path, count) in other.paths {
            *self.paths.entry(path).or_default() += count;
        }
        self.trace = mix(self.trace, other.trace);
    }
}

/// Data that was lost or wrong.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Replays the run: see [`replay`].
    pub run_seed: u64,
    /// States tried until it was found, in all runs.
    pub states: u64,
    pub what: String,
    /// Events of the run, level by level, in lines.
    pub story: Vec<String>,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in &self.story {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "VIOLATION after {} states, run {:#x}:", self.states, self.run_seed)?;
        f.write_str(&self.what)
    }
}

/// The end of an exploration.
#[derive(Clone, Debug, Default)]
pub struct Explored {
    pub counts: ExplorationCounts,
    pub violation: Option<Violation>,
}

/// Tries states until there are enough or one is bad. `progress` is called after each run.
pub fn explore(
    config: &ExploreConfig,
    subject: &Subject,
    progress: &mut dyn FnMut(&ExplorationCounts),
) -> Explored {
    let mut explored = Explored::default();
    for index in 0.. {
        if explored.counts.states >= config.states {
            break;
        }
        let run_seed = mix(config.seed, index);
        let left = config.states - explored.counts.states;
        let (counts, what) = run::run(run_seed, subject, left, checks(config, run_seed), false);
        explored.counts.add(counts);
        progress(&explored.counts);
        if what.is_some() {
            let mut violation = replay(config, run_seed, subject).expect("a run repeats from its seed");
            violation.states = explored.counts.states;
            explored.violation = Some(violation);
            break;
        }
    }
    explored
}

/// Runs one seed again, and tells the story of what it finds.
pub fn replay(config: &ExploreConfig, run_seed: u64, subject: &Subject) -> Option<Violation> {
    let (counts, what) = run::run(run_seed, subject, u64::MAX, checks(config, run_seed), true);
    let (what, story) = what?;
    Some(Violation { run_seed, states: counts.states, what, story })
}

fn checks(config: &ExploreConfig, run_seed: u64) -> bool {
    config.check_every > 0 && SimRng::new(mix(run_seed, 0xc4ec)).below(config.check_every) == 0
}

/// Extracts the text of a panic.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("without words"))
}

#[cfg(test)]
mod tests;
