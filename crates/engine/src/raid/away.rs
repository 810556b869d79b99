//! Knows the members that are away, and what they have missed since. A member that comes back is given that, and no more.
//!
//! A *tract* is some regions in a row. While a member is away its bit is durable in the superblocks before anything of it is written,
//! with a journal and without, and is not cleared before all are back: so a member lacks nothing outside of the marked tracts.
//! If that is not known of a member that fails, the member is not listed, and its role is rebuilt whole.

use crate::raid::bitmap::Bitmap;

/// Maximum number of members that are away at a time.
pub const AWAY_MAX: usize = 2;
/// Bytes of a superblock for the marks of tracts.
pub const MISSED_BYTES: usize = 256;
pub const TRACTS_MAX: u64 = 8 * MISSED_BYTES as u64;
/// Number of tracts above which a mark includes the neighbours of its tract. A workload that writes in more tracts writes everywhere,
/// so this saves updates, and adds little to what has to be filled.
const MARKED_SINGLY: u64 = TRACTS_MAX / 8;
const NEIGHBOURS: u64 = 8;

/// A member that has failed, and that lacks only what is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absence {
    pub role: usize,
    pub id: u64,
    /// First generation that names the member as away; 0 before that is recorded.
    pub since: u64,
    /// The roles that had failed then, its own included.
    pub failed: u64,
    /// A generation that the member had by then. If the member now has an older one, old content has been put back on it.
    pub had: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Away {
    pub members: Vec<Absence>,
    /// Tracts in which something was written since the first of the members is away.
    pub missed: Bitmap,
}

impl Away {
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn has(&self, role: usize) -> bool {
        self.members.iter().any(|absence| absence.role == role)
    }

    /// Adds a member that is away from now on. `had`: a generation that it had. It may lack what is under way in some tracts.
    pub fn add(&mut self, role: usize, id: u64, had: u64, under_way: &Bitmap) {
        self.members.retain(|absence| absence.role != role);
        if self.members.len() < AWAY_MAX {
            self.members.push(Absence { role, id, since: 0, failed: 0, had });
            self.missed.add_all(under_way);
        }
    }

    /// Marks a tract that is about to be written to. True where it was not marked.
    pub fn mark(&mut self, tract: u64, tracts: u64) -> bool {
        if self.is_empty() || self.missed.contains(tract) {
            return false;
        }
        self.missed.insert(tract);
        if self.missed.len() > MARKED_SINGLY {
            let first = tract / NEIGHBOURS * NEIGHBOURS;
            for tract in first..tracts.min(first + NEIGHBOURS) {
                self.missed.insert(tract);
            }
        }
        true
    }

    /// Forgets the member of a role: it has all again, or another device has taken the role.
    pub fn forget(&mut self, role: usize) {
        self.members.retain(|absence| absence.role != role);
        if self.members.is_empty() {
            self.missed = Bitmap::default();
        }
    }

    /// True when the superblocks must be updated, as `recorded` is what they say. While no member is away nothing is marked.
    pub fn says_more_than(&self, recorded: &Away) -> bool {
        self.members != recorded.members || (!self.is_empty() && self.missed != recorded.missed)
    }

    /// Returns the state for the superblocks of a generation with these failed roles.
    pub fn recorded_by(&self, generation: u64, failed: u64) -> Away {
        let mut recorded = self.clone();
        for absence in recorded.members.iter_mut().filter(|absence| absence.since == 0) {
            (absence.since, absence.failed) = (generation, failed);
        }
        recorded
    }

    /// Notes that these superblocks have been written. A member that came back and left again meanwhile is in them with an older
    /// generation.
    pub fn was_recorded(&mut self, recorded: &Away, generation: u64, failed: u64) {
        for absence in self.members.iter_mut().filter(|absence| absence.since == 0) {
            let now = Absence { since: generation, failed, ..*absence };
            if recorded.members.contains(&now) {
                *absence = now;
            }
        }
    }
}
