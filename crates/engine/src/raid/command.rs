//! The commands of an administrator to a running array.

use crate::layer::{ArrayCommand, CommandError, Outbox};
use crate::raid::array::Array;

impl Array {
    /// Carries an administrator's word out, or begins to.
    pub fn command(&mut self, command: ArrayCommand, out: &mut Outbox) -> Result<(), CommandError> {
        match command {
            ArrayCommand::Fail { role } => self.set_failed(role, out),
            ArrayCommand::Scrub { repair } => self.scrub(repair),
            ArrayCommand::ScrubStop => self.stop_scrub(),
            ArrayCommand::Rebuild => self.can_rebuild(),
            ArrayCommand::Add { port, geometry, seat, id } => self.join(port, geometry, seat, id),
            ArrayCommand::Remove { port } => self.leave(port),
        }
    }

    /// An administrator takes a member out of use, if the others have all of its data.
    fn set_failed(&mut self, role: usize, out: &mut Outbox) -> Result<(), CommandError> {
        let members = self.layout.shape.columns();
        if role >= members {
            return Err(CommandError::NoMember { role, members });
        }
        if self.recorder.has_failed(role) {
            return Err(CommandError::HasFailed(role));
        }
        if self.broken || self.geometry.read_only {
            return Err(CommandError::NoWrites);
        }
        if !self.recorder.in_doubt().is_empty() {
            return Err(CommandError::Resyncing);
        }
        if self.recorder.failed().count_ones() as usize >= self.layout.shape.parity {
            return Err(CommandError::NotSpared(role));
        }
        self.member_failed(role, out);
        Ok(())
    }

    /// A spare takes over by itself; this says whether one does, and what is in the way.
    fn can_rebuild(&self) -> Result<(), CommandError> {
        if self.recorder.failed() == 0 {
            Err(CommandError::NothingFailed)
        } else if self.recorder.rebuilding().is_some() {
            Ok(())
        } else if !self.members.has_spares() {
            Err(CommandError::NoSpare)
        } else if !self.recorder.in_doubt().is_empty() {
            Err(CommandError::InDoubt)
        } else if self.broken || self.geometry.read_only {
            Err(CommandError::NoWrites)
        } else {
            Ok(())
        }
    }
}
