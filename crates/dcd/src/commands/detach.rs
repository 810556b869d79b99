//! `dcd detach`: brings everything home, marks the log as out of use, and forgets the cache: the data disk is plain again.

use dcd_engine::log_cache::format::State;
use dcd_engine::log_cache::offline::{RescueOptions, rescue};
use dcd_stack::HumanBytes;

use crate::cli::Detach;
use crate::commands::rescue::unwritten;
use crate::failure::Failure;
use crate::progress::{Progress, say_so_when_interrupted};
use crate::session::admit::admit_log;
use crate::session::choice::CacheChoice;
use crate::session::devices::Purpose;
use crate::session::open::{Inspection, Opened, inspect, mark, open_log};
use crate::session::record::{AttachmentState, LogSeen, Record, told_as};
use crate::session::tell::tell_members;

pub fn run(args: &Detach) -> Result<(), Failure> {
    let choice = CacheChoice::load(&args.file, args.layer.as_deref())?;
    let Inspection { record, seen, .. } = inspect(&choice)?;
    let mut gone = match &record {
        Some(record) => record.told_of_part()?,
        None => Vec::new(),
    };
    if let LogSeen::Present { uuid, .. } = &seen {
        gone.extend(told_as(uuid));
    }
    if let (Some(record), LogSeen::Missing(_)) = (&record, &seen) {
        forget_missing(record, &choice, &seen)?;
        tell_members(&choice.file, &choice.data, record, &gone)?;
        if !args.quiet {
            println!("detached; its log is missing, and the data disk is complete without it");
        }
        return Ok(());
    }
    if let (Some(record), LogSeen::Present { uuid, state: State::Detached, .. }) = (&record, &seen)
        && (record.load()?.of(record.extent()).is_some_and(|attachment| attachment.cache_uuid == *uuid)
            || record.lost()?.is_some()
                && record.told().is_some_and(|told| told_as(uuid).is_some_and(|id| told.contains(&id))))
    {
        // One that was killed had come as far as that.
        record.remove()?;
        tell_members(&choice.file, &choice.data, record, &gone)?;
        if !args.quiet {
            println!("detached; everything had been brought home before");
        }
        return Ok(());
    }
    if let (Some(record), LogSeen::Present { uuid, .. }) = (&record, &seen)
        && record.load()?.of(record.extent()).is_some_and(|attachment| {
            attachment.state == AttachmentState::Abandoned
                && !attachment.may_lose_data()
                && attachment.cache_uuid == *uuid
        })
    {
        // First the log, which must never be taken for the disk's again.
        mark(&mut open_log(&choice, Purpose::Change)?, State::Detached)?;
        record.remove()?;
        tell_members(&choice.file, &choice.data, record, &gone)?;
        if !args.quiet {
            println!(
                "detached; the cache had been given up before, and the data disk is complete without its log"
            );
        }
        return Ok(());
    }
    if let Some(record) = &record {
        admit_log(&choice, record, &seen)?;
    }
    say_so_when_interrupted();
    let mut opened = Opened::open(&choice, Purpose::Change)?;
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
            "not detached: {lost} of dirty data cannot be read back from the log, which keeps it. Mend the log's device and do this again, \
             or see what it is: \"dcd rescue --list\". Without it: \"dcd rescue --force\" gives it up"
        )));
    }
    // The log first: were the record gone before, a crash would leave a log that looks in use.
    mark(&mut opened.log, State::Detached)?;
    let Opened { log, data, record, .. } = opened;
    if let Some(record) = &record {
        record.remove()?;
    }
    drop((log, data));
    if let Some(record) = &record {
        tell_members(&choice.file, &choice.data, record, &gone)?;
    }
    if !args.quiet {
        println!("detached; {} was brought home", HumanBytes(report.written_bytes + report.zeroed_bytes));
    }
    Ok(())
}

/// The log is gone. If the data disk is complete without it, nothing is lost by forgetting it.
fn forget_missing(record: &Record, choice: &CacheChoice, seen: &LogSeen) -> Result<(), Failure> {
    let all = record.load()?;
    match all.of(record.extent()) {
        Some(attachment) if !attachment.may_lose_data() => Ok(record.remove()?),
        _ => {
            admit_log(choice, record, seen)?;
            Ok(())
        }
    }
}
