//! Describes a served array: joins what its parts tell.

use crate::raid::array::Array;
use crate::raid::lost::UNREADABLE_MAX;
use crate::raid::status::{ArrayNote, ArrayState, ArrayStatus, StridesStatus};
use crate::{LINE_BYTES, Nanos, SECTOR_BYTES};

impl ArrayStatus {
    /// Joins what the parts of an array tell.
    pub(super) fn of(array: &Array, now: Nanos) -> ArrayStatus {
        let roles = || 0..array.members.count();
        let failed: Vec<usize> = roles().filter(|&role| array.recorder.has_failed(role)).collect();
        let rebuilding = array.recorder.rebuilding();
        let recorded = array.recorder.recorded();
        let percent = |sectors: u64| 100.0 * sectors as f64 / recorded.member_sectors as f64;
        let contiguity = array.config.contiguity.as_ref();
        ArrayStatus {
            state: state(array, !failed.is_empty()),
            failed_members: failed,
            resynced_percent: array.passes.resynced_percent(),
            lost_blocks: array.losses.lost_blocks(),
            unreadable_blocks: array.losses.unreadable_blocks(),
            clean: !recorded.active && recorded.in_doubt.is_empty(),
            rebuilding_member: rebuilding.map(|rebuild| rebuild.role),
            rebuilt_percent: rebuilding.map(|rebuild| percent(rebuild.sectors)),
            held_members: roles().filter(|&role| array.members.is_held(role, &array.recorder)).collect(),
            member_sectors_min: array.recorder.member_sectors_min(),
            logical_block_bytes: array.geometry.logical_block_bytes,
            regions_in_doubt: array.recorder.in_doubt().len(),
            regions: array.recorder.regions.count(),
            uuid: recorded.uuid_text(),
            generation: recorded.generation,
            generations: array.recorder.generations().to_vec(),
            level: recorded.level,
            members: recorded.members,
            strip_bytes: recorded.strip_sectors * SECTOR_BYTES,
            size_bytes: array.geometry.sectors * SECTOR_BYTES,
            calibrated: recorded.calibration.is_some(),
            strides: contiguity
                .map(|rules| StridesStatus { read_max: rules.read.max, write_max: rules.write.max }),
            pass: array.passes.status(now, &array.layout),
            last_scrub: array.passes.last_scrub,
            last_rebuild: array.passes.last_rebuild,
            last_return: array.passes.last_return,
            away: recorded.away_status(),
            journal: array.recorder.journal.is_some(),
            journal_failed: array.has_lost_journal(),
            notes: notes(array),
            advice: Vec::new(),
            non_volatile: array.config.non_volatile,
            read_only: array.recorder.read_only,
            cache_bytes: array.stripes.cache.capacity_bytes(),
            held_bytes: array.stripes.cache.held_bytes(),
            dirty_units: array.stripes.cache.dirty().len(),
            dirty_bytes: array.stripes.cache.dirty_blocks() as u64 * LINE_BYTES,
            statistics: array.statistics,
            devices: array.members.status(),
        }
    }
}

fn state(array: &Array, has_failed: bool) -> ArrayState {
    let is_resyncing = array.passes.resynced_percent().is_some();
    match (array.recorder.broken, has_failed) {
        (true, _) => ArrayState::Broken,
        (false, _) if is_resyncing => ArrayState::Resyncing,
        (false, true) if array.recorder.rebuilding().is_some() => ArrayState::Rebuilding,
        (false, true) => ArrayState::Degraded,
        (false, false) if array.losses.are_any() => ArrayState::Damaged,
        (false, false) if array.recorder.in_doubt().is_empty() => ArrayState::Good,
        (false, false) => ArrayState::InDoubt,
    }
}

/// Returns the notes for the administrator.
fn notes(array: &Array) -> Vec<ArrayNote> {
    let taken = (0..array.members.count()).filter(|role| array.recorder.is_in_use(*role));
    let taken = taken
        .filter_map(|role| array.members.holder(role).map(|spare| ArrayNote::SpareTaken { spare, role }));
    let absent = array.members.absent_places(&array.config.spares).map(ArrayNote::SpareAbsent);
    let required = array.config.journal_required;
    let journal = array.has_lost_journal().then_some(ArrayNote::JournalFailed { required });
    let doubt = !array.recorder.in_doubt().is_empty() && array.recorder.failed() != 0;
    let doubt = doubt.then_some(ArrayNote::InDoubt);
    let lost = Some(array.losses.lost_blocks()).filter(|lost| *lost > 0).map(ArrayNote::Lost);
    let blocks = array.losses.unreadable_blocks();
    let unreadable = (blocks > 0).then_some(ArrayNote::Unreadable { blocks, more: blocks >= UNREADABLE_MAX });
    let unused = array.members.unused().cloned().map(ArrayNote::Unused);
    let some = journal.into_iter().chain(doubt).chain(lost).chain(unreadable);
    taken.chain(absent).chain(some).chain(unused).collect()
}
