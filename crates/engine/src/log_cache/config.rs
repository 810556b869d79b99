//! Configuration of a log cache.

use serde::{Deserialize, Serialize};

pub use crate::destage::contiguity::{Contiguity, Strides};
use crate::destage::how;
pub use crate::destage::how::HowPolicy;
pub use crate::destage::what::WhatPolicy;
pub use crate::destage::when::WhenPolicy;
use crate::{Extent, LINE_SECTORS, Nanos, Planted, SECTOR_BYTES};

/// The `promise` setting: which writes survive a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Promise {
    /// The contract of a block device: FLUSH and FUA return when the data would survive a power cut.
    #[default]
    Flush,
    /// The paper's immediate report (section 3.6): writes and flushes are answered from RAM; after a crash the device is exactly
    /// as it was at some instant at most `delay_max` before.
    Ordered,
    /// Every write is durable when it returns.
    Always,
}

/// The `reads` setting: caching of blocks that are read from the data disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reads {
    /// Reads are not copied to the log.
    #[default]
    Pass,
    /// Blocks that are read twice are copied to the log. Not on a rotational log.
    Keep,
}

/// The `writes` setting: what a write has to reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteRoute {
    /// The log, from which it is written back to the data disk.
    #[default]
    Back,
    /// The data disk. The log gets clean copies for reads, and may be lost at any time.
    Through,
}

/// Bugs to plant, so that the crash explorer can show that it finds them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogCanary {
    /// A segment is freed as soon as nothing in it is dirty, in any order (breaks rule 1).
    ReclaimOutOfOrder,
    /// Recovery accepts records of any epoch (breaks rule 3).
    IgnoreEpochs,
    /// Large writes bypass the log even over dirty data in it (breaks rule 7).
    BlindBypass,
    /// Large writes bypass the log without looking at the gaps that destaging fills (breaks rule 7).
    StaleGap,
    /// Clean copies in the log are read although a write that bypasses the log has replaced them (breaks rule 7).
    StaleClean,
    /// A block that was read is copied to the log although a write has overlapped it meanwhile (breaks rule 7).
    StaleKeep,
    /// A start believes records in summaries that nothing calls durable.
    StaleSummary,
    /// A start looks for a record after the last one only, not at free places before it.
    OnwardOnly,
    /// A write is answered from RAM although its client outlives the server (`outlives_server`).
    EarlyAnswer,
    /// The mark in memory that outlives the process is stored after the answer.
    LateMark,
    /// Memory of another boot and of the activation before is taken in.
    ForeignAnswers,
    /// A start does not miss memory that is gone, although the machine has run since.
    UnmissedAnswers,
    /// All records in memory are written to the log, even over newer ones.
    OldAnswers,
    /// A segment is freed while a record in it is still being written (breaks rule 6).
    ReuseInFlight,
    /// The head may enter a segment while a write of a survey is on its way there.
    UnpinnedProbe,
    /// Segments are discarded that the durable superblock still needs.
    DiscardNeeded,
    /// The head may enter a segment while a discard is on its way there.
    UnpinnedDiscard,
    /// Like `NoRestMark`, but recovery searches for proofs of damage only nearby, and in far segments at distances that double.
    NearProof,
    /// No superblock says how far the log is durable when it comes to rest (breaks rule 4).
    NoRestMark,
    /// A start does not make the copies of a mirrored log the same.
    UnevenCopies,
    /// A block that one copy of a log lacks is written to all copies, over the good one, too.
    OverwriteCopies,
    /// A start does not ask which machine has served the log last.
    AnyMachine,
    /// A start takes records of one data disk for those of another.
    OtherDisk,
    /// A disk is served before the superblocks that have it are durable.
    EarlyDisk,
    /// A disk leaves the log before its data is durable on it.
    EarlyLeave,
    /// A start takes records of a disk that has left for those of the next one in its place.
    OldPlace,
    /// The tail passes segments that are clean for the first data disk, whatever others lack (breaks rule 6).
    TailOfOne,
    /// Destaged blocks are called clean after a flush of another data disk (breaks rule 6).
    FlushOther,
    /// The tail passes dirty blocks of a disk that hangs or fails, and they are nowhere else (breaks rule 6).
    PassMissing,
    /// A block is appended again although a newer copy is in the log (breaks rule 6).
    CarryBlindly,
    /// A start counts the blocks of a missing disk as clean (breaks rule 6).
    FreeMissing,
    /// A start passes over the records of a missing disk (breaks rule 2).
    SkipMissing,
    /// A start trusts the fingerprint of a missing disk as after a clean stop (breaks rule 11).
    ExactMissing,
    /// Writes pass the log before a superblock says that nothing in it counts (breaks rule 16).
    EarlyThrough,
    /// The host hears that the log may be lost while the log has data that the data disk lacks (breaks rule 16).
    EarlyReport,
    /// Copies in the log are not called older than a write that passed it (breaks rule 16).
    UnnotedPass,
    /// A start believes copies in the log of a cache that wrote through when it crashed (breaks rule 16).
    BelieveCopies,
}

impl LogCanary {
    /// True for a bug that only damage of a log at rest shows.
    pub const fn is_of_rot(self) -> bool {
        matches!(self, LogCanary::NearProof | LogCanary::NoRestMark)
    }

    /// True for a bug of discards of freed segments.
    pub const fn is_of_discards(self) -> bool {
        matches!(self, LogCanary::DiscardNeeded | LogCanary::UnpinnedDiscard)
    }

    /// True for a bug of writes that go through.
    pub const fn is_of_through(self) -> bool {
        matches!(
            self,
            LogCanary::EarlyThrough
                | LogCanary::EarlyReport
                | LogCanary::UnnotedPass
                | LogCanary::BelieveCopies
        )
    }

    /// True for a bug of memory that outlives the process.
    pub const fn is_of_memory(self) -> bool {
        matches!(
            self,
            LogCanary::LateMark
                | LogCanary::ForeignAnswers
                | LogCanary::UnmissedAnswers
                | LogCanary::OldAnswers
        )
    }
}

/// Settings of a log cache that apply at its start; those fixed by formatting are in the superblock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct LogCacheConfig {
    pub promise: Promise,
    /// A write that memory does not keep for the next process is answered when it has been written to the log, so that no answered write is
    /// lost with the process. For clients that wait for the next server, and do not learn that the last one was killed.
    pub outlives_server: bool,
    /// `ordered`: maximum age of the writes that a crash may lose.
    pub delay_max: Nanos,
    /// Segment buffers in RAM, each of the segment's size (the paper has 2 to 4).
    pub segment_buffers: usize,
    /// Writes of at least this many bytes bypass the log if that is safe; 0: never.
    pub bypass_bytes: u64,
    pub reads: Reads,
    pub writes: WriteRoute,
    pub when: WhenPolicy,
    pub what: WhatPolicy,
    /// Destages the wholly dirty stripes of an array first, and together.
    pub full_stripes_first: bool,
    pub how: HowPolicy,
    /// Gaps between sorted blocks that destaging fills. `None`: the result of the stride benchmark in the superblock, if `calibrated`;
    /// otherwise no gaps.
    pub contiguity: Option<Contiguity>,
    pub calibrated: bool,
    /// Percent of the log in use from which destaging does not wait for idleness.
    pub high_mark: u8,
    /// Percent at which `high-low` stops, and from which the oldest segments are destaged first with any `what`: they free the tail.
    pub low_mark: u8,
    /// Percent of the log that the dirty blocks of one of several data disks may take. Beyond it, the disk's own writes wait.
    pub share: u8,
    /// Idle threshold of an empty log; next, of a full one.
    pub idle_empty: Nanos,
    pub idle_full: Nanos,
    /// RAM for blocks that are being destaged, in bytes: allocated at the start, plus one segment for each operation in flight.
    pub destage_memory: usize,
    /// Operations in flight while destaging.
    pub destage_depth: usize,
    /// Bytes that destaging writes in a second while clients are active; 0: no limit. Above the high mark, and for a drain, there is none.
    pub destage_rate: u64,
    /// Sort and merge only within one flush epoch, with a barrier between epochs.
    pub ordered_destage: bool,
    /// Puts records where the head of the log's disk will be, if format has measured it. (The paper does not.)
    pub follow_head: bool,
    /// Reads clean blocks from the log as long as it has them. (The paper does not.)
    pub read_clean: bool,
    /// Discards freed segments of a log on an SSD.
    pub discard_freed: bool,
    /// Bytes that may be written to the log's device in a day before it is spared; 0: no limit.
    pub wear_budget: u64,
    /// Overwrites data in place while its record is still in RAM.
    pub compact: bool,
    /// Starts although acknowledged records of the log are damaged, and continues without them.
    pub accept_damage: bool,
    /// The machine that serves the cache; 0: not known.
    pub machine: u64,
    /// Starts although another machine has served the log last and has not stopped it: that machine is off, or cannot reach the data
    /// disk.
    pub take_over: bool,
    /// Forgets clean copies: the data disk may have been written without the log.
    pub doubt_kept: bool,
    /// Serves all of a data disk that has grown since it was formatted.
    pub grow: bool,
    /// Data disks of several, as bits, that are missing: the log keeps what it has for them, and nothing is sent to them.
    #[serde(skip)]
    pub missing: u64,
    /// Maximum number of slots of the lookup table that one event looks at. A test makes it small.
    #[serde(skip, default = "scan_slots")]
    pub scan_slots: usize,
    #[serde(skip)]
    pub canary: Planted<LogCanary>,
}

/// Half a MiB of the table: a pass over it takes about as long as copying a request into the log.
const fn scan_slots() -> usize {
    1 << 15
}

impl Default for LogCacheConfig {
    fn default() -> Self {
        LogCacheConfig {
            promise: Promise::Flush,
            outlives_server: false,
            delay_max: Nanos::from_millis(500),
            segment_buffers: 8,
            bypass_bytes: 64 << 10,
            reads: Reads::Pass,
            writes: WriteRoute::Back,
            when: WhenPolicy::Idle,
            what: WhatPolicy::OldestFirst,
            full_stripes_first: true,
            how: HowPolicy::Sorted,
            contiguity: None,
            calibrated: true,
            high_mark: 75,
            low_mark: 50,
            share: 50,
            idle_empty: Nanos::from_secs(1),
            idle_full: Nanos::from_millis(1),
            destage_memory: 16 << 20,
            destage_depth: 32,
            destage_rate: 0,
            ordered_destage: false,
            follow_head: true,
            read_clean: true,
            discard_freed: true,
            wear_budget: 0,
            compact: false,
            accept_damage: false,
            machine: 0,
            take_over: false,
            doubt_kept: false,
            grow: false,
            missing: 0,
            scan_slots: scan_slots(),
            canary: Planted::default(),
        }
    }
}

impl LogCacheConfig {
    /// Maximum size of a buffer in which destaging reads the log, without the log's own blocks. There are `destage_depth` of them.
    pub const READ_BYTES_MAX: usize = ((how::MERGE_SECTORS_MAX + LINE_SECTORS) * SECTOR_BYTES) as usize;

    /// Takes over those settings that can change while the cache serves.
    pub fn change(&mut self, to: &LogCacheConfig) {
        self.delay_max = to.delay_max;
        self.bypass_bytes = to.bypass_bytes;
        self.writes = to.writes;
        (self.when, self.what) = (to.when, to.what);
        (self.high_mark, self.low_mark) = (to.high_mark, to.low_mark);
        self.share = to.share;
        (self.idle_empty, self.idle_full) = (to.idle_empty, to.idle_full);
        (self.destage_depth, self.destage_rate) = (to.destage_depth, to.destage_rate);
        (self.discard_freed, self.wear_budget) = (to.discard_freed, to.wear_budget);
    }

    /// True for a data disk that is missing.
    pub const fn is_missing(&self, disk: usize) -> bool {
        self.missing >> disk & 1 == 1
    }

    /// True when these rules can fill a gap: only sorted blocks have gaps.
    pub fn may_fill(&self, rules: &Contiguity) -> bool {
        self.how == HowPolicy::Sorted && rules.write.max > 1
    }

    /// True if a write of this size bypasses the log where it may.
    pub const fn is_large(&self, extent: Extent) -> bool {
        self.bypass_bytes > 0 && extent.sectors * SECTOR_BYTES >= self.bypass_bytes
    }

    /// True if a client may outlive the server, and relies on every answer: what memory does not keep has to be written.
    pub fn answers_when_written(&self) -> bool {
        self.outlives_server && self.promise != Promise::Always && !self.canary.is(LogCanary::EarlyAnswer)
    }
}
