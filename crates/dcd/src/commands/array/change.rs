//! Changes the superblocks of an array: `dcd array fail` and `remove`, and the result of `dcd calibrate`.

use std::time::{Duration, Instant};

use dcd_engine::raid::contiguity::Contiguity;
use dcd_engine::raid::offline::{self, forget, mark_failed};
use dcd_engine::raid::{ArrayStatus, DevicesStatus};
use dcd_serve::control::ControlClient;
use serde_json::json;

use crate::cli_array::{ArrayArgs, ArrayFail, ArrayRemove};
use crate::control::{ask, not_served, server_of};
use crate::failure::Failure;
use crate::session::choice::{ArrayChoice, place};
use crate::session::devices::Purpose;
use crate::session::members::{Devices, FoundMember, MemberContent, Standing};
use crate::session::record::Refusal;
use crate::session::serving::status::array_of_server;

/// Maximum wait of a removal for the last commands to a member that has failed, and for the others to record the failure.
const REMOVE_PATIENCE: Duration = Duration::from_secs(10);
const REMOVE_INTERVAL: Duration = Duration::from_millis(20);

pub fn fail(args: &ArrayFail) -> Result<(), Failure> {
    let choice = ArrayChoice::load(&args.array)?;
    if let Some(mut client) = server_of(&choice.site)? {
        let array = array_of_server(&mut client, &choice.layer)?;
        let role = served_role(&choice, &array.devices, &args.member)?;
        let call = json!({ "layer": choice.layer, "command": "fail", "role": role });
        ask(&mut client, "array", call).map_err(refused_by_server)?;
        println!("member {role} is no longer used");
        return Ok(());
    }
    let role = offline_role(&choice, &Devices::open(&choice, Purpose::Look)?, &args.member)?;
    must_start_without(&choice, role)?;
    mark_failed(&mut Devices::open(&choice, Purpose::Change)?.members(), role)?;
    println!("member {role} is no longer used");
    Ok(())
}

/// Returns the role of a server's member, given by number or by the name that it had at the server's start.
fn served_role(choice: &ArrayChoice, devices: &DevicesStatus, member: &str) -> Result<usize, Failure> {
    let names: Vec<Option<&str>> = devices.member_names.iter().map(Option::as_deref).collect();
    if let Some(role) = names.iter().position(|name| *name == Some(member)) {
        return Ok(role);
    }
    if devices.spare_names.iter().flatten().any(|name| name == member) {
        return Err(Failure::Failed(format!("\"{member}\" is a spare that has no role")));
    }
    // A member that is not open has no other name than that in the stack file.
    let named = choice.role_of(member);
    let named = named.filter(|role| names.get(*role).is_some_and(Option::is_none));
    let number = || member.parse::<usize>().ok().filter(|role| *role < names.len());
    named.or_else(number).ok_or_else(|| {
        let names: Vec<&str> = names.iter().flatten().copied().collect();
        Failure::Failed(format!("the server has no member \"{member}\"; there are: {}", names.join(", ")))
    })
}

fn offline_role(choice: &ArrayChoice, devices: &Devices, member: &str) -> Result<usize, Failure> {
    match devices.by_name(member).and_then(|found| devices.standing(found)) {
        Some(
            Standing::InUse(role)
            | Standing::Outdated(role)
            | Standing::Failed(role)
            | Standing::Rebuilding(role, _),
        ) => Ok(role),
        // A device that is not this member does not tell its role: the stack file does.
        Some(Standing::Spare | Standing::Stale | Standing::Foreign) | None => role(choice, member),
    }
}

/// Refuses if the array would not start without the member. After a crash, the superblocks alone do not tell that: records of the journal
/// may have to be written again.
pub fn must_start_without(choice: &ArrayChoice, role: usize) -> Result<(), Failure> {
    let devices = Devices::open(choice, Purpose::Look)?;
    if !devices.newest.active || devices.newest.reshape.is_some() {
        return Ok(());
    }
    let mut members: Vec<Option<String>> = vec![None; devices.newest.members];
    for found in &devices.found {
        if let Some(Standing::InUse(of) | Standing::Rebuilding(of, _)) = devices.standing(found)
            && of != role
        {
            members[of] = Some(found.name.clone());
        }
    }
    drop(devices);
    let members: Vec<Option<&str>> = members.iter().map(Option::as_deref).collect();
    let without = ArrayChoice::of(choice.site.with_members(&choice.layer, &members), choice.layer.clone());
    without.try_start()?.map(|_| ()).map_err(|Refusal { reason, action }| {
        let why =
            format!("member {role} cannot be spared, as the array would not start without it: {reason}");
        Failure::refused(why, action)
    })
}

/// Converts a server's refusal: a server refuses where data would be lost.
pub fn refused_by_server(error: dcd_serve::control::ClientError) -> Failure {
    match error {
        dcd_serve::control::ClientError::Refused(why) => Failure::refused(why, "nothing was changed"),
        other => other.into(),
    }
}

/// Returns the role of a member, given by name or by number.
fn role(choice: &ArrayChoice, member: &str) -> Result<usize, Failure> {
    let number = || member.parse::<usize>().ok().filter(|role| *role < choice.members.len());
    choice.role_of(member).or_else(number).ok_or_else(|| {
        Failure::Failed(format!(
            "no member is called \"{member}\"; there are: {}",
            choice.members.iter().flatten().cloned().collect::<Vec<_>>().join(", ")
        ))
    })
}

pub fn remove(args: &ArrayRemove) -> Result<(), Failure> {
    let choice = ArrayChoice::load(&args.array)?;
    if let Some(client) = server_of(&choice.site)? {
        return remove_served(&choice, client, &args.name);
    }
    let name = named(&choice, &args.name, "remove")?;
    if !choice.site.is_there(name) {
        return remove_absent(&choice, name);
    }
    let mut devices = Devices::open(&choice, Purpose::Change)?;
    let found = take(&mut devices, name)?;
    let refuse = |why: String, advice: &str| Err(Failure::refused(why, advice));
    match devices.standing(&found) {
        Some(Standing::InUse(role) | Standing::Outdated(role)) => {
            return refuse(
                format!("\"{name}\" is member {role}, and in use"),
                "\"dcd array fail\" first, if it can be spared",
            );
        }
        Some(Standing::Rebuilding(role, _)) => {
            return refuse(
                format!("\"{name}\" is being rebuilt as member {role}"),
                "\"dcd array fail\" ends the rebuild",
            );
        }
        Some(Standing::Foreign) => {
            return refuse(
                format!("\"{name}\" is a member of another array"),
                "remove it there, with that array's stack file",
            );
        }
        None => return Err(Failure::Failed(format!("\"{name}\" has no superblock: it is in no array"))),
        Some(Standing::Failed(_) | Standing::Stale | Standing::Spare) => {}
    }
    let called = place(&choice, name);
    let mut device = found.device.expect("it has a superblock");
    forget(&mut device).map_err(|error| Failure::Failed(format!("\"{name}\": {error}")))?;
    println!(
        "\"{name}\" ({called}) no longer belongs to an array, and is filled completely if it is added again: take it out of {}",
        choice.site.path.display()
    );
    Ok(())
}

/// Removes a missing device, whose superblock cannot be wiped.
fn remove_absent(choice: &ArrayChoice, name: &str) -> Result<(), Failure> {
    let (devices, called) = (Devices::open(choice, Purpose::Look)?, place(choice, name));
    let role = choice.role_of(name);
    if let Some(role) = role.filter(|role| devices.newest.failed >> role & 1 == 0 && !devices.has(*role)) {
        return Err(Failure::refused(
            format!(
                "\"{name}\" is member {role}, and is missing, but the superblocks do not say that it has failed"
            ),
            "reconnect it, or \"dcd array fail\" first, if it can be spared",
        ));
    }
    println!(
        "\"{name}\" ({called}) is missing, and has no role: nothing was changed. Take it out of {}",
        choice.site.path.display()
    );
    Ok(())
}

/// Tells the server to close the device, by the name that it had when the server opened it. The stack file may no longer have that name.
fn remove_served(choice: &ArrayChoice, mut client: ControlClient, name: &str) -> Result<(), Failure> {
    let until = Instant::now() + REMOVE_PATIENCE;
    let array = array_of_server(&mut client, &choice.layer)?;
    let name = &by_role(&array.devices, name).unwrap_or_else(|| name.to_owned());
    if !choice.site.is_there(name) && is_closed(choice, &array.devices, name) {
        println!("\"{name}\" is missing, and the server does not have it open: nothing was changed");
        return Ok(());
    }
    let call = json!({ "layer": choice.layer, "command": "remove", "name": name });
    let was_free = loop {
        let array = array_of_server(&mut client, &choice.layer)?;
        let removed = ask(&mut client, "array", call.clone());
        let Err(refused) = removed else { break has_free_place(&array, name) };
        // The refused command makes the array record the failure, so a later try may succeed.
        if !is_letting_go(&array) || Instant::now() >= until {
            return Err(refused_by_server(refused));
        }
        std::thread::sleep(REMOVE_INTERVAL);
    };
    let next = match was_free {
        true => "\"dcd array add\" adds it again, or another device in its place",
        false => "another device has its place: to add it as a spare, name it in \"spares\"",
    };
    println!("\"{name}\" is closed, and no longer used: nothing on it was changed. {next}");
    Ok(())
}

/// Returns the name of the server's member with this role number, unless a device has the number as its name.
fn by_role(devices: &DevicesStatus, name: &str) -> Option<String> {
    let role = name.parse::<usize>().ok().filter(|_| !devices.is_open(name))?;
    devices.member_names.get(role)?.clone()
}

/// True when the server has no device open for the member that the stack file calls `name`.
fn is_closed(choice: &ArrayChoice, devices: &DevicesStatus, name: &str) -> bool {
    let role = choice.role_of(name);
    role.is_some_and(|role| !devices.is_open(name) && devices.open_members.get(role) == Some(&false))
}

/// True when the device was a member, and no other device has its place.
fn has_free_place(array: &ArrayStatus, name: &str) -> bool {
    let names = array.devices.member_names.iter().enumerate();
    let mut roles = names.filter(|(_, member)| member.as_deref() == Some(name)).map(|(role, _)| role);
    roles.any(|role| array.has_failed(role) && array.rebuilding_member != Some(role))
}

/// True when the server cannot yet close some member that has failed, and that no other device replaces.
fn is_letting_go(array: &ArrayStatus) -> bool {
    array.held_members.iter().any(|role| array.rebuilding_member != Some(*role))
}

/// Stores the result of the stride benchmark, which `found` makes from the stored one. The array uses it from its next start on.
pub fn store_calibration(
    args: &ArrayArgs,
    found: impl FnOnce(Option<&Contiguity>) -> Contiguity,
) -> Result<Contiguity, Failure> {
    let choice = ArrayChoice::load(args)?;
    not_served(&choice.site, "store the result")?;
    let mut devices = Devices::open(&choice, Purpose::Change)?;
    let calibration = found(devices.newest.calibration.as_ref());
    offline::store_calibration(&mut devices.members(), &calibration)?;
    Ok(calibration)
}

/// Finds a device of the array, given by name or by role number.
pub fn named<'a>(choice: &'a ArrayChoice, name: &str, verb: &str) -> Result<&'a str, Failure> {
    let names = choice.names();
    let by_role = || choice.members.get(name.parse::<usize>().ok()?)?.as_deref();
    names.iter().find(|other| **other == name).copied().or_else(by_role).ok_or_else(|| {
        Failure::Failed(format!(
            "\"{name}\" is not in \"of\" or \"spares\" of layer \"{}\": name it there to {verb} it; there are: {}",
            choice.layer,
            names.join(", ")
        ))
    })
}

/// Takes a device out of `devices`; fails if it could not be opened.
pub fn take(devices: &mut Devices, name: &str) -> Result<FoundMember, Failure> {
    let place = devices.found.iter().position(|found| found.name == name).expect("all names are there");
    let found = devices.found.remove(place);
    match (&found.device, &found.content) {
        (None, MemberContent::Unreadable(why)) => Err(Failure::Failed(why.clone())),
        _ => Ok(found),
    }
}
