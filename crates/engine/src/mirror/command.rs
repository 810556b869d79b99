//! Commands that add and remove legs while the mirror is in use.

use std::collections::VecDeque;

use super::label::{self, LEGS_MAX, Leg, LegState};
use super::{Member, MirrorCore};
use crate::layer::{ArrayCommand, CommandError, Cx, Discards, Geometry, Port, Report, Seat};

/// An administrator who waits for an answer.
pub enum PendingCommand {
    Answered(Result<(), CommandError>),
    /// A leg is removed. `erased`: its label is being erased, or its device is missing.
    Remove {
        leg: u64,
        erased: bool,
    },
    /// The device of a failed leg is let go of.
    Close(u64),
}

pub type PendingCommands = VecDeque<PendingCommand>;

impl MirrorCore {
    pub fn on_command(&mut self, command: ArrayCommand, cx: &mut Cx) {
        let call = match command {
            ArrayCommand::Add { port, geometry, seat, id } => {
                let legs = if let Seat::Spare(legs) = seat { legs } else { 0 };
                PendingCommand::Answered(self.add(port, &geometry, id, legs))
            }
            ArrayCommand::Remove { port } => match self.remove(port, cx) {
                Ok(Some(leg)) => PendingCommand::Remove { leg, erased: false },
                // A device that is no leg.
                Ok(None) => PendingCommand::Answered(Ok(())),
                Err(error) => PendingCommand::Answered(Err(error)),
            },
            ArrayCommand::Close { port } => {
                match self.leg_on(port).map(|leg| (leg, self.label.standing(leg))) {
                    Some((_, Some(LegState::Whole | LegState::Filling))) => {
                        PendingCommand::Answered(Err(CommandError::LegInUse))
                    }
                    Some((leg, _)) => PendingCommand::Close(leg),
                    None => PendingCommand::Answered(Ok(())),
                }
            }
            ArrayCommand::Forget => match self.forget_absent() {
                Some(leg) => {
                    self.record.change();
                    cx.report(Report::Notice);
                    PendingCommand::Remove { leg, erased: true }
                }
                None => PendingCommand::Answered(Err(CommandError::NoLeg)),
            },
            _ => PendingCommand::Answered(Err(CommandError::OfMirror)),
        };
        self.calls.push_back(call);
    }

    /// Adds a leg to those of a log that is to have so many with it. It takes the places of failed legs whose devices are missing, the oldest
    /// first, and these are forgotten. Others stay known as failed: what they lack must not be read if they come back.
    fn add(&mut self, port: Port, geometry: &Geometry, id: u64, legs: usize) -> Result<(), CommandError> {
        let needed = label::device_sectors(self.label.sectors);
        if geometry.read_only {
            return Err(CommandError::ReadOnly);
        }
        if geometry.sectors < needed {
            return Err(CommandError::TooSmall { sectors: geometry.sectors, needed });
        }
        let promised = self.geometry.logical_block_bytes;
        if geometry.logical_block_bytes > promised {
            return Err(CommandError::Blocks { block_bytes: geometry.logical_block_bytes, promised });
        }
        if id == 0 || self.label.standing(id).is_some() {
            return Err(CommandError::Id(id));
        }
        while self.label.legs.len() >= legs.max(1) {
            let Some(oldest) = self.label.legs.iter().position(|leg| self.is_absent(leg)) else { break };
            self.label.legs.remove(oldest);
        }
        if self.label.legs.len() == LEGS_MAX {
            return Err(CommandError::TooManyLegs(LEGS_MAX));
        }
        if !geometry.ssd || geometry.discards == Discards::No {
            self.geometry.discards = Discards::No;
        }
        self.label.legs.push(Leg { id, standing: LegState::Filling });
        self.members.push(Member { id, port, in_flight: 0 });
        self.record.change();
        Ok(())
    }

    /// Forgets the failed legs whose devices are missing, and returns one of them. Should one come back, nothing is known of it.
    fn forget_absent(&mut self) -> Option<u64> {
        let absent: Vec<u64> =
            self.label.legs.iter().filter(|leg| self.is_absent(leg)).map(|leg| leg.id).collect();
        self.label.legs.retain(|leg| !absent.contains(&leg.id));
        absent.last().copied()
    }

    /// True for a failed leg whose device is missing.
    fn is_absent(&self, leg: &Leg) -> bool {
        leg.standing == LegState::Failed && !self.members.iter().any(|member| member.id == leg.id)
    }

    fn remove(&mut self, port: Port, cx: &mut Cx) -> Result<Option<u64>, CommandError> {
        let Some(leg) = self.leg_on(port) else { return Ok(None) };
        if self.is_last_whole(leg) {
            return Err(CommandError::LastLeg);
        }
        match self.label.standing(leg) {
            Some(LegState::Whole) => self.record.leg_gone(),
            Some(LegState::Filling | LegState::Failed) => self.record.change(),
            None => return Err(CommandError::NoLeg),
        }
        self.label.legs.retain(|other| other.id != leg);
        self.copier.forget(leg);
        cx.report(Report::Notice);
        Ok(Some(leg))
    }

    fn leg_on(&self, port: Port) -> Option<u64> {
        self.members.iter().find(|member| member.port == port).map(|member| member.id)
    }

    pub fn answer_calls(&mut self, cx: &mut Cx) {
        while let Some(call) = self.calls.front_mut() {
            let is_busy = |leg| self.members.iter().any(|member| member.id == leg && member.in_flight > 0);
            match call {
                PendingCommand::Answered(answer) => cx.report(Report::Array(answer.clone())),
                PendingCommand::Close(leg) => {
                    let leg = *leg;
                    if is_busy(leg) {
                        return;
                    }
                    self.members.retain(|member| member.id != leg);
                    cx.report(Report::Array(Ok(())));
                }
                PendingCommand::Remove { leg, erased } => {
                    let leg = *leg;
                    if let Some(error) = self.record.is_dead {
                        cx.report(Report::Array(Err(CommandError::Labels(error))));
                        self.calls.pop_front();
                        continue;
                    }
                    if is_busy(leg) || !(self.record.is_settled() && self.record.names_all()) {
                        return;
                    }
                    if !*erased {
                        *erased = true;
                        return self.erase(leg, cx);
                    }
                    self.members.retain(|member| member.id != leg);
                    cx.report(Report::Array(Ok(())));
                }
            }
            self.calls.pop_front();
        }
    }
}
