//! Making the status of an array, and advice to its administrator.

use super::{ArrayState, ArrayStatus, StridesStatus};
use crate::raid::array::Array;
use crate::raid::lost::UNREADABLE_MAX;
use crate::{LINE_BYTES, Nanos, SECTOR_BYTES};

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
