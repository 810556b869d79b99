//! Devices that come and go while the array is served.
//!
//! A member that was away, and of which it is known what it has missed (`away`), gets its role again as it is.
//!
//! What was on any other device before is no superblock any more when it gets its own, and only then it is a spare: a crash leaves it
//! without one, or a spare. Who takes a role is recorded afterwards, as for every spare.
//!
//! A device that leaves has failed, or is a spare. Nothing on it is changed: the superblocks of the others say what it is.

use crate::layer::{Geometry, IoResult, Outbox, Port, Seat};
use crate::raid::array::{Array, Flight};
use crate::raid::members::Spare;
use crate::raid::superblock::{
    COPY_SECTORS, DATA_SECTOR, Identity, NOBODY, SUPERBLOCK_BYTES, Superblock, SuperblockError,
};
use crate::{Buf, Durability, Io, IoError};

/// A device that is being made a spare, or comes back.
pub(super) struct Joining {
    spare: Spare,
    phase: Phase,
    /// Commands that have not returned.
    left: u32,
    failed: Option<IoError>,
    /// What was on it, copy by copy, as far as it was a superblock.
    copies: [Result<(Superblock, Identity), SuperblockError>; 2],
    /// What it was.
    was: Option<(Superblock, Identity)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The superblocks of the members do not say yet who has failed: it may be one of those.
    Waiting,
    /// It is being flushed: a killed server may have left the superblock that counts in its cache, and the next one goes over the other.
    Flushing,
    /// Its superblocks are being read.
    Looking,
    /// It gets the role that it had, as soon as that may be, or is made a spare.
    Known,
    /// The old superblocks are being wiped.
    Wiping,
    /// Its own superblock is being written.
    Naming,
}

impl Phase {
    /// Nothing has been written to the device.
    const fn is_untouched(self) -> bool {
        matches!(self, Phase::Waiting | Phase::Flushing | Phase::Looking | Phase::Known)
    }
}

impl Array {
    /// Begins to make a device a spare, or to take a member back.
    pub fn join(&mut self, port: Port, geometry: Geometry, seat: Seat, id: u64) -> Result<(), String> {
        self.may_join(&geometry, id)?;
        self.take_seat(seat, port)?;
        self.recorder.tell();
        let spare = Spare { port, id, copy: 0, seat };
        let copies = [Err(SuperblockError::NoMagic), Err(SuperblockError::NoMagic)];
        self.joining.push(Joining { spare, phase: Phase::Waiting, left: 0, failed: None, copies, was: None });
        Ok(())
    }

    /// Goes on with the devices that had to wait.
    pub fn go_on_joining(&mut self, out: &mut Outbox) {
        if self.broken {
            return self.give_up_joining();
        }
        if self.owes_superblocks() {
            return;
        }
        for index in (0..self.joining.len()).rev() {
            match self.joining[index].phase {
                Phase::Waiting => self.flush_device(index, out),
                Phase::Known => match self.returning(&self.joining[index]) {
                    Some(role) => self.take_back(index, role, out),
                    None => self.wipe(index, out),
                },
                Phase::Flushing | Phase::Looking | Phase::Wiping | Phase::Naming => {}
            }
        }
    }

    fn flush_device(&mut self, index: usize, out: &mut Outbox) {
        let joining = &mut self.joining[index];
        (joining.phase, joining.left) = (Phase::Flushing, 1);
        let port = joining.spare.port;
        self.submit_to(port, 0, Flight::Join { port, copy: 0 }, Io::Flush, out);
    }

    fn look_at_device(&mut self, index: usize, out: &mut Outbox) {
        let joining = &mut self.joining[index];
        (joining.phase, joining.left) = (Phase::Looking, COPY_SECTORS.len() as u32);
        let port = joining.spare.port;
        for (copy, at) in COPY_SECTORS.into_iter().enumerate() {
            let buf = Buf::zeroed(SUPERBLOCK_BYTES);
            self.submit_to(port, 0, Flight::Join { port, copy }, Io::Read { at, buf }, out);
        }
    }

    fn wipe(&mut self, index: usize, out: &mut Outbox) {
        let joining = &mut self.joining[index];
        (joining.phase, joining.left, joining.was) = (Phase::Wiping, COPY_SECTORS.len() as u32, None);
        let port = joining.spare.port;
        for (copy, at) in COPY_SECTORS.into_iter().enumerate() {
            let buf = Buf::zeroed(SUPERBLOCK_BYTES);
            let io = Io::Write { at, buf, durability: Durability::Durable };
            self.submit_to(port, 0, Flight::Join { port, copy }, io, out);
        }
    }

    /// The role that a device had, if it may have that again.
    fn returning(&self, joining: &Joining) -> Option<usize> {
        let (superblock, identity) = joining.was.as_ref()?;
        let role = self.recorder.returns(superblock, *identity)?;
        let fits = match joining.spare.seat {
            Seat::Member(seat) => seat == role,
            Seat::Spare(_) => true,
        };
        fits.then_some(role)
    }

    /// A member that was away waits to have its role again.
    pub fn is_awaited(&self, role: usize) -> bool {
        self.joining.iter().any(|joining| self.returning(joining) == Some(role))
    }

    /// Gives a member that was away its role again, as soon as no other one is being rebuilt and nothing is under way there any more.
    fn take_back(&mut self, index: usize, role: usize, out: &mut Outbox) {
        let is_ready = self.recorder.rebuilding().is_none()
            && self.recorder.in_doubt().is_empty()
            && self.commands_under_way(role) == 0;
        if !is_ready {
            return;
        }
        let Joining { spare, was, .. } = self.joining.remove(index);
        let (superblock, identity) = was.expect("it was looked at");
        self.ports[role] = Some(spare.port);
        self.holders[role] = place(spare.seat);
        self.statistics.members_returned += 1;
        self.recorder.come_back(role, identity.copy, superblock.generation);
        self.record(out);
    }

    /// Nothing will be recorded any more that devices wait for.
    fn give_up_joining(&mut self) {
        let joining = std::mem::take(&mut self.joining);
        let gives_up = |joining: &Joining| joining.phase.is_untouched() && joining.left == 0;
        let (waiting, begun) = joining.into_iter().partition(gives_up);
        self.joining = begun;
        for Joining { spare: Spare { port, seat, .. }, .. } in waiting {
            self.unusable.push((
                port,
                format!("{seat} could not be made a spare: the array takes no writes any more"),
            ));
        }
    }

    fn may_join(&self, geometry: &Geometry, id: u64) -> Result<(), String> {
        let needed = self.sectors_needed();
        let blocks = self.geometry.logical_block_bytes;
        if self.broken || self.stopped || self.geometry.read_only {
            Err("the array takes no writes".to_owned())
        } else if geometry.read_only {
            Err("the device cannot be written".to_owned())
        } else if geometry.sectors < needed {
            Err(format!("the device has {} sectors, and each member has {needed}", geometry.sectors))
        } else if geometry.logical_block_bytes > blocks {
            Err(format!(
                "the device has logical blocks of {} bytes, and the array promises its clients {blocks}: stop the server, add it, \
                 and serve it again",
                geometry.logical_block_bytes
            ))
        } else if id == NOBODY || self.is_taken(id) {
            Err(format!("the id {id:#x} is taken, or reserved: draw another one"))
        } else {
            Ok(())
        }
    }

    /// Gives a device its place, if that is free.
    fn take_seat(&mut self, seat: Seat, port: Port) -> Result<(), String> {
        match seat {
            Seat::Spare(place) => {
                let known = self.spare_places.len();
                if place > known {
                    return Err(format!("it knows {known} spares: name new ones behind them in \"spares\""));
                }
                if self.spare_places.get(place).is_some_and(Option::is_some) {
                    return Err(format!("spare {place} is there already: \"dcd array remove\" makes room"));
                }
                self.spare_places.resize(known.max(place + 1), None);
                self.spare_places[place] = Some(port);
            }
            Seat::Member(role) => {
                let members = self.ports.len();
                if role >= members {
                    return Err(format!("there is no member {role}: they are 0 to {}", members - 1));
                }
                let waits = self.spares.iter().any(|spare| spare.seat == seat);
                if !self.is_failed(role) || waits || self.is_joining(seat) {
                    return Err(format!("member {role} has not failed, or has a new device already"));
                }
                if self.ports[role].is_some() {
                    return Err(format!(
                        "the device of member {role} is in its place still: \"dcd array remove\" first"
                    ));
                }
            }
        }
        Ok(())
    }

    fn is_taken(&self, id: u64) -> bool {
        let joining = self.joining.iter().map(|joining| &joining.spare);
        self.recorder.knows(id) || self.spares.iter().chain(joining).any(|spare| spare.id == id)
    }

    /// What a member has to have at least.
    pub fn sectors_needed(&self) -> u64 {
        DATA_SECTOR + self.recorder.recorded().member_sectors
    }

    /// A device is being made a spare there.
    pub fn is_joining(&self, seat: Seat) -> bool {
        self.joining.iter().any(|joining| joining.spare.seat == seat)
    }

    /// The places among the spares of the devices that wait for a member to fail.
    pub fn waiting_places(&self) -> Vec<usize> {
        self.spares.iter().filter_map(|spare| place(spare.seat)).collect()
    }

    /// The places among the spares of the devices that are being made spares.
    pub fn joining_places(&self) -> Vec<usize> {
        self.joining.iter().filter_map(|joining| place(joining.spare.seat)).collect()
    }

    /// The roles that have a new device, which has not got them yet.
    pub fn joining_roles(&self) -> Vec<usize> {
        let joining = self.joining.iter().map(|joining| &joining.spare);
        let role = |spare: &Spare| match spare.seat {
            Seat::Member(role) => Some(role),
            Seat::Spare(_) => None,
        };
        self.spares.iter().chain(joining).filter_map(role).collect()
    }

    /// A copy of the superblock of a device has been read.
    fn looked(&mut self, index: usize, copy: usize, result: &IoResult) {
        let joining = &mut self.joining[index];
        joining.left -= 1;
        if let Err(error) = result.status {
            joining.copies[copy] = Err(SuperblockError::Io(error));
        } else {
            joining.copies[copy] = Superblock::decode(result.buf.bytes(), copy);
        }
        if joining.left == 0 {
            let [first, second] = joining.copies.clone();
            joining.was = Superblock::newer(first, second).ok();
            joining.phase = Phase::Known;
        }
    }

    pub fn join_returned(&mut self, port: Port, copy: usize, result: IoResult, out: &mut Outbox) {
        let index = self.joining.iter().position(|joining| joining.spare.port == port);
        let index = index.expect("it waits for its commands");
        if self.joining[index].phase == Phase::Looking {
            return self.looked(index, copy, &result);
        }
        let joining = &mut self.joining[index];
        joining.left -= 1;
        joining.failed = joining.failed.or(result.status.err());
        if joining.left > 0 {
            return;
        }
        let spare = joining.spare;
        if let Some(error) = joining.failed {
            self.joining.remove(index);
            let seat = spare.seat;
            let why = format!(
                "{seat} could not be made a spare ({error}): take it out with \"dcd array remove\", check it, and add it again"
            );
            self.unusable.push((port, why));
        } else if joining.phase == Phase::Flushing {
            self.look_at_device(index, out);
        } else if joining.phase == Phase::Naming {
            self.joining.remove(index);
            self.spares.push(spare);
        } else {
            (joining.phase, joining.left) = (Phase::Naming, 1);
            // Over the copy that is not the one of this number.
            let identity = Identity { id: spare.id, role: None, copy: 1 - spare.copy };
            let io = self.recorder.recorded().write(identity);
            self.submit_to(port, 0, Flight::Join { port, copy: 0 }, io, out);
        }
    }

    /// The device of a member that has failed cannot be let go of yet. Without a word about it in the superblocks of the others, a start
    /// after a crash would look for it.
    pub fn is_held(&self, role: usize) -> bool {
        let known = self.recorder.recorded().failed >> role & 1 == 1;
        self.is_failed(role) && (!known || self.commands_under_way(role) > 0)
    }

    /// Lets go of a device, so that it can be closed.
    pub fn leave(&mut self, port: Port) -> Result<(), String> {
        if let Some(joining) = self.joining.iter().find(|joining| joining.spare.port == port) {
            return Err(format!("{} is being made a spare: wait for that", joining.spare.seat));
        }
        if self.journal.as_ref().is_some_and(|journal| journal.port() == port) {
            return Err("it is the journal, and in use".to_owned());
        }
        if let Some(role) = self.ports.iter().position(|other| *other == Some(port)) {
            if self.is_in_use(role) {
                let is = if self.is_failed(role) { "is being filled" } else { "in use" };
                return Err(format!(
                    "it is member {role}, and {is}: \"dcd array fail\" first, if it can be spared"
                ));
            }
            if self.is_held(role) {
                self.recorder.tell();
                return Err(format!(
                    "commands to member {role} have not returned yet, or it is not recorded that it has failed: try again"
                ));
            }
            (self.ports[role], self.holders[role]) = (None, None);
        }
        self.spares.retain(|spare| spare.port != port);
        self.unusable.retain(|(other, _)| *other != port);
        for place in &mut self.spare_places {
            *place = place.filter(|other| *other != port);
        }
        while self.spare_places.last().is_some_and(Option::is_none) {
            self.spare_places.pop();
        }
        Ok(())
    }
}

const fn place(seat: Seat) -> Option<usize> {
    match seat {
        Seat::Spare(place) => Some(place),
        Seat::Member(_) => None,
    }
}
