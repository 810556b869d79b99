//! The subcommands, one file each.

pub mod array;
mod attach;
mod calibrate;
mod check;
mod completions;
mod create;
mod detach;
mod disks;
mod doctor;
mod dump;
mod events;
mod flush;
mod format;
mod get;
mod grow;
mod list;
mod log;
mod man;
mod mark;
mod metrics;
mod one_disk;
mod remove;
mod rescue;
mod serve;
mod set;
mod stack_file;
pub mod status;
mod stop;
mod top;
mod ublk;
mod udev;
mod writeback;

use dcd_engine::raid::stride::StridePass;
use dcd_engine::{Extent, Nanos};

use crate::cli::Command;
use crate::failure::Failure;

pub use completions::{COMPLETION_VARIABLE, Offered, complete};
pub use man::{GUIDES, Guide};

/// The differences between the two programs that have these commands.
#[derive(Clone, Copy)]
pub struct Program {
    /// Command line of the program, for completions and manual pages.
    pub command: fn() -> clap::Command,
    pub modelled: Option<Modelled>,
    /// Guides that become manual pages.
    pub guides: &'static [Guide],
}

/// Measures passes of the stride benchmark on a modelled drive; `passes` makes them for the drive's extent.
pub type Modelled =
    fn(drive: &str, passes: &dyn Fn(Extent) -> Vec<StridePass>) -> Result<Vec<Nanos>, Failure>;

pub fn run(command: Command, program: &Program) -> Result<(), Failure> {
    match command {
        Command::Array(args) => array::run(&args),
        Command::Create(args) => create::run(&args),
        Command::Remove(args) => remove::run(&args),
        Command::Format(args) => format::run(&args),
        Command::Log(args) => log::run(&args),
        Command::Grow(args) => grow::run(&args),
        Command::Detach(args) => detach::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Rescue(args) => rescue::run(&args),
        Command::Flush(args) => flush::run(&args),
        Command::Ublk(args) => ublk::run(&args),
        Command::Calibrate(args) => calibrate::run(&args, program.modelled),
        Command::Serve(args) => serve::run(&args).map_err(Failure::to_try_again),
        Command::Attach(args) => attach::run(&args),
        Command::List(args) => list::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Stop(args) => stop::run(&args),
        Command::Set(args) => set::run(&args),
        Command::Get(args) => get::run(&args),
        Command::Writeback(args) => writeback::run(&args),
        Command::Mark(args) => mark::run(&args),
        Command::StackFile(_) => stack_file::run(),
        Command::Completions(args) => completions::run(&args, &(program.command)()),
        Command::Man(args) => man::run(&args, program),
        Command::Udev(args) => udev::run(&args),
    }
}
