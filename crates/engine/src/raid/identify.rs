//! Identifies the devices below an array: reads their superblocks, gives each role its member, and refuses other devices.

use crate::layer::{Port, PortDevice, Ports, Seat};
use crate::raid::config::RaidConfig;
use crate::raid::error::{AssembleError, Others, UnusedWhy};
use crate::raid::layout::DATA_SECTOR;
use crate::raid::members::{Members, Spare};
use crate::raid::superblock::{ArraySuperblock, ArraySuperblockError, MemberIdentity, NOBODY};

/// The result of reading all superblocks.
pub(super) struct Identified {
    pub newest: ArraySuperblock,
    pub members: Members,
    /// For each role, which copy of its superblock counts.
    pub copies: Vec<usize>,
    /// For each role, the generation that its member has; 0 where the member is missing.
    pub generations: Vec<u64>,
    /// The highest generation of all superblocks, those that do not count included.
    pub generation_max: u64,
    /// Members whose superblocks differ from the newest, a bit each.
    pub differing: u64,
    /// Members with an older content than they must have, a bit each: they are not used.
    pub outdated: u64,
}

/// A device that can be read.
struct ReadableDevice {
    port: Port,
    superblock: ArraySuperblock,
    identity: MemberIdentity,
}

type AssembleResult<T> = Result<T, AssembleError>;

pub(super) fn identify(config: &RaidConfig, below: &mut dyn Ports) -> AssembleResult<Identified> {
    let mut count = 0;
    let mut next = || {
        count += 1;
        Port(count - 1)
    };
    let mut ports =
        |places: &[bool]| -> Vec<Option<Port>> { places.iter().map(|there| there.then(&mut next)).collect() };
    let (members, places) = (ports(&config.present), ports(&config.spares));
    let (members, spares) = (read(&members, below), read(&places, below));
    let unknown = unknown(&members);
    let mut unused: Vec<(Port, usize, UnusedWhy)> = Vec::new();
    for (place, (port, spare)) in places.iter().zip(&spares).enumerate() {
        if let (Some(port), Some(Err(error))) = (port, spare) {
            unused.push((*port, place, UnusedWhy::Unknown(error.clone())));
        }
    }
    let (mut members, mut spares) = (readable(members), readable(spares));
    let uuid = match uuid_of_most(&members, &spares) {
        None if unknown.is_empty() => return Err(AssembleError::Unreadable),
        None => return Err(unknown_members(&unknown, None)),
        Some(uuid) => uuid,
    };
    let (foreign, foreign_spares) = (take_foreign(&mut members, uuid), take_foreign(&mut spares, uuid));
    unused.extend(foreign_spares.into_iter().map(|(place, port)| (port, place, UnusedWhy::Foreign)));
    let mut found = Identified::new(config, &members, &spares, places)?;
    for (port, place, why) in unused {
        found.members.add_unused(port, Seat::Spare(place), why);
    }
    for (place, device) in present(&spares) {
        found.add_spare(place, device, below)?;
    }
    // If a spare has the role, a bad or foreign superblock in the place of the member does not matter.
    let has_member = |place: usize| found.members.holder(place).is_none();
    let unknown: Vec<_> = unknown.into_iter().filter(|(place, _)| has_member(*place)).collect();
    if !unknown.is_empty() {
        return Err(unknown_members(&unknown, Some(&found.newest)));
    }
    if let Some((place, _)) = foreign.into_iter().find(|(place, _)| has_member(*place)) {
        return Err(AssembleError::Foreign(place));
    }
    for (place, device) in present(&members) {
        found.add_member(place, device)?;
    }
    Ok(found)
}

/// The devices that are there, each with its place.
fn present(devices: &[Option<ReadableDevice>]) -> impl Iterator<Item = (usize, &ReadableDevice)> {
    devices.iter().enumerate().filter_map(|(place, device)| Some((place, device.as_ref()?)))
}

/// Takes out the devices of other arrays; gives the place and the port of each.
fn take_foreign(devices: &mut [Option<ReadableDevice>], uuid: [u8; 16]) -> Vec<(usize, Port)> {
    let take = |(place, device): (usize, &mut Option<ReadableDevice>)| {
        let foreign = device.take_if(|device| device.superblock.uuid != uuid)?;
        Some((place, foreign.port))
    };
    devices.iter_mut().enumerate().filter_map(take).collect()
}

type Read = Option<Result<ReadableDevice, ArraySuperblockError>>;

/// Reads the superblocks of some devices; none where there is no device.
fn read(ports: &[Option<Port>], below: &mut dyn Ports) -> Vec<Read> {
    let mut device = |port: Port| {
        let read = ArraySuperblock::read(&mut PortDevice { ports: below, port });
        read.map(|(superblock, identity)| ReadableDevice { port, superblock, identity })
    };
    ports.iter().map(|port| port.map(&mut device)).collect()
}

/// The devices that could be read.
fn readable(devices: Vec<Read>) -> Vec<Option<ReadableDevice>> {
    devices.into_iter().map(|device| device.and_then(Result::ok)).collect()
}

/// The members on which there is something else, or nothing, and what is wrong with each.
fn unknown(members: &[Read]) -> Vec<(usize, ArraySuperblockError)> {
    let wrong = |(place, device): (usize, &Read)| match device {
        Some(Err(ArraySuperblockError::Io(_)) | Ok(_)) | None => None,
        Some(Err(error)) => Some((place, error.clone())),
    };
    members.iter().enumerate().filter_map(wrong).collect()
}

/// Names all members that cannot be used, those of which the same is wrong together.
fn unknown_members(
    unknown: &[(usize, ArraySuperblockError)],
    newest: Option<&ArraySuperblock>,
) -> AssembleError {
    let mut wrong: Vec<(ArraySuperblockError, Vec<usize>)> = Vec::new();
    for (place, error) in unknown {
        match wrong.iter_mut().find(|(other, _)| other == error) {
            Some((_, places)) => places.push(*place),
            None => wrong.push((error.clone(), vec![*place])),
        }
    }
    let others = match newest {
        None => Others::None,
        Some(newest) if unknown.len() <= newest.level.parity() => Others::MakeUp,
        Some(_) => Others::TooFew,
    };
    AssembleError::Unknown { wrong, others }
}

/// The array that most members are of. A spare that has taken a role is a member.
fn uuid_of_most(members: &[Option<ReadableDevice>], spares: &[Option<ReadableDevice>]) -> Option<[u8; 16]> {
    let taken = || spares.iter().flatten().filter(|spare| spare.identity.role.is_some());
    let voters = || members.iter().flatten().chain(taken()).map(|device| device.superblock.uuid);
    voters().max_by_key(|uuid| voters().filter(|other| other == uuid).count())
}

/// Lists the superblocks of devices with roles, and the devices' identities.
fn known<'a>(
    members: &'a [Option<ReadableDevice>],
    spares: &'a [Option<ReadableDevice>],
) -> impl Iterator<Item = (&'a ArraySuperblock, MemberIdentity)> + Clone {
    let known = members.iter().chain(spares).flatten().filter(|device| device.identity.role.is_some());
    known.map(|device| (&device.superblock, device.identity))
}

/// Refuses a description that is not of this array.
fn described(config: &RaidConfig, newest: &ArraySuperblock) -> AssembleResult<()> {
    let ArraySuperblock { level, members, strip_sectors, .. } = *newest;
    if newest.reshape.is_some() {
        return Err(AssembleError::Growing { members });
    }
    let described = (config.present.len(), config.level, config.strip_sectors);
    if described == (members, level, strip_sectors) {
        return Ok(());
    }
    let grows = described == (members + 1, level, strip_sectors);
    Err(AssembleError::Described { level, members, strip_sectors, grows })
}

impl Identified {
    /// Takes the newest superblock, which the stack file has to agree with. No device has a role yet.
    fn new(
        config: &RaidConfig,
        members: &[Option<ReadableDevice>],
        spares: &[Option<ReadableDevice>],
        places: Vec<Option<Port>>,
    ) -> AssembleResult<Identified> {
        let known: Vec<_> = known(members, spares).collect();
        let superblocks = known.iter().map(|(superblock, _)| *superblock);
        let Some(newest) = ArraySuperblock::newest_of(superblocks.clone()) else {
            return Err(AssembleError::OnlySpares);
        };
        described(config, newest)?;
        if let Some(apart) = newest.apart(&known) {
            return Err(apart.into());
        }
        Ok(Identified {
            newest: newest.clone(),
            members: Members::new(newest.members, places),
            copies: vec![0; newest.members],
            generations: vec![0; newest.members],
            generation_max: superblocks.map(|known| known.generation).max().unwrap_or(0),
            differing: 0,
            outdated: 0,
        })
    }

    /// A device is the member of a role; `place`: among the spares, if it is one of them.
    fn appoint(&mut self, role: usize, device: &ReadableDevice, place: Option<usize>) {
        self.members.appoint(role, device.port, place);
        self.copies[role] = device.identity.copy;
        self.generations[role] = device.superblock.generation;
        self.differing |= u64::from(device.superblock != self.newest) << role;
        if self.newest.is_outdated(role, device.superblock.generation) {
            self.outdated |= 1 << role;
            self.members.add_unused(device.port, Seat::Member(role), UnusedWhy::Outdated);
        }
    }

    fn add_spare(&mut self, place: usize, device: &ReadableDevice, below: &dyn Ports) -> AssembleResult<()> {
        let (sectors, needed) =
            (below.geometry(device.port).sectors, DATA_SECTOR + self.newest.member_sectors);
        let MemberIdentity { id, role, copy } = device.identity;
        if let Some(role) = self.newest.role_of(id).filter(|_| id != NOBODY) {
            if self.members.port(role).is_some() {
                return Err(AssembleError::SpareTwice(role));
            }
            self.appoint(role, device, Some(place));
        } else if sectors < needed {
            let why = UnusedWhy::TooSmall { sectors, needed };
            self.members.add_unused(device.port, Seat::Spare(place), why);
        } else if role.is_none() {
            if self.members.has_id(id) {
                return Err(AssembleError::NamedTwice(place));
            }
            self.members.add_spare(Spare { port: device.port, id, copy, seat: Seat::Spare(place) });
        } else {
            self.members.add_unused(device.port, Seat::Spare(place), UnusedWhy::WasMember);
        }
        Ok(())
    }

    fn add_member(&mut self, place: usize, device: &ReadableDevice) -> AssembleResult<()> {
        let MemberIdentity { id, role, copy } = device.identity;
        match (self.newest.role_of(id).filter(|_| id != NOBODY), self.members.holder(place)) {
            (Some(role), None) if role == place => self.appoint(role, device, None),
            (Some(role), Some(spare)) if role == place => {
                return Err(AssembleError::MemberAndSpare { member: place, spare });
            }
            (Some(role), _) => {
                return Err(AssembleError::OtherRole { place, role });
            }
            // It was added in the place of the member that has failed, or of a spare that had its role, and was not given that before a
            // crash. The crash explorer found the latter.
            (None, _) if role.is_none() && self.newest.has_failed(place) => {
                self.members.add_spare(Spare { port: device.port, id, copy, seat: Seat::Member(place) });
            }
            // A spare has taken its place.
            (None, Some(_)) => {}
            // The role has nobody, with or without this one.
            (None, None) if role.is_some() && self.newest.has_failed(place) => {
                self.members.add_unused(device.port, Seat::Member(place), UnusedWhy::OutOfDate);
            }
            (None, _) if role.is_none() => {
                return Err(AssembleError::IsSpare(place));
            }
            (None, _) => {
                return Err(AssembleError::OutOfDate(place));
            }
        }
        Ok(())
    }
}
