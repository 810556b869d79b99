//! The devices of an array: the member of each role, the spares, and those that join while the array is served.
//!
//! [`Members`] alone knows where devices are; the superblocks (`record`) name the failed members. Its promises:
//!
//! - A place among the spares belongs to its device until that leaves, also after the device has taken a role.
//! - A device that joins is a spare only after a superblock of its own that says so is durable on it. Until then nothing else is
//!   written to it than zeroes over old superblocks.
//! - A role gets another device only by [`Members::appoint`].
//! - A spare that was added in the place of a member gets that role and no other.

mod join;
mod joining;
mod spare;

use crate::layer::{Cx, Io, OpId, Port, Seat};
use crate::raid::error::{Unused, UnusedWhy};
use crate::raid::flight::Flight;
use crate::raid::status::DevicesStatus;
use crate::slab::Slab;
use joining::Joining;
pub(super) use spare::Spare;

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
    /// Commands under way, each with the role whose member has it.
    flights: Slab<(usize, Flight)>,
    /// A server that was killed may have left writes in the members' caches; all others are durable when they return.
    pub unflushed: bool,
    flushing: u32,
}

impl Members {
    pub fn new(roles: usize, places: Vec<Option<Port>>) -> Members {
        let (ports, holders, read_errors) = (vec![None; roles], vec![None; roles], vec![0; roles]);
        Members { ports, holders, places, read_errors, unflushed: true, ..Members::default() }
    }

    /// Sends a command to the member of a role.
    pub fn submit(&mut self, role: usize, flight: Flight, io: Io, cx: &mut Cx) {
        let port = self.port(role).expect("a missing member gets no commands");
        self.submit_to(port, role, flight, io, cx);
    }

    pub fn submit_to(&mut self, port: Port, role: usize, flight: Flight, io: Io, cx: &mut Cx) {
        let key = self.flights.insert((role, flight));
        cx.submit(port, OpId(key), io);
    }

    /// Takes out a command that has returned. Reads that failed are counted.
    pub fn returned(&mut self, op: OpId, is_ok: bool) -> (usize, Flight) {
        let (role, flight) = self.flights.remove(op.0);
        self.read_errors[role] += u64::from(!is_ok && flight.reads());
        (role, flight)
    }

    /// No command is under way.
    pub fn are_idle(&self) -> bool {
        self.flights.is_empty()
    }

    /// Commands to the member of a role that have not returned.
    fn commands_under_way(&self, role: usize) -> usize {
        self.flights.iter().filter(|(of, flight)| *of == role && flight.is_at_member()).count()
    }

    /// Flushes the members in use, unless that is under way.
    pub fn flush(&mut self, is_in_use: impl Fn(usize) -> bool, cx: &mut Cx) {
        if self.flushing > 0 {
            return;
        }
        for role in (0..self.count()).filter(|role| is_in_use(*role)) {
            self.flushing += 1;
            self.submit(role, Flight::Flush, Io::Flush, cx);
        }
    }

    /// A member has been flushed, or has failed.
    pub const fn flushed(&mut self, broken: bool) {
        self.flushing -= 1;
        self.unflushed = self.flushing > 0 || broken;
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

    fn has_spares(&self) -> bool {
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

    /// Takes out the spare that a role gets: the one that was added in its place, or else the first one; none while the former is
    /// being made a spare.
    fn spare_for(&mut self, role: usize) -> Option<Spare> {
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

    pub fn reset_statistics(&mut self) {
        self.read_errors.fill(0);
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
