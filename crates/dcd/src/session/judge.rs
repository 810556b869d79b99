//! Decides which log caches may be started, by what was seen of them: each log belongs to its data disk, and no other machine serves it.

use std::path::Path;

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::Superblock;

use super::below::stands_on_a_cache;
use super::choice::CacheChoice;
use super::machine;
use super::record::{
    Attachment, AttachmentState, LogSeen, NO_LOG, Record, Refusal, Start, admit_not_retired, admit_start,
    admit_told, admit_without_record, uuid_text,
};
use super::running::Admitted;
use crate::failure::Failure;

/// The data disk's record, and the content of the log's device, which may not even open.
pub struct Inspection {
    pub record: Option<Record>,
    pub seen: LogSeen,
    pub superblock: Option<Superblock>,
}

/// Refuses a log that another machine may be serving, unless the stack is taken over.
pub fn admit_machine(choice: &CacheChoice, superblock: &Superblock) -> Result<(), Failure> {
    match superblock.other_machine(machine::this()) {
        Some(other) if !choice.site.asked.take_over => {
            Err(LogError::OtherMachine { other, this: machine::this() }.into())
        }
        _ => Ok(()),
    }
}

/// Decides if the log of a cache may be used with its data disk.
pub fn admit_log(choice: &CacheChoice, record: &Record, seen: &LogSeen) -> Result<Start, Failure> {
    let log = choice.log_name();
    if matches!(seen, LogSeen::Missing(_)) {
        let instead = "To discard it: \"dcd serve --without-cache --force\"";
        admit_without_record(record.lost()?, record.teller(), false, instead)?;
    }
    let start = admit_start(&record.load()?, record.extent(), &log, seen)?;
    if start == Start::Unrecorded {
        admit_unrecorded(record, &log, seen, false)?;
    }
    Ok(start)
}

/// Decides if a log may be used with a disk that has no record of it. The disk itself, or this machine, may say that the cache is out of
/// use. `force` overrides that, but not another cache.
pub fn admit_unrecorded(record: &Record, log: &Path, seen: &LogSeen, force: bool) -> Result<(), Failure> {
    let LogSeen::Present { uuid, .. } = seen else { return Ok(()) };
    if let Some(told) = record.told().filter(|told| !(force && told.is_empty())) {
        admit_told(told, record.teller(), log, uuid)?;
    }
    Ok(admit_not_retired(!force && record.is_retired(uuid)?, log, uuid)?)
}

/// Admits a cache by what was seen of it: it may be started.
pub fn admit_seen(choice: &CacheChoice, seen: Inspection) -> Result<Admitted, Failure> {
    let layer = choice.layer.clone();
    let Inspection { record, seen, superblock } = seen;
    if let Some(superblock) = &superblock {
        admit_machine(choice, superblock)?;
    }
    let cache = superblock.as_ref().map(|superblock| uuid_text(superblock.cache_uuid));
    let Some(record) = record else {
        if let LogSeen::Missing(why) = seen {
            return Err(Failure::refused(format!("there is no log: {why}"), NO_LOG));
        }
        return Ok(Admitted { layer, mirror: None, record: None, unrecorded: None, cache });
    };
    let start = admit_log(choice, &record, &seen).map_err(|failure| match failure {
        Failure::Refused(refusal) => Failure::Refused(only_this_one(choice, refusal)),
        other => other,
    })?;
    let unrecorded = superblock.filter(|_| start == Start::Unrecorded);
    let unrecorded = unrecorded.map(|superblock| of_unknown_content(choice, &record, &superblock));
    let mirror = choice.site.mirror_below(&choice.log).map(|mirror| mirror.name.clone());
    Ok(Admitted { layer, mirror, record: Some(record), unrecorded, cache })
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

/// Makes the attachment of a cache that the record lacks. Its amount of dirty data is unknown.
pub fn of_unknown_content(choice: &CacheChoice, record: &Record, superblock: &Superblock) -> Attachment {
    let found = choice.attachment(record.extent(), superblock, AttachmentState::Dirty);
    Attachment { dirty_bytes: None, ..found }
}
