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

use dcd_engine::raid::members_named;

use crate::session::choice::{ArrayChoice, place};
use crate::session::members::{Devices, Standing};
use crate::session::record::Refusal;

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
