//! Checks a stack before it is served: every log belongs to its data disk, or is left out on purpose.

use dcd_engine::log_cache::LogError;
use dcd_engine::log_cache::format::{State, Superblock};
use dcd_engine::log_cache::offline::read_superblock;
use dcd_stack::{DeviceSource, LayerKind, Parts, StackFile};

use crate::failure::Failure;
use crate::session::admit::of_unknown_content;
use crate::session::below::{array_below, is_read_only, stands_on_a_cache};
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::open::{mark, open_log, superblock_of};
use crate::session::record::{
    Attachment, Attachments, Record, Refusal, Teller, admit_plain, admit_without_cache, admit_without_record,
    told_as, uuid_text,
};
use crate::session::running::Admitted;
use crate::session::start::{admit_one, array_record, open_record, start, target};
use crate::session::tell::tell_members;

/// The log caches of a stack, the upper ones first.
pub fn choices(file: &StackFile) -> Result<Vec<CacheChoice>, Failure> {
    let names: Vec<String> = file.log_caches().map(|layer| layer.name.clone()).collect();
    names.iter().rev().map(|name| CacheChoice::of(file.clone(), Some(name))).collect()
}

/// Admits every log cache of a stack, the upper ones first.
pub fn admit(file: &StackFile) -> Result<Vec<Admitted>, Failure> {
    let choices = choices(file)?;
    let by_name = |choice: &CacheChoice| {
        admit_one(choice).map_err(|failure| match failure {
            Failure::Refused(refusal) if choices.len() > 1 => {
                let reason = format!("log cache \"{}\": {}", choice.layer, refusal.reason);
                Failure::Refused(Refusal { reason, ..refusal })
            }
            other => other,
        })
    };
    let admitted = choices.iter().map(by_name).collect::<Result<Vec<Admitted>, Failure>>()?;
    for (choice, Admitted { record, unrecorded, .. }) in choices.iter().zip(&admitted) {
        if let (Some(record), None) = (record, unrecorded) {
            // A format that was killed may not have stored that yet.
            tell_members(file, &choice.data, record, &[])?;
        }
    }
    Ok(admitted)
}

/// Way out if a log is lost, and its record, too.
const NO_LOG_LEFT: &str =
    "If the log is gone, name it in the stack file all the same, and serve with --without-cache --force";

/// Refuses to serve a disk without the cache that is attached to it: the log has the disk's newest data.
pub fn admit_bare(file: &StackFile, parts: &Parts, part: &str) -> Result<(), Failure> {
    let layer = file.layer(part);
    if layer.is_some_and(|layer| matches!(layer.kind, LayerKind::LogCache { .. })) {
        return Ok(());
    }
    let (Some(path), Some((_, extent))) = (file.path_below(part), parts.place(part)) else {
        let below = layer.map_or(Vec::new(), |layer| layer.kind.below_names());
        return below.into_iter().try_for_each(|below| admit_bare(file, parts, below));
    };
    let record = Record::open(path, extent)?;
    admit_without_record(record.lost()?, record.teller(), false, NO_LOG_LEFT)?;
    Ok(admit_plain(&record.load()?, extent)?)
}

/// Refuses an array as [`admit_bare`] does, before the array is opened.
pub fn admit_bare_array(file: &StackFile, part: &str) -> Result<(), Failure> {
    let Some(layer) = file.layer(part).filter(|layer| !matches!(layer.kind, LayerKind::LogCache { .. }))
    else {
        return Ok(());
    };
    if let Some(record) = array_record(file, part)? {
        admit_without_record(record.lost()?, record.teller(), false, NO_LOG_LEFT)?;
        return Ok(admit_plain(&record.load()?, record.extent())?);
    }
    layer.kind.below_names().into_iter().try_for_each(|below| admit_bare_array(file, below))
}

/// Refuses a stack whose layers keep flushed data only in RAM (`non-volatile`), unless the user `consents`.
pub fn admit_non_volatile(file: &StackFile, consents: bool) -> Result<(), Failure> {
    let layers = file.non_volatile_layers();
    let Some(first) = layers.first() else { return Ok(()) };
    let names = layers.iter().map(|name| format!("\"{name}\"")).collect::<Vec<_>>().join(", ");
    if consents {
        eprintln!(
            "dcd: {names}: flushes are answered from RAM; data that is not destaged is lost when this process ends"
        );
        return Ok(());
    }
    Err(Failure::refused(
        format!(
            "layer {names} declares its RAM non-volatile, and would answer flushes from it: what was flushed would be lost \
             when this process is killed or the power fails"
        ),
        format!(
            "remove \"non-volatile = true\" from [layer.{first}]: a flush then destages, and nothing is lost. Or, where losing \
             flushed writes is acceptable, add --i-have-nvram"
        ),
    ))
}

/// Refuses to serve a log as if it were a disk: clients would overwrite its records. A device that is opened for reading only
/// may be a log.
pub fn admit_no_log(file: &StackFile, part: &str) -> Result<(), Failure> {
    let layer = file.layer(part);
    if layer.is_some_and(|layer| matches!(layer.kind, LayerKind::LogCache { .. })) {
        return Ok(());
    }
    let seen = match file.bottom_device(part) {
        Some(device) => {
            let is_memory = matches!(device.source, DeviceSource::Memory { .. });
            if device.read_only || is_memory || !device.is_there() {
                return Ok(());
            }
            look_for_log(file, part).map(Some)?
        }
        None => look_for_log_on_array(file, part)?,
    };
    match seen {
        Some(Ok(superblock)) if superblock.state != State::Detached => Err(Failure::refused(
            format!("\"{part}\" is the log of the cache {}, not a disk", uuid_text(superblock.cache_uuid)),
            "serve the stack of that cache; if that is not used any more, \"dcd detach\" it. A device with read-only = true is \
             served even so",
        )),
        Some(_) => Ok(()),
        None => {
            let below = layer.map_or(Vec::new(), |layer| layer.kind.below_names());
            below.into_iter().try_for_each(|below| admit_no_log(file, below))
        }
    }
}

fn look_for_log(file: &StackFile, part: &str) -> Result<Result<Superblock, LogError>, Failure> {
    let (offline, parts) = start(file, &[part], Purpose::Look)?;
    Ok(read_superblock(&mut offline.part(target(&parts, part))))
}

/// Looks for a log on a part of an array; none for other parts, and for an array that does not start: then it is not served either.
/// An array on a cache is not started here: the cache is not admitted yet.
fn look_for_log_on_array(
    file: &StackFile,
    part: &str,
) -> Result<Option<Result<Superblock, LogError>>, Failure> {
    let on_devices = |array: &&str| !stands_on_a_cache(file, array);
    let Some(array) = array_below(file, part).filter(on_devices) else { return Ok(None) };
    if is_read_only(file, array) {
        return Ok(None);
    }
    Failure::unless_busy(look_for_log(file, part))
}

/// Returns the attachment of a cache of which the disk has no record, as when it was moved here: a later start would take its log for the
/// disk's. (The members of an array name their caches.)
fn unrecorded(
    choice: &CacheChoice,
    record: &Record,
    all: &Attachments,
) -> Result<Option<Attachment>, Failure> {
    if all.overlapping(record.extent()).is_some() || record.teller() == Teller::Members {
        return Ok(None);
    }
    let Some(superblock) = superblock_of(choice)?.filter(|superblock| !superblock.state.is_out_of_use())
    else {
        return Ok(None);
    };
    let cache = uuid_text(superblock.cache_uuid);
    let is_told = record.told().is_none_or(|told| told_as(&cache).is_some_and(|id| told.contains(&id)));
    let is_its_own = is_told && !record.is_retired(&cache)?;
    Ok(is_its_own.then(|| of_unknown_content(choice, record, &superblock)))
}

/// Refuses to discard a cache on another one: it has no record, so it is not known if it has dirty data.
fn admit_without_upper(choice: &CacheChoice) -> Result<(), Failure> {
    match superblock_of(choice)? {
        Some(superblock) if superblock.state.is_out_of_use() => Ok(()),
        _ => Err(Failure::refused(
            format!(
                "the cache \"{}\" stands on another one, and has no attachment record: it is not known what its log ({}) holds",
                choice.layer,
                choice.log_name().display()
            ),
            "serve it with that log, and \"dcd detach\" it first; or add --force: data that only the log has is lost",
        )),
    }
}

/// Discards every log cache of a stack, and returns the stack without them.
pub fn without_caches(file: &StackFile, force: bool) -> Result<StackFile, Failure> {
    let mut plain = file.clone();
    if force {
        plain.take_over();
    }
    let mut records = Vec::new();
    let mut logs = Vec::new();
    // The lower ones first: the upper ones are then looked at without them, as they are served.
    for choice in choices(file)?.into_iter().rev() {
        let is_upper = choice.stands_on_a_cache();
        let choice = CacheChoice::of(plain.clone(), Some(&choice.layer))?;
        if is_upper && !force {
            admit_without_upper(&choice)?;
        }
        let mut recorded = None;
        if let Some(record) = open_record(&choice)? {
            admit_without_record(
                record.lost()?,
                record.teller(),
                force,
                "Or add --force: data that only its log has is lost",
            )?;
            let mut all = record.load()?;
            let unrecorded = unrecorded(&choice, &record, &all)?;
            unrecorded.iter().for_each(|found| all.put(found.clone()));
            admit_without_cache(&all, record.extent(), force)?;
            recorded = all.of(record.extent()).map(|attachment| attachment.cache_uuid.clone());
            let gone = record.told_of_part()?;
            records.push((record, unrecorded, choice.data.clone(), gone));
        }
        plain = plain.without_cache(&choice.layer);
        eprintln!("dcd: served without its log: \"{}\"; never use that log again", choice.layer);
        logs.push((choice, recorded, is_upper));
    }
    // Nothing is discarded before all caches may be.
    for (record, unrecorded, data, gone) in records {
        if let Some(found) = unrecorded {
            record.update(|_| found)?;
        }
        record.abandon()?;
        tell_members(&plain, &data, &record, &gone)?;
    }
    for (choice, recorded, is_upper) in logs {
        mark_given_up(&choice, recorded.as_deref(), is_upper);
    }
    Ok(plain)
}

/// Marks the log of a discarded cache as discarded, if it is connected and is the one in the record: the record may be lost one day, and a
/// cache on another one has none. A log on an array is left as it is, as the array would have to be started for it.
fn mark_given_up(choice: &CacheChoice, recorded: Option<&str>, is_upper: bool) {
    if array_below(&choice.file, &choice.log).is_some() {
        return;
    }
    let Ok(mut log) = open_log(choice, Purpose::Change) else { return };
    let is_its_own = |superblock: &Superblock| {
        !superblock.state.is_out_of_use()
            && (is_upper || recorded == Some(uuid_text(superblock.cache_uuid).as_str()))
    };
    if read_superblock(&mut log).is_ok_and(|superblock| is_its_own(&superblock))
        && let Err(failure) = mark(&mut log, State::GivenUp)
    {
        // That is not fatal: the record says it, too.
        eprintln!("dcd: the log {} cannot be marked as discarded: {failure}", choice.log_name().display());
    }
}
