//! Identifies the devices below an array: reads their superblocks, gives each role its member, and refuses other devices.

use crate::SECTOR_BYTES;
use crate::layer::{ActivateError, Port, PortDevice, Ports, Seat};
use crate::raid::config::RaidConfig;
use crate::raid::layout::DATA_SECTOR;
use crate::raid::members::{Members, Spare, members_named};
use crate::raid::superblock::{Identity, NOBODY, Superblock, SuperblockError};

/// The result of reading all superblocks.
pub(super) struct Identified {
    pub newest: Superblock,
    pub members: Members,
    /// For each role, which copy of its superblock counts.
    pub copies: Vec<usize>,
    /// For each of them, the generation that it has itself; 0 where nobody is.
    pub generations: Vec<u64>,
    /// The highest of them all, and of those that do not count.
    pub generation_max: u64,
    /// Those of them that do not say the same as the newest, a bit each.
    pub differing: u64,
    /// Members with an older content than they must have, a bit each: they are not used.
    pub outdated: u64,
}

/// A device that can be read.
struct Device {
    port: Port,
    superblock: Superblock,
    identity: Identity,
}

type Refusal<T> = Result<T, ActivateError>;

fn refuse<T>(why: impl Into<String>) -> Refusal<T> {
    Err(ActivateError(why.into()))
}

pub(super) fn identify(config: &RaidConfig, below: &mut dyn Ports) -> Refusal<Identified> {
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
    let mut unusable: Vec<(Port, String)> = Vec::new();
    for (place, (port, spare)) in places.iter().zip(&spares).enumerate() {
        if let (Some(port), Some(Err(error))) = (port, spare) {
            unusable.push((*port, unused(place, &format!("{error}; \"dcd array add\" makes it a spare"))));
        }
    }
    let (mut members, mut spares) = (readable(members), readable(spares));
    let uuid = match uuid_of_most(&members, &spares) {
        None if unknown.is_empty() => return refuse("none of its members can be read"),
        None => return refuse_unknown(&unknown, None),
        Some(uuid) => uuid,
    };
    let (foreign, foreign_spares) = (take_foreign(&mut members, uuid), take_foreign(&mut spares, uuid));
    for (place, port) in foreign_spares {
        let why = "it belongs to another array; if nothing on it is needed, make it a spare of this one with \"dcd array add --force\"";
        unusable.push((port, unused(place, why)));
    }
    let mut found = Identified::new(config, &members, &spares, places)?;
    unusable.into_iter().for_each(|(port, why)| found.members.add_unusable(port, why));
    for (place, device) in present(&spares) {
        found.add_spare(place, device, below)?;
    }
    // If a spare has the role, the content of the device in the place of the member does not matter.
    let has_member = |place: usize| found.members.holder(place).is_none();
    let unknown: Vec<_> = unknown.into_iter().filter(|(place, _)| has_member(*place)).collect();
    if !unknown.is_empty() {
        return refuse_unknown(&unknown, Some(&found.newest));
    }
    if let Some((place, _)) = foreign.into_iter().find(|(place, _)| has_member(*place)) {
        return refuse(format!(
            "member {place} belongs to another array than most of its members: name the right device; if that is gone for good, and \
             nothing on this one is needed, it gets the place with \"dcd array add --force STACK-FILE NAME\""
        ));
    }
    for (place, device) in present(&members) {
        found.add_member(place, device)?;
    }
    Ok(found)
}

/// The devices that are there, each with its place.
fn present(devices: &[Option<Device>]) -> impl Iterator<Item = (usize, &Device)> {
    devices.iter().enumerate().filter_map(|(place, device)| Some((place, device.as_ref()?)))
}

/// Takes out the devices of other arrays; gives the place and the port of each.
fn take_foreign(devices: &mut [Option<Device>], uuid: [u8; 16]) -> Vec<(usize, Port)> {
    let take = |(place, device): (usize, &mut Option<Device>)| {
        let foreign = device.take_if(|device| device.superblock.uuid != uuid)?;
        Some((place, foreign.port))
    };
    devices.iter_mut().enumerate().filter_map(take).collect()
}

type Read = Option<Result<Device, SuperblockError>>;

/// Reads the superblocks of some devices; none where there is no device.
fn read(ports: &[Option<Port>], below: &mut dyn Ports) -> Vec<Read> {
    let mut device = |port: Port| {
        let read = Superblock::read(&mut PortDevice { ports: below, port });
        read.map(|(superblock, identity)| Device { port, superblock, identity })
    };
    ports.iter().map(|port| port.map(&mut device)).collect()
}

/// The devices that could be read.
fn readable(devices: Vec<Read>) -> Vec<Option<Device>> {
    devices.into_iter().map(|device| device.and_then(Result::ok)).collect()
}

/// The members on which there is something else, or nothing, and what is wrong with each.
fn unknown(members: &[Read]) -> Vec<(usize, SuperblockError)> {
    let wrong = |(place, device): (usize, &Read)| match device {
        Some(Err(SuperblockError::Io(_)) | Ok(_)) | None => None,
        Some(Err(error)) => Some((place, error.clone())),
    };
    members.iter().enumerate().filter_map(wrong).collect()
}

/// Names all members that cannot be used, those of which the same is wrong together.
fn refuse_unknown<T>(unknown: &[(usize, SuperblockError)], newest: Option<&Superblock>) -> Refusal<T> {
    let mut wrong: Vec<(&SuperblockError, Vec<usize>)> = Vec::new();
    for (place, error) in unknown {
        match wrong.iter_mut().find(|(other, _)| *other == error) {
            Some((_, places)) => places.push(*place),
            None => wrong.push((error, vec![*place])),
        }
    }
    let why: Vec<String> =
        wrong.iter().map(|(error, places)| format!("{}: {error}", members_named(places))).collect();
    let advice = match newest {
        None => "make the array with \"dcd array create\"",
        Some(newest) if unknown.len() <= newest.level.parity() => {
            "a new device in the place of a member that is gone for good gets that with \"dcd array add STACK-FILE NAME\""
        }
        Some(_) => "name the right devices",
    };
    refuse(format!("{}; {advice}", why.join("; ")))
}

/// The array that most members are of. A spare that has taken a role is a member.
fn uuid_of_most(members: &[Option<Device>], spares: &[Option<Device>]) -> Option<[u8; 16]> {
    let taken = || spares.iter().flatten().filter(|spare| spare.identity.role.is_some());
    let voters = || members.iter().flatten().chain(taken()).map(|device| device.superblock.uuid);
    voters().max_by_key(|uuid| voters().filter(|other| other == uuid).count())
}

/// The text about a spare that is not used.
fn unused(place: usize, why: &str) -> String {
    format!("spare {place} is not used: {why}")
}

/// The superblocks of devices with roles, and who they are.
fn known<'a>(
    members: &'a [Option<Device>],
    spares: &'a [Option<Device>],
) -> impl Iterator<Item = (&'a Superblock, Identity)> + Clone {
    let known = members.iter().chain(spares).flatten().filter(|device| device.identity.role.is_some());
    known.map(|device| (&device.superblock, device.identity))
}

/// Refuses a description that is not of this array.
fn described(config: &RaidConfig, newest: &Superblock) -> Refusal<()> {
    if newest.reshape.is_some() {
        return refuse(format!(
            "it is growing to {} members: name them all in \"of\", and let \"dcd array grow\" go on; until that is done it cannot \
             be served",
            newest.members
        ));
    }
    let described = (config.present.len(), config.level, config.strip_sectors);
    if described == (newest.members, newest.level, newest.strip_sectors) {
        return Ok(());
    }
    let more = if described == (newest.members + 1, newest.level, newest.strip_sectors) {
        "; \"dcd array grow\" takes one more, named last"
    } else {
        ""
    };
    refuse(format!(
        "it was made with level {}, {} members and strips of {} KiB: describe it so{more}",
        newest.level.name(),
        newest.members,
        newest.strip_sectors * SECTOR_BYTES / 1024
    ))
}

impl Identified {
    /// Takes the newest superblock, which the stack file has to agree with. No device has a role yet.
    fn new(
        config: &RaidConfig,
        members: &[Option<Device>],
        spares: &[Option<Device>],
        places: Vec<Option<Port>>,
    ) -> Refusal<Identified> {
        let known: Vec<_> = known(members, spares).collect();
        let superblocks = known.iter().map(|(superblock, _)| *superblock);
        let Some(newest) = Superblock::newest_of(superblocks.clone()) else {
            return refuse(
                "all of its members are spares: name the members in \"of\", and spares in \"spares\"",
            );
        };
        described(config, newest)?;
        if let Some(apart) = newest.apart(&known) {
            return refuse(apart.to_string());
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
    fn appoint(&mut self, role: usize, device: &Device, place: Option<usize>) {
        self.members.appoint(role, device.port, place);
        self.copies[role] = device.identity.copy;
        self.generations[role] = device.superblock.generation;
        self.differing |= u64::from(device.superblock != self.newest) << role;
        if self.newest.is_outdated(role, device.superblock.generation) {
            self.outdated |= 1 << role;
            let why = format!(
                "member {role} has an older content than the others know it to have had, as from an image or a copy of it: it is not \
                 used. Take it out with \"dcd array remove\", and add it again"
            );
            self.members.add_unusable(device.port, why);
        }
    }

    fn add_spare(&mut self, place: usize, device: &Device, below: &dyn Ports) -> Refusal<()> {
        let (sectors, needed) =
            (below.geometry(device.port).sectors, DATA_SECTOR + self.newest.member_sectors);
        let Identity { id, role, copy } = device.identity;
        if let Some(role) = self.newest.role_of(id).filter(|_| id != NOBODY) {
            if self.members.port(role).is_some() {
                return refuse(format!("two spares are the same member {role}: name each device once"));
            }
            self.appoint(role, device, Some(place));
        } else if sectors < needed {
            let why = format!("it has {sectors} sectors, and each member has {needed}: name a larger device");
            self.members.add_unusable(device.port, unused(place, &why));
        } else if role.is_none() {
            if self.members.has_id(id) {
                return refuse(format!("spare {place} is named twice: name each device once"));
            }
            self.members.add_spare(Spare { port: device.port, id, copy, seat: Seat::Spare(place) });
        } else {
            let why = "it was a member and is out of date: add it again with \"dcd array add\"";
            self.members.add_unusable(device.port, unused(place, why));
        }
        Ok(())
    }

    fn add_member(&mut self, place: usize, device: &Device) -> Refusal<()> {
        let Identity { id, role, copy } = device.identity;
        match (self.newest.role_of(id).filter(|_| id != NOBODY), self.members.holder(place)) {
            (Some(role), None) if role == place => self.appoint(role, device, None),
            (Some(role), Some(spare)) if role == place => {
                return refuse(format!("member {place} and spare {spare} are one device: name it once"));
            }
            (Some(role), _) => {
                return refuse(format!(
                    "member {place} has the role {role}: put the members in the order in which they were"
                ));
            }
            // It was added in the place of the member that has failed, or of a spare that had its role, and was not given that before a
            // crash. The crash explorer found the latter.
            (None, _) if role.is_none() && self.newest.has_failed(place) => {
                self.members.add_spare(Spare { port: device.port, id, copy, seat: Seat::Member(place) });
            }
            // A spare has taken its place.
            (None, Some(_)) => {}
            // The role has nobody, with or without this one.
            (None, None) if role.is_some() && self.newest.has_failed(place) => self.members.add_unusable(
                device.port,
                format!(
                    "member {place} is out of date: another device had taken its role, and is not there, or the array went on without it. \
                     It is not used. Take it out with \"dcd array remove\", and add it again"
                ),
            ),
            (None, _) if role.is_none() => {
                return refuse(format!(
                    "member {place} is a spare: name it in \"spares\", and not in \"of\""
                ));
            }
            (None, _) => {
                return refuse(format!(
                    "member {place} is out of date: another device has taken its role, or the array went on without it. Name the one \
                     that has the role in its place, or \"missing\"; to use this one again, add it with \"dcd array add\""
                ));
            }
        }
        Ok(())
    }
}
