//! Finds members that have diverged from those that count. Four members of RAID-6 are two pairs that both can do without the other. Old
//! content that was put back on a member also lets it be used twice. What was written to one part is then not on the other.
//!
//! A superblock alone does not show it: a crash in the middle of an update leaves members ahead of others that go on without them, and
//! nothing was acknowledged of that. So a member has diverged
//! - *surely*, where a generation was complete without members that count, since these know that the member has failed;
//! - *perhaps*, where no member was in use with it and with them, and then if all others that it says were in use with it say the same, as
//!   far as they are present.

use crate::raid::away::Absence;
use crate::raid::superblock::{ArraySuperblock, MemberIdentity};

/// Members of which neither part has what was written to the other, each with its generation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "its members were used apart: {} without what was written to {}, and these without what was written to those",
    listed(.left_behind),
    listed(.newest)
)]
pub struct Apart {
    pub left_behind: Vec<(usize, u64)>,
    pub newest: Vec<(usize, u64)>,
}

fn listed(members: &[(usize, u64)]) -> String {
    let one = |(role, generation): &(usize, u64)| format!("member {role} (event counter {generation})");
    members.iter().map(one).collect::<Vec<_>>().join(" and ")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ApartVerdict {
    No,
    Perhaps,
    Surely,
}

impl ArraySuperblock {
    /// Returns the members that have diverged from those of this superblock, the newest of all. `known`: superblocks of devices with roles.
    pub fn apart(&self, known: &[(&ArraySuperblock, MemberIdentity)]) -> Option<Apart> {
        let mut apart = Apart { left_behind: Vec::new(), newest: Vec::new() };
        for (superblock, identity) in known {
            let Some(role) = self.role_of(identity.id) else { continue };
            let is_confirmed =
                || superblock.fellows(known).all(|fellow| self.verdict(fellow) != ApartVerdict::No);
            match self.verdict((superblock, *identity)) {
                ApartVerdict::Surely => apart.left_behind.push((role, superblock.generation)),
                ApartVerdict::Perhaps if is_confirmed() => {
                    apart.left_behind.push((role, superblock.generation))
                }
                _ if self.is_in_use(role) => apart.newest.push((role, superblock.generation)),
                _ => {}
            }
        }
        (!apart.left_behind.is_empty()).then_some(apart)
    }

    /// The roles that are written to.
    fn in_use(&self) -> u64 {
        (0..self.members).filter(|role| self.is_in_use(*role)).map(|role| 1 << role).sum()
    }

    /// The devices of members that were in use when this was written.
    fn fellows<'a>(
        &self,
        known: &'a [(&'a ArraySuperblock, MemberIdentity)],
    ) -> impl Iterator<Item = (&'a ArraySuperblock, MemberIdentity)> {
        let is_fellow = |id: u64| self.role_of(id).is_some_and(|role| self.is_in_use(role));
        known.iter().copied().filter(move |(_, identity)| is_fellow(identity.id))
    }

    fn verdict(&self, (other, identity): (&ArraySuperblock, MemberIdentity)) -> ApartVerdict {
        let Some(role) = self.role_of(identity.id) else { return ApartVerdict::No };
        // One that is being filled says what the others did.
        if !self.has_failed(role) || other.has_failed(role) {
            return ApartVerdict::No;
        }
        let of_role = |absence: &&Absence| (absence.role, absence.id) == (role, identity.id);
        match self.away.members.iter().find(of_role) {
            Some(absence) => {
                let stayed = self.all_but(absence.failed);
                match (stayed & other.in_use(), stayed & !other.in_use()) {
                    (_, 0) => ApartVerdict::No,
                    _ if other.complete >= absence.since => ApartVerdict::Surely,
                    (0, _) => ApartVerdict::Perhaps,
                    _ => ApartVerdict::No,
                }
            }
            None => {
                let is_same = |role: &usize| other.member_ids.get(*role) == Some(&self.member_ids[*role]);
                let used = |role: &usize| self.is_in_use(*role);
                let mut same = (0..self.members).filter(used).filter(is_same).peekable();
                let knows = same.peek().is_some();
                match knows && same.all(|role| !other.is_in_use(role)) {
                    true => ApartVerdict::Perhaps,
                    false => ApartVerdict::No,
                }
            }
        }
    }

    fn all_but(&self, failed: u64) -> u64 {
        (u64::MAX >> (64 - self.members)) & !failed
    }
}
