//! Judges a start by what was seen. Nothing is read or written here. Every command that starts a stack, or that says whether it would
//! start, asks [`judge`]: so all of them say the same.

use std::collections::BTreeMap;
use std::path::Path;

use dcd_engine::StartError;
use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::{LogState, LogSuperblock};
use dcd_engine::mirror::{FoundLabel, MirrorConfig, may_start};
use dcd_stack::{Asked, LayerSpec, StackFile};

use super::absent;
use super::below::stands_on_a_cache;
use super::choice::{ArrayChoice, CacheChoice};
use super::members::Devices;
use super::record::{
    Attachment, AttachmentState, LogSeen, NO_LOG, RecordSeen, Refusal, StartGrounds, admit_not_retired,
    admit_plain, admit_start, admit_told, admit_without_record, uuid_text,
};
use super::site::Site;
use crate::advice::Advised;

/// A stack before a start. What was not looked at is not in it, and is not judged.
#[derive(Default)]
pub struct SeenStack {
    /// Identity of this machine.
    pub machine: u64,
    /// Arrays of which devices are missing.
    pub arrays: BTreeMap<String, ArraySeen>,
    pub mirrors: BTreeMap<String, MirrorSeen>,
    /// Parts that are served without a log cache.
    pub plain: Vec<PlainSeen>,
    /// Log caches with what was seen of each data disk, in the order of the log.
    pub caches: BTreeMap<String, Vec<CacheSeen>>,
}

pub struct ArraySeen {
    pub absent: Vec<String>,
    /// None if no superblock can be read: the start of the array reports the reason.
    pub devices: Option<Devices>,
}

pub struct MirrorSeen {
    pub absent: Vec<String>,
    /// Labels of the legs that are present; none if they were not read.
    pub labels: Vec<(String, FoundLabel)>,
}

pub struct PlainSeen {
    pub part: String,
    pub record: Option<RecordSeen>,
    /// Description of the log in use, or of the leg of one, that this is.
    pub log_of: Option<String>,
}

pub struct CacheSeen {
    pub log: LogSeen,
    pub superblock: Option<LogSuperblock>,
    /// None for a data disk in RAM, or one that is not one range of a device or array, or that is missing.
    pub record: Option<RecordSeen>,
    /// The reason why a data disk of several cannot be read, if it is missing.
    pub missing: Option<String>,
}

/// Decisions about a start that is not refused.
#[derive(Default)]
pub struct StartPlan {
    /// A line for the administrator about each device that is left out.
    pub told: Vec<String>,
    /// Missing devices that are left out, by the array that names them.
    devices: Vec<(String, Vec<String>)>,
    /// Missing legs that are left out, by their mirror.
    legs: Vec<(String, Vec<String>)>,
    /// Missing data disks of logs with several.
    disks: Vec<String>,
    /// First attachments of the data disks that have no record, by their cache and number.
    pub unrecorded: BTreeMap<(String, usize), Attachment>,
}

impl StartPlan {
    /// Prepares a stack for the start of `parts`.
    pub fn prepare(&self, site: &mut Site, parts: &[&str]) {
        self.devices.iter().for_each(|(array, names)| site.file.leave_out(array, names));
        self.legs.iter().for_each(|(mirror, names)| site.file.leave_out_legs(mirror, names));
        self.disks.iter().for_each(|disk| site.file.leave_out_disk(disk));
        if !self.told.is_empty() {
            site.file.keep_only(parts);
        }
        site.asked.doubt_kept.extend(self.unrecorded.keys().map(|(layer, _)| layer.clone()));
    }
}

/// Decides about a start.
///
/// # Errors
/// The refusal, with the way out that loses nothing first.
pub fn judge(file: &StackFile, seen: &SeenStack, asked: &Asked) -> Result<StartPlan, Refusal> {
    let mut plan = StartPlan::default();
    for (name, array) in file.arrays().filter_map(|(layer, _)| seen.arrays.get_key_value(&layer.name)) {
        let choice = ArrayChoice::of(file.clone(), name.clone());
        let mut absent: Vec<&str> = array.absent.iter().map(String::as_str).collect();
        let (names, told) = match &array.devices {
            Some(devices) => absent::without(&choice, &absent, devices, asked.degraded_members)?,
            None => {
                // Only spares can be left out.
                absent.retain(|name| choice.role_of(name).is_none());
                (absent, Vec::new())
            }
        };
        plan.devices.push((name.clone(), names.into_iter().map(str::to_owned).collect()));
        plan.told.extend(told);
    }
    for (name, mirror) in file.mirrors().filter_map(|(layer, _)| seen.mirrors.get_key_value(&layer.name)) {
        for leg in &mirror.absent {
            let path = file.path_below(leg).map(|path| format!(" ({})", path.display())).unwrap_or_default();
            plan.told.push(format!(
                "log \"{name}\": leg \"{leg}\"{path} is missing, and a start needs the other legs to be whole"
            ));
        }
        plan.legs.push((name.clone(), mirror.absent.clone()));
    }
    seen.plain.iter().try_for_each(no_cache_is_attached)?;
    seen.plain.iter().try_for_each(is_no_log)?;
    let mut caches: Vec<&LayerSpec> = file.log_caches().collect();
    caches.sort_by_key(|layer| layer.place());
    for layer in caches {
        let Some(cache) = seen.caches.get(&layer.name) else { continue };
        let choice = CacheChoice::of(file.clone(), Some(&layer.name)).expect("it is one of the file's");
        let (missing, told) = absent::without_disks(&choice, cache, asked.degraded_disks)
            .map_err(|refusal| of_cache(file, &layer.name, refusal))?;
        plan.told.extend(told);
        let disks = choice.of_disks();
        let present = disks.iter().zip(cache).filter(|(choice, _)| !missing.contains(&choice.disk));
        plan.disks.extend(missing.iter().map(|disk| disks[*disk].data.clone()));
        for (choice, seen_of) in present {
            let unrecorded = judge_cache(choice, seen_of, seen.machine, asked)?;
            plan.unrecorded.extend(unrecorded.map(|found| ((layer.name.clone(), choice.disk), found)));
        }
    }
    for (name, MirrorSeen { labels, .. }) in seen.mirrors.iter().filter(|(_, seen)| !seen.labels.is_empty()) {
        let (names, found): (Vec<String>, Vec<FoundLabel>) = labels.iter().cloned().unzip();
        let config = MirrorConfig { names, degraded: asked.degraded_legs, ..MirrorConfig::default() };
        may_start(&config, &found)
            .map_err(|error| StartError { layer: name.clone(), error: error.into() }.refusal())?;
    }
    Ok(plan)
}

/// Names the cache in its refusal, if the stack has several.
pub fn of_cache(file: &StackFile, layer: &str, refusal: Refusal) -> Refusal {
    match file.log_caches().nth(1) {
        Some(_) => Refusal { reason: format!("log cache \"{layer}\": {}", refusal.reason), ..refusal },
        None => refusal,
    }
}

/// Way out if a log is lost, and its record, too.
const NO_LOG_LEFT: &str =
    "If the log is gone, name it in the stack file all the same, and serve with --without-cache --force";

/// Refuses to serve a disk without the cache that is attached to it: the log has the disk's newest data.
fn no_cache_is_attached(plain: &PlainSeen) -> Result<(), Refusal> {
    let Some(record) = &plain.record else { return Ok(()) };
    admit_without_record(record.lost(), record.teller, false, NO_LOG_LEFT)?;
    admit_plain(&record.all, record.extent)
}

/// Refuses to serve a log as if it were a disk: clients would overwrite its records.
fn is_no_log(plain: &PlainSeen) -> Result<(), Refusal> {
    let Some(log) = &plain.log_of else { return Ok(()) };
    Err(Refusal::new(
        format!("\"{}\" is {log}, not a disk", plain.part),
        "serve the stack of that cache; if that is not used any more, \"dcd detach\" it. A device with read-only = true is \
         served even so",
    ))
}

/// Decides about one log cache of a stack. Returns the first attachment if the data disk has no record.
pub fn judge_cache(
    choice: &CacheChoice,
    seen: &CacheSeen,
    machine: u64,
    asked: &Asked,
) -> Result<Option<Attachment>, Refusal> {
    admit_cache(choice, seen, machine, asked)
        .map_err(|refusal| of_cache(&choice.site, &choice.layer, refusal))
}

/// Decides if the dirty data of a log may be written back. `over_newer` overrides every refusal of a start, except where nothing can be won
/// by that: for another cache, and for a disk that has all that was acknowledged without the log.
pub fn judge_rescue(
    choice: &CacheChoice,
    seen: &CacheSeen,
    machine: u64,
    over_newer: bool,
) -> Result<(), Refusal> {
    let judged = judge_cache(choice, seen, machine, &choice.site.asked).map(|_| ());
    let (Some(record), LogSeen::Present { uuid, .. }, true) = (&seen.record, &seen.log, over_newer) else {
        return judged;
    };
    match (record.all.of(record.extent), record.all.overlapping(record.extent)) {
        (Some(attachment), _) if attachment.cache_uuid == *uuid && !attachment.is_complete() => {
            admit_place(choice, seen)
        }
        (None, None) => {
            admit_place(choice, seen)?;
            admit_unrecorded(record, &choice.log_name(), &seen.log, true)
        }
        _ => judged,
    }
}

fn admit_cache(
    choice: &CacheChoice,
    seen: &CacheSeen,
    machine: u64,
    asked: &Asked,
) -> Result<Option<Attachment>, Refusal> {
    if let (Some(why), LogSeen::Present { .. }) = (&seen.missing, &seen.log) {
        return Err(absent::missing_disk(choice, why));
    }
    if let Some(superblock) = &seen.superblock {
        admit_machine(superblock, machine, asked)?;
    }
    let Some(record) = &seen.record else {
        return match &seen.log {
            LogSeen::Missing(why) => Err(Refusal::new(format!("there is no log: {why}"), NO_LOG)),
            LogSeen::Present { .. } => Ok(None),
        };
    };
    if is_at_rest(record) {
        admit_place(choice, seen)?;
    }
    // An old copy of the log may lack a disk that was added since.
    let start = admit_log(choice, record, &seen.log)
        .map_err(|refusal| others_first(choice, seen, only_this_one(choice, refusal)))?;
    admit_place(choice, seen)?;
    let unrecorded = seen.superblock.as_ref().filter(|_| start == StartGrounds::Unrecorded);
    Ok(unrecorded.map(|superblock| of_unknown_content(choice, record, superblock)))
}

/// Refuses a log that another machine may be serving, unless the stack is taken over.
pub fn admit_machine(superblock: &LogSuperblock, machine: u64, asked: &Asked) -> Result<(), Refusal> {
    match superblock.other_machine(machine) {
        Some(other) if !asked.take_over => Err(LogError::OtherMachine { other, this: machine }.refusal()),
        _ => Ok(()),
    }
}

/// Decides if the log of a cache may be used with its data disk.
fn admit_log(choice: &CacheChoice, record: &RecordSeen, seen: &LogSeen) -> Result<StartGrounds, Refusal> {
    let log = choice.log_name();
    if matches!(seen, LogSeen::Missing(_)) {
        let instead = "To discard it: \"dcd serve --without-cache --force\"";
        admit_without_record(record.lost(), record.teller, false, instead)?;
    }
    let start =
        admit_start(&record.all, record.extent, &log, seen).map_err(|refusal| match &record.stack {
            Some(stack) => Refusal {
                reason: format!("{}. The disk belongs to {}", refusal.reason, stack.display()),
                ..refusal
            },
            None => refusal,
        })?;
    if start == StartGrounds::Unrecorded {
        admit_unrecorded(record, &log, seen, false)?;
    }
    Ok(start)
}

/// True if the disk that the stack file names in this place is not, or no longer, a data disk of the log.
pub fn has_left_log(choice: &CacheChoice, seen: &CacheSeen, superblock: &LogSuperblock) -> bool {
    let Some(record) = seen.record.as_ref() else { return !superblock.has_disk(choice.disk) };
    match record.all.of(record.extent) {
        Some(own) if own.cache_uuid == uuid_text(superblock.cache_uuid) => own.place_in(superblock).is_none(),
        Some(_) => false,
        // The first disk stays, and a format that was cut off has not added the others yet.
        None if choice.disk == 0 || superblock.epoch == 0 => false,
        None => {
            let is_told_plain = record.told.as_ref().is_some_and(Vec::is_empty) && !record.retired;
            !superblock.has_disk(choice.disk) || is_told_plain || record.has_place.is_some()
        }
    }
}

/// True where no record calls a cache of the disk in use: the disk has none, or has left its log.
fn is_at_rest(record: &RecordSeen) -> bool {
    let own = record.all.of(record.extent);
    own.is_none_or(|own| own.state == AttachmentState::Abandoned && !own.may_lose_data())
}

/// Decides if a disk that the log does not have may be taken out of the stack file: not by an old copy of the log.
pub fn admit_left(choice: &CacheChoice, seen: &CacheSeen) -> Result<(), Refusal> {
    match seen.record.as_ref().filter(|record| !is_at_rest(record)) {
        Some(record) => admit_log(choice, record, &seen.log).map(|_| ()),
        None => Ok(()),
    }
}

/// Refuses a data disk in the place of another one of the same log: it would get the other's data.
fn admit_place(choice: &CacheChoice, seen: &CacheSeen) -> Result<(), Refusal> {
    let (Some(record), Some(superblock)) = (&seen.record, &seen.superblock) else { return Ok(()) };
    if superblock.state == LogState::Detached {
        return Ok(());
    }
    if has_left_log(choice, seen, superblock) {
        let refusal = no_disk_of_this_log(choice, &choice.data);
        return Err(match &record.has_place {
            Some(other) => Refusal {
                reason: format!(
                    "{}: its place has the disk of the attachment record {}",
                    refusal.reason,
                    other.display()
                ),
                action: format!(
                    "{}. If that record is of this very disk, which had another name or server then, move it away",
                    refusal.action
                ),
            },
            None => refusal,
        });
    }
    let own = record.all.of(record.extent);
    let own = own.filter(|own| own.cache_uuid == uuid_text(superblock.cache_uuid));
    let data = &choice.data;
    match own.and_then(|own| own.place_in(superblock)) {
        Some(place) if place != choice.disk => Err(Refusal::new(
            format!(
                "\"{data}\" is data disk {} of this log, as its attachment record says, but the stack file names it as number {}",
                place + 1,
                choice.disk + 1
            ),
            "name the disks in \"data\" in the order in which they were added, and each under its own name",
        )),
        _ => Ok(()),
    }
}

/// Refuses a disk that the stack file names, and that is not in the log: it was removed, or never added.
pub fn no_disk_of_this_log(choice: &CacheChoice, disk: &str) -> Refusal {
    let stack = choice.site.path.display();
    Refusal::new(
        format!("\"{disk}\" is no data disk of this log, or none any more"),
        format!(
            "if it was being removed, repeat that: \"dcd remove {stack} --disk {disk}\" takes it out of the stack file, and changes no data. A \
             disk that is to be added must not be in the stack file: \"dcd create\" puts it there"
        ),
    )
}

/// Decides if a log may be used with a disk that has no record of it. The disk itself, or this machine, may say that the cache is out of
/// use. `force` overrides that, but not another cache.
fn admit_unrecorded(record: &RecordSeen, log: &Path, seen: &LogSeen, force: bool) -> Result<(), Refusal> {
    let LogSeen::Present { uuid, .. } = seen else { return Ok(()) };
    if let Some(original) = &record.original {
        return Err(Refusal::new(
            format!(
                "the log {} is of another disk, which is there, too: {}. This one has no attachment record, and may be a copy",
                log.display(),
                original.display()
            ),
            "name that disk in the stack file: nothing is lost. If this one is to take its place, first \"dcd detach\" completes that disk; then copy \
             it, and \"dcd format\" makes a new log for the copy",
        ));
    }
    if let Some(told) = record.told.as_ref().filter(|told| !(force && told.is_empty())) {
        admit_told(told, record.teller, log, uuid)?;
    }
    admit_not_retired(!force && record.retired, log, uuid)
}

/// Adds to a refusal that serving without caches discards the caches below this one, too.
fn only_this_one(choice: &CacheChoice, refusal: Refusal) -> Refusal {
    if !stands_on_a_cache(&choice.site, &choice.data) {
        return refusal;
    }
    let layer = &choice.layer;
    let action = format!(
        "{}. Beware that --without-cache discards the caches below it as well: \"dcd format --layer {layer} --force\" discards this \
         one alone, and makes a new log",
        refusal.action
    );
    Refusal { action, ..refusal }
}

/// Adds to the refusal of a log of several disks that failed, or was detached, how to write back what it has for one that was missing then.
fn others_first(choice: &CacheChoice, seen: &CacheSeen, refusal: Refusal) -> Refusal {
    let attachment = seen.record.as_ref().and_then(|record| record.all.of(record.extent));
    let is_abandoned = attachment.is_some_and(|known| known.state == AttachmentState::Abandoned);
    let is_detached = matches!(seen.log, LogSeen::Present { state: LogState::Detached, .. });
    if choice.disks().len() == 1 || !is_abandoned && !is_detached {
        return refusal;
    }
    let action = format!(
        "first connect each other data disk that was missing then, and write back what the log has for it alone: \"dcd rescue {} --disk NAME\". \
         Then {}",
        choice.site.path.display(),
        refusal.action
    );
    Refusal { action, ..refusal }
}

/// Makes the attachment of a cache that the record lacks. Its amount of dirty data is unknown.
pub fn of_unknown_content(
    choice: &CacheChoice,
    record: &RecordSeen,
    superblock: &LogSuperblock,
) -> Attachment {
    let found = choice.attachment(record.extent, superblock, AttachmentState::Dirty);
    Attachment { dirty_bytes: None, ..found }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
