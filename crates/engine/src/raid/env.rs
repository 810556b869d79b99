//! Joins what every part of an array may use: the settings, and the parts that say what is where and what is safe.

use crate::layer::{Cx, Geometry, Io};
use crate::raid::config::RaidConfig;
use crate::raid::flight::Flight;
use crate::raid::layout::Layout;
use crate::raid::lost::Losses;
use crate::raid::members::Members;
use crate::raid::operation::{Operation, in_use};
use crate::raid::record::Recorder;
use crate::raid::status::ArrayStatistics;
use crate::slab::Slab;
use crate::{Buf, Lba, Nanos};

/// Borrows what every part may use in an event: the settings, and the parts that know nothing of stripes, passes and clients.
pub(super) struct Env<'a> {
    pub config: &'a RaidConfig,
    pub layout: Layout,
    pub geometry: &'a Geometry,
    pub members: &'a mut Members,
    pub recorder: &'a mut Recorder,
    pub losses: &'a mut Losses,
    pub statistics: &'a mut ArrayStatistics,
    pub deadline: &'a mut Option<Nanos>,
    pub cx: &'a mut Cx,
}

impl Env<'_> {
    /// Sends a command to the member of a role.
    pub fn submit(&mut self, role: usize, flight: Flight, io: Io) {
        self.members.submit(role, flight, io, self.cx);
    }

    /// Writes the superblocks, if they have something new to say.
    pub fn record(&mut self) {
        self.recorder.record(self.members, self.statistics, self.cx);
    }

    /// A member could not write. False where the parity makes up for no more members. `repairs`: a pass may have made something right that
    /// is not flushed.
    pub fn member_failed(&mut self, role: usize, repairs: bool, operations: &Slab<Operation>) -> bool {
        let recorder = &mut self.recorder;
        if !recorder.is_in_use(role) {
            return true;
        }
        recorder.notice = true;
        if !recorder.has_failed(role) && !recorder.is_spared() {
            recorder.broken = true;
            return false;
        }
        self.statistics.member_failures += 1;
        // It is known what the member has: everything except what is under way. Destaged data is durable when the destage returns, but
        // repairs of a pass are not before the pass has flushed them.
        let is_known = recorder.in_doubt().is_empty() && recorder.lost().is_empty() && !repairs;
        let under_way = is_known.then(|| in_use(operations, recorder.tracts));
        recorder.fail(role, under_way.as_ref());
        self.record();
        true
    }

    /// Puts the next operation that waits for it into the journal, if that has room.
    pub fn write_record(&mut self, operations: &mut Slab<Operation>) {
        let (layout, uuid) = (self.layout, self.recorder.recorded().uuid);
        let Some(journal) = &mut self.recorder.journal else { return };
        let Some((key, place)) = journal.begin_record(uuid) else { return };
        let operation = operations.get_mut(key);
        operation.record = Some(place.number);
        let unit = operation.unit;
        let nothing = Buf::none();
        let writes: Vec<(usize, Lba, &Buf)> = operation
            .writes
            .iter()
            .map(|(run, buf)| (layout.member(unit, run.column), layout.member_lba(unit, run.rows.start), buf))
            .collect();
        // A write to a member that has failed since the plan was made counts: no superblock may say yet that it has.
        let is_void = |role: &usize| {
            self.recorder.has_failed_at(*role, unit) && writes.iter().all(|(other, ..)| other != role)
        };
        let void = (0..layout.shape.columns()).filter(is_void);
        let mut entries: Vec<(usize, Lba, &Buf)> =
            void.map(|role| (role, layout.member_lba(unit, 0), &nothing)).collect();
        entries.extend(writes);
        self.statistics.journal_records += 1;
        if let Some(journal) = &self.recorder.journal {
            let flight = Flight::Journal { operation: Some(key) };
            self.members.submit_to(journal.port(), 0, flight, journal.record(place, &entries), self.cx);
        }
    }

    /// Asks for an alarm at a time, unless there is an earlier one.
    pub fn wake_at(&mut self, time: Nanos) {
        *self.deadline = Some(self.deadline.map_or(time, |earlier| earlier.min(time)));
    }
}
