//! `dcd array`: creates, maintains and changes arrays; one file for each kind of work.

mod add;
mod assemble;
mod change;
mod create;
mod grow;
mod pass;
mod status;

pub use change::store_calibration;

use crate::cli_array::{Array, ArrayCommand};
use crate::failure::Failure;

pub fn run(args: &Array) -> Result<(), Failure> {
    match &args.command {
        ArrayCommand::Create(args) => create::run(args),
        ArrayCommand::Assemble(args) => assemble::run(args),
        ArrayCommand::Status(args) => status::run(args),
        ArrayCommand::Fail(args) => change::fail(args),
        ArrayCommand::Add(args) => add::run(args),
        ArrayCommand::Remove(args) => change::remove(args),
        ArrayCommand::Rebuild(args) => pass::rebuild(args),
        ArrayCommand::Scrub(args) => pass::scrub(args),
        ArrayCommand::Grow(args) => grow::run(args),
    }
}
