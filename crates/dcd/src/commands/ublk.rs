//! `dcd ublk`: the ublk devices of this kernel, with and without servers.

use dcd_serve::ublk::{ListedUblk, RunningKernel, UblkError, available, list, remove};

use crate::cli::{Ublk, UblkCommand};
use crate::failure::Failure;
use crate::output::print_json;

pub fn run(args: &Ublk) -> Result<(), Failure> {
    available().map_err(failure)?;
    match &args.command {
        UblkCommand::List(args) => {
            let all = list(&RunningKernel).map_err(failure)?;
            if args.json {
                print_json(&all)?;
            } else {
                all.iter().for_each(|device| println!("{}", line(device)));
            }
            Ok(())
        }
        UblkCommand::Remove(args) => remove(&RunningKernel, args.number, args.force).map_err(failure),
    }
}

fn failure(error: UblkError) -> Failure {
    match error {
        UblkError::Kept { .. } => Failure::refused(
            error.to_string(),
            "unmount what is on it first, or start its server again. Nothing was changed",
        ),
        other => Failure::Failed(other.to_string()),
    }
}

/// Formats a device, its state, its stack, and its user.
fn line(device: &ListedUblk) -> String {
    let state = match (device.state, device.process) {
        (state, Some(process)) => format!("{state} by process {process}"),
        ("waiting", None) => "waiting for its next server".to_owned(),
        (state, None) => state.to_owned(),
    };
    let of = match (&device.stack, device.is_dcd) {
        (Some(stack), _) => stack.display().to_string(),
        (None, true) => "a stack of dcd".to_owned(),
        (None, false) => "another program".to_owned(),
    };
    let user = device.user.as_ref().map(|user| format!(", in use: {user}")).unwrap_or_default();
    format!("{}: {state}, of {of}{user}", device.device)
}
