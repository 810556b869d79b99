//! Status of a mirror.

use serde::{Deserialize, Serialize};

use super::label::{Label, device_sectors};
use super::{LegState, MirrorCore};
use crate::{IoError, SECTOR_BYTES};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LegStatus {
    /// Name of the leg in the stack file, filled in by the server.
    pub name: Option<String>,
    /// None: its device is missing.
    pub port: Option<usize>,
    pub id: u64,
    /// None: the leg has been removed, and its device is being released.
    pub standing: Option<LegState>,
    /// Bytes filled so far, for a leg that is being filled.
    pub filled_bytes: u64,
    /// Since the start the leg was found to have lost writes that its device had reported as durable.
    #[serde(default)]
    pub lost_writes: bool,
    /// The mirror started without the leg although no label said that it had failed.
    #[serde(default)]
    pub missing: bool,
    /// Error for which the leg has failed since the start.
    #[serde(default)]
    pub error: Option<IoError>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MirrorStatistics {
    /// Reads that failed on one leg and were answered by another.
    pub reads_elsewhere: u64,
    /// Blocks that were written again on a leg that could not read them.
    pub mended: u64,
    pub legs_failed: u64,
    /// Legs that had lost writes reported as durable.
    pub legs_distrusted: u64,
    pub legs_filled: u64,
    pub filled_sectors: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MirrorStatus {
    pub uuid: [u8; 16],
    pub size_bytes: u64,
    pub generation: u64,
    /// Generation of the newest label that the start found. Callers decide by it whether the legs may be used.
    #[serde(skip)]
    pub found_generation: u64,
    pub legs: Vec<LegStatus>,
    /// The last leg cannot be written, so nothing can be acknowledged.
    pub failed: bool,
    pub statistics: MirrorStatistics,
}

impl MirrorStatus {
    /// Legs that have all acknowledged data.
    pub fn whole(&self) -> usize {
        self.legs.iter().filter(|leg| leg.standing == Some(LegState::Whole)).count()
    }

    /// Legs that were missing at the start although no label called them failed.
    pub fn missing(&self) -> usize {
        self.legs.iter().filter(|leg| leg.missing).count()
    }

    /// Minimum size of a leg's device.
    pub const fn device_bytes(&self) -> u64 {
        device_sectors(self.size_bytes / SECTOR_BYTES) * SECTOR_BYTES
    }

    /// True if this label of a leg says that a leg that is whole here has failed.
    pub fn was_apart(&self, label: &Label) -> bool {
        let is_whole =
            |id: u64| self.legs.iter().any(|leg| leg.id == id && leg.standing == Some(LegState::Whole));
        label.legs.iter().any(|leg| leg.standing == LegState::Failed && is_whole(leg.id))
    }

    /// Legs that were not removed.
    pub fn listed(&self) -> usize {
        self.legs.iter().filter(|leg| leg.standing.is_some()).count()
    }

    /// True if all legs are whole. A log with one leg on purpose is good.
    pub fn is_good(&self) -> bool {
        !self.failed && self.whole() == self.listed()
    }
}

impl MirrorCore {
    pub fn status(&self) -> MirrorStatus {
        let port = |id: u64| self.members.iter().find(|member| member.id == id).map(|member| member.port.0);
        let cause = |id: u64| self.causes.iter().rfind(|(leg, _)| *leg == id).map(|(_, error)| *error);
        let listed = self.label.legs.iter().map(|leg| (leg.id, Some(leg.standing)));
        let is_listed = |id: u64| self.label.standing(id).is_some();
        let going =
            self.members.iter().filter(|member| !is_listed(member.id)).map(|member| (member.id, None));
        let legs = listed.chain(going).map(|(id, standing)| LegStatus {
            name: None,
            port: port(id),
            id,
            standing,
            filled_bytes: self.copier.filled_sectors(id) * SECTOR_BYTES,
            lost_writes: self.distrusted.contains(&id),
            missing: self.missing.contains(&id),
            error: cause(id).filter(|_| standing == Some(LegState::Failed)),
        });
        MirrorStatus {
            uuid: self.label.uuid,
            size_bytes: self.label.sectors * SECTOR_BYTES,
            generation: self.label.generation,
            found_generation: self.found_generation,
            legs: legs.collect(),
            failed: self.record.is_dead.is_some(),
            statistics: self.statistics,
        }
    }
}
