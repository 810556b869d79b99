//! `dcd detach`: writes all dirty data back, marks the log as out of use, and forgets the cache: the data disk is plain again.

use dcd_engine::log_cache::format::LogState;
use dcd_engine::log_cache::offline::{RescueOptions, rescue};
use dcd_stack::HumanBytes;

use crate::cli::Detach;
use crate::commands::one_disk::{self, Drained};
use crate::commands::rescue::{note_clean, unwritten, was_missing};
use crate::control::not_served;
use crate::failure::Failure;
use crate::progress::{Progress, say_so_when_interrupted};
use crate::session::absent::missing_disk;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::judge::{CacheSeen, judge_cache};
use crate::session::machine;
use crate::session::open::{OpenedCache, forget_records, mark, open_log};
use crate::session::record::{
    Attachment, AttachmentState, DiskRecord, LogSeen, RecordSeen, Refusal, told_as,
};
use crate::session::survey::{inspect, why_missing};
use crate::session::tell::tell_members;

pub fn run(args: &Detach) -> Result<(), Failure> {
    if let Some(disk) = &args.disk {
        let file = args.file.display();
        return Err(Failure::Failed(format!(
            "dcd detach is for all disks of the log together: to take out one, \"dcd remove {file} --disk {disk}\". Nothing was changed"
        )));
    }
    let mut choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
    choice.site.asked.degraded_legs = args.degraded;
    choice.site.hold(Purpose::Change);
    let gone_disks = gone_disks(&choice, &args.gone)?;
    let mut choices = choice.of_disks();
    choices.retain(|own| !is_without(&choice, &gone_disks, &own.data));
    let looked = choices.iter().map(inspect).collect::<Result<Vec<_>, Failure>>()?;
    let seen = &looked[0].0.log;
    if let Some(lacks) = choices
        .iter()
        .zip(&looked)
        .find_map(|(own, (cache, _))| was_missing(own, cache.record.as_ref(), &cache.log))
        && !args.force
    {
        return Err(Failure::refused(
            lacks,
            "if that is not possible, check its file system, or restore it from a backup; \"dcd detach --force\" then makes it a plain disk. \
             Nothing was changed",
        ));
    }
    let mut whys = Vec::new();
    for (own, (cache, record)) in choices.iter().zip(&looked) {
        match (&cache.missing, record, &cache.record) {
            (Some(why), ..) if !is_detached(&cache.log) => return Err(refuse_missing(own, why)),
            // The log has nothing for it.
            (Some(_), ..) => whys.push("it was detached before".to_owned()),
            (None, Some(_), Some(recorded)) => whys.extend(needs_no_destaging(recorded, &cache.log)),
            _ => {}
        }
    }
    if let (Some(why), true) = (whys.first(), whys.len() == looked.len()) {
        if marks_first(&looked) {
            let amount = "all that the log has";
            gone_disks.iter().try_for_each(|gone| admit_loss(args, gone, amount))?;
            let mut log = open_log(&choice, Purpose::Change)?;
            if gone_disks.is_empty() {
                forget_records(&mut log)?;
            }
            mark(&mut log, LogState::Detached)?;
        }
        forget(&choices, &looked)?;
        return done(args, &format!("{why}. {}", never_again(&choice, seen)));
    }
    for (choice, (cache, _)) in choices.iter().zip(&looked) {
        judge_cache(choice, cache, machine::this(), &choice.site.asked)?;
    }
    say_so_when_interrupted("");
    if !gone_disks.is_empty() {
        return without(args, choice, &gone_disks, &choices, &looked);
    }
    let mut opened = OpenedCache::open(&choice, Purpose::Change)?;
    let mut progress = Progress::new(args.quiet);
    let report = rescue(&mut opened.log, &mut opened.data, RescueOptions::default(), &mut |seen| {
        progress.left(seen.bytes_total - seen.bytes_done);
    });
    progress.end();
    let report = report?;
    if report.unwritten_bytes > 0 && report.unwritten_bytes == report.unsaved_bytes && report.damages == 0 {
        return Err(unwritten(report.unwritten_bytes));
    }
    if !report.is_complete() {
        let lost = HumanBytes(report.unsaved_bytes - report.unwritten_bytes);
        return Err(Failure::Damage(format!(
            "not detached: {lost} of dirty data cannot be read back from the log, which keeps it. Repair the log's device and do this again. \
             To list that data: \"dcd rescue --list\". To discard it: \"dcd rescue --force\""
        )));
    }
    // The log is marked before the records go: a crash between would leave a log that looks in use. A record that then says "clean" is of a disk
    // that lacks nothing.
    note_clean(&choice, &mut opened)?;
    mark(&mut opened.log, LogState::Detached)?;
    drop(opened);
    forget(&choices, &looked)?;
    let written = HumanBytes(report.written_bytes + report.zeroed_bytes);
    done(args, &format!("{written} was written back. {}", never_again(&choice, seen)))
}

/// Data disks that are gone for good, as the user says. Refuses one that is there.
fn gone_disks(choice: &CacheChoice, names: &[String]) -> Result<Vec<CacheChoice>, Failure> {
    if !names.is_empty() {
        not_served(&choice.site, "detach")?;
    }
    let found = |name: &String| {
        let own = one_disk::find(choice, name)?;
        match why_missing(&own)? {
            Some(_) => Ok(own),
            None => Err(Failure::refused(
                format!("data disk \"{name}\" is there"),
                format!(
                    "\"dcd remove {} --disk {name}\" writes back what the log has for it, and takes it out. Nothing was changed",
                    choice.site.path.display()
                ),
            )),
        }
    };
    let found = names.iter().map(found).collect::<Result<Vec<_>, Failure>>()?;
    if !found.is_empty() && choice.disks().iter().all(|disk| is_without(choice, &found, disk)) {
        return Err(Failure::refused(
            "all data disks are gone",
            "reconnect them. If they are lost, so is what the log has for them: \"dcd format --force\" makes a new log for other disks",
        ));
    }
    Ok(found)
}

fn is_detached(log: &LogSeen) -> bool {
    matches!(log, LogSeen::Present { state: LogState::Detached, .. })
}

/// Refuses to detach a log that may have data for a disk of several that is missing.
fn refuse_missing(own: &CacheChoice, why: &str) -> Failure {
    let action = format!(
        "reconnect it, or correct its path in the stack file, and repeat this command: nothing is lost then. If it is gone for good, first give up \
         what the log has for it: \"dcd detach {} --gone {}\". Nothing was changed",
        own.site.path.display(),
        own.data
    );
    Failure::Refused(Refusal { action, ..missing_disk(own, why) })
}

/// True for a place that no disk has, and for a disk that is gone.
fn is_without(choice: &CacheChoice, gone: &[CacheChoice], disk: &str) -> bool {
    choice.site.is_free_place(disk) || gone.iter().any(|gone| gone.data == disk)
}

/// Refuses to lose what only the log has for a disk that is gone, unless the user has accepted that.
fn admit_loss(args: &Detach, gone: &CacheChoice, amount: &str) -> Result<(), Failure> {
    if args.force {
        return Ok(());
    }
    let (stack, name) = (args.file.display(), &gone.data);
    Err(Failure::refused(
        format!(
            "{amount} for \"{name}\" would be lost: the disk is missing, and these are acknowledged writes"
        ),
        format!(
            "reconnect it, or correct its path in the stack file, and leave out --gone: nothing is lost then. If it is gone for good: \"dcd detach \
             {stack} --gone {name} --force\""
        ),
    ))
}

/// Detaches the disks that are there, by a start of the cache without those that are gone.
fn without(
    args: &Detach,
    mut choice: CacheChoice,
    gone: &[CacheChoice],
    others: &[CacheChoice],
    looked: &[(CacheSeen, Option<DiskRecord>)],
) -> Result<(), Failure> {
    choice.site.asked.degraded_disks = true;
    gone.iter().for_each(|gone| choice.site.file.leave_out_disk(&gone.data));
    let drained = Drained::by_a_start(&choice)?;
    others.iter().try_for_each(|own| drained.refuse_rest(own))?;
    let mut lost = 0;
    for gone in gone {
        let bytes = drained.after[gone.disk].dirty_bytes;
        if bytes > 0 {
            admit_loss(args, gone, &HumanBytes(bytes).to_string())?;
        }
        lost += bytes;
    }
    for (_, record) in looked {
        let known = record.as_ref().map(|record| Ok::<_, Failure>((record, record.load()?))).transpose()?;
        let Some((record, all)) = known else { continue };
        if let Some(known) = all.of(record.extent()).cloned() {
            record.update(|_| Attachment { state: AttachmentState::Clean, dirty_bytes: Some(0), ..known })?;
        }
    }
    // The log is marked first, as below.
    mark(&mut open_log(&choice, Purpose::Change)?, LogState::Detached)?;
    forget(others, looked)?;
    let written = HumanBytes(others.iter().map(|own| drained.before[own.disk].dirty_bytes).sum());
    let lost = match lost {
        0 => "nothing was lost".to_owned(),
        bytes => format!(
            "{} for the disks that are gone were given up: only the log has them, until something is written over it (if such a disk comes \
             back: dcd rescue {} --disk NAME)",
            HumanBytes(bytes),
            args.file.display()
        ),
    };
    let how = format!("{written} was written back, and {lost}. {}", never_again(&choice, &looked[0].0.log));
    done(args, &how)
}

/// Removes the records of disks whose log is marked as out of use.
fn forget(choices: &[CacheChoice], looked: &[(CacheSeen, Option<DiskRecord>)]) -> Result<(), Failure> {
    let recorded = || {
        choices.iter().zip(looked).filter_map(|(own, (cache, record))| Some((own, cache, record.as_ref()?)))
    };
    for (_, _, record) in recorded() {
        record.remove()?;
    }
    for (own, cache, record) in recorded() {
        tell_members(&own.site, &own.data, record, &gone(cache))?;
    }
    Ok(())
}

/// The caches that the members of an array, if the disk is one, name and have to forget.
fn gone(cache: &CacheSeen) -> Vec<u64> {
    let mut gone = cache.record.as_ref().map_or(Vec::new(), RecordSeen::told_of_part);
    if let LogSeen::Present { uuid, .. } = &cache.log {
        gone.extend(told_as(uuid));
    }
    gone
}

/// Warns against using the log again: a missing log cannot be marked as out of use.
fn never_again(choice: &CacheChoice, seen: &LogSeen) -> String {
    match seen {
        LogSeen::Missing(_) => {
            format!(
                "If the log {} comes back, never use it again: \"dcd format\" makes a new one",
                choice.log_name().display()
            )
        }
        LogSeen::Present { .. } => "The log is out of use: \"dcd format\" makes a new one".to_owned(),
    }
}

fn done(args: &Detach, how: &str) -> Result<(), Failure> {
    if !args.quiet {
        println!("detached; {how}");
    }
    Ok(())
}

/// True for a log that is out of use for its disks and does not say so itself yet: it is marked before its records go. The mark is for all disks
/// of the log, so it is set only once each of them needs nothing of it.
fn marks_first(looked: &[(CacheSeen, Option<DiskRecord>)]) -> bool {
    looked
        .iter()
        .any(|(cache, _)| matches!(cache.log, LogSeen::Present { state, .. } if state != LogState::Detached))
}

/// Returns the reason if a cache may be detached without reading its log, even a log with which no start is possible.
fn needs_no_destaging(record: &RecordSeen, seen: &LogSeen) -> Option<String> {
    let known = record.all.of(record.extent);
    let is_complete = known.is_some_and(|attachment| !attachment.may_lose_data());
    let LogSeen::Present { uuid, state, .. } = seen else {
        // The mark of a file says so once its last cache was detached.
        let is_told_plain = known.is_none() && record.told.as_ref().is_some_and(Vec::is_empty);
        let was_detached = is_told_plain.then(|| "it was detached before".to_owned());
        let is_missing = |known: &Attachment| format!("its log is missing, and {}", known.without_log());
        return known.filter(|_| is_complete).map(is_missing).or(was_detached);
    };
    let own = known.filter(|attachment| attachment.cache_uuid == *uuid);
    let is_told =
        || record.told.as_ref().is_some_and(|told| told_as(uuid).is_some_and(|id| told.contains(&id)));
    if *state == LogState::Detached && (own.is_some() || record.lost().is_some() && is_told()) {
        // An earlier detach was killed after it had marked the log.
        return Some("all dirty data had been written back before".to_owned());
    }
    if *state == LogState::Detached && known.is_none() && record.lost().is_none() {
        return Some("it was detached before".to_owned());
    }
    let own = own.filter(|_| is_complete)?;
    match own.state {
        AttachmentState::Abandoned => {
            Some(format!("the cache had been discarded before, and {}", own.without_log()))
        }
        _ => seen.out_of_date(own).map(|_| format!("its log is out of date, and {}", own.without_log())),
    }
}
