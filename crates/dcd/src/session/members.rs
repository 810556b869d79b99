//! The devices of an array that is not served: which can be opened, what their superblocks say, and which role each has.

use dcd_engine::BlockDevice;
use dcd_engine::raid::{Apart, ArraySuperblock, ArraySuperblockError, MemberIdentity};
use dcd_stack::Parts;

use crate::session::started::StartedPart;

/// Content of a device's superblock, as far as it can be read.
pub enum MemberContent {
    /// The device cannot be opened or read.
    Unreadable(String),
    /// The device belongs to no array.
    None(ArraySuperblockError),
    Of(Box<ArraySuperblock>, MemberIdentity),
}

/// A device that the stack file names; it may not open.
pub struct FoundMember {
    pub name: String,
    pub device: Option<StartedPart>,
    pub content: MemberContent,
}

impl FoundMember {
    /// Reads the superblock of a device.
    pub fn new(name: &str, mut device: StartedPart) -> FoundMember {
        let content = match ArraySuperblock::read(&mut device) {
            Ok((superblock, identity)) => MemberContent::Of(Box::new(superblock), identity),
            Err(ArraySuperblockError::Io(error)) => MemberContent::Unreadable(error.to_string()),
            Err(error) => MemberContent::None(error),
        };
        FoundMember { name: name.to_owned(), device: Some(device), content }
    }

    pub fn superblock(&self) -> Option<(&ArraySuperblock, MemberIdentity)> {
        match &self.content {
            MemberContent::Of(superblock, identity) => Some((superblock, *identity)),
            MemberContent::Unreadable(_) | MemberContent::None(_) => None,
        }
    }
}

/// Relation of a device to an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    InUse(usize),
    /// In use according to the other devices, but with older data than they know of: the next start does not use it.
    Outdated(usize),
    Failed(usize),
    /// Role that is being rebuilt on the device, and number of sectors that are done.
    Rebuilding(usize, u64),
    Spare,
    /// The device had a role that another device has now.
    Stale,
    Foreign,
}

/// Returns the standing of a device in the array `of`, by the device's superblock.
pub fn standing(of: &ArraySuperblock, superblock: &ArraySuperblock, identity: MemberIdentity) -> Standing {
    if superblock.uuid != of.uuid {
        return Standing::Foreign;
    }
    match (of.role_of(identity.id), of.rebuilding) {
        (Some(role), Some(rebuild)) if rebuild.role == role => Standing::Rebuilding(role, rebuild.sectors),
        (Some(role), _) if of.failed >> role & 1 == 1 => Standing::Failed(role),
        (Some(role), _) if of.is_outdated(role, superblock.generation) => Standing::Outdated(role),
        (Some(role), _) => Standing::InUse(role),
        (None, _) if identity.role.is_none() => Standing::Spare,
        (None, _) => Standing::Stale,
    }
}

/// All devices of an array, and its newest superblock.
pub struct Devices {
    pub newest: ArraySuperblock,
    pub found: Vec<FoundMember>,
    /// The open devices and layers, and their places.
    pub parts: Parts,
}

impl Devices {
    /// Closes the devices; what was read of them stays.
    pub fn close(mut self) -> Devices {
        self.found.iter_mut().for_each(|found| found.device = None);
        self
    }

    pub fn standing(&self, found: &FoundMember) -> Option<Standing> {
        found.superblock().map(|(superblock, identity)| standing(&self.newest, superblock, identity))
    }

    /// True if a device that was found has this role, or is being filled for it.
    pub fn has(&self, role: usize) -> bool {
        self.found.iter().any(|found| match self.standing(found) {
            Some(Standing::InUse(other) | Standing::Rebuilding(other, _)) => other == role,
            _ => false,
        })
    }

    /// True for an array that can be written to without its journal: it was stopped cleanly, and each role has its member. A crash then costs
    /// no data, as the parity can be computed again.
    pub fn can_do_without_journal(&self) -> bool {
        let is_in_use =
            |role: usize| self.found.iter().any(|found| self.standing(found) == Some(Standing::InUse(role)));
        !self.newest.needs_journal() && (0..self.newest.members).all(is_in_use)
    }

    /// Members that have diverged from the others, if there are any.
    pub fn apart(&self) -> Option<Apart> {
        apart(&self.newest, self.found.iter())
    }

    pub fn by_name(&self, name: &str) -> Option<&FoundMember> {
        self.found.iter().find(|found| found.name == name)
    }

    /// The devices that hold roles of this array.
    pub fn members(&mut self) -> Vec<Option<&mut dyn BlockDevice>> {
        let newest = &self.newest;
        let has_role = |found: &FoundMember| {
            let standing =
                found.superblock().map(|(superblock, identity)| standing(newest, superblock, identity));
            use Standing::{Failed, InUse, Outdated, Rebuilding};
            matches!(standing, Some(InUse(_) | Outdated(_) | Failed(_) | Rebuilding(..)))
        };
        let members = self.found.iter_mut().filter(|found| has_role(found));
        members
            .filter_map(|found| found.device.as_mut().map(|device| Some(device as &mut dyn BlockDevice)))
            .collect()
    }
}

/// Members among these devices that have diverged from those of the newest superblock.
pub fn apart<'a>(newest: &ArraySuperblock, found: impl Iterator<Item = &'a FoundMember>) -> Option<Apart> {
    let with_role = found
        .filter_map(FoundMember::superblock)
        .filter(|(superblock, identity)| superblock.uuid == newest.uuid && identity.role.is_some());
    newest.apart(&with_role.collect::<Vec<_>>())
}

/// Returns the newest superblock of the array to which most devices with a role belong.
pub fn newest(found: &[FoundMember]) -> Option<ArraySuperblock> {
    let with_role =
        || found.iter().filter_map(FoundMember::superblock).filter(|(_, identity)| identity.role.is_some());
    let votes = |uuid: [u8; 16]| with_role().filter(|(superblock, _)| superblock.uuid == uuid).count();
    let (most, _) = with_role().max_by_key(|(superblock, _)| votes(superblock.uuid))?;
    let uuid = most.uuid;
    let of = with_role().filter(|(superblock, _)| superblock.uuid == uuid);
    ArraySuperblock::newest_of(of.map(|(superblock, _)| superblock)).cloned()
}
