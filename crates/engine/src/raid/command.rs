//! The commands of an administrator to a running array.

use crate::layer::{ArrayCommand, Outbox};
use crate::raid::array::Array;

impl Array {
    /// Carries an administrator's word out, or begins to.
    pub fn command(&mut self, command: ArrayCommand, out: &mut Outbox) -> Result<(), String> {
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
    fn set_failed(&mut self, role: usize, out: &mut Outbox) -> Result<(), String> {
        let members = self.layout.shape.columns();
        if role >= members {
            return Err(format!("there is no member {role}: they are 0 to {}", members - 1));
        }
        if self.recorder.has_failed(role) {
            return Err(format!("member {role} has failed already"));
        }
        if self.broken || self.geometry.read_only {
            return Err("the array takes no writes, so that cannot be recorded".to_owned());
        }
        if !self.recorder.in_doubt().is_empty() {
            return Err(
                "its parity is not computed yet, so what the member has would be lost: wait for that"
                    .to_owned(),
            );
        }
        if self.recorder.failed().count_ones() as usize >= self.layout.shape.parity {
            return Err(format!(
                "member {role} cannot be spared: others have failed, and the array would lose its data"
            ));
        }
        self.member_failed(role, out);
        Ok(())
    }

    /// A spare takes over by itself; this says whether one does, and what is in the way.
    fn can_rebuild(&self) -> Result<(), String> {
        let why = if self.recorder.failed() == 0 {
            "no member has failed"
        } else if self.recorder.rebuilding().is_some() {
            return Ok(());
        } else if !self.members.has_spares() {
            "there is no spare: \"dcd array add\" takes a device that is named in the place of the member, or in \"spares\""
        } else if !self.recorder.in_doubt().is_empty() {
            "the parity is not right everywhere, so what the member had cannot be computed: copy away what can be read; after \
             \"dcd serve --accept-damage\" it is computed, and may come out wrong"
        } else if self.broken || self.geometry.read_only {
            "the array takes no writes"
        } else {
            return Ok(());
        };
        Err(why.to_owned())
    }
}
