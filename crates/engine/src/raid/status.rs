//! The status of an array, as people and monitors get it.

use serde::{Deserialize, Serialize};

use crate::raid::config::Level;
use crate::raid::error::Unused;

/// The state of an array in a word. The last three are of arrays that are not served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrayState {
    #[default]
    Good,
    /// The parity is computed anew, after a crash or for the first time.
    Resyncing,
    Rebuilding,
    Degraded,
    /// All members are there, and blocks are lost.
    Damaged,
    /// More members have failed than the parity makes up for.
    Broken,
    /// The parity of some regions may be wrong.
    #[serde(rename = "in doubt")]
    InDoubt,
    Growing,
    /// Parts of the array have diverged.
    Apart,
    /// The array would not start.
    Refused,
}

impl ArrayState {
    /// The word, as JSON has it.
    pub fn word(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(word)) => word,
            _ => unreachable!("a variant without fields is a string"),
        }
    }
}

/// The state of a served array. Members are named by their roles, spares by their places.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ArrayStatus {
    pub state: ArrayState,
    pub failed_members: Vec<usize>,
    pub resynced_percent: Option<f64>,
    /// Blocks of 4 KiB that can neither be read nor computed: written down, and met since the start.
    pub lost_blocks: usize,
    pub unreadable_blocks: usize,
    /// The array was stopped cleanly, or nothing was written since.
    pub clean: bool,
    pub rebuilding_member: Option<usize>,
    pub rebuilt_percent: Option<f64>,
    /// Members that something goes on at, so that they cannot be let go yet.
    pub held_members: Vec<usize>,
    /// The least size of a device that can become a member.
    pub member_sectors_min: u64,
    pub logical_block_bytes: u32,
    pub regions_in_doubt: u64,
    pub regions: u64,
    pub uuid: String,
    /// The event counter of the superblocks, and that of each member.
    pub generation: u64,
    pub generations: Vec<u64>,
    pub level: Level,
    pub members: usize,
    pub strip_bytes: u64,
    pub size_bytes: u64,
    /// The stride benchmark's result is stored in the superblocks.
    pub calibrated: bool,
    /// Rules for filling gaps.
    pub strides: Option<StridesStatus>,
    pub pass: Option<PassStatus>,
    pub last_scrub: Option<Findings>,
    pub last_rebuild: Option<Findings>,
    pub last_return: Option<Return>,
    pub away: AwayStatus,
    pub journal: bool,
    pub journal_failed: bool,
    #[serde(skip)]
    pub notes: Vec<ArrayNote>,
    /// The notes in words, with what to do, which a server adds: it knows its commands.
    #[serde(default)]
    pub advice: Vec<String>,
    pub non_volatile: bool,
    pub read_only: bool,
    pub cache_bytes: u64,
    pub held_bytes: u64,
    /// Stripes that have something dirty.
    pub dirty_units: usize,
    pub dirty_bytes: u64,
    pub statistics: ArrayStatistics,
    #[serde(flatten)]
    pub devices: DevicesStatus,
}

impl ArrayStatus {
    pub const fn blocks_lost(&self) -> usize {
        self.lost_blocks + self.unreadable_blocks
    }

    pub fn has_failed(&self, role: usize) -> bool {
        self.failed_members.contains(&role)
    }

    /// Names the devices that the array no longer uses. A device that a rebuild fills is in use.
    pub fn failed_devices(&self) -> impl Iterator<Item = &String> {
        let failed = self.failed_members.iter().filter(|role| self.rebuilding_member != Some(**role));
        failed.filter_map(|role| self.devices.member_names.get(*role)?.as_ref())
    }
}

/// A note for the administrator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrayNote {
    #[error("spare {spare} is member {role} now")]
    SpareTaken { spare: usize, role: usize },
    #[error("spare {0} is missing")]
    SpareAbsent(usize),
    #[error("the journal has failed, and {}", match .required {
        true => "no more writes are taken",
        false => "the array goes on without: a crash that takes a member too may lose data",
    })]
    JournalFailed { required: bool },
    #[error("a member failed before the parity was right everywhere: what it held there cannot be read")]
    InDoubt,
    #[error(
        "{0} blocks of 4 KiB could neither be read nor computed: reading them fails until they are written"
    )]
    Lost(usize),
    /// `more`: not all are counted.
    #[error(
        "{}{blocks} blocks of 4 KiB could neither be read nor computed when they were last wanted",
        if *.more { "at least " } else { "" }
    )]
    Unreadable { blocks: usize, more: bool },
    #[error(transparent)]
    Unused(#[from] Unused),
}

/// The devices of a served array.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DevicesStatus {
    /// Places of the spares that wait for a role, and of those that are being made.
    pub spares: Vec<usize>,
    pub joining: Vec<usize>,
    /// Roles whose devices are being made spares.
    pub joining_members: Vec<usize>,
    /// For each place of a spare: true if a device is open there.
    pub spare_places: Vec<bool>,
    /// For each role: true if a device is open in the place of that member.
    pub open_members: Vec<bool>,
    /// For each role, the place of the spare that has it, if one has.
    pub holders: Vec<Option<usize>>,
    pub member_ports: Vec<Option<usize>>,
    pub spare_ports: Vec<Option<usize>>,
    pub read_errors: Vec<u64>,
    /// The names of the devices, which a server adds: it knows them.
    #[serde(default)]
    pub member_names: Vec<Option<String>>,
    #[serde(default)]
    pub spare_names: Vec<Option<String>>,
}

impl DevicesStatus {
    /// True when a server has a device of this name open.
    pub fn is_open(&self, name: &str) -> bool {
        self.member_names.iter().chain(&self.spare_names).flatten().any(|open| open == name)
    }

    /// The role that the spare at a place has.
    pub fn role_of_spare(&self, place: usize) -> Option<usize> {
        self.holders.iter().position(|holder| *holder == Some(place))
    }
}

/// A resync, a rebuild, or a scrub.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PassStatus {
    pub kind: PassName,
    /// The member that is rebuilt.
    pub role: Option<usize>,
    pub member_bytes: u64,
    pub paused: bool,
    pub percent: f64,
    pub member_bytes_left: u64,
    pub member_bytes_per_second: Option<f64>,
    pub findings: Findings,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PassName {
    Resync,
    Rebuild,
    Scrub,
    ScrubRepair,
}

impl PassName {
    pub const fn word(self) -> &'static str {
        match self {
            PassName::Resync => "resync",
            PassName::Rebuild => "rebuild",
            PassName::Scrub => "scrub",
            PassName::ScrubRepair => "scrub-repair",
        }
    }
}

/// Smax of the gaps that are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StridesStatus {
    pub read_max: u64,
    pub write_max: u64,
}

/// Members that are away, and how much was written meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwayStatus {
    pub members: Vec<usize>,
    pub missed_regions: u64,
    pub regions: u64,
    /// The member that is being rebuilt lacks only these.
    pub returning: bool,
}

/// The counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayStatistics {
    pub read_hits: u64,
    pub read_misses: u64,
    /// Writes that had to wait for room.
    pub stalls: u64,
    pub destages: u64,
    /// Commands to members for parity and destages, and their blocks.
    pub destage_reads: u64,
    pub destage_read_blocks: u64,
    /// Prefetches among these reads.
    pub prefetches: u64,
    pub destage_writes: u64,
    pub destage_written_blocks: u64,
    /// Operations that read, or computed, what a member could not give.
    pub fetches: u64,
    pub resynced_units: u64,
    /// Bad sectors' blocks that were computed and written again.
    pub sectors_repaired: u64,
    /// Times that more of a row was missing than the parity makes up for.
    pub lost_rows: u64,
    pub member_failures: u64,
    /// Members that were away, and were given what they had missed.
    pub members_returned: u64,
    pub superblocks: u64,
    pub journal_records: u64,
}

/// The findings of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Findings {
    /// Rows whose parity does not fit their data.
    pub mismatches: u64,
    /// Blocks that were written because they were wrong or could not be read.
    pub repaired: u64,
    /// Blocks that could not be read, and were computed.
    pub unreadable: u64,
    /// Data blocks that could neither be read nor computed.
    pub lost: u64,
    /// Rows whose wrong block could not be located: their data were taken for right, and the parity was written.
    pub unlocated: u64,
}

impl Findings {
    /// True when something was found and not repaired.
    pub const fn are_left(&self) -> bool {
        self.lost > 0 || self.mismatches + self.unreadable > self.repaired
    }
}

/// A member that was away has been given what it had missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    pub role: usize,
    /// Bytes that were filled since the array was started or the member was added.
    pub filled_bytes: u64,
    pub member_bytes: u64,
}
