//! Devices that come and go while the array is served.
//!
//! A member that was away, and of which it is known what it has missed (`away`), gets its role again as it is.
//!
//! On any other device the old superblocks are wiped before it gets its own, and only then it is a spare: a crash leaves it
//! without one, or a spare. Who takes a role is recorded afterwards, as for every spare.
//!
//! A device that leaves has failed, or is a spare. Nothing on it is changed: the superblocks of the others say what it is.

use super::Members;
use super::joining::{JoinOutcome, Joining};
use super::spare::Spare;
use crate::Io;
use crate::layer::{CommandError, Cx, Geometry, IoResult, Port, Seat};
use crate::raid::error::{Unused, UnusedWhy};
use crate::raid::flight::Flight;
use crate::raid::record::Recorder;
use crate::raid::status::ArrayStatistics;
use crate::raid::superblock::NOBODY;

type CommandResult = Result<(), CommandError>;

impl Members {
    /// Begins to make a device a spare, or to take a member back. `promised`: the size of the blocks that clients were told.
    pub fn join(
        &mut self,
        device: Spare,
        has: &Geometry,
        promised: u32,
        recorder: &mut Recorder,
    ) -> CommandResult {
        let needed = recorder.member_sectors_min();
        if recorder.takes_no_writes() {
            return Err(CommandError::NoWrites);
        } else if has.read_only {
            return Err(CommandError::ReadOnly);
        } else if has.sectors < needed {
            return Err(CommandError::TooSmall { sectors: has.sectors, needed });
        } else if has.logical_block_bytes > promised {
            return Err(CommandError::Blocks { block_bytes: has.logical_block_bytes, promised });
        } else if device.id == NOBODY || recorder.knows(device.id) || self.has_id(device.id) {
            return Err(CommandError::Id(device.id));
        }
        match device.seat {
            Seat::Member(role) => self.may_replace(role, recorder)?,
            Seat::Spare(place) => self.take_place(place, device.port)?,
        }
        self.joining.push(Joining::new(device));
        recorder.tell();
        Ok(())
    }

    /// Refuses a device that may not be added in the place of a member.
    fn may_replace(&self, role: usize, recorder: &Recorder) -> CommandResult {
        let members = self.count();
        let is_replaced = self.waiting_or_joining().any(|spare| spare.role() == Some(role));
        if role >= members {
            Err(CommandError::NoMember { role, members })
        } else if !recorder.has_failed(role) || is_replaced {
            Err(CommandError::NotFailed(role))
        } else if self.port(role).is_some() {
            Err(CommandError::StillThere(role))
        } else {
            Ok(())
        }
    }

    /// Gives a device a place among the spares, if that is free.
    fn take_place(&mut self, place: usize, port: Port) -> CommandResult {
        let known = self.places.len();
        if place > known {
            return Err(CommandError::BehindSpares { known });
        }
        if self.places.get(place).is_some_and(Option::is_some) {
            return Err(CommandError::SpareThere(place));
        }
        self.places.resize(known.max(place + 1), None);
        self.places[place] = Some(port);
        Ok(())
    }

    /// Goes on with the devices that had to wait, the last one first.
    pub fn go_on_joining(&mut self, recorder: &mut Recorder, statistics: &mut ArrayStatistics, cx: &mut Cx) {
        if recorder.broken {
            return self.refuse_waiting();
        }
        if recorder.owes() {
            return;
        }
        let waits = self.joining.iter().rev().filter(|joining| joining.waits());
        for port in waits.map(|joining| joining.spare().port).collect::<Vec<_>>() {
            let role = self.returning(recorder).find(|(other, _)| *other == port).map(|(_, role)| role);
            match role {
                Some(role) => {
                    if self.take_back(port, role, recorder) {
                        statistics.members_returned += 1;
                        recorder.record(self, statistics, cx);
                    }
                }
                None => {
                    let index = self.index_of(port);
                    let commands = self.joining[index].go_on();
                    self.submit_to_joining(port, commands, cx);
                }
            }
        }
    }

    fn index_of(&self, port: Port) -> usize {
        let index = self.joining.iter().position(|joining| joining.spare().port == port);
        index.expect("it waits for its commands")
    }

    fn submit_to_joining(&mut self, port: Port, commands: Vec<Io>, cx: &mut Cx) {
        for (number, io) in commands.into_iter().enumerate() {
            self.submit_to(port, 0, Flight::Join { port, number }, io, cx);
        }
    }

    /// A command to a joining device has returned, the one of this number.
    pub fn join_returned(
        &mut self,
        port: Port,
        number: usize,
        result: IoResult,
        recorder: &Recorder,
        cx: &mut Cx,
    ) {
        let index = self.index_of(port);
        match self.joining[index].returned(number, result, recorder.recorded()) {
            JoinOutcome::GoesOn(commands) => self.submit_to_joining(port, commands, cx),
            JoinOutcome::Joined => {
                let spare = *self.joining.remove(index).spare();
                self.spares.push(spare);
            }
            JoinOutcome::Failed(error) => {
                let seat = self.joining.remove(index).spare().seat;
                self.add_unused(port, seat, UnusedWhy::NotMade(error));
            }
        }
    }

    /// Refuses the joining devices that are untouched: nothing that they wait for will be recorded.
    fn refuse_waiting(&mut self) {
        for joining in self.joining.extract_if(.., |joining| joining.is_untouched()) {
            let Spare { port, seat, .. } = *joining.spare();
            self.unused.push((port, Unused { seat, why: UnusedWhy::NoWrites }));
        }
    }

    /// The joining devices that were members and wait to have their role again, each with that.
    fn returning(&self, recorder: &Recorder) -> impl Iterator<Item = (Port, usize)> {
        self.joining.iter().filter_map(|joining| {
            let (superblock, identity) = joining.was()?;
            let role = recorder.returns(superblock, *identity)?;
            let fits = joining.spare().role().is_none_or(|seat| seat == role);
            fits.then_some((joining.spare().port, role))
        })
    }

    /// Gives a member that was away its role again, as soon as no other one is being rebuilt and nothing is under way there any more.
    fn take_back(&mut self, port: Port, role: usize, recorder: &mut Recorder) -> bool {
        let is_ready = recorder.rebuilding().is_none()
            && recorder.in_doubt().is_empty()
            && self.commands_under_way(role) == 0;
        if is_ready {
            let joining = self.joining.remove(self.index_of(port));
            self.appoint(role, port, joining.spare().place());
            let (superblock, identity) = joining.into_was().expect("it was read");
            recorder.come_back(role, identity.copy, superblock.generation);
        }
        is_ready
    }

    /// A spare takes the role of a failed member, as soon as nothing is under way there any more.
    pub fn take_spare(&mut self, recorder: &mut Recorder, statistics: &mut ArrayStatistics, cx: &mut Cx) {
        let waits = recorder.broken || recorder.rebuilding().is_some() || !recorder.in_doubt().is_empty();
        if waits || !self.has_spares() {
            return;
        }
        let awaited: Vec<usize> = self.returning(recorder).map(|(_, role)| role).collect();
        let is_free = |role: &usize| {
            recorder.has_failed(*role) && self.commands_under_way(*role) == 0 && !awaited.contains(role)
        };
        let free: Vec<usize> = (0..self.count()).filter(is_free).collect();
        let taken = free.into_iter().find_map(|role| Some((role, self.spare_for(role)?)));
        if let Some((role, spare)) = taken {
            self.appoint(role, spare.port, spare.place());
            recorder.take_over(role, spare.id, spare.copy);
            recorder.record(self, statistics, cx);
        }
    }

    /// The device of a member that has failed cannot be let go of yet. Without a word about it in the superblocks of the others, a start
    /// after a crash would look for it.
    pub fn is_held(&self, role: usize, recorder: &Recorder) -> bool {
        let known = recorder.recorded().has_failed(role);
        recorder.has_failed(role) && (!known || self.commands_under_way(role) > 0)
    }

    /// Lets go of a device, so that it can be closed.
    pub fn leave(&mut self, port: Port, recorder: &mut Recorder) -> CommandResult {
        let mut joining = self.joining.iter().map(Joining::spare);
        if let Some(spare) = joining.find(|spare| spare.port == port) {
            return Err(CommandError::Joining(spare.seat));
        }
        if recorder.journal.as_ref().is_some_and(|journal| journal.port() == port) {
            return Err(CommandError::Journal);
        }
        if let Some(role) = self.role_at(port) {
            if recorder.is_in_use(role) {
                return Err(CommandError::InUse { role, filled: recorder.has_failed(role) });
            }
            if self.is_held(role, recorder) {
                recorder.tell();
                return Err(CommandError::Held(role));
            }
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
        Ok(())
    }

    /// A spare takes over by itself; this says whether one does, and what is in the way.
    pub fn can_rebuild(&self, recorder: &Recorder) -> CommandResult {
        if recorder.failed() == 0 {
            Err(CommandError::NothingFailed)
        } else if recorder.rebuilding().is_some() {
            Ok(())
        } else if !self.has_spares() {
            Err(CommandError::NoSpare)
        } else if !recorder.in_doubt().is_empty() {
            Err(CommandError::InDoubt)
        } else if recorder.takes_no_writes() {
            Err(CommandError::NoWrites)
        } else {
            Ok(())
        }
    }
}
