//! Devices that come and go while the array is served.
//!
//! A member that was away, and of which it is known what it has missed (`away`), gets its role again as it is.
//!
//! On any other device the old superblocks are wiped before it gets its own, and only then it is a spare: a crash leaves it
//! without one, or a spare. Who takes a role is recorded afterwards, as for every spare.
//!
//! A device that leaves has failed, or is a spare. Nothing on it is changed: the superblocks of the others say what it is.

use crate::Io;
use crate::layer::{CommandError, Geometry, IoResult, Outbox, Port, Seat};
use crate::raid::array::{Array, Flight};
use crate::raid::layout::DATA_SECTOR;
use crate::raid::superblock::NOBODY;

impl Array {
    /// Begins to make a device a spare, or to take a member back.
    pub fn join(&mut self, port: Port, geometry: Geometry, seat: Seat, id: u64) -> Result<(), CommandError> {
        self.may_join(&geometry, id)?;
        if let Seat::Member(role) = seat {
            self.may_replace(role)?;
        }
        self.members.join(port, seat, id)?;
        self.recorder.tell();
        Ok(())
    }

    fn may_join(&self, geometry: &Geometry, id: u64) -> Result<(), CommandError> {
        let needed = self.sectors_needed();
        let promised = self.geometry.logical_block_bytes;
        if self.broken || self.is_stopped() || self.geometry.read_only {
            Err(CommandError::NoWrites)
        } else if geometry.read_only {
            Err(CommandError::ReadOnly)
        } else if geometry.sectors < needed {
            Err(CommandError::TooSmall { sectors: geometry.sectors, needed })
        } else if geometry.logical_block_bytes > promised {
            Err(CommandError::Blocks { block_bytes: geometry.logical_block_bytes, promised })
        } else if id == NOBODY || self.recorder.knows(id) || self.members.has_id(id) {
            Err(CommandError::Id(id))
        } else {
            Ok(())
        }
    }

    /// Refuses a device that may not be added in the place of a member.
    fn may_replace(&self, role: usize) -> Result<(), CommandError> {
        let members = self.members.count();
        if role >= members {
            Err(CommandError::NoMember { role, members })
        } else if !self.recorder.has_failed(role) || self.members.is_replaced(role) {
            Err(CommandError::NotFailed(role))
        } else if self.members.port(role).is_some() {
            Err(CommandError::StillThere(role))
        } else {
            Ok(())
        }
    }

    /// The least size of a member.
    pub fn sectors_needed(&self) -> u64 {
        DATA_SECTOR + self.recorder.recorded().member_sectors
    }

    /// Goes on with the devices that had to wait.
    pub fn go_on_joining(&mut self, out: &mut Outbox) {
        if self.broken {
            return self.members.refuse_waiting();
        }
        if self.recorder.owes() {
            return;
        }
        for port in self.members.ports_that_wait() {
            let role = self.returning().find(|(other, _)| *other == port).map(|(_, role)| role);
            match role {
                Some(role) => self.take_back(port, role, out),
                None => {
                    let commands = self.members.go_on_joining(port);
                    self.submit_to_joining(port, commands, out);
                }
            }
        }
    }

    fn submit_to_joining(&mut self, port: Port, commands: Vec<Io>, out: &mut Outbox) {
        for (number, io) in commands.into_iter().enumerate() {
            self.submit_to(port, 0, Flight::Join { port, number }, io, out);
        }
    }

    pub fn join_returned(&mut self, port: Port, number: usize, result: IoResult, out: &mut Outbox) {
        let commands = self.members.join_returned(port, number, result, self.recorder.recorded());
        self.submit_to_joining(port, commands, out);
    }

    /// Members that were away and wait to have their role again.
    fn returning(&self) -> impl Iterator<Item = (Port, usize)> {
        self.members.returning(|superblock, identity| self.recorder.returns(superblock, identity))
    }

    /// Gives a member that was away its role again, as soon as no other one is being rebuilt and nothing is under way there any more.
    fn take_back(&mut self, port: Port, role: usize, out: &mut Outbox) {
        let is_ready = self.recorder.rebuilding().is_none()
            && self.recorder.in_doubt().is_empty()
            && self.commands_under_way(role) == 0;
        if !is_ready {
            return;
        }
        let (superblock, identity) = self.members.take_back(port, role);
        self.statistics.members_returned += 1;
        self.recorder.come_back(role, identity.copy, superblock.generation);
        self.record(out);
    }

    /// A spare takes the role of a failed member, as soon as nothing is under way there any more.
    pub fn take_spare(&mut self, out: &mut Outbox) {
        let waits =
            self.broken || self.recorder.rebuilding().is_some() || !self.recorder.in_doubt().is_empty();
        if waits || !self.members.has_spares() {
            return;
        }
        let awaited: Vec<usize> = self.returning().map(|(_, role)| role).collect();
        let is_free = |role: &usize| {
            self.recorder.has_failed(*role) && self.commands_under_way(*role) == 0 && !awaited.contains(role)
        };
        let free: Vec<usize> = (0..self.members.count()).filter(is_free).collect();
        let taken = free.into_iter().find_map(|role| Some((role, self.members.take_spare(role)?)));
        if let Some((role, spare)) = taken {
            self.members.appoint(role, spare.port, spare.place());
            self.recorder.take_over(role, spare.id, spare.copy);
            self.record(out);
        }
    }

    /// Commands to the member of a role that have not returned.
    pub fn commands_under_way(&self, role: usize) -> usize {
        let at_members = |flight: &Flight| !matches!(flight, Flight::Journal { .. } | Flight::Join { .. });
        self.flights.iter().filter(|(of, flight)| *of == role && at_members(flight)).count()
    }

    /// The device of a member that has failed cannot be let go of yet. Without a word about it in the superblocks of the others, a start
    /// after a crash would look for it.
    pub fn is_held(&self, role: usize) -> bool {
        let known = self.recorder.recorded().has_failed(role);
        self.recorder.has_failed(role) && (!known || self.commands_under_way(role) > 0)
    }

    /// Lets go of a device, so that it can be closed.
    pub fn leave(&mut self, port: Port) -> Result<(), CommandError> {
        if let Some(seat) = self.members.joining(port) {
            return Err(CommandError::Joining(seat));
        }
        if self.journal.as_ref().is_some_and(|journal| journal.port() == port) {
            return Err(CommandError::Journal);
        }
        if let Some(role) = self.members.role_at(port) {
            if self.recorder.is_in_use(role) {
                return Err(CommandError::InUse { role, filled: self.recorder.has_failed(role) });
            }
            if self.is_held(role) {
                self.recorder.tell();
                return Err(CommandError::Held(role));
            }
        }
        self.members.leave(port);
        Ok(())
    }
}
