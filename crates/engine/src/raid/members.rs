//! Who has which role: members that fail, and spares that take their place.

use crate::layer::{Outbox, Port, Seat};
use crate::raid::array::{Array, Flight};
use crate::raid::lost::UNREADABLE_MAX;

/// A device that waits for a member to fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub port: Port,
    pub id: u64,
    /// Which copy of its superblock counts.
    pub copy: usize,
    pub seat: Seat,
}

/// "member 1", "members 1 and 3".
pub fn members_named(roles: &[usize]) -> String {
    let names: Vec<String> = roles.iter().map(usize::to_string).collect();
    match names.as_slice() {
        [first @ .., last] if !first.is_empty() => format!("members {} and {last}", first.join(", ")),
        one => format!("member {}", one.concat()),
    }
}

impl Array {
    /// The member of a role has failed, or is not rebuilt whole.
    pub const fn is_failed(&self, role: usize) -> bool {
        self.recorder.failed() >> role & 1 == 1
    }

    /// A unit's column with this member cannot be read, and is not to be written: it has failed, is not rebuilt so far, or
    /// lacks it since it was away.
    pub fn is_gone(&self, role: usize, unit: u64) -> bool {
        self.is_failed(role)
            && self.recorder.rebuilding().is_none_or(|rebuild| {
                let is_below = rebuild.sectors >= (unit + 1) * self.layout.column_sectors();
                rebuild.role != role || (!is_below && self.recorder.is_lacking(self.tracts.of_unit(unit)))
            })
    }

    /// Superblocks are written to it, and flushes go there.
    pub fn is_in_use(&self, role: usize) -> bool {
        !self.is_failed(role) || self.recorder.rebuilding().is_some_and(|rebuild| rebuild.role == role)
    }

    /// A member could not write. False where the parity makes up for no more members.
    pub fn member_failed(&mut self, role: usize, out: &mut Outbox) -> bool {
        if !self.is_in_use(role) {
            return true;
        }
        let spared = (self.recorder.failed().count_ones() as usize) < self.layout.shape.parity;
        self.notice = true;
        if !self.is_failed(role) && !spared {
            self.broken = true;
            return false;
        }
        self.statistics.member_failures += 1;
        let under_way = self.is_listed_when_away().then(|| self.tracts_in_use());
        self.recorder.fail(role, under_way.as_ref());
        self.record(out);
        true
    }

    /// Of a member that fails now it is known what it has: all but what is under way. What is destaged is durable when it returns, but what
    /// a pass makes right is not before the pass has flushed it.
    fn is_listed_when_away(&self) -> bool {
        self.recorder.in_doubt().is_empty() && self.recorder.lost().is_empty() && !self.passes.repairs()
    }

    /// A spare takes the role of a failed member, as soon as nothing is under way there any more.
    pub fn take_spare(&mut self, out: &mut Outbox) {
        if self.spares.is_empty()
            || self.broken
            || self.recorder.rebuilding().is_some()
            || !self.recorder.in_doubt().is_empty()
        {
            return;
        }
        let failed = |role: &usize| self.is_failed(*role) && self.commands_under_way(*role) == 0;
        let with_spare = |role: usize| Some((role, self.spare_for(role)?));
        let Some((role, index)) = (0..self.ports.len()).filter(failed).find_map(with_spare) else { return };
        let spare = self.spares.remove(index);
        self.ports[role] = Some(spare.port);
        self.holders[role] = match spare.seat {
            Seat::Spare(place) => Some(place),
            Seat::Member(_) => None,
        };
        self.recorder.take_over(role, &spare);
        self.record(out);
    }

    /// Which of the spares a role gets: the one that was added in its place, or else the first one; none while the former is
    /// being made a spare.
    fn spare_for(&self, role: usize) -> Option<usize> {
        if self.is_joining(Seat::Member(role)) || self.is_awaited(role) {
            return None;
        }
        let own = self.spares.iter().position(|spare| spare.seat == Seat::Member(role));
        own.or_else(|| self.spares.iter().position(|spare| matches!(spare.seat, Seat::Spare(_))))
    }

    /// Commands to the member of a role that have not returned.
    pub fn commands_under_way(&self, role: usize) -> usize {
        let at_members = |flight: &Flight| !matches!(flight, Flight::Journal { .. } | Flight::Join { .. });
        self.flights.iter().filter(|(of, flight)| *of == role && at_members(flight)).count()
    }

    /// What an administrator should do, in words.
    pub fn advice(&self) -> Vec<String> {
        let taken = self.holders.iter().enumerate().filter(|(role, _)| self.is_in_use(*role));
        let taken = taken.filter_map(|(role, holder)| {
            let spare = (*holder)?;
            Some(format!(
                "spare {spare} is member {role} now: in the stack file, name it in the place of that member in \"of\", take it out of \
                 \"spares\", and remove the table of the device that it replaces"
            ))
        });
        let absent =
            self.config.spares.iter().enumerate().filter(|(place, there)| {
                !**there && self.spare_places.get(*place).is_none_or(Option::is_none)
            });
        let absent = absent.map(|(place, _)| format!("spare {place} is not there"));
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
        let lost = (!self.lost.is_empty()).then(|| {
            format!(
                "{} blocks of 4 KiB could neither be read nor computed: reading them fails until they are written",
                self.lost.len()
            )
        });
        let unreadable = (!self.unreadable.is_empty()).then(|| {
            format!(
                "{}{} blocks of 4 KiB could neither be read nor computed when they were last wanted: bring back what is missing of their \
                 rows, or write them anew",
                if self.unreadable.len() < UNREADABLE_MAX { "" } else { "at least " },
                self.unreadable.len()
            )
        });
        taken
            .chain(absent)
            .chain(journal)
            .chain(doubt)
            .chain(lost)
            .chain(unreadable)
            .chain(self.unusable.iter().map(|(_, why)| why.clone()))
            .collect()
    }
}
