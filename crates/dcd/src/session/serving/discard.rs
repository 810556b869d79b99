//! Discards the log caches of a stack, whose data disk is then served without them.

use super::checks::choices;
use crate::failure::Failure;
use crate::session::below::array_below;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::of_unknown_content;
use crate::session::open::{mark, open_log, superblock_of};
use crate::session::record::{
    Attachment, DiskRecord, RecordSeen, Teller, admit_without_cache, admit_without_record, told_as, uuid_text,
};
use crate::session::site::Site;
use crate::session::survey::open_record;
use crate::session::tell::tell_members;
use dcd_engine::log_cache::format::{LogState, LogSuperblock};
use dcd_engine::log_cache::offline::read_superblock;

/// Returns the attachment of a cache whose log was started since the record was written, as where that is from a backup; or of which the disk
/// has no record, as when it was moved here: a later start would take its log for the disk's. (The members of an array name their caches.)
fn unrecorded(
    choice: &CacheChoice,
    record: &DiskRecord,
    seen: &RecordSeen,
) -> Result<Option<Attachment>, Failure> {
    let Some(superblock) = superblock_of(choice)?.filter(|superblock| !superblock.state.is_out_of_use())
    else {
        return Ok(None);
    };
    if seen.all.overlapping(seen.extent).is_some() {
        let mut doubted = seen.all.clone();
        doubted.doubt(&superblock);
        return Ok(doubted.of(seen.extent).filter(|_| doubted != seen.all).cloned());
    }
    if seen.teller == Teller::Members {
        return Ok(None);
    }
    let cache = uuid_text(superblock.cache_uuid);
    let is_told = seen.told.as_ref().is_none_or(|told| told_as(&cache).is_some_and(|id| told.contains(&id)));
    let is_its_own = is_told && !record.is_retired(&cache)?;
    Ok(is_its_own.then(|| of_unknown_content(choice, seen, &superblock)))
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
pub fn without_caches(site: &Site, force: bool) -> Result<Site, Failure> {
    let mut plain = site.clone();
    plain.asked.take_over |= force;
    let mut records = Vec::new();
    let mut logs = Vec::new();
    // The lower ones first: the upper ones are then looked at without them, as they are served.
    for choice in choices(site)?.into_iter().rev() {
        let instead = "bring the log back, or correct its path: nothing is lost then. To have one disk without the log, \"dcd rescue --disk NAME\" \
                       writes back what the log has for it. If the log is gone for good, \"dcd format --force\" makes a new one for all of them: \
                       data that only the old log has is lost";
        choice.refuse_several("they are not served without their log", instead)?;
        let is_upper = choice.stands_on_a_cache();
        let choice = CacheChoice::of(plain.clone(), Some(&choice.layer))?;
        if is_upper && !force {
            admit_without_upper(&choice)?;
        }
        let mut recorded = None;
        if let Some(record) = open_record(&choice)? {
            let mut seen = record.seen(None)?;
            let instead = "Or add --force: data that only its log has is lost";
            admit_without_record(seen.lost(), seen.teller, force, instead)?;
            let gone = seen.told_of_part();
            let unrecorded = unrecorded(&choice, &record, &seen)?;
            unrecorded.iter().for_each(|found| seen.all.put(found.clone()));
            admit_without_cache(&seen.all, seen.extent, force)?;
            recorded = seen.all.of(seen.extent).map(|attachment| attachment.cache_uuid.clone());
            records.push((record, unrecorded, choice.data.clone(), gone));
        }
        plain.file = plain.without_cache(&choice.layer);
        eprintln!(
            "dcd: \"{}\" is given up for good, and the data disk is served without it: never use its log again. The next start needs \
             --without-cache again, or a new log (dcd format), or the plain disk (dcd remove)",
            choice.layer
        );
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
    if array_below(&choice.site, &choice.log).is_some() {
        return;
    }
    let Ok(mut log) = open_log(choice, Purpose::Change) else { return };
    let is_its_own = |superblock: &LogSuperblock| {
        !superblock.state.is_out_of_use()
            && (is_upper || recorded == Some(uuid_text(superblock.cache_uuid).as_str()))
    };
    if read_superblock(&mut log).is_ok_and(|superblock| is_its_own(&superblock))
        && let Err(failure) = mark(&mut log, LogState::GivenUp)
    {
        // That is not fatal: the record says it, too.
        eprintln!("dcd: the log {} cannot be marked as discarded: {failure}", choice.log_name().display());
    }
}
