//! What an administrator tells a running array.

use crate::layer::{ArrayCommand, Outbox};
use crate::raid::array::Array;

impl Array {
    /// Carries an administrator's word out, or begins to.
    pub fn command(&mut self, command: ArrayCommand, out: &mut Outbox) -> Result<(), String> {
        match command {
            ArrayCommand::Fail { role } => self.fail_member(role, out),
            ArrayCommand::Scrub { .. } | ArrayCommand::ScrubStop | ArrayCommand::Rebuild => {
                Err("this array cannot do that".to_owned())
            }
        }
    }
}
