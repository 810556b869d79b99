//! Members and spares of arrays, legs of logs, and data disks of logs with several, whose devices are missing.
//!
//! | the device that is missing                                   | a start                                   |
//! |----------------------------------------------------------------|-------------------------------------------|
//! | has failed, or another device has its role: superblocks say so | goes on without it                        |
//! | is a spare that has no role                                    | goes on without it                        |
//! | is a member                                                    | is refused, unless the user has allowed it |
//! | is a leg, and the labels say that it has failed                | goes on without it                        |
//! | is a leg                                                       | is refused, unless a person has allowed it |
//! | is a data disk of several, and the log is there                | is refused, unless the user has allowed it |
//!
//! A member that is only late would lack what is written meanwhile, and one more failure would lose data. A leg that is only late may have
//! writes that were acknowledged while the others were away: only a person who has looked can say that it is gone. A data disk that is only
//! late loses nothing: the log keeps what it has for it. But its path may be wrong, and its clients wait for it.

use dcd_engine::raid::members_named;

use crate::control::stack_argument;
use crate::session::choice::{ArrayChoice, CacheChoice, place};
use crate::session::judge::CacheSeen;
use crate::session::members::{Devices, Standing};
use crate::session::record::{LogSeen, Refusal};

/// Decides if an array may start without its devices `absent`. `degraded`: even if no superblock calls them failed. Returns the names of
/// all devices that are left out, and a line for the administrator about each.
pub fn without<'a>(
    choice: &'a ArrayChoice,
    absent: &'a [&'a str],
    devices: &'a Devices,
    degraded: bool,
) -> Result<(Vec<&'a str>, Vec<String>), Refusal> {
    let looked = Looked { choice, absent, devices };
    let lacking = looked.lacking();
    if !lacking.is_empty() && !degraded {
        return Err(looked.refusal(&lacking));
    }
    let stale = lacking.iter().filter_map(|role| looked.stale(*role));
    let names: Vec<&str> = absent.iter().copied().chain(stale).collect();
    let told = |name: &&str| {
        format!("array \"{}\": {} is missing, and is left out", choice.layer, looked.called(name))
    };
    let told = names.iter().map(told).collect();
    Ok((names, told))
}

/// Decides if a log may start without the data disks of several that are missing. `allowed`: the user has said so. Returns their numbers, and
/// a line for the administrator about each.
pub fn without_disks(
    choice: &CacheChoice,
    seen: &[CacheSeen],
    allowed: bool,
) -> Result<(Vec<usize>, Vec<String>), Refusal> {
    let all = choice.of_disks();
    let missing: Vec<(&CacheChoice, &String)> =
        all.iter().zip(seen).filter_map(|(choice, seen)| Some((choice, seen.missing.as_ref()?))).collect();
    let missing = with_their_devices(&all, missing);
    let [(first, why), ..] = missing.as_slice() else { return Ok((Vec::new(), Vec::new())) };
    let is_known = |choice: &CacheChoice| {
        let superblock = seen[choice.disk].superblock.as_ref();
        superblock.is_some_and(|superblock| {
            choice.disk < superblock.space().count() && superblock.space().sectors(choice.disk) > 0
        })
    };
    // Without a log, or with nothing to serve, the disks are judged one by one.
    let has_log = matches!(seen[first.disk].log, LogSeen::Present { .. });
    if !has_log || !missing.iter().all(|(choice, _)| is_known(choice)) {
        return Ok((Vec::new(), Vec::new()));
    }
    let is_free = |choice: &&CacheChoice| choice.site.is_free_place(&choice.data);
    if missing.len() == all.iter().filter(|choice| !is_free(choice)).count() {
        let names: Vec<String> = missing.iter().map(|(choice, _)| named(choice)).collect();
        return Err(Refusal::new(
            format!("all data disks of \"{}\" are missing: {}", choice.layer, names.join(", ")),
            "reconnect them, or correct their paths in the stack file: the log keeps what it has for them",
        ));
    }
    let logs = choice.legs().into_iter().chain([choice.log.as_str()]);
    let on_log =
        |(disk, _): &&(&CacheChoice, &String)| logs.clone().any(|log| is_beside(choice, &disk.data, log));
    if let Some((disk, why)) = missing.iter().find(on_log) {
        return Err(Refusal::new(
            format!(
                "data disk {} of \"{}\" cannot be read: {why}. The log is on the same device",
                named(disk),
                choice.layer
            ),
            "repair the device, or copy it to a good one, and name that in the stack file: a start would write to it",
        ));
    }
    if !allowed {
        let others: Vec<String> = missing[1..].iter().map(|(choice, _)| named(choice)).collect();
        let refusal = missing_disk(first, why);
        return Err(match others.as_slice() {
            [] => refusal,
            others => Refusal {
                reason: format!("{}. Also missing: {}", refusal.reason, others.join(", ")),
                ..refusal
            },
        });
    }
    let told = |(choice, why): &(&CacheChoice, &String)| {
        format!(
            "log cache \"{}\": data disk {} is missing, and is not served ({why}). The log keeps what it has for it. Reconnect it, then \
             start the server again: {}",
            choice.layer,
            named(choice),
            restart(&stack_argument(&choice.site.path), choice.site.serve.fuse.is_some())
        )
    };
    Ok((missing.iter().map(|(choice, _)| choice.disk).collect(), missing.iter().map(told).collect()))
}

/// Returns the commands that start a server again. `has_image`: its loop devices end with it.
pub fn restart(stack: &str, has_image: bool) -> String {
    match has_image {
        true => format!("unmount its devices; dcd stop {stack} && dcd serve {stack}"),
        false => format!("dcd stop --for-restart {stack} && dcd serve {stack}"),
    }
}

/// Adds the data disks on the same devices: a device is left out as a whole.
fn with_their_devices<'a>(
    all: &'a [CacheChoice],
    missing: Vec<(&'a CacheChoice, &'a String)>,
) -> Vec<(&'a CacheChoice, &'a String)> {
    let why = |choice: &CacheChoice| {
        let own = missing.iter().find(|(other, _)| other.disk == choice.disk);
        own.or_else(|| missing.iter().find(|(other, _)| is_beside(choice, &choice.data, &other.data)))
    };
    all.iter().filter_map(|choice| why(choice).map(|(_, why)| (choice, *why))).collect()
}

/// True for two parts on one device.
fn is_beside(choice: &CacheChoice, part: &str, other: &str) -> bool {
    let device = |part: &str| choice.site.bottom_device(part).map(|device| &device.name);
    device(part).is_some() && device(part) == device(other)
}

/// Refuses what needs a data disk of several that is missing.
pub fn missing_disk(choice: &CacheChoice, why: &str) -> Refusal {
    let stack = choice.site.path.display();
    Refusal::new(
        format!("data disk {} of \"{}\" is missing: {why}", named(choice), choice.layer),
        format!(
            "reconnect it, or correct its path in the stack file. Or serve the other disks without it: \"dcd serve --degraded {stack}\". \
             Nothing is lost by that: the log keeps what it has for the missing disk"
        ),
    )
}

/// Returns the name of a data disk, and its path.
fn named(choice: &CacheChoice) -> String {
    let path = choice.site.path_below(&choice.data).map(|path| format!(" ({})", path.display()));
    format!("\"{}\"{}", choice.data, path.unwrap_or_default())
}

/// An array that lacks devices, as the superblocks of the others describe it.
struct Looked<'a> {
    choice: &'a ArrayChoice,
    absent: &'a [&'a str],
    devices: &'a Devices,
}

impl<'a> Looked<'a> {
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
        let path = self.choice.site.path_below(name).map(|path| format!(", {}", path.display()));
        let place = place(self.choice, name);
        format!("{place} (\"{name}\"{})", path.unwrap_or_default())
    }

    fn refusal(&self, lacking: &[usize]) -> Refusal {
        let newest = &self.devices.newest;
        let (layer, parity) = (&self.choice.layer, newest.level.parity());
        let devices = self.absent.iter().map(|name| self.called(name)).collect::<Vec<_>>().join(", ");
        let (are, it) = if lacking.len() == 1 { ("is", "it") } else { ("are", "them") };
        let failed = newest.failed.count_ones() as usize;
        let stack = self.choice.site.path.display();
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
