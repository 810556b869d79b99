//! Who the devices below an array are: reads their superblocks, gives each role its member, and refuses what does not belong.

use crate::SECTOR_BYTES;
use crate::layer::{ActivateError, Port, PortDevice, Ports, Seat};
use crate::raid::config::RaidConfig;
use crate::raid::members::{Spare, members_named};
use crate::raid::superblock::{DATA_SECTOR, Identity, NOBODY, Superblock, SuperblockError};

/// What the superblocks say together.
pub(super) struct Found {
    pub newest: Superblock,
    /// Where the member of each role is, if it can be read.
    pub ports: Vec<Option<Port>>,
    /// For each of them, which copy of its superblock counts.
    pub copies: Vec<usize>,
    /// For each of them, the generation that it has itself; 0 where nobody is.
    pub generations: Vec<u64>,
    /// The highest of them all, and of those that do not count.
    pub generation_max: u64,
    /// Those of them that do not say the same as the newest, a bit each.
    pub differing: u64,
    /// Members with an older content than they must have, a bit each: they are not used.
    pub outdated: u64,
    /// For each role that a spare has taken, which one.
    pub holders: Vec<Option<usize>>,
    /// Devices that wait for a member to fail.
    pub spares: Vec<Spare>,
    /// Spares that cannot be used, and why.
    pub unusable: Vec<(Port, String)>,
    /// For each place among the spares, the device there.
    pub places: Vec<Option<Port>>,
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

pub(super) fn identify(config: &RaidConfig, below: &mut dyn Ports) -> Refusal<Found> {
    let mut count = 0;
    let mut next = || {
        count += 1;
        Port(count - 1)
    };
    let members: Vec<Option<Port>> = config.present.iter().map(|present| present.then(&mut next)).collect();
    let spares: Vec<Option<Port>> = (0..config.spares).map(|_| Some(next())).collect();
    let places = spares.clone();
    let (members, on_spares) = (read(&members, below), read(&spares, below));
    refuse_unknown(&members)?;
    let members = readable(members);
    let mut unusable = Vec::new();
    for (place, (port, on_spare)) in spares.iter().zip(&on_spares).enumerate() {
        if let (Some(port), Some(Err(error))) = (port, on_spare) {
            unusable.push((*port, unused(place, &format!("{error}; \"dcd array add\" makes it a spare"))));
        }
    }
    let mut spares = readable(on_spares);
    let newest = newest(&members, &spares)?;
    for (place, spare) in spares.iter_mut().enumerate() {
        if let Some(foreign) = spare.take_if(|spare| spare.superblock.uuid != newest.uuid) {
            let why = "it belongs to another array; if nothing on it is needed, make it a spare of this one with \"dcd array add --force\"";
            unusable.push((foreign.port, unused(place, why)));
        }
    }
    described(config, &newest)?;
    if let Some(apart) = newest.apart(&known(&members, &spares).collect::<Vec<_>>()) {
        return refuse(apart.to_string());
    }
    let mut found = Found {
        ports: vec![None; newest.members],
        copies: vec![0; newest.members],
        generations: vec![0; newest.members],
        generation_max: known(&members, &spares).map(|(known, _)| known.generation).max().unwrap_or(0),
        differing: 0,
        outdated: 0,
        holders: vec![None; newest.members],
        spares: Vec::new(),
        unusable,
        places,
        newest,
    };
    for (place, device) in spares.iter().enumerate() {
        if let Some(device) = device {
            found.add_spare(place, device, below)?;
        }
    }
    for (place, device) in members.iter().enumerate() {
        if let Some(device) = device {
            found.add_member(place, device)?;
        }
    }
    Ok(found)
}

type Read = Option<Result<Device, SuperblockError>>;

/// What is on some devices; none where there is no device.
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

/// Refuses members on which there is something else, or nothing: names all of them.
fn refuse_unknown(members: &[Read]) -> Refusal<()> {
    let mut wrong: Vec<(&SuperblockError, Vec<usize>)> = Vec::new();
    for (place, device) in members.iter().enumerate() {
        let Some(Err(error)) = device else { continue };
        match wrong.iter_mut().find(|(other, _)| *other == error) {
            _ if matches!(error, SuperblockError::Io(_)) => {}
            Some((_, places)) => places.push(place),
            None => wrong.push((error, vec![place])),
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    let count: usize = wrong.iter().map(|(_, places)| places.len()).sum();
    let why: Vec<String> =
        wrong.iter().map(|(error, places)| format!("{}: {error}", members_named(places))).collect();
    let known = members.iter().flatten().flatten().next();
    let advice = match known {
        None => "make the array with \"dcd array create\"",
        Some(device) if count <= device.superblock.level.parity() => {
            "a new device in the place of a member that is gone for good gets that with \"dcd array add STACK-FILE NAME\""
        }
        Some(_) => "name the right devices",
    };
    refuse(format!("{}; {advice}", why.join("; ")))
}

/// The newest superblock of the array that most members are of. What a spare says counts where it has a role.
fn newest(members: &[Option<Device>], spares: &[Option<Device>]) -> Refusal<Superblock> {
    let of = |device: &Device| device.superblock.uuid;
    // A spare that has taken a role is a member.
    let taken = || spares.iter().flatten().filter(|spare| spare.identity.role.is_some());
    let voters = || members.iter().flatten().chain(taken());
    let votes = |device: &&Device| voters().filter(|other| of(other) == of(device)).count();
    let Some(most) = voters().max_by_key(votes) else {
        return refuse("none of its members can be read");
    };
    let uuid = of(most);
    let foreign = |device: &Option<Device>| device.as_ref().is_some_and(|device| of(device) != uuid);
    if let Some(place) = members.iter().position(foreign) {
        return refuse(format!(
            "member {place} belongs to another array than most of its members: name the right device; if that is gone for good, and \
             nothing on this one is needed, it gets the place with \"dcd array add --force STACK-FILE NAME\""
        ));
    }
    let of_this = known(members, spares).map(|(superblock, _)| superblock).filter(|found| found.uuid == uuid);
    match Superblock::newest_of(of_this) {
        Some(newest) => Ok(newest.clone()),
        None => refuse("all of its members are spares: name the members in \"of\", and spares in \"spares\""),
    }
}

/// What is told of a spare that is not used.
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
    refuse(format!(
        "it was made with level {}, {} members and strips of {} KiB: describe it so",
        newest.level.name(),
        newest.members,
        newest.strip_sectors * SECTOR_BYTES / 1024
    ))
}

impl Found {
    fn seat(&mut self, role: usize, device: &Device) {
        self.ports[role] = Some(device.port);
        self.copies[role] = device.identity.copy;
        self.generations[role] = device.superblock.generation;
        self.differing |= u64::from(device.superblock != self.newest) << role;
        if self.newest.is_outdated(role, device.superblock.generation) {
            self.outdated |= 1 << role;
            let why = format!(
                "member {role} has an older content than the others know it to have had, as from an image or a copy of it: it is not \
                 used. Take it out with \"dcd array remove\", and add it again"
            );
            self.unusable.push((device.port, why));
        }
    }

    fn add_spare(&mut self, place: usize, device: &Device, below: &dyn Ports) -> Refusal<()> {
        let (sectors, needed) =
            (below.geometry(device.port).sectors, DATA_SECTOR + self.newest.member_sectors);
        let Identity { id, role, copy } = device.identity;
        if let Some(role) = self.newest.role_of(id).filter(|_| id != NOBODY) {
            if self.ports[role].is_some() {
                return refuse(format!("two spares are the same member {role}: name each device once"));
            }
            self.seat(role, device);
            self.holders[role] = Some(place);
        } else if sectors < needed {
            let why = format!("it has {sectors} sectors, and each member has {needed}: name a larger device");
            self.unusable.push((device.port, unused(place, &why)));
        } else if role.is_none() {
            if self.spares.iter().any(|spare| spare.id == id) {
                return refuse(format!("spare {place} is named twice: name each device once"));
            }
            self.spares.push(Spare { port: device.port, id, copy, seat: Seat::Spare(place) });
        } else {
            let why = "it was a member and is out of date: add it again with \"dcd array add\"";
            self.unusable.push((device.port, unused(place, why)));
        }
        Ok(())
    }

    fn add_member(&mut self, place: usize, device: &Device) -> Refusal<()> {
        let Identity { id, role, copy } = device.identity;
        match (self.newest.role_of(id).filter(|_| id != NOBODY), self.holders[place]) {
            (Some(role), None) if role == place => self.seat(role, device),
            (Some(role), Some(spare)) if role == place => {
                return refuse(format!("member {place} and spare {spare} are one device: name it once"));
            }
            (Some(role), _) => {
                return refuse(format!(
                    "member {place} has the role {role}: put the members in the order in which they were"
                ));
            }
            // It has failed, and a spare has taken its place.
            (None, Some(_)) if role == Some(place) => {}
            // It was added in the place of the member that has failed, or of a spare that had its role, and was not given that before a
            // crash. The crash explorer found the latter.
            (None, _) if role.is_none() && self.newest.failed >> place & 1 == 1 => {
                self.spares.push(Spare { port: device.port, id, copy, seat: Seat::Member(place) });
            }
            (None, _) if role.is_none() => {
                return refuse(format!(
                    "member {place} is a spare: name it in \"spares\", and not in \"of\""
                ));
            }
            (None, _) => {
                return refuse(format!(
                    "member {place} is out of date: another device has taken its role. Name that one in its place, or \"missing\"; \
                     to use this one again, add it as a spare with \"dcd array add\""
                ));
            }
        }
        Ok(())
    }
}
