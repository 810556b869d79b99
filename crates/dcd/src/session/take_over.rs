//! Takes the logs of a stack over from another machine.
//!
//! A log says which machine serves it. Two machines that serve one cache would overwrite each other on the data disk, and no lock of this
//! machine stops the other. So a log that another machine has not stopped is taken over only if the operator confirms that this
//! machine is off, or a command switches it off or cuts it off from the data disk.

use std::path::Path;
use std::process::Command;

use dcd_engine::StartError;
use dcd_engine::log_cache::LogError;
use dcd_stack::{DeviceSource, LayerKind, LayerSpec};

use crate::cli::TakeOver;
use crate::failure::Failure;
use crate::session::choice::CacheChoice;
use crate::session::journal;
use crate::session::machine;
use crate::session::open::superblock_of;
use crate::session::record::Refusal;
use crate::session::site::Site;
use crate::session::survey::lacks_leg;

/// Prepares a stack for being taken over, if there is anything to take over: no other machine serves the stack afterwards. Returns the
/// other machine.
pub fn take_over(site: &mut Site, asked: &TakeOver) -> Result<Option<u64>, Failure> {
    if !asked.take_over {
        return Ok(None);
    }
    let others = others(site)?;
    if others.is_empty() && !lacks_leg(site)? {
        eprintln!(
            "dcd: there is nothing to take over: this machine served the logs last, or they were stopped, and no leg is missing"
        );
        return Ok(None);
    }
    for device in &site.devices {
        if let (DeviceSource::Path { path, .. }, false) = (&device.source, device.read_only) {
            refuse_writers(path)?;
        }
    }
    match &asked.fence {
        Some(command) => fence(command, site, others.first().copied())?,
        None if asked.other_is_off => {}
        None => {
            return Err(Failure::refused(
                "another machine may be serving this stack, and would go on writing to its data disk",
                "make sure that it is off and stays off, or cannot reach the data disk; then add --other-is-off, or --fence COMMAND with a \
                 command that makes sure of it. Do not take over if its log had failed (\"log-failed\" in its status, journal or events): it has \
                 written to the data disk alone since, and this log would be written over newer data. Nothing was changed",
            ));
        }
    }
    site.asked.take_over = true;
    site.asked.degraded_legs = true;
    Ok(others.first().copied())
}

/// Refusal for a stack that was taken over and does not start. If the log is mirrored, the other machine may have continued without
/// the legs that are here.
pub fn refusal(site: &Site, other: Option<u64>, error: &StartError) -> Refusal {
    let refusal = journal::refusal(site, error);
    let is_mirrored = |layer: &LayerSpec| match &layer.kind {
        LayerKind::LogCache { log, .. } => site.mirror_below(&log.text).is_some(),
        _ => false,
    };
    match (error.error.downcast_ref(), other) {
        (Some(LogError::OtherData(_)), Some(other)) if site.log_caches().any(is_mirrored) => {
            went_on_without(other, &refusal.reason)
        }
        _ => refusal,
    }
}

/// Refusal for legs that the other machine has most likely continued without.
pub fn went_on_without(other: u64, reason: &str) -> Refusal {
    Refusal::new(
        format!(
            "{reason}. The machine {other:016x} served this log last and did not stop it. It has most likely continued without the legs that are \
             here, as a \"timeout\" allows, and has written to the data disk since: its own leg has the newest writes"
        ),
        "serve the stack there, or bring that leg here and name it in \"log\": nothing is lost then. Only if that leg is gone for good: copy the \
         data disk. \"dcd rescue --list\" says what the legs here hold. \"dcd serve --without-cache --force\" keeps the data disk as the other \
         machine left it, and loses what only its leg has. \"dcd rescue --over-newer-data\" would write older data over newer",
    )
}

/// The other machines that have not stopped a log of the stack. This is no verdict: the start that follows is judged.
fn others(site: &Site) -> Result<Vec<u64>, Failure> {
    let mut others = Vec::new();
    for layer in site.log_caches() {
        let choice = CacheChoice::of(site.clone(), Some(&layer.name))?;
        if !choice.stands_on_a_cache() {
            others.extend(
                superblock_of(&choice)?.and_then(|superblock| superblock.other_machine(machine::this())),
            );
        }
    }
    Ok(others)
}

/// Runs the command that stops the other machine. The command gets the stack file and the other machine's number in its environment.
fn fence(command: &str, site: &Site, other: Option<u64>) -> Result<(), Failure> {
    // The command itself is not printed: it may contain secrets, and standard error goes to the journal.
    eprintln!("dcd: running the command of --fence, which stops the other machine");
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", command]).env("DCD_STACK", &site.path);
    if let Some(other) = other {
        shell.env("DCD_OTHER_MACHINE", format!("{other:016x}"));
    }
    let run = dcd_io::run_unless_interrupted(&mut shell).map_err(|error| Failure::io("/bin/sh", error))?;
    match run {
        None => Err(Failure::Failed(
            "interrupted: the command of --fence was ended, and nothing was changed".to_owned(),
        )),
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(Failure::refused(
            format!("the command of --fence has failed ({status})"),
            "see its messages, and try again. Nothing was changed",
        )),
    }
}

/// Refuses a device that another program of this machine has open for writing: the other machine may write through that, as through
/// the server of its leg.
fn refuse_writers(path: &Path) -> Result<(), Failure> {
    let writers = machine::writers(Path::new("/proc"), path);
    match writers.as_slice() {
        [] => Ok(()),
        [first, ..] => Err(Failure::refused(
            format!(
                "{}: {first} has it open for writing, and the other machine may write through that",
                path.display()
            ),
            "stop that program, and try again. Nothing was changed",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_take_over_of_a_stale_leg_names_the_machine_that_has_the_newest_and_what_loses_nothing() {
        let Refusal { reason, action } = went_on_without(0xabc, "the data disk was changed");
        assert!(reason.contains("machine 0000000000000abc") && reason.contains("timeout"), "{reason}");
        let first = action.find("serve the stack there").unwrap();
        for losing in ["--without-cache --force", "rescue --over-newer-data"] {
            assert!(first < action.find(losing).unwrap(), "{losing}");
        }
    }
}
