//! Decides which log caches may be started: each log belongs to its data disk.

use std::path::Path;

use dcd_engine::log_cache::format::Superblock;
use dcd_stack::{LayerKind, StackFile};

use super::below::stands_on_a_cache;
use super::choice::CacheChoice;
use super::machine::admit_machine;
use super::open::{Inspection, attachment, inspect};
use super::record::{
    Attachment, AttachmentState, LogSeen, NO_LOG, Record, Refusal, Start, admit_not_retired, admit_start,
    admit_told, admit_without_record, uuid_text,
};
use super::running::{Admitted, RunningCaches};
use crate::failure::Failure;

/// Admits the caches among some parts of a stack and below them: they may be started. Their devices must not be open.
pub fn admit_running(file: &StackFile, parts: &[&str]) -> Result<RunningCaches, Failure> {
    let mut admitted: Vec<Admitted> = Vec::new();
    for part in parts {
        for cache in admit_below(file, part)? {
            if admitted.iter().all(|other| other.layer != cache.layer) {
                admitted.push(cache);
            }
        }
    }
    Ok(RunningCaches::of(admitted))
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

/// Admits the log caches that a part lies on, and the part itself if it is one: they may be started. The lower ones come first.
pub fn admit_below(file: &StackFile, part: &str) -> Result<Vec<Admitted>, Failure> {
    let Some(layer) = file.layer(part) else { return Ok(Vec::new()) };
    let mut admitted = Vec::new();
    for below in layer.kind.below_names() {
        admitted.extend(admit_below(file, below)?);
    }
    if matches!(layer.kind, LayerKind::LogCache { .. }) {
        admitted.push(admit_one(&CacheChoice::of(file.clone(), Some(part))?)?);
    }
    Ok(admitted)
}

pub fn admit_one(choice: &CacheChoice) -> Result<Admitted, Failure> {
    let layer = choice.layer.clone();
    if choice.stands_on_a_cache() {
        // Only the cache below can say what it holds, and only while it is served.
        return Ok(Admitted { layer, mirror: None, record: None, unrecorded: None, cache: None });
    }
    let Inspection { record, seen, superblock } = inspect(choice)?;
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
    let mirror = choice.file.mirror_below(&choice.log).map(|mirror| mirror.name.clone());
    Ok(Admitted { layer, mirror, record: Some(record), unrecorded, cache })
}

/// Adds to a refusal that serving without caches discards the caches below this one, too.
fn only_this_one(choice: &CacheChoice, refusal: Refusal) -> Refusal {
    if !stands_on_a_cache(&choice.file, &choice.data) {
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
    let found = attachment(choice, record.extent(), superblock, AttachmentState::Dirty);
    Attachment { dirty_bytes: None, ..found }
}
