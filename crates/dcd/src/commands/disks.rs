//! Adds a data disk to a log, or removes one, while the stack is not served.
//!
//! | step of an addition | after a crash behind it, the command is repeated and |
//! |---|---|
//! | 1. the attachment record of the disk, with a new id of the disk | finds the id in the record alone: goes on with 2 |
//! | 2. a superblock of the log, with that id | finds the id in the log: goes on with 3 |
//! | 3. the stack file | finds the disk in the file: nothing is left |
//!
//! | step of a removal | after a crash behind it, the command is repeated and |
//! |---|---|
//! | 1. all dirty data is written back | finds an empty log |
//! | 2. a superblock of the log, in which the place is free | does not find the id of the record in the log: goes on with 3 |
//! | 3. the attachment record is removed | finds the place free: goes on with 4 |
//! | 4. the stack file | does not find the disk in the file: refused |
//!
//! Between the superblock and the stack file a start is refused: log and file have different disks.

use std::path::Path;

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::{LogState, LogSuperblock};
use dcd_engine::log_cache::offline::{
    RescueOptions, add_disk, next_place, read_superblock, remove_disk, rescue,
};
use dcd_stack::{DeviceSource, HumanBytes, StackFile};

use crate::commands::rescue::unwritten;
use crate::control::not_served;
use crate::failure::Failure;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::{admit_machine, judge_cache, place_of};
use crate::session::machine;
use crate::session::open::OpenedCache;
use crate::session::random::random_uuid;
use crate::session::record::durable::replace;
use crate::session::record::{
    Attachment, AttachmentState, DiskRecord, admit_attach, admit_without_record, uuid_text,
};
use crate::session::survey::{inspect, record, start, target};
use crate::session::system::is_by_content;

/// Adds a data disk to the log of a stack, and returns the text for the user. `force`: discards the cache that the disk has.
pub fn add(stack: &Path, name: &str, data: &Path, force: bool) -> Result<String, Failure> {
    let file = StackFile::load(stack)?;
    let path = DeviceSource::absolute(data).map_err(|error| Failure::io(data.display(), error))?;
    not_served(&file, "add the disk")?;
    if is_by_content(&path) {
        return Err(Failure::Failed(format!(
            "{} names the data disk by its content, which the cache's device will also show: name the disk by /dev/disk/by-id. \
             Nothing was changed",
            path.display()
        )));
    }
    let said = |place: usize| {
        let stack = stack.display();
        format!("\"{name}\" is data disk {} of the log of {stack}: start its server again", place + 1)
    };
    if let Some(place) = file.served_disks().iter().position(|known| *known == name)
        && file.path_below(name) == Some(&path)
    {
        return Ok(said(place));
    }
    let changed = |place| {
        file.with_disk(place, name, &path)
            .map_err(|why| Failure::Failed(format!("{}: {why}. Nothing was changed", stack.display())))
    };
    // Whether the file can have the disk at all is known before anything is opened.
    let places = if file.serves_several() { file.served_disks().len() } else { 1 };
    let trial = StackFile::parse(&changed(places)?, stack)?;
    let choice = CacheChoice::of(trial, Some(&file.export))?.holding(Purpose::Change);
    let (offline, parts) = start(&choice.site, &[&choice.log, name], Purpose::Change)?;
    let (mut log, mut disk) = (offline.part(target(&parts, &choice.log)), offline.part(target(&parts, name)));
    let superblock = read_superblock(&mut log)?;
    admit_machine(&superblock, machine::this(), &choice.site.asked)?;
    if read_superblock(&mut disk).is_ok_and(|found| found.state != LogState::Detached) {
        return Err(Failure::refused(
            format!("{} has a log of a cache on it", path.display()),
            "if that cache is out of use, \"dcd detach\" it first. Nothing was changed",
        ));
    }
    let record = record(&choice.site, &parts, name)?;
    let place = match record.as_ref().map(|record| pending(record, &superblock)).transpose()?.flatten() {
        // The log has it already.
        Some(place) => place,
        None if superblock.space().count() != places => {
            return Err(LogError::Disks { found: places, recorded: superblock.space().count() }.into());
        }
        None => {
            let id = note(record.as_ref(), &choice, &superblock, force)?;
            add_disk(&mut log, &mut disk, id)?;
            next_place(&superblock)
        }
    };
    put(stack, &changed(place)?)?;
    Ok(said(place))
}

/// Returns the place that the log has given to the disk of this record, if an earlier command was cut off.
fn pending(record: &DiskRecord, superblock: &LogSuperblock) -> Result<Option<usize>, Failure> {
    let all = record.load()?;
    let own = all.of(record.extent()).filter(|own| own.cache_uuid == uuid_text(superblock.cache_uuid));
    Ok(own.and_then(|own| place_of(superblock, own.disk_uuid.as_deref()?)))
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
    let instead = "serve it with that cache first. Nothing was changed";
    admit_without_record(record.seen(None)?.lost(), record.teller(), false, instead)?;
    let cache = uuid_text(superblock.cache_uuid);
    let mut all = record.load()?;
    // The record of an addition that was cut off before the log was written.
    all.0.retain(|own| own.extent() != record.extent() || own.cache_uuid != cache);
    admit_attach(&all, record.extent(), force)?;
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
    let choice = CacheChoice::load(stack, None)?.holding(Purpose::Change);
    let file = &choice.site;
    not_served(file, "remove the disk")?;
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
    if let (_, Some(record)) = inspect(own)? {
        record.leave_log()?;
    }
    let text = file.without_disk(own.disk).map_err(Failure::Failed)?;
    put(stack, &text)?;
    let written = HumanBytes(written);
    Ok(format!("\"{name}\" is a plain disk again; {written} of the log were written back to its disks"))
}

/// True if the log has the disk: not after a removal that was cut off.
fn is_in_log(own: &CacheChoice) -> Result<bool, Failure> {
    let (cache, record) = inspect(own)?;
    let Some(superblock) = &cache.superblock else { return Ok(true) };
    let all = record.map(|record| record.load().map(|all| (all, record.extent()))).transpose()?;
    let known = all.and_then(|(all, extent)| all.of(extent)?.disk_uuid.clone());
    Ok(match known {
        Some(id) => place_of(superblock, &id).is_some(),
        None => own.disk < superblock.space().count() && superblock.space().sectors(own.disk) > 0,
    })
}

/// Replaces the stack file, durably.
fn put(stack: &Path, text: &str) -> Result<(), Failure> {
    replace(stack, text.as_bytes()).map_err(|error| {
        let again =
            "the log is changed, the stack file is not: repair what is wrong, and repeat this command";
        Failure::io(format!("{}: {again}", stack.display()), error)
    })
}
