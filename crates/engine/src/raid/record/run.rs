//! Keeping the superblocks of a running array true.

use super::REST_TIME;
use crate::Nanos;
use crate::layer::{IoResult, Outbox};
use crate::raid::array::{Array, Flight};
use crate::raid::bitmap::{Bitmap, Regions};
use crate::raid::config::Canary;

impl Array {
    /// The superblocks do not say yet what they have to.
    pub fn is_recording(&self) -> bool {
        self.recorder.recording.is_some() || self.recorder.next().is_some()
    }

    /// An operation is going to write to a unit: that begins to be recorded while it reads.
    pub fn announce(&mut self, unit: u64, out: &mut Outbox) {
        let (region, tract) = (self.regions.of_unit(unit), self.tracts.of_unit(unit));
        let journaled = self.journal.is_some();
        // Dirty blocks may stay in non-volatile RAM for long.
        let together = !self.config.non_volatile
            || self.clients.wait_for_flush()
            || !self.recorder.wanted.away.is_empty();
        if together && !self.recorder.is_begun(region, tract, journaled) {
            self.begin_all_dirty(journaled);
        }
        self.recorder.begin(region, tract, journaled);
        self.record(out);
    }

    /// Operations may write to a unit; otherwise it is being recorded that they will.
    pub fn may_write(&mut self, unit: u64, out: &mut Outbox) -> bool {
        let late = self.config.canary.is(Canary::LateIntent) && self.recorder.recorded.active;
        self.announce(unit, out);
        self.recorder.may_write(self.regions.of_unit(unit), self.tracts.of_unit(unit)) || late
    }

    /// The regions of all dirty units are recorded together: each update interrupts all members.
    fn begin_all_dirty(&mut self, journaled: bool) {
        let mut next = 0;
        while let Some(&unit) = self.cache.dirty().range(next..).next() {
            let region = self.regions.of_unit(unit);
            self.recorder.begin(region, self.tracts.of_unit(unit), journaled);
            next = self.regions.units(region).end;
        }
    }

    /// The parity of a unit may be wrong.
    pub fn is_unsynced(&self, unit: u64) -> bool {
        self.recorder.in_doubt.contains(self.regions.of_unit(unit))
    }

    /// Writes the superblocks, if they have something new to say and are not being written.
    pub fn record(&mut self, out: &mut Outbox) {
        if self.recorder.recording.is_some() || self.broken {
            return;
        }
        let Some(mut next) = self.recorder.next() else { return };
        if self.geometry.read_only {
            // It cannot be, and need not be: nothing is written that depends on it, and the next start finds the same.
            return self.recorder.was_recorded(next);
        }
        if next.active && !self.recorder.recorded.active {
            next.epoch += 1;
            if !self.open_journal(next.epoch, out) {
                return;
            }
        }
        self.statistics.superblocks += 1;
        for role in
            (0..self.members.count()).filter(|&role| self.recorder.is_in_use(role)).collect::<Vec<_>>()
        {
            self.recorder.left += 1;
            let write = next.write(next.identity(role, self.recorder.copies[role]));
            self.submit(role, Flight::Superblock { role }, write, out);
        }
        self.recorder.recording = Some(next);
    }

    /// A member has written its superblock, or could not.
    pub fn superblock_returned(&mut self, role: usize, result: &IoResult, out: &mut Outbox) {
        self.recorder.left -= 1;
        match result.status {
            Ok(()) => self.recorder.wrote(role),
            Err(_) => {
                self.member_failed(role, out);
            }
        }
        if self.recorder.left == 0 {
            let recorded = self.recorder.recording.take().expect("it is being recorded");
            self.recorder.was_recorded(recorded);
            let under_way = self.in_use(self.tracts);
            self.recorder.begin_return(&under_way);
            self.record(out);
        }
    }

    /// The regions, or the tracts, of the operations that are under way.
    pub fn in_use(&self, regions: Regions) -> Bitmap {
        let mut used = Bitmap::default();
        for operation in self.operations.iter() {
            used.insert(regions.of_unit(operation.unit));
        }
        used
    }

    /// Records what is at rest, now and then.
    pub fn look_for_rest(&mut self, now: Nanos) {
        if !self.recorder.wanted.active || self.broken {
            self.recorder.look_at = None;
            return;
        }
        let at = *self.recorder.look_at.get_or_insert(now + REST_TIME);
        if now >= at {
            let idle = self.operations.is_empty()
                && self.clients.are_answered()
                && self.cache.dirty().is_empty()
                && now.since(self.clients.last_activity()) >= REST_TIME;
            match idle {
                true => self.recorder.rest(),
                false => self.recorder.clear(&self.in_use(self.regions)),
            }
            self.recorder.look_at = (!idle).then_some(now + REST_TIME);
        }
        if let Some(at) = self.recorder.look_at {
            self.wake_at(at);
        }
    }
}
