//! Members that fail.

use crate::layer::Outbox;
use crate::raid::array::Array;

impl Array {
    /// A unit's column with this member cannot be read, and is not to be written: the member has failed, is not rebuilt so far, or
    /// lacks the column since it was away.
    pub fn has_failed_at(&self, role: usize, unit: u64) -> bool {
        self.recorder.has_failed(role)
            && self.recorder.rebuilding().is_none_or(|rebuild| {
                let is_below = rebuild.sectors >= (unit + 1) * self.layout.column_sectors();
                rebuild.role != role || (!is_below && self.recorder.is_lacking(self.tracts.of_unit(unit)))
            })
    }

    /// A member could not write. False where the parity makes up for no more members.
    pub fn member_failed(&mut self, role: usize, out: &mut Outbox) -> bool {
        if !self.recorder.is_in_use(role) {
            return true;
        }
        let spared = (self.recorder.failed().count_ones() as usize) < self.layout.shape.parity;
        self.notice = true;
        if !self.recorder.has_failed(role) && !spared {
            self.broken = true;
            return false;
        }
        self.statistics.member_failures += 1;
        let under_way = self.is_listed_when_away().then(|| self.in_use(self.tracts));
        self.recorder.fail(role, under_way.as_ref());
        self.record(out);
        true
    }

    /// True when it is known what a member that fails now has: everything except what is under way. Destaged data is durable when the
    /// destage returns, but repairs of a pass are not before the pass has flushed them.
    fn is_listed_when_away(&self) -> bool {
        self.recorder.in_doubt().is_empty() && self.recorder.lost().is_empty() && !self.passes.repairs()
    }
}
