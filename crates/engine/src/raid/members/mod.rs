//! The devices of an array: the member of each role, the spares, and those that join while the array is served.
//!
//! [`Members`] alone knows where devices are; the superblocks (`record`) name the failed members. Its promises:
//!
//! - A place among the spares belongs to its device until that leaves, also after the device has taken a role.
//! - A device that joins is a spare only after a superblock of its own that says so is durable on it. Until then nothing else is
//!   written to it than zeroes over old superblocks.
//! - A role gets another device only by [`Members::appoint`].
//! - A spare that was added in the place of a member gets that role and no other.

mod joining;

use crate::layer::{CommandError, Io, IoResult, Port, Seat};
use crate::raid::error::{Unused, UnusedWhy};
use crate::raid::status::DevicesStatus;
use crate::raid::superblock::{Identity, Superblock};
use joining::{Joining, Outcome};

/// A device that waits for a member to fail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spare {
    pub port: Port,
    pub id: u64,
    /// The copy of its superblock that counts.
    pub copy: usize,
    pub seat: Seat,
}

impl Spare {
    /// The place among the spares.
    pub const fn place(&self) -> Option<usize> {
        match self.seat {
            Seat::Spare(place) => Some(place),
            Seat::Member(_) => None,
        }
    }

    /// The member in whose place it was added.
    const fn role(&self) -> Option<usize> {
        match self.seat {
            Seat::Spare(_) => None,
            Seat::Member(role) => Some(role),
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Members {
    /// The port of each role's member; none where it is missing.
    ports: Vec<Option<Port>>,
    /// For each role that a spare has taken, the place of that among the spares.
    holders: Vec<Option<usize>>,
    /// For each place among the spares, the device there.
    places: Vec<Option<Port>>,
    spares: Vec<Spare>,
    joining: Vec<Joining>,
    /// Devices that cannot be used, and why.
    unused: Vec<(Port, Unused)>,
    /// Reads that failed, by role.
    read_errors: Vec<u64>,
}

impl Members {
    pub fn new(roles: usize, places: Vec<Option<Port>>) -> Members {
        let (ports, holders, read_errors) = (vec![None; roles], vec![None; roles], vec![0; roles]);
        Members { ports, holders, places, read_errors, ..Members::default() }
    }

    pub const fn count(&self) -> usize {
        self.ports.len()
    }

    /// The port of a role's member.
    pub fn port(&self, role: usize) -> Option<Port> {
        self.ports.get(role).copied().flatten()
    }

    /// The role whose member is on a port.
    pub fn role_at(&self, port: Port) -> Option<usize> {
        self.ports.iter().position(|other| *other == Some(port))
    }

    /// The place among the spares of the device that has taken a role.
    pub fn holder(&self, role: usize) -> Option<usize> {
        self.holders[role]
    }

    /// The device on a port has a role from now on; `place`: among the spares, if it is one of them.
    pub fn appoint(&mut self, role: usize, port: Port, place: Option<usize>) {
        (self.ports[role], self.holders[role]) = (Some(port), place);
    }

    pub fn add_spare(&mut self, spare: Spare) {
        self.spares.push(spare);
    }

    pub fn has_spares(&self) -> bool {
        !self.spares.is_empty()
    }

    /// An array that cannot be written needs none.
    pub fn forget_spares(&mut self) {
        self.spares.clear();
    }

    /// A spare or a joining device has this id.
    pub fn has_id(&self, id: u64) -> bool {
        self.waiting_or_joining().any(|spare| spare.id == id)
    }

    fn waiting_or_joining(&self) -> impl Iterator<Item = &Spare> {
        self.spares.iter().chain(self.joining.iter().map(Joining::spare))
    }

    /// A device is in the place of a member and has not got its role yet.
    pub fn is_replaced(&self, role: usize) -> bool {
        self.waiting_or_joining().any(|spare| spare.role() == Some(role))
    }

    /// Takes out the spare that a role gets: the one that was added in its place, or else the first one; none while the former is
    /// being made a spare.
    pub fn take_spare(&mut self, role: usize) -> Option<Spare> {
        if self.joining.iter().any(|joining| joining.spare().role() == Some(role)) {
            return None;
        }
        let own = self.spares.iter().position(|spare| spare.role() == Some(role));
        let index = own.or_else(|| self.spares.iter().position(|spare| spare.role().is_none()))?;
        Some(self.spares.remove(index))
    }

    pub fn add_unused(&mut self, port: Port, seat: Seat, why: UnusedWhy) {
        self.unused.push((port, Unused { seat, why }));
    }

    pub fn read_failed(&mut self, role: usize) {
        self.read_errors[role] += 1;
    }

    pub fn reset_statistics(&mut self) {
        self.read_errors.fill(0);
    }

    /// Begins to make a device a spare, or to take a member back, if its place is free.
    pub fn join(&mut self, port: Port, seat: Seat, id: u64) -> Result<(), CommandError> {
        if let Seat::Spare(place) = seat {
            let known = self.places.len();
            if place > known {
                return Err(CommandError::BehindSpares { known });
            }
            if self.places.get(place).is_some_and(Option::is_some) {
                return Err(CommandError::SpareThere(place));
            }
            self.places.resize(known.max(place + 1), None);
            self.places[place] = Some(port);
        }
        self.joining.push(Joining::new(Spare { port, id, copy: 0, seat }));
        Ok(())
    }

    /// The seat of the device on a port, if it is joining.
    pub fn joining(&self, port: Port) -> Option<Seat> {
        self.joining.iter().map(Joining::spare).find(|spare| spare.port == port).map(|spare| spare.seat)
    }

    /// The ports of the devices that have to wait, the last one first.
    pub fn ports_that_wait(&self) -> Vec<Port> {
        let waits = self.joining.iter().rev().filter(|joining| joining.waits());
        waits.map(|joining| joining.spare().port).collect()
    }

    fn index_of(&self, port: Port) -> usize {
        let index = self.joining.iter().position(|joining| joining.spare().port == port);
        index.expect("it waits for its commands")
    }

    /// A device has waited: the commands that come next.
    pub fn go_on_joining(&mut self, port: Port) -> Vec<Io> {
        let index = self.index_of(port);
        self.joining[index].go_on()
    }

    /// A command to a joining device has returned, the one of this number: the commands that come next.
    pub fn join_returned(
        &mut self,
        port: Port,
        number: usize,
        result: IoResult,
        recorded: &Superblock,
    ) -> Vec<Io> {
        let index = self.index_of(port);
        match self.joining[index].returned(number, result, recorded) {
            Outcome::GoesOn(commands) => return commands,
            Outcome::Joined => {
                let spare = *self.joining.remove(index).spare();
                self.spares.push(spare);
            }
            Outcome::Failed(error) => {
                let seat = self.joining.remove(index).spare().seat;
                self.add_unused(port, seat, UnusedWhy::NotMade(error));
            }
        }
        Vec::new()
    }

    /// The joining devices that were members and wait to have their role again, each with that. `returns`: the role that a device may
    /// have by what its superblock says.
    pub fn returning(
        &self,
        returns: impl Fn(&Superblock, Identity) -> Option<usize>,
    ) -> impl Iterator<Item = (Port, usize)> {
        let role = move |joining: &Joining| {
            let (superblock, identity) = joining.was()?;
            let role = returns(superblock, *identity)?;
            let fits = joining.spare().role().is_none_or(|seat| seat == role);
            fits.then_some((joining.spare().port, role))
        };
        self.joining.iter().filter_map(role)
    }

    /// A joining device has a role again; gives what its superblock says.
    pub fn take_back(&mut self, port: Port, role: usize) -> (Superblock, Identity) {
        let joining = self.joining.remove(self.index_of(port));
        self.appoint(role, port, joining.spare().place());
        joining.into_was().expect("it was read")
    }

    /// Refuses the joining devices that are untouched: nothing that they wait for will be recorded.
    pub fn refuse_waiting(&mut self) {
        for joining in self.joining.extract_if(.., |joining| joining.is_untouched()) {
            let Spare { port, seat, .. } = *joining.spare();
            self.unused.push((port, Unused { seat, why: UnusedWhy::NoWrites }));
        }
    }

    /// Forgets the device on a port, whatever it was.
    pub fn leave(&mut self, port: Port) {
        if let Some(role) = self.role_at(port) {
            (self.ports[role], self.holders[role]) = (None, None);
        }
        self.spares.retain(|spare| spare.port != port);
        self.unused.retain(|(other, _)| *other != port);
        for place in &mut self.places {
            *place = place.filter(|other| *other != port);
        }
        while self.places.last().is_some_and(Option::is_none) {
            self.places.pop();
        }
    }

    /// Places among the spares that the stack file has and that are empty.
    pub fn absent_places(&self, named: &[bool]) -> impl Iterator<Item = usize> {
        let is_absent = |place: &usize| self.places.get(*place).is_none_or(Option::is_none);
        (0..named.len()).filter(|place| !named[*place]).filter(is_absent)
    }

    /// The devices that cannot be used.
    pub fn unused(&self) -> impl Iterator<Item = &Unused> {
        self.unused.iter().map(|(_, unused)| unused)
    }

    /// Returns the devices' part of the status.
    pub fn status(&self) -> DevicesStatus {
        let numbers = |ports: &[Option<Port>]| ports.iter().map(|port| port.map(|port| port.0)).collect();
        let present = |ports: &[Option<Port>]| ports.iter().map(Option::is_some).collect();
        let joining = || self.joining.iter().map(Joining::spare);
        DevicesStatus {
            spares: self.spares.iter().filter_map(Spare::place).collect(),
            joining: joining().filter_map(Spare::place).collect(),
            joining_members: self.waiting_or_joining().filter_map(Spare::role).collect(),
            spare_places: present(&self.places),
            open_members: present(&self.ports),
            holders: self.holders.clone(),
            member_ports: numbers(&self.ports),
            spare_ports: numbers(&self.places),
            read_errors: self.read_errors.clone(),
            ..DevicesStatus::default()
        }
    }
}
