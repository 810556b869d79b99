//! Making the status of an array.

use super::{ArrayState, ArrayStatus, Note, StridesStatus};
use crate::raid::array::Array;
use crate::raid::lost::UNREADABLE_MAX;
use crate::{LINE_BYTES, Nanos, SECTOR_BYTES};

impl Array {
    fn state(&self, has_failed: bool) -> ArrayState {
        let is_resyncing = self.passes.resynced_percent().is_some();
        match (self.recorder.broken, has_failed) {
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
            held_members: roles().filter(|&role| self.members.is_held(role, &self.recorder)).collect(),
            member_sectors_min: self.recorder.member_sectors_min(),
            logical_block_bytes: self.geometry.logical_block_bytes,
            regions_in_doubt: self.recorder.in_doubt().len(),
            regions: self.recorder.regions.count(),
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
            journal: self.recorder.journal.is_some(),
            journal_failed: self.recorder.journal_failed,
            notes: self.notes(),
            advice: Vec::new(),
            non_volatile: self.config.non_volatile,
            read_only: self.recorder.read_only,
            cache_bytes: self.cache.capacity_bytes(),
            held_bytes: self.cache.held_bytes(),
            dirty_units: self.cache.dirty().len(),
            dirty_bytes: self.cache.dirty_blocks() as u64 * LINE_BYTES,
            statistics: self.statistics,
            devices: self.members.status(),
        }
    }

    /// Returns the notes for the administrator.
    fn notes(&self) -> Vec<Note> {
        let taken = (0..self.members.count()).filter(|role| self.recorder.is_in_use(*role));
        let taken =
            taken.filter_map(|role| self.members.holder(role).map(|spare| Note::SpareTaken { spare, role }));
        let absent = self.members.absent_places(&self.config.spares).map(Note::SpareAbsent);
        let required = self.config.journal_required;
        let journal = self.recorder.journal_failed.then_some(Note::JournalFailed { required });
        let doubt = !self.recorder.in_doubt().is_empty() && self.recorder.failed() != 0;
        let doubt = doubt.then_some(Note::InDoubt);
        let lost = Some(self.losses.lost_blocks()).filter(|lost| *lost > 0).map(Note::Lost);
        let blocks = self.losses.unreadable_blocks();
        let unreadable = (blocks > 0).then_some(Note::Unreadable { blocks, more: blocks >= UNREADABLE_MAX });
        let unused = self.members.unused().cloned().map(Note::Unused);
        let some = journal.into_iter().chain(doubt).chain(lost).chain(unreadable);
        taken.chain(absent).chain(some).chain(unused).collect()
    }
}
