//! Superblocks about members that are away, and devices that come back.

use crate::raid::away::{Absence, TRACTS_MAX};
use crate::raid::bitmap::Bitmap;
use crate::raid::status::AwayStatus;
use crate::raid::superblock::{ArraySuperblock, MemberIdentity, NOBODY};

impl ArraySuperblock {
    /// The number of tracts.
    pub const fn missed_regions_max(&self) -> u64 {
        let regions = (self.member_sectors / self.strip_sectors).div_ceil(self.region_stripes);
        regions.div_ceil(regions.div_ceil(TRACTS_MAX))
    }

    /// Returns the part of the status about members that are away.
    pub fn away_status(&self) -> AwayStatus {
        AwayStatus {
            members: self.away.members.iter().map(|absence| absence.role).collect(),
            missed_regions: self.away.missed.len(),
            regions: self.missed_regions_max(),
            returning: self.is_returning(),
        }
    }

    /// The member that is being rebuilt has come back, and lacks only what is marked.
    pub fn is_returning(&self) -> bool {
        self.rebuilding.is_some_and(|rebuild| self.away.has(rebuild.role))
    }

    /// Ends the rebuild of a member that has failed, or is missing. A member that had come back may do so again, where it is known what is
    /// under way. The content of any other one is unknown, and it must not be taken for the member of that role.
    pub fn end_rebuild(&mut self, role: usize, under_way: Option<&Bitmap>) {
        let returning = self.is_returning();
        self.rebuilding = None;
        match under_way.filter(|_| returning) {
            Some(tracts) => self.away.add(role, self.member_ids[role], self.complete, tracts),
            None => {
                self.member_ids[role] = NOBODY;
                self.away.forget(role);
            }
        }
    }

    /// The role of a member that was away, if its device has all but what is marked, by what its own superblock says. It must not have
    /// been in use since, nor have gone on without one that was in use here.
    pub fn returns(&self, device: &ArraySuperblock, identity: MemberIdentity) -> Option<usize> {
        let MemberIdentity { id, role: Some(role), .. } = identity else { return None };
        let same_array = (device.uuid, device.members, device.member_sectors, device.strip_sectors)
            == (self.uuid, self.members, self.member_sectors, self.strip_sectors);
        let is_listed = |absence: &Absence| {
            (absence.role, absence.id) == (role, id)
                && (absence.had..absence.since).contains(&device.generation)
                && device.failed & !absence.failed == 0
        };
        let is_away = self.has_failed(role) && self.member_ids[role] == id;
        let returns = same_array
            && is_away
            && self.away.members.iter().any(is_listed)
            && (device.is_returning() || !device.rebuilds(role))
            && self.lost.is_empty()
            && device.reshape.is_none()
            && !self.rebuilds(role);
        returns.then_some(role)
    }
}
