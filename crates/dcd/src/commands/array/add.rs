//! `dcd array add`: a device becomes a spare, or the new member in the place of one that has failed. A served array takes spares,
//! and fills them by itself.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use dcd_engine::raid::offline::{make_spare, replace};
use dcd_engine::{BlockDevice, SECTOR_BYTES};
use dcd_serve::control::Client;
use dcd_stack::{DeviceSource, HumanBytes};
use serde_json::{Value, json};

use crate::attachment::{Refusal, uuid_text};
use crate::cli_array::ArrayAdd;
use crate::commands::array::Choice;
use crate::commands::array::change::{named, refused_by_server, take};
use crate::commands::array::devices::{Devices, Found, Standing, may_overwrite, random_id, refused};
use crate::failure::Failure;
use crate::opening::{start, target};

/// How often a server is asked whether a device has become a spare.
const INTERVAL: Duration = Duration::from_millis(50);

pub fn run(args: &ArrayAdd) -> Result<(), Failure> {
    let choice = Choice::load(&args.array)?;
    let name = named(&choice, &args.name, "add")?;
    match choice.server()? {
        Some(client) => Served { choice: &choice, name, client }.add(args.force),
        None => offline(&choice, name, args.force),
    }
}

fn wrong<T>(name: &str, what: &str, advice: &str) -> Result<T, Failure> {
    Err(Failure::Refused(Refusal::new(format!("\"{name}\" {what}"), advice)))
}

fn offline(choice: &Choice, name: &str, force: bool) -> Result<(), Failure> {
    let mut devices = Devices::open(choice)?;
    let found = take(&mut devices, name)?;
    let role = choice.members.iter().position(|member| member.as_deref() == Some(name));
    let standing = devices.standing(&found);
    let wrong =
        |what: &str| Err(Failure::Refused(Refusal::new(format!("\"{name}\" {what}"), "nothing was changed")));
    match standing {
        Some(Standing::InUse(role)) => return wrong(&format!("is member {role} already, and in use")),
        Some(Standing::Rebuilding(role, _)) => {
            return wrong(&format!("is member {role} already, and is being rebuilt"));
        }
        Some(Standing::Spare) if role.is_none() => return wrong("is a spare already"),
        Some(Standing::Failed(_) | Standing::Stale | Standing::Spare | Standing::Foreign) | None => {}
    }
    let mut device = found.device.expect("it was opened");
    // What a failed member still has is in the others.
    let of_no_value = matches!(standing, Some(Standing::Failed(_) | Standing::Stale | Standing::Spare));
    may_overwrite(name, &mut device, force || of_no_value)?;
    let id = random_id()?;
    match role {
        None => {
            make_spare(&mut device, &devices.newest, id).map_err(refused)?;
            println!(
                "\"{name}\" is a spare now: it takes the place of a member that fails, while the array is served"
            );
        }
        Some(role) => {
            replace(&mut devices.members(), role, &mut device, id).map_err(refused)?;
            println!(
                "\"{name}\" is member {role} now: it is filled when the array is served, or by \"dcd array rebuild\""
            );
        }
    }
    Ok(())
}

/// A server that is to take a device.
struct Served<'a> {
    choice: &'a Choice,
    name: &'a str,
    client: Client,
}

impl Served<'_> {
    fn add(mut self, force: bool) -> Result<(), Failure> {
        let name = self.name;
        let before = self.status()?;
        let place = self.place(&before)?;
        let path = self.path()?;
        self.prepare(&before, force)?;
        let call = json!({
            "layer": self.choice.layer, "command": "add", "name": name, "path": path, "place": place,
        });
        self.client.call("array", call, |_| ControlFlow::Continue(())).map_err(refused_by_server)?;
        let is_in = |list: &Value| list.as_array().is_some_and(|all| all.contains(&json!(place)));
        loop {
            let status = self.status()?;
            let role = status["holders"].as_array().and_then(|all| all.iter().position(|h| *h == place));
            if let Some(role) = role {
                println!(
                    "\"{name}\" is member {role} now: it is being filled; \"dcd array rebuild\" shows how far it is"
                );
                return Ok(());
            }
            if is_in(&status["spares"]) {
                println!("\"{name}\" is a spare now: it takes the place of a member that fails");
                return Ok(());
            }
            if !is_in(&status["joining"]) {
                let mut notes = status["advice"].as_array().into_iter().flatten().filter_map(Value::as_str);
                let note = notes.rfind(|note| note.starts_with(&format!("spare {place} ")));
                let why = note.unwrap_or("see \"dcd array status\"");
                return Err(Failure::Failed(format!("\"{name}\" is no spare: {why}")));
            }
            std::thread::sleep(INTERVAL);
        }
    }

    fn status(&mut self) -> Result<Value, Failure> {
        let all = self.client.call("status", json!({}), |_| ControlFlow::Continue(()))?;
        let layer = &all["layers"][&self.choice.layer];
        if layer["spare_places"].is_u64() {
            return Ok(layer.clone());
        }
        Err(Failure::Failed(format!("the server has no array \"{}\"", self.choice.layer)))
    }

    /// Its place among the spares, behind those that the server knows.
    fn place(&self, status: &Value) -> Result<usize, Failure> {
        let known = status["spare_places"].as_u64().unwrap_or(0) as usize;
        let Some(place) = self.choice.spares.iter().position(|spare| spare == self.name) else {
            return wrong(
                self.name,
                "is a member in the stack file, and the array is served: there a new device begins as a spare",
                "name it in \"spares\" and add it: it takes the place of the member that has failed. Or stop the server first",
            );
        };
        if place < known {
            return wrong(self.name, "is a spare of the server already", "nothing was changed");
        }
        if place > known {
            let first = &self.choice.spares[known];
            return wrong(
                self.name,
                "is not the next spare that the server gets",
                &format!("add \"{first}\" first"),
            );
        }
        Ok(place)
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        let device = self.choice.file.devices.iter().find(|device| device.name == self.name);
        match device.map(|device| &device.source) {
            Some(DeviceSource::Path { path, .. }) => {
                std::path::absolute(path).map_err(|e| Failure::io(path.display(), e))
            }
            _ => wrong(
                self.name,
                "is no file or block device: a server cannot build layers while it runs",
                "stop the server, add it, and serve the array again",
            ),
        }
    }

    /// Looks at the device before the server overwrites its superblocks.
    fn prepare(&self, status: &Value, force: bool) -> Result<(), Failure> {
        let name = self.name;
        let (offline, parts) = start(&self.choice.file, &[name], false)?;
        let found = Found::new(name, offline.part(target(&parts, name)));
        let needed = status["member_sectors_min"].as_u64().unwrap_or(0);
        let uuid = found.superblock().map(|(superblock, _)| uuid_text(superblock.uuid));
        let of_this = uuid.is_some_and(|uuid| status["uuid"] == uuid);
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
        // What a device has that is a member of this array, and not in use here, is in the others.
        may_overwrite(name, &mut device, force || of_this)
    }
}
