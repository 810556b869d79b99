//! `dcd array add`: makes a device a spare, or the member in the place of one that has failed; the device may be the failed one itself.
//! A served array then fills it without another command.

use std::path::PathBuf;
use std::time::Duration;

use dcd_engine::raid::offline::{ChangeError, make_spare, replace};
use dcd_engine::raid::{ArrayStatus, ArraySuperblock, DevicesStatus};
use dcd_engine::{BlockDevice, SECTOR_BYTES, Seat};
use dcd_serve::control::ControlClient;
use dcd_stack::HumanBytes;
use serde_json::json;

use crate::cli_array::ArrayAdd;
use crate::commands::array::change::{must_start_without, named, refused_by_server, take};
use crate::control::{ask, server_of};
use crate::failure::Failure;
use crate::session::choice::ArrayChoice;
use crate::session::devices::Purpose;
use crate::session::members::{Devices, FoundMember, Standing, apart, newest};
use crate::session::overwrite::may_overwrite;
use crate::session::random::random_id;
use crate::session::record::uuid_text;
use crate::session::serving::status::array_of_server;
use crate::session::survey::{start, target};

/// Polling interval of a server, until a device has become a spare.
const INTERVAL: Duration = Duration::from_millis(50);

pub fn run(args: &ArrayAdd) -> Result<(), Failure> {
    let choice = ArrayChoice::load(&args.array)?;
    let name = named(&choice, &args.name, "add")?;
    match server_of(&choice.site)? {
        Some(client) => AddingServer { choice: &choice, name, client }.add(args.force),
        None => offline(&choice, name, args.force),
    }
}

fn wrong<T>(name: &str, what: &str, advice: &str) -> Result<T, Failure> {
    Err(Failure::refused(format!("\"{name}\" {what}"), advice))
}

fn offline(choice: &ArrayChoice, name: &str, force: bool) -> Result<(), Failure> {
    let role = choice.role_of(name);
    if let Some(role) = role {
        may_take_role(choice, name, role)?;
    }
    let mut devices = Devices::open(choice, Purpose::Change)?;
    let apart = devices.apart().is_some();
    let found = take(&mut devices, name)?;
    if apart {
        devices.newest = without_taken(&devices)?;
    }
    let standing = devices.standing(&found);
    refuse_in_use(name, standing, role)?;
    let mut device = found.device.expect("it was opened");
    // The other members have all the data of these.
    use Standing::{Failed, Outdated, Spare, Stale};
    let of_no_value = matches!(standing, Some(Failed(_) | Outdated(_) | Stale | Spare));
    may_overwrite(&choice.site, &devices.parts, name, &mut device, force || of_no_value)?;
    let id = random_id()?;
    match role {
        None => {
            make_spare(&mut device, &devices.newest, id)?;
            println!(
                "\"{name}\" is a spare now: it takes the place of a member that fails, while the array is served"
            );
        }
        Some(role) => {
            let now = replace(&mut devices.members(), role, &mut device, id)?;
            println!("{}", replaced(name, role, &now));
        }
    }
    Ok(())
}

/// Refuses a device that the array uses already.
fn refuse_in_use(name: &str, standing: Option<Standing>, role: Option<usize>) -> Result<(), Failure> {
    let what = match standing {
        Some(Standing::InUse(role)) => format!("is member {role} already, and in use"),
        Some(Standing::Rebuilding(role, _)) => format!("is member {role} already, and is being rebuilt"),
        Some(Standing::Spare) if role.is_none() => "is a spare already".to_owned(),
        _ => return Ok(()),
    };
    wrong(name, &what, "nothing was changed")
}

/// Describes how a new member is filled, from the superblock that it was given.
fn replaced(name: &str, role: usize, now: &ArraySuperblock) -> String {
    let what = match (now.rebuilding, now.is_returning()) {
        (Some(other), _) if other.role != role => {
            let other = other.role;
            return format!(
                "\"{name}\" becomes member {role} and is filled after member {other}, when the array is served"
            );
        }
        (_, true) => missed(now.away.missed.len(), now.missed_regions_max()),
        (_, false) => "it is filled".to_owned(),
    };
    format!("\"{name}\" is member {role} now: {what} when the array is served, or by \"dcd array rebuild\"")
}

/// Refuses if another device has the role, or if the array might not start without the missing member.
fn may_take_role(choice: &ArrayChoice, name: &str, role: usize) -> Result<(), Failure> {
    let devices = Devices::open(choice, Purpose::Look)?;
    let holds = |found: &&FoundMember| match devices.standing(found) {
        Some(Standing::InUse(other) | Standing::Rebuilding(other, _)) => other == role && found.name != name,
        _ => false,
    };
    if let Some(other) = devices.found.iter().find(holds) {
        return wrong(
            name,
            &format!("cannot be member {role}: \"{}\" already is that member and holds its data", other.name),
            &format!("name \"{}\" as that member in \"of\"; nothing was changed", other.name),
        );
    }
    if devices.newest.failed >> role & 1 == 1 || devices.apart().is_some() {
        return Ok(());
    }
    drop(devices);
    must_start_without(choice, role)
}

/// Returns the superblock of the other devices, from which the added device has diverged. The user chose those devices, even if the
/// added one is newer.
fn without_taken(devices: &Devices) -> Result<ArraySuperblock, Failure> {
    let newest = newest(&devices.found).ok_or(ChangeError::Nobody)?;
    match apart(&newest, devices.found.iter()) {
        Some(apart) => Err(ChangeError::Apart(apart).into()),
        None => Ok(newest),
    }
}

/// Describes the regions that are filled on a member that has come back.
fn missed(regions: u64, most: u64) -> String {
    format!("it was away, and only the {regions} of {most} regions that were written meanwhile are filled")
}

/// A server, and the device that it is to add.
struct AddingServer<'a> {
    choice: &'a ArrayChoice,
    name: &'a str,
    client: ControlClient,
}

impl AddingServer<'_> {
    fn add(mut self, force: bool) -> Result<(), Failure> {
        let name = self.name;
        let mut before = self.status()?;
        if self.is_open_and_unused(&before.devices) {
            let call = json!({ "layer": self.choice.layer, "command": "remove", "name": name });
            ask(&mut self.client, "array", call).map_err(refused_by_server)?;
            before = self.status()?;
        }
        let seat = self.seat(&before)?;
        let path = self.path()?;
        self.prepare(&before, force)?;
        let mut call = json!({ "layer": self.choice.layer, "command": "add", "name": name, "path": path });
        match seat {
            Seat::Spare(place) => call["place"] = place.into(),
            Seat::Member(role) => call["role"] = role.into(),
        }
        ask(&mut self.client, "array", call).map_err(refused_by_server)?;
        loop {
            let status = self.status()?;
            match progress(&status.devices, seat) {
                AddProgress::Member(role) => {
                    let count = |array: &ArrayStatus| array.statistics.members_returned;
                    let what = match count(&status) > count(&before) {
                        true => "it was away, and only what it missed is being filled",
                        false => "it is being filled",
                    };
                    println!(
                        "\"{name}\" is member {role} now: {what}; \"dcd array rebuild\" shows how far it is"
                    );
                    return Ok(());
                }
                AddProgress::Spare => {
                    println!("\"{name}\" is a spare now: it takes the place of a member that fails");
                    return Ok(());
                }
                AddProgress::Joining => std::thread::sleep(INTERVAL),
                AddProgress::Failed => {
                    let mut notes = status.advice.iter();
                    let note = notes.rfind(|note| note.starts_with(&format!("{seat} ")));
                    let why = note.map_or("see \"dcd array status\"", String::as_str);
                    return Err(Failure::Failed(format!("\"{name}\" was not added: {why}")));
                }
            }
        }
    }

    fn status(&mut self) -> Result<ArrayStatus, Failure> {
        array_of_server(&mut self.client, &self.choice.layer)
    }

    /// True when the server has the device open among its spares, but does not use it.
    fn is_open_and_unused(&self, devices: &DevicesStatus) -> bool {
        self.spare_place(devices).is_some_and(|place| {
            let uses = [&devices.spares, &devices.joining];
            !uses.iter().any(|places| places.contains(&place)) && devices.role_of_spare(place).is_none()
        })
    }

    /// Returns the device's place among the spares that the server knows.
    fn spare_place(&self, devices: &DevicesStatus) -> Option<usize> {
        devices.spare_names.iter().position(|name| name.as_deref() == Some(self.name))
    }

    /// Finds the device's seat by the stack file: that of a failed member, or a spare's: the first free one, or a new one after the
    /// last.
    fn seat(&self, array: &ArrayStatus) -> Result<Seat, Failure> {
        if let Some(place) = self.spare_place(&array.devices) {
            let what = match array.devices.role_of_spare(place) {
                Some(role) => format!("is member {role} of the server's array already"),
                None => "is a spare of the server already".to_owned(),
            };
            return wrong(self.name, &what, "to add it again after a failure, \"dcd array remove\" it first");
        }
        if let Some(role) = self.choice.role_of(self.name) {
            return self.member_seat(role, array);
        }
        let known = &array.devices.spare_places;
        Ok(Seat::Spare(known.iter().position(|is_there| !is_there).unwrap_or(known.len())))
    }

    fn member_seat(&self, role: usize, array: &ArrayStatus) -> Result<Seat, Failure> {
        let devices = &array.devices;
        let members = devices.open_members.len();
        if role >= members {
            return wrong(
                self.name,
                &format!("is named after the {members} members that the server's array has"),
                "to add a member, stop the server and use \"dcd array grow\"; to add a spare, name it in \"spares\"",
            );
        }
        if !array.has_failed(role) || array.rebuilding_member == Some(role) {
            if devices.member_names.get(role).is_some_and(|name| name.as_deref() == Some(self.name)) {
                return wrong(
                    self.name,
                    &format!("is member {role} of the server's array already, and in use"),
                    "nothing was changed",
                );
            }
            return wrong(
                self.name,
                &format!("is named as member {role}, which has not failed or already has a new device"),
                "name it in \"spares\" and add it there; in \"of\", name the device that is this member, or \"missing\"",
            );
        }
        if devices.open_members[role] {
            return wrong(
                self.name,
                &format!("is named as member {role}, whose device the server still has open"),
                "\"dcd array remove\" closes that device, by the name that it had",
            );
        }
        Ok(Seat::Member(role))
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        let place =
            self.choice.site.device(self.name).map(|device| device.source.absolute_place()).transpose();
        match place.map_err(|e| Failure::io(self.name, e))?.flatten() {
            Some(place) => Ok(place),
            None => wrong(
                self.name,
                "is not a file, block device or export: a running server cannot build layers",
                "stop the server, add it, and serve the array again",
            ),
        }
    }

    /// Refuses a device that is too small, or whose content may not be overwritten.
    fn prepare(&self, array: &ArrayStatus, force: bool) -> Result<(), Failure> {
        let name = self.name;
        let (offline, parts) = start(&self.choice.site, &[name], Purpose::Look)?;
        let found = FoundMember::new(name, offline.part(target(&parts, name)));
        let needed = array.member_sectors_min;
        let uuid = found.superblock().map(|(superblock, _)| uuid_text(superblock.uuid));
        let of_this = uuid.is_some_and(|uuid| array.uuid == uuid);
        let mut device = found.device.expect("it was opened");
        let sectors = device.geometry().sectors;
        if sectors < needed {
            let (has, needs) = (HumanBytes(sectors * SECTOR_BYTES), HumanBytes(needed * SECTOR_BYTES));
            return wrong(
                name,
                &format!("is too small: it has {has}, and each member {needs}"),
                "name a larger device",
            );
        }
        // A device of this array that is not in use has nothing that the others lack.
        may_overwrite(&self.choice.site, &parts, name, &mut device, force || of_this)
    }
}

/// Progress of a server that adds a device.
enum AddProgress {
    Joining,
    Spare,
    Member(usize),
    Failed,
}

fn progress(devices: &DevicesStatus, seat: Seat) -> AddProgress {
    match seat {
        Seat::Spare(place) => match devices.role_of_spare(place) {
            Some(role) => AddProgress::Member(role),
            None if devices.spares.contains(&place) => AddProgress::Spare,
            None if devices.joining.contains(&place) => AddProgress::Joining,
            None => AddProgress::Failed,
        },
        Seat::Member(role) => match devices.open_members.get(role) {
            Some(true) => AddProgress::Member(role),
            _ if devices.joining_members.contains(&role) => AddProgress::Joining,
            _ => AddProgress::Failed,
        },
    }
}
