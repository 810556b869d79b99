//! The status of an array, and advice to its administrator.

use serde::{Deserialize, Serialize};

use crate::raid::Level;
use crate::raid::array::{Array, Statistics};
use crate::raid::lost::UNREADABLE_MAX;
use crate::raid::pass::Findings;
use crate::raid::pass::Return;
use crate::{LINE_BYTES, Nanos, SECTOR_BYTES};

/// The state of an array in a word. The last three are of arrays that are not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ArrayState {
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
    /// Parts of it were used without each other.
    Apart,
    /// It would not start.
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
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ArrayStatus {
    pub state: ArrayState,
    pub failed_members: Vec<usize>,
    pub resynced_percent: Option<f64>,
    /// Blocks of 4 KiB that can neither be read nor computed: written down, and met since the start.
    pub lost_blocks: usize,
    pub unreadable_blocks: usize,
    /// It was stopped cleanly, or nothing was written since.
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
    /// Which gaps are filled.
    pub strides: Option<StridesStatus>,
    pub pass: Option<PassStatus>,
    pub last_scrub: Option<Findings>,
    pub last_rebuild: Option<Findings>,
    pub last_return: Option<Return>,
    pub away: AwayStatus,
    pub journal: bool,
    pub journal_failed: bool,
    /// What an administrator should do.
    pub advice: Vec<String>,
    pub non_volatile: bool,
    pub read_only: bool,
    pub cache_bytes: u64,
    pub held_bytes: u64,
    /// Stripes that have something dirty.
    pub dirty_units: usize,
    pub dirty_bytes: u64,
    pub statistics: Statistics,
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
}

/// The devices of a served array.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DevicesStatus {
    /// Places of the spares that wait for a role, and of those that are being made.
    pub spares: Vec<usize>,
    pub joining: Vec<usize>,
    /// Roles whose devices are being made spares.
    pub joining_members: Vec<usize>,
    /// For each place of a spare, whether a device is open there.
    pub spare_places: Vec<bool>,
    /// For each role, whether a device is open in the place of that member.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwayStatus {
    pub members: Vec<usize>,
    pub missed_regions: u64,
    pub regions: u64,
    /// The member that is being rebuilt lacks only these.
    pub returning: bool,
}

impl Array {
    fn state(&self, has_failed: bool) -> ArrayState {
        let is_resyncing = self.passes.resynced_percent().is_some();
        match (self.broken, has_failed) {
            (true, _) => ArrayState::Broken,
            (false, _) if is_resyncing => ArrayState::Resyncing,
            (false, true) if self.recorder.rebuilding().is_some() => ArrayState::Rebuilding,
            (false, true) => ArrayState::Degraded,
            (false, false) if self.losses.are_any() => ArrayState::Damaged,
            (false, false) if self.recorder.in_doubt().is_empty() => ArrayState::Good,
            (false, false) => ArrayState::InDoubt,
        }
    }

    pub fn status(&self, now: Nanos) -> ArrayStatus {
        let roles = || 0..self.members.count();
        let failed: Vec<usize> = roles().filter(|&role| self.recorder.has_failed(role)).collect();
        let rebuilding = self.recorder.rebuilding();
        let recorded = self.recorder.recorded();
        let percent = |sectors: u64| 100.0 * sectors as f64 / recorded.member_sectors as f64;
        let contiguity = self.config.contiguity.as_ref();
        ArrayStatus {
            state: self.state(!failed.is_empty()),
            failed_members: failed,
            resynced_percent: self.passes.resynced_percent(),
            lost_blocks: self.losses.lost_blocks(),
            unreadable_blocks: self.losses.unreadable_blocks(),
            clean: !recorded.active && recorded.in_doubt.is_empty(),
            rebuilding_member: rebuilding.map(|rebuild| rebuild.role),
            rebuilt_percent: rebuilding.map(|rebuild| percent(rebuild.sectors)),
            held_members: roles().filter(|&role| self.is_held(role)).collect(),
            member_sectors_min: self.sectors_needed(),
            logical_block_bytes: self.geometry.logical_block_bytes,
            regions_in_doubt: self.recorder.in_doubt().len(),
            regions: self.regions.count(),
            uuid: recorded.uuid_text(),
            generation: recorded.generation,
            generations: self.recorder.generations().to_vec(),
            level: recorded.level,
            members: recorded.members,
            strip_bytes: recorded.strip_sectors * SECTOR_BYTES,
            size_bytes: self.geometry.sectors * SECTOR_BYTES,
            calibrated: recorded.calibration.is_some(),
            strides: contiguity
                .map(|rules| StridesStatus { read_max: rules.read.max, write_max: rules.write.max }),
            pass: self.passes.status(now, &self.layout),
            last_scrub: self.passes.last_scrub,
            last_rebuild: self.passes.last_rebuild,
            last_return: self.passes.last_return,
            away: recorded.away_status(),
            journal: self.journal.is_some(),
            journal_failed: self.journal_failed,
            advice: self.advice(),
            non_volatile: self.config.non_volatile,
            read_only: self.geometry.read_only,
            cache_bytes: self.cache.capacity_bytes(),
            held_bytes: self.cache.held_bytes(),
            dirty_units: self.cache.dirty().len(),
            dirty_bytes: self.cache.dirty_blocks() as u64 * LINE_BYTES,
            statistics: self.statistics,
            devices: self.members.status(),
        }
    }

    /// Advice to the administrator, in words.
    pub fn advice(&self) -> Vec<String> {
        let taken = (0..self.members.count()).filter(|role| self.recorder.is_in_use(*role));
        let taken = taken.filter_map(|role| {
            let spare = self.members.holder(role)?;
            Some(format!(
                "spare {spare} is member {role} now: in the stack file, name it in the place of that member in \"of\", take it out of \
                 \"spares\", and remove the table of the device that it replaces"
            ))
        });
        let absent = self.members.absent_places(&self.config.spares);
        let absent = absent.map(|place| format!("spare {place} is not there"));
        let journal = self.journal_failed.then(|| match self.config.journal_required {
            true => "the journal has failed, and no more writes are taken: give it another journal".to_owned(),
            false => "the journal has failed, and the array goes on without: a crash that takes a member too may lose data. Give \
                      it another journal"
                .to_owned(),
        });
        let doubt = !self.recorder.in_doubt().is_empty() && self.recorder.failed() != 0;
        let doubt = doubt.then(|| {
            "a member failed before the parity was right everywhere: what it held there cannot be read. Copy away what can be; \
             after \"dcd serve --accept-damage\" it is computed, and may come out wrong"
                .to_owned()
        });
        let lost = self.losses.lost_blocks();
        let lost = (lost > 0).then(|| {
            format!(
                "{lost} blocks of 4 KiB could neither be read nor computed: reading them fails until they are written"
            )
        });
        let unreadable = self.losses.unreadable_blocks();
        let unreadable = (unreadable > 0).then(|| {
            format!(
                "{}{unreadable} blocks of 4 KiB could neither be read nor computed when they were last wanted: bring back what is missing of their \
                 rows, or write them anew",
                if unreadable < UNREADABLE_MAX { "" } else { "at least " }
            )
        });
        taken
            .chain(absent)
            .chain(journal)
            .chain(doubt)
            .chain(lost)
            .chain(unreadable)
            .chain(self.members.complaints())
            .collect()
    }
}
