//! What an administrator sees of an array.

use serde_json::json;

use crate::Nanos;
use crate::layer::Geometry;
use crate::raid::array::Array;
use crate::raid::lost::UNREADABLE_MAX;

impl Array {
    fn state(&self, has_failed: bool) -> &'static str {
        let is_resyncing = self.passes.resynced_percent().is_some();
        match (self.broken, has_failed) {
            (true, _) => "broken",
            (false, _) if is_resyncing => "resyncing",
            (false, true) if self.recorder.rebuilding().is_some() => "rebuilding",
            (false, true) => "degraded",
            (false, false) if self.losses.are_any() => "damaged",
            (false, false) if self.recorder.in_doubt().is_empty() => "good",
            (false, false) => "in doubt",
        }
    }

    /// The array's part of the status of its layer.
    pub fn status(&self, now: Nanos) -> serde_json::Value {
        let roles = || 0..self.members.count();
        let failed: Vec<usize> = roles().filter(|&role| self.recorder.has_failed(role)).collect();
        let rebuilding = self.recorder.rebuilding();
        let recorded = self.recorder.recorded();
        let percent = |sectors: u64| 100.0 * sectors as f64 / recorded.member_sectors as f64;
        let mut status = json!({
            "state": self.state(!failed.is_empty()),
            "failed_members": failed,
            "resynced_percent": self.passes.resynced_percent(),
            "lost_blocks": self.losses.lost_blocks(),
            "unreadable_blocks": self.losses.unreadable_blocks(),
            "rebuilding_member": rebuilding.map(|rebuild| rebuild.role),
            "rebuilt_percent": rebuilding.map(|rebuild| percent(rebuild.sectors)),
            "held_members": roles().filter(|&role| self.is_held(role)).collect::<Vec<_>>(),
            "member_sectors_min": self.sectors_needed(),
            "regions_in_doubt": self.recorder.in_doubt().len(),
            "regions": self.regions.count(),
            "generations": self.recorder.generations(),
            "pass": self.passes.status(now, &self.layout),
            "last_scrub": self.passes.last_scrub,
            "last_rebuild": self.passes.last_rebuild,
            "last_return": self.passes.last_return,
            "journal": self.journal.is_some(),
            "journal_failed": self.journal_failed,
            "advice": self.advice(),
            "cache_bytes": self.cache.capacity_bytes(),
            "held_bytes": self.cache.held_bytes(),
            "dirty_units": self.cache.dirty().len(),
            "dirty_bytes": self.cache.dirty_blocks() as u64 * crate::LINE_BYTES,
            "statistics": self.statistics,
        });
        for part in [self.members.status(), self.kind_status()] {
            if let (Some(status), serde_json::Value::Object(mut part)) = (status.as_object_mut(), part) {
                status.append(&mut part);
            }
        }
        status
    }

    /// What an array is, and what its superblocks say.
    fn kind_status(&self) -> serde_json::Value {
        let recorded = self.recorder.recorded();
        let Geometry { sectors, logical_block_bytes, read_only, .. } = self.geometry;
        json!({
            "clean": !recorded.active && recorded.in_doubt.is_empty(),
            "logical_block_bytes": logical_block_bytes,
            "uuid": recorded.uuid_text(),
            "generation": recorded.generation,
            "level": recorded.level,
            "members": recorded.members,
            "strip_bytes": recorded.strip_sectors * crate::SECTOR_BYTES,
            "size_bytes": sectors * crate::SECTOR_BYTES,
            "calibrated": recorded.calibration.is_some(),
            "away": recorded.away_status(),
            "non_volatile": self.config.non_volatile,
            "read_only": read_only,
        })
    }

    /// What an administrator should do, in words.
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
