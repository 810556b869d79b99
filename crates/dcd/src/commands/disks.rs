//! Adds a data disk to a log, or removes one. A server does so beside its clients; `session::serving::disks` has its steps.
//!
//! | step of an addition | after a crash behind it, the command is repeated and |
//! |---|---|
//! | 1. the attachment record of the disk, with a new id of the disk | finds the id in the record alone: begins anew |
//! | 2. a superblock of the log, with that id | finds the id in the log: goes on with 3 |
//! | 3. the stack file | finds the disk in the file: nothing is left |
//!
//! | step of a removal | after a crash behind it, the command is repeated and |
//! |---|---|
//! | 1. all dirty data is written back | finds an empty log |
//! | 2. a superblock of the log, in which the place is free | does not find the id of the record in the log: goes on with 3 |
//! | 3. the attachment record says that the disk has left | the same: goes on with 4 |
//! | 4. the stack file | does not find the disk in the file: refused |
//! | 5. the attachment record is removed | as above; the record that stays lets the disk be used |
//!
//! Between the superblock and the stack file a start is refused: log and file have different disks. No disk is added meanwhile: it could get
//! the place that the stack file gives to the disk that has left.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use dcd_engine::BlockDevice;
use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::LogSuperblock;
use dcd_engine::log_cache::offline::{
    RescueOptions, add_disk, next_place, read_superblock, remove_disk, rescue,
};
use dcd_serve::control::{ClientError, ControlClient};
use dcd_stack::{DeviceSource, HumanBytes, StackFile};
use serde_json::{Value, json};

use crate::advice::Advised;
use crate::commands::remove::{RELEASE_MAX, patiently};
use crate::commands::rescue::unwritten;
use crate::commands::{attach, one_disk};
use crate::control::{ask, server_of};
use crate::failure::Failure;
use crate::progress::Progress;
use crate::session::absent::missing_disk;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::{admit_left, admit_machine, has_left_log, judge_cache, no_disk_of_this_log};
use crate::session::machine;
use crate::session::open::OpenedCache;
use crate::session::overwrite::log_in_use;
use crate::session::random::random_uuid;
use crate::session::record::{
    Attachment, AttachmentState, DiskRecord, admit_attach, admit_without_record, uuid_text,
};
use crate::session::serving::front_ends::own_path;
use crate::session::site::Site;
use crate::session::stack_text::{edit, may_edit};
use crate::session::survey::{inspect, open_record, record, start, target, why_missing};
use crate::session::system::is_by_content;

/// Adds a data disk to the log of a stack, and returns the text for the user. `force`: discards the cache that the disk has.
pub fn add(stack: &Path, name: &str, data: &Path, force: bool) -> Result<String, Failure> {
    let file = StackFile::load(stack)?;
    let path = DeviceSource::absolute(data).map_err(|error| Failure::io(data.display(), error))?;
    if is_by_content(&path) {
        return Err(names_content(&path));
    }
    let server = server_of(&file)?;
    let then = if server.is_some() { "" } else { ": start its server again" };
    let said = |place: usize| {
        let stack = stack.display();
        format!("\"{name}\" is data disk {} of the log of {stack}{then}", place + 1)
    };
    if let Some(place) = file.served_disks().iter().position(|known| *known == name)
        && file.path_below(name) == Some(&path)
    {
        let own = one_disk::find(&CacheChoice::of(file.clone(), Some(&file.export))?, name)?;
        return match why_missing(&own) {
            Ok(Some(why)) => Err(missing_disk(&own, &why).into()),
            // The server has it.
            Ok(None) | Err(Failure::Busy(_)) => Ok(said(place)),
            Err(failure) => Err(failure),
        };
    }
    let changed = |place| {
        file.with_disk(place, name, &path)
            .map_err(|why| Failure::Failed(format!("{}: {why}. Nothing was changed", stack.display())))
    };
    // Whether the file can have the disk at all is known before anything is opened.
    let places = if file.serves_several() { file.served_disks().len() } else { 1 };
    let trial = StackFile::parse(&changed(places)?, stack)?;
    may_edit(stack)?;
    let named = CacheChoice::of(file.clone(), Some(&file.export))?;
    if let Some(mut client) = server {
        let (place, told) = add_to_served(&mut client, &named, trial.into(), (name, &path), force)?;
        put(stack, |file| {
            let is_known =
                file.served_disks().get(place) == Some(&name) && file.path_below(name) == Some(&path);
            if is_known { Ok(file.text().to_owned()) } else { file.with_disk(place, name, &path) }
        })?;
        return Ok(said(place) + &told);
    }
    let choice = CacheChoice::of(trial, Some(&file.export))?.holding(Purpose::Change);
    let (offline, parts) = start(&choice.site, &[&choice.log, name], Purpose::Change)?;
    let (mut log, mut disk) = (offline.part(target(&parts, &choice.log)), offline.part(target(&parts, name)));
    let superblock = read_superblock(&mut log)?;
    admit_machine(&superblock, machine::this(), &choice.site.asked)?;
    refuse_log(&mut disk, &path)?;
    has_left(&named, |place, _| superblock.has_disk(place))?;
    let record = record(&choice.site, &parts, name)?;
    let place = match record.as_ref().map(|record| known_place(record, &superblock)).transpose()?.flatten() {
        // An earlier command was cut off.
        Some(place) if named.disks().get(place).is_none_or(|disk| file.is_free_place(disk)) => place,
        Some(place) => return Err(is_in_this_log(&path, place, &named)),
        None if superblock.space().count() != places => {
            return Err(LogError::Disks { found: places, recorded: superblock.space().count() }.into());
        }
        None => {
            let id = note(record.as_ref(), &choice, &superblock, force)?;
            add_disk(&mut log, &mut disk, id)?;
            next_place(&superblock)
        }
    };
    put(stack, |file| file.with_disk(place, name, &path))?;
    Ok(said(place))
}

/// Refuses a name that leads to the device of the cache itself once that is served.
pub fn names_content(data: &Path) -> Failure {
    Failure::refused(
        format!(
            "{} names the data disk by its content, which the cache's device will also show",
            data.display()
        ),
        "name the disk by /dev/disk/by-id. Nothing was changed",
    )
}

/// Has the server of a stack add a disk; returns its place, and text about its front-ends.
fn add_to_served(
    client: &mut ControlClient,
    named: &CacheChoice,
    site: Site,
    (name, path): (&str, &Path),
    force: bool,
) -> Result<(usize, String), Failure> {
    let seen = ask(client, "disk", json!({ "command": "look" }))?;
    let mut names = seen["disks"].as_array().into_iter().flatten();
    has_left(named, |_, disk| names.clone().any(|known| known == disk))?;
    // The command was cut off before it changed the stack file.
    if let Some(place) = names.position(|known| known == name).filter(|place| *place > 0) {
        return match seen["paths"][place].as_str().map(Path::new) {
            Some(other) if other != path => Err(Failure::Failed(format!(
                "the name \"{name}\" is taken: the server has {} as that disk. Nothing was changed",
                other.display()
            ))),
            _ => Ok((place, String::new())),
        };
    }
    admit_new(&site, (name, path), seen["cache"].as_str().unwrap_or(""), force)?;
    let call = json!({ "command": "add", "name": name, "path": path });
    let added = ask(client, "disk", call).map_err(cut_off)?;
    let place = added["disk"]
        .as_u64()
        .ok_or_else(|| Failure::Failed("the server did not tell its place".to_owned()))?;
    let places: Vec<&str> =
        added["places"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut told = if places.is_empty() { String::new() } else { format!(": {}", places.join(", ")) };
    if let Some(why) = added["trouble"].as_str() {
        told += &format!(". It is not served yet: {why}; repair that, and start the server again");
    }
    Ok((place as usize, told))
}

/// Refuses an addition while the stack file names a disk that the log does not have any more. `named`: the cache as the stack file has it.
fn has_left(named: &CacheChoice, is_there: impl Fn(usize, &str) -> bool) -> Result<(), Failure> {
    let mut others = named.disks().iter().enumerate().skip(1);
    match others.find(|(place, disk)| !named.site.is_free_place(disk) && !is_there(*place, disk)) {
        Some((_, disk)) => Err(no_disk_of_this_log(named, disk).into()),
        None => Ok(()),
    }
}

/// Refuses to add a disk that the log has: its record would call it complete.
fn is_in_this_log(path: &Path, place: usize, named: &CacheChoice) -> Failure {
    Failure::refused(
        format!("{} is data disk {} of this log already", path.display(), place + 1),
        format!(
            "{} names that disk \"{}\". Nothing was changed",
            named.site.path.display(),
            named.disks()[place]
        ),
    )
}

/// Refuses a disk that a log cannot have. `cache`: the cache that is to get it.
fn admit_new(site: &Site, (name, path): (&str, &Path), cache: &str, force: bool) -> Result<(), Failure> {
    let (offline, parts) = start(site, &[name], Purpose::Change)?;
    refuse_log(&mut offline.part(target(&parts, name)), path)?;
    match record(site, &parts, name)? {
        Some(record) => admit_record(&record, cache, force),
        None => Ok(()),
    }
}

fn refuse_log(disk: &mut dyn BlockDevice, path: &Path) -> Result<(), Failure> {
    match log_in_use(disk) {
        Some(log) => Err(Failure::refused(
            format!("{} has {log} on it", path.display()),
            "if that cache is out of use, \"dcd detach\" it first. Nothing was changed",
        )),
        None => Ok(()),
    }
}

/// Refuses a disk that has another cache, as its record says.
fn admit_record(record: &DiskRecord, cache: &str, force: bool) -> Result<(), Failure> {
    let instead = "serve it with that cache first. Nothing was changed";
    admit_without_record(record.seen(None)?.lost(), record.teller(), false, instead)?;
    let mut all = record.load_with_others()?;
    // The record of an addition that was cut off before the log was written.
    all.0.retain(|own| own.extent() != record.extent() || own.cache_uuid != cache);
    Ok(admit_attach(&all, record.extent(), force)?)
}

/// Tells what to do after a call that a server has not carried out, or not answered.
fn cut_off(error: ClientError) -> Failure {
    match error {
        ClientError::Refused(_) => error.into(),
        error => Failure::Failed(format!("{}: repeat this command", error.told())),
    }
}

/// Returns the place that the disk of this record has in the log.
fn known_place(record: &DiskRecord, superblock: &LogSuperblock) -> Result<Option<usize>, Failure> {
    let all = record.load()?;
    let own = all.of(record.extent()).filter(|own| own.cache_uuid == uuid_text(superblock.cache_uuid));
    Ok(own.and_then(|own| own.place_in(superblock)))
}

/// Makes the record of a disk that is to be added, and returns the id of the disk.
fn note(
    record: Option<&DiskRecord>,
    choice: &CacheChoice,
    superblock: &LogSuperblock,
    force: bool,
) -> Result<[u8; 16], Failure> {
    let id = random_uuid()?;
    let Some(record) = record else { return Ok(id) };
    admit_record(record, &uuid_text(superblock.cache_uuid), force)?;
    let disk = next_place(superblock);
    let attached = Attachment {
        disk,
        disk_uuid: Some(uuid_text(id)),
        ..choice.attachment(record.extent(), superblock, AttachmentState::Clean)
    };
    record.update(|_| attached)?;
    Ok(id)
}

/// Removes a data disk from the log of a stack, and returns the text for the user.
pub fn remove(stack: &Path, name: &str) -> Result<String, Failure> {
    let mut choice = CacheChoice::load(stack, None)?;
    let server = server_of(&choice.site)?;
    if server.is_none() {
        choice = choice.holding(Purpose::Change);
    }
    let file = &choice.site;
    let choices = choice.of_disks();
    let own = match choices.iter().find(|own| own.data == name && choices.len() > 1) {
        Some(own) if own.disk > 0 && !file.is_free_place(name) => own,
        Some(_) => {
            return Err(Failure::Failed(format!(
                "\"{name}\" is the first disk of the log, and stays: remove the others, or \"dcd detach\" all of them. Nothing was changed"
            )));
        }
        None => {
            return Err(Failure::Failed(format!(
                "{}: \"{name}\" is no data disk of a log with several; they are {}. Nothing was changed",
                stack.display(),
                choice.disks().join(", ")
            )));
        }
    };
    // Its clients have it through this device: in use, it is not released.
    let is_released = attach::release(file, Some(name), false)?;
    if let Some(mut client) = server {
        may_edit(stack)?;
        // The kernel closes the image of a loop device, and the connection of an NBD device, some time after the device is gone.
        let wait = if is_released { RELEASE_MAX } else { Duration::ZERO };
        let is_in_use = |failure: &Failure| matches!(failure, Failure::Refused(_));
        patiently(wait, is_in_use, || remove_from_served(&mut client, name))?;
        put(stack, |file| without(file, name))?;
        forget(own);
        // The empty directory of its image, if it had one.
        if let Some(images) = &file.serve.fuse {
            let _ = std::fs::remove_dir(own_path(images, own.disk, name));
        }
        return Ok(format!("\"{name}\" is a plain disk again; the server goes on with the others"));
    }
    let mut written = 0;
    if is_in_log(own)? {
        for choice in &choices {
            let (cache, _) = inspect(choice)?;
            judge_cache(choice, &cache, machine::this(), &file.asked)?;
        }
        let mut opened = OpenedCache::open(&choice, Purpose::Change)?;
        let report = rescue(&mut opened.log, &mut opened.data, RescueOptions::default(), &mut |_| {})?;
        if report.unwritten_bytes > 0 {
            return Err(unwritten(report.unwritten_bytes));
        }
        if !report.is_complete() {
            return Err(Failure::Damage(format!(
                "not removed: {} of dirty data cannot be read back from the log, which keeps it. \"dcd rescue --list\" lists that data",
                HumanBytes(report.unsaved_bytes)
            )));
        }
        written = report.written_bytes + report.zeroed_bytes;
        remove_disk(&mut opened.log, own.disk)?;
    }
    let record = open_record(own)?;
    if let Some(record) = &record {
        record.leave_log()?;
    }
    put(stack, |file| without(file, name))?;
    forget(own);
    let written = HumanBytes(written);
    Ok(format!("\"{name}\" is a plain disk again; {written} of the log were written back to its disks"))
}

/// Has the server of a stack remove a disk, unless it has done so: the command was cut off before it changed the stack file.
fn remove_from_served(client: &mut ControlClient, name: &str) -> Result<(), Failure> {
    let seen = ask(client, "disk", json!({ "command": "look" }))?;
    if !seen["disks"].as_array().into_iter().flatten().any(|known| known == name) {
        return Ok(());
    }
    let mut progress = Progress::new(false);
    let call = json!({ "command": "remove", "name": name });
    let removed = client.call("disk", call, |seen| {
        if let Some(left) = seen["dirty_bytes"].as_u64() {
            progress.left(left);
        }
        ControlFlow::Continue(())
    });
    progress.end();
    match removed {
        Ok(_) => Ok(()),
        Err(ClientError::Refused(why)) => {
            Err(Failure::refused(why, "end its use, or mend what is wrong, and repeat this command"))
        }
        Err(error) => Err(cut_off(error)),
    }
}

/// Removes the record of a disk that has left its log. One that stays does no harm: it calls the disk complete.
fn forget(own: &CacheChoice) {
    let removed = || Ok(open_record(own)?.map_or(Ok(()), |record| record.forget_log())?);
    // A server closes the disk's device some time after the removal.
    let _ = patiently(Duration::from_secs(2), |failure| matches!(failure, Failure::Busy(_)), removed);
}

/// True if the log has the disk: not after a removal that was cut off.
fn is_in_log(own: &CacheChoice) -> Result<bool, Failure> {
    let (cache, _) = inspect(own)?;
    if cache.superblock.as_ref().is_none_or(|superblock| !has_left_log(own, &cache, superblock)) {
        return Ok(true);
    }
    admit_left(own, &cache)?;
    Ok(false)
}

/// The text of a stack file without a disk, which another command may have taken out already.
fn without(file: &StackFile, name: &str) -> Result<String, String> {
    match file.served_disks().iter().position(|known| *known == name) {
        Some(disk) => file.without_disk(disk),
        None => Ok(file.text().to_owned()),
    }
}

/// Changes the stack file, durably.
fn put(stack: &Path, change: impl FnOnce(&StackFile) -> Result<String, String>) -> Result<(), Failure> {
    let again = "The log is changed, the stack file is not: repair what is wrong, and repeat this command";
    edit(stack, again, change)
}
