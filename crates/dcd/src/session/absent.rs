//! Members and spares of arrays, and legs of logs, whose devices are missing.
//!
//! | the device that is missing                                   | a start                                   |
//! |----------------------------------------------------------------|-------------------------------------------|
//! | has failed, or another device has its role: superblocks say so | goes on without it                        |
//! | is a spare that has no role                                    | goes on without it                        |
//! | is a member                                                    | is refused, unless the user has allowed it |
//! | is a leg, and the labels say that it has failed                | goes on without it                        |
//! | is a leg                                                       | is refused, unless a person has allowed it |
//!
//! A member that is only late would lack what is written meanwhile, and one more failure would lose data. A leg that is only late may have
//! writes that were acknowledged while the others were away: only a person who has looked can say that it is gone.

use std::time::{Duration, Instant};

use dcd_engine::raid::members_named;
use dcd_stack::StackFile;

use crate::failure::Failure;
use crate::session::choice::{ArrayChoice, place};
use crate::session::devices::Purpose;
use crate::session::members::{Devices, Standing};
use crate::session::open::legs_of;
use crate::session::record::Refusal;

/// Polling interval for missing devices.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Devices that a start may leave out although no superblock or label calls them failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    Nothing,
    Members,
    MembersAndLegs,
}

/// Takes missing devices of arrays and mirrored logs out of a stack file, if these can start without them and `parts` need them. Returns a
/// line for the administrator about each.
pub fn leave_out(file: &mut StackFile, parts: &[&str], allowed: Allowed) -> Result<Vec<String>, Failure> {
    let mut told = Vec::new();
    let needed = file.needed_by(parts);
    let arrays = file.arrays().map(|(layer, _)| layer.name.clone()).filter(|name| needed.contains(name));
    for array in arrays.collect::<Vec<String>>() {
        let choice = ArrayChoice::of(file.clone(), array.clone());
        let absent: Vec<&str> = choice.names().into_iter().filter(|name| !file.is_there(name)).collect();
        if absent.is_empty() {
            continue;
        }
        let Some(looked) = Looked::at(&choice, &absent)? else {
            // No superblock can be read: the start of the array says what is wrong.
            let spares =
                absent.iter().copied().filter(|name| choice.spares.iter().any(|spare| spare == name));
            file.leave_out(&array, &spares.collect::<Vec<_>>());
            continue;
        };
        let lacking = looked.lacking();
        if !lacking.is_empty() && allowed == Allowed::Nothing {
            return Err(Failure::Refused(looked.refusal(&lacking)));
        }
        let stale: Vec<&str> = lacking.iter().filter_map(|role| looked.stale(*role)).collect();
        for name in absent.iter().chain(&stale) {
            told.push(format!("array \"{array}\": {} is missing, and is left out", looked.called(name)));
        }
        file.leave_out(&array, &[&absent[..], &stale].concat());
        file.keep_only(parts);
    }
    if allowed == Allowed::MembersAndLegs {
        file.degrade_mirrors();
    }
    told.extend(leave_out_legs(file, parts));
    Ok(told)
}

/// True if a mirrored log lacks a leg that no label calls failed: it is not in the stack file, or its device is missing.
pub fn lacks_leg(file: &StackFile) -> Result<bool, Failure> {
    for (mirror, _) in file.mirrors() {
        let lacks = match Failure::unless_busy(legs_of(file, &mirror.name))? {
            Some(legs) => legs.missing() > 0,
            // No label can be read: the log's start says what is wrong.
            None => mirror.kind.below_names().into_iter().any(|leg| !file.is_there(leg)),
        };
        if lacks {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Leaves out missing legs of mirrored logs. The labels of the other legs say whether a log may start, and its start reads them.
fn leave_out_legs(file: &mut StackFile, parts: &[&str]) -> Vec<String> {
    let mut told = Vec::new();
    let needed = file.needed_by(parts);
    let mirrors: Vec<(String, Vec<String>)> = file
        .mirrors()
        .filter(|(layer, _)| needed.contains(&layer.name))
        .map(|(layer, _)| {
            let absent = layer.kind.below_names().into_iter().filter(|leg| !file.is_there(leg));
            (layer.name.clone(), absent.map(str::to_owned).collect())
        })
        .collect();
    for (mirror, absent) in mirrors {
        let names: Vec<&str> = absent.iter().map(String::as_str).collect();
        for name in &names {
            let path = file.path_below(name).map(|path| format!(" ({})", path.display())).unwrap_or_default();
            told.push(format!("log \"{mirror}\": leg \"{name}\"{path} is missing, and is left out"));
        }
        if !names.is_empty() {
            file.leave_out_legs(&mirror, &names);
            file.keep_only(parts);
        }
    }
    told
}

/// Waits for all devices of the stack, except those that are known to have failed, and then does what [`leave_out`] does. Members that are
/// still missing after `wait` may be left out.
pub fn leave_out_after(file: &mut StackFile, wait: Duration) -> Result<Vec<String>, Failure> {
    let until = Instant::now() + wait;
    let export = file.export.clone();
    loop {
        let mut left = file.clone();
        let lacks_leg = lacks_leg(file)?;
        let is_late = match leave_out(&mut left, &[&export], Allowed::Nothing) {
            Ok(told)
                if !lacks_leg
                    && !left.devices.iter().any(|device| !device.is_there() && !device.is_made()) =>
            {
                *file = left;
                return Ok(told);
            }
            Err(failure @ Failure::Busy(_)) => return Err(failure),
            Ok(_) | Err(_) => Instant::now() >= until,
        };
        if is_late {
            return leave_out(file, &[&export], Allowed::Members);
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// An array that lacks devices, as the superblocks of the others describe it.
struct Looked<'a> {
    choice: &'a ArrayChoice,
    absent: &'a [&'a str],
    devices: Devices,
}

impl<'a> Looked<'a> {
    /// Looks at the devices; none if no superblock can be read.
    fn at(choice: &'a ArrayChoice, absent: &'a [&'a str]) -> Result<Option<Looked<'a>>, Failure> {
        let devices = Failure::unless_busy(Devices::open(choice, Purpose::Look))?;
        Ok(devices.map(|devices| Looked { choice, absent, devices }))
    }

    fn named(&self, role: usize) -> Option<&'a str> {
        self.choice.members.get(role)?.as_deref()
    }

    /// Returns the device that is named for a role, if it is out of date and the spare that has the role is missing.
    fn stale(&self, role: usize) -> Option<&'a str> {
        let name = self.named(role)?;
        let standing = self.devices.by_name(name).and_then(|found| self.devices.standing(found));
        (standing == Some(Standing::Stale) && self.lacks_spare()).then_some(name)
    }

    fn lacks_spare(&self) -> bool {
        self.choice.spares.iter().any(|spare| self.absent.contains(&spare.as_str()))
    }

    /// Roles that have not failed according to the superblocks, and whose devices are missing.
    fn lacking(&self) -> Vec<usize> {
        let newest = &self.devices.newest;
        let is_absent = |role: usize| match self.named(role) {
            Some(name) => self.absent.contains(&name) || self.stale(role).is_some(),
            // "missing" is about the device that was named there, and not about a spare that took its role.
            None => self.lacks_spare(),
        };
        (0..newest.members)
            .filter(|&role| newest.failed >> role & 1 == 0 && !self.devices.has(role) && is_absent(role))
            .collect()
    }

    fn called(&self, name: &str) -> String {
        let path = self.choice.file.path_below(name).map(|path| format!(", {}", path.display()));
        let place = place(self.choice, name);
        format!("{place} (\"{name}\"{})", path.unwrap_or_default())
    }

    fn refusal(&self, lacking: &[usize]) -> Refusal {
        let newest = &self.devices.newest;
        let (layer, parity) = (&self.choice.layer, newest.level.parity());
        let devices = self.absent.iter().map(|name| self.called(name)).collect::<Vec<_>>().join(", ");
        let (are, it) = if lacking.len() == 1 { ("is", "it") } else { ("are", "them") };
        let failed = newest.failed.count_ones() as usize;
        let stack = self.choice.file.path.display();
        let instead = match (failed + lacking.len(), parity) {
            (all, parity) if all > parity => {
                format!(
                    "without {it} the array cannot start: the parity makes up for {parity} in all, and {failed} failed before"
                )
            }
            (all, parity) if all == parity => {
                format!("or start without {it}: \"dcd serve --degraded {stack}\", with no redundancy left")
            }
            (all, parity) => format!(
                "or start without {it}: \"dcd serve --degraded {stack}\", which survives {} more failures",
                parity - all
            ),
        };
        Refusal::new(
            format!(
                "array \"{layer}\": {} {are} missing, and the superblocks do not say that {it} failed. Missing: {devices}",
                members_named(lacking),
            ),
            format!("reconnect {it}; {instead}"),
        )
    }
}
